"""Is it the direction? Controls beside an attack: random directions, other cues' directions, the score axis, and all
fourteen cues at once (judge paper J.1, J.2; spec points 12 and 18).

The paper compares with random directions and with those of other types, by W1, which has no sign. A direction along
which scores rise and fall, whatever the cue, would pass both comparisons: so it is asked for by name, and shifts are
signed.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import ttest_1samp

from biasgeom import generation, hooks, prompts, readouts
from biasgeom.attack import effect
from biasgeom.ground import Ground, Handle, differences, text_scores
from biasgeom.models import LanguageModel
from biasgeom.steering import Steered, outcome, rank_correlation

DRAWS = 20
"""Random directions; the paper takes 5 (J.1)."""


def random_directions(width: int, draws: int = DRAWS, *, seed: int = 42) -> np.ndarray:
    """Unit vectors drawn uniformly from the sphere, [draws, width]."""
    drawn = np.random.default_rng(seed).normal(size=(draws, width))
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def against_random(
    steered: Steered, handle: Handle, alpha: float, *, readout: str = "expected", draws: int = DRAWS, seed: int = 42
) -> tuple[dict[str, float | str], pd.DataFrame]:
    """A direction beside random ones at the same strength (table 14).

    Parameters
    ----------
    alpha : float
        In units of ``handle.unit``.

    Returns
    -------
    row : dict
        alpha_units, w1; random_mean, random_max; ratio of w1 to the mean; quantile, the share of draws below w1;
        random_spearman and random_validity, means; p_paired, of a t-test over prompts of the shift under the direction
        less the mean shift under the draws; draws; reason, why there is no ratio. A draw without a valid score has no
        W1, and is left out of what is said of W1.
    drawn : DataFrame
        draw, w1, shift (signed, mean over prompts), validity: the distribution.
    """
    others = random_directions(len(handle.vector), draws, seed=seed)
    before, own, *rest = _pushed(steered, handle, [handle.vector, *others], alpha, readout)
    made, drawn = outcome(own, before), [outcome(scores, before) for scores in rest]
    w1 = np.array([one.w1 for one in drawn if not np.isnan(one.w1)])
    ranks = [one.spearman for one in drawn if not np.isnan(one.spearman)]
    mean, reason = (float(w1.mean()) if len(w1) else np.nan), ""
    if np.isnan(made.w1) or not len(w1):
        reason = f"no valid score under {'the direction' if np.isnan(made.w1) else 'any of the draws'}"
    elif mean == 0:
        reason = "random directions move no score: there is no ratio"
    shift = np.array(rest) - before
    # A draw without a valid score of a prompt says nothing of that prompt.
    seen = ~np.isnan(shift).all(axis=0) & ~np.isnan(own - before)
    difference = (own - before)[seen] - np.nanmean(shift[:, seen], axis=0) if seen.any() else np.array([])
    spread = len(difference) > 1 and np.ptp(difference) > 0
    table = pd.DataFrame([{"w1": one.w1, "validity": one.validity} for one in drawn])
    table.insert(0, "draw", range(draws))
    table["shift"] = [float(np.nanmean(moved)) if not np.isnan(moved).all() else np.nan for moved in shift]
    row = {
        "alpha_units": alpha,
        "w1": made.w1,
        "random_mean": mean,
        "random_max": float(w1.max(initial=mean)),
        "ratio": np.nan if reason else made.w1 / mean,
        "quantile": float(np.mean(w1 < made.w1)) if len(w1) and not np.isnan(made.w1) else np.nan,
        "random_spearman": float(np.mean(ranks)) if ranks else np.nan,
        "random_validity": float(np.mean([one.validity for one in drawn])),
        "p_paired": float(ttest_1samp(difference, 0).pvalue) if spread else np.nan,
        "draws": draws,
        "reason": reason,
    }
    return row, table


def _pushed(steered: Steered, handle: Handle, vectors: Sequence[np.ndarray], alpha: float, readout: str) -> np.ndarray:
    """Scores as they are, and under each of the vectors at the handle's block and strength: [1 + vectors, n]."""
    strengths = np.array([0.0, *[alpha * handle.unit] * len(vectors)])
    return steered.scores(handle.block, np.vstack([vectors[0], *vectors]), strengths).of(readout)


