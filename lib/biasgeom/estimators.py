r"""Six directions of a judge's bias in the states of its last token (judge paper 3.3, F.2, appendix G).

From pairs of states :math:`h(x_{base}), h(x_{biased})` whose score moved (:mod:`biasgeom.substrate`), *directional*
estimators summarise the differences :math:`\Delta h`; *discriminative* ones take the normal of a plane between all
baselines and the biased core.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from biasgeom.substrate import TINY, biased_core, matrix, question_folds, too_few

FAMILIES = {
    "mean": "directional",
    "geometric_median": "directional",
    "pca": "directional",
    "lda": "discriminative",
    "classifier": "discriminative",
    "svm": "discriminative",
}
METHODS = tuple(FAMILIES)


@dataclass(frozen=True)
class Median:
    """A geometric median: ``point`` [d], iterations, whether they ended by tolerance, and the optimality ``gap``.

    The gap is the length of the mean unit vector to the points (at a data point: of what exceeds its own weight);
    zero at the optimum.
    """

    point: np.ndarray
    iterations: int
    converged: bool
    gap: float


def geometric_median(points: np.ndarray, *, tolerance: float = 1e-6, iterations: int = 200) -> Median:
    """The point of least summed distance, [n, d] → [d], by Weiszfeld's iteration from the mean (F.2, appendix G).

    A step below ``tolerance`` times the points' mean length ends it. Vardi and Zhang's correction lets it leave, or
    stay at, a data point, where the plain iteration divides by zero.
    """
    points = matrix(points, "points")
    scale = np.linalg.norm(points, axis=1).mean()
    point = points.mean(axis=0)
    converged, step = scale == 0, 0
    while not converged and step < iterations:
        target, pull, weight = _weiszfeld(points, point, scale)
        stay = min(1.0, weight / pull) if pull > 0 else 1.0
        moved = point + (1 - stay) * (target - point)
        converged, step = bool(np.linalg.norm(moved - point) <= tolerance * scale), step + 1
        point = moved
    _, pull, weight = _weiszfeld(points, point, scale)
    return Median(point, step, bool(converged), max(0.0, pull - weight) / len(points))


def _weiszfeld(points: np.ndarray, point: np.ndarray, scale: float) -> tuple[np.ndarray, float, int]:
    """Of the points not reached: weighted mean, length of the sum of unit vectors to them; and how many are reached."""
    lengths = np.linalg.norm(points - point, axis=1)
    away = lengths > TINY * scale
    if not away.any():
        return point, 0.0, len(points)
    weights = 1 / lengths[away]
    target = weights @ points[away] / weights.sum()
    return target, float(weights.sum() * np.linalg.norm(target - point)), int((~away).sum())


@dataclass(frozen=True)
class Fit:
    """A unit ``direction`` [d]; iterations and convergence, None where the estimator has a closed form."""

    direction: np.ndarray
    iterations: int | None = None
    converged: bool | None = None


def fit(
    method: str,
    base: np.ndarray,
    biased: np.ndarray,
    *,
    far: np.ndarray | None = None,
    baseline: np.ndarray | None = None,
    centred: bool = False,
) -> Fit:
    """:func:`bias_direction` with its convergence."""
    base, biased = matrix(base, "base"), matrix(biased, "biased")
    if method not in FAMILIES:
        raise ValueError(f"no estimator {method!r}; there are {', '.join(METHODS)}")
    if base.shape != biased.shape:
        raise ValueError(f"pairs need as many base as biased states, of one width; got {base.shape}, {biased.shape}")
    if len(base) < 2:
        raise ValueError(too_few(len(base), "2 or more are needed"))
    differences = biased - base
    if FAMILIES[method] == "discriminative":
        far = np.ones(len(biased), bool) if far is None else np.asarray(far, bool)
        if far.shape != (len(biased),) or not far.any():
            raise ValueError(f"far must mark one or more of the {len(biased)} pairs; for all of them, leave it out")
        made = plane(method, base if baseline is None else matrix(baseline, "baseline"), biased[far])
        found = Fit(made.normal, made.iterations, made.converged)
    elif method == "pca":
        found = Fit(np.linalg.svd(differences - centred * differences.mean(axis=0), full_matrices=False)[2][0])
    elif method == "mean":
        found = Fit(differences.mean(axis=0))
    else:
        median = geometric_median(differences)
        found = Fit(median.point, median.iterations, median.converged)
    length = np.linalg.norm(found.direction)
    along = differences.mean(axis=0) @ found.direction
    if abs(along) <= TINY * length * np.linalg.norm(differences, axis=1).mean():
        raise ValueError(f"{method}: the pairs' mean difference has no part along it, so it has no direction or sign")
    return Fit(found.direction * np.sign(along) / length, found.iterations, found.converged)


def bias_direction(
    method: str,
    base: np.ndarray,
    biased: np.ndarray,
    *,
    far: np.ndarray | None = None,
    baseline: np.ndarray | None = None,
    centred: bool = False,
) -> np.ndarray:
    """A unit direction of bias, [d]; the mean projection of ``biased - base`` on it is positive (3.3, F.2).

    Parameters
    ----------
    method : {"mean", "geometric_median", "pca", "lda", "classifier", "svm"}
    base, biased : array [n, d]
        States of the effective pairs, row by row.
    far : bool array [n], optional
        The biased core; default: all pairs. Only the discriminative estimators look at it.
    baseline : array [m, d], optional
        All base answers' states, the other class of the discriminative estimators; default: ``base``.
    centred : bool
        PCA of the differences about their mean, as the paper prints it: then their common part is gone.

    Raises
    ------
    ValueError
        Fewer than two pairs, another width, an empty core, non-finite states, or no mean difference.
    """
    return fit(method, base, biased, far=far, baseline=baseline, centred=centred).direction


@dataclass(frozen=True)
class Plane:
    """A fitted plane: states lie on its positive side if ``scores`` are above zero."""

    normal: np.ndarray
    offset: float
    iterations: int | None
    converged: bool | None

    def scores(self, states: np.ndarray) -> np.ndarray:
        """Decision values, [n, d] → [n]."""
        return states @ self.normal + self.offset


def plane(method: str, negative: np.ndarray, positive: np.ndarray) -> Plane:
    """The plane between two sets of states by "lda", "classifier" or "svm", with the paper's settings (appendix G).

    States are first moved so that the middle of the two means is the origin: liblinear penalises the intercept, so its
    plane would depend on where the origin lies, and in the worst case have little to do with the classes.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC
    from threadpoolctl import threadpool_limits

    model = {
        "lda": LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
        "classifier": LogisticRegression(C=1.0, class_weight="balanced", max_iter=5000),
        "svm": LinearSVC(C=1.0, loss="squared_hinge", dual=True, random_state=0, max_iter=50_000),
    }[method]
    if negative.shape[1] != positive.shape[1]:
        raise ValueError(f"baseline and biased states differ in width: {negative.shape[1]} and {positive.shape[1]}")
    middle = (negative.mean(axis=0) + positive.mean(axis=0)) / 2
    # So small a problem takes ten times as long with several threads that wait for each other.
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is in what we return
        model.fit(np.concatenate([negative, positive]) - middle, np.repeat([0, 1], [len(negative), len(positive)]))
    normal, offset = model.coef_[0], float(model.intercept_[0] - model.coef_[0] @ middle)
    if method == "lda":
        return Plane(normal, offset, None, None)
    iterations = int(np.max(model.n_iter_))
    return Plane(normal, offset, iterations, iterations < model.max_iter)


