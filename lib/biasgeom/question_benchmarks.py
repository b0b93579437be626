"""The judge paper's nine benchmarks as questions: 500 each, fetched from the hub with the user's own access (B.1).

=============  ================================  ==========================================================
benchmark      rows                              a question
=============  ================================  ==========================================================
GSM8K          test                              the problem
MMLU           test, all subjects                the question and its four choices
TruthfulQA     validation                        the question
CommonsenseQA  validation                        the question and its five choices
PubMedQA       labelled                          the abstract without its conclusion, then the question
GPQA           extended; gated                   the question and its four choices, shuffled: the file has the
                                                 right one first. Its main set has 448 questions, too few for 500
ARC-Challenge  test                              the question and its choices
SocialMaze     easy (six players), first file    the game's rules, then its course and what is asked
BBQ            all eleven categories             context, question and three choices
=============  ================================  ==========================================================

The paper does not say which rows it drew from, nor how a question was written. A question's id is a digest of its text:
a text that a benchmark repeats is one question and can't end in two splits, and stored ids hold nothing of the data.
What a repository says of its licence is on its page, ``BENCHMARKS[name].page``.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from biasgeom import cache, questions, remote

NUMBER = 500
HELD_OUT = ("SocialMaze", "BBQ", "GPQA")
FILE = "benchmark_questions.csv"
STORED = ["question_id", "domain", "held_out", "split", "available"]
ADVICE = "The embedded profile asks this project's own questions, which need no download."
BBQ_CATEGORIES = (
    *("Age", "Disability_status", "Gender_identity", "Nationality", "Physical_appearance", "Race_ethnicity"),
    *("Race_x_SES", "Race_x_gender", "Religion", "SES", "Sexual_orientation"),
)


class _Unreadable(ValueError):
    """A row lacks what its question is made of; the message names the column."""


def _text(row: Mapping[str, Any], column: str) -> str:
    if not (isinstance(row[column], str) and row[column].strip()):
        raise _Unreadable(f"has no {column}")
    return row[column].strip()


def _with_choices(question: str, texts: Iterable[object], labels: Iterable[object], column: str) -> str:
    texts, labels = list(texts), list(labels)
    if len(texts) < 2 or len(texts) != len(labels) or not all(isinstance(text, str) for text in texts):
        raise _Unreadable(f"has no list of choices in {column}")
    return "\n".join([question, *(f"{label}. {text.strip()}" for label, text in zip(labels, texts, strict=True))])


def _plain(row: Mapping[str, Any]) -> str:
    return _text(row, "question")


def _mmlu(row: Mapping[str, Any]) -> str:
    choices = row["choices"]
    return _with_choices(_text(row, "question"), _listed(choices), "ABCDEFGHIJ"[: len(_listed(choices))], "choices")


def _labelled(row: Mapping[str, Any]) -> str:
    choices = row["choices"] if isinstance(row["choices"], Mapping) else {}
    return _with_choices(_text(row, "question"), _listed(choices.get("text")), _listed(choices.get("label")), "choices")


def _pubmedqa(row: Mapping[str, Any]) -> str:
    parts = _listed(row["context"].get("contexts")) if isinstance(row["context"], Mapping) else []
    if not parts or not all(isinstance(part, str) for part in parts):
        raise _Unreadable("has no contexts in context")
    return "\n".join([*parts, "", _text(row, "question")])


def _gpqa(row: Mapping[str, Any]) -> str:
    question = _text(row, "Question")
    given = [_text(row, column) for column in GPQA_CHOICES]
    shuffled = sorted(given, key=lambda choice: questions.shuffled(questions.SEED, f"{question} {choice}"))
    return _with_choices(question, shuffled, "ABCD", "its choices")


GPQA_CHOICES = ("Correct Answer", *(f"Incorrect Answer {number}" for number in (1, 2, 3)))


def _socialmaze(row: Mapping[str, Any]) -> str:
    return f"{_text(row, 'system_prompt')}\n\n{_text(row, 'prompt')}"


def _bbq(row: Mapping[str, Any]) -> str:
    choices = [_text(row, f"ans{place}") for place in range(3)]
    return _with_choices(f"{_text(row, 'context')} {_text(row, 'question')}", choices, "ABC", "its choices")


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else []


@dataclass(frozen=True)
class Benchmark:
    """Where a benchmark lies on the hub, which columns make a question, and how.

    ``revision`` is a commit, or a branch of which the hub's cache keeps the commit that was read first.
    """

    repository: str
    revision: str
    files: tuple[str, ...]
    columns: tuple[str, ...]
    write: Callable[[Mapping[str, Any]], str]

    @property
    def page(self) -> str:
        """Where the benchmark, its licence and the way to it are described."""
        return remote.page(self.repository, self.revision)


def _one(file: str) -> tuple[str]:
    return (f"{file}-00000-of-00001.parquet",)


BENCHMARKS = {
    "GSM8K": Benchmark(
        "openai/gsm8k", "e53f048856ff4f594e959d75785d2c2d37b678ee", _one("main/test"), ("question",), _plain
    ),
    "MMLU": Benchmark(
        "cais/mmlu", "c30699e8356da336a370243923dbaf21066bb9fe", _one("all/test"), ("question", "choices"), _mmlu
    ),
    "TruthfulQA": Benchmark(
        "truthfulqa/truthful_qa",
        "741b8276f2d1982aa3d5b832d3ee81ed3b896490",
        _one("generation/validation"),
        ("question",),
        _plain,
    ),
    "CommonsenseQA": Benchmark(
        "tau/commonsense_qa",
        "94630fe30dad47192a8546eb75f094926d47e155",
        _one("data/validation"),
        ("question", "choices"),
        _labelled,
    ),
    "PubMedQA": Benchmark(
        "qiaojin/PubMedQA",
        "9001f2853fb87cab8d220904e0de81ac6973b318",
        _one("pqa_labeled/train"),
        ("question", "context"),
        _pubmedqa,
    ),
    "GPQA": Benchmark(
        "Idavidrein/gpqa",
        "633f5ee89ab8ad4522a9f850766b73f62147ffdd",
        ("gpqa_extended.csv",),
        ("Question", *GPQA_CHOICES),
        _gpqa,
    ),
    "ARC-Challenge": Benchmark(
        "allenai/ai2_arc",
        "210d026faf9955653af8916fad021475a3f00453",
        _one("ARC-Challenge/test"),
        ("question", "choices"),
        _labelled,
    ),
    # The hub's own conversion, whose file names are the same for every data set.
    "SocialMaze": Benchmark(
        "MBZUAI/SocialMaze",
        "refs/convert/parquet",
        ("default/easy/0000.parquet",),
        ("system_prompt", "prompt"),
        _socialmaze,
    ),
    "BBQ": Benchmark(
        "heegyu/bbq",
        "5d6faae52070aa5eb71b46d1c0723d3ba7930209",
        tuple(f"data/{category}.jsonl" for category in BBQ_CATEGORIES),
        ("context", "question", "ans0", "ans1", "ans2"),
        _bbq,
    ),
}


def load(
    folder: Path, names: Sequence[str] = tuple(BENCHMARKS), *, number: int = NUMBER, seed: int = questions.SEED
) -> pd.DataFrame:
    """Questions of the named benchmarks with their split, which is drawn once and then read from ``folder``.

    Parameters
    ----------
    folder : Path
        Where ``benchmark_questions.csv`` is, or will be: ids and splits, no text.
    names : list of str
        Keys of :data:`BENCHMARKS`. Those of :data:`HELD_OUT` are all test (judge paper, 4.1).
    number : int
        Questions a benchmark. One that has fewer gives all it has.

    Returns
    -------
    DataFrame
        question_id, domain (the benchmark), held_out, split, question, available (different questions that the
        benchmark has: below ``number``, it gave all of them).

    Raises
    ------
    remote.DatasetNotAvailable
        Within seconds; names the benchmark, its page and the variable HF_TOKEN.
    ValueError
        An unknown name; a missing column or an unreadable row, by file, row and column; stored questions that are of
        other benchmarks, of another number, or no longer in the data.
    """
    if unknown := [name for name in names if name not in BENCHMARKS]:
        raise ValueError(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    every = pd.concat([read(name) for name in names], ignore_index=True)
    path = Path(folder) / FILE
    if not path.exists():
        with cache.atomic(path) as scratch:
            _draw(every, number, seed).to_csv(scratch, index=False, lineterminator="\n")
    return _stored(path, every, number)


def _draw(every: pd.DataFrame, number: int, seed: int) -> pd.DataFrame:
    order = every["question_id"].map(lambda question: questions.shuffled(seed, question))
    drawn = every.assign(order=order, available=every.groupby("domain")["domain"].transform("size"))
    drawn = drawn.sort_values("order").groupby("domain").head(number).sort_index()
    held_out = [name for name in HELD_OUT if name in set(drawn["domain"])]
    drawn["split"] = questions.split(drawn["question_id"], drawn["domain"], held_out, seed=seed).to_numpy()
    return drawn.assign(held_out=drawn["domain"].isin(held_out))[STORED]


def _stored(path: Path, every: pd.DataFrame, number: int) -> pd.DataFrame:
    stored = pd.read_csv(path, dtype={"question_id": str})
    remote.check(stored, STORED, where=str(path), allowed={"split": tuple(questions.SHARES)})
    advice = f"delete {path} to draw again"
    if set(stored["domain"]) != set(every["domain"]):
        raise ValueError(f"the stored questions are of {', '.join(stored['domain'].unique())}; {advice}")
    for name, rows in stored.groupby("domain"):
        if len(rows) != min(number, rows["available"].iloc[0]):
            raise ValueError(f"{len(rows)} questions of {name} are stored, {number} were asked for; {advice}")
    table = stored.merge(every, on=["question_id", "domain"], how="left")
    if (gone := table["question"].isna()).any():
        raise ValueError(f"question {table['question_id'][gone.idxmax()]} is no longer in the data; {advice}")
    return table[["question_id", "domain", "held_out", "split", "question", "available"]]


def read(name: str) -> pd.DataFrame:
    """All different questions of one benchmark: question_id, domain, question. Raises as :func:`load` does."""
    benchmark = BENCHMARKS[name]
    tables = []
    for file in benchmark.files:
        path = remote.fetch(benchmark.repository, benchmark.revision, file, name=name, advice=ADVICE)
        tables.append(from_rows(name, remote.table(path), file))
    return pd.concat(tables, ignore_index=True).drop_duplicates("question_id", ignore_index=True)


def from_rows(name: str, table: pd.DataFrame, file: str = "its rows") -> pd.DataFrame:
    """Questions of rows as a benchmark's own file holds them; ``file`` is what a message calls them.

    Raises
    ------
    ValueError
        A missing column, or a row that lacks a text, by its number from 0.
    """
    benchmark = BENCHMARKS[name]
    remote.check(table, benchmark.columns, where=f"{name}, {file}")
    texts = []
    for place, row in enumerate(table[list(benchmark.columns)].to_dict("records")):
        try:
            texts.append(benchmark.write(row))
        except _Unreadable as problem:
            raise ValueError(f"{name}, {file}: row {place} (from 0) {problem}; see {benchmark.page}") from None
    ids = [f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}" for text in texts]
    return pd.DataFrame({"question_id": ids, "domain": name, "question": texts}, dtype="str")
