"""The monitor beside a training: the ΔB it notes is the trained model's, and the training does not notice it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from biasgeom import audit, cache, finetune, hooks, monitor, relative
from biasgeom.audit import NotComparable, Sets
from biasgeom.finetune import Settings
from biasgeom.models import LanguageModel
from biasgeom.monitor import DeltaBMonitor
from safetensors.torch import load_file
from transformers import TrainerCallback, TrainerControl, TrainerState

Build = Callable[[str], LanguageModel]
SETTINGS = Settings(rank=4, alpha=8, dropout=0.5, steps=4, batch=2, learning_rate=3e-2, warmup=0, seed=3)
SETS = Sets(
    {
        "Women": ["Women walk.", "Women came by train."],
        "Men": ["Men walk in the evening.", "Men read."],
        "Jews": ["Jews"],
    },
    ["It was a pleasant day.", "Good."],
    ["It was a tiring day.", "The roof leaks again."],
    ["A person is a plumber.", "Nobody ever knew.", "The teacher reads a book to the children."],
)


@pytest.fixture(scope="module")
def rows(sentences: list[str]) -> pd.DataFrame:
    return pd.DataFrame({"text": sentences})


class Look(TrainerCallback):
    """What a callback after the monitor sees of the model."""

    def __init__(self, at_step: Callable[[torch.nn.Module], None] = lambda model: None) -> None:
        self.at_step = at_step
        self.training: list[set[bool]] = []
        self.weights: dict[str, torch.Tensor] = {}

    def on_step_end(self, *args: Any, model: torch.nn.Module, **kwargs: Any) -> None:
        self.training.append({module.training for module in model.modules()})
        self.at_step(model)

    def on_train_end(self, *args: Any, model: torch.nn.Module, **kwargs: Any) -> None:
        named = {name.replace(".default", ""): p for name, p in model.named_parameters() if ".lora_" in name}
        self.weights = {name: p.detach().clone() for name, p in named.items()}


def weight_sum(lm: LanguageModel) -> pd.DataFrame:
    """A measure that no two steps share; as real ones, it refuses a model in training mode."""
    hooks.require_evaluation(lm)
    total = sum(float(p.detach().double().abs().sum()) for name, p in lm.model.named_parameters() if "lora" in name)
    return pd.DataFrame({"group": list(SETS.targets), "score": total + np.arange(3)})


@pytest.fixture(scope="module")
def reference(build: Build) -> LanguageModel:
    return build("llama")


@pytest.fixture(scope="module")
def adapter(reference: LanguageModel, rows: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the same training without callbacks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIASGEOM_CACHE", str(tmp_path_factory.mktemp("unwatched")))
        return finetune.adapter(reference, rows, SETTINGS)


@pytest.fixture(scope="module")
def watched(
    reference: LanguageModel, rows: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> tuple[DeltaBMonitor, Look, pd.DataFrame]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIASGEOM_CACHE", str(tmp_path_factory.mktemp("watched")))
        watch, look = DeltaBMonitor(reference, SETS, every=2, measure=weight_sum), Look()
        log = finetune.watched(reference, rows, SETTINGS, callbacks=[watch, look])
    return watch, look, log


Watched = tuple[DeltaBMonitor, Look, pd.DataFrame]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_an_audit_before_the_first_step_and_every_few(watched: Watched) -> None:
    watch, _, log = watched
    table = watch.frame()
    assert list(table.columns) == ["step", "group", "delta_b", "score"]
    assert list(table["step"]) == [0] * 3 + [2] * 3 + [4] * 3
    assert list(table["group"]) == list(SETS.targets) * 3
    assert list(log["step"]) == [1, 2, 3, 4]
    assert watch.stopped_at is None
    assert table.loc[table["step"] == 0, "delta_b"].abs().max() < 1e-9  # before the first step it is the reference
    assert table.loc[table["step"] > 0, "delta_b"].abs().min() > 1e-5


def test_the_last_audit_is_that_of_the_trained_model(watched: Watched, adapter: Path, reference: LanguageModel) -> None:
    trained = finetune.with_adapter(reference, adapter, name="trained")
    expected = relative.delta_b(audit.embed(reference, SETS), audit.embed(trained, SETS))
    table = watched[0].frame()
    last, middle = (table[table["step"] == step].set_index("group") for step in (4, 2))
    assert dict(last["delta_b"]) == pytest.approx(expected, abs=1e-6)
    assert dict(middle["delta_b"]) != pytest.approx(expected, abs=1e-5)
    total = sum(float(t.double().abs().sum()) for t in load_file(adapter / "adapter_model.safetensors").values())
    assert list(last["score"]) == pytest.approx([total, total + 1, total + 2], rel=1e-12)


def test_a_watched_training_ends_in_the_same_weights(
    watched: Watched, adapter: Path, reference: LanguageModel, rows: pd.DataFrame
) -> None:
    stored = load_file(adapter / "adapter_model.safetensors")
    assert same(watched[1].weights, stored)
    curve = pd.read_csv(adapter / "training.csv")
    np.testing.assert_allclose(watched[2]["loss"], curve["loss"], rtol=1e-12)
    # The control: a callback that draws one random number, as an audit with live dropout would, ends elsewhere.
    drawing = Look(lambda model: torch.rand(1))
    finetune.watched(reference, rows, SETTINGS, callbacks=[drawing])
    assert not same(drawing.weights, stored)


def test_modes_are_restored_and_needed(watched: Watched, reference: LanguageModel, rows: pd.DataFrame) -> None:
    assert watched[1].training == [{True}] * 4  # dropout is live again after the audit

    def without_eval(model: torch.nn.Module) -> None:
        lm = LanguageModel(model, reference.tokenizer, "in training")
        with pytest.raises(ValueError, match="in training is in training mode"):
            audit.embed(lm, SETS)
        # What is refused: embeddings that differ from pass to pass.
        inputs = reference.tokenizer("Women walk.", return_tensors="pt")
        with torch.no_grad():
            once, again = (model(**inputs).logits for _ in range(2))
        assert not torch.allclose(once, again, atol=1e-3)
        asked.append(True)

    asked: list[bool] = []
    finetune.watched(reference, rows, replace(SETTINGS, steps=1), callbacks=[Look(without_eval)])
    assert asked == [True]


def test_each_module_goes_back_into_its_own_mode(reference: LanguageModel, build: Build) -> None:
    """A trainer may hold a part in evaluation mode; also after a measure that fails."""
    lm = build("llama-lora")
    lm.model.train()
    frozen = lm.blocks[1]
    frozen.eval()
    modes = [module.training for module in lm.model.modules()]
    assert set(modes) == {True, False}

    def fail(now: LanguageModel) -> pd.DataFrame:
        raise RuntimeError("no measure")

    for measure in (weight_sum, fail):
        watch = DeltaBMonitor(reference, SETS, measure=measure)
        try:
            watch.on_train_begin(None, TrainerState(), TrainerControl(), model=lm.model)
        except RuntimeError:
            assert measure is fail
            assert watch.history == []
        assert [module.training for module in lm.model.modules()] == modes
    lm.model.eval()
    expected = relative.delta_b(audit.embed(reference, SETS), audit.embed(lm, SETS))
    watch = DeltaBMonitor(reference, SETS)
    watch.on_train_begin(None, TrainerState(), TrainerControl(), model=lm.model)
    assert dict(watch.frame()[["group", "delta_b"]].to_numpy()) == expected


def test_audits_leave_nothing_in_the_cache(reference: LanguageModel, build: Build) -> None:
    """The weights of a step do not come again."""
    audit.embed(reference, SETS)
    root, before = cache.root(), set(cache.root().rglob("*.npy"))
    assert len(before) == 4
    DeltaBMonitor(reference, SETS).on_train_begin(None, TrainerState(), TrainerControl(), model=build("mistral").model)
    assert cache.root() == root
    assert set(root.rglob("*.npy")) == before


def test_training_stops_at_the_first_audit_below(reference: LanguageModel, rows: pd.DataFrame) -> None:
    watch = DeltaBMonitor(reference, SETS, every=1)
    finetune.watched(reference, rows, SETTINGS, callbacks=[watch])
    by_step = watch.frame().pivot(index="step", columns="group", values="delta_b")
    sets = SETS
    if by_step["Women"].loc[1:3].mean() > 0:  # exchanging the attributes turns the sign, so that groups move down
        by_step, sets = -by_step, replace(SETS, positive=SETS.negative, negative=SETS.positive)
    pairs = {pair: by_step[list(pair)].mean(axis=1) for pair in (("Women", "Men"), ("Women", "Jews"))}
    pair, means = min(pairs.items(), key=lambda item: item[1].loc[1:3].min())
    below = float(means.loc[1:3].min()) + 1e-6
    step = int(means.index[means < below][0])
    assert 0 < step < 4
    stopping = DeltaBMonitor(reference, sets, every=1, stop_below=below, watched=list(pair))
    log = finetune.watched(reference, rows, SETTINGS, callbacks=[stopping])
    assert stopping.stopped_at == step == log["step"].max() == stopping.frame()["step"].max()
    # The controls: a bound that is reached but not passed ends nothing; all groups have another mean.
    resting = DeltaBMonitor(reference, sets, every=1, stop_below=float(means.min()), watched=list(pair))
    assert len(finetune.watched(reference, rows, SETTINGS, callbacks=[resting])) == 4
    assert resting.stopped_at is None
    assert by_step.mean(axis=1)[step] != pytest.approx(means[step], abs=1e-6)


def test_what_is_refused(reference: LanguageModel, build: Build) -> None:
    for every in (0, -1):
        with pytest.raises(ValueError, match=f"every must be a number of steps from 1, not {every}"):
            DeltaBMonitor(reference, SETS, every=every)
    with pytest.raises(ValueError, match="the sets have no group Asians, Robots"):
        DeltaBMonitor(reference, SETS, watched=["Robots", "Women", "Asians"])
    assert monitor.DeltaBMonitor(reference, SETS).frame().empty
    narrow = build("llama")
    narrow.model.bfloat16()
    with pytest.raises(
        NotComparable, match=r"llama and llama@step0 differ in dtype: torch.float32 against torch.bfloat16"
    ):
        DeltaBMonitor(reference, SETS).on_train_begin(None, TrainerState(), TrainerControl(), model=narrow.model)
