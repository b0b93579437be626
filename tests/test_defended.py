"""Defences compared on a judge that is known in full: what each is worth, and that no reported pair chose anything."""

import sys

import numpy as np
import pandas as pd
import pytest
from biasgeom import defence, defended, folded, ground, steering
from biasgeom.ground import Handle
from scipy.stats import wasserstein_distance
from steerable import NEUTRAL, PASSED, World

BLOCKS = [1, 2]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(ground, "Steered", made.steered)
    return made


def prepared(world: World, *, floor: str | float = 0.5) -> dict:
    """Everything that :func:`defended.compared` takes."""
    parts = {s: defence.cases(world.lm, world.judge, world.split(s)[0], world.rewrites) for s in ("dev", "test")}
    train, baselines = world.split("train")
    handles, why = ground.handles(world.judge, train, baselines, "Bandwagon-", BLOCKS)
    assert not why
    handles += [
        Handle("Bandwagon-", defended.AXIS, b, -world.weight / np.linalg.norm(world.weight), 2.0) for b in BLOCKS
    ]
    clean = defended.clean_cases(world.lm, world.judge, world.split("test")[1], world.rewrites)
    return {"handles": handles, "train": train, "baselines": baselines, "clean": clean, "floor": floor, **parts}


def test_panel_chooses_for_every_direction(world: World) -> None:
    given = prepared(world)
    made = defended.panel([given["dev"]], given["handles"], floor=0.5)
    assert len(made) == 8
    assert (made["reason"] == "").all()
    assert made.loc[made["method"] != "classifier", "interior"].all()
    mine = made[made["method"] == "geometric_median"].set_index("block")
    # Block 1 passes on only a part of what is added; its unit is half as long, too.
    assert mine.loc[1, "alpha"] == pytest.approx(mine.loc[2, "alpha"] / PASSED, rel=0.1)
    assert mine.loc[1, "unit"] == pytest.approx(mine.loc[2, "unit"] / 2, rel=0.1)
    top = defended.best(made)
    assert top["method"] != defended.AXIS
    assert top["reduction_dev"] == made.loc[made["method"] != defended.AXIS, "reduction_dev"].max()
    none = defended.panel([given["dev"]], given["handles"], floor=1.01)
    assert none["reason"].str.contains("1.01").all()
    assert none["alpha"].isna().all()
    assert defended.best(none) is None


def test_every_defence_is_worth_what_it_is(world: World) -> None:
    given = prepared(world)
    table, cleaned, made = defended.compared(world.judge, **given, draws=200)
    table, cleaned = table.set_index("method"), cleaned.set_index("method")
    order = ["text rewrite", "geometric_median", "pca", "classifier", "score axis", "conditional", "leace"]
    assert list(table.index) == order
    assert (table["reason"] == "").all()
    assert (cleaned["reason"] == "").all()
    assert table["best"].sum() == 1
    test, clean = given["test"], given["clean"]
    # By hand: the best estimator's strength on the test pairs.
    top = defended.best(made)
    (vector,) = (h.vector for h in given["handles"] if (h.method, h.block) == (top["method"], top["block"]))
    passed = PASSED ** (2 - top["block"])
    scores = test.biased - top["alpha"] * passed * world.weight @ vector
    whole = wasserstein_distance(test.biased, test.base)
    expected = 1 - wasserstein_distance(scores, test.base) / whole
    best = table[table["best"]].iloc[0]
    assert best["reduction"] == pytest.approx(expected)
    assert expected > 0.7
    assert best["low"] < best["reduction"] < best["high"]
    assert best["spearman"] == pytest.approx(steering.rank_correlation(scores, test.base))
    assert best["fired"] == 1
    # Steering moves clean answers as far as biased ones; conditional steering leaves nearly all of them alone.
    method = table.index[table["best"]][0]
    assert cleaned.loc[method, "shift"] == pytest.approx(-top["alpha"] * passed * world.weight @ vector)
    assert cleaned.loc[method, "spearman"] == pytest.approx(1)
    assert abs(cleaned.loc["conditional", "shift"]) < 0.4 * cleaned.loc[method, "shift"]
    assert cleaned.loc["conditional", "fired"] < 0.4 < table.loc["conditional", "fired"]
    assert table.loc["conditional", "reduction"] > 0.3
    # LEACE moves both classes to the mean between them: no more than half of the way on either side.
    assert 0.2 < table.loc["leace", "reduction"] < 0.75
    assert cleaned.loc["leace", "shift"] < -0.15
    # The rewrite takes off nine tenths; a base answer stays as it is.
    assert table.loc["text rewrite", "reduction"] == pytest.approx(0.9, abs=0.07)
    assert cleaned.loc["text rewrite", "shift"] == pytest.approx(0)
    # A direction that lowers any score defends as well: it says nothing about the cue.
    assert table.loc["score axis", "reduction"] > 0.7
    assert (cleaned["answers"] == len(clean.base)).all()


