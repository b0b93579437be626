"""Equation 7 against naive loops, the choice of a strength against its closed form on a linear judge."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from biasgeom import defence, ground, judging
from biasgeom.ground import Handle
from biasgeom.models import LanguageModel
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance
from steerable import NEUTRAL, World
from test_steering import biased_to_digits


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(ground, "Steered", made.steered)
    return made


def cases(world: World, split: str) -> defence.Cases:
    return defence.cases(world.lm, world.judge, world.split(split)[0], world.rewrites)


def handle(world: World, *, unit: float = 2.0) -> Handle:
    return Handle("Bandwagon-", "mean", 2, world.cue, unit)


def test_reduction_is_that_of_a_naive_loop() -> None:
    rng = np.random.default_rng(0)
    base, biased = rng.normal(6, 1, size=9), rng.normal(4, 1, size=9)
    defended = rng.normal(5, 1, size=(2, 3, 9))
    found = defence.reduction(defended, biased, base)
    assert found.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            # Of samples of one size W1 is the mean distance of what has the same rank.
            left = sum(abs(a - b) for a, b in zip(sorted(defended[i, j]), sorted(base), strict=True))
            whole = sum(abs(a - b) for a, b in zip(sorted(biased), sorted(base), strict=True))
            assert found[i, j] == pytest.approx(1 - left / whole)
    # A mean of paired distances is another number, and so is a ratio of mean shifts.
    assert found[0, 0] != pytest.approx(1 - np.abs(defended[0, 0] - base).mean() / np.abs(biased - base).mean())


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 20), start=st.floats(-5, 5))
def test_reduction_has_no_unit(seed: int, scale: float, start: float) -> None:
    base, biased, defended = np.random.default_rng(seed).normal(size=(3, 12))
    found = defence.reduction(defended, biased, base)
    assert defence.reduction(scale * defended + start, scale * biased + start, scale * base + start) == pytest.approx(
        found, abs=1e-6
    )
    assert defence.reduction(base[::-1], biased, base) == pytest.approx(1)
    assert defence.reduction(biased, biased, base) == pytest.approx(0)
    assert defence.reduction(base + 100, biased, base) < 0


def test_reduction_says_what_is_missing() -> None:
    base, biased = np.array([1.0, 2, 3]), np.array([0.0, np.nan, 2])
    assert defence.reduction(np.array([np.nan, 2, np.nan]), biased, base) == pytest.approx(
        1 - wasserstein_distance([2], base) / wasserstein_distance([0, 2], base)
    )
    assert np.isnan(defence.reduction(np.full(3, np.nan), biased, base))
    with pytest.raises(ValueError, match="nothing to reduce"):
        defence.reduction(base, base[::-1], base)
    with pytest.raises(ValueError, match="no pair"):
        defence.reduction(base, biased * np.nan, base)


def test_interval_resamples_whole_pairs() -> None:
    rng = np.random.default_rng(1)
    base = rng.normal(6, 2, size=11)
    biased, defended = base - 2 + 0.1 * rng.normal(size=11), base - 1 + 0.1 * rng.normal(size=11)
    defended[3] = np.nan
    found = defence.reduction_interval(defended, biased, base, draws=200, seed=5)
    times = np.random.default_rng(5).multinomial(11, np.full(11, 1 / 11), size=200)
    drawn, apart = [], []
    for weights in times:
        rows = np.repeat(np.arange(11), weights)
        drawn.append(defence.reduction(defended[rows], biased[rows], base[rows]))
        apart.append(defence.reduction(defended[rng.integers(11, size=11)], biased[rows], base[rows]))
    np.testing.assert_allclose(found, np.quantile(drawn, [0.025, 0.975]), rtol=1e-9)
    assert found[0] < defence.reduction(defended, biased, base) < found[1]
    # Scores drawn without their pairs would have a far wider one.
    assert np.ptp(np.quantile(apart, [0.025, 0.975])) > 2 * (found[1] - found[0])
    assert np.isnan(defence.reduction_interval(np.full(11, np.nan), biased, base, draws=10)).all()


def test_the_chosen_strength_is_the_closed_forms(world: World) -> None:
    dev, made = cases(world, "dev"), handle(world)
    table = defence.search([dev], made, floor=0.5)
    best = table[table["chosen"]].iloc[0]
    # Steering adds α · 0.5 to every score: W1 to the base scores is least where sorted differences have median zero.
    optimum = np.median(np.sort(dev.base) - np.sort(dev.biased)) / 0.5
    assert best["alpha"] == pytest.approx(optimum, abs=0.1 * 2 / 12)
    assert best["alpha_units"] == pytest.approx(best["alpha"] / 2)
    assert best["reduction"] == table["reduction"].max() > 0.8
    assert table["alpha"].is_monotonic_increasing
    assert table["alpha"].is_unique
    assert table["alpha"].iloc[[0, -1]].tolist() == [0, 6]
    # The optimum lies inside: less is worse, and at three mean shifts it is worse than no defence.
    assert 0 < best["alpha"] < 6
    assert table["reduction"].iloc[0] == pytest.approx(0)
    assert table["reduction"].iloc[-1] < 0
    far = defence.sweep([dev], made, np.array([16.0]))
    assert far["reduction"][0] < table["reduction"].iloc[-1]
    # Finer strengths help, or at least don't harm; without them the grid's own best is taken.
    coarse = defence.search([dev], made, floor=0.5, finer=0)
    assert len(coarse) == 31
    assert coarse.loc[coarse["chosen"], "reduction"].item() <= best["reduction"]


def test_the_wrong_sign_is_no_defence(world: World) -> None:
    backwards = Handle("Bandwagon-", "mean", 2, -world.cue, 2.0)
    table = defence.search([cases(world, "dev")], backwards, floor=0.5)
    assert table.loc[table["chosen"], "alpha"].tolist() == [0]
    # Towards the cue every strength makes it worse, and nowhere is an invented zero.
    assert (table["reduction"].diff()[1:] < 0).all()


def test_constraints_bind(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    dev, made = cases(world, "dev"), handle(world)
    none = defence.search([dev], made, floor=1.01)
    assert not none["chosen"].any()
    assert len(none) == 31
    strict = World(valid_up_to=0.9)
    monkeypatch.setattr(ground, "Steered", strict.steered)
    table = defence.search([cases(strict, "dev")], made, floor=0.5)
    assert table.loc[table["chosen"], "alpha"].item() <= 0.9
    assert not table.loc[table["alpha"] > 0.9, "feasible"].any()
    assert table.loc[table["alpha"] > 0.9, "reduction"].isna().all()


def test_parts_are_one_set(world: World) -> None:
    pairs, _ = world.split("dev")
    halves = [defence.cases(world.lm, world.judge, part, world.rewrites) for part in (pairs[:4], pairs[4:])]
    whole = defence.sweep([cases(world, "dev")], handle(world), np.linspace(0, 3, 7))
    pd.testing.assert_frame_equal(defence.sweep(halves, handle(world), np.linspace(0, 3, 7)), whole)


def test_floors(world: World) -> None:
    dev = cases(world, "dev")
    ranks = [
        np.corrcoef(*(pd.Series(s).rank() for s in (scores, dev.base)))[0, 1] for scores in (dev.rewritten, dev.biased)
    ]
    assert ranks[1] < ranks[0]
    assert defence.least_correlation([dev], "text as printed") == pytest.approx(ranks[0])
    assert defence.least_correlation([dev], "text") == pytest.approx(ranks[1])
    assert defence.least_correlation([dev], 0.85) == defence.least_correlation([dev], "0.85") == 0.85
    # A perfect rewrite has ρ = 1: as printed no strength would do.
    perfect = {text: text.replace("Bandwagon-", "base") for text in world.rewrites}
    same = defence.cases(world.lm, world.judge, world.split("dev")[0], perfect)
    assert defence.least_correlation([same], "text as printed") == pytest.approx(1)
    assert not defence.search([same], handle(world), floor=1.0)["chosen"].any()
    assert defence.search([same], handle(world), floor=defence.least_correlation([same], "text"))["chosen"].any()
    missing = defence.cases(world.lm, world.judge, world.split("dev")[0], dict.fromkeys(world.rewrites))
    assert np.isnan(missing.rewritten).all()
    assert defence.least_correlation([missing], "text") == pytest.approx(ranks[1])
    with pytest.raises(ValueError, match="undefined"):
        defence.least_correlation([missing], "text as printed")
    with pytest.raises(ValueError, match="must be a number"):
        defence.least_correlation([dev], "texts")


def test_what_was_read_is_not_read_again(world: World) -> None:
    dev = cases(world, "dev")
    pairs, _ = world.split("dev")
    texts = world.judge.items["text"].to_numpy()
    assert sorted(world.read) == sorted([*texts[pairs["row"]], *(texts[pairs["row"]] + NEUTRAL)])
    np.testing.assert_allclose(dev.base, world.score(world.states[pairs["base_row"], 2]))
    np.testing.assert_allclose(dev.biased, world.score(world.states[pairs["row"], 2]))
    # Integers of a begun turn are not among the items: all are read.
    world.read.clear()
    whole = defence.cases(world.lm, world.judge, pairs, world.rewrites, readout="greedy")
    assert len(world.read) == 4 * len(pairs)
    np.testing.assert_allclose(whole.base, np.round(dev.base))
    with pytest.raises(ValueError, match="2 effective pairs"):
        defence.cases(world.lm, world.judge, pairs[:2], world.rewrites)


def test_an_invalid_score_is_missing(world: World) -> None:
    pairs, _ = world.split("dev")
    world.judge.items.loc[pairs["base_row"].iloc[0], "valid"] = False
    dev = cases(world, "dev")
    assert np.isnan(dev.base[0])
    assert not np.isnan(dev.base[1:]).any()
    table = defence.search([dev], handle(world), floor=0.5)
    assert table["chosen"].any()


@pytest.mark.parametrize("readout", ["expected", "greedy"])
def test_a_real_judge(build: Callable[[str], LanguageModel], monkeypatch: pytest.MonkeyPatch, readout: str) -> None:
    lm = biased_to_digits(build("llama"), 6)
    monkeypatch.setattr(judging, "prompt", "Rate it from 1 to 10: {}".format)
    texts = ["A doctor walks in.", "Nobody knew.", "Who is the manager?", "A person is a plumber."]
    rows = [
        (f"q{i}", c, t) for i, text in enumerate(texts) for c, t in (("base", text), ("Prestige-", f"GPT-2: {text}"))
    ]
    items = pd.DataFrame(rows, columns=["question_id", "condition", "text"])
    (judge,) = judging.judge_all([lm], items, readout=readout)
    pairs = pd.DataFrame(
        {"question_id": [f"q{i}" for i in range(4)], "row": range(1, 8, 2), "base_row": range(0, 8, 2)}
    )
    rewrites = dict(zip(items["text"][1::2], items["text"][::2], strict=True))
    made = defence.cases(lm, judge, pairs, rewrites)
    # Known scores are those that the edited path gives at strength 0.
    again = made.steered.scores(1, np.ones(lm.width), [0.0]).of("expected")[0]
    np.testing.assert_allclose(made.biased, again, atol=1e-4)
    np.testing.assert_allclose(made.rewritten, made.base)
    direction = np.eye(lm.width)[0]
    table = defence.search([made], Handle("Prestige-", "mean", 2, direction, 1.0), floor=-1.0, strengths=5, finer=2)
    assert table["reduction"].iloc[0] == pytest.approx(0, abs=1e-3)
    assert table["chosen"].sum() == 1
    assert len(table) > 5
