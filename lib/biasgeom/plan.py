"""What a sweep will need, before anything is run or downloaded: tokens, time, memory, disk, weights, access.

Loading of torch waits until a model is looked at: a wrong parameter is refused before.
"""

import importlib.util
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub
import pandas as pd
import psutil

from biasgeom import cache, costs, request, run

if TYPE_CHECKING:
    from biasgeom.facts import Facts

Values = Mapping[str, Mapping[str, Any]]
"""Notebook → parameter values."""

WITHOUT_CHAT = ("judge/02_humans",)
"""Notebooks of the judge chapter that ask no judge."""
LARGE = 1_000_000_000
"""Parameters from which a notebook asks a cluster for GPUs."""
MARGIN, SHORTEST = 3, 60
"""Minutes that a cluster is asked for: so many times the estimate, and at least so many."""
UNKNOWN = (4096, 0, 240)
EXTRAS = {"tasks": ("lm_eval", "benchmarks"), "trials": ("lightgbm", "judge")}
"""Parameter → what it needs to be installed, and the extra that has it."""


def cannot(name: str, notebook: str, values: Mapping[str, Any] | None = None) -> str | None:
    """Why a model can't run a notebook, as a sentence for its pages; None if it can.

    Parameters
    ----------
    name : str
        ``name[@revision][+adapter]``.
    values : mapping, optional
        The notebook's parameter values; its defaults hold for the others.
    """
    chosen = {**costs.defaults(notebook), **(values or {})}
    judge = notebook.startswith("judge/") and notebook not in WITHOUT_CHAT
    if not (judge or _trains_on_chats(chosen)):
        return None
    bare, revision, _ = request.parts(name)
    if _facts(bare, revision).chat is not False:
        return None
    if judge:
        return f"{name} has no chat template: it can't be asked as a judge, and raw text is no substitute."
    return f"{name} has no chat template, and the recipe {chosen['recipe']} fine-tunes on chats."


def _trains_on_chats(values: Mapping[str, Any]) -> bool:
    if "recipe" not in values:
        return False
    from biasgeom import spectrum

    return spectrum.RECIPES[values["recipe"]].on_chats


def divided(name: str, values: Values) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
    """Of the asked notebooks those that a model runs, with their values, and those that it can't, with the reason."""
    skipped = {notebook: reason for notebook, chosen in values.items() if (reason := cannot(name, notebook, chosen))}
    return {notebook: chosen for notebook, chosen in values.items() if notebook not in skipped}, skipped


def _facts(name: str, revision: str | None) -> "Facts":
    from biasgeom import facts

    key = (name, revision or None)
    if key not in _known:
        _known[key] = facts.of(*key)
    return _known[key]


_known: dict[tuple[str, str | None], "Facts"] = {}
"""Asked once a process: a hub that does not answer costs seconds."""


def resources(name: str, values: Values | None = None) -> tuple[int, int, int]:
    """Memory in MB, GPUs and minutes that the costliest notebook of a model asks a cluster for.

    Parameters
    ----------
    name : str
        ``name[@revision][+adapter]``.
    values : mapping, optional
        Of the notebooks to run; default: all of them at their defaults.

    Returns
    -------
    tuple of int
        :data:`UNKNOWN` for a model of unknown size.
    """
    bare, revision, _ = request.parts(name)
    model = _facts(bare, revision)
    made = _costs(model, values or {notebook: {} for notebook in run.notebooks()})
    if not made:
        return UNKNOWN
    memory = max(cost.memory_mb for cost in made.values())
    if (model.parameters or 0) < LARGE:
        return memory, 0, _minutes([cost.minutes for cost in made.values()])
    gpus = math.ceil(max(cost.gpu_mb for cost in made.values()) / _card_mb())
    return memory, gpus, _minutes([cost.gpu_minutes for cost in made.values()])


