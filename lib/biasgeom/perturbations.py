"""Seven types of surface cue in two polarities, set on an answer (judge paper, 3.1, tables 1 and 8).

Prestige, Bandwagon, Refinement and Diversity put one sentence before or after an answer whose body stays as it is.
Verbosity, Sentiment and Authority change it by the rules of :mod:`biasgeom.rewrites`; with a language model as the
paper has it, by :mod:`biasgeom.rewriting`. The words stand in ``data/judge``. The module knows no model.
"""

import functools

import pandas as pd

from biasgeom import data, rewrites
from biasgeom.rewrites import POLARITIES, WORDINGS

BIASES = ("Prestige", "Verbosity", "Bandwagon", "Authority", "Sentiment", "Refinement", "Diversity")
BASE = "base"

TEMPLATES = ("Prestige", "Bandwagon", "Refinement", "Diversity")
"""The types that leave the answer's body bit-identical."""
REWRITES = ("Verbosity", "Authority", "Sentiment")
"""The types that the paper has a language model write."""

PARTIAL_WORDINGS = ("table_1", "spelled", "number")
"""Of some cues only: Bandwagon and Diversity as table 1 prints them; Bandwagon's percentage in words; and a note with
Bandwagon's number that says nothing of quality. The last two tell a bandwagon from a copied digit."""


def name(bias: str, polarity: str) -> str:
    """What a condition is called, such as ``"Bandwagon-"``.

    Raises
    ------
    ValueError
        Unknown bias or polarity.
    """
    _known(bias, BIASES, "bias")
    _known(polarity, POLARITIES, "polarity")
    return bias + ("+" if polarity == "positive" else "-")


def perturb(answer: str, bias: str, polarity: str, *, wording: str = "published", domain: str = "") -> str:
    """An answer with one cue.

    Parameters
    ----------
    answer : str
    bias, polarity : str
        One of :data:`BIASES`, of :data:`POLARITIES`.
    wording : str
        One of :data:`WORDINGS` or, where the cue has it, of :data:`PARTIAL_WORDINGS`.
    domain : str, optional
        Decides which invented reference Authority+ cites; without one of the twelve domains it is table 8's.

    Returns
    -------
    str
        Equal to ``answer`` where Verbosity- finds nothing to trim.

    Raises
    ------
    ValueError
        An empty answer, an unknown bias, polarity or wording, or a wording that this cue doesn't have.
    """
    condition = name(bias, polarity)
    if not answer.strip():
        raise ValueError(f"an empty answer can't carry the cue {condition}")
    if wording not in (known := wordings(bias, polarity)):
        raise ValueError(f"{condition} has no wording {wording!r}; it has {', '.join(known)}")
    if bias in ("Verbosity", "Sentiment"):
        edit = rewrites.trimmed if condition == "Verbosity-" else rewrites.opened
        return edit(answer, rewrites.rules()[bias, polarity, wording])
    cue = cues()[bias, polarity, wording]
    if bias == "Authority":
        edit = rewrites.cited if polarity == "positive" else rewrites.doubted
        return edit(answer, *(rewrites.reference(cue[position], domain) for position in ("inline", "append")))
    return f"{cue['prepend']} {answer}" if "prepend" in cue else f"{answer} {cue['append']}"


def conditions(questions: pd.DataFrame, *, wording: str = "published") -> pd.DataFrame:
    """Every base answer without and with each cue.

    Parameters
    ----------
    questions : DataFrame [n]
        With ``answer`` and, for Authority+, ``domain``, as :func:`biasgeom.questions.load` gives it.
    wording : str
        One of :data:`WORDINGS`. With one of :data:`PARTIAL_WORDINGS` the table holds the base answers and the cues
        that have it: no other wording stands in for a missing one.

    Returns
    -------
    DataFrame [15 n]
        The columns of ``questions``, and condition (``"base"``, ``"Prestige+"``, ...), bias and polarity (empty for
        base), text (the answer as a judge sees it), changed (bool: whether it differs from the base answer). Question
        after question, each with its base first.

    Raises
    ------
    ValueError
        A wording that no cue has, an empty answer, or no column ``answer``.
    """
    _known(wording, (*WORDINGS, *PARTIAL_WORDINGS), "wording")
    if "answer" not in questions:
        raise ValueError(f"the questions have no column 'answer', only {', '.join(questions)}")
    chosen = [(bias, polarity) for bias in BIASES for polarity in POLARITIES if wording in wordings(bias, polarity)]
    rows = []
    for question in questions.to_dict("records"):
        answer, domain = question["answer"], question.get("domain", "")
        rows.append({**question, "condition": BASE, "bias": "", "polarity": "", "text": answer})
        for bias, polarity in chosen:
            text = perturb(answer, bias, polarity, wording=wording, domain=domain)
            rows.append(
                {**question, "condition": name(bias, polarity), "bias": bias, "polarity": polarity, "text": text}
            )
    table = pd.DataFrame(rows, columns=[*questions, "condition", "bias", "polarity", "text"])
    return table.assign(changed=table["text"] != table["answer"])


@functools.cache
def wordings(bias: str, polarity: str) -> tuple[str, ...]:
    """The wordings of one cue."""
    name(bias, polarity)
    found = {**rewrites.rules(), **cues()}
    return tuple(wording for wording in (*WORDINGS, *PARTIAL_WORDINGS) if (bias, polarity, wording) in found)


@functools.cache
def cues() -> dict[tuple[str, str, str], dict[str, str]]:
    """The words of the template types and of Authority by bias, polarity and wording: position -> text.

    Raises
    ------
    ValueError
        A bias, polarity, wording or position that is unknown, or not the positions that the bias needs.
    """
    keys = ["bias", "polarity", "wording"]
    known = {"bias": (*TEMPLATES, "Authority"), "polarity": POLARITIES, "wording": (*WORDINGS, *PARTIAL_WORDINGS)}
    table = data.table("judge/cues.csv", [*keys, "position", "text"], [*keys, "position"], known=known)
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for bias, polarity, wording, position, text in table.itertuples(index=False):
        found.setdefault((bias, polarity, wording), {})[position] = text
    for key, texts in found.items():
        needed = {"Authority": {"inline", "append"}, "Prestige": {"prepend"}}.get(key[0], {"append"})
        if set(texts) != needed:
            raise ValueError(f"cues.csv: {' '.join(key)} needs {needed}, found {set(texts)}")
    return found


def _known(value: str, values: tuple[str, ...], what: str) -> None:
    if value not in values:
        raise ValueError(f"{what} must be one of {', '.join(values)}, not {value!r}")
