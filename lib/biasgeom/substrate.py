"""Which judgements count as biased, and which of their states lie far from the baselines' (judge paper 3.3, F.1).

There are fewer baselines than dimensions, so their covariance is Ledoit and Wolf's, and a state is measured against the
baselines of other questions only: in sample every baseline lies near its own centre, and a percentile of such distances
means nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

CORE = 5
"""A core with fewer members is replaced by all effective pairs."""
TINY = 1e-12
"""Relative to its scale, what is as good as zero."""


def too_few(pairs: int, need: str) -> str:
    """What is said where a cue has too few effective pairs."""
    return f"{pairs} effective pair{'' if pairs == 1 else 's'}; {need}: judge more questions"


def effective(shifts: pd.DataFrame, points: float) -> pd.DataFrame:
    """The effective substrate: rows whose score moved in the cue's direction by ``points`` or more (F.1, eq. 3).

    Parameters
    ----------
    shifts : DataFrame
        From :func:`biasgeom.landscape.shifts`: polarity and shift, among others. A missing shift is not effective.
    points : float
        The judge's threshold δs. Where it is zero or missing, all scores are alike, and no row is effective.
    """
    along = shifts["shift"].where(shifts["polarity"] == "positive", -shifts["shift"])
    return shifts[(along >= points) & (points > 0)]


def mahalanobis(baseline: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Distances of states from baselines, [m, d] and [n, d] → [n], with the baselines' Ledoit–Wolf covariance.

    Raises
    ------
    ValueError
        Fewer than two baselines, another width, or baselines that are all the same.
    """
    from sklearn.covariance import ledoit_wolf_shrinkage

    baseline, states = matrix(baseline, "baseline"), matrix(states, "states")
    if len(baseline) < 2 or baseline.shape[1] != states.shape[1]:
        raise ValueError(f"two or more baselines of the states' width are needed; got {baseline.shape}, {states.shape}")
    centre = baseline.mean(axis=0)
    centred, moved = baseline - centre, states - centre
    if not centred.any():
        raise ValueError("the baseline states are all the same; read them from different texts")
    shrinkage = ledoit_wolf_shrinkage(centred, assume_centered=True)
    # In the basis of the baselines' own axes the shrunk covariance is diagonal, and one number outside their span.
    _, singular, axes = np.linalg.svd(centred, full_matrices=False)
    variances = singular**2 / len(baseline)
    floor = shrinkage * variances.sum() / baseline.shape[1]
    inside = moved @ axes.T
    kept = (1 - shrinkage) * variances + floor > TINY * variances.max()
    squared = (inside[:, kept] ** 2 / ((1 - shrinkage) * variances + floor)[kept]).sum(axis=1)
    if floor > 0:
        squared += np.maximum((moved**2).sum(axis=1) - (inside**2).sum(axis=1), 0) / floor
    return np.sqrt(squared)


def question_folds(questions: Sequence[object], *, folds: int = 5, seed: int = 42) -> pd.Series:
    """Question → fold, 0 to folds − 1: rows of one question stay together; folds differ by one question at most.

    Raises
    ------
    ValueError
        Fewer questions than folds.
    """
    names = np.unique(np.asarray(questions))
    if len(names) < folds:
        raise ValueError(f"{len(names)} questions can't be split into {folds} folds; judge more questions")
    order = np.random.default_rng(seed).permutation(len(names))
    return pd.Series(order % folds, index=names)


