"""The judge paper's claims on behaviour and human evaluation as rules over ``results/<model>/judge/``.

See :mod:`biasgeom.claims`. Verdicts are about the page's own model; only ``recovers-planted`` is about the positive
control. The rules on geometry and directions stand in :mod:`biasgeom.claims_judge_geometry`, those on steering,
defence and prediction in ``claims_judge_causal``, ``claims_judge_defence`` and ``claims_judge_prediction``.
"""

import pandas as pd

from biasgeom import claims_judge_causal, claims_judge_defence, claims_judge_geometry, claims_judge_prediction
from biasgeom.claims import HOLDS, LEVEL, LIMITED, NOT_SHOWN, MissingTable, Tables, Verdict, by_count, named

FLAT = 0.2
"""The largest Cohen's d that counts as near zero: the smallest conventional one."""
STRICTER = 0.25
"""Of the base scores' standard deviation."""
RARE = 3.0
"""Per cent of judgements without a score."""
RECOVERED, NULL = 0.95, 0.2
QUESTIONS = ("low_by_question", "high_by_question")
"""The interval by resampled questions: the fourteen shifts of one question are not independent."""


def _of(tables: Tables, name: str, **where: object) -> pd.DataFrame:
    """Rows of the page's own model."""
    return tables("03_landscape", name, judge=tables.info("03_landscape")["model"], **where)


def _row(table: pd.DataFrame, *columns: str) -> pd.Series:
    row = table.iloc[0]
    if row[list(columns)].isna().any():
        raise MissingTable(f"undefined on this run: {row['reason']}")
    return row


def _aggregate(tables: Tables, aggregate: str, *columns: str) -> pd.Series:
    return _row(_of(tables, "aggregates", over="all", aggregate=aggregate), "delta", *columns)


def _asymmetric(tables: Tables) -> Verdict:
    negative, more = (_aggregate(tables, a, *QUESTIONS) for a in ("negative", "asymmetry, five types"))
    low, high = QUESTIONS
    evidence = "; ".join(
        f"{row['aggregate']} {row['delta']:+.3g} ({row[low]:.3g} to {row[high]:.3g})" for row in (negative, more)
    )
    if negative[high] >= 0:
        return NOT_SHOWN, evidence
    return (HOLDS if more[low] > 0 else LIMITED), evidence


def _positive_near_zero(tables: Tables) -> Verdict:
    five, negative = (_aggregate(tables, a, "cohens_d")["cohens_d"] for a in ("positive, five types", "negative"))
    evidence = f"d = {five:+.2f} for five positive types, {negative:+.2f} for the negative ones"
    if abs(five) > FLAT or negative >= FLAT:
        return NOT_SHOWN, evidence
    return (HOLDS if negative <= -FLAT else LIMITED), evidence


def _cues(tables: Tables, polarity: str) -> pd.DataFrame:
    found = _of(tables, "types", polarity=polarity).set_index("bias")
    for _, row in found.iterrows():
        _row(row.to_frame().T, "delta", "p_adjusted")
    return found


def _refinement_alone(tables: Tables) -> Verdict:
    found = _cues(tables, "positive")
    sure = found[found["p_adjusted"] < LEVEL]
    raised, lowered = set(sure.index[sure["delta"] > 0]), set(sure.index[sure["delta"] < 0])
    evidence = f"raise: {', '.join(sorted(raised)) or 'none'}; lower: {', '.join(sorted(lowered)) or 'none'}"
    evidence += f"; Refinement {found['delta']['Refinement']:+.3g}"
    if raised == {"Refinement"} and {"Bandwagon", "Diversity"} <= lowered:
        return HOLDS, evidence
    most = "Refinement" in raised and found["delta"].idxmax() == "Refinement"
    return (LIMITED if most else NOT_SHOWN), evidence


def _strongest_negative(tables: Tables) -> Verdict:
    found = _cues(tables, "negative").sort_values("mean", kind="stable")
    strongest, first = {"Bandwagon", "Diversity", "Authority"}, found.head(3)
    lowering = set(first.index[(first["p_adjusted"] < LEVEL) & (first["delta"] < 0)])
    evidence = ", ".join(f"{bias} {delta:+.3g}" for bias, delta in found["delta"].items())
    whole = lowering == strongest and found.index[0] == "Bandwagon" and found["delta"].abs().idxmin() == "Sentiment"
    return (HOLDS if whole else LIMITED if len(lowering & strongest) >= 2 else NOT_SHOWN), evidence


