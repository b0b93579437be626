"""Sweeps over models: what is asked and refused, what Snakemake is told; two models swept, and killed in between."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from biasgeom import cluster, data, models, request, results, run, shelf, sweep
from biasgeom.models import LanguageModel
from bookcopy import Copy, copied, tables, without_template

ROOT = data.root()


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("smollm2-135m-instruct", ("smollm2-135m-instruct", "", "")),
        ("org/name@v1.0", ("org/name", "v1.0", "")),
        ("org/name+org/adapter", ("org/name", "", "org/adapter")),
        ("org/name@refs/pr/1+org/adapter", ("org/name", "refs/pr/1", "org/adapter")),
    ],
)
def test_an_entry_falls_into_what_full_name_puts_together(entry: str, expected: tuple[str, str, str]) -> None:
    assert request.parts(entry) == expected
    assert models.full_name(*request.parts(entry)) == entry


def test_folders_become_absolute_and_keep_their_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("c++ at@home", "c++ at@home+lora", "base", "lora"):
        Path(name).mkdir()
    where = {name: str(tmp_path / name) for name in os.listdir()}
    assert request.parts("c++ at@home") == (where["c++ at@home"], "", "")
    assert request.parts("c++ at@home+lora") == (where["c++ at@home+lora"], "", "")  # a folder of this name, not two
    assert request.parts("base+lora") == (where["base"], "", where["lora"])
    assert request.parts("./base/+org/adapter") == (where["base"], "", "org/adapter")


@pytest.mark.parametrize("entry", ["", " ", "+lora", "@main"])
def test_an_entry_without_a_name_is_refused(entry: str) -> None:
    with pytest.raises(run.ParameterError, match="names no model"):
        request.parts(entry)


def test_every_model_that_cannot_be_had_is_named_at_once(saved_llama: Path) -> None:
    with pytest.raises(models.ModelNotAvailable) as refused:
        sweep.asked([str(saved_llama), "smolm2", str(saved_llama) + "+nowhere"], "smoke", ["gender"])
    assert "no model named 'smolm2'" in str(refused.value)
    assert "adapter nowhere" in str(refused.value)
    assert str(saved_llama) not in str(refused.value)


def test_what_is_asked_of_two_models(saved_llama: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    lm = models.load(str(saved_llama))
    lm.model.save_pretrained(base)
    lm.tokenizer.save_pretrained(base)
    without_template(base)
    asked = sweep.asked([str(saved_llama), str(base), str(saved_llama)], "smoke", ["gender", "judge"])
    assert (asked["profile"], asked["chapters"]) == ("smoke", ["gender", "judge"])
    first, second = asked["models"]  # asked for twice is asked for once
    notebooks = [name for name in run.notebooks() if not name.startswith("delta_b")]
    assert (list(first["values"]), first["skipped"]) == (notebooks, {})
    assert first["slug"] == results.slug(str(saved_llama))
    assert second["values"]["gender/03_encoded"] == {
        "alignment": "smoke",
        "draws": 20,
        "bootstrap": 20,
        "model": str(base),
    }
    # What asks the model as a judge is skipped, and says why; what reads printed tables is not.
    assert set(second["skipped"]) == {n for n in notebooks if n.startswith("judge") and n != "judge/02_humans"}
    assert set(second["values"]) == set(notebooks) - set(second["skipped"])
    assert all("no chat template" in reason for reason in second["skipped"].values())
    json.dumps(asked)


def test_model_json_keeps_what_other_chapters_said(tmp_path: Path) -> None:
    asked = {"name": "m", "values": {"gender/01_prompts": {}}, "skipped": {"judge/01_data": "a reason"}}
    sweep._describe(tmp_path, asked, "smoke")
    sweep._describe(tmp_path, {**asked, "values": {"delta_b/01_sentences": {}}, "skipped": {}}, "embedded")
    kept = json.loads((tmp_path / "model.json").read_text())
    told = {"name": "m", "profile": "embedded", "skipped": {"judge/01_data": "a reason"}}
    assert kept == told | {"asked": ["delta_b/01_sentences", "gender/01_prompts"]}
    # It runs after all, since it was given a chat template.
    sweep._describe(tmp_path, {**asked, "values": {"judge/01_data": {}}, "skipped": {}}, "embedded")
    assert json.loads((tmp_path / "model.json").read_text())["skipped"] == {}
    # What was asked for and left nothing is told from what nobody asked for.
    shown = shelf.Shown("m", "m", tmp_path)
    assert shown.why_not("judge/01_data") == shown.why_not("gender/01_prompts") == shelf.NOT_ENDED
    assert shown.why_not("judge/02_humans") == shelf.NOT_ASKED


def test_what_failed_is_named_by_model(tmp_path: Path) -> None:
    asked = [{"name": name, "slug": name, "values": {"gender/01_prompts": {}}} for name in ("good", "bad")]
    made = tmp_path / "results" / "good" / "gender" / "01_prompts"
    made.mkdir(parents=True)
    (made / "run.json").touch()
    made.with_suffix(".ipynb").touch()
    said = sweep._failures(tmp_path, asked)
    assert "bad: gender/01_prompts" in said
    assert "good" not in said


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands that answer as SLURM's do; what ``scancel`` got lands in a file."""
    folder = tmp_path / "bin"
    folder.mkdir()
    jobs = f"7 {cluster.prefix(tmp_path)}_1234\\n8 somebody-else\\n9 {cluster.prefix(tmp_path / 'other')}_1"
    for name, does in {
        "sinfo": "printf 'cpu*\\ngpu\\n'",
        "squeue": f"printf '{jobs}\\n'",
        "sbatch": "exit 1",
        "scancel": f'echo "$@" >> "{tmp_path}/cancelled"',
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{does}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: object())
    return tmp_path