def test_no_test_pair_chooses(world: World) -> None:
    columns = ["method", "block", "unit", "alpha", "alpha_units", "reduction_dev", "floor", "best"]
    table, _, _ = defended.compared(world.judge, **prepared(world), draws=10)
    rng = np.random.default_rng(1)
    rows = np.concatenate([part["row"] for part in world.split("test")])
    world.judge.states[rows] = 7 * rng.normal(size=world.judge.states[rows].shape)
    world.judge.items.loc[rows, "expected"] = rng.uniform(1, 10, size=len(rows))
    again, _, _ = defended.compared(world.judge, **prepared(world), draws=10)
    pd.testing.assert_frame_equal(table[columns], again[columns])
    assert not np.allclose(table["reduction"], again["reduction"])


def test_reasons_take_the_place_of_numbers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    given = prepared(world, floor=1.01)
    monkeypatch.setitem(sys.modules, "concept_erasure", None)
    world.rewrites = dict.fromkeys(world.rewrites)
    given |= {part: prepared(world)[part] for part in ("dev", "test", "clean")}
    table, cleaned, _ = defended.compared(world.judge, **given, draws=10)
    assert (table["reason"] != "").all()
    assert table["reduction"].isna().all()
    assert not table["best"].any()
    assert (cleaned["reason"] != "").all()
    reasons = table.set_index("method")["reason"]
    assert "Spearman" in reasons["pca"]
    assert "usable rewrite" in reasons["text rewrite"]
    assert "biasgeom[judge]" in reasons["leace"]
    assert "strength" in reasons["conditional"]


def test_conditional_needs_a_threshold(world: World) -> None:
    given = prepared(world)
    given["train"] = given["train"][:2]
    table, _, _ = defended.compared(world.judge, **given, draws=10)
    assert "without fold" in table.set_index("method").loc["conditional", "reason"]


def test_one_floor_for_both(world: World) -> None:
    given = prepared(world)
    how = [given["dev"]], given["handles"], given["test"]
    loose, strict = (defended.at_floor(*how, floor) for floor in (0.5, 1.01))
    table, _, _ = defended.compared(world.judge, **given, draws=10)
    table = table.set_index("method")
    assert loose["activation_reduction"] == pytest.approx(table.loc[table["best"], "reduction"].item())
    assert loose["text_reduction"] == pytest.approx(table.loc["text rewrite", "reduction"])
    assert (loose["spearman_floor"], loose["reason"]) == (0.5, "")
    assert "activation_reduction" not in strict
    assert "text_reduction" not in strict
    assert "the rewrite's Spearman" in strict["reason"]
    assert "no strength" in strict["reason"]
    empty = dict.fromkeys(world.rewrites)
    dev = defence.cases(world.lm, world.judge, world.split("dev")[0], empty)
    assert "undefined" in defended.at_floor([dev], given["handles"], given["test"], "text as printed")["reason"]
    assert defended.at_floor([dev], given["handles"], given["test"], 0.5)["reason"] == "the rewrite has none"


def crossed(world: World, **how: object) -> tuple[dict, pd.DataFrame]:
    pairs = world.pairs[world.pairs["split"] != "test"]
    return folded.cross_validated(world.lm, world.judge, pairs, world.baselines, world.rewrites, BLOCKS, **how)


def test_folds_are_held_out(world: World) -> None:
    row, table = crossed(world)
    assert row["reason"] == ""
    assert row["folds"] == 5
    assert row["pairs"] == table["pairs"].sum() == 40
    assert row["held_out_mean"] == pytest.approx(table["reduction"].mean())
    assert row["held_out_std"] == pytest.approx(np.std(table["reduction"], ddof=1))
    assert 0.5 < row["held_out_mean"] < row["in_sample"]
    assert row["text_rewrite"] == pytest.approx(0.9, abs=0.07)
    # Every text is read once: rewrites and biased answers.
    texts = [t + end for t in world.pairs.loc[world.pairs["split"] != "test", "text"] for end in ("", NEUTRAL)]
    assert sorted(world.read) == sorted(texts)


def test_a_fold_left_out_fits_and_chooses_nothing(world: World) -> None:
    _, table = crossed(world)
    pairs = world.pairs[world.pairs["split"] != "test"]
    fold = folded.question_folds(pairs["question_id"], folds=5, seed=42)[list(pairs["question_id"])].to_numpy()
    poisoned = pairs[fold == 2]
    rng = np.random.default_rng(4)
    for rows in (poisoned["row"], poisoned["base_row"]):
        world.judge.states[rows] = 9 * rng.normal(size=world.judge.states[rows].shape)
        world.judge.items.loc[rows, "expected"] = rng.uniform(1, 10, size=len(rows))
    _, again = crossed(world)
    chosen = ["method", "block", "alpha_units", "reduction_dev"]
    pd.testing.assert_series_equal(table.loc[2, chosen], again.loc[2, chosen])
    assert table.loc[2, "reduction"] != again.loc[2, "reduction"]
    assert (table.loc[[0, 1, 3, 4], "alpha_units"] != again.loc[[0, 1, 3, 4], "alpha_units"]).any()


def test_folds_that_cannot(world: World) -> None:
    few = world.pairs[:14]
    with pytest.raises(ValueError, match="14 effective pairs; 5 folds need 15"):
        folded.cross_validated(world.lm, world.judge, few, world.baselines, world.rewrites, BLOCKS)
    row, table = crossed(world, floor=1.01)
    assert row["folds"] == 0
    assert np.isnan(row["held_out_mean"])
    assert "Spearman" in row["reason"]
    assert "in_sample" not in row
    assert table["reason"].str.contains("Spearman").all()
