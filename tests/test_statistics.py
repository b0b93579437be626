"""Intervals and p-values against closed forms, naive loops, scipy and statsmodels, and by their coverage."""

import time
from statistics import NormalDist

import numpy as np
import pytest
from biasgeom import statistics
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, kstest, ttest_1samp, ttest_ind
from scipy.stats import t as t_distribution
from statsmodels.stats.weightstats import DescrStatsW


def test_resampled_groups_stay_whole() -> None:
    groups = np.array(["b", "a", "c", "a", "b", "c"])
    drawn = statistics.resample_groups(groups, 500, np.random.default_rng(0))
    assert drawn.shape == (500, 6)
    members = {(1, 3), (0, 4), (2, 5)}
    couples = drawn.reshape(500, 3, 2)
    assert {tuple(couple) for couple in couples.reshape(-1, 2).tolist()} == members
    # With replacement, every group equally often.
    assert len({tuple(sorted(row)) for row in groups[couples[:, :, 0]].tolist()}) == 10
    counts = np.unique(groups[drawn], return_counts=True)[1]
    np.testing.assert_allclose(counts / drawn.size, 1 / 3, atol=0.05)


def test_groups_of_one_are_the_plain_bootstrap() -> None:
    drawn = statistics.resample_groups(np.arange(4), 3, np.random.default_rng(1))
    np.testing.assert_array_equal(drawn, np.random.default_rng(1).integers(4, size=(3, 4)))


def test_groups_of_unequal_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one size; they have \{'a': 2, 'b': 1\}"):
        statistics.resample_groups(np.array(["a", "b", "a"]), 5, np.random.default_rng(0))


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_normal_interval_closed_form(level: float) -> None:
    estimate, replicates = np.array([1.0, -2.0]), np.array([[0.0, 2.0, 4.0], [1.0, 1.0, 1.0]])
    low, high = statistics.normal_interval(estimate, replicates, level=level)
    half = NormalDist().inv_cdf(0.5 + level / 2) * 2
    np.testing.assert_allclose(low, [1 - half, -2], rtol=1e-12)
    np.testing.assert_allclose(high, [1 + half, -2], rtol=1e-12)


def test_normal_interval_covers_a_mean_of_grouped_observations() -> None:
    """Resampling groups covers the truth as often as promised; resampling their members one by one does not."""
    runs, groups, size = 300, 40, 4
    names = np.repeat(np.arange(groups), size)
    covered = {"groups": 0, "singly": 0}
    for seed in range(runs):
        rng = np.random.default_rng([2, seed])
        values = 3 + np.repeat(rng.normal(size=groups), size) + 0.3 * rng.normal(size=groups * size)
        for unit, labels in {"groups": names, "singly": np.arange(len(names))}.items():
            drawn = values[statistics.resample_groups(labels, 200, rng)].mean(axis=1)
            low, high = statistics.normal_interval(values.mean(), drawn)
            covered[unit] += low <= 3 <= high
    assert 0.90 * runs <= covered["groups"] <= binom.ppf(0.999, runs, 0.95)
    assert covered["singly"] < 0.8 * runs


def test_band_is_two_quantiles_along_the_last_axis() -> None:
    null = np.random.default_rng(3).normal(size=(2, 3, 101))
    low, high = statistics.band(null)
    np.testing.assert_array_equal(low, np.quantile(null, 0.025, axis=-1))
    np.testing.assert_array_equal(high, np.quantile(null, 0.975, axis=-1))
    assert statistics.band(np.arange(101.0), low=0.1, high=0.8) == (10, 80)


def test_exceedance_small_examples() -> None:
    null = np.array([1.0, 2, 3, 4])
    assert statistics.exceedance_p(3, null) == 3 / 5
    assert statistics.exceedance_p(0, null) == 1
    assert statistics.exceedance_p(9, null) == 1 / 5
    assert statistics.exceedance_p(np.inf, null) == 1 / 5
    assert isinstance(statistics.exceedance_p(3, null), float)
    np.testing.assert_array_equal(statistics.exceedance_p([9, 2], np.stack([null, null])), [1 / 5, 4 / 5])
    np.testing.assert_array_equal(statistics.exceedance_p(3, np.stack([null, null + 9])), [3 / 5, 1])


def test_exceedance_counts_ties_that_rounding_hides() -> None:
    assert 0.1 + 0.2 != 0.3
    assert statistics.exceedance_p(0.1 + 0.2, np.array([0.3, 0.0])) == 2 / 3
    assert statistics.exceedance_p(0.3 + 1e-9, np.array([0.3, 0.0])) == 1 / 3


