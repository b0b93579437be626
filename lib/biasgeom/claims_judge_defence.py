"""The judge paper's claims on defence as rules over ``results/<model>/judge/08_defence``.

See :mod:`biasgeom.claims` and :mod:`biasgeom.claims_judge_causal`.
"""

import pandas as pd

from biasgeom.claims import HOLDS, LIMITED, NOT_SHOWN, Tables, Verdict, named
from biasgeom.claims_judge_causal import AXIS, cues, judged, known
from biasgeom.markdown import span

DEFENCE = "08_defence"
TEXT = "text rewrite"
RESTORED = 0.5
"""Share of W1 that is taken away; the paper's best take 0.52 to 0.62 (table 13)."""
TIMES, TIMES_AT_FLOOR = 3.0, 4.0
"""How many times the rewrite's share (K), and under one floor (K.2)."""
KEPT = 0.8
"""Of the in-sample share, on held-out folds (K.1)."""


def _defence_restores(tables: Tables) -> Verdict:
    return judged(tables, DEFENCE, tables(DEFENCE, "defence"), _restoring)


def _restoring(rows: pd.DataFrame) -> Verdict:
    found = known(rows, "reduction", "low", best=True)
    axis = rows[(rows["method"] == AXIS) & rows["condition"].isin(found["condition"])]
    each = (f"{row.condition} {row.reduction:.2f} ({row.low:.2f} to {row.high:.2f})" for row in found.itertuples())
    evidence = f"{', '.join(each)} of W1 taken away; by the score axis {span(axis['reduction'], '.2f')}"
    if (found["low"] <= 0).any():
        return NOT_SHOWN, evidence
    return (HOLDS if (found["reduction"] >= RESTORED).all() else LIMITED), evidence


def _defence_beats_text(tables: Tables) -> Verdict:
    return judged(tables, DEFENCE, tables(DEFENCE, "defence"), _above_text)


def _above_text(rows: pd.DataFrame) -> Verdict:
    steering, text = known(rows, "reduction", best=True), known(rows, "reduction", method=TEXT)
    found = steering.merge(text[["condition", "reduction"]], on="condition", suffixes=("", "_text"))
    return _times(known(found, "reduction"), TIMES)


def _defence_at_floor(tables: Tables) -> Verdict:
    return judged(tables, DEFENCE, tables(DEFENCE, "floor"), _at_floor)


def _at_floor(rows: pd.DataFrame) -> Verdict:
    found = known(rows, floor="absolute").rename(
        columns={"activation_reduction": "reduction", "text_reduction": "reduction_text"}
    )
    return _times(found, TIMES_AT_FLOOR)


def _times(found: pd.DataFrame, times: float) -> Verdict:
    """Is steering's reduction so many times the text's? A rewrite that cannot keep a floor is behind, by no ratio."""
    own, text = found["reduction"], found["reduction_text"]
    ahead = (own > 0) & ((own > text) | text.isna())
    evidence = f"{cues(found)}: steering takes {span(own, '.2f')} of W1 away, the rewrite {span(text, '.2f')}"
    if not ahead.all():
        return NOT_SHOWN, evidence
    return (HOLDS if (own >= times * text).all() else LIMITED), evidence


def _defence_generalises(tables: Tables) -> Verdict:
    return judged(tables, DEFENCE, tables(DEFENCE, "crossval"), _held_out)


def _held_out(rows: pd.DataFrame) -> Verdict:
    found = known(rows, "in_sample", "held_out_mean")
    kept = (found["in_sample"] > 0) & (found["held_out_mean"] >= KEPT * found["in_sample"])
    each = (f"{row.condition} {row.in_sample:.2f} and {row.held_out_mean:.2f}" for row in found.itertuples())
    evidence = f"in sample and held out {', '.join(each)} (standard deviation {span(found['held_out_std'], '.2f')})"
    if kept.all():
        return HOLDS, evidence
    return (LIMITED if (found["held_out_mean"] > found["held_out_std"]).all() else NOT_SHOWN), evidence


RULES = named(
    _defence_restores,
    _defence_beats_text,
    _defence_generalises,
    _defence_at_floor,
)
