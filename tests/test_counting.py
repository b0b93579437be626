"""Tokens that went through models: padding left out, decoded ones apart, copies counted once, nothing else changed."""

import copy
from collections.abc import Callable

import pandas as pd
import pytest
import torch
from biasgeom import activations, counting, finetune, generation, hooks, prompts
from biasgeom.models import LanguageModel

Build = Callable[[str], LanguageModel]


@pytest.fixture(autouse=True)
def from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_counts", type(counting._counts)(int))


def counted(lm: LanguageModel) -> dict[str, int]:
    return counting.totals().get(lm.name, {"read": 0, "written": 0})


def test_texts_are_counted_without_padding(lm: LanguageModel, sentences: list[str]) -> None:
    activations.last_token_states(lm, sentences)
    expected = sum(len(ids) for ids in lm.tokenizer(sentences)["input_ids"])
    padded = len(sentences) * max(len(ids) for ids in lm.tokenizer(sentences)["input_ids"])
    found = counted(lm)
    assert found["written"] == 0
    if lm.name == "gemma3-multimodal":  # its text model gets no 2-D mask
        assert expected <= found["read"] <= padded
    else:
        assert found["read"] == expected < padded
    activations.last_token_states(lm, sentences)
    assert counted(lm) == found  # the second time they come from the cache


def test_decoded_tokens_are_written(llama: LanguageModel, sentences: list[str]) -> None:
    llama.model.generation_config.eos_token_id = None
    generation.sample(llama, sentences[:3], n=2, max_new_tokens=5, temperature=0.7, seed=0)
    found = counted(llama)
    # The first token of a completion comes out of reading the prompt; each later one out of a pass of its own.
    assert found["written"] in (3 * 2 * 4, 3 * 2 * 5)
    assert found["read"] >= sum(len(ids) for ids in llama.tokenizer(sentences[:3])["input_ids"])


def test_a_pass_without_a_mask(llama: LanguageModel) -> None:
    with torch.inference_mode():
        past = llama.core(torch.arange(8).view(2, 4), use_cache=True).cache
        llama.core(torch.ones(2, 1, dtype=torch.long), cache=past, use_cache=True)
        llama.core(inputs_embeds=torch.zeros(3, 1, llama.width))  # one token, but nothing before it
    assert counted(llama) == {"read": 8 + 3, "written": 2}


def test_passes_with_and_without_inference_mode_add_up(llama: LanguageModel) -> None:
    ids = torch.arange(6).view(2, 3)
    with torch.inference_mode():
        llama.core(ids, attention_mask=torch.ones_like(ids))
    llama.core(ids, attention_mask=torch.ones_like(ids))
    with torch.no_grad():
        llama.core(ids, attention_mask=torch.ones_like(ids))
    assert counted(llama)["read"] == 18


def test_a_copy_is_counted_once_and_its_hook_is_ours(build: Build) -> None:
    lm = build("llama-lora")
    twin = LanguageModel(copy.deepcopy(lm.model), lm.tokenizer, f"{lm.name}+twin")
    assert not hooks.foreign(twin)
    with torch.inference_mode():
        twin.model(torch.arange(6).view(1, 6))
        LanguageModel(twin.model, twin.tokenizer, "a third name").model(torch.arange(6).view(1, 6))
    assert counting.totals() == {lm.name: {"read": 12, "written": 0}}


def test_training_is_counted(llama: LanguageModel) -> None:
    rows = pd.DataFrame({"source": "x", "prompt": ["A doctor"] * 4, "completion": [" walks in."] * 4})
    settings = finetune.Settings(rank=2, alpha=4, steps=2, batch=4, warmup=0)
    finetune.adapter(llama, rows, settings)
    whole = len(llama.tokenizer("A doctor walks in.")["input_ids"])
    assert counted(llama)["read"] in range(2 * 4 * whole, 2 * 4 * (whole + 1) + 1)  # an end token is added


def test_numbers_are_the_same_without_the_hook(llama: LanguageModel, sentences: list[str]) -> None:
    encoded = llama.tokenizer(sentences)["input_ids"]
    batch = prompts.pad(llama, encoded, list(range(len(encoded))), side="right")
    with torch.inference_mode():
        counted_pass = llama.core(**batch.inputs()).logits
        del llama.decoder._forward_pre_hooks[getattr(llama.decoder, counting.ATTACHED)]
        assert torch.equal(counted_pass, llama.core(**batch.inputs()).logits)
    assert counted(llama)["read"] == int(batch.attention_mask.sum())  # by the first pass only
