"""The nine benchmarks from files in their own layout, which a loopback server hands out as the hub does.

Every row here is made up; none is from a data set.
"""

import csv
import hashlib
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import loopback
import pandas as pd
import pytest
from biasgeom import data, question_benchmarks, questions
from biasgeom.question_benchmarks import BENCHMARKS, FILE, NUMBER, load
from biasgeom.remote import DatasetNotAvailable
from loopback import Hosts, point_to, serving

ROWS = 30
LETTERS = ["A", "B", "C", "D", "E"]


def gsm8k(n: int) -> dict[str, Any]:
    return {"question": f" How many pens are in {n} boxes?\n", "answer": f"{n} * 2 = <<>>\n#### {n}"}


def mmlu(n: int) -> dict[str, Any]:
    return {"question": f"Which is item {n}?", "subject": "things", "choices": ["a", "b ", "", f"d{n}"], "answer": 1}


def truthfulqa(n: int) -> dict[str, Any]:
    answers = {"best_answer": "No", "correct_answers": ["No"], "incorrect_answers": ["Yes"]}
    return {"type": "Adversarial", "category": "Tales", "question": f"Is tale {n} true?", **answers, "source": "x"}


def commonsenseqa(n: int) -> dict[str, Any]:
    choices = {"label": LETTERS, "text": [f"place {letter}{n}" for letter in LETTERS]}
    return {
        "id": f"{n}",
        "question": f"Where is thing {n}?",
        "question_concept": "x",
        "choices": choices,
        "answerKey": "A",
    }


def pubmedqa(n: int) -> dict[str, Any]:
    context = {"contexts": [f"We asked {n} people.", "They slept."], "labels": ["AIM", "RESULT"], "meshes": ["Sleep"]}
    return {
        "pubid": n,
        "question": f"Do {n} people sleep?",
        "context": context,
        "long_answer": "SECRET",
        "final_decision": "yes",
    }


def gpqa(n: int) -> dict[str, Any]:
    wrong = {f"Incorrect Answer {k}": f"wrong {k} of {n}\n" for k in (1, 2, 3)}
    return {"Pre-Revision Question": "x", "Question": f"What, in case {n}?", "Correct Answer": f"right of {n}", **wrong}


def arc(n: int) -> dict[str, Any]:
    choices = {"text": ["one", "two", f"three {n}"], "label": ["1", "2", "3"]}
    return {"id": f"x_{n}", "question": f"Which number has {n}?", "choices": choices, "answerKey": "1"}


def socialmaze(n: int) -> dict[str, Any]:
    more = {"answer": "SECRET", "reasoning_process": "SECRET", "round 1": "", "round 2": "", "round 3": ""}
    return {"task": "roles", "system_prompt": "The rules.", "prompt": f"Round {n}. Who is it?", **more}


def bbq(n: int, category: str = "Age") -> dict[str, Any]:
    asked = {"context": f"{category} {n} came in. So did another.", "question": "Who was late?"}
    answers = {"ans0": f"{category} {n}", "ans1": "the other", "ans2": "not known"}
    return {"example_id": n, "category": category, "answer_info": {"ans0": ["x", "y"]}, **asked, **answers, "label": 2}


MADE: dict[str, Callable[[int], dict[str, Any]]] = {
    "GSM8K": gsm8k,
    "MMLU": mmlu,
    "TruthfulQA": truthfulqa,
    "CommonsenseQA": commonsenseqa,
    "PubMedQA": pubmedqa,
    "GPQA": gpqa,
    "ARC-Challenge": arc,
    "SocialMaze": socialmaze,
}
FIRST = {
    "GSM8K": "How many pens are in 0 boxes?",
    "MMLU": "Which is item 0?\nA. a\nB. b\nC. \nD. d0",
    "TruthfulQA": "Is tale 0 true?",
    "CommonsenseQA": "Where is thing 0?\nA. place A0\nB. place B0\nC. place C0\nD. place D0\nE. place E0",
    "PubMedQA": "We asked 0 people.\nThey slept.\n\nDo 0 people sleep?",
    "ARC-Challenge": "Which number has 0?\n1. one\n2. two\n3. three 0",
    "SocialMaze": "The rules.\n\nRound 0. Who is it?",
    "BBQ": "Age 0 came in. So did another. Who was late?\nA. Age 0\nB. the other\nC. not known",
}
HELD_OUT = {"SocialMaze", "BBQ", "GPQA"}  # judge paper, 4.1


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hosts]]:
    with serving(monkeypatch, tmp_path) as handler:
        for name, made in MADE.items():
            write(handler, name, [made(n) for n in range(ROWS)])
        for file in BENCHMARKS["BBQ"].files:
            category = file.removeprefix("data/").removesuffix(".jsonl")
            loopback.write(handler.folder, BENCHMARKS["BBQ"].repository, file, [bbq(n, category) for n in range(3)])
        yield handler


