"""Likelihoods, and next-token probabilities whose common beginning is read once, against one text at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from biasgeom import activations, cache, generation, hooks, prompts
from biasgeom.models import LanguageModel
from biasgeom.prompts import Batch
from tokenizers import decoders

Build = Callable[[str], LanguageModel]

# Float32 through a softmax or a sum of logarithms.
ROUNDING = 1e-5
BEGINNING = "The teacher from the village school says that"
ENDINGS = [
    " she was tired.",
    " he",
    "",
    " a doctor walks in, and nobody in the north of the country knew",
    " my colleague",
]
TEXTS = [BEGINNING + ending for ending in ENDINGS]
"""One of them is the beginning itself: its last token has to be read with the others' endings."""

EDITS = ["none", "literal", "guarded"]


def edit_of(lm: LanguageModel, name: str, sentences: list[str]) -> AbstractContextManager[None]:
    if name == "none":
        return nullcontext()
    rng = np.random.default_rng(0)
    directions = {block: rng.standard_normal(lm.width) for block in range(len(lm.blocks))}
    means = activations.mean_projections(lm, sentences, directions) if name == "guarded" else None
    return hooks.ablate(lm, directions, variant=name, means=means)


@torch.no_grad()
def single(lm: LanguageModel, text: str) -> np.ndarray:
    """The next token's distribution [vocabulary] from a single pass over the whole text, in float64."""
    return lm.model(**lm.tokenizer(text, return_tensors="pt")).logits[0, -1].double().softmax(-1).numpy()


@torch.no_grad()
def nats_by_loss(lm: LanguageModel, text: str) -> float:
    """Hugging Face's own loss of one text, a mean over predicted tokens, as a sum."""
    inputs = lm.tokenizer(text, return_tensors="pt")
    return float(lm.model(**inputs, labels=inputs["input_ids"]).loss) * (inputs["input_ids"].shape[1] - 1)


