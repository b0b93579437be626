"""Rules on steering, defence and prediction: on the paper's own printed numbers, and on edits of them.

Tables are built from the published ones; what the paper does not print (intervals, its figures) is made up. Of the
control no claim holds but those about it.
"""

import functools
import inspect
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from biasgeom import (
    attack,
    boosting,
    causal,
    claims,
    data,
    defence,
    defended,
    detectors,
    folded,
    ground,
    prediction,
    ranking,
    results,
)
from biasgeom.claims import HOLDS, LIMITED, NOT_RUN, NOT_SHOWN
from biasgeom.claims_judge import RULES
from claimed import CONTROL, MODEL, Edit, Tables, both, drop, put, require_covered, require_verdict, write

SECTIONS = ["06_search", "07_causal", "08_defence", "09_prediction"]
SIGN = {"negative": "-", "positive": "+"}
METHODS = {"Text": "text", "Text Rewrite": "text rewrite", "Geometric Median": "geometric_median"}
METHODS |= {"PCA": "pca", "Classifier": "classifier"}
LINEAR, TREES, WORDS = "linear projection", "GBDT", "TF-IDF + LR"
DETECTORS = {"Text-based LLM Detector": "zero-shot", "PCA + Logistic Regression": "PCA + LR", "GBDT": TREES}
DETECTORS |= {"Projection + Mahalanobis (linear)": "projection + Mahalanobis"}
DETECTORS |= dict.fromkeys(("Projection Features Only (linear)", "Projection Features Only"), LINEAR)
FAMILIES = dict(zip(("Bias", "Mahalanobis", "PCA"), prediction.FAMILIES, strict=True))
VARIANTS = {
    "Mahalanobis distance only": "Mahalanobis distance only",
    "PCA / intrinsic-statistic features only": "PCA and intrinsic statistics only",
    "Bias-direction projections only": "bias-direction features only",
    "All features, no RFE": "all features, no elimination",
    "All features + RFE + Optuna": "all features, elimination and search",
}


def printed(number: int) -> pd.DataFrame:
    """A published table with the cue in one column."""
    table = data.published(f"judge_table{number}")
    if "polarity" in table:
        table.insert(0, "condition", table["bias"] + table["polarity"].map(SIGN))
    return table


def bad(table: pd.DataFrame, **values: object) -> pd.DataFrame:
    """The rows of this page's model, and the control's, with other values."""
    table = table.assign(judge=MODEL)
    return pd.concat([table, table.assign(judge=CONTROL, **values)], ignore_index=True)


def searching() -> Tables:
    """The tables of 06_search: table 18; the rest is made up, and as the paper's text says."""
    cues, layers = printed(14)["condition"], attack.DEPTHS
    panel = pd.MultiIndex.from_product([cues, ["classifier", "pca"], [14, 24, 29]])
    panel = panel.to_frame(index=False, name=["condition", "method", "block"])
    panel = panel.assign(alpha=9.0, alpha_units=1.0, w1=0.6, validity=0.97, binding="spearman", reason=np.nan)
    depth = pd.MultiIndex.from_product([cues, layers]).to_frame(index=False, name=["condition", "layer"])
    depth = depth.assign(alpha=depth["layer"].map(lambda layer: layer**2.0), alpha_units=depth["layer"] / 10)
    grid = pd.DataFrame({"condition": cues, "ratio": 0.99, "evaluations": 120})
    monotone = pd.concat(
        [
            printed(18)[["metric", "monotone_pct"]].assign(configurations=18, within=within)
            for within in ("boundary", "twice the boundary")
        ]
    )
    tables = {"panel": bad(panel, binding="validity"), "depth": bad(depth, alpha=-depth["alpha"])}
    tables |= {"grid": bad(grid, ratio=0.5), "monotone": bad(monotone, monotone_pct=10)}
    return {f"06_search/{name}": table for name, table in tables.items()}


def attacking() -> Tables:
    """The tables of 07_causal: tables 14, 15, 16, 19."""
    found = printed(19)
    found = found.assign(method=found["method"].map(METHODS), validity=found["validity_pct"] / 100, at="largest W1")
    found["shift"] = found["w1"] * found["polarity"].map({"negative": -1, "positive": 1})
    steered = found[found["method"] != "text"]
    found["best"] = found.index.isin(steered.groupby("condition")["w1"].idxmax())
    found = found[["condition", "method", "at", "best", "w1", "spearman", "validity", "shift"]]
    random = printed(14).rename(columns={"bias_vector_w1": "w1", "random_mean_w1": "random_mean"})
    random = random.rename(columns={"random_max_w1": "random_max"})[["condition", "w1", "random_mean", "random_max"]]
    random["ratio"] = random["w1"] / random["random_mean"]
    random = pd.concat([random.assign(strength="attack"), random.assign(strength="two units", ratio=3.0)])
    swap = printed(15).rename(columns={"within_type_w1": "own_w1", "swap_mean_w1": "w1"})
    swap = swap[["condition", "own_w1", "w1"]].assign(source="Bandwagon-")
    others = swap.assign(source="Diversity-", w1=swap["w1"] + 0.02)
    swap["w1"] -= 0.02
    swap = pd.concat([swap, others, swap.assign(source="score axis", w1=swap["own_w1"] / 2)])
    matched = printed(16).rename(columns={"text_matched_w1": "matched_w1", "text_canonical_w1": "text_w1"})
    matched = matched[["condition", "text_w1", "matched_w1", "gap_pct"]].assign(reason=np.nan)
    agreeing = pd.DataFrame({"block": [14, 24, 29], "r": 0.5, "low": 0.1, "high": 0.8, "cues": 14})
    tables = {"attack": bad(found, shift=-found["shift"], spearman=np.where(found["method"] == "text", 0.9, 0.5))}
    tables["attack"].loc[(tables["attack"]["judge"] == CONTROL) & tables["attack"]["best"], "w1"] = 0.01
    tables |= {"random": bad(random, random_max=9.0), "swap": bad(swap, own_w1=0.1)}
    tables |= {"matched": bad(matched, gap_pct=-10), "cues_r": bad(agreeing, r=0.97)}
    return {f"07_causal/{name}": table for name, table in tables.items()}


