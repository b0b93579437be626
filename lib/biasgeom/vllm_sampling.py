"""Tokens sampled by vLLM: faster than transformers on a GPU, from the same distribution, and never under hooks.

vLLM runs a model with code of its own, which no hook of ours reaches. It gets the weights as they are in memory, LoRA
adapters added to them. A seed of its own for every sample is needed: prompts with one seed would share their random
numbers (vLLM's issue 50440). The numbers are not those of :mod:`biasgeom.generation`, so that a seed gives other
samples than there.
"""

import gc
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from biasgeom import activated, hooks, memory
from biasgeom.embedded import ModelNotAvailable
from biasgeom.models import LanguageModel

ROOM = 2048
"""Tokens of prompt and sample that an engine is made for, at least; one that has too little is made anew."""

_running: dict[tuple[str, int], Any] = {}


def version(lm: LanguageModel) -> str:
    """vLLM's version, if it can sample from this model as it is now.

    Raises
    ------
    ValueError
        Under hooks, or with an adapter other than plain LoRA.
    ModelNotAvailable
        vLLM is not installed.
    """
    if lm.interventions or hooks.foreign(lm):
        raise ValueError(f"{lm.name} is under hooks, which vLLM would leave out: sample with sampler='transformers'")
    config = getattr(lm.model, "active_peft_config", None)
    plain = config is None or (
        config.peft_type == "LORA" and not getattr(config, "use_dora", False) and not config.modules_to_save
    )
    if lm.invocation or not plain:
        raise ValueError(f"{lm.name} has an adapter that vLLM can't take over: sample with sampler='transformers'")
    # One process: which requests run together, and so their rounding, is then the same every time.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    try:
        import vllm
    except ImportError as error:
        raise ModelNotAvailable(
            f"vLLM is not installed here ({error}): install the extra, biasgeom[vllm], or sample with "
            "sampler='transformers'"
        ) from error
    return vllm.__version__


def tokens(
    lm: LanguageModel,
    prompts: Sequence[list[int]],
    seeds: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float,
    ends: int | list[int] | None,
) -> list[list[int]]:
    """New tokens after each prompt, from the whole distribution, an end token included.

    Parameters
    ----------
    prompts : list of token id lists, length n
    seeds : list of int, length n
    ends : int or list of int
        Tokens that end a sample; no others do.

    Raises
    ------
    ValueError
        A prompt that leaves no room in the model's context; what :func:`version` refuses.
    """
    version(lm)
    from vllm import SamplingParams

    stop = ends if isinstance(ends, list) else [] if ends is None else [ends]
    how = {"temperature": temperature, "max_tokens": max_new_tokens, "stop_token_ids": stop, "ignore_eos": True}
    asked = [SamplingParams(**how, seed=seed, detokenize=False) for seed in seeds]
    engine = _engine(lm, max(map(len, prompts)) + max_new_tokens)
    done = engine.generate([{"prompt_token_ids": list(ids)} for ids in prompts], asked)
    return [list(one.outputs[0].token_ids) for one in done]


def _engine(lm: LanguageModel, needed: int) -> Any:
    """The engine for these weights, kept until another one is asked for."""
    from vllm import LLM

    context = getattr(lm.core.config.get_text_config(decoder=True), "max_position_embeddings", None) or needed
    if needed > context:
        raise ValueError(f"{lm.name} has a context of {context} tokens; prompt and sample take {needed}")
    room = min(context, max(ROOM, needed))
    key = lm.fingerprint(), room
    if key not in _running:
        _running.clear()
        gc.collect()
        where: dict[str, Any] = {}
        if lm.device.type == "cuda":
            torch.cuda.empty_cache()
            total = torch.cuda.get_device_properties(lm.device).total_memory
            spread = len({weight.device for weight in lm.model.parameters()})
            where = {"gpu_memory_utilization": 0.9 * memory.free(lm) / total, "tensor_parallel_size": spread}
        with tempfile.TemporaryDirectory(prefix="biasgeom-vllm-") as folder:
            write(lm, Path(folder))
            dtype = str(lm.dtype).removeprefix("torch.")
            # "vllm": no settings of the model's own, such as a repetition penalty.
            _running[key] = LLM(
                model=folder, dtype=dtype, max_model_len=room, generation_config="vllm", seed=0, **where
            )
    return _running[key]


@torch.inference_mode()
def write(lm: LanguageModel, folder: Path) -> None:
    """Write a model as it is in memory, LoRA adapters added to the weights, in Hugging Face format."""
    weights = {
        name.replace(".base_layer.", "."): weight
        for name, weight in lm.core.state_dict().items()
        if ".lora_" not in name
    }
    layers = activated.lora_layers(lm.core)
    for name, layer in lm.core.named_modules():
        if layer in layers and not layer.disable_adapters:
            for adapter in set(layer.active_adapters) - set(layer.merged_adapters):
                weights[f"{name}.weight"] = weights[f"{name}.weight"] + layer.get_delta_weight(adapter)
    lm.core.save_pretrained(folder, state_dict=weights)
    lm.tokenizer.save_pretrained(folder)
