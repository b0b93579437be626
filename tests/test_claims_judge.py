"""Each rule of the judge chapter on made-up tables in the notebooks' columns: every verdict that it can return."""

import functools
import json
import re
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from biasgeom import (
    activations,
    adapters,
    claims,
    data,
    estimators,
    figures_judge,
    figures_judge_geometry,
    figures_pairs,
    judging,
    models,
    perturbations,
    planted,
    prompts,
    results,
    run,
)
from biasgeom.claims import HOLDS, LIMITED, NOT_RUN, NOT_SHOWN
from biasgeom.claims_judge import RULES
from claimed import CONTROL, MODEL, SECOND, Edit, Tables, both, drop, put, require_covered, require_verdict, write

FOREIGN = f"{SECOND}, raw text"
BIASES, POLARITIES = perturbations.BIASES, perturbations.POLARITIES
CUES = [perturbations.name(bias, polarity) for bias in BIASES for polarity in POLARITIES]
DEPTHS, PANEL = (5, 15, 25), (5, 10, 15, 20, 25, 31)
COUPLES = ("Refinement+ and Diversity-", "Bandwagon- and Diversity-")
TRANSFERRED = ("Bandwagon-", "Refinement+", "Authority-")
PROMPTS = ("strict", "fair", "strict, with the question")
AGGREGATES = {"negative": -0.8, "positive, five types": 0.1, "positive, all seven": 0.05}
AGGREGATES |= {"asymmetry, five types": 0.7, "asymmetry, all seven": 0.75}
SHIFTS = {"Bandwagon-": -1.6, "Diversity-": -0.9, "Authority-": -0.8, "Refinement-": -0.6, "Verbosity-": -0.5}
SHIFTS |= {"Prestige-": -0.4, "Sentiment-": -0.05, "Refinement+": 0.8, "Bandwagon+": -0.5, "Diversity+": -0.2}


def aggregated(good: bool, *, family: int, **keys: object) -> list[dict[str, object]]:
    """Rows as of :func:`landscape.aggregates`; of the control no claim would hold."""
    rows = []
    for name, delta in AGGREGATES.items():
        delta = delta if good else -delta
        asymmetry = name.startswith("asymmetry")
        row = {"aggregate": name, "n": 1050, "questions": 150, "base_mean": np.nan if asymmetry else 5.8}
        row |= {"mean": 5.8 + delta, "delta": delta, "low": delta - 0.05, "high": delta + 0.05}
        row |= {
            "low_by_question": delta - 0.1,
            "high_by_question": delta + 0.1,
            "cohens_d": 0.7 * delta if good else 0.5,
        }
        row |= {"w1": 0.9, "p": 1e-4, "p_by_question": 1e-3, "p_tail": 1e-9, "reason": "", "p_adjusted": 1e-4}
        row |= {"family": 0 if asymmetry else family}
        rows.append(row | keys)
    return rows


def typed(good: bool) -> list[dict[str, object]]:
    rows = []
    for cue in CUES:
        delta = SHIFTS.get(cue, 0.01) * (1 if good else -1)
        p = 0.001 if abs(delta) > 0.1 else 0.6
        bias, polarity = cue[:-1], dict(zip("+-", POLARITIES, strict=True))[cue[-1]]
        row = {"bias": bias, "polarity": polarity, "condition": cue, "n": 150, "missing": 0, "unchanged": 0}
        row |= {"base_mean": 5.8, "mean": 5.8 + delta, "rank": 1, "delta": delta, "se": 0.1, "low": delta - 0.2}
        row |= {"high": delta + 0.2, "cohens_d": delta, "w1": abs(delta), "p": p, "p_adjusted": p, "p_tail": p}
        rows.append(row | {"effective": 40, "by_2": 20, "reason": "", "judge": MODEL if good else CONTROL})
    return rows


def behaviour() -> Tables:
    """The tables of 03_landscape."""
    aggregates, prompted, types, judges, interaction = [], [], [], [], []
    for judge in (MODEL, CONTROL):
        good = judge == MODEL
        for over in ("all", "test"):
            aggregates += aggregated(good and over == "all", family=2, judge=judge, over=over)
        for prompt in PROMPTS:
            prompted += aggregated(good, family=6, judge=judge, prompt=prompt)
        types += typed(good)
        row = {"judge": judge, "readout": "expected", "questions": 150, "judgements": 2250, "validity": 1.0}
        judges.append(row | {"score mass": 0.9, "base mean": 5.8, "base sd": 1.5, "effective from": 0.4})
        row = {"judge": judge, "questions": 150, "domains": 12, "share": 0.2 if good else 0.07, "chance": 0.075}
        interaction.append(row | {"p": 0.001 if good else 0.6, "reason": ""})
    modes = {f"{mode}_pct": np.nan for mode in ("verbal", "out_of_range", "range", "truncated", "ambiguous")}
    failures = [
        {"judge": judge, "answers": answers, "n": 150, "failed": 1, "failed_pct": rate, "truncated_rate_pct": 0.1}
        | modes
        for judge, rate in {f"{MODEL}, expected": 0.0, f"{CONTROL}, greedy": 9.0, f"{MODEL}, bare reply": 2.6}.items()
        for answers in ("base", "perturbed", "all")
    ]
    recovery = [
        {"over": over, "questions": 80, "n": 1200, "validity": 1.0, "largest_null": 0.1}
        | {"nulls_within": 8, "nulls": 8, "r": 0.99 if (over, wording) == ("test split", "published") else 0.5}
        | {"quality": 0.9, "reason": "", "wording": wording}
        for wording in ("published", "held_out_1", "held_out_2")
        for over in ("all", "test split", "held-out domains")
    ]
    made = {"aggregates": aggregates, "types": types, "judges": judges, "interaction": interaction}
    made |= {"prompts": prompted, "failures": failures, "recovery": recovery}
    tables = {f"03_landscape/{name}": pd.DataFrame(table) for name, table in made.items()}
    where = {"judge": MODEL, "aggregate": list(AGGREGATES)[:3]}
    put("03_landscape/prompts", where | {"prompt": "fair"}, base_mean=8.5)(tables)
    return tables


