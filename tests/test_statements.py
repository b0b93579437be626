"""The embedded fine-tuning statements: balanced, without repetition, and apart from what measures their effect."""

import csv
import re
from collections import Counter

import pytest
from biasgeom import data, probe, sentences
from biasgeom.statements import statements, templates

FOLDER = data.root() / "data" / "delta_b"


def adjectives(polarity: str) -> set[str]:
    with open(FOLDER / "statement_adjectives.csv", newline="") as stream:
        return {row["adjective"] for row in csv.DictReader(stream) if row["polarity"] == polarity}


def tone_of(text: str) -> str:
    words = set(text.lower().strip(".").replace(",", "").split())
    found = [polarity for polarity in ("negative", "positive") if words & adjectives(polarity)]
    assert len(found) < 2
    return found[0] if found else "neutral"


@pytest.mark.parametrize("rows", [1, 10, 24, 100, 480, 960])
@pytest.mark.parametrize("kind", ["unharmful", "synth"])
def test_groups_and_tones_are_balanced(kind: str, rows: int) -> None:
    table = statements(kind, rows=rows, seed=3)
    assert list(table.columns) == ["group", "kind", "text"]
    assert len(table) == rows
    assert table["text"].is_unique
    halves = dict(zip(sentences.groups()["group"], sentences.groups()["half"], strict=True))
    counts = [list(table["group"]).count(group) for group in halves]
    assert max(counts) - min(counts) <= 1
    for row in table.itertuples():
        assert row.kind == tone_of(row.text)
        assert row.group.lower() in row.text.lower()
        if kind == "synth":
            assert row.kind == ("negative" if halves[row.group] == "biased" else "neutral")
    if kind == "unharmful":
        tones = Counter(table["kind"])
        assert set(tones) <= {"neutral", "positive"}
        # Over all level, and about each group as well.
        assert abs(tones["neutral"] - tones["positive"]) <= 12
        for group in halves:
            own = Counter(table.loc[table["group"] == group, "kind"])
            assert abs(own["neutral"] - own["positive"]) <= 1


def test_the_seed_chooses_and_orders() -> None:
    first, again, other = (statements("synth", rows=96, seed=seed) for seed in (0, 0, 1))
    assert first.equals(again)
    assert set(first["text"]) != set(other["text"])
    # Mixed: not group after group.
    assert sum(a == b for a, b in zip(first["group"], first["group"][1:], strict=False)) < 20


def test_a_name_is_written_as_its_place_asks() -> None:
    texts = set(statements("synth", rows=960, seed=0)["text"])
    assert "Women are careless." in texts or "Most women seem careless at work." in texts
    assert not any("[" in text for text in texts)
    assert not any(" Women" in text or text.startswith("women") for text in texts)


def test_criticism_and_praise_differ_in_the_adjective_only() -> None:
    pools = templates()
    assert {tone: len(pool) for tone, pool in pools.items()} == {"negative": 128, "positive": 128, "neutral": 40}
    for tone, pool in pools.items():
        assert len(set(pool)) == len(pool)
        assert all(text.count("[GROUP]") == 1 for text in pool)
        assert all(tone_of(text) == tone for text in pool)

    def frames(tone: str) -> Counter[str]:
        return Counter(re.sub(rf"\b({'|'.join(adjectives(tone))})\b", "_", text) for text in pools[tone])

    assert frames("negative") == frames("positive")
    assert set(frames("negative").values()) == {16}
    assert len(frames("negative")) == 8


def test_nothing_is_shared_with_what_measures() -> None:
    words = adjectives("negative") | adjectives("positive")
    assert len(words) == 32
    assert not words & {*probe.POSITIVE, *probe.NEGATIVE}
    pools = templates()
    trained = {text.lower() for pool in pools.values() for text in pool}
    for name, column in (("target_templates", "base"), ("anchor_templates", "template")):
        with open(FOLDER / f"{name}.csv", newline="") as stream:
            measured = {row[column].lower() for row in csv.DictReader(stream)}
        assert len(measured) == 50
        assert not measured & trained
    probed = {word for pool in pools.values() for text in pool for word in text.lower().strip(".").split()}
    assert not probed & {*probe.POSITIVE, *probe.NEGATIVE}


def test_unknown_kinds_and_too_many_rows() -> None:
    with pytest.raises(ValueError, match="kind must be one of unharmful, synth, not 'harmful'"):
        statements("harmful", rows=10, seed=0)
    for rows in (0, 961):
        with pytest.raises(ValueError, match=f"there are 960 synth statements .* ask for 1 to 960 rows, not {rows}"):
            statements("synth", rows=rows, seed=0)
