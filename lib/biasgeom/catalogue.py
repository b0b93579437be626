"""Models that are known by name: ``profiles/models/<slug>.yaml``, a small file each.

A file says what a model is and who has to agree to what before it is downloaded, without asking the hub. It is a
profile of its own, too: ``base`` names the profile that it starts from, ``notebooks`` what differs. A model that is
loaded takes these values whenever it is run under its base; one that is only asked (``endpoint: true``) has them under
``PROFILE=models/<slug>``, beside a model that is loaded.
"""

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from biasgeom import data, names


@dataclass(frozen=True)
class Known:
    """One file of the catalogue.

    Attributes
    ----------
    name : str
        Embedded name, hub id, or what an endpoint is called here.
    licence, page : str
        Its licence, and where it is read and accepted.
    gated : bool
        Whether the hub, or an endpoint, asks for an account that has agreed.
    base : str
        The profile that ``notebooks`` changes.
    revision : str or None
        Pinned; None is the default branch.
    parameters, blocks, width, vocabulary, context : int or None
        Of what is loaded; None where its maker does not tell.
    papers : dict
        Paper → the model's role there.
    notebooks : dict
        Notebook → parameter values that differ from the base.
    endpoint : bool
        Known by its replies only.
    """

    name: str
    licence: str
    page: str
    gated: bool
    base: str
    revision: str | None = None
    parameters: int | None = None
    blocks: int | None = None
    width: int | None = None
    vocabulary: int | None = None
    context: int | None = None
    papers: dict[str, str] = field(default_factory=dict)
    notebooks: dict[str, dict[str, Any]] = field(default_factory=dict)
    endpoint: bool = False


def folder() -> Path:
    """Where the files are."""
    return data.root() / "profiles" / "models"


def models() -> list[Known]:
    """Every known model, in order of file names.

    Raises
    ------
    ValueError
        A file that is no such description; the message names it.
    """
    return [_read(path) for path in sorted(folder().glob("*.yaml"))]


def find(name: str) -> Known | None:
    """The known model of this name (a revision or an adapter leaves it what it is), if it is one."""
    bare = name.partition("+")[0].partition("@")[0]
    path = folder() / f"{names.slug(bare)}.yaml"
    return _read(path) if path.is_file() else None


@functools.cache
def _read(path: Path) -> Known:
    try:
        return Known(**yaml.safe_load(path.read_text(encoding="utf-8")))
    except (TypeError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} does not describe a model: {error}") from error
