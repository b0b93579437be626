r"""A judge's scores pushed along a direction of bias: which direction, how strong, with what effect (judge paper 3.4,
4.4, F.3, J).

Strength counts in units of the mean :math:`\lVert\Delta h\rVert` of the pairs that made the direction, since the states
of one block are ten times as long as those of another.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from biasgeom import annealing, ledger, models, separability
from biasgeom.annealing import AlphaSearch
from biasgeom.ground import RETAINED, Ground, Handle, handles, text_floor, text_scores
from biasgeom.judging import MIN_VALID
from biasgeom.ledger import Outcome
from biasgeom.steering import UNRANKED, Steered, outcome

LAYERS = (15, 25, 31)
"""Published layers at which all three are tried here; the paper finds its intervention layers in 15 to 31 (3.4)."""
DEPTHS = (1, 4, 7, 12, 15, 18, 25, 30, 31)
"""Published layers of figures 6 to 9 (J.7)."""
SEARCH = {"start": 0.25, "tolerance": 0.02, "window": 1.0, "max_alpha": 16.0, "step": 0.02, "ahead": 3, "scan": 12}
"""The α search in units of the mean ‖Δh‖ (spec point 9); candidates no finer than the tolerance, three steps ahead."""
PANEL = "condition method layer block unit floor alpha alpha_units boundary w1 validity spearman evaluations binding"
PANEL = [*PANEL.split(), "alpha_last", "w1_last", "feasible_last", "reason"]
"""The columns of :func:`panel`."""
PRINTED = {"start": 1.0, "tolerance": 0.1, "window": 5.0, "max_alpha": 1000.0, "scan": 0}
"""The paper's constants, in absolute terms (appendix G)."""


def search(
    steered: Steered,
    handle: Handle,
    *,
    floor: float,
    readout: str = "expected",
    absolute: bool = False,
    settings: dict[str, float] | None = None,
    seed: int = 42,
) -> AlphaSearch:
    """The strength that moves clean scores farthest while they stay valid and in order (equation 5, algorithm 1).

    Parameters
    ----------
    steered : Steered
        The judge and the clean prompts that are searched on.
    floor : float
        Least rank correlation with the unsteered scores: that of the text perturbation.
    readout : {"expected", "greedy"}
    absolute : bool
        Strengths are plain α and not in units of ``handle.unit``.
    settings : dict, optional
        For :func:`biasgeom.annealing.search_alpha`; default :data:`SEARCH`, or with ``absolute`` :data:`PRINTED`.

    Raises
    ------
    ValueError
        No prompts, or a floor that is not finite: the text perturbation has no rank correlation.
    """
    if not np.isfinite(floor):
        raise ValueError("the text perturbation's scores have no rank correlation: the search has no floor")
    unit = 1.0 if absolute else handle.unit
    before = steered.scores(handle.block, handle.vector, [0.0]).of(readout)[0]
    if not len(before):
        raise ValueError("no clean prompts: there is nothing to search a strength on")

    def evaluate_many(alphas: Sequence[float]) -> list[Outcome]:
        found = steered.scores(handle.block, handle.vector, np.asarray(alphas) * unit).of(readout)
        return [outcome(scores, before) for scores in found]

    how = settings or (PRINTED if absolute else SEARCH)
    return annealing.search_alpha(
        lambda alpha: evaluate_many([alpha])[0], evaluate_many=evaluate_many, min_spearman=floor, seed=seed, **how
    )


