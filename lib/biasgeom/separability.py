"""How well a plane tells biased from base states, block by block, always on questions it was not fitted on
(judge paper 4.3, table 24, figures 2 and 11).

The paper leaves its "LDA separability" undefined; here it is the AUC of a cross-fitted LDA score.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from biasgeom.estimators import fit, plane
from biasgeom.substrate import biased_core, matrix, question_folds


def cross_fitted_scores(
    method: str,
    states: np.ndarray,
    labels: Sequence[bool],
    questions: Sequence[object],
    *,
    train: Sequence[bool] | None = None,
    folds: int = 5,
    seed: int = 42,
) -> np.ndarray:
    """Decision values, each from a plane fitted on the other folds' questions: [n, d] → [n].

    Parameters
    ----------
    method : {"lda", "classifier", "svm"}
    labels : bool [n]
    train : bool [n], optional
        Rows that a plane may be fitted on; the others are only scored. Default: all.

    Raises
    ------
    ValueError
        Fewer questions than folds, or a fold whose training rows are of one class.
    """
    states, labels = matrix(states, "states"), np.asarray(labels, bool)
    train = np.ones(len(labels), bool) if train is None else np.asarray(train, bool)
    fold = question_folds(questions, folds=folds, seed=seed)[list(questions)].to_numpy()
    scores = np.empty(len(labels))
    for f in range(folds):
        seen, here = (fold != f) & train, fold == f
        if len(set(labels[seen])) < 2:
            raise ValueError(f"without fold {f} only one class is left to fit on; judge more questions")
        scores[here] = plane(method, states[seen & ~labels], states[seen & labels]).scores(states[here])
    return scores


def auc(labels: Sequence[bool], scores: Sequence[float]) -> float:
    """The area under the ROC curve; ValueError if the labels are of one class."""
    from sklearn.metrics import roc_auc_score

    if len(set(labels)) < 2:
        raise ValueError("all labels are alike: there is no AUC")
    return float(roc_auc_score(labels, scores))


def by_block(
    states: np.ndarray, pairs: pd.DataFrame, baselines: pd.DataFrame, blocks: Sequence[int], *, seed: int = 42
) -> pd.DataFrame:
    """The biased core and two planes at each block (table 24).

    Parameters
    ----------
    states : array [rows, L, d]
    pairs : DataFrame
        Effective pairs: question_id, row, base_row.
    baselines : DataFrame
        All base answers: question_id, row.
    blocks : list of int

    Returns
    -------
    DataFrame
        block; pairs, their number; biased_core_fraction, and the same in sample; core, what stood for it;
        lda_separability and classifier_auc (base against core) and lda_effective (base against all effective states),
        from held-out questions; cos_lda_classifier; reason, why numbers are missing.
    """
    rows = []
    for block in blocks:
        row = {"block": block, "pairs": len(pairs), "reason": ""}
        try:
            row |= _at_block(states, pairs, baselines, block, seed)
        except ValueError as error:
            row["reason"] = str(error)
        rows.append(row)
    columns = "block pairs biased_core_fraction in_sample_fraction core lda_separability lda_effective classifier_auc"
    return pd.DataFrame(rows, columns=[*columns.split(), "cos_lda_classifier", "reason"])


def _at_block(
    states: np.ndarray, pairs: pd.DataFrame, baselines: pd.DataFrame, block: int, seed: int
) -> dict[str, object]:
    baseline, biased = states[baselines["row"], block], states[pairs["row"], block]
    of_base, of_biased = baselines["question_id"].to_numpy(), pairs["question_id"].to_numpy()
    core = biased_core(baseline, of_base, biased, of_biased, seed=seed)
    in_sample = biased_core(baseline, of_base, biased, of_biased, cross_fitted=False)
    both, labels = np.concatenate([baseline, biased]), np.repeat([False, True], [len(baseline), len(biased)])
    chosen = np.concatenate([np.ones(len(baseline), bool), core.far])
    made = {"biased_core_fraction": core.fraction, "in_sample_fraction": in_sample.fraction}
    made["core"] = "all effective pairs" if core.everything else "core"
    directions = []
    for method, name in (("lda", "lda_separability"), ("classifier", "classifier_auc")):
        questions = np.concatenate([of_base, of_biased])
        scores = cross_fitted_scores(method, both, labels, questions, train=chosen, seed=seed)
        made[name] = auc(labels[chosen], scores[chosen])
        if method == "lda":
            made["lda_effective"] = auc(labels, scores)
        pair = states[pairs["base_row"], block], biased
        directions.append(fit(method, *pair, far=core.far, baseline=baseline).direction)
    return made | {"cos_lda_classifier": float(directions[0] @ directions[1])}


def on_development(
    states: np.ndarray, pairs: pd.DataFrame, baselines: pd.DataFrame, blocks: Sequence[int], *, seed: int = 42
) -> pd.DataFrame:
    """LDA fitted on training questions, base against core, and judged on the development questions (3.4).

    The intervention block is the one of largest AUC. Many blocks may reach 1; among equals the largest ``gap``, the
    difference of the two classes' mean scores in their common standard deviation, decides.

    Parameters
    ----------
    states, pairs, baselines, blocks
        As for :func:`by_block`, with a column ``split``.

    Returns
    -------
    DataFrame
        block, train_pairs, dev_pairs, auc, gap, chosen (bool).

    Raises
    ------
    ValueError
        No effective pair, or fewer than two base answers, in either split; or what :func:`biased_core` refuses.
    """
    parts = {s: (pairs[pairs["split"] == s], baselines[baselines["split"] == s]) for s in ("train", "dev")}
    for split, (effective, base) in parts.items():
        if effective.empty or len(base) < 2:
            raise ValueError(f"{len(effective)} effective pairs and {len(base)} base answers in split {split}: too few")
    (train, base), (dev, dev_base) = parts.values()
    rows = []
    for block in blocks:
        baseline, biased = states[base["row"], block], states[train["row"], block]
        core = biased_core(baseline, base["question_id"], biased, train["question_id"], seed=seed)
        model = plane("lda", baseline, biased[core.far])
        clean, moved = (model.scores(states[part["row"], block]) for part in (dev_base, dev))
        spread = np.concatenate([clean - clean.mean(), moved - moved.mean()]).std()
        scores, labels = np.concatenate([clean, moved]), np.repeat([0, 1], [len(clean), len(moved)])
        rows.append((block, len(train), len(dev), auc(labels, scores), (moved.mean() - clean.mean()) / spread))
    found = pd.DataFrame(rows, columns=["block", "train_pairs", "dev_pairs", "auc", "gap"])
    best = found.sort_values(["auc", "gap"], ascending=False, kind="stable").index[0]
    return found.assign(chosen=found.index == best)


def two_types(
    states: np.ndarray, first: pd.DataFrame, second: pd.DataFrame, blocks: Sequence[int], *, seed: int = 42
) -> pd.DataFrame:
    """Do difference vectors of two types lie apart? (figures 2 and 11, as numbers)

    Parameters
    ----------
    states : array [rows, L, d]
    first, second : DataFrame
        Pairs of either type: question_id, row, base_row.

    Returns
    -------
    DataFrame
        block; first, second: numbers of pairs; auc of the cross-fitted classifier; silhouette in all d dimensions;
        reason, why numbers are missing.
    """
    from sklearn.metrics import silhouette_score

    both = pd.concat([first, second])
    labels = np.repeat([False, True], [len(first), len(second)])
    rows = []
    for block in blocks:
        row = {"block": block, "first": len(first), "second": len(second), "reason": ""}
        try:
            if min(len(first), len(second)) < 2:
                raise ValueError(f"{len(first)} and {len(second)} pairs; 2 or more of either type are needed")
            differences = matrix(states[both["row"], block], "states") - states[both["base_row"], block]
            scores = cross_fitted_scores("classifier", differences, labels, both["question_id"].to_numpy(), seed=seed)
            row |= {"auc": auc(labels, scores), "silhouette": float(silhouette_score(differences, labels))}
        except ValueError as error:
            row["reason"] = str(error)
        rows.append(row)
    return pd.DataFrame(rows, columns=["block", "first", "second", "auc", "silhouette", "reason"])