def _minutes(estimates: Sequence[float | None]) -> int:
    known = [estimate for estimate in estimates if estimate is not None]
    return max(SHORTEST, math.ceil(MARGIN * max(known))) if known else 4 * SHORTEST


def _costs(model: "Facts", values: Values) -> dict[str, costs.Cost]:
    if model.parameters is None or model.vocabulary is None:
        return {}
    sizes = {"parameters": model.parameters, "vocabulary": model.vocabulary}
    bits = {notebook: 16 if chosen.get("dtype") == "bfloat16" else 32 for notebook, chosen in values.items()}
    return {n: costs.of(n, chosen, **sizes, bits=bits[n]) for n, chosen in values.items()}


def report(models: Sequence[str], profile: str, chapters: Sequence[str] | None) -> str:
    """The plan of a sweep as text, ending with what is missing; nothing is run, and no weights are downloaded.

    Parameters
    ----------
    models : list of str
        ``name[@revision][+adapter]``; empty for the profile's.

    Raises
    ------
    ParameterError
        A wrong parameter, chapter or profile.
    """
    names = list(models) or [run.profile(profile).get("model") or ""]
    asked = {name: request.values(chapters, profile, name) for name in names}
    lines, lacking, runs_of = [_machine(), ""], [], {}
    for name, values in asked.items():
        bare, revision, _ = request.parts(name)
        model = _facts(bare, revision)
        runs, skipped = divided(name, values)
        runs_of[name] = runs
        lines += [*_described(name, model), "", *_table(model, runs), ""]
        lines += [f"Skipped, {notebook}: {reason}" for notebook, reason in skipped.items()] + [""] * bool(skipped)
        lacking += shortages(name, runs)
    lacking += inaccessible(runs_of)
    lines += ["Missing:", *(f"- {one}" for one in dict.fromkeys(lacking))] if lacking else ["Nothing is missing."]
    return "\n".join(lines)


def _machine() -> str:
    cards = ", ".join(f"{card} of {mb / 1024:.0f} GB" for card, mb in _cards()) or "no GPU"
    memory, free = psutil.virtual_memory().total, shutil.disk_usage(_existing(cache.root())).free
    return (
        f"This machine: {os.cpu_count()} cores, {memory / 2**30:.0f} GB of memory, {cards}, {free / 2**30:.0f} GB free "
        f"for {cache.root()}"
    )


def _cards() -> list[tuple[str, float]]:
    import torch

    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return [(card.name, card.total_memory / 2**20) for card in found]


def _card_mb() -> float:
    cards = _cards()
    return cards[0][1] if cards else costs.CARD_MB


def _described(name: str, model: "Facts") -> list[str]:
    if model.parameters is None:
        return [f"{name}: {model.kind}, of unknown size"]
    size = f"{model.parameters:,} parameters, {model.blocks} blocks of width {model.width}"
    licence = f"; licence: {model.licence} ({model.page})" if model.licence else ""
    weights = {"here": "here", "to download": f"to download, about {2 * model.parameters / 2**30:.1f} GB"}
    return [f"{name}: {model.kind}, {size}{licence}", f"Weights: {weights.get(model.weights, 'missing, see below')}"]


def _table(model: "Facts", values: Values) -> list[str]:
    made = _costs(model, values)
    if not made:
        return []

    def count(number: int | None) -> str:
        return "–" if number is None else f"{number:,}"

    rows = [
        [
            n,
            count(c.read),
            count(c.written),
            costs.short(c.minutes),
            count(c.memory_mb),
            costs.short(c.gpu_minutes),
            count(c.gpu_mb),
        ]
        for n, c in made.items()
    ]
    names = ["notebook", "tokens read", "written", "minutes", "memory MB", "GPU minutes", "GPU MB"]
    minutes = [c.minutes for c in made.values() if c.minutes is not None]
    return [
        pd.DataFrame(rows, columns=names).to_string(index=False),
        f"In all about {sum(minutes):,.0f} minutes one after the other on two cores like those that were measured; GPU "
        f"numbers are arithmetic for an {costs.CARD}. – is not measured yet; see book/costs.md.",
    ]


