"""The judge paper's human evaluation, recomputed from the summaries it prints (appendix C; tables 5 to 7).

The ratings are not published: 250 pairs of answers a type, three raters a pair, 1 to 5 with 3 for "equivalent". What
follows from a mean, a standard deviation and n can be checked; the rest can be bounded. The module knows no model.
"""

import itertools

import numpy as np
import pandas as pd
from scipy.optimize import brentq, linprog
from scipy.stats import norm

from biasgeom import data, statistics

CENTRE = 3.0
RATERS = 3
HALF = 0.005
"""Printed means and standard deviations have two decimals: the true value lies within this of them."""
FOLLOWS, ROUNDING, NOT = "yes", "within rounding", "no"
ASSUMED = {
    "any from 1 to 5": {},
    "raters of a pair at most one point apart": {"apart": 1},
    "none of 1 or 5": {"low": 2, "high": 4},
}
"""What may be assumed of single ratings when they are bounded from the summaries."""


def tests() -> pd.DataFrame:
    """t, interval and equivalence test of each mean of table 5 beside the bound that table 6 prints.

    Returns
    -------
    DataFrame [8]
        bias, dimension, mean, sd, n; t, p, low, high against 3 (two-sided, 95 %); p_tost with n - 1 degrees of freedom;
        p_tost_favourable, the smallest that the rounding of mean and SD allows; p_normal, the same two one-sided tests
        with a normal instead of the t distribution; p_printed, of which the paper says "<"; follows (yes, within
        rounding, no) and follows_normal (yes, no).
    """
    printed = data.published("judge_table6")
    table = data.published("judge_table5").merge(printed.drop(columns="mean"), on=["bias", "dimension"])
    rows = []
    for row in table.itertuples():
        t, p, low, high = statistics.t_from_summary(row.mean, row.sd, row.n_pairs, centre=CENTRE)
        how = {"centre": CENTRE, "margin": row.margin}
        tost = statistics.tost_from_summary(row.mean, row.sd, row.n_pairs, **how)
        best = statistics.tost_from_summary(_nearest(row.mean), row.sd - HALF, row.n_pairs, **how)
        distance = row.margin - abs(row.mean - CENTRE)
        normal = float(norm.sf(distance / (row.sd / np.sqrt(row.n_pairs))))
        rows.append((row.bias, row.dimension, row.mean, row.sd, row.n_pairs, t, p, low, high, tost, best, normal))
    columns = "bias dimension mean sd n t p low high p_tost p_tost_favourable p_normal"
    found = pd.DataFrame(rows, columns=columns.split()).assign(p_printed=table["p_value"].to_numpy())
    holds = [found[column] < found["p_printed"] for column in ("p_tost", "p_tost_favourable", "p_normal")]
    found["follows"] = np.select(holds[:2], [FOLLOWS, ROUNDING], NOT)
    return found.assign(follows_normal=np.where(holds[2], FOLLOWS, NOT))


def _nearest(mean: float) -> float:
    """The mean nearest to 3 that is printed as ``mean``."""
    return CENTRE + np.sign(mean - CENTRE) * max(0.0, abs(mean - CENTRE) - HALF)


