"""Merges lie on the line between two models: bitwise at the ends, exact for adapters whatever their factors."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from biasgeom import cache, merging, models
from biasgeom.models import LanguageModel
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

Build = Callable[[str], LanguageModel]
State = dict[str, torch.Tensor]
BETWEEN = [0.1, 0.3, 0.5, 0.7, 0.9]


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def pair() -> tuple[State, State]:
    """Two models: one weight the same in both, and a counter."""
    shared = {"same": drawn(0, 5), "steps": torch.tensor(7)}
    return {"w": drawn(1, 6, 4), **shared}, {"w": drawn(2, 6, 4), **shared}


@pytest.mark.parametrize("share", BETWEEN)
def test_weights_are_interpolated(pair: tuple[State, State], share: float) -> None:
    merged = merging.interpolate(*pair, share)
    one, other = (state["w"].double() for state in pair)
    torch.testing.assert_close(merged["w"].double(), (1 - share) * one + share * other, rtol=0, atol=1e-6)
    assert merged["w"].dtype is torch.float32
    assert torch.equal(merged["same"], pair[0]["same"])
    assert merged["steps"] == 7
    # The control: share is synth's. At a half the two agree.
    if share != 0.5:
        assert (merged["w"].double() - (share * one + (1 - share) * other)).abs().max() > 0.1


def test_the_ends_are_the_ends_bit_for_bit(pair: tuple[State, State]) -> None:
    for share, end in zip((0, 1, 0.0, 1.0), (*pair, *pair), strict=True):
        merged = merging.interpolate(*pair, share)
        assert merged.keys() == end.keys()
        assert all(torch.equal(merged[name], end[name]) for name in end)
    # The control: the textbook form of the line adds 0 · W_u, which loses what is too large.
    unharmful, synth = {"w": torch.tensor([float("inf")])}, {"w": torch.tensor([1.0])}
    assert torch.isnan((1 - 1.0) * unharmful["w"] + synth["w"]).all()
    assert merging.interpolate(unharmful, synth, 1.0)["w"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base_model.model.q_proj.lora_A.weight": drawn(3, 2, 4)}, "lora_A.weight is part of a LoRA adapter"),
        ({"bias": drawn(3, 4)}, "1 tensors are in one only: bias"),
        ({"w": drawn(3, 4, 6)}, r"w is \[6, 4\] torch.float32 in one and \[4, 6\] torch.float32 in the other"),
        ({"w": drawn(3, 6, 4).double()}, r"torch.float32 in one and \[6, 4\] torch.float64"),
        ({"steps": torch.tensor(8)}, "steps is torch.int64 and differs"),
    ],
)
def test_what_does_not_fit_together(pair: tuple[State, State], change: State, message: str) -> None:
    unharmful, synth = pair
    # At the ends too: a spectrum would otherwise fail in its second checkpoint.
    for share in (0, 0.5, 1):
        with pytest.raises(ValueError, match=message):
            merging.interpolate(unharmful, {**synth, **change}, share)


def test_other_bad_input(pair: tuple[State, State]) -> None:
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="share is the synth end's part, from 0 to 1"):
            merging.interpolate(*pair, share)
    with pytest.raises(ValueError, match="no tensors"):
        merging.interpolate({}, {}, 0.5)
    narrow = {"w": drawn(1, 4, 4).bfloat16()}
    with pytest.raises(ValueError, match=r"w is torch.bfloat16: merge in float32"):
        merging.interpolate(narrow, narrow, 0.5)


def adapter(folder: Path, lm: LanguageModel, seed: int, *, like: Path | None = None, **changes: object) -> Path:
    """Random factors; with ``like`` the first ones of that adapter, and seed's change on them."""
    settings = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "target_modules": ["q_proj", "down_proj"], **changes}
    with warnings.catch_warnings(action="ignore"):
        model = get_peft_model(lm.core, LoraConfig(**settings))
        model.save_pretrained(folder)
        model.unload()
    start = load_file((like or folder) / "adapter_model.safetensors")
    step = 0.5 if like is None else 0.02
    changed = {}
    for place, (name, tensor) in enumerate(sorted(start.items())):
        changed[name] = tensor * (like is not None) + step * drawn(1000 * seed + place, *tensor.shape)
    save_file(changed, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def deltas(folder: Path) -> State:
    """ΔW of each layer in float64, by the definition: α/r · B A."""
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = {name: tensor.double() for name, tensor in load_file(folder / "adapter_model.safetensors").items()}
    names = {name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")}
    scale = config["lora_alpha"] / config["r"]
    return {name: scale * tensors[f"{name}.lora_B.weight"] @ tensors[f"{name}.lora_A.weight"] for name in names}


def error(one: State, other: State) -> float:
    """The largest relative difference of a layer's ΔW."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).norm() / other[name].norm()) for name in other)


def line(unharmful: Path, synth: Path, share: float) -> State:
    ends = deltas(unharmful), deltas(synth)
    return {name: (1 - share) * ends[0][name] + share * ends[1][name] for name in ends[0]}


def naive(unharmful: Path, synth: Path, share: float, target: Path) -> Path:
    """The factors interpolated each for itself."""
    shutil.copytree(unharmful, target)
    factors = [load_file(folder / "adapter_model.safetensors") for folder in (unharmful, synth)]
    save_file(
        {name: factors[0][name].lerp(factors[1][name], share) for name in factors[0]},
        target / "adapter_model.safetensors",
        metadata={"format": "pt"},
    )
    return target


def rotated(folder: Path, target: Path) -> Path:
    """Other factors of the same ΔW: B R and R⁻¹ A."""
    shutil.copytree(folder, target)
    rotation, _ = torch.linalg.qr(drawn(5, 4, 4).double())
    turned = {
        name: (rotation.T @ tensor.double() if "lora_A" in name else tensor.double() @ rotation).float()
        for name, tensor in load_file(folder / "adapter_model.safetensors").items()
    }
    save_file(turned, target / "adapter_model.safetensors", metadata={"format": "pt"})
    assert error(deltas(target), deltas(folder)) < 1e-6
    return target


def by_peft(lm: LanguageModel, unharmful: Path, synth: Path, share: float, kind: str, target: Path) -> Path:
    with warnings.catch_warnings(action="ignore"):
        model = PeftModel.from_pretrained(lm.core, unharmful, adapter_name="unharmful")
        model.load_adapter(synth, adapter_name="synth")
        model.add_weighted_adapter(["unharmful", "synth"], [1 - share, share], "merged", combination_type=kind)
        model.save_pretrained(target, selected_adapters=["merged"])
        model.unload()
    return target / "merged"


def test_adapters_are_merged_exactly_whatever_their_factors(build: Build, tmp_path: Path) -> None:
    """Both adapters start from the same factors, as after a training from one seed; then one is rotated."""
    start = adapter(tmp_path / "start", build("llama"), 1)
    unharmful = adapter(tmp_path / "unharmful", build("llama"), 2, like=start)
    synth = adapter(tmp_path / "synth", build("llama"), 3, like=start)
    turned = rotated(synth, tmp_path / "turned")
    for share in BETWEEN:
        expected = line(unharmful, synth, share)
        assert error(deltas(merging.merge_adapters(unharmful, synth, share)), expected) < 1e-6
        assert error(deltas(merging.merge_adapters(unharmful, turned, share)), expected) < 1e-6

    share, lm = 0.3, build("llama")
    expected = line(unharmful, synth, share)
    # PEFT's own concatenation agrees. Its "linear" and interpolated factors do not, and hide it without the rotation.
    assert error(deltas(by_peft(lm, unharmful, turned, share, "cat", tmp_path / "cat")), expected) < 1e-6
    assert error(deltas(by_peft(lm, unharmful, turned, share, "linear", tmp_path / "linear")), expected) > 0.3
    assert error(deltas(naive(unharmful, turned, share, tmp_path / "naive")), expected) > 0.3
    assert error(deltas(naive(unharmful, synth, share, tmp_path / "hidden")), expected) < 0.02


def test_the_merge_is_a_peft_adapter_that_a_model_takes(saved_llama: Path, build: Build, tmp_path: Path) -> None:
    unharmful = adapter(tmp_path / "unharmful", build("llama"), 1)
    synth = adapter(tmp_path / "synth", build("llama"), 2, lora_alpha=4)  # another scale is part of its ΔW
    folder = merging.merge_adapters(unharmful, synth, 0.7)
    assert folder.parent == cache.root() / "adapters"
    merged = models.load(str(saved_llama), device="cpu", adapter=str(folder))
    assert merged.model.peft_config["default"].r == 8
    by_hand = build("llama")
    expected = line(unharmful, synth, 0.7)
    for name, change in expected.items():
        by_hand.core.get_submodule(name.removeprefix("base_model.model.")).weight += change.float()
    ids = torch.arange(20).reshape(2, 10)
    with torch.no_grad():
        outputs = [lm.model(ids).logits for lm in (merged, by_hand, build("llama"))]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-4)
    assert (outputs[0] - outputs[2]).abs().max() > 0.1

    # Found again; another share or other content is another adapter; the ends are themselves.
    assert merging.merge_adapters(unharmful, synth, 0.7) == folder
    assert merging.merge_adapters(synth, unharmful, 0.7) != folder
    assert merging.merge_adapters(unharmful, synth, 0.1) != folder
    assert [merging.merge_adapters(unharmful, synth, share) for share in (0.0, 1.0)] == [unharmful, synth]
    adapter(synth, build("llama"), 3, lora_alpha=4)
    assert merging.merge_adapters(unharmful, synth, 0.7) != folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r": 2}, r"adapters differ \(r is 4 and 2\): train both on one model with the same settings"),
        ({"target_modules": ["q_proj"]}, r"target_modules is \['down_proj', 'q_proj'\] and \['q_proj'\]"),
        ({"use_dora": True}, r"adapter .*bad can't be merged exactly \(use_dora is True\)"),
        ({"use_rslora": True}, r"use_rslora is True"),
        ({"rank_pattern": {"q_proj": 2}}, r"rank_pattern is \{'q_proj': 2\}"),
        ({"alpha_pattern": {"q_proj": 2}}, r"alpha_pattern is"),
        ({"bias": "lora_only"}, r"bias is lora_only"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]"),
        ({"layers_to_transform": [0, 1]}, r"the two differ in what they hold: 8 tensors are in one only"),
    ],
)
def test_adapters_that_do_not_fit_together(
    build: Build, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    good = adapter(tmp_path / "good", build("llama"), 1)
    bad = adapter(tmp_path / "bad", build("llama"), 2, **changes)
    for share in (0, 0.5):
        with pytest.raises(ValueError, match=message):
            merging.merge_adapters(good, bad, share)


def test_adapters_of_other_models_or_none(build: Build, tmp_path: Path) -> None:
    good = adapter(tmp_path / "good", build("llama"), 1)
    narrow = shutil.copytree(good, tmp_path / "narrow")
    tensors = load_file(good / "adapter_model.safetensors")
    save_file({name: tensor[:, :-1].clone() for name, tensor in tensors.items()}, narrow / "adapter_model.safetensors")
    with pytest.raises(ValueError, match="they come from different models"):
        merging.merge_adapters(good, narrow, 0.5)
    (narrow / "adapter_model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"narrow holds no adapter_model.safetensors: it is no adapter"):
        merging.merge_adapters(narrow, good, 0.5)
    with pytest.raises(ValueError, match="from 0 to 1"):
        merging.merge_adapters(good, good, 2)