def defending() -> Tables:
    """The tables of 08_defence: tables 20 to 22."""
    found = printed(20).rename(columns={"w1_reduction": "reduction"})
    found = found.assign(method=found["method"].map(METHODS), low=found["reduction"] - 0.05)
    steered = found[found["method"] != "text rewrite"]
    found["best"] = found.index.isin(steered.groupby("condition")["reduction"].idxmax())
    found = found[["condition", "method", "reduction", "low", "best"]].assign(high=found["low"] + 0.1)
    axis = found[found["best"]].assign(method="score axis", best=False)
    found = pd.concat([found, axis], ignore_index=True).assign(reason=np.nan)
    crossed = printed(21).rename(columns={"in_sample_w1_reduction": "in_sample"})
    crossed = crossed[["condition", "in_sample", "held_out_mean", "held_out_std"]].assign(reason=np.nan)
    floor = printed(22)
    floor = pd.DataFrame(
        {
            "condition": floor["condition"],
            "activation_reduction": floor["activation_w1_reduction_pct"] / 100,
            "text_reduction": floor["text_rewrite_w1_reduction_pct"] / 100,
        }
    )
    floor = pd.concat([floor.assign(floor=kind, reason=np.nan) for kind in ("absolute", "text as printed")])
    tables = {"defence": bad(found, reduction=-0.1, low=-0.2), "crossval": bad(crossed, held_out_mean=0.0)}
    tables["floor"] = bad(floor, activation_reduction=-0.1)
    return {f"08_defence/{name}": table for name, table in tables.items()}


def predicting() -> Tables:
    """The tables of 09_prediction: tables 25 to 27, 29, 30."""
    targets = printed(25).rename(columns={"test_auc": "auc"})[["target", "auc"]].assign(detector=TREES)
    targets = targets.assign(low=targets["auc"] - 0.02, high=targets["auc"] + 0.02)
    found = printed(26).assign(split=lambda t: t["split"].str.split("_").str[0])
    found = found.assign(detector=found["detector"].map(DETECTORS))[["detector", "split", "auc"]]
    extra = {WORDS: 0.7, "type only": 0.72, "oracle": np.nan, "endpoint": np.nan}
    extra = [{"detector": d, "split": split, "auc": auc} for d, auc in extra.items() for split in ("dev", "test")]
    found = pd.concat([found, pd.DataFrame(extra)], ignore_index=True).assign(within_type_auc=0.6, gain_low=0.01)
    found["high"] = found["auc"] + 0.03
    found["gain_low"] = found["gain_low"].where(found["detector"] != "type only")
    found["reason"] = found["auc"].isna().map({True: "not to be had", False: ""})
    gap = printed(29).assign(part=lambda t: t["test_part"].str.split("_").str[0])
    gap = gap.assign(detector=gap["detector"].map(DETECTORS), low=gap["auc"] - 0.05, reason="")
    gap = gap[["detector", "part", "auc", "low", "reason"]]
    trios = printed(27).rename(columns={"linear_projection_auc": LINEAR, "gbdt_auc": TREES, "unseen_trio": "trio"})
    trios = trios.assign(is_default=trios["is_default"] == "yes")
    trios = trios.melt(["trio", "is_default"], [LINEAR, TREES], var_name="detector", value_name="auc")
    weights = printed(30)
    weights["family"] = weights["feature_family"].str.extract(r"^(\w+)", expand=False).map(FAMILIES)
    weights = weights[["family", "gini_importance_pct"]]
    tables = {"targets": bad(targets, auc=0.6), "trios": bad(trios.assign(reason=""), auc=trios["auc"] ** 2)}
    tables["trios"].loc[(tables["trios"]["judge"] == CONTROL) & (tables["trios"]["detector"] == LINEAR), "auc"] **= 2
    tables["detectors"] = bad(found, gain_low=-0.1)
    is_control = tables["detectors"]["judge"] == CONTROL
    for name, auc in {"oracle": 0.95, WORDS: 0.94}.items():
        rows = is_control & (tables["detectors"]["detector"] == name)
        tables["detectors"].loc[rows, ["auc", "high", "reason"]] = auc, auc + 0.02, ""
    tables["detectors"].loc[is_control & (tables["detectors"]["detector"] == "zero-shot"), "auc"] = 0.99
    tables |= {"gap": bad(gap, auc=gap["auc"].where(gap["detector"] != LINEAR, 0.5))}
    tables["importance"] = bad(weights, gini_importance_pct=weights["gini_importance_pct"].to_numpy()[::-1])
    ablated = printed(28).assign(split=lambda t: t["split"].str.split("_").str[0])
    ablated = ablated.assign(variant=ablated["gbdt_variant"].map(VARIANTS))[["variant", "split", "auc"]]
    tables["ablations"] = bad(ablated)
    return {f"09_prediction/{name}": table for name, table in tables.items()}


