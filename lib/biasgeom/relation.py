"""How encoded and expressed bias go together: Spearman's ρ over the entities of a concept, block by block
(gender paper 3.4, 4.4.1).

A page looks at all blocks, so the largest ρ is the largest of many. What chance does with as many looks is the
permutation null of the *maximum* over blocks; the permuted biases are the same at all blocks.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from biasgeom import statistics


def spearman(scores: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Spearman's ρ between entities' latent scores and their bias, ties by mean ranks.

    Parameters
    ----------
    scores : array [..., entities]
    bias : array [..., entities]
        Leading axes are broadcast.

    Returns
    -------
    array [...]
        Undefined (NaN) where one of the two is constant.
    """
    x, y = (_standardised_ranks(np.asarray(part, dtype=np.float64)) for part in (scores, bias))
    return (x * y).sum(axis=-1)


def of_columns(table: pd.DataFrame) -> float:
    """ρ of a table's two columns."""
    return float(spearman(*table.to_numpy().T))


def _standardised_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks of mean zero and norm one; NaN for a constant vector."""
    ranks = rankdata(values, axis=-1)
    ranks = ranks - ranks.mean(axis=-1, keepdims=True)
    norm = np.linalg.norm(ranks, axis=-1, keepdims=True)
    return np.divide(ranks, norm, out=np.full_like(ranks, np.nan), where=norm > 0)


def largest_by_chance(scores: np.ndarray, bias: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """The maximum of ρ over blocks when the entities' biases are permuted: [blocks, entities], [entities] → [draws].

    Raises
    ------
    ValueError
        If the bias is constant: ρ is undefined.
    """
    ranks = _standardised_ranks(np.asarray(bias, dtype=np.float64))
    if np.isnan(ranks).any():
        raise ValueError("the entities' biases are all the same: there is no rank correlation")
    permuted = rng.permuted(np.broadcast_to(ranks, (draws, len(ranks))), axis=1)
    return np.nanmax(permuted @ _standardised_ranks(scores).T, axis=1)


def correlation_table(
    scores: np.ndarray, bias: np.ndarray, *, draws: int, seed: int
) -> tuple[pd.DataFrame, dict[str, float | int | str]]:
    """ρ at every block, and the largest beside what chance does.

    Parameters
    ----------
    scores : array [blocks, entities]
        s(e), see :func:`biasgeom.direction.latent_scores`.
    bias : array [entities]

    Returns
    -------
    by_block : DataFrame
        block and rho; rho is missing where it is undefined.
    summary : dict
        entities, spread (standard deviation of their biases), largest (ρ), at (its block), mean (ρ over blocks), chance
        (95 % of the maximum by chance), p, and undefined: why there is no ρ at all, or "". Without ρ the numbers are
        missing.
    """
    rho = spearman(scores, bias)
    by_block = pd.DataFrame({"block": np.arange(len(rho)), "rho": rho})
    summary: dict[str, float | int | str] = {"entities": len(bias), "spread": float(np.std(bias)), "undefined": ""}
    if np.isnan(rho).all():
        what = "expressed bias" if np.ptp(bias) == 0 else "latent score"
        return by_block, summary | {"undefined": f"the {what} of all entities is the same"}
    null = largest_by_chance(scores, bias, draws, np.random.default_rng(seed))
    at = int(np.nanargmax(rho))
    summary |= {"largest": float(rho[at]), "at": at, "mean": float(np.nanmean(rho))}
    p = statistics.exceedance_p(rho[at], null)
    return by_block, summary | {"chance": float(np.quantile(null, 0.95)), "p": float(p)}


def correlations(
    scores: Mapping[str, pd.DataFrame],
    expressed: Mapping[str, pd.Series],
    pairings: Mapping[str, tuple[str, str]],
    *,
    draws: int,
    seed: int,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """:func:`correlation_table` for every measure of expressed bias, pairing and concept.

    Parameters
    ----------
    scores : mapping of condition → DataFrame
        concept, kind, entity, block, score; see :func:`biasgeom.protocol.latent_scores`.
    expressed : mapping of measure ("sampled", "proxy") → Series
        Bias by condition, concept and entity.
    pairings : mapping of name → (condition of the scores, condition of the bias)

    Returns
    -------
    by_block, summary : DataFrame
        expressed, pairing, concept, kind, and the columns of :func:`correlation_table`.
    """
    by_block, summaries = [], []
    expressed = {measure: biases.sort_index() for measure, biases in expressed.items()}
    for measure, biases in expressed.items():
        for pairing, (of_scores, of_bias) in pairings.items():
            for (concept, kind), part in scores[of_scores].groupby(["concept", "kind"], sort=False):
                wide = part.pivot(index="block", columns="entity", values="score")
                bias = biases.loc[of_bias, concept].loc[wide.columns].to_numpy()
                table, summary = correlation_table(wide.to_numpy(), bias, draws=draws, seed=seed)
                keys = {"expressed": measure, "pairing": pairing, "concept": concept, "kind": kind}
                by_block.append(table.assign(**keys))
                summaries.append(keys | summary)
    columns = ["expressed", "pairing", "concept", "kind", "block", "rho"]
    keys = [*columns[:4], "entities", "spread", "undefined", "largest", "at", "mean", "chance", "p"]
    return pd.concat(by_block, ignore_index=True)[columns], pd.DataFrame(summaries, columns=keys)
