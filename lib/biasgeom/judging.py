"""Answers become scores: a judge reads each one in the judge paper's prompt (3.1, appendix E; spec points 1-3)."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from biasgeom import data, endpoint, generation, parsing, readouts, writers
from biasgeom.endpoint import Endpoint
from biasgeom.models import LanguageModel
from biasgeom.readouts import REPLY_TOKENS, Readout

PREFILL = "Score: "
"""Begins the assistant's turn where a judge does not reply with a bare integer by itself."""
MIN_VALID = 0.93
"""The paper's floor of validity (3.4): below it the replies of a judge are no readout."""
PILOT = 24
"""Base prompts whose replies decide between the readouts."""
COT_TOKENS = 512
"""The paper's cap of a reply with chain of thought (G.1)."""
EFFECTIVE_POINTS, OUTCOME_POINTS = 2.0, 1.0
"""δs and δo of the paper, in integer points (F.1, M.1)."""
EFFECTIVE_SPREAD = 0.25
"""Both thresholds of the expected score, in standard deviations of the base answers' scores (spec point 3)."""


@dataclass(frozen=True)
class Judged:
    """What a judge made of a table of answers.

    Attributes
    ----------
    name : str
    items : DataFrame [n]
        As given, with ``score`` (NaN without a valid one), ``expected`` (Σ k·P(k) / Σ P(k)), ``mass`` (Σ P(k)),
        ``valid``, ``reply``, ``greedy`` (the integer in the reply), ``reason`` (why there is none, else empty) and
        ``truncated``.
    states : array [n, L, d] or None
        The last prompt token's state at every block, float32, memory-mapped; None for an endpoint.
    readout : {"greedy", "expected"}
        Which of the two is ``score``.
    effective, outcome : float
        Score shifts of at least so many points are effective (δs), or a degraded outcome (δo). NaN if all base scores
        are equal: no shift is then large or small.
    """

    name: str
    items: pd.DataFrame
    states: np.ndarray | None
    readout: str
    effective: float
    outcome: float


def prompt(answer: str, *, strict: bool = True, cot: bool = False, question: str | None = None) -> str:
    """The judge's prompt, table 9 of the paper word for word; line breaks are ours, the extract lost them.

    Parameters
    ----------
    question : str, optional
        The paper's templates hold the answer only, although its equation 1 has x = P(q, a). With a question, it stands
        in a block of its own before the response.
    """
    asked = f"[The start of the question]\n{question}\n[The end of the question]\n" if question is not None else ""
    start = "[The start of the response]"
    before, after = _template(strict, cot).split(start)
    return before + asked + start + after.replace("{answer}", answer)


def prefill(readout: str) -> str:
    """What begins the assistant's turn for a readout: :data:`PREFILL`, or nothing where a judge replies by itself."""
    return PREFILL if readout == "expected" else ""


@functools.cache
def _template(strict: bool, cot: bool) -> str:
    table = data.published("judge_table9")
    marks = ["yes" if mark else "no" for mark in (cot, strict)]
    return table[(table[["cot", "strict"]] == marks).all(axis=1)]["template_with_assumed_line_breaks"].item()


def require_chat(lm: LanguageModel) -> None:
    """Raise ``ValueError`` for a model that can't be asked to judge."""
    if not lm.tokenizer.chat_template:
        raise ValueError(
            f"{lm.name} has no chat template (a base model): it can't be asked for a score, so the judge chapter is "
            "not run for it. Take an instruction-tuned model."
        )


def judge_all(
    judges: Sequence[LanguageModel],
    items: pd.DataFrame,
    *,
    strict: bool = True,
    question: bool = False,
    readout: str | Mapping[str, str] = "auto",
) -> list[Judged]:
    """Each judge's scores and states of every answer.

    Parameters
    ----------
    judges : list of LanguageModel
    items : DataFrame [n]
        With ``text``, the answer as the judge sees it, ``condition`` and, if ``question`` is asked for, ``question``.
    strict, question
        See :func:`prompt`.
    readout : {"auto", "greedy", "expected"}
        ``greedy`` reads the reply; ``expected`` begins the assistant's turn with :data:`PREFILL` and takes the mean of
        the score distribution. ``auto`` takes the first if at least :data:`MIN_VALID` of some replies to base answers
        hold a score. A mapping gives each judge's by its name: a variant is read as what it is compared with.

    Returns
    -------
    list of Judged, one a judge

    Raises
    ------
    ValueError
        A judge without chat template, an unknown readout, no items, or foreign hooks on a judge.
    NonFiniteActivation
    """
    asked = _prompts(items, strict=strict, question=question)
    for lm in judges:
        require_chat(lm)
    given = {lm.name: readout if isinstance(readout, str) else readout[lm.name] for lm in judges}
    chosen = {lm.name: _chosen(lm, asked, items, given[lm.name]) for lm in judges}
    found: dict[str, Readout] = {}
    for together in readouts.sharing(judges):
        prefills = [prefill(chosen[lm.name]) for lm in together]
        found |= zip((lm.name for lm in together), readouts.read(together, asked, prefills), strict=True)
    return [_judged(lm, items, found[lm.name], chosen[lm.name]) for lm in judges]


def _prompts(items: pd.DataFrame, *, question: bool, **how: bool) -> list[str]:
    return [prompt(row.text, question=row.question if question else None, **how) for row in items.itertuples()]


