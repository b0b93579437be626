"""One model's results in one zip, to hand on; and those that others handed on, checked before anything is read.

An archive is laid out as ``results/<slug>/`` is, with ``manifest.json`` on top. Nothing in it is ever executed or
rendered: of others' archives only tables, ``run.json`` and ``model.json`` are unpacked, which pages show escaped, and
in which no cell is left that a spreadsheet would compute.
"""

import csv
import io
import json
import os
import re
import shutil
import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biasgeom import cache, data, inspection, redaction, results, run
from biasgeom.inspection import ArchiveError

SCHEMA_VERSION = 1
"""In step with ``data/archive.schema.json``."""


@dataclass(frozen=True)
class Contribution:
    """Results of one model that someone else ran.

    Attributes
    ----------
    name : str
        The model's, as its maker calls it.
    slug : str
        As :func:`biasgeom.results.slug` makes it; ends in ``--contributed-<sha8>`` if the model has results here, too.
    folder : Path
        Holds ``<paper>/<notebook>/*.csv`` and ``run.json``, as ``results/<slug>/`` does.
    archive : Path
    sha256 : str
        Of the archive.
    """

    name: str
    slug: str
    folder: Path
    archive: Path
    sha256: str


def root() -> Path:
    """Where others' archives lie: ``$BIASGEOM_CONTRIBUTED``, else ``contributed/`` of the repository."""
    return Path(os.environ.get("BIASGEOM_CONTRIBUTED") or data.root() / "contributed").expanduser()


def export(slug: str, target: Path) -> Path:
    """Pack one model's results into a zip: tables, figures, ``run.json``, executed notebooks, and a manifest.

    The same results give the same bytes. Of a run that read texts from the hub (:data:`biasgeom.redaction.OWN`) the
    executed notebook is left out and the free-text columns of its tables are emptied; what a killed run left is left
    out, too. The manifest says so. Paths of this machine become their last part.

    Parameters
    ----------
    slug : str
        Folder name under ``results/``.
    target : Path
        The zip to write; one that exists is replaced.

    Raises
    ------
    ArchiveError
        No results of this model, a run that is going on, or a file that an archive may not hold.
    biasgeom.redaction.TokenFound
        A file holds a token.
    """
    folder = results.root() / slug
    # Not of a scratch folder, which pathlib's * would match, too.
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("*/[!.]*/run.json"))]
    if not runs:
        there = sorted({path.parts[-4] for path in results.root().glob("*/*/*/run.json")})
        raise ArchiveError(f"{folder} holds no results to pack; there are {', '.join(there) or 'none of any model'}")
    killed = {"what": "a run", "why": "was killed before it ended"}
    left_out = [{"file": notebook, **killed} for notebook in _killed(folder)]
    places, content = redaction.Places(runs[0]["model"]), {}
    if (folder / "model.json").exists():
        content["model.json"] = places.json((folder / "model.json").read_text()).encode()
    for info in runs:
        if info["notebook"] in run.notebooks():
            packed, without = _packed(folder, info, places)
            content |= packed
            left_out += without
        else:
            left_out.append({"file": info["notebook"], "what": "everything", "why": "is no notebook of this version"})
    manifest = {
        "schema": SCHEMA_VERSION,
        "model": places.value(runs[0]["model"]),
        "slug": slug,
        "libraries": sorted({info["packages"]["biasgeom"] for info in runs}),
        "commits": sorted({info["commit"] for info in runs if info["commit"]}),
        "files": {name: {"sha256": inspection.sha256(b), "size": len(b)} for name, b in sorted(content.items())},
        "left_out": left_out,
    }
    content["manifest.json"] = (json.dumps(manifest, indent=1) + "\n").encode()
    for name, body in content.items():
        redaction.refuse_tokens(f"{slug}/{name}", body)
    try:
        with placed(target) as scratch:
            write(content, scratch)
            inspection.checked(scratch)
    except ArchiveError as error:  # what others would refuse is not written
        raise ArchiveError(f"{folder} can't be packed: {str(error).partition(': ')[2]}") from error
    except OSError as error:
        raise ArchiveError(f"{target} can't be written: {error.strerror}; name another file") from error
    return target


def _killed(folder: Path) -> list[str]:
    """The notebooks of which a run was killed; refuses a model of which one may be going on."""
    left = sorted(folder.glob("*/.*.unfinished-*"))
    if going := [str(path) for path in left if not results.ended(path)]:
        raise ArchiveError(
            f"{', '.join(going)}: a run is going on, on this machine or another. Wait for it; if there is none, it was "
            "killed: delete what is named"
        )
    for table in sorted(folder.glob("*/[!.]*/*.csv")):
        if not (table.parent / "run.json").exists():
            raise ArchiveError(f"{table.parent} has tables of a run that make book would make again; run it first")
    return sorted({f"{path.parent.name}/{path.name[1:].partition('.unfinished-')[0]}" for path in left})


