"""Samples and next-token probabilities: the stated distribution, and the same for every batch size and order."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from biasgeom import drawing, generation, hooks, prompts
from biasgeom.models import LanguageModel
from scipy.stats import chisquare
from transformers import GenerationConfig

Build = Callable[[str], LanguageModel]
SETTINGS: dict[str, Any] = {"n": 3, "max_new_tokens": 6, "temperature": 1.0, "seed": 7}
# Float32 logits of a padded and an unpadded pass, through a softmax.
ROUNDING = 1e-5


def next_token(lm: LanguageModel, text: str) -> torch.Tensor:
    """Probabilities [vocabulary] from a single unpadded pass, float64."""
    with torch.no_grad():
        return lm.model(**lm.tokenizer(text, return_tensors="pt")).logits[0, -1].double().softmax(-1)


def test_samples_do_not_depend_on_batch_size_or_order(llama: LanguageModel, sentences: list[str]) -> None:
    reference = generation.sample(llama, sentences, **SETTINGS)
    assert [len(samples) for samples in reference] == [3] * len(sentences)
    for rows in (1, 3, 16):
        assert generation.sample(llama, sentences, **SETTINGS, rows=rows) == reference
    order = [3, 0, 6, 5, 1, 4, 2]
    shuffled = generation.sample(llama, [sentences[place] for place in order], **SETTINGS, rows=4)
    assert shuffled == [reference[place] for place in order]
    # A prompt alone gets what it gets in company, and fewer samples are the first of more.
    assert generation.sample(llama, sentences[2:3], **{**SETTINGS, "n": 2}) == [reference[2][:2]]


def test_samples_differ_between_seeds_numbers_and_prompts(llama: LanguageModel, sentences: list[str]) -> None:
    reference = generation.sample(llama, sentences, **SETTINGS)
    assert generation.sample(llama, sentences, **{**SETTINGS, "seed": 8}) != reference
    assert len({text for samples in reference for text in samples}) == 3 * len(sentences)
    # Not only because the prompts differ: each item has its own random numbers.
    numbers = [drawing.uniforms(7, ids, k, 6).tolist() for ids in ([5, 6], [5, 7], [56]) for k in range(3)]
    assert len({number for row in numbers for number in row}) == 9 * 6


def test_a_longer_sample_begins_like_a_shorter_one(gpt2: LanguageModel, sentences: list[str]) -> None:
    short = generation._generate(gpt2, [[5, 6, 7]], [0], np.full((1, 2), 0.3), 1.0)
    long = generation._generate(gpt2, [[5, 6, 7]], [0], np.full((1, 4), 0.3), 1.0)
    assert long[0][:2] == short[0]
    assert len(long[0]) == 4


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_samples_follow_the_softmax(gpt2: LanguageModel, temperature: float) -> None:
    """Chi-square on the first token of 3,000 samples, at a fixed seed; 1e-3 is a level no right sampler has to fear."""
    text, draws = "The nurse said", 3000
    samples = generation.sample(gpt2, [text], n=draws, max_new_tokens=1, temperature=temperature, seed=0, rows=draws)[0]
    counted = Counter(samples)

    def p_value(at: float) -> float:
        expected: Counter[str] = Counter()  # tokens that decode to the same text count together
        probabilities = (next_token(gpt2, text).log() / at).softmax(-1)
        for token, probability in enumerate(probabilities.tolist()):
            expected[gpt2.tokenizer.decode([token], skip_special_tokens=True)] += draws * probability
        assert set(counted) <= set(expected)
        common = [token for token, number in expected.items() if number >= 5]
        observed = [counted[token] for token in common]
        wanted = [expected[token] for token in common]
        rest = (draws - sum(observed), draws - sum(wanted))  # all rare ones in one cell
        return float(chisquare([*observed, rest[0]], [*wanted, rest[1]]).pvalue)

    assert p_value(temperature) > 1e-3
    assert p_value(1.3 * temperature) < 1e-6
    assert p_value(0.7 * temperature) < 1e-6


def test_inverse_cdf_picks_the_interval(llama: LanguageModel) -> None:
    probabilities = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25]])
    numbers = {0.0: 1, 0.2499: 1, 0.2501: 3, 0.7499: 3, 0.7501: 4, np.nextafter(1, 0): 4}
    for number, token in numbers.items():
        choose = generation.InverseCdf(np.array([[0.5, number]]), 1.0, prompt_length=3)
        scores = choose(torch.zeros(1, 4, dtype=torch.long), probabilities.log())
        assert scores.argmax().item() == token
        assert torch.isneginf(scores).sum() == 4
    # A low temperature sharpens: the middle of the distribution moves to the likely token.
    cold = generation.InverseCdf(np.array([[0.1]]), 0.1, prompt_length=3)
    assert cold(torch.zeros(1, 3, dtype=torch.long), probabilities.log()).argmax().item() == 3


def test_the_models_own_sampling_settings_are_not_used(llama: LanguageModel, sentences: list[str]) -> None:
    """A chat model's generation_config often holds a repetition penalty and cut-offs; sampling is from the whole."""
    reference = generation.sample(llama, sentences, **SETTINGS)
    greedy = generation.sample(llama, sentences, **{**SETTINGS, "temperature": 0})
    theirs = GenerationConfig(
        do_sample=True,
        top_k=1,
        top_p=0.1,
        temperature=0.01,
        repetition_penalty=5.0,
        no_repeat_ngram_size=1,
        min_new_tokens=20,
        suppress_tokens=list(range(2, 150)),
        num_beams=2,
        max_length=3,
        eos_token_id=1,
    )
    llama.core.generation_config = theirs
    rows = {"rows": 5}  # another number than before, or the cache would answer
    assert generation.sample(llama, sentences, **SETTINGS, **rows) == reference
    assert generation.sample(llama, sentences, **{**SETTINGS, "temperature": 0}, **rows) == greedy
    assert llama.core.generation_config is theirs


