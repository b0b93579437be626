r"""Steering against a bias: :math:`h' = h - \alpha v` on answers that carry a cue (judge paper, appendix K).

How far that brings their scores back to those of the base answers (equation 7), at which strength, and beside what else
could be done: a neutral rewrite of the text, LEACE, steering only where the state looks biased. The strength is chosen
on development pairs within :data:`RANGE` mean shifts, never on the pairs that are reported (spec point 11).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import wasserstein_distance

from biasgeom import ground
from biasgeom.ground import Handle
from biasgeom.judging import MIN_VALID, Judged
from biasgeom.ledger import SLACK
from biasgeom.models import LanguageModel
from biasgeom.steering import Steered, outcome, rank_correlation
from biasgeom.substrate import TINY, too_few

RANGE = 3.0
"""The strongest defence that is tried, in mean shifts ‖Δh‖ of the block (spec point 11)."""
MIN_PAIRS = 3
"""Fewer have no rank correlation: no strength is chosen on them."""


def reduction(defended: np.ndarray, biased: np.ndarray, base: np.ndarray) -> np.ndarray:
    """1 − W1(defended, base) / W1(biased, base), equation 7: 1 restores the base scores, below 0 is worse than nothing.

    Parameters
    ----------
    defended : array [..., n]
        Scores, NaN where there is no valid one; as in the next two, these are left out.
    biased, base : array [n]

    Returns
    -------
    array [...]
        NaN where no defended score is valid.

    Raises
    ------
    ValueError
        No valid score on either side, or biased and base scores of one distribution: there is nothing to reduce.
    """
    biased, base = biased[~np.isnan(biased)], base[~np.isnan(base)]
    if not len(biased) or not len(base):
        raise ValueError("no pair with a valid biased and base score")
    if (gap := wasserstein_distance(biased, base)) <= TINY * np.abs(base).max():
        raise ValueError("biased and base scores have the same distribution: there is nothing to reduce")
    rows = np.reshape(defended, (-1, np.shape(defended)[-1]))
    left = [wasserstein_distance(valid, base) if len(valid := row[~np.isnan(row)]) else np.nan for row in rows]
    return 1 - np.reshape(left, np.shape(defended)[:-1]) / gap


def reduction_interval(
    defended: np.ndarray, biased: np.ndarray, base: np.ndarray, *, draws: int = 1000, seed: int = 42
) -> tuple[float, float]:
    """95 % bootstrap interval of :func:`reduction`, [n] each; whole pairs are drawn, one of each question.

    NaN if a resample has no valid defended score.
    """
    times = np.random.default_rng(seed).multinomial(len(base), np.full(len(base), 1 / len(base)), size=draws)
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = 1 - _weighted_w1(defended, base, times) / _weighted_w1(biased, base, times)
    if np.isnan(drawn).any():
        return np.nan, np.nan
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def _weighted_w1(a: np.ndarray, b: np.ndarray, times: np.ndarray) -> np.ndarray:
    """W1 of two sets of scores [n] under each row of weights [draws, n]: the area between distribution functions."""
    support = np.unique(np.concatenate([a, b]))
    support = support[~np.isnan(support)]
    below = []
    for scores in (a, b):
        weights = times * ~np.isnan(scores)
        below.append(weights @ (scores[:, None] <= support) / weights.sum(axis=1, keepdims=True))
    return np.abs(below[0] - below[1])[:, :-1] @ np.diff(support)


@dataclass(frozen=True)
class Cases:
    """n effective pairs of one cue, whose biased answers can be steered.

    Attributes
    ----------
    steered : Steered
        On the biased answers.
    pairs : DataFrame [n]
    biased, base, rewritten : array [n]
        Scores without steering: of the biased answers, their base answers and their neutral rewrites. NaN where not
        valid, or where there is no usable rewrite.
    readout : {"expected", "greedy"}
    """

    steered: Steered
    pairs: pd.DataFrame
    biased: np.ndarray
    base: np.ndarray
    rewritten: np.ndarray
    readout: str


def cases(
    lm: LanguageModel,
    judge: Judged,
    pairs: pd.DataFrame,
    rewrites: Mapping[str, str | None],
    *,
    readout: str = "expected",
) -> Cases:
    """Effective pairs of one cue, ready to be defended.

    Parameters
    ----------
    pairs : DataFrame [n]
        Rows of :func:`biasgeom.substrate.effective`.
    rewrites : mapping
        The neutral rewrite of every biased answer (:mod:`biasgeom.strengths`); None where a writer's is not usable.

    Raises
    ------
    ValueError
        Fewer than :data:`MIN_PAIRS` pairs.
    """
    if len(pairs) < MIN_PAIRS:
        raise ValueError(too_few(len(pairs), f"{MIN_PAIRS} or more are needed"))
    texts = judge.items["text"].to_numpy()
    biased, base = texts[pairs["row"]].tolist(), texts[pairs["base_row"]].tolist()
    written = [rewrites[text] for text in biased]
    known = known_scores(lm, judge, [*biased, *base, *filter(None, written)], readout=readout)
    scores = (np.array([known.get(text, np.nan) for text in group]) for group in (biased, base, written))
    return Cases(ground.asked(lm, judge, biased), pairs, *scores, readout)


def known_scores(
    lm: LanguageModel, judge: Judged, answers: Iterable[str], *, readout: str = "expected"
) -> dict[str, float]:
    """Scores of answers by their text, NaN where not valid; the expected ones of texts among its items are known."""
    known = {}
    if readout == "expected":
        known = dict(zip(judge.items["text"], judge.items["expected"].where(judge.items["valid"]), strict=True))
    if new := [text for text in dict.fromkeys(answers) if text not in known]:
        known |= zip(new, ground.unsteered(lm, judge, new, readout=readout), strict=True)
    return known


def least_correlation(parts: Sequence[Cases], floor: str | float) -> float:
    """The Spearman floor ρ: an absolute one (K.2), or that of the text rewrite on the same pairs (K).

    Parameters
    ----------
    floor : number, "text" or "text as printed"
        A rewrite that gives back the base answer has ρ = 1, which no steering reaches. "text" is therefore the
        rewrite's ρ or, where that is lower, the ρ that the undefended scores have: a defence need not order the answers
        better than the cue left them. "text as printed" is the rewrite's alone.

    Raises
    ------
    ValueError
        Another floor, or one that is undefined: scores are constant, or rewrites missing.
    """
    if floor not in ("text", "text as printed"):
        try:
            return float(floor)
        except ValueError:
            raise ValueError(f"floor must be a number, 'text' or 'text as printed', not {floor!r}") from None
    biased, base, rewritten = (joined(parts, name) for name in ("biased", "base", "rewritten"))
    found = [rank_correlation(rewritten, base)]
    found += [rank_correlation(biased, base)] if floor == "text" else []
    if np.isnan(found).all():
        raise ValueError("the rank correlation that sets the floor is undefined: scores are constant or missing")
    return float(np.nanmin(found))


def joined(parts: Sequence[Cases], name: str) -> np.ndarray:
    """One array of all parts' ``biased``, ``base`` or ``rewritten`` scores."""
    return np.concatenate([getattr(part, name) for part in parts])


