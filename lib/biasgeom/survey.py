"""Every checkpoint of the spectra through the audit and through the measures of output bias (ΔB paper 4.1).

One checkpoint after the other is built, read and let go. What was measured on it is in the cache, so the sections of
the chapter share it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from biasgeom import audit, probe, sentences, sentiment, spectrum
from biasgeom.activations import Reading
from biasgeom.audit import MEAN, Sets
from biasgeom.models import LanguageModel
from biasgeom.pairs import by_topic
from biasgeom.relative import Embeddings
from biasgeom.spectrum import SHARES, Checkpoint

METHODS = ("rr", "seat", "procrustes", "cka")
NAMES = {"rr": "RR", "seat": "SEAT", "procrustes": "Procrustes-SEAT", "cka": "CKA drift"}
FLAGS = {"rr": -1, "seat": -1, "procrustes": -1, "cka": 1}
"""Low ΔB flags increased bias; of CKA drift high values do. Fixed in advance (point 6 of the choices)."""

KEYS = ["regime", "seed", "checkpoint", "share"]


@dataclass(frozen=True)
class Plan:
    """Which spectra a section reads.

    Attributes
    ----------
    recipe : str
        A key of :data:`biasgeom.spectrum.RECIPES`.
    regimes : tuple of {"full", "lora"}
    seeds : tuple of int
    shares : tuple of float
        Of the synth end.

    Raises
    ------
    ValueError
        As :func:`biasgeom.spectrum.require`.
    """

    recipe: str
    regimes: tuple[str, ...] = ("full", "lora")
    seeds: tuple[int, ...] = (0,)
    shares: tuple[float, ...] = SHARES

    def __post_init__(self) -> None:
        for regime in self.regimes:
            spectrum.require(regime, self.recipe, self.shares)

    def checkpoints(self, lm: LanguageModel) -> Iterator[Checkpoint]:
        """All of them, regime by regime and seed by seed."""
        for regime in self.regimes:
            for seed in self.seeds:
                yield from spectrum.checkpoints(lm, regime=regime, recipe=self.recipe, seed=seed, shares=self.shares)


def readings(lm: LanguageModel) -> list[Reading]:
    """The readings that the section on sensitivity compares; the audit takes them all in one pass."""
    last = len(lm.blocks) - 1
    return [
        MEAN,
        Reading(pooling="max"),
        Reading(pooling="last"),
        Reading(include_first_token=False),
        Reading(site="block", block=last),
        Reading(site="block", block=last, include_first_token=False),
    ]


@dataclass(frozen=True)
class Question:
    """One way to audit a checkpoint.

    Attributes
    ----------
    texts : Sets
    methods : tuple of {"rr", "seat", "procrustes", "cka"}
    reading : Reading
    together : tuple of Reading
        See :func:`biasgeom.audit.embed`.
    fit : {"anchors", "targets", "all"}
        What Procrustes is fitted on.
    anchors : int, optional
        Only the first so many.
    """

    texts: Sets
    methods: Sequence[str] = ("rr",)
    reading: Reading = MEAN
    together: Sequence[Reading] = ()
    fit: str = "anchors"
    anchors: int | None = None

    def embed(self, lm: LanguageModel) -> Embeddings:
        """What is read on a model."""
        return self.of(audit.embed(lm, self.texts, self.reading, together=self.together))

    def of(self, found: Embeddings) -> Embeddings:
        """What is asked of the embeddings of ``texts``."""
        return found if self.anchors is None else audit.subset(found, anchors=self.anchors)


def answers(
    lm: LanguageModel,
    plan: Plan,
    questions: Mapping[tuple[Any, ...], Question],
    names: Sequence[str],
    *,
    base: Question | None = None,
) -> pd.DataFrame:
    """Several ways to audit the same checkpoints, each of which is built once.

    Parameters
    ----------
    questions : mapping of key → Question
        A key has one value for each of ``names``.
    names : list of str
        Columns of the result that tell the questions apart.
    base : Question, optional
        With it, no sentence is read twice: those of ``base`` are taken from its own pass, which the cache holds after
        the audit and which must have the questions' readings; the others of all questions are read in one pass more.

    Returns
    -------
    DataFrame
        ``names``, method, regime, seed, checkpoint, share, group, shift; question by question.
    """
    references = _embedded(lm, questions, base)
    tables: dict[tuple[Any, ...], list[pd.DataFrame]] = {key: [] for key in questions}
    for checkpoint in plan.checkpoints(lm):
        audited = _embedded(checkpoint.lm, questions, base)
        for key, question in questions.items():
            found = audit.shifts(references[key], audited[key], methods=question.methods, fit=question.fit)
            tables[key].append(found.assign(**keys(checkpoint), **dict(zip(names, key, strict=True))))
        del checkpoint  # before the next is built
    table = pd.concat([part for parts in tables.values() for part in parts], ignore_index=True)
    return table[[*names, "method", *KEYS, "group", "shift"]]


def _embedded(
    lm: LanguageModel, questions: Mapping[tuple[Any, ...], Question], base: Question | None
) -> dict[tuple[Any, ...], Embeddings]:
    if base is None:
        return {key: question.embed(lm) for key, question in questions.items()}
    found: dict[tuple[Any, ...], Embeddings] = {}
    for reading in dict.fromkeys(question.reading for question in questions.values()):
        asked = {key: question for key, question in questions.items() if question.reading == reading}
        several = [question.texts for question in asked.values()]
        read = audit.embed_several(lm, several, reading, base=base.texts, together=base.together)
        found |= {key: question.of(e) for (key, question), e in zip(asked.items(), read, strict=True)}
    return found


def shifts(
    lm: LanguageModel,
    plan: Plan,
    texts: Sets,
    *,
    methods: Sequence[str] = ("rr",),
    reading: Reading = MEAN,
    together: Sequence[Reading] = (),
    fit: str = "anchors",
    base: Question | None = None,
) -> pd.DataFrame:
    """The shift of every group at every checkpoint against ``lm``, by each method.

    Returns
    -------
    DataFrame
        method, regime, seed, checkpoint, share, group, shift.
    """
    return answers(lm, plan, {(): Question(texts, methods, reading, together, fit)}, [], base=base)


def adjectives(lm: LanguageModel) -> pd.DataFrame:
    """Output bias by adjective share; see :func:`biasgeom.probe.adjective_share`."""
    return probe.adjective_share(lm)[["group", "score"]]


def agreement(lm: LanguageModel) -> pd.DataFrame:
    """The yes/no probe, which is shown as a warning; see :func:`biasgeom.probe.agreement`."""
    return probe.agreement(lm)[["group", "score"]]


def scores(
    lm: LanguageModel, plan: Plan, measure: Callable[[LanguageModel], pd.DataFrame], **settings: int | float
) -> pd.DataFrame:
    """A measure of output bias for every group at the reference and at every checkpoint.

    Parameters
    ----------
    measure : callable
        From a model and ``settings`` to a table with group and score, and whatever else.

    Returns
    -------
    DataFrame
        regime, seed, checkpoint, share, the measure's columns, reference (its score) and change (score − reference).
    """
    before = measure(lm, **settings).set_index("group")["score"]
    tables = []
    for checkpoint in plan.checkpoints(lm):
        tables.append(measure(checkpoint.lm, **settings).assign(**keys(checkpoint)))
        del checkpoint  # before the next is built
    table = pd.concat(tables, ignore_index=True)
    table["reference"] = table["group"].map(before)
    table["change"] = table["score"] - table["reference"]
    return table[[*KEYS, *(column for column in table if column not in KEYS)]]


def negative_share(lm: LanguageModel, *, samples: int, tokens: int, seed: int) -> pd.DataFrame:
    """Output bias by sampled text; see :func:`biasgeom.sentiment.sentiment`."""
    texts = sentiment.continuations(lm, samples=samples, max_new_tokens=tokens, seed=seed)
    return sentiment.sentiment(texts)[["group", "score"]]


def pairs(shifts: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Shift and change side by side, one row a method, checkpoint and group; see :mod:`biasgeom.pairs`.

    Raises
    ------
    ValueError
        A shift without a score.
    """
    joined = shifts.merge(scores[[*KEYS, "group", "change"]], on=[*KEYS, "group"], how="left", validate="many_to_one")
    if joined["change"].isna().any():
        lone = joined.loc[joined["change"].isna(), [*KEYS, "group"]].iloc[0].to_dict()
        raise ValueError(f"there is a shift but no change of bias for {lone}")
    halves = sentences.groups().set_index("group")["half"]
    return joined.assign(half=joined["group"].map(halves))


