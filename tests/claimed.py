"""Made-up tables of a chapter, edits of them, and what the rules say of them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from biasgeom import claims
from biasgeom.claims import HOLDS, LIMITED, NOT_RUN, NOT_SHOWN, Rules

MODEL, CONTROL, SECOND = "acme/tiny", "planted", "other"
Tables = dict[str, pd.DataFrame]
Edit = Callable[[Tables], None]


def write(folder: Path, tables: Tables, second: str = SECOND) -> None:
    for name, table in tables.items():
        path = folder / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(path, index=False, float_format="%.6g")
        record = {"model": MODEL, "parameters": {"second": second}}
        path.with_name("run.json").write_text(json.dumps(record))


def put(name: str, where: dict[str, object], **values: float | str) -> Edit:
    """An edit: these values in the rows of a table that match."""

    def edit(tables: Tables) -> None:
        table = tables[name]
        rows = np.logical_and.reduce([table[column].isin(np.atleast_1d(value)) for column, value in where.items()])
        assert rows.any(), (name, where)
        for column, value in values.items():
            assert column in table
            table[column] = table[column].where(~rows, value)

    return edit


def drop(name: str, **where: object) -> Edit:
    """An edit: without the rows of a table that match."""

    def edit(tables: Tables) -> None:
        table = tables[name]
        rows = np.logical_and.reduce([table[column].isin(np.atleast_1d(value)) for column, value in where.items()])
        assert rows.any(), (name, where)
        tables[name] = table[~rows]

    return edit


def both(*edits: Edit) -> Edit:
    def edit(tables: Tables) -> None:
        for each in edits:
            each(tables)

    return edit


def said(rules: Rules, claim: str, folder: Path) -> claims.Verdict:
    """What a rule returns; "not run" with the message where a table is missing."""
    try:
        return rules[claim](claims.Tables(folder))
    except claims.MissingTable as missing:
        return NOT_RUN, str(missing)


def require_covered(cases: Sequence[tuple[str, str, Edit]], stated: Mapping[str, str]) -> None:
    """Every verdict that a claim's rule, in words, can end in is among the cases of that claim."""
    for claim, rule in stated.items():
        possible = {HOLDS, NOT_SHOWN, NOT_RUN} | ({LIMITED} if "Limit" in rule else set())
        assert {verdict for of, verdict, _ in cases if of == claim} == possible, claim


def require_verdict(
    rules: Rules, claim: str, verdict: str, edit: Edit, *, tables: Tables, section: str, folder: Path
) -> None:
    """On the edited tables of its section alone the rule returns the verdict, with evidence."""
    edit(tables)
    write(folder, {name: table for name, table in tables.items() if name.startswith(section)})
    found, evidence = said(rules, claim, folder)
    assert found == verdict, evidence
    assert evidence
    assert "nan" not in evidence
