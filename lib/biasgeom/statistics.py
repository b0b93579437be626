"""Intervals and permutation p-values, thin on scipy and statsmodels."""

import numpy as np
from scipy.stats import norm
from statsmodels.stats.proportion import proportion_confint


def resample_groups(groups: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Bootstrap indices that keep whole groups together, for observations that depend on each other within one.

    Parameters
    ----------
    groups : array [n]
        Group of each observation; all groups of one size.
    draws : int
    rng : numpy Generator

    Returns
    -------
    integer array [draws, n]

    Raises
    ------
    ValueError
        If the groups differ in size: resamples would differ in length.
    """
    names, codes = np.unique(groups, return_inverse=True)
    sizes = np.bincount(codes)
    if len(set(sizes)) != 1:
        raise ValueError(
            f"groups must have one size; they have {dict(zip(names.tolist(), sizes.tolist(), strict=True))}"
        )
    members = np.argsort(codes, kind="stable").reshape(len(names), sizes[0])
    return members[rng.integers(len(names), size=(draws, len(names)))].reshape(draws, -1)


def group_signs(groups: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Random signs ±1 [draws, n], one a group: what depends on each other is flipped together."""
    names, codes = np.unique(groups, return_inverse=True)
    return rng.choice([-1.0, 1.0], size=(draws, len(names)))[:, codes]


def normal_interval(
    estimate: np.ndarray, replicates: np.ndarray, *, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """estimate ± z · (standard deviation of its bootstrap replicates): [...], [..., draws] → two [...]."""
    half = norm.ppf(0.5 + level / 2) * np.std(replicates, axis=-1, ddof=1)
    return estimate - half, estimate + half


def band(null: np.ndarray, *, low: float = 0.025, high: float = 0.975) -> tuple[np.ndarray, np.ndarray]:
    """Quantiles of a null distribution along its last axis (gender paper 3.3: 2.5 % and 97.5 %)."""
    return np.quantile(null, low, axis=-1), np.quantile(null, high, axis=-1)


def exceedance_p(observed: np.ndarray | float, null: np.ndarray) -> np.ndarray | float:
    """One-sided Monte-Carlo p: (1 + draws at or above the observed) / (1 + draws), along the last axis; never zero.

    NaN where the observed value or a draw is NaN: an undefined statistic is not a rare one.
    """
    null, observed = np.asarray(null), np.asarray(observed)[..., None]
    # Draws equal to the observed value but for rounding are ties, and ties count.
    above = ((null >= observed) | np.isclose(null, observed, rtol=1e-12, atol=0)).sum(-1)
    undefined = np.isnan(observed[..., 0]) | np.isnan(null).any(-1)
    return np.where(undefined, np.nan, (1 + above) / (1 + null.shape[-1]))[()]


def wilson_interval(hits: int, n: int, *, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion."""
    low, high = proportion_confint(hits, n, alpha=1 - level, method="wilson")
    return float(low), float(high)