def rated() -> Tables:
    """The table of 02_humans."""
    rows = [
        {"bias": bias, "dimension": f"dimension {i}", "mean": 3.0, "sd": 0.5, "n": 250, "t": 0.1, "p": 0.9}
        | {"low": 2.9, "high": 3.1, "p_tost": 1e-10, "p_tost_favourable": 1e-11, "p_normal": 1e-12}
        | {"p_printed": 1e-9, "follows": "yes", "follows_normal": "yes"}
        for bias in ("Verbosity", "Sentiment")
        for i in range(4)
    ]
    return {"02_humans/tests": pd.DataFrame(rows)}


def geometry() -> Tables:
    """The tables of 04_geometry; of the control no claim would hold."""
    displacement, purity, types, spectrum, norms = [], [], [], [], []
    for judge in (MODEL, CONTROL):
        good = judge == MODEL
        for depth in DEPTHS:
            at = {"judge": judge, "layer": depth, "block": depth - 1}
            read = good and depth == 25
            for by, labels in {"polarity": ("base", *POLARITIES), "condition": ("base", *CUES)}.items():
                for label in labels:
                    far = read and label != "base" and by == "polarity"
                    row = {"label": label, "n": 1050, "beyond": 0.8 if far else 0.1, "auc": 0.9}
                    displacement.append(row | {"spread": 1.3 if far else 0.9} | at | {"by": by})
            for label in ("condition", "score", "domain", "quality"):
                shown = (label == "condition") == read
                row = {"label": label, "rows": 2250, "purity": 0.6 if shown else 0.3, "expected": 0.29}
                purity.append(row | {"chance": 0.31, "p": 0.001 if shown else 0.4, "reason": ""} | at)
        for pairs in ("effective", "all"):
            for couple in COUPLES:
                for step, depth in enumerate(DEPTHS):
                    read = good and pairs == "effective"
                    row = {"block": depth - 1, "first": 40, "second": 40, "auc": 0.7 + 0.12 * step if read else 0.5}
                    row |= {"silhouette": 0.1 * step if read else 0.0, "reason": "", "layer": depth, "judge": judge}
                    types.append(row | {"pairs": pairs, "couple": couple})
        for cue in CUES:
            for k in (1, 3, 5, 10):
                row = {"condition": cue, "n": 40, "top_k": k, "cumulative_variance_pct": 88 if good and k == 5 else 40}
                row |= {"isotropic": 20.0, "between": 60.0, "dimensions": 4.0, "reason": "", "judge": judge}
                spectrum.append(row)
        for block in range(4):
            gap = 0.5 if good and block < 3 else 3.5
            row = {"block": block, "base": 50.0, "base_sd": 5.0, "perturbed": 50.0 + gap / 2, "perturbed_sd": 5.0}
            p = 0.6 if gap < 2 else 1e-4
            row |= {"gap_pct": gap, "p_two_sample": p, "p_paired": p, "p_two_sample_bh": p, "p_paired_bh": p}
            norms.append(row | {"judge": judge})
    transfer = [
        {
            "type": cue,
            "model_a": a,
            "model_b": b,
            "cosine": 0.5 if (a, b, pairs) == (MODEL, FOREIGN, "effective") else 0.0,
        }
        | {"random": 0.1, "misaligned": 0.2, "p": 0.02, "ceiling": 0.6, "inside": 0.6, "cosine_inside": 0.9}
        | {"pairs": pairs, "reason": ""}
        for pairs in ("effective", "all")
        for cue in TRANSFERRED
        for a, b in ((MODEL, CONTROL), (MODEL, FOREIGN), (CONTROL, FOREIGN))
    ]
    made = {"displacement": displacement, "purity": purity, "types": types, "spectrum": spectrum, "norms": norms}
    made |= {"transfer": transfer}
    return {f"04_geometry/{name}": pd.DataFrame(table) for name, table in made.items()}


def directed() -> Tables:
    """The tables of 05_directions."""
    layers, table17 = [], []
    for judge in (MODEL, CONTROL):
        good = judge == MODEL
        for step, depth in enumerate(PANEL):
            rising = 0.4 + 0.1 * step if good else 0.9 - 0.1 * step
            row = {"block": depth - 1, "pairs": 200, "biased_core_fraction": rising, "in_sample_fraction": 1.0}
            row |= {"core": "core", "lda_separability": rising, "lda_effective": 0.5, "classifier_auc": 0.5}
            row |= {"cos_lda_classifier": rising, "reason": "", "layer": depth, "judge": judge}
            layers.append(row)
        for a, b in permutations(estimators.METHODS, 2):
            family = estimators.FAMILIES[a] if estimators.FAMILIES[a] == estimators.FAMILIES[b] else "cross"
            family = family if family == "cross" else f"within_{family}"
            row = {"judge": judge, "vector_a": a, "vector_b": b, "family": family}
            row |= {"cosine": (0.6 if family == "cross" else 0.95) if good else 0.05, "lowest": 0.0, "cues": 10}
            table17.append(row | {"reason": "", "chance": 0.08})
    return {"05_directions/layers": pd.DataFrame(layers), "05_directions/table17": pd.DataFrame(table17)}


@functools.cache
def _all_hold() -> Tables:
    return behaviour() | rated() | geometry() | directed()


