"""Texts become arrays: the same as one forward pass a text, whatever the batch, and measured only once."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from biasgeom import activations, cache, counting, hooks, prompts
from biasgeom.models import LanguageModel

Build = Callable[[str], LanguageModel]
Measure = Callable[[LanguageModel, list[str]], np.ndarray]

# Another batch shape sums in another order: 1e-5 relative in float32, 2e-2 in bfloat16, which keeps 8 bits.
BATCH = {torch.float32: 1e-5, torch.bfloat16: 2e-2}

MEASURES: dict[str, Measure] = {
    "last": lambda lm, texts: activations.last_token_states(lm, texts),
    "mean": lambda lm, texts: activations.sentence_embeddings(lm, texts),
    "max": lambda lm, texts: activations.sentence_embeddings(lm, texts, pooling="max", site="block", block=2),
}


def relative_error(measured: np.ndarray, expected: np.ndarray) -> float:
    """Largest distance of two vectors on the last axis, relative to the norm of the expected one."""
    gap = np.linalg.norm(measured.astype(np.float64) - expected, axis=-1)
    return float((gap / np.linalg.norm(expected, axis=-1)).max())


def naive_states(lm: LanguageModel, text: str) -> list[np.ndarray]:
    """Hugging Face's hidden states of one unpadded text: embedding, blocks 0 … L-2, final norm; each [tokens, d]."""
    with torch.no_grad():
        output = lm.model(**lm.tokenizer(text, return_tensors="pt"), output_hidden_states=True)
    return [state[0].numpy() for state in output.hidden_states]


def test_last_token_states_equal_single_passes(lm: LanguageModel, build: Build, sentences: list[str]) -> None:
    measured = activations.last_token_states(lm, sentences, budget=64)
    assert measured.shape == (len(sentences), len(lm.blocks), lm.width)
    assert measured.dtype == np.float32
    other = build(lm.name)
    for row, text in enumerate(sentences):
        single = naive_states(other, text)
        for block in range(len(lm.blocks) - 1):
            assert relative_error(measured[row, block], single[block + 1][-1]) < BATCH[torch.float32]
        with torch.no_grad():
            normed = lm.final_norm(torch.as_tensor(measured[row, -1])).numpy()
        assert relative_error(normed, single[-1][-1]) < BATCH[torch.float32]
    chosen = activations.last_token_states(lm, sentences, blocks=[2, 0], budget=64)
    np.testing.assert_array_equal(chosen, measured[:, [2, 0]])


@pytest.mark.parametrize("include_first_token", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "max", "last"])
@pytest.mark.parametrize("block", [None, 1])
def test_sentence_embeddings_equal_a_loop(
    llama: LanguageModel, build: Build, sentences: list[str], pooling: str, block: int | None, include_first_token: bool
) -> None:
    measured = activations.sentence_embeddings(
        llama,
        sentences,
        pooling=pooling,
        site="final_norm" if block is None else "block",
        block=block,
        include_first_token=include_first_token,
    )
    other = build("llama")
    for row, text in enumerate(sentences):
        tokens = naive_states(other, text)[-1 if block is None else block + 1][0 if include_first_token else 1 :]
        pooled = tokens[0].astype(np.float64)
        for token in tokens[1:]:
            pooled = {"mean": pooled + token, "max": np.maximum(pooled, token), "last": token}[pooling]
        assert relative_error(measured[row], pooled / len(tokens) if pooling == "mean" else pooled) < 1e-5


def test_the_first_token_counts(llama: LanguageModel, sentences: list[str]) -> None:
    with_it, without = (
        activations.sentence_embeddings(llama, sentences, include_first_token=include) for include in (True, False)
    )
    assert relative_error(without, with_it) > 0.01