def shortages(name: str, values: Values) -> list[str]:
    """What a model's notebooks need of memory, disk and installed packages and this machine does not have.

    Parameters
    ----------
    name : str
        ``name[@revision][+adapter]``.
    values : mapping
        Of the notebooks to run.
    """
    bare, revision, _ = request.parts(name)
    model, found = _facts(bare, revision), []
    if model.missing and model.kind != "hub":  # one of the hub is asked for with the others
        found.append(model.weights if bare in model.weights else f"{name} {model.weights}")
    for parameter, (package, extra) in EXTRAS.items():
        users = [
            notebook for notebook, chosen in values.items() if {**costs.defaults(notebook), **chosen}.get(parameter)
        ]
        if users and importlib.util.find_spec(package) is None:
            found.append(f"the package {package} for {', '.join(users)}: .venv/bin/uv pip install -e '.[{extra}]'")
    made = _costs(model, values)
    if not made:
        return found
    cards = _cards()
    have = sum(mb for _, mb in cards) if cards else psutil.virtual_memory().total / 2**20
    worst = max(made, key=lambda notebook: made[notebook].gpu_mb if cards else made[notebook].memory_mb)
    need = made[worst].gpu_mb if cards else made[worst].memory_mb
    if need > have:
        where = "GPU memory" if cards else "memory"
        found.append(f"{where}: {name} needs about {need / 1024:.0f} GB in {worst}, there are {have / 1024:.0f} GB")
    return found + _no_room(name, model, values)


def _no_room(name: str, model: "Facts", values: Values) -> list[str]:
    """Too small disks for the weights, and for fine-tuned ends and hidden states in the cache."""
    kept = 0.0
    trained = [chosen for notebook, chosen in values.items() if "recipe" in costs.defaults(notebook)]
    if trained:
        seeds = max({"seeds": 1, **chosen}["seeds"] for chosen in trained)
        kept += 2 * seeds * 4 * model.parameters
    judged = {n: {**costs.defaults(n), **chosen} for n, chosen in values.items() if n.startswith("judge/")}
    asked = [c["number"] * (9 if c["source"] == "benchmarks" else 1) for c in judged.values() if "source" in c]
    kept += 15 * max(asked, default=0) * model.blocks * model.width * 4
    places = [(cache.root(), kept, "fine-tuned models and hidden states", "BIASGEOM_CACHE")]
    if model.weights == "to download":
        hub_cache = Path(huggingface_hub.constants.HF_HUB_CACHE)
        places.append((hub_cache, 2 * model.parameters, "weights", "HF_HUB_CACHE"))
    found = []
    for folder, need, what, variable in places:
        free = shutil.disk_usage(_existing(folder)).free
        if need > free:
            found.append(
                f"disk: {name} needs about {need / 2**30:.0f} GB in {folder} for {what}, {free / 2**30:.0f} GB are "
                f"free; free some, or set {variable} to another folder"
            )
    return found


def _existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.parents) if place.exists())


def inaccessible(asked: Mapping[str, Values]) -> list[str]:
    """What can't be had of all that models' notebooks read from outside, a line each; every one is asked for once."""
    from biasgeom import access

    needed = {repository: used for values in asked.values() for repository, used in access.needed(values).items()}
    used_by = {(one.kind, one.name): used for one, used in needed.items()}
    lines = []
    for row in access.missing(list(needed)).itertuples():
        used = used_by[row.kind, row.name]
        which = ", ".join(used) if len(used) <= 3 else f"{len(used)} notebooks"
        lines.append(f"{row.kind} {row.name} ({which}) {row.problem}; {row.page}")
    if lines:
        lines.append("for what is gated: accept its terms on its page, then set HF_TOKEN to a token of that account")
    return lines