def searched(
    steered: Steered,
    found: Sequence[Handle],
    *,
    floor: float,
    readout: str = "expected",
    absolute: bool = False,
    settings: dict[str, float] | None = None,
    seed: int = 42,
) -> pd.DataFrame:
    """:func:`search` for many handles, a row each.

    Returns
    -------
    DataFrame
        condition, method, block, unit, floor; alpha (absolute), alpha_units, boundary (units); w1, validity, spearman
        at it; evaluations; binding; alpha_last (units), w1_last and feasible_last: what the rule as printed returns;
        reason.
    """
    rows, how = [], {"absolute": absolute, "settings": settings, "seed": seed}
    for handle in found:
        scale = 1 / handle.unit if absolute else 1.0
        row = {"condition": handle.condition, "method": handle.method, "block": handle.block, "unit": handle.unit}
        row |= {"floor": floor, "reason": ""}
        try:
            made = search(steered, handle, floor=floor, readout=readout, **how)
        except ValueError as error:
            rows.append(row | {"reason": str(error)})
            continue
        row |= {"boundary": scale * made.boundary, "evaluations": made.evaluations, "binding": made.binding}
        if made.alpha is None:
            rows.append(row | {"reason": "no strength is feasible"})
            continue
        units = scale * made.alpha
        row |= {"alpha": units * handle.unit, "alpha_units": units, **vars(made.outcome)}
        if made.last_alpha is not None:
            row |= {"alpha_last": scale * made.last_alpha, "w1_last": made.last_outcome.w1}
            row["feasible_last"] = feasible(made.last_outcome, floor)
        rows.append(row)
    return pd.DataFrame(rows, columns=[column for column in PANEL if column != "layer"])


def feasible(found: Outcome, floor: float) -> bool:
    """Whether an outcome keeps the validity that the paper asks for, and the rank correlation ``floor`` (eq. 5)."""
    return not ledger.violated(found, MIN_VALID, floor)


def panel(
    train: Ground,
    steered: Steered,
    questions: Sequence[str],
    conditions: Sequence[str],
    layers: Sequence[int],
    *,
    methods: Sequence[str] = RETAINED,
    readout: str = "expected",
    absolute: bool = False,
    settings: dict[str, float] | None = None,
    seed: int = 42,
) -> tuple[pd.DataFrame, dict[tuple[str, str, int], Handle]]:
    """:func:`searched` for cues, published layers and estimators.

    Parameters
    ----------
    train : Ground
        What directions are estimated on.
    steered, questions
        From :func:`clean`: the prompts that strengths are searched on.

    Returns
    -------
    table : DataFrame
        As :func:`searched`, with ``layer``; a cue without directions is one row with its reason.
    handles : dict of (condition, method, block) → Handle
    """
    found, rows, how = {}, [], {"readout": readout, "absolute": absolute, "settings": settings, "seed": seed}
    count = steered.lm.core.config.get_text_config(decoder=True).num_hidden_layers
    at = {models.matching_block(layer, count): layer for layer in layers}
    for condition in conditions if at else ():
        where = train.judge, train.pairs, train.baselines, condition, list(at)
        made, reason = handles(*where, methods=methods, seed=seed)
        if not made:
            rows.append(pd.DataFrame([{"condition": condition, "reason": reason}]))
            continue
        floor = text_floor(train.judge.items, condition, questions, readout)
        rows.append(searched(steered, made, floor=floor, **how))
        found |= {(one.condition, one.method, one.block): one for one in made}
    table = pd.concat(rows, ignore_index=True) if rows else pd.DataFrame()
    table = table.reindex(columns=PANEL)
    table["layer"] = table["block"].map(at)
    return table, found


def separable(learned: Ground, table: pd.DataFrame, *, seed: int = 42) -> pd.DataFrame:
    """The rows of a panel at the block where base and biased states are told apart best, a block a cue (3.4).

    Parameters
    ----------
    learned : Ground
        Training and development questions; see :func:`biasgeom.separability.on_development`. A cue without effective
        pairs in both has no row.
    table : DataFrame
        From :func:`panel`, rows with a strength.
    """
    chosen = []
    for condition, part in table.groupby("condition", sort=False):
        pairs = learned.pairs[learned.pairs["condition"] == condition]
        blocks = sorted(part["block"].unique().astype(int))
        try:
            found = separability.on_development(learned.judge.states, pairs, learned.baselines, blocks, seed=seed)
        except ValueError:
            continue
        chosen.append(part[part["block"] == found.loc[found["chosen"], "block"].item()])
    return pd.concat(chosen) if chosen else table.head(0)


def on_grid(
    steered: Steered, handle: Handle, boundary: float, *, floor: float, readout: str = "expected", points: int = 200
) -> pd.DataFrame:
    """Outcomes on a grid over [0, boundary] in units: alpha_units, w1, validity, spearman, feasible."""
    alphas = np.linspace(0, boundary, points)
    found = steered.scores(handle.block, handle.vector, alphas * handle.unit).of(readout)
    made = [outcome(scores, found[0]) for scores in found]
    table = pd.DataFrame([vars(one) for one in made])
    return table.assign(alpha_units=alphas, feasible=[feasible(one, floor) for one in made])


