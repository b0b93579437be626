"""The judge paper's claims on telling failures beforehand as rules over ``results/<model>/judge/09_prediction``.

See :mod:`biasgeom.claims` and :mod:`biasgeom.claims_judge_causal`. ``type-suffices`` and ``oracle-bounds`` are about
the positive control alone.
"""

from collections.abc import Sequence

import pandas as pd

from biasgeom.claims import HOLDS, LIMITED, NOT_SHOWN, MissingTable, Tables, Verdict, by_count, named
from biasgeom.claims_judge_causal import judged, known, of_control, undefined
from biasgeom.markdown import span

PREDICTION = "09_prediction"
LINEAR, TREES, TYPE, ORACLE = "linear projection", "GBDT", "type only", "oracle"
STATES = (LINEAR, "projection + Mahalanobis", "PCA + LR", TREES)
"""Detectors that read hidden states."""
ASKED = ("zero-shot", "endpoint")
TEXTS = ("TF-IDF + LR", *ASKED)
"""Detectors that read the answer alone; ASKED are language models."""
STYLE = 0.95
WEIGHT = 60.0
"""Per cent of the importance; the paper has 62.3 (table 30)."""
ABOUT = 0.025
"""Largest difference of AUC to that of the default trio (M.7)."""


def _each(rows: pd.DataFrame, needed: Sequence[str], **where: object) -> pd.Series:
    """AUC by detector; all of ``needed`` are there."""
    found = known(rows, "auc", **where).drop_duplicates("detector").set_index("detector")["auc"]
    if lacking := [name for name in needed if name not in found.index]:
        raise undefined(f"no AUC of {lacking[0]}", rows[rows["detector"].isin(lacking)])
    return found


def _style_is_easier(tables: Tables) -> Verdict:
    return judged(tables, PREDICTION, tables(PREDICTION, "targets"), _easier)


def _easier(rows: pd.DataFrame) -> Verdict:
    found = known(rows, "auc", detector=TREES).set_index("target")
    if {"A", "B"} - set(found.index):
        raise undefined("one target has no AUC", rows)
    style, outcome = found.loc["A"], found.loc["B"]
    evidence = f"AUC {style['auc']:.3f} for the style, {outcome['auc']:.3f} for the outcome"
    if style["auc"] < STYLE or outcome["auc"] >= style["auc"]:
        return NOT_SHOWN, evidence
    return (HOLDS if outcome["high"] < style["low"] else LIMITED), evidence


def _projection_transfers(tables: Tables) -> Verdict:
    return judged(tables, PREDICTION, tables(PREDICTION, "gap"), _transferring)


def _transferring(rows: pd.DataFrame) -> Verdict:
    seen, unseen = (_each(rows, (LINEAR, TREES), part=part) for part in ("seen", "unseen"))
    least = rows.loc[(rows["detector"] == LINEAR) & (rows["part"] == "unseen"), "low"].iloc[0]
    evidence = f"seen and unseen domains: projection {seen[LINEAR]:.3f} and {unseen[LINEAR]:.3f}, trees "
    evidence += f"{seen[TREES]:.3f} and {unseen[TREES]:.3f}"
    if TYPE in unseen.index:
        evidence += f"; the type alone {unseen[TYPE]:.3f} on unseen ones"
    if unseen[LINEAR] <= unseen[TREES]:
        return NOT_SHOWN, evidence
    whole = least > 0.5 and seen[LINEAR] - unseen[LINEAR] < seen[TREES] - unseen[TREES]
    return (HOLDS if whole else LIMITED), evidence


def _states_beat_text(tables: Tables) -> Verdict:
    return judged(tables, PREDICTION, tables(PREDICTION, "detectors"), _beating_text)


