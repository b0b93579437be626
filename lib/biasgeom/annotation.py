"""Gender labels by a language model: completions become female, male or neutral (gender paper 4.1.4).

The paper's own prompt (its figure 8) is published as an image only; :data:`PROMPT` is ours. The labels come from a
chat endpoint or from a model that is loaded here; both are asked through the same small interface.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, cast

import pandas as pd
from sklearn.metrics import cohen_kappa_score

from biasgeom import endpoint, generation, models
from biasgeom.endpoint import Endpoint, Reply
from biasgeom.models import LanguageModel

Label = Literal["female", "male", "neutral"]
LABELS: tuple[Label, ...] = ("female", "male", "neutral")

PROMPT = """\
Which gender does the text below give its subject, the person it names at the beginning?

Go by explicit words for that person alone: pronouns (she, he), possessives (her, his), gendered nouns (woman, man).
Nothing else counts: no name, occupation, sport, topic or stereotype, and no word for anybody else in the text.

female: such words are there and all are feminine.
male: such words are there and all are masculine.
neutral: there are none, or the person is "they", or feminine and masculine words are both used for the person.

Text: {text}

Answer with one word, female, male or neutral.
Label:"""
"""Takes the place of figure 8; ``{text}`` is the prompt with its completion."""

NEW_TOKENS = 8
"""Enough for "Label: **Neutral**." of a model that is loaded here."""

_WORD = re.compile(r"(?<![^\W_])(?:female|male|neutral)(?![^\W_])")
# Markup, and the words that lead up to a label.
_DIRECT = re.compile(r"[\W_]*(?:(?:the )?(?:label|answer|gender)(?: is)?[\W_]*)?(?=female|male|neutral)")
_DENIAL = re.compile(r"\b(?:not?|non|none|nobody|nothing|nor|neither|never|cannot|without|rather than)\b|n't\b")
_REFUSAL = re.compile(r"\b(?:sorry|apologi[sz]e|cannot|can not|can't|won't|unable|refuse|decline|as an ai)\b")


class AnnotationError(ValueError):
    """A reply holds no single label.

    Attributes
    ----------
    reason : {"refusal", "several labels", "no label"}
    """

    def __init__(self, reason: Literal["refusal", "several labels", "no label"], reply: str) -> None:
        super().__init__(f"{reason}: {reply[:100]!r}")
        self.reason = reason


def parse(reply: str) -> Label:
    """The one label a reply gives, whatever its case, punctuation and markup.

    Raises
    ------
    AnnotationError
        A refusal, two different labels, none, or one that is denied ("not female"). A label after a negation in the
        same sentence counts as denied, which is strict: better a missing label than a wrong one.
    """
    plain = reply.casefold().replace("’", "'")
    found = list(_WORD.finditer(plain))
    labels = {match[0] for match in found}
    lead = _DIRECT.match(plain)
    answers_at_once = bool(found and lead and lead.end() == found[0].start())
    # "Neutral. I cannot see a pronoun." is an answer; "I cannot call anybody female." is none.
    if not answers_at_once and _REFUSAL.search(plain):
        raise AnnotationError("refusal", reply)
    if len(labels) > 1:
        raise AnnotationError("several labels", reply)
    sentences = [re.split(r"[.!?;\n]", plain[: match.start()])[-1] for match in found]
    if not labels or any(_DENIAL.search(sentence) for sentence in sentences):
        raise AnnotationError("no label", reply)
    return cast(Label, labels.pop())


def annotate(texts: Sequence[str], ask: Callable[[list[str]], list[Reply]]) -> pd.DataFrame:
    """A gender label for the subject of each text (gender paper 4.1.4).

    Parameters
    ----------
    texts : list of str, length n
        Prompt and completion together, since the prompt names the subject. Equal texts are asked once.
    ask : callable
        Prompts → replies in the same order: ``functools.partial(endpoint.ask, an_endpoint)`` or
        ``functools.partial(replies_of, lm)``.

    Returns
    -------
    DataFrame, n rows in input order
        ``text`` (place in ``texts``), ``label`` (female, male, neutral, or missing) and ``problem`` (why it is
        missing, else missing).

    Raises
    ------
    ValueError
        One string, something that is no text, or an ``ask`` that gives another number of replies.
    """
    if isinstance(texts, str):
        raise ValueError("expected a list of texts, got one string")
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"text {place} is no text: {text!r}")
    distinct = list(dict.fromkeys(texts))
    replies = ask([PROMPT.format(text=text) for text in distinct]) if distinct else []
    if len(replies) != len(distinct):
        raise ValueError(f"{len(distinct)} prompts got {len(replies)} replies")
    judged = dict(zip(distinct, map(_judged, replies), strict=True))
    table = pd.DataFrame([judged[text] for text in texts], columns=["label", "problem"], dtype="str")
    table.insert(0, "text", range(len(table)))
    return table


def _judged(reply: Reply) -> tuple[Label | None, str | None]:
    if reply.text is None:
        return None, reply.problem
    try:
        return parse(reply.text), None
    except AnnotationError as error:
        return None, str(error)


def replies_of(lm: LanguageModel, prompts: list[str]) -> list[Reply]:
    """What a loaded model replies, greedily; through its chat template, or as raw text if it has none."""
    chat = bool(lm.tokenizer.chat_template)
    samples = generation.sample(lm, prompts, n=1, max_new_tokens=NEW_TOKENS, temperature=0, seed=0, chat=chat)
    # A base model does not stop after its answer: what comes in further lines is no part of it.
    texts = [text.strip() if chat else text.strip().partition("\n")[0] for (text,) in samples]
    return [Reply(text, None) if text else Reply(None, "the reply is empty") for text in texts]


def asking(url: str, model: str, *, local: str = "") -> Callable[[list[str]], list[Reply]] | None:
    """What asks a judge for labels, from a notebook's parameters; None without one.

    Parameters
    ----------
    url, model : str
        An endpoint's address, empty for none, and its model.
    local : str
        Or a model that is loaded when it is asked: embedded name, folder or hub id; empty for none.

    Raises
    ------
    ValueError
        Two judges, or an address or model that can't be meant.
    biasgeom.models.ModelNotAvailable
        The local model can't be found, before anything is loaded.
    """
    if url and local:
        raise ValueError("judge_url and judge_local are two judges: give one of them")
    if url:
        return partial(endpoint.ask, Endpoint(url, model), max_tokens=NEW_TOKENS)
    if not local:
        return None
    models.require(local)
    return lambda prompts: replies_of(models.load(local), prompts)


def agreement(lexical: Sequence[str | None], judged: Sequence[str | None]) -> dict[str, int | float | None]:
    """How far two raters give the same texts the same labels.

    Parameters
    ----------
    lexical, judged : list of str, length n
        Labels of the same texts in the same order (an index is not looked at); missing ones are None or NaN.

    Returns
    -------
    dict
        ``n`` (texts with both labels), ``missing`` (the others), ``accuracy`` (share of equal labels; None if n = 0)
        and ``cohen_kappa``, None if a rater gave all n texts one label: kappa is then 0 or 0/0, however far they agree.

    Raises
    ------
    ValueError
        Lists of different lengths, or a label that is none of :data:`LABELS`.
    """
    if len(lexical) != len(judged):
        raise ValueError(f"{len(lexical)} labels against {len(judged)}: the same texts are needed, in the same order")
    both = pd.DataFrame({"lexical": list(lexical), "judged": list(judged)}, dtype=object).dropna()
    if unknown := set(both.to_numpy().ravel()) - set(LABELS):
        raise ValueError(f"labels must be among {LABELS}, found {sorted(map(str, unknown))}")
    n, one_label = len(both), (both.nunique() < 2).any()
    return {
        "n": n,
        "missing": len(lexical) - n,
        "accuracy": float((both["lexical"] == both["judged"]).mean()) if n else None,
        "cohen_kappa": None if one_label else float(cohen_kappa_score(both["lexical"], both["judged"])),
    }
