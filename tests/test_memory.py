"""A batch that runs out of memory is halved and run again: the same results, in order, and no hook is left behind."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from biasgeom import activations, generation, hooks, memory, prefix, prompts, readouts, suffix
from biasgeom.models import LanguageModel
from conftest import SENTENCES, WIDTH

Build = Callable[[str], LanguageModel]
PROMPTS = [f"Rate the response from 1 to 10. {text} Output one integer." for text in "QXZVJKW"]
DIRECTION = np.random.default_rng(0).normal(size=WIDTH)
FULL = "CUDA out of memory. Tried to allocate 20.00 MiB."
ERRORS = {
    "cuda": torch.OutOfMemoryError(FULL),
    "cpu": RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "numpy": MemoryError("Unable to allocate 20 GiB for an array"),
}


@contextmanager
def small(lm: LanguageModel, rows: int, error: BaseException = ERRORS["cuda"]) -> Iterator[list[int]]:
    """A device on which more than so many rows (or, in a suffix, tokens of one row) don't fit: block 2 raises.

    Yields what it refused.
    """
    refused: list[int] = []
    block = lm.blocks[2]
    plain = block.forward

    def forward(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if len(hidden_states) > rows:
            refused.append(len(hidden_states))
            raise error
        return plain(hidden_states, *args, **kwargs)

    block.forward = forward
    try:
        yield refused
    finally:
        del block.forward


def read(lm: LanguageModel) -> np.ndarray:
    found = readouts.read([lm], PROMPTS, ["Score: "])[0]
    return np.concatenate([found.states.reshape(len(PROMPTS), -1), found.scores, found.reply], axis=1)


MEASURES: dict[str, Callable[[LanguageModel], np.ndarray]] = {
    "states": lambda lm: activations.last_token_states(lm, SENTENCES),
    "embeddings": lambda lm: activations.sentence_embeddings(lm, SENTENCES),
    "next token": lambda lm: generation.next_token_probabilities(lm, SENTENCES),
    "after a beginning": lambda lm: generation.next_token_probabilities(lm, PROMPTS),
    "likelihood": lambda lm: generation.negative_log_likelihood(lm, SENTENCES)[0],
    "prefix": lambda lm: suffix.SuffixRun(lm, SENTENCES, 2).logits(3.0, DIRECTION),
    "readout": read,
}


@pytest.mark.parametrize("measure", MEASURES)
def test_the_same_results_with_less_memory(build: Build, measure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = build("llama")
    whole = MEASURES[measure](lm)
    monkeypatch.setenv("BIASGEOM_CACHE", str(activations.recall.cache.root().with_name("another")))
    with small(lm, 2) as refused:
        halved = MEASURES[measure](lm)
    assert refused[0] > 2
    assert np.abs(halved - whole).max() <= 1e-5 * max(1.0, np.abs(whole).max())
    # Texts in another order would be noticed.
    assert np.abs(halved[1:] - whole[:-1]).max() > 1e-3
    assert not hooks.foreign(lm)
    assert "forward" not in lm.blocks[2].__dict__


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_samples_are_the_same(build: Build, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = build("llama")
    how: dict[str, Any] = {"n": 2, "max_new_tokens": 5, "temperature": temperature, "seed": 7}
    whole = generation.sample(lm, SENTENCES, **how)
    monkeypatch.setenv("BIASGEOM_CACHE", str(activations.recall.cache.root().with_name("another")))
    with small(lm, 4) as refused:
        assert generation.sample(lm, SENTENCES, **how) == whole
    assert refused == [14, 7]
    assert lm.core.generation_config.eos_token_id == 1
    assert generation.sample(lm, SENTENCES, **{**how, "max_new_tokens": 4}) != whole


def test_what_fitted_stays_the_budget(llama: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 equal lengths: the whole is refused, half of it too; a quarter fits and is not asked for again."""
    tried: list[tuple[int, int]] = []

    def run(start: int, stop: int) -> range:
        tried.append((start, stop))
        if stop - start > 3:
            raise torch.OutOfMemoryError(FULL)
        return range(start, stop)

    budget = memory.Budget(llama, 1000)
    assert [list(piece) for piece in budget.pieces(run, [10] * 12)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert tried == [(0, 12), (0, 6), (0, 3), (3, 6), (6, 9), (9, 12)]
    tried.clear()
    # Shorter ones, later: as many as fill what was left of the budget, 30 tokens.
    assert len(list(budget.pieces(run, [15] * 4))) == 2
    assert tried == [(0, 2), (2, 4)]


def test_strengths_are_halved_too(llama: LanguageModel) -> None:
    alphas = np.linspace(-3, 3, 8)
    run = suffix.SuffixRun(llama, SENTENCES, 2)
    whole = run.logits(alphas, DIRECTION)
    plain, refused = run._run, []

    def narrow(group: prefix.Group, steps: torch.Tensor, *args: Any) -> torch.Tensor:
        if len(steps) > 3:
            refused.append(len(steps))
            raise torch.OutOfMemoryError(FULL)
        return plain(group, steps, *args)

    run._run = narrow
    halved = run.logits(alphas, DIRECTION)
    assert refused == [8, 4]
    assert np.abs(halved - whole).max() < 1e-4
    assert np.abs(halved[1:] - whole[:-1]).max() > 0.1
    own = torch.tensor(np.random.default_rng(1).normal(size=(8, len(SENTENCES), WIDTH)), dtype=torch.float32)
    found = {place: logits for _, which, logits in run.passes(own) for place, logits in zip(which, logits, strict=True)}
    assert list(found) == list(range(8))
    run._run = plain
    ((_, _, expected),) = run.passes(own)
    assert max(float((found[place] - expected[place]).abs().max()) for place in range(8)) < 1e-4


@pytest.mark.parametrize("error", ERRORS)
def test_one_text_that_does_not_fit(llama: LanguageModel, error: str) -> None:
    longest = max(len(ids) for ids in prompts.encode(llama, SENTENCES))
    with small(llama, 0, ERRORS[error]) as refused, pytest.raises(memory.NotEnoughMemory) as raised:
        activations.last_token_states(llama, SENTENCES)
    assert refused == [7, 3, 1]
    message = str(raised.value)
    assert f"llama in torch.float32: not even a batch of {longest} tokens" in message
    assert "bfloat16" in message
    assert not hooks.foreign(llama)
    assert activations.last_token_states(llama, SENTENCES).shape[0] == len(SENTENCES)


def test_other_errors_are_not_tried_again(llama: LanguageModel) -> None:
    with (
        small(llama, 0, RuntimeError("shape mismatch")) as refused,
        pytest.raises(RuntimeError, match="shape mismatch"),
    ):
        activations.last_token_states(llama, SENTENCES)
    assert refused == [len(SENTENCES)]


def test_a_real_allocation_that_fails_is_recognised() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 50)
    assert memory.exhausted(raised.value)
    assert not memory.exhausted(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not memory.exhausted(ArithmeticError("the logits after text 0 are not finite"))


def test_the_tensors_of_a_refused_pass_are_gone_before_the_next(llama: LanguageModel) -> None:
    """Else the halved batch would find the memory as full as the whole one did."""
    alive: list[weakref.ref] = []
    gc.disable()
    try:

        def run(start: int, stop: int) -> None:
            assert all(ref() is None for ref in alive)
            large = torch.ones(10)
            alive.append(weakref.ref(large))
            if stop - start > 1:
                raise torch.OutOfMemoryError(FULL)

        assert len(list(memory.Budget(llama, 100).pieces(run, [1] * 4))) == 4
    finally:
        gc.enable()
    assert len(alive) == 6


def test_on_a_cpu_arrays_are_handed_over_as_they_are(llama: LanguageModel) -> None:
    tensor = torch.arange(3.0)
    assert memory.to_device(tensor, torch.device("cpu")) is tensor
    assert memory.to_host(tensor).tolist() == [0, 1, 2]


def test_the_budget_of_a_gpu_counts_keys_values_and_logits(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    lm, other = build("llama"), build("gpt2")
    assert prompts.token_budget(lm, cached=True, logits=True) == prompts.CPU_BUDGET
    assert prompts.counted(lm, 40) == 0
    monkeypatch.setattr(LanguageModel, "device", torch.device("cuda"))
    monkeypatch.setattr(memory, "free", lambda lm: 1 << 25)
    half = 1 << 24
    activations_each, kept = 64 * 32 * 4, 2 * 4 * 2 * 8 * 4  # two of keys and values, blocks, heads, width, bytes
    assert prompts.token_budget(lm) == half // activations_each
    assert prompts.token_budget(lm, cached=True) == half // (activations_each + kept)
    assert prompts.token_budget(lm, logits=True) == half // (activations_each + 300 * 12)
    assert prompts.token_budget(other, cached=True) == half // (activations_each + 2 * 4 * 4 * 8 * 4)
    assert prompts.counted(lm, 40) == 40
    monkeypatch.setattr(memory, "free", lambda lm: 1)
    assert prompts.token_budget(lm) == prompts.CPU_BUDGET


def test_free_memory_is_that_of_the_fullest_gpu(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch holds without using it is free, too."""
    lm = build("llama")

    class Weight:
        def __init__(self, number: int) -> None:
            self.device = torch.device("cuda", number)

    monkeypatch.setattr(lm.model, "parameters", lambda: [Weight(0), Weight(1), Weight(1)])
    free, reserved, allocated = {0: 10, 1: 7}, {0: 5, 1: 6}, {0: 5, 1: 2}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[device.index], 80))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved[device.index])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocated[device.index])
    assert memory.free(lm) == 10
    reserved[0] = 4
    assert memory.free(lm) == 9
