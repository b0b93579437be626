"""The split and the draw on made-up questions: counts by hand, no question in two splits, files that are broken."""

import csv
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from biasgeom import questions
from hypothesis import given, settings
from hypothesis import strategies as st

DOMAINS = {"brass": 13, "cork": 13, "felt": 13, "glass": 13, "jute": 13, "wool": 13}
HELD_OUT = {"felt", "wool"}
IDS = [f"{domain}-{number:02d}" for domain, size in DOMAINS.items() for number in range(size)]
OF = [name.split("-")[0] for name in IDS]


def write(path: Path, rows: list[list[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as stream:
        csv.writer(stream).writerows(rows)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with two questions a domain."""
    folder = tmp_path / "data" / "judge"
    (tmp_path / "data" / "gender").mkdir(parents=True)
    monkeypatch.setenv("BIASGEOM_ROOT", str(tmp_path))
    ids = [name for name in IDS if name.endswith(("-00", "-01"))]
    of = [name.split("-")[0] for name in ids]
    held_out = [["domain", "held_out", "about"]]
    write(folder / "domains.csv", held_out + [[d, "yes" if d in HELD_OUT else "no", f"about {d}"] for d in DOMAINS])
    asked = [[name, domain, f"What is {name}?"] for name, domain in zip(ids, of, strict=True)]
    write(folder / "questions.csv", [["question_id", "domain", "question"], *asked])
    given = [
        [name, quality, voice, f"{name} is {quality}, said in a {voice} way."]
        for name, quality, voice in itertools.product(ids, questions.QUALITIES, questions.VOICES)
    ]
    write(folder / "answers.csv", [["question_id", "quality", "voice", "answer"], *given])
    questions.draw(ids, of, HELD_OUT).to_csv(folder / "split.csv", index=False)
    return folder


def test_the_split_by_hand() -> None:
    parts = questions.split(IDS, OF, HELD_OUT)
    assert list(parts.index) == IDS
    counts = Counter(zip(OF, parts, strict=True))
    # 13 questions are 5.85, 1.95 and 5.2, so 6 2 5. What is carried over makes that 5.7 1.9 5.4, then 5.55 1.85 5.6 and
    # then 6.4 1.8 4.8. In all 23 8 21 of the 23.4 7.8 20.8 that 52 make.
    expected = {"brass": (6, 2, 5), "cork": (6, 2, 5), "glass": (5, 2, 6), "jute": (6, 2, 5)}
    assert {d: tuple(counts[d, part] for part in questions.SHARES) for d in expected} == expected
    assert all(counts[d, "test"] == 13 for d in HELD_OUT)
    # The control: each domain rounded for itself gives 24 8 20.
    assert sum(round(13 * 0.45) for _ in expected) == 24 != sum(row[0] for row in expected.values())


def test_the_papers_split() -> None:
    ids = [f"{domain}-{number}" for domain in "abcdefghi" for number in range(500)]
    parts = questions.split(ids, [name[0] for name in ids], {"g", "h", "i"})
    assert parts.value_counts().to_dict() == {"train": 1350, "dev": 450, "test": 2700}  # 1,200 + 1,500
    assert parts[[name[0] == "a" for name in ids]].value_counts().to_dict() == {"train": 225, "dev": 75, "test": 200}


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=9), held=st.integers(0, 8), seed=st.integers(0, 99))
def test_every_question_is_in_one_split_and_the_shares_hold(sizes: list[int], held: int, seed: int) -> None:
    pairs = [(f"d{place}", f"d{place} q{number}") for place, size in enumerate(sizes) for number in range(size)]
    held_out = {"d0"} if held == 0 and len(sizes) > 1 else set()
    of, ids = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    parts = questions.split(ids, of, held_out, seed=seed)
    assert sorted(parts.index) == sorted(ids)
    assert set(parts) <= set(questions.SHARES)
    seen = [name for name, domain in pairs_of(of, ids) if domain not in held_out]
    assert (parts.drop(seen) == "test").all()
    for part, share in questions.SHARES.items():
        assert abs((parts[seen] == part).sum() - share * len(seen)) < 1 + 1e-9
    order = random.Random(seed).sample(range(len(ids)), len(ids))
    again = questions.split([ids[i] for i in order], [of[i] for i in order], held_out, seed=seed)
    pd.testing.assert_series_equal(again[ids], parts)


def pairs_of(of: list[str], ids: list[str]) -> list[tuple[str, str]]:
    return list(zip(ids, of, strict=True))


def test_the_seed_decides() -> None:
    first, same, other = (questions.split(IDS, OF, HELD_OUT, seed=seed) for seed in (42, 42, 43))
    assert first.equals(same)
    assert not first.equals(other)
    # Neither the first questions of the file, nor every second.
    assert "".join(part[0] for part in first[:13]) != "t" * 6 + "d" * 2 + "t" * 5


def test_a_question_that_stands_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="question brass-00 stands twice: its copies could end in two splits"):
        questions.split([*IDS, "brass-00"], [*OF, "cork"], HELD_OUT)
    with pytest.raises(ValueError, match="held-out domain wol has no question"):
        questions.split(IDS, OF, {"wol"})


def spread(kinds: list[tuple[str, str]]) -> int:
    counts = Counter(kinds)
    every = [counts[kind] for kind in itertools.product(questions.QUALITIES, questions.VOICES)]
    return max(every) - min(every)


def test_beginnings_of_the_draw_are_balanced() -> None:
    rows = [tuple(row) for row in questions.draw(IDS, OF, HELD_OUT).itertuples(index=False)]
    assert sorted(row[0] for row in rows) == sorted(IDS)
    parts = questions.split(IDS, OF, HELD_OUT)
    assert all(parts[row[0]] == row[1] for row in rows)
    domain = {name: name.split("-")[0] for name in IDS}
    seen_share = {part: (parts[[d not in HELD_OUT for d in OF]] == part).mean() for part in questions.SHARES}
    for k in range(1, len(rows) + 1):
        first = rows[:k]
        counts = Counter(domain[row[0]] for row in first)
        assert max(counts.values()) - min(counts.get(d, 0) for d in DOMAINS) <= 1
        assert spread([row[2:] for row in first]) <= 3
        for part in questions.SHARES:
            assert spread([row[2:] for row in first if row[1] == part and domain[row[0]] not in HELD_OUT]) <= 1
        seen = [row[1] for row in first if domain[row[0]] not in HELD_OUT]
        for part, share in seen_share.items():
            assert abs(seen.count(part) - share * len(seen)) <= 3
    assert spread([row[2:] for row in rows]) <= 1
    # The control: kinds that go round by the file's order are balanced overall and not within the splits.
    naive = {name: questions.KINDS[place % 9] for place, name in enumerate(IDS)}
    assert spread(list(naive.values())) <= 1
    assert max(spread([naive[name] for name in IDS if parts[name] == part]) for part in questions.SHARES) > 1


def test_any_three_kinds_in_turn() -> None:
    assert sorted(questions.KINDS) == sorted(itertools.product(questions.QUALITIES, questions.VOICES))
    for start in (0, 3, 6):
        three = questions.KINDS[start : start + 3]
        assert len({quality for quality, _ in three}) == len({voice for _, voice in three}) == 3


def test_load_joins_the_files(files: Path) -> None:
    table = questions.load()
    assert list(table.columns) == questions.BASE_COLUMNS
    with open(files / "split.csv", newline="") as stream:
        stored = list(csv.DictReader(stream))
    assert len(table) == len(stored) == 2 * len(DOMAINS)
    for row, line in zip(table.to_dict("records"), stored, strict=True):
        domain = line["question_id"].split("-")[0]
        assert row == {
            **line,
            "domain": domain,
            "held_out": domain in HELD_OUT,
            "question": f"What is {line['question_id']}?",
            "answer": f"{line['question_id']} is {line['quality']}, said in a {line['voice']} way.",
        }
    assert table["held_out"].dtype == bool
    assert (table.loc[table["held_out"], "split"] == "test").all()
    for number in (1, 5, len(table)):
        pd.testing.assert_frame_equal(questions.load(number=number), table[:number])
    for number in (0, len(table) + 1):
        with pytest.raises(ValueError, match=f"{number} questions were asked for, there are 12"):
            questions.load(number=number)
    every = questions.answers()
    assert len(every) == 9 * len(table)
    assert not every.duplicated(["question_id", "quality", "voice"]).any()


def changed(name: str, change: Callable[[list[list[str]]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        with open(folder / f"{name}.csv", newline="") as stream:
            rows = list(csv.reader(stream))
        change(rows)
        write(folder / f"{name}.csv", rows)

    return apply


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (changed("answers", lambda rows: rows.pop(2)), r"answers.csv: no answer .'brass-00', 'good', 'neutral'"),
        (changed("answers", lambda rows: rows.append(["rust-00", "good", "plain", "x"])), "'rust-00'.* no question"),
        (changed("answers", lambda rows: rows.append(["cork-00", "best", "plain", "x"])), "has the quality 'best'"),
        (changed("questions", lambda rows: rows[1].__setitem__(1, "bras")), "csv: line 2 has the domain 'bras'"),
        (changed("domains", lambda rows: rows[3].__setitem__(1, "True")), "csv: line 4 has the held_out 'True'"),
        (changed("split", lambda rows: rows[2].__setitem__(1, "valid")), "split.csv: line 3 has the split 'valid'"),
        (changed("split", lambda rows: rows.pop()), r"split.csv and questions.csv differ in question \w+-0\d: draw"),
        (changed("split", lambda rows: rows.append(rows[1])), "repeats an earlier question_id"),
    ],
)  # fmt: skip
def test_broken_files(files: Path, break_it: Callable[[Path], None], message: str) -> None:
    break_it(files)
    with pytest.raises(ValueError, match=message):
        questions.load()


def test_a_share_that_floats_do_not_hold_exactly() -> None:
    """0.45 · 20 is 9, whatever floats make of it."""
    parts = questions.split([f"q{n}" for n in range(20)], ["d"] * 20, ())
    assert parts.value_counts().to_dict() == {"train": 9, "dev": 3, "test": 8}
    assert math.isclose(sum(questions.SHARES.values()), 1)
