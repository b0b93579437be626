"""Tidy tables, figures and ``run.json``: what a notebook leaves under ``results/<model>/<paper>/<notebook>/``."""

import glob
import json
import math
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import psutil

from biasgeom import counting, data, names
from biasgeom.names import slug

if TYPE_CHECKING:  # at run time they would load torch and matplotlib, which reading results does not need
    from matplotlib.figure import Figure

    from biasgeom.models import LanguageModel

PACKAGES = (
    "biasgeom",
    "torch",
    "transformers",
    "peft",
    "trl",
    "accelerate",
    "datasets",
    "numpy",
    "scipy",
    "scikit-learn",
    "statsmodels",
    "vadersentiment",
    "pandas",
)


def root() -> Path:
    """The results folder: ``$BIASGEOM_RESULTS``, else ``results/`` of the repository."""
    return Path(os.environ.get("BIASGEOM_RESULTS") or data.root() / "results").expanduser()


class Run:
    """One notebook's results for one model.

    Open it, write tables and figures, ``finish``. Until then everything lies in a hidden folder of this process beside
    the final one; finishing puts it in the place of what an earlier run left. So a run that fails costs no earlier
    result, and the numbers of two runs, one after the other or at once, never stand side by side.

    Parameters
    ----------
    lm : LanguageModel
    notebook : str
        ``"<paper>/<name>"``, such as ``"gender/03_encoded"``.
    parameters : mapping
        The notebook's parameters, recorded as they are.
    """

    def __init__(self, lm: "LanguageModel", notebook: str, parameters: Mapping[str, Any]) -> None:
        self._final = root() / slug(lm.name) / notebook
        self.folder = own_folder(self._final)
        self.info: dict[str, Any] = {
            "notebook": notebook,
            "model": lm.name,
            "blocks": len(lm.blocks),
            "width": lm.width,
            "provenance": lm.provenance,
            "fingerprint": lm.fingerprint(),
            "parameters": dict(parameters),
            "python": platform.python_version(),
            "packages": {name: version(name) for name in PACKAGES},
            "commit": _commit(),
        }
        self._seconds: dict[str, float] = {}
        self._begun, self._tokens = time.monotonic(), counting.totals()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    @property
    def headline(self) -> str:
        """Which model the page is about, in Markdown."""
        made = self.info["provenance"]
        return (
            f"**Model of this page: `{self.info['model']}`**, {self.info['blocks']} blocks of width "
            f"{self.info['width']}, in {made['dtype']} on {made['device'].upper()}."
        )

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a part of the notebook; goes to ``stages_timing.csv``."""
        start = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def table(self, name: str, frame: pd.DataFrame) -> pd.DataFrame:
        """Write a tidy CSV (six significant digits) and return it as a reader of the file sees it.

        Control characters but tab and new line are written as escapes: a model may write a carriage return or a null,
        at which readers of CSV end a line or a text.

        Raises
        ------
        ValueError
            If it holds an infinite number, or is empty: neither is a result.
        """
        numbers = frame.select_dtypes("number")
        if frame.empty or (numbers.abs() == math.inf).any(axis=None):
            raise ValueError(f"table {name} is empty or holds an infinite number")
        path = self.folder / f"{name}.csv"
        frame = frame.map(_without_control, na_action="ignore")
        frame.to_csv(path, index=False, float_format="%.6g")
        return pd.read_csv(path)

    def figure(self, name: str, figure: "Figure") -> "Figure":
        """Write a figure as PNG and SVG and return it, closed, for the notebook to show.

        A model that is a folder is named in it without the folders above: a picture can't be redacted later.
        """
        import matplotlib.pyplot as plt
        from matplotlib.text import Text

        told, public = self.info["model"], names.public(self.info["model"])
        for text in figure.findobj(Text) if told != public else ():
            text.set_text(text.get_text().replace(told, public))
        for suffix in ("png", "svg"):
            # Dates and random element ids would make two equal figures differ.
            with plt.rc_context({"svg.hashsalt": name}):
                metadata = {"Date": None} if suffix == "svg" else {"Software": None}
                figure.savefig(self.folder / f"{name}.{suffix}", metadata=metadata)
        plt.close(figure)
        return figure

    def finish(self) -> dict[str, Any]:
        """Write ``stages_timing.csv`` and ``run.json``, move all into place; returns what ``run.json`` holds.

        To that belong ``wall_seconds`` since the run was opened; ``peak_memory_mb`` of this process, and
        ``peak_gpu_memory_mb`` of what torch had on GPUs; and ``tokens`` that went through models: ``read`` and
        ``written`` by the model of the run and its checkpoints, ``others_read`` and ``others_written`` by other models.
        """
        timing = pd.DataFrame({"stage": list(self._seconds), "seconds": [round(s, 2) for s in self._seconds.values()]})
        timing.to_csv(self.folder / "stages_timing.csv", index=False)
        self.info["seconds"] = dict(zip(timing["stage"], timing["seconds"].tolist(), strict=True))
        self.info["wall_seconds"] = round(time.monotonic() - self._begun, 2)
        self.info |= _peak_memory()
        self.info["tokens"] = self._counted()
        (self.folder / "run.json").write_text(json.dumps(self.info, indent=1, default=str) + "\n")
        _put(self.folder, self._final)
        self.folder = self._final
        return self.info

    def _counted(self) -> dict[str, int]:
        own = re.compile(rf"{re.escape(self.info['model'])}([+@].*)?")
        found = dict.fromkeys(("read", "written", "others_read", "others_written"), 0)
        for name, counted in counting.totals().items():
            for kind, number in counted.items():
                label = kind if own.fullmatch(name) else f"others_{kind}"
                found[label] += number - self._tokens.get(name, {}).get(kind, 0)
        return found


def own_folder(final: Path) -> Path:
    """A scratch folder's path that names machine and process; what killed processes of this machine left is removed."""
    for left in final.parent.glob(f"{glob.escape(f'.{final.name}.unfinished-')}*"):
        if ended(left):
            shutil.rmtree(left, ignore_errors=True)
    return final.with_name(f".{final.name}.unfinished-{_machine()}-{os.getpid()}")


