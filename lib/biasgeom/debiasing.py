"""The alignment data: five public data sets in prompt-completion form.

Gender paper 4.1.2: "The fine-tuning dataset is constructed from GenderAlign, WinoBias, CrowS-Pairs, StereoSet and BBQ.
Each example is adapted to the prompt-completion format", over 12,000 in all. The paper does not say how; here:

=============  ============================================  ==========================================================
source         prompt                                        completion
=============  ============================================  ==========================================================
genderalign    the human's turn                              the answer labelled ``chosen``
winobias       the sentence up to its first pronoun          its rest with gendered words neutralised: singular *they*
crows-pairs    gender rows: a request, then ``sent_more``    ``sent_less``, the less stereotyping sentence
stereoset      gender rows: the context, or a request to     the sentence with the gold label anti-stereotype
               fill its BLANK
bbq            gender identity: context and question         the labelled answer: "unknown" if the context is
                                                             ambiguous, else the right one
=============  ============================================  ==========================================================

A completion that goes on in the sentence or text begins with a space, an answer to a request with a new line. By the
sizes the data sets state this makes about 16,000 rows.

WinoBias and StereoSet come from their authors' hub repositories and BBQ from a mirror of its authors' file there.
GenderAlign is on GitHub only, and the hub's CrowS-Pairs is a loading script, which is never run: the file it would read
is on GitHub too. What a repository says of its licence and content is on its page.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from biasgeom import data, remote
from biasgeom.neutral import neutralise

Rows = Iterator[tuple[int, str, str]]
"""Row number in the file, prompt, completion; an empty text where the row lacks it."""


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _join(before: str, *parts: str) -> str:
    """``before`` and the parts, a line each; empty if a part is, so that the row is refused."""
    return before + "\n".join(parts) if all(parts) else ""


def _genderalign(table: pd.DataFrame) -> Rows:
    for row, dialogue in table["chosen"].items():
        turn, _, answer = _text(dialogue).partition("Assistant:")
        yield row, turn.strip().removeprefix("Human:").strip(), _join("\n", answer.strip())


FEMININE = {"she", "her", "hers", "herself"}
MASCULINE = {"he", "him", "his", "himself"}


def _winobias(table: pd.DataFrame) -> Rows:
    for row, tokens in table["tokens"].items():
        place = next((i for i, token in enumerate(tokens) if token.lower() in FEMININE | MASCULINE), len(tokens))
        # Each sentence is there once with either gender. "him" and "his" tell what a neutral "her" would leave open.
        if place < len(tokens) and tokens[place].lower() in FEMININE:
            continue
        yield row, _prose(tokens[:place]), _join(" ", neutralise(_prose(tokens[place:])))


def _prose(tokens: Iterable[str]) -> str:
    return re.sub(r"\s+(?=[.,;:!?%)]|'\w|n't\b)", "", " ".join(tokens))


def _crows_pairs(table: pd.DataFrame) -> Rows:
    for row, pair in table[table["bias_type"] == "gender"].iterrows():
        request = _join("Say this without the stereotype: ", _text(pair["sent_more"]))
        yield row, request, _join("\n", _text(pair["sent_less"]))


ANTI_STEREOTYPE = 0
"""StereoSet's gold labels: 0 anti-stereotype, 1 stereotype, 2 unrelated."""


def _stereoset(table: pd.DataFrame) -> Rows:
    for row, item in table[table["bias_type"] == "gender"].iterrows():
        context, sentences = _text(item["context"]), item["sentences"]
        labelled = zip(sentences["sentence"], sentences["gold_label"], strict=True)
        anti = next((_text(sentence) for sentence, label in labelled if label == ANTI_STEREOTYPE), "")
        if "BLANK" in context:  # the intrasentence part
            yield row, f"Complete the sentence by filling the BLANK: {context}", _join("\n", anti)
        else:
            yield row, context, _join(" ", anti)


def _bbq(table: pd.DataFrame) -> Rows:
    for row, item in table[table["category"] == "Gender_identity"].iterrows():
        answer = _text(item.get(f"ans{item['label']}"))
        yield row, _join("", _text(item["context"]), _text(item["question"])), _join("\n", answer)


@dataclass(frozen=True)
class Source:
    """Where a data set lies, what its files must hold, and how they become prompts and completions.

    ``revision`` is a commit of a hub data set; None is a GitHub repository, whose default branch is read once.
    """

    repository: str
    revision: str | None
    files: tuple[str, ...]
    columns: tuple[str, ...]
    adapt: Callable[[pd.DataFrame], Rows]

    @property
    def page(self) -> str:
        """Where the data set, its licence and the way to it are described."""
        return remote.page(self.repository, self.revision)


