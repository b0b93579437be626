"""How encoded and expressed bias go together: Spearman's ρ over the entities of a concept, block by block
(gender paper 3.4, 4.4.1).

A page looks at all blocks, so the largest ρ is the largest of many. What chance does with as many looks is the
permutation null of the *maximum* over blocks; the permuted biases are the same at all blocks.
"""

import numpy as np
import pandas as pd
from scipy.stats import rankdata


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
        entities, largest (ρ), at (its block), mean (ρ over blocks), chance (95 % of the maximum by chance), p, and
        undefined: why there is no ρ at all, or "". Without ρ the numbers are missing.
    """
    rho = spearman(scores, bias)
    by_block = pd.DataFrame({"block": np.arange(len(rho)), "rho": rho})
    summary: dict[str, float | int | str] = {"entities": len(bias), "undefined": ""}
    if np.isnan(rho).all():
        what = "expressed bias" if np.ptp(bias) == 0 else "latent score"
        return by_block, summary | {"undefined": f"the {what} of all entities is the same"}
    null = largest_by_chance(scores, bias, draws, np.random.default_rng(seed))
    at = int(np.nanargmax(rho))
    summary |= {"largest": float(rho[at]), "at": at, "mean": float(np.nanmean(rho))}
    # The exact maximum occurs among the permutations; ties count, as in statistics.exceedance_p.
    p = (1 + (null >= rho[at] - 1e-12).sum()) / (1 + draws)
    return by_block, summary | {"chance": float(np.quantile(null, 0.95)), "p": float(p)}