def _beating_text(rows: pd.DataFrame) -> Verdict:
    found = _each(rows, (LINEAR, TREES), split="test")
    texts, asked = (found.reindex(names).dropna() for names in (TEXTS, ASKED))
    if texts.empty:
        raise MissingTable("undefined on this run: no detector that reads text has an AUC")
    least = found[[LINEAR, TREES]].min()
    shown = ", ".join(f"{name} {found[name]:.3f}" for name in (LINEAR, TREES, *texts.index))
    if least > texts.max():
        return HOLDS, shown
    return (LIMITED if len(asked) and least > asked.max() else NOT_SHOWN), shown


def _directions_weigh(tables: Tables) -> Verdict:
    return judged(tables, PREDICTION, tables(PREDICTION, "importance"), _weighing)


def _weighing(rows: pd.DataFrame) -> Verdict:
    found = known(rows, "gini_importance_pct").set_index("family")["gini_importance_pct"]
    evidence = ", ".join(f"{family} {share:.1f} %" for family, share in found.items())
    if found.idxmax() != "bias direction":
        return NOT_SHOWN, evidence
    return (HOLDS if found.max() >= WEIGHT else LIMITED), evidence


def _trios_alike(tables: Tables) -> Verdict:
    return judged(tables, PREDICTION, tables(PREDICTION, "trios"), _alike)


def _alike(rows: pd.DataFrame) -> Verdict:
    found = known(rows, "auc")
    default = known(rows, "auc", detector=LINEAR, is_default=True)["auc"].iloc[0]
    of = found.pivot_table(index="trio", columns="detector", values="auc").reindex(columns=[LINEAR, TREES]).dropna()
    if len(of) < 2:
        raise MissingTable("undefined on this run: fewer than two trios have an AUC of both detectors")
    held = [(of[LINEAR] - default).abs().max() <= ABOUT, (of[LINEAR] > of[TREES]).all()]
    evidence = f"{len(of)} trios: projection {span(of[LINEAR], '.3f')} (default {default:.3f}), trees "
    evidence += f"{span(of[TREES], '.3f')}, projection ahead in {(of[LINEAR] > of[TREES]).sum()}"
    return by_count(held), evidence


def _type_suffices(tables: Tables) -> Verdict:
    return of_control(tables, PREDICTION, tables(PREDICTION, "detectors"), _sufficing)


def _sufficing(rows: pd.DataFrame) -> Verdict:
    found = known(rows, "auc", "gain_low", split="test")
    found = found[found["detector"].isin(STATES)]
    if found.empty:
        raise MissingTable("undefined on this run: no detector that reads states has an interval")
    alone, ahead = _each(rows, (TYPE,), split="test")[TYPE], found["gain_low"] > 0
    evidence = f"type alone {alone:.3f}, states {span(found['auc'], '.3f')} (within a type "
    evidence += f"{span(found['within_type_auc'], '.3f')}), surely ahead {ahead.sum()} of {len(found)}"
    return by_count(list(~ahead)), evidence


def _oracle_bounds(tables: Tables) -> Verdict:
    return of_control(tables, PREDICTION, tables(PREDICTION, "detectors"), _bounding)


def _bounding(rows: pd.DataFrame) -> Verdict:
    found = _each(rows, (ORACLE,), split="test")
    # A model that is asked is asked about fewer answers.
    others = found.drop([ORACLE, *ASKED], errors="ignore")
    if others.empty:
        raise MissingTable("undefined on this run: no other detector has an AUC")
    high = known(rows, "auc", split="test", detector=ORACLE)["high"].iloc[0]
    evidence = f"oracle {found[ORACLE]:.3f}, highest of the others {others.max():.3f} ({others.idxmax()})"
    if others.max() <= found[ORACLE]:
        return HOLDS, evidence
    return (LIMITED if others.max() <= high else NOT_SHOWN), evidence


RULES = named(
    _style_is_easier,
    _projection_transfers,
    _states_beat_text,
    _directions_weigh,
    _trios_alike,
    _type_suffices,
    _oracle_bounds,
)
