"""Relative representations and ΔB against loops, closed forms and the invariants they must have."""

import math
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from biasgeom import relative
from biasgeom.relative import Embeddings, cka_drift, delta_b, delta_b_interval
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ortho_group

SETTINGS = settings(max_examples=25, deadline=None)
SEEDS = st.integers(0, 10**6)
# Numbers that differ from one another, so that a confused axis can't go unnoticed.
SIZES, POSITIVE, NEGATIVE, ANCHORS, WIDTH = {"b": 4, "a": 6, "c": 3}, 5, 7, 11, 8


def embeddings(seed: int, *, width: int = WIDTH, anchors: int = ANCHORS, sizes: dict[str, int] = SIZES) -> Embeddings:
    rng = np.random.default_rng(seed)
    # As in language models: far from the origin, so that cosines are all positive and alike.
    sets = [rng.normal(size=(n, width)) + 2 for n in (*sizes.values(), POSITIVE, NEGATIVE, anchors)]
    return Embeddings(dict(zip(sizes, sets, strict=False)), *sets[-3:])


def mapped(e: Embeddings, function) -> Embeddings:
    targets = {group: function(rows) for group, rows in e.targets.items()}
    return Embeddings(targets, function(e.positive), function(e.negative), function(e.anchors))


def values(table: dict[str, float]) -> list[float]:
    return list(table.values())