def score_axis(states: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The direction along which clean states predict the score: ridge regression, [n, d] and [n] → unit [d].

    Its strength is chosen by leave-one-out error. Scores rise along it.

    Raises
    ------
    ValueError
        Fewer than three scores, or scores that are all equal.
    """
    from sklearn.linear_model import RidgeCV

    known = ~np.isnan(scores)
    if known.sum() < 3 or np.ptp(scores[known]) == 0:
        raise ValueError("fewer than three clean scores, or all are equal: there is no score axis")
    states = np.asarray(states, dtype=np.float64)[known]
    scale = states.std()
    found = RidgeCV(alphas=np.logspace(-1, 6, 15)).fit((states - states.mean(axis=0)) / scale, scores[known]).coef_
    return found / np.linalg.norm(found)


def oriented_axis(train: Ground, block: int, condition: str) -> tuple[np.ndarray | None, str]:
    """:func:`score_axis` of training answers, turned to the side that a cue is to move the score to; or why not."""
    items = train.baselines
    scores = items["expected"].where(items["valid"]).to_numpy(dtype=float)
    try:
        axis = score_axis(train.judge.states[items["row"], block], scores)
    except ValueError as error:
        return None, str(error)
    return (-axis if condition.endswith("-") else axis), ""


def swapped(
    steered: Steered,
    handle: Handle,
    others: Mapping[str, np.ndarray],
    alpha: float,
    *,
    readout: str = "expected",
) -> pd.DataFrame:
    """Other directions in the place of a cue's own, at its strength (table 15), with signed shifts.

    Parameters
    ----------
    others : mapping of name → unit vector [d]
    alpha : float
        In units of ``handle.unit``.

    Returns
    -------
    DataFrame
        source, cosine with the own direction, w1, shift, spearman, validity; own_w1, own_shift; reason.
    """
    before, own, *rest = _pushed(steered, handle, [handle.vector, *others.values()], alpha, readout)
    mine = effect(before, own, draws=1)
    rows = []
    for (name, vector), scores in zip(others.items(), rest, strict=True):
        theirs = effect(before, scores, draws=1)
        reason = "" if np.isfinite(theirs["shift"] + mine["shift"]) else "no valid score at this strength"
        found = (theirs[one] for one in ("w1", "shift", "spearman", "validity"))
        rows.append((name, float(vector @ handle.vector), *found, reason))
    columns = ["source", "cosine", "w1", "shift", "spearman", "validity", "reason"]
    return pd.DataFrame(rows, columns=columns).assign(own_w1=mine["w1"], own_shift=mine["shift"])


def steered_by_cue(
    steered: Steered,
    states: np.ndarray,
    shifts: pd.DataFrame,
    block: int,
    *,
    axis: np.ndarray | None = None,
    readout: str = "expected",
) -> pd.DataFrame:
    """Clean prompts moved by each cue's own mean Δh: does that shift scores as the cue's text does?

    Parameters
    ----------
    states : array [rows, L, d]
    shifts : DataFrame
        All pairs of the training questions, effective or not; see :func:`biasgeom.landscape.shifts`.
    axis : unit vector [d], optional
        Such as a score axis: what is left of the check if only the part of Δh along it is added.

    Returns
    -------
    DataFrame
        condition, steered_shift, axis_shift (by the part along the axis), length (of the mean Δh).
    """
    conditions = list(dict.fromkeys(shifts["condition"]))
    if not conditions:
        columns = ["condition", "steered_shift", "axis_shift", "length"]
        return pd.DataFrame(columns=columns, dtype=float).astype({"condition": str})
    means = []
    for condition in conditions:
        part = shifts[shifts["condition"] == condition]
        means.append(differences(states, part, block).mean(axis=0))
    lengths = np.linalg.norm(means, axis=1)
    if axis is not None:
        means += [(mean @ axis) * axis for mean in means]
    # A cue that left every answer as it was has no direction, and moves nothing.
    strengths = np.array([0.0, *(np.linalg.norm(means, axis=1) > 0)])
    vectors = np.where(strengths[:, None] > 0, np.vstack([means[0], *means]), 1.0)
    found = steered.scores(block, vectors, strengths).of(readout)
    moved = [effect(found[0], scores, draws=1)["shift"] for scores in found[1:]]
    along = moved[len(conditions) :] or [np.nan] * len(conditions)
    moved = moved[: len(conditions)]
    return pd.DataFrame({"condition": conditions, "steered_shift": moved, "axis_shift": along, "length": lengths})


def correlation(table: pd.DataFrame, x: str, y: str, *, draws: int = 1000, seed: int = 42) -> dict[str, float | str]:
    """Pearson's r of two columns over rows, with a bootstrap interval, and the rank correlation."""
    known = table.dropna(subset=[x, y])
    a, b = known[x].to_numpy(), known[y].to_numpy()
    if len(known) < 4 or min(np.ptp(a), np.ptp(b)) == 0:
        row = {"r": np.nan, "low": np.nan, "high": np.nan, "spearman": np.nan, "cues": len(known)}
        return row | {"reason": "fewer than four cues, or all alike"}
    picks = np.random.default_rng(seed).integers(len(a), size=(draws, len(a)))
    drawn = [np.corrcoef(a[p], b[p])[0, 1] for p in picks if min(np.ptp(a[p]), np.ptp(b[p])) > 0]
    low, high = np.quantile(drawn, [0.025, 0.975])
    row = {"r": float(np.corrcoef(a, b)[0, 1]), "low": float(low), "high": float(high)}
    return row | {"spearman": rank_correlation(a, b), "cues": len(known), "reason": ""}


def text_shifts(items: pd.DataFrame, questions: Sequence[str], *, readout: str = "expected") -> pd.DataFrame:
    """The mean shift that each cue's text brings about on some questions: condition, text_shift."""
    base = text_scores(items, "base", questions, readout)
    rows = [
        (condition, effect(base, text_scores(items, condition, questions, readout), draws=1)["shift"])
        for condition in dict.fromkeys(items["condition"])
        if condition != "base"
    ]
    return pd.DataFrame(rows, columns=["condition", "text_shift"]).astype({"condition": str})


def positions(
    lm: LanguageModel, texts: Sequence[str], *, prefill: str, handle: Handle, alpha: float
) -> dict[str, float]:
    """The mean shift of the expected score when the last token is pushed, and when all are: shift_last, shift_all.

    By whole passes under :func:`biasgeom.hooks.steer`. A "1" counts as 1 also where it begins a "10".

    Parameters
    ----------
    texts : list of str
        User's turns, each once.
    alpha : float
        In units of ``handle.unit``.
    """
    prompts.check_texts(texts)
    digits, _ = readouts.score_tokens(lm)
    how = {"tokens": digits[1:], "chat": True, "prefill": prefill or None}

    def scores() -> np.ndarray:
        # One by one: what several texts begin with is read by itself, and its last token would be pushed as well.
        found = np.concatenate([generation.next_token_probabilities(lm, [text], **how) for text in texts])
        return found.astype(np.float64) @ np.arange(1, 10) / found.sum(axis=1)

    before, moved = scores(), {}
    for where in ("last", "all"):
        with hooks.steer(lm, handle.block, handle.vector, alpha * handle.unit, positions=where):
            moved[f"shift_{where}"] = float((scores() - before).mean())
    return moved