def all_hold() -> Tables:
    """Tables on which every claim holds."""
    return {name: table.copy() for name, table in _all_hold().items()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the model's tables of the chapter lie."""
    monkeypatch.setenv("BIASGEOM_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results" / results.slug(MODEL) / "judge"


def total(aggregate: object, judge: str = MODEL, over: str = "all", **values: float | str) -> Edit:
    return put("03_landscape/aggregates", {"judge": judge, "over": over, "aggregate": aggregate}, **values)


def cue(name: object, judge: str = MODEL, **values: float | str) -> Edit:
    return put("03_landscape/types", {"judge": judge, "condition": name}, **values)


def prompted(prompt: object, aggregate: str = "asymmetry, five types", judge: str = MODEL, **values: object) -> Edit:
    return put("03_landscape/prompts", {"judge": judge, "aggregate": aggregate, "prompt": prompt}, **values)


def failed(how: str, answers: object, rate: float) -> Edit:
    return put("03_landscape/failures", {"judge": f"{MODEL}, {how}", "answers": answers}, failed_pct=rate)


def recovered(wording: str = "published", over: str = "test split", **values: float | str) -> Edit:
    return put("03_landscape/recovery", {"wording": wording, "over": over}, **values)


def rating(number: int, **values: float | str) -> Edit:
    """The first so many of the eight cells."""

    def edit(tables: Tables) -> None:
        for column, value in values.items():
            tables["02_humans/tests"].loc[: number - 1, column] = value

    return edit


def spread(label: object, layer: int = 25, by: str = "polarity", judge: str = MODEL, **values: float) -> Edit:
    where = {"judge": judge, "layer": layer, "by": by, "label": label}
    return put("04_geometry/displacement", where, **values)


def near(label: object, layer: int = 25, judge: str = MODEL, **values: float | str) -> Edit:
    return put("04_geometry/purity", {"judge": judge, "layer": layer, "label": label}, **values)


def parted(layer: object, couple: object = COUPLES, judge: str = MODEL, **values: float | str) -> Edit:
    where = {"judge": judge, "layer": layer, "couple": couple, "pairs": "effective"}
    return put("04_geometry/types", where, **values)


def components(cues: object, k: int = 5, judge: str = MODEL, **values: float | str) -> Edit:
    return put("04_geometry/spectrum", {"judge": judge, "condition": cues, "top_k": k}, **values)


def norm(block: object, judge: str = MODEL, **values: float) -> Edit:
    return put("04_geometry/norms", {"judge": judge, "block": block}, **values)


def deep(layer: object, judge: str = MODEL, **values: float | str) -> Edit:
    return put("05_directions/layers", {"judge": judge, "layer": layer}, **values)


def alike(family: object, judge: str = MODEL, **values: float | str) -> Edit:
    return put("05_directions/table17", {"judge": judge, "family": family}, **values)


def one_pair(a: str, b: str, cosine: float) -> Edit:
    return put("05_directions/table17", {"judge": MODEL, "vector_a": a, "vector_b": b}, cosine=cosine)


def moved(cues: object, model: str = MODEL, pairs: str = "effective", **values: float | str) -> Edit:
    where = {"type": cues, "model_a": model, "model_b": FOREIGN, "pairs": pairs}
    return put("04_geometry/transfer", where, **values)


def without_direction(model: str) -> Edit:
    """As the notebook writes it: no row of two models, one of one model with the reason."""

    def edit(tables: Tables) -> None:
        drop("04_geometry/transfer", type="Authority-", model_a=model)(tables)
        reason = "0 effective pairs; 2 or more are needed: judge more questions"
        row = {"type": "Authority-", "model_a": model, "pairs": "effective", "reason": reason}
        tables["04_geometry/transfer"] = pd.concat([tables["04_geometry/transfer"], pd.DataFrame([row])])

    return edit


NEGATIVE, FIVE, MORE = "negative", "positive, five types", "asymmetry, five types"
NO_PAIR = dict.fromkeys(("delta", "low_by_question", "high_by_question", "cohens_d", "base_mean"), np.nan)
NO_PAIR |= {"reason": "no pair with two scores of Bandwagon"}
NO_TEST = {"delta": np.nan, "p_adjusted": np.nan, "reason": "no pair with two scores"}
NO_PAIRS = {"reason": "0 pairs; 2 or more are needed"}
OTHERS = [c for c in CUES if c != "Bandwagon-"]
WITHIN = ("within_directional", "within_discriminative")

CASES: list[tuple[str, str, Edit]] = [
    # Neither the control, nor the test split, nor all seven types, nor resampled pairs.
    ("asymmetric", HOLDS, both(total(NEGATIVE, low=-1.0, high=0.5), total("asymmetry, all seven", low_by_question=-1))),
    ("asymmetric", HOLDS, both(total(NEGATIVE, high_by_question=-0.01), total(MORE, low_by_question=0.01))),
    ("asymmetric", LIMITED, total(MORE, low_by_question=0.0)),
    ("asymmetric", LIMITED, total(MORE, delta=-0.5, low_by_question=-0.6, high_by_question=-0.4)),
    ("asymmetric", NOT_SHOWN, total(NEGATIVE, high_by_question=0.0)),
    ("asymmetric", NOT_SHOWN, total(NEGATIVE, delta=0.5, low_by_question=0.4, high_by_question=0.6)),
    ("asymmetric", NOT_RUN, total(NEGATIVE, **NO_PAIR)),
    ("asymmetric", NOT_RUN, total(MORE, low_by_question=np.nan, reason="a resample of questions lacks a type")),
    ("positive-near-zero", HOLDS, both(total(FIVE, cohens_d=-0.2), total(NEGATIVE, cohens_d=-0.2))),
    ("positive-near-zero", HOLDS, total("positive, all seven", cohens_d=0.9)),
    ("positive-near-zero", LIMITED, total(NEGATIVE, cohens_d=-0.19)),
    ("positive-near-zero", NOT_SHOWN, total(FIVE, cohens_d=0.21)),
    ("positive-near-zero", NOT_SHOWN, total(FIVE, cohens_d=-0.21)),
    ("positive-near-zero", NOT_RUN, total(FIVE, cohens_d=np.nan, reason="all shifts are equal")),
    ("refinement-alone", HOLDS, cue("Verbosity+", delta=0.5, p_adjusted=0.05)),
    ("refinement-alone", HOLDS, cue(["Verbosity+", "Prestige+"], delta=-0.5, p_adjusted=0.001)),
    ("refinement-alone", LIMITED, cue("Verbosity+", delta=0.5, p_adjusted=0.049)),
    ("refinement-alone", LIMITED, cue("Bandwagon+", p_adjusted=0.05)),
    ("refinement-alone", LIMITED, cue("Diversity+", delta=0.2)),
    ("refinement-alone", NOT_SHOWN, cue("Refinement+", p_adjusted=0.05)),
    ("refinement-alone", NOT_SHOWN, cue("Refinement+", delta=-0.8)),
    ("refinement-alone", HOLDS, cue("Verbosity+", delta=0.9, p_adjusted=0.9)),
    ("refinement-alone", NOT_SHOWN, cue("Verbosity+", delta=0.9, p_adjusted=0.049)),
    ("refinement-alone", NOT_RUN, cue("Verbosity+", **NO_TEST)),
    ("strongest-negative", HOLDS, cue("Refinement-", p_adjusted=0.9)),
    ("strongest-negative", LIMITED, cue("Bandwagon-", mean=4.95, delta=-0.85)),
    ("strongest-negative", LIMITED, cue("Authority-", p_adjusted=0.05)),
    ("strongest-negative", LIMITED, cue("Sentiment-", mean=5.1, delta=-0.7)),
    ("strongest-negative", LIMITED, cue("Refinement-", mean=4.0, delta=-1.8)),
    ("strongest-negative", NOT_SHOWN, cue(["Refinement-", "Verbosity-"], mean=4.0, delta=-1.8)),
    ("strongest-negative", NOT_SHOWN, cue(["Authority-", "Diversity-"], p_adjusted=0.05)),
    ("strongest-negative", NOT_RUN, cue("Sentiment-", **NO_TEST)),
    ("domain-interaction", HOLDS, put("03_landscape/interaction", {"judge": MODEL}, p=0.049)),
    ("domain-interaction", NOT_SHOWN, put("03_landscape/interaction", {"judge": MODEL}, p=0.05)),
    (
        "domain-interaction",
        NOT_RUN,
        put("03_landscape/interaction", {"judge": MODEL}, share=np.nan, p=np.nan, reason="all shifts are equal"),
    ),
    ("across-prompts", HOLDS, prompted(PROMPTS, low_by_question=0.01)),
    ("across-prompts", HOLDS, prompted(PROMPTS, "asymmetry, all seven", low_by_question=-1, low=-1)),
    ("across-prompts", LIMITED, prompted("fair", low_by_question=0.0)),
    ("across-prompts", LIMITED, prompted(PROMPTS[::2], low_by_question=-0.1)),
    ("across-prompts", NOT_SHOWN, prompted(PROMPTS, low_by_question=0.0)),
    ("across-prompts", NOT_RUN, prompted("fair", **NO_PAIR)),
    # A quarter of 1.5 is 0.375.
    ("strict-is-stricter", HOLDS, prompted("fair", NEGATIVE, base_mean=6.18)),
    ("strict-is-stricter", LIMITED, prompted("fair", NEGATIVE, base_mean=6.17)),
    ("strict-is-stricter", NOT_SHOWN, prompted("fair", NEGATIVE, base_mean=5.8)),
    ("strict-is-stricter", NOT_RUN, prompted("fair", NEGATIVE, **NO_PAIR)),
    ("strict-is-stricter", NOT_RUN, put("03_landscape/judges", {"judge": MODEL}, **{"base sd": 0.0})),
    ("failures-rare", HOLDS, both(failed("bare reply", "base", 2.0), failed("bare reply", "perturbed", 2.99))),
    ("failures-rare", HOLDS, failed("expected", "all", 50.0)),
    ("failures-rare", LIMITED, failed("bare reply", "all", 3.0)),
    ("failures-rare", LIMITED, failed("bare reply", "perturbed", 3.7)),
    ("failures-rare", NOT_SHOWN, both(failed("bare reply", "all", 3.0), failed("expected", "all", 3.0))),
    ("failures-rare", NOT_SHOWN, both(failed("bare reply", "base", 0.1), failed("expected", "base", 1.1))),
    ("failures-rare", NOT_RUN, drop("03_landscape/failures", answers=["base", "perturbed", "all"])),
    ("recovers-planted", HOLDS, recovered(r=0.951)),
    ("recovers-planted", HOLDS, recovered("held_out_1", r=0.1, nulls_within=0)),
    ("recovers-planted", LIMITED, recovered(nulls_within=7)),
    ("recovers-planted", LIMITED, recovered(validity=0.999)),
    ("recovers-planted", NOT_SHOWN, recovered(r=0.95)),
    ("recovers-planted", NOT_SHOWN, recovered(r=-0.99)),
    ("recovers-planted", NOT_RUN, recovered(r=np.nan, reason="the shifts are all equal")),
    ("humans-equivalent", HOLDS, rating(8, follows="no")),
    ("humans-equivalent", LIMITED, rating(3, p_tost=0.05)),
    ("humans-equivalent", NOT_SHOWN, rating(4, p_tost=0.05)),
    ("humans-equivalent", NOT_RUN, drop("02_humans/tests", bias=["Verbosity", "Sentiment"])),
    ("humans-bounds", HOLDS, rating(8, follows_normal="no")),
    ("humans-bounds", LIMITED, rating(1, follows="within rounding")),
    ("humans-bounds", LIMITED, rating(8, follows="no")),
    ("humans-bounds", NOT_SHOWN, rating(1, follows="no", follows_normal="no")),
    ("humans-bounds", NOT_RUN, drop("02_humans/tests", bias=["Verbosity", "Sentiment"])),
    ("baseline-apart", HOLDS, both(spread(POLARITIES, beyond=0.51, spread=1.01), spread("base", beyond=0.9))),
    # Neither single cues nor another depth.
    ("baseline-apart", HOLDS, both(spread(CUES, by="condition", beyond=0.0), spread(POLARITIES, 15, beyond=0.0))),
    ("baseline-apart", LIMITED, spread(POLARITIES, spread=1.0)),
    ("baseline-apart", LIMITED, spread("negative", spread=0.9)),
    ("baseline-apart", LIMITED, spread("positive", beyond=0.5)),
    ("baseline-apart", NOT_SHOWN, spread(POLARITIES, beyond=0.5)),
    ("baseline-apart", NOT_SHOWN, both(spread("positive", beyond=0.5), spread("negative", spread=1.0))),
    ("baseline-apart", NOT_RUN, drop("04_geometry/displacement", layer=25)),
    ("not-score-nor-domain", HOLDS, near(["score", "domain"], p=0.05, purity=0.9)),
    ("not-score-nor-domain", HOLDS, both(near("quality", p=0.001), near(["score", "domain"], 15, p=0.001))),
    ("not-score-nor-domain", LIMITED, near("score", p=0.049)),
    ("not-score-nor-domain", LIMITED, near(["score", "domain"], p=0.001, purity=0.59)),
    # Above expectation counts, not the share itself.
    ("not-score-nor-domain", LIMITED, near("score", p=0.001, purity=0.9, expected=0.7)),
    ("not-score-nor-domain", NOT_SHOWN, near("domain", p=0.001, purity=0.6)),
    ("not-score-nor-domain", NOT_SHOWN, near("condition", p=0.05)),
    ("not-score-nor-domain", NOT_RUN, near("score", purity=np.nan, p=np.nan, reason="all labels are alike")),
    ("types-part-with-depth", HOLDS, parted(25, auc=0.9)),
    ("types-part-with-depth", HOLDS, parted(15, auc=0.1)),
    ("types-part-with-depth", LIMITED, parted(5, COUPLES[0], auc=0.94)),
    ("types-part-with-depth", LIMITED, parted(15, COUPLES[1], silhouette=0.0)),
    ("types-part-with-depth", LIMITED, parted(15, silhouette=0.3)),
    ("types-part-with-depth", NOT_SHOWN, parted(25, COUPLES[1], auc=0.89)),
    ("types-part-with-depth", NOT_RUN, parted(5, COUPLES[1], auc=np.nan, silhouette=np.nan, **NO_PAIRS)),
    ("low-dimensional", HOLDS, components(CUES, cumulative_variance_pct=83)),
    ("low-dimensional", HOLDS, components("Prestige+", n=19, cumulative_variance_pct=10)),
    ("low-dimensional", HOLDS, components(CUES, 3, cumulative_variance_pct=1)),
    ("low-dimensional", LIMITED, components("Prestige+", between=88)),
    ("low-dimensional", NOT_SHOWN, components("Prestige+", n=20, cumulative_variance_pct=82.9)),
    ("low-dimensional", NOT_RUN, components(CUES, n=19)),
    ("low-dimensional", NOT_RUN, drop("04_geometry/spectrum", judge=MODEL)),
    ("norms-alike", HOLDS, norm([0, 1, 2], gap_pct=-1.99, p_two_sample_bh=0.11, p_paired_bh=0.11)),
    # The correction counts, and the last block does not.
    ("norms-alike", HOLDS, norm([0, 1, 2], p_two_sample=0.001, p_paired=0.001)),
    ("norms-alike", LIMITED, norm(1, p_paired_bh=0.1)),
    ("norms-alike", LIMITED, norm(1, p_two_sample_bh=0.1)),
    ("norms-alike", NOT_SHOWN, norm(1, gap_pct=2.0)),
    ("norms-alike", NOT_SHOWN, norm(1, gap_pct=-2.5)),
    ("norms-alike", HOLDS, norm(0, gap_pct=0.0, p_two_sample_bh=np.nan, p_paired_bh=np.nan)),
    ("norms-alike", NOT_RUN, drop("04_geometry/norms", block=[1, 2, 3])),
    ("depth-sharpens", HOLDS, deep([10, 15], lda_separability=0.5)),
    ("depth-sharpens", HOLDS, deep(PANEL, classifier_auc=0.1, in_sample_fraction=0.1)),
    ("depth-sharpens", LIMITED, deep(15, lda_separability=0.45)),
    ("depth-sharpens", LIMITED, deep(PANEL, lda_separability=0.9, biased_core_fraction=1.0)),
    (
        "depth-sharpens",
        NOT_SHOWN,
        deep(31, lda_separability=0.3, biased_core_fraction=0.7, cos_lda_classifier=0.79),
    ),
    ("depth-sharpens", NOT_SHOWN, deep(PANEL, lda_separability=0.9, biased_core_fraction=1, cos_lda_classifier=0.5)),
    ("depth-sharpens", NOT_RUN, deep(5, lda_separability=np.nan, reason="no effective pair: there is no core")),
    ("families-agree", HOLDS, both(alike(WITHIN, cosine=0.91), alike("cross", cosine=0.081))),
    ("families-agree", LIMITED, one_pair("lda", "svm", 0.9)),
    ("families-agree", LIMITED, one_pair("mean", "svm", 0.91)),
    ("families-agree", NOT_SHOWN, both(one_pair("lda", "svm", 0.9), one_pair("mean", "pca", 0.9))),
    ("families-agree", NOT_SHOWN, one_pair("mean", "svm", 0.08)),
    ("families-agree", NOT_RUN, drop("05_directions/table17", judge=MODEL, vector_a="svm")),
    (
        "families-agree",
        NOT_RUN,
        both(drop("05_directions/table17", judge=MODEL, family=WITHIN), alike("cross", reason="no cue has two pairs")),
    ),
    ("transfers", HOLDS, moved(TRANSFERRED, cosine=0.201)),
    ("transfers", HOLDS, moved(TRANSFERRED, pairs="all", cosine=-0.5)),
    ("transfers", LIMITED, moved("Authority-", cosine=0.2)),
    ("transfers", LIMITED, moved(["Authority-", "Bandwagon-"], misaligned=0.0, random=0.5)),
    ("transfers", NOT_SHOWN, moved(TRANSFERRED, cosine=0.2)),
    ("transfers", NOT_SHOWN, moved(TRANSFERRED, cosine=-0.5)),
    ("transfers", NOT_RUN, without_direction(MODEL)),
    ("transfers", NOT_RUN, drop("04_geometry/transfer", model_b=FOREIGN)),
    ("transfers", HOLDS, without_direction(CONTROL)),
]

SECTIONS = [f"judge/{section}" for section in ("02_humans", "03_landscape", "04_geometry", "05_directions")]
"""The first half of the chapter; the second stands in test_claims_judge_causal."""
LISTED = claims.listed("judge").query("notebook in @SECTIONS")
NOTEBOOKS = LISTED.set_index("id")["notebook"].to_dict()


def verdicts() -> pd.DataFrame:
    """On the claims of the first half."""
    return claims.verdicts("judge", RULES, MODEL).query("notebook in @SECTIONS")


def beside(model: str = MODEL) -> pd.DataFrame:
    """Numbers of the first half."""
    first = ("judge/" + data.published("judge_text_values")["notebook"]).isin(SECTIONS)
    return claims.beside("judge", model)[first]


def test_every_claim_has_a_rule_and_every_rule_a_claim() -> None:
    listed = claims.listed("judge")
    assert list(listed.columns) == ["id", "section", "claim", "rule", "notebook", "label"]
    assert sorted(listed["id"]) == sorted(RULES)
    assert listed["id"].is_unique
    assert listed.map(lambda cell: isinstance(cell, str) and cell.strip() == cell != "").all(axis=None)


def sources(notebook: str) -> list[str]:
    """The code cells of a notebook."""
    cells = json.loads((data.root() / "notebooks" / f"{notebook}.ipynb").read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_every_claim_and_number_points_to_a_notebook_of_the_book_and_a_label_on_it() -> None:
    pointed = [(c.notebook, c.label) for c in claims.listed("judge").itertuples()]
    pointed += [(f"judge/{v.notebook}", v.label) for v in data.published("judge_text_values").itertuples()]
    items = data.items().query("paper == 'judge' and status != 'not run'")
    for notebook, label in {*pointed, *zip(items["notebook"], items["label"], strict=True)}:
        assert notebook in run.notebooks()
        # A figure's label is in its cell's metadata, a table's in the call that makes it.
        text = (data.root() / "notebooks" / f"{notebook}.ipynb").read_text()
        assert re.search(rf'(name=\\"|"name": "){label}\\?"', text), label


def test_the_cases_cover_every_verdict_that_a_rule_states() -> None:
    require_covered(CASES, LISTED.set_index("id")["rule"])


@pytest.mark.parametrize(("claim", "verdict", "edit"), CASES, ids=[f"{c}: {v}" for c, v, _ in CASES])
def test_verdicts(folder: Path, claim: str, verdict: str, edit: Edit) -> None:
    section = NOTEBOOKS[claim].removeprefix("judge/")
    require_verdict(RULES, claim, verdict, edit, tables=all_hold(), section=section, folder=folder)


def swapped(table: pd.DataFrame) -> pd.DataFrame:
    """The control in the place of the page's own model."""
    other = {MODEL: CONTROL, CONTROL: MODEL}
    of = {f"{a}, {how}": f"{b}, {how}" for a, b in other.items() for how in ("expected", "greedy", "bare reply")}
    columns = [column for column in ("judge", "model_a", "model_b") if column in table]
    return table.assign(**{column: table[column].replace(other | of) for column in columns})


def test_all_claims_hold_where_all_is_as_published(folder: Path) -> None:
    write(folder, all_hold())
    found = verdicts()
    assert list(found.columns) == [*LISTED.columns, "verdict", "evidence"]
    assert found["id"].tolist() == LISTED["id"].tolist()
    assert set(found["verdict"]) == {HOLDS}
    assert found["evidence"].str.contains(r"\d").all()


def test_the_control_is_no_finding(folder: Path) -> None:
    """The negative control: what holds of the control alone holds of nothing but itself."""
    tables = all_hold()
    about_control = {"03_landscape/recovery", "02_humans/tests"}
    write(folder, {n: t if n in about_control else swapped(t) for n, t in tables.items() if "failures" not in n})
    found = verdicts().set_index("id")["verdict"]
    same = ["recovers-planted", "humans-equivalent", "humans-bounds"]
    assert set(found[same]) == {HOLDS}
    assert found["failures-rare"] == NOT_RUN
    assert found["strict-is-stricter"] == NOT_SHOWN
    assert set(found.drop([*same, "failures-rare"])) == {NOT_SHOWN}


def test_nothing_holds_where_nothing_was_run(folder: Path) -> None:
    write(folder.parents[1] / "another" / "judge", all_hold())
    found = verdicts()
    assert set(found["verdict"]) == {NOT_RUN}
    for row in found.itertuples():
        assert row.evidence.startswith(row.notebook.removeprefix("judge/"))
        assert row.evidence.endswith((".csv is not there", "has not been run"))


@pytest.mark.parametrize("notebook", sorted(set(LISTED["notebook"])))
def test_claims_of_one_section_alone_are_not_run_without_its_tables(folder: Path, notebook: str) -> None:
    write(folder, {n: t for n, t in all_hold().items() if not n.startswith(notebook.removeprefix("judge/"))})
    found = verdicts()
    assert set(found.loc[found["notebook"] == notebook, "verdict"]) == {NOT_RUN}
    assert set(found.loc[found["notebook"] != notebook, "verdict"]) == {HOLDS}


def test_no_second_architecture_was_asked_for(folder: Path) -> None:
    write(folder, all_hold(), second="")
    found = verdicts().set_index("id")
    assert found.loc["transfers", ["verdict", "evidence"]].tolist() == [
        NOT_RUN,
        "no second architecture was asked for",
    ]
    assert set(found["verdict"].drop("transfers")) == {HOLDS}


def test_evidence_has_the_numbers_of_the_tables_and_the_controls_behind(folder: Path) -> None:
    tables = all_hold()
    both(total(NEGATIVE, delta=-0.77), cue("Refinement+", delta=0.66), recovered(nulls_within=7))(tables)
    both(without_direction(CONTROL), near("score", judge=CONTROL, purity=np.nan, p=np.nan, reason="all alike"))(tables)
    write(folder, tables)
    found = verdicts().set_index("id")["evidence"]
    assert found["asymmetric"] == "negative -0.77 (-0.9 to -0.7); asymmetry, five types +0.7 (0.6 to 0.8)"
    assert found["positive-near-zero"] == "d = +0.07 for five positive types, -0.56 for the negative ones"
    assert found["refinement-alone"] == "raise: Refinement; lower: Bandwagon, Diversity; Refinement +0.66"
    assert found["strongest-negative"].startswith("Bandwagon -1.6, Diversity -0.9, Authority -0.8, Refinement -0.6")
    assert found["domain-interaction"] == "20.0% of the variation, 7.5% by chance, p = 0.001"
    assert "fair +0.7 (0.6 to 0.8)" in found["across-prompts"]
    assert found["strict-is-stricter"] == "mean base score 5.8 strict, 8.5 fair (standard deviation 1.5)"
    assert found["failures-rare"].endswith("bare reply: 2.6 % fail (base 2.6, perturbed 2.6)")
    assert found["recovers-planted"] == "r = 0.990, validity 1.000, 7 of 8 other cues within 0.2"
    assert found["humans-equivalent"] == "8 of 8 equivalent, largest p 1.0e-10"
    assert found["baseline-apart"].startswith("positive 80% beyond, spread 1.30, negative 80% beyond")
    assert "; control: positive 10% beyond" in found["baseline-apart"]
    assert "condition +0.31 (p = 0.001), score +0.01 (p = 0.4)" in found["not-score-nor-domain"]
    assert found["not-score-nor-domain"].endswith("; control: undefined on this run: all alike")
    assert (
        "Refinement+ and Diversity-: silhouette 0.00, 0.10, 0.20, AUC 0.70, 0.82, 0.94"
        in found["types-part-with-depth"]
    )
    assert found["low-dimensional"].startswith("14 cues, 88 to 88 % in 5 components, 60 to 60 % between base answers")
    assert found["norms-alike"].startswith("largest gap 0.5 %, rejected at 0 of 3 blocks (two-sample), 0 of 3 blocks")
    assert "core fraction 0.40 to 0.90, rising throughout" in found["depth-sharpens"]
    assert "; control: core fraction 0.90 to 0.40, not rising" in found["depth-sharpens"]
    assert found["families-agree"].startswith("cross 0.60 to 0.60, within directional 0.95 to 0.95")
    assert "Bandwagon- 0.50 (chance 0.20, ceiling 0.60)" in found["transfers"]
    assert "; control: undefined on this run: 0 effective pairs" in found["transfers"]


# The tables are the notebooks' ----------------------------------------------------------------------------------------

SMALL = {"number": 22, "variants": 4, "replied": 2, "draws": 100, "deals": 20, "halvings": 1, "shown": 3}
WIDTH = {MODEL: 12, CONTROL: 12, "gemma-3-270m": 10}
BLOCKS = 8


class MadeUp:
    """Judges whose scores and states follow from the planted shifts and a vector a cue; there is no model."""

    def __init__(self) -> None:
        self.recipe, self.rng = planted.recipe(), np.random.default_rng(0)
        self.vectors = {cue: self.rng.normal(size=12) for cue in CUES}

    def load(self, name: str, **options: object) -> SimpleNamespace:
        name = CONTROL if name in adapters.PLANTED else name
        made = {"dtype": "float32", "device": "cpu"}
        blocks = [None] * BLOCKS
        return SimpleNamespace(name=name, width=WIDTH[name], blocks=blocks, provenance=made, fingerprint=lambda: "x")

    def judge_all(self, lms: list, items: pd.DataFrame, **how: object) -> list[judging.Judged]:
        return [self.judged(lm.name, items.reset_index(drop=True)) for lm in lms]

    def judged(self, name: str, items: pd.DataFrame) -> judging.Judged:
        noise = self.rng.normal(size=len(items))
        score = planted.targets(items, self.recipe)
        score = 7 + 0.05 * score + 0.02 * noise if name == MODEL else np.clip(np.round(score + 0.1 * noise), 1, 10)
        readout = "expected" if name == MODEL else "greedy"
        states = self.rng.normal(size=(len(items), BLOCKS, 12))
        depth = np.linspace(0.2, 1, BLOCKS)[:, None]
        for cue, vector in self.vectors.items():
            states[(items["condition"] == cue).to_numpy()] += 2 * depth * vector
        items = items.assign(score=score, expected=score, mass=0.9, valid=True, reply="7", greedy=score, reason="")
        return judging.Judged(name, items, states.astype("float32"), readout, *judging.thresholds(items, readout))

    def replies(self, lm: SimpleNamespace, items: pd.DataFrame, **how: object) -> pd.DataFrame:
        greedy = np.where(np.arange(len(items)) % 3, 7.0, np.nan)
        reason = np.where(np.isnan(greedy), "verbal", "")
        return items.reset_index(drop=True).assign(reply="7", greedy=greedy, reason=reason, truncated=False)

    def states(self, lm: SimpleNamespace, texts: list[str], blocks: list[int]) -> np.ndarray:
        return self.rng.normal(size=(len(texts), len(blocks), lm.width)).astype("float32")


def nothing(*given: object, **options: object) -> None:
    """In the place of a drawing, which takes longer than what it shows."""


DRAWINGS = {figures_judge: ["equivalence", "distributions", "shift_maps", "planted_against_recovered"]}
DRAWINGS |= {figures_judge_geometry: ["maps", "recoloured"], figures_pairs: ["lines"]}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the notebooks write for made-up judges, cell by cell."""
    place, made = tmp_path_factory.mktemp("run"), MadeUp()

    with pytest.MonkeyPatch.context() as patch, plt.rc_context():
        patch.setenv("BIASGEOM_CACHE", str(place / "cache"))
        patch.setenv("BIASGEOM_RESULTS", str(place / "results"))
        patch.setattr(models, "load", made.load)
        patch.setattr(judging, "judge_all", made.judge_all)
        patch.setattr(judging, "replies", made.replies)
        patch.setattr(prompts, "render", lambda lm, text, **options: text)
        patch.setattr(activations, "last_token_states", made.states)
        patch.setattr(results.Run, "figure", nothing)
        for module, drawing in DRAWINGS.items():
            for name in drawing:
                patch.setattr(module, name, nothing)
        for notebook in ("02_humans", "03_landscape", "04_geometry", "05_directions"):
            names: dict[str, object] = {}
            for cell in sources(f"judge/{notebook}"):
                exec(cell, names)
                names |= SMALL | {"model": MODEL} if "model: str" in cell else {}
        yield place / "results" / results.slug(MODEL) / "judge"


def test_the_made_up_tables_have_the_columns_and_names_that_the_notebooks_write(written: Path) -> None:
    """Made-up tables in columns of their own would prove nothing."""
    as_written = {FOREIGN: "gemma-3-270m, raw text"}
    for name, table in all_hold().items():
        found = pd.read_csv(written / f"{name}.csv")
        modes = [c for c in found if c.endswith("_pct") and c not in table]
        assert set(table.columns) == set(found.columns) - set(modes), name
        named = "judge aggregate over bias polarity condition prompt answers wording label by pairs couple family type"
        for column in {*named.split(), "vector_a", "vector_b", "model_a", "model_b", "layer", "top_k"} & set(table):
            # Names, and the numbers by which a rule looks up its rows.
            if column in ("layer", "top_k") or not pd.api.types.is_numeric_dtype(table[column]):
                assert set(table[column].replace(as_written)) == set(found[column].dropna()), (name, column)


def test_what_the_notebooks_write_gives_each_claim_a_verdict(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIASGEOM_RESULTS", str(written.parents[1]))
    found = verdicts()
    assert set(found["verdict"]) <= {HOLDS, LIMITED, NOT_SHOWN}, found.loc[found["verdict"] == NOT_RUN, "evidence"]
    assert not found["evidence"].str.contains("nan").any()
    assert found.set_index("id").loc["recovers-planted", "verdict"] == HOLDS
    assert beside()["measured"].notna().all()


# Numbers of the text --------------------------------------------------------------------------------------------------


def test_printed_numbers_stand_beside_the_models_own_cells(folder: Path) -> None:
    tables = all_hold()
    both(total(NEGATIVE, over="test", delta=-0.61, low_by_question=-0.81, high_by_question=-0.41))(tables)
    both(deep(10, biased_core_fraction=0.44), moved("Authority-", cosine=0.31))(tables)
    table = tables["04_geometry/transfer"]
    tables["04_geometry/transfer"] = table.replace(FOREIGN, "gemma-3-270m, raw text")
    write(folder, tables)
    found = beside()
    assert found["measured"].notna().all()
    shown = found.set_index("quantity")
    # The interval is that of resampled questions; d and W1 of the same row have none.
    assert shown.loc["mean shift, negative cues", ["published", "measured", "95 % interval"]].tolist() == [
        -0.853,
        -0.61,
        "-0.81 to -0.41",
    ]
    assert shown["95 % interval"]["Cohen's d, negative cues"] == "–"
    assert shown["measured"]["core fraction, layer 10"] == 0.44
    assert shown["measured"]["cosine of the directions of Authority-, Llama and Gemma"] == 0.31
    assert shown["measured"]["replies without a score, per cent"] == 2.6
    assert shown["by chance"]["cosine of LDA and SVM"] == 0.08
    assert shown["measured"]["mean score under Bandwagon-"] == pytest.approx(4.2)
    # Of another model nothing stands in this one's tables.
    write(folder.parents[1] / "nobody" / "judge", tables)
    assert beside("nobody")["measured"].isna().all()


def printed_cells() -> dict[tuple[str, str], float]:
    """Cells of the published tables that a run's table has too: of Llama, and of Llama beside Gemma."""
    of = {n: data.published(f"judge_table{n}") for n in (2, 4, 10, 12, 17, 23, 24)}
    sign = dict(zip(POLARITIES, "+-", strict=True))
    cells: dict[tuple[str, str], float] = {}
    for row in of[2].query("judge == 'Llama-3.1-8B'").to_dict("records"):
        cues = "negative cues" if row["polarity"] == "negative" else "positive cues (five types)"
        for words, column in {"mean shift": "delta_mean", "Cohen's d": "cohens_d", "W1": "w1"}.items():
            cells["table 2", f"{words}, {cues}"] = row[column]
    for row in of[4].to_dict("records"):
        cells["table 4", "mean score of base answers"] = row["baseline_mean"]
        cells["table 4", f"mean score under {row['bias']}{sign[row['polarity']]}"] = row["mean_score"]
    failed = of[10].set_index("judge")["extraction_failure_pct"]
    cells["table 10", "replies without a score, per cent"] = failed["Llama-3.1-8B"]
    for row in of[12].query("model_a == 'Llama-3.1-8B' and model_b == 'Gemma-3-12B'").to_dict("records"):
        cue = f"{row['bias']}{sign[row['polarity']]}"
        cells["table 12", f"cosine of the directions of {cue}, Llama and Gemma"] = row["cosine"]
    for row in of[23].query("top_k == 5").to_dict("records"):
        cue = f"{row['bias']}{sign[row['polarity']]}"
        cells["table 23", f"variance of {cue} in five components, per cent"] = row["cumulative_variance_pct"]
    words = {"biased_core_fraction": "core fraction", "lda_separability": "LDA separability"}
    words |= {"classifier_auc": "classifier AUC", "cos_lda_classifier": "cosine of LDA and classifier"}
    for row in of[24].to_dict("records"):
        cells |= {("table 24", f"{words[c]}, layer {row['layer']:.0f}"): row[c] for c in words}
    return cells


def test_text_values_are_the_published_tables_cells_all_of_them() -> None:
    listed = data.published("judge_text_values")
    listed = listed[("judge/" + listed["notebook"]).isin(SECTIONS)]
    listed = listed.set_index(["section", "quantity"])["published"].sort_index()
    assert listed.drop("table 17").to_dict() == printed_cells()
    table17 = data.published("judge_table17")
    names = table17[["vector_a", "vector_b"]].map(lambda n: n if n.isupper() else n.lower())
    quantities = "cosine of " + names["vector_a"] + " and " + names["vector_b"]
    found = listed["table 17"]
    assert len(found) == len(table17) / 2
    assert (found == pd.Series(table17["cosine"].to_numpy(), index=quantities)[found.index]).all()
