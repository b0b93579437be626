"""The judge chapter's questions, their answers, and which of them are for training, development and test.

Twelve domains, three of them held out, with thirteen questions each; a question has a good, a poor and a wrong answer,
each in a plain, a neutral and a tentative voice. The texts were written for this project and stand in ``data/judge``.
The module knows no model. The split is nested by question (judge paper, B.1): see :func:`split`.
"""

import functools
import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Collection, Sequence

import pandas as pd

from biasgeom import data

QUALITIES = ("good", "poor", "wrong")
VOICES = ("plain", "neutral", "tentative")
SHARES = {"train": 0.45, "dev": 0.15, "test": 0.40}
KINDS = tuple((QUALITIES[place], VOICES[(place + turn) % 3]) for turn in range(3) for place in range(3))
"""The nine kinds of answer; the first three, the next and the last hold each quality and each voice once."""
SEED = 42
BASE_COLUMNS = ["question_id", "domain", "held_out", "split", "question", "quality", "voice", "answer"]


def domains() -> pd.DataFrame:
    """The twelve domains: domain, held_out (bool: no question of it is for training or development), about."""
    known = {"held_out": ("yes", "no")}
    table = data.table("judge/domains.csv", ["domain", "held_out", "about"], ["domain"], known=known)
    return table.assign(held_out=table["held_out"] == "yes")


def answers() -> pd.DataFrame:
    """Every answer to every question.

    Returns
    -------
    DataFrame [9 a question]
        question_id, domain, question, quality, voice, answer; by question, quality and voice.

    Raises
    ------
    ValueError
        A question without one of its nine answers, or of a domain that ``domains.csv`` lacks; an answer to no question.
    """
    known = {"domain": tuple(domains()["domain"])}
    asked = data.table("judge/questions.csv", ["question_id", "domain", "question"], ["question_id"], known=known)
    columns = ["question_id", "quality", "voice"]
    known = {"quality": QUALITIES, "voice": VOICES}
    given = data.table("judge/answers.csv", [*columns, "answer"], columns, known=known)
    wanted = list(itertools.product(asked["question_id"], QUALITIES, VOICES))
    found = set(given[columns].itertuples(index=False, name=None))
    if missing := [key for key in wanted if key not in found]:
        raise ValueError(f"answers.csv: no answer {missing[0]}; each question of questions.csv needs nine")
    if surplus := found - set(wanted):
        raise ValueError(f"answers.csv: {min(surplus)} belongs to no question of questions.csv")
    table = pd.DataFrame(wanted, columns=columns).merge(asked, on="question_id").merge(given, on=columns)
    return table[["question_id", "domain", "question", "quality", "voice", "answer"]]


def load(*, number: int | None = None) -> pd.DataFrame:
    """One row a question: the question and the base answer that is assigned to it.

    Parameters
    ----------
    number : int, optional
        Only the first so many, which are spread over domains, splits, qualities and voices. A smaller number's are the
        first of a larger one's.

    Returns
    -------
    DataFrame [n]
        question_id, domain, held_out (bool), split (train, dev, test), question, quality (good, poor, wrong), voice
        (plain, neutral, tentative), answer. Stored in ``split.csv``; :func:`draw` made it.

    Raises
    ------
    ValueError
        More questions than there are, or ``split.csv`` holds others than ``questions.csv``.
    """
    known = {"split": tuple(SHARES), "quality": QUALITIES, "voice": VOICES}
    drawn = data.table("judge/split.csv", ["question_id", "split", "quality", "voice"], ["question_id"], known=known)
    every = answers()
    if other := set(drawn["question_id"]) ^ set(every["question_id"]):
        raise ValueError(f"split.csv and questions.csv differ in question {min(other)}: draw the split again")
    if number is not None and not 1 <= number <= len(drawn):
        raise ValueError(f"{number} questions were asked for, there are {len(drawn)}")
    table = drawn[:number].merge(every, on=["question_id", "quality", "voice"], how="left")
    return table.merge(domains()[["domain", "held_out"]], on="domain", how="left")[BASE_COLUMNS]


