"""Maps of the judge chapter: points coloured by condition, type, score or domain. See :mod:`biasgeom.figures`."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from biasgeom.figures import BLUE, GREEN, ORANGE, PINK

HUES = (BLUE, ORANGE, GREEN, PINK, "#E69F00", "#56B4E9", "#7A5C1E")
"""With black for the baselines, the eight that common colour blindness tells apart (brown in the place of yellow)."""
MARKERS = {"": "o", "positive": "^", "negative": "v"}


def maps(
    table: pd.DataFrame, *, x: str, y: str, rows: str, columns: str, colour: str, marker: str = "", base: str = ""
) -> Figure:
    """Points by group, a panel for each pair of ``rows`` and ``columns``; a panel without points says so.

    Parameters
    ----------
    table : DataFrame
        One row a point.
    x, y, rows, columns, colour : str
        Columns: coordinates, the panels' row and column, the group that sets a point's colour.
    marker : str, optional
        Column of polarities: a triangle up for positive, down for negative, a disc for neither.
    base : str, optional
        The group that is drawn in black, on top.

    Raises
    ------
    ValueError
        More groups than colours.
    """
    colours = _colours(table[colour].dropna().unique(), base)
    down, across = list(table[rows].unique()), list(table[columns].unique())
    figure, axes = _grid(len(down), len(across))
    for i, row in enumerate(down):
        for j, column in enumerate(across):
            here = table[(table[rows] == row) & (table[columns] == column)].dropna(subset=[x, y])
            for group, hue in colours.items():
                points = here[here[colour] == group]
                kinds = points.groupby(points[marker].fillna("")) if marker else [("", points)]
                for kind, part in kinds:
                    order = 3 if group == base else 2
                    axes[i, j].scatter(
                        part[x], part[y], color=hue, marker=MARKERS[kind], s=16, alpha=0.75, lw=0, zorder=order
                    )
            _frame(axes[i, j], f"{row}\n{column}", here.empty)
    handles = [Line2D([], [], ls="none", marker="o", color=hue, label=group) for group, hue in colours.items()]
    if marker:
        kinds = [kind for kind in table[marker].dropna().unique() if kind]
        handles += [Line2D([], [], ls="none", marker=MARKERS[kind], color="grey", label=kind) for kind in kinds]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, handletextpad=0.1)
    return figure


def recoloured(table: pd.DataFrame, *, x: str, y: str, rows: str, panels: Mapping[str, str]) -> Figure:
    """The same points coloured by one column after another: ``panels`` maps column → title.

    A numeric column gets a colour scale. A group of any other gets a colour, and from the eighth on another marker; the
    group named "base" is black.
    """
    down = list(table[rows].unique())
    figure, axes = _grid(len(down), len(panels))
    for j, (column, title) in enumerate(panels.items()):
        numeric = pd.api.types.is_numeric_dtype(table[column])
        looks = {} if numeric else _looks(table[column].dropna().unique())
        for i, row in enumerate(down):
            axis, here = axes[i, j], table[table[rows] == row].dropna(subset=[x, y, column])
            if numeric:
                drawn = axis.scatter(here[x], here[y], c=here[column], cmap="viridis", s=14, alpha=0.85, lw=0)
                if len(here):
                    place = axis.inset_axes((0.15, -0.08, 0.7, 0.04))  # beside it, it would make this panel smaller
                    figure.colorbar(drawn, cax=place, orientation="horizontal")
                    place.tick_params(labelsize="x-small")
            for group, (hue, mark) in looks.items():
                points = here[here[column] == group]
                order = 3 if group == "base" else 2
                axis.scatter(points[x], points[y], color=hue, marker=mark, s=14, alpha=0.75, lw=0, zorder=order)
            _frame(axis, f"{row}\n{title}", here.empty)
        if looks:
            handles = [Line2D([], [], ls="none", marker=m, color=h, label=g) for g, (h, m) in looks.items()]
            axes[-1, j].legend(
                handles=handles,
                loc="upper center",
                bbox_to_anchor=(0.5, -0.02),
                ncols=2,
                frameon=False,
                fontsize="x-small",
                handletextpad=0.1,
                columnspacing=0.8,
            )
    return figure


def _colours(groups: Sequence[str], base: str) -> dict[str, str]:
    others = [group for group in groups if group != base]
    if len(others) > len(HUES):
        raise ValueError(f"a map tells {len(HUES)} groups apart, not {len(others)}: {', '.join(map(str, others))}")
    own = {base: "black"} if base in set(groups) else {}
    return own | dict(zip(others, HUES, strict=False))


def _looks(groups: Sequence[str]) -> dict[str, tuple[str, str]]:
    others = [group for group in groups if group != "base"]
    marks = ("o", "^", "s")
    if len(others) > len(HUES) * len(marks):
        raise ValueError(f"a map tells {len(HUES) * len(marks)} groups apart, not {len(others)}")
    looks = {"base": ("black", "o")} if len(others) < len(groups) else {}
    return looks | {group: (HUES[i % len(HUES)], marks[i // len(HUES)]) for i, group in enumerate(others)}


def _grid(down: int, across: int) -> tuple[Figure, "plt.Axes"]:
    return plt.subplots(
        down, across, figsize=(max(3.5, 2.6 * across), 2.6 * down + 0.9), squeeze=False, layout="constrained"
    )


def _frame(axis: plt.Axes, title: str, empty: bool) -> None:
    """A map's axes have no meaning of their own: one scale for both, no numbers."""
    axis.set_title(title, fontsize="small", fontweight="bold")
    axis.set(xticks=[], yticks=[])
    axis.set_aspect("equal", adjustable="datalim")
    if empty:
        axis.text(0.5, 0.5, "can't be computed\n(see the table)", ha="center", va="center", transform=axis.transAxes)