@functools.cache
def _all_printed() -> Tables:
    return searching() | attacking() | defending() | predicting()


def all_printed() -> Tables:
    """The paper's numbers as tables."""
    return {name: table.copy() for name, table in _all_printed().items()}


def best(cues: object = None, judge: str = MODEL, **values: object) -> Edit:
    where = {"judge": judge, "best": True} | ({"condition": cues} if cues else {})
    return put("07_causal/attack", where, **values)


def ordered(tables: Tables) -> None:
    """Table 19 contradicts the text: two cues' best attacks keep less order than theirs (judge_i055, i056)."""
    best(["Verbosity-", "Refinement+"], spearman=0.85)(tables)


def all_hold() -> Tables:
    """The paper's numbers but for one contradiction: every claim holds."""
    tables = all_printed()
    ordered(tables)
    return tables


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BIASGEOM_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results" / results.slug(MODEL) / "judge"


def of(name: str, judge: str = MODEL, where: dict[str, object] | None = None, **values: object) -> Edit:
    return put(name, {"judge": judge} | (where or {}), **values)


def without(name: str, judge: str = MODEL, **where: object) -> Edit:
    return drop(name, judge=judge, **where)


def defended_by(method: str, judge: str = MODEL, cues: object = None, **values: object) -> Edit:
    where = {"judge": judge} | ({"best": True} if method == "best" else {"method": method})
    return put("08_defence/defence", where | ({"condition": cues} if cues else {}), **values)


def detector(name: object, judge: str = MODEL, split: str = "test", **values: object) -> Edit:
    return put("09_prediction/detectors", {"judge": judge, "detector": name, "split": split}, **values)


NONE = {"reason": "fewer than two effective pairs"}
STATES = [LINEAR, TREES, "projection + Mahalanobis", "PCA + LR"]
RANDOM, SWAP, GRID, PANEL = "07_causal/random", "07_causal/swap", "06_search/grid", "06_search/panel"
MATCHED, CUES, MONOTONE, DEPTH = "07_causal/matched", "07_causal/cues_r", "06_search/monotone", "06_search/depth"
DEFENCE, CROSSED, FLOOR = "08_defence/defence", "08_defence/crossval", "08_defence/floor"
TARGETS, DETECTED, GAP = "09_prediction/targets", "09_prediction/detectors", "09_prediction/gap"
WEIGHTS, TRIOS = "09_prediction/importance", "09_prediction/trios"
AXIS = {"source": "score axis"}
AT = {"strength": "attack"}
NEAR = {"floor": "absolute"}


def ranks(*, falling: bool) -> Edit:
    """One strength in mean ‖Δh‖ at all layers, or ever less."""

    def edit(tables: Tables) -> None:
        mine = tables[DEPTH]["judge"] == MODEL
        layers = tables[DEPTH]["layer"]
        tables[DEPTH]["alpha_units"] = (-layers if falling else layers * 0 + 16.0).where(mine, layers)

    return edit


