"""Texts become padded token batches: masks, positions and the last token are right, whatever the padding token is."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from biasgeom import prompts
from biasgeom.models import LanguageModel
from hypothesis import given, settings
from hypothesis import strategies as st

Build = Callable[[str], LanguageModel]
ENCODED = [[7, 8, 9], [5], [4, 1, 1, 6, 1], [3, 2]]  # 1 is the padding token


def batches(lm: LanguageModel, encoded: list[list[int]], **options: int) -> list[prompts.Batch]:
    """The batches alone."""
    return [batch for batch, _ in prompts.in_batches(lm, encoded, lambda batch: None, **options)]


@pytest.fixture(scope="module")
def shared(build: Build) -> LanguageModel:
    """For tests that only read: hypothesis runs one many times."""
    return build("llama")


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding(shared: LanguageModel, side: str) -> None:
    batch = prompts.pad(shared, ENCODED, [2, 0, 1], side=side)
    rows = {
        "right": ([[4, 1, 1, 6, 1], [7, 8, 9, 1, 1], [5, 1, 1, 1, 1]], [4, 2, 0]),
        "left": ([[4, 1, 1, 6, 1], [1, 1, 7, 8, 9], [1, 1, 1, 1, 5]], [4, 4, 4]),
    }
    ids, last = rows[side]
    assert batch.rows == [2, 0, 1]
    assert batch.input_ids.tolist() == ids
    assert batch.last.tolist() == last
    for row, length in enumerate([5, 3, 1]):
        there = batch.attention_mask[row].bool()
        # A text's own tokens keep their mask where they equal the padding token.
        assert int(there.sum()) == length
        assert bool(there[batch.last[row]])
        assert batch.input_ids[row][there].tolist() == ENCODED[batch.rows[row]]
        assert batch.position_ids[row][there].tolist() == list(range(length))
    assert not any(part.is_floating_point() for part in batch.inputs().values())


def test_a_mask_by_comparison_would_be_wrong(shared: LanguageModel) -> None:
    batch = prompts.pad(shared, ENCODED, [2, 0], side="right")
    assert not torch.equal(batch.attention_mask, (batch.input_ids != shared.tokenizer.pad_token_id).long())


def test_without_a_padding_token(gpt2: LanguageModel) -> None:
    assert gpt2.tokenizer.pad_token_id is None
    batch = prompts.pad(gpt2, [[5, 6], [7]], [0, 1], side="right")
    assert batch.input_ids.tolist() == [[5, 6], [7, gpt2.tokenizer.eos_token_id]]
    assert batch.attention_mask.tolist() == [[1, 1], [1, 0]]
    gpt2.tokenizer.eos_token = None
    assert prompts.pad(gpt2, [[5, 6], [7]], [0, 1], side="right").attention_mask.tolist() == [[1, 1], [1, 0]]


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    budget=st.integers(1, 200),
)
def test_batches_partition_the_rows(shared: LanguageModel, lengths: list[int], budget: int) -> None:
    encoded = [[place % 300] * length for place, length in enumerate(lengths)]
    made = batches(shared, encoded, budget=budget)
    assert sorted(row for batch in made for row in batch.rows) == list(range(len(lengths)))
    widths = [batch.input_ids.shape[1] for batch in made]
    assert widths == sorted(widths, reverse=True)
    for batch in made:
        assert batch.input_ids.numel() <= budget or len(batch.rows) == 1
        assert batch.input_ids.shape[1] == max(lengths[row] for row in batch.rows)
        for place, row in enumerate(batch.rows):
            there = batch.attention_mask[place].bool()
            assert batch.input_ids[place][there].tolist() == encoded[row]


def test_batches_are_filled(shared: LanguageModel) -> None:
    """Otherwise one text a batch would pass the test above."""
    assert [batch.rows for batch in batches(shared, ENCODED, budget=10)] == [[2, 0], [3, 1]]
    default = batches(shared, [[5] * 8] * 100)
    assert [len(batch.rows) for batch in default] == [prompts.CPU_BUDGET // 8, 100 - prompts.CPU_BUDGET // 8]


def test_an_unknown_side_is_refused(shared: LanguageModel) -> None:
    with pytest.raises(ValueError, match="side"):
        prompts.pad(shared, ENCODED, [0], side="middle")


def test_raw_text_gets_what_the_tokenizer_adds(shared: LanguageModel, gpt2: LanguageModel) -> None:
    for lm, begin in ((shared, [0]), (gpt2, [])):
        bare = lm.tokenizer("A nurse.", add_special_tokens=False)["input_ids"]
        assert prompts.encode(lm, ["A nurse."]) == [begin + bare]
    assert prompts.encode(shared, ["A nur"], prefill="se.") == prompts.encode(shared, ["A nurse."])
    # An end token within a text is one token, and stays.
    assert prompts.encode(shared, ["A</s>"])[0][-1] == shared.tokenizer.eos_token_id


def test_chat_equals_the_template(shared: LanguageModel) -> None:
    turn = [{"role": "user", "content": "Who is the manager?"}]
    expected = shared.tokenizer.apply_chat_template(turn, tokenize=True, add_generation_prompt=True)["input_ids"]
    plain = prompts.encode(shared, [turn[0]["content"]], chat=True)[0]
    assert plain == expected
    assert plain.count(shared.tokenizer.bos_token_id) == 1

    text = prompts.render(shared, turn[0]["content"], chat=True, prefill="She")
    assert text == "<s>[user] Who is the manager?\n[assistant] She"
    prefilled = prompts.encode(shared, [turn[0]["content"]], chat=True, prefill="She")[0]
    assert shared.tokenizer.decode(prefilled) == text
    assert prefilled.count(shared.tokenizer.bos_token_id) == 1
    assert prefilled != plain


def test_a_template_without_bos_gets_none(shared: LanguageModel, build: Build) -> None:
    lm = build("llama")
    lm.tokenizer.chat_template = shared.tokenizer.chat_template.replace("{{ bos_token }}", "")
    assert lm.tokenizer.bos_token_id not in prompts.encode(lm, ["Hello"], chat=True)[0]


def test_each_text_has_its_own_prefill(shared: LanguageModel) -> None:
    each = prompts.encode(shared, ["a", "b", "a"], prefill=["x", "y", "z"])
    assert each == prompts.encode(shared, ["ax", "by", "az"])
    with pytest.raises(ValueError, match="2 texts but 3 prefills"):
        prompts.encode(shared, ["a", "b"], prefill=["x", "y", "z"])


def test_chat_needs_a_template(gpt2: LanguageModel) -> None:
    with pytest.raises(ValueError, match="no chat template"):
        prompts.encode(gpt2, ["Hello"], chat=True)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "no texts"),
        ("A nurse.", "one string"),
        (["a", ""], "text 1 is empty"),
        (["a", " \n"], "text 1 is empty"),
        (["a", None], "text 1 is empty or no text"),
        (["a", float("nan")], "text 1 is empty or no text"),
        (["a", "b", "a"], "texts 0 and 2 are the same"),
    ],
)
def test_texts_that_would_be_measured_wrongly(shared: LanguageModel, texts: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prompts.encode(shared, texts)


def test_the_same_text_may_differ_in_its_prefill(shared: LanguageModel) -> None:
    assert len(prompts.encode(shared, ["a", "a"], prefill=["x", "y"])) == 2
    with pytest.raises(ValueError, match="the same"):
        prompts.encode(shared, ["a", "a"], prefill=["x", "x"])


def test_a_text_that_leaves_no_token(gpt2: LanguageModel) -> None:
    nothing = dataclasses.replace(gpt2)
    nothing.tokenizer = lambda texts, **options: {"input_ids": [[5] if text == "a" else [] for text in texts]}
    with pytest.raises(ValueError, match="text 1 has no tokens: 'b'"):
        prompts.encode(nothing, ["a", "b"])


def test_a_token_beyond_the_embedding_is_refused(build: Callable[[str], LanguageModel]) -> None:
    """A tokenizer that was given tokens, and a model that was not: an index error deep inside otherwise."""
    lm = build("llama")
    prompts.encode(lm, ["she said"])
    lm.tokenizer.add_tokens(["unheard"])
    with pytest.raises(ValueError, match=r"'unheard' the number .* resize_token_embeddings"):
        prompts.encode(lm, ["she was unheard"])
