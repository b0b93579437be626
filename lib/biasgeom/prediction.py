"""What may be told of a judgement from the judge's hidden state: two targets, and 24 features a block (judge paper 3.5,
M.1, M.2).

Whatever is estimated comes from training questions alone: directions, means, covariances, axes. Training rows have
features from the *other* folds' questions. There are fewer rows than dimensions: in sample a direction separates every
pair that it was fitted on, and a detector trained on such projections would learn nothing else.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import kurtosis
from threadpoolctl import threadpool_limits

from biasgeom import landscape
from biasgeom.estimators import from_pairs
from biasgeom.perturbations import BASE
from biasgeom.substrate import mahalanobis, matrix, question_folds

AXES = 10
"""Baseline principal axes a block (M.2)."""
METHODS = ("lda", "classifier")
"""The two directions whose projections are features."""
OF_DIRECTION = ("projection", "cosine", "perpendicular", "centred")
FEATURES = {f"{kind}_{method}": "bias direction" for method in METHODS for kind in OF_DIRECTION}
FEATURES |= {"mahalanobis": "manifold", "mahalanobis_z": "manifold"}
FEATURES |= {f"pca_{axis}": "semantic" for axis in range(1, AXES + 1)}
FEATURES |= dict.fromkeys(("norm", "mean", "variance", "kurtosis"), "semantic")
"""The 24 features of a block by family: 8, 2 and 14. The paper names three of four intrinsic statistics; the fourth is
the excess kurtosis over the state's coordinates."""
FAMILIES = tuple(dict.fromkeys(FEATURES.values()))

ROWS = ["question_id", "domain", "held_out", "split", "condition", "voice", "text", "row", "label"]


def outcomes(items: pd.DataFrame, points: float) -> pd.DataFrame:
    """Target B (M.1): will the judge give a negatively perturbed answer a fair score?

    Parameters
    ----------
    items : DataFrame
        A judge's items.
    points : float
        δo: a score that much below the base answer's is degraded.

    Returns
    -------
    DataFrame
        Negatively perturbed answers where both scores exist: the columns :data:`ROWS`; ``label`` is true for a *fair*
        outcome, the paper's positive class; ``row`` indexes the judge's states.

    Raises
    ------
    ValueError
        No threshold, because base scores don't differ, or there are none.
    """
    if not points > 0:
        why = "all base scores are alike" if items["score"].notna().any() else "no answer has a score"
        raise ValueError(f"{why}: no shift is large or small, so no outcome is fair or degraded")
    moved = landscape.shifts(items)
    moved = moved[moved["polarity"] == "negative"]
    return _rows(items, moved["row"], ~(moved["shift"] <= -points))


def stylistic(items: pd.DataFrame) -> pd.DataFrame:
    """Target A (M.1): base answer (label false), or negatively perturbed (true)? As :func:`outcomes`.

    An answer that its cue left as it was is not perturbed, and left out.
    """
    base = (items["condition"] == BASE).to_numpy()
    kept = base | ((items["polarity"] == "negative") & items["changed"].astype(bool)).to_numpy()
    return _rows(items, np.flatnonzero(kept), ~base[kept])


def _rows(items: pd.DataFrame, rows: Sequence[int], label: Sequence[bool]) -> pd.DataFrame:
    found = items.iloc[rows].reset_index(drop=True)
    return found.assign(row=np.asarray(rows), label=np.asarray(label, bool))[ROWS]


def require_classes(rows: pd.DataFrame, split: str) -> None:
    """Raise ``ValueError`` if a split lacks one of the two classes: nothing can be fitted to it or ranked in it."""
    labels = rows.loc[rows["split"] == split, "label"]
    if labels.nunique() < 2:
        which = f"{bool(labels.iloc[0])}".lower() if len(labels) else "none"
        raise ValueError(f"the {len(labels)} labels of split {split} are of one class ({which}): judge more questions")


@dataclass(frozen=True)
class Features:
    """Features of n rows.

    Attributes
    ----------
    values : array [n, 24 · blocks], float64
        NaN in a family that can't be computed.
    rows : integer array [n]
        Row of the judge's states that each describes.
    columns : DataFrame [24 · blocks]
        feature, family, block: what each column is, from :func:`index`.
    missing : dict
        Family → why it can't be computed, for the first such block.
    """

    values: np.ndarray
    rows: np.ndarray
    columns: pd.DataFrame
    missing: dict[str, str]

    def at(self, rows: pd.DataFrame) -> "Features":
        """The features of some of the rows, in their order; ``KeyError`` for a row that was not described."""
        places = pd.Series(np.arange(len(self.rows)), index=self.rows)[rows["row"]].to_numpy()
        return Features(self.values[places], self.rows[places], self.columns, self.missing)

    def of(self, chosen: Sequence[bool]) -> np.ndarray:
        """The chosen columns; ``ValueError`` with the reason if some could not be computed."""
        chosen = np.asarray(chosen, bool)
        for family in FAMILIES:
            if family in self.missing and (chosen & (self.columns["family"] == family)).any():
                raise ValueError(f"no {family} features: {self.missing[family]}")
        return self.values[:, chosen]


def index(blocks: Sequence[int]) -> pd.DataFrame:
    """Which column is what: feature, family, block; 24 a block, block after block."""
    rows = [(feature, family, block) for block in blocks for feature, family in FEATURES.items()]
    return pd.DataFrame(rows, columns=["feature", "family", "block"])


