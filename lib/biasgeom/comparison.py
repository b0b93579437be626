"""Headline numbers of every model that has results, side by side: tidy tables with intervals, or why there is none.

Tables of contributed results are other people's: a text where a number belongs counts as missing, and names are shown
escaped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from biasgeom import claims_gender
from biasgeom.claims import MissingTable, Tables
from biasgeom.markdown import with_interval
from biasgeom.shelf import Shown

KEYS = ("model", "profile", "contributed")
BIAS, LATENT = r"$\mathit{Bias}_{\mathrm{pol}}$", r"$S_{\mathrm{latent}}$"
FORMULAS = (BIAS, LATENT)
"""Columns whose names are Markdown."""
PARTS = ("negative", "positive, five types", "positive, all seven")
"""Groups of cues that pages show."""


def table(models: Sequence[Shown], notebook: str, read: Callable[[Tables], pd.DataFrame]) -> pd.DataFrame:
    """One section's rows of every model, with the columns ``model``, ``profile``, ``contributed`` and ``reason``.

    Parameters
    ----------
    models : sequence of Shown
    notebook : str
        The section, ``"<paper>/<name>"``.
    read : callable
        From one model's tables to its rows; :class:`~biasgeom.claims.MissingTable` gives one row with the reason only.
    """
    parts = []
    for model in models:
        try:
            rows = read(model.tables(notebook.split("/")[0])).assign(reason=None)
        except MissingTable as missing:
            rows = pd.DataFrame({"reason": [absence(model, notebook, missing)]})
        if "judge" in rows:
            rows = rows.replace({"judge": {model.name: model.title}})
        names = {"model": model.title, "profile": model.described["profile"], "contributed": model.contributed}
        parts.append(rows.assign(**names))
    made = pd.concat([part.astype(object) for part in parts], ignore_index=True).infer_objects()
    values = [column for column in made if column not in (*KEYS, "reason")]
    return made[[*KEYS, *values, "reason"]]


def absence(model: Shown, notebook: str, missing: MissingTable) -> str:
    """Why a model has no numbers of a section: it was not run, or something is wrong with its tables."""
    reason = model.why_not(notebook)
    return f"not run. {reason}" if reason else f"run, but {missing}"


def _numbers(frame: pd.DataFrame, texts: Sequence[str], numbers: Sequence[str]) -> pd.DataFrame:
    """The columns asked for; what is no finite number in a column of numbers becomes missing."""
    if lacking := {*texts, *numbers} - set(frame):
        raise MissingTable(f"the table lacks {', '.join(sorted(lacking))}: an older version made it")
    made = frame[[*texts, *numbers]].copy()
    for column in numbers:
        made[column] = pd.to_numeric(made[column], errors="coerce").replace([np.inf, -np.inf], np.nan)
    return made.reset_index(drop=True)


def expressed(tables: Tables) -> pd.DataFrame:
    """Bias_pol of the gendered concepts by condition, beside its mean under shuffled labels."""
    found = tables("02_expressed", "polarization", kind="gendered")
    return _numbers(found, ["condition", "concept"], ["bias_pol", "low", "high", "chance", "p"])


def encoded(tables: Tables) -> pd.DataFrame:
    """S_latent of gendered concepts over that of the controls, by condition, at the block that is compared."""
    found = tables("03_encoded", "gendered_over_control", block=_block(tables), estimator="ledoit-wolf")
    return _numbers(found, ["condition"], ["block", "ratio", "low", "high"])


def latent(tables: Tables) -> pd.DataFrame:
    """S_latent of the gendered concepts at the block that is compared, beside the upper ends of both nulls."""
    where = {"block": _block(tables), "estimator": "ledoit-wolf", "kind": "gendered"}
    found = tables("03_encoded", "polarization", **where)
    numbers = ["block", "s_latent", "low", "high", "isotropic_high", "flip_high"]
    return _numbers(found, ["condition", "concept"], numbers)


def _block(tables: Tables) -> int:
    try:
        return claims_gender.compared_block(tables)
    except (KeyError, TypeError, ValueError) as error:
        raise MissingTable(f"run.json does not tell which block is compared ({type(error).__name__})") from error


def separation(tables: Tables) -> pd.DataFrame:
    """How ΔB goes with the change of output bias, and whether it tells pairs that became more biased, by regime."""
    found = tables("05_results", "table1")
    return _numbers(found, ["measure", "regime"], ["n", "r", "r_low", "r_high", "auc", "auc_low", "auc_high"])


def contrast(tables: Tables) -> pd.DataFrame:
    """Mean ΔB of the criticised groups less that of the others at the synth end, by regime, over √(anchors)."""
    found = tables("05_results", "contrast", checkpoint="synth", measure="shift")
    made = _numbers(found, ["regime"], ["difference", "low", "high", "p"])
    anchors = _number(tables.info("05_results").get("parameters", {}).get("anchors"))
    if not anchors >= 1:
        raise MissingTable("run.json does not tell the number of anchors")
    return made.assign(**{column: made[column] / anchors**0.5 for column in ("difference", "low", "high")})


def susceptibility(tables: Tables) -> pd.DataFrame:
    """Mean shift of a judge's scores by group of cues, in points and in standard deviations of its base scores."""
    found = tables("03_landscape", "aggregates", over="all")
    low, high = "low_by_question", "high_by_question"
    numbers = ["questions", "base_mean", "delta", low, high, "cohens_d", "p_adjusted"]
    found = found.assign(note=found.get("reason"))
    shifts = _numbers(found, ["judge", "aggregate", "note"], numbers).rename(columns={low: "low", high: "high"})
    judges = _numbers(tables("03_landscape", "judges"), ["judge", "readout"], ["validity", "base sd"])
    return judges.merge(shifts, on="judge").rename(columns={"base sd": "base_sd"})


