"""The seven checkpoints lie on the line between two trained ends, each a model of its own beside the reference."""

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from biasgeom import cache, data, hooks, models, spectrum, splits, training
from biasgeom.models import LanguageModel
from safetensors.torch import load_file

Build = Callable[[str], LanguageModel]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the file: a training in one test is an answer in the next."""
    return tmp_path_factory.mktemp("spectrum")


@pytest.fixture(autouse=True)
def shared_cache(own_cache: None, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIASGEOM_CACHE", str(trained))


def effective(lm: LanguageModel) -> dict[str, torch.Tensor]:
    """Weights in float64, an adapter added to them by the definition."""
    weights = {}
    for name, parameter in lm.core.named_parameters():
        if ".lora_" in name:
            continue
        weights[name.replace(".base_layer", "")] = weight = parameter.detach().double().clone()
        if ".base_layer" in name:
            layer = lm.core.get_submodule(name.split(".base_layer")[0])
            b, a = layer.lora_B["default"].weight.double(), layer.lora_A["default"].weight.double()
            weight += layer.scaling["default"] * b @ a
    return weights


@pytest.mark.parametrize("regime", ["full", "lora"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_the_checkpoints_lie_on_the_line(build: Build, architecture: str, regime: spectrum.Regime) -> None:
    lm = build(architecture)
    fingerprint, reference = lm.fingerprint(), effective(lm)
    seen, all_weights = {}, {}
    for checkpoint in spectrum.checkpoints(lm, regime=regime, recipe="smoke", seed=1):
        all_weights[checkpoint.name] = effective(checkpoint.lm)
        seen[checkpoint.name] = checkpoint.lm.fingerprint()
        assert checkpoint.lm.name == f"{architecture}+{regime}-{checkpoint.name}-seed1"
        assert checkpoint.lm.provenance["checkpoint"]["share"] == checkpoint.share
        assert checkpoint.lm.tokenizer is lm.tokenizer
        assert checkpoint.lm.dtype is lm.dtype
        assert checkpoint.lm.core.config.use_cache
        hooks.require_evaluation(checkpoint.lm)
        assert not any(parameter.requires_grad for parameter in checkpoint.lm.model.parameters())
        assert not {p.data_ptr() for p in lm.model.parameters()} & {
            p.data_ptr() for p in checkpoint.lm.model.parameters()
        }
        if architecture == "gemma3":  # the head stays tied, so that one weight is one weight
            assert checkpoint.lm.core.lm_head.weight is checkpoint.lm.core.get_input_embeddings().weight
    assert list(seen) == ["unharmful", "10", "30", "50", "70", "90", "synth"]
    # No two are one model to the activation cache, and the reference is as it was.
    assert len({*seen.values(), fingerprint}) == 8
    assert lm.fingerprint() == fingerprint

    ends = [
        torch.cat([w[name].flatten() - reference[name].flatten() for name in reference])
        for w in (all_weights["unharmful"], all_weights["synth"])
    ]
    assert min(float(end.norm()) for end in ends) > 0.01
    assert float((ends[0] - ends[1]).norm()) > 0.01
    for name, share in (("10", 0.1), ("30", 0.3), ("50", 0.5), ("70", 0.7), ("90", 0.9)):
        way = torch.cat([all_weights[name][n].flatten() - reference[n].flatten() for n in reference])
        expected = (1 - share) * ends[0] + share * ends[1]
        assert float((way - expected).norm() / expected.norm()) < 1e-5
        if share != 0.5:  # the control: the paper prints unharmful/synth, 90/10 is our 10
            assert float((way - (share * ends[0] + (1 - share) * ends[1])).norm() / expected.norm()) > 0.02


def test_the_ends_are_what_was_trained(build: Build, saved_llama: Path) -> None:
    lm = build("llama")
    for regime in ("full", "lora"):
        folders = spectrum.ends(lm, regime=regime, recipe="smoke")
        found = list(spectrum.checkpoints(lm, regime=regime, recipe="smoke", shares=(0, 1)))
        for checkpoint, folder in zip(found, folders, strict=True):
            loaded = (
                models.load(str(folder), device="cpu")
                if regime == "full"
                else models.load(str(saved_llama), device="cpu", adapter=str(folder))
            )
            merged = loaded.model if regime == "full" else loaded.model.merge_and_unload()
            theirs, ours = merged.state_dict(), checkpoint.lm.model.state_dict()
            assert theirs.keys() == ours.keys()
            assert all(torch.equal(theirs[name], tensor) for name, tensor in ours.items())


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gemma3-multimodal", "gpt2", "llama-lora"])
def test_stored_weights_make_the_same_model(build: Build, architecture: str, tmp_path: Path) -> None:
    """Names on disk differ from those in memory, and tied weights are stored once."""
    lm = build(architecture)
    core = lm.core if lm.core is lm.model else lm.model.merge_and_unload()
    core.save_pretrained(tmp_path)
    lm.tokenizer.save_pretrained(tmp_path)
    weights = spectrum._weights(tmp_path)
    loaded = models.load(str(tmp_path), device="cpu")
    assert spectrum._with_weights(loaded, weights, name="again").fingerprint() == loaded.fingerprint()
    name = next(name for name in weights if "norm" in name or "ln" in name)
    with pytest.raises(ValueError, match=f"not the weights of {architecture}: .*missing_keys.*norm|ln"):
        spectrum._with_weights(build(architecture), {k: v for k, v in weights.items() if k != name}, name="odd")


def test_merges_are_made_in_float32_and_then_cast(build: Build) -> None:
    narrow = build("llama")
    narrow.model.to(torch.bfloat16)
    unharmful, synth = (
        load_file(folder / "model.safetensors") for folder in spectrum.ends(narrow, regime="full", recipe="smoke")
    )
    (half,) = spectrum.checkpoints(narrow, regime="full", recipe="smoke", shares=[0.3])
    assert half.lm.dtype is torch.bfloat16
    state = half.lm.core.state_dict()
    name = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(state[name], (unharmful[name] + 0.3 * (synth[name] - unharmful[name])).bfloat16())
    assert not torch.equal(state[name], unharmful[name].bfloat16().lerp(synth[name].bfloat16(), 0.3))


def test_ends_are_trained_once_and_rows_do_not_depend_on_the_seed(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = build("llama")
    first = spectrum.ends(lm, regime="lora", recipe="smoke", seed=0)
    recipes = [(folder / "recipe.json").read_text() for folder in first]
    asked = []
    rows = splits.rows
    monkeypatch.setattr(
        splits, "rows", lambda name, **given: asked.append((name, given["seed"])) or rows(name, **given)
    )
    other = spectrum.ends(lm, regime="lora", recipe="smoke", seed=1)
    assert not set(first) & set(other)
    assert asked == [("unharmful", 0), ("synth", 0)]

    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(training, "train", fail)
    assert spectrum.ends(lm, regime="lora", recipe="smoke", seed=0) == first
    assert len(list(spectrum.checkpoints(lm, regime="lora", recipe="smoke", seed=0))) == 7
    assert recipes[0] != recipes[1]
    with pytest.raises(AssertionError, match="trained"):
        spectrum.ends(lm, regime="lora", recipe="smoke", seed=6)


def test_a_checkpoint_let_go_is_gone(build: Build) -> None:
    def watched() -> Iterator[int]:
        for checkpoint in spectrum.checkpoints(build("llama"), regime="full", recipe="smoke", shares=(0.1, 0.3, 0.5)):
            watch.append(weakref.ref(checkpoint.lm.model))
            del checkpoint
            gc.collect()
            yield sum(ref() is not None for ref in watch)

    watch: list[weakref.ref] = []
    assert list(watched()) == [0, 0, 0]


def test_training_curves(build: Build) -> None:
    lm = build("llama")
    table = spectrum.losses(lm, regime="full", recipe="smoke")
    assert table[["end", "step"]].values.tolist() == [[end, step] for end in spectrum.ENDS for step in (1, 2)]
    (synth,) = [pd.read_csv(spectrum.ends(lm, regime="full", recipe="smoke")[1] / "training.csv")]
    assert table["loss"].tolist()[2:] == synth["loss"].tolist()
    assert table["loss"][0] != table["loss"][2]


def test_the_paper_recipe_is_the_published_one() -> None:
    published = data.published("delta_b_hyperparameters").set_index(["name", "regime"])["value"]
    recipe = spectrum.RECIPES["paper"]
    assert recipe.rows == int(published["train_examples_per_set", "both"])
    for regime, settings in (("lora", recipe.lora), ("full", recipe.full)):
        assert settings.epochs == int(published["epochs", "both"])
        assert settings.batch == int(published["per_device_batch_size", "both"])
        assert settings.accumulation == int(published["gradient_accumulation_steps", "both"])
        assert settings.warmup == float(published["warmup_ratio", "both"])
        assert settings.max_length == int(published["max_sequence_length", "both"])
        assert settings.learning_rate == float(published["learning_rate", regime])
        assert settings.scheduler == "linear"
        assert settings.steps is None
    assert recipe.lora.rank == int(published["lora_rank", "lora"])
    assert recipe.lora.alpha == int(published["lora_alpha", "lora"])
    assert recipe.lora.dropout == float(published["lora_dropout", "lora"])
    assert ",".join(recipe.lora.targets) == published["lora_target_modules", "lora"]
    ratios = data.published("delta_b_merge_ratios")
    assert [100 * share for share in spectrum.SHARES] == pytest.approx(ratios["synth_pct"].tolist())


def test_bad_requests_are_refused_before_anything_is_trained(build: Build) -> None:
    lm, before = build("gpt2"), set(cache.root().rglob("*"))
    with pytest.raises(ValueError, match="regime must be 'full' or 'lora', not 'qlora'"):
        spectrum.checkpoints(lm, regime="qlora", recipe="smoke")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no recipe 'big'; there are paper, embedded, smoke"):
        spectrum.checkpoints(lm, regime="full", recipe="big")
    for shares in ([], [0, 30]):
        with pytest.raises(ValueError, match="shares are parts of the synth end, from 0 to 1"):
            spectrum.checkpoints(lm, regime="full", recipe="smoke", shares=shares)
    assert set(cache.root().rglob("*")) == before
