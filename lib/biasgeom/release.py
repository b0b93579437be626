"""The rendered book in one zip, to read without running anything."""

from pathlib import Path

from biasgeom import __version__, archive, redaction, results


class NotReady(RuntimeError):
    """There is no rendered book, or it does not show the results that are there."""


def pack(html: Path, target: Path | None = None) -> Path:
    """Pack a rendered book; the same pages give the same bytes.

    Parameters
    ----------
    html : Path
        Folder with ``index.html``.
    target : Path, optional
        A folder, in which the zip is named by the version, or a file ending in ``.zip``; default: beside the pages.

    Returns
    -------
    Path
        The zip; everything in it lies in one folder of the same name.

    Raises
    ------
    NotReady
        No rendered book, or results that are newer than it.
    biasgeom.redaction.TokenFound
        A page holds a token.
    """
    first = html / "index.html"
    if not first.is_file():
        raise NotReady(f"{html} holds no rendered book; make book renders one")
    newer = [path for path in results.root().glob("*/*/*/run.json") if path.stat().st_mtime > first.stat().st_mtime]
    if newer:
        raise NotReady(f"{newer[0].parent} is newer than the book; make book renders it again")
    title = f"biasgeom-{__version__}-book"
    target = target or html.parent
    packed = target if target.suffix == ".zip" else target / f"{title}.zip"
    content = {}
    for path in sorted(html.rglob("*")):
        if path.is_file():
            content[f"{title}/{path.relative_to(html).as_posix()}"] = path.read_bytes()
    for name, body in content.items():
        redaction.refuse_tokens(name, body)
    try:
        with archive.placed(packed) as scratch:
            archive.write(content, scratch)
    except OSError as error:
        raise NotReady(f"{packed} can't be written: {error.strerror}; name another place") from error
    return packed