@contextmanager
def placed(target: Path) -> Iterator[Path]:
    """Yield a path for a file that takes the place of ``target`` if the body ends well.

    As :func:`biasgeom.cache.atomic` does, and what killed processes left beside it is removed.
    """
    folder = results.own_folder(target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder / target.name
        os.replace(folder / target.name, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _packed(
    folder: Path, info: dict[str, Any], places: redaction.Places
) -> tuple[dict[str, bytes], list[dict[str, str]]]:
    """Files of one run as they are shared, and what of them is not."""
    notebook, content, left_out = info["notebook"], {}, []
    foreign = redaction.foreign(info["parameters"])
    why = f"reads texts of others from the hub, or may ({foreign})"
    page = folder / f"{notebook}.ipynb"
    for path in sorted([*(folder / notebook).iterdir(), *([page] if page.exists() else [])]):
        name = path.relative_to(folder).as_posix()
        if path != page and not inspection.FILE.fullmatch(path.name):
            left_out.append({"file": name, "what": "everything", "why": "is no result"})
        elif path == page and foreign:
            left_out.append({"file": name, "what": "the executed notebook", "why": why})
        elif path.suffix == ".csv":
            text, emptied = redaction.without_texts(path.read_text()) if foreign else (path.read_text(), [])
            left_out += [{"file": name, "what": f"the column {column}", "why": why} for column in emptied]
            content[name] = places.exact(text).encode()
        elif path.suffix == ".svg":
            content[name] = places.text(path.read_text()).encode()
        elif path.suffix == ".png":
            content[name] = path.read_bytes()
        else:
            content[name] = places.json(path.read_text()).encode()
    return content, left_out


def write(content: Mapping[str, bytes], target: Path) -> None:
    """Write a zip whose bytes follow from its content alone: sorted, all of one date."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name, body in sorted(content.items()):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, (stat.S_IFREG | 0o644) << 16
            packed.writestr(info, body, zipfile.ZIP_DEFLATED)


def contributed() -> list[Contribution]:
    """Every archive of :func:`root`, verified and its tables unpacked under ``_build/contributed/``; in order of names.

    Raises
    ------
    ArchiveError
        An archive is broken or unsafe, or two are of one model. Names the file; nothing of it was unpacked.
    """
    found: dict[str, Contribution] = {}
    for archive in sorted(root().glob("*.zip")):
        try:
            manifest, files, sha256 = inspection.checked(archive)
        except ArchiveError as error:
            raise ArchiveError(f"{error}. Get it again from its maker, or remove it") from error
        local = any((results.root() / manifest["slug"]).glob("*/*/run.json"))
        slug = f"{manifest['slug']}--contributed-{sha256[:8]}" if local else manifest["slug"]
        folder = data.root() / "_build" / "contributed" / sha256[:16]
        made = Contribution(manifest["model"], slug, folder, archive, sha256)
        # With results here, the slug holds the archive's digest: compare what the archives say.
        if (other := found.setdefault(manifest["slug"], made)) is not made:
            both = f"{inspection.shown(other.archive)} and {inspection.shown(archive)}"
            raise ArchiveError(f"{both} are of one model, {made.name}; keep one of them")
        _unpack({name: _inert(body) if name.endswith(".csv") else body for name, body in files.items()}, folder)
    return list(found.values())


def _inert(table: bytes) -> bytes:
    """A CSV whose text cells begin with an apostrophe where a spreadsheet would take them for a formula."""
    if not _FORMULA.search(table):
        return table
    rows = list(csv.reader(io.StringIO(table.decode(), newline="")))
    for row in rows:
        row[:] = [f"'{cell}" if cell[:1] in set("=+-@\t") and not redaction.is_number(cell) else cell for cell in row]
    written = io.StringIO(newline="")
    csv.writer(written, lineterminator="\n").writerows(rows)
    return written.getvalue().encode()


_FORMULA = re.compile(rb"""(?m)(?:^|,)"?(?:[=@\t]|[+-](?![0-9.eE+-]*(?:[,"\r\n]|\Z)))""")


def _unpack(files: dict[str, bytes], folder: Path) -> None:
    """Write the files into a new folder that appears whole; nothing is done if it is there as it should be."""
    there = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    if there == files:
        return
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with cache.atomic(folder) as scratch:
            for name, body in files.items():
                (scratch / name).parent.mkdir(parents=True, exist_ok=True)
                (scratch / name).write_bytes(body)
    except OSError as error:
        raise ArchiveError(f"{folder} can't be written: {error.strerror}") from error