def naive_greedy(lm: LanguageModel, text: str, tokens: int) -> str:
    """One unpadded row, the whole prompt again for every token, no cache."""
    ids = lm.tokenizer(text)["input_ids"]
    width = len(ids)
    for _ in range(tokens):
        with torch.no_grad():
            ids = [*ids, int(lm.model(torch.tensor([ids])).logits[0, -1].argmax())]
        if ids[-1] == lm.tokenizer.eos_token_id:
            break
    return lm.tokenizer.decode(ids[width:], skip_special_tokens=True)


def test_temperature_0_in_a_left_padded_batch_equals_a_loop(lm: LanguageModel, sentences: list[str]) -> None:
    together = generation.sample(lm, sentences, n=2, max_new_tokens=5, temperature=0, seed=0, rows=14)
    assert together == [[naive_greedy(lm, text, 5)] * 2 for text in sentences]


def test_gpt2_without_position_ids_would_fail(gpt2: LanguageModel, sentences: list[str]) -> None:
    """The control of the test above: GPT-2 counts padding as positions unless told otherwise."""
    encoded = prompts.encode(gpt2, sentences[:3])
    batch = prompts.pad(gpt2, encoded, [0, 1, 2], side="left")
    with torch.no_grad():
        untold = gpt2.model(batch.input_ids, attention_mask=batch.attention_mask).logits[:, -1]
        told = gpt2.model(**batch.inputs()).logits[:, -1]
    alone = torch.stack([next_token(gpt2, text) for text in sentences[:3]])
    torch.testing.assert_close(told.double().softmax(-1), alone, rtol=1e-3, atol=ROUNDING)
    assert (untold.double().softmax(-1) - alone).abs().max() > 1e-2


def test_samples_end_at_the_end_token(llama: LanguageModel) -> None:
    """Whatever comes after the end token is padding, not text."""
    llama.core.generation_config.eos_token_id = list(range(1, 300))
    samples = generation.sample(llama, ["A nurse.", "A doctor walks in."], **{**SETTINGS, "max_new_tokens": 8})
    lengths = [len(llama.tokenizer(text, add_special_tokens=False)["input_ids"]) for row in samples for text in row]
    assert max(lengths) <= 3  # one token; a lone byte decodes to the replacement character, which has three


