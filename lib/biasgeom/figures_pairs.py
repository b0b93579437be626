"""Figures of the ΔB chapter: pairs, spectra, curves of detection. See :mod:`biasgeom.figures` for style and colours."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from biasgeom.figures import BLUE, GREEN, GREY, ORANGE, PINK, note_empty, whole_ticks

COLOURS = (BLUE, ORANGE, GREEN, PINK, GREY, "black")
MARKERS = ("o", "s", "^", "D", "v", "P")


def _panels(names: Sequence[str], columns: int, size: tuple[float, float], **shared: object) -> tuple[Figure, dict]:
    names = list(names) or ["nothing to show"]
    columns = min(columns, len(names))
    rows = -(-len(names) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(size[0] * columns, size[1] * rows + 0.5), squeeze=False, layout="constrained", **shared
    )
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    return figure, dict(zip(names, axes.flat, strict=False))


def _told_apart(names: Sequence[str]) -> list[str]:
    """The names, if there is a colour for each."""
    if len(names) > len(COLOURS):
        raise ValueError(f"{len(names)} curves in one panel can't be told apart; at most {len(COLOURS)}")
    return list(names)


def scatter(
    table: pd.DataFrame, *, x: str, y: str, panel: str, share: str, half: str, xlabel: str, ylabel: str
) -> Figure:
    """Pairs coloured by ``share`` of the synth end, the two values of ``half`` by marker, with a least-squares line.

    One panel a value of ``panel``, two a row, each on its own horizontal scale: measures differ in unit.
    """
    figure, axes = _panels(list(table[panel].unique()), 2, (3.8, 3.0), sharey=True)
    colours = plt.get_cmap("viridis_r")
    markers = dict(zip(sorted(table[half].unique()), MARKERS, strict=False))
    for name, axis in axes.items():
        points = table[table[panel] == name]
        for value, rows in points.groupby(half):
            colour = colours(rows[share].to_numpy())
            axis.scatter(rows[x], rows[y], c=colour, marker=markers[value], s=26, alpha=0.85, lw=0)
        if points[x].nunique() > 1:
            slope, intercept = np.polyfit(points[x], points[y], 1)
            ends = np.array([points[x].min(), points[x].max()])
            axis.plot(ends, intercept + slope * ends, color="black", lw=1.2)
        axis.axhline(0, color="grey", lw=0.7, ls=":")
        axis.axvline(0, color="grey", lw=0.7, ls=":")
        axis.set_title(name, loc="left", fontweight="bold")
        axis.set(xlabel=xlabel, ylabel="")
        axis.xaxis.set_major_locator(MaxNLocator(4))
    for axis in list(axes.values())[::2]:
        axis.set_ylabel(ylabel)
    shares = sorted(table[share].unique())
    handles = [_dot(f"{s:.0%} synth", colours(s)) for s in shares]
    handles += [_dot(str(name), "grey", marker) for name, marker in markers.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _dot(label: str, colour: object, marker: str = "o") -> Line2D:
    return Line2D([], [], ls="none", marker=marker, color=colour, label=label)


def heatmap(
    table: pd.DataFrame, *, rows: str, columns: str, value: str, panel: str, label: str, divide: int = 0
) -> Figure:
    """``value`` on one scale that is white at zero, one panel a value of ``panel``; a line below row ``divide``."""
    names = list(table[panel].unique())
    height = 0.26 * table[rows].nunique() + 0.8
    figure, axes = _panels(names, len(names), (3.6, height), sharey=True)
    limit = float(table[value].abs().max())
    for name, axis in axes.items():
        part = table[table[panel] == name]
        wide = part.pivot(index=rows, columns=columns, values=value)
        wide = wide.loc[table[rows].unique(), part[columns].unique()]
        sns.heatmap(
            wide,
            ax=axis,
            cmap="RdBu",
            vmin=-limit,
            vmax=limit,
            center=0,
            cbar=name == names[-1],
            cbar_kws={"label": label},
        )
        if divide:
            axis.axhline(divide, color="black", lw=2)
        axis.set_title(name, loc="left", fontweight="bold")
        axis.set(xlabel=columns, ylabel="")
    return figure


def roc(table: pd.DataFrame, *, panels: Sequence[str], panel: str, line: str) -> Figure:
    """ROC curves from :func:`biasgeom.pairs.roc`, with the diagonal of chance; a panel without a curve says so."""
    figure, axes = _panels(panels, 2, (3.7, 3.4))
    names = _told_apart(table[line].unique())
    for name, axis in axes.items():
        here = table[table[panel] == name]
        for i, curve in enumerate(names):
            points = here[here[line] == curve]
            style = {"color": COLOURS[i], "lw": 2.4 - 0.4 * i, "label": curve}
            axis.plot(points["false_positive"], points["true_positive"], **style)
        axis.plot([0, 1], [0, 1], color="grey", lw=0.8, ls=":")
        if here.empty:
            axis.text(0.5, 0.3, "labels of one class:\nno curve", ha="center")
        axis.set_title(name, loc="left", fontweight="bold")
        axis.set(xlabel="false positives", ylabel="true positives", aspect="equal")
    handles, labels = next(iter(axes.values())).get_legend_handles_labels()
    if labels:
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def lines(
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    line: str,
    panel: str,
    xlabel: str,
    ylabel: str,
    low: str = "",
    high: str = "",
    level: float | None = None,
    log_x: bool = False,
    share_y: bool = True,
) -> Figure:
    """Marked lines, one panel a value of ``panel``, with intervals if ``low`` and ``high`` name columns.

    Parameters
    ----------
    level : float, optional
        A dotted horizontal line.
    """
    figure, axes = _panels(list(table[panel].unique()), 2, (3.8, 2.8), sharey=share_y)
    names = _told_apart(table[line].unique())
    for title, axis in axes.items():
        for i, name in enumerate(names):
            points = table[(table[panel] == title) & (table[line] == name)].dropna(subset=[y])
            axis.plot(points[x], points[y], color=COLOURS[i], marker=MARKERS[i], ms=4, lw=1.6, label=name)
            if low:
                axis.fill_between(points[x], points[low], points[high], color=COLOURS[i], alpha=0.15, lw=0)
        if level is not None:
            axis.axhline(level, color="black", lw=0.9, ls=":")
        if log_x and table[y].notna().any():  # an axis without a point has no logarithm
            axis.set_xscale("log")
        whole_ticks(axis, x)
        note_empty(axis, table[table[panel] == title], y)
        axis.set_title(title, loc="left", fontweight="bold")
        axis.set(xlabel=xlabel, ylabel="")
    for axis in list(axes.values())[::2]:
        axis.set_ylabel(ylabel)
    handles, labels = next(iter(axes.values())).get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=max(1, min(3, len(labels))), frameon=False)
    return figure


def dots(table: pd.DataFrame, *, row: str, value: str, mark: str, xlabel: str, low: str = "", high: str = "") -> Figure:
    """A row a value of ``row``, a dot a value of ``mark``; intervals if ``low`` and ``high`` name columns."""
    rows, marks = list(table[row].unique()), _told_apart(table[mark].unique())
    figure, axis = plt.subplots(figsize=(7, 0.27 * len(rows) + 1.3), layout="constrained")
    for i, name in enumerate(marks):
        points = table[table[mark] == name]
        places = [rows.index(r) + 0.25 * (i - (len(marks) - 1) / 2) / max(1, len(marks) - 1) for r in points[row]]
        if low:  # lines, not error bars: an interval may miss its estimate
            axis.hlines(places, points[low], points[high], color=COLOURS[i], lw=0.9)
        axis.plot(points[value], places, ls="none", marker=MARKERS[i], color=COLOURS[i], ms=5, label=name)
    axis.axvline(0, color="black", lw=0.8)
    axis.set_yticks(range(len(rows)), rows)
    axis.invert_yaxis()
    axis.set_xlabel(xlabel)
    axis.grid(visible=False, axis="y")
    note_empty(axis, table, value)
    figure.legend(loc="outside lower center", ncols=max(1, min(3, len(marks))), frameon=False)
    return figure


def audit_steps(
    representations: Mapping[str, np.ndarray], anchors: Sequence[str], associations: pd.DataFrame, *, sentence: str
) -> Figure:
    """One sentence on its way through the audit: compared with anchors, associated, subtracted (the paper's figure 1).

    Parameters
    ----------
    representations : mapping of model → array [anchors]
        The sentence's relative representation at the anchors that are shown.
    associations : DataFrame
        model, positive, negative (S⁺ and S⁻ of the sentence's group) and B; the reference first.
    """
    height = 0.25 * len(anchors) + 4.6
    figure, axes = plt.subplots(
        3, 1, figsize=(7, height), height_ratios=(0.25 * len(anchors), 1.5, 1.2), layout="constrained"
    )
    columns = pd.DataFrame({name: np.asarray(values) for name, values in representations.items()}, index=list(anchors))
    sns.heatmap(columns, ax=axes[0], cmap="viridis", cbar_kws={"label": "cosine"}, linewidths=0.5)
    axes[0].tick_params(axis="y", rotation=0, labelsize=8)
    axes[0].set_title(f"1. “{sentence}”, by similarity to anchors", loc="right", fontweight="bold", fontsize=10)
    for i, row in enumerate(associations.itertuples()):
        axes[1].plot([row.negative, row.positive], [i, i], color="grey", lw=1, zorder=1)
        axes[1].scatter(
            [row.positive], [i], color=BLUE, marker="o", s=60, label=None if i else "S⁺, to positive sentences"
        )
        axes[1].scatter(
            [row.negative], [i], color=ORANGE, marker="s", s=60, label=None if i else "S⁻, to negative ones"
        )
        axes[2].barh(i, row.B, color=GREY, height=0.6)
    for axis in axes[1:]:
        axis.set_yticks(range(len(associations)), associations["model"])
        axis.set_ylim(len(associations) - 0.5, -0.5)
        axis.grid(visible=False, axis="y")
    axes[1].legend(frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    axes[1].set_title(
        "2. The group's sentences in that space (negated distance)", loc="right", fontsize=10, fontweight="bold"
    )
    shift = associations["B"].iloc[-1] - associations["B"].iloc[0]
    axes[2].axvline(0, color="black", lw=0.8)
    axes[2].set_title(f"3. B = S⁺ − S⁻; ΔB = {shift:+.3f}", loc="right", fontsize=10, fontweight="bold")
    return figure
