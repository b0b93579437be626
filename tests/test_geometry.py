"""Distance, length and dimensions: closed forms, naive loops, scipy."""

import numpy as np
import pandas as pd
import pytest
from biasgeom import geometry
from scipy import stats


def test_displacement() -> None:
    rng = np.random.default_rng(1)
    base = rng.normal(size=(60, 20))
    states = np.concatenate([base, base + 0.05 * rng.normal(size=(60, 20)), 3 * base + 5])
    labels = np.repeat(["base", "near", "far"], 60)
    found = geometry.displacement(states, labels, np.tile(np.arange(60), 3)).set_index("label")
    assert found["beyond"]["base"] == pytest.approx(0.1)
    assert found["beyond"]["near"] < 0.25
    assert found["beyond"]["far"] == 1
    assert found["auc"]["base"] == pytest.approx(0.5)
    assert found["auc"]["far"] == 1
    assert found["spread"].tolist() == pytest.approx([1, 1, 3], rel=0.02)


def test_norms_by_naive_loops_and_scipy() -> None:
    rng = np.random.default_rng(2)
    length = rng.uniform(5, 50, size=(30, 1, 1))
    base = length * (rng.normal(size=(30, 3, 8)) * 0.02 + 1)
    other = base * 1.01
    other[:, 2] = base[:, 2]
    states = np.concatenate([base, other, other])
    names = np.arange(30)
    baselines = pd.DataFrame({"question_id": names, "row": names})
    perturbed = pd.DataFrame({"question_id": np.tile(names, 2), "row": 30 + np.arange(60)})
    found = geometry.norms(states, baselines, perturbed)
    own = [np.sqrt((states[i, 0] ** 2).sum()) for i in range(90)]
    assert found["p_two_sample"][0] == pytest.approx(stats.ttest_ind(own[:30], own[30:]).pvalue)
    assert found["p_paired"][0] == pytest.approx(stats.ttest_1samp(np.subtract(own[30:60], own[:30]), 0).pvalue)
    assert found["gap_pct"].tolist() == pytest.approx([1, 1, 0])
    # A gap of one per cent in every pair: lost in the spread of two samples, plain in pairs.
    assert found["p_two_sample"][0] > 0.5
    assert found["p_paired"][0] < 1e-6
    # A block without any difference has no p, and the family is the other two.
    assert np.isnan(found["p_paired_bh"][2])
    known = sorted(found["p_paired"][:2])
    assert sorted(found["p_paired_bh"][:2]) == pytest.approx([min(2 * known[0], known[1]), known[1]])
    with pytest.raises(ValueError, match="fewer than two"):
        geometry.norms(states, baselines[:1], perturbed)


def test_eigenspectrum_of_known_variances() -> None:
    rng = np.random.default_rng(3)
    left = np.linalg.qr(rng.normal(size=(41, 6)) - 0)[0]
    left = np.linalg.qr(left - left.mean(axis=0))[0]
    right = np.linalg.qr(rng.normal(size=(30, 6)))[0]
    variances = np.array([50, 20, 10, 10, 5, 5.0])
    differences = left * np.sqrt(variances) @ right.T + 7
    found = geometry.eigenspectrum(differences, rng.normal(size=(50, 30)))
    assert found["cumulative_variance_pct"].tolist() == pytest.approx([50, 80, 95, 100])
    assert found["dimensions"][0] == pytest.approx(100**2 / (variances**2).sum())
    assert (found["n"] == 41).all()
    # Uncentred, the common part would be the first component.
    uncentred = np.linalg.svd(differences, compute_uv=False) ** 2
    assert 100 * uncentred[0] / uncentred.sum() > 90
    for null in ("isotropic", "between"):
        assert found[null].is_monotonic_increasing
        assert (found[null][:3] < found["cumulative_variance_pct"][:3]).all()


def test_few_pairs_fill_the_spectrum_by_construction() -> None:
    rng = np.random.default_rng(4)
    found = geometry.eigenspectrum(rng.normal(size=(6, 200)), rng.normal(size=(40, 200)))
    assert found.loc[found["top_k"] >= 5, ["cumulative_variance_pct", "isotropic", "between"]].to_numpy() == (
        pytest.approx(100)
    )
    with pytest.raises(ValueError, match="three or more"):
        geometry.eigenspectrum(rng.normal(size=(2, 5)), rng.normal(size=(4, 5)))
    with pytest.raises(ValueError, match="all the same"):
        geometry.eigenspectrum(np.ones((5, 5)), rng.normal(size=(4, 5)))


def test_spectra_of_each_condition_or_why_not() -> None:
    rng = np.random.default_rng(5)
    states = rng.normal(size=(40, 2, 15))
    rows = pd.DataFrame({"question_id": np.arange(20), "condition": ["a"] * 18 + ["b"] * 2})
    pairs = rows.assign(row=20 + np.arange(20), base_row=np.arange(20))
    baselines = pd.DataFrame({"question_id": np.arange(20), "row": np.arange(20)})
    found = geometry.spectra(states, pairs, baselines, 1, ["a", "b", "c"]).set_index("condition")
    expected = geometry.eigenspectrum(states[20:38, 1] - states[:18, 1], states[:20, 1])
    assert found.loc["a", "cumulative_variance_pct"].tolist() == expected["cumulative_variance_pct"].tolist()
    assert found.loc["b", "reason"].startswith("2 difference vectors")
    assert found.loc["c", "n"] == 0
