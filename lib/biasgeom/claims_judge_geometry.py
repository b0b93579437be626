"""The judge paper's claims on geometry and directions as rules over ``results/<model>/judge/``.

See :mod:`biasgeom.claims`. A verdict rests on the rows of the page's own model alone; the numbers of the positive
control stand behind them in the evidence.
"""

from collections.abc import Callable

import pandas as pd

from biasgeom.claims import HOLDS, LEVEL, LIMITED, NOT_SHOWN, MissingTable, Tables, Verdict, by_count, named

DEPTH = 25
"""The published layer at which the paper looks at most."""
LAYERS = (5, 15, 25)
COUPLES = ("Refinement+ and Diversity-", "Bandwagon- and Diversity-")
DISTINCT = 0.9
COMPONENTS, HELD, PAIRS = 5, 83, 20
"""So many components hold so many per cent of the variance; a cue with fewer effective pairs is not looked at."""
GAP, ALIKE = 2, 0.1
"""Per cent of the norm, and the p above which the paper calls norms alike."""
AGREEING = 0.91
ESTIMATORS = 6
TYPES = 3
"""Whose directions are compared between architectures."""


def _judged(tables: Tables, notebook: str, found: pd.DataFrame, rule: Callable[[pd.DataFrame], Verdict]) -> Verdict:
    """The rule on the rows of the page's own model, and what it measures on the control's."""
    model = tables.info(notebook)["model"]
    verdict, evidence = rule(_complete(found[found["judge"] == model]))
    for _, part in found[found["judge"] != model].groupby("judge", sort=False):
        try:
            evidence += f"; control: {rule(_complete(part))[1]}"
        except MissingTable as missing:
            evidence += f"; control: {missing}"
    return verdict, evidence


def _complete(rows: pd.DataFrame) -> pd.DataFrame:
    if "reason" in rows and rows["reason"].notna().any():
        raise MissingTable(f"undefined on this run: {rows['reason'].dropna().iloc[0]}")
    return rows


def _baseline_apart(tables: Tables) -> Verdict:
    found = tables("04_geometry", "displacement", layer=DEPTH, by="polarity")
    return _judged(tables, "04_geometry", found, _apart)


def _apart(found: pd.DataFrame) -> Verdict:
    of = found.set_index("label").loc[["positive", "negative"]]
    far, wide = of["beyond"] > 0.5, of["spread"] > 1
    rows = (f"{label} {row['beyond']:.0%} beyond, spread {row['spread']:.2f}" for label, row in of.iterrows())
    both = far & wide
    return (HOLDS if both.all() else LIMITED if far.all() or both.any() else NOT_SHOWN), ", ".join(rows)


def _not_score_nor_domain(tables: Tables) -> Verdict:
    found = tables("04_geometry", "purity", layer=DEPTH)
    found = found[found["label"].isin(["condition", "score", "domain"])]
    return _judged(tables, "04_geometry", found, _shared)


def _shared(found: pd.DataFrame) -> Verdict:
    of = found.set_index("label")
    above, shown = of["purity"] - of["expected"], of["p"] < LEVEL
    evidence = ", ".join(f"{label} {above[label]:+.2f} (p = {of['p'][label]:.2g})" for label in of.index)
    evidence = f"above expectation: {evidence}"
    others = [label for label in ("score", "domain") if shown[label]]
    if not shown["condition"] or any(above[label] >= above["condition"] for label in others):
        return NOT_SHOWN, evidence
    return (LIMITED if others else HOLDS), evidence


def _types_part_with_depth(tables: Tables) -> Verdict:
    found = tables("04_geometry", "types", pairs="effective")
    return _judged(tables, "04_geometry", found, _parting)


def _parting(found: pd.DataFrame) -> Verdict:
    auc, silhouette = (found.pivot(index="couple", columns="layer", values=v) for v in ("auc", "silhouette"))
    auc, silhouette = (wide.loc[list(COUPLES), list(LAYERS)] for wide in (auc, silhouette))
    evidence = "; ".join(
        f"{couple}: silhouette {', '.join(f'{s:.2f}' for s in silhouette.loc[couple])}, "
        f"AUC {', '.join(f'{a:.2f}' for a in auc.loc[couple])}"
        for couple in COUPLES
    )
    if (auc[LAYERS[-1]] < DISTINCT).any():
        return NOT_SHOWN, evidence
    rises = (silhouette.diff(axis=1).iloc[:, 1:] > 0).all(axis=None)
    return (HOLDS if rises and (auc[LAYERS[0]] < auc[LAYERS[-1]]).all() else LIMITED), evidence


def _low_dimensional(tables: Tables) -> Verdict:
    found = tables("04_geometry", "spectrum", top_k=COMPONENTS)
    return _judged(tables, "04_geometry", found, _few_components)


