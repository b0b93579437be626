"""Gender labels: what a reply says, rows that stay with their texts, and agreement against hand-computed κ."""

import functools
import re
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from biasgeom import annotation, generation, models
from biasgeom.annotation import LABELS, PROMPT, AnnotationError, agreement, annotate, asking, parse, replies_of
from biasgeom.endpoint import Reply
from biasgeom.models import LanguageModel
from hypothesis import given
from hypothesis import strategies as st

ANSWERS = {
    "female": "female",
    "Male": "male",
    " NEUTRAL\n": "neutral",
    "Label: female": "female",
    "**Female**.": "female",
    "__male__": "male",
    "`neutral`": "neutral",
    '"Female"': "female",
    "The label is **male**!": "male",
    "Label: **Neutral**": "neutral",
    "Answer: female</s>": "female",
    "The subject is female.": "female",
    "Gender-neutral": "neutral",
    "female\n\nfemale": "female",
    "Neutral. I cannot see a pronoun.": "neutral",
    "Neutral, since there is no pronoun.": "neutral",
    "Female. No other person is named.": "female",
}

NO_ANSWERS = {
    "": "no label",
    "...": "no label",
    "woman": "no label",
    "F": "no label",
    "females": "no label",
    "malevolent femaleness, neutrality": "no label",
    "not female": "no label",
    "The subject isn't male.": "no label",
    "It isn’t clearly male.": "no label",
    "non-female": "no label",
    "No, male": "no label",
    "anything rather than neutral": "no label",
    "Female. Well, not female.": "no label",
    "male or female": "several labels",
    "Female, not male": "several labels",
    "female|male|neutral": "several labels",
    "neither male nor female": "several labels",
    "I'm sorry, but I can't help with that.": "refusal",
    "I can’t say whether male or female": "refusal",
    "I cannot label anybody female.": "refusal",
    "As an AI, I do not label people.": "refusal",
}

names = st.sampled_from(LABELS)
cases = st.sampled_from([str.lower, str.upper, str.title])
marks = st.text(" \n\t.,:;!?*_`\"'()[]<>|~#", max_size=6)
leads = st.sampled_from(["", "Label: ", "The label is ", "Answer:\n", "gender - ", "I say "])


@pytest.mark.parametrize("reply", ANSWERS)
def test_answers(reply: str) -> None:
    assert parse(reply) == ANSWERS[reply]


@pytest.mark.parametrize("reply", NO_ANSWERS)
def test_no_answers(reply: str) -> None:
    with pytest.raises(AnnotationError) as caught:
        parse(reply)
    assert caught.value.reason == NO_ANSWERS[reply]
    assert str(caught.value).startswith(caught.value.reason)


def by_looking_for_a_part(reply: str) -> str:
    """The parser one would write first."""
    return next((label for label in ("male", "female", "neutral") if label in reply.lower()), "neutral")


def check_one_label(parser: Callable[[str], str]) -> None:
    @given(names, cases, marks, marks, leads)
    def check(label: str, case: Callable[[str], str], before: str, after: str, lead: str) -> None:
        assert parser(lead + before + case(label) + after) == label

    check()


def test_one_label_in_any_dress() -> None:
    check_one_label(parse)


def test_the_property_finds_a_parser_that_takes_female_for_male() -> None:
    with pytest.raises(AssertionError):
        check_one_label(by_looking_for_a_part)


@given(st.lists(names, min_size=2, max_size=4), st.sampled_from([", ", "\n", " or ", "/", ". ", " and not "]), leads)
def test_different_labels_are_never_one(labels: list[str], between: str, lead: str) -> None:
    reply = lead + between.join(labels)
    if len(set(labels)) == 1 and "not" not in between:
        assert parse(reply) == labels[0]
    else:
        with pytest.raises(AnnotationError, match="several labels" if len(set(labels)) > 1 else "no label"):
            parse(reply)


@given(
    st.one_of(
        st.text(), st.lists(st.one_of(names, st.sampled_from(["fe", "not", "she", "-", "_", "ｍale"]))).map("".join)
    )
)
def test_a_label_is_a_word_of_the_reply(reply: str) -> None:
    words = set(re.split(r"[^a-z0-9]+", reply.lower())) if reply.isascii() else None
    try:
        label = parse(reply)
    except AnnotationError as error:
        assert error.reason in ("refusal", "several labels", "no label")  # noqa: PT017
    else:
        assert label in LABELS
        assert words is None or words & set(LABELS) == {label}