@pytest.fixture
def passes(llama: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry a forward pass of ``llama``; counted without a hook, which would keep the cache out."""
    counted: list[int] = []
    forward = llama.decoder.forward

    def counting(*args: Any, **kwargs: Any) -> Any:
        counted.append(1)
        return forward(*args, **kwargs)

    monkeypatch.setattr(llama.decoder, "forward", counting)
    return counted


# --- likelihood ------------------------------------------------------------------------------------------------------


def test_likelihood_equals_hugging_faces_loss(lm: LanguageModel, sentences: list[str]) -> None:
    nats, tokens = generation.negative_log_likelihood(lm, sentences)
    lengths = np.array([len(lm.tokenizer(text)["input_ids"]) for text in sentences])
    np.testing.assert_array_equal(tokens, lengths - 1)
    assert nats.dtype == np.float64
    expected = np.array([nats_by_loss(lm, text) for text in sentences])
    np.testing.assert_allclose(nats, expected, rtol=ROUNDING)
    # Controls: the loss is a mean over one token less than the text has, and texts differ by more than rounding.
    assert (np.abs(nats / expected * lengths / (lengths - 1) - 1) > 1e-3).all()
    assert (np.abs(nats[1:] - expected[:-1]) > 1e-2).all()
    # Another order, and batches of few texts that are padded otherwise.
    order = [3, 0, 6, 5, 1, 4, 2]
    shuffled = generation.negative_log_likelihood(lm, [sentences[place] for place in order], budget=70)
    np.testing.assert_allclose(shuffled[0], nats[order], rtol=ROUNDING)
    np.testing.assert_array_equal(shuffled[1], tokens[order])


def test_likelihood_is_the_probability_of_each_token_by_definition(gpt2: LanguageModel, sentences: list[str]) -> None:
    nats, _ = generation.negative_log_likelihood(gpt2, sentences[:2])
    for text, found in zip(sentences, nats, strict=False):
        ids = gpt2.tokenizer(text)["input_ids"]
        total, shifted = 0.0, 0.0
        for place in range(1, len(ids)):
            with torch.no_grad():
                logits = gpt2.model(torch.tensor([ids[:place]])).logits[0, -1].double().numpy()
            total += np.log(np.exp(logits).sum()) - logits[ids[place]]
            shifted += np.log(np.exp(logits).sum()) - logits[ids[place - 1]]
        assert found == pytest.approx(total, rel=ROUNDING)
        assert found != pytest.approx(shifted, rel=1e-3)


def test_what_the_padding_holds_is_of_no_account(llama: LanguageModel, sentences: list[str]) -> None:
    expected, _ = generation.negative_log_likelihood(llama, sentences)
    llama.tokenizer.pad_token = "A"
    assert llama.tokenizer.pad_token_id != llama.tokenizer.eos_token_id
    filled, _ = generation.negative_log_likelihood(llama, sentences, budget=10_000)
    np.testing.assert_allclose(filled, expected, rtol=ROUNDING)
    # Negative control: counted in, the padding would show.
    encoded = prompts.encode(llama, sentences)
    batch = prompts.pad(llama, encoded, list(range(len(encoded))), side="right")
    with torch.no_grad():
        losses = llama.model(**batch.inputs()).logits[:, :-1].log_softmax(-1)
    counted = -losses.gather(-1, batch.input_ids[:, 1:, None]).sum((1, 2)).numpy()
    short = np.array([len(ids) for ids in encoded]) < batch.input_ids.shape[1]
    assert (np.abs(counted - expected)[short] > 1).all()


def test_a_single_token_has_nothing_to_predict(gpt2: LanguageModel, llama: LanguageModel) -> None:
    with pytest.raises(ValueError, match="text 1 is a single token"):
        generation.negative_log_likelihood(gpt2, ["A doctor walks in.", "A"])
    # Llama's begins with a token of its own, after which the letter is predicted.
    nats, tokens = generation.negative_log_likelihood(llama, ["A"])
    assert tokens.tolist() == [1]
    assert nats[0] == pytest.approx(nats_by_loss(llama, "A"), rel=ROUNDING)


def test_likelihood_under_ablation_and_after(lm: LanguageModel, sentences: list[str]) -> None:
    plain, _ = generation.negative_log_likelihood(lm, sentences)
    for variant in EDITS[1:]:
        with edit_of(lm, variant, sentences):
            ablated, _ = generation.negative_log_likelihood(lm, sentences)
            expected = [nats_by_loss(lm, text) for text in sentences]
        np.testing.assert_allclose(ablated, expected, rtol=ROUNDING)
        assert np.abs(ablated / plain - 1).max() > 1e-3
    # Another budget, so that the cache does not answer.
    after, _ = generation.negative_log_likelihood(lm, sentences, budget=200)
    np.testing.assert_allclose(after, plain, rtol=ROUNDING)


def test_likelihood_is_cached(llama: LanguageModel, passes: list[int], sentences: list[str]) -> None:
    first = generation.negative_log_likelihood(llama, sentences)
    ran = len(passes)
    assert ran > 0
    second = generation.negative_log_likelihood(llama, sentences)
    assert len(passes) == ran
    np.testing.assert_array_equal(first, second)
    with edit_of(llama, "literal", sentences):
        generation.negative_log_likelihood(llama, sentences)
        assert len(passes) == 2 * ran
    generation.negative_log_likelihood(llama, sentences[:-1])
    assert len(passes) > 2 * ran
    ran = len(passes)
    llama.blocks[1].mlp.up_proj.weight[3, 4] += 1
    assert generation.negative_log_likelihood(llama, sentences)[0] != pytest.approx(first[0], rel=1e-6)
    assert len(passes) > ran


def test_likelihood_that_is_not_finite_stops_the_run(llama: LanguageModel) -> None:
    llama.core.lm_head.weight[5] = float("nan")
    with pytest.raises(ArithmeticError, match="not finite"):
        generation.negative_log_likelihood(llama, ["A nurse.", "A doctor walks in."])
    assert list(cache.root().rglob("*.npy")) == []


def test_the_text_whose_likelihood_is_not_finite_is_named(llama: LanguageModel) -> None:
    texts = ["A doctor walks in.", "A nurse.", "Z walks in.", "A doctor walks in, and nobody"]
    private = llama.tokenizer("Z", add_special_tokens=False)["input_ids"][0]
    assert [private in llama.tokenizer(text)["input_ids"] for text in texts] == [False, False, True, False]
    llama.core.get_input_embeddings().weight[private] = float("nan")
    with pytest.raises(ArithmeticError, match="after text 2 are not finite"):
        generation.negative_log_likelihood(llama, texts)


# --- next token after a common beginning -----------------------------------------------------------------------------


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The lengths of what goes into batches, a list a call: shorter than the texts if a beginning was read before."""
    lengths: list[list[int]] = []

    def noting(
        lm: LanguageModel, encoded: Sequence[Sequence[int]], run: Callable[[Batch], Any], **options: Any
    ) -> Iterator[tuple[Batch, Any]]:
        lengths.append([len(ids) for ids in encoded])
        return prompts.in_batches(lm, encoded, run, **options)

    monkeypatch.setattr(generation, "in_batches", noting)
    return lengths


def test_a_common_beginning_read_once_changes_nothing(
    lm: LanguageModel, read: list[list[int]], sentences: list[str]
) -> None:
    whole = [len(lm.tokenizer(text)["input_ids"]) for text in TEXTS]
    shared = min(whole) - 1
    assert shared > max(generation.SHARED, 20)  # far longer than the sliding windows
    plain = np.stack([single(lm, text) for text in TEXTS])
    for edit in EDITS:
        read.clear()
        with edit_of(lm, edit, sentences):
            measured = generation.next_token_probabilities(lm, TEXTS)
            # Few tokens a batch: several batches go on from the beginning, and the last must find it as it was.
            batched = generation.next_token_probabilities(lm, TEXTS, [7, 3], budget=30)
            expected = np.stack([single(lm, text) for text in TEXTS])
        assert read == [[length - shared for length in whole]] * 2
        np.testing.assert_allclose(measured, expected, rtol=0, atol=ROUNDING, err_msg=edit)
        np.testing.assert_allclose(batched, expected[:, [7, 3]], rtol=0, atol=ROUNDING, err_msg=edit)
        assert np.abs(measured[1:] - expected[:-1]).max() > 1e-3
        assert edit == "none" or np.abs(plain - measured).max() > 1e-3


def test_endings_that_forget_what_came_before_would_be_noticed(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: positions that begin anew, and endings alone."""
    expected = np.stack([single(lm, text) for text in TEXTS])
    shared = min(len(lm.tokenizer(text)["input_ids"]) for text in TEXTS) - 1
    with torch.no_grad():
        endings = [torch.tensor([lm.tokenizer(text)["input_ids"][shared:]]) for text in TEXTS]
        alone = torch.cat([lm.model(ids).logits[:, -1] for ids in endings]).double().softmax(-1).numpy()
    assert np.abs(alone - expected).max() > 1e-3

    def displaced(
        lm: LanguageModel, encoded: list[list[int]], run: Callable[[Batch], Any], **options: Any
    ) -> Iterator[tuple[Batch, Any]]:
        def anew(batch: Batch) -> Any:
            return run(replace(batch, position_ids=batch.position_ids - shared))

        return prompts.in_batches(lm, encoded, anew, **options)

    monkeypatch.setattr(generation, "in_batches", displaced)
    assert np.abs(generation.next_token_probabilities(lm, TEXTS) - expected).max() > 1e-3


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
def test_endings_of_one_length(build: Build, architecture: str, read: list[list[int]], sentences: list[str]) -> None:
    lm = build(architecture)
    texts = [f"{BEGINNING} {letter}" for letter in "QXZ"]
    with edit_of(lm, "guarded", sentences):
        measured = generation.next_token_probabilities(lm, texts)
        expected = np.stack([single(lm, text) for text in texts])
    assert len(set(read[0])) == 1
    np.testing.assert_allclose(measured, expected, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("common", [-1, 0, 1])
def test_a_short_beginning_or_a_single_text_is_read_whole(
    llama: LanguageModel, read: list[list[int]], common: int
) -> None:
    # One token a letter, as no two capitals ever met in training, and one of the tokenizer's own.
    begin = "QXZVJQXZVJQXZV"[: generation.SHARED - 1 + common]
    texts = [begin + "K", begin + "JQ", begin + "W"]
    measured = generation.next_token_probabilities(llama, texts)
    left = [1, 2, 1] if common >= 0 else [length + generation.SHARED - 1 for length in (1, 2, 1)]
    assert read == [left]
    np.testing.assert_allclose(measured, np.stack([single(llama, text) for text in texts]), rtol=0, atol=ROUNDING)
    one = generation.next_token_probabilities(llama, texts[:1])
    assert read[1] == [len(llama.tokenizer(texts[0])["input_ids"])]
    np.testing.assert_allclose(one[0], single(llama, texts[0]), rtol=0, atol=ROUNDING)


# --- samples are kept ------------------------------------------------------------------------------------------------


SAMPLED: dict[str, Any] = {"n": 2, "max_new_tokens": 4, "temperature": 1.0, "seed": 7}


def test_samples_are_cached(llama: LanguageModel, passes: list[int], sentences: list[str]) -> None:
    def runs(texts: list[str] = sentences, **changed: Any) -> tuple[list[list[str]], int]:
        before = len(passes)
        return generation.sample(llama, texts, **{**SAMPLED, **changed}), len(passes) - before

    first, ran = runs()
    assert ran > 0
    assert runs() == (first, 0)
    for changed in ({"seed": 8}, {"temperature": 0.5}, {"n": 3}, {"max_new_tokens": 3}, {"rows": 3}):
        _, ran = runs(**changed)
        assert ran > 0, changed
        assert runs(**changed)[1] == 0, changed
    assert runs(sentences[:2])[1] > 0
    for variant in EDITS[1:]:
        with edit_of(llama, variant, sentences):
            edited, ran = runs()
            assert ran > 0
            assert edited != first
            assert runs() == (edited, 0)
    assert runs() == (first, 0)
    llama.blocks[1].mlp.up_proj.weight[3, 4] += 1
    assert runs()[1] > 0


def test_samples_under_hooks_of_others_are_neither_read_nor_kept(
    llama: LanguageModel, passes: list[int], sentences: list[str]
) -> None:
    plain = generation.sample(llama, sentences, **SAMPLED)
    stored = sorted(cache.root().rglob("*.npy"))
    handle = llama.blocks[1].register_forward_hook(lambda module, args, output: -output)
    for _ in range(2):
        before = len(passes)
        assert generation.sample(llama, sentences, **SAMPLED) != plain
        assert len(passes) > before
    handle.remove()
    assert sorted(cache.root().rglob("*.npy")) == stored


def test_where_samples_end_is_in_the_key(llama: LanguageModel, passes: list[int]) -> None:
    """Another end token in the generation config is no part of the weights or of their configuration."""
    generation.sample(llama, ["A doctor walks in."], **SAMPLED)
    before = len(passes)
    llama.core.generation_config.eos_token_id = list(range(1, 300))
    generation.sample(llama, ["A doctor walks in."], **SAMPLED)
    assert len(passes) == before + 1  # any token ends it


def test_the_tokenizer_that_writes_the_samples_is_in_the_key(llama: LanguageModel) -> None:
    """Two tokenizers can read a prompt alike and write the same tokens otherwise."""
    many = {**SAMPLED, "n": 30}
    first = generation.sample(llama, ["QXZ"], **many)
    ids = llama.tokenizer("QXZ")["input_ids"]
    vowels = [decoders.Replace(letter, letter.upper()) for letter in "aeiou"]
    llama.tokenizer.backend_tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), *vowels])
    assert llama.tokenizer("QXZ")["input_ids"] == ids
    assert generation.sample(llama, ["QXZ"], **many, rows=30) != first  # `rows` keeps the cache from answering
    assert generation.sample(llama, ["QXZ"], **many) != first
