"""A judge on one page: what defends its scores, and whether its states tell a degraded one (its card)."""

from collections.abc import Sequence

import pandas as pd

from biasgeom import defence, defended, detectors, ground, models, prediction, ranking, strengths
from biasgeom.ground import Ground
from biasgeom.judging import Judged
from biasgeom.models import LanguageModel

MOST = 12
"""Effective pairs of a cue and split that are defended."""
EVERY = 5
"""The predictor reads every fifth block, from the last on."""


def defences(
    lm: LanguageModel,
    of: Ground,
    conditions: Sequence[str],
    layers: Sequence[int],
    *,
    readout: str = "expected",
    seed: int = 42,
) -> pd.DataFrame:
    """The classifier's direction subtracted, block and strength chosen on development pairs, on test pairs.

    Parameters
    ----------
    conditions : list of str
        Cues to defend against.
    layers : list of int
        Published layers, at whose matching blocks it is tried.

    Returns
    -------
    DataFrame
        condition, block, alpha_units; reduction of W1 (equation 7) with low and high; pairs; reason.
    """
    train, rows = of.only("train"), []
    blocks = [models.matching_block(layer, len(lm.blocks)) for layer in layers]
    for condition in conditions:
        where = of.judge, train.pairs, train.baselines, condition, blocks
        handles, reason = ground.handles(*where, methods=["classifier"], seed=seed)
        row = {"condition": condition, "reason": reason}
        try:
            rows.append(row if reason else row | _defended(lm, of, condition, handles, readout, seed))
        except ValueError as error:
            rows.append(row | {"reason": str(error)})
    columns = "condition block alpha_units reduction low high pairs reason"
    return pd.DataFrame(rows, columns=columns.split())


def _defended(
    lm: LanguageModel, of: Ground, condition: str, handles: list[ground.Handle], readout: str, seed: int
) -> dict[str, object]:
    texts = of.judge.items["text"].to_numpy()
    parts = []
    for split in ("dev", "test"):
        pairs = of.only(split).pairs
        pairs = pairs[pairs["condition"] == condition].head(MOST)
        rewrites = {text: strengths.neutralised(text) for text in texts[pairs["row"]]}
        parts.append(defence.cases(lm, of.judge, pairs, rewrites, readout=readout))
    dev, test = parts
    top = defended.best(defended.panel([dev], handles, floor=defence.least_correlation([dev], "text")))
    if top is None:
        return {"reason": "no strength keeps the floor"}
    handle = defended.handle_of(top, handles)
    scores = test.steered.scores(handle.block, -handle.vector, [top["alpha"]]).of(readout)[0]
    made = defended.restored(test, scores, seed=seed)
    found = {name: made[name] for name in ("reduction", "low", "high", "pairs", "reason")}
    return found | {"block": handle.block, "alpha_units": top["alpha_units"]}


def predictor(judge: Judged, of: Ground, *, draws: int = 1000, seed: int = 42) -> pd.DataFrame:
    """Who tells degraded scores on the test questions: the cue's type alone, or the projections of the states.

    Returns
    -------
    DataFrame
        As :func:`biasgeom.ranking.measured`; one row with the reason where outcomes can't be predicted.
    """
    try:
        rows = prediction.outcomes(judge.items, judge.outcome)
    except ValueError as error:
        return pd.DataFrame([{"reason": str(error)}]).reindex(columns=ranking.COLUMNS)
    blocks = list(range(judge.states.shape[1]))[::-EVERY][::-1]
    effective = of.pairs[of.pairs["polarity"] == "negative"]
    made = prediction.features(judge.states, rows, of.baselines, effective, blocks=blocks, seed=seed)
    found = {
        "type only": detectors.attempt(detectors.type_only, rows),
        "linear projection": detectors.attempt(detectors.projection, rows, made),
    }
    return ranking.measured(rows, found, {"test": rows["split"] == "test"}, draws=draws, seed=seed)
