"""Edits of a state that depend on the state: erasing what tells biased from base, or steering where it looks biased.

The judge paper names both and has done neither (A.3). LEACE is the least change of the states after which no linear
classifier tells the two classes apart better than by chance (Belrose et al. 2023, arXiv 2306.03819). Both classes then
have one mean, which lies between theirs: base states are moved, too, and biased ones not all the way to them.
"""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from biasgeom import estimators
from biasgeom.substrate import matrix, question_folds

Edit = Callable[[np.ndarray], np.ndarray]
"""States [n, d] → what is added to each, [n, d], float64."""


def leace(states: np.ndarray, labels: Sequence[bool]) -> Edit:
    """The edit that erases a two-class label.

    Parameters
    ----------
    states : array [n, d]
        There may be fewer than dimensions: the covariance is shrunk (the library's optimal linear shrinkage).
    labels : bool [n]

    Raises
    ------
    ValueError
        States that are not finite, labels of another length or of one class, or two classes of one mean; and by the
        edit, states of another width.
    ImportError
        Without the package concept-erasure.
    """
    states, labels = matrix(states, "states"), np.asarray(labels, bool)
    if labels.shape != (len(states),) or not 0 < labels.sum() < len(states):
        raise ValueError(f"{len(states)} states need a label each, of two classes; got {labels.shape}, {labels.sum()}")
    if not (states[labels].mean(axis=0) - states[~labels].mean(axis=0)).any():
        raise ValueError("the two classes have one mean: there is nothing to erase")
    try:
        import torch

        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # it decorates with torch.jit
            from concept_erasure import LeaceFitter
    except ImportError as error:
        raise ImportError("LEACE needs concept-erasure: pip install 'biasgeom[judge]' ('make book' has it)") from error
    # The library leaves a difference below its tolerance as it is; ours is in float64.
    eraser = LeaceFitter.fit(torch.from_numpy(states), torch.from_numpy(labels.astype(float)), svd_tol=1e-9).eraser

    def edit(others: np.ndarray) -> np.ndarray:
        others = matrix(others, "states")
        if others.shape[1] != states.shape[1]:
            raise ValueError(f"the eraser was fitted on states of width {states.shape[1]}, not {others.shape[1]}")
        return eraser(torch.from_numpy(others)).numpy() - others

    return edit


def steering(direction: np.ndarray, alpha: float, *, centre: np.ndarray | None = None, beyond: float = -np.inf) -> Edit:
    """The edit −αv; with ``centre`` and ``beyond``, of states whose projection ⟨h − centre, v⟩ exceeds it."""
    start = 0.0 if centre is None else centre
    return lambda states: np.where((states - start) @ direction > beyond, -alpha, 0.0)[:, None] * direction


def firing_threshold(
    states: np.ndarray,
    pairs: pd.DataFrame,
    baselines: pd.DataFrame,
    block: int,
    method: str,
    *,
    percentile: float = 90,
    folds: int = 5,
    seed: int = 42,
) -> float:
    """The projection ⟨h − μ_base, v⟩ below which so many per cent of the base answers stay.

    Direction and mean are of other questions than the answer that is projected: a plane between fewer states than
    dimensions puts the base answers it was fitted on far to one side, and their percentile means nothing.

    Parameters
    ----------
    states : array [rows, L, d]
    pairs, baselines : DataFrame
        What the direction is fitted on, as for :func:`biasgeom.estimators.from_pairs`.

    Raises
    ------
    ValueError
        Fewer questions than folds, or a fold without which there is no direction.
    """
    fold = question_folds(baselines["question_id"], folds=folds, seed=seed)
    own, others = fold[list(baselines["question_id"])].to_numpy(), fold[list(pairs["question_id"])].to_numpy()
    found = []
    for f in range(folds):
        rest, out = baselines[own != f], baselines[own == f]
        made, about = estimators.from_pairs(states, pairs[others != f], rest, block, methods=[method], seed=seed)
        if method not in made:
            raise ValueError(f"without fold {f}: {about['reason'].iloc[0]}")
        centre = matrix(states[rest["row"], block], "states").mean(axis=0)
        found.append((states[out["row"], block] - centre) @ made[method])
    return float(np.percentile(np.concatenate(found), percentile))
