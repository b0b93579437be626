"""The direction against scikit-learn, closed forms, invariances, and its nulls against simulations with known truth."""

from collections.abc import Callable

import numpy as np
import pytest
from biasgeom import direction, statistics
from biasgeom.direction import Direction, contrast_direction, fit, latent_polarization, latent_scores
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom
from sklearn.covariance import LedoitWolf

Pair = tuple[np.ndarray, np.ndarray]
SHAPES = [(12, 30), (20, 20), (60, 8)]
both = pytest.mark.parametrize("estimator", direction.ESTIMATORS)


def made_pairs(pairs: int, width: int, seed: int, *, shift: float = 0.5, dtype: type = np.float64) -> Pair:
    """Pairs with uneven variances and a common female − male shift."""
    rng = np.random.default_rng(seed)
    male = rng.normal(size=(pairs, width))
    noise = rng.normal(size=(pairs, width)) * np.geomspace(0.2, 2, width)
    return (male + noise + shift * rng.normal(size=width)).astype(dtype), male.astype(dtype)


def reference(female: np.ndarray, male: np.ndarray) -> tuple[np.ndarray, float, float]:
    """The paper's formula word for word: scikit-learn's covariance, solved in d dimensions."""
    differences = np.asarray(female, dtype=np.float64) - np.asarray(male, dtype=np.float64)
    model = LedoitWolf(assume_centered=False).fit(differences)
    vector = np.linalg.solve(model.covariance_, differences.mean(axis=0))
    return vector / np.linalg.norm(vector), model.shrinkage_, np.linalg.cond(model.covariance_)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def rotation(width: int, seed: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(width, width)))[0]


def made_states(seed: int, *, personas: int = 3, entities: int = 5, width: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(personas, entities, width)) + 2


@settings(max_examples=60, deadline=None)
@given(pairs=st.integers(4, 40), width=st.integers(2, 60), seed=st.integers(0, 10**6), shift=st.floats(0.05, 5))
def test_it_is_the_papers_formula_with_scikit_learns_covariance(
    pairs: int, width: int, seed: int, shift: float
) -> None:
    female, male = made_pairs(pairs, width, seed, shift=shift)
    vector, shrinkage, condition = reference(female, male)
    fitted = fit(female, male)
    assert cosine(fitted.vector, vector) == pytest.approx(1, abs=1e-10)
    assert fitted.shrinkage == pytest.approx(shrinkage, rel=1e-8)
    assert fitted.condition == pytest.approx(condition, rel=1e-8)