@pytest.mark.parametrize("dtype", BATCH)
@pytest.mark.parametrize("measure", MEASURES)
def test_batch_company_does_not_matter(
    lm: LanguageModel, sentences: list[str], measure: str, dtype: torch.dtype
) -> None:
    lm.model.to(dtype)
    together = MEASURES[measure](lm, sentences)
    alone = np.concatenate([MEASURES[measure](lm, [text]) for text in sentences])
    assert relative_error(together, alone) < BATCH[dtype]
    # The tolerance tells two texts apart.
    assert relative_error(together[1:], alone[:-1]) > 10 * BATCH[dtype]


@pytest.mark.parametrize("measure", MEASURES)
def test_results_come_in_input_order(llama: LanguageModel, sentences: list[str], measure: str) -> None:
    forward, backward = (MEASURES[measure](llama, texts) for texts in (sentences, sentences[::-1]))
    assert relative_error(backward[::-1], forward) < BATCH[torch.float32]
    assert relative_error(backward, forward) > 0.1


def test_chat_and_prefill(llama: LanguageModel, sentences: list[str]) -> None:
    rendered = [prompts.render(llama, text, chat=True, prefill="She") for text in sentences]
    expected = np.stack([naive_last(llama, text) for text in rendered])
    measured = activations.last_token_states(llama, sentences, chat=True, prefill="She", blocks=[2])[:, 0]
    assert relative_error(measured, expected) < BATCH[torch.float32]
    assert relative_error(activations.last_token_states(llama, sentences, chat=True, blocks=[2])[:, 0], expected) > 0.1


def naive_last(lm: LanguageModel, text: str) -> np.ndarray:
    """Block 2's output at the last token of a text that holds its own special tokens."""
    ids = torch.tensor([lm.tokenizer(text, add_special_tokens=False)["input_ids"]])
    with hooks.capture(lm, [2]) as captured, torch.no_grad():
        lm.model(ids)
    return captured[2][0, -1].numpy()


def test_mean_projections_equal_a_loop(llama: LanguageModel, build: Build, sentences: list[str]) -> None:
    rng = np.random.default_rng(0)
    directions = {0: rng.standard_normal(32), 2: 5 * rng.standard_normal(32)}
    measured = activations.mean_projections(llama, sentences, directions)
    other = build("llama")
    vectors = {"embedding": (0, directions[0]), 0: (1, directions[0]), 2: (3, directions[2])}
    assert list(measured) == list(vectors)
    for site, (index, v) in vectors.items():
        tokens = np.concatenate([naive_states(other, text)[index][1:] for text in sentences])
        expected = (tokens.astype(np.float64) @ (v / np.linalg.norm(v))).mean()
        assert measured[site] == pytest.approx(expected, abs=1e-5 * float(np.linalg.norm(tokens, axis=1).mean()))


def test_guarded_ablation_with_measured_means_keeps_them(llama: LanguageModel, sentences: list[str]) -> None:
    directions = {3: np.random.default_rng(0).standard_normal(32)}
    means = activations.mean_projections(llama, sentences[:4], directions)
    with hooks.ablate(llama, directions, variant="guarded", means=means):
        after = activations.last_token_states(llama, sentences[4:], blocks=[3])[:, 0]
    projection = after @ directions[3] / np.linalg.norm(directions[3])
    np.testing.assert_allclose(projection, means[3], atol=1e-5 * np.linalg.norm(after, axis=1).mean())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_state_that_is_not_finite_stops_the_run(llama: LanguageModel, sentences: list[str], value: float) -> None:
    poisoned = next(
        i
        for i in llama.tokenizer(sentences[2])["input_ids"]
        if all(i not in llama.tokenizer(text)["input_ids"] for text in (*sentences[:2], *sentences[3:]))
    )
    llama.core.get_input_embeddings().weight[poisoned] = value
    for measure in (activations.last_token_states, activations.sentence_embeddings):
        with pytest.raises(activations.NonFiniteActivation, match="text 2") as raised:
            measure(llama, sentences)
        assert "llama in torch.float32" in str(raised.value)
    assert "'final_norm'" in str(raised.value)
    with pytest.raises(activations.NonFiniteActivation, match="text 2 at 1 "):
        activations.last_token_states(llama, sentences, blocks=[1])
    assert list(cache.root().rglob("*.npy")) == []
    # What the poison does not reach is measured.
    assert np.isfinite(activations.last_token_states(llama, sentences[3:])).all()


