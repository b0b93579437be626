"""What steering starts from, counted by hand: pairs, splits, prompts, the unit of strength, a cue's text."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from biasgeom import ground, judging
from biasgeom.ground import CONDITIONS
from biasgeom.models import LanguageModel
from scipy.stats import spearmanr
from steerable import World
from test_steering import biased_to_digits


def judge() -> judging.Judged:
    """Six questions, two of each split, with a base answer and two cues; states of two blocks."""
    rows = []
    for q, split in enumerate(["train", "train", "dev", "dev", "test", "test"]):
        for c, shift in (("base", 0), ("Bandwagon-", -2 + 0.5 * q), ("Refinement+", 1)):
            polarity = {"-": "negative", "+": "positive"}.get(c[-1], "")
            rows.append((f"q{q}", "d", split, c, c[:-1] if polarity else "", polarity, f"q{q} {c}", 5 + q % 3 + shift))
    columns = ["question_id", "domain", "split", "condition", "bias", "polarity", "text", "expected"]
    items = pd.DataFrame(rows, columns=columns).assign(valid=True)
    items.loc[16, "valid"] = False  # Bandwagon- of the last question
    items["score"] = items["expected"].where(items["valid"])
    items["greedy"] = np.nan
    states = np.random.default_rng(0).normal(size=(len(items), 2, 5)).astype(np.float32)
    return judging.Judged("hand", items, states, "expected", 1.0, 1.0)


def test_pairs_and_base_answers_by_split() -> None:
    of = ground.ground(judge())
    assert len(of.shifts) == 11  # one score is missing
    # By hand: Bandwagon- lowers by 2, 1.5, 1, 0.5, ...; Refinement+ raises by 1.
    kept = of.pairs.groupby("condition")["question_id"].apply(list).to_dict()
    assert kept == {"Bandwagon-": ["q0", "q1", "q2"], "Refinement+": [f"q{q}" for q in range(6)]}
    items = of.judge.items
    assert (items["text"].to_numpy()[of.pairs["base_row"]] == of.pairs["question_id"] + " base").all()
    # The row of a base answer indexes the judge's states, not the base answers.
    assert of.baselines["row"].tolist() == [0, 3, 6, 9, 12, 15]
    dev = of.only("dev")
    assert dev.judge is of.judge
    for table in (dev.shifts, dev.pairs, dev.baselines):
        assert set(table["question_id"]) == {"q2", "q3"}
    assert set(of.only("train", "test").baselines["question_id"]) == {"q0", "q1", "q4", "q5"}
    assert of.only().pairs.empty


def test_a_judge_whose_scores_are_all_alike_has_no_effective_pair() -> None:
    made = judge()
    level = made.items.assign(score=7.0)
    of = ground.ground(judging.Judged("level", level, made.states, "expected", np.nan, np.nan))
    assert len(of.shifts) == 12
    assert of.pairs.empty
    table = ground.most_affected(of, 6)
    assert not table["chosen"].any()
    found, reason = ground.handles(of.judge, of.pairs, of.baselines, "Bandwagon-", [0, 1])
    assert found == []
    assert "0 effective pairs" in reason


def counted(**pairs: int) -> ground.Ground:
    conditions = [name + sign for (name, sign), n in ((split(k), n) for k, n in pairs.items()) for _ in range(n)]
    empty = pd.DataFrame()
    return ground.Ground(judge(), empty, pd.DataFrame({"condition": conditions}, dtype=str), empty)


def split(name: str) -> tuple[str, str]:
    return (name.removesuffix("_up"), "+" if name.endswith("_up") else "-")


def test_most_affected() -> None:
    of = counted(Verbosity=4, Authority=1, Diversity=4, Sentiment=9, Refinement_up=2, Bandwagon=7)
    table = ground.most_affected(of, 3)
    # The table keeps the paper's order; a cue that the paper does not push along has no row, whatever its count.
    assert table["condition"].tolist() == list(CONDITIONS)
    assert table["pairs"].tolist() == [1, 7, 0, 4, 4, 2]
    assert table.loc[table["chosen"], "condition"].tolist() == ["Bandwagon-", "Diversity-", "Verbosity-"]
    # Among equals the paper's order decides, not that of the pairs: with two, Diversity and not Verbosity.
    two = ground.most_affected(of, 2)
    assert two.loc[two["chosen"], "condition"].tolist() == ["Bandwagon-", "Diversity-"]
    # Where counts and the paper's order disagree, the counts decide.
    late = ground.most_affected(counted(Bandwagon=2, Verbosity=9, Refinement_up=5), 2)
    assert late.loc[late["chosen"], "condition"].tolist() == ["Verbosity-", "Refinement+"]
    # One pair gives no direction, however many cues are asked for.
    assert ground.most_affected(of, 6)["chosen"].sum() == 4
    assert ground.most_affected(of, 6, least=1)["chosen"].sum() == 5
    assert not ground.most_affected(counted(), 6)["chosen"].any()


def test_complete() -> None:
    table = pd.DataFrame({"reason": ["", "why"], "w1": [1.0, np.nan], "judge": ["a", "a"]})
    made = ground.complete(table, {"a": 1, "b": 2}, "nothing to push")
    assert list(made.columns) == ["judge", "w1", "reason"]
    assert made["judge"].tolist() == ["a", "a", "b"]
    assert made["reason"].tolist() == ["", "why", "nothing to push"]
    assert made["w1"].isna().tolist() == [False, True, True]  # and no invented zero
    assert len(ground.complete(table, ["a"], "x")) == 2
    # Of an empty table the columns stay, whatever they are, and one without columns gets its two.
    empty = ground.complete(table.head(0), ["a", "b"], "none")
    assert list(empty.columns) == ["judge", "w1", "reason"]
    assert empty["reason"].tolist() == ["none", "none"]
    assert list(ground.complete(pd.DataFrame(), ["a"], "none").columns) == ["judge", "reason"]
    unreasoned = ground.complete(table.drop(columns="reason"), ["b"], "none")
    assert unreasoned["reason"].isna().tolist() == [True, True, False]


@pytest.mark.parametrize("readout", ["expected", "greedy"])
def test_the_prompts_are_the_judge_s_own(monkeypatch: pytest.MonkeyPatch, readout: str) -> None:
    asked: list[tuple[list[str], str]] = []
    monkeypatch.setattr(ground, "Steered", lambda lm, texts, *, prefill: asked.append((texts, prefill)))
    made = judge()
    of = ground.ground(judging.Judged("j", made.items, made.states, readout, 1.0, 1.0))
    _, ids = ground.clean(None, of.only("dev", "test"), number=3)
    assert ids == ["q2", "q3", "q4"]
    texts, prefill = asked[0]
    assert texts == [judging.prompt(f"q{q} base") for q in (2, 3, 4)]
    assert prefill == ("Score: " if readout == "expected" else "")
    # Without a number all of them; a cue's text is never among them.
    assert ground.clean(None, of)[1] == [f"q{q}" for q in range(6)]


def test_handles_have_unit_length_and_the_unit_of_their_cue() -> None:
    world = World(shift=3.0)
    train, baselines = world.split("train")
    found, reason = ground.handles(world.judge, train, baselines, "Bandwagon-", [1, 2], methods=["mean", "classifier"])
    assert reason == ""
    assert [(h.method, h.block) for h in found] == [(m, b) for b in (1, 2) for m in ("mean", "classifier")]
    for handle in found:
        assert handle.condition == "Bandwagon-"
        assert np.linalg.norm(handle.vector) == pytest.approx(1)
        pairs = zip(train["row"], train["base_row"], strict=True)
        lengths = [sum((world.states[a, handle.block] - world.states[b, handle.block]) ** 2) ** 0.5 for a, b in pairs]
        assert handle.unit == pytest.approx(np.mean(lengths))
        # It is no length of the mean difference, and a block's own.
        mean = (world.states[train["row"], handle.block] - world.states[train["base_row"], handle.block]).mean(axis=0)
        assert handle.unit > np.linalg.norm(mean) + 1e-3
    assert found[0].vector @ world.cue > 0.98
    assert found[2].unit == pytest.approx(2 * found[0].unit, rel=0.05)
    # Another cue's pairs, of opposite sense, do not enter.
    other = train.assign(condition="Authority-", row=train["base_row"], base_row=train["row"])
    again, _ = ground.handles(
        world.judge, pd.concat([other, train]), baselines, "Bandwagon-", [1, 2], methods=["mean", "classifier"]
    )
    for a, b in zip(found, again, strict=True):
        np.testing.assert_allclose(a.vector, b.vector)
    one, reason = ground.handles(world.judge, train[:1], baselines, "Bandwagon-", [1])
    assert one == []
    assert "1 effective pair;" in reason


def test_text_scores_follow_the_questions() -> None:
    items = judge().items
    asked = ["q5", "q0", "q9"]
    base = ground.text_scores(items, "base", asked, "expected")
    np.testing.assert_array_equal(base, [7.0, 5.0, np.nan])
    # Not valid, not there, or a readout without numbers: missing, never the number that stands in the column.
    assert items.loc[16, "expected"] == 7.5
    np.testing.assert_array_equal(ground.text_scores(items, "Bandwagon-", asked, "expected"), [np.nan, 3.0, np.nan])
    assert np.isnan(ground.text_scores(items, "base", asked, "greedy")).all()
    assert ground.text_scores(items, "base", [], "expected").shape == (0,)


def test_the_floor_is_the_rank_correlation_of_cue_and_base() -> None:
    items, questions = judge().items, [f"q{q}" for q in range(6)]
    base = [5, 6, 7, 5, 6]
    cue = [3, 4.5, 6, 4.5, 6]
    floor = ground.text_floor(items, "Bandwagon-", questions, "expected")
    assert floor == pytest.approx(spearmanr(base, cue).statistic)
    assert floor != pytest.approx(np.corrcoef(base, cue)[0, 1])
    assert ground.text_floor(items, "Refinement+", questions, "expected") == pytest.approx(1)
    # Two questions, none, an unknown cue, a readout without numbers: no floor.
    for what in (("Bandwagon-", questions[:2], "expected"), ("Bandwagon-", [], "expected")):
        assert np.isnan(ground.text_floor(items, *what))
    assert np.isnan(ground.text_floor(items, "Authority-", questions, "expected"))
    assert np.isnan(ground.text_floor(items, "Bandwagon-", questions, "greedy"))


def test_a_real_judge_s_clean_scores_are_those_of_its_items(
    build: Callable[[str], LanguageModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = biased_to_digits(build("llama"), 6)
    monkeypatch.setattr(judging, "prompt", lambda text, **_: f"Rate it from 1 to 10: {text}")
    texts = ["A doctor walks in.", "Nobody knew.", "Who is the manager?"]
    rows = [
        (f"q{i}", "d", "dev", c, c[:-1], p, t)
        for i, text in enumerate(texts)
        for c, p, t in (("base", "", text), ("Prestige-", "negative", f"GPT-2: {text}"))
    ]
    columns = ["question_id", "domain", "split", "condition", "bias", "polarity", "text"]
    (made,) = judging.judge_all([lm], pd.DataFrame(rows, columns=columns), readout="expected")
    of = ground.ground(made)
    steered, ids = ground.clean(lm, of)
    scores = steered.scores(1, np.ones(lm.width), [0.0]).of("expected")[0]
    np.testing.assert_allclose(scores, ground.text_scores(made.items, "base", ids, "expected"), atol=1e-4)
    # The answers with a cue are judged differently: these are not they.
    assert np.abs(scores - ground.text_scores(made.items, "Prestige-", ids, "expected")).max() > 1e-3