def write(handler: type[Hosts], name: str, rows: list[dict[str, Any]]) -> None:
    loopback.write(handler.folder, BENCHMARKS[name].repository, BENCHMARKS[name].files[0], rows)


def test_the_nine_of_the_paper() -> None:
    assert set(BENCHMARKS) == set(data.published("judge_table3")["domain"]) == {*MADE, "BBQ"}
    assert NUMBER == 500
    assert {name for name in BENCHMARKS if name in question_benchmarks.HELD_OUT} == HELD_OUT
    for benchmark in BENCHMARKS.values():
        assert benchmark.page == f"https://huggingface.co/datasets/{benchmark.repository}"


def test_questions_as_written(hosts: type[Hosts], tmp_path: Path) -> None:
    table = load(tmp_path / "stored")
    assert list(table.columns) == ["question_id", "domain", "held_out", "split", "question", "available"]
    texts = {name: list(part["question"]) for name, part in table.groupby("domain")}
    for name, first in FIRST.items():
        assert texts[name][0] == first
        assert len(texts[name]) == (33 if name == "BBQ" else ROWS)
    assert not any("SECRET" in text for text in table["question"])
    for row in table.itertuples():
        assert row.question_id == f"{row.domain}-{hashlib.sha256(row.question.encode()).hexdigest()[:12]}"
        assert row.held_out == (row.domain in HELD_OUT)


def test_gpqa_does_not_put_the_right_choice_first(hosts: type[Hosts]) -> None:
    texts = question_benchmarks.read("GPQA")["question"]
    places = Counter()
    for n, text in enumerate(texts):
        question, *choices = text.split("\n")
        assert question == f"What, in case {n}?"
        assert [choice[:3] for choice in choices] == ["A. ", "B. ", "C. ", "D. "]
        bare = [choice[3:] for choice in choices]
        assert sorted(bare) == sorted([f"right of {n}", *(f"wrong {k} of {n}" for k in (1, 2, 3))])
        places[bare.index(f"right of {n}")] += 1
    assert len(places) == 4
    assert max(places.values()) < ROWS / 2


def test_no_question_leaks_and_the_draw_is_stored(hosts: type[Hosts], tmp_path: Path) -> None:
    folder = tmp_path / "stored"
    table = load(folder, number=20)
    assert (table.groupby("domain").size() == 20).all()
    assert not table["question_id"].duplicated().any()
    assert (table.groupby("question")["split"].nunique() == 1).all()
    for name, part in table.groupby("domain"):
        expected = {"test": 20} if name in HELD_OUT else {"train": 9, "dev": 3, "test": 8}
        assert part["split"].value_counts().to_dict() == expected
        assert (part["available"] == (33 if name == "BBQ" else ROWS)).all()
    with open(folder / FILE, newline="") as stream:
        stored = list(csv.DictReader(stream))
    assert [row["question_id"] for row in stored] == list(table["question_id"])
    assert [row["split"] for row in stored] == list(table["split"])
    assert "people" not in (folder / FILE).read_text()  # no text of the data
    # What is stored is what counts: not the seed, nor the order of rows on the hub.
    pd.testing.assert_frame_equal(load(folder, number=20, seed=1), table)
    other = load(tmp_path / "other", number=20, seed=1)
    assert set(other["question_id"]) != set(table["question_id"])
    pd.testing.assert_frame_equal(load(tmp_path / "again", number=20), table)


