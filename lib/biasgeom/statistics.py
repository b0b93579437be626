"""Intervals, bootstrap, permutation and equivalence p-values, thin on scipy and statsmodels."""

import numpy as np
from scipy.stats import norm, t
from statsmodels.stats.multitest import multipletests
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


def stratified_means(
    values: np.ndarray,
    types: np.ndarray,
    domains: np.ndarray,
    *,
    draws: int,
    rng: np.random.Generator,
    units: np.ndarray | None = None,
) -> np.ndarray:
    """Bootstrap replicates of the mean of each type, drawn within strata (judge paper, appendix G).

    An aggregate over types is a mean of columns: first the types, then their mean.

    Parameters
    ----------
    values, types, domains : array [n]
        Paired differences, each with its type and domain.
    draws : int
        Resamples (paper: 10,000).
    rng : numpy Generator
    units : array [n], optional
        What is drawn within a domain, with all its values of every type, such as questions. Default: single values,
        within each type and domain, as in the paper, which takes the values of one question for independent.

    Returns
    -------
    array [draws, types]
        Types in the order of ``np.unique``; NaN where a resample holds no value of a type.

    Raises
    ------
    ValueError
        If a value is not finite: what is missing has to be left out and counted by the caller.
    """
    values = np.asarray(values, dtype=float)
    if not np.isfinite(values).all():
        raise ValueError(f"{int((~np.isfinite(values)).sum())} of {len(values)} values are not finite; leave them out")
    names, column = np.unique(types, return_inverse=True)
    strata = np.unique(domains, return_inverse=True)[1]
    unit = np.arange(len(values)) if units is None else np.unique(units, return_inverse=True)[1]
    if units is None:  # a stratum is then one type of one domain
        strata = strata * len(names) + column
    sums, counts = np.zeros((draws, len(names))), np.zeros((draws, len(names)))
    for stratum in np.unique(strata):
        here = np.flatnonzero(strata == stratum)
        members, row = np.unique(unit[here], return_inverse=True)
        present, place = np.unique(column[here], return_inverse=True)
        table = np.zeros((2, len(members), len(present)))
        np.add.at(table[0], (row, place), values[here])
        np.add.at(table[1], (row, place), 1)
        drawn = rng.integers(len(members), size=(draws, len(members)))
        drawn += len(members) * np.arange(draws)[:, None]  # a cell of its own for each member in each resample
        times = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(float)
        sums[:, present] += times @ table[0]
        counts[:, present] += times @ table[1]
    with np.errstate(invalid="ignore"):
        return sums / np.where(counts > 0, counts, np.nan)


def sign_p(estimate: float, replicates: np.ndarray) -> float:
    """Two-sided bootstrap p: twice the share of replicates whose sign is not that of the estimate.

    Judge paper, appendix G: "the two-sided fraction of resamples whose aggregate mean has opposite sign", with the
    floor 1 / draws. Twice, because the paper prints values up to 0.94 and a share alone seldom exceeds one half.
    Replicates at zero count as opposite; an estimate of zero has p = 1; NaN if a replicate is NaN.
    """
    replicates = np.asarray(replicates, dtype=float)
    if np.isnan(estimate) or np.isnan(replicates).any():
        return float("nan")
    # Sums of fractions may miss zero by rounding.
    zero = 1e-12 * max(1.0, float(np.abs(replicates).max()))
    if abs(estimate) <= zero:
        return 1.0
    opposite = (np.sign(estimate) * replicates <= zero).mean()
    return float(np.clip(2 * opposite, 1 / len(replicates), 1))


def gaussian_tail_p(estimate: float, replicates: np.ndarray) -> float:
    """:func:`sign_p` of a normal distribution with the replicates' mean and standard deviation.

    The judge paper's extrapolation beyond the resamples (appendix G): no test in its own right, since a tail that holds
    no resample is assumed, not observed. NaN without spread.
    """
    centre, spread = np.mean(replicates), np.std(replicates, ddof=1)
    if np.isnan(estimate) or not spread > 1e-12 * abs(centre):
        return float("nan")
    return float(min(1, 2 * norm.cdf(-np.sign(estimate) * centre / spread)))


def benjamini_hochberg(p: np.ndarray) -> np.ndarray:
    """Adjusted p-values [n] of one family; a NaN stays NaN and does not count among the tests."""
    p = np.asarray(p, dtype=float)
    adjusted = np.full(p.shape, np.nan)
    known = ~np.isnan(p)
    if known.any():
        adjusted[known] = multipletests(p[known], method="fdr_bh")[1]
    return adjusted


def cohens_d(before: np.ndarray, after: np.ndarray) -> float:
    """Difference of means over the pooled standard deviation (judge paper, appendix G); NaN without spread."""
    before, after = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    free = len(before) + len(after) - 2
    if min(len(before), len(after)) < 2:
        return float("nan")
    pooled = np.sqrt(((len(before) - 1) * before.var(ddof=1) + (len(after) - 1) * after.var(ddof=1)) / free)
    return float((after.mean() - before.mean()) / pooled) if pooled > 1e-12 else float("nan")


def t_from_summary(
    mean: float, sd: float, n: int, *, centre: float = 0.0, level: float = 0.95
) -> tuple[float, float, float, float]:
    """Two-sided one-sample t-test from a mean, a standard deviation (ddof = 1) and n: t, p, and the mean's interval.

    Raises
    ------
    ValueError
        Without spread or with fewer than two observations.
    """
    error = _standard_error(sd, n)
    statistic, half = (mean - centre) / error, t.ppf(0.5 + level / 2, n - 1) * error
    return float(statistic), float(2 * t.sf(abs(statistic), n - 1)), float(mean - half), float(mean + half)


def tost_from_summary(mean: float, sd: float, n: int, *, centre: float, margin: float) -> float:
    """p of two one-sided t-tests against ``centre`` ± ``margin``: the larger of the two (judge paper, appendix C).

    A small p says that the mean lies within the margin.

    Raises
    ------
    ValueError
        Without spread, with fewer than two observations, or if the margin is not positive.
    """
    if not margin > 0:
        raise ValueError(f"the equivalence margin has to be positive, not {margin}")
    error = _standard_error(sd, n)
    above_low, below_high = (mean - (centre - margin)) / error, (mean - (centre + margin)) / error
    return float(max(t.sf(above_low, n - 1), t.cdf(below_high, n - 1)))


def _standard_error(sd: float, n: int) -> float:
    if not (sd > 0 and n >= 2):
        raise ValueError(f"a t-test needs a positive standard deviation and two observations, not {sd} and {n}")
    return float(sd / np.sqrt(n))
