"""Files of data sets on the hub or on GitHub: fetched once, with the user's own access, and read as tables.

A file of the hub comes through ``huggingface_hub`` and its cache; one of GitHub is kept in ours. No loading script is
run. A file that can't be had is refused within seconds, with the page that says how to get it.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import httpx
import pandas as pd
from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

from biasgeom import cache

GITHUB_FILES = "https://raw.githubusercontent.com"


class DatasetNotAvailable(RuntimeError):
    """A data set can't be had: gated, moved or unreachable. The message says what to do."""


def page(repository: str, revision: str | None) -> str:
    """Where a data set, its licence and the way to it are described; ``revision`` as :func:`fetch` takes it."""
    return ("https://huggingface.co/datasets/" if revision else "https://github.com/") + repository


def fetch(repository: str, revision: str | None, file: str, *, name: str, advice: str = "") -> Path:
    """A local copy of a data set's file: from the hub's cache or ours, else downloaded.

    Parameters
    ----------
    repository : str
        Such as ``"allenai/wildguardmix"``.
    revision : str or None
        A commit or branch of a hub data set; None is a GitHub repository, whose default branch is read once.
    file : str
        Path in the repository.
    name : str
        What a message calls the data set.
    advice : str
        A sentence to end the message with, such as what goes without the data set.

    Raises
    ------
    DatasetNotAvailable
        Within seconds; names the data set, its page and the variable HF_TOKEN.
    """
    try:
        return _from_github(repository, file) if revision is None else _from_hub(repository, revision, file)
    except (httpx.HTTPError, OSError) as error:
        message = (
            f"{name}: {file} could not be had from {page(repository, revision)} ({type(error).__name__}). If the page "
            "says that it is gated or private, accept its terms there and set the variable HF_TOKEN to a token of that "
            f"account. {advice}"
        )
        raise DatasetNotAvailable(message.strip()) from error


def require(repository: str, revision: str | None, file: str) -> None:
    """Raise within seconds what :func:`fetch` would meet; nothing is downloaded.

    Raises
    ------
    httpx.HTTPError, OSError
        As the hub or GitHub answered, for :func:`biasgeom.hub.trouble` to put into words.
    """
    if revision is None:
        if not (cache.root() / "datasets" / repository / file).exists():
            address = f"{GITHUB_FILES}/{repository}/HEAD/{file}"
            httpx.head(address, timeout=5, follow_redirects=True).raise_for_status()
    elif not isinstance(try_to_load_from_cache(repository, file, repo_type="dataset", revision=revision), str):
        get_hf_file_metadata(hf_hub_url(repository, file, repo_type="dataset", revision=revision), timeout=5)


def _from_hub(repository: str, revision: str, file: str) -> Path:
    cached = try_to_load_from_cache(repository, file, repo_type="dataset", revision=revision)
    if isinstance(cached, str):
        return Path(cached)
    # Asked first, for one quick refusal: hf_hub_download tries an unreachable hub again and again.
    get_hf_file_metadata(hf_hub_url(repository, file, repo_type="dataset", revision=revision), timeout=5)
    return Path(hf_hub_download(repository, file, repo_type="dataset", revision=revision))


def _from_github(repository: str, file: str) -> Path:
    target = cache.root() / "datasets" / repository / file
    if not target.exists():
        reply = httpx.get(f"{GITHUB_FILES}/{repository}/HEAD/{file}", timeout=5, follow_redirects=True)
        reply.raise_for_status()
        with cache.atomic(target) as scratch:
            scratch.write_bytes(reply.content)
    return target


def table(path: Path) -> pd.DataFrame:
    """The rows of a file by its ending: parquet, csv (all text, nothing read as missing), jsonl, else json.

    Raises
    ------
    ValueError
        The file holds something else, such as a proxy's page.
    """
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        if path.suffix == ".csv":
            return pd.read_csv(path, dtype=str, keep_default_na=False)
        return pd.read_json(path, lines=path.suffix == ".jsonl", dtype=False)
    except ValueError as error:
        raise ValueError(f"{path} can't be read ({error}); delete it to have it downloaded again") from error


def check(
    rows: pd.DataFrame,
    columns: Sequence[str],
    *,
    where: str,
    filled: Collection[str] = (),
    allowed: Mapping[str, Collection[object]] | None = None,
) -> None:
    """Refuse rows that lack what a loader reads from them.

    Parameters
    ----------
    columns : list of str
        All have to be there; others may.
    where : str
        What a message calls the rows: data set and file.
    filled : list of str
        Columns whose cells must be texts with more than white space.
    allowed : dict, column -> values, optional
        Columns that hold these values only. None among them allows an empty cell.

    Raises
    ------
    ValueError
        Names ``where``, the row (from 0) and the column.
    """
    if missing := [column for column in columns if column not in rows.columns]:
        raise ValueError(f"{where}: no column {', '.join(missing)}; found {', '.join(map(str, rows.columns))}")
    for column in filled:
        for row, value in enumerate(rows[column]):
            if not (isinstance(value, str) and value.strip()):
                raise ValueError(f"{where}: row {row} (from 0) has no {column}")
    for column, values in (allowed or {}).items():
        for row, value in enumerate(rows[column]):
            found = None if pd.isna(value) else value
            if found not in values:
                known = ", ".join(sorted(map(str, values)))
                raise ValueError(f"{where}: row {row} (from 0) has the {column} {found!r}; known are {known}")
