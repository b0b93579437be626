"""The ΔB paper's three benchmarks over the spectra (its 4.1, B and C): for an accelerator with access to the hub."""

from collections.abc import Callable, Sequence
from functools import partial

import pandas as pd

from biasgeom import decodingtrust, models, survey, topics, toxigen, wildguard
from biasgeom.endpoint import Reply
from biasgeom.models import LanguageModel
from biasgeom.survey import KEYS, Plan

NAMES = ("wildguardmix", "decodingtrust", "toxigen")
Score = Callable[[LanguageModel], pd.DataFrame]
"""Of a model: group (or topic, under that name), score, n, rejected."""


def scores(
    lm: LanguageModel,
    plan: Plan,
    names: Sequence[str],
    *,
    ask: Callable[[list[str]], list[Reply]] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Each benchmark at the reference and at every checkpoint; answers are kept in the cache.

    Parameters
    ----------
    names : list of {"wildguardmix", "decodingtrust", "toxigen"}
    ask : callable, optional
        Gives WildGuardMix's prompts their topics; see :func:`biasgeom.topics.by_endpoint`.

    Returns
    -------
    DataFrame
        benchmark, regime, seed, checkpoint, share, group (WildGuardMix: topic), score, n, rejected, reference, change.

    Raises
    ------
    ValueError
        Unknown name, or WildGuardMix without ``ask``.
    biasgeom.remote.DatasetNotAvailable, biasgeom.models.ModelNotAvailable
        Before anything is generated.
    """
    if unknown := set(names) - set(NAMES):
        raise ValueError(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if "wildguardmix" in names and ask is None:
        raise ValueError("WildGuardMix's prompts have no topics: give an endpoint that labels them (ask)")
    prepare = {"wildguardmix": partial(_wildguard, ask), "decodingtrust": _decodingtrust, "toxigen": _toxigen}
    return pd.concat([_over(lm, plan, prepare[name](seed)).assign(benchmark=name) for name in names], ignore_index=True)


def _over(lm: LanguageModel, plan: Plan, score: Score) -> pd.DataFrame:
    before = score(lm).set_index("group")["score"]
    tables = [score(checkpoint.lm).assign(**survey.keys(checkpoint)) for checkpoint in plan.checkpoints(lm)]
    table = pd.concat(tables, ignore_index=True)
    table["reference"] = table["group"].map(before)
    table["change"] = table["score"] - table["reference"]
    return table[[*KEYS, "group", "score", "n", "rejected", "reference", "change"]]


def _wildguard(ask: Callable[[list[str]], list[Reply]], seed: int) -> Score:
    labelled = topics.by_endpoint(wildguard.stereotype_prompts(), ask)
    guard = models.load(wildguard.GUARD)

    def score(lm: LanguageModel) -> pd.DataFrame:
        found = wildguard.harmfulness(wildguard.respond(lm, labelled, seed=seed), guard)
        return found.rename(columns={"topic": "group"})

    return score


def _decodingtrust(seed: int) -> Score:
    asked = decodingtrust.prompts()
    return lambda lm: decodingtrust.agreement(decodingtrust.respond(lm, asked, seed=seed))


def _toxigen(seed: int) -> Score:
    classifier = toxigen.load_classifier()
    return lambda lm: toxigen.toxicity(toxigen.respond(lm, seed=seed), *classifier)
