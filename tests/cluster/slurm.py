"""The same sweep through SLURM and on this machine; run by ``tests/cluster/run``, which brings SLURM up.

Two tiny models and the notebooks whose names begin with one of the words in ``$BIASGEOM_WHICH``, smoke profile. The
planted judge, which has 135 million parameters, is a tiny one here.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from biasgeom import run
from biasgeom.models import LanguageModel

sys.path.insert(0, str(Path(__file__).parents[1]))
from bookcopy import Copy, copied, tables
from conftest import build  # noqa: F401  a fixture

WHICH = tuple(os.environ.get("BIASGEOM_WHICH", "gender").split())


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory, build: Callable[[str], LanguageModel]) -> Copy:  # noqa: F811
    made = copied(tmp_path_factory.mktemp("cluster"), build("llama"))
    made.second_model(build("qwen3"))
    made.only([name for name in run.notebooks() if name.startswith(WHICH)])
    # The published profile, with what this cluster needs: it has no accounts, and two cores.
    path = made.root / "workflow" / "profiles" / "slurm" / "config.yaml"
    settings = yaml.safe_load(path.read_text())
    settings |= {"slurm-no-account": True, "slurm-status-command": "squeue", "set-threads": {"notebook": 1}}
    settings |= {"slurm-init-seconds-before-status-checks": 5, "latency-wait": 10}
    path.write_text(yaml.safe_dump(settings))
    return made


def sweep(copy: Copy, *words: str) -> list[str]:
    models = ["--models", *map(str, copy.models)]
    return [sys.executable, "-m", "biasgeom", "book", "--no-render", "--profile", "smoke", *models, *words]


def test_a_partition_that_does_not_exist_is_named_before_anything_starts(copy: Copy, tmp_path: Path) -> None:
    profile = tmp_path / "wrong"
    shutil.copytree(copy.root / "workflow" / "profiles" / "slurm", profile)
    settings = yaml.safe_load((profile / "config.yaml").read_text())
    settings["default-resources"] = {"slurm_partition": "gpuu"}
    (profile / "config.yaml").write_text(yaml.safe_dump(settings))
    ended = copy.command(*sweep(copy, "--cluster", str(profile))[3:])
    assert ended.returncode == 1
    assert "no partition gpuu; this cluster has only" in ended.stderr
    assert not (copy.root / "_build" / "asked.json").exists()


def test_through_slurm_the_tables_are_those_of_a_local_run(copy: Copy, tmp_path: Path) -> None:
    start = time.monotonic()
    words = sweep(copy, "--cluster", "workflow/profiles/slurm")
    log = tmp_path / "log"
    with open(log, "w") as stream:
        running = subprocess.Popen(words, cwd=copy.root, env=copy.environment, stdout=stream, stderr=stream)
    # A job in the middle is cancelled; retries submit it again.
    cancelled = ""
    while running.poll() is None and not cancelled:
        time.sleep(2)
        if copy.done():
            states = subprocess.run(
                ["squeue", "--noheader", "--states=R", "--format=%i"], capture_output=True, text=True
            )
            cancelled = states.stdout.split()[0] if states.stdout.split() else ""
    if cancelled:
        subprocess.run(["scancel", cancelled], check=True)
    running.wait()
    errors = log.read_text()
    print(f"\nthrough SLURM, one job cancelled: {time.monotonic() - start:.0f} s; load {os.getloadavg()[0]:.1f}")
    assert running.returncode == 0, errors
    assert cancelled  # else nothing ran beside what had ended
    assert f"'{cancelled}'" in errors  # Snakemake noticed

    through_slurm = tables(copy.root / "results")
    shutil.move(copy.root / "results", copy.root / "results of slurm")
    shutil.rmtree(copy.cache)  # nothing is read from what the other measured
    start = time.monotonic()
    ended = copy.command(*sweep(copy, "--cores", "2")[3:])
    print(f"here: {time.monotonic() - start:.0f} s; load {os.getloadavg()[0]:.1f}")
    assert ended.returncode == 0, ended.stderr
    here = tables(copy.root / "results")
    assert here == through_slurm
    assert len({path.split("/")[0] for path in here}) == 2
