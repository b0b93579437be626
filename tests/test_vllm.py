"""Sampling by vLLM: the distribution of the softmax, the weights as they are; refused where hooks would be left out.

Where vLLM is not installed, a stand-in with its interface, which samples with transformers from the folder it is given,
shows what is asked of it and what becomes of its answers. The last test needs vLLM itself.
"""

import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from biasgeom import generation, hooks, models, prompts, vllm_sampling
from biasgeom.embedded import ModelNotAvailable
from biasgeom.models import LanguageModel
from conftest import BLOCKS, SENTENCES, WIDTH
from peft import LoraConfig, get_peft_model
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM, AutoTokenizer

Build = Callable[[str], LanguageModel]
HOW: dict[str, Any] = {"n": 3, "max_new_tokens": 5, "temperature": 1.0, "seed": 7, "sampler": "vllm"}


class Engine:
    """vLLM's ``LLM`` as far as it is used here; ``shared`` makes all requests draw the same numbers."""

    made: list["Engine"]
    shared = False

    def __init__(self, model: str, **options: Any) -> None:
        self.model, self.options = AutoModelForCausalLM.from_pretrained(model).eval(), options
        assert AutoTokenizer.from_pretrained(model).eos_token_id is not None
        self.requests: list[tuple[list[int], dict[str, Any]]] = []
        self.known: dict[tuple[int, ...], torch.Tensor] = {}
        self.made.append(self)

    @torch.inference_mode()
    def logits(self, ids: list[int]) -> torch.Tensor:
        if tuple(ids) not in self.known:
            self.known[tuple(ids)] = self.model(torch.tensor([ids])).logits[0, -1]
        return self.known[tuple(ids)]

    def generate(self, asked: list[dict[str, Any]], params: list[dict[str, Any]]) -> list[SimpleNamespace]:
        done = []
        for prompt, how in zip(asked, params, strict=True):
            ids, new = prompt["prompt_token_ids"], []
            self.requests.append((ids, how))
            generator = torch.Generator().manual_seed(0 if self.shared else how["seed"])
            while len(new) < how["max_tokens"]:
                logits = self.logits([*ids, *new])
                if how["temperature"] == 0:
                    new.append(int(logits.argmax()))
                else:
                    chances = (logits.double() / how["temperature"]).softmax(-1)
                    new.append(int(torch.multinomial(chances, 1, generator=generator)))
                if new[-1] in how["stop_token_ids"]:
                    break
            done.append(SimpleNamespace(outputs=[SimpleNamespace(token_ids=tuple(new))]))
        return done


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> type[Engine]:
    module = ModuleType("vllm")
    module.LLM, module.SamplingParams, module.__version__ = Engine, dict, "0"
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(Engine, "made", [], raising=False)
    vllm_sampling._running.clear()
    return Engine


def p_value(lm: LanguageModel, text: str, samples: list[str], temperature: float) -> float:
    """Of a chi-square test of first tokens; those that decode to the same text count together."""
    with torch.no_grad():
        logits = lm.model(**lm.tokenizer(text, return_tensors="pt").to(lm.device)).logits[0, -1]
    chances = (logits.double() / temperature).softmax(-1).tolist()
    prompt = prompts.encode(lm, [text])[0]
    expected: Counter[str] = Counter()
    for token, chance in enumerate(chances):
        expected[generation.continuation(lm, prompt, [token])] += chance * len(samples)
    counted = Counter(samples)
    often = [text for text, number in expected.items() if number >= 5]
    seen, wanted = [counted[text] for text in often], [expected[text] for text in often]
    rest = len(samples) - sum(seen), len(samples) - sum(wanted)
    return float(chisquare([*seen, rest[0]], [*wanted, rest[1]]).pvalue)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "llama-lora"])
def test_samples_follow_the_softmax(build: Build, engine: type[Engine], architecture: str) -> None:
    lm = build(architecture)
    draws = {"n": 1500, "max_new_tokens": 1, "temperature": 0.7, "seed": 0}
    found = generation.sample(lm, SENTENCES[:1], **draws, sampler="vllm")[0]
    assert p_value(lm, SENTENCES[0], found, 0.7) > 1e-3
    assert p_value(lm, SENTENCES[0], found, 1.0) < 1e-6  # the control
    assert p_value(lm, SENTENCES[1], found, 0.7) < 1e-6


def test_the_interface_is_the_same(llama: LanguageModel, engine: type[Engine]) -> None:
    found = generation.sample(llama, SENTENCES, **HOW, chat=True, prefill="She")
    assert [len(group) for group in found] == [3] * len(SENTENCES)
    asked = engine.made[0].requests
    encoded = prompts.encode(llama, SENTENCES, chat=True, prefill="She")
    assert [ids for ids, _ in asked] == [ids for ids in encoded for _ in range(3)]
    # Every sample has its own random numbers, which depend on nothing but seed, prompt and number.
    seeds = [how["seed"] for _, how in asked]
    assert len(set(seeds)) == len(seeds)
    order = [3, 0, 1]
    some = generation.sample(llama, [SENTENCES[i] for i in order], **{**HOW, "n": 2}, chat=True, prefill="She")
    assert some == [found[i][:2] for i in order]
    assert generation.sample(llama, SENTENCES, **{**HOW, "seed": 8}, chat=True, prefill="She") != found
    assert len(engine.made) == 1  # it is kept
    # Kept results are not asked for again, and are not those of the other sampler.
    before = len(asked)
    assert generation.sample(llama, SENTENCES, **HOW, chat=True, prefill="She") == found
    assert len(asked) == before
    own = {**HOW, "sampler": "transformers"}
    assert generation.sample(llama, SENTENCES, **own, chat=True, prefill="She") != found