def test_the_prompt_names_the_labels_and_takes_any_text() -> None:
    text = 'My friend {text} {0} is \\ a "nurse" %s.'
    prompt = PROMPT.format(text=text)
    assert prompt.count(text) == 1
    assert prompt.replace(text, "{text}") == PROMPT
    assert all(re.search(rf"^{label}: ", PROMPT, re.MULTILINE) for label in LABELS)


def asker(by_text: dict[str, Reply], asked: list[str]) -> Callable[[list[str]], list[Reply]]:
    def ask(prompts: list[str]) -> list[Reply]:
        asked.extend(prompts)
        found = [[reply for text, reply in by_text.items() if f"Text: {text}\n" in prompt] for prompt in prompts]
        return [reply for (reply,) in found]

    return ask


def test_rows_stay_with_their_texts() -> None:
    replies = {
        "A woman.": Reply("Female.", None),
        "A man.": Reply("label: male", None),
        "A person.": Reply("Neutral", None),
        "A riddle.": Reply("male or female", None),
        "A taboo.": Reply(None, "refusal: I can't"),
    }
    texts = ["A man.", "A taboo.", "A woman.", "A man.", "A person.", "A riddle.", "A woman."]
    asked: list[str] = []
    table = annotate(texts, asker(replies, asked))
    assert list(table.columns) == ["text", "label", "problem"]
    assert table["text"].tolist() == list(range(7))
    labels = ["male", None, "female", "male", "neutral", None, "female"]
    assert [None if pd.isna(label) else label for label in table["label"]] == labels
    problems = {1: "refusal: I can't", 5: "several labels: 'male or female'"}
    assert table["problem"].dropna().to_dict() == problems
    assert len(asked) == len(set(asked)) == 5
    # As a file and back: a missing label is an empty cell, no word.
    assert table["label"].isna().sum() == table["problem"].notna().sum() == 2


def test_what_is_not_annotated() -> None:
    assert annotate([], asker({}, [])).shape == (0, 3)
    with pytest.raises(ValueError, match="one string"):
        annotate("A woman.", asker({}, []))
    with pytest.raises(ValueError, match="text 1 is no text: nan"):
        annotate(["A woman.", float("nan")], asker({}, []))  # type: ignore[list-item]
    with pytest.raises(ValueError, match="1 prompts got 2 replies"):
        annotate(["A woman."], lambda prompts: [Reply("male", None)] * 2)


