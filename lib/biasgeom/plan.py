"""What a sweep will need, before anything is run or downloaded: tokens, time, memory, disk, weights, access.

Loading of torch waits until a model is looked at: a wrong parameter is refused before.
"""

import functools
import importlib.util
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub
import psutil

from biasgeom import cache, costs, names, request, run

if TYPE_CHECKING:
    from biasgeom.facts import Facts

Values = Mapping[str, Mapping[str, Any]]
"""Notebook → parameter values."""

WITHOUT_CHAT = ("judge/02_humans",)
"""Notebooks of the judge chapter that ask no judge."""
SPOKEN = (
    "delta_b/04_output",
    "delta_b/05_results",
    "delta_b/06_methods",
    "delta_b/07_robustness",
    "delta_b/08_cost",
    "delta_b/10_monitor",
)
"""Notebooks that read a model's output bias from the probabilities of adjectives."""
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
    if notebook in SPOKEN and (words := _adjectives(request.parts(name)[0])):
        return f"{name}: {words}, so its output bias can't be read from them."
    judge = notebook.startswith("judge/") and notebook not in WITHOUT_CHAT
    if not (judge or _trains_on_chats(chosen)):
        return None
    bare, revision, _ = request.parts(name)
    if look_up(bare, revision).chat is not False:
        return None
    if judge:
        return f"{name} has no chat template: it can't be asked as a judge, and raw text is no substitute."
    return f"{name} has no chat template, and the recipe {chosen['recipe']} fine-tunes on chats."


@functools.cache
def _adjectives(name: str) -> str:
    """What a model's vocabulary lacks for :mod:`biasgeom.probe`; empty if nothing, or if it is not in a folder here."""
    folder = Path(name).expanduser()
    if not list(folder.glob("tokenizer*")):
        return ""
    from transformers import AutoTokenizer

    from biasgeom import probe

    try:
        found = len(probe.single_tokens(AutoTokenizer.from_pretrained(folder)))
    except (OSError, ValueError):  # loading the model says what is wrong with it
        return ""
    few = f"{found} of {len(probe.POSITIVE)} adjective pairs are single tokens of its vocabulary"
    return f"only {few}, {probe.FEWEST_PAIRS} are needed" if found < probe.FEWEST_PAIRS else ""


def _trains_on_chats(values: Mapping[str, Any]) -> bool:
    if "recipe" not in values:
        return False
    from biasgeom import spectrum

    return spectrum.RECIPES[values["recipe"]].on_chats


def divided(name: str, values: Values) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
    """Of the asked notebooks those that a model runs, with their values, and those that it can't, with the reason."""
    skipped = {notebook: reason for notebook, chosen in values.items() if (reason := cannot(name, notebook, chosen))}
    return {notebook: chosen for notebook, chosen in values.items() if notebook not in skipped}, skipped


def look_up(name: str, revision: str | None) -> "Facts":
    """The facts about a model."""
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
    model = look_up(bare, revision)
    made = costs_of(model, values or {notebook: {} for notebook in run.notebooks()})
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


def costs_of(model: "Facts", values: Values) -> dict[str, costs.Cost]:
    """Each notebook's estimate; none for a model of unknown size."""
    if model.parameters is None or model.vocabulary is None:
        return {}
    return costs.each(values, model, compared(values))


def compared(values: Values) -> dict[str, "Facts"]:
    """Another architecture that notebooks load beside the model; they do without an embedded one that isn't here."""
    found = {notebook: look_up(name, None) for notebook, name in costs.second_models(values).items()}
    return {notebook: one for notebook, one in found.items() if one.kind == "hub" or not one.missing}


def asked(models: Sequence[str], profile: str, chapters: Sequence[str] | None) -> dict[str, Values]:
    """Each asked model's full name, with its notebooks' checked values; without one, the profile's model.

    Raises
    ------
    ParameterError
        A wrong parameter, chapter or profile; before torch is imported.
    """
    values = [request.values(chapters, profile, entry) for entry in models or [None]]
    return {names.full_name(*request.model(chosen)): chosen for chosen in values}


def unavailable(asked: Sequence[str]) -> dict[str, str]:
    """Those of the models that can't be had, with a sentence that says why and what to do."""
    from biasgeom import access

    entries, found = [request.parts(name) for name in asked], {}
    for name, entry, problem in zip(asked, entries, access.unavailable(entries), strict=True):
        model = look_up(*entry[:2])
        if problem:
            found[name] = problem
        elif model.missing:  # it is there, and no model that is read here
            found[name] = model.weights if entry[0] in model.weights else f"{name} {model.weights}"
    return found


def lacking(runs: Mapping[str, Values], *, here: bool = True) -> list[str]:
    """What models' notebooks need and can't have, a line each; models themselves are :func:`unavailable`'s.

    Parameters
    ----------
    runs : mapping
        A model's full name → values of the notebooks to run.
    here : bool
        Whether they run on this machine, whose memory and disk then have to do.
    """
    found = [line for name, values in runs.items() if here for line in shortages(name, values)]
    return list(dict.fromkeys([*found, *inaccessible(runs)]))


def cards() -> list[tuple[str, float]]:
    """Name and memory in MB of each GPU here."""
    import torch

    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return [(card.name, card.total_memory / 2**20) for card in found]


def _card_mb() -> float:
    found = cards()
    return found[0][1] if found else costs.CARD_MB


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
    model, found = look_up(bare, revision), []
    for parameter, (package, extra) in EXTRAS.items():
        users = [
            notebook for notebook, chosen in values.items() if {**costs.defaults(notebook), **chosen}.get(parameter)
        ]
        if users and importlib.util.find_spec(package) is None:
            found.append(f"the package {package} for {', '.join(users)}: .venv/bin/uv pip install -e '.[{extra}]'")
    made = costs_of(model, values)
    if not made:
        return found
    gpus = cards()
    have = sum(mb for _, mb in gpus) if gpus else psutil.virtual_memory().total / 2**20
    worst = max(made, key=lambda notebook: made[notebook].gpu_mb if gpus else made[notebook].memory_mb)
    need = made[worst].gpu_mb if gpus else made[worst].memory_mb
    if need > have:
        where = "GPU memory" if gpus else "memory"
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
        free = shutil.disk_usage(existing(folder)).free
        if need > free:
            found.append(
                f"disk: {name} needs about {need / 2**30:.0f} GB in {folder} for {what}, {free / 2**30:.0f} GB are "
                f"free; free some, or set {variable} to another folder"
            )
    return found


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(place for place in (folder, *folder.parents) if place.exists())


def inaccessible(asked: Mapping[str, Values]) -> list[str]:
    """What can't be had of all that notebooks read from outside beside the asked models, a line each.

    Every one is asked for once.
    """
    from biasgeom import access

    needed = {one: used for values in asked.values() for one, used in access.needed(values).items()}
    for bare, revision, adapter in map(request.parts, asked):
        for own in access.needed({"": {"model": bare, "revision": revision, "adapter": adapter}}):
            needed.pop(own, None)
    used_by = {(one.kind, one.name): used for one, used in needed.items()}
    lines = []
    for row in access.missing(list(needed)).itertuples():
        used = used_by[row.kind, row.name]
        which = ", ".join(used) if len(used) <= 3 else f"{len(used)} notebooks"
        lines.append(f"{row.kind} {row.name} ({which}) {row.problem}; {row.page}")
    if lines:
        lines.append("for what is gated: accept its terms on its page, then set HF_TOKEN to a token of that account")
    return lines