CASES: list[tuple[str, str, Edit]] = [
    ("attack-shifts", HOLDS, both(best(validity=0.93), best("Authority-", spearman=0.696))),
    ("attack-shifts", LIMITED, best("Authority-", spearman=0.695)),
    ("attack-shifts", LIMITED, best("Authority-", spearman=np.nan)),
    ("attack-shifts", NOT_SHOWN, best("Authority-", validity=0.929)),
    ("attack-shifts", NOT_SHOWN, best("Authority-", shift=0.1)),
    ("attack-shifts", NOT_SHOWN, best("Refinement+", shift=-0.1)),
    ("attack-shifts", NOT_SHOWN, best("Authority-", shift=0.0)),
    ("attack-shifts", NOT_SHOWN, best("Authority-", w1=np.nan, shift=np.nan, spearman=np.nan, validity=0.0)),
    # Neither another estimator nor the control counts.
    ("attack-shifts", HOLDS, of("07_causal/attack", where={"best": False, "method": "pca"}, shift=0.0)),
    ("attack-shifts", NOT_RUN, without("07_causal/attack")),
    ("attack-beats-text", HOLDS, best(w1=1.7)),
    ("attack-beats-text", LIMITED, best("Authority-", w1=0.5)),
    ("attack-beats-text", LIMITED, best(["Authority-", "Bandwagon-"], spearman=0.1)),
    ("attack-beats-text", NOT_SHOWN, best("Authority-", spearman=0.6, w1=0.5)),
    ("attack-beats-text", NOT_SHOWN, best("Authority-", spearman=0.696, w1=0.78)),
    ("attack-beats-text", NOT_RUN, without("07_causal/attack", method="text")),
    ("text-stays-behind", HOLDS, of(MATCHED, gap_pct=45.0)),
    ("text-stays-behind", LIMITED, of(MATCHED, where={"condition": "Refinement+"}, gap_pct=44.9)),
    ("text-stays-behind", NOT_SHOWN, of(MATCHED, where={"condition": "Refinement+"}, gap_pct=0.0)),
    # One cue without a number is left out, and named in no evidence.
    ("text-stays-behind", HOLDS, of(MATCHED, where={"condition": "Refinement+"}, gap_pct=np.nan, **NONE)),
    ("text-stays-behind", NOT_RUN, of(MATCHED, gap_pct=np.nan, **NONE)),
    ("beats-random", HOLDS, both(of(RANDOM, where=AT, ratio=5.9), of(RANDOM, where={"strength": "two units"}, w1=0))),
    ("beats-random", LIMITED, of(RANDOM, where=AT | {"condition": "Refinement+"}, ratio=5.89)),
    ("beats-random", NOT_SHOWN, of(RANDOM, where=AT | {"condition": "Refinement+"}, random_max=0.85)),
    ("beats-random", NOT_RUN, of(RANDOM, where=AT, ratio=np.nan)),
    ("swap-between", HOLDS, of(SWAP, where=AXIS, w1=9.0)),
    ("swap-between", LIMITED, of(SWAP, where={"condition": "Authority-"}, own_w1=1.4)),
    ("swap-between", NOT_SHOWN, of(SWAP, where={"condition": "Authority-"}, own_w1=0.71)),
    ("swap-between", NOT_SHOWN, of(SWAP, where={"condition": "Authority-"}, w1=0.5, own_w1=0.5)),
    ("swap-between", NOT_SHOWN, of(RANDOM, where=AT | {"condition": "Authority-"}, random_mean=0.72)),
    # The mean over the other cues counts.
    ("swap-between", HOLDS, of(SWAP, where={"condition": "Authority-", "source": "Diversity-"}, w1=0.92)),
    ("swap-between", NOT_RUN, without(SWAP, source=["Bandwagon-", "Diversity-"])),
    ("not-the-score-axis", HOLDS, of(SWAP, where={"source": "Diversity-"}, w1=9.0)),
    ("not-the-score-axis", LIMITED, of(SWAP, where=AXIS | {"condition": "Authority-"}, w1=1.62)),
    ("not-the-score-axis", NOT_SHOWN, of(SWAP, where=AXIS, w1=9.0)),
    ("not-the-score-axis", NOT_RUN, without(SWAP, source="score axis")),
    ("order-binds", HOLDS, of(PANEL, where={"condition": "Authority-"}, alpha=np.nan, binding="validity")),
    ("order-binds", LIMITED, of(PANEL, where={"condition": "Authority-"}, binding="both")),
    ("order-binds", NOT_SHOWN, of(PANEL, where={"method": "pca"}, binding="max_alpha")),
    ("order-binds", NOT_RUN, of(PANEL, alpha=np.nan, reason="no strength is feasible")),
    ("monotone-in-strength", HOLDS, of(MONOTONE, where={"within": "boundary"}, monotone_pct=90)),
    ("monotone-in-strength", HOLDS, of(MONOTONE, where={"within": "twice the boundary"}, monotone_pct=0)),
    ("monotone-in-strength", LIMITED, of(MONOTONE, where={"within": "boundary", "metric": "w1"}, monotone_pct=89.9)),
    ("monotone-in-strength", NOT_SHOWN, of(MONOTONE, where={"within": "boundary"}, monotone_pct=89.9)),
    ("monotone-in-strength", NOT_RUN, without(MONOTONE)),
    ("strength-rises", HOLDS, of(DEPTH, where={"condition": "Authority-"}, alpha=1.0, alpha_units=1.0)),
    ("strength-rises", LIMITED, ranks(falling=True)),
    ("strength-rises", LIMITED, ranks(falling=False)),
    ("strength-rises", NOT_SHOWN, of(DEPTH, alpha=5.0)),
    ("strength-rises", HOLDS, without(DEPTH, layer=[1, 4, 7, 12, 15, 18])),
    ("strength-rises", NOT_RUN, without(DEPTH, layer=[1, 4, 7, 12, 15, 18, 25])),
    ("search-finds", HOLDS, of(GRID, ratio=0.98, evaluations=200)),
    ("search-finds", LIMITED, of(GRID, where={"condition": "Authority-"}, ratio=0.979)),
    ("search-finds", LIMITED, of(GRID, where={"condition": "Authority-"}, ratio=0.95)),
    ("search-finds", LIMITED, of(GRID, where={"condition": "Authority-"}, evaluations=201)),
    ("search-finds", NOT_SHOWN, of(GRID, where={"condition": "Authority-"}, ratio=0.949)),
    ("search-finds", NOT_RUN, without(GRID)),
    ("defence-restores", HOLDS, both(defended_by("best", reduction=0.5), defended_by("score axis", reduction=0.9))),
    ("defence-restores", LIMITED, defended_by("best", cues="Authority-", reduction=0.49)),
    ("defence-restores", NOT_SHOWN, defended_by("best", cues="Authority-", low=0.0)),
    ("defence-restores", HOLDS, defended_by("best", cues="Authority-", reduction=np.nan, **NONE)),
    ("defence-restores", NOT_RUN, of(DEFENCE, reduction=np.nan, **NONE)),
    ("defence-beats-text", HOLDS, defended_by("text rewrite", reduction=-0.5)),
    ("defence-beats-text", HOLDS, defended_by("text rewrite", cues="Authority-", reduction=0.2)),
    ("defence-beats-text", LIMITED, defended_by("text rewrite", cues="Authority-", reduction=0.21)),
    ("defence-beats-text", NOT_SHOWN, defended_by("text rewrite", cues="Authority-", reduction=0.62)),
    (
        "defence-beats-text",
        NOT_SHOWN,
        both(defended_by("best", reduction=0), defended_by("text rewrite", reduction=-1)),
    ),
    (
        "defence-beats-text",
        NOT_SHOWN,
        both(defended_by("best", reduction=-0.1), defended_by("text rewrite", reduction=-1.0)),
    ),
    ("defence-beats-text", NOT_RUN, without(DEFENCE, method="text rewrite")),
    ("defence-generalises", HOLDS, of(CROSSED, in_sample=0.5, held_out_mean=0.41, held_out_std=0.9)),
    ("defence-generalises", LIMITED, of(CROSSED, in_sample=0.7)),
    ("defence-generalises", LIMITED, of(CROSSED, where={"condition": "Authority-"}, in_sample=0.7)),
    ("defence-generalises", HOLDS, of(CROSSED, in_sample=0.5, held_out_mean=0.4, held_out_std=0.9)),
    ("defence-generalises", NOT_SHOWN, of(CROSSED, in_sample=0.0, held_out_mean=0.0)),
    ("defence-generalises", NOT_SHOWN, of(CROSSED, in_sample=0.7, held_out_std=0.54)),
    ("defence-generalises", NOT_SHOWN, of(CROSSED, in_sample=-0.1, held_out_mean=-0.08)),
    ("defence-generalises", NOT_RUN, of(CROSSED, held_out_mean=np.nan, **NONE)),
    ("defence-at-floor", HOLDS, of(FLOOR, where={"floor": "text as printed"}, activation_reduction=-1.0)),
    ("defence-at-floor", LIMITED, of(FLOOR, where=NEAR | {"condition": "Refinement-"}, text_reduction=0.12)),
    ("defence-at-floor", LIMITED, of(FLOOR, where=NEAR, text_reduction=np.nan, reason="the rewrite has none")),
    ("defence-at-floor", NOT_SHOWN, of(FLOOR, where=NEAR | {"condition": "Refinement-"}, text_reduction=0.45)),
    (
        "defence-at-floor",
        NOT_SHOWN,
        of(FLOOR, where=NEAR | {"condition": "Refinement-"}, activation_reduction=np.nan, reason="no strength"),
    ),
    ("defence-at-floor", NOT_RUN, of(FLOOR, floor=np.nan, **NONE)),
    ("score-axis-as-far", HOLDS, of(SWAP, CONTROL, AXIS, own_w1=0.5)),
    ("score-axis-as-far", LIMITED, of(SWAP, CONTROL, AXIS | {"condition": ["Authority-", "Diversity-"]}, own_w1=9.0)),
    (
        "score-axis-as-far",
        NOT_SHOWN,
        of(SWAP, CONTROL, AXIS | {"condition": ["Authority-", "Diversity-", "Bandwagon-"]}, own_w1=9.0),
    ),
    ("score-axis-as-far", NOT_RUN, without(SWAP, CONTROL, source="score axis")),
    ("cues-agree", HOLDS, of(CUES, CONTROL, r=0.901)),
    ("cues-agree", LIMITED, of(CUES, CONTROL, {"block": [14, 29]}, r=0.9)),
    ("cues-agree", NOT_SHOWN, of(CUES, CONTROL, r=0.9)),
    ("cues-agree", NOT_RUN, of(CUES, CONTROL, r=np.nan)),
    ("style-is-easier", HOLDS, of(TARGETS, where={"target": "A"}, auc=0.95, low=0.87)),
    ("style-is-easier", LIMITED, of(TARGETS, where={"target": "A"}, low=0.85)),
    ("style-is-easier", LIMITED, of(TARGETS, low=np.nan, high=np.nan)),
    ("style-is-easier", NOT_SHOWN, of(TARGETS, where={"target": "A"}, auc=0.949)),
    ("style-is-easier", NOT_SHOWN, of(TARGETS, where={"target": "B"}, auc=0.98)),
    ("style-is-easier", NOT_SHOWN, of(TARGETS, auc=0.97)),
    ("style-is-easier", NOT_RUN, without(TARGETS, target="B")),
    ("projection-transfers", HOLDS, of(GAP, where={"detector": LINEAR, "part": "unseen"}, low=0.501)),
    ("projection-transfers", LIMITED, of(GAP, where={"detector": LINEAR, "part": "unseen"}, low=0.5)),
    ("projection-transfers", LIMITED, of(GAP, where={"detector": TREES, "part": "seen"}, auc=0.79)),
    ("projection-transfers", NOT_SHOWN, of(GAP, where={"detector": TREES, "part": "unseen"}, auc=0.821)),
    ("projection-transfers", NOT_RUN, of(GAP, where={"detector": TREES}, auc=np.nan, reason="LightGBM is missing")),
    ("states-beat-text", HOLDS, both(detector([WORDS, "zero-shot"], auc=0.838), detector(WORDS, split="dev", auc=1))),
    ("states-beat-text", LIMITED, detector(WORDS, auc=0.84)),
    ("states-beat-text", LIMITED, detector(WORDS, auc=0.839)),
    ("states-beat-text", NOT_SHOWN, detector("zero-shot", auc=0.84)),
    ("states-beat-text", NOT_SHOWN, detector([WORDS, "zero-shot"], auc=0.839)),
    ("states-beat-text", NOT_SHOWN, detector("endpoint", auc=0.9)),
    ("states-beat-text", NOT_SHOWN, detector(TREES, auc=0.6)),
    ("states-beat-text", NOT_SHOWN, both(detector(WORDS, auc=0.84), detector("zero-shot", auc=np.nan))),
    ("states-beat-text", NOT_RUN, detector(TREES, auc=np.nan, reason="LightGBM is missing")),
    ("states-beat-text", NOT_RUN, detector([WORDS, "zero-shot"], auc=np.nan)),
    ("directions-weigh", HOLDS, of(WEIGHTS, where={"family": "bias direction"}, gini_importance_pct=60.0)),
    ("directions-weigh", LIMITED, of(WEIGHTS, where={"family": "bias direction"}, gini_importance_pct=59.9)),
    ("directions-weigh", NOT_SHOWN, of(WEIGHTS, where={"family": "manifold"}, gini_importance_pct=63.0)),
    ("directions-weigh", NOT_RUN, of(WEIGHTS, gini_importance_pct=np.nan)),
    ("trios-alike", HOLDS, of(TRIOS, where={"detector": LINEAR}, auc=0.8)),
    ("trios-alike", HOLDS, without(TRIOS, trio=list(data.published("judge_table27")["unseen_trio"][2:]))),
    ("trios-alike", LIMITED, of(TRIOS, where={"detector": LINEAR, "is_default": True}, auc=0.83)),
    ("trios-alike", LIMITED, of(TRIOS, where={"detector": TREES, "is_default": True}, auc=0.83)),
    (
        "trios-alike",
        NOT_SHOWN,
        both(
            of(TRIOS, where={"detector": LINEAR, "is_default": True}, auc=0.83),
            of(TRIOS, where={"detector": TREES, "is_default": True}, auc=0.83),
        ),
    ),
    ("trios-alike", NOT_RUN, without(TRIOS, is_default=True)),
    ("trios-alike", NOT_RUN, without(TRIOS, is_default=False)),
    ("type-suffices", HOLDS, both(detector(STATES, CONTROL, gain_low=0.0), detector(WORDS, CONTROL, gain_low=0.1))),
    ("type-suffices", LIMITED, detector("PCA + LR", CONTROL, gain_low=0.001)),
    ("type-suffices", NOT_SHOWN, detector(STATES, CONTROL, gain_low=0.001)),
    ("type-suffices", NOT_RUN, detector(STATES, CONTROL, gain_low=np.nan)),
    ("oracle-bounds", HOLDS, detector(WORDS, CONTROL, auc=0.95)),
    ("oracle-bounds", LIMITED, detector(TREES, CONTROL, auc=0.97)),
    ("oracle-bounds", NOT_SHOWN, detector(TREES, CONTROL, auc=0.971)),
    ("oracle-bounds", NOT_RUN, detector("oracle", CONTROL, auc=np.nan)),
]