@pytest.mark.parametrize(("pairs", "width"), SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fewer_as_many_and_more_pairs_than_dimensions(pairs: int, width: int, dtype: type) -> None:
    female, male = made_pairs(pairs, width, 1, dtype=dtype)
    vector, shrinkage, condition = reference(female, male)
    fitted = fit(female, male)
    assert cosine(fitted.vector, vector) == pytest.approx(1, abs=1e-10)
    assert fitted.shrinkage == pytest.approx(shrinkage, rel=1e-8)
    assert fitted.condition == pytest.approx(condition, rel=1e-8)
    assert 0 < fitted.shrinkage < 1
    assert fitted.vector.dtype == np.float32
    assert np.linalg.norm(fitted.vector) == pytest.approx(1, abs=1e-6)


def test_uncentred_covariance_would_be_noticed() -> None:
    female, male = made_pairs(30, 20, 2)
    other = LedoitWolf(assume_centered=True).fit(female - male)
    assert abs(fit(female, male).shrinkage - other.shrinkage_) > 1e-2
    wrong = np.linalg.solve(other.covariance_, (female - male).mean(axis=0))
    # At equal shrinkage the mean's outer product would only rescale the solution (Sherman–Morrison).
    assert cosine(fit(female, male).vector, wrong) < 1 - 1e-6


def test_mean_difference_closed_form() -> None:
    female, male = made_pairs(12, 30, 3)
    mean = (female - male).mean(axis=0)
    fitted = fit(female, male, estimator="mean")
    np.testing.assert_allclose(fitted.vector, mean / np.linalg.norm(mean), rtol=0, atol=1e-7)
    assert np.isnan(fitted.shrinkage)
    assert np.isnan(fitted.condition)
    np.testing.assert_array_equal(contrast_direction(female, male, estimator="mean"), fitted.vector)


@both
def test_female_is_positive(estimator: str) -> None:
    female, male = made_pairs(20, 30, 4, shift=2)
    vector = contrast_direction(female, male, estimator=estimator)
    assert (female - male).mean(axis=0) @ vector > 0
    assert direction.pair_hits(female, male, vector).mean() > 0.9
    np.testing.assert_allclose(contrast_direction(male, female, estimator=estimator), -vector, rtol=0, atol=1e-7)
    np.testing.assert_array_equal(direction.pair_hits(male, female, vector), ~direction.pair_hits(female, male, vector))


def test_isotropic_differences_leave_nothing_to_whiten() -> None:
    rng = np.random.default_rng(5)
    shift, noise = rng.normal(size=10), rng.normal(size=(1000, 10))
    cosines = []
    for deviations in (np.ones(10), np.geomspace(0.1, 3, 10)):
        female = shift + noise * deviations
        lw, mean = (contrast_direction(female, np.zeros_like(female), estimator=e) for e in direction.ESTIMATORS)
        cosines.append(cosine(lw, mean))
    assert cosines[0] > 0.998
    assert cosines[1] < 0.9


def test_whitening_finds_what_the_mean_misses() -> None:
    """With known δ and Σ, the whitened direction lies nearer to Σ⁻¹δ than the mean difference does."""
    gains = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        width, pairs = 30, 60
        deviations = np.geomspace(0.3, 3, width)
        axes = rotation(width, seed)
        shift = rng.normal(size=width) @ axes.T
        differences = shift + (rng.normal(size=(pairs, width)) * deviations) @ axes.T
        truth = axes @ ((axes.T @ shift) / deviations**2)
        lw, mean = (contrast_direction(differences, 0 * differences, estimator=e) for e in direction.ESTIMATORS)
        gains.append(cosine(lw, truth) - cosine(mean, truth))
    assert min(gains) > 0.05
    assert np.mean(gains) > 0.15


@both
@pytest.mark.parametrize(("pairs", "width"), SHAPES)
def test_scale_rotation_and_translation(pairs: int, width: int, estimator: str) -> None:
    female, male = made_pairs(pairs, width, 6)
    vector = contrast_direction(female, male, estimator=estimator)
    turn = rotation(width, 7)
    shifts = 10 * np.random.default_rng(8).normal(size=(pairs, width))
    same = {"atol": 2e-7, "rtol": 0}
    np.testing.assert_allclose(contrast_direction(1e3 * female, 1e3 * male, estimator=estimator), vector, **same)
    np.testing.assert_allclose(
        contrast_direction(female @ turn.T, male @ turn.T, estimator=estimator), turn @ vector, **same
    )
    np.testing.assert_allclose(contrast_direction(female + shifts, male + shifts, estimator=estimator), vector, **same)
    order = np.random.default_rng(9).permutation(pairs)
    np.testing.assert_allclose(contrast_direction(female[order], male[order], estimator=estimator), vector, **same)
    # Negative control: shifting one member only is a different direction.
    assert cosine(contrast_direction(female + shifts[0], male, estimator=estimator), vector) < 0.9


def naive_scores(states: np.ndarray, vector: np.ndarray) -> list[float]:
    personas, entities, width = states.shape
    return [
        sum(sum(float(states[p, e, i]) * float(vector[i]) for i in range(width)) for p in range(personas)) / personas
        for e in range(entities)
    ]


@settings(max_examples=25, deadline=None)
@given(personas=st.integers(1, 5), entities=st.integers(2, 8), width=st.integers(1, 12), seed=st.integers(0, 10**6))
def test_scores_and_polarization_equal_naive_loops(personas: int, entities: int, width: int, seed: int) -> None:
    states = made_states(seed, personas=personas, entities=entities, width=width).astype(np.float32)
    vector = direction.isotropic_directions(width, 1, np.random.default_rng(seed))[0]
    scores = naive_scores(states, vector)
    np.testing.assert_allclose(latent_scores(states, vector), scores, rtol=1e-12, atol=1e-12)
    centre = sum(scores) / entities
    deviation = (sum((s - centre) ** 2 for s in scores) / entities) ** 0.5
    norms = [sum(float(x) ** 2 for x in states[p, e]) ** 0.5 for p in range(personas) for e in range(entities)]
    assert latent_polarization(states, vector) == pytest.approx(deviation / (sum(norms) / len(norms)), rel=1e-10)


def test_polarization_closed_forms() -> None:
    v, other = np.eye(4)[0], np.eye(4)[1]
    two = np.stack([[3 * v, -3 * v]] * 2)
    assert latent_polarization(two, v) == pytest.approx(1)
    assert latent_polarization(two, other) == 0
    # ±a on v and b across: a / √(a² + b²).
    across = np.stack([[3 * v + 4 * other, -3 * v + 4 * other]])
    assert latent_polarization(across, v) == pytest.approx(3 / 5)
    # Personas that disagree cancel: the persona mean comes before the dispersion.
    opposed = np.stack([[v, -v], [-v, v]])
    assert latent_polarization(opposed, v) == 0
    # One common offset moves all scores and the norms, not the dispersion.
    np.testing.assert_allclose(latent_scores(two + 5 * v, v), [8, 2])
    assert latent_polarization(two + 5 * v, v) == pytest.approx(3 / 5)


def test_dispersion_divides_by_n() -> None:
    states, vector = made_states(10), np.eye(7)[2]
    scores = states.mean(axis=0) @ vector
    norm = np.linalg.norm(states, axis=-1).mean()
    assert latent_polarization(states, vector) == pytest.approx(scores.std(ddof=0) / norm)
    assert latent_polarization(states, vector) != pytest.approx(scores.std(ddof=1) / norm, rel=0.05)


def test_polarization_keeps_under_scale_rotation_and_order() -> None:
    states, vector = made_states(11), direction.isotropic_directions(7, 1, np.random.default_rng(0))[0]
    value, turn = latent_polarization(states, vector), rotation(7, 12)
    assert latent_polarization(1e4 * states, vector) == pytest.approx(value, rel=1e-12)
    assert latent_polarization(states @ turn.T, turn @ vector) == pytest.approx(value, rel=1e-12)
    assert latent_polarization(states, -vector) == pytest.approx(value, rel=1e-12)
    assert latent_polarization(states[::-1, ::-1], vector) == pytest.approx(value, rel=1e-12)
    assert latent_polarization(states, rotation(7, 13) @ vector) != pytest.approx(value, rel=1e-3)


def test_many_directions_at_once() -> None:
    states = made_states(14)
    many = direction.isotropic_directions(7, 9, np.random.default_rng(1))
    np.testing.assert_allclose(np.linalg.norm(many, axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(
        direction.polarizations(states, many), [latent_polarization(states, v) for v in many], rtol=1e-12
    )


def test_isotropic_directions_cover_the_sphere_evenly() -> None:
    many = direction.isotropic_directions(5, 20_000, np.random.default_rng(2))
    np.testing.assert_allclose(many.T @ many / len(many), np.eye(5) / 5, atol=0.01)
    np.testing.assert_allclose(many.mean(axis=0), 0, atol=0.02)


@both
@pytest.mark.parametrize(("pairs", "width"), SHAPES)
def test_sign_flips_equal_refits_on_exchanged_pairs(pairs: int, width: int, estimator: str) -> None:
    female, male = made_pairs(pairs, width, 15)
    signs = np.random.default_rng(16).choice([-1.0, 1.0], size=(7, pairs))
    signs[0], signs[1] = 1, -1
    flipped = direction.sign_flip_directions(female, male, signs, estimator=estimator)
    for draw, row in zip(flipped, signs, strict=True):
        kept = row[:, None] > 0
        refit = contrast_direction(np.where(kept, female, male), np.where(kept, male, female), estimator=estimator)
        np.testing.assert_allclose(draw, refit, rtol=0, atol=2e-7)
    fitted = contrast_direction(female, male, estimator=estimator)
    np.testing.assert_allclose(flipped[0], fitted, rtol=0, atol=2e-7)
    np.testing.assert_allclose(flipped[1], -fitted, rtol=0, atol=2e-7)


@both
@pytest.mark.parametrize(("pairs", "width"), SHAPES)
def test_bootstrap_equals_refits_on_resampled_pairs(pairs: int, width: int, estimator: str) -> None:
    female, male = made_pairs(pairs, width, 17)
    resampled = np.random.default_rng(18).integers(pairs, size=(7, pairs))
    resampled[0] = np.arange(pairs)
    drawn = direction.bootstrap_directions(female, male, resampled, estimator=estimator)
    for draw, rows in zip(drawn, resampled, strict=True):
        refit = contrast_direction(female[rows], male[rows], estimator=estimator)
        np.testing.assert_allclose(draw, refit, rtol=0, atol=2e-7)


def test_bootstrap_of_scores_and_polarization_equals_resampled_personas() -> None:
    states = made_states(19)
    many = direction.isotropic_directions(7, 4, np.random.default_rng(3))
    picked = np.random.default_rng(4).integers(3, size=(4, 3))
    weights = np.stack([np.bincount(row, minlength=3) / 3 for row in picked])
    scores = direction.bootstrap_scores(states, many, weights)
    spread = direction.bootstrap_polarizations(states, many, weights)
    for draw, (row, vector) in enumerate(zip(picked, many, strict=True)):
        np.testing.assert_allclose(scores[draw], latent_scores(states[row], vector), rtol=1e-12)
        assert spread[draw] == pytest.approx(latent_polarization(states[row], vector), rel=1e-12)


# Simulations ----------------------------------------------------------------------------------------------------------

DEVIATIONS = np.geomspace(0.1, 3, 40)
FLIPS = 199


def simulated(
    rng: np.random.Generator, *, planted: float = 0.0, pairs: int = 24, entities: int = 14
) -> tuple[Pair, np.ndarray]:
    """Pairs and states that share an anisotropic covariance; ``planted`` puts a gender direction into both."""
    width = len(DEVIATIONS)
    gender = np.ones(width) / np.sqrt(width)
    male = rng.normal(size=(pairs, width))
    female = male + rng.normal(size=(pairs, width)) * DEVIATIONS + planted * gender
    states = 5 + rng.normal(size=(1, entities, width)) * DEVIATIONS
    lean = np.linspace(-1, 1, entities)
    return (female, male), states + planted * lean[None, :, None] * gender


def inside(rng: np.random.Generator, estimator: str, directions: Callable[..., np.ndarray], **options: float) -> bool:
    """Whether the observed polarization lies in the band of the directions' polarizations."""
    (female, male), states = simulated(rng, **options)
    observed = latent_polarization(states, contrast_direction(female, male, estimator=estimator))
    low, high = statistics.band(direction.polarizations(states, directions(female, male, estimator, rng)))
    return bool(low <= observed <= high)


def flips(female: np.ndarray, male: np.ndarray, estimator: str, rng: np.random.Generator) -> np.ndarray:
    signs = rng.choice([-1.0, 1.0], size=(FLIPS, len(female)))
    return direction.sign_flip_directions(female, male, signs, estimator=estimator)


def isotropic(female: np.ndarray, male: np.ndarray, estimator: str, rng: np.random.Generator) -> np.ndarray:
    return direction.isotropic_directions(female.shape[1], FLIPS, rng)


@both
def test_sign_flip_band_holds_its_level_when_nothing_is_there(estimator: str) -> None:
    runs = 200
    hits = sum(inside(np.random.default_rng([20, seed]), estimator, flips) for seed in range(runs))
    low, high = binom.ppf([0.001, 0.999], runs, 0.95)
    assert low <= hits <= high


def planted_runs(estimator: str) -> list[tuple[float, float]]:
    """Observed polarization over the band's upper end, and the null's mean |cosine| with the planted direction."""
    found = []
    for seed in range(20):
        rng = np.random.default_rng([21, seed])
        (female, male), states = simulated(rng, planted=12)
        observed = latent_polarization(states, contrast_direction(female, male, estimator=estimator))
        null = flips(female, male, estimator, rng)
        top = statistics.band(direction.polarizations(states, null))[1]
        found.append((observed / top, np.abs(null.sum(axis=1)).mean() / np.sqrt(null.shape[1])))
    return found


def test_planted_direction_leaves_the_sign_flip_band() -> None:
    ratios, cosines = np.transpose(planted_runs("ledoit-wolf"))
    assert (ratios > 1).sum() >= 19
    assert np.median(ratios) > 2
    assert cosines.mean() < 0.1


def test_for_the_mean_difference_the_sign_flip_band_reaches_up_to_a_planted_direction() -> None:
    """A weakness to know: signs that don't cancel leave much of a strong direction in every draw."""
    ratios, cosines = np.transpose(planted_runs("mean"))
    assert (ratios > 1).sum() >= 10
    assert np.median(ratios) < 1.1
    assert cosines.mean() > 0.5


def test_pairs_that_share_a_word_need_a_common_sign() -> None:
    """Word effects without any gender: signs drawn a pair at a time miss the level, a word at a time they hold it."""
    runs, width, words = 80, 30, np.repeat(np.arange(12), 3)
    lexical = np.where(np.arange(width) < 8, 1.5, 0.0)
    above = {"pair": 0, "word": 0}
    for seed in range(runs):
        rng = np.random.default_rng([30, seed])
        differences = rng.normal(size=(36, width)) + (rng.normal(size=(12, width)) * lexical)[words]
        states = 5 + rng.normal(size=(1, 14, width)) * (0.3 + lexical)
        pair = (differences, np.zeros_like(differences))
        observed = latent_polarization(states, contrast_direction(*pair))
        draws = {
            "pair": rng.choice([-1.0, 1.0], size=(FLIPS, 36)),
            "word": rng.choice([-1.0, 1.0], size=(FLIPS, 12))[:, words],
        }
        for unit, signs in draws.items():
            null = direction.sign_flip_directions(*pair, signs, estimator="ledoit-wolf")
            above[unit] += observed > statistics.band(direction.polarizations(states, null))[1]
    assert above["pair"] > 0.15 * runs
    assert above["word"] <= binom.ppf(0.999, runs, 0.025)


def test_isotropic_band_is_no_null_for_the_mean_difference() -> None:
    """Negative control: without any gender the mean difference still leaves the isotropic band.

    It is drawn towards the directions in which pairs and states alike vary most.
    """
    runs = 100
    hits = sum(inside(np.random.default_rng([22, seed]), "mean", isotropic) for seed in range(runs))
    assert hits < 0.7 * runs


# Refusals -------------------------------------------------------------------------------------------------------------


def test_states_that_give_no_direction_are_refused() -> None:
    female, male = made_pairs(6, 9, 23)
    with pytest.raises(ValueError, match="all the same"):
        fit(male + female[0], male)
    with pytest.raises(ValueError, match=r"need two arrays \[K, d\]"):
        fit(female[:5], male)
    with pytest.raises(ValueError, match="need two arrays"):
        fit(female[0], male[0])
    with pytest.raises(ValueError, match="K >= 2"):
        fit(female[:1], male[:1])
    for bad in (np.nan, np.inf):
        broken = female.copy()
        broken[2, 3] = bad
        with pytest.raises(ValueError, match="not all finite"):
            fit(broken, male)
    with pytest.raises(ValueError, match="estimator must be one of ledoit-wolf, mean, not 'lda'"):
        fit(female, male, estimator="lda")
    with pytest.raises(ValueError, match="nothing to shrink"):
        fit(female[:2], male[:2])


@both
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_mean_difference_is_refused_though_rounding_leaves_a_trace(estimator: str, dtype: type) -> None:
    female, _ = made_pairs(30, 9, 24, dtype=dtype)
    female -= female.mean(axis=0)
    assert np.any(female.mean(axis=0) != 0)
    with pytest.raises(ValueError, match="no mean difference"):
        fit(female, np.zeros_like(female), estimator=estimator)
    with pytest.raises(ValueError, match="no mean difference"):
        fit(female, female, estimator=estimator)


def test_two_equal_clusters_of_differences_are_refused() -> None:
    a, b = np.random.default_rng(25).normal(size=(2, 9)) / 3
    differences = np.stack([a, b, a, b, a, b])
    with pytest.raises(ValueError, match="nothing to shrink"):
        fit(differences, 0 * differences)


def test_a_single_entity_has_no_polarization() -> None:
    with pytest.raises(ValueError, match="entities >= 2"):
        latent_polarization(made_states(26, entities=1), np.eye(7)[0])
    with pytest.raises(ValueError, match="entities >= 2"):
        latent_polarization(made_states(26)[0], np.eye(7)[0])


def test_a_direction_stays_with_its_model_and_block() -> None:
    vector = np.eye(3)[0]
    stored = Direction(vector, "some/model", "block", 4, "float32")
    assert stored.vector_at("some/model", 4) is vector
    for model, block in (("other/model", 4), ("some/model", 5)):
        with pytest.raises(ValueError, match=f"belongs to some/model, block 4.*{model}, block {block}"):
            stored.vector_at(model, block)
    with pytest.raises(ValueError, match="final_norm"):
        Direction(vector, "some/model", "final_norm", 4, "float32").vector_at("some/model", 4)