def test_equal_texts_are_one_question(hosts: type[Hosts], tmp_path: Path) -> None:
    twice = [gsm8k(n // 3) for n in range(ROWS)]
    write(hosts, "GSM8K", twice)
    table = load(tmp_path / "stored", ["GSM8K", "MMLU"], number=20)
    part = table[table["domain"] == "GSM8K"]
    assert len(part) == part["question"].nunique() == ROWS // 3
    # Fewer than asked for: said, not hidden.
    assert (part["available"] == ROWS // 3).all()
    assert (table["available"] < 20).sum() == ROWS // 3
    # The control: by row number, the copies of a question are in several splits.
    rows = [f"row {n}" for n in range(ROWS)]
    parts = questions.split(rows, ["GSM8K"] * ROWS, ())
    assert max(parts.iloc[3 * n : 3 * n + 3].nunique() for n in range(ROWS // 3)) > 1


def test_the_order_of_rows_does_not_matter(hosts: type[Hosts], tmp_path: Path) -> None:
    one = question_benchmarks._draw(question_benchmarks.read("GSM8K"), 20, 42)
    rows = question_benchmarks.read("GSM8K")[::-1].reset_index(drop=True)
    other = question_benchmarks._draw(rows, 20, 42)
    columns = ["question_id", "split"]
    assert sorted(one[columns].to_records(index=False).tolist()) == sorted(
        other[columns].to_records(index=False).tolist()
    )


def without(row: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k != key}


@pytest.mark.parametrize(
    ("name", "last", "message"),
    [
        ("GSM8K", {"question": " "}, "row 30 (from 0) has no question"),
        ("GSM8K", {"question": None}, "row 30 (from 0) has no question"),
        ("MMLU", {"choices": ["a"]}, "row 30 (from 0) has no list of choices in choices"),
        ("MMLU", {"choices": None}, "row 30 (from 0) has no list of choices in choices"),
        ("CommonsenseQA", {"choices": {"label": ["A"], "text": ["a", "b"]}}, "row 30 (from 0) has no list of choices"),
        ("PubMedQA", {"context": {"contexts": []}}, "row 30 (from 0) has no contexts in context"),
        ("GPQA", {"Incorrect Answer 2": ""}, "row 30 (from 0) has no Incorrect Answer 2"),
        ("SocialMaze", {"system_prompt": ""}, "row 30 (from 0) has no system_prompt"),
    ],
)
def test_broken_rows(hosts: type[Hosts], name: str, last: dict[str, Any], message: str) -> None:
    write(hosts, name, [*(MADE[name](n) for n in range(ROWS)), {**MADE[name](ROWS), **last}])
    with pytest.raises(ValueError, match=r"from 0") as raised:
        question_benchmarks.read(name)
    assert str(raised.value).startswith(f"{name}, {BENCHMARKS[name].files[0]}: {message}")
    assert str(raised.value).endswith(f"see {BENCHMARKS[name].page}")


@pytest.mark.parametrize("name", list(MADE))
def test_missing_columns(hosts: type[Hosts], name: str) -> None:
    column = BENCHMARKS[name].columns[-1]
    write(hosts, name, [without(MADE[name](n), column) for n in range(2)])
    with pytest.raises(ValueError, match=f"{name}, {BENCHMARKS[name].files[0]}: no column {column}; found "):
        question_benchmarks.read(name)


def test_stored_questions_that_do_not_fit(hosts: type[Hosts], tmp_path: Path) -> None:
    folder = tmp_path / "stored"
    load(folder, ["GSM8K", "MMLU"], number=20)
    with pytest.raises(ValueError, match=r"stored questions are of GSM8K, MMLU; delete .* to draw again"):
        load(folder, ["GSM8K"], number=20)
    with pytest.raises(ValueError, match="20 questions of GSM8K are stored, 25 were asked for; delete "):
        load(folder, ["GSM8K", "MMLU"], number=25)
    path = folder / FILE
    path.write_text(path.read_text().replace("GSM8K-", "GSM8K-0", 1))
    with pytest.raises(ValueError, match=r"question GSM8K-0\w+ is no longer in the data; delete "):
        load(folder, ["GSM8K", "MMLU"], number=20)
    path.write_text(path.read_text().replace(",train,", ",valid,", 1))
    with pytest.raises(ValueError, match="has the split 'valid'; known are dev, test, train"):
        load(folder, ["GSM8K", "MMLU"], number=20)
    with pytest.raises(ValueError, match="no benchmark 'GSM'; there are GSM8K, MMLU"):
        load(folder, ["GSM"])


def test_gated_and_unreachable(hosts: type[Hosts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts.gated = BENCHMARKS["GPQA"].repository
    with pytest.raises(
        DatasetNotAvailable, match=r"GPQA: .*datasets/Idavidrein/gpqa .* HF_TOKEN .* embedded"
    ) as raised:
        load(tmp_path / "stored")
    assert loopback.TOKEN not in str(raised.value)
    assert not (tmp_path / "stored").exists()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        point_to(monkeypatch, f"http://127.0.0.1:{taken.getsockname()[1]}", tmp_path / "empty")
        start = time.monotonic()
        with pytest.raises(DatasetNotAvailable, match="TruthfulQA: "):
            load(tmp_path / "stored", ["TruthfulQA"])
        assert time.monotonic() - start < 5


def test_revisions_are_asked_for(hosts: type[Hosts], tmp_path: Path) -> None:
    load(tmp_path / "stored")
    asked = "\n".join(hosts.asked)
    for benchmark in BENCHMARKS.values():
        assert f"/{benchmark.repository}/resolve/{benchmark.revision.replace('/', '%2F')}/" in asked
    pinned = {name for name, benchmark in BENCHMARKS.items() if len(benchmark.revision) == 40}
    assert pinned == set(BENCHMARKS) - {"SocialMaze"}
