"""Is an archive of results what it should be? Asked before anything of it is read, and of our own before they are sent.

Nothing in an archive is trusted. Sizes are checked before anything is unpacked, names against the few that an archive
may hold, contents against the manifest's checksums, records against ``data/archive.schema.json``, tables by reading
them. Records and headers hold no markup and no control characters. Cells of tables may hold any printable text, since a
model wrote some of them: pages escape it.
"""

import csv
import hashlib
import io
import json
import math
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from biasgeom import data, run

MAX_ARCHIVE, MAX_RECORD, MAX_FILE, MAX_TOTAL = 256 << 20, 4 << 20, 64 << 20, 512 << 20
"""Bytes of an archive, and unpacked of a JSON file, any file, and all files in it; a model's book has 20 MB."""
MAX_FILES, MAX_RATIO = 5000, 100
"""Entries, and unpacked bytes for one packed; tables reach twenty."""
FILE = re.compile(r"run\.json|[A-Za-z0-9][A-Za-z0-9_-]{0,99}\.(?:csv|png|svg)")
"""Names of files beside a notebook."""

_MARKUP = re.compile(r"[<>\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
# What results.Run.table writes as escapes.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]")
_UNREADABLE = (zipfile.BadZipFile, zlib.error, csv.Error, RuntimeError, EOFError, OSError, ValueError)
"""What zipfile, json, csv and pandas raise on broken input; RecursionError is a RuntimeError."""


class ArchiveError(RuntimeError):
    """Results can't be packed, or an archive is not what it should be; names the file and the reason."""


def checked(archive: Path) -> tuple[dict[str, Any], dict[str, bytes], str]:
    """An archive's manifest, the files of it that are read (tables and records), and its SHA-256.

    Raises
    ------
    ArchiveError
        Names the archive and what is wrong with it.
    """
    try:
        if archive.stat().st_size > MAX_ARCHIVE:
            raise ValueError(f"larger than {MAX_ARCHIVE >> 20} MB")
        whole = archive.read_bytes()
        with zipfile.ZipFile(io.BytesIO(whole)) as packed:
            content = {name: packed.read(entry) for name, entry in _entries(packed).items()}
        manifest = _manifest(content)
        _check_files(content, manifest)
    except _UNREADABLE as error:
        words = " ".join(_MARKUP.sub("?", str(error) or type(error).__name__).split())[:300]
        raise ArchiveError(f"{shown(archive)}: {words}") from error
    read = {name: body for name, body in content.items() if name.endswith((".csv", "/run.json", "model.json"))}
    return manifest, read, sha256(whole)


def shown(archive: Path) -> str:
    """An archive as messages name it: with its folder."""
    return _MARKUP.sub("?", f"{archive.parent.name}/{archive.name}")


def sha256(body: bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(body).hexdigest()


def _entries(packed: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Its entries by name, if every one may be there and none is a bomb. Nothing is read yet."""
    entries = packed.infolist()
    if len(entries) > MAX_FILES:
        raise ValueError(f"has {len(entries)} entries, more than {MAX_FILES}")
    seen: set[str] = set()
    notebooks = set(run.notebooks())
    for entry in entries:
        name = entry.orig_filename  # zipfile's own cuts at a null byte
        if not _may_be_there(name, notebooks):
            raise ValueError(f"holds {name[:100]!r}, which no archive of this version has")
        if name.lower() in seen:
            raise ValueError(f"holds {name} twice")
        seen.add(name.lower())
        if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
            raise ValueError(f"{name} is no plain file")
        if entry.flag_bits & 1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name} is encrypted, or packed in a way other than deflate")
        most = min(MAX_RECORD if name.endswith(".json") else MAX_FILE, MAX_RATIO * max(entry.compress_size, 1000))
        if entry.file_size > most:
            raise ValueError(f"{name} would be {entry.file_size} bytes, out of {entry.compress_size}: too many")
    if sum(entry.file_size for entry in entries) > MAX_TOTAL:
        raise ValueError(f"would be more than {MAX_TOTAL >> 20} MB when unpacked")
    return {entry.filename: entry for entry in entries}


def _may_be_there(name: str, notebooks: set[str]) -> bool:
    if name in ("manifest.json", "model.json"):
        return True
    if name.endswith(".ipynb"):
        return name.removesuffix(".ipynb") in notebooks
    folder, _, file = name.rpartition("/")
    return folder in notebooks and bool(FILE.fullmatch(file))


def _manifest(content: dict[str, bytes]) -> dict[str, Any]:
    if "manifest.json" not in content:
        raise ValueError("has no manifest.json; make export writes one")
    with _of("manifest.json"):
        manifest = _record(content["manifest.json"], "manifest")
    stated = manifest["files"]
    if odd := sorted(stated.keys() ^ (content.keys() - {"manifest.json"})):
        raise ValueError(f"{odd[0]} stands in the manifest or in the archive, and not in both")
    for name, said in stated.items():
        if (len(content[name]), sha256(content[name])) != (said["size"], said["sha256"]):
            raise ValueError(f"{name} differs from its checksum")
    return manifest


def _check_files(content: dict[str, bytes], manifest: dict[str, Any]) -> None:
    runs = {name.rpartition("/")[0] for name in content if name.endswith("/run.json")}
    if not runs:
        raise ValueError("has no run.json")
    for name, body in sorted(content.items()):
        notebook = name.rpartition("/")[0]
        with _of(name):
            if name == "model.json":
                _check_owner(_record(body, "model")["name"], manifest)
            elif name.endswith("/run.json"):
                record = _record(body, "run")
                _check_owner(record["model"], manifest)
                if record["notebook"] != notebook:
                    raise ValueError(f"is of the notebook {record['notebook']!r}")
            elif name.endswith(".csv"):
                if notebook not in runs:
                    raise ValueError("has no run.json beside it")
                _check_table(body)


@contextmanager
def _of(name: str) -> Iterator[None]:
    """Name the file in what is said of its content."""
    try:
        yield
    except _UNREADABLE as error:
        raise ValueError(f"{name}: {error}") from error


def _check_owner(model: str, manifest: dict[str, Any]) -> None:
    if model != manifest["model"]:
        raise ValueError(f"is of {model!r}, the manifest of {manifest['model']!r}")


def _record(body: bytes, kind: str) -> dict[str, Any]:
    """A JSON file that fits its part of the schema, without markup in any text."""
    import jsonschema  # takes a second, which a book without others' archives should not wait for

    record = json.loads(body)
    schema = json.loads((data.root() / "data" / "archive.schema.json").read_text())
    part = {"$defs": schema["$defs"], **schema["$defs"][kind]}
    # Another version has other errors, too: name the version first.
    errors = sorted(jsonschema.Draft202012Validator(part).iter_errors(record), key=lambda e: e.json_path != "$.schema")
    if errors:
        raise ValueError(f"{errors[0].json_path}: {errors[0].message[:200]}")
    for value in _values(record):
        if isinstance(value, str) and _MARKUP.search(value):
            raise ValueError(f"has markup or control characters in {value[:100]!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("holds a number that is not finite")
    return record


def _values(value: Any) -> list[Any]:
    """Every text and number in plain JSON, also keys."""
    if isinstance(value, dict):
        return [inner for pair in value.items() for part in pair for inner in _values(part)]
    if isinstance(value, list):
        return [inner for part in value for inner in _values(part)]
    return [value]


def _check_table(body: bytes) -> None:
    text = body.decode()
    if _CONTROL.search(text):
        raise ValueError("holds control characters")
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    header = next(rows, [])
    if not header or len(set(header)) != len(header) or not all(header) or any(map(_MARKUP.search, header)):
        raise ValueError("has a header that lacks names, doubles them, or holds markup")
    if any(len(row) != len(header) for row in rows):
        raise ValueError("has rows of unequal length")
    frame = pd.read_csv(io.StringIO(text))
    # A notebook that times no stage has a table of times without rows.
    if frame.empty and not {"stage", "seconds"} == set(header):
        raise ValueError("has no rows")
    if frame.select_dtypes("number").isin([float("inf"), float("-inf")]).any(axis=None):
        raise ValueError("holds an infinite number")
