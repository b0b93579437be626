"""Figures of the judge chapter's behaviour pages. See :mod:`biasgeom.figures` for style and colours."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from biasgeom.figures import BLUE, GREEN, GREY, ORANGE

SETS = {"base": (GREY, "-", 0.35), "negative": (BLUE, "-", 0.0), "positive": (ORANGE, (0, (4, 1.5)), 0.0)}
"""Colour, line and opacity of the filling of each set of answers."""
VOICES = {"plain": (BLUE, "o"), "neutral": (GREEN, "s"), "tentative": (ORANGE, "^")}


def distributions(table: pd.DataFrame, *, panel: str) -> Figure:
    """Score distributions of base, negative and positive answers (the paper's figure 3), one panel a judge.

    Parameters
    ----------
    table : DataFrame
        From :func:`biasgeom.landscape.distribution`: set, score, share, and the column ``panel``. A panel without a
        score says so.
    """
    names = list(table[panel].unique())
    figure, axes = plt.subplots(1, len(names), figsize=(4 * len(names), 3.2), squeeze=False, layout="constrained")
    for name, axis in zip(names, axes[0], strict=True):
        here = table[table[panel] == name]
        for part, (colour, line, fill) in SETS.items():
            rows = here[here["set"] == part]
            edges, shares = _edges(rows["score"].to_numpy()), rows["share"].to_numpy()
            if np.isnan(shares).all():
                continue
            axis.stairs(shares, edges, color=colour, ls=line, lw=1.8, label=part)
            if fill:
                axis.stairs(shares, edges, color=colour, fill=True, alpha=fill, lw=0)
        if here["share"].isna().all():
            axis.text(0.5, 0.5, "no score", ha="center", transform=axis.transAxes)
        axis.set_title(name, loc="left", fontweight="bold", fontsize=10)
        axis.set(xlabel="score", ylabel="share of the answers")
    _legend(figure, axes)
    return figure


def _words(name: str) -> str:
    return name.replace("_", " ")


def _edges(middles: np.ndarray) -> np.ndarray:
    step = middles[1] - middles[0]
    return np.append(middles - step / 2, middles[-1] + step / 2)


def shift_maps(table: pd.DataFrame, *, panel: str, by: str = "domain") -> Figure:
    """Mean shift by type and domain (the paper's table 3): a row of maps a judge, one map a polarity.

    Parameters
    ----------
    table : DataFrame
        From :func:`biasgeom.landscape.cells`, with the column ``panel``. White is zero; each judge has a scale of its
        own, since judges differ in it by an order of magnitude. A cell without a pair is hatched.
    """
    names, polarities = list(table[panel].unique()), list(table["polarity"].unique())
    size = (max(7, 1.6 + 0.34 * table[by].nunique() * len(polarities)), 2.6 * len(names) + 0.9)
    figure, axes = plt.subplots(
        len(names), len(polarities), figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for name, line in zip(names, axes, strict=True):
        here = table[table[panel] == name]
        limit = here["delta"].abs().max()
        limit = float(limit) if limit > 0 else 1.0  # all zero or nothing at all: any scale does
        for polarity, axis in zip(polarities, line, strict=True):
            wide = here[here["polarity"] == polarity].pivot(index="bias", columns=by, values="delta")
            wide = wide.loc[here["bias"].unique(), here[by].unique()].rename(columns=_words)
            scale = {"cmap": "RdBu", "vmin": -limit, "vmax": limit, "center": 0, "linewidths": 0.5}
            scale |= {"xticklabels": True, "yticklabels": True}  # all, however close they stand
            last = polarity == polarities[-1]
            sns.heatmap(wide, ax=axis, **scale, cbar=last, cbar_kws={"label": "mean shift"} if last else None)
            axis.patch.set(hatch="////", edgecolor=GREY)
            axis.set_title(f"{name}, {polarity}", loc="left", fontweight="bold", fontsize=10)
            axis.set(xlabel="", ylabel="")
            axis.tick_params(axis="x", rotation=90)
            axis.tick_params(axis="y", rotation=0)
    return figure


def planted_against_recovered(table: pd.DataFrame, *, panel: str, null: float) -> Figure:
    """Planted and recovered shift of each cue and voice with ± 2 standard errors, and the line on which they agree.

    Parameters
    ----------
    table : DataFrame
        From :func:`biasgeom.controls.recovered` by voice, with the column ``panel``.
    null : float
        Half the height of the grey band about zero: what a cue without a planted shift may do.
    """
    names = list(table[panel].unique())
    figure, axes = plt.subplots(
        1, len(names), figsize=(4 * len(names), 3.8), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    ends = np.array([table["planted"].min(), table["planted"].max()])
    for name, axis in zip(names, axes[0], strict=True):
        axis.axhspan(-null, null, color=GREY, alpha=0.2, lw=0, label=f"within {null:g} of zero")
        axis.plot(ends, ends, color="black", lw=0.9, ls=":", label="as planted")
        for place, (voice, (colour, marker)) in enumerate(VOICES.items()):
            rows = table[(table[panel] == name) & (table["voice"] == voice)].dropna(subset=["recovered"])
            style = {"fmt": marker, "color": colour, "ms": 5, "lw": 0.9, "alpha": 0.85}
            aside = 0.06 * (place - 1)  # else the cues without a planted shift would all lie on one line
            axis.errorbar(rows["planted"] + aside, rows["recovered"], 2 * rows["se"].fillna(0), label=voice, **style)
        axis.set_title(name, loc="left", fontweight="bold", fontsize=10)
        axis.set(xlabel="planted shift", ylabel="recovered shift")
    _legend(figure, axes)
    return figure


def equivalence(table: pd.DataFrame, *, label: str, mark: str, centre: float, margin: float, xlabel: str) -> Figure:
    """Means with intervals (columns mean, low, high) over the band in which they count as equivalent.

    Parameters
    ----------
    label, mark : str
        Columns: the row, and what its colour tells, three values at most.
    """
    colours: Mapping[str, str] = dict(zip(table[mark].unique(), (BLUE, ORANGE, GREEN), strict=False))
    figure, axis = plt.subplots(figsize=(7, 0.32 * len(table) + 1.2), layout="constrained")
    axis.axvspan(
        centre - margin, centre + margin, color=GREY, alpha=0.2, lw=0, label=f"within {margin:g} of {centre:g}"
    )
    axis.axvline(centre, color="black", lw=0.8)
    for value, colour in colours.items():
        rows = table[table[mark] == value]
        errors = [rows["mean"] - rows["low"], rows["high"] - rows["mean"]]
        places = np.flatnonzero(table[mark] == value)
        axis.errorbar(rows["mean"], places, xerr=errors, fmt="o", color=colour, ms=4, lw=1.2, label=value)
    axis.set_yticks(range(len(table)), table[label])
    axis.set_ylim(len(table) - 0.5, -0.5)
    axis.set_xlabel(xlabel)
    axis.grid(visible=False, axis="y")
    _legend(figure, np.array([[axis]]))
    return figure


def _legend(figure: Figure, axes: np.ndarray) -> None:
    """One legend from all panels: one may lack a curve."""
    found = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=3, frameon=False)