def test_greedy_equals_the_other_sampler(llama: LanguageModel, engine: type[Engine]) -> None:
    llama.core.generation_config.eos_token_id = list(range(1, 40))
    greedy = {**HOW, "temperature": 0.0, "max_new_tokens": 8}
    by_vllm = generation.sample(llama, SENTENCES, **greedy)
    assert by_vllm == generation.sample(llama, SENTENCES, **{**greedy, "sampler": "transformers"})
    how = engine.made[0].requests[0][1]
    assert how["stop_token_ids"] == list(range(1, 40))
    assert how["ignore_eos"]


def test_one_seed_for_all_would_be_noticed(
    llama: LanguageModel, engine: type[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the distribution's test: what vLLM does with one seed for many requests."""
    monkeypatch.setattr(engine, "shared", True)
    found = generation.sample(llama, SENTENCES[:1], n=500, max_new_tokens=1, temperature=1.0, seed=0, sampler="vllm")
    assert p_value(llama, SENTENCES[0], found[0], 1.0) < 1e-6


def test_an_edited_model_gets_another_engine(llama: LanguageModel, engine: type[Engine]) -> None:
    before = generation.sample(llama, SENTENCES, **HOW)
    with torch.no_grad():
        llama.blocks[1].mlp.up_proj.weight *= 3
    assert generation.sample(llama, SENTENCES, **HOW) != before
    assert len(engine.made) == 2
    assert torch.equal(engine.made[1].model.model.layers[1].mlp.up_proj.weight, llama.blocks[1].mlp.up_proj.weight)
    with pytest.raises(ValueError, match="context of 256 tokens; prompt and sample take"):
        generation.sample(llama, SENTENCES, **{**HOW, "max_new_tokens": 250})


@pytest.mark.parametrize("architecture", ["llama-lora", "gemma3", "gpt2", "mistral"])
def test_what_is_written_is_the_model(build: Build, architecture: str, tmp_path: Path) -> None:
    """Adapters are added to the weights; the model in memory stays as it is."""
    lm = build(architecture)
    before = lm.fingerprint()
    vllm_sampling.write(lm, tmp_path)
    assert lm.fingerprint() == before
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.tensor([prompts.encode(lm, SENTENCES)[0]])
    with torch.no_grad():
        assert torch.allclose(again(ids).logits, lm.model(ids).logits, atol=1e-4)
        if architecture == "llama-lora":
            with lm.model.disable_adapter():
                assert not torch.allclose(again(ids).logits, lm.model(ids).logits, atol=1e-2)


def test_hooks_and_other_adapters_are_refused(build: Build, engine: type[Engine]) -> None:
    lm = build("llama")
    v = np.ones(WIDTH)
    for edit in (hooks.steer(lm, 1, v, 1.0), hooks.ablate(lm, dict.fromkeys(range(BLOCKS), v))):
        with edit, pytest.raises(ValueError, match="under hooks, which vLLM would leave out"):
            generation.sample(lm, SENTENCES, **HOW)
    handle = lm.blocks[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="under hooks"):
        generation.sample(lm, SENTENCES, **HOW)
    handle.remove()
    lm.invocation = [3]
    with pytest.raises(ValueError, match="adapter that vLLM can't take over"):
        generation.sample(lm, SENTENCES, **HOW)
    dora = get_peft_model(build("llama").core, LoraConfig(r=2, target_modules=["q_proj"], use_dora=True))
    other = LanguageModel(dora.eval(), lm.tokenizer, "dora")
    with pytest.raises(ValueError, match="dora has an adapter that vLLM can't take over"):
        generation.sample(other, SENTENCES, **HOW)
    with pytest.raises(ValueError, match="sampler must be one of transformers, vllm, not 'vlm'"):
        generation.sample(build("llama"), SENTENCES, **{**HOW, "sampler": "vlm"})
    assert engine.made == []


def test_without_it_the_way_out_is_named(llama: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ModelNotAvailable, match=r"vLLM is not installed here .* install the extra, biasgeom\[vllm\]"):
        generation.sample(llama, SENTENCES, **HOW)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_vllm_itself_has_the_same_distribution() -> None:
    """SmolLM2 in float32: 3,000 first tokens against the softmax of our own pass, and greedy texts against our own."""
    lm = models.load("smollm2-135m-instruct", dtype="float32")
    text = "The nurse said that"
    found = generation.sample(lm, [text], n=3000, max_new_tokens=1, temperature=1.0, seed=0, sampler="vllm")[0]
    assert p_value(lm, text, found, 1.0) > 1e-3
    assert p_value(lm, text, found, 0.7) < 1e-6
    both = [
        generation.sample(lm, SENTENCES, n=1, max_new_tokens=8, temperature=0, seed=0, sampler=sampler)
        for sampler in generation.SAMPLERS
    ]
    assert both[0] == both[1]
    four = generation.sample(lm, SENTENCES, n=4, max_new_tokens=8, temperature=1.0, seed=0, sampler="vllm")
    assert len({sample for group in four for sample in group}) > 20