def split(
    question_ids: Sequence[str], domains: Sequence[str], held_out: Collection[str], *, seed: int = SEED
) -> pd.Series:
    """Train, dev or test for each question (judge paper, B.1).

    45/15/40 within each seen domain; all of a held-out domain is test. Where a share is no whole number of questions,
    what a domain gets too much or too little of is made up for in the next (by name), so that the shares hold over all
    seen domains as nearly as they can.

    Parameters
    ----------
    question_ids, domains : list of str, length n
    held_out : names of domains

    Returns
    -------
    Series [n]
        Of str, its index the question ids in input order. It depends on ids, domains and seed, not on their order.

    Raises
    ------
    ValueError
        An id that stands twice, which could end in two splits, or a held-out domain that has no question.
    """
    table = pd.DataFrame({"id": list(question_ids), "domain": list(domains)}, dtype="str")
    if (twice := table["id"].duplicated()).any():
        raise ValueError(f"question {table['id'][twice.idxmax()]} stands twice: its copies could end in two splits")
    if unknown := sorted(set(held_out) - set(table["domain"])):
        raise ValueError(f"held-out domain {unknown[0]} has no question")
    chosen = pd.Series("test", index=pd.Index(table["id"], name="question_id"), name="split", dtype="str")
    owed = dict.fromkeys(SHARES, 0.0)
    for domain, ids in table.groupby("domain")["id"]:
        if domain in set(held_out):
            continue
        due = {name: owed[name] + share * len(ids) for name, share in SHARES.items()}
        counts = _apportioned(due, len(ids))
        owed = {name: due[name] - counts[name] for name in SHARES}
        order = sorted(ids, key=functools.partial(shuffled, seed))
        chosen[order] = [name for name, count in counts.items() for _ in range(count)]
    return chosen


def _apportioned(due: dict[str, float], total: int) -> dict[str, int]:
    """Whole numbers of sum ``total`` nearest to ``due``: rounded down, and the largest remainders one more."""
    counts = {name: max(0, math.floor(value)) for name, value in due.items()}
    # Rounded, so that a tie is one on every machine; then train comes before dev, and dev before test.
    largest = sorted(due, key=lambda name: round(counts[name] - due[name], 9))
    for name in largest[: total - sum(counts.values())]:
        counts[name] += 1
    return counts


def shuffled(seed: int, question_id: str) -> str:
    """A sort key that draws each question for itself, so that another question more or less changes no order."""
    return hashlib.sha256(f"{seed} {question_id}".encode()).hexdigest()


def draw(question_ids: Sequence[str], domains: Sequence[str], held_out: Collection[str]) -> pd.DataFrame:
    """What ``split.csv`` holds: question_id, split, quality, voice, in an order whose beginnings are balanced.

    The order takes a question of each domain in turn, of the split that lags most. Each question gets the kind of
    answer that is rarest so far: first in its split (in its part of seen or held-out domains, then in all of it), then
    by quality and voice in its domain, then overall.
    """
    parts = split(question_ids, domains, held_out)
    of = dict(zip(question_ids, domains, strict=True))
    stratum = {question: (part, of[question] in set(held_out)) for question, part in parts.items()}
    rows = []
    taken: Counter[object] = Counter()
    for question in _order(stratum, of):
        domain, part = of[question], parts[question]
        # In the order of what counts most.
        rarity = {
            kind: (
                taken[stratum[question], kind],
                taken[part, kind],
                taken[domain, kind[0]] + taken[domain, kind[1]],
                taken[kind],
            )
            for kind in KINDS
        }
        kind = min(KINDS, key=rarity.__getitem__)
        taken.update([(stratum[question], kind), (part, kind), (domain, kind[0]), (domain, kind[1]), kind])
        rows.append((question, part, *kind))
    return pd.DataFrame(rows, columns=["question_id", "split", "quality", "voice"])


def _order(stratum: dict[str, tuple[str, bool]], of: dict[str, str]) -> list[str]:
    """Questions, a domain's in turn; each time of the stratum that has the smallest share of its own so far."""
    waiting: dict[str, list[str]] = {}
    for question in sorted(of, key=functools.partial(shuffled, SEED)):
        waiting.setdefault(of[question], []).append(question)
    keys = {question: (stratum[question], (stratum[question], of[question])) for question in of}
    size, done = Counter(itertools.chain(*keys.values())), Counter()
    order: list[str] = []
    while len(order) < len(of):
        for left in filter(None, waiting.values()):
            question = min(left, key=lambda question: sum((done[key] + 0.5) / size[key] for key in keys[question]))
            left.remove(question)
            done.update(keys[question])
            order.append(question)
    return order
