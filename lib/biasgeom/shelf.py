"""The models whose results are there: those under ``results/`` and those that other people contributed."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from biasgeom import archive, relabel, results
from biasgeom.claims import Tables

MOST = 3
"""So many models are shown with all their notebooks, unless more are asked for: rendering one takes half a second."""


@dataclass(frozen=True)
class Shown:
    """One model's results.

    Attributes
    ----------
    name : str
        The model's full name. Untrusted if contributed: escape it.
    slug : str
    folder : Path
        Holds ``<paper>/<notebook>/`` with tables and ``run.json``.
    contributed : bool
        Whether somebody else ran it: its tables are read, its notebooks are not shown.
    archive : str
        The name of the archive it came in, else nothing.
    in_full : bool
        Whether the book shows its notebooks, too.
    """

    name: str
    slug: str
    folder: Path
    contributed: bool = False
    archive: str = ""
    in_full: bool = True

    @property
    def tag(self) -> str:
        """The ending of its labels."""
        return relabel.tag(self.slug)

    @cached_property
    def described(self) -> dict[str, Any]:
        """``model.json``: profile, and what was skipped with the reason; of a notebook run by hand there is none."""
        path = self.folder / "model.json"
        return json.loads(path.read_text()) if path.exists() else {"name": self.name, "profile": None, "skipped": {}}

    @cached_property
    def runs(self) -> dict[str, dict[str, Any]]:
        """``run.json`` by notebook, ``"<paper>/<name>"``."""
        paths = sorted(self.folder.glob("*/*/run.json"))
        names = [path.parent.relative_to(self.folder).as_posix() for path in paths]
        # What a run has not finished lies in a hidden folder.
        return {n: json.loads(path.read_text()) for n, path in zip(names, paths, strict=True) if "/." not in n}

    def tables(self, paper: str) -> Tables:
        return Tables(self.folder / paper)

    def executed(self, notebooks: Collection[str]) -> list[str]:
        """Those of the notebooks that were executed, with their results, if the book shows them."""
        if not self.in_full:
            return []
        return [n for n in notebooks if n in self.runs and (self.folder / f"{n}.ipynb").exists()]

    def why_not(self, notebook: str) -> str:
        """Why there is nothing of a notebook, or nothing to say."""
        return "" if notebook in self.runs else self.described["skipped"].get(notebook, "")


def own(asked: Sequence[str], *, most: int = MOST) -> list[Shown]:
    """The asked models, first and in order, then all others that have results under ``results/``.

    The asked ones are shown in full, and of the others as many as make ``most`` together.
    """
    found = {}
    for folder in sorted({path.parents[2] for path in results.root().glob("*/*/*/run.json")}):
        for info in list(Shown("", folder.name, folder).runs.values())[:1]:
            found[folder.name] = Shown(info["model"], folder.name, folder)
    first = [Shown(name, results.slug(name), results.root() / results.slug(name)) for name in asked]
    others = [model for slug, model in found.items() if slug not in {one.slug for one in first}]
    room = max(0, most - len(first))
    return first + others[:room] + [replace(model, in_full=False) for model in others[room:]]


def contributed() -> list[Shown]:
    """What others ran: archives that were verified and unpacked."""
    return [
        Shown(given.name, given.slug, given.folder, contributed=True, archive=given.archive.name)
        for given in archive.contributed()
    ]
