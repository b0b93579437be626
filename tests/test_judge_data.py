"""The questions and answers of ``data/judge``: how many, how long, how alike, and the stored split.

The files are read here with the csv module, and counted and compared by plain loops.
"""

import csv
import itertools
import re
from collections import Counter, defaultdict

import pytest
from biasgeom import data, questions

FOLDER = data.root() / "data" / "judge"
KINDS = list(itertools.product(("good", "poor", "wrong"), ("plain", "neutral", "tentative")))
HEDGE = re.compile(
    r"\b(I think|I believe|I suppose|I guess|perhaps|maybe|might|may|possibly|probably|seems?|likely|unsure|could be|"
    r"not (?:entirely |completely |quite )?(?:sure|certain)|as far as I (?:know|can tell)|I would guess|"
    r"if I remember)\b",
    re.IGNORECASE,
)


def rows(name: str) -> list[dict[str, str]]:
    with open(FOLDER / f"{name}.csv", newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


ASKED = {row["question_id"]: row for row in rows("questions")}
GIVEN = rows("answers")
HELD_OUT = {row["domain"] for row in rows("domains") if row["held_out"] == "yes"}


def domain(question: str) -> str:
    return ASKED[question]["domain"]


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z']+", text.lower()))


def jaccard(one: str, other: str) -> float:
    return len(words(one) & words(other)) / len(words(one) | words(other))


def mean_length(kinds: set[tuple[str, str]], chosen: list[dict[str, str]]) -> float:
    lengths = [len(row["answer"].split()) for row in chosen if (row["quality"], row["voice"]) in kinds]
    return sum(lengths) / len(lengths)


def test_thirteen_questions_in_each_of_twelve_domains() -> None:
    counts = Counter(row["domain"] for row in ASKED.values())
    assert set(counts) == {row["domain"] for row in rows("domains")}
    assert len(counts) == 12
    assert set(counts.values()) == {13}
    assert sum(counts.values()) >= 150  # the specification's
    assert {"chemistry", "civics", "social_situations"} == HELD_OUT
    assert len(ASKED) == len(rows("questions"))


def test_nine_answers_each() -> None:
    kinds: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in GIVEN:
        kinds[row["question_id"]].append((row["quality"], row["voice"]))
    assert set(kinds) == set(ASKED)
    assert all(sorted(found) == sorted(KINDS) for found in kinds.values())


def test_texts_are_plain() -> None:
    texts = [row["answer"] for row in GIVEN] + [row["question"] for row in ASKED.values()]
    assert not [text for text in texts if re.search(r"[\d%\[\]\n]", text) or not text.isascii()]
    assert len(set(texts)) == len(texts)
    for row in GIVEN:
        assert 14 <= len(row["answer"].split()) <= 34, row
        assert len(re.findall(r"[.!?](?:\s|$)", row["answer"])) >= 2, row
    assert all(row["question"].endswith("?") for row in ASKED.values())


def test_only_tentative_answers_hedge() -> None:
    for row in GIVEN:
        found = len(HEDGE.findall(row["answer"]))
        assert found >= 2 if row["voice"] == "tentative" else found == 0, row


def test_no_answer_is_another_with_a_slot_swapped() -> None:
    """Token Jaccard below .7 within a domain; the voices of one answer say the same and are exempt."""
    by_domain: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in GIVEN:
        by_domain[domain(row["question_id"])].append({**row, "words": words(row["answer"])})
    for name, part in by_domain.items():
        for one, other in itertools.combinations(part, 2):
            if (one["question_id"], one["quality"]) != (other["question_id"], other["quality"]):
                both, either = one["words"] & other["words"], one["words"] | other["words"]
                assert len(both) / len(either) < 0.7, (name, one, other)
    swapped = "Each basket holds seven apples. Three sevens are twenty-one."
    assert jaccard(swapped, swapped.replace("apples", "pears")) > 0.7


def test_no_question_is_asked_twice() -> None:
    """In any two domains, since a held-out one must not repeat what another trains on."""
    for one, other in itertools.combinations(ASKED.values(), 2):
        assert jaccard(one["question"], other["question"]) < 0.5, (one, other)
    assert jaccard("What makes bread dough with yeast rise?", "What gas makes bread dough rise with yeast?") > 0.5


@pytest.mark.parametrize("chosen", ["all", "base"])
def test_lengths_tell_little(chosen: str) -> None:
    """Qualities agree in length, so that a judge can't tell them by it. The voices do not quite: see the README."""
    base = {(row["question_id"], row["quality"], row["voice"]) for row in rows("split")}
    part = [row for row in GIVEN if chosen == "all" or (row["question_id"], row["quality"], row["voice"]) in base]
    assert len(part) == (9 if chosen == "all" else 1) * len(ASKED)
    of_quality = [
        mean_length({(quality, voice) for voice in questions.VOICES}, part) for quality in questions.QUALITIES
    ]
    assert max(of_quality) - min(of_quality) < 1.5
    of_voice = [mean_length({(quality, voice) for quality in questions.QUALITIES}, part) for voice in questions.VOICES]
    assert max(of_voice) - min(of_voice) < 5


def test_voices_of_an_answer_are_of_like_length() -> None:
    length = {(row["question_id"], row["quality"], row["voice"]): len(row["answer"].split()) for row in GIVEN}
    for question, quality in itertools.product(ASKED, questions.QUALITIES):
        three = [length[question, quality, voice] for voice in questions.VOICES]
        assert max(three) - min(three) <= 12, (question, quality, three)


def test_the_stored_split_is_the_one_that_is_drawn() -> None:
    stored = {row["question_id"]: row["split"] for row in rows("split")}
    domains = [row["domain"] for row in ASKED.values()]
    drawn = questions.split(list(ASKED), domains, HELD_OUT)
    assert drawn.to_dict() == stored
    assert questions.split(list(ASKED), domains, HELD_OUT, seed=43).to_dict() != stored
    again = questions.draw(list(ASKED), domains, HELD_OUT)
    assert again.to_dict("records") == rows("split")


def test_the_shares_of_the_split() -> None:
    stored = {row["question_id"]: row["split"] for row in rows("split")}
    seen = Counter(part for question, part in stored.items() if domain(question) not in HELD_OUT)
    # 45, 15 and 40 % of 117 are 52.65, 17.55 and 46.8.
    assert seen == {"train": 53, "dev": 17, "test": 47}
    for name in {row["domain"] for row in ASKED.values()} - HELD_OUT:
        counts = Counter(part for question, part in stored.items() if domain(question) == name)
        assert counts["train"] in (5, 6), name
        assert counts["dev"] in (1, 2), name
        assert counts["test"] in (5, 6), name
    assert {part for question, part in stored.items() if domain(question) in HELD_OUT} == {"test"}


def test_no_question_leaks() -> None:
    """Neither a question nor a text of it is in two splits, in whichever way the texts are read."""
    table = questions.load()
    of: dict[str, set[str]] = defaultdict(set)
    for row in table.to_dict("records"):
        for key in (row["question_id"], row["question"]):
            of[key].add(row["split"])
    split_of = dict(zip(table["question_id"], table["split"], strict=True))
    for row in questions.answers().to_dict("records"):
        of[row["answer"]].add(split_of[row["question_id"]])
    assert {len(parts) for parts in of.values()} == {1}
    # The control: answers dealt out one by one put nearly every question into several splits.
    dealt: dict[str, set[str]] = defaultdict(set)
    for place, row in enumerate(GIVEN):
        dealt[row["question_id"]].add(("train", "dev", "test")[place % 3])
    assert any(len(parts) > 1 for parts in dealt.values())


@pytest.mark.parametrize("number", [72, 144, 150, 156])
def test_base_answers_are_balanced(number: int) -> None:
    table = questions.load(number=number)
    assert len(table) == number
    assert table["domain"].value_counts().agg(lambda sizes: sizes.max() - sizes.min()) <= 1
    assert (kinds := Counter(zip(table["quality"], table["voice"], strict=True))).keys() == set(KINDS)
    assert max(kinds.values()) - min(kinds.values()) <= (1 if number == 156 else 2)
    for _, part in table.groupby(["split", "held_out"]):
        within = Counter(zip(part["quality"], part["voice"], strict=True))
        assert max(within.values()) - min(within[kind] for kind in KINDS) <= 1
    shares = table.loc[~table["held_out"], "split"].value_counts(normalize=True)
    assert all(abs(shares[part] - share) < 0.03 for part, share in questions.SHARES.items())
    for column in ("quality", "voice"):
        counts = Counter(zip(table["domain"], table[column], strict=True))
        assert len(counts) == 36
        assert max(counts.values()) - min(counts.values()) <= (1 if number == 156 else 2)
