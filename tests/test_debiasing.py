"""The five data sets from files in their own layout, which a loopback server hands out as the hub and GitHub do.

Every row here is made up; none is from a data set.
"""

import socket
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import loopback
import pandas as pd
import pytest
from biasgeom import data, debiasing
from biasgeom.debiasing import SOURCES
from biasgeom.remote import DatasetNotAvailable
from loopback import TOKEN, Hosts, point_to, serving

GENDERALIGN = [
    {
        "count": 1,
        "chosen": "Human: Do women like tea?\nAssistant: Some people do.\n",
        "rejected": "Human: Do women like tea?\n\nAssistant:Yes\n",
    },
    {"count": 1, "chosen": "Human: Is it late?\n\nAssistant:It is: nine.\nGood night.\n", "rejected": ""},
]
# Both versions of each sentence, as the four parts have them.
WINOBIAS = {
    "type1_pro": [
        "The baker thanked the judge because she is kind .",
        "The judge 's desk is where he keeps his lamp .",
    ],
    "type1_anti": [
        "The baker thanked the judge because he is kind .",
        "The judge 's desk is where she keeps her lamp .",
    ],
    "type2_pro": ["The pilot met the tailor and greeted her warmly , once .", "The cook saw the guard and paid him ."],
    "type2_anti": ["The pilot met the tailor and greeted him warmly , once .", "The cook saw the guard and paid her ."],
}
CROWS_PAIRS = {
    "": ["0", "1", "2"],
    "sent_more": ["[Women] are late, NA.", "[group] are unreliable.", "The [man] drives well."],
    "sent_less": ["[Men] are late, NA.", "[other group] are unreliable.", "The [woman] drives well."],
    "stereo_antistereo": ["stereo", "stereo", "antistereo"],
    "bias_type": ["gender", "age", "gender"],
    "annotations": ["[['gender']]"] * 3,
    "anon_writer": ["a0"] * 3,
    "anon_annotators": ["['a1']"] * 3,
}


def stereoset(context: str, bias_type: str, labelled: dict[str, int]) -> dict[str, Any]:
    return {
        "id": context,
        "target": "cook",
        "bias_type": bias_type,
        "context": context,
        "sentences": {
            "sentence": list(labelled),
            "id": list(labelled),
            "labels": [{"label": [1], "human_id": ["h"]}] * len(labelled),
            "gold_label": list(labelled.values()),
        },
    }


STEREOSET = {
    "intersentence": [
        stereoset("The waiter came in.", "profession", {"A": 0, "B": 1, "C": 2}),
        stereoset("My aunt has a car.", "gender", {"It is pink.": 1, "Cats purr.": 2, "She repairs it.": 0}),
    ],
    "intrasentence": [
        stereoset("Boys BLANK.", "gender", {"Boys knit.": 0, "Boys box.": 1, "Boys seven.": 2}),
    ],
}


def bbq(question: str, context: str, label: int, category: str = "Gender_identity") -> dict[str, Any]:
    return {
        "example_id": 0,
        "question_index": "1",
        "question_polarity": "neg",
        "context_condition": "ambig" if label == 1 else "disambig",
        "category": category,
        "answer_info": {"ans0": ["Emma", "F"], "ans1": ["Not known", "unknown"], "ans2": ["Paul", "M"]},
        "additional_metadata": {"subcategory": "None", "stereotyped_groups": ["F"], "version": "a", "source": ""},
        "context": context,
        "question": question,
        "ans0": "Emma",
        "ans1": "Not known",
        "ans2": "Paul",
        "label": label,
    }


BBQ = [
    bbq("Who was late?", "Emma and Paul met.", 1),
    bbq("Who was late?", "Emma and Paul met. Paul came at ten, Emma at nine.", 2),
]

EXPECTED = {
    "genderalign": [("Do women like tea?", "\nSome people do."), ("Is it late?", "\nIt is: nine.\nGood night.")],
    "winobias": [
        ("The judge's desk is where", " they keep their lamp."),
        ("The baker thanked the judge because", " they are kind."),
        ("The cook saw the guard and paid", " them."),
        ("The pilot met the tailor and greeted", " them warmly, once."),
    ],
    "crows-pairs": [
        ("Say this without the stereotype: [Women] are late, NA.", "\n[Men] are late, NA."),
        ("Say this without the stereotype: The [man] drives well.", "\nThe [woman] drives well."),
    ],
    "stereoset": [
        ("My aunt has a car.", " She repairs it."),
        ("Complete the sentence by filling the BLANK: Boys BLANK.", "\nBoys knit."),
    ],
    "bbq": [
        ("Emma and Paul met.\nWho was late?", "\nNot known"),
        ("Emma and Paul met. Paul came at ten, Emma at nine.\nWho was late?", "\nPaul"),
    ],
}


