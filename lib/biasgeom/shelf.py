"""The models whose results are there: those under ``results/`` and those that other people contributed."""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from biasgeom import archive, names, relabel, results
from biasgeom.claims import Tables

MOST = 3
"""So many models are shown with all their notebooks, unless more are asked for: rendering one takes half a second."""
NOT_ASKED = "Not asked for."
NOT_ENDED = "Asked for, but it ended with an error, or was not reached."
NOT_TOLD = "Not asked for, or ended with an error."
"""Where no sweep of this version says what was asked for: by hand, or an older one."""
NOT_GIVEN = "Not in its archive."


@dataclass(frozen=True)
class Shown:
    """One model's results.

    Attributes
    ----------
    name : str
        The model's full name, as its tables have it; pages show :attr:`title`. Untrusted if contributed: escape it.
    slug : str
    folder : Path
        Holds ``<paper>/<notebook>/`` with tables and ``run.json``.
    contributed : bool
        Whether somebody else ran it: its tables are read, its notebooks are not shown.
    archive : str
        The name of the archive it came in, else nothing.
    in_full : bool
        Whether the book shows its notebooks, too.
    namesake : bool
        Whether another model has the same name but for the folders above.
    """

    name: str
    slug: str
    folder: Path
    contributed: bool = False
    archive: str = ""
    in_full: bool = True
    namesake: bool = False

    @property
    def title(self) -> str:
        """What pages call it: its name, of a folder the last part; its slug where another model would be called so."""
        return self.slug if self.namesake else names.public(self.name)

    @property
    def tag(self) -> str:
        """The ending of its labels."""
        return relabel.tag(self.slug)

    @cached_property
    def described(self) -> dict[str, Any]:
        """``model.json``: profile, what was asked for, what skipped and why; of notebooks run by hand there is none."""
        path = self.folder / "model.json"
        return json.loads(path.read_text()) if path.exists() else {"name": self.name, "profile": None, "skipped": {}}

    @cached_property
    def runs(self) -> dict[str, dict[str, Any]]:
        """``run.json`` by notebook, ``"<paper>/<name>"``."""
        paths = _records(self.folder, "*/*/run.json")
        return {path.parent.relative_to(self.folder).as_posix(): json.loads(path.read_text()) for path in paths}

    def tables(self, paper: str) -> Tables:
        return Tables(self.folder / paper)

    def executed(self, notebooks: Collection[str]) -> list[str]:
        """Those of the notebooks that were executed, with their results, if the book shows them."""
        if not self.in_full:
            return []
        return [n for n in notebooks if n in self.runs and (self.folder / f"{n}.ipynb").exists()]

    def why_not(self, notebook: str) -> str:
        """Why there is nothing of a notebook, in a sentence; nothing if it was run."""
        if notebook in self.runs:
            return ""
        asked = self.described.get("asked")
        lacking = NOT_TOLD if asked is None else NOT_ENDED if notebook in asked else NOT_ASKED
        known = self.described["skipped"].get(notebook, NOT_GIVEN if self.contributed else lacking)
        return known.replace(self.name, names.public(self.name))


def own(asked: Sequence[str], *, most: int = MOST) -> list[Shown]:
    """The asked models, first and in order, then all others that have results under ``results/``.

    The asked ones are shown in full, and of the others as many as make ``most`` together.
    """
    firsts: dict[Path, Path] = {}
    for path in _records(results.root(), "*/*/*/run.json"):
        firsts.setdefault(path.parents[2], path)
    found = {at.name: Shown(json.loads(path.read_text())["model"], at.name, at) for at, path in firsts.items()}
    first = [Shown(name, results.slug(name), results.root() / results.slug(name)) for name in asked]
    others = [model for slug, model in found.items() if slug not in {one.slug for one in first}]
    room = max(0, most - len(first))
    return _told_apart(first + others[:room] + [replace(model, in_full=False) for model in others[room:]])


def contributed(own: Sequence[Shown]) -> list[Shown]:
    """What others ran: archives that were verified and unpacked; titled otherwise than this clone's own models."""
    given = [
        Shown(one.name, one.slug, one.folder, contributed=True, archive=one.archive.name)
        for one in archive.contributed()
    ]
    return _told_apart([*own, *given])[len(own) :]


def _told_apart(models: Sequence[Shown]) -> list[Shown]:
    shared = Counter(names.public(model.name) for model in models)
    return [replace(model, namesake=shared[names.public(model.name)] > 1) for model in models]


def _records(folder: Path, pattern: str) -> list[Path]:
    """In order, without those of runs that have not finished, which lie in hidden folders."""
    return sorted(path for path in folder.glob(pattern) if not path.parent.name.startswith("."))
