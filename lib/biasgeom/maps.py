"""Maps of a judge's states, and numbers for what the eye sees in them (judge paper 4.3, figures 1, 2, 10, 11, 13)."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from biasgeom.statistics import exceedance_p
from biasgeom.substrate import matrix


def mds(states: np.ndarray) -> tuple[np.ndarray, float]:
    """A metric MDS map by SMACOF: [n, d] → points [n, 2] and Stress-1 (0.2 is poor, 0.05 good).

    It starts from the classical solution, so it draws no random number. The classical map itself is the PCA map of the
    same rows: it would say nothing that :func:`pca` does not.

    Raises
    ------
    ValueError
        Fewer than three rows, or rows that are all the same.
    """
    from sklearn.manifold import MDS

    states = _spread(states)
    found = MDS(n_components=2, init="classical_mds", n_init=1, normalized_stress=True).fit(states)
    return _upright(found.embedding_), float(found.stress_)


def pca(states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first two principal components: [n, d] → points [n, 2] and their shares of the variance [2]."""
    states = _spread(states)
    left, singular, _ = np.linalg.svd(states - states.mean(axis=0), full_matrices=False)
    return _upright(left[:, :2] * singular[:2]), (singular**2 / (singular**2).sum())[:2]


def _spread(states: np.ndarray) -> np.ndarray:
    states = matrix(states, "states")
    if len(states) < 3 or np.ptp(states, axis=0).max() == 0:
        raise ValueError(f"a map needs three or more rows that are not all the same; got {len(states)}")
    return states


def _upright(points: np.ndarray) -> np.ndarray:
    """Each axis with its longer tail to the right or top: the sign of an axis is arbitrary."""
    signs = np.sign(((points - points.mean(axis=0)) ** 3).sum(axis=0))
    return points * np.where(signs == 0, 1, signs)


def neighbours(states: np.ndarray, questions: Sequence[object], *, number: int = 10) -> np.ndarray:
    """The rows nearest to each row among those of other questions: [n, d] → integers [n, number].

    Judgements of one question share most of their text; counted in, they would make every neighbourhood pure in all
    that a question fixes, such as its domain.
    """
    from sklearn.metrics import euclidean_distances

    states, questions = matrix(states, "states"), np.asarray(questions)
    distances = euclidean_distances(states)
    distances[questions[:, None] == questions] = np.inf
    if len(questions) and np.isfinite(distances).sum(axis=1).min() < number:
        raise ValueError(f"fewer than {number} rows of other questions; judge more questions or ask for fewer")
    return np.argsort(distances, axis=1, kind="stable")[:, :number]


def purity(
    near: np.ndarray,
    labels: Sequence[object],
    questions: Sequence[object],
    *,
    shuffle: str,
    draws: int = 500,
    seed: int = 42,
) -> dict[str, float]:
    """How often a row's neighbours share its label, against permuted labels.

    Parameters
    ----------
    near : integers [n, k]
        From :func:`neighbours`.
    labels, questions : [n]
        Every question with equally many rows, in the same order of conditions.
    shuffle : {"within", "between"}
        Permute labels within each question (conditions), or exchange whole questions (domain, score).

    Returns
    -------
    dict
        purity; expected, mean of the permuted; chance, their 95 % quantile; p, one-sided.

    Raises
    ------
    ValueError
        Labels all alike, or questions that differ in their number of rows.
    """
    labels, codes = np.unique(np.asarray(labels), return_inverse=True)[1], np.unique(questions, return_inverse=True)[1]
    if shuffle not in ("within", "between"):
        raise ValueError(f"shuffle must be within or between, not {shuffle!r}")
    if not labels.any():
        raise ValueError("all labels are alike: neighbours can't tell them apart")
    if len(set(np.bincount(codes))) != 1:
        raise ValueError("questions differ in their number of rows; pass those with all conditions only")
    place = np.argsort(codes, kind="stable").reshape(codes.max() + 1, -1)
    table, rng = labels[place], np.random.default_rng(seed)
    null = np.empty(draws)
    for i in range(draws):
        permuted = np.empty_like(labels)
        permuted[place] = rng.permuted(table, axis=1) if shuffle == "within" else rng.permutation(table)
        null[i] = (permuted[near] == permuted[:, None]).mean()
    found = float((labels[near] == labels[:, None]).mean())
    chance = {"expected": null.mean(), "chance": np.quantile(null, 0.95), "p": exceedance_p(found, null)}
    return {"purity": found} | {name: float(value) for name, value in chance.items()}