LISTED = claims.listed("judge").query("notebook.str.removeprefix('judge/') in @SECTIONS")
NOTEBOOKS = LISTED.set_index("id")["notebook"].to_dict()
ABOUT_CONTROL = ["score-axis-as-far", "cues-agree", "type-suffices", "oracle-bounds"]


def verdicts() -> pd.DataFrame:
    """On the claims of the second half."""
    return claims.verdicts("judge", RULES, MODEL).loc[LISTED.index].set_index("id")


def test_the_cases_cover_every_verdict_that_a_rule_states() -> None:
    require_covered(CASES, LISTED.set_index("id")["rule"])


@pytest.mark.parametrize(("claim", "verdict", "edit"), CASES, ids=[f"{c}: {v}" for c, v, _ in CASES])
def test_verdicts(folder: Path, claim: str, verdict: str, edit: Edit) -> None:
    section = NOTEBOOKS[claim].removeprefix("judge/")
    require_verdict(RULES, claim, verdict, edit, tables=all_hold(), section=section, folder=folder)


def test_the_papers_own_numbers_show_its_claims_but_where_they_contradict_its_text(folder: Path) -> None:
    write(folder, all_printed())
    found = verdicts()["verdict"]
    assert set(found[found != HOLDS].index) == {"attack-shifts", "attack-beats-text"}
    assert set(found[found != HOLDS]) == {LIMITED}
    write(folder, all_hold())
    assert set(verdicts()["verdict"]) == {HOLDS}


