"""Prompts become samples, next-token probabilities and likelihoods, under hooks or not; kept in the cache.

Sampling inverts the cumulative distribution with one uniform number a token, drawn from a generator that is seeded by
the prompt itself and the number of the sample. So a sample does not depend on the batch it was in or on the order of
the prompts, up to the rounding of the logits (a padded batch differs from a single prompt by about 1e-6 relative, which
can tip a draw that lies on the edge between two tokens).
"""

import copy
import json
import sys
from collections.abc import Sequence

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import GenerationConfig, LogitsProcessorList

from biasgeom import cache, drawing, memory, recall, vllm_sampling
from biasgeom.drawing import InverseCdf
from biasgeom.models import LanguageModel
from biasgeom.prompts import Batch, encode, in_batches, pad, shared_beginning, token_budget

CPU_ROWS = 84
"""Prompts a batch while sampling on a CPU: a token costs half of what it costs in batches of 16."""

SHARED = 8
"""Tokens that all texts must begin with for these to be read once."""

SAMPLERS = ("transformers", "vllm")


def sample(
    lm: LanguageModel,
    prompts: Sequence[str],
    *,
    n: int,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    chat: bool = False,
    prefill: str | Sequence[str] | None = None,
    rows: int | None = None,
    sampler: str = "transformers",
) -> list[list[str]]:
    """n continuations of each prompt, sampled from the whole distribution (no top-k, no top-p).

    Parameters
    ----------
    prompts : list of str
    n : int
        Samples a prompt. The first k of n samples are the same for every n ≥ k.
    temperature : float
        0 decodes greedily; all n are then the same.
    seed : int
        The same seed gives the same samples for any batch size and order.
    chat, prefill
        See :func:`biasgeom.prompts.render`.
    rows : int, optional
        Prompts in a batch. Default: 84 on a CPU, by free memory on a GPU.
    sampler : {"transformers", "vllm"}
        What runs the model: the second is an extra, faster on a GPU, and can't be hooked; a seed gives other samples
        of the same distribution. See :mod:`biasgeom.vllm_sampling`.

    Returns
    -------
    list of list of str
        Without the prompt and without special tokens, in input order.

    Raises
    ------
    ValueError
        Empty or duplicate prompts (equal prompts would get equal samples), a negative temperature, n < 1; an unknown
        sampler, or vLLM under hooks.
    ModelNotAvailable
        vLLM is not installed.
    ArithmeticError
        Logits that are not finite.
    """
    if n < 1 or max_new_tokens < 1 or temperature < 0:
        raise ValueError(
            f"need n >= 1, max_new_tokens >= 1, temperature >= 0; got {n}, {max_new_tokens}, {temperature}"
        )
    if sampler not in SAMPLERS:
        raise ValueError(f"sampler must be one of {', '.join(SAMPLERS)}, not {sampler!r}")
    encoded = encode(lm, prompts, chat=chat, prefill=prefill)
    by_vllm = sampler == "vllm"

    def compute() -> np.ndarray:
        if by_vllm:
            samples = _by_vllm(lm, encoded, n, max_new_tokens, temperature, seed)
        else:
            samples = _sampled(lm, encoded, n, max_new_tokens, temperature, seed, rows)
        return np.frombuffer(json.dumps(samples).encode(), dtype=np.uint8)

    what = ["sample", n, max_new_tokens, temperature, seed, rows, end_tokens(lm)]
    if by_vllm:
        what += ["vllm", vllm_sampling.version(lm)]
    below = cache.source_digest(drawing, *([vllm_sampling] if by_vllm else []))
    decoder = lm.tokenizer.backend_tokenizer.to_str() if lm.tokenizer.is_fast else repr(lm.tokenizer)
    asked = {"tokens": encoded, "what": what, "decoder": decoder, "code_below": below}
    return json.loads(recall.array(lm, sys.modules[__name__], compute, **asked).tobytes())


def _by_vllm(
    lm: LanguageModel, encoded: list[list[int]], n: int, max_new_tokens: int, temperature: float, seed: int
) -> list[list[str]]:
    repeated = [ids for ids in encoded for _ in range(n)]
    seeds = [drawing.own_seed(seed, ids, k) for ids in encoded for k in range(n)]
    how = {"max_new_tokens": max_new_tokens, "temperature": temperature, "ends": end_tokens(lm)}
    written = vllm_sampling.tokens(lm, repeated, seeds, **how)
    texts = [continuation(lm, ids, new) for ids, new in zip(repeated, written, strict=True)]
    return [texts[start : start + n] for start in range(0, len(texts), n)]


