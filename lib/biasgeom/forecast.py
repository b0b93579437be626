"""The plan of a sweep as text: tokens, time and memory of each notebook, and what is missing."""

import os
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
import psutil

from biasgeom import cache, catalogue, costs, plan, request
from biasgeom.plan import Values

if TYPE_CHECKING:
    from biasgeom.facts import Facts


def report(
    models: Sequence[str],
    profile: str,
    chapters: Sequence[str] | None,
    *,
    here: bool = True,
    anyway: bool = False,
) -> tuple[str, bool]:
    """The plan of a sweep as text, and whether the sweep would start; nothing is run, no weights are downloaded.

    Parameters
    ----------
    models : list of str
        ``name[@revision][+adapter]``; empty for the profile's.
    here, anyway : bool
        As for :func:`biasgeom.sweep.asked`.

    Raises
    ------
    ParameterError
        A wrong parameter, chapter or profile.
    """
    wanted = plan.asked(models, profile, chapters)
    absent, lines, runs_of = plan.unavailable(list(wanted)), [_machine(), ""], {}
    for name, values in wanted.items():
        bare, revision, _ = request.parts(name)
        model = plan.look_up(bare, revision)
        runs_of[name], skipped = plan.divided(name, values)
        lines += [*_described(name, model, absent=name in absent), "", *_table(model, runs_of[name]), ""]
        lines += [f"Skipped, {notebook}: {reason}" for notebook, reason in skipped.items()] + [""] * bool(skipped)
    missing = plan.lacking(runs_of, here=here)
    if not (absent or missing):
        return "\n".join([*lines, "Nothing is missing."]), True
    lines += ["Missing:", *(f"- {one}" for one in (*absent.values(), *missing))]
    starts = anyway and not absent
    if starts:
        lines.append("make book ANYWAY=yes would start all the same.")
    else:
        lines.append("make book would not start" + ("." if absent else "; with ANYWAY=yes it would."))
    return "\n".join(lines), starts


def _machine() -> str:
    cards = ", ".join(f"{card} of {mb / 1024:.0f} GB" for card, mb in plan.cards()) or "no GPU"
    memory, free = psutil.virtual_memory().total, shutil.disk_usage(plan.existing(cache.root())).free
    return (
        f"This machine: {os.cpu_count()} cores, {memory / 2**30:.0f} GB of memory, {cards}, {free / 2**30:.0f} GB free "
        f"for {cache.root()}"
    )


def _described(name: str, model: "Facts", *, absent: bool) -> list[str]:
    if model.parameters is None:
        return [f"{name}: {'can not be had, see below' if absent else f'{model.kind}, of unknown size'}"]
    size = f"{model.parameters:,} parameters, {model.blocks} blocks of width {model.width}"
    licence = f"; licence: {model.licence} ({model.page})" if model.licence else ""
    weights = {"here": "here", "to download": f"to download, about {2 * model.parameters / 2**30:.1f} GB"}
    found = "missing, see below" if absent else weights[model.weights]
    return [f"{name}: {model.kind}, {size}{licence}", f"Weights: {found}"]


def _table(model: "Facts", values: Values) -> list[str]:
    made = plan.costs_of(model, values)
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
        *_beside(values),
        *_floor(model),
    ]


def _beside(values: Values) -> list[str]:
    """What notebooks load beside the model; it is in the table."""
    lines = [
        f"{notebook} also loads {second.name}, {second.parameters or 0:,} parameters, to compare with."
        for notebook, second in plan.compared(values).items()
    ]
    if judged := costs.with_control(values):
        from biasgeom import adapters  # pulls in torch

        (control,) = adapters.PLANTED
        size = plan.look_up(control, None).parameters
        lines.append(
            f"{', '.join(judged)} also load the positive control {control}, {size:,} parameters, and judge with it: "
            "its tokens, minutes and memory are the same for every model."
        )
    return lines


def _floor(model: "Facts") -> list[str]:
    """Said of a model far below the one that was measured, whose minutes were scaled down to nothing."""
    if model.parameters > catalogue.find(costs.REFERENCE).parameters / 4:
        return []
    return [
        f"A model this small is not estimated: {costs.START} minutes are a notebook's start alone. Statistics, figures "
        "and training take up to a minute more."
    ]
