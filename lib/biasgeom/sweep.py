"""One sweep: models × notebooks through Snakemake, on this machine or on a cluster, then the book."""

import fcntl
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from biasgeom import cache, cluster, data, plan, results
from biasgeom.embedded import ModelNotAvailable

THREADS = 4
"""Of a notebook on a cluster, unless its profile says otherwise."""


class NotReady(RuntimeError):
    """A sweep would fail later for want of something; the message lists all of it."""


def asked(
    models: Sequence[str], profile: str, chapters: Sequence[str] | None, *, here: bool = True, anyway: bool = False
) -> dict[str, Any]:
    """What ``_build/asked.json`` holds, once it is certain that every notebook can start.

    Without models, the profile's is taken. A notebook that a model can't run is skipped, with the reason.

    Parameters
    ----------
    models : sequence of str
        ``name[@revision][+adapter]``.
    here : bool
        Whether notebooks run on this machine, whose memory and disk then have to do.
    anyway : bool
        Start although something seems to be missing.

    Raises
    ------
    ParameterError
        A wrong parameter, chapter or profile; before torch is imported.
    ModelNotAvailable
        Models that can't be had, all of them in one message; before anything is downloaded.
    NotReady
        Memory, disk, an extra, or access to a data set is missing; likewise.
    """
    wanted = plan.asked(models, profile, chapters)
    if absent := plan.unavailable(list(wanted)):
        raise ModelNotAvailable("\n".join(absent.values()))
    listed = []
    for name, chosen in wanted.items():
        runs, skipped = plan.divided(name, chosen)
        mem_mb, gpus, minutes = plan.resources(name, runs)
        sizes = {"mem_mb": mem_mb, "gpus": gpus, "minutes": minutes}
        listed.append({"name": name, "slug": results.slug(name), "values": runs, "skipped": skipped, **sizes})
    lacking = plan.lacking({model["name"]: model["values"] for model in listed}, here=here)
    if lacking and not anyway:
        raise NotReady("\n- ".join(["not started, for want of (make book ANYWAY=yes starts all the same):", *lacking]))
    return {"profile": profile, "chapters": list(chapters or ()), "models": listed}


def run_all(asked: dict[str, Any], *, cores: str, profile: Path | None, render: bool) -> None:
    """Execute what :func:`asked` returned and, on request, render the book.

    A notebook that fails leaves the others going; a later sweep makes what is missing, and only that.

    Raises
    ------
    RuntimeError
        Another sweep is going on in this clone, or something failed: the message names each notebook and model.
    ClusterError
        The cluster does not answer.
    """
    root = data.root()
    snakemake = _snakemake(cores, profile, render)
    with _alone(root) as lock:
        (root / "_build" / "asked.json").write_text(json.dumps(asked, indent=1))
        for model in asked["models"]:
            folder = root / "results" / model["slug"]
            _forget_runs_by_hand(folder, list(model["values"]))
            _describe(folder, model, asked["profile"])
        if any((root / ".snakemake" / "locks").glob("*")):
            # Nobody holds our lock, so Snakemake's is what a killed run left.
            unlocked = subprocess.run([*snakemake, "--unlock"], cwd=root, capture_output=True, text=True)
            if unlocked.returncode:
                raise RuntimeError(f"Snakemake could not be unlocked after a killed run: {unlocked.stderr.strip()}")
        if profile:
            cluster.cancel(root)
        # Snakemake inherits the lock: it is held as long as either lives, also after this process is killed.
        code = subprocess.run(snakemake, cwd=root, pass_fds=[lock]).returncode
    if code:
        raise RuntimeError(_failures(root, asked["models"]))


def _snakemake(cores: str, profile: Path | None, render: bool) -> list[str]:
    # Both targets: asked for the book alone, Snakemake does not miss a result that was deleted or failed to be made.
    command = [sys.executable, "-m", "snakemake", "executed", *(["book"] if render else [])]
    command += ["--snakefile", "workflow/Snakefile", "--configfile", "_build/asked.json"]
    command += ["--keep-going", "--rerun-incomplete", "--quiet", "rules", "host"]
    if profile:
        command += ["--workflow-profile", str(profile.resolve()), "--config", f"threads={THREADS}"]
        return [*command, "--slurm-jobname-prefix", cluster.prefix(data.root())]
    import torch

    # Of what a notebook asks for: two that need more memory than there is together run one after the other.
    limits = [f"mem_mb={psutil.virtual_memory().total >> 20}"]
    limits += ["accelerator=1"] if torch.cuda.is_available() else []
    return [*command, "--cores", cores, "--resources", *limits]


@contextmanager
def _alone(root: Path) -> Iterator[int]:
    """Hold this clone's lock; yields its file descriptor."""
    (root / "_build").mkdir(exist_ok=True)
    with open(root / "_build" / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError("another run of the book is going on in this folder; wait for it to end") from None
        yield lock.fileno()


def _describe(folder: Path, model: dict[str, Any], profile: str) -> None:
    """Write ``model.json``: what of this model was asked for, and what is not run, and why; of other sweeps, too."""
    path = folder / "model.json"
    before = json.loads(path.read_text()) if path.exists() else {"skipped": {}}
    kept = {notebook: reason for notebook, reason in before["skipped"].items() if notebook not in model["values"]}
    described = {"name": model["name"], "profile": profile, "skipped": {**kept, **model["skipped"]}}
    described["asked"] = sorted({*before.get("asked", []), *model["values"]})
    text = json.dumps(described, indent=1)
    if not path.exists() or path.read_text() != text:  # the pages depend on it
        folder.mkdir(parents=True, exist_ok=True)
        with cache.atomic(path) as scratch:
            scratch.write_text(text)


def _forget_runs_by_hand(folder: Path, notebooks: list[str]) -> None:
    """Results newer than the book's executed notebook are of a run by hand, maybe with other parameters: run again."""
    for notebook in notebooks:
        record, page = folder / notebook / "run.json", folder / f"{notebook}.ipynb"
        if record.exists() and page.exists() and record.stat().st_mtime > page.stat().st_mtime:
            record.unlink()


def _failures(root: Path, models: list[dict[str, Any]]) -> str:
    """Names what a sweep that did not end well lacks: Snakemake removes the outputs of a job that failed."""
    lines = []
    for model in models:
        folder = root / "results" / model["slug"]
        made = [n for n in model["values"] if (folder / f"{n}.ipynb").exists() and (folder / n / "run.json").exists()]
        if missing := [notebook for notebook in model["values"] if notebook not in made]:
            lines.append(f"  {model['name']}: {', '.join(missing)}")
    if not lines:
        return "not everything ended well; the messages above say what failed"
    what = "without results, since they failed or were not reached (the messages above say which and why; the outputs "
    return "\n".join([f"{what}up to an error are in _build/unfinished):", *lines])