SOURCES: dict[str, Source] = {
    "genderalign": Source("ZeroNLP/GenderAlign", None, ("GenderAlign.json",), ("chosen",), _genderalign),
    "winobias": Source(
        "uclanlp/wino_bias",
        "3f31267586e4408e3b3f77ec22198fd24ea8dc1d",
        tuple(
            f"type{kind}_{side}/{split}-00000-of-00001.parquet"
            for kind in (1, 2)
            for side in ("pro", "anti")
            for split in ("validation", "test")
        ),
        ("tokens",),
        _winobias,
    ),
    "crows-pairs": Source(
        "nyu-mll/crows-pairs",
        None,
        ("data/crows_pairs_anonymized.csv",),
        ("sent_more", "sent_less", "bias_type"),
        _crows_pairs,
    ),
    "stereoset": Source(
        "McGill-NLP/stereoset",
        "bf6e7ce50491784d094fb7afe60a70ecccb89035",
        tuple(f"{part}/validation-00000-of-00001.parquet" for part in ("intersentence", "intrasentence")),
        ("bias_type", "context", "sentences"),
        _stereoset,
    ),
    "bbq": Source(
        "heegyu/bbq",
        "5d6faae52070aa5eb71b46d1c0723d3ba7930209",
        ("data/Gender_identity.jsonl",),
        ("category", "context", "question", "ans0", "ans1", "ans2", "label"),
        _bbq,
    ),
}


def load(names: Sequence[str] = tuple(SOURCES)) -> pd.DataFrame:
    """The alignment rows of the named data sets, without duplicates and without rows that hold an evaluation text.

    Parameters
    ----------
    names : list of str
        Keys of :data:`SOURCES`.

    Returns
    -------
    DataFrame [rows]
        Columns source, prompt, completion.

    Raises
    ------
    remote.DatasetNotAvailable
        Within seconds; names the data set, its page and the variable HF_TOKEN.
    ValueError
        An unknown name, a missing column, or a row without prompt or completion, by its number.
    """
    rows = pd.concat([read(name) for name in names], ignore_index=True)
    rows = rows.drop_duplicates(["prompt", "completion"], ignore_index=True)
    return rows.drop(index=overlaps(rows, evaluation_texts())).reset_index(drop=True)


def read(name: str) -> pd.DataFrame:
    """All adapted rows of one data set, columns source, prompt, completion. Raises as :func:`load` does."""
    if name not in SOURCES:
        raise ValueError(f"no data set {name!r}; there are {', '.join(SOURCES)}")
    return pd.concat([from_rows(name, remote.table(fetch(name, file)), file) for file in SOURCES[name].files])


def from_rows(name: str, table: pd.DataFrame, file: str = "its rows") -> pd.DataFrame:
    """Adapt rows as a data set's own file holds them; ``file`` is what a message calls them.

    Returns
    -------
    DataFrame
        Columns source, prompt, completion; the index is the row's number in ``table``, from 0.

    Raises
    ------
    ValueError
        A missing column, no row about gender, or a row without prompt or completion.
    """
    source = SOURCES[name]
    remote.check(table, source.columns, where=f"{name}, {file}")
    adapted = list(source.adapt(table.reset_index(drop=True)))
    if not adapted:
        raise ValueError(f"{name}, {file}: holds no row about gender")
    numbers, prompts, completions = zip(*adapted, strict=True)
    rows = pd.DataFrame({"source": name, "prompt": prompts, "completion": completions}, index=list(numbers))
    for part in ("prompt", "completion"):
        if (blank := rows[part].str.strip() == "").any():
            raise ValueError(f"{name}, {file}: row {blank.idxmax()} (from 0) has no {part}; see {source.page}")
    return rows


def fetch(name: str, file: str) -> Path:
    """A local copy of a data set's file; see :func:`biasgeom.remote.fetch`."""
    source = SOURCES[name]
    advice = "The embedded profile aligns on self-generated rows and needs no download."
    return remote.fetch(source.repository, source.revision, file, name=name, advice=advice)


def evaluation_texts() -> list[str]:
    """What alignment must not see: every neutral prompt, verbatim and grammatical, and every contrastive sentence."""
    prompts = [data.gender_prompts(grammatical=grammatical)["prompt"] for grammatical in (False, True)]
    pairs = [data.contrast_pairs(split) for split in ("direction", "held-out", "continued")]
    return list(pd.concat([*prompts, *(pair[side] for pair in pairs for side in ("female", "male"))]).unique())


def overlaps(rows: pd.DataFrame, texts: Sequence[str]) -> list[int]:
    """Places of the rows whose prompt and completion, taken together, hold one of the texts.

    Words are compared, in lower case: a full stop, a line break or a capital hides nothing.
    """
    needles = [_words(text) for text in texts]
    whole = [_words(prompt + completion) for prompt, completion in zip(rows["prompt"], rows["completion"], strict=True)]
    return [place for place, text in enumerate(whole) if any(needle in text for needle in needles)]


def _words(text: str) -> str:
    # Spaces at both ends: a text must not match within a word.
    return " ".join(["", *re.findall(r"\w+", text.lower()), ""])