def test_chat_prompts_are_sampled_as_rendered(llama: LanguageModel) -> None:
    asked = generation.sample(llama, ["Who?"], **SETTINGS, chat=True, prefill="She")
    ids = prompts.encode(llama, ["Who?"], chat=True, prefill="She")
    uniforms = np.stack([drawing.uniforms(7, ids[0], k, 6) for k in range(3)])
    written = generation._generate(llama, ids, [0, 0, 0], uniforms, 1.0)
    assert asked == [[generation.continuation(llama, ids[0], new) for new in written]]
    assert asked != generation.sample(llama, ["Who?"], **SETTINGS)


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2", "llama-lora"])
def test_sampling_under_ablation_and_after(build: Build, architecture: str, sentences: list[str]) -> None:
    lm = build(architecture)
    rng = np.random.default_rng(0)
    directions = {block: rng.standard_normal(lm.width) for block in range(len(lm.blocks))}
    plain = generation.sample(lm, sentences, **SETTINGS)
    with hooks.ablate(lm, directions):
        ablated = generation.sample(lm, sentences, **SETTINGS)
        assert generation.sample(lm, sentences, **SETTINGS, rows=2) == ablated
        greedy = generation.sample(lm, sentences[:3], n=1, max_new_tokens=4, temperature=0, seed=0)
        assert greedy == [[naive_greedy(lm, text, 4)] for text in sentences[:3]]
    assert ablated != plain
    assert generation.sample(lm, sentences, **SETTINGS, rows=3) == plain  # past the cache


def test_next_token_probabilities_equal_single_passes(lm: LanguageModel, sentences: list[str]) -> None:
    measured = generation.next_token_probabilities(lm, sentences, budget=100)
    assert measured.shape == (len(sentences), 300)
    assert measured.dtype == np.float32
    expected = torch.stack([next_token(lm, text) for text in sentences]).numpy()
    np.testing.assert_allclose(measured, expected, rtol=1e-3, atol=ROUNDING)
    assert np.abs(measured[1:] - expected[:-1]).max() > 1e-2
    chosen = generation.next_token_probabilities(lm, sentences, [7, 3], budget=100)
    np.testing.assert_array_equal(chosen, measured[:, [7, 3]])


def test_next_token_probabilities_of_chat(llama: LanguageModel) -> None:
    measured = generation.next_token_probabilities(llama, ["Who?"], chat=True, prefill="She")[0]
    ids = torch.tensor([llama.tokenizer("<s>[user] Who?\n[assistant] She", add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        expected = llama.model(ids).logits[0, -1].softmax(-1).numpy()
    np.testing.assert_allclose(measured, expected, rtol=1e-3, atol=ROUNDING)


@pytest.mark.parametrize("call", ["sample", "greedy", "probabilities"])
def test_logits_that_are_not_finite_stop_the_run(llama: LanguageModel, call: str) -> None:
    llama.core.lm_head.weight[5] = float("nan")
    calls = {
        "sample": lambda: generation.sample(llama, ["A nurse."], **SETTINGS),
        "greedy": lambda: generation.sample(llama, ["A nurse."], **{**SETTINGS, "temperature": 0}),
        "probabilities": lambda: generation.next_token_probabilities(llama, ["A nurse."]),
    }
    with pytest.raises(ArithmeticError, match=r"llama in torch.float32: the logits after text 0 are not finite"):
        calls[call]()


@pytest.mark.parametrize(
    ("texts", "changed", "message"),
    [
        (["a", "a"], {}, "the same"),
        ([], {}, "no texts"),
        (["a"], {"n": 0}, "n >= 1"),
        (["a"], {"max_new_tokens": 0}, "max_new_tokens >= 1"),
        (["a"], {"temperature": -0.1}, "temperature >= 0"),
    ],
)
def test_wrong_requests(llama: LanguageModel, texts: list[str], changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generation.sample(llama, texts, **{**SETTINGS, **changed})