def cross_fitted_distances(
    baseline: np.ndarray,
    base_questions: Sequence[object],
    states: np.ndarray,
    questions: Sequence[object],
    *,
    folds: int = 5,
    seed: int = 42,
) -> tuple[np.ndarray, np.ndarray]:
    """:func:`mahalanobis` of baselines [m] and states [n], each from the baselines of the other folds' questions.

    Raises
    ------
    ValueError
        Fewer questions than folds, or a state of a question without a baseline.
    """
    fold = question_folds(base_questions, folds=folds, seed=seed)
    if lacking := sorted(set(questions) - set(fold.index)):
        raise ValueError(f"no baseline for the questions {', '.join(map(str, lacking[:5]))}; pass every base answer")
    base_fold, state_fold = fold[list(base_questions)].to_numpy(), fold[list(questions)].to_numpy()
    baseline, states = matrix(baseline, "baseline"), matrix(states, "states")
    own, others = np.empty(len(baseline)), np.empty(len(states))
    for f in range(folds):
        here, there = base_fold == f, state_fold == f
        distances = mahalanobis(baseline[~here], np.concatenate([baseline[here], states[there]]))
        own[here], others[there] = np.split(distances, [here.sum()])
    return own, others


@dataclass(frozen=True)
class Core:
    """The biased core: ``far`` (bool [n]), its share ρ_core, and whether it was too small and ``far`` is everything."""

    far: np.ndarray
    fraction: float
    everything: bool


def biased_core(
    baseline: np.ndarray,
    base_questions: Sequence[object],
    biased: np.ndarray,
    questions: Sequence[object],
    *,
    percentile: float = 90,
    cross_fitted: bool = True,
    folds: int = 5,
    seed: int = 42,
) -> Core:
    """The effective states that lie farther from the baselines than ``percentile`` of these do (F.1).

    Parameters
    ----------
    baseline : array [m, d]
        All base answers' states; ``base_questions`` [m] are theirs.
    biased : array [n, d]
        States of effective pairs; ``questions`` [n] are theirs.
    cross_fitted : bool
        False: distances in sample, as the paper has them; they flag nearly everything when m < d.

    Raises
    ------
    ValueError
        No biased state, or what :func:`cross_fitted_distances` refuses.
    """
    if not len(biased):
        raise ValueError("no effective pair: there is no core. Judge more questions, or lower the threshold")
    if cross_fitted:
        settings = {"folds": folds, "seed": seed}
        own, others = cross_fitted_distances(baseline, base_questions, biased, questions, **settings)
    else:
        own, others = mahalanobis(baseline, baseline), mahalanobis(baseline, biased)
    far = others > np.percentile(own, percentile)
    everything = far.sum() < CORE
    return Core(np.ones(len(far), bool) if everything else far, float(far.mean()), bool(everything))


def flagged(
    baseline: np.ndarray,
    questions: Sequence[object],
    *,
    percentile: float = 90,
    cross_fitted: bool = True,
    folds: int = 5,
    seed: int = 42,
) -> float:
    """The share of held-out baselines beyond the percentile, nominally 1 − percentile / 100.

    Each fold's baselines are measured from the others', which also set the percentile: in sample, or cross-fitted among
    themselves. In the second case a held-out baseline is measured from each of their folds, as they are themselves: a
    distance grows with the number of baselines that it is taken from.
    """
    baseline, questions = matrix(baseline, "baseline"), np.asarray(questions)
    fold = question_folds(questions, folds=folds, seed=seed)[list(questions)].to_numpy()
    hits = 0.0
    for f in range(folds):
        rest, out = baseline[fold != f], baseline[fold == f]
        if cross_fitted:
            inner = question_folds(questions[fold != f], folds=folds, seed=seed)[list(questions[fold != f])].to_numpy()
            parts = [(rest[inner != g], rest[inner == g]) for g in range(folds)]
        else:
            parts = [(rest, rest)]
        # One call a part: the covariance is the cost.
        both = [np.split(mahalanobis(near, np.concatenate([own, out])), [len(own)]) for near, own in parts]
        limit = np.percentile(np.concatenate([own for own, _ in both]), percentile)
        hits += float(np.mean([(held > limit).sum() for _, held in both]))
    return hits / len(baseline)


def matrix(states: np.ndarray, name: str) -> np.ndarray:
    """States as float64 [rows, d]; ValueError, with ``name`` in it, for another shape or a number not finite."""
    states = np.asarray(states, dtype=np.float64)
    if states.ndim != 2 or not np.isfinite(states).all():
        raise ValueError(f"{name} must be a finite array [rows, d], not {states.shape}")
    return states