def test_evidence_has_the_numbers_of_the_tables_and_the_controls_behind(folder: Path) -> None:
    tables = all_hold()
    tables[MATCHED] = tables[MATCHED].query("judge == @MODEL or condition == 'Authority-'")
    both(of(CROSSED, CONTROL, held_out_mean=np.nan, **NONE), of(MATCHED, CONTROL, gap_pct=-12.0))(tables)
    both(
        of(MONOTONE, where={"within": "twice the boundary"}, monotone_pct=50), defended_by("score axis", reduction=0.7)
    )(tables)
    write(folder, tables)
    found = verdicts()["evidence"]
    # 0.85 / 0.14 is 6.07 where the paper prints 5.9 (judge_i058).
    assert "6.1 to 11 times the mean of random directions, above all of them 6 of 6" in found["beats-random"]
    assert "at two mean ‖Δh‖ or less 3 times; control:" in found["beats-random"]
    assert "own 2.2 to 2.5 times the mean of other cues' directions, these 2.8 to 4.5 times" in found["swap-between"]
    assert "steering +45 to +60 % ahead" in found["text-stays-behind"]
    assert found["text-stays-behind"].endswith("control: Authority-: steering -12 % ahead at matched ρ")
    assert found["defence-generalises"].startswith("in sample and held out Authority- 0.62 and 0.54, Bandwagon- 0.61")
    assert found["defence-generalises"].endswith("control: undefined on this run: fewer than two effective pairs")
    assert found["attack-shifts"].startswith("Authority-, Bandwagon-, Refinement-, Diversity-, Verbosity-, Refinement+")
    assert "to the cue's side 6 of 6, valid 6, in order 6" in found["attack-shifts"]
    assert "97 %, validity 99 %, spearman 93 % of 18 configurations" in found["monotone-in-strength"]
    assert "to twice the boundary 50 %;" in found["monotone-in-strength"]
    assert "Authority- 0.62 (0.57 to 0.67)" in found["defence-restores"]
    assert "of W1 taken away; by the score axis 0.70;" in found["defence-restores"]
    assert "projection 0.869 and 0.821, trees 0.902 and 0.751" in found["projection-transfers"]
    assert found["style-is-easier"].startswith("AUC 0.972 for the style, 0.839 for the outcome; control: AUC 0.600")
    assert "6 trios: projection 0.798 to 0.832 (default 0.821), trees 0.732 to 0.764" in found["trios-alike"]
    assert found["oracle-bounds"] == "oracle 0.950, highest of the others 0.940 (TF-IDF + LR)"
    assert found["type-suffices"].startswith("type alone 0.720, states 0.834 to 0.854")
    assert found["cues-agree"].startswith("r = 0.97 over 14 cues at block 14, r = 0.97")