def mapped(table: pd.DataFrame, vectors: np.ndarray, *, how: str = "mds") -> pd.DataFrame:
    """The table with its map: x, y, ``fit`` (Stress-1 of "mds", share of variance of "pca") and, if there is none, why.

    Parameters
    ----------
    table : DataFrame [n]
    vectors : array [n, d]
        States or differences of states, row by row.
    """
    try:
        points, quality = {"mds": mds, "pca": pca}[how](vectors)
    except ValueError as error:
        return table.assign(x=np.nan, y=np.nan, fit=np.nan, reason=str(error))
    return table.assign(x=points[:, 0], y=points[:, 1], fit=float(np.sum(quality)), reason="")


def difference_maps(
    states: np.ndarray, pairs: pd.DataFrame, blocks: Mapping[int, int], conditions: Sequence[str]
) -> pd.DataFrame:
    """One map of the difference vectors of some conditions at each block (figures 2, 4, 5, 11).

    Parameters
    ----------
    states : array [rows, L, d]
    pairs : DataFrame
        question_id, condition, row, base_row.
    blocks : mapping of published layer → block

    Returns
    -------
    DataFrame
        layer, block, question_id, condition, x, y, fit, reason; a map that can't be drawn is one row with the reason.
    """
    here, made = pairs[pairs["condition"].isin(conditions)], []
    for layer, block in blocks.items():
        found = mapped(here[["question_id", "condition"]], states[here["row"], block] - states[here["base_row"], block])
        if found["x"].isna().all():
            found = pd.DataFrame({"reason": [f"{len(here)} pairs are too few for a map, or all the same"]})
        made.append(found.assign(layer=layer, block=block))
    columns = ["layer", "block", "question_id", "condition", "x", "y", "fit", "reason"]
    return pd.concat(made, ignore_index=True).reindex(columns=columns)


def thirds(scores: pd.Series) -> np.ndarray:
    """Low, middle or high for each score by its rank, ties together; -1 where there is none."""
    return np.floor(scores.rank(pct=True) * 2.999).fillna(-1).to_numpy(int)


def purities(
    states: np.ndarray, items: pd.DataFrame, *, number: int = 10, draws: int = 500, seed: int = 42
) -> pd.DataFrame:
    """:func:`purity` by condition, score (in thirds), domain and quality, of whole questions.

    Parameters
    ----------
    states : array [n, d]
    items : DataFrame [n]
        question_id, condition, score, domain, quality; every question in all conditions, in one order.

    Returns
    -------
    DataFrame
        label, rows, purity, expected, chance, p, reason.

    Raises
    ------
    ValueError
        Fewer than ``number`` rows of other questions.
    """
    questions = items["question_id"].to_numpy()
    labels = {name: items[name].to_numpy() for name in ("condition", "domain", "quality")}
    labels["score"] = thirds(items["score"])
    near = neighbours(states, questions, number=number)
    rows = []
    for name in ("condition", "score", "domain", "quality"):
        row = {"label": name, "rows": len(items), "reason": ""}
        shuffle = "within" if name == "condition" else "between"
        if name == "score" and (labels["score"] < 0).any():
            # A missing score would count as a score that rows share.
            rows.append(row | {"reason": f"{(labels['score'] < 0).sum()} scores are missing"})
            continue
        try:
            row |= purity(near, labels[name], questions, shuffle=shuffle, draws=draws, seed=seed)
        except ValueError as error:
            row["reason"] = str(error)
        rows.append(row)
    return pd.DataFrame(rows, columns=["label", "rows", "purity", "expected", "chance", "p", "reason"])
