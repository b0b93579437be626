"""Encoded gender bias of one model, block by block: arrays of states → tidy tables (gender paper 3.3, 4.3).

Everything a page shows of :mod:`biasgeom.direction` for all blocks, concepts and estimators at once. Knows no model:
it gets states and returns data frames.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from biasgeom import direction, statistics
from biasgeom.direction import ESTIMATORS


@dataclass(frozen=True)
class Pairs:
    """Last-token states of contrastive pairs at all blocks.

    Attributes
    ----------
    female, male : array [K, L, d]
    words : array [K]
        The gendered words of each pair, such as "woman/man". Most of what two pairs of the same words differ by is the
        same, so words, not pairs, are what is resampled and flipped.
    """

    female: np.ndarray
    male: np.ndarray
    words: np.ndarray


@dataclass(frozen=True)
class Concept:
    """Last-token states of one concept's neutral prompts at all blocks: [personas, entities, L, d]."""

    name: str
    kind: str
    entities: list[str]
    states: np.ndarray


def concepts(prompts: pd.DataFrame, states: np.ndarray) -> list[Concept]:
    """Arrange prompt states by concept.

    Parameters
    ----------
    prompts : DataFrame
        From :func:`biasgeom.data.gender_prompts`, n rows.
    states : array [n, L, d]
    """
    found = []
    prompts = prompts.reset_index(drop=True)  # rows are looked up by number
    for (name, kind), rows in prompts.groupby(["concept", "kind"], sort=False):
        places = rows.reset_index().pivot(index="persona", columns="entity", values="index")
        places = places.loc[rows["persona"].unique(), rows["entity"].unique()]
        found.append(Concept(name, kind, list(places.columns), states[places.to_numpy()]))
    return found


def direction_table(pairs: Pairs) -> pd.DataFrame:
    """Diagnostics: block, estimator, shrinkage, condition, and cosine_to_mean, the cosine with the mean difference."""
    rows = []
    for block in range(pairs.female.shape[1]):
        female, male = pairs.female[:, block], pairs.male[:, block]
        mean = direction.contrast_direction(female, male, estimator="mean")
        for estimator in ESTIMATORS:
            fit = direction.fit(female, male, estimator=estimator)
            row = {"block": block, "estimator": estimator, "shrinkage": fit.shrinkage, "condition": fit.condition}
            rows.append(row | {"cosine_to_mean": float(fit.vector @ mean)})
    return pd.DataFrame(rows)


def accuracy_table(pairs: Pairs, checks: Mapping[str, Pairs]) -> pd.DataFrame:
    """How often the direction tells the female member of a pair that it was not estimated on.

    Returns
    -------
    DataFrame
        block, estimator, check, hits, pairs, accuracy and its Wilson interval low, high. The interval counts pairs as
        independent, which those of the same words are not: it is too narrow.
    """
    rows = []
    for block in range(pairs.female.shape[1]):
        for estimator in ESTIMATORS:
            vector = direction.contrast_direction(pairs.female[:, block], pairs.male[:, block], estimator=estimator)
            for name, check in checks.items():
                hits = direction.pair_hits(check.female[:, block], check.male[:, block], vector)
                low, high = statistics.wilson_interval(int(hits.sum()), len(hits))
                row = {
                    "block": block,
                    "estimator": estimator,
                    "check": name,
                    "hits": int(hits.sum()),
                    "pairs": len(hits),
                }
                rows.append(row | {"accuracy": hits.mean(), "low": low, "high": high})
    return pd.DataFrame(rows)