def ended(scratch: Path) -> bool:
    """Whether the process that a scratch folder of :func:`own_folder` names was one of this machine, and is gone."""
    begin, _, number = scratch.name.rpartition("-")
    if not begin.endswith(f".unfinished-{_machine()}") or not number.isdecimal():
        return False
    try:
        return psutil.Process(int(number)).status() == psutil.STATUS_ZOMBIE  # killed, and nobody asked how it ended
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False  # another user's, and alive


def _machine() -> str:
    return re.sub(r"[^A-Za-z0-9]", "", socket.gethostname())


def _put(folder: Path, final: Path) -> None:
    """Move a folder into the place of another, which a second run may be filling at the same moment."""
    for _ in range(100):
        shutil.rmtree(final, ignore_errors=True)
        try:
            os.replace(folder, final)
            return
        except OSError:
            if not final.exists():
                raise
    raise OSError(f"{final} could not be replaced; the results lie in {folder}")


def _peak_memory() -> dict[str, int]:
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    found = {"peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit >> 20}
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_available():
        devices = range(torch.cuda.device_count())
        found["peak_gpu_memory_mb"] = sum(torch.cuda.max_memory_allocated(device) for device in devices) >> 20
    return found


def _without_control(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]", lambda found: repr(found.group())[1:-1], value)


def _commit() -> str | None:
    """The repository's commit, with ``+`` if files differ from it; None outside a git checkout."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=data.root(), capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def runs() -> list[dict[str, Any]]:
    """Every finished run's ``run.json``, in order of model and notebook."""
    return [json.loads(path.read_text()) for path in sorted(root().glob("*/*/*/run.json"))]
