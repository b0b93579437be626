"""The judge's prompt, its two readouts, what counts as a score, and a judge behind an endpoint."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from biasgeom import data, endpoint, generation, judging, readouts
from biasgeom.models import LanguageModel
from test_endpoint import Server, chat, error, prompt_of, server  # noqa: F401

Build = Callable[[str], LanguageModel]


@pytest.fixture
def items() -> pd.DataFrame:
    answers = [
        "Trees stand in a forest.",
        "It is a place. Somewhere.",
        "On the moon, of course.",
        "I think it may be there.",
    ]
    table = pd.DataFrame({"text": answers, "condition": "base", "question": "Where was the man?"})
    return pd.concat([table, table.assign(text="GPT-2: " + table["text"], condition="Prestige-")], ignore_index=True)


def test_the_prompt_is_table_9_word_for_word() -> None:
    table = data.published("judge_table9")
    for row in table.itertuples():
        made = judging.prompt("MY ANSWER", strict=row.strict == "yes", cot=row.cot == "yes")
        assert " ".join(made.split()) == row.template_as_extracted.replace(" answer [The end", " MY ANSWER [The end")
    assert len({judging.prompt("a", strict=s, cot=c) for s in (True, False) for c in (True, False)}) == len(table) == 4


def test_a_question_stands_before_the_response_and_braces_stay() -> None:
    made = judging.prompt("a {answer} {x}", question="Why {answer}?")
    assert made.index("Why {answer}?") < made.index("[The start of the response]")
    assert "\na {answer} {x}\n" in made
    assert made.replace(
        "[The start of the question]\nWhy {answer}?\n[The end of the question]\n", ""
    ) == judging.prompt("a {answer} {x}")


def test_the_expected_score_is_the_mean_of_its_distribution(llama: LanguageModel, items: pd.DataFrame) -> None:
    judged = judging.judge_all([llama], items, readout="expected")[0]
    for row, answer in zip(judged.items.itertuples(), items["text"], strict=True):

        def next_(begun: str, answer: str = answer) -> np.ndarray:
            return generation.next_token_probabilities(llama, [judging.prompt(answer)], chat=True, prefill=begun)[
                0
            ].astype(float)

        digit = [llama.tokenizer(str(k), add_special_tokens=False)["input_ids"][-1] for k in range(10)]
        first, second = next_("Score: "), next_("Score: 1")
        chances = {k: first[digit[k]] for k in range(2, 10)}
        chances[10] = first[digit[1]] * second[digit[0]]
        chances[1] = first[digit[1]] * (1 - second[digit[0]])
        mass = sum(chances.values())
        assert row.mass == pytest.approx(mass, rel=1e-4)
        assert row.expected == pytest.approx(sum(k * p for k, p in chances.items()) / mass, rel=5e-6)
        assert row.valid == (first.argmax() in digit[1:])
        # The negative control: taking P("1") for P(1) is another number.
        wrong = sum(k * first[digit[k]] for k in range(1, 10)) / sum(first[digit[k]] for k in range(1, 10))
        assert abs(row.expected - wrong) > 1e-4
    scored = judged.items["score"].where(judged.items["valid"])
    pd.testing.assert_series_equal(judged.items["score"], scored)
    assert judged.states.shape == (len(items), len(llama.blocks), llama.width)


def test_thresholds_follow_the_readout() -> None:
    items = pd.DataFrame({"condition": ["base"] * 4 + ["Prestige-"], "score": [6.0, 7.0, 8.0, np.nan, 1.0]})
    assert judging.thresholds(items, "greedy") == (2.0, 1.0)
    assert judging.thresholds(items, "expected") == (0.25, 0.25)  # the standard deviation of 6, 7, 8 is 1
    level = items.assign(score=7.0)
    assert np.isnan(judging.thresholds(level, "expected")).all()
    assert not (abs(pd.Series([0.0, 5.0])) >= judging.thresholds(level, "expected")[0]).any()


@pytest.mark.parametrize(("reply", "readout"), [("8", "greedy"), ("Score: 7", "greedy"), ("well done", "expected")])
def test_auto_takes_the_replies_only_where_they_hold_a_score(
    llama: LanguageModel, items: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, reply: str, readout: str
) -> None:
    asked: list[str] = []

    def said(_: LanguageModel, prompts: list[str], __: int) -> list[list[str]]:
        asked.extend(prompts)
        return [[reply]] * len(prompts)

    monkeypatch.setattr(judging, "_greedy", said)
    assert judging.judge_all([llama], items)[0].readout == readout
    assert asked == [judging.prompt(text) for text in items["text"][:4]]  # of base answers only


def test_greedy_scores_are_the_parsed_replies(
    llama: LanguageModel, items: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = judging.judge_all([llama], items, readout="greedy")[0]
    replies = generation.sample(
        llama, [judging.prompt(t) for t in items["text"]], n=1, max_new_tokens=16, temperature=0, seed=0, chat=True
    )
    assert judged.items["reply"].str.strip().tolist() == [text.strip() for (text,) in replies]
    assert (judged.items["reason"] != "").all()  # a random model says no number
    assert judged.items["score"].isna().all()
    assert (judged.effective, judged.outcome) == (2.0, 1.0)


def test_equal_answers_and_several_judges(build: Build, items: pd.DataFrame) -> None:
    twice = pd.concat([items, items], ignore_index=True)
    found = judging.judge_all([build("llama"), build("qwen2")], twice, readout="expected", question=True)
    assert [judged.name for judged in found] == ["llama", "qwen2"]
    for judged in found:
        half = len(items)
        assert np.allclose(judged.states[:half], judged.states[half:], atol=1e-4)
        assert np.allclose(judged.items["expected"][:half], judged.items["expected"][half:], rtol=1e-5)
        assert judged.items["text"].tolist() == twice["text"].tolist()
    assert not np.allclose(found[0].items["expected"], found[1].items["expected"])
    bare = judging.judge_all([build("llama")], items, readout="expected")[0]
    assert not np.allclose(bare.items["expected"], found[0].items["expected"][: len(items)])  # the question counts


def test_what_can_t_judge_is_refused(gpt2: LanguageModel, llama: LanguageModel, items: pd.DataFrame) -> None:
    for call in (lambda: judging.judge_all([gpt2], items), lambda: judging.replies(gpt2, items)):
        with pytest.raises(ValueError, match=r"gpt2 has no chat template .* instruction-tuned"):
            call()
    with pytest.raises(ValueError, match="'auto', 'greedy' or 'expected', not 'mean'"):
        judging.judge_all([llama], items, readout="mean")
    with pytest.raises(ValueError, match="no prompts"):
        judging.judge_all([llama], items[:0], readout="expected")


def test_free_replies_are_counted_with_their_reasons(
    llama: LanguageModel, items: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    cycle = ["8", "well done", "11", "7-8"]
    monkeypatch.setattr(judging, "_greedy", lambda _, prompts, __: [[cycle[i % 4]] for i in range(len(prompts))])
    found = judging.replies(llama, items)
    assert found["reason"].tolist() == ["", "verbal", "out_of_range", "range"] * 2
    assert found["greedy"].dropna().tolist() == [8.0, 8.0]
    assert not found["truncated"].any()
    monkeypatch.setattr(judging, "_greedy", lambda _, prompts, limit: [["so " * limit] for _ in prompts])
    cut = judging.replies(llama, items, cot=True, max_new_tokens=5)
    assert cut["truncated"].all()
    assert set(cut["reason"]) == {"truncated"}


def test_an_endpoint_judges_and_loses_nothing(server: Server, items: pd.DataFrame) -> None:  # noqa: F811
    def answer(body: dict[str, Any]) -> Any:
        if "moon" in prompt_of(body):
            return error(400, "no")
        return 200, {}, chat("well" if "GPT-2" in prompt_of(body) else "8/10")

    server.answer = answer
    judged = judging.endpoint_judge(server.endpoint(retries=0), items)
    assert judged.states is None
    assert judged.readout == "greedy"
    assert judged.items["reason"].tolist() == ["", "", "no reply", "", "verbal", "verbal", "no reply", "verbal"]
    assert judged.items["score"].dropna().tolist() == [8.0] * 3
    assert "no" in judged.items["reply"][2]
    asked = len(server.bodies)
    assert {prompt_of(body) for body in server.bodies} == {judging.prompt(text) for text in items["text"]}
    judging.endpoint_judge(server.endpoint(retries=0), items)
    assert len(server.bodies) <= asked + 2  # what was answered is kept; the failed ones are asked again
    assert json.dumps(server.bodies[0]["temperature"]) in ("0", "0.0")


def test_a_reply_at_the_cap_is_no_missing_reply(server: Server, items: pd.DataFrame) -> None:  # noqa: F811
    """As the replies of a loaded model: the score may stand before the cap, or not."""
    cut = {"moon": "I would", "forest": "Score: 7\n\nThe", "Somewhere": "1"}

    def answer(body: dict[str, Any]) -> Any:
        for word, text in cut.items():
            if word in prompt_of(body):
                return 200, {}, chat(text, finish_reason="length")
        return 200, {}, chat("8")

    server.answer = answer
    found = judging.endpoint_judge(server.endpoint(), items[:4]).items
    assert found["reason"].tolist() == ["", "truncated", "truncated", ""]
    assert found["score"].dropna().tolist() == [7.0, 8.0]
    assert found["truncated"].tolist() == [True, True, True, False]
    assert found["reply"].tolist() == [cut["forest"], cut["Somewhere"], cut["moon"], "8"]
    alone = [judging.parsed(text, truncated=True) for text in (cut["forest"], cut["Somewhere"], cut["moon"])]
    assert [reason for _, reason in alone] == found["reason"].tolist()[:3]


def test_an_endpoint_that_is_down_says_so(items: pd.DataFrame) -> None:
    with pytest.raises(endpoint.EndpointError):
        judging.endpoint_judge(endpoint.Endpoint("http://127.0.0.1:9/v1", "m", retries=0), items)


def test_score_tokens_of_a_tokenizer_that_joins_ten(llama: LanguageModel) -> None:
    llama.tokenizer.add_tokens(["10"])
    digits, ten = readouts.score_tokens(llama)
    assert ten == llama.tokenizer.convert_tokens_to_ids("10")
    assert len(set(digits)) == 10
    assert ten not in digits
