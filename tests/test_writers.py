"""One interface for two kinds of writers: an endpoint on loopback and a tiny model, asked and cached alike."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from biasgeom import cache, generation, writers
from biasgeom.endpoint import Endpoint, EndpointError, Reply
from biasgeom.models import LanguageModel
from loopback import Chat, chatting, prompt_of

Build = Callable[[str], LanguageModel]
PROMPTS = ["Who is the manager?", "Nobody knew.", "Who is the manager?"]


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Chat]]]:
    """The server's address, and its handler, which keeps what was asked."""
    with chatting(monkeypatch, lambda body: f"{body['model']} on {prompt_of(body)}") as (url, handler):
        handler.forbidden = "refuse"
        yield url, handler


def test_an_endpoint_writes(chat: tuple[str, type[Chat]]) -> None:
    url, handler = chat
    writer = Endpoint(url, "big")
    replies = writers.write(writer, [*PROMPTS, "refuse"], system="Be brief.", max_tokens=33)
    assert replies[:3] == [Reply(f"big on {prompt}", None) for prompt in PROMPTS]
    assert replies[3] == Reply(None, "refusal: no")
    assert len(handler.bodies) == 3  # the equal ones once
    for body in handler.bodies:
        assert body["messages"][0] == {"role": "system", "content": "Be brief."}
        assert (body["max_tokens"], body["temperature"]) == (33, 0)
    assert writers.write(writer, PROMPTS, system="Be brief.", max_tokens=33) == replies[:3]
    assert len(handler.bodies) == 3  # kept


