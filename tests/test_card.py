"""A judge's card: its defences in closed form on a linear judge, its predictor against scikit-learn."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from biasgeom import card, defence, detectors, ground, judging, prediction, ranking, strengths
from biasgeom.ground import Ground
from biasgeom.judging import Judged
from biasgeom.models import LanguageModel
from scipy.stats import wasserstein_distance
from sklearn.metrics import roc_auc_score
from steerable import PASSED, World
from test_prediction import judged
from test_steering import biased_to_digits, slowly

LAYERS = (15, 31)  # of three blocks: 1 and 2


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(ground, "Steered", made.steered)
    return made


def of(world: World) -> Ground:
    return Ground(world.judge, world.pairs, world.pairs, world.baselines)


def defended(world: World, conditions: tuple[str, ...] = ("Bandwagon-",)) -> pd.DataFrame:
    return card.defences(world.lm, of(world), conditions, LAYERS)


def test_a_defence_in_closed_form(world: World) -> None:
    row = defended(world).iloc[0]
    assert row["reason"] == ""
    train, baselines = world.split("train")
    (one,), _ = ground.handles(world.judge, train, baselines, "Bandwagon-", [row["block"]], methods=["classifier"])
    along = PASSED ** (2 - one.block) * world.weight @ one.vector

    def reduced(split: str, alpha: float, sign: int = -1) -> float:
        pairs = world.split(split)[0].head(card.MOST)
        biased, base = (world.score(world.states[pairs[name], 2]) for name in ("row", "base_row"))
        left = wasserstein_distance(biased + sign * alpha * along, base)
        return 1 - left / wasserstein_distance(biased, base)

    alpha = row["alpha_units"] * one.unit
    assert row["reduction"] == pytest.approx(reduced("test", alpha))
    assert row["low"] < row["reduction"] < row["high"]
    assert row["reduction"] > 0.7
    assert row["pairs"] == card.MOST
    # It is best on the development pairs, not the tested ones; and pushed the other way it is worse than nothing.
    steps = np.linspace(0, 3 * one.unit, 400)
    assert reduced("dev", alpha) >= max(reduced("dev", step) for step in steps) - 0.02
    assert reduced("dev", alpha) != pytest.approx(row["reduction"], abs=1e-3)
    assert reduced("test", alpha, sign=1) < 0


def test_no_test_pair_chooses_and_no_dev_pair_fits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = defended(world).iloc[0]
    rows = np.concatenate([part["row"] for part in world.split("test")])
    rng = np.random.default_rng(3)
    world.judge.items.loc[rows, "expected"] = rng.uniform(1, 10, size=len(rows))
    world.judge.states[rows] = 5
    again = defended(world).iloc[0]
    assert before[["block", "alpha_units"]].tolist() == again[["block", "alpha_units"]].tolist()
    assert before["reduction"] != pytest.approx(again["reduction"])
    # Directions are those of training questions.
    seen: list[pd.DataFrame] = []
    plain = ground.handles
    monkeypatch.setattr(ground, "handles", lambda *a, **how: (seen.append(a[1]), plain(*a, **how))[1])
    defended(world)
    assert set(seen[0]["split"]) == {"train"}


def test_the_text_sets_the_floor(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every biased answer among the pairs is rewritten by rule, and no more than MOST pairs are read."""
    monkeypatch.setattr(card, "MOST", 6)
    written: list[str] = []
    plain = strengths.neutralised
    monkeypatch.setattr(strengths, "neutralised", lambda text: (written.append(text), plain(text))[1])
    assert defended(world)["pairs"].item() == 6
    expected = [t for split in ("dev", "test") for t in world.split(split)[0]["text"].head(6)]
    assert written == expected
    floors: list[float] = []
    panel = card.defended.panel
    monkeypatch.setattr(card.defended, "panel", lambda *a, floor: (floors.append(floor), panel(*a, floor=floor))[1])
    defended(world)
    pairs = world.split("dev")[0].head(6)
    ranks = [pd.Series(world.score(world.states[pairs[name], 2])).rank() for name in ("row", "base_row")]
    assert floors == [pytest.approx(np.corrcoef(*ranks)[0, 1])]


def test_reasons_by_cue(world: World) -> None:
    both = defended(world, ("Authority-", "Bandwagon-"))
    assert both["condition"].tolist() == ["Authority-", "Bandwagon-"]
    assert "0 effective pairs" in both["reason"].iloc[0]
    assert np.isnan(both["reduction"].iloc[0])
    assert both["reduction"].iloc[1] > 0.7  # the other cue is computed all the same
    assert list(defended(world, ()).columns) == list(both.columns)
    whole = world.pairs
    world.pairs = whole[(whole["split"] != "dev") | (whole["question_id"] < "q32")]
    assert "2 effective pairs; 3" in defended(world)["reason"].item()
    world.pairs = whole
    items = world.judge.items.copy()
    test = items["split"] == "test"
    world.judge.items.loc[test, "expected"] = items.loc[test & (items["condition"] == "base"), "expected"].iloc[0]
    assert "nothing to reduce" in defended(world)["reason"].item()
    world.judge.items.loc[:, "expected"] = 6.0
    assert "rank correlation" in defended(world)["reason"].item()
    world.judge.items.loc[:, "expected"] = items["expected"]
    world.valid_up_to = -1.0
    none = defended(world)
    assert none["reason"].item() == "no strength keeps the floor"
    assert np.isnan(none["reduction"].item())
    world.judge.items["valid"] = False
    assert defended(world)["reason"].item() != ""