def test_wrong_requests(llama: LanguageModel) -> None:
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: activations.last_token_states(llama, ["a", "a"]), "the same"),
        (lambda: activations.last_token_states(llama, ["a"], blocks=[4]), "has blocks 0 to 3"),
        (lambda: activations.last_token_states(llama, ["a"], blocks=[]), "no blocks"),
        (lambda: activations.last_token_states(llama, ["a"], blocks=[-1]), "has blocks 0 to 3"),
        (lambda: activations.sentence_embeddings(llama, ["a"], pooling="sum"), "pooling"),
        (lambda: activations.sentence_embeddings(llama, ["a"], site="block"), "block number"),
        (lambda: activations.sentence_embeddings(llama, ["a"], site="embedding"), "site"),
        (lambda: activations.sentence_embeddings(llama, ["a"], block=1), "block number"),
    ]
    for request, message in wrong:
        with pytest.raises(ValueError, match=message):
            request()
    llama.model.train()
    with pytest.raises(ValueError, match="training mode"):
        activations.last_token_states(llama, ["a"])


def test_a_text_of_one_token_has_nothing_without_it(gpt2: LanguageModel) -> None:
    with pytest.raises(ValueError, match="text 1 is a single token"):
        activations.sentence_embeddings(gpt2, ["A nurse.", "a"], include_first_token=False)
    with pytest.raises(ValueError, match="no text has a second token"):
        activations.mean_projections(gpt2, ["a"], {1: np.ones(32)})


# --- the cache -------------------------------------------------------------------------------------------------------