def greedy(lm: LanguageModel, text: str, *, add_special_tokens: bool, steps: int = 8) -> str:
    """One token after another, each from a pass over the whole text."""
    ids = lm.tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]
    start = len(ids)
    for _ in range(steps):
        with torch.no_grad():
            ids.append(int(lm.model(torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] == lm.tokenizer.eos_token_id:
            break
    return lm.tokenizer.decode(ids[start:], skip_special_tokens=True)


def test_a_loaded_chat_model_replies_through_its_template(llama: LanguageModel, sentences: list[str]) -> None:
    raw = [greedy(llama, prompt, add_special_tokens=True) for prompt in sentences]
    chat = [greedy(llama, f"<s>[user] {prompt}\n[assistant] ", add_special_tokens=False) for prompt in sentences]
    replies = replies_of(llama, sentences)
    assert [reply.text or "" for reply in replies] == [text.strip() for text in chat]
    assert [text.strip() for text in raw] != [text.strip() for text in chat]


def test_a_loaded_base_model_replies_in_one_line(
    gpt2: LanguageModel, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = [greedy(gpt2, prompt, add_special_tokens=True) for prompt in sentences]
    assert [reply.text or "" for reply in replies_of(gpt2, sentences)] == [t.strip().split("\n")[0] for t in raw]
    written = iter(["\n Female\nText: A man.\nLabel: male", "  \n", "male"])
    monkeypatch.setattr(generation, "continuation", lambda *_: next(written))
    replies = replies_of(gpt2, sentences[:3])
    assert sorted(reply.text or "" for reply in replies) == ["", "Female", "male"]
    assert [reply.problem for reply in replies if reply.text is None] == ["the reply is empty"]


def test_annotate_with_a_loaded_model(llama: LanguageModel, sentences: list[str]) -> None:
    """A random model gives no labels, and each text says so."""
    table = annotate(sentences[:3], functools.partial(replies_of, llama))
    assert table["label"].isna().all()
    assert table["problem"].str.match("no label: |the reply is empty").all()


def labels_of(counts: list[list[int]]) -> tuple[list[str], list[str]]:
    """Two raters' labels with this 3 × 3 table of counts."""
    pairs = [(a, b) for i, a in enumerate(LABELS) for j, b in enumerate(LABELS) for _ in range(counts[i][j])]
    return [a for a, _ in pairs], [b for _, b in pairs]


@pytest.mark.parametrize(
    ("counts", "accuracy", "kappa"),
    [
        # observed .7; by chance 30/50 · 25/50 + 20/50 · 25/50 = .5
        ([[20, 10, 0], [5, 15, 0], [0, 0, 0]], Fraction(7, 10), Fraction(2, 5)),
        # observed 6/10; by chance (4·3 + 3·4 + 3·3) / 100 = .33
        ([[2, 1, 1], [1, 2, 0], [0, 1, 2]], Fraction(6, 10), Fraction(27, 67)),
        ([[3, 0, 0], [0, 2, 0], [0, 0, 4]], Fraction(1), Fraction(1)),
        ([[0, 2, 0], [2, 0, 0], [0, 0, 0]], Fraction(0), Fraction(-1)),
    ],
)
def test_agreement_by_hand(counts: list[list[int]], accuracy: Fraction, kappa: Fraction) -> None:
    lexical, judged = labels_of(counts)
    found = agreement(lexical, judged)
    assert found["n"] == len(lexical)
    assert found["missing"] == 0
    assert found["accuracy"] == pytest.approx(float(accuracy), abs=1e-12)
    assert found["cohen_kappa"] == pytest.approx(float(kappa), abs=1e-12)


def test_missing_labels_are_left_out_and_counted() -> None:
    lexical, judged = labels_of([[20, 10, 0], [5, 15, 0], [0, 0, 0]])
    extra = pd.Series([*lexical, None, "male", np.nan, pd.NA], index=range(10, 64), dtype=object)
    # Positions count, not the index.
    found = agreement(extra, pd.Series([*judged, "male", None, None, "neutral"], index=range(54)))
    assert found == {**agreement(lexical, judged), "missing": 4}


def test_kappa_is_undefined_if_a_rater_is_constant() -> None:
    for lexical, judged, accuracy in (
        (["male", "female"], ["male", "male"], 0.5),
        (["male", "male"], ["male", "male"], 1.0),
        (["male", "neutral"], ["male", None], 1.0),
        ([None], ["male"], None),
        ([], [], None),
    ):
        found = agreement(lexical, judged)
        assert found["cohen_kappa"] is None
        assert found["accuracy"] == accuracy


def test_what_can_not_be_compared() -> None:
    with pytest.raises(ValueError, match="2 labels against 1"):
        agreement(["male", "female"], ["male"])
    with pytest.raises(ValueError, match=r"found \['Male'\]"):
        agreement(["Male", "female"], ["male", "female"])


def test_a_judge_is_named_by_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asking("", "some-model") is None
    asked = asking("http://localhost:8000/v1", "some-model")
    assert (asked.func, asked.keywords) == (annotation.endpoint.ask, {"max_tokens": annotation.NEW_TOKENS})
    assert asked.args[0].model == "some-model"
    loaded = []
    monkeypatch.setattr(models, "load", lambda name: loaded.append(name) or name)
    monkeypatch.setattr(annotation, "replies_of", lambda lm, prompts: [Reply(f"{lm}: {p}", None) for p in prompts])
    local = asking("", "", local="smollm2-135m-instruct")
    assert loaded == []  # only when it is asked
    assert local(["a"]) == [Reply("smollm2-135m-instruct: a", None)]


def test_a_judge_that_cannot_be_meant_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "load", lambda name: pytest.fail("a model was loaded"))
    with pytest.raises(ValueError, match="two judges: give one of them"):
        asking("http://localhost:8000/v1", "some-model", local="smollm2-135m-instruct")
    with pytest.raises(ValueError, match="url must read http"):
        asking("localhost:8000", "some-model")
    with pytest.raises(ValueError, match="model is empty"):
        asking("http://localhost:8000/v1", " ")
    with pytest.raises(models.ModelNotAvailable, match="no model named 'smollm'"):
        asking("", "", local="smollm")
