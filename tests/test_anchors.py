"""The anchors: balanced at any number, nested, and sampled from data sets on a hub of this machine."""

import csv
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from biasgeom import data, sentences
from biasgeom.remote import DatasetNotAvailable
from loopback import Hosts, serving, write

FOLDER = data.root() / "data" / "delta_b"
PRINTED_ANCHORS = {
    "Homosexuals speak multiple languages and dialects.",
    "Many Asians participate in online discussions.",
    "Women use technology in their daily routines.",
}


def rows(name: str) -> list[dict[str, str]]:
    with open(FOLDER / f"{name}.csv", newline="") as stream:
        return list(csv.DictReader(stream))


def test_neutral_anchors_are_balanced_at_any_number() -> None:
    anchors = sentences.anchors()
    assert len(anchors) == len(set(anchors)) == 1000
    assert set(anchors) >= PRINTED_ANCHORS
    templates = [row["template"] for row in rows("anchor_templates")]
    assert len(templates) == len(set(templates)) == 50
    groups = sentences.groups()
    known = {}
    for template in templates:
        for row in groups.itertuples():
            form = row.subject if template.startswith("[GROUP]") else row.inside
            known[template.replace("[GROUP]", form)] = (template, row.group)
    used = [known[anchor] for anchor in anchors]
    for number in (1, 10, 23, 24, 50, 100, 300, 599, 601, 1000):
        by_group = Counter({group: 0 for group in groups["group"]})
        by_group.update(group for _, group in used[:number])
        assert max(by_group.values()) - min(by_group.values()) <= 1, number
        by_template = Counter({template: 0 for template in templates})
        by_template.update(template for template, _ in used[:number])
        assert max(by_template.values()) - min(by_template.values()) <= (2 if 600 < number < 1000 else 1), number
    assert set(Counter(template for template, _ in used).values()) == {20}
    assert set(Counter(group for _, group in used).values()) == {41, 42}
    # The control: group by group, the first hundred would be about two groups.
    assert len({group for _, group in sorted(used, key=lambda pair: pair[1])[:100]}) < 4


@pytest.mark.parametrize("source", ["neutral", "words", "instructions"])
def test_a_smaller_set_of_anchors_is_part_of_a_larger_one(source: str) -> None:
    anchors = sentences.anchors(source)
    assert len(anchors) == len({anchor.lower() for anchor in anchors}) == 1000
    assert sentences.anchors(source, number=300) == anchors[:300]
    assert sentences.anchors(source, number=1) == anchors[:1]


def test_other_anchors_are_words_and_requests() -> None:
    assert all(re.fullmatch("[a-z]+", word) for word in sentences.anchors("words"))
    requests = sentences.anchors("instructions")
    assert all(re.fullmatch(r"[A-Z].* .*[.?]", request) for request in requests)
    assert not any("[" in request for request in requests)
    table = rows("instructions")
    topics = [row["text"] for row in table if row["kind"] == "topic"]
    for number in (100, 1000):
        counts = Counter(topic for request in requests[:number] for topic in topics if topic in request)
        assert set(counts) == set(topics)
        assert max(counts.values()) - min(counts.values()) <= 2


def turns(*contents: str | None) -> list[dict[str, str | None]]:
    roles = ["system", "user", "assistant", "user"]
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hosts]]:
    alpaca, tulu = sentences.HUB["alpaca"], sentences.HUB["tulu"]
    tasks = [f"Name {number} towns. Then sort them." for number in range(40)]
    rows = {"instruction": [*tasks, *tasks[:5], "word " * 31 + ".", " \n", None], "output": ["x"] * 48}
    write(tmp_path / "remote", alpaca.repository, alpaca.files[0], rows)
    for shard, file in enumerate(tulu.files):
        chats = [turns("Be brief.", f"Is {shard}{number} even?\nOr odd?", "Yes.", "Why?") for number in range(3)]
        chats += [turns("Alone."), turns("Be brief.", None), turns("Be brief.", "Twice told!", "Yes.")]
        write(tmp_path / "remote", tulu.repository, file, {"id": ["i"] * 6, "messages": chats})
    sentences._hub_sentences.cache_clear()
    with serving(monkeypatch, tmp_path) as handler:
        yield handler
    sentences._hub_sentences.cache_clear()


def test_anchors_from_data_sets(hosts: type[Hosts]) -> None:
    found = sentences.anchors("alpaca", number=40)
    assert sorted(found) == sorted(f"Name {number} towns." for number in range(40))
    assert found != [f"Name {number} towns." for number in range(40)]
    assert sentences.anchors("alpaca", number=7) == found[:7]
    with pytest.raises(ValueError, match="there are 40 alpaca anchors: ask for 1 to 40, not 1000"):
        sentences.anchors("alpaca")
    expected = {f"Is {shard}{number} even?" for shard in range(6) for number in range(3)} | {"Twice told!"}
    assert set(sentences.anchors("tulu", number=19)) == expected
    # The order is the data's and the seed's, not the process's.
    hosts.asked.clear()
    sentences._hub_sentences.cache_clear()
    assert sentences.anchors("alpaca", number=40) == found
    assert hosts.asked == []


def test_data_sets_that_are_others(hosts: type[Hosts]) -> None:
    alpaca, tulu = sentences.HUB["alpaca"], sentences.HUB["tulu"]
    write(hosts.folder, alpaca.repository, alpaca.files[0], {"prompt": ["Name a town."]})
    with pytest.raises(ValueError, match=r"the alpaca anchors, data/train.*: no column instruction; found prompt"):
        sentences.anchors("alpaca")
    hosts.gated = tulu.repository
    with pytest.raises(DatasetNotAvailable, match=r"the tulu anchors: .*tulu-3-sft-mix.*HF_TOKEN.*need no download"):
        sentences.anchors("tulu")


def test_no_sentence_is_short_enough(hosts: type[Hosts]) -> None:
    alpaca = sentences.HUB["alpaca"]
    write(hosts.folder, alpaca.repository, alpaca.files[0], {"instruction": ["word " * 31]})
    with pytest.raises(ValueError, match="the alpaca anchors: tatsu-lab/alpaca holds no sentence of up to 30 words"):
        sentences.anchors("alpaca")


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("One. Two.", "One."),
        ("  What is 3.5? It is a number.", "What is 3.5?"),
        ("A heading\nand a text.", "A heading"),
        ("no stop", "no stop"),
        ("", ""),
        ("w " * 30, ("w " * 30).strip()),
        ("w " * 31, ""),
    ],
)
def test_first_sentence(text: str, first: str) -> None:
    assert sentences.first_sentence(text) == first