@pytest.fixture
def passes(llama: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry a forward pass of the model; counted without a hook, which would keep the cache out."""
    counted: list[int] = []
    forward = llama.decoder.forward

    def counting(*args: Any, **kwargs: Any) -> Any:
        counted.append(1)
        return forward(*args, **kwargs)

    monkeypatch.setattr(llama.decoder, "forward", counting)
    return counted


@pytest.mark.parametrize("measure", MEASURES)
def test_a_second_call_runs_no_pass(
    llama: LanguageModel, passes: list[int], sentences: list[str], measure: str
) -> None:
    first = MEASURES[measure](llama, sentences)
    assert len(passes) == 1
    second = MEASURES[measure](llama, sentences)
    assert len(passes) == 1
    np.testing.assert_array_equal(first, second)


def test_whatever_decides_the_value_is_in_the_key(
    llama: LanguageModel, passes: list[int], sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    v = np.random.default_rng(0).standard_normal(32)

    def runs(**options: Any) -> int:
        before = len(passes)
        activations.sentence_embeddings(llama, options.pop("texts", sentences), **options)
        return len(passes) - before

    assert runs() == 1
    variants: list[dict[str, Any]] = [
        {"texts": sentences[:3]},
        {"texts": sentences[::-1]},
        {"pooling": "max"},
        {"pooling": "last"},
        {"include_first_token": False},
        {"site": "block", "block": 1},
        {"site": "block", "block": 2},
        {"budget": 64},
    ]
    for options in variants:
        assert runs(**options) > 0, options
        assert runs(**options) == 0, options
    for edit in (
        hooks.ablate(llama, {1: v}),
        hooks.ablate(llama, {2: v}),
        hooks.ablate(llama, {1: -2 * v + 1}),
        hooks.ablate(llama, {1: v}, variant="guarded", means={1: 0.0}),
        hooks.ablate(llama, {1: v}, variant="guarded", means={1: 1.0}),
        hooks.steer(llama, 1, v, 1.0),
        hooks.steer(llama, 1, v, 2.0),
        hooks.steer(llama, 1, v, 1.0, positions="all"),
    ):
        with edit:
            assert runs() == 1
            assert runs() == 0
    assert runs() == 0

    llama.blocks[2].mlp.up_proj.weight[3, 4] += 1e-6
    assert runs() == 1
    llama.core.config.rms_norm_eps *= 2
    assert runs() == 1
    monkeypatch.setattr(torch, "__version__", "another")
    assert runs() == 1
    monkeypatch.setattr(cache, "source_digest", lambda *modules: "another")
    assert runs() == 1
    assert runs() == 0


def test_source_digest_covers_the_code(llama: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def note(*modules: Any) -> str:
        asked.extend(module.__name__ for module in modules)
        return "code"

    monkeypatch.setattr(cache, "source_digest", note)
    activations.last_token_states(llama, ["A nurse."])
    assert set(asked) == {
        f"biasgeom.{name}" for name in ("models", "activated", "prompts", "layout", "hooks", "activations")
    }


def test_an_edit_is_never_answered_from_the_plain_cache(llama: LanguageModel, sentences: list[str]) -> None:
    v = np.random.default_rng(0).standard_normal(32)
    plain = activations.last_token_states(llama, sentences)
    with hooks.steer(llama, 0, v, 5.0):
        steered = activations.last_token_states(llama, sentences)
    assert relative_error(steered, plain) > 0.1
    np.testing.assert_array_equal(activations.last_token_states(llama, sentences), plain)


def test_foreign_hooks_keep_the_cache_out(llama: LanguageModel, passes: list[int], sentences: list[str]) -> None:
    plain = activations.last_token_states(llama, sentences)
    stored = list(cache.root().rglob("*.npy"))
    handle = llama.blocks[1].register_forward_hook(lambda module, args, output: 2 * output)
    for _ in range(2):
        foreign = activations.last_token_states(llama, sentences)
        assert relative_error(foreign, plain) > 0.1  # not read
    assert len(passes) == 3
    assert list(cache.root().rglob("*.npy")) == stored  # nor written
    handle.remove()
    np.testing.assert_array_equal(activations.last_token_states(llama, sentences), plain)
    assert len(passes) == 3


def test_an_interrupted_run_leaves_nothing(
    llama: LanguageModel, passes: list[int], sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(llama.blocks[3], "forward", interrupt)
        with pytest.raises(KeyboardInterrupt):
            activations.last_token_states(llama, sentences)
    assert [path for path in cache.root().rglob("*") if path.is_file()] == []
    assert not hooks.foreign(llama)
    assert llama.own_hooks == {getattr(llama.decoder, counting.ATTACHED)}
    assert np.isfinite(activations.last_token_states(llama, sentences)).all()


def test_training_mode_is_refused_also_where_the_cache_would_answer(llama: LanguageModel) -> None:
    activations.last_token_states(llama, ["A nurse."])
    llama.model.train()
    with pytest.raises(ValueError, match="training mode"):
        activations.last_token_states(llama, ["A nurse."])


def test_several_readings_from_one_pass_are_each_what_one_gives(
    llama: LanguageModel, sentences: list[str], passes: list[int]
) -> None:
    asked = [
        activations.Reading(),
        activations.Reading(pooling="max"),
        activations.Reading(pooling="last", site="block", block=2),
        activations.Reading(site="block", block=2, include_first_token=False),
    ]
    together = activations.readings(llama, sentences, asked)
    spent = len(passes)
    for reading, array in zip(asked, together, strict=True):
        alone = activations.sentence_embeddings(llama, sentences, **asdict(reading))
        np.testing.assert_allclose(array, alone, rtol=1e-6, atol=1e-6)
    assert len(passes) == spent * (1 + len(asked))
    assert not np.allclose(together[0], together[1])
    with pytest.raises(ValueError, match="no readings"):
        activations.readings(llama, sentences, [])
