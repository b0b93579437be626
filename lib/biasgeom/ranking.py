"""How well a detector's scores rank held-out rows: AUC, precision, AUC within a type, intervals by whole questions
(judge paper M, tables 25-29).

The paper gives AUC and average precision alone. A cue's type says much about the outcome, so what a detector adds to it
is seen within a type only.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

Scores = np.ndarray | str
"""Of n rows [n], or of several runs [runs, n], NaN where a row was not scored; or the reason why there are none. Higher
means the positive class."""

ONE_CLASS = 0.05
"""With a larger share of resamples that hold one class there is no interval: what is left would be a selection."""


def evaluate(
    rows: pd.DataFrame, scores: Scores, *, against: Scores = "", draws: int = 1000, seed: int = 42
) -> dict[str, object]:
    """How well scores rank the rows by label.

    Parameters
    ----------
    rows : DataFrame [n]
        label (bool), question_id, condition.
    scores : array [n] or [runs, n], or str
        Of several runs every number is the mean.
    against : array [n], optional
        Another detector's scores: by how much the AUC exceeds theirs, on the same rows and resamples.
    draws : int
        Resamples of whole questions. Those that hold one class have no AUC and are left out, up to
        :data:`ONE_CLASS` of them.

    Returns
    -------
    dict
        auc, low, high; ap of the positive class, ap_negative of the other, prevalence of the positive one;
        within_type_auc: among all pairs of rows of one condition and unlike labels, the share in the right order (ties
        count half), with within_low, within_high; gain over ``against`` with gain_low, gain_high; n rows scored;
        reason. What can't be computed is left out, and the reason says why.
    """
    if isinstance(scores, str):
        return {"n": 0, "reason": scores}
    runs, labels = np.atleast_2d(scores), rows["label"].to_numpy(bool)
    scored = ~np.isnan(runs).all(axis=0)
    row: dict[str, object] = {"n": int(scored.sum())}
    if len(set(labels[scored])) < 2:
        reason = "its labels are of one class: there is no AUC" if scored.any() else "no row of this part was scored"
        return row | {"reason": reason}
    weights, types = _resampled(rows["question_id"].to_numpy(), draws, seed), rows["condition"].to_numpy()
    auc, within, gain, precision = [], [], [], []
    for run in runs:
        known = ~np.isnan(run)
        part = labels[known], run[known], weights[:, known]
        auc.append(_ratio(*_ordered(*part)))
        within.append(_ratio(*_within(*part, types[known])))
        precision.append([_precision(labels[known], run[known]), _precision(~labels[known], -run[known])])
        if not isinstance(against, str):
            gain.append(auc[-1] - _ratio(*_ordered(part[0], against[known], part[2])))
    row |= dict(zip(("ap", "ap_negative"), np.mean(precision, axis=0), strict=True))
    row["prevalence"] = labels[scored].mean()
    reasons = [
        _into(row, ("auc", "low", "high"), auc, "a run has rows of one class only"),
        _into(row, ("within_type_auc", "within_low", "within_high"), within, "no type has both outcomes"),
    ]
    if gain:
        _into(row, ("gain", "gain_low", "gain_high"), gain, "")
    return row | {"reason": "; ".join(filter(None, reasons))}


def _resampled(question_ids: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """How often each row is drawn, [1 + draws, n]; first the sample itself."""
    names, codes = np.unique(question_ids, return_inverse=True)
    times = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
    return np.concatenate([np.ones((1, len(codes))), times[:, codes]])


def _ordered(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of unlike labels in the right order, ties half, and all such pairs, by resample: two [draws]."""
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.diff(scores[order], prepend=-np.inf))
    weights, labels = weights[:, order], labels[order]
    positive = np.add.reduceat(weights * labels, starts, axis=1)
    negative = np.add.reduceat(weights * ~labels, starts, axis=1)
    below = np.cumsum(negative, axis=1) - negative / 2
    return (positive * below).sum(axis=1), positive.sum(axis=1) * negative.sum(axis=1)


def _within(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray, types: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    found = [_ordered(labels[types == t], scores[types == t], weights[:, types == t]) for t in np.unique(types)]
    return tuple(np.sum(parts, axis=0) for parts in zip(*found, strict=True))


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)


def _precision(labels: np.ndarray, scores: np.ndarray) -> float:
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(labels, scores)) if len(set(labels)) == 2 else np.nan


def _into(row: dict[str, object], names: tuple[str, str, str], runs: list[np.ndarray], undefined: str) -> str:
    """Put the mean over runs and its interval into the row; returns why one of them is missing."""
    estimate, *drawn = np.mean(runs, axis=0)
    if np.isnan(estimate):
        return undefined
    row[names[0]] = estimate
    if np.isnan(drawn).sum() > ONE_CLASS * len(drawn):
        return f"no interval of {names[0]}: too many resamples of questions hold one class"
    if drawn:
        row[names[1]], row[names[2]] = np.nanquantile(drawn, [0.025, 0.975])
    return ""


COLUMNS = "detector part auc low high ap ap_negative prevalence within_type_auc within_low within_high gain gain_low"
COLUMNS = [*COLUMNS.split(), "gain_high", "n", "reason"]


def measured(
    rows: pd.DataFrame,
    found: Mapping[str, Scores],
    parts: Mapping[str, Sequence[bool]],
    *,
    against: str = "type only",
    draws: int = 1000,
    seed: int = 42,
) -> pd.DataFrame:
    """:func:`evaluate` for every detector and part of the rows (name → bool [n]); gains are over ``against``."""
    made = []
    for name, scores in found.items():
        for part, mask in parts.items():
            mask = np.asarray(mask, bool)
            here, other = (
                s if isinstance(s, str) else np.atleast_2d(s)[:, mask] for s in (scores, found.get(against, ""))
            )
            other = "" if name == against or isinstance(other, str) else other[0]
            made.append({"detector": name, "part": part})
            made[-1] |= evaluate(rows[mask], here, against=other, draws=draws, seed=seed)
    return pd.DataFrame(made, columns=COLUMNS)
