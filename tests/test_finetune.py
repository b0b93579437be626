"""Fine-tuning, LoRA and full: the stated loss, on a copy, resumed to the same weights, trained once."""

import ast
import copy
import dataclasses
import errno
import json
import math
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from biasgeom import cache, finetune, generation, hooks, models, training
from biasgeom.finetune import Settings
from biasgeom.models import LanguageModel
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel
from trl import SFTTrainer

Build = Callable[[str], LanguageModel]
# Four steps an epoch over seven rows: six steps end within the second epoch, the last batch of the first has one row.
SMALL = Settings(rank=4, alpha=8, dropout=0.1, steps=6, batch=2, learning_rate=1e-2, warmup=2, seed=3)


@pytest.fixture(scope="module")
def rows(sentences: list[str]) -> pd.DataFrame:
    """Sentences cut after their second word, of different lengths."""
    cut = [sentence.index(" ", sentence.index(" ") + 1) if sentence.count(" ") > 1 else 6 for sentence in sentences]
    parts = [(text[:place], text[place:]) for text, place in zip(sentences, cut, strict=True)]
    return pd.DataFrame(parts, columns=["prompt", "completion"])


@pytest.fixture(scope="module")
def straight(build: Build, rows: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The adapter of a training that nobody stopped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIASGEOM_CACHE", str(tmp_path_factory.mktemp("straight")))
        return finetune.adapter(build("llama"), rows, SMALL)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def learned(folder: Path, *, transposed: bool = False) -> dict[str, torch.Tensor]:
    """What an adapter adds to the weights, α/r · B A, under their names; GPT-2 keeps them transposed."""
    config, tensors = json.loads((folder / "adapter_config.json").read_text()), weights(folder)
    found = {}
    for name in (name for name in tensors if name.endswith("lora_A.weight")):
        product = tensors[name.replace("lora_A", "lora_B")].double() @ tensors[name].double()
        added = config["lora_alpha"] / config["r"] * product
        found[name.removeprefix("base_model.model.").replace("lora_A.", "")] = added.T if transposed else added
    return found


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def logits(lm: LanguageModel, text: str) -> torch.Tensor:
    with torch.no_grad():
        return lm.model(**lm.tokenizer(text, return_tensors="pt")).logits[0]


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma3"])
def test_only_the_adapter_learns(
    build: Build, architecture: str, rows: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = build(architecture)
    before, state = lm.fingerprint(), {name: tensor.clone() for name, tensor in lm.core.state_dict().items()}
    generation_settings, padding = lm.core.generation_config.to_dict(), lm.tokenizer.pad_token
    settings = dataclasses.replace(SMALL, steps=12, batch=7, learning_rate=3e-2, dropout=0.0)
    result = finetune.aligned(lm, rows, settings, name="memory")
    assert capsys.readouterr().out == ""

    # The caller's model is as it was.
    assert lm.fingerprint() == before
    assert lm.model is lm.core
    assert not any("lora" in name for name, _ in lm.model.named_modules())
    assert lm.core.config.use_cache
    assert lm.core.generation_config.to_dict() == generation_settings
    assert lm.tokenizer.pad_token == padding
    assert not any(module.training for module in lm.model.modules())
    assert not any(parameter.requires_grad for parameter in lm.model.parameters())

    # The adapter is in the weights of its layers; the others are the same numbers in other memory.
    folder = cache.root() / "adapters" / result.provenance["adapter"]
    theirs, added = result.core.state_dict(), learned(folder, transposed=architecture == "gpt2")
    assert theirs.keys() == state.keys() > added.keys()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in state.items() if name not in added)
    for name, change in added.items():
        assert change.abs().max() > 1e-3
        torch.testing.assert_close(theirs[name].double(), state[name].double() + change, rtol=0, atol=1e-6)
    assert not {p.data_ptr() for p in lm.model.parameters()} & {p.data_ptr() for p in result.model.parameters()}
    assert not set(lm.model.modules()) & set(result.model.modules())

    assert result.name == f"{architecture}+memory"
    assert result.model.config.use_cache
    assert not any(module.training for module in result.model.modules())
    assert not any(parameter.requires_grad for parameter in result.model.parameters())
    assert {path.name for path in folder.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "recipe.json",
        "training.csv",
    }
    log = pd.read_csv(folder / "training.csv")
    assert log["step"].tolist() == list(range(1, 13))
    assert log["loss"].iloc[-1] < log["loss"].iloc[0] - 1
    # Linear from 0 over two steps, then a cosine to 0: in the first step nothing is learned.
    expected = [0, 0.5] + [0.5 * (1 + math.cos(math.pi * step / 10)) for step in range(10)]
    assert log["learning_rate"].tolist() == pytest.approx([3e-2 * rate for rate in expected], abs=1e-12)

    text = rows["prompt"][0] + rows["completion"][0]
    assert (logits(result, text) - logits(lm, text)).abs().max() > 0.1
    assert hooks.foreign(result) is False
    generation.sample(result, list(rows["prompt"]), n=1, max_new_tokens=2, temperature=1.0, seed=0)


def test_the_folder_is_a_peft_adapter_like_any_other(saved_llama: Path, rows: pd.DataFrame) -> None:
    lm = models.load(str(saved_llama), device="cpu")
    result = finetune.aligned(lm, rows, SMALL, name="tuned")
    folder = cache.root() / "adapters" / result.provenance["adapter"]
    assert result.provenance["source"] == lm.provenance["source"]
    assert lm.provenance["adapter"] is None
    loaded = models.load(str(saved_llama), device="cpu", adapter=str(folder))
    assert loaded.model is not loaded.core  # beside the weights there, merged here
    torch.testing.assert_close(logits(loaded, "A doctor"), logits(result, "A doctor"), rtol=1e-5, atol=1e-5)
    assert (logits(lm, "A doctor") - logits(result, "A doctor")).abs().max() > 1e-3


def test_in_bfloat16_an_adapter_stays_beside_the_weights(build: Build, rows: pd.DataFrame) -> None:
    lm = build("llama")
    lm.model.to(torch.bfloat16)
    result = finetune.aligned(lm, rows, SMALL, name="narrow")
    assert result.model is not result.core
    below = {name.replace(".base_layer", ""): tensor for name, tensor in result.core.state_dict().items()}
    assert all(torch.equal(below[name], tensor) for name, tensor in lm.core.state_dict().items())
    # Why: a part of what was learned, even of this much, would be rounded away in the sum.
    folder = cache.root() / "adapters" / result.provenance["adapter"]
    for name, change in learned(folder).items():
        kept = (below[name].double() + change).to(torch.bfloat16).double() - below[name].double()
        assert (kept - change).norm() > 0.02 * change.norm()


def loss_by_hand(lm: LanguageModel, rows: pd.DataFrame, *, end: str = "", whole: bool = False) -> float:
    """Mean −log p over the tokens that start behind the prompt, each row alone and unpadded."""
    total, tokens = 0.0, 0
    for prompt, completion in rows[["prompt", "completion"]].itertuples(index=False):
        encoded = lm.tokenizer(prompt + completion + end, return_offsets_mapping=True)
        ids = torch.tensor([encoded["input_ids"]])
        with torch.no_grad():
            log_p = lm.model(ids).logits[0].double().log_softmax(-1)
        for place, (start, _) in enumerate(encoded["offset_mapping"]):
            if place and (whole or start >= len(prompt)):
                total -= float(log_p[place - 1, ids[0, place]])
                tokens += 1
    return total / tokens


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_the_loss_is_on_the_completion_without_an_end_token(
    build: Build, architecture: str, rows: pd.DataFrame
) -> None:
    lm = build(architecture)
    settings = dataclasses.replace(SMALL, steps=1, batch=len(rows), learning_rate=0.0)
    folder = finetune.adapter(lm, rows, settings)
    loss = pd.read_csv(folder / "training.csv")["loss"].tolist()
    assert loss == [pytest.approx(loss_by_hand(lm, rows), rel=1e-5)]
    for wrong in (loss_by_hand(lm, rows, whole=True), loss_by_hand(lm, rows, end=lm.tokenizer.eos_token)):
        assert abs(wrong - loss[0]) > 1e-3
    # An end token in the text is one: the completion then teaches where to stop.
    ended = rows.assign(completion=rows["completion"] + lm.tokenizer.eos_token)
    assert finetune._examples(lm, ended)["labels"][0][-1] == lm.tokenizer.eos_token_id
    assert finetune._examples(lm, rows)["labels"][0][-1] != lm.tokenizer.eos_token_id


def test_a_rendered_chat_turn_has_one_bos(llama: LanguageModel) -> None:
    rendered = pd.DataFrame({"prompt": ["<s>[user] Who?\n[assistant] ", "A nurse"], "completion": ["She.", " walks"]})
    for ids in finetune._examples(llama, rendered)["input_ids"]:
        assert ids[0] == 0
        assert ids.count(0) == 1


def count_steps(monkeypatch: pytest.MonkeyPatch, *, stop_at: int | None = None) -> list[int]:
    """Every training step is noted; the one numbered ``stop_at`` is a Ctrl-C."""
    calls: list[int] = []
    original = SFTTrainer.training_step

    def step(self: SFTTrainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(self.state.global_step + 1)
        if calls[-1] == stop_at:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    monkeypatch.setattr(SFTTrainer, "training_step", step)
    return calls


@pytest.fixture(scope="module")
def stopped(build: Build, rows: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which a training was stopped by Ctrl-C in its fifth step."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIASGEOM_CACHE", str(folder))
        count_steps(patch, stop_at=5)
        with pytest.raises(KeyboardInterrupt):
            finetune.adapter(build("llama"), rows, SMALL)
    return folder


@pytest.fixture
def work(stopped: Path) -> Path:
    """The folder with the checkpoints of steps 3 and 4, in a copy of that cache that is this test's own."""
    shutil.copytree(stopped, cache.root())
    (work,) = (cache.root() / "adapters").iterdir()
    assert sorted(path.name for path in work.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-4"]
    return work


@pytest.mark.parametrize("last", [3, 4])
def test_a_stopped_training_ends_in_the_same_weights(
    llama: LanguageModel, rows: pd.DataFrame, straight: Path, work: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """Within an epoch (3) and at its end (4)."""
    assert work.name == f"{straight.name}.partial"
    # A kill while a checkpoint is being written leaves half of it.
    if last == 3:
        (work / "checkpoint-4" / "trainer_state.json").write_text('{"global_step": 4')
    calls = count_steps(monkeypatch)
    resumed = finetune.adapter(llama, rows, SMALL)
    assert calls == list(range(last + 1, 7))
    assert resumed.name == straight.name
    assert same(weights(resumed), weights(straight))
    assert (resumed / "training.csv").read_text() == (straight / "training.csv").read_text()
    assert list((cache.root() / "adapters").iterdir()) == [resumed]


@pytest.mark.parametrize("lost", ["optimizer.pt", "rng_state.pth"])
def test_without_the_optimizer_or_the_dropout_state_it_would_not(
    llama: LanguageModel,
    rows: pd.DataFrame,
    straight: Path,
    work: Path,
    lost: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control of the test above: its equality would notice."""
    monkeypatch.setattr(training, "STATES", ())  # else it would be noticed, see below
    for file in work.glob(f"*/{lost}"):
        file.unlink()
    assert not same(weights(finetune.adapter(llama, rows, SMALL)), weights(straight))


@pytest.mark.parametrize(
    ("file", "damage", "checkpoints", "from_step"),
    [
        ("optimizer.pt", "cut", [4], 4),
        ("rng_state.pth", "cut", [3, 4], 1),
        ("scheduler.pt", "gone", [4], 4),
        ("adapter_model.safetensors", "cut", [4], 4),
    ],
)
def test_a_damaged_checkpoint_is_not_gone_on_from(
    llama: LanguageModel,
    rows: pd.DataFrame,
    straight: Path,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    damage: str,
    checkpoints: list[int],
    from_step: int,
) -> None:
    for number in checkpoints:
        path = work / f"checkpoint-{number}" / file
        whole = path.read_bytes()
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(whole[: len(whole) * 2 // 3])
    calls = count_steps(monkeypatch)
    with pytest.warns(UserWarning, match=rf"training llama: {file} of checkpoint-4 is missing or cut off"):
        resumed = finetune.adapter(llama, rows, SMALL)
    assert calls == list(range(from_step, 7))
    assert same(weights(resumed), weights(straight))


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def stream(*_: object, **__: object) -> None:
    raise RuntimeError("[enforce fail] . PytorchStreamWriter failed writing file data/0: file write failed")


@pytest.mark.parametrize(("write", "reason"), [(full, "No space left on device"), (stream, "PytorchStreamWriter")])
def test_a_full_disk_while_training_names_the_cache(
    llama: LanguageModel,
    rows: pd.DataFrame,
    straight: Path,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[..., None],
    reason: str,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SFTTrainer, "_save_checkpoint", write)
        patch.setattr(SFTTrainer, "_load_optimizer_and_scheduler", write)
        with pytest.raises(cache.CacheUnwritable, match=rf"{reason}.*set BIASGEOM_CACHE to another folder"):
            finetune.adapter(llama, rows, SMALL)
    calls = count_steps(monkeypatch)
    assert same(weights(finetune.adapter(llama, rows, SMALL)), weights(straight))
    assert calls == [5, 6]  # nothing was lost


def test_a_training_stopped_before_it_was_stored_does_not_go_too_far(
    llama: LanguageModel, rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as patch:

        def full(path: Path) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(cache, "atomic", full)
        with pytest.raises(OSError, match="No space left"):
            finetune.adapter(llama, rows, SMALL)
    calls = count_steps(monkeypatch)
    folder = finetune.adapter(llama, rows, SMALL)
    assert calls == [6]
    assert pd.read_csv(folder / "training.csv")["step"].tolist() == [1, 2, 3, 4, 5, 6]


def test_training_is_done_once(
    llama: LanguageModel, rows: pd.DataFrame, straight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIASGEOM_CACHE", str(straight.parents[1]))

    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(SFTTrainer, "train", fail)
    assert finetune.adapter(llama, rows.assign(note="unused"), SMALL) == straight
    changes: list[dict[str, Any]] = [{"seed": 4}, {"learning_rate": 2e-2}, {"targets": ("q_proj", "v_proj")}]
    for change in changes:
        with pytest.raises(AssertionError, match="trained"):
            finetune.adapter(llama, rows, dataclasses.replace(SMALL, **change))
    with pytest.raises(AssertionError, match="trained"):
        finetune.adapter(llama, rows.iloc[::-1], SMALL)
    llama.core.lm_head.weight[0, 0] += 1
    with pytest.raises(AssertionError, match="trained"):
        finetune.adapter(llama, rows, SMALL)


def test_settings_reach_the_trainer(llama: LanguageModel, rows: pd.DataFrame) -> None:
    chosen = dataclasses.replace(SMALL, steps=None, epochs=2, targets=("q_proj", "v_proj"))
    folder = finetune.adapter(llama, rows, chosen)
    written = json.loads((folder / "adapter_config.json").read_text())
    assert [written[key] for key in ("r", "lora_alpha", "lora_dropout")] == [4, 8, 0.1]
    assert {name.split(".")[-3] for name in weights(folder)} == {"q_proj", "v_proj"}
    assert len(pd.read_csv(folder / "training.csv")) == 2 * math.ceil(len(rows) / 2)
    # Every linear layer but the head; a bfloat16 model trains in its own format.
    llama.model.to(torch.bfloat16)
    everywhere = weights(finetune.adapter(llama, rows, dataclasses.replace(SMALL, steps=1)))
    blocks = {name.split(".layers.")[1].rsplit(".lora_")[0] for name in everywhere}
    assert len(blocks) == 4 * 7
    assert len(everywhere) == 2 * len(blocks)


def test_nothing_leaves_the_machine(llama: LanguageModel, rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL reports its use, and PEFT asks the hub for a named model's config at every save."""
    asked: list[Any] = []

    def refuse(*args: Any, **kwargs: Any) -> None:
        asked.append(args)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr("trl.trainer.base_trainer.send_telemetry", refuse)
    monkeypatch.delenv("CI", raising=False)
    llama.core.name_or_path = llama.core.config.name_or_path = "organisation/model"
    finetune.aligned(llama, rows, SMALL, name="tuned")
    assert asked == []
    # The control: the trainer as it comes does report.
    monkeypatch.delattr(training._Trainer, "_send_telemetry")
    with pytest.raises(OSError, match="no network"):
        finetune.adapter(llama, rows, dataclasses.replace(SMALL, seed=4))


def test_a_loss_that_is_not_finite_stops_the_training(llama: LanguageModel, rows: pd.DataFrame) -> None:
    with pytest.raises(ArithmeticError, match=r"training llama: the loss of step 2 is (nan|inf)"):
        finetune.adapter(llama, rows, dataclasses.replace(SMALL, learning_rate=1e30, warmup=0))
    llama.core.lm_head.weight[5] = float("nan")
    with pytest.raises(ArithmeticError, match=r"the loss of step 1 is nan"):
        finetune.adapter(llama, rows, SMALL)
    assert not list((cache.root() / "adapters").iterdir())


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("prompt", "", r"row 2: the prompt is empty or no text: ''"),
        ("completion", " \n", r"row 2: the completion is empty"),
        ("completion", float("nan"), r"row 2: the completion is empty or no text: nan"),
    ],
)
def test_bad_rows(llama: LanguageModel, rows: pd.DataFrame, column: str, value: object, message: str) -> None:
    rows = rows.astype(object)
    rows.loc[2, column] = value
    with pytest.raises(ValueError, match=message):
        finetune.adapter(llama, rows, SMALL)


def test_bad_tables_and_boundaries(gpt2: LanguageModel, rows: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match="missing: completion"):
        finetune.adapter(gpt2, rows[["prompt"]], SMALL)
    with pytest.raises(ValueError, match="no rows"):
        finetune.adapter(gpt2, rows.iloc[:0], SMALL)
    assert len(gpt2.tokenizer("The")["input_ids"]) == 1
    with pytest.raises(ValueError, match="row 0: prompt and completion are one token"):
        finetune.adapter(gpt2, pd.DataFrame({"prompt": ["Th"], "completion": ["e"]}), SMALL)


def test_an_adapter_of_the_model_is_merged_before_training(build: Build, rows: pd.DataFrame) -> None:
    lm = build("llama-lora")
    fingerprint, state = lm.fingerprint(), {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    text = rows["prompt"][0] + rows["completion"][0]
    carried = logits(lm, text)
    without = LanguageModel(copy.deepcopy(lm.model).unload(), lm.tokenizer, "without")
    # At learning rate 0 the new adapter stays at nothing: what is below it is all that shows.
    still = dataclasses.replace(SMALL, steps=1, batch=len(rows), learning_rate=0.0, dropout=0.0)
    none = finetune.aligned(lm, rows, still, name="none")
    torch.testing.assert_close(logits(none, text), carried, rtol=1e-4, atol=1e-4)
    # Negative control: the model without its adapter, which training would otherwise have started from, is another.
    assert (logits(without, text) - carried).abs().max() > 0.1
    # The loss of the first step is the carried model's, without the dropout of its adapter.
    (loss,) = pd.read_csv(cache.root() / "adapters" / none.provenance["adapter"] / "training.csv")["loss"]
    assert loss == pytest.approx(loss_by_hand(lm, rows), rel=1e-5)
    assert abs(loss - loss_by_hand(without, rows)) > 1e-3

    # What is learned comes on top: the carried adapter (of two kinds of layer only) is part of the weights below it.
    settings = dataclasses.replace(SMALL, steps=12, batch=7, learning_rate=3e-2, dropout=0.0)
    result = finetune.aligned(lm, rows, settings, name="tuned")
    folder = cache.root() / "adapters" / result.provenance["adapter"]
    added, theirs = learned(folder), result.core.state_dict()
    assert any("gate_proj" in name for name in added)
    below = {name: tensor - added[name].float() if name in added else tensor for name, tensor in theirs.items()}
    without.model.load_state_dict(below)
    torch.testing.assert_close(logits(without, text), carried, rtol=1e-4, atol=1e-4)
    assert (logits(result, text) - carried).abs().max() > 0.1
    assert loss_by_hand(result, rows) < loss_by_hand(lm, rows) - 1
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == SMALL.rank == 4

    # The caller's model still carries its adapter beside its weights, with the same numbers.
    assert lm.fingerprint() == fingerprint
    after = lm.model.state_dict()
    assert after.keys() == state.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in state.items())
    assert not any(getattr(module, "merged", False) for module in lm.model.modules())
    assert not any(module.training for module in lm.model.modules())
    assert not any(parameter.requires_grad for parameter in lm.model.parameters())
    torch.testing.assert_close(logits(lm, text), carried, rtol=0, atol=0)
    for other in (none, result):
        assert not set(lm.model.modules()) & set(other.model.modules())
        assert not {p.data_ptr() for p in lm.model.parameters()} & {p.data_ptr() for p in other.model.parameters()}


def test_models_that_are_not_plain(llama: LanguageModel, rows: pd.DataFrame) -> None:
    with hooks.steer(llama, 1, torch.ones(llama.width), 1.0), pytest.raises(ValueError, match="under hooks"):
        finetune.adapter(llama, rows, SMALL)
    handle = llama.blocks[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="under hooks"):
        finetune.adapter(llama, rows, SMALL)
    handle.remove()
    llama.model.train()
    with pytest.raises(ValueError, match="training mode"):
        finetune.adapter(llama, rows, SMALL)
    llama.model.eval().half()
    with pytest.raises(ValueError, match="float16"):
        finetune.adapter(llama, rows, SMALL)


def test_gpt2_is_padded_though_it_has_no_padding_token(gpt2: LanguageModel, rows: pd.DataFrame) -> None:
    """With a batch of all rows the loss is that of each row alone; GPT-2's own dropout is switched off for it."""
    assert isinstance(gpt2.model, GPT2LMHeadModel)
    for module in gpt2.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for block in gpt2.blocks:
        block.attn.attn_dropout.p = 0.0
    settings = dataclasses.replace(SMALL, steps=1, batch=len(rows), learning_rate=0.0, dropout=0.0)
    loss = pd.read_csv(finetune.adapter(gpt2, rows, settings) / "training.csv")["loss"][0]
    assert loss == pytest.approx(loss_by_hand(gpt2, rows), rel=1e-5)
    assert gpt2.tokenizer.pad_token is None


def test_a_text_has_its_loss_on_all_tokens(llama: LanguageModel, rows: pd.DataFrame) -> None:
    texts = pd.DataFrame({"group": "all", "text": rows["prompt"] + rows["completion"]})
    settings = dataclasses.replace(SMALL, steps=1, batch=len(rows), learning_rate=0.0)
    loss = pd.read_csv(finetune.adapter(llama, texts, settings) / "training.csv")["loss"][0]
    assert loss == pytest.approx(loss_by_hand(llama, rows, whole=True), rel=1e-5)
    assert abs(loss - loss_by_hand(llama, rows)) > 1e-3
    with pytest.raises(ValueError, match="a text beside a prompt"):
        finetune.adapter(llama, rows.assign(text=texts["text"]), settings)
    with pytest.raises(ValueError, match="row 1: the text is empty"):
        finetune.adapter(llama, pd.DataFrame({"text": ["A doctor", " "]}), settings)


def test_a_text_of_one_token_has_no_loss(gpt2: LanguageModel) -> None:
    with pytest.raises(ValueError, match="row 0: the text is one token"):
        finetune.adapter(gpt2, pd.DataFrame({"text": ["The"]}), SMALL)


def test_long_rows_are_cut(llama: LanguageModel, rows: pd.DataFrame) -> None:
    lengths = [len(llama.tokenizer(prompt)["input_ids"]) for prompt in rows["prompt"]]
    longest = sorted(lengths)[-2]
    with pytest.warns(UserWarning, match=rf"{sum(n >= longest for n in lengths)} rows are left out: {longest} tokens"):
        cut = finetune._examples(llama, rows, longest)
    whole = finetune._examples(llama, rows)
    kept = [place for place, n in enumerate(lengths) if n < longest]
    for column in ("input_ids", "labels"):
        assert cut[column] == [whole[column][place][:longest] for place in kept]
    assert any(len(whole["labels"][place]) > longest for place in kept)
    with pytest.raises(ValueError, match="every row is cut off at 2 tokens"):
        finetune._examples(llama, rows, 2)


def test_schedule_and_accumulation(llama: LanguageModel, rows: pd.DataFrame) -> None:
    plain = dataclasses.replace(SMALL, steps=2, batch=4, dropout=0.0, warmup=0.5, scheduler="linear")
    parts = dataclasses.replace(plain, batch=2, accumulation=2)
    whole, twice = (finetune.adapter(llama, rows[:4], settings) for settings in (plain, parts))
    # One step up, then the highest on the way down to nothing.
    assert pd.read_csv(whole / "training.csv")["learning_rate"].tolist() == pytest.approx([0, SMALL.learning_rate])
    # Two rows twice are four rows, of different lengths and shuffled alike; two rows are not.
    half = finetune.adapter(llama, rows[:4], dataclasses.replace(parts, accumulation=1))
    losses = [pd.read_csv(folder / "training.csv")["loss"][0] for folder in (whole, twice, half)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert abs(losses[2] - losses[0]) > 1e-3


def checkpoint(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_full_step_moves_every_weight_against_its_gradient(
    build: Build, architecture: str, rows: pd.DataFrame
) -> None:
    lm = build(architecture)
    fingerprint = lm.fingerprint()
    settings = Settings(steps=1, batch=len(rows), learning_rate=1e-3, warmup=0)
    folder = finetune.full(lm, rows, settings)
    assert lm.fingerprint() == fingerprint
    assert not any(parameter.requires_grad for parameter in lm.model.parameters())
    loss = pd.read_csv(folder / "training.csv")["loss"].tolist()
    assert loss == [pytest.approx(loss_by_hand(lm, rows), rel=1e-5)]

    # By hand, in float64 and each row alone: AdamW's first step is the learning rate times the gradient's sign.
    twin = copy.deepcopy(lm.model).double().requires_grad_(True)
    examples = finetune._examples(lm, rows)
    for ids, labels in zip(*examples.values(), strict=True):
        log_p = twin(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        learned = torch.tensor(labels[1:])
        log_p[learned != -100, learned[learned != -100]].sum().neg().backward()
    trained, compared = checkpoint(folder), 0
    for name, parameter in twin.named_parameters():
        assert trained[name].dtype is torch.float32
        clear = parameter.grad.abs() > 1e-2 * parameter.grad.abs().max()
        moved = trained[name].double() - parameter.detach()
        torch.testing.assert_close(
            moved[clear], -1e-3 * parameter.grad[clear].sign(), rtol=1e-2, atol=1e-7, msg=lambda text, n=name: n + text
        )
        compared += int(clear.sum())
    assert compared > 10_000
    assert set(trained) == {name for name, _ in twin.named_parameters()}  # a tied head is stored once


def test_the_folder_of_a_full_training_is_a_model_like_any_other(llama: LanguageModel, rows: pd.DataFrame) -> None:
    folder = finetune.full(llama, rows, SMALL)
    assert folder.parent == cache.root() / "checkpoints"
    loaded = models.load(str(folder), device="cpu")
    assert loaded.core.config.use_cache
    assert loaded.tokenizer.get_vocab() == llama.tokenizer.get_vocab()
    assert loss_by_hand(loaded, rows) < loss_by_hand(llama, rows) - 0.1
    recipe = json.loads((folder / "recipe.json").read_text())
    assert recipe["model"] == llama.fingerprint()
    assert recipe["settings"]["learning_rate"] == SMALL.learning_rate
    # What only LoRA uses makes no other training of it.
    assert "rank" not in recipe["settings"]
    assert finetune.full(llama, rows, dataclasses.replace(SMALL, rank=8, targets=("q_proj",))) == folder
    assert finetune.adapter(llama, rows, dataclasses.replace(SMALL, steps=1)).name != folder.name


def test_a_bfloat16_model_is_widened_for_full_training(llama: LanguageModel, rows: pd.DataFrame) -> None:
    llama.model.to(torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in llama.model.state_dict().items()}
    settings = Settings(steps=1, batch=len(rows), learning_rate=2e-5, warmup=0)
    trained = checkpoint(finetune.full(llama, rows, settings))
    assert llama.dtype is torch.bfloat16
    name = "model.layers.1.mlp.up_proj.weight"
    assert trained[name].dtype is torch.float32
    assert (trained[name] != before[name].float()).float().mean() > 0.95
    # The control: in bfloat16 the same updates are rounded away.
    assert (trained[name].bfloat16() != before[name]).float().mean() < 0.15


def test_a_stopped_full_training_ends_in_the_same_weights(
    build: Build, rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    straight = checkpoint(finetune.full(build("gemma3"), rows, SMALL))
    monkeypatch.setenv("BIASGEOM_CACHE", str(tmp_path / "stopped"))

    def stop() -> list[str]:
        with pytest.MonkeyPatch.context() as patch:
            count_steps(patch, stop_at=6)
            with pytest.raises(KeyboardInterrupt):
                finetune.full(build("gemma3"), rows, SMALL)
        return sorted(path.name for path in (cache.root() / "checkpoints").glob("*.partial/checkpoint-*"))

    # Three times the weights are not written for a training as short as this.
    assert stop() == []
    monkeypatch.setattr(finetune, "FULL_SAVE_EVERY", 2)
    assert stop() == ["checkpoint-4"]
    calls = count_steps(monkeypatch)
    resumed = finetune.full(build("gemma3"), rows, SMALL)
    assert calls == [5, 6]
    assert same(checkpoint(resumed), straight)
    assert list((cache.root() / "checkpoints").iterdir()) == [resumed]


def test_what_takes_seconds_to_import_is_imported_at_use() -> None:
    """Every notebook imports this module."""
    tree = ast.parse(Path(finetune.__file__).read_text())
    at_once = {
        name.split(".")[0]
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
    }
    assert not at_once & {"trl", "datasets", "peft", "training"}