def _chosen(lm: LanguageModel, asked: list[str], items: pd.DataFrame, readout: str) -> str:
    if readout not in ("auto", "greedy", "expected"):
        raise ValueError(f"readout must be 'auto', 'greedy' or 'expected', not {readout!r}")
    if readout != "auto":
        return readout
    base = dict.fromkeys(asked[i] for i in np.flatnonzero(items["condition"] == "base"))
    pilot = list(base or dict.fromkeys(asked))[:PILOT]
    replies = [sampled[0] for sampled in _greedy(lm, pilot, REPLY_TOKENS)]
    return "greedy" if np.mean([parsed(reply)[1] == "" for reply in replies]) >= MIN_VALID else "expected"


def _greedy(lm: LanguageModel, asked: list[str], max_new_tokens: int) -> list[list[str]]:
    return generation.sample(lm, asked, n=1, max_new_tokens=max_new_tokens, temperature=0, seed=0, chat=True)


def parsed(reply: str, *, cot: bool = False, truncated: bool = False) -> tuple[float, str]:
    """The integer in a reply and why there is none: ``(7.0, "")`` or ``(nan, "verbal")``."""
    try:
        return float(parsing.parse_score(reply, cot=cot, truncated=truncated)), ""
    except parsing.ScoreError as error:
        return np.nan, error.reason


def _judged(lm: LanguageModel, items: pd.DataFrame, found: Readout, readout: str) -> Judged:
    scores = np.asarray(found.scores, dtype=np.float64)
    mass = scores.sum(axis=1)
    expected = scores @ np.arange(1, readouts.SCORES + 1) / mass
    replies = lm.tokenizer.batch_decode([ids[ids >= 0].tolist() for ids in found.reply], skip_special_tokens=True)
    digits, ten = readouts.score_tokens(lm)
    valid = np.isin(found.reply[:, 0], [token for token in (*digits[1:], ten) if token is not None])
    # A reply that fills its place was cut off; of a begun turn only one token was read, which may be half of a 10.
    cut = (found.reply[:, -1] >= 0) & (readout == "greedy")
    read = [parsed(text, truncated=bool(end)) for text, end in zip(replies, cut, strict=True)]
    greedy = [score if readout == "greedy" else np.nan for score, _ in read]
    frame = items.reset_index(drop=True).assign(
        expected=expected,
        mass=mass,
        valid=valid,
        reply=replies,
        greedy=greedy,
        reason=[reason for _, reason in read],
        truncated=cut,
    )
    frame["score"] = frame["greedy"] if readout == "greedy" else frame["expected"].where(frame["valid"])
    return Judged(lm.name, frame, found.states, readout, *thresholds(frame, readout))


def thresholds(items: pd.DataFrame, readout: str) -> tuple[float, float]:
    """δs and δo: the paper's points, or a share of the spread of the base answers' scores (spec point 3).

    NaN where base scores don't differ.
    """
    if readout == "greedy":
        return EFFECTIVE_POINTS, OUTCOME_POINTS
    spread = EFFECTIVE_SPREAD * items.loc[items["condition"] == "base", "score"].std()
    # What is left of rounding is no spread.
    return (spread, spread) if spread > 1e-6 else (np.nan, np.nan)


def replies(
    lm: LanguageModel,
    items: pd.DataFrame,
    *,
    strict: bool = True,
    cot: bool = False,
    question: bool = False,
    max_new_tokens: int = REPLY_TOKENS,
) -> pd.DataFrame:
    """The greedy replies to the bare prompt, the paper's own readout: nothing is prefilled.

    Returns
    -------
    DataFrame [n]
        ``items`` with ``reply``, ``greedy``, ``reason`` and ``truncated`` (the cap was reached).
    """
    require_chat(lm)
    asked = _prompts(items, strict=strict, cot=cot, question=question)
    distinct = list(dict.fromkeys(asked))
    said = [sampled[0] for sampled in _greedy(lm, distinct, max_new_tokens)]
    found = dict(zip(distinct, zip(said, writers.reached_cap(lm, said, max_new_tokens), strict=True), strict=True))
    texts, truncated = zip(*(found[text] for text in asked), strict=True)
    greedy, reason = zip(
        *(parsed(text, cot=cot, truncated=cut) for text, cut in zip(texts, truncated, strict=True)), strict=True
    )
    return items.reset_index(drop=True).assign(reply=texts, greedy=greedy, reason=reason, truncated=truncated)


def endpoint_judge(
    where: Endpoint, items: pd.DataFrame, *, strict: bool = True, cot: bool = False, question: bool = False
) -> Judged:
    """The scores of a judge behind an endpoint: behaviour only, from its replies, each kept on disk as it comes.

    An item without a usable reply has the reason ``"no reply"`` and the problem in ``reply``; the others are kept. A
    reply that reached the cap is read as :func:`replies` reads it: it may hold a score, else the reason is
    ``"truncated"``.
    """
    asked = _prompts(items, strict=strict, cot=cot, question=question)
    came = endpoint.ask(where, asked, max_tokens=COT_TOKENS if cot else REPLY_TOKENS)
    cut = [reply.problem == endpoint.CUT for reply in came]
    said = [reply.cut if over else reply.text for reply, over in zip(came, cut, strict=True)]
    found = [
        parsed(text, cot=cot, truncated=over) if text is not None else (np.nan, "no reply")
        for text, over in zip(said, cut, strict=True)
    ]
    frame = items.reset_index(drop=True).assign(
        expected=np.nan,
        mass=np.nan,
        valid=[reason == "" for _, reason in found],
        reply=[text if text is not None else reply.problem for text, reply in zip(said, came, strict=True)],
        greedy=[score for score, _ in found],
        reason=[reason for _, reason in found],
        truncated=cut,
    )
    frame["score"] = frame["greedy"]
    return Judged(where.model, frame, None, "greedy", *thresholds(frame, "greedy"))