def write(folder: Path, name: str, file: str, table: Any) -> None:
    loopback.write(folder, SOURCES[name].repository, file, table)


def wino_rows(sentences: list[str]) -> list[dict[str, Any]]:
    return [
        {
            "document_id": f"nw/test_type1/stereotype//{row}",
            "part_number": "0",
            "word_number": list(range(len(sentence.split()))),
            "tokens": sentence.split(),
            "coreference_clusters": ["0", "1", "5"],
        }
        for row, sentence in enumerate(sentences)
    ]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hosts]]:
    folder = tmp_path / "remote"
    write(folder, "genderalign", "GenderAlign.json", GENDERALIGN)
    for part, sentences in WINOBIAS.items():
        for split in ("validation", "test"):
            write(folder, "winobias", f"{part}/{split}-00000-of-00001.parquet", wino_rows(sentences))
    write(folder, "crows-pairs", "data/crows_pairs_anonymized.csv", CROWS_PAIRS)
    for part, items in STEREOSET.items():
        write(folder, "stereoset", f"{part}/validation-00000-of-00001.parquet", items)
    write(folder, "bbq", "data/Gender_identity.jsonl", BBQ)
    with serving(monkeypatch, tmp_path) as handler:
        yield handler


def pairs(rows: pd.DataFrame) -> list[tuple[str, str]]:
    return list(zip(rows["prompt"], rows["completion"], strict=True))


def test_each_data_set_is_adapted_and_duplicates_go(hosts: type[Hosts]) -> None:
    rows = debiasing.load()
    assert list(rows.columns) == ["source", "prompt", "completion"]
    assert list(rows.index) == list(range(12))
    assert {name: sorted(pairs(part)) for name, part in rows.groupby("source")} == {
        name: sorted(expected) for name, expected in EXPECTED.items()
    }
    assert pairs(debiasing.load(["bbq", "genderalign"])) == EXPECTED["bbq"] + EXPECTED["genderalign"]
    # Before that, each sentence is there twice here, once a split, and not four times: one of the two genders is taken.
    assert sorted(pairs(debiasing.read("winobias"))) == sorted(2 * EXPECTED["winobias"])


def test_files_are_kept(hosts: type[Hosts]) -> None:
    rows = debiasing.load()
    hosts.asked.clear()
    for path in hosts.folder.rglob("*.*"):
        path.unlink()
    assert debiasing.load().equals(rows)
    assert hosts.asked == []


def test_rows_with_an_evaluation_text_are_left_out(hosts: type[Hosts]) -> None:
    pair = data.contrast_pairs("held-out").loc[0, "male"]
    planted = [
        {"chosen": "Human: My friend  is a\nNURSE, isn't it?\nAssistant: Yes."},
        {"chosen": f"Human: Say it.\nAssistant: {pair.upper()}!"},
        {"chosen": "Human: An individual is an editor\nAssistant: Fine."},
        {"chosen": "Human: A person is a cookie\nAssistant: No."},
    ]
    write(hosts.folder, "genderalign", "GenderAlign.json", GENDERALIGN[:1] + planted)
    read, loaded = debiasing.read("genderalign"), debiasing.load(["genderalign"])
    assert len(read) == 5
    assert list(loaded["prompt"]) == ["Do women like tea?", "A person is a cookie"]
    assert debiasing.overlaps(read, debiasing.evaluation_texts()) == [1, 2, 3]
    assert debiasing.overlaps(read, data.personas()) == [1, 3, 4]
    assert debiasing.overlaps(read, []) == []


def test_a_text_over_the_boundary_is_found_at_its_place() -> None:
    rows = pd.DataFrame(
        {"prompt": ["This person", "Nobody"], "completion": [" loves yoga.", " loves yoga."]}, index=[7, 7]
    )
    assert debiasing.overlaps(rows, ["This person loves yoga"]) == [0]
    # The control: the same words, not glued by a space, are others.
    rows["completion"] = ["loves yoga."] * 2
    assert debiasing.overlaps(rows, ["This person loves yoga"]) == []


def test_evaluation_texts_are_all_there() -> None:
    texts = debiasing.evaluation_texts()
    pairs = [data.contrast_pairs(split) for split in ("direction", "held-out", "continued")]
    assert set(data.gender_prompts()["prompt"]) < set(texts)
    assert {"A person is a editor", "A person is an editor"} < set(texts)
    assert {text for pair in pairs for side in ("female", "male") for text in pair[side]} < set(texts)
    assert len(texts) == len(set(texts)) == 444 + 18 + 2 * (75 + 32 + 40)