def predictability(tables: Tables) -> pd.DataFrame:
    """Test AUC for degraded scores: from the cue's type alone, and from the state."""
    found = tables("10_card", "predictor", part="test")
    return _numbers(found, ["detector"], ["auc", "low", "high", "gain", "gain_low", "gain_high", "n"])


@dataclass(frozen=True)
class Section:
    """One headline of every model.

    Attributes
    ----------
    notebook : str
        Whose table it is from, ``"<paper>/<name>"``.
    caption : str
    read : callable
        From a model's tables to its rows.
    worded : callable
        From rows to what pages show, in the words of the book.
    """

    notebook: str
    caption: str
    read: Callable[[Tables], pd.DataFrame]
    worded: Callable[[pd.DataFrame], pd.DataFrame]


def _expressed_worded(rows: pd.DataFrame) -> pd.DataFrame:
    made = with_interval(rows, value="bias_pol", name=BIAS).rename(columns={"chance": "by chance"})
    return made[["condition", "concept", BIAS, "by chance", "p"]]


def _latent_worded(rows: pd.DataFrame) -> pd.DataFrame:
    nulls = {"isotropic_high": "random directions up to", "flip_high": "flipped pairs up to"}
    made = with_interval(rows, value="s_latent", name=LATENT).rename(columns=nulls)
    return made[["condition", "concept", "block", LATENT, *nulls.values()]]


def _encoded_worded(rows: pd.DataFrame) -> pd.DataFrame:
    ratio = "gendered over control"
    return with_interval(rows, value="ratio", name=ratio)[["condition", "block", ratio]]


def _separation_worded(rows: pd.DataFrame) -> pd.DataFrame:
    made = with_interval(rows, value="r", low="r_low", high="r_high", name="r")
    made = with_interval(made, value="auc", low="auc_low", high="auc_high", name="AUC").rename(columns={"n": "pairs"})
    return made[["measure", "regime", "pairs", "r", "AUC"]]


def _contrast_worded(rows: pd.DataFrame) -> pd.DataFrame:
    less = "criticised groups less the others, ΔB over √m"
    return with_interval(rows, value="difference", name=less)[["regime", less, "p"]]


def _susceptibility_worded(rows: pd.DataFrame) -> pd.DataFrame:
    names = {"aggregate": "cues", "cohens_d": "Cohen's d", "p_adjusted": "p, adjusted"}
    made = with_interval(rows[rows["aggregate"].isin(PARTS)], value="delta", name="shift").rename(columns=names)
    made["shift"] = made["shift"].fillna("–")  # also where no judge has one: the note says why
    return made[["judge", "readout", "validity", "cues", "shift", "Cohen's d", "p, adjusted", "note"]]


