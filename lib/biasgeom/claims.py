"""What a paper claims, and whether one model's tables show it: the frame that each chapter's rules fill.

``data/<paper>/claims.yaml`` lists a paper's claims; each has a rule in ``claims_<paper>.py`` that reads ``results/``
and returns a verdict with its evidence. The rules were written before a chapter was first run; which of them changed
afterwards stands on the page of choices.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from biasgeom import data, results

HOLDS = "holds"
LIMITED = "holds with the stated limit"
NOT_SHOWN = "does not show at this scale"
NOT_RUN = "not run"
LEVEL = 0.05
"""Of significance, in every rule."""

Verdict = tuple[str, str]
"""One of the four words, and the evidence in a sentence."""


class MissingTable(LookupError):
    """A section has not been run for this model."""


class Tables:
    """One chapter's result tables of one model; :class:`MissingTable` if a section has not been run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, pd.DataFrame] = {}  # some tables are asked for by a dozen rules

    def __call__(self, notebook: str, name: str, **where: object) -> pd.DataFrame:
        path = self.folder / notebook / f"{name}.csv"
        if not path.exists():
            self.info(notebook)  # what was not run is said so
            raise MissingTable(f"{notebook}/{name}.csv is not there")
        table = self._read[path] if path in self._read else self._read.setdefault(path, pd.read_csv(path))
        if lacking := set(where) - set(table):
            raise MissingTable(f"{notebook}/{name}.csv lacks {', '.join(sorted(lacking))}: an older version made it")
        for column, value in where.items():
            table = table[table[column] == value]
        if table.empty:
            raise MissingTable(f"{notebook}/{name}.csv has no row for {where}")
        return table.copy()

    def info(self, notebook: str) -> dict[str, Any]:
        """``run.json`` of a section."""
        path = self.folder / notebook / "run.json"
        if not path.exists():
            raise MissingTable(f"{notebook} has not been run")
        return json.loads(path.read_text())


Rules = Mapping[str, Callable[[Tables], Verdict]]
"""Claim id → its rule."""


def by_count(held: Sequence[bool]) -> str:
    """The verdict on a claim of several parts: all of them hold, some, or none."""
    return HOLDS if all(held) else LIMITED if any(held) else NOT_SHOWN


def named(*rules: Callable[[Tables], Verdict]) -> Rules:
    """Rules by claim id: ``_encoded_persists`` is the rule of ``encoded-persists``."""
    return {rule.__name__.strip("_").replace("_", "-"): rule for rule in rules}


def listed(paper: str) -> pd.DataFrame:
    """The claims of ``data/<paper>/claims.yaml``: id, section, claim, rule (in words), notebook, label."""
    return data.claims(paper)


def verdicts(paper: str, rules: Rules, model: str) -> pd.DataFrame:
    """Every claim with its verdict and evidence on one model's results; a section that lacks a table is "not run"."""
    tables = Tables(results.root() / results.slug(model) / paper)
    claims = listed(paper)
    found = []
    for claim in claims["id"]:
        try:
            found.append(rules[claim](tables))
        except MissingTable as missing:
            found.append((NOT_RUN, str(missing)))
    return claims.assign(verdict=[v for v, _ in found], evidence=[e for _, e in found])


def beside(paper: str, model: str) -> pd.DataFrame:
    """Numbers of the paper's text (``data/published/<paper>_text_values.csv``) beside the same quantities of one model.

    In ``where``, ``{model}`` stands for the model, since tables of several judges name each; digits are a number. An
    optional column ``bounds`` names the two columns that hold the interval, or is empty where there is none.

    Returns
    -------
    DataFrame
        section, quantity, published, measured, interval (text), label; measured is missing where a section was not run.
    """
    tables = Tables(results.root() / results.slug(model) / paper)
    rows = []
    for value in data.published(f"{paper}_text_values").itertuples():
        row = {"section": value.section, "quantity": value.quantity, "published": value.published}
        try:
            where = {key: _wanted(text, model) for key, text in (part.split("=") for part in value.where.split(";"))}
            found = tables(value.notebook, value.table, **where).iloc[0]
            bounds = getattr(value, "bounds", f"low high {value.column}_low {value.column}_high")
            row |= {"measured": found[value.column], "95 % interval": _interval(found, bounds)}
            row |= {"by chance": found.get("chance")}
        except MissingTable:
            row |= {"measured": None, "95 % interval": "not run", "by chance": None}
        rows.append(row | {"label": value.label})
    table = pd.DataFrame(rows)
    return table if table["by chance"].notna().any() else table.drop(columns="by chance")


def _wanted(text: str, model: str) -> str | int:
    return int(text) if text.isdigit() else text.replace("{model}", model)


def _interval(row: pd.Series, bounds: str | float) -> str:
    """The first of the pairs of columns that the row has; a dash without."""
    names = bounds.split() if isinstance(bounds, str) else []
    for low, high in zip(names[::2], names[1::2], strict=True):
        if row.reindex([low, high]).notna().all():
            return f"{row[low]:.2f} to {row[high]:.2f}"
    return "–"