def test_the_control_is_no_finding(folder: Path) -> None:
    """The negative control: judges swapped, nothing holds of either."""
    names = {MODEL: CONTROL, CONTROL: MODEL}
    write(folder, {name: table.assign(judge=table["judge"].replace(names)) for name, table in all_hold().items()})
    found = verdicts()["verdict"]
    assert found.pop("oracle-bounds") == NOT_RUN
    assert set(found) == {NOT_SHOWN}, found[found != NOT_SHOWN]


def test_the_control_is_not_asked_for(folder: Path) -> None:
    write(folder, {name: table.query("judge == @MODEL") for name, table in all_hold().items()})
    found = verdicts()
    assert set(found.loc[ABOUT_CONTROL, "verdict"]) == {NOT_RUN}
    assert set(found["verdict"].drop(ABOUT_CONTROL)) == {HOLDS}


@pytest.mark.parametrize("section", SECTIONS)
def test_claims_of_one_section_alone_are_not_run_without_its_tables(folder: Path, section: str) -> None:
    write(folder, {n: t for n, t in all_hold().items() if not n.startswith(section)})
    found = verdicts()
    mine = found["notebook"] == f"judge/{section}"
    assert mine.any()
    assert set(found.loc[mine, "verdict"]) == {NOT_RUN}
    assert found.loc[mine, "evidence"].str.startswith(section).all()
    assert set(found.loc[~mine, "verdict"]) == {HOLDS}


def test_tables_of_a_run_that_found_nothing_are_not_run(folder: Path) -> None:
    """As the notebooks write them where no cue has a direction, and no outcome two classes."""
    reason = "0 effective pairs; 2 or more are needed: judge more questions"
    empty = {name: table.head(0) for name, table in all_hold().items()}
    bare = [{"judge": judge, "condition": "Authority-", "reason": reason} for judge in (MODEL, CONTROL)]
    for name in (PANEL, DEPTH, DEFENCE, CROSSED, FLOOR, TARGETS, DETECTED, GAP, WEIGHTS, TRIOS):
        empty[name] = pd.DataFrame(bare).reindex(columns=dict.fromkeys([*empty[name], "condition", "reason"]))
    empty[SWAP] = pd.DataFrame({"judge": [MODEL, CONTROL]})
    write(folder, empty)
    found = verdicts()
    assert set(found["verdict"]) == {NOT_RUN}
    assert found["evidence"].str.contains(re.escape(reason)).sum() >= 12


# The tables are the notebooks' ----------------------------------------------------------------------------------------

MADE_BY = (attack, causal, ground, defence, defended, folded, detectors, boosting, ranking, prediction)


