"""Check a notebook's parameters, execute it, keep what failed.

Papermill enforces no types and only warns of an unknown name; here a wrong parameter is refused before a kernel starts.
A notebook states its parameters in the cell tagged ``parameters``, one a line::

    dtype: str = "float32"  # what the model runs in; choices: float32, bfloat16
    draws: int = 200  # random directions of each null; at least 20
    personas: int = 2  # of the six; at least 1, at most 6

The annotation is the type, the comment the help text; ``choices:`` (of a list, for each of its values), ``at least``
and ``at most`` say what is allowed. A bound is a number, or the name of another parameter.
"""

import ast
import contextlib
import difflib
import functools
import json
import math
import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from biasgeom import cache, catalogue, data, names

TYPES = {"str": str, "int": int, "float": (int, float), "bool": bool, "list": list}

FOLDERS = ("model", "adapter", "audited", "audited_adapter", "judge_local")
"""Parameters that may name a folder."""


class ParameterError(ValueError):
    """A parameter is unknown, or its value has a wrong type or is no choice."""


class NotebookFailed(RuntimeError):
    """A cell raised; the message names the cell's error and the file that holds the outputs up to it."""


@dataclass(frozen=True)
class Parameter:
    """One line of a parameters cell."""

    name: str
    type: str
    default: str
    help: str
    choices: tuple[str, ...]
    least: float | str | None
    most: float | str | None


def notebooks() -> list[str]:
    """The book's notebooks, ``"<paper>/<name>"``, in the order of ``_toc.yml``."""
    text = (data.root() / "_toc.yml").read_text()
    return re.findall(r"file: notebooks/(\S+)", text)


def parameters(notebook: Path) -> list[Parameter]:
    """What the parameters cell states.

    Raises
    ------
    ParameterError
        If there is no such cell, a line in it lacks a type, or a bound is neither a number nor a parameter.
    """
    if not notebook.is_file():
        raise ParameterError(f"no notebook at {notebook}")
    stated = _stated(notebook)
    if not stated:
        raise ParameterError(f"{notebook} has no cell tagged 'parameters'")
    found = []
    for name, (kind, default, text) in stated.items():
        if kind not in TYPES:
            raise ParameterError(f"{notebook}: parameter {name} needs a type among {', '.join(TYPES)}, not {kind!r}")
        what, _, choices = text.partition("choices:")
        allowed = tuple(choice.strip() for choice in choices.split(",") if choice.strip())
        least, most = (_bound(notebook, name, what, words, stated) for words in ("at least", "at most"))
        found.append(Parameter(name, kind, default, what.strip().rstrip(";"), allowed, least, most))
    return found


def _stated(notebook: Path) -> dict[str, tuple[str, str, str]]:
    """Type, value and comment of each assignment in the parameters cell, as they are written.

    What ``papermill.inspect_notebook`` reads, without the seconds that importing papermill takes.
    """
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        cell = next((c for c in cells if "parameters" in c["metadata"].get("tags", [])), {"source": ""})
        source = "".join(cell["source"])
        lines, found = source.encode().split(b"\n"), {}
        for line in ast.parse(source).body:
            if isinstance(line, (ast.Assign, ast.AnnAssign)) and line.value is not None:
                target = line.target if isinstance(line, ast.AnnAssign) else line.targets[0]
                kind = ast.unparse(line.annotation) if isinstance(line, ast.AnnAssign) else "None"
                rest = lines[line.end_lineno - 1][line.end_col_offset :].decode().partition("#")[2]
                found[ast.unparse(target)] = kind, ast.get_source_segment(source, line.value) or "", rest.strip()
    except (ValueError, KeyError, TypeError, SyntaxError) as error:
        raise ParameterError(f"{notebook} can't be read as a notebook with a parameters cell: {error}") from error
    return found