def monotone(
    steered: Steered, handle: Handle, end: float, *, readout: str = "expected", points: int = 10
) -> dict[str, bool]:
    """Whether W1 never falls and validity and Spearman never rise along (0, end] in units (table 18).

    An undefined Spearman coefficient counts as a fall to the lowest.
    """
    alphas = np.linspace(0, end, points + 1)
    found = steered.scores(handle.block, handle.vector, alphas * handle.unit).of(readout)
    made = pd.DataFrame([vars(outcome(scores, found[0])) for scores in found]).fillna({"w1": 0.0, "spearman": -1.0})
    slack = 1e-9
    return {
        "w1": bool((made["w1"].diff()[1:] >= -slack).all()),
        "validity": bool((made["validity"].diff()[1:] <= slack).all()),
        "spearman": bool((made["spearman"].diff()[1:] <= slack).all()),
    }


def effect(before: np.ndarray, after: np.ndarray, *, draws: int = 1000, seed: int = 42) -> dict[str, float | str]:
    """What an edit did to scores, [n] and [n]: w1, spearman, validity, shift; reason, why one of them is missing.

    ``shift`` is the mean signed difference over prompts with both scores; ``low`` and ``high``, the bootstrap interval
    of w1, draw from these prompts.
    """
    made = outcome(after, before)
    row = {"w1": made.w1, "spearman": made.spearman, "validity": made.validity}
    both = ~np.isnan(before) & ~np.isnan(after)
    if not both.any():
        return row | {"low": np.nan, "high": np.nan, "shift": np.nan, "reason": "no prompt has a valid score twice"}
    row["reason"] = UNRANKED if np.isnan(made.spearman) else ""
    x, y = before[both], after[both]
    picks = np.random.default_rng(seed).integers(len(x), size=(draws, len(x)))
    # Of samples of one size, W1 is the mean distance of their sorted values.
    drawn = np.abs(np.sort(x[picks], axis=1) - np.sort(y[picks], axis=1)).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return row | {"low": float(low), "high": float(high), "shift": float((y - x).mean())}


def reported(
    chosen: pd.DataFrame,
    found: dict[tuple[str, str, int], Handle],
    steered: Steered,
    questions: Sequence[str],
    items: pd.DataFrame,
    *,
    readout: str = "expected",
    seed: int = 42,
) -> pd.DataFrame:
    """What searched strengths do to answers that they were not searched on, beside the text of the same cue (table 19).

    Parameters
    ----------
    chosen : DataFrame
        Rows of :func:`panel` with a strength.
    found : dict
        The handles of the same panel.
    steered, questions
        From :func:`biasgeom.ground.clean`: the prompts to report on.
    items : DataFrame
        The judge's, for the scores of the text.

    Returns
    -------
    DataFrame
        condition, method ("text" or an estimator), layer, block, alpha, alpha_units; w1 with low and high, spearman,
        validity and shift on these prompts; w1_dev and spearman_dev, of the search; reason.
    """
    rows = []
    for condition, part in chosen.groupby("condition", sort=False):
        texts = [text_scores(items, c, questions, readout) for c in ("base", condition)]
        rows.append({"condition": condition, "method": "text"} | effect(*texts, seed=seed))
        for row in part.itertuples():
            handle = found[condition, row.method, row.block]
            scores = steered.scores(handle.block, handle.vector, [0.0, row.alpha]).of(readout)
            about = {"condition": condition, "method": row.method, "layer": row.layer, "block": row.block}
            about |= {"alpha": row.alpha, "alpha_units": row.alpha_units}
            about |= {"w1_dev": row.w1, "spearman_dev": row.spearman}
            rows.append(about | effect(*scores, seed=seed))
    columns = "condition method layer block alpha alpha_units w1 low high spearman validity shift w1_dev"
    return pd.DataFrame(rows, columns=[*columns.split(), "spearman_dev", "reason"])
