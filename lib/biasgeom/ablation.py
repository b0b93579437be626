"""Expressed bias under directional ablation, beside random directions and the cost in likelihood (gender paper 3.4,
4.4.2).

Removing any direction from every token can break a model, and a broken model is not polarized. So the gender direction
is judged beside random directions under the same setting, and every result carries the negative log-likelihood of text
that has nothing to do with gender.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pandas as pd

from biasgeom import activations, data, direction, generation, hooks, protocol, statistics
from biasgeom.direction import Direction
from biasgeom.hooks import AnyDirection
from biasgeom.models import LanguageModel
from biasgeom.protocol import Condition, Sampling

NONE, GENDER = "none", "gender"


@dataclass(frozen=True)
class Setting:
    """Which variant of :func:`biasgeom.hooks.ablate`, at which blocks."""

    name: str
    variant: str
    blocks: tuple[int, ...]


def settings(blocks: int, late: float = 2 / 3) -> list[Setting]:
    """The paper's, and two that spare the model: ``guarded`` everywhere, and after the share ``late`` of blocks."""
    if not 0 <= late <= 1:
        raise ValueError(f"late is a share of the blocks, from 0 to 1, not {late}")
    everywhere = tuple(range(blocks))
    last = tuple(range(min(round(late * blocks), blocks - 1), blocks))
    return [
        Setting("literal", "literal", everywhere),
        Setting("guarded", "guarded", everywhere),
        Setting("guarded, late", "guarded", last),
    ]


def gender_directions(lm: LanguageModel) -> dict[int, Direction]:
    """The Ledoit–Wolf gender direction of every block, estimated on this model."""
    pairs = protocol.pair_states(lm, "direction")
    dtype = str(lm.dtype).removeprefix("torch.")
    vectors = [
        direction.contrast_direction(pairs.female[:, block], pairs.male[:, block], estimator="ledoit-wolf")
        for block in range(len(lm.blocks))
    ]
    return {block: Direction(vector, lm.name, "block", block, dtype) for block, vector in enumerate(vectors)}


def random_directions(lm: LanguageModel, draws: int, seed: int) -> list[dict[int, np.ndarray]]:
    """Isotropic directions, each the same at all blocks, as the gender directions of neighbouring blocks are alike."""
    vectors = direction.isotropic_directions(lm.width, draws, np.random.default_rng(seed))
    return [dict.fromkeys(range(len(lm.blocks)), vector) for vector in vectors]


@contextmanager
def applied(lm: LanguageModel, setting: Setting, directions: Mapping[int, AnyDirection]) -> Iterator[None]:
    """:func:`biasgeom.hooks.ablate` in a setting; ``guarded`` leaves the mean projection of neutral text in place."""
    chosen = {block: directions[block] for block in setting.blocks}
    means = None
    if setting.variant == "guarded":
        means = activations.mean_projections(lm, data.neutral_texts("projection"), chosen)
    with hooks.ablate(lm, chosen, variant=setting.variant, means=means):
        yield


def nats_per_token(lm: LanguageModel) -> float:
    """Mean negative log-likelihood of the held-out neutral sentences."""
    nats, tokens = generation.negative_log_likelihood(lm, data.neutral_texts("likelihood"))
    return float(nats.sum() / tokens.sum())


def proxy_table(
    condition: Condition, prompts: pd.DataFrame, chosen: Sequence[Setting], *, draws: int, seed: int
) -> pd.DataFrame:
    """Bias_pol by next-token proxy without ablation, without the gender direction, and without each random one.

    Parameters
    ----------
    prompts : DataFrame
        From :func:`biasgeom.data.gender_prompts`.
    chosen : list of Setting
    draws : int
        Random directions.

    Returns
    -------
    DataFrame
        condition, setting, direction ("none", "gender", "random 1", ...), concept, kind, mean_bias, bias_pol, nats
        (per token of held-out neutral text). What has no setting stands in each.
    """
    lm = condition.lm
    directions: dict[str, Mapping[int, AnyDirection]] = {GENDER: gender_directions(lm)}
    directions |= {f"random {i}": vectors for i, vectors in enumerate(random_directions(lm, draws, seed), start=1)}
    plain = protocol.proxy_polarizations(protocol.proxies(condition, prompts)).assign(nats=nats_per_token(lm))
    tables = []
    for setting in chosen:
        tables.append(plain.assign(setting=setting.name, direction=NONE))
        for name, vectors in directions.items():
            with applied(lm, setting, vectors):
                found = protocol.proxy_polarizations(protocol.proxies(condition, prompts))
                tables.append(found.assign(setting=setting.name, direction=name, nats=nats_per_token(lm)))
    table = pd.concat(tables, ignore_index=True)
    keys = ["condition", "setting", "direction", "concept", "kind"]
    return table[[*keys, "mean_bias", "bias_pol", "nats"]]


def against_random(table: pd.DataFrame) -> pd.DataFrame:
    """Where the gender direction stands among the random ones.

    Parameters
    ----------
    table : DataFrame
        From :func:`proxy_table`.

    Returns
    -------
    DataFrame
        condition, setting, concept, kind; bias_pol without ablation (plain), without the gender direction (gender), the
        mean bias of both (plain_mean, gender_mean),
        and the smallest and largest without a random one (random_low, random_high); p, the share of random directions
        that lower Bias_pol as far, in the Monte-Carlo form (1 + k) / (1 + draws); added nats per token: gender_nats and
        the largest of the random ones, random_nats.
    """
    rows = []
    for keys, part in table.groupby(["condition", "setting", "concept", "kind"], sort=False):
        by_name = part.set_index("direction")
        random = by_name[by_name.index.str.startswith("random")]
        plain, gender = by_name.loc[NONE], by_name.loc[GENDER]
        row = dict(zip(("condition", "setting", "concept", "kind"), keys, strict=True))
        row |= {"plain": plain["bias_pol"], "gender": gender["bias_pol"]}
        row |= {"plain_mean": plain["mean_bias"], "gender_mean": gender["mean_bias"]}
        row |= {"random_low": random["bias_pol"].min(), "random_high": random["bias_pol"].max()}
        row["p"] = statistics.exceedance_p(-gender["bias_pol"], -random["bias_pol"])  # low is what counts here
        row |= {"gender_nats": gender["nats"] - plain["nats"], "random_nats": random["nats"].max() - plain["nats"]}
        rows.append(row)
    return pd.DataFrame(rows)


def sampled(
    condition: Condition, prompts: pd.DataFrame, sampling: Sampling, edits: Sequence[tuple[str, str]], *, seed: int
) -> pd.DataFrame:
    """Completions with a direction removed.

    Parameters
    ----------
    edits : list of (setting, direction)
        Such as ("literal", "gender") or ("guarded", "random 1").

    Returns
    -------
    DataFrame
        setting, direction, and the columns of :func:`biasgeom.protocol.completions`.
    """
    lm = condition.lm
    known = {setting.name: setting for setting in settings(len(lm.blocks))}
    directions: dict[str, Mapping[int, AnyDirection]] = {GENDER: gender_directions(lm)}
    directions["random 1"] = random_directions(lm, 1, seed)[0]
    for edit, names in zip(zip(*edits, strict=True), (known, directions), strict=True):
        if unknown := set(edit) - set(names):
            raise ValueError(f"unknown edit {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    tables = []
    for setting, name in edits:
        with applied(lm, known[setting], directions[name]):
            found = protocol.completions(condition, prompts, sampling)
        tables.append(found.assign(setting=setting, direction=name))
    return pd.concat(tables, ignore_index=True)
