"""Ask the hub for a model before anything large is loaded."""

import re
from pathlib import Path

import httpx
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from biasgeom.embedded import EMBEDDED, ModelNotAvailable

ID = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
"""What a hub id looks like: organisation/name."""


def find(name: str, revision: str | None, file: str) -> tuple[str, str | None]:
    """Where to load from, and the commit: the name if the hub has this file for us, else a copy in the hub's cache.

    Raises
    ------
    ModelNotAvailable
        Gated, unknown, without this file or revision, or unreachable; the message says what to accept and set.
    """
    try:
        return ask(name, revision, file)
    except (httpx.HTTPError, OSError) as error:
        wanted = name + (f"@{revision}" if revision else "")
        raise ModelNotAvailable(
            f"{wanted} {trouble(error, file)}. See https://huggingface.co/{name}; if it is gated or private, "
            "accept its licence there and set the variable HF_TOKEN to a token of that account. "
            f"An embedded model needs no hub: {', '.join(EMBEDDED)}."
        ) from error


def ask(name: str, revision: str | None, file: str) -> tuple[str, str | None]:
    """As :func:`find`, but raises what the hub answered.

    One request for a file's header, without retries: a gated or unreachable model fails in seconds.

    Raises
    ------
    httpx.HTTPError, OSError
        For :func:`trouble` to put into words.
    """
    try:
        return name, get_hf_file_metadata(hf_hub_url(name, file, revision=revision), timeout=5).commit_hash
    except (httpx.HTTPError, OSError):
        cached = try_to_load_from_cache(name, file, revision=revision)
        if isinstance(cached, str):
            return str(Path(cached).parent), Path(cached).parent.name
        raise


def trouble(error: Exception, file: str) -> str:
    """What is wrong with a repository, after its name, by the error that asking for one of its files raised."""
    if isinstance(error, GatedRepoError):
        return "is gated"
    if isinstance(error, RepositoryNotFoundError):
        return "is not on the hub, or is private"
    if isinstance(error, RevisionNotFoundError):
        return "is not on the hub: no such revision"
    if isinstance(error, EntryNotFoundError):
        return f"has no {file}, and nothing else is read"
    if isinstance(error, HfHubHTTPError) and error.response.status_code == 401:
        return "can't be asked for: the hub refuses the token (HF_TOKEN, or stored by `hf auth login`); make a new one"
    return f"is neither in the local hub cache nor reachable ({type(error).__name__})"