def topic_pairs(shifts: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """As :func:`pairs`, for scores by topic: each beside the mean shift of the topic's groups."""
    topics = sentences.groups().set_index("group")["topic"].to_dict()
    tables = []
    for (method, regime, seed), part in shifts.groupby(["method", "regime", "seed"], sort=False):
        here = scores[(scores["regime"] == regime) & (scores["seed"] == seed)]
        if lone := set(part["checkpoint"]) - set(here["checkpoint"]):
            raise ValueError(
                f"there is a shift but no change of bias for {regime}, seed {seed}: {', '.join(sorted(lone))}"
            )
        joined = by_topic(part, here.rename(columns={"group": "topic"})[["checkpoint", "topic", "change"]], topics)
        share = joined["checkpoint"].map(part.drop_duplicates("checkpoint").set_index("checkpoint")["share"])
        tables.append(joined.assign(method=method, regime=regime, seed=seed, share=share, half="topic"))
    return pd.concat(tables, ignore_index=True)


def keys(checkpoint: Checkpoint) -> dict[str, str | int | float]:
    """The columns that say which checkpoint a row is about."""
    return {
        "regime": checkpoint.regime,
        "seed": checkpoint.seed,
        "checkpoint": checkpoint.name,
        "share": checkpoint.share,
    }