def _sampled(
    lm: LanguageModel,
    encoded: list[list[int]],
    n: int,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    rows: int | None,
) -> list[list[str]]:
    items = [(place, k) for place in range(len(encoded)) for k in range(n)]
    longest = max(map(len, encoded)) + max_new_tokens
    if rows is None:
        rows = CPU_ROWS if lm.device.type == "cpu" else max(1, token_budget(lm, cached=True) // longest)
    # Similar lengths together: less padding. Stable, so equal prompts stay side by side.
    items.sort(key=lambda item: len(encoded[item[0]]))

    def draw(start: int, stop: int) -> tuple[list[tuple[int, int]], list[list[int]]]:
        chosen = items[start:stop]
        uniforms = np.stack([drawing.uniforms(seed, encoded[place], k, max_new_tokens) for place, k in chosen])
        return chosen, _generate(lm, encoded, [place for place, _ in chosen], uniforms, temperature)

    samples: list[list[str]] = [[""] * n for _ in encoded]
    most = len(items) * max_new_tokens
    with tqdm(total=most, desc=f"{lm.name}: samples", unit="token", unit_scale=True, leave=False) as bar:
        for chosen, written in memory.Budget(lm, rows * longest).pieces(draw, [longest] * len(items)):
            for (place, k), new in zip(chosen, written, strict=True):
                samples[place][k] = continuation(lm, encoded[place], new)
            bar.total -= sum(max_new_tokens - len(new) for new in written)  # ended before
            bar.update(sum(map(len, written)))
    return samples


@torch.inference_mode()
def _generate(
    lm: LanguageModel, encoded: list[list[int]], places: list[int], uniforms: np.ndarray, temperature: float
) -> list[list[int]]:
    """The new tokens of each place, up to the end of the longest."""
    batch = pad(lm, encoded, places, side="left")
    width = batch.input_ids.shape[1]
    ends = end_tokens(lm)
    config = GenerationConfig(
        max_new_tokens=uniforms.shape[1],
        do_sample=False,
        use_cache=True,
        eos_token_id=ends,
        pad_token_id=ends[0] if isinstance(ends, list) else ends,
    )

    def checked(input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        _check_finite(lm, scores, places)
        return scores

    drawn = memory.to_device(torch.as_tensor(uniforms), lm.device)
    chooser = [InverseCdf(drawn, temperature, width)] if temperature > 0 else []
    # `generate` fills what `config` leaves open from the model's own settings, often a repetition penalty: hide them.
    settings, lm.core.generation_config = lm.core.generation_config, GenerationConfig()
    try:
        output = lm.model.generate(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            generation_config=config,
            logits_processor=LogitsProcessorList([checked, *chooser]),
        )
    finally:
        lm.core.generation_config = settings
    return output[:, width:].tolist()


def end_tokens(lm: LanguageModel) -> int | list[int] | None:
    """What ends a reply: by the model's own settings, else its tokenizer's end token."""
    ends = lm.core.generation_config.eos_token_id
    return lm.tokenizer.eos_token_id if ends is None else ends


def continuation(lm: LanguageModel, prompt: list[int], new: list[int]) -> str:
    """The text of the new tokens; decoded after the prompt, since SentencePiece drops the space of a first token."""
    before, whole = lm.tokenizer.batch_decode([prompt, prompt + new], skip_special_tokens=True)
    if not whole.startswith(before):
        raise ValueError(f"{lm.name}: its tokenizer decodes a prompt differently when text follows: {before!r}")
    return whole[len(before) :]


def _check_finite(lm: LanguageModel, logits: torch.Tensor, places: list[int]) -> None:
    # The largest is NaN or infinite if any is; minus infinity alone is how a model masks a token.
    bad = ~torch.isfinite(logits.amax(-1))
    if bad.any():
        text = places[int(bad.nonzero()[0])]
        raise ArithmeticError(f"{lm.name} in {lm.dtype}: the logits after text {text} are not finite")


@torch.inference_mode()
def next_token_probabilities(
    lm: LanguageModel,
    texts: Sequence[str],
    tokens: Sequence[int] | None = None,
    *,
    chat: bool = False,
    prefill: str | Sequence[str] | None = None,
    budget: int | None = None,
) -> np.ndarray:
    """The distribution over the token that follows each text.

    What all texts begin with is read in a pass of its own, whose last token :func:`biasgeom.hooks.steer` would take for
    the prompt's with positions "last": under such an edit ask text by text.

    Parameters
    ----------
    texts : list of str, length n
    tokens : list of int, optional
        Keep these columns only.

    Returns
    -------
    array [n, vocabulary] or [n, tokens], float32
    """
    encoded = encode(lm, texts, chat=chat, prefill=prefill)
    columns = None if tokens is None else list(tokens)
    return recall.array(
        lm,
        sys.modules[__name__],
        lambda: _next_token_probabilities(lm, encoded, columns, budget),
        tokens=encoded,
        what=["next token", columns, budget],
    )


def _next_token_probabilities(
    lm: LanguageModel, encoded: list[list[int]], columns: list[int] | None, budget: int | None
) -> np.ndarray:
    # What all texts begin with, an instruction, is read once.
    shared = shared_beginning(encoded)
    shared = shared if shared >= SHARED and len(encoded) > 1 else 0
    prefix = torch.tensor([encoded[0][:shared]], device=lm.device)
    past = lm.model(prefix, attention_mask=torch.ones_like(prefix)).past_key_values if shared else None

    def read(batch: Batch) -> np.ndarray:
        inputs = batch.inputs()
        if past is not None:
            rows = len(batch.rows)
            inputs["attention_mask"] = torch.cat([prefix.new_ones(rows, shared), batch.attention_mask], dim=1)
            inputs["position_ids"] = batch.position_ids + shared
            inputs["cache"] = copy.deepcopy(past)
            inputs["cache"].batch_repeat_interleave(rows)
        # Padded on the right, so that prefix and text are one; then each length has its own last column.
        ends, which = batch.last.unique(return_inverse=True)
        logits = lm.model(**inputs, use_cache=past is not None, logits_to_keep=ends).logits
        logits = logits[torch.arange(len(which)), which].float()
        _check_finite(lm, logits, batch.rows)
        return memory.to_host(torch.softmax(logits, dim=-1)[:, slice(None) if columns is None else columns])

    result: np.ndarray | None = None
    for batch, kept in in_batches(lm, [ids[shared:] for ids in encoded], read, budget=budget, before=shared):
        result = np.empty((len(encoded), kept.shape[1]), dtype=np.float32) if result is None else result
        result[batch.rows] = kept
    return result


@torch.inference_mode()
def negative_log_likelihood(
    lm: LanguageModel, texts: Sequence[str], *, budget: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """How well the model predicts each text, token by token: what an edit of the stream costs in plain text.

    Parameters
    ----------
    texts : list of str, length n

    Returns
    -------
    nats : array [n], float64
        Sum of −log p over the text's tokens but its first, which has no context.
    tokens : integer array [n]
        How many were summed; the mean over a corpus is ``nats.sum() / tokens.sum()``.

    Raises
    ------
    ValueError
        A text of a single token: it has nothing to predict.
    """
    encoded = encode(lm, texts)
    short = next((place for place, ids in enumerate(encoded) if len(ids) < 2), None)
    if short is not None:
        raise ValueError(f"text {short} is a single token: nothing in it is predicted")
    nats = recall.array(
        lm, sys.modules[__name__], lambda: _nats(lm, encoded, budget), tokens=encoded, what=["likelihood", budget]
    )
    return nats, np.array([len(ids) - 1 for ids in encoded])


def _nats(lm: LanguageModel, encoded: list[list[int]], budget: int | None) -> np.ndarray:
    def read(batch: Batch) -> np.ndarray:
        logits = lm.model(**batch.inputs(), use_cache=False).logits[:, :-1].float()
        chosen = torch.log_softmax(logits, dim=-1).gather(-1, batch.input_ids[:, 1:, None])[..., 0]
        kept = batch.attention_mask[:, 1:].bool()
        sums = -chosen.double().masked_fill(~kept, 0).sum(1)
        _check_finite(lm, sums[:, None], batch.rows)
        return memory.to_host(sums)

    nats = np.empty(len(encoded))
    for batch, sums in in_batches(lm, encoded, read, budget=budget or token_budget(lm, logits=True)):
        nats[batch.rows] = sums
    return nats