def test_a_loaded_model_writes(llama: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {reply.problem for reply in writers.write(llama, PROMPTS, max_tokens=9)} == {"cut off at max_tokens"}
    begun = writers.write(llama, PROMPTS, max_tokens=9)[0].cut
    assert begun
    assert begun == generation.sample(llama, PROMPTS[:1], n=1, max_new_tokens=9, temperature=0, seed=0, chat=True)[0][0]
    # A random model never ends by itself: let every third token end a reply.
    llama.core.generation_config.eos_token_id = list(range(2, 300, 3))
    replies = writers.write(llama, PROMPTS, max_tokens=90)
    assert replies[0] == replies[2] != replies[1]
    alone = generation.sample(llama, PROMPTS[:2], n=1, max_new_tokens=90, temperature=0, seed=5, chat=True)
    assert replies[:2] == [Reply(text.strip(), None) for (text,) in alone]
    # Kept on disk: nothing is generated again.
    monkeypatch.setattr(generation, "_sampled", lambda *_: pytest.fail("generated again"))
    assert writers.write(llama, PROMPTS, max_tokens=90) == replies


def ending(monkeypatch: pytest.MonkeyPatch, texts: dict[str, str]) -> list[list[str]]:
    """Make the model say a text of one's own after each rendered prompt; what it was given is listed."""
    given: list[list[str]] = []

    def sample(lm: LanguageModel, prompts: list[str], **settings: Any) -> list[list[str]]:
        assert settings == {"n": 1, "max_new_tokens": 9, "temperature": 0, "seed": 0, "chat": True}
        given.append(
            [lm.tokenizer.apply_chat_template([{"role": "user", "content": p}], tokenize=False) for p in prompts]
        )
        return [[next(said for key, said in texts.items() if key in prompt)] for prompt in prompts]

    monkeypatch.setattr(generation, "sample", sample)
    return given


def test_what_a_loaded_model_is_given_and_what_counts(llama: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "The nurse said that she was tired after the long shift."
    given = ending(monkeypatch, {"first": " knew.\n", "second": " \n", "third": long})
    assert len(llama.tokenizer.tokenize(" knew.")) < 9 <= len(llama.tokenizer.tokenize(long))
    replies = writers.write(llama, ["first", "second", "third"], system="Be brief.", max_tokens=9)
    assert replies[0] == Reply("knew.", None)
    assert [reply.problem for reply in replies[1:]] == ["the reply is empty", "cut off at max_tokens"]
    # Once through the template, with the system's turn and one beginning of the text.
    assert given[0][0] == "<s>[system] Be brief.\n[user] first\n[assistant] "
    writers.write(llama, ["first"], max_tokens=9)
    assert given[1] == ["<s>[user] first\n[assistant] "]


def test_refused(llama: LanguageModel) -> None:
    assert writers.write(llama, [], max_tokens=5) == []
    with pytest.raises(ValueError, match="one string"):
        writers.write(llama, "x", max_tokens=5)
    llama.tokenizer.chat_template = "{{ raise_exception('no system here') }}"
    with pytest.raises(ValueError, match=r"llama: its chat template takes no such conversation .*no system here"):
        writers.write(llama, ["x"], system="y", max_tokens=5)
    llama.tokenizer.chat_template = None
    with pytest.raises(ValueError, match="llama has no chat template"):
        writers.write(llama, ["x"], max_tokens=5)


def asked(number: int) -> pd.DataFrame:
    ids = [f"q{place}" for place in range(number)]
    return pd.DataFrame({"question_id": ids, "domain": "d", "question": [f"What is {name}?" for name in ids]})


def test_each_question_has_one_writer_of_the_pool(chat: tuple[str, type[Chat]], llama: LanguageModel) -> None:
    url, _ = chat
    table = asked(120)
    table.loc[7, "question"] = "Will you refuse?"
    pool = [Endpoint(url, "one"), Endpoint(url, "two"), Endpoint(url, "three")]
    answers = writers.baseline_answers(pool, table, max_tokens=50)
    assert list(answers.columns) == ["question_id", "writer", "answer", "problem"]
    assert list(answers["question_id"]) == list(table["question_id"])
    for row, question in zip(answers.itertuples(), table["question"], strict=True):
        if "refuse" in question:
            assert row.problem == "refusal: no"
        else:
            assert row.answer == f"{row.writer} on {question}"
    assert (
        list(answers["answer"].isna()) == list(answers["problem"].notna()) == ["refuse" in q for q in table["question"]]
    )
    counts = Counter(answers["writer"])
    assert set(counts) == {"one", "two", "three"}
    assert min(counts.values()) > 25  # 40 each on average
    # Drawn, not in turn.
    assert list(answers["writer"][:6]) != [writer.model for writer in pool] * 2

    # The draw is each question's own: neither the order nor the other questions change it.
    some = table.iloc[[90, 3, 40]]
    again = writers.baseline_answers(pool, some, max_tokens=50)
    expected = answers.iloc[[90, 3, 40]].reset_index(drop=True)
    pd.testing.assert_frame_equal(again, expected)
    other = writers.baseline_answers(pool, table, max_tokens=50, seed=43)
    assert list(other["writer"]) != list(answers["writer"])


def test_a_pool_of_both_kinds(chat: tuple[str, type[Chat]], llama: LanguageModel) -> None:
    url, handler = chat
    table = asked(8)
    answers = writers.baseline_answers([Endpoint(url, "one"), llama], table, max_tokens=4)
    assert set(answers["writer"]) == {"one", "llama"}
    by_model = answers["writer"] == "llama"
    assert len(handler.bodies) == (~by_model).sum()
    expected = writers.write(llama, list(table["question"][by_model]), max_tokens=4)
    said = [(reply.text, reply.problem) for reply in expected]
    found = answers.loc[by_model, ["answer", "problem"]].astype(object)
    assert list(found.where(found.notna(), None).itertuples(index=False, name=None)) == said


def test_an_interrupted_run_keeps_what_came(chat: tuple[str, type[Chat]]) -> None:
    url, handler = chat
    pool = [Endpoint(url, "one"), Endpoint("http://127.0.0.1:9/v1", "off")]
    with pytest.raises(EndpointError, match="can't be reached"):
        writers.baseline_answers(pool, asked(10))
    before = len(handler.bodies)
    assert before > 0
    assert len([path for path in cache.root().rglob("*.npy")]) == before
    working = [Endpoint(url, "one"), Endpoint(url, "off")]
    assert writers.baseline_answers(working, asked(10))["answer"].notna().all()
    assert Counter(body["model"] for body in handler.bodies) == {"one": before, "off": 10 - before}


def test_pools_and_questions_that_are_none(llama: LanguageModel, build: Build) -> None:
    for pool in ([], [llama, build("llama")]):
        with pytest.raises(ValueError, match="need writers of different names"):
            writers.baseline_answers(pool, asked(2))
    with pytest.raises(ValueError, match="question q1 stands twice"):
        writers.baseline_answers([llama], pd.concat([asked(2), asked(2)[1:]]))