def test_an_undefined_statistic_has_no_p() -> None:
    null = np.array([1.0, 2, 3])
    assert np.isnan(statistics.exceedance_p(np.nan, null))
    assert np.isnan(statistics.exceedance_p(2.0, np.array([1.0, np.nan, 3])))
    np.testing.assert_array_equal(statistics.exceedance_p([np.nan, 2.0], np.stack([null, null])), [np.nan, 3 / 4])


def test_exceedance_is_uniform_under_the_null() -> None:
    draws = np.random.default_rng(4).normal(size=(2000, 100))
    p = statistics.exceedance_p(draws[:, 0], draws[:, 1:])
    assert p.min() >= 1 / 100
    assert kstest(p - np.random.default_rng(5).uniform(0, 0.01, size=2000), "uniform").pvalue > 0.01
    # Valid at every level, also at the smallest p there can be.
    for level in (0.01, 0.05, 0.5):
        assert (p <= level).sum() <= binom.ppf(0.999, 2000, level)


@pytest.mark.parametrize(("hits", "n"), [(0, 10), (3, 10), (10, 10), (31, 32)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_wilson_closed_form(hits: int, n: int, level: float) -> None:
    z, share = NormalDist().inv_cdf(0.5 + level / 2), hits / n
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * (share * (1 - share) / n + z**2 / (4 * n**2)) ** 0.5
    low, high = statistics.wilson_interval(hits, n, level=level)
    assert low == pytest.approx(centre - half, abs=1e-12)
    assert high == pytest.approx(centre + half, abs=1e-12)
    assert 0 <= low <= share + 1e-12
    assert share - 1e-12 <= high <= 1


def test_group_signs_flip_whole_groups() -> None:
    groups = np.array(["b", "a", "b", "c"])
    signs = statistics.group_signs(groups, 400, np.random.default_rng(0))
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert (signs[:, 0] == signs[:, 2]).all()
    # Groups are independent of each other: 400 products of fair signs average to 0 within 4 standard errors.
    assert abs((signs[:, 0] * signs[:, 1]).mean()) < 4 / 20


# Judge chapter --------------------------------------------------------------------------------------------------------


def differences(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """30 questions of 3 domains that differ in size and level, 2 types each; a fifth of the values missing."""
    rng = np.random.default_rng(seed)
    question = np.repeat(np.arange(30), 2)
    kind = np.tile(["x", "a"], 30)
    domain = np.repeat(["p", "q", "r"], [12, 18, 30])
    level = np.repeat(rng.normal(size=30), 2) + 3 * (domain == "r") + (kind == "a")
    kept = rng.random(60) > 0.2
    return tuple(array[kept] for array in (level + 0.3 * rng.normal(size=60), kind, domain, question))


def naive_means(values, types, domains, *, draws, rng, units=None) -> np.ndarray:
    """Draw by draw, member by member."""
    replicates = []
    for _ in range(draws):
        drawn = {kind: [] for kind in sorted(set(types))}
        for domain in sorted(set(domains)):
            if units is None:
                for kind in drawn:
                    pool = [v for v, k, d in zip(values, types, domains, strict=True) if (k, d) == (kind, domain)]
                    drawn[kind] += [pool[rng.integers(len(pool))] for _ in pool]
            else:
                members = sorted({u for u, d in zip(units, domains, strict=True) if d == domain})
                for chosen in [members[rng.integers(len(members))] for _ in members]:
                    for value, kind, unit in zip(values, types, units, strict=True):
                        if unit == chosen:
                            drawn[kind].append(value)
        replicates.append([np.mean(part) for part in drawn.values()])
    return np.array(replicates)


@pytest.mark.parametrize("by_question", [False, True])
def test_stratified_means_are_those_of_a_naive_loop(by_question: bool) -> None:
    values, types, domains, questions = differences()
    units = questions if by_question else None
    fast = statistics.stratified_means(values, types, domains, draws=20_000, rng=np.random.default_rng(1), units=units)
    slow = naive_means(values, types, domains, draws=1500, rng=np.random.default_rng(2), units=units)
    assert fast.shape == (20_000, 2)
    for mine, theirs in ((fast, slow), (fast.mean(1, keepdims=True), slow.mean(1, keepdims=True))):
        error = theirs.std(axis=0) / np.sqrt(1500)
        np.testing.assert_array_less(np.abs(mine.mean(0) - theirs.mean(0)), 4 * error)
        np.testing.assert_allclose(mine.std(0), theirs.std(0), rtol=0.08)


def test_strata_and_questions_change_the_spread() -> None:
    """Negative controls: without strata the spread is that of the domains too; single values hide the question."""
    values, types, domains, questions = differences()
    how = {"draws": 5000, "rng": np.random.default_rng(3)}
    rows = statistics.stratified_means(values, types, domains, **how).mean(1).std()
    whole = statistics.stratified_means(values, types, np.full(len(values), "one"), **how).mean(1).std()
    grouped = statistics.stratified_means(values, types, domains, units=questions, **how).mean(1).std()
    assert whole > 1.3 * rows
    assert grouped > 1.2 * rows


def test_stratified_spread_in_closed_form() -> None:
    """The variance of a stratified mean over its resamples: the sum of n_s · var_s (ddof 0) over n²."""
    values, types, domains, _ = differences(4)
    drawn = statistics.stratified_means(values, types, domains, draws=40_000, rng=np.random.default_rng(5))
    for i, kind in enumerate(sorted(set(types))):
        parts = [values[(types == kind) & (domains == d)] for d in set(domains)]
        variance = sum(len(part) * part.var() for part in parts) / sum(map(len, parts)) ** 2
        assert drawn[:, i].std() == pytest.approx(variance**0.5, rel=0.02)


def test_a_resample_without_a_type_has_no_mean_of_it() -> None:
    values, types, domains = np.array([1.0, 2, 3]), np.array(["a", "a", "b"]), np.full(3, "d")
    drawn = statistics.stratified_means(
        values, types, domains, draws=400, rng=np.random.default_rng(0), units=np.array([0, 1, 2])
    )
    # None of three units drawn thrice is the one that has b: (2/3)³.
    assert np.isnan(drawn[:, 1]).mean() == pytest.approx(8 / 27, abs=0.08)
    assert set(drawn[~np.isnan(drawn[:, 1]), 1]) == {3.0}
    with pytest.raises(ValueError, match="1 of 3 values are not finite"):
        statistics.stratified_means(np.array([1, np.nan, 2]), types, domains, draws=2, rng=np.random.default_rng(0))


def test_ten_thousand_resamples_take_no_time() -> None:
    rng = np.random.default_rng(0)
    values, types = rng.normal(size=2100), np.tile(np.arange(14), 150)
    domains, questions = np.repeat(np.arange(12).repeat(13)[:150], 14), np.repeat(np.arange(150), 14)
    start = time.perf_counter()
    for units in (None, questions):
        statistics.stratified_means(values, types, domains, draws=10_000, rng=rng, units=units)
    assert time.perf_counter() - start < 5


def test_sign_p_small_examples() -> None:
    replicates = np.array([-1.0, 0, 1, 2, 3, 4, 5, 6, 7, 8])
    assert statistics.sign_p(3.0, replicates) == pytest.approx(2 * 2 / 10)
    assert statistics.sign_p(-3.0, -replicates) == pytest.approx(2 * 2 / 10)
    assert statistics.sign_p(3.0, replicates + 5) == 1 / 10  # the floor, not 0 and not 2 / 10
    assert statistics.sign_p(-0.1, replicates) == 1  # nine of ten: twice is more than one
    assert statistics.sign_p(0.0, replicates) == 1
    assert statistics.sign_p(0.0, np.zeros(5)) == 1
    assert statistics.sign_p(0.1, np.array([0.1 + 0.2 - 0.3, 1, 1, 1])) == pytest.approx(2 / 4)
    assert np.isnan(statistics.sign_p(np.nan, replicates))
    assert np.isnan(statistics.sign_p(1.0, np.array([1, np.nan])))


def test_sign_p_is_nearly_uniform_under_the_null_and_a_single_share_is_not() -> None:
    found, halved, runs = [], [], 800
    for seed in range(runs):
        rng = np.random.default_rng([6, seed])
        values = rng.normal(size=40)
        drawn = statistics.stratified_means(values, np.zeros(40), np.zeros(40), draws=400, rng=rng)[:, 0]
        found.append(statistics.sign_p(values.mean(), drawn))
        halved.append((np.sign(values.mean()) * drawn <= 0).mean())
    assert binom.ppf(0.001, runs, 0.05) <= np.sum(np.array(found) <= 0.05) <= binom.ppf(0.999, runs, 0.06)
    assert np.sum(np.array(halved) <= 0.05) > binom.ppf(0.999, runs, 0.06)


def test_gaussian_tail_continues_the_bootstrap() -> None:
    replicates = np.random.default_rng(7).normal(0.9, 0.5, size=200_000)
    assert statistics.gaussian_tail_p(0.9, replicates) == pytest.approx(statistics.sign_p(0.9, replicates), rel=0.03)
    mean, sd = replicates.mean(), replicates.std(ddof=1)
    far = replicates - mean + 6 * sd  # six standard deviations from zero: no resample lies there
    assert statistics.gaussian_tail_p(6 * sd, far) == pytest.approx(2 * NormalDist().cdf(-6), rel=1e-6)
    assert statistics.sign_p(6 * sd, far) == 1 / 200_000
    assert statistics.gaussian_tail_p(-6 * sd, -far) == pytest.approx(2 * NormalDist().cdf(-6), rel=1e-6)
    assert np.isnan(statistics.gaussian_tail_p(-2.0, np.full(10, -2.0)))
    assert np.isnan(statistics.gaussian_tail_p(0.0, np.zeros(10)))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(0, 5))
def test_benjamini_hochberg_by_its_definition(p: list[float], missing: int) -> None:
    adjusted = statistics.benjamini_hochberg(np.array(p + [np.nan] * missing))
    assert np.isnan(adjusted[len(p) :]).all()
    for value, mine in zip(p, adjusted, strict=False):
        bounds = [min(1, other * len(p) / sum(x <= other for x in p)) for other in p if other >= value]
        assert mine == pytest.approx(min(bounds), rel=1e-9)


def test_benjamini_hochberg_is_neither_bonferroni_nor_counts_missing_tests() -> None:
    p = np.array([0.01, 0.02, 0.03, np.nan])
    np.testing.assert_allclose(statistics.benjamini_hochberg(p)[:3], 0.03)
    assert np.isnan(statistics.benjamini_hochberg(np.array([np.nan]))).all()
    assert statistics.benjamini_hochberg(np.array([])).shape == (0,)


@given(st.integers(2, 60), st.integers(0, 1000))
def test_t_from_summary_is_scipys(n: int, seed: int) -> None:
    sample = np.random.default_rng(seed).normal(2.9, 0.5, size=n)
    found = statistics.t_from_summary(sample.mean(), sample.std(ddof=1), n, centre=3)
    expected = ttest_1samp(sample, 3)
    interval = expected.confidence_interval(0.95)
    np.testing.assert_allclose(found, [expected.statistic, expected.pvalue, interval.low, interval.high], rtol=1e-8)


@given(st.integers(2, 60), st.floats(0.05, 1), st.integers(0, 1000))
def test_tost_from_summary_is_that_of_statsmodels(n: int, margin: float, seed: int) -> None:
    sample = np.random.default_rng(seed).normal(2.9, 0.5, size=n)
    p = statistics.tost_from_summary(sample.mean(), sample.std(ddof=1), n, centre=3, margin=margin)
    assert p == pytest.approx(DescrStatsW(sample).ttost_mean(3 - margin, 3 + margin)[0], rel=1e-8)


def test_tost_is_no_two_sided_test() -> None:
    """The smaller of the two, or the test against the centre, would be something else."""
    p = statistics.tost_from_summary(2.94, 0.55, 250, centre=3, margin=0.3)
    assert p == pytest.approx(t_distribution.cdf(-(0.3 - 0.06) / (0.55 / 250**0.5), 249), rel=1e-9)
    assert p > t_distribution.cdf(-(0.3 + 0.06) / (0.55 / 250**0.5), 249) * 1e3
    assert statistics.tost_from_summary(3.3, 0.5, 100, centre=3, margin=0.3) == pytest.approx(0.5)
    assert statistics.tost_from_summary(3.6, 0.5, 100, centre=3, margin=0.3) > 0.99


def test_what_no_t_test_can_do_is_refused() -> None:
    for sd, n in ((0.0, 10), (1.0, 1), (float("nan"), 10)):
        with pytest.raises(ValueError, match="positive standard deviation and two observations"):
            statistics.t_from_summary(3, sd, n)
        with pytest.raises(ValueError, match="positive standard deviation and two observations"):
            statistics.tost_from_summary(3, sd, n, centre=3, margin=0.3)
    with pytest.raises(ValueError, match="margin has to be positive"):
        statistics.tost_from_summary(3, 1, 10, centre=3, margin=0)


def test_cohens_d_pools_both_variances() -> None:
    before, after = np.array([1.0, 2, 3, 4]), np.array([4.0, 8])
    # Sums of squares 5 and 8 over 4 + 2 - 2 degrees of freedom.
    assert statistics.cohens_d(before, after) == pytest.approx(3.5 / (13 / 4) ** 0.5)
    assert statistics.cohens_d(before, after) != pytest.approx(3.5 / before.std(ddof=1))
    two = ttest_ind(after, before)
    assert statistics.cohens_d(before, after) == pytest.approx(two.statistic * (1 / 4 + 1 / 2) ** 0.5)
    assert np.isnan(statistics.cohens_d(np.full(3, 7.0), np.full(3, 7.0)))
    assert np.isnan(statistics.cohens_d(before, after[:1]))