def cosine(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


def naive_bias(e: Embeddings, method: str) -> dict[str, float]:
    """Equations 2-6 as they are printed, sentence by sentence."""

    def close(s: list[float], t: list[float]) -> float:
        if method == "seat":
            return cosine(s, t)
        r, q = ([cosine(x, a) for a in e.anchors.tolist()] for x in (s, t))
        return -math.dist(r, q)

    def mean(s: list[float], attributes: np.ndarray) -> float:
        return math.fsum(close(s, t) for t in attributes.tolist()) / len(attributes)

    return {
        group: math.fsum(mean(s, e.positive) - mean(s, e.negative) for s in rows.tolist()) / len(rows)
        for group, rows in e.targets.items()
    }


@pytest.mark.parametrize("method", ["rr", "seat"])
@settings(max_examples=5, deadline=None)
@given(seed=SEEDS)
def test_vectorised_is_the_loop(method: str, seed: int) -> None:
    before, after = embeddings(seed), embeddings(seed + 1)
    naive = [naive_bias(e, method) for e in (before, after)]
    assert relative.bias(before, method=method) == pytest.approx(naive[0], abs=1e-12)
    expected = {group: naive[1][group] - naive[0][group] for group in SIZES}
    assert delta_b(before, after, method=method) == pytest.approx(expected, abs=1e-12)


def test_cosines_of_relative_representations_are_another_measure() -> None:
    """Negative control: what the paper rules out in 3.3 gives other numbers than its Euclidean distance."""
    e = embeddings(0)
    r = [relative.relative_representation(rows, e.anchors) for rows in (e.targets["a"], e.positive, e.negative)]
    euclidean, cosines = relative.association(*r), relative.association(*r, metric="cosine")
    assert euclidean.mean() == pytest.approx(naive_bias(e, "rr")["a"], abs=1e-12)
    assert np.abs(euclidean - cosines).max() > 0.01
    assert euclidean.dtype == np.float64


def test_sign_and_size_in_two_dimensions() -> None:
    """Sentences on a circle: a target at 0°, a positive at 60°, a negative at 90°, anchors at 0° and 90°."""
    at = {angle: [[math.cos(math.radians(angle)), math.sin(math.radians(angle))]] for angle in (0, 60, 90)}
    e = Embeddings({"g": at[0]}, at[60], at[90], at[0] + at[90])
    assert relative.bias(e, method="seat") == pytest.approx({"g": 0.5 - 0})
    # Anchors along the axes leave the coordinates: distances 2 sin 30° and 2 sin 45°.
    assert relative.bias(e) == pytest.approx({"g": -1 + math.sqrt(2)})
    moved = replace(e, targets={"g": at[90]})
    assert delta_b(e, moved)["g"] < 0 > delta_b(e, moved, method="seat")["g"]


def test_a_small_distance_keeps_its_digits() -> None:
    rng = np.random.default_rng(0)
    target = 1e3 + rng.normal(size=(1, 50))
    shift = 1e-6 * rng.normal(size=(1, 50))
    found = relative.association(target, target + shift, target)
    assert -found[0] == pytest.approx(np.linalg.norm((target + shift) - target), rel=1e-9)
    # Negative control: from inner products nothing is left of it.
    squared = (target**2).sum() + ((target + shift) ** 2).sum() - 2 * (target @ (target + shift).T).item()
    assert abs(squared) ** 0.5 != pytest.approx(-found[0], rel=0.1)


@SETTINGS
@given(seed=SEEDS, method=st.sampled_from(relative.METHODS))
def test_nothing_shifts_between_a_model_and_itself(seed: int, method: str) -> None:
    e = embeddings(seed)
    assert values(delta_b(e, e, method=method)) == pytest.approx([0, 0, 0], abs=0 if method != "procrustes" else 1e-12)
    assert values(relative.cka_drifts(e, e)) == pytest.approx([0, 0, 0], abs=1e-12)
    assert min(map(abs, values(delta_b(e, embeddings(seed + 1), method=method)))) > 0


@SETTINGS
@given(seed=SEEDS, method=st.sampled_from(relative.METHODS))
def test_swapping_positive_and_negative_flips_the_sign(seed: int, method: str) -> None:
    before, after = embeddings(seed), embeddings(seed + 1)
    swapped = [replace(e, positive=e.negative, negative=e.positive) for e in (before, after)]
    shift = delta_b(before, after, method=method)
    assert delta_b(*swapped, method=method) == pytest.approx({group: -x for group, x in shift.items()}, abs=1e-12)


@SETTINGS
@given(seed=SEEDS, method=st.sampled_from(relative.METHODS))
def test_order_is_irrelevant(seed: int, method: str) -> None:
    before, after = embeddings(seed), embeddings(seed + 1)
    order = np.random.default_rng(seed).permutation(ANCHORS)
    shift = delta_b(before, after, method=method)
    shuffled = [replace(e, anchors=e.anchors[order]) for e in (before, after)]
    assert delta_b(*shuffled, method=method) == pytest.approx(shift, abs=1e-12)
    # Groups go by name, not by place.
    backwards = replace(after, targets=dict(reversed(after.targets.items())))
    assert delta_b(before, backwards, method=method) == shift
    # Negative control: anchors are sentences, so an order of one model's own is another comparison.
    if method == "procrustes":
        assert delta_b(before, shuffled[1], method=method) != pytest.approx(shift, abs=1e-6)


@SETTINGS
@given(seed=SEEDS, method=st.sampled_from(["rr", "seat"]), scale=st.floats(1e-3, 1e3))
def test_rotation_and_scale_change_nothing_but_translation_does(seed: int, method: str, scale: float) -> None:
    e = embeddings(seed)
    rotation = ortho_group.rvs(WIDTH, random_state=seed)
    assert values(delta_b(e, mapped(e, lambda rows: scale * rows @ rotation), method=method)) == pytest.approx(
        [0, 0, 0], abs=1e-12
    )
    expected = relative.bias(e, method=method)
    assert relative.bias(mapped(e, lambda rows: rows @ rotation), method=method) == pytest.approx(expected, abs=1e-12)
    assert max(map(abs, values(delta_b(e, mapped(e, lambda rows: rows - 1), method=method)))) > 1e-3
    # Each model's own anchors are turned with it. Anchors shared as vectors would not do:
    if method == "rr":
        wrong = replace(mapped(e, lambda rows: rows @ rotation), anchors=e.anchors)
        assert max(map(abs, values(delta_b(e, wrong)))) > 1e-3


@SETTINGS
@given(seed=SEEDS, copies=st.integers(2, 9))
def test_delta_b_grows_as_the_root_of_the_number_of_anchors(seed: int, copies: int) -> None:
    before, after = embeddings(seed), embeddings(seed + 1)
    repeated = [replace(e, anchors=np.tile(e.anchors, (copies, 1))) for e in (before, after)]
    grown = {group: math.sqrt(copies) * x for group, x in delta_b(before, after).items()}
    assert delta_b(*repeated) == pytest.approx(grown, abs=1e-12)
    seat = delta_b(before, after, method="seat")
    assert delta_b(*repeated, method="seat") == seat


@pytest.mark.parametrize("fit", relative.FITS)
def test_a_planted_rotation_is_found(fit: str) -> None:
    e = embeddings(0, anchors=ANCHORS)
    planted = ortho_group.rvs(WIDTH, random_state=1)
    audited = mapped(e, lambda rows: 3 * rows @ planted)
    rotation, rank = relative.procrustes(e, audited, fit=fit)
    np.testing.assert_allclose(rotation, planted.T, atol=1e-10)
    assert rank == WIDTH
    assert values(delta_b(e, audited, method="procrustes", fit=fit)) == pytest.approx([0, 0, 0], abs=1e-10)
    # Negative control: a map the wrong way round is no less orthogonal.
    expected = relative.bias(e, method="seat")
    turned = replace(e, targets={group: rows @ planted for group, rows in audited.targets.items()})
    assert relative.bias(turned, method="seat") != pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("fit", relative.FITS)
def test_procrustes_written_out(fit: str) -> None:
    """Schönemann's solution from the singular vectors, then audited targets against the reference's attributes."""
    reference, audited = embeddings(0), embeddings(1)
    rows = {
        "anchors": lambda e: [e.anchors],
        "targets": lambda e: [e.targets[group] for group in SIZES],
        "all": lambda e: [*(e.targets[group] for group in SIZES), e.positive, e.negative, e.anchors],
    }[fit]
    goal, start = (np.vstack(rows(e)) for e in (reference, audited))
    left, _, right = np.linalg.svd(start.T @ goal)
    rotation = left @ right
    np.testing.assert_allclose(relative.procrustes(reference, audited, fit=fit)[0], rotation, atol=1e-10)
    mixed = replace(reference, targets={group: rows @ rotation for group, rows in audited.targets.items()})
    expected = {
        g: x - relative.bias(reference, method="seat")[g] for g, x in relative.bias(mixed, method="seat").items()
    }
    found = delta_b(reference, audited, method="procrustes", fit=fit)
    assert found == pytest.approx(expected, abs=1e-12)
    # Turning the attributes as well would be plain SEAT.
    assert found != pytest.approx(delta_b(reference, audited, method="seat"), abs=1e-3)


def test_too_few_anchors_leave_the_map_open() -> None:
    e = embeddings(0, anchors=5)
    rotation, rank = relative.procrustes(e, e)
    assert rank == 5
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(WIDTH), atol=1e-12)
    np.testing.assert_allclose(e.anchors @ rotation, e.anchors, atol=1e-10)
    assert relative.procrustes(e, e, fit="all")[1] == WIDTH


