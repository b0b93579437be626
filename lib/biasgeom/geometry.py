"""How states of perturbed answers lie towards those of base answers: distance, length, dimensions (judge paper 4.3,
appendix L).
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from biasgeom.substrate import cross_fitted_distances, matrix

TOP = (1, 3, 5, 10)


def displacement(
    states: np.ndarray, labels: Sequence[str], questions: Sequence[object], *, base: str = "base", seed: int = 42
) -> pd.DataFrame:
    """How far each condition's states lie from the baselines, and how tight they are themselves.

    Parameters
    ----------
    states : array [n, d]
    labels, questions : [n]
        ``base`` labels the baselines.

    Returns
    -------
    DataFrame
        label, n; beyond: the share outside the baselines' cross-fitted 90th percentile of Mahalanobis distance (0.1 of
        the baselines by construction); auc of that distance against the baselines'; spread: root mean square distance
        from the own centre, in units of the baselines'.
    """
    from sklearn.metrics import roc_auc_score

    states, labels, questions = matrix(states, "states"), np.asarray(labels), np.asarray(questions)
    at_base = labels == base
    own, others = cross_fitted_distances(states[at_base], questions[at_base], states, questions, seed=seed)
    limit, unit = np.percentile(own, 90), _radius(states[at_base])
    rows = []
    for label in pd.unique(labels):
        here = labels == label
        distances = own if label == base else others[here]
        sides = np.repeat([0, 1], [len(own), len(distances)])
        area = roc_auc_score(sides, np.concatenate([own, distances]))
        rows.append((label, int(here.sum()), (distances > limit).mean(), area, _radius(states[here]) / unit))
    return pd.DataFrame(rows, columns=["label", "n", "beyond", "auc", "spread"])


def _radius(states: np.ndarray) -> float:
    return float(np.sqrt(((states - states.mean(axis=0)) ** 2).sum(axis=1).mean()))


def norms(states: np.ndarray, baselines: pd.DataFrame, perturbed: pd.DataFrame) -> pd.DataFrame:
    """Lengths of base and perturbed states by block, with tests (L.3, figure 12).

    Parameters
    ----------
    states : array [rows, L, d]
    baselines, perturbed : DataFrame
        question_id, row. A question may have several perturbed rows, one base row.

    Returns
    -------
    DataFrame
        block; base, perturbed and their standard deviations (``_sd``), gap_pct; p_two_sample, the paper's test on all
        rows; p_paired, of each question's mean perturbed length against its base; and both after Benjamini–Hochberg
        over blocks (``_bh``).

    Raises
    ------
    ValueError
        Fewer than two questions have both.
    """
    if len(set(baselines["question_id"]) & set(perturbed["question_id"])) < 2:
        raise ValueError("fewer than two questions have a base and a perturbed judgement; judge more questions")
    rows = []
    for block in range(states.shape[1]):
        base, other = (
            pd.Series(np.linalg.norm(matrix(states[part["row"], block], "states"), axis=1), part["question_id"])
            for part in (baselines, perturbed)
        )
        mean = other.groupby(level=0).mean()
        two, paired = stats.ttest_ind(base, other).pvalue, stats.ttest_rel(mean, base[mean.index]).pvalue
        gap = 100 * (other.mean() / base.mean() - 1)
        rows.append((block, base.mean(), base.std(), other.mean(), other.std(), gap, two, paired))
    names = ["block", "base", "base_sd", "perturbed", "perturbed_sd", "gap_pct", "p_two_sample", "p_paired"]
    found = pd.DataFrame(rows, columns=names)
    for name in names[-2:]:
        # A block at which nothing differs has no p and is no member of the family.
        known = found[name].notna()
        found.loc[known, f"{name}_bh"] = stats.false_discovery_control(found.loc[known, name]) if known.any() else []
    return found


def eigenspectrum(differences: np.ndarray, baseline: np.ndarray, *, draws: int = 50, seed: int = 42) -> pd.DataFrame:
    """Cumulative variance of the centred covariance of difference vectors (L.5, table 23), beside two nulls of their n.

    Parameters
    ----------
    differences : array [n, d]
    baseline : array [m, d]
        Base answers' states: differences of random pairs of them say what two unrelated answers would give.

    Returns
    -------
    DataFrame
        n; top_k; cumulative_variance_pct, 100 by construction from k = n − 1 on; the same of ``isotropic`` Gaussian
        vectors and of differences ``between`` base answers (means over draws); dimensions: (Σλ)²/Σλ², how many equal
        variances would spread as wide.

    Raises
    ------
    ValueError
        Fewer than three differences, or differences that are all the same.
    """
    differences, baseline = matrix(differences, "differences"), matrix(baseline, "baseline")
    n, d = differences.shape
    if n < 3 or np.ptp(differences, axis=0).max() == 0:
        raise ValueError(f"{n} difference vectors; three or more that are not all the same have a spectrum")
    rng = np.random.default_rng(seed)
    isotropic = [_variances(rng.standard_normal((n, d))) for _ in range(draws)]
    between = []
    for _ in range(draws):
        first = rng.integers(len(baseline), size=n)
        second = (first + rng.integers(1, len(baseline), size=n)) % len(baseline)
        between.append(_variances(baseline[first] - baseline[second]))
    own = _variances(differences)

    def percent(variances: np.ndarray, k: int) -> float:
        return float(100 * variances[:k].sum() / variances.sum())

    rows = [
        (n, k, percent(own, k), *(np.mean([percent(v, k) for v in null]) for null in (isotropic, between))) for k in TOP
    ]
    found = pd.DataFrame(rows, columns=["n", "top_k", "cumulative_variance_pct", "isotropic", "between"])
    return found.assign(dimensions=own.sum() ** 2 / (own**2).sum())


def spectra(
    states: np.ndarray,
    pairs: pd.DataFrame,
    baselines: pd.DataFrame,
    block: int,
    conditions: Sequence[str],
    *,
    seed: int = 42,
) -> pd.DataFrame:
    """:func:`eigenspectrum` of each condition's pairs at one block, with a column ``reason`` for those without.

    Parameters
    ----------
    states : array [rows, L, d]
    pairs, baselines : DataFrame
        question_id, row (condition and base_row of the pairs): row numbers in ``states``.
    """
    made = []
    for condition in conditions:
        here = pairs[pairs["condition"] == condition]
        differences = states[here["row"], block] - states[here["base_row"], block]
        try:
            found = eigenspectrum(differences, states[baselines["row"], block], seed=seed).assign(reason="")
        except ValueError as error:
            found = pd.DataFrame({"n": [len(here)], "reason": [str(error)]})
        made.append(found.assign(condition=condition))
    columns = ["condition", "n", "top_k", "cumulative_variance_pct", "isotropic", "between", "dimensions", "reason"]
    return pd.concat(made, ignore_index=True).reindex(columns=columns)


def _variances(rows: np.ndarray) -> np.ndarray:
    """Eigenvalues of the centred covariance but for a factor, largest first; from n × n products, as n < d."""
    centred = rows - rows.mean(axis=0)
    return np.clip(np.linalg.eigvalsh(centred @ centred.T)[::-1], 0, None)