def _bound(notebook: Path, name: str, what: str, words: str, stated: Collection[str]) -> float | str | None:
    """The number or the other parameter that stands after ``words`` in a help text."""
    if not (found := re.search(rf"\b{words} (-?[\w.]*\w)", what)):
        return None
    bound = found.group(1)
    if bound in stated:
        return bound
    try:
        return float(bound)
    except ValueError:
        raise ParameterError(f"{notebook}: {name} has the bound {bound!r}, neither a number nor a parameter") from None


def check(notebook: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, each with the type its parameter states; text is read as that type, as from a command line.

    Raises
    ------
    ParameterError
        Unknown name (the nearest known one is suggested), wrong type, too small or large, or not among the choices.
    """
    known = {parameter.name: parameter for parameter in parameters(notebook)}
    checked = {}
    for name, value in values.items():
        if name not in known:
            raise ParameterError(f"{notebook.name} has no parameter {name!r}; {_nearest(name, known, 'it has')}")
        checked[name] = _typed(notebook, known[name], value)
    for parameter in known.values():
        _within(notebook, parameter, known, checked)
    return checked


def _nearest(name: str, known: Collection[str], has: str) -> str:
    """The name that was meant, or all that there are."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"{has} {', '.join(known)}"


def _typed(notebook: Path, parameter: Parameter, value: Any) -> Any:
    if isinstance(value, str) and parameter.type != "str":
        value = _read_as(value, parameter.type)
    wanted = TYPES[parameter.type]
    # bool is a kind of int in Python, but "draws: true" is a slip.
    if not isinstance(value, wanted) or (isinstance(value, bool) and parameter.type != "bool"):
        raise ParameterError(f"{notebook.name}: {parameter.name} must be {parameter.type}, not {value!r}")
    if parameter.type == "float" and not math.isfinite(value):
        raise ParameterError(f"{notebook.name}: {parameter.name} must be a finite number, not {value!r}")
    for one in value if parameter.type == "list" else [value]:
        if parameter.choices and str(one) not in parameter.choices:
            words = "holds values among" if parameter.type == "list" else "must be one of"
            raise ParameterError(
                f"{notebook.name}: {parameter.name} {words} {', '.join(parameter.choices)}, not {one!r}"
            )
    return float(value) if parameter.type == "float" else value


def _read_as(text: str, kind: str) -> Any:
    """Text as a type; as it is if it can't be read so. YAML takes 1e-3 for text, 010 for 8 and 1:30 for 90."""
    if kind in ("int", "float"):
        with contextlib.suppress(ValueError):
            return (int if kind == "int" else float)(text)
    else:
        with contextlib.suppress(yaml.YAMLError):
            return yaml.safe_load(text)
    return text


def _within(notebook: Path, parameter: Parameter, known: Mapping[str, Parameter], given: Mapping[str, Any]) -> None:
    """Refuse a value beyond a bound, where either of the two was given."""

    def value(name: str) -> Any:
        return given[name] if name in given else ast.literal_eval(known[name].default)

    for words, bound in (("at least", parameter.least), ("at most", parameter.most)):
        if bound is None or not {parameter.name, bound} & set(given):
            continue
        here, limit = value(parameter.name), value(bound) if isinstance(bound, str) else bound
        if here < limit if words == "at least" else here > limit:
            shown = f"{bound}, which is {limit:g}" if isinstance(bound, str) else f"{bound:g}"
            raise ParameterError(f"{notebook.name}: {parameter.name} must be {words} {shown}, not {here!r}")


def profile(name: str) -> dict[str, Any]:
    """A profile of ``profiles/``: the default ``model``, and parameter values by notebook.

    One that names a ``base`` is that profile, but for the values of its own ``notebooks``.

    Raises
    ------
    ParameterError
        If there is no such profile, it can't be read, or it names a notebook that there is none of.
    """
    folder = data.root() / "profiles"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        raise ParameterError(
            f"no profile {name!r}; there are {', '.join(sorted(p.stem for p in folder.glob('*.yaml')))}"
        )
    try:
        found = _parsed(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ParameterError(f"{path} can't be read as YAML in UTF-8: {error}") from error
    if not isinstance(found, dict):
        raise ParameterError(f"{path} must hold model, parameters and notebooks by name, not {type(found).__name__}")
    _require_notebooks(path, found.get("notebooks", {}))
    if not found.get("base"):
        return found
    base, own = profile(found["base"]), found.get("notebooks", {})
    return {**base, "notebooks": _over(base.get("notebooks", {}), own)}


def _require_notebooks(path: Path, stated: Any) -> None:
    """Raise unless a profile's ``notebooks`` are parameter values by notebook: a wrong name would be passed over."""
    if not isinstance(stated, dict):
        raise ParameterError(f"{path}: notebooks must hold parameter values by notebook, not {stated!r}")
    folder = data.root() / "notebooks"
    known = sorted(file.relative_to(folder).with_suffix("").as_posix() for file in folder.glob("*/*.ipynb"))
    for notebook, values in stated.items():
        if notebook not in known:
            raise ParameterError(f"{path}: no notebook {notebook!r}; {_nearest(str(notebook), known, 'there are')}")
        if not isinstance(values, dict):
            raise ParameterError(f"{path}: {notebook} must hold parameter values by name, not {values!r}")


@functools.cache
def _parsed(text: str) -> Any:
    """YAML, read once: a profile is asked for by every notebook of every model."""
    return yaml.safe_load(text)


def _over(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Parameter values by notebook, with some replaced."""
    return {name: {**base.get(name, {}), **own.get(name, {})} for name in {**base, **own}}


def values_for(notebook: str, profile_name: str, model: str | None) -> dict[str, Any]:
    """A notebook's checked parameter values under a profile, for the profile's model or another one.

    A model that :mod:`biasgeom.catalogue` knows has values of its own under its base profile.
    """
    chosen = profile(profile_name)
    values = {**chosen.get("parameters", {}), **chosen.get("notebooks", {}).get(notebook, {})}
    if name := model or chosen.get("model"):
        values["model"] = name
        known = catalogue.find(name)
        if known and known.base == profile_name and not known.endpoint:
            _require_notebooks(catalogue.folder() / f"{names.slug(known.name)}.yaml", known.notebooks)
            values |= known.notebooks.get(notebook, {})
    return check(data.root() / "notebooks" / f"{notebook}.ipynb", values)


def _from_here(name: str, value: Any) -> Any:
    """An absolute path for a folder that is given as one from the working directory: the notebook runs in another."""
    if name in FOLDERS and value and Path(value).expanduser().is_dir():
        return str(Path(value).expanduser().resolve())
    return value


def execute(notebook: Path, output: Path, values: Mapping[str, Any]) -> None:
    """Run a notebook with checked values; ``output`` appears only if every cell ended well.

    A model's or adapter's folder may be given relative to the working directory.

    Raises
    ------
    ParameterError
        Before a kernel starts.
    NotebookFailed
        A cell raised. The outputs up to it stay in ``_build/unfinished/``, also after Ctrl-C.
    """
    checked = {name: _from_here(name, value) for name, value in check(notebook, values).items()}
    import papermill  # takes seconds, which a wrong parameter should not wait for

    if output.is_dir():
        raise ParameterError(f"{output} is a folder; name the notebook's file")
    unfinished = data.root() / "_build" / "unfinished" / f"{output.stem}-{os.getpid()}.ipynb"
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        papermill.execute_notebook(
            str(notebook),
            str(unfinished),
            checked,
            kernel_name="python3",
            progress_bar=False,
            cwd=str(notebook.parent),
            extra_arguments=["--log-level=ERROR"],
        )
    except papermill.PapermillExecutionError as error:
        raise NotebookFailed(
            f"{notebook.name} failed in cell {error.exec_count}: {error.ename}: {error.evalue}\n"
            f"Its outputs up to there are in {unfinished}"
        ) from error
    # Not a rename: the output may be on another file system.
    with cache.atomic(output) as scratch:
        shutil.move(unfinished, scratch)
