"""Six directions: planted ones recovered, scikit-learn and closed forms agreed with, conventions kept."""

import numpy as np
import pandas as pd
import pytest
from biasgeom import estimators, substrate
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import ortho_group
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

D = 24


def planted(seed: int, *, pairs: int = 400, signal: float = 2.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Base states, biased states and the unit direction between them; signal in deviations of a coordinate."""
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=D)
    direction /= np.linalg.norm(direction)
    base = rng.normal(size=(pairs, D)) + 5 * rng.normal(size=D)
    strength = signal * (1 + 0.2 * rng.normal(size=(pairs, 1)))
    return base, base + strength * direction + 0.5 * rng.normal(size=(pairs, D)), direction


@pytest.mark.parametrize("method", estimators.METHODS)
@pytest.mark.parametrize("seed", range(3))
def test_recovers_a_planted_direction(method: str, seed: int) -> None:
    base, biased, direction = planted(seed)
    found = estimators.bias_direction(method, base, biased)
    assert found @ direction > 0.95
    assert np.linalg.norm(found) == pytest.approx(1, abs=1e-12)


def test_wrong_estimators_miss_it() -> None:
    base, biased, direction = planted(0)
    # Differences of unpaired rows, the states themselves, and PCA about the mean.
    states = biased.mean(axis=0) / np.linalg.norm(biased.mean(axis=0))
    assert abs(states @ direction) < 0.8
    noisy = biased + 4 * np.random.default_rng(1).normal(size=(len(biased), 1)) * np.eye(D)[0]
    assert estimators.bias_direction("pca", base, noisy, centred=True) @ direction < 0.5
    assert estimators.bias_direction("mean", base, noisy) @ direction > 0.9


def test_closed_forms_of_the_directional() -> None:
    base, biased, _ = planted(3, pairs=20)
    differences = biased - base
    mean = differences.sum(axis=0) / 20
    np.testing.assert_allclose(estimators.bias_direction("mean", base, biased), mean / np.sqrt(mean @ mean))
    for centred in (False, True):
        scatter = (differences - centred * mean).T @ (differences - centred * mean)
        top = np.linalg.eigh(scatter)[1][:, -1]
        found = estimators.bias_direction("pca", base, biased, centred=centred)
        np.testing.assert_allclose(found, top * np.sign(top @ mean), atol=1e-9)


def test_agrees_with_scikit_learn_on_the_core() -> None:
    base, biased, _ = planted(4, pairs=60)
    baseline = np.concatenate([base, base + 0.1])
    far = np.arange(60) % 3 > 0
    rows = np.concatenate([baseline, biased[far]])
    labels = np.repeat([0, 1], [120, 40])
    models = {
        "lda": LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
        "classifier": LogisticRegression(C=1, class_weight="balanced", solver="newton-cholesky", tol=1e-10),
        "svm": LinearSVC(C=1, dual=False, tol=1e-9, max_iter=200_000),
    }
    middle = (rows[:120].mean(axis=0) + rows[120:].mean(axis=0)) / 2
    for method, model in models.items():
        expected = model.fit(rows - middle, labels).coef_[0]
        found = estimators.bias_direction(method, base, biased, far=far, baseline=baseline)
        assert found @ expected / np.linalg.norm(expected) > 0.9999
        assert found @ estimators.bias_direction(method, base, biased) < 0.9999


def test_median_minimises_the_sum_of_distances() -> None:
    rng = np.random.default_rng(5)
    points = rng.standard_t(1.5, size=(30, 4)) + 3
    found = estimators.geometric_median(points, tolerance=1e-10)
    unit = (points - found.point) / np.linalg.norm(points - found.point, axis=1, keepdims=True)
    assert np.linalg.norm(unit.sum(axis=0)) < 1e-5
    assert found.converged
    assert found.gap < 1e-6
    direct = minimize(lambda p: np.linalg.norm(points - p, axis=1).sum(), points.mean(axis=0), tol=1e-12)
    np.testing.assert_allclose(found.point, direct.x, atol=1e-4)
    assert np.linalg.norm(found.point - points.mean(axis=0)) > 0.1


def test_median_at_and_on_the_way_through_a_data_point() -> None:
    # The middle point of a cross is optimal: unit vectors to the others cancel.
    cross = np.array([[0, 0], [1, 0], [-1, 0], [0, 2], [0, -2.0]])
    assert estimators.geometric_median(cross + 3).gap == 0
    np.testing.assert_allclose(estimators.geometric_median(cross + 3).point, [3, 3])
    # A subgradient: three points at one place outweigh two elsewhere though the mean lies between.
    heavy = np.array([[0, 0]] * 3 + [[4, 0], [0, 4.0]])
    found = estimators.geometric_median(heavy, tolerance=1e-9)
    np.testing.assert_allclose(found.point, 0, atol=1e-5)
    # Begun at a data point that is not optimal, it leaves.
    begun = np.array([[0, 0], [1, 0], [1, 1], [1, -1], [-3, 0.0]])
    assert np.allclose(begun.mean(axis=0), begun[0])
    assert estimators.geometric_median(begun).point[0] > 0.1


def test_median_resists_what_moves_the_mean() -> None:
    base, biased, direction = planted(6, pairs=50)
    biased[0] += 1e4 * np.eye(D)[1]
    assert estimators.bias_direction("geometric_median", base, biased) @ direction > 0.95
    assert estimators.bias_direction("mean", base, biased) @ direction < 0.5


def test_convergence_is_reported() -> None:
    base, biased, _ = planted(7, pairs=20)
    assert not estimators.geometric_median(biased - base, iterations=1).converged
    fitted = estimators.fit("geometric_median", base, biased)
    assert fitted.converged
    assert 1 < fitted.iterations <= 200
    assert estimators.fit("mean", base, biased).converged is None


def test_no_direction_depends_on_the_origin() -> None:
    base, biased, _ = planted(12, pairs=40, signal=8)
    base, biased = base - base.mean(axis=0), biased - base.mean(axis=0)
    for method in estimators.METHODS:
        found = estimators.bias_direction(method, base, biased)
        assert found @ estimators.bias_direction(method, base + 300, biased + 300) > 0.9999
    # As scikit-learn has it, the SVM's intercept is penalised and the plane turns with the origin.
    rows, labels = np.concatenate([base, biased]), np.repeat([0, 1], 40)
    raw = [LinearSVC(dual=False, tol=1e-8).fit(rows + shift, labels).coef_[0] for shift in (0, 300)]
    assert raw[0] @ raw[1] / np.linalg.norm(raw[0]) / np.linalg.norm(raw[1]) < 0.99


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_conventions(seed: int) -> None:
    base, biased, _ = planted(seed, pairs=30)
    rotation = ortho_group.rvs(D, random_state=seed)
    rng = np.random.default_rng(seed)
    signed = np.eye(D)[rng.permutation(D)] * rng.choice([-1, 1], size=D)
    for method in estimators.METHODS:
        found = estimators.bias_direction(method, base, biased)
        assert ((biased - base) @ found).mean() > 0
        backwards = estimators.bias_direction(method, biased, base)
        assert ((base - biased) @ backwards).mean() > 0
        # scikit-learn's shrinkage scales each coordinate first, so LDA follows exchanged axes only.
        turn = signed if method == "lda" else rotation
        turned = estimators.bias_direction(method, base @ turn, biased @ turn)
        assert turned @ (found @ turn) > 1 - 1e-4


def test_lda_follows_no_general_rotation() -> None:
    base, biased, _ = planted(8, pairs=20)
    base[:, 0] *= 50
    biased = base + biased - planted(8, pairs=20)[0]
    rotation = ortho_group.rvs(D, random_state=0)
    found = estimators.bias_direction("lda", base, biased)
    assert estimators.bias_direction("lda", base @ rotation, biased @ rotation) @ (found @ rotation) < 0.999


def test_refusals_say_what_to_do() -> None:
    base, biased, _ = planted(9, pairs=4)
    bad = [
        (("median", base, biased), {}, "there are mean"),
        (("mean", base[:1], biased[:1]), {}, "judge more questions"),
        (("mean", base, biased[:, :5]), {}, "one width"),
        (("mean", base, biased[:3]), {}, "as many"),
        (("mean", base, base), {}, "mean difference"),
        (("lda", base, biased), {"far": np.zeros(4, bool)}, "leave it out"),
        (("lda", base, biased), {"far": np.ones(3, bool)}, "leave it out"),
        (("svm", base, biased), {"baseline": base[:, :3]}, "width"),
        (("pca", base, biased * np.nan), {}, "finite"),
    ]
    for arguments, keywords, message in bad:
        with pytest.raises(ValueError, match=message):
            estimators.bias_direction(*arguments, **keywords)
    opposite = np.concatenate([base + biased, base - biased])
    with pytest.raises(ValueError, match="no direction or sign"):
        estimators.bias_direction("pca", np.concatenate([base, base]), opposite)


def test_directions_keep_what_can_be_computed() -> None:
    base, biased, direction = planted(10, pairs=12)
    found, table = estimators.directions(base, biased, far=np.zeros(12, bool))
    assert list(found) == ["mean", "geometric_median", "pca"]
    assert table.set_index("method")["reason"].str.contains("far must mark").tolist() == [False] * 3 + [True] * 3
    found, table = estimators.directions(base[:1], biased[:1])
    assert not found
    assert (table["reason"] != "").all()
    found, table = estimators.directions(base, biased)
    cosines = estimators.cosines(found)
    assert len(cosines) == 30
    row = cosines[(cosines["vector_a"] == "pca") & (cosines["vector_b"] == "svm")].iloc[0]
    assert row["family"] == "cross"
    assert row["cosine"] == pytest.approx(float(np.dot(found["pca"], found["svm"])))
    assert found["mean"] @ direction > 0.9


def shift_table(shifts: list[float], polarity: str) -> pd.DataFrame:
    return pd.DataFrame({"shift": shifts, "polarity": polarity, "row": range(len(shifts))})


def test_effective_follows_the_cue() -> None:
    moved = pd.concat([shift_table([2, -2, 1.9, np.nan], "positive"), shift_table([2, -2, -3, -1], "negative")])
    assert substrate.effective(moved, 2)["shift"].tolist() == [2, -2, -3]
    for no_spread in (0.0, np.nan):
        assert substrate.effective(moved, no_spread).empty
    assert substrate.effective(moved[:0], 2).empty


def test_mahalanobis_is_scikit_learns() -> None:
    from sklearn.covariance import LedoitWolf

    rng = np.random.default_rng(11)
    for m, d in ((15, 40), (200, 6)):
        baseline, states = rng.normal(size=(m, d)) * rng.uniform(0.1, 9, d) + 4, rng.normal(size=(5, d)) * 5
        expected = np.sqrt(LedoitWolf().fit(baseline).mahalanobis(states))
        np.testing.assert_allclose(substrate.mahalanobis(baseline, states), expected, rtol=1e-8)
    with pytest.raises(ValueError, match="all the same"):
        substrate.mahalanobis(np.ones((4, 3)), np.ones((2, 3)))
    with pytest.raises(ValueError, match="width"):
        substrate.mahalanobis(np.eye(3), np.ones((2, 4)))


def test_distances_never_see_their_own_question() -> None:
    rng = np.random.default_rng(12)
    baseline, names = rng.normal(size=(20, 30)), [f"q{i}" for i in range(20)]
    own, others = substrate.cross_fitted_distances(baseline, names, baseline, names)
    np.testing.assert_allclose(own, others)
    fold = substrate.question_folds(names)
    assert sorted(fold.value_counts()) == [4] * 5
    held = fold[names].to_numpy() == fold["q7"]
    np.testing.assert_allclose(own[7], substrate.mahalanobis(baseline[~held], baseline[7:8])[0])
    assert (own > 1.05 * substrate.mahalanobis(baseline, baseline)).all()
    with pytest.raises(ValueError, match="q99"):
        substrate.cross_fitted_distances(baseline, names, baseline[:1], ["q99"])
    with pytest.raises(ValueError, match="folds"):
        substrate.question_folds(names[:4])


def test_core_in_sample_flags_held_out_baselines() -> None:
    names, scales = np.arange(100), np.arange(1, 151) ** -0.8
    baseline = np.random.default_rng(13).normal(size=(100, 150)) * scales
    assert substrate.flagged(baseline, names, cross_fitted=False) > 0.4
    assert abs(substrate.flagged(baseline, names) - 0.1) < 0.08


def test_core_takes_the_far_or_else_everything() -> None:
    rng = np.random.default_rng(14)
    baseline, names = rng.normal(size=(60, 10)), np.arange(60)
    biased = baseline[:20] + np.where(np.arange(20) < 8, 9, 0)[:, None]
    core = substrate.biased_core(baseline, names, biased, names[:20])
    assert core.far[:8].all()
    assert core.far[8:].sum() <= 4
    assert core.fraction == core.far.mean()
    assert not core.everything
    core = substrate.biased_core(baseline, names, biased[5:20], names[5:20], percentile=99)
    assert core.everything
    assert core.far.all()
    assert core.fraction < 1
    with pytest.raises(ValueError, match="no core"):
        substrate.biased_core(baseline, names, biased[:0], [])


def judged(signal: float) -> tuple[np.ndarray, pd.DataFrame, pd.DataFrame]:
    """States [160, 2, D] of 80 questions, base and biased in turn; only block 1 moves, along axis 3."""
    rng = np.random.default_rng(15)
    states = rng.normal(size=(80, 1, 2, D)) + 0.3 * rng.normal(size=(80, 2, 2, D))
    states[:, 1, 1, 3] += signal
    pairs = pd.DataFrame({"question_id": np.arange(80), "base_row": 2 * np.arange(80)})
    baselines = pairs.rename(columns={"base_row": "row"})
    return states.reshape(160, 2, D), pairs.assign(row=pairs["base_row"] + 1), baselines


def test_from_pairs_reads_its_rows_block_and_core() -> None:
    states, pairs, baselines = judged(6.0)
    chosen = pairs[pairs["question_id"] % 2 == 0]
    found, table = estimators.from_pairs(states, chosen, baselines, 1)
    assert set(found) == set(estimators.METHODS)
    assert min(abs(v[3]) for v in found.values()) > 0.8
    base, biased = states[chosen["base_row"], 1], states[chosen["row"], 1]
    core = substrate.biased_core(states[::2, 1], np.arange(80), biased, chosen["question_id"])
    expected = estimators.bias_direction("lda", base, biased, far=core.far, baseline=states[::2, 1])
    np.testing.assert_allclose(found["lda"], expected)
    assert table["core"].unique().tolist() == [f"{core.far.sum()} far ones"]
    assert (table["pairs"] == 40).all()
    assert found["mean"] @ estimators.from_pairs(states, chosen, baselines, 0)[0]["mean"] < 0.5
    none, table = estimators.from_pairs(states, pairs[:0], baselines, 1)
    assert not none
    assert table["reason"].str.contains("0 effective pairs").all()


def test_halves_tell_a_direction_from_noise() -> None:
    states, pairs, baselines = judged(6.0)
    methods = ["mean", "classifier"]
    sharp = estimators.halves(states, pairs, baselines, 1, methods=methods).set_index("method")["cosine"]
    blunt = estimators.halves(states, pairs, baselines, 0, methods=methods).set_index("method")["cosine"]
    assert sharp.min() > 0.7
    assert blunt.abs().max() < 0.5
    assert estimators.halves(states, pairs[:2], baselines, 1, methods=methods)["cosine"].isna().all()
