"""One function a kind of figure; seaborn, one style. A figure gets tables and knows neither models nor files."""

from collections.abc import Sequence
from textwrap import fill

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Okabe-Ito colours: told apart in every common form of colour blindness.
BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#777777"

DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)))
"""Later curves are thinner and broken, so that what they would hide shows through."""


def style() -> None:
    """Set the book's figure style; every notebook calls it once."""
    sns.set_theme(context="notebook", style="ticks", font_scale=0.95)
    plt.rcParams.update({"figure.dpi": 110, "savefig.dpi": 150, "savefig.bbox": "tight", "axes.grid": True})
    plt.rcParams.update({"grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False})
    # No factor or offset in a corner, far from the tick labels that it changes.
    plt.rcParams.update({"axes.formatter.useoffset": False, "axes.formatter.limits": (-9, 9)})


def whole_ticks(axis: plt.Axes, x: str) -> None:
    """No tick between two blocks or steps, however few there are; ``x`` is the axis' column."""
    if x in ("block", "layer", "step"):
        axis.xaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


def note_empty(axis: plt.Axes, rows: pd.DataFrame, value: str, *, bars: bool = False) -> None:
    """Say in an axis without a ``value``, or with bars of no length, that it is empty, and why if the rows state it."""
    known = rows[value].dropna()
    if known.any() if bars else len(known):
        return
    stated = [why for column in ("undefined", "reason") if column in rows for why in rows[column].dropna() if why]
    why = "every value is zero" if len(known) else "; ".join(dict.fromkeys(stated)) or "no value is defined"
    style = {"ha": "center", "va": "center", "fontsize": "small", "backgroundcolor": "white"}
    axis.text(0.5, 0.5, f"nothing to draw:\n{fill(why, 36)}", transform=axis.transAxes, **style)


def signed_bars(table: pd.DataFrame, *, panel: str, label: str, value: str, low: str, high: str, xlabel: str) -> Figure:
    """Horizontal bars sorted by value, one panel a group on a common scale, with intervals.

    Parameters
    ----------
    table : DataFrame
        One row a bar.
    panel, label, value, low, high : str
        Columns: the group, the bar's name, its length, its interval.
    """
    groups = list(table.groupby(panel, sort=False))
    heights = [len(rows) for _, rows in groups]
    figure, axes = plt.subplots(
        len(groups),
        1,
        figsize=(7, 0.28 * sum(heights) + 0.9 * len(groups)),
        sharex=True,
        squeeze=False,
        gridspec_kw={"height_ratios": heights},
        layout="constrained",
    )
    for axis, (name, rows) in zip(axes[:, 0], groups, strict=True):
        rows = rows.sort_values(value)
        colours = [ORANGE if v > 0 else BLUE for v in rows[value]]
        errors = [rows[value] - rows[low], rows[high] - rows[value]]
        axis.barh(rows[label], rows[value], xerr=errors, color=colours, ecolor="black", error_kw={"lw": 1}, height=0.7)
        axis.axvline(0, color="black", lw=0.8)
        axis.set_title(name, loc="left", fontweight="bold")
        axis.grid(visible=False, axis="y")
    axes[-1, 0].set_xlabel(xlabel)
    return figure


def lines_with_bands(
    table: pd.DataFrame,
    *,
    x: str,
    panel: str,
    line: str,
    value: str,
    low: str = "",
    high: str = "",
    bands: Sequence[tuple[str, str, str]] = (),
    bands_of: str = "",
    level: str = "",
    xlabel: str,
    ylabel: str,
    columns: int = 3,
    share_y: bool = True,
    mark: float | None = None,
) -> Figure:
    """Curves with intervals over shaded null bands, one panel a group.

    Parameters
    ----------
    table : DataFrame
        One row a point of a curve.
    x, panel, line, value, low, high : str
        Columns: abscissa, group of panels, curve within a panel, value and, if given, its interval.
    bands : sequence of (low column, high column, legend text)
        Null bands, in grey.
    bands_of : str
        The curve whose bands are drawn; default: each curve's.
    level : str, optional
        Column with one height for the whole curve, drawn as a thin line in its colour.
    mark : float, optional
        Abscissa of a dotted vertical line.
    """
    groups = list(table.groupby(panel, sort=False))
    columns = min(columns, len(groups))
    rows = -(-len(groups) // columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(3.4 * columns, 2.5 * rows + 0.6),
        sharex=True,
        sharey=share_y,
        squeeze=False,
        layout="constrained",
    )
    colours = _colours(table[line].unique(), ORANGE, BLUE, GREEN)
    for axis, (name, rows_of_panel) in zip(axes.flat, groups, strict=False):
        for curve, points in rows_of_panel.groupby(line, sort=False):
            colour = colours[curve]
            for band_low, band_high, text in bands if curve == (bands_of or curve) else ():
                axis.fill_between(
                    points[x], points[band_low], points[band_high], color=GREY, alpha=0.3, lw=0, label=text
                )
            place = list(colours).index(curve)
            axis.plot(points[x], points[value], color=colour, lw=2.6 - 0.7 * place, ls=DASHES[place], label=curve)
            if level and points[level].notna().any():
                axis.axhline(points[level].iloc[0], color=colour, lw=0.9, ls="-.")
            if not low:
                continue
            axis.fill_between(points[x], points[low], points[high], color=colour, alpha=0.15, lw=0)
            for edge, text in ((low, f"{curve}: 95 % interval"), (high, None)):
                axis.plot(points[x], points[edge], color=colour, lw=0.6, ls="--", label=text)
        whole_ticks(axis, x)
        note_empty(axis, rows_of_panel, value)
        if mark is not None:
            axis.axvline(mark, color="black", lw=0.9, ls=":")
        axis.set_title(name, fontsize="medium", fontweight="bold")
    for axis in axes.flat[len(groups) :]:
        axis.set_visible(False)
    # The lowest panel of each column, which need not lie in the last row.
    for axis in axes.flat[len(groups) - columns : len(groups)]:
        axis.set_xlabel(xlabel)
        axis.tick_params(labelbottom=True)
    plt.setp(axes[:, 0], ylabel=ylabel)
    # From all panels: one may lack a curve.
    legend = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=min(len(legend), 3), frameon=False)
    return figure


def curves(
    table: pd.DataFrame, *, x: str, panels: dict[str, str], line: str, xlabel: str, shares: Sequence[str] = ()
) -> Figure:
    """Plain curves by ``line``, one panel a value column of ``panels`` (column → axis title), two panels a row.

    Undefined values are left out; a curve that has no other keeps its place in the legend. Columns in ``shares`` are
    drawn on the whole scale from 0 to 1, with a dotted line at one half.
    """
    rows = -(-len(panels) // 2)
    figure, axes = plt.subplots(
        rows, min(2, len(panels)), figsize=(7.5, 2.4 * rows + 0.4), sharex=True, squeeze=False, layout="constrained"
    )
    colours = _colours(table[line].unique(), ORANGE, BLUE, GREEN)
    for axis, (column, title) in zip(axes.flat, panels.items(), strict=False):
        for i, (name, points) in enumerate(table.groupby(line, sort=False)):
            known = points.dropna(subset=[column])
            axis.plot(known[x], known[column], color=colours[name], label=name, lw=2.6 - 0.7 * i, ls=DASHES[i])
        if column in shares:
            axis.axhline(0.5, color="black", lw=0.9, ls=":")
            axis.set_ylim(0, 1.04)
        whole_ticks(axis, x)
        note_empty(axis, table, column)
        axis.set(title=title, xlabel=xlabel, ylabel="")
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    _legend(figure, axes.flat[0])
    return figure


def shares(table: pd.DataFrame, *, rows: str, columns: str, label: str) -> Figure:
    """Female share to the right, male share to the left, their difference as a dot with its interval.

    Parameters
    ----------
    table : DataFrame
        One row a bar: counts female, male, neutral; bias, low, high.
    rows, columns, label : str
        Columns that name the panel's row, its column, and the bar. Bars are sorted by their bias in the first column.

    Raises
    ------
    ValueError
        If the first column lacks a bar that another column has: it would have no place.
    """
    known = table.loc[table[columns] == table[columns].iloc[0], label]
    if lacking := sorted(set(table[label]) - set(known)):
        raise ValueError(f"the first column has no {', '.join(map(str, lacking))}")
    heights = [part[label].nunique() for _, part in table.groupby(rows, sort=False)]
    names = list(table[columns].unique())
    figure, axes = plt.subplots(
        len(heights),
        len(names),
        figsize=(2.4 * len(names) + 1, 0.24 * sum(heights) + 0.8 * len(heights) + 0.5),
        sharex=True,
        sharey="row",
        squeeze=False,
        gridspec_kw={"height_ratios": heights},
        layout="constrained",
    )
    for line, (row, part) in zip(axes, table.groupby(rows, sort=False), strict=True):
        order = part[part[columns] == names[0]].sort_values("bias")[label]
        for axis, column in zip(line, names, strict=True):
            bars = part[part[columns] == column].set_index(label).reindex(order)
            if bars["bias"].isna().all():  # not sampled in this condition
                axis.set_visible(False)
                continue
            total = bars[["female", "male", "neutral"]].sum(axis=1)
            axis.barh(order, bars["female"] / total, color=ORANGE, alpha=0.6, height=0.75, label="female")
            axis.barh(order, -bars["male"] / total, color=BLUE, alpha=0.6, height=0.75, label="male")
            errors = [bars["bias"] - bars["low"], bars["high"] - bars["bias"]]
            axis.errorbar(bars["bias"], order, xerr=errors, fmt="o", color="black", ms=3, lw=0.9, label="bias(e)")
            axis.axvline(0, color="black", lw=0.8)
            axis.set_title(f"{row}\n{column}", fontsize="small", fontweight="bold")
            axis.grid(visible=False, axis="y")
            axis.set_xlim(-1.04, 1.04)
    _legend(figure, axes[0, 0])
    return figure


def dodged_bars(
    table: pd.DataFrame,
    *,
    group: str,
    bar: str,
    value: str,
    low: str = "",
    high: str = "",
    xlabel: str,
    level: str = "",
) -> Figure:
    """Horizontal bars, with intervals if given, several a group; ``level``, what chance reaches, is a tick on each."""
    groups, bars = list(table[group].unique()), list(table[bar].unique())
    step = 0.8 / len(bars)
    figure, axis = plt.subplots(figsize=(7, 0.27 * len(groups) * len(bars) + 1.4), layout="constrained")
    for i, (name, colour) in enumerate(_colours(bars, GREY, BLUE, ORANGE, GREEN, PINK).items()):
        rows = table[table[bar] == name]
        places = [groups.index(g) - 0.4 + (i + 0.5) * step for g in rows[group]]
        errors = [rows[value] - rows[low], rows[high] - rows[value]] if low else None
        style = {"height": 0.85 * step, "color": colour, "alpha": 0.75, "error_kw": {"lw": 1}}
        axis.barh(places, rows[value], xerr=errors, label=name, **style)
        if level:
            text = None if i else "95 % by chance"
            axis.plot(rows[level], places, ls="none", marker="|", color="black", ms=9, mew=2, label=text)
    axis.set_yticks(range(len(groups)), groups)
    axis.invert_yaxis()
    axis.set_xlabel(xlabel)
    axis.grid(visible=False, axis="y")
    note_empty(axis, table, value, bars=True)
    _legend(figure, axis)
    return figure


REMOVED = {
    "random": ("random direction", GREY, "o", 22),
    "none": ("nothing removed", "black", "X", 60),
    "gender": ("gender direction", ORANGE, "D", 50),
}


def against_random(table: pd.DataFrame, *, rows: str, columns: str, x: str, y: str, xlabel: str, ylabel: str) -> Figure:
    """One dot a direction that was removed, a panel for each pair of ``rows`` and ``columns``.

    Parameters
    ----------
    table : DataFrame
        Its column ``direction`` is "none", "gender" or begins with "random".
    """
    down, across = list(table[rows].unique()), list(table[columns].unique())
    size = (2.7 * len(across), 2.4 * len(down) + 0.6)
    figure, axes = plt.subplots(
        len(down), len(across), figsize=size, sharex="col", sharey=True, squeeze=False, layout="constrained"
    )
    kind = table["direction"].str.split().str[0]
    for line, row in zip(axes, down, strict=True):
        for axis, column in zip(line, across, strict=True):
            here = (table[rows] == row) & (table[columns] == column)
            for name, (text, colour, marker, size) in REMOVED.items():
                points = table[here & (kind == name)]
                axis.scatter(points[x], points[y], color=colour, marker=marker, s=size, label=text, alpha=0.85)
            axis.set_title(f"{column}\n{row}", fontsize="small", fontweight="bold")
            axis.set_ylim(bottom=0)
            axis.set_visible(bool(here.any()))
    for column in axes.T:
        lowest = [axis for axis in column if axis.get_visible()][-1]  # which need not lie in the last row
        lowest.set_xlabel(xlabel)
        lowest.tick_params(labelbottom=True)
    plt.setp(axes[:, 0], ylabel=ylabel)
    _legend(figure, axes[0, 0])
    return figure


def _colours(names: Sequence[str], *colours: str) -> dict[str, str]:
    if len(names) > len(colours):
        raise ValueError(f"a figure tells {len(colours)} things apart, not {len(names)}: {', '.join(map(str, names))}")
    return dict(zip(names, colours, strict=False))


def _legend(figure: Figure, axis: plt.Axes) -> None:
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
