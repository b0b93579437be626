"""Benchmarks through lm-eval: the right model, the right numbers, nothing changed by the harness."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from biasgeom import capability, hooks
from biasgeom.models import LanguageModel

Build = Callable[[str], LanguageModel]
QUESTIONS = {
    "Who repairs the bridge?": ["the engineer", "the nurse", "a person"],
    "Who reads a book?": ["the teacher", "a doctor"],
    "What is he?": ["a plumber", "tired", "the manager"],
    "Where is the village?": ["in the north", "after the shift"],
    "Who walks in?": ["nobody", "the children", "my colleague"],
}
KEPT = 3
"""Questions whose marked answer is the one the tiny Llama prefers: accuracy 3/5, and 3/4 of the first four."""


def preferred(lm: LanguageModel, question: str, choices: list[str]) -> int:
    """The choice with the highest log-likelihood after the question, each in a pass of its own."""
    sums = []
    for choice in choices:
        encoded = lm.tokenizer(f"{question} {choice}", return_offsets_mapping=True)
        ids = torch.tensor([encoded["input_ids"]])
        with torch.no_grad():
            log_p = lm.model(ids).logits[0].double().log_softmax(-1)
        places = [place for place, (start, _) in enumerate(encoded["offset_mapping"]) if start >= len(question)]
        sums.append(sum(float(log_p[place - 1, ids[0, place]]) for place in places))
    return int(np.argmax(sums))


@pytest.fixture
def task(tmp_path: Path, llama: LanguageModel) -> Path:
    """A folder with a multiple-choice task of lm-eval and its data."""
    pytest.importorskip("lm_eval", reason="the extra benchmarks is not installed")
    lines = []
    for place, (question, choices) in enumerate(QUESTIONS.items()):
        answer = (preferred(llama, question, choices) + (place >= KEPT)) % len(choices)
        lines.append(json.dumps({"question": question, "choices": choices, "answer": answer}))
    data = tmp_path / "questions.jsonl"
    data.write_text("\n".join(lines))
    folder = tmp_path / "tasks"
    folder.mkdir()
    config = {
        "task": "tiny_questions",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}, "cache_dir": str(tmp_path / "datasets")},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(config))
    group = {
        "group": "tiny_group",
        "task": ["tiny_questions"],
        "aggregate_metric_list": [{"metric": "acc", "weight_by_size": True}],
    }
    (folder / "group.yaml").write_text(yaml.safe_dump(group))
    return folder


def test_accuracy_is_that_of_the_log_likelihoods(llama: LanguageModel, task: Path) -> None:
    before = llama.fingerprint()
    table = capability.scores(llama, ["tiny_questions"], include=task, batch_size=4)
    assert list(table.columns) == ["task", "metric", "value", "stderr", "n"]
    # The error of a mean of n zeros and ones, of which `KEPT` are ones.
    share = KEPT / len(QUESTIONS)
    error = math.sqrt(share * (1 - share) / (len(QUESTIONS) - 1))
    assert table.values.tolist() == [["tiny_questions", "acc", share, pytest.approx(error), len(QUESTIONS)]]
    first = capability.scores(llama, ["tiny_group"], include=task, limit=4)
    assert set(first["task"]) == {"tiny_group", "tiny_questions"}
    assert first["value"].tolist() == [0.75, 0.75]
    assert first["n"].tolist() == [4, 4]
    assert llama.fingerprint() == before
    # An edited stream is measured as edited.
    with hooks.steer(llama, 2, np.random.default_rng(0).standard_normal(llama.width), 40.0, positions="all"):
        wanted = [json.loads(line) for line in (task.parent / "questions.jsonl").read_text().splitlines()]
        right = [preferred(llama, line["question"], line["choices"]) == line["answer"] for line in wanted]
        edited = capability.scores(llama, ["tiny_questions"], include=task)
    assert edited["value"][0] == np.mean(right) != share


@pytest.mark.parametrize("architecture", ["gpt2", "llama-lora"])
def test_other_models_are_scored_as_themselves(build: Build, architecture: str, task: Path) -> None:
    lm = build(architecture)
    before, padding = lm.fingerprint(), lm.tokenizer.pad_token
    wanted = [json.loads(line) for line in (task.parent / "questions.jsonl").read_text().splitlines()]
    right = [preferred(lm, line["question"], line["choices"]) == line["answer"] for line in wanted]
    assert capability.scores(lm, ["tiny_questions"], include=task)["value"].tolist() == [np.mean(right)]
    assert lm.fingerprint() == before
    assert lm.tokenizer.pad_token == padding


def test_wrong_requests(llama: LanguageModel, task: Path) -> None:
    with pytest.raises(KeyError, match="no_such_task"):
        capability.scores(llama, ["no_such_task"], include=task)
    for tasks in ([], "mmlu"):
        with pytest.raises(ValueError, match="expected a list of tasks"):
            capability.scores(llama, tasks)
    llama.model.train()
    with pytest.raises(ValueError, match="training mode"):
        capability.scores(llama, ["tiny_questions"], include=task)


def test_without_the_extra(llama: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lm_eval", "lm_eval.tasks"):
        monkeypatch.setitem(sys.modules, name, None)
    for asked in (lambda: capability.scores(llama, ["mmlu"]), lambda: capability.require(["mmlu"])):
        with pytest.raises(ImportError, match=r"uv pip install -e '\.\[benchmarks\]'"):
            asked()
    capability.require([])


def test_an_unknown_task_is_refused_without_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capability, "_harness", lambda: SimpleNamespace(all_tasks=["ifeval", "mmlu"]))
    capability.require(["mmlu"])
    with pytest.raises(ValueError, match="lm-eval has no task 'mmllu'; did you mean 'mmlu'"):
        capability.require(["ifeval", "mmllu"])