def directions(
    base: np.ndarray,
    biased: np.ndarray,
    *,
    far: np.ndarray | None = None,
    baseline: np.ndarray | None = None,
    centred: bool = False,
    methods: Sequence[str] = METHODS,
) -> tuple[dict[str, np.ndarray], pd.DataFrame]:
    """Every estimator that can be computed, and a table of all: method, family, iterations, converged, reason."""
    found, rows = {}, []
    for method in methods:
        row = {"method": method, "family": FAMILIES[method], "reason": ""}
        try:
            made = fit(method, base, biased, far=far, baseline=baseline, centred=centred)
        except ValueError as error:
            row["reason"] = str(error)
        else:
            found[method] = made.direction
            row |= {"iterations": made.iterations, "converged": made.converged}
        rows.append(row)
    return found, pd.DataFrame(rows, columns=["method", "family", "iterations", "converged", "reason"])


def from_pairs(
    states: np.ndarray,
    pairs: pd.DataFrame,
    baselines: pd.DataFrame,
    block: int,
    *,
    methods: Sequence[str] = METHODS,
    seed: int = 42,
) -> tuple[dict[str, np.ndarray], pd.DataFrame]:
    """:func:`directions` of effective pairs at one block, the discriminative ones from all baselines and the core.

    Parameters
    ----------
    states : array [rows, L, d]
    pairs, baselines : DataFrame
        question_id, row (and base_row of the pairs): row numbers in ``states``.

    Returns
    -------
    dict, DataFrame
        As :func:`directions`; the table also has pairs, core_fraction, and core: what stood for it.
    """
    baseline, biased = states[baselines["row"], block], states[pairs["row"], block]
    about: dict[str, object] = {"pairs": len(pairs)}
    far = None
    try:
        core = biased_core(baseline, baselines["question_id"], biased, pairs["question_id"], seed=seed)
    except ValueError as error:
        about["core"] = f"all effective pairs: {error}" if len(pairs) else ""
    else:
        far, about["core_fraction"] = core.far, core.fraction
        about["core"] = "all effective pairs: fewer than five are far" if core.everything else f"{far.sum()} far ones"
    found, table = directions(states[pairs["base_row"], block], biased, far=far, baseline=baseline, methods=methods)
    return found, table.assign(**about)


def halves(
    states: np.ndarray,
    pairs: pd.DataFrame,
    baselines: pd.DataFrame,
    block: int,
    *,
    methods: Sequence[str] = METHODS,
    repeats: int = 3,
    seed: int = 42,
) -> pd.DataFrame:
    """The cosine of an estimator's directions from two halves of the questions: method, cosine (mean over repeats).

    How far a direction is set by which questions were drawn; the paper's figure for it is in none of its tables.
    """
    found = {method: [] for method in methods}
    for repeat in range(repeats):
        half = question_folds(baselines["question_id"], folds=2, seed=seed + repeat)
        both = [
            from_pairs(
                states,
                pairs[half[pairs["question_id"]].to_numpy() == side],
                baselines[half[baselines["question_id"]].to_numpy() == side],
                block,
                methods=methods,
                seed=seed,
            )[0]
            for side in (0, 1)
        ]
        for method in set(both[0]) & set(both[1]):
            found[method].append(float(both[0][method] @ both[1][method]))
    # An estimator that failed in one of the halvings has no mean over them.
    means = [np.mean(values) if len(values) == repeats else np.nan for values in found.values()]
    return pd.DataFrame({"method": list(found), "cosine": means})


def cosines(found: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Cosines of all ordered pairs of directions (table 17): vector_a, vector_b, cosine, family."""
    rows = []
    for a, u in found.items():
        for b, v in found.items():
            if a != b:
                within = FAMILIES[a] == FAMILIES[b]
                rows.append((a, b, float(u @ v), f"within_{FAMILIES[a]}" if within else "cross"))
    return pd.DataFrame(rows, columns=["vector_a", "vector_b", "cosine", "family"])
