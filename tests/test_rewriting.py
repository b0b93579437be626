"""Rewrites by a model against a loopback endpoint: what is asked, what is accepted, and what counts as a problem."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pandas as pd
import pytest
from biasgeom import perturbations, questions
from biasgeom.endpoint import Endpoint
from biasgeom.models import LanguageModel
from biasgeom.rewriting import INSTRUCTIONS, LENGTHS, SYSTEM, problems, rewritten
from loopback import chatting, prompt_of

Answer = Callable[[str, str], str]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], tuple[Endpoint, list[dict[str, Any]]]]]:
    with ExitStack() as stack:

        def start(answer: Answer) -> tuple[Endpoint, list[dict[str, Any]]]:
            def said(body: dict[str, Any]) -> str:
                return answer(prompt_of(body).split("\n\n")[0], prompt_of(body).split("Answer:\n")[1])

            url, handler = stack.enter_context(chatting(monkeypatch, said))
            return Endpoint(url, "writer"), handler.bodies

        yield start


OF = {instruction: condition for condition, instruction in INSTRUCTIONS.items()}
TWELVE = "It takes 12 steps. Most people need three of them, and nobody needs more than that."


def asked_about(*answers: str) -> pd.DataFrame:
    return questions.load(number=len(answers)).assign(answer=list(answers))


def well_behaved(instruction: str, answer: str) -> str:
    match OF[instruction]:
        case "Verbosity-":
            return " ".join(answer.split()[:-1]) + "\n"
        case "Authority+":
            return f"{answer} (Hill, in press) [Ref: A. Hill, in press.]"
        case "Authority-":
            return f"{answer} [citation needed] [Note: what shows this?]"
        case other:
            return f"  {other[:4]} then, {answer} "


def test_a_full_table_from_good_rewrites(serve: Callable[[Answer], tuple[Endpoint, list]]) -> None:
    writer, bodies = serve(well_behaved)
    asked = questions.load(number=3)
    table, plain = rewritten(writer, asked), perturbations.conditions(asked)
    assert list(table.columns) == [*plain.columns, "problem"]
    assert table["condition"].equals(plain["condition"])
    assert table["problem"].isna().all()
    written = table["condition"].isin(INSTRUCTIONS)
    assert table[~written].drop(columns="problem").equals(plain[~written].astype({"text": "str"}))
    for row in table[written].itertuples():
        assert row.text == well_behaved(INSTRUCTIONS[row.condition], row.answer).strip()
        assert row.changed
    assert len(bodies) == 6 * 3
    assert {body["messages"][0]["content"] for body in bodies} == {SYSTEM}
    assert {body["temperature"] for body in bodies} == {0}
    # Neither the question nor its key is in a prompt: a writer who knows it may set a wrong answer right.
    prompts = [body["messages"][1]["content"] for body in bodies]
    assert not any(question in prompt for question in asked["question"] for prompt in prompts)
    rewritten(writer, asked)
    assert len(bodies) == 6 * 3  # kept
    counts = problems(table)
    assert counts["condition"].tolist() == [c for c in plain["condition"].unique() if c in INSTRUCTIONS]
    assert counts[["asked", "usable", "unchanged", "other"]].eq([3, 3, 0, 0]).all(axis=None)


REPLIES = {
    "unchanged": lambda answer: answer.replace(" ", "  "),
    "the reply is empty": lambda answer: "  ",
    "0.06 times as long": lambda answer: "Steps.",
    "8.00 times as long": lambda answer: " ".join([answer] * 8),
    "the number 12 is lost": lambda answer: answer.replace("12", "some") + " And that is all.",
    "words of the answer were changed": lambda answer: answer.replace("nobody", "someone") + " [Note: who says so?]",
}


@pytest.mark.parametrize("problem", REPLIES)
def test_what_is_no_rewrite(serve: Callable[[Answer], tuple[Endpoint, list]], problem: str) -> None:
    def once(instruction: str, answer: str) -> str:
        return REPLIES[problem](answer) if OF[instruction] == "Authority-" else well_behaved(instruction, answer)

    writer, _ = serve(once)
    table = rewritten(writer, asked_about(TWELVE))
    faulty = table[table["problem"].notna()]
    assert faulty["condition"].tolist() == ["Authority-"]
    assert faulty["problem"].item().startswith(problem)
    assert faulty["text"].isna().all()
    assert not faulty["changed"].any()
    counts = problems(table).set_index("condition")
    assert counts.loc["Authority-"].tolist() == [1, 0, int(problem == "unchanged"), int(problem != "unchanged")]
    assert counts["usable"].sum() == 5


def test_prose_rewrites_may_change_words_but_no_number(serve: Callable[[Answer], tuple[Endpoint, list]]) -> None:
    writer, _ = serve(lambda instruction, answer: f"Well, all in all: {answer.replace('nobody', 'someone')} [Ref: 7]")
    found = rewritten(writer, asked_about(TWELVE)).dropna(subset="problem").set_index("condition")["problem"]
    # It grew, so it trims nothing; Authority changes no word.
    assert set(found.index) == {"Verbosity-", "Authority+", "Authority-"}
    assert found["Verbosity-"].endswith("times as long, not 0.3 to 0.98")


def test_a_base_model_is_no_writer(gpt2: LanguageModel) -> None:
    with pytest.raises(ValueError, match="has no chat template"):
        rewritten(gpt2, asked_about(TWELVE))


def test_every_condition_that_a_model_writes_has_an_instruction() -> None:
    names = {perturbations.name(bias, p) for bias in perturbations.REWRITES for p in perturbations.POLARITIES}
    assert set(INSTRUCTIONS) == set(LENGTHS) == names
    assert all(low < high for low, high in LENGTHS.values())
