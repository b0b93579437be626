"""What does not leave the machine with results: texts of data sets from the hub, places on a disk, tokens."""

import csv
import io
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from biasgeom import cache, data, names
from biasgeom.markdown import escaped

OWN: dict[str, set[str]] = {
    "source": {"project"},
    "recipe": {"embedded", "smoke"},
    "alignment": {"embedded", "smoke"},
    "sources": {"neutral", "words", "instructions"},
    "benchmarks": set(),
    "tasks": set(),
}
"""Parameters that decide where a notebook's texts come from, with the values that stay within this repository."""

_LABELS = """
    BOS aggregate answers at bias binding by check checkpoint comparison compatible concept condition core couple
    defence_reason detector dimension direction domain end entity estimator expressed family feature fit floor
    follows follows_normal group half here judge kind label layer level map measure method metric model model_a
    model_b over pairing pairs panel part persona polarity pooling positive quality question_id ratings readout
    reason regime set setting site source split stage stars step strength strict target topic trio type variant
    vector_a vector_b voice within wording
"""
LABELS = frozenset(_LABELS.split())
"""Columns of words that name a row (a ``question_id`` from the hub is a digest): kept where texts are left out."""
TEXTS = {"answer", "example", "prompt", "question", "reply", "sentence", "text"}
"""Columns of texts, also if every one of them happens to be a number."""

# Of a string: an address (kept, without user and password), or an absolute path of two parts or more. What follows
# results/<model> is none, in the first cell of every notebook.
_PLACE = re.compile(
    r"""(?P<scheme>\b[a-z][a-z0-9+.-]*://)(?P<user>[^\s/@"'<>]*@)?(?P<rest>[^\s"'<>]*)"""
    r"""|(?<!results/<model>)(?<!results/<reference>)"""
    r"""(?<![\w.~/<*\\$)\]}])(?P<path>/(?:[^\s/"'<>|\\:,;()\[\]{}]+/)+[^\s/"'<>|\\:,;()\[\]{}]*)"""
)
_HOME = re.compile(r"/(?:home|Users)/[^/]+/?")
_TOKEN = re.compile(rb"\b(?:hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,})\b")
_SECRET = re.compile(r"(TOKEN|KEY|SECRET|PASSWORD)$")


class TokenFound(RuntimeError):
    """A file that was to be shared holds a token."""


def foreign(parameters: Mapping[str, Any]) -> str:
    """The parameters by which a run read, or may have read, texts from the hub: "source=benchmarks"; "" without any."""
    found = []
    for name in OWN.keys() & parameters.keys():
        value = parameters[name]
        if not set(map(str, value if isinstance(value, list) else [value])) <= OWN[name]:
            found.append(f"{name}={value}")
    return ", ".join(sorted(found))


def without_texts(table: str) -> tuple[str, list[str]]:
    """A CSV with every cell of its free-text columns empty, and the names of these columns.

    Kept are columns of numbers and truth values, and those of :data:`LABELS`. A column that nobody thought of counts as
    text.
    """
    header, *rows = csv.reader(io.StringIO(table, newline=""))
    emptied = [n for n, name in enumerate(header) if name not in LABELS and _holds_text(name, [row[n] for row in rows])]
    for row in rows:
        for place in emptied:
            row[place] = ""
    written = io.StringIO(newline="")
    csv.writer(written, lineterminator="\n").writerows([header, *rows])
    return written.getvalue(), [header[n] for n in emptied]


def _holds_text(name: str, cells: list[str]) -> bool:
    return name in TEXTS or not all(cell in ("", "True", "False") or is_number(cell) for cell in cells)


def is_number(cell: str) -> bool:
    """Whether a table's cell is a number, as pandas and spreadsheets read it."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


class Places:
    """Replaces places on this machine in what is shared.

    Parameters
    ----------
    model : str
        The full name of the model that results are of; if it is a folder's, its last part takes its place everywhere.
    """

    def __init__(self, model: str) -> None:
        # As it stands, and as a table in Markdown shows it.
        self._models = [(shape(model), shape(names.public(model))) for shape in (str, escaped)]
        # An absolute path in running text ends at a space: where this project's own have one, they are found whole.
        own = [str(place) for place in (data.root(), cache.root(), Path.home())]
        self._odd = sorted((place for place in own if not re.fullmatch(r"[\w./~-]+", place)), key=len, reverse=True)

    def exact(self, text: str) -> str:
        """The text with the model's folder and a home folder replaced, and nothing else changed."""
        text = self._named(text)
        return text.replace(str(Path.home()), "~") if len(Path.home().parts) > 2 else text

    def text(self, text: str) -> str:
        """The text with every absolute path replaced by its last part, and addresses without user and password."""
        text = self._named(text)
        for place in self._odd:
            text = text.replace(place, "/place/place")
        return _PLACE.sub(_replaced, text)

    def value(self, value: Any) -> Any:
        """Plain JSON with every string in it, also keys, replaced as :meth:`text` does. Pictures (base64) stay."""

        def replaced(text: str) -> str:
            whole = text.startswith("/") and "\n" not in text  # a folder's name may have spaces
            return _last_part(text) if whole else self.text(text)

        return _each_string(value, replaced)

    def page(self, notebook: dict[str, Any]) -> dict[str, Any]:
        """A notebook with every string in it replaced as :meth:`exact` does, for a page on this machine."""
        return _each_string(notebook, self.exact)

    def json(self, text: str) -> str:
        """JSON with every string replaced, indented as ``run.json`` and notebooks are."""
        return json.dumps(self.value(json.loads(text)), indent=1) + "\n"

    def _named(self, text: str) -> str:
        for told, public in self._models:
            text = text.replace(told, public)
        return text


def _each_string(value: Any, changed: Callable[[str], str]) -> Any:
    """Plain JSON with every string in it, also keys, changed; pictures stay."""
    if isinstance(value, str):
        return changed(value)
    if isinstance(value, list):
        return [_each_string(part, changed) for part in value]
    if isinstance(value, dict):
        return {changed(k): v if _is_picture(k) else _each_string(v, changed) for k, v in value.items()}
    return value


def _is_picture(key: str) -> bool:
    return key.startswith(("image/", "application/pdf")) and key != "image/svg+xml"


def _last_part(place: str) -> str:
    return "~" if _HOME.fullmatch(place) else names.public(place)


def _replaced(found: re.Match[str]) -> str:
    if found["path"]:
        return _last_part(found["path"])
    return _last_part(found["rest"]) if found["scheme"] == "file://" else found["scheme"] + found["rest"]


def refuse_tokens(name: str, content: bytes) -> None:
    """Check what is about to be shared for tokens: of this environment, and of the forms that hubs and endpoints use.

    Raises
    ------
    TokenFound
        Names the file and, if it is one of the environment's, the variable; never the token.
    """
    for variable, secret in os.environ.items():
        if _SECRET.search(variable) and len(secret) >= 8 and secret.encode() in content:
            raise TokenFound(f"{name} holds the value of {variable}; run that notebook again without showing it")
    if _TOKEN.search(content):
        raise TokenFound(f"{name} holds what looks like a token; run that notebook again without showing it")
