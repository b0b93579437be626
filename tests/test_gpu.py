"""A GPU gives what a CPU gives: every notebook's tables, arrays and samples; and what can be seen without one."""

import io
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
from biasgeom import activations, audit, data, generation, memory, models, prompts
from biasgeom.models import LanguageModel
from bookcopy import copied, tables
from conftest import SENTENCES

Build = Callable[[str], LanguageModel]
TOLERANCE = 0.01
"""Of a column's largest number. Both run in float32; sums in another order differ by 1e-6, and what a few steps of
training, a fit or a rank make of that by more."""

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """benchmarks/gpu.py, which imports from the scripts beside it."""
    folder = str(data.root() / "benchmarks")
    sys.path.insert(0, folder)
    yield import_module("gpu")
    sys.path.remove(folder)


def differences(expected: Mapping[str, bytes], found: Mapping[str, bytes]) -> list[str]:
    """Where two sets of tables, CSV by name, are not the same: texts exactly, numbers within the tolerance."""
    told = [f"{name}: in one of the two only" for name in sorted(set(expected) ^ set(found))]
    for name in sorted(set(expected) & set(found)):
        one, other = (pd.read_csv(io.BytesIO(each[name])) for each in (expected, found))
        if list(one) != list(other) or len(one) != len(other):
            told.append(f"{name}: {one.shape} {list(one)} and {other.shape} {list(other)}")
            continue
        for column in one:
            told += [f"{name}: {column}: {text}" for text in _cells(one[column], other[column])]
    return told


def _cells(one: pd.Series, other: pd.Series) -> list[str]:
    numbers = all(pd.api.types.is_numeric_dtype(each) and each.dtype != bool for each in (one, other))
    if not numbers:
        equal = (one == other) | (one.isna() & other.isna())
    else:
        a, b = one.to_numpy(dtype=float), other.to_numpy(dtype=float)
        scale = np.max(np.abs(a[np.isfinite(a)]), initial=0.0)
        equal = pd.Series(np.isclose(a, b, rtol=0, atol=TOLERANCE * scale, equal_nan=True))
    return [f"row {row}: {one[row]} and {other[row]}" for row in np.flatnonzero(~equal)]


TABLE = "layer,name,score\n0,a,0.5\n1,b,-2.0\n2,,\n"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (TABLE.replace("0.5", "0.519"), None),
        (TABLE.replace("0.5", "0.53"), "t.csv: score: row 0: 0.5 and 0.53"),
        (TABLE.replace("-2.0", "inf"), "score: row 1"),
        (TABLE.replace("-2.0", ""), "score: row 1"),
        (TABLE.replace("1,b", "1,c"), "name: row 1: b and c"),
        (TABLE.replace("1,b", "3,b"), "layer: row 1"),
        (TABLE.replace("0.5", "none"), "score: row 0"),
        (TABLE.replace("name", "label"), "label"),
        (TABLE + "3,d,1\n", "(4, 3)"),
        (None, "in one of the two only"),
    ],
)
def test_a_table_that_is_another_is_noticed(changed: str | None, message: str | None) -> None:
    found = {} if changed is None else {"t.csv": changed.encode()}
    told = differences({"t.csv": TABLE.encode()}, found)
    if message is None:
        assert told == []
    else:
        assert len(told) == 1 or message == "score: row 0"
        assert message in told[0]


