"""Intervals and p-values against closed forms and by their coverage."""

from statistics import NormalDist

import numpy as np
import pytest
from biasgeom import statistics
from scipy.stats import binom, kstest


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
