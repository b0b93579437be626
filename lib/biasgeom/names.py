"""A model's name in full, as the name of a folder or a file, and as others may read it."""

import hashlib
import re
from pathlib import Path


def full_name(name: str, revision: str | None = None, adapter: str | None = None) -> str:
    """``LanguageModel.name`` of what :func:`biasgeom.models.load` would return: name, ``@revision``, ``+adapter``."""
    return name + (f"@{revision}" if revision else "") + (f"+{adapter}" if adapter else "")


def slug(model: str) -> str:
    """A model's name as a folder name; two names never share one.

    An embedded name stays as it is and a hub id's slash becomes ``--``. Of a folder, a revision or an adapter the
    readable part stays, and eight digits of the whole name's SHA-256 follow.
    """
    part = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
    if re.fullmatch(rf"(?:{part}/)?{part}", model) and "--" not in model and len(model) <= 100:
        return model.replace("/", "--")
    last = [Path(name).name if name.count("/") != 1 else name for name in model.split("+")]
    readable = re.sub(r"[^A-Za-z0-9._-]+", "--", "--".join(last)).strip("-.")
    return f"{readable[-80:]}-{hashlib.sha256(model.encode()).hexdigest()[:8]}".lstrip("-.")


def public(model: str) -> str:
    """A model's name without the folders above it: the last part of each path, ``base+adapter`` staying two."""
    return "+".join(part.rstrip("/").rsplit("/", 1)[-1] if part.startswith("/") else part for part in model.split("+"))
