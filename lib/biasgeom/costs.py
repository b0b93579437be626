"""What each notebook costs: measured once on an embedded model, scaled to other models and settings.

``data/costs.csv`` has a row a notebook. Its formula ``work`` over the notebook's parameters grows as its tokens do;
``copies`` is how often it holds the model's weights at its peak. ``control`` is the share of the measured work that the
judge chapter's positive control did, whose size stays when another model is judged; it follows from the rows of that
run's tables and the seconds of its stages. The rest was measured: ``at``, the formula's value in that run; tokens;
minutes and peak memory. ``benchmarks/costs.py`` writes it anew from the results of a run.

Tokens are those of a whole run of the book, in which notebooks find in the cache what others measured. A scaled number
tells minutes from hours and a laptop from a server, no more.
"""

import ast
import functools
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from biasgeom import catalogue, data, markdown, run

REFERENCE = "smollm2-135m-instruct"
"""The model that was measured, in float32 on two cores."""
COLUMNS = ["work", "copies", "control"]
MEASURED = ["at", "read", "written", "others_read", "others_written", "minutes", "memory_mb"]
START = 0.5
"""Minutes that a notebook needs to start its kernel, import torch and load a small model."""
CPU_BUDGET = 512
"""Tokens a batch on a CPU, each with its logits in float32."""
UNKNOWN_MB = 1500
"""Of libraries and data, where a notebook's memory was not measured yet."""
CARD, CARD_FLOPS, CARD_MB = "A100 of 80 GB", 312e12, 80_000
"""The papers' card: peak in bfloat16, and memory."""
READING, WRITING = 0.3, 0.03
"""Shares of that peak that reading and sampling in batches are assumed to reach."""
TOKENS_A_ROW = {True: 300, False: 15}
"""Of what models are fine-tuned on: chats or prompts with completions from the hub; this project's statements."""
PAPER_ROWS = 12_000
"""Rows of the five alignment data sets (gender paper, appendix A.1)."""


@dataclass(frozen=True)
class Cost:
    """An estimate for one notebook and model; None where nothing was measured to scale from.

    ``read`` and ``written`` are tokens of the model, its checkpoints and the positive control; ``minutes`` on a machine
    like the one that was measured, ``memory_mb`` its peak there; ``gpu_minutes`` and ``gpu_mb`` on a card like
    :data:`CARD`.
    """

    read: int | None
    written: int | None
    minutes: float | None
    memory_mb: int
    gpu_minutes: float | None
    gpu_mb: int


@functools.cache
def table() -> pd.DataFrame:
    """``data/costs.csv``, numbers as numbers, with NaN where nothing was measured; index: notebook.

    Raises
    ------
    ValueError
        The file lacks a column or a notebook's row stands twice.
    """
    path = data.root() / "data" / "costs.csv"
    found = pd.read_csv(path).set_index("notebook")
    if list(found.columns) != [*COLUMNS, *MEASURED] or found.index.has_duplicates:
        raise ValueError(
            f"{path}: needs the columns notebook, {', '.join([*COLUMNS, *MEASURED])}, and a row a notebook"
        )
    return found.astype({column: float for column in found.columns if column != "work"})


def of(
    notebook: str, values: Mapping[str, Any], *, parameters: int, vocabulary: int, bits: int = 32, second: int = 0
) -> Cost:
    """What a notebook will cost under these parameter values.

    Parameters
    ----------
    values : mapping
        Of the notebook's parameters; its defaults hold for the others.
    parameters, vocabulary : int
        Of the model.
    bits : int
        Of a weight.
    second : int
        Parameters of another architecture that the notebook loads beside the model; the measured run had none.
    """
    row = table().loc[notebook]
    more = work(notebook, values) / row["at"] if row["at"] > 0 else 1.0
    known = catalogue.find(REFERENCE)
    worked = row["control"] * known.parameters + (1 - row["control"]) * parameters
    read, written = (None if math.isnan(row[kind]) else round(row[kind] * more) for kind in ("read", "written"))
    minutes = None if math.isnan(row["minutes"]) else START + row["minutes"] * more * worked / known.parameters
    gpu_minutes = None
    if read is not None:
        seconds = 2 * worked * (read / READING + written / WRITING) / CARD_FLOPS
        gpu_minutes = START + seconds / 60
    weights = (row["copies"] * parameters + second) * bits / 8 / 2**20
    control = (row["control"] > 0) * known.parameters * bits / 8 / 2**20  # on a CPU it is in the measured peak
    gpu_mb = weights + control + 2 * _logits_mb(vocabulary)
    return Cost(
        read, written, minutes, round(_fixed_mb(row) + weights + _logits_mb(vocabulary)), gpu_minutes, round(gpu_mb)
    )