def sweep(parts: Sequence[Cases], handle: Handle, units: np.ndarray) -> pd.DataFrame:
    """What strengths of so many units do to the pairs of all parts.

    Returns
    -------
    DataFrame
        alpha, alpha_units, reduction, validity, spearman (with the base scores).
    """
    alphas = np.asarray(units) * handle.unit
    made = [part.steered.scores(handle.block, -handle.vector, alphas).of(part.readout) for part in parts]
    scores, base = np.concatenate(made, axis=1), joined(parts, "base")
    outcomes = [outcome(row, base) for row in scores]
    found = {name: [getattr(one, name) for one in outcomes] for name in ("validity", "spearman")}
    left = reduction(scores, joined(parts, "biased"), base)
    return pd.DataFrame({"alpha": alphas, "alpha_units": units, "reduction": left, **found})


def search(
    parts: Sequence[Cases], handle: Handle, *, floor: float, strengths: int = 31, finer: int = 11
) -> pd.DataFrame:
    """Strengths from 0 to :data:`RANGE` units, then finer ones about the best of them.

    Parameters
    ----------
    floor : float
        Feasible is a validity of :data:`biasgeom.judging.MIN_VALID` and a Spearman coefficient of so much.
    strengths, finer : int
        Numbers of either; they are evaluated together.

    Returns
    -------
    DataFrame
        As :func:`sweep`, by alpha, with feasible and chosen: the feasible strength of largest reduction, of equal ones
        the weakest. None is chosen where none is feasible. Strength 0 is no defence, with reduction 0.
    """
    grid = np.linspace(0, RANGE, strengths)
    table = _marked(sweep(parts, handle, grid), floor)
    if finer and table["chosen"].any():
        best = int(table["chosen"].argmax())
        near = np.linspace(grid[max(0, best - 1)], grid[min(best + 1, strengths - 1)], finer + 2)[1:-1]
        near = near[~np.isclose(near[:, None], grid).any(axis=1)]
        table = pd.concat([table, sweep(parts, handle, near)])
        table = _marked(table.sort_values("alpha", ignore_index=True), floor)
    return table


def _marked(table: pd.DataFrame, floor: float) -> pd.DataFrame:
    feasible = (table["validity"] >= MIN_VALID) & (table["spearman"] >= floor - SLACK)
    best = table["reduction"].where(feasible)
    return table.assign(feasible=feasible, chosen=table.index == (best.idxmax() if best.notna().any() else -1))