def _domain_interaction(tables: Tables) -> Verdict:
    row = _row(_of(tables, "interaction"), "share", "p")
    evidence = f"{row['share']:.1%} of the variation, {row['chance']:.1%} by chance, p = {row['p']:.2g}"
    return (HOLDS if row["p"] < LEVEL else NOT_SHOWN), evidence


def _across_prompts(tables: Tables) -> Verdict:
    low, high = QUESTIONS
    held, evidence = [], []
    for prompt, part in _of(tables, "prompts", aggregate="asymmetry, five types").groupby("prompt", sort=False):
        row = _row(part, "delta", low)
        held.append(row[low] > 0)
        evidence.append(f"{prompt} {row['delta']:+.3g} ({row[low]:.3g} to {row[high]:.3g})")
    return by_count(held), "; ".join(evidence)


def _strict_is_stricter(tables: Tables) -> Verdict:
    found = _of(tables, "prompts", aggregate="negative").set_index("prompt")
    strict, fair = (_row(found.loc[[name]], "base_mean")["base_mean"] for name in ("strict", "fair"))
    spread = _of(tables, "judges")["base sd"].iloc[0]
    if not spread > 0:
        raise MissingTable("undefined on this run: the base scores don't vary")
    evidence = f"mean base score {strict:.3g} strict, {fair:.3g} fair (standard deviation {spread:.2g})"
    if strict >= fair:
        return NOT_SHOWN, evidence
    return (HOLDS if fair - strict >= STRICTER * spread else LIMITED), evidence


def _failures_rare(tables: Tables) -> Verdict:
    model = tables.info("03_landscape")["model"]
    found = tables("03_landscape", "failures")
    held, evidence = {}, []
    for judge, part in found[found["judge"].str.startswith(f"{model}, ")].groupby("judge", sort=False):
        rates = part.set_index("answers")["failed_pct"]
        how = judge.removeprefix(f"{model}, ")
        held[how] = rates["all"] < RARE and abs(rates["base"] - rates["perturbed"]) <= 1
        evidence.append(
            f"{how}: {rates['all']:.1f} % fail (base {rates['base']:.1f}, perturbed {rates['perturbed']:.1f})"
        )
    return (HOLDS if held["bare reply"] else LIMITED if any(held.values()) else NOT_SHOWN), "; ".join(evidence)


def _recovers_planted(tables: Tables) -> Verdict:
    row = _row(tables("03_landscape", "recovery", wording="published", over="test split"), "r", "validity")
    evidence = f"r = {row['r']:.3f}, validity {row['validity']:.3f}, "
    evidence += f"{row['nulls_within']:.0f} of {row['nulls']:.0f} other cues within {NULL}"
    if row["r"] <= RECOVERED:
        return NOT_SHOWN, evidence
    return (HOLDS if row["validity"] == 1 and row["nulls_within"] == row["nulls"] else LIMITED), evidence


def _humans_equivalent(tables: Tables) -> Verdict:
    p = tables("02_humans", "tests")["p_tost"]
    evidence = f"{(p < LEVEL).sum()} of {len(p)} equivalent, largest p {p.max():.1e}"
    return (HOLDS if (p < LEVEL).all() else LIMITED if (p < LEVEL).mean() > 0.5 else NOT_SHOWN), evidence


def _humans_bounds(tables: Tables) -> Verdict:
    found = tables("02_humans", "tests")
    counts = {column: (found[column] == "yes").sum() for column in ("follows", "follows_normal")}
    evidence = f"{counts['follows']} of {len(found)} follow by t, {counts['follows_normal']} by a normal distribution"
    if counts["follows"] == len(found):
        return HOLDS, evidence
    return (LIMITED if counts["follows_normal"] == len(found) else NOT_SHOWN), evidence


BEHAVIOUR = named(
    _asymmetric,
    _positive_near_zero,
    _refinement_alone,
    _strongest_negative,
    _domain_interaction,
    _across_prompts,
    _strict_is_stricter,
    _failures_rare,
    _recovers_planted,
    _humans_equivalent,
    _humans_bounds,
)

RULES = {
    **BEHAVIOUR,
    **claims_judge_geometry.RULES,
    **claims_judge_causal.RULES,
    **claims_judge_defence.RULES,
    **claims_judge_prediction.RULES,
}
