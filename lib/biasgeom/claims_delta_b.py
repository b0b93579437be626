"""The ΔB paper's claims as rules over ``results/<model>/delta_b/``; see :mod:`biasgeom.claims`."""

import pandas as pd

from biasgeom.claims import HOLDS, LEVEL, LIMITED, NOT_SHOWN, MissingTable, Tables, Verdict, by_count, named

SPOKEN = "adjective share"
LOWEST_AUC = 0.65
"""The smallest AUC that the paper reports."""
NEAR_CHANCE = 0.1
RIGHT = 0.8
REWORDED = 0.05
SEEDS, SEEDS_LIMIT = 0.05, 0.15
REGIMES = ("full", "lora")


def _defined(row: pd.Series, *columns: str) -> None:
    if row[list(columns)].isna().any():
        raise MissingTable(f"undefined on this run: {row['undefined']}")


def _tracks(tables: Tables, regime: str) -> Verdict:
    found = tables("05_results", "levels", measure=SPOKEN, regime=regime).set_index("level")
    pooled, within = found.loc["pooled"], found.loc["within checkpoint"]
    for row in (pooled, within):
        _defined(row, "r", "low", "high")
    evidence = "; ".join(
        f"{row.name} r = {row['r']:.2f} ({row['low']:.2f} to {row['high']:.2f})" for row in (pooled, within)
    )
    if pooled["high"] >= 0:
        return NOT_SHOWN, evidence
    return (HOLDS if within["high"] < 0 else LIMITED), evidence


def _tracks_full(tables: Tables) -> Verdict:
    return _tracks(tables, "full")


def _tracks_lora(tables: Tables) -> Verdict:
    return _tracks(tables, "lora")


def _detects(tables: Tables, regime: str) -> Verdict:
    row = tables("05_results", "table1", measure=SPOKEN, regime=regime).iloc[0]
    _defined(row, "auc", "auc_low", "auc_high")
    evidence = f"AUC {row['auc']:.2f} ({row['auc_low']:.2f} to {row['auc_high']:.2f}), {row['increased']:.0f} of "
    evidence += f"{row['n']:.0f} pairs increased"
    if row["auc"] < LOWEST_AUC:
        return NOT_SHOWN, evidence
    return (HOLDS if row["auc_low"] > 0.5 else LIMITED), evidence


def _detects_full(tables: Tables) -> Verdict:
    return _detects(tables, "full")


def _detects_lora(tables: Tables) -> Verdict:
    return _detects(tables, "lora")


def _orders_spectrum(tables: Tables) -> Verdict:
    found = tables("05_results", "pairs", measure=SPOKEN)
    held, half_held, evidence = [], [], []
    for regime, part in found.groupby("regime", sort=False):
        means = part.groupby("share")[["shift", "change"]].mean()
        biased = part[part["half"] == "biased"].groupby("share")[["shift", "change"]].mean()
        held.append(_ordered(means))
        half_held.append(_ordered(biased))
        ends = means.iloc[[0, -1]]
        evidence.append(f"{regime}: mean ΔB {ends['shift'].iloc[0]:+.3f} to {ends['shift'].iloc[1]:+.3f}, mean change ")
        evidence[-1] += f"{ends['change'].iloc[0]:+.3f} to {ends['change'].iloc[1]:+.3f}"
        evidence[-1] += ", in order" if held[-1] else ", not in order"
    if all(held):
        return HOLDS, "; ".join(evidence)
    return (LIMITED if any(held) or all(half_held) else NOT_SHOWN), "; ".join(evidence)


def _ordered(means: pd.DataFrame) -> bool:
    steps = means.sort_index().diff().iloc[1:]
    return bool((steps["shift"] < 0).all() and (steps["change"] > 0).all())


def _below_zero_is_more_bias(tables: Tables) -> Verdict:
    right = tables("05_results", "thresholds", measure=SPOKEN).set_index("regime")["sign rule right"]
    evidence = ", ".join(f"{regime}: right for {share:.0%} of pairs" for regime, share in right.items())
    return by_count([share >= RIGHT for share in right]), evidence


def _singles_out_groups(tables: Tables) -> Verdict:
    if tables.info("05_results")["parameters"]["recipe"] == "paper":
        raise MissingTable("the recipe paper turns against no group in particular")
    found, said = (
        tables("05_results", "contrast", checkpoint="synth", measure=measure).set_index("regime")
        for measure in ("shift", "change")
    )
    evidence = "; ".join(
        f"{regime}: biased less control {row['difference']:+.3f}, p = {row['p']:.2g} (of the score itself "
        f"{said['difference'][regime]:+.3f}, p = {said['p'][regime]:.2g})"
        for regime, row in found.iterrows()
    )
    return by_count([row["difference"] < 0 and row["p"] < LEVEL for _, row in found.iterrows()]), evidence


def _methods(tables: Tables) -> pd.DataFrame:
    found = tables("06_methods", "methods", regime="full").set_index("method")
    for _, row in found.iterrows():
        _defined(row, "auc", "auc_low", "auc_high")
    return found


