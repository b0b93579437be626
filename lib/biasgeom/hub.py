"""Ask the hub for a model before anything large is loaded."""

import re
from pathlib import Path

import httpx
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from biasgeom.embedded import EMBEDDED, ModelNotAvailable

ID = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
"""What a hub id looks like: organisation/name."""


def find(name: str, revision: str | None, file: str) -> tuple[str, str | None]:
    """Where to load from, and the commit: the name if the hub has this file for us, else a copy in the hub's cache.

    One request for a file's header, without retries: a gated or unreachable model fails in seconds and in plain words.

    Raises
    ------
    ModelNotAvailable
        Gated, unknown, without this file or revision, or unreachable; the message says what to accept and set.
    """
    try:
        return name, get_hf_file_metadata(hf_hub_url(name, file, revision=revision), timeout=5).commit_hash
    except (httpx.HTTPError, OSError) as error:
        cached = try_to_load_from_cache(name, file, revision=revision)
        if isinstance(cached, str):
            return str(Path(cached).parent), Path(cached).parent.name
        if isinstance(error, GatedRepoError):
            problem = "is gated"
        elif isinstance(error, RepositoryNotFoundError):
            problem = "is not on the hub, or is private"
        elif isinstance(error, RevisionNotFoundError):
            problem = "is not on the hub: no such revision"
        elif isinstance(error, EntryNotFoundError):
            problem = f"has no {file}, and nothing else is read"
        else:
            problem = f"is neither in the local hub cache nor reachable ({type(error).__name__})"
        wanted = name + (f"@{revision}" if revision else "")
        raise ModelNotAvailable(
            f"{wanted} {problem}. See https://huggingface.co/{name}; if it is gated or private, "
            "accept its licence there and set the variable HF_TOKEN to a token of that account. "
            f"An embedded model needs no hub: {', '.join(EMBEDDED)}."
        ) from error