def test_a_real_judge_s_defence_is_that_of_whole_passes(
    build: Callable[[str], LanguageModel], monkeypatch: pytest.MonkeyPatch, sentences: list[str]
) -> None:
    lm = biased_to_digits(build("llama"), 6)

    def asked(text: str, **_: object) -> str:
        return f"Rate it from 1 to 10: {text}"

    monkeypatch.setattr(judging, "prompt", asked)
    monkeypatch.setattr(defence, "MIN_PAIRS", 3)
    answers = [*sentences, "Yes.", "It rains.", "The sun is out."]
    rows = [
        (f"q{i}", ("train", "train", "train", "train", "dev", "dev", "dev", "test", "test", "test")[i], c, text)
        for i, answer in enumerate(answers)
        for c, text in (("base", answer), ("Bandwagon-", f"{answer} [87% said no]"))
    ]
    items = pd.DataFrame(rows, columns=["question_id", "split", "condition", "text"])
    (made,) = judging.judge_all([lm], items, readout="greedy")
    items = made.items.assign(row=np.arange(len(items)))
    pairs = items[items["condition"] != "base"].assign(base_row=lambda t: t["row"] - 1)
    whole = Ground(made, pairs, pairs, items[items["condition"] == "base"])
    row = card.defences(lm, whole, ["Bandwagon-"], (15, 25)).iloc[0]
    assert row["reason"] == ""
    train = whole.only("train")
    (one,), _ = ground.handles(made, train.pairs, train.baselines, "Bandwagon-", [row["block"]], methods=["classifier"])
    edit = row["alpha_units"] * one.unit * one.vector
    tested = pairs[pairs["split"] == "test"]
    nothing = 1e-12 * one.vector
    left, biased, base = (
        [slowly(lm, asked(items["text"][r]), "", int(one.block), e)[0] for r in tested[name]]
        for name, e in (("row", -edit if row["alpha_units"] else nothing), ("row", nothing), ("base_row", nothing))
    )
    expected = 1 - wasserstein_distance(left, base) / wasserstein_distance(biased, base)
    assert row["reduction"] == pytest.approx(expected, abs=0.02)


# the predictor


def judge(blocks: int = 2, **how: object) -> tuple[Judged, Ground]:
    states, items = judged(**how)
    states = np.repeat(states[:, :1], blocks, axis=1) if blocks > 2 else states
    made = Judged("j", items, states, "greedy", 2.0, 1.0)
    return made, ground.ground(made)


def test_the_predictor_is_its_detectors_on_test_rows() -> None:
    made, whole = judge()
    table = card.predictor(made, whole, draws=40).set_index("detector")
    assert list(table.columns) == ranking.COLUMNS[1:]
    assert (table["part"] == "test").all()
    rows = prediction.outcomes(made.items, 1.0)
    test = (rows["split"] == "test").to_numpy()
    # Two blocks, every fifth from the last on: the last alone.
    features = prediction.features(made.states, rows, whole.baselines, whole.pairs, blocks=[1])
    for name, scores in (
        ("type only", detectors.type_only(rows)),
        ("linear projection", detectors.projection(rows, features)),
    ):
        assert table.loc[name, "auc"] == pytest.approx(roc_auc_score(rows["label"][test], scores[test]))
        assert table.loc[name, "auc"] != pytest.approx(roc_auc_score(rows["label"], scores), abs=1e-4)
        assert table.loc[name, "n"] == test.sum()
    # The states know what the type does not.
    assert table.loc["linear projection", "auc"] > 0.8 > table.loc["type only", "auc"]
    assert table.loc["linear projection", "gain"] > 0
    # The negative control: without the signal they don't.
    weak = card.predictor(*judge(signal=0.0), draws=0).set_index("detector")
    assert weak.loc["linear projection", "auc"] < 0.75


def test_which_blocks_and_pairs_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made, whole = judge(blocks=12)
    seen: list[tuple[pd.DataFrame, list[int]]] = []
    plain = prediction.features
    monkeypatch.setattr(
        prediction, "features", lambda *a, **how: (seen.append((a[3], how["blocks"])), plain(*a, **how))[1]
    )
    raised = whole.pairs.assign(polarity="positive")
    mixed = Ground(made, whole.shifts, pd.concat([whole.pairs, raised]), whole.baselines)
    card.predictor(made, mixed, draws=0)
    pairs, blocks = seen[0]
    assert blocks == [1, 6, 11]  # not 0, 5, 10: the last block is always among them
    assert len(pairs) == len(whole.pairs)
    assert set(pairs["polarity"]) == {"negative"}


def test_what_cannot_be_predicted_has_a_reason() -> None:
    made, whole = judge()
    level = Judged("j", made.items, made.states, "greedy", np.nan, np.nan)
    table = card.predictor(level, whole)
    assert list(table.columns) == ranking.COLUMNS
    assert "alike" in table["reason"].item()
    # No degraded answer, and no cue at all: every detector says why.
    fair = Judged("j", made.items.assign(score=7.0), made.states, "greedy", 2.0, 1.0)
    base = made.items["condition"] == "base"
    bare = Judged("j", made.items[base].reset_index(drop=True), made.states[base.to_numpy()], "greedy", 2.0, 1.0)
    for one in (fair, bare):
        table = card.predictor(one, ground.ground(one), draws=0)
        assert table["detector"].tolist() == ["type only", "linear projection"]
        assert table["auc"].isna().all()
        assert (table["reason"].str.len() > 0).all()