def _predictability_worded(rows: pd.DataFrame) -> pd.DataFrame:
    above = "above the cue's type"
    made = with_interval(rows, value="auc", name="AUC")
    made = with_interval(made, value="gain", low="gain_low", high="gain_high", name=above)
    return made.rename(columns={"n": "answers"})[["detector", "answers", "AUC", above]]


SECTIONS = {
    "expressed": Section(
        "gender/02_expressed",
        f"Expressed bias: {BIAS} with its 95 % interval, beside its mean under shuffled labels.",
        expressed,
        _expressed_worded,
    ),
    "latent": Section(
        "gender/03_encoded",
        f"Encoded bias: {LATENT} at the compared block with its 95 % interval, beside the upper ends of two nulls. In "
        "the units of each model's own states: not to be compared between models.",
        latent,
        _latent_worded,
    ),
    "encoded": Section(
        "gender/03_encoded",
        f"Encoded bias: {LATENT} of gendered over control concepts at the compared block, with its 95 % interval.",
        encoded,
        _encoded_worded,
    ),
    "separation": Section(
        "delta_b/05_results",
        "ΔB against the change of output bias, over pairs of checkpoint and group: correlation, and AUC for pairs that "
        "became more biased, with 95 % intervals.",
        separation,
        _separation_worded,
    ),
    "contrast": Section(
        "delta_b/05_results",
        "Mean ΔB of the criticised groups less that of the others at the synth end, with its 95 % interval, over √m: "
        "ΔB grows with the root of the number m of anchors.",
        contrast,
        _contrast_worded,
    ),
    "susceptibility": Section(
        "judge/03_landscape",
        "Mean shift of a judge's scores by group of cues, with its 95 % interval over questions.",
        susceptibility,
        _susceptibility_worded,
    ),
    "predictability": Section(
        "judge/10_card",
        "Test AUC for degraded scores, and what the state adds to the cue's type, with 95 % intervals.",
        predictability,
        _predictability_worded,
    ),
}
"""What cards list one below the other, and the comparison model beside model."""


def cost(models: Sequence[Shown]) -> pd.DataFrame:
    """What each chapter took: minutes, peak memory and tokens, as measured on the machine of the run."""
    rows = []
    for model in models:
        for paper in dict.fromkeys(notebook.split("/")[0] for notebook in model.runs):
            runs = [info for notebook, info in model.runs.items() if notebook.startswith(f"{paper}/")]
            made = runs[0].get("provenance", {})
            rows.append(
                {
                    "model": model.title,
                    "profile": model.described["profile"],
                    "contributed": model.contributed,
                    "chapter": paper,
                    "notebooks": len(runs),
                    "minutes": sum(_seconds(info) for info in runs) / 60,
                    "peak_memory_mb": pd.Series([_number(info.get("peak_memory_mb")) for info in runs]).max(),
                    "tokens_read": _tokens(runs, "read"),
                    "tokens_written": _tokens(runs, "written"),
                    "computed_in": f"{made.get('dtype', '?')} on {made.get('device', '?')}",
                }
            )
    columns = [*KEYS, "chapter", "notebooks", "minutes", "peak_memory_mb", "tokens_read", "tokens_written"]
    return pd.DataFrame(rows, columns=[*columns, "computed_in"])


def _seconds(info: dict[str, Any]) -> float:
    """From the model's loading to the last table; of an older version's run, what its stages took together."""
    if "wall_seconds" in info:
        return _number(info["wall_seconds"])
    return sum(_number(seconds) for seconds in info.get("seconds", {}).values())


def _tokens(runs: Sequence[dict[str, Any]], kind: str) -> float:
    """Of all models that ran; missing where any run did not count."""
    if not all(isinstance(info.get("tokens"), dict) for info in runs):
        return np.nan
    return sum(_number(info["tokens"].get(key)) for info in runs for key in (kind, f"others_{kind}"))


def _number(value: Any) -> float:
    """A finite number as it is, all else as missing."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value)
    return float(value) if fits else np.nan


def architecture(model: Shown) -> dict[str, Any]:
    """What a model is and in what it ran, from the first of its runs; empty without any."""
    info = next(iter(model.runs.values()), {})
    made = info.get("provenance", {})
    return {
        "blocks": info.get("blocks"),
        "width": info.get("width"),
        "dtype": made.get("dtype"),
        "device": made.get("device"),
    }
