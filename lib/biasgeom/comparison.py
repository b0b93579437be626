"""Headline numbers of every model that has results, side by side: tidy tables with intervals, or why there is none.

Tables of contributed results are other people's: a text where a number belongs counts as missing, and names are shown
escaped.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from biasgeom import claims_gender
from biasgeom.claims import MissingTable, Tables
from biasgeom.shelf import Shown

KEYS = ("model", "profile", "contributed")


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
            rows = pd.DataFrame({"reason": [f"not run: {model.why_not(notebook) or missing}"]})
        names = {"model": model.name, "profile": model.described["profile"], "contributed": model.contributed}
        parts.append(rows.assign(**names))
    made = pd.concat([part.astype(object) for part in parts], ignore_index=True).infer_objects()
    values = [column for column in made if column not in (*KEYS, "reason")]
    return made[[*KEYS, *values, "reason"]]


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
    """Mean ΔB of the criticised groups less that of the others at the synth end, by regime."""
    found = tables("05_results", "contrast", checkpoint="synth", measure="shift")
    return _numbers(found, ["regime"], ["difference", "low", "high", "p"])


def susceptibility(tables: Tables) -> pd.DataFrame:
    """Mean shift of a judge's scores by group of cues, in points and in standard deviations of its base scores."""
    found = tables("03_landscape", "aggregates", over="all")
    low, high = "low_by_question", "high_by_question"
    numbers = ["questions", "base_mean", "delta", low, high, "cohens_d", "p_adjusted"]
    shifts = _numbers(found, ["judge", "aggregate"], numbers).rename(columns={low: "low", high: "high"})
    judges = _numbers(tables("03_landscape", "judges"), ["judge", "readout"], ["validity", "base sd"])
    return judges.merge(shifts, on="judge").rename(columns={"base sd": "base_sd"})


def predictability(tables: Tables) -> pd.DataFrame:
    """Test AUC for degraded scores: from the cue's type alone, and from the state."""
    found = tables("10_card", "predictor", part="test")
    return _numbers(found, ["detector"], ["auc", "low", "high", "gain", "gain_low", "gain_high", "n"])


def cost(models: Sequence[Shown]) -> pd.DataFrame:
    """What each chapter took: minutes, peak memory and tokens, as measured on the machine of the run."""
    rows = []
    for model in models:
        for paper in dict.fromkeys(notebook.split("/")[0] for notebook in model.runs):
            runs = [info for notebook, info in model.runs.items() if notebook.startswith(f"{paper}/")]
            made = runs[0].get("provenance", {})
            rows.append(
                {
                    "model": model.name,
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
