"""A SLURM cluster that Snakemake submits to: is it there, and what did a killed sweep leave on it.

A profile is a folder with Snakemake's own ``config.yaml``, such as ``workflow/profiles/slurm``.
"""

import hashlib
import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml


class ClusterError(RuntimeError):
    """A cluster profile can't be used; the message says why and what to change."""


def require(profile: Path) -> None:
    """Raise ``ClusterError`` in seconds if jobs could not be submitted with this profile.

    Checked are the file, the plug-in of its executor, SLURM's commands, and that each partition exists that it names.
    """
    settings = _settings(profile)
    executor = settings.get("executor")
    if executor != "slurm":
        raise ClusterError(f"{profile}/config.yaml: executor is {executor!r}; only slurm is known here")
    if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
        raise ClusterError(
            "the package snakemake-executor-plugin-slurm is not installed; run make cluster, or "
            "uv pip install -e '.[cluster]'"
        )
    if missing := [command for command in ("sbatch", "squeue", "sinfo") if shutil.which(command) is None]:
        raise ClusterError(f"no {', '.join(missing)} on this machine; start the sweep on a login node of the cluster")
    there = {name.rstrip("*") for name in _slurm("sinfo", "--noheader", "--format", "%P").split()}
    if unknown := _partitions(settings) - there:
        raise ClusterError(
            f"{profile}/config.yaml: no partition {', '.join(sorted(unknown))}; this cluster has "
            f"{', '.join(sorted(there))}. Copy the profile, change slurm_partition there, and give the copy as CLUSTER"
        )


def prefix(root: Path) -> str:
    """How the names of this clone's jobs begin."""
    return f"biasgeom-{hashlib.sha256(str(root).encode()).hexdigest()[:12]}"


def cancel(root: Path) -> int:
    """Cancel jobs of this clone that a killed sweep left queued or running; returns how many there were.

    Left alone, such a job would write into the folder of the one that is submitted in its place.
    """
    rows = [row.split() for row in _slurm("squeue", "--me", "--noheader", "--format", "%i %j").splitlines()]
    left = [row[0] for row in rows if row[-1].startswith(prefix(root))]
    if left:
        _slurm("scancel", *left)
    return len(left)


def _settings(profile: Path) -> dict[str, Any]:
    path = profile / "config.yaml"
    if not path.is_file():
        raise ClusterError(f"no cluster profile at {path}; there is workflow/profiles/slurm")
    try:
        settings = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ClusterError(f"{path} is not YAML: {error}") from None
    if not isinstance(settings, dict):
        raise ClusterError(f"{path} holds no settings")
    return settings


def _partitions(settings: dict[str, Any]) -> set[str]:
    """What a profile names as partitions, as mappings or as Snakemake's ``name=value``."""
    given: list[Any] = [settings.get("default-resources"), *(settings.get("set-resources") or {}).values()]
    found = set()
    for resources in given:
        pairs = resources if isinstance(resources, dict) else dict(str(r).split("=", 1) for r in resources or ())
        if pairs.get("slurm_partition"):
            found.add(str(pairs["slurm_partition"]))
    return found


def _slurm(*words: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{words[0]} gave no answer within a minute; is the cluster up?") from None
    if done.returncode:
        raise ClusterError(f"{words[0]} failed: {done.stderr.strip()}; is the cluster up?")
    return done.stdout