BROKEN: dict[str, tuple[Any, str]] = {
    "genderalign": ([*GENDERALIGN, {"chosen": "Human: Why?\nAssistant: \n"}], "row 2 .from 0. has no completion"),
    "winobias": (wino_rows(["The baker met him .", "The baker slept ."]), "row 1 .from 0. has no completion"),
    "crows-pairs": (
        {"sent_more": ["x", "y"], "sent_less": ["x", " "], "bias_type": ["age", "gender"]},
        "row 1 .from 0. has no completion",
    ),
    "stereoset": ([stereoset("It is BLANK.", "gender", {"It is.": 1})], "row 0 .from 0. has no completion"),
    "bbq": ([BBQ[0], bbq("Who?", "They met.", 3)], "row 1 .from 0. has no completion"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_row_without_completion(hosts: type[Hosts], name: str) -> None:
    table, message = BROKEN[name]
    file = SOURCES[name].files[0]
    write(hosts.folder, name, file, table)
    with pytest.raises(ValueError, match=f"{name}, {file}: {message}; see https://"):
        debiasing.load([name])


@pytest.mark.parametrize("name", SOURCES)
def test_a_file_that_is_something_else(hosts: type[Hosts], name: str) -> None:
    """A proxy's page, say, in place of the file."""
    file = SOURCES[name].files[0]
    (hosts.folder / SOURCES[name].repository / file).write_text('<html lang="en">\n"')
    with pytest.raises(ValueError, match=rf"{file.split('/')[-1]} can't be read .*; delete it to have it downloaded"):
        debiasing.load([name])


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("genderalign", [{"chosen": "Human: \nAssistant: Yes."}]),
        ("genderalign", [{"chosen": None}]),
        ("winobias", wino_rows(["He met the baker ."])),
        ("crows-pairs", {"sent_more": [None], "sent_less": ["x"], "bias_type": ["gender"]}),
        ("stereoset", [stereoset(" ", "gender", {"It is.": 0})]),
        ("bbq", [bbq("Who?", "", 0)]),
        ("bbq", [bbq("", "They met.", 0)]),
    ],
)
def test_a_row_without_prompt(name: str, table: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}, its rows: row 0 .from 0. has no prompt"):
        debiasing.from_rows(name, pd.DataFrame(table))


@pytest.mark.parametrize("name", SOURCES)
def test_a_missing_column(name: str) -> None:
    *others, last = SOURCES[name].columns
    table = pd.DataFrame({column: ["text"] for column in [*others, "else"]})
    with pytest.raises(ValueError, match=f"{name}, its rows: no column {last}; found .*else"):
        debiasing.from_rows(name, table)


def test_nothing_about_gender_and_unknown_names() -> None:
    with pytest.raises(ValueError, match="crows-pairs, its rows: holds no row about gender"):
        debiasing.from_rows("crows-pairs", pd.DataFrame({"sent_more": "x", "sent_less": "y", "bias_type": ["age"]}))
    with pytest.raises(ValueError, match="no data set 'crows'; there are genderalign, winobias, crows-pairs"):
        debiasing.load(["crows"])


def refusal(name: str) -> str:
    """What is said within ten seconds, with data set, page and variable, and no token in the whole trace."""
    start = time.monotonic()
    with pytest.raises(DatasetNotAvailable) as raised:
        debiasing.load([name])
    assert time.monotonic() - start < 10
    message = str(raised.value)
    for wanted in (name, SOURCES[name].page, "HF_TOKEN", SOURCES[name].files[0]):
        assert wanted in message
    assert TOKEN not in "".join(traceback.format_exception(raised.value))
    return message


def test_gated_and_moved(hosts: type[Hosts]) -> None:
    hosts.gated = SOURCES["stereoset"].repository
    assert "(GatedRepoError)" in refusal("stereoset")
    for name, error in (("bbq", "RemoteEntryNotFoundError"), ("genderalign", "HTTPStatusError")):
        (hosts.folder / SOURCES[name].repository / SOURCES[name].files[0]).unlink()
        assert f"({error})" in refusal(name)
    assert pairs(debiasing.load(["crows-pairs"])) == EXPECTED["crows-pairs"]


@pytest.mark.parametrize("name", SOURCES)
def test_a_host_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        point_to(monkeypatch, f"http://127.0.0.1:{taken.getsockname()[1]}", tmp_path)
        assert "(ConnectError)" in refusal(name)


def test_pages() -> None:
    assert SOURCES["bbq"].page == "https://huggingface.co/datasets/heegyu/bbq"
    assert SOURCES["genderalign"].page == "https://github.com/ZeroNLP/GenderAlign"
