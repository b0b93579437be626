"""Labels of one model's pages made unique, so that the pages of several models stand in one book.

A label of a page (of a section, a table or a figure) gets the model's tag as its ending, and so do the references to
it. A reference to what the book doesn't hold becomes plain text.
"""

import copy
import hashlib
import re
from collections.abc import Collection, Iterator
from typing import Any

_FORMULA = r"(?P<formula>\$\$.*?\$\$)"
_LABEL = r"[A-Za-z0-9][A-Za-z0-9._+-]*"
_TARGET = rf"(?:^\((?P<target>{_LABEL})\)=[ ]*$)"
_NAME = rf"(?:^(?P<key>:name:[ ]+)(?P<name>{_LABEL})[ ]*$)"
_ROLE = rf"(?:\{{(?P<role>numref|ref)\}}`(?:(?P<said>[^`<]*[^`<\s])[ ]*<(?P<at>{_LABEL})>|(?P<bare>{_LABEL}))`)"
_LINK = rf"(?:(?<!\\)\[(?P<text>(?:[^\[\]\n]|\n(?!\n))*)\]\((?P<hash>#?)(?P<to>{_LABEL})\))"
_ANY = re.compile("|".join((_FORMULA, _TARGET, _NAME, _ROLE, _LINK)), re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"(?P<fence>`{3,})(?P<more>.*)$")
_FILE = re.compile(r"\.(?:md|ipynb|html|csv|png|svg)$")


def tag(slug: str) -> str:
    """A model's slug as the ending of a label: lower case, since Sphinx ignores case, and short: MyST cuts at 100.

    Where that takes something away, eight digits of the slug's SHA-256 follow.
    """
    if re.fullmatch(r"[a-z0-9._-]{1,48}", slug):
        return slug
    return f"{slug.lower()[:39]}-{hashlib.sha256(slug.encode()).hexdigest()[:8]}"


def labels(text: str) -> set[str]:
    """The labels that a piece of Markdown defines: ``(x)=`` and ``:name: x``."""
    found = (match for prose, code in _pieces(text) if not code for match in _ANY.finditer(prose))
    return {match["target"] or match["name"] for match in found if match["target"] or match["name"]}


def notebook_labels(notebook: dict[str, Any]) -> set[str]:
    """The labels that an executed notebook defines: in its prose, its tables and its figures."""
    found = set()
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            found |= labels(_joined(cell["source"]))
        if name := cell["metadata"].get("mystnb", {}).get("figure", {}).get("name"):
            found.add(name)
        for output in _shown(cell):
            found |= labels(_joined(output["text/markdown"]))
    return found


def relabelled(text: str, *, own: Collection[str], ending: str, known: Collection[str]) -> str:
    """Markdown whose labels and references are those of one model.

    Parameters
    ----------
    text : str
    own : collection of str
        The labels of this model's pages, without the ending.
    ending : str
        What they get, such as ``"--gemma-3-270m"``; nothing for the model whose labels stay as they are.
    known : collection of str
        Labels of pages that all models share, and of the main model's: what a reference finds that ``own`` lacks.

    Returns
    -------
    str
        With every other reference by ``{ref}``, ``{numref}`` or ``[text](label)`` as plain text.
    """

    def changed(found: re.Match[str]) -> str:
        if found["formula"]:
            return found[0]
        if label := found["target"]:
            return f"({label}{ending})=" if label in own else found[0]
        if label := found["name"]:
            return f"{found['key']}{label}{ending}" if label in own else found[0]
        label = found["at"] or found["bare"] or found["to"]
        if found["to"] and _FILE.search(label):
            return found[0]
        said = found["said"] or found["text"] or ""
        if label not in own:
            return found[0] if label in known else said or label.replace("-", " ")
        if found["role"]:
            return f"{{{found['role']}}}`{said} <{label}{ending}>`" if said else f"{{{found['role']}}}`{label}{ending}`"
        return f"[{said}]({found['hash']}{label}{ending})"

    return "".join(piece if code else _ANY.sub(changed, piece) for piece, code in _pieces(text))


def relabelled_notebook(
    notebook: dict[str, Any], *, own: Collection[str], ending: str, known: Collection[str]
) -> dict[str, Any]:
    """A copy of an executed notebook, changed as :func:`relabelled` changes text; code and pictures stay."""
    made = copy.deepcopy(notebook)
    kept: dict[str, Any] = {"own": own, "ending": ending, "known": known}
    for cell in made["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = relabelled(_joined(cell["source"]), **kept)
        if figure := cell["metadata"].get("mystnb", {}).get("figure"):
            if figure.get("name") in own:
                figure["name"] += ending
            if "caption" in figure:
                figure["caption"] = relabelled(figure["caption"], **kept)
        for output in _shown(cell):
            output["text/markdown"] = relabelled(_joined(output["text/markdown"]), **kept)
    return made


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Text in pieces, and of each whether it is code: what stands in a fence that is no directive's."""
    lines: list[str] = []
    open_fences: list[tuple[str, bool]] = []
    for line in text.splitlines(keepends=True):
        fence = _FENCE.match(line)
        inside = bool(open_fences) and open_fences[-1][1]
        if fence and open_fences and not fence["more"] and fence["fence"].startswith(open_fences[-1][0]):
            open_fences.pop()
            if inside:
                yield "".join([*lines, line]), True
                lines = []
                continue
        elif fence and not inside:
            code = not fence["more"].startswith("{")
            open_fences.append((fence["fence"], code))
            if code:
                yield "".join(lines), False
                lines = []
        lines.append(line)
    yield "".join(lines), bool(open_fences) and open_fences[-1][1]


def _shown(cell: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The outputs of a cell that hold Markdown."""
    for output in cell.get("outputs", ()):
        if "text/markdown" in output.get("data", {}):
            yield output["data"]


def _joined(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)
