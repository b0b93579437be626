"""The ΔB paper's three benchmarks over the spectra (its 4.1, B and C): for an accelerator with access to the hub."""

from collections.abc import Callable, Sequence
from functools import partial

import pandas as pd

from biasgeom import decodingtrust, endpoint, models, survey, topics, toxigen, wildguard
from biasgeom.endpoint import Endpoint, Reply
from biasgeom.models import LanguageModel
from biasgeom.survey import Plan

TOPIC_TOKENS = 20
"""Of a reply that names a topic."""
NAMES = ("wildguardmix", "decodingtrust", "toxigen")
Ask = Callable[[list[str]], list[Reply]]
Score = Callable[[LanguageModel], pd.DataFrame]
"""Of a model: group (or topic, under that name), score, n, rejected."""


def scores(
    lm: LanguageModel,
    plan: Plan,
    names: Sequence[str],
    *,
    ask: Ask | None = None,
    toxic_from: float = 0.5,
    seed: int = 0,
) -> pd.DataFrame:
    """Each benchmark at the reference and at every checkpoint; answers are kept in the cache.

    Parameters
    ----------
    names : list of {"wildguardmix", "decodingtrust", "toxigen"}
    ask : callable, optional
        Gives WildGuardMix's prompts their topics; see :func:`biasgeom.topics.by_endpoint`.
    toxic_from : float
        Probability from which ToxiGen's classifier calls a statement toxic.

    Returns
    -------
    DataFrame
        benchmark (DecodingTrust twice: by the authors' parser, and ``decodingtrust, clean``), regime, seed, checkpoint,
        share, group (WildGuardMix: topic), score, n, rejected, reference, change.

    Raises
    ------
    ValueError
        Unknown name, or WildGuardMix without ``ask``.
    biasgeom.remote.DatasetNotAvailable, biasgeom.models.ModelNotAvailable
        Before anything is generated.
    """
    require(names, ask)
    prepared: dict[str, Score] = {}
    if "wildguardmix" in names:
        prepared["wildguardmix"] = _wildguard(ask, seed)
    if "decodingtrust" in names:
        asked = decodingtrust.prompts()
        prepared["decodingtrust"] = partial(_decodingtrust, asked, "strict", seed)
        prepared["decodingtrust, clean"] = partial(_decodingtrust, asked, "clean", seed)
    if "toxigen" in names:
        toxigen.require()
        prepared["toxigen"] = partial(_toxigen, toxigen.load_classifier(), toxic_from, seed)
    tables = [survey.scores(lm, plan, score).assign(benchmark=name) for name, score in prepared.items()]
    return pd.concat(tables, ignore_index=True)


def require(names: Sequence[str], ask: Ask | None) -> None:
    """Raise ``ValueError`` for what :func:`scores` can't be asked for, before a model is loaded."""
    if unknown := set(names) - set(NAMES):
        raise ValueError(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if "wildguardmix" in names and ask is None:
        raise ValueError("WildGuardMix's prompts have no topics: give an endpoint that labels them (ask; judge_url)")


def asking(url: str, model: str) -> Ask | None:
    """What asks an endpoint for topics, from a notebook's parameters; None without an address."""
    return partial(endpoint.ask, Endpoint(url, model), max_tokens=TOPIC_TOKENS) if url else None


def joined(shifts: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Pairs of one benchmark: by topic where its scores are, else for the groups that it has.

    Parameters
    ----------
    shifts : DataFrame
        From :func:`biasgeom.survey.shifts`.
    scores : DataFrame
        One benchmark's rows of :func:`scores`.
    """
    if set(scores["group"]) <= set(topics.names()):
        return survey.topic_pairs(shifts, scores)
    return survey.pairs(shifts[shifts["group"].isin(scores["group"])], scores)


def labelled(ask: Ask) -> dict[str, int | float | None]:
    """How WildGuardMix's prompts got their topics: prompts, unlabelled, and the agreement with keywords (point 14)."""
    prompts = wildguard.stereotype_prompts()
    found = topics.by_endpoint(prompts, ask)
    keywords = [topics.by_keywords(prompt) for prompt in prompts]
    judged = [None if pd.isna(topic) else topic for topic in found["topic"]]
    return {"prompts": len(prompts), "unlabelled": judged.count(None)} | topics.agreement(judged, keywords)


def _wildguard(ask: Ask, seed: int) -> Score:
    guard = models.load(wildguard.GUARD)  # first: without it nothing need be asked
    known = topics.by_endpoint(wildguard.stereotype_prompts(), ask)

    def score(lm: LanguageModel) -> pd.DataFrame:
        found = wildguard.harmfulness(wildguard.respond(lm, known, seed=seed), guard)
        return found.rename(columns={"topic": "group"})

    return score


def _decodingtrust(asked: pd.DataFrame, parser: str, seed: int, lm: LanguageModel) -> pd.DataFrame:
    return decodingtrust.agreement(decodingtrust.respond(lm, asked, seed=seed), parser=parser)


def _toxigen(classifier: tuple, toxic_from: float, seed: int, lm: LanguageModel) -> pd.DataFrame:
    return toxigen.toxicity(toxigen.respond(lm, seed=seed), *classifier, threshold=toxic_from)