def _few_components(found: pd.DataFrame) -> Verdict:
    found = found[found["n"] >= PAIRS]
    if found.empty:
        raise MissingTable(f"undefined on this run: no cue has {PAIRS} effective pairs")
    held, between = found["cumulative_variance_pct"], found["between"]
    evidence = f"{len(found)} cues, {held.min():.0f} to {held.max():.0f} % in {COMPONENTS} components, "
    evidence += f"{between.min():.0f} to {between.max():.0f} % between base answers"
    if (held < HELD).any():
        return NOT_SHOWN, evidence
    return (HOLDS if (held > between).all() else LIMITED), evidence


def _norms_alike(tables: Tables) -> Verdict:
    return _judged(tables, "04_geometry", tables("04_geometry", "norms"), _alike)


def _alike(found: pd.DataFrame) -> Verdict:
    inner = found[found["block"] < found["block"].max()]
    if inner.empty:
        raise MissingTable("undefined on this run: one block has none but the last")
    # A block at which nothing differs has no p.
    tests = {"two-sample": inner["p_two_sample_bh"].fillna(1.0), "paired": inner["p_paired_bh"].fillna(1.0)}
    gap = inner["gap_pct"].abs()
    evidence = f"largest gap {gap.max():.1f} %, rejected at "
    evidence += ", ".join(f"{(p <= ALIKE).sum()} of {len(p)} blocks ({name})" for name, p in tests.items())
    if gap.max() >= GAP:
        return NOT_SHOWN, evidence
    return (HOLDS if all((p > ALIKE).all() for p in tests.values()) else LIMITED), evidence


def _depth_sharpens(tables: Tables) -> Verdict:
    return _judged(tables, "05_directions", tables("05_directions", "layers"), _sharpening)


def _sharpening(found: pd.DataFrame) -> Verdict:
    of = found.sort_values("layer")
    names = {"core fraction": "biased_core_fraction", "LDA separability": "lda_separability"}
    names |= {"cosine of LDA and classifier": "cos_lda_classifier"}
    held, evidence = [], []
    for name, column in names.items():
        if of[column].isna().any():
            raise MissingTable(f"undefined on this run: no {name} at some layer")
        first, last = of[column].iloc[0], of[column].iloc[-1]
        held.append((of[column].diff().iloc[1:] >= 0).all() and last > first)
        evidence.append(f"{name} {first:.2f} to {last:.2f}, {'rising' if held[-1] else 'not rising'} throughout")
    return by_count(held), "; ".join(evidence)


def _families_agree(tables: Tables) -> Verdict:
    return _judged(tables, "05_directions", tables("05_directions", "table17"), _families)


def _families(found: pd.DataFrame) -> Verdict:
    asked = ESTIMATORS * (ESTIMATORS - 1)
    if len(found) < asked:
        raise MissingTable(f"undefined on this run: {len(found)} of {asked} pairs of estimators")
    of, chance = found.groupby("family")["cosine"].agg(["min", "max"]), found["chance"].iloc[0]
    evidence = ", ".join(f"{f.replace('_', ' ')} {row['min']:.2f} to {row['max']:.2f}" for f, row in of.iterrows())
    evidence += f", chance {chance:.2f}"
    within = of["min"].drop("cross") >= AGREEING
    if of["min"]["cross"] <= chance or not within.any():
        return NOT_SHOWN, evidence
    return (HOLDS if within.all() and of["max"]["cross"] < AGREEING else LIMITED), evidence


def _transfers(tables: Tables) -> Verdict:
    second = tables.info("04_geometry")["parameters"]["second"]
    if not second:
        raise MissingTable("no second architecture was asked for")
    found = tables("04_geometry", "transfer", pairs="effective").rename(columns={"model_a": "judge"})
    foreign = f"{second}, raw text"
    # A direction that does not exist is a row of one model and a reason.
    found = found[(found["model_b"] == foreign) | found["model_b"].isna() & (found["judge"] != foreign)]
    if foreign not in set(found["model_b"]) and not found["reason"].notna().any():
        raise MissingTable(f"{second} was not run")
    return _judged(tables, "04_geometry", found, _transferring)


def _transferring(found: pd.DataFrame) -> Verdict:
    if len(found) < TYPES:
        raise MissingTable(f"undefined on this run: {len(found)} of {TYPES} types have both directions")
    above = (found["cosine"] > found["random"]) & (found["cosine"] > found["misaligned"])
    evidence = ", ".join(
        f"{row.type} {row.cosine:.2f} (chance {max(row.random, row.misaligned):.2f}, ceiling {row.ceiling:.2f})"
        for row in found.itertuples()
    )
    return by_count(list(above)), evidence


RULES = named(
    _baseline_apart,
    _not_score_nor_domain,
    _types_part_with_depth,
    _low_dimensional,
    _norms_alike,
    _depth_sharpens,
    _families_agree,
    _transfers,
)
