"""What a model can do in general, before and after a change: MMLU, IFEval and others, scored by ``lm-eval``."""

import copy
import difflib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from biasgeom import hooks
from biasgeom.models import LanguageModel

if TYPE_CHECKING:  # of an extra
    from lm_eval.tasks import TaskManager


def scores(
    lm: LanguageModel,
    tasks: Sequence[str],
    *,
    limit: int | None = None,
    include: Path | None = None,
    batch_size: int = 8,
) -> pd.DataFrame:
    """Scores on benchmark tasks, by EleutherAI's evaluation harness with each task's own defaults.

    The loaded model is used as it is, with its adapter and under whatever edits it; prompts are raw text, without a
    chat template.

    Parameters
    ----------
    tasks : list of str
        Names of tasks or groups, such as ``["mmlu", "ifeval"]`` (gender paper, table 2). Their data come from the hub.
    limit : int, optional
        Only the first documents of each task: for trying out, not a score to report.
    include : Path, optional
        A folder with task files (YAML) of one's own; the harness's tasks are then left out.
    batch_size : int

    Returns
    -------
    DataFrame, columns task, metric, value, stderr, n
        A group is followed or preceded by its parts. ``stderr`` is NaN where the harness has none. A metric of a task
        with filters is called ``metric,filter``.

    Raises
    ------
    ImportError
        Without the extra ``benchmarks``.
    KeyError
        A task the harness does not know.
    ValueError
        A model in training mode; no tasks.
    """
    hooks.require_evaluation(lm)
    if isinstance(tasks, str) or not len(tasks):
        raise ValueError(f"expected a list of tasks, got {tasks!r}")
    known = _harness(include)
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    # The tokenizer is a copy: the harness gives it a padding token where there is none.
    wrapped = HFLM(pretrained=lm.model, tokenizer=copy.deepcopy(lm.tokenizer), batch_size=batch_size)
    results = simple_evaluate(
        model=wrapped,
        tasks=list(tasks),
        limit=limit,
        task_manager=known,
        log_samples=False,
    )["results"]
    return pd.DataFrame(
        [row for task, found in results.items() for row in _rows(task, found)],
        columns=["task", "metric", "value", "stderr", "n"],
    )


def require(tasks: Sequence[str]) -> None:
    """Raise what :func:`scores` would raise about tasks, before a model is loaded; nothing is downloaded.

    Raises
    ------
    ImportError
        Without the extra ``benchmarks``.
    ValueError
        Tasks that the harness does not know, by name.
    """
    if not len(tasks):
        return
    known = set(_harness().all_tasks)
    if unknown := [task for task in tasks if task not in known]:
        near = difflib.get_close_matches(str(unknown[0]), known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"lm-eval has no task {', '.join(map(repr, unknown))}{hint}")


def _harness(include: Path | None = None) -> "TaskManager":
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise ImportError(
            f"benchmarks are scored by lm-eval, which can't be imported ({error}): uv pip install -e '.[benchmarks]'"
        ) from error
    return TaskManager(include_path=include, include_defaults=include is None)


def _rows(task: str, found: dict[str, object]) -> list[tuple[str, str, float, float, int]]:
    """The harness keys a task's numbers ``"acc,none"`` and ``"acc_stderr,none"``: metric and filter."""
    rows = []
    for key, value in found.items():
        metric, comma, chosen = key.partition(",")
        if not comma or metric.endswith("_stderr"):
            continue
        stderr = found.get(f"{metric}_stderr,{chosen}", "N/A")
        n = found.get("sample_count", {}).get(key, found["sample_len"])
        label = metric if chosen == "none" else key
        rows.append((task, label, float(value), math.nan if stderr == "N/A" else float(stderr), int(n)))
    return rows