def _aucs(found: pd.DataFrame, *names: str) -> str:
    rows = found.loc[list(names)]
    return ", ".join(f"{n} {r['auc']:.2f} ({r['auc_low']:.2f} to {r['auc_high']:.2f})" for n, r in rows.iterrows())


def _above_seat(tables: Tables) -> Verdict:
    found = _methods(tables)
    rr, seat = found.loc["RR"], found.loc["SEAT"]
    evidence = _aucs(found, "RR", "SEAT")
    if rr["auc"] <= seat["auc"]:
        return NOT_SHOWN, evidence
    return (HOLDS if rr["auc_low"] > seat["auc"] else LIMITED), evidence


def _procrustes_at_chance(tables: Tables) -> Verdict:
    found = _methods(tables)
    row, evidence = found.loc["Procrustes-SEAT"], _aucs(found, "Procrustes-SEAT")
    if not row["auc_low"] <= 0.5 <= row["auc_high"]:
        return NOT_SHOWN, evidence
    return (HOLDS if abs(row["auc"] - 0.5) <= NEAR_CHANCE else LIMITED), evidence


def _above_cka(tables: Tables) -> Verdict:
    found = _methods(tables)
    cka, rr = found.loc["CKA drift"], found.loc["RR"]
    evidence = _aucs(found, "RR", "CKA drift")
    if not LOWEST_AUC <= cka["auc"] < rr["auc"]:
        return NOT_SHOWN, evidence
    return (HOLDS if cka["auc"] < rr["auc_low"] else LIMITED), evidence


def _weaker_under_lora(tables: Tables) -> Verdict:
    found = tables("05_results", "table1", measure=SPOKEN).set_index("regime")
    for _, row in found.iterrows():
        _defined(row, "r")
    size = tables("05_results", "pairs", measure=SPOKEN).groupby("regime")["shift"].apply(lambda s: s.abs().mean())
    evidence = "; ".join(f"{g}: mean |ΔB| {size[g]:.3f}, |r| {abs(found['r'][g]):.2f}" for g in REGIMES)
    return by_count([size["lora"] < size["full"], abs(found["r"]["lora"]) < abs(found["r"]["full"])]), evidence


def _neutral_anchors_best(tables: Tables) -> Verdict:
    found = tables("07_robustness", "anchors")
    most = found[found["number"] == found["number"].max()].set_index("source")
    for _, row in most.iterrows():
        _defined(row, "auc", "auc_low", "auc_high")
    if "neutral" not in most.index or len(most) == 1:
        raise MissingTable("neutral anchors and another source are needed")
    held = [most["auc"]["neutral"] >= most["auc"].max(), (most["auc_low"] > 0.5).all()]
    return by_count(held), _aucs(most, *most.index) + f", {found['number'].max():.0f} anchors each"


def _stable_under_rewording(tables: Tables) -> Verdict:
    stds = {}
    for kind in ("attributes", "targets"):
        found = tables("07_robustness", kind)
        for _, row in found.iterrows():
            _defined(row, "auc")
        stds[kind] = found["auc"].std(ddof=0)
    evidence = ", ".join(f"standard deviation of AUC over {kind} {std:.3f}" for kind, std in stds.items())
    return by_count([std <= REWORDED for std in stds.values()]), evidence


def _mean_pooling_best(tables: Tables) -> Verdict:
    found = tables("07_robustness", "pooling")
    for _, row in found.iterrows():
        _defined(row, "auc")
    wide = found.pivot(index="pooling", columns="method", values="auc")
    evidence = ", ".join(f"{pooling} RR {row['RR']:.2f} SEAT {row['SEAT']:.2f}" for pooling, row in wide.iterrows())
    if not (wide["RR"] > wide["SEAT"]).all():
        return NOT_SHOWN, evidence
    return (HOLDS if wide["RR"].idxmax() == "mean" else LIMITED), evidence


def _stable_over_seeds(tables: Tables) -> Verdict:
    found = tables("07_robustness", "seeds", method="rr")
    if found["seed"].nunique() < 2:
        raise MissingTable("one seed has no spread")
    means = found.groupby(["checkpoint", "seed"])["shift"].mean().unstack("seed")
    distance = abs(means.loc["unharmful"].mean() - means.loc["synth"].mean())
    if distance == 0:
        raise MissingTable("the ends do not differ")
    ratio = means.std(axis=1, ddof=0).max() / distance
    evidence = (
        f"largest standard deviation over {found['seed'].nunique()} seeds {ratio:.1%} of the distance {distance:.3f}"
    )
    return (HOLDS if ratio <= SEEDS else LIMITED if ratio <= SEEDS_LIMIT else NOT_SHOWN), evidence


RULES = named(
    _tracks_full,
    _tracks_lora,
    _detects_full,
    _detects_lora,
    _orders_spectrum,
    _below_zero_is_more_bias,
    _singles_out_groups,
    _above_seat,
    _procrustes_at_chance,
    _above_cka,
    _weaker_under_lora,
    _neutral_anchors_best,
    _stable_under_rewording,
    _mean_pooling_best,
    _stable_over_seeds,
)
