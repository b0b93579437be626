"""One picture for every section of the comparison: a point with its interval for each model."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from biasgeom.figures import BLUE, GREEN, GREY, ORANGE, PINK

MARKS = (("o", BLUE), ("s", ORANGE), ("^", GREEN), ("D", PINK))


def intervals(
    frame: pd.DataFrame,
    *,
    panel: str,
    series: str,
    value: str,
    xlabel: str,
    bounds: tuple[str, str] | None = ("low", "high"),
    line: float | None = None,
) -> Figure | None:
    """Models from top to bottom, one panel a group, one mark a series, with intervals; None without a number.

    Parameters
    ----------
    frame : DataFrame
        One row a point, with a column ``model``; contributed models are marked by an asterisk.
    panel, series, value : str
        Columns: the group, what is told apart by mark and colour, the number.
    xlabel : str
        What the number is.
    bounds : pair of str, optional
        Columns of the interval; None draws none.
    line : float, optional
        Where no effect would lie.
    """
    frame = frame.dropna(subset=[value])
    if frame.empty:
        return None
    names = list(dict.fromkeys(frame["model"]))
    panels, kinds = list(dict.fromkeys(frame[panel])), list(dict.fromkeys(frame[series]))
    strange = set(frame.loc[frame["contributed"], "model"])
    figure, axes = plt.subplots(
        1,
        len(panels),
        figsize=(8, 1.2 + 0.13 * len(names) * (len(kinds) + 1)),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, group in zip(axes[0], panels, strict=True):
        for place, kind in enumerate(kinds):
            rows = frame[(frame[panel] == group) & (frame[series] == kind)]
            marker, colour = MARKS[place % len(MARKS)]
            heights = np.array([names.index(name) for name in rows["model"]], float) + (
                place - (len(kinds) - 1) / 2
            ) / (len(kinds) + 1)
            errors = None
            if bounds:
                spans = (rows[value] - rows[bounds[0]], rows[bounds[1]] - rows[value])
                errors = np.nan_to_num(np.clip(np.asarray(spans, float), 0, None))
            axis.errorbar(
                rows[value], heights, xerr=errors, fmt=marker, color=colour, markersize=5, lw=1.2, label=_plain(kind)
            )
        if line is not None:
            axis.axvline(line, color=GREY, lw=1, ls="--")
        axis.set_title(_plain(group), loc="left", fontsize="medium", fontweight="bold")
        axis.grid(visible=False, axis="y")
    labels = [_plain(f"{name} *" if name in strange else name) for name in names]
    axes[0, 0].set_yticks(range(len(names)), labels)
    axes[0, 0].set_ylim(len(names) - 0.5, -0.5)
    figure.supxlabel(xlabel, fontsize="medium")
    if len(kinds) > 1:
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=min(len(kinds), 3))
    return figure


def _plain(text: object) -> str:
    """Short, and without what Matplotlib reads as a formula."""
    words = str(text).replace("$", r"\$")
    return words if len(words) <= 40 else f"{words[:19]}…{words[-20:]}"
