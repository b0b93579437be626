"""What a command line asks for: which models, notebooks, and parameter values.

A model is asked for as ``name[@revision][+adapter]``: an embedded name, a hub id or a folder, on which an adapter (a
folder or a hub id) may be put. :func:`biasgeom.names.full_name` writes the same.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from biasgeom import run


def notebooks(chapters: Sequence[str] | None) -> list[str]:
    """The book's notebooks of these chapters, or all.

    Raises
    ------
    ParameterError
        No such chapter.
    """
    names = run.notebooks()
    papers = {name.split("/")[0] for name in names}
    if unknown := set(chapters or ()) - papers:
        raise run.ParameterError(f"no chapter {', '.join(sorted(unknown))}; there are {', '.join(sorted(papers))}")
    return [name for name in names if not chapters or name.split("/")[0] in chapters]


def parts(entry: str) -> tuple[str, str, str]:
    """Name, revision and adapter of an asked model; folders become absolute, since notebooks run in their own.

    ``@`` and ``+`` in the name of a folder that exists belong to the name.

    Raises
    ------
    ParameterError
        The name is empty.
    """
    pieces = entry.strip().split("+")
    starts = ["+".join(pieces[:count]) for count in range(len(pieces), 0, -1)]
    name = next((start for start in starts if _folder(start)), pieces[0])
    adapter, revision = entry.strip()[len(name) + 1 :], ""
    if not _folder(name):
        name, _, revision = name.partition("@")
    if not name:
        raise run.ParameterError(f"{entry!r} names no model; it is name[@revision][+adapter]")
    return _folder(name) or name, revision, _folder(adapter) or adapter


def _folder(name: str) -> str:
    """Its absolute path if it is a folder, else nothing."""
    path = Path(name).expanduser()
    return str(path.resolve()) if name and path.is_dir() else ""


def values(chapters: Sequence[str] | None, profile: str, entry: str | None = None) -> dict[str, dict[str, Any]]:
    """Each notebook's checked parameter values for a model, as :func:`parts` reads it; without one, the profile's.

    Raises
    ------
    ParameterError
        A profile that does not exist or names no model, or a value that a notebook does not take.
    """
    wanted = entry if entry is not None else run.profile(profile).get("model")
    if wanted is None:
        raise run.ParameterError(f"profile {profile!r} names no model; give one")
    name, *rest = parts(wanted)
    # The profile's revision and adapter are those of its own model.
    given = {key: value for key, value in zip(("revision", "adapter"), rest, strict=True) if value or entry is not None}
    found = {}
    for notebook in notebooks(chapters):
        chosen = run.values_for(notebook, profile, name) | given
        found[notebook] = {key: value for key, value in chosen.items() if value or key not in ("revision", "adapter")}
    return found


def model(values: Mapping[str, Mapping[str, Any]]) -> tuple[str, str | None, str | None]:
    """Name, revision and adapter of the one model that all notebooks read.

    Raises
    ------
    ParameterError
        A profile has them read several.
    """
    keys = ("model", "revision", "adapter")
    first, *others = {tuple(chosen.get(key) for key in keys) for chosen in values.values()}
    if others:
        raise run.ParameterError(
            f"a book's notebooks read one model, not {sorted(map(str, (first, *others)))}; change the profile"
        )
    return first