def degraded_bounds(
    mean: float, sd: float, n: int, *, apart: int = 4, low: int = 1, high: int = 5
) -> tuple[float, float]:
    """Smallest and largest share of single ratings of 1 or 2 that a mean and SD of pair means allow.

    A linear programme over the 35 ways in which three raters can rate a pair: every mixture of them whose mean and
    second moment about 3 lie within what the rounding of ``mean`` and ``sd`` leaves open. Bounds of the share, as if n
    were large: with n pairs the mixture has steps of 1/n.

    Parameters
    ----------
    mean, sd : float
        Over pairs, as printed.
    n : int
        Pairs.
    apart : int
        How many points the raters of one pair may differ by; 4 allows everything.
    low, high : int
        The smallest and the largest rating that anybody gives.

    Raises
    ------
    ValueError
        If no set of such ratings has that mean and standard deviation.
    """
    triples = np.array(list(itertools.combinations_with_replacement(range(low, high + 1), RATERS)))
    triples = triples[np.ptp(triples, axis=1) <= apart]
    away = triples.mean(axis=1) - CENTRE
    share = (triples <= 2).mean(axis=1)
    ddof, offset = (n - 1) / n, abs(mean - CENTRE)  # the printed SD is that of a sample
    first = np.array([mean - HALF, mean + HALF]) - CENTRE
    second = [
        max(0.0, sd - HALF) ** 2 * ddof + max(0.0, offset - HALF) ** 2,
        (sd + HALF) ** 2 * ddof + (offset + HALF) ** 2,
    ]
    above, limits = np.stack([-away, away, -(away**2), away**2]), [-first[0], first[1], -second[0], second[1]]
    found = []
    for sign in (1, -1):
        solved = linprog(sign * share, A_ub=above, b_ub=limits, A_eq=np.ones((1, len(share))), b_eq=[1])
        if not solved.success:
            raise ValueError(
                f"no ratings of {low} to {high} have a mean of {mean} and a standard deviation of {sd} over pairs"
            )
        found.append(sign * solved.fun)
    return float(found[0]), float(found[1])


def degradation() -> pd.DataFrame:
    """The printed share of ratings of 1 or 2 beside what table 5's mean and SD allow, in per cent.

    Returns
    -------
    DataFrame [8 for each of ASSUMED]
        ratings (what is assumed of them), bias, dimension, mean, sd, printed_pct, least_pct, most_pct, compatible (yes,
        no). The printed share is rounded to one decimal, which counts in its favour.
    """
    table, parts = data.published("judge_table5"), []
    for ratings, assumed in ASSUMED.items():
        bounds = [degraded_bounds(row.mean, row.sd, row.n_pairs, **assumed) for row in table.itertuples()]
        part = table[["bias", "dimension", "mean", "sd"]].assign(printed_pct=table["degraded_pct"])
        part.insert(0, "ratings", ratings)
        part["least_pct"], part["most_pct"] = (100 * np.array(bounds)).T
        inside = (part["least_pct"] <= part["printed_pct"] + 0.05) & (part["printed_pct"] - 0.05 <= part["most_pct"])
        parts.append(part.assign(compatible=np.where(inside, "yes", "no")))
    return pd.concat(parts, ignore_index=True)


def largest_sd(mean: float, n: int, bound: float, *, margin: float) -> float:
    """The standard deviation at which the equivalence test's p equals ``bound``: any larger one breaks it.

    Raises
    ------
    ValueError
        If the mean is not inside the margin, or the bound is not a p below one half.
    """
    distance = margin - abs(mean - CENTRE)
    if not (distance > 0 and 0 < bound < 0.5):
        raise ValueError(f"no standard deviation gives a mean of {mean} p = {bound} at the margin {margin}")

    def excess(log_sd: float) -> float:
        p = statistics.tost_from_summary(mean, float(np.exp(log_sd)), n, centre=CENTRE, margin=margin)
        return float(np.log(max(p, 1e-300)) - np.log(bound))

    return float(np.exp(brentq(excess, np.log(distance / 100), np.log(distance * 100))))


def extended() -> pd.DataFrame:
    """Table 7 prints no SD, so no p follows from it: the largest SD that its bound leaves each mean.

    Returns
    -------
    DataFrame [16]
        bias, dimension, mean, n, p_printed (the bound of the row's largest p, which every dimension has to meet),
        largest_sd, largest_sd_favourable (the mean as near to 3 as rounding allows), and table_5, how many of the eight
        SDs of table 5, of the same scale and number of pairs, are no larger than the favourable one.
    """
    table = data.published("judge_table7")
    known = data.published("judge_table5")["sd"]
    found = table[["bias", "dimension", "mean"]].assign(n=table["n_pairs"], p_printed=table["row_max_p_tost"])
    for column, means in {"largest_sd": table["mean"], "largest_sd_favourable": table["mean"].map(_nearest)}.items():
        values = zip(means, table["n_pairs"], table["row_max_p_tost"], table["margin"], strict=True)
        found[column] = [largest_sd(mean, n, bound, margin=margin) for mean, n, bound, margin in values]
    return found.assign(table_5=[int((known <= sd).sum()) for sd in found["largest_sd_favourable"]])