def profile(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(text)
    return folder


@pytest.mark.parametrize(
    "text",
    [
        "executor: slurm\ndefault-resources: {slurm_partition: gpuu}",
        "executor: slurm\ndefault-resources: [slurm_partition=gpuu, mem_mb=1]",
        "executor: slurm\nset-resources: {notebook: {slurm_partition: gpuu}}",
    ],
)
def test_a_partition_that_does_not_exist_is_named(slurm: Path, text: str) -> None:
    with pytest.raises(cluster.ClusterError, match="no partition gpuu; this cluster has cpu, gpu"):
        cluster.require(profile(slurm / "p", text))
    cluster.require(profile(slurm / "p", text.replace("gpuu", "gpu")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("executor: lsf", "executor is 'lsf'"),
        ("a: [", "is not YAML"),
        ("word", "holds no settings"),
    ],
)
def test_a_profile_that_cannot_be_used_is_refused(slurm: Path, text: str, said: str) -> None:
    with pytest.raises(cluster.ClusterError, match=said):
        cluster.require(profile(slurm / "p", text))


def test_without_a_profile_or_slurm_it_says_so(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(cluster.ClusterError, match="no cluster profile at"):
        cluster.require(slurm / "absent")
    monkeypatch.setenv("PATH", "/usr/nowhere")
    with pytest.raises(cluster.ClusterError, match="no sbatch, squeue, sinfo on this machine"):
        cluster.require(ROOT / "workflow" / "profiles" / "slurm")
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(cluster.ClusterError, match="make cluster"):
        cluster.require(ROOT / "workflow" / "profiles" / "slurm")


def test_only_this_clones_leftover_jobs_are_cancelled(slurm: Path) -> None:
    assert cluster.cancel(slurm) == 1
    assert (slurm / "cancelled").read_text().split() == ["7"]


KEPT = ["gender/01_prompts", "judge/01_data", "judge/02_humans"]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory, build: Callable[[str], LanguageModel]) -> Copy:
    made = copied(tmp_path_factory.mktemp("sweep"), build("llama"))
    made.second_model(build("qwen3"))
    made.only(KEPT)
    return made


@pytest.mark.book
def test_a_killed_sweep_of_two_models_goes_on_and_ends_as_separate_runs_do(copy: Copy) -> None:
    words = ["book", "--no-render", "--profile", "smoke", "--models", *map(str, copy.models)]
    log = copy.root.parent / "log"
    with open(log, "w") as stream:
        command = [sys.executable, "-m", "biasgeom", *words]
        how = {"cwd": copy.root, "env": copy.environment, "stdout": stream, "stderr": stream}
        killed = subprocess.Popen(command, start_new_session=True, **how)
    # One has ended, and Snakemake knows; another one is being run.
    unfinished = copy.root / "_build" / "unfinished"
    while killed.poll() is None and not ("Finished jobid" in log.read_text() and list(unfinished.glob("*.ipynb"))):
        time.sleep(0.1)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    before = copy.done()
    assert 0 < len(before) < 4
    assert list((copy.root / ".snakemake" / "locks").glob("*"))  # what a killed Snakemake leaves

    ended = copy.command(*words)
    assert ended.returncode == 0, ended.stderr
    assert "Skipped: judge/01_data. " in ended.stdout
    after = copy.done()
    assert {name: after[name] for name in before} == before  # what had ended well was not run again
    assert len(after) == 5

    # A changed module makes again what imports it, directly or not, and nothing else.
    words = ["executed", "--snakefile", "workflow/Snakefile", "--configfile", "_build/asked.json", "--cores", "2"]
    dry = [sys.executable, "-m", "snakemake", *words, "--dryrun"]
    for module in ("pages.py", "humans.py"):
        path = copy.root / "lib" / "biasgeom" / module
        path.write_text(path.read_text() + "# changed\n")
        told = subprocess.run(dry, cwd=copy.root, env=copy.environment, capture_output=True, text=True)
        assert told.returncode == 0, told.stderr
        outputs = [line for line in (told.stdout + told.stderr).splitlines() if line.strip().startswith("output:")]
        again = {name for name in KEPT if f"{name}.ipynb" in " ".join(outputs)}
        assert again == ({"judge/02_humans"} if module == "humans.py" else set())

    swept = tables(copy.root / "results")
    described = [json.loads(path.read_text()) for path in sorted((copy.root / "results").glob("*/model.json"))]
    assert {entry["name"]: list(entry["skipped"]) for entry in described} == {
        str(copy.models[0]): [],
        str(copy.models[1]): ["judge/01_data"],
    }
    (copy.root / "results").rename(copy.root / "swept")
    for model in copy.models:
        copy.model = model
        copy.execute_in_one_kernel(KEPT if model == copy.models[0] else [KEPT[0], KEPT[2]])
    assert tables(copy.root / "results") == swept
    assert len(swept) > 10
