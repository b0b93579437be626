"""LEACE against its closed form, and what it promises; a threshold that fires as often as it says."""

import sys

import numpy as np
import pandas as pd
import pytest
from biasgeom import erasure
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score


def two_classes(n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Correlated states, of which every third is of the second class, some way off."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 10 * rng.normal(size=d)
    labels = np.arange(n) % 3 == 0
    states[labels] += 2 * rng.normal(size=d)
    return states, labels


def shrunk(states: np.ndarray) -> np.ndarray:
    """Bodnar, Gupta and Parolya's optimal linear shrinkage towards a multiple of the identity (2014, eq. 4.3-4.5)."""
    n, d = states.shape
    sample = np.cov(states.T, bias=True)
    target = np.eye(d) * np.trace(sample) / d
    size, own, both = (target**2).sum(), (sample**2).sum(), (sample * target).sum()
    alpha = 1 - np.trace(sample) ** 2 * size / n / (own * size - both**2)
    return alpha * sample + (1 - alpha) * both / size * target


@pytest.mark.parametrize(("n", "d"), [(300, 8), (36, 50)])
def test_equals_the_closed_form(n: int, d: int) -> None:
    states, labels = two_classes(n, d)
    edits = erasure.leace(states, labels)(states)
    assert edits.dtype == np.float64
    centred = states - states.mean(axis=0)
    cross = centred.T @ (labels - labels.mean()) / (n - 1)
    solved = np.linalg.solve(shrunk(states), cross)
    # x − Σxz (Σxzᵀ Σ⁻¹ Σxz)⁻¹ Σxzᵀ Σ⁻¹ (x − μ): theorem 4.3 for a label of one column.
    np.testing.assert_allclose(edits, -np.outer(centred @ solved, cross) / (cross @ solved), rtol=1e-7, atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(12, 80), d=st.integers(2, 40))
def test_class_means_meet_at_the_mean_of_all(seed: int, n: int, d: int) -> None:
    states, labels = two_classes(n, d, seed)
    erased = states + erasure.leace(states, labels)(states)
    np.testing.assert_allclose(erased[labels].mean(axis=0), erased[~labels].mean(axis=0), atol=1e-8)
    np.testing.assert_allclose(erased.mean(axis=0), states.mean(axis=0), atol=1e-8)


def test_no_linear_classifier_beats_chance() -> None:
    states, labels = two_classes(300, 8)
    edit = erasure.leace(states, labels)
    assert roc_auc_score(labels, LogisticRegression().fit(states, labels).decision_function(states)) > 0.9
    erased = states + edit(states)
    model = LogisticRegression(C=1e6, solver="newton-cholesky", tol=1e-10).fit(erased, labels)
    assert np.abs(model.coef_).max() < 1e-6
    assert set(model.predict(erased)) == {False}  # the larger class
    # Against the class difference alone, every state moved alike, a classifier does as well as before.
    moved = states - (states[labels].mean(axis=0) - states[~labels].mean(axis=0))
    assert roc_auc_score(labels, LogisticRegression().fit(moved, labels).decision_function(moved)) > 0.9


def test_it_is_the_least_edit_that_does() -> None:
    states, labels = two_classes(20_000, 6)
    difference = states[labels].mean(axis=0) - states[~labels].mean(axis=0)
    own = (erasure.leace(states, labels)(states) ** 2).sum(axis=1).mean()
    centred = states - states.mean(axis=0)
    rng = np.random.default_rng(1)
    for axis in [difference, *rng.normal(size=(20, 6))]:
        # Any oblique projection along the difference erases as well.
        other = -np.outer(centred @ axis, difference) / (axis @ difference)
        erased = states + other
        np.testing.assert_allclose(erased[labels].mean(axis=0), erased[~labels].mean(axis=0), atol=1e-8)
        assert own <= (other**2).sum(axis=1).mean() * (1 + 1e-3)


def test_leace_refuses_what_it_cannot_erase(monkeypatch: pytest.MonkeyPatch) -> None:
    states, labels = two_classes(30, 5)
    for bad, message in [
        ((states, np.zeros(30, bool)), "two classes"),
        ((states, labels[:4]), "two classes"),
        ((states * np.nan, labels), "finite"),
        ((np.ones((30, 5)), labels), "nothing to erase"),
    ]:
        with pytest.raises(ValueError, match=message):
            erasure.leace(*bad)
    with pytest.raises(ValueError, match="width 5, not 4"):
        erasure.leace(states, labels)(states[:, :4])
    monkeypatch.setitem(sys.modules, "concept_erasure", None)
    with pytest.raises(ImportError, match=r"biasgeom\[judge\]"):
        erasure.leace(states, labels)


def test_steering_everywhere_and_where_it_fires() -> None:
    rng = np.random.default_rng(2)
    states, direction = rng.normal(size=(7, 4)), np.array([0.6, 0, 0.8, 0])
    np.testing.assert_array_equal(erasure.steering(direction, 3.0)(states), np.tile(-3 * direction, (7, 1)))
    centre = states[0]
    edits = erasure.steering(direction, 3.0, centre=centre, beyond=0.1)(states)
    for state, edit in zip(states, edits, strict=True):
        fires = sum((state - centre) * direction) > 0.1
        np.testing.assert_array_equal(edit, -3 * direction if fires else 0 * direction)
    assert 0 < (edits != 0).any(axis=1).sum() < 7


def test_the_threshold_fires_as_often_as_it_says() -> None:
    # Fewer questions than dimensions, and pairs that differ hardly: what a plane learns is mostly noise.
    rng = np.random.default_rng(3)
    questions, d = 60, 200
    states = rng.normal(size=(2 * questions, 1, d))
    states[1::2] += 0.5 * np.eye(d)[0]
    names = [f"q{i}" for i in range(questions)]
    baselines = pd.DataFrame({"question_id": names, "row": range(0, 2 * questions, 2)})
    pairs = baselines.assign(base_row=baselines["row"], row=baselines["row"] + 1)
    fresh, beyond, in_sample = rng.normal(size=(2000, d)), {}, {}
    centre = states[baselines["row"], 0].mean(axis=0)
    for method in ("classifier", "mean"):
        limit = erasure.firing_threshold(states, pairs, baselines, 0, method)
        direction = erasure.estimators.from_pairs(states, pairs, baselines, 0, methods=[method])[0][method]
        beyond[method] = ((fresh - centre) @ direction > limit).mean()
        own = np.percentile((states[baselines["row"], 0] - centre) @ direction, 90)
        in_sample[method] = ((fresh - centre) @ direction > own).mean()
        assert limit == erasure.firing_threshold(states, pairs, baselines, 0, method)
    assert all(0.03 < share < 0.2 for share in beyond.values())
    assert in_sample["classifier"] > 0.3  # the percentile of the answers it was fitted on
    with pytest.raises(ValueError, match="without fold 0"):
        erasure.firing_threshold(states, pairs[:1], baselines, 0, "mean")
    with pytest.raises(ValueError, match="folds"):
        erasure.firing_threshold(states, pairs[:3], baselines[:3], 0, "mean")
