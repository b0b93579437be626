"""Which defence works on which cue: estimators, blocks, strengths compared (judge paper, K, tables 13, 20 and 22).

:func:`panel` chooses on some pairs; :func:`compared` and :func:`at_floor` report on others, the first on clean answers,
too. See :mod:`biasgeom.defence`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from biasgeom import attack, defence, erasure
from biasgeom.defence import Cases
from biasgeom.erasure import Edit
from biasgeom.ground import Handle
from biasgeom.judging import MIN_VALID, Judged
from biasgeom.ledger import SLACK
from biasgeom.models import LanguageModel
from biasgeom.steering import UNRANKED, rank_correlation
from biasgeom.substrate import matrix

TEXT, AXIS, CONDITIONAL, LEACE = "text rewrite", "score axis", "conditional", "leace"
"""What stands beside the estimators: AXIS is a control, the direction along which clean scores fall."""


def panel(parts: Sequence[Cases], handles: Sequence[Handle], *, floor: float, **how: int) -> pd.DataFrame:
    """The strength of every direction that is best for some pairs.

    Parameters
    ----------
    parts : list of Cases
        Pairs that the strength is chosen on.
    handles : list of Handle
        From :func:`biasgeom.ground.handles`, of other pairs.
    floor : float
        Least Spearman coefficient.
    **how
        ``strengths`` and ``finer`` of :func:`biasgeom.defence.search`.

    Returns
    -------
    DataFrame
        method, block, unit (mean ‖Δh‖), floor, alpha, alpha_units, reduction_dev, spearman_dev, validity_dev, interior
        (the strength lies between 0 and the end of the range), reason.

    Raises
    ------
    ValueError
        Scores of which there is nothing to reduce.
    """
    rows = []
    for handle in handles:
        row = {"method": handle.method, "block": handle.block, "unit": handle.unit, "floor": floor}
        tried = defence.search(parts, handle, floor=floor, **how)
        if not tried["chosen"].any():
            reason = f"no strength keeps a validity of {MIN_VALID} and a Spearman coefficient of {floor:.2f}"
            rows.append(row | {"reason": reason})
            continue
        place = int(tried["chosen"].argmax())
        one = tried.iloc[place]
        row |= {"alpha": one["alpha"], "alpha_units": one["alpha_units"], "interior": 0 < place < len(tried) - 1}
        row |= {f"{name}_dev": one[name] for name in ("reduction", "spearman", "validity")}
        rows.append(row | {"reason": ""})
    columns = "method block unit floor alpha alpha_units reduction_dev spearman_dev validity_dev interior reason"
    return pd.DataFrame(rows, columns=columns.split())


def best(made: pd.DataFrame) -> pd.Series | None:
    """The row of a :func:`panel` with the largest reduction_dev, controls apart; None if no strength is feasible."""
    some = made[made["method"] != AXIS].dropna(subset=["reduction_dev"])
    return some.loc[some["reduction_dev"].idxmax()] if len(some) else None


def handle_of(row: Mapping[str, object], handles: Sequence[Handle]) -> Handle:
    """The handle that a row of a panel is about."""
    return next(handle for handle in handles if (handle.method, handle.block) == (row["method"], row["block"]))


def compared(
    judge: Judged,
    handles: Sequence[Handle],
    train: pd.DataFrame,
    baselines: pd.DataFrame,
    dev: Cases,
    test: Cases,
    clean: Cases,
    *,
    floor: str | float = "text",
    draws: int = 1000,
    seed: int = 42,
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """All defences of one cue (tables 13 and 20), and what they do to clean answers.

    Parameters
    ----------
    train, baselines : DataFrame
        The effective pairs and base answers that the handles were fitted on.
    dev, test : Cases
        What is chosen on, and what is reported.
    clean : Cases
        From :func:`clean_cases`.
    floor : number, "text" or "text as printed"
        See :func:`biasgeom.defence.least_correlation`.

    Returns
    -------
    table : DataFrame
        method; block, unit, alpha, alpha_units, reduction_dev, interior, floor; on the test pairs: reduction with its
        interval low, high, spearman, validity, pairs, and fired, the share whose state was edited; best, the estimator
        of largest reduction_dev; reason. The methods: the text rewrite; each one of the panel at its best block;
        "conditional", the best estimator only where a state projects beyond
        :func:`biasgeom.erasure.firing_threshold`; "leace" at its best block. A rewrite and LEACE have no strength to
        keep the floor by: see their spearman.
    cleaned : DataFrame
        method, shift (mean, of clean answers), spearman, validity, fired, answers, reason.
    made : DataFrame
        The :func:`panel` of ``dev``.

    Raises
    ------
    ValueError
        An undefined floor, or scores of which there is nothing to reduce.
    """
    made = panel([dev], handles, floor=defence.least_correlation([dev], floor))
    ways: list[tuple[dict[str, object], Edit | None]] = [(_rewriting(dev), None)]
    for method in made["method"].unique():
        mine = made[made["method"] == method]
        if mine["reduction_dev"].isna().all():
            ways.append((mine.iloc[0][["method", "floor", "reason"]].to_dict(), None))
            continue
        one = mine.loc[mine["reduction_dev"].idxmax()].to_dict()
        ways.append((one, erasure.steering(handle_of(one, handles).vector, one["alpha"])))
    top = best(made)
    ways.append(_conditional(judge.states, train, baselines, handles, top, seed))
    ways.append(_erasing(judge.states, train, dev, list(dict.fromkeys(made["block"]))))
    rows, cleaned = [], []
    for about, edit in ways:
        row = about | {"best": top is not None and about["method"] == top["method"]}
        other = {"method": about["method"], "answers": len(clean.base), "reason": about["reason"]}
        if not about["reason"]:
            (tested, fired), (left, fired_clean) = (defended(judge.states, p, about, edit) for p in (test, clean))
            row |= restored(test, tested, draws=draws, seed=seed) | {"fired": fired}
            moved = attack.effect(clean.base, left, draws=1)
            other |= {name: moved[name] for name in ("shift", "spearman", "validity")} | {"fired": fired_clean}
            other["reason"] = _why(moved)
        rows.append(row)
        cleaned.append(other)
    columns = "method block unit alpha alpha_units reduction low high spearman validity pairs fired reduction_dev"
    table = pd.DataFrame(rows, columns=[*columns.split(), "interior", "best", "floor", "reason"])
    columns = "method shift spearman validity fired answers reason"
    return table, pd.DataFrame(cleaned, columns=columns.split()), made


def defended(
    states: np.ndarray, part: Cases, about: Mapping[str, object], edit: Edit | None
) -> tuple[np.ndarray, float]:
    """Scores [n] under an edit at a block, and the share of states that it changes; without one, of the rewrites."""
    if edit is None:
        return part.rewritten, np.nan
    block = int(about["block"])
    edits = edit(states[part.pairs["row"], block])
    return part.steered.scores_of(block, edits).of(part.readout)[0], float(edits.any(axis=1).mean())


def restored(part: Cases, scores: np.ndarray, *, draws: int = 1000, seed: int = 42) -> dict[str, object]:
    """What scores [n] of defended answers are worth: reduction, low, high, spearman, validity, pairs, reason."""
    row = {"reduction": float(defence.reduction(scores, part.biased, part.base)), "pairs": len(scores)}
    row["low"], row["high"] = defence.reduction_interval(scores, part.biased, part.base, draws=draws, seed=seed)
    row |= {"spearman": rank_correlation(scores, part.base), "validity": float((~np.isnan(scores)).mean())}
    return row | {"reason": _why(row)}


def _why(row: Mapping[str, object]) -> str:
    """Why there is no number, or no rank correlation."""
    if not row["validity"]:
        return "no valid score or usable rewrite"
    return UNRANKED if np.isnan(row["spearman"]) else ""


def at_floor(parts: Sequence[Cases], handles: Sequence[Handle], test: Cases, floor: str | float) -> dict[str, object]:
    """The best estimator and the text rewrite under one Spearman floor, of both (K.2, table 22).

    How the paper holds a fixed rewrite at an absolute floor it doesn't say; here it counts if its rank correlation on
    ``parts``, where strengths are chosen, keeps the floor, and has no strength to turn down if not.

    Returns
    -------
    dict
        activation_reduction and text_reduction on the test pairs; method, block, alpha_units; spearman_floor; reason.
    """
    try:
        least = defence.least_correlation(parts, floor)
    except ValueError as error:
        return {"reason": str(error)}
    row, why = {"spearman_floor": least}, []
    made = panel(parts, [handle for handle in handles if handle.method != AXIS], floor=least)
    if (top := best(made)) is None:
        why.append("no strength keeps the floor")
    else:
        found = defence.sweep([test], handle_of(top, handles), np.array([top["alpha_units"]]))
        row |= {name: top[name] for name in ("method", "block", "alpha_units")}
        row["activation_reduction"] = found["reduction"].iloc[0]
    kept = rank_correlation(defence.joined(parts, "rewritten"), defence.joined(parts, "base"))
    if kept >= least - SLACK:
        row["text_reduction"] = float(defence.reduction(test.rewritten, test.biased, test.base))
    else:
        why.append(f"the rewrite's Spearman coefficient is {kept:.2f}" if kept == kept else "the rewrite has none")
    return row | {"reason": "; ".join(why)}


def clean_cases(
    lm: LanguageModel,
    judge: Judged,
    baselines: pd.DataFrame,
    rewrites: Mapping[str, str | None],
    *,
    readout: str = "expected",
) -> Cases:
    """Base answers without a cue, each in the place of its own biased answer: what does a defence do to them?"""
    return defence.cases(lm, judge, baselines.assign(base_row=baselines["row"]), rewrites, readout=readout)


def _rewriting(dev: Cases) -> dict[str, object]:
    found = float(defence.reduction(dev.rewritten, dev.biased, dev.base))
    return {"method": TEXT, "reduction_dev": found, "reason": ""}


def _conditional(
    states: np.ndarray,
    train: pd.DataFrame,
    baselines: pd.DataFrame,
    handles: Sequence[Handle],
    top: pd.Series | None,
    seed: int,
) -> tuple[dict[str, object], Edit | None]:
    if top is None:
        return {"method": CONDITIONAL, "reason": "no estimator has a strength"}, None
    block = top["block"]
    about = {name: top[name] for name in ("block", "unit", "alpha", "alpha_units", "floor")}
    about |= {"method": CONDITIONAL, "reason": ""}
    try:
        beyond = erasure.firing_threshold(states, train, baselines, block, top["method"], seed=seed)
    except ValueError as error:
        return about | {"reason": str(error)}, None
    centre = matrix(states[baselines["row"], block], "states").mean(axis=0)
    return about, erasure.steering(handle_of(top, handles).vector, top["alpha"], centre=centre, beyond=beyond)


def _erasing(
    states: np.ndarray, train: pd.DataFrame, dev: Cases, blocks: Sequence[int]
) -> tuple[dict[str, object], Edit | None]:
    tried = []
    for block in blocks:
        both = states[np.concatenate([train["base_row"], train["row"]]), block]
        try:
            edit = erasure.leace(both, np.repeat([False, True], len(train)))
        except (ValueError, ImportError) as error:
            return {"method": LEACE, "reason": str(error)}, None
        scores, _ = defended(states, dev, {"block": block}, edit)
        found = float(defence.reduction(scores, dev.biased, dev.base))
        tried.append(({"method": LEACE, "block": block, "reduction_dev": found, "reason": ""}, edit))
    return max(tried, key=lambda one: np.nan_to_num(one[0]["reduction_dev"], nan=-np.inf))
