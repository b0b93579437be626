"""Between two fine-tuned models: weights interpolated on the line W = W_u + share · (W_s - W_u), and LoRA adapters
merged so that what they add to the weights lies on the same line (ΔB paper, appendix C).

``share`` is that of the second end, "synth": 0 is the unharmful end, 1 the synth end.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from biasgeom import cache

SAME = ("peft_type", "base_model_name_or_path", "r", "target_modules", "fan_in_fan_out", "layer_replication")
"""What two adapters must have in common. Their α may differ: it is part of what is concatenated."""

ABSENT = ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save", "lora_bias")
"""What a merged adapter can't have: the sum of two is then not on the line, or its scale is another."""


def interpolate(
    unharmful: Mapping[str, torch.Tensor], synth: Mapping[str, torch.Tensor], share: float
) -> dict[str, torch.Tensor]:
    """The weights at ``share`` of the way from one model to another.

    Parameters
    ----------
    unharmful, synth : dict of Tensor
        State dicts with the same names, shapes and dtypes; float32 or wider, because in bfloat16 a step of the way is
        lost in rounding. Cast afterwards. What is no float (a counter) must be equal.
    share : float
        From 0 to 1. At the ends the result holds the end's own tensors, not copies. A weight that is equal in both
        stays the same bits at every share.

    Returns
    -------
    dict of Tensor

    Raises
    ------
    ValueError
        Another share; LoRA tensors; other names, shapes or dtypes, by name.
    """
    _check_share(share)
    if lora := [name for name in [*unharmful, *synth] if "lora_" in name]:
        raise ValueError(
            f"{lora[0]} is part of a LoRA adapter: between A and B of two adapters lies another change of the weights; "
            "use merge_adapters"
        )
    _check_tensors(unharmful, synth)
    for name, tensor in unharmful.items():
        if tensor.dtype in (torch.bfloat16, torch.float16):
            raise ValueError(f"{name} is {tensor.dtype}: merge in float32 and cast the result")
        if not tensor.is_floating_point() and not torch.equal(tensor, synth[name]):
            raise ValueError(f"{name} is {tensor.dtype} and differs between the two: nothing lies between")
    if share in (0, 1):
        return dict(synth if share else unharmful)
    return {
        name: tensor.lerp(synth[name], share) if tensor.is_floating_point() else tensor
        for name, tensor in unharmful.items()
    }


def merge_adapters(unharmful: Path, synth: Path, share: float) -> Path:
    """The folder of an adapter that adds (1 - share) ΔW_u + share ΔW_s to the weights, exactly.

    ΔW = α/r · B A. The factors are concatenated, each A weighted, to an adapter of rank 2r: what PEFT does with
    ``combination_type="cat"`` once both adapters are on a model. Interpolated factors, or PEFT's ``"linear"``, give
    another ΔW.

    Parameters
    ----------
    unharmful, synth : Path
        Folders of LoRA adapters in PEFT's format.
    share : float
        From 0 to 1; at the ends the end's own folder is returned.

    Returns
    -------
    Path
        In the cache, under a name that depends on both adapters' content; in PEFT's format.

    Raises
    ------
    FileNotFoundError
        A folder that holds no adapter.
    ValueError
        Another share; adapters of different rank, target modules or tensors; DoRA, rsLoRA, or trained biases or
        modules.
    """
    _check_share(share)
    configs = [_config(folder) for folder in (unharmful, synth)]
    _check_configs(configs, (unharmful, synth))
    tensors = [load_file(folder / "adapter_model.safetensors") for folder in (unharmful, synth)]
    _check_tensors(*tensors, dtypes=False)
    if odd := [name for name in tensors[0] if not name.endswith(("lora_A.weight", "lora_B.weight"))]:
        raise ValueError(f"adapters can't be merged: {odd[0]} is neither A nor B of a linear layer")
    if share in (0, 1):
        return synth if share else unharmful
    scales = [w * config["lora_alpha"] / config["r"] for w, config in zip((1 - share, share), configs, strict=True)]
    files = [
        folder / name for folder in (unharmful, synth) for name in ("adapter_config.json", "adapter_model.safetensors")
    ]
    contents = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    key = cache.digest(code=Path(__file__).read_text(), contents=contents, share=float(share))
    target = cache.root() / "adapters" / key
    with cache.lock(f"adapter-{key}"):
        if not target.exists():
            with cache.atomic(target) as scratch:
                scratch.mkdir()
                rank = 2 * configs[0]["r"]
                config = {**configs[0], "r": rank, "lora_alpha": rank, "inference_mode": True}
                (scratch / "adapter_config.json").write_text(json.dumps(config, indent=1))
                merged = {name: _concatenated(name, [t[name] for t in tensors], scales) for name in tensors[0]}
                save_file(merged, scratch / "adapter_model.safetensors", metadata={"format": "pt"})
                recipe = {"unharmful": unharmful.name, "synth": synth.name, "share": share}
                (scratch / "recipe.json").write_text(json.dumps(recipe, indent=1))
    return target


def _concatenated(name: str, pair: list[torch.Tensor], scales: list[float]) -> torch.Tensor:
    """[A_u; A_s] with the scales on it [2r, in], or [B_u, B_s] [out, 2r]."""
    if name.endswith("lora_B.weight"):
        return torch.cat([tensor.float() for tensor in pair], dim=1)
    return torch.cat([scale * tensor.float() for scale, tensor in zip(scales, pair, strict=True)], dim=0)


def _check_share(share: float) -> None:
    if not 0 <= share <= 1:
        raise ValueError(f"share is the synth end's part, from 0 to 1, not {share!r}")


def _check_tensors(
    unharmful: Mapping[str, torch.Tensor], synth: Mapping[str, torch.Tensor], *, dtypes: bool = True
) -> None:
    if lone := sorted(unharmful.keys() ^ synth.keys()):
        raise ValueError(
            f"the two differ in what they hold: {len(lone)} tensors are in one only: {', '.join(lone[:3])}"
        )
    if not unharmful:
        raise ValueError("the two hold no tensors: nothing to merge")
    for name, one in unharmful.items():
        other = synth[name]
        if one.shape != other.shape or (dtypes and one.dtype != other.dtype):
            what = [f"{list(tensor.shape)} {tensor.dtype}" for tensor in (one, other)]
            raise ValueError(f"{name} is {what[0]} in one and {what[1]} in the other: they come from different models")


def _config(folder: Path) -> dict[str, Any]:
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} holds no {name}: it is no adapter; make one with finetune.adapter")
    return json.loads((folder / "adapter_config.json").read_text())


def _check_configs(configs: list[dict[str, Any]], folders: tuple[Path, Path]) -> None:
    for config, folder in zip(configs, folders, strict=True):
        wrong = [f"{key} is {config[key]}" for key in ABSENT if config.get(key)]
        if config["peft_type"] != "LORA":
            wrong.append(f"peft_type is {config['peft_type']}")
        if config.get("bias", "none") != "none":
            wrong.append(f"bias is {config['bias']}")
        if wrong:
            raise ValueError(f"adapter {folder} can't be merged exactly ({'; '.join(wrong)}): train plain LoRA")
    shown = [{key: sorted(v) if isinstance(v := c.get(key), list) else v for key in SAME} for c in configs]
    if differing := [f"{key} is {shown[0][key]} and {shown[1][key]}" for key in SAME if shown[0][key] != shown[1][key]]:
        raise ValueError(f"adapters differ ({'; '.join(differing)}): train both on one model with the same settings")
