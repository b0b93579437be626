"""The same cue written stronger, judged, and chosen at a rank correlation (judge paper J.3, table 16)."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from biasgeom import ground, strengths
from biasgeom.judging import Judged
from biasgeom.models import LanguageModel
from biasgeom.steering import outcome


def by_strength(
    lm: LanguageModel,
    judge: Judged,
    answers: pd.DataFrame,
    condition: str,
    *,
    readout: str = "expected",
    chosen: tuple[str, int] | None = None,
) -> pd.DataFrame:
    """What a cue does at five strengths on each of its axes.

    Parameters
    ----------
    judge : Judged
        How ``lm`` is asked.
    answers : DataFrame [n]
        Base answers: question_id, answer, domain.
    chosen : (str, int), optional
        This axis and strength only, and the published ones.

    Returns
    -------
    DataFrame
        axis, strength, canonical; w1, spearman and validity against the base answers' scores; n.
    """
    made = strengths.variants(answers, condition)
    if chosen:
        made = made[made["canonical"] | ((made["axis"] == chosen[0]) & (made["strength"] == chosen[1]))]
        made = made.reset_index(drop=True)
    scores = ground.unsteered(lm, judge, [*answers["answer"], *made["text"]], readout=readout)
    base, made["score"] = scores[: len(answers)], scores[len(answers) :]
    rows = []
    for (axis, strength), part in made.groupby(["axis", "strength"], sort=False):
        row = {"axis": axis, "strength": strength, "canonical": part["canonical"].all(), "n": len(part)}
        rows.append(row | vars(outcome(part["score"].to_numpy(), base)))
    return pd.DataFrame(rows, columns=["axis", "strength", "canonical", "n", "w1", "spearman", "validity"])


def matched(
    lm: LanguageModel,
    judge: Judged,
    answers: Mapping[str, pd.DataFrame],
    condition: str,
    *,
    floor: float,
    readout: str = "expected",
) -> dict[str, object]:
    """The strength of largest W1 whose rank correlation on development answers is ``floor`` or more, on test answers.

    Parameters
    ----------
    answers : mapping of "dev" and "test" → DataFrame
        Base answers to choose the strength on, and to report it on.
    floor : float
        The rank correlation of the attack by steering.

    Returns
    -------
    dict
        text_w1, text_spearman: as published; strength: the chosen axis and strength; matched_w1, matched_spearman;
        reason.
    """
    row: dict[str, object] = dict.fromkeys(("text_w1", "text_spearman", "matched_w1", "matched_spearman"), np.nan)
    row |= {"strength": "", "reason": ""}
    if lacking := [split for split in ("dev", "test") if answers[split].empty]:
        return row | {"reason": f"no answers in split {lacking[0]}"}
    how = {"readout": readout}
    on_dev = by_strength(lm, judge, answers["dev"], condition, **how)
    kept = on_dev[on_dev["spearman"] >= floor]
    best = None if kept.empty else tuple(kept.loc[kept["w1"].idxmax(), ["axis", "strength"]])
    on_test = by_strength(lm, judge, answers["test"], condition, **how, chosen=best or ("", 0))
    canonical = on_test[on_test["canonical"]].iloc[0]
    row |= {"text_w1": canonical["w1"], "text_spearman": canonical["spearman"]}
    if best is None:
        lost = "the attack has no rank correlation" if np.isnan(floor) else "no strength keeps that of the attack"
        return row | {"reason": f"no rank correlation to choose by: {lost}"}
    found = on_test[(on_test["axis"] == best[0]) & (on_test["strength"] == best[1])].iloc[0]
    row["strength"] = f"{best[0]} {best[1]}"
    row["reason"] = "no valid score on test answers" if np.isnan(found["w1"]) else ""
    return row | {"matched_w1": found["w1"], "matched_spearman": found["spearman"]}