def test_the_benchmark_runs_small(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same code as on a GPU, with a tiny model: every stage is there, and its numbers belong together."""
    target = tmp_path / "small.json"
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--small", "--to", str(target)])
    benchmark.main()
    printed = capsys.readouterr().out
    found = json.loads(target.read_text())
    stages = {stage["stage"]: stage for stage in found["stages"]}
    assert list(stages) == ["audit", "capture of every block", "strengths by suffix", "sampling under ablation"]
    assert stages["capture of every block"]["tokens"] == 20 * 20  # every text has the length that was asked for
    assert stages["sampling under ablation"]["tokens"] == 4 * (20 + 6)
    assert found["attention"] == "sdpa"
    for name, stage in stages.items():
        assert stage["tokens_per_second"] == pytest.approx(stage["tokens"] / stage["seconds"], rel=0.05), name
        assert stage["ratio_to_bare"] == pytest.approx(stage["seconds"] / stage["bare_seconds"], rel=0.05), name
        assert 0 < stage["share_of_peak"] < 1, name
        assert stage["peak_memory_mb"] > 0
        assert name in printed
    # A model that ended early would write less: the ablated samples are as long as asked.
    assert stages["sampling under ablation"]["ratio_to_bare"] > 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_the_benchmark_without_a_gpu_says_so(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    with pytest.raises(SystemExit, match=r"^error: no CUDA device was found; --small"):
        benchmark.main()
    assert not benchmark.RESULTS.joinpath("cpu.json").exists()


def test_the_benchmark_has_the_sizes_that_it_names(benchmark: ModuleType) -> None:
    """2,400 sentences; the architecture's parameters are those of Llama-3.1-8B (its model card: 8.03 billion)."""
    sizes = benchmark.Sizes()
    sets = audit.sets(templates=sizes.templates, attributes=sizes.attributes, anchors=sizes.anchors)
    assert sum(map(len, sets.lists())) == 2400
    assert (sizes.prompts, sizes.length, sizes.strengths, sizes.sampled, sizes.new_tokens) == (1000, 150, 40, 96, 50)
    with torch.device("meta"):
        model = benchmark.AutoModelForCausalLM.from_config(benchmark.LlamaConfig(**benchmark.ARCHITECTURE))
    assert model.num_parameters() == 8_030_261_248
    assert benchmark.slug("NVIDIA A100-SXM4-40GB") == "nvidia-a100-sxm4-40gb"


def test_attention_is_sdpa_unless_asked_otherwise(saved_llama: Path) -> None:
    assert models.load(str(saved_llama)).core.config._attn_implementation == "sdpa"


@on_gpu
def test_a_gpu_loads_in_bfloat16(saved_llama: Path) -> None:
    lm = models.load(str(saved_llama))
    assert (lm.dtype, lm.device.type) == (torch.bfloat16, "cuda")


@on_gpu
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2", "llama-lora"])
def test_arrays_and_samples_are_those_of_the_cpu(build: Build, architecture: str) -> None:
    here, there = build(architecture), build(architecture)
    there.model.cuda()
    pairs = [
        (activations.last_token_states(lm, SENTENCES), generation.next_token_probabilities(lm, SENTENCES))
        for lm in (here, there)
    ]
    for one, other in zip(*pairs, strict=True):
        assert np.abs(one - other).max() < 1e-4 * np.abs(one).max()
        assert np.abs(one[1:] - other[:-1]).max() > 1e-3 * np.abs(one).max()
    how = {"n": 2, "max_new_tokens": 6, "temperature": 1.0, "seed": 7}
    assert generation.sample(there, SENTENCES, **how) == generation.sample(here, SENTENCES, **how)


@on_gpu
def test_a_real_gpu_that_is_full_halves_the_batch(llama: LanguageModel) -> None:
    """4,000 texts at once in 64 MB: refused by the device itself, and all the same measured."""
    llama.model.cuda()
    texts = [f"{text} {number}" for number in range(500) for text in SENTENCES]
    whole = activations._run(*_asked(llama, texts), 2000, llama.width)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (64 << 20)) / total)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
        halved = activations._run(*_asked(llama, texts), 1 << 22, llama.width)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert np.abs(halved - whole).max() < 1e-4 * np.abs(whole).max()


def _asked(lm: LanguageModel, texts: list[str]) -> tuple:
    last = lambda batch: activations.hooks.at(batch.last)  # noqa: E731
    return lm, prompts.encode(lm, texts), list(range(len(lm.blocks))), last


@on_gpu
def test_transfers_are_pinned(llama: LanguageModel) -> None:
    tensor = torch.arange(1000.0).reshape(10, 100)
    there = memory.to_device(tensor, torch.device("cuda"))
    assert np.array_equal(memory.to_host(there), tensor.numpy())
    assert torch.from_numpy(memory.to_host(there)).is_pinned()


@on_gpu
@pytest.mark.slow
@pytest.mark.book
def test_every_notebook_gives_the_tables_of_the_cpu(
    tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copied(tmp_path, build("llama"))
    found = []
    for visible in ("", None):
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        done = copy.book("--no-render")
        assert done.returncode == 0, done.stderr[-4000:]
        found.append(tables(copy.root / "results"))
        # The next run trains and measures all of it itself.
        shutil.rmtree(copy.root / "results")
        shutil.rmtree(copy.cache)
    assert len(found[0]) > 50
    assert differences(*found) == []