@pytest.mark.parametrize("section", SECTIONS)
def test_the_made_up_tables_have_names_that_the_notebooks_and_what_they_call_write(section: str) -> None:
    cells = json.loads((data.root() / "notebooks" / "judge" / f"{section}.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    words = code + "\n".join(inspect.getsource(module) for module in MADE_BY)
    assert not re.search(r"\bno_such_column\b", words)
    for name, table in all_hold().items():
        if not name.startswith(section):
            continue
        assert f'run.table("{name.split("/")[1]}"' in code, name
        if not (name == MATCHED and "gap_pct" in code):
            assert not [c for c in table if not re.search(rf"\b{c}\b", words)], name
        for column in {"method", "metric", "within", "binding", "strength", "floor", "detector", "split", "part"} & {
            *table
        }:
            quoted = set(table[column].dropna()) - {"spearman", "validity"}
            lacking = [value for value in quoted if f'"{value}"' not in words and f"'{value}'" not in words]
            assert not lacking, (name, column)


def test_every_item_of_the_paper_is_shown() -> None:
    """Where, and that a label is there, test_claims_judge looks at."""
    assert set(data.items().query("paper == 'judge'")["status"]) == {"measured", "method shown on other data"}


def test_no_label_of_the_chapter_stands_twice() -> None:
    """Sphinx would refuse the book."""
    texts = [path.read_text() for path in sorted((data.root() / "notebooks" / "judge").glob("*.ipynb"))]
    labels = [label for text in texts for label in re.findall(r'(?:name=\\"|"name": ")((?:tab|fig)-[\w-]+)', text)]
    assert len(labels) > 60
    assert not {label for label in labels if labels.count(label) > 1}


# Numbers of the text --------------------------------------------------------------------------------------------------


def printed_cells() -> dict[tuple[str, str], float]:
    """Cells of the published tables that a run's table has too."""
    cells: dict[tuple[str, str], float] = {}
    for row in printed(14).to_dict("records"):
        cells["table 14", f"W1 along the direction of {row['condition']}"] = row["bias_vector_w1"]
        cells["table 14", f"W1 along random directions, at the strength of {row['condition']}"] = row["random_mean_w1"]
    for row in printed(16).to_dict("records"):
        text = f"W1 of the text of {row['condition']}"
        cells |= {("table 16", text): row["text_canonical_w1"]}
        cells |= {("table 16", f"{text} at matched rank correlation"): row["text_matched_w1"]}
        cells["table 16", f"steering ahead of the matched text of {row['condition']}, per cent"] = row["gap_pct"]
    words = {"w1": "W1", "validity": "validity", "spearman": "rank correlation"}
    for row in printed(18).to_dict("records"):
        cells["table 18", f"{words[row['metric']]} monotone, per cent"] = row["monotone_pct"]
    words = {"Text Rewrite": "the text rewrite", "Geometric Median": "the geometric median", "PCA": "PCA"}
    for row in printed(20).to_dict("records"):
        by = words.get(row["method"], "the classifier")
        cells["table 20", f"reduction for {row['condition']} by {by}"] = row["w1_reduction"]
    for row in printed(21).to_dict("records"):
        cells["table 21", f"reduction for {row['condition']} in sample"] = row["in_sample_w1_reduction"]
        cells["table 21", f"reduction for {row['condition']} on held-out folds"] = row["held_out_mean"]
    for row in printed(22).to_dict("records"):
        own, text = row["activation_w1_reduction_pct"], row["text_rewrite_w1_reduction_pct"]
        for by, share in {"steering": own, "the rewrite": text}.items():
            cells["table 22", f"reduction for {row['condition']} by {by} at a floor of 0.85"] = share / 100
    for row in printed(25).to_dict("records"):
        cells["table 25", f"AUC for target {row['target']}"] = row["test_auc"]
    return cells


def test_text_values_are_the_published_tables_cells() -> None:
    listed = data.published("judge_text_values").query("notebook in @SECTIONS")
    cells = printed_cells()
    known = listed[listed["section"].isin({table for table, _ in cells})].set_index(["section", "quantity"])
    assert known["published"].to_dict() == pytest.approx(cells)
    # Of the other tables, the same cells once more by what the row says where to look.
    columns = {26: "auc", 28: "auc", 29: "auc", 30: "gini_importance_pct"}
    renamed = DETECTORS | VARIANTS
    for number, column in columns.items():
        table, mine = printed(number), listed[listed["section"] == f"table {number}"]
        name, *more = [c for c in table if c not in (column, "ap", "n_features", "features_retained")]
        cells = {}
        for row in table.to_dict("records"):
            family = FAMILIES.get(row[name].split()[0].split("-")[0], "") if number == 30 else renamed[row[name]]
            cells[(family, *(row[c].split("_")[0] for c in more))] = row[column]
        where = [tuple(part.split("=")[1] for part in value.split(";")[1:]) for value in mine["where"]]
        assert dict(zip(where, mine["published"], strict=True)).items() <= cells.items()
        left = set(cells) - set(where)
        # No model is asked about development answers, and ablations are shown on test ones.
        assert all(key[-1] == "dev" for key in left), left
        assert all((key[0] == "zero-shot") == (number == 26) for key in left), left


def test_printed_numbers_stand_beside_the_models_own_cells(folder: Path) -> None:
    """With the printed numbers for tables, every cell is beside itself: each row is looked up in the right place."""
    write(folder, all_printed())
    found = claims.beside("judge", MODEL)
    mine = found[data.published("judge_text_values")["notebook"].isin(SECTIONS)]
    assert len(mine) > 75
    assert mine["measured"].astype(float).to_numpy() == pytest.approx(mine["published"].to_numpy())
    assert mine.set_index("quantity").loc["reduction for Authority- by PCA", "95 % interval"] == "0.51 to 0.61"
    write(folder, {name: table.assign(judge="nobody") for name, table in all_printed().items()})
    found = claims.beside("judge", MODEL)
    assert found.loc[mine.index, "measured"].isna().all()