def test_models_of_different_width_compare_but_for_procrustes() -> None:
    narrow, wide = embeddings(0), embeddings(1, width=13)
    expected = {group: naive_bias(wide, "rr")[group] - x for group, x in naive_bias(narrow, "rr").items()}
    assert delta_b(narrow, wide) == pytest.approx(expected, abs=1e-12)
    assert set(relative.cka_drifts(narrow, wide)) == set(SIZES)
    with pytest.raises(ValueError, match=r"one width, not \[8, 13\]; rr compares"):
        delta_b(narrow, wide, method="procrustes")


@SETTINGS
@given(seed=SEEDS, n=st.integers(2, 12), width=st.integers(1, 9))
def test_cka_is_normalised_hsic(seed: int, n: int, width: int) -> None:
    """Kornblith et al. (2019): HSIC(K, L) / √(HSIC(K, K) HSIC(L, L)), and the form over features."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(n, 6)) + 3, rng.normal(size=(n, width)) - 1

    def hsic(k: np.ndarray, m: np.ndarray) -> float:
        centring = np.eye(n) - np.ones((n, n)) / n
        return np.trace(k @ centring @ m @ centring) / (n - 1) ** 2

    k, m = x @ x.T, y @ y.T
    expected = hsic(k, m) / math.sqrt(hsic(k, k) * hsic(m, m))
    assert cka_drift(x, y) == pytest.approx(1 - expected, abs=1e-10)
    cx, cy = x - x.mean(axis=0), y - y.mean(axis=0)
    features = np.linalg.norm(cy.T @ cx) ** 2 / (np.linalg.norm(cx.T @ cx) * np.linalg.norm(cy.T @ cy))
    assert cka_drift(x, y) == pytest.approx(1 - features, abs=1e-10)


def test_cka_forgets_rotation_scale_and_translation_only() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 6)) + 5
    assert cka_drift(x, 3 * x @ ortho_group.rvs(6, random_state=0) + 7) == pytest.approx(0, abs=1e-12)
    assert cka_drift(x, x * np.arange(1, 7)) > 0.05
    assert cka_drift(x, rng.permutation(x)) > 0.3
    # Negative control: without centring, the common mean would hide that the sentences are others.
    uncentred = [x @ x.T, (y := rng.permutation(x)) @ y.T]
    naive = 1 - (uncentred[0] * uncentred[1]).sum() / math.prod(map(np.linalg.norm, uncentred))
    assert naive < 0.1


@pytest.mark.parametrize("shared", [True, False])
def test_intervals_are_of_resampled_templates_and_attributes(shared: bool) -> None:
    """Their spread is that of ΔB computed anew from resampled sentences, in a loop."""
    before = embeddings(0, sizes=dict.fromkeys("bac", 6))
    noise = np.random.default_rng(1)
    after = mapped(before, lambda rows: rows + 0.2 * noise.normal(size=rows.shape))
    table = delta_b_interval(before, after, shared_templates=shared, draws=4000, seed=3, level=0.8)
    assert list(table.columns) == ["group", "delta_b", "low", "high"]
    assert dict(zip(table["group"], table["delta_b"], strict=True)) == delta_b(before, after)

    rng = np.random.default_rng(4)

    def resampled(e: Embeddings, p: np.ndarray, q: np.ndarray, t: np.ndarray) -> Embeddings:
        targets = {group: rows[t] for group, rows in e.targets.items()}
        return replace(e, positive=e.positive[p], negative=e.negative[q], targets=targets)

    def loop(paired: bool) -> np.ndarray:
        drawn = []
        for _ in range(500):
            first, second = ([rng.integers(n, size=n) for n in (POSITIVE, NEGATIVE, 6)] for _ in range(2))
            drawn.append(values(delta_b(resampled(before, *first), resampled(after, *(first if paired else second)))))
        return np.quantile(drawn, [0.1, 0.9], axis=0)

    (low, high), unpaired = loop(paired=True), loop(paired=False)
    width = (high - low).min()
    np.testing.assert_allclose(table["low"], low, atol=0.2 * width)
    np.testing.assert_allclose(table["high"], high, atol=0.2 * width)
    # Negative control: sentences drawn for each model on its own give a far wider interval.
    assert ((unpaired[1] - unpaired[0]) > 2 * (high - low)).all()


def test_shared_templates_move_groups_together() -> None:
    one = {"b": 6}
    before, after = embeddings(0, sizes=one), embeddings(1, sizes=one)
    twins = [replace(e, targets={"b": e.targets["b"], "again": e.targets["b"]}) for e in (before, after)]
    shared = delta_b_interval(*twins, shared_templates=True)
    assert (shared.loc[0, ["low", "high"]] == shared.loc[1, ["low", "high"]]).all()
    own = delta_b_interval(*twins)
    assert (own.loc[0, ["low", "high"]] != own.loc[1, ["low", "high"]]).all()
    pd.testing.assert_frame_equal(own, delta_b_interval(*twins))
    assert not own.equals(delta_b_interval(*twins, seed=1))
    with pytest.raises(ValueError, match="share their templates have one number of sentences"):
        delta_b_interval(embeddings(0), embeddings(1), shared_templates=True)


def test_half_precision_is_computed_in_double() -> None:
    e = embeddings(0)
    single, double = (mapped(e, lambda rows, d=d: rows.astype(np.float16).astype(d)) for d in (np.float32, np.float64))
    assert relative.bias(single) == relative.bias(double)
    assert single.anchors.dtype == np.float64


GOOD = {"targets": {"g": np.ones((2, 3))}, "positive": np.ones((2, 3)), "negative": np.eye(3), "anchors": np.eye(3)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": {}}, "no target groups"),
        ({"targets": {"g": np.ones((0, 3))}}, r"g: need an array .* got the shape \(0, 3\)"),
        ({"targets": {"g": np.ones((2, 4))}}, r"differ in width.*'group g': 4, 'positive': 3"),
        ({"targets": {"g": np.array([[1, 2, 3], [0, 0, 0]])}}, "group g: the embedding of sentence 1 is zero"),
        ({"positive": np.ones(3)}, r"positive: .* got the shape \(3,\)"),
        ({"negative": np.array([[1, 2, 3], [1, np.nan, 3]])}, "negative: the embedding of sentence 1 is not finite"),
        ({"anchors": np.array([[np.inf, 2, 3], [1, 1, 3]])}, "anchors: the embedding of sentence 0 is not finite"),
        ({"anchors": np.ones((1, 3))}, "at least 2 anchors, got 1"),
    ],
)
def test_bad_embeddings_are_named(change: dict, message: str) -> None:
    Embeddings(**GOOD)
    with pytest.raises(ValueError, match=message):
        Embeddings(**GOOD | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": {"h": np.ones((2, 3))}}, "the same groups; only one has g, h"),
        ({"targets": {"g": np.ones((3, 3))}}, "group g: the reference has 2 sentences, the audited model 3"),
        ({"anchors": np.ones((4, 3))}, "anchors: the reference has 3 sentences, the audited model 4"),
    ],
)
def test_other_sentences_are_no_comparison(change: dict, message: str) -> None:
    reference, audited = Embeddings(**GOOD), Embeddings(**GOOD | change)
    for compare in (delta_b, relative.cka_drifts, delta_b_interval, relative.procrustes):
        with pytest.raises(ValueError, match=message):
            compare(reference, audited)


def test_unknown_choices_and_impossible_ckas() -> None:
    e = embeddings(0)
    with pytest.raises(ValueError, match="one of rr, seat, procrustes, not 'cka'"):
        delta_b(e, e, method="cka")
    with pytest.raises(ValueError, match="one model has the methods rr and seat, not 'procrustes'"):
        relative.bias(e, method="procrustes")
    with pytest.raises(ValueError, match="one of anchors, targets, all, not 'words'"):
        delta_b(e, e, method="procrustes", fit="words")
    with pytest.raises(ValueError, match="'euclidean' or 'cosine', not 'manhattan'"):
        relative.association(e.positive, e.positive, e.negative, metric="manhattan")
    with pytest.raises(ValueError, match="differ in width"):
        relative.association(e.positive, e.positive, e.negative[:, 1:])
    with pytest.raises(ValueError, match="differ in width"):
        relative.relative_representation(e.positive, e.anchors[:, 1:])
    with pytest.raises(ValueError, match="same 2 or more sentences of both models; got 5 and 7"):
        cka_drift(e.positive, e.negative)
    with pytest.raises(ValueError, match="all sentences have the same embedding"):
        cka_drift(np.ones((3, 2)), np.eye(3))


def test_full_sets_take_well_under_a_second() -> None:
    rng = np.random.default_rng(0)
    sets = [rng.normal(size=(n, 576)).astype(np.float32) for n in (1200, 100, 100, 1000)]
    e = Embeddings({str(g): sets[0][50 * g : 50 * g + 50] for g in range(24)}, *sets[1:])
    start = time.process_time()
    delta_b(e, e)
    relative.cka_drifts(e, e)
    assert time.process_time() - start < 2
