"""A defence on pairs that nothing was fitted on or chosen by, in turns over the folds of one set (judge paper K.1)."""

from collections.abc import Mapping, Sequence

import pandas as pd

from biasgeom import defence, defended, ground
from biasgeom.defence import Cases
from biasgeom.ground import Handle
from biasgeom.judging import Judged
from biasgeom.models import LanguageModel
from biasgeom.substrate import question_folds, too_few


def cross_validated(
    lm: LanguageModel,
    judge: Judged,
    pairs: pd.DataFrame,
    baselines: pd.DataFrame,
    rewrites: Mapping[str, str | None],
    blocks: Sequence[int],
    *,
    floor: str | float = "text",
    folds: int = 5,
    strengths: int = 13,
    readout: str = "expected",
    seed: int = 42,
) -> tuple[dict[str, object], pd.DataFrame]:
    """Directions from all folds but one, method, block and α chosen on one of these, applied to the fold left out.

    Parameters
    ----------
    pairs : DataFrame
        Effective pairs of one cue, whatever their split.
    baselines : DataFrame
        All base answers; those of the questions left out are not fitted on.
    rewrites, readout
        See :func:`biasgeom.defence.cases`.
    blocks : list of int
    floor : float, "text" or "text as printed"
        See :func:`biasgeom.defence.least_correlation`; on the pairs that the strength is chosen on.
    strengths : int
        From 0 to :data:`biasgeom.defence.RANGE` units.

    Returns
    -------
    row : dict
        in_sample: fitted, chosen and measured on all pairs; held_out_mean and held_out_std (ddof 1) over the folds that
        have a strength, and the number of these, folds; text_rewrite, over all pairs; pairs; reason.
    table : DataFrame
        fold, pairs, method, block, alpha_units, reduction_dev, reduction (of the fold left out), reason.

    Raises
    ------
    ValueError
        Too few pairs for the folds, or scores of which there is nothing to reduce.
    """
    if len(pairs) < (need := folds * defence.MIN_PAIRS):
        raise ValueError(too_few(len(pairs), f"{folds} folds need {need}"))
    fold = question_folds(pairs["question_id"], folds=folds, seed=seed)[list(pairs["question_id"])].to_numpy()
    parts = [defence.cases(lm, judge, pairs[fold == f], rewrites, readout=readout) for f in range(folds)]
    how = {"blocks": blocks, "floor": floor, "strengths": strengths, "seed": seed}
    rows = []
    for f, held in enumerate(parts):
        row = {"fold": f, "pairs": len(held.pairs), "reason": ""}
        base = baselines[~baselines["question_id"].isin(held.pairs["question_id"])]
        try:
            top, handle = _best(judge, pairs[fold != f], base, [parts[(f + 1) % folds]], **how)
            scores = held.steered.scores(handle.block, -handle.vector, [top["alpha"]]).of(readout)[0]
            row |= {name: top[name] for name in ("method", "block", "alpha_units", "reduction_dev")}
            row["reduction"] = float(defence.reduction(scores, held.biased, held.base))
        except ValueError as error:
            row["reason"] = str(error)
        rows.append(row)
    columns = "fold pairs method block alpha_units reduction_dev reduction reason"
    table = pd.DataFrame(rows, columns=columns.split())
    known = table["reduction"].dropna()
    row = {"held_out_mean": known.mean(), "held_out_std": known.std(), "folds": len(known), "pairs": len(pairs)}
    row["text_rewrite"] = float(
        defence.reduction(*(defence.joined(parts, name) for name in ("rewritten", "biased", "base")))
    )
    row["reason"] = "" if len(known) else table["reason"].iloc[0]
    try:
        row["in_sample"] = _best(judge, pairs, baselines, parts, **how)[0]["reduction_dev"]
    except ValueError as error:
        row["reason"] = str(error)
    return row, table


def _best(
    judge: Judged,
    pairs: pd.DataFrame,
    baselines: pd.DataFrame,
    parts: Sequence[Cases],
    *,
    blocks: Sequence[int],
    floor: str | float,
    strengths: int,
    seed: int,
) -> tuple[pd.Series, Handle]:
    """The best direction and strength for some pairs, of directions fitted on others."""
    found, why = ground.handles(judge, pairs, baselines, pairs["condition"].iloc[0], blocks, seed=seed)
    if why:
        raise ValueError(why)
    least = defence.least_correlation(parts, floor)
    made = defended.panel(parts, found, floor=least, strengths=strengths, finer=0)
    if (top := defended.best(made)) is None:
        raise ValueError(made["reason"].iloc[0])
    return top, defended.handle_of(top, found)