def second_models(values: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The other architecture that notebooks are to load beside the model, by notebook; of those that load one."""
    named = {notebook: {**defaults(notebook), **chosen}.get("second") for notebook, chosen in values.items()}
    return {notebook: name for notebook, name in named.items() if name}


def each(values: Mapping[str, Mapping[str, Any]], model: Any, compared: Mapping[str, Any]) -> dict[str, Cost]:
    """What each notebook will cost under its values, in the number format that they name.

    Parameters
    ----------
    values : mapping
        Notebook → parameter values.
    model : Known or Facts
        Its parameters and vocabulary count.
    compared : mapping
        Notebook → what is known of the architecture of :func:`second_models` that it will find.
    """
    found = {}
    for notebook, chosen in values.items():
        bits = 16 if chosen.get("dtype") == "bfloat16" else 32
        second = (compared[notebook].parameters or 0) if notebook in compared else 0
        sizes = {"parameters": model.parameters, "vocabulary": model.vocabulary}
        found[notebook] = of(notebook, chosen, **sizes, bits=bits, second=second)
    return found


def with_control(notebooks: Iterable[str]) -> list[str]:
    """Those of the notebooks that hold the judge chapter's positive control beside the model."""
    return [notebook for notebook in notebooks if table().loc[notebook, "control"] > 0]


def _fixed_mb(row: pd.Series) -> float:
    """Memory of libraries, data and other models: what the measured peak holds beside the reference model."""
    if math.isnan(row["memory_mb"]):
        return UNKNOWN_MB
    known = catalogue.find(REFERENCE)
    return max(0.0, row["memory_mb"] - row["copies"] * known.parameters * 4 / 2**20 - _logits_mb(known.vocabulary))


def _logits_mb(vocabulary: int) -> float:
    return CPU_BUDGET * vocabulary * 4 / 2**20


def work(notebook: str, values: Mapping[str, Any]) -> float:
    """The notebook's formula with these values, and its defaults for the others.

    A list counts as its length. ``questions`` is how many the judges are asked about; ``trained`` and ``steps`` are the
    tokens and optimiser steps of one fine-tuning by the notebook's recipe.
    """
    chosen = {**defaults(notebook), **values}
    numbers = {name: len(value) if isinstance(value, list) else value for name, value in chosen.items()}
    numbers = {name: float(value) for name, value in numbers.items() if isinstance(value, (int, float))}
    formula = table().loc[notebook, "work"]
    if "questions" in formula:
        numbers["questions"] = chosen["number"] * (9 if chosen["source"] == "benchmarks" else 1)
    if "trained" in formula:
        numbers["trained"], numbers["steps"] = _training(chosen)
    return float(pd.eval(formula, engine="python", local_dict=numbers))


def _training(values: Mapping[str, Any]) -> tuple[int, int]:
    from biasgeom import alignment, spectrum  # they load torch

    if "alignment" in values:
        recipe = alignment.RECIPES[values["alignment"]]
        rows, settings, long = recipe.own_rows or PAPER_ROWS, recipe.settings, recipe.own_rows is None
    else:
        chosen = spectrum.RECIPES[values["recipe"]]
        rows, settings, long = chosen.rows, chosen.lora, chosen.on_chats
    a_step = settings.batch * settings.accumulation
    steps = settings.steps or math.ceil(settings.epochs * rows / a_step)
    return steps * a_step * TOKENS_A_ROW[long], steps


@functools.cache
def defaults(notebook: str) -> dict[str, Any]:
    """The values in the notebook's parameters cell."""
    stated = run.parameters(data.root() / "notebooks" / f"{notebook}.ipynb")
    return {parameter.name: ast.literal_eval(parameter.default) for parameter in stated}


def measured(infos: list[dict[str, Any]], old: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``data/costs.csv`` with what runs of the reference model measured; the other rows stay as they are.

    Where a second model was run with the same parameter values, ``copies`` comes from the difference of the two peaks.

    Parameters
    ----------
    infos : list of dict
        What :func:`biasgeom.results.runs` returns.
    old : DataFrame
        What :func:`table` returns.
    """
    new = old.copy()
    by_notebook = {info["notebook"]: info for info in infos if info["model"] == REFERENCE}
    for notebook, info in by_notebook.items():
        if notebook not in new.index:
            continue
        seconds = info.get("wall_seconds", sum(info["seconds"].values()))
        new.loc[notebook, ["at", "minutes"]] = work(notebook, info["parameters"]), round(seconds / 60, 2)
        for kind, number in info.get("tokens", {}).items():
            new.loc[notebook, kind] = number
        if peak := info.get("peak_memory_mb"):
            new.loc[notebook, "memory_mb"] = peak
    for other in infos:
        info = by_notebook.get(other["notebook"])
        if info and other is not info and info.get("peak_memory_mb") and _same_settings(info, other):
            new.loc[other["notebook"], "copies"] = _copies(info, other)
    return new


def _same_settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    which = {"model", "revision", "adapter"}
    settings = [{k: v for k, v in info["parameters"].items() if k not in which} for info in (one, other)]
    return settings[0] == settings[1] and catalogue.find(other["model"]) is not None


def _copies(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """How often the weights are held: the difference of two models' peaks, logits apart, in weights."""
    small, large = (catalogue.find(info["model"]) for info in (one, other))
    logits = _logits_mb(large.vocabulary) - _logits_mb(small.vocabulary)
    weights = (large.parameters - small.parameters) * 4 / 2**20
    return round(min(max((other["peak_memory_mb"] - one["peak_memory_mb"] - logits) / weights, 1), 8), 2)


def fragment() -> str:
    """The cost page's tables in Markdown: notebook × profile, and what was measured and what is scaled."""
    # What recipes and benchmarks read stands beside the code that trains and measures, which loads torch.
    from biasgeom import access

    profiles = {"embedded": REFERENCE, "thorough": REFERENCE, "paper": run.profile("paper")["model"]}
    rows: dict[str, dict[str, Any]] = {notebook: {"notebook": notebook} for notebook in run.notebooks()}
    for name, model in profiles.items():
        values = {notebook: run.values_for(notebook, name, model) for notebook in rows}
        # An embedded second one is an extra that a machine has or has not, and the page is the same on all.
        named = second_models(values).items() if name == "paper" else ()
        beside = {notebook: known for notebook, second in named if (known := catalogue.find(second))}
        for notebook, cost in each(values, catalogue.find(model), beside).items():
            row = rows[notebook]
            if name != "paper":
                row |= {f"{name}: minutes": cost.minutes, f"{name}: MB": cost.memory_mb}
                continue
            row |= {"paper: GPU minutes": cost.gpu_minutes, "paper: GPU MB": cost.gpu_mb}
            asked = access.needed({notebook: values[notebook]})
            row["paper: downloads"] = ", ".join(dict.fromkeys(one.name for one in asked)) or "none"
    made = pd.DataFrame(rows.values())
    minutes = [column for column in made.columns if column.endswith("minutes")]
    total = {"notebook": "all", **made[minutes].sum(min_count=1), "paper: downloads": ""}
    made = pd.concat([made, pd.DataFrame([total])], ignore_index=True)
    numbers = [column for column in made.columns if column not in ("notebook", "paper: downloads")]
    made[numbers] = made[numbers].map(short)
    caption = f"Minutes and peak memory of each notebook; {profiles['paper']} in the profile *paper*."
    return "\n".join([markdown.table(made, name="tab-costs", caption=caption), _basis(), "", _benchmark(), ""])


def short(number: float | None) -> str:
    """A minute or megabyte count without false precision; a dash where there is none."""
    if number is None or math.isnan(number):
        return "–"
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}"


def _basis() -> str:
    known = table()
    without = {what: list(known.index[known[what].isna()]) for what in ("minutes", "memory_mb", "read")}
    told = [
        f"{label} of {'all notebooks' if len(missing) == len(known) else ', '.join(missing)}"
        for label, missing in zip(("minutes", "memory", "tokens"), without.values(), strict=True)
        if missing
    ]
    lines = [
        f"**Measured** on `{REFERENCE}`, float32, two cores, in one run of the whole book: minutes, memory, tokens.",
        "**Scaled** from that: other settings by each notebook's formula in `data/costs.csv`; other models by their "
        f"parameters; a GPU by arithmetic, for an {CARD} that reaches {READING:.0%} of its peak in reading and "
        f"{WRITING:.0%} in sampling.",
    ]
    if told:
        lines.append(f"**Not measured yet**: {'; '.join(told)}. A dash stands for what can't be told without.")
    return "\n\n".join(lines)


def _benchmark() -> str:
    found = sorted((data.root() / "benchmarks" / "results").glob("*.json"))
    if not found:
        return "**GPU benchmark** (`benchmarks/gpu.py`): not run."
    names = ", ".join(f"`{os.path.basename(path)}`" for path in found)
    return f"**GPU benchmark** (`benchmarks/gpu.py`): run; its output is in `benchmarks/results/`: {names}."