def entity_table(concept: Concept, pairs: Pairs, block: int, *, estimator: str, draws: int, seed: int) -> pd.DataFrame:
    """Latent scores s(e) of one concept at one block.

    Returns
    -------
    DataFrame
        concept, kind, entity, estimator, block, score (equation 3, as printed), and deviation, which is the score less
        the concept's mean, with its bootstrap interval low, high. Words (the direction) and personas (the states) are
        resampled together. The interval is the deviation's, since a common shift of all entities means nothing.
    """
    female, male, states = pairs.female[:, block], pairs.male[:, block], concept.states[:, :, block]
    vector = direction.contrast_direction(female, male, estimator=estimator)
    directions, weights = _bootstrap(pairs, block, len(states), estimator, draws, seed)
    scores = direction.latent_scores(states, vector)
    replicates = direction.bootstrap_scores(states, directions, weights).T
    deviation = scores - scores.mean()
    low, high = statistics.normal_interval(deviation, replicates - replicates.mean(axis=0))
    table = pd.DataFrame({"concept": concept.name, "kind": concept.kind, "entity": concept.entities})
    return table.assign(estimator=estimator, block=block, score=scores, deviation=deviation, low=low, high=high)


def _bootstrap(
    pairs: Pairs, block: int, personas: int, estimator: str, draws: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Directions [draws, d] from resampled words, persona weights [draws, personas]; the same draws at every block."""
    rng = np.random.default_rng([seed, 1])
    resampled = statistics.resample_groups(pairs.words, draws, rng)
    weights = rng.multinomial(personas, np.full(personas, 1 / personas), size=draws) / personas
    directions = direction.bootstrap_directions(
        pairs.female[:, block], pairs.male[:, block], resampled, estimator=estimator
    )
    return directions, weights


def polarization_tables(
    found: list[Concept], pairs: Pairs, *, draws: int, bootstrap: int, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """S_latent for every concept, block and estimator, with both nulls, and gendered against control concepts.

    Parameters
    ----------
    draws : int
        Random directions of each null (the paper: 200).
    bootstrap : int
        Resamples of words and personas.

    Returns
    -------
    by_block : DataFrame
        concept, kind, block, estimator, s_latent, its interval low and high, the 2.5 % and 97.5 % quantiles of the
        isotropic null (isotropic_low, isotropic_high) and of the sign-flip null (flip_low, flip_high). One sign a pair
        of words; the observed value counts among the sign-flipped ones, as it is one of them if the null holds.
    by_concept : DataFrame
        concept, kind, estimator, blocks, above_isotropic and above_flip (at how many blocks S_latent lies above the
        band), and p_flip: how often a sign-flipped direction lies above its own band at as many blocks or more. Since
        all blocks share the signs of a draw, p_flip takes the dependence between blocks into account.
    ratios : DataFrame
        block, estimator, and ratio: the mean S_latent of the gendered concepts over that of the controls, with its
        bootstrap interval low, high (normal on the log scale).
    """
    rng = np.random.default_rng([seed, 0])
    _, blocks, width = pairs.female.shape
    signs = statistics.group_signs(pairs.words, draws, rng)
    gendered = np.array([concept.kind == "gendered" for concept in found])
    names = _names(found)
    tables, ratios = [], []
    flipped = np.empty((len(found), len(ESTIMATORS), blocks, draws + 1))
    for block in range(blocks):
        states = [concept.states[:, :, block] for concept in found]
        random = direction.isotropic_directions(width, draws, rng)
        isotropic = statistics.band(np.stack([direction.polarizations(s, random) for s in states]))
        for e, estimator in enumerate(ESTIMATORS):
            observed, resampled, null = _replicates(pairs, states, block, estimator, signs, bootstrap, seed)
            flipped[:, e, block] = np.column_stack([null, observed])
            labels = names.assign(block=block, estimator=estimator)
            tables.append(_with_bands(labels, observed, resampled, isotropic, flipped[:, e, block]))
            ratios.append({"block": block, "estimator": estimator} | _ratio(observed, resampled, gendered))
    by_block = pd.concat(tables, ignore_index=True)
    return by_block, _by_concept(by_block, found, flipped), pd.DataFrame(ratios)


def latent_table(found: list[Concept], pairs: Pairs, *, draws: int, bootstrap: int, seed: int) -> pd.DataFrame:
    """S_latent by block along the Ledoit–Wolf direction with interval and both nulls, for concepts without controls.

    Columns as in :func:`polarization_tables`, without estimator.
    """
    rng = np.random.default_rng([seed, 0])
    signs = statistics.group_signs(pairs.words, draws, rng)
    tables = []
    for block in range(pairs.female.shape[1]):
        states = [concept.states[:, :, block] for concept in found]
        random = direction.isotropic_directions(pairs.female.shape[2], draws, rng)
        isotropic = statistics.band(np.stack([direction.polarizations(s, random) for s in states]))
        observed, resampled, null = _replicates(pairs, states, block, "ledoit-wolf", signs, bootstrap, seed)
        flipped = np.column_stack([null, observed])
        tables.append(_with_bands(_names(found).assign(block=block), observed, resampled, isotropic, flipped))
    return pd.concat(tables, ignore_index=True)


def _names(found: list[Concept]) -> pd.DataFrame:
    return pd.DataFrame({"concept": [concept.name for concept in found], "kind": [concept.kind for concept in found]})


def _with_bands(
    labels: pd.DataFrame,
    observed: np.ndarray,
    resampled: np.ndarray,
    isotropic: tuple[np.ndarray, np.ndarray],
    flipped: np.ndarray,
) -> pd.DataFrame:
    """The labels with S_latent, its interval and both null bands, a row a concept."""
    low, high = statistics.normal_interval(observed, resampled)
    row = labels.assign(s_latent=observed, low=low, high=high)
    row[["isotropic_low", "isotropic_high"]] = np.column_stack(isotropic)
    row[["flip_low", "flip_high"]] = np.column_stack(statistics.band(flipped))
    return row


def _replicates(
    pairs: Pairs, states: list[np.ndarray], block: int, estimator: str, signs: np.ndarray, bootstrap: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """S_latent of each concept's states: observed [c], resampled [c, bootstrap], sign-flipped [c, draws]."""
    female, male = pairs.female[:, block], pairs.male[:, block]
    vector = direction.contrast_direction(female, male, estimator=estimator)
    flips = direction.sign_flip_directions(female, male, signs, estimator=estimator)
    directions, weights = _bootstrap(pairs, block, len(states[0]), estimator, bootstrap, seed)
    return (
        np.array([direction.latent_polarization(s, vector) for s in states]),
        np.stack([direction.bootstrap_polarizations(s, directions, weights) for s in states]),
        np.stack([direction.polarizations(s, flips) for s in states]),
    )


def _ratio(observed: np.ndarray, resampled: np.ndarray, gendered: np.ndarray) -> dict[str, float]:
    """Mean of the gendered concepts over mean of the controls, with its interval (normal on the log scale)."""
    estimate = np.log(observed[gendered].mean() / observed[~gendered].mean())
    low, high = statistics.normal_interval(
        estimate, np.log(resampled[gendered].mean(axis=0) / resampled[~gendered].mean(axis=0))
    )
    return {"ratio": float(np.exp(estimate)), "low": float(np.exp(low)), "high": float(np.exp(high))}


def _by_concept(by_block: pd.DataFrame, found: list[Concept], flipped: np.ndarray) -> pd.DataFrame:
    rows = []
    for c, concept in enumerate(found):
        for e, estimator in enumerate(ESTIMATORS):
            part = by_block[(by_block["concept"] == concept.name) & (by_block["estimator"] == estimator)]
            counts = (flipped[c, e] > part["flip_high"].to_numpy()[:, None]).sum(axis=0)
            rows.append(
                {
                    "concept": concept.name,
                    "kind": concept.kind,
                    "estimator": estimator,
                    "blocks": len(part),
                    "above_isotropic": int((part["s_latent"] > part["isotropic_high"]).sum()),
                    "above_flip": counts[-1],
                    "p_flip": statistics.exceedance_p(counts[-1], counts[:-1]),
                }
            )
    return pd.DataFrame(rows)
