"""Check a notebook's parameters, execute it, keep what failed.

Papermill enforces no types and only warns of an unknown name; here a wrong parameter is refused before a kernel starts.
A notebook states its parameters in the cell tagged ``parameters``, one a line::

    dtype: str = "float32"  # what the model runs in; choices: float32, bfloat16
    draws: int = 200  # random directions of each null; at least 20

The annotation is the type, the comment the help text; ``choices:`` and ``at least`` say what is allowed.
"""

import contextlib
import difflib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import papermill
import yaml

from biasgeom import cache, data

TYPES = {"str": str, "int": int, "float": (int, float), "bool": bool, "list": list}


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
    least: float | None


def notebooks() -> list[str]:
    """The book's notebooks, ``"<paper>/<name>"``, in the order of ``_toc.yml``."""
    text = (data.root() / "_toc.yml").read_text()
    return re.findall(r"file: notebooks/(\S+)", text)


def parameters(notebook: Path) -> list[Parameter]:
    """What the parameters cell states.

    Raises
    ------
    ParameterError
        If there is no such cell, or a line in it lacks a type.
    """
    if not notebook.is_file():
        raise ParameterError(f"no notebook at {notebook}")
    stated = papermill.inspect_notebook(str(notebook))
    if not stated:
        raise ParameterError(f"{notebook} has no cell tagged 'parameters'")
    found = []
    for name, line in stated.items():
        kind, text = line["inferred_type_name"], line["help"]
        if kind not in TYPES:
            raise ParameterError(f"{notebook}: parameter {name} needs a type among {', '.join(TYPES)}, not {kind!r}")
        what, _, choices = text.partition("choices:")
        allowed = tuple(choice.strip() for choice in choices.split(",") if choice.strip())
        least = re.search(r"at least (-?[\d.]+)", what)
        bound = float(least.group(1)) if least else None
        found.append(Parameter(name, kind, line["default"], what.strip().rstrip(";"), allowed, bound))
    return found


def check(notebook: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, each with the type its parameter states; text is read as that type, as from a command line.

    Raises
    ------
    ParameterError
        Unknown name (the nearest known one is suggested), wrong type, too small, or not among the choices.
    """
    known = {parameter.name: parameter for parameter in parameters(notebook)}
    checked = {}
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise ParameterError(f"{notebook.name} has no parameter {name!r}; {hint}")
        checked[name] = _typed(notebook, known[name], value)
    return checked


def _typed(notebook: Path, parameter: Parameter, value: Any) -> Any:
    if isinstance(value, str) and parameter.type != "str":
        with contextlib.suppress(yaml.YAMLError):  # refused below as the text that it is
            value = yaml.safe_load(value)
    wanted = TYPES[parameter.type]
    # bool is a kind of int in Python, but "draws: true" is a slip.
    if not isinstance(value, wanted) or (isinstance(value, bool) and parameter.type != "bool"):
        raise ParameterError(f"{notebook.name}: {parameter.name} must be {parameter.type}, not {value!r}")
    if parameter.choices and str(value) not in parameter.choices:
        raise ParameterError(
            f"{notebook.name}: {parameter.name} must be one of {', '.join(parameter.choices)}, not {value!r}"
        )
    if parameter.least is not None and value < parameter.least:
        raise ParameterError(f"{notebook.name}: {parameter.name} must be at least {parameter.least:g}, not {value!r}")
    return float(value) if parameter.type == "float" else value


def profile(name: str) -> dict[str, Any]:
    """A profile of ``profiles/``: the default ``model``, and parameter values by notebook.

    Raises
    ------
    ParameterError
        If there is no such profile.
    """
    folder = data.root() / "profiles"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        raise ParameterError(
            f"no profile {name!r}; there are {', '.join(sorted(p.stem for p in folder.glob('*.yaml')))}"
        )
    return yaml.safe_load(path.read_text())


def values_for(notebook: str, profile_name: str, model: str | None) -> dict[str, Any]:
    """A notebook's checked parameter values under a profile, for the profile's model or another one."""
    chosen = profile(profile_name)
    values = {**chosen.get("parameters", {}), **chosen.get("notebooks", {}).get(notebook, {})}
    if model or chosen.get("model"):
        values["model"] = model or chosen["model"]
    return check(data.root() / "notebooks" / f"{notebook}.ipynb", values)


def execute(notebook: Path, output: Path, values: Mapping[str, Any]) -> None:
    """Run a notebook with checked values; ``output`` appears only if every cell ended well.

    Raises
    ------
    ParameterError
        Before a kernel starts.
    NotebookFailed
        A cell raised. The outputs up to it stay in ``_build/unfinished/``, also after Ctrl-C.
    """
    checked = check(notebook, values)
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