def features(
    states: np.ndarray,
    rows: pd.DataFrame,
    baselines: pd.DataFrame,
    pairs: pd.DataFrame,
    *,
    blocks: Sequence[int] | None = None,
    folds: int = 3,
    seed: int = 42,
) -> Features:
    """The 24 features of each row at each block.

    Parameters
    ----------
    states : array [rows, L, d]
    rows : DataFrame [n]
        What is described: question_id, split, row.
    baselines, pairs : DataFrame
        All base answers (question_id, split, row), and effective pairs of all negative cues together (base_row, too).
        Those of the training split alone are looked at.
    blocks : list of int, optional
        Default: all.
    folds : int
        Of the training questions. A row outside the training split is projected on directions from all of them; its
        Mahalanobis distance is the mean of those from the folds' baselines, because a distance grows with the number
        of baselines.

    Raises
    ------
    ValueError
        A training row whose question has no training base answer. What single families lack is in ``missing``.

    Notes
    -----
    On one block "projection" and "centred" differ by a constant, and so, but for a factor, do "mahalanobis" and
    "mahalanobis_z": 3 of the paper's 24 features add nothing to the others. Out of fold "projection" is the centred one
    plus the constant of all training questions: else a fold's rows would be told by their own constant. The axes are
    not cross-fitted: they know no label, and folds' axes would differ in order.
    """
    blocks = list(range(states.shape[1]) if blocks is None else blocks)
    base, pairs = (table[table["split"] == "train"] for table in (baselines, pairs))
    train = (rows["split"] == "train").to_numpy()
    if lacking := sorted(set(rows["question_id"][train]) - set(base["question_id"])):
        raise ValueError(f"question {lacking[0]} is for training and has no base answer among the training ones")
    columns = index(blocks)
    values = np.full((len(rows), len(columns)), np.nan)
    try:
        fold = question_folds(base["question_id"], folds=folds, seed=seed)
    except ValueError as error:
        return Features(values, rows["row"].to_numpy(), columns, dict.fromkeys(FAMILIES, str(error)))
    of_row = np.where(train, fold.reindex(rows["question_id"]).fillna(-1), -1)
    of_base, of_pair = (fold[table["question_id"]].to_numpy() for table in (base, pairs))

    def directions(block: int, without: int) -> dict[str, np.ndarray]:
        seen = pairs[of_pair != without], base[of_base != without]
        found, table = from_pairs(states, *seen, block, methods=METHODS, seed=seed)
        if len(found) < len(METHODS):
            raise ValueError(f"training questions: {table['reason'].max()}")
        return found

    missing: dict[str, str] = {}
    # At these sizes a second thread makes LAPACK many times slower.
    with threadpool_limits(1):
        for block in blocks:
            described, clean = (matrix(states[table["row"], block], "states") for table in (rows, base))
            here = _Block(described, clean, of_row, of_base, functools.partial(directions, block))
            for family, make in zip(FAMILIES, (_bias_direction, _manifold, _semantic), strict=True):
                chosen = (columns["block"] == block) & (columns["family"] == family)
                try:
                    values[:, chosen] = make(here)
                except ValueError as error:
                    missing.setdefault(family, str(error))
    return Features(values, rows["row"].to_numpy(), columns, missing)


@dataclass(frozen=True)
class _Block:
    """One block: states of all rows [n, d], and of the training base answers [m, d]; the fold of each, -1 outside the
    training split; fold → the two directions from all other folds' pairs."""

    states: np.ndarray
    base: np.ndarray
    of_row: np.ndarray
    of_base: np.ndarray
    directions: Callable[[int], dict[str, np.ndarray]]


def _bias_direction(here: _Block) -> np.ndarray:
    whole, centre = here.directions(-1), here.base.mean(axis=0)
    made = np.empty((len(here.states), len(METHODS) * len(OF_DIRECTION)))
    for fold in np.unique(here.of_row):
        mine = here.of_row == fold
        found = whole if fold < 0 else here.directions(fold)
        centred = here.states[mine] - here.base[here.of_base != fold].mean(axis=0)
        length = np.linalg.norm(centred, axis=1)
        columns = []
        for method in METHODS:
            along = centred @ found[method]
            aside = np.sqrt(np.maximum(length**2 - along**2, 0))
            columns += [along + centre @ whole[method], along / length, aside, along]
        made[mine] = np.column_stack(columns)
    return made


def _manifold(here: _Block) -> np.ndarray:
    held, own = np.zeros(len(here.states)), np.empty(len(here.base))
    folds, outside = np.unique(here.of_base), here.of_row < 0
    for fold in folds:
        near, mine = here.of_base != fold, here.of_row == fold
        far = mahalanobis(here.base[near], np.concatenate([here.base[~near], here.states[mine], here.states[outside]]))
        own[~near], held[mine], others = np.split(far, np.cumsum([(~near).sum(), mine.sum()]))
        held[outside] += others / len(folds)
    return np.column_stack([held, (held - own.mean()) / own.std()])


def _semantic(here: _Block) -> np.ndarray:
    if len(here.base) <= AXES:
        raise ValueError(f"{len(here.base)} training base answers have no {AXES} principal axes: judge more questions")
    centre, states = here.base.mean(axis=0), here.states
    axes = np.linalg.svd(here.base - centre, full_matrices=False)[2][:AXES]
    axes *= np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)])[:, None]  # an axis has no sign of its own
    intrinsic = [np.linalg.norm(states, axis=1), states.mean(axis=1), states.var(axis=1), kurtosis(states, axis=1)]
    return np.column_stack([(states - centre) @ axes.T, *intrinsic])
