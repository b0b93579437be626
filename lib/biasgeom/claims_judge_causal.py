"""The judge paper's claims on steering as rules over ``results/<model>/judge/``.

See :mod:`biasgeom.claims`. A verdict rests on the page's own model, over the cues of which there is a number; those of
the positive control stand behind in the evidence. ``score-axis-as-far`` and ``cues-agree`` are about the control alone.
"""

from collections.abc import Callable

import pandas as pd

from biasgeom.claims import HOLDS, LIMITED, NOT_SHOWN, MissingTable, Tables, Verdict, by_count, named
from biasgeom.markdown import span

SEARCH, CAUSAL = "06_search", "07_causal"
AXIS = "score axis"
KEY = ["judge", "condition"]

VALID = 0.93
"""Least share of valid scores (equation 5)."""
BEYOND_RANDOM, BEYOND_SWAP = 5.9, 2.0
"""How many times as far as random and as other cues' directions: the least that the paper prints (J.1, J.2)."""
BEHIND = 45.0
"""Per cent by which steering is ahead of the text at matched rank correlation: the least printed (J.3)."""
MONOTONE = 90.0
"""Per cent of configurations; the paper has 93 to 99 (table 18)."""
RISING, LAYERS = 0.5, 3
"""Mean rank correlation of strength and layer, over the cues with a strength at so many layers."""
REACHED, NEARLY, STRENGTHS = 0.98, 0.95, 200
"""Shares of the grid's best W1 (F.3: within 2 %), and the cap on strengths (G)."""
AGREEING = 0.9

Rule = Callable[[pd.DataFrame], Verdict]


def known(rows: pd.DataFrame, *needed: str, **where: object) -> pd.DataFrame:
    """The rows that match and have all these numbers; :class:`MissingTable` with the reason if there is none."""
    if lacking := {*needed, *where} - set(rows):
        raise MissingTable(f"undefined on this run: the table has no {', '.join(sorted(lacking))}")
    chosen = rows
    for column, value in where.items():
        # Of a column with gaps, pandas reads True as an object.
        chosen = chosen[chosen[column].astype(str) == str(value)]
    if len(complete := chosen.dropna(subset=list(needed))):
        return complete
    raise undefined("there is no such row", chosen, rows)


def undefined(otherwise: str, *tables: pd.DataFrame) -> MissingTable:
    """Why there is no number: the first reason that these rows state, else what is said here."""
    stated = [reason for table in tables if "reason" in table for reason in table["reason"].dropna()]
    return MissingTable(f"undefined on this run: {next(iter(stated), otherwise)}")


def judged(tables: Tables, notebook: str, found: pd.DataFrame, rule: Rule) -> Verdict:
    """The rule on the rows of the page's own model, and what it measures on the control's behind it."""
    own = found["judge"] == tables.info(notebook)["model"]
    verdict, evidence = rule(found[own])
    try:
        return verdict, f"{evidence}; control: {rule(found[~own])[1]}"
    except MissingTable as missing:
        return verdict, f"{evidence}; control: {missing}"


def of_control(tables: Tables, notebook: str, found: pd.DataFrame, rule: Rule) -> Verdict:
    """The rule on the rows of the positive control alone."""
    return rule(found[found["judge"] != tables.info(notebook)["model"]])


def cues(found: pd.DataFrame) -> str:
    """The cues of some rows, in their order."""
    return ", ".join(dict.fromkeys(found["condition"]))


def _attacks(tables: Tables) -> pd.DataFrame:
    """The rows of the best attack of each cue, with the text's W1 and Spearman coefficient on the same answers."""
    found = tables(CAUSAL, "attack")
    text = found[found["method"] == "text"].drop_duplicates(KEY)[[*KEY, "w1", "spearman"]]
    return found[found["method"] != "text"].merge(text, on=KEY, how="left", suffixes=("", "_text"))


def _attack_shifts(tables: Tables) -> Verdict:
    return judged(tables, CAUSAL, _attacks(tables), _shifting)


def _shifting(rows: pd.DataFrame) -> Verdict:
    # Without a valid score there is no W1: that is no shift, and not a missing number.
    found = known(rows, "validity", best=True)
    moved = found["shift"] * found["condition"].str[-1].map({"+": 1, "-": -1}) > 0
    valid, ordered = found["validity"] >= VALID, found["spearman"] >= found["spearman_text"]
    evidence = f"{cues(found)}: W1 {span(found['w1'])} points, to the cue's side {moved.sum()} of {len(found)}, "
    evidence += f"valid {valid.sum()}, in order {ordered.sum()} (ρ {span(found['spearman'])}, text "
    evidence += f"{span(found['spearman_text'])})"
    if not (moved & valid).all():
        return NOT_SHOWN, evidence
    return (HOLDS if ordered.all() else LIMITED), evidence


def _attack_beats_text(tables: Tables) -> Verdict:
    return judged(tables, CAUSAL, _attacks(tables), _ahead)


def _ahead(rows: pd.DataFrame) -> Verdict:
    found = known(rows, "w1_text", best=True)
    farther, better = found["w1"] > found["w1_text"], found["spearman"] > found["spearman_text"]
    evidence = f"{cues(found)}: W1 {span(found['w1'] / found['w1_text'])} times the text's, farther "
    evidence += f"{farther.sum()} of {len(found)}, better in order {better.sum()}"
    if not (farther | better).all():
        return NOT_SHOWN, evidence
    return (HOLDS if (farther & better).all() else LIMITED), evidence


def _text_stays_behind(tables: Tables) -> Verdict:
    return judged(tables, CAUSAL, tables(CAUSAL, "matched"), _behind)


def _behind(rows: pd.DataFrame) -> Verdict:
    found = known(rows, "gap_pct")
    evidence = f"{cues(found)}: steering {span(found['gap_pct'], '+.0f')} % ahead at matched ρ"
    if (found["gap_pct"] <= 0).any():
        return NOT_SHOWN, evidence
    return (HOLDS if (found["gap_pct"] >= BEHIND).all() else LIMITED), evidence


def _beats_random(tables: Tables) -> Verdict:
    return judged(tables, CAUSAL, tables(CAUSAL, "random"), _beyond_random)


def _beyond_random(rows: pd.DataFrame) -> Verdict:
    found = known(rows, "w1", "random_max", "ratio", strength="attack")
    above = found["w1"] > found["random_max"]
    evidence = f"{cues(found)}: {span(found['ratio'])} times the mean of random directions, above all of them "
    evidence += f"{above.sum()} of {len(found)}"
    moderate = rows[rows["strength"] == "two units"]
    evidence += f"; at two mean ‖Δh‖ or less {span(moderate['ratio'])} times"
    if not above.all():
        return NOT_SHOWN, evidence
    return (HOLDS if (found["ratio"] >= BEYOND_RANDOM).all() else LIMITED), evidence


def _swaps(tables: Tables) -> pd.DataFrame:
    random = tables(CAUSAL, "random", strength="attack")[[*KEY, "random_mean"]]
    return tables(CAUSAL, "swap").merge(random, on=KEY, how="left", suffixes=("_of_table", ""))


def _swap_between(tables: Tables) -> Verdict:
    return judged(tables, CAUSAL, _swaps(tables), _between)


def _between(rows: pd.DataFrame) -> Verdict:
    found = known(rows, "w1", "own_w1", "random_mean")
    others = found[found["source"] != AXIS]
    if others.empty:
        raise MissingTable("undefined on this run: no other cue has a direction")
    of = others.groupby("condition", sort=False)[["own_w1", "w1", "random_mean"]].mean()
    within, over = of["own_w1"] / of["w1"], of["w1"] / of["random_mean"]
    evidence = f"{', '.join(of.index)}: own {span(within)} times the mean of other cues' directions, these "
    evidence += f"{span(over)} times random"
    if not ((within > 1) & (over > 1)).all():
        return NOT_SHOWN, evidence
    return (HOLDS if (within >= BEYOND_SWAP).all() else LIMITED), evidence


def _not_the_score_axis(tables: Tables) -> Verdict:
    return judged(tables, CAUSAL, tables(CAUSAL, "swap"), lambda rows: _beside_axis(rows, own=True))


def _score_axis_as_far(tables: Tables) -> Verdict:
    return of_control(tables, CAUSAL, tables(CAUSAL, "swap"), lambda rows: _beside_axis(rows, own=False))


def _beside_axis(rows: pd.DataFrame, *, own: bool) -> Verdict:
    """Does the own direction move scores farther than the axis that knows no cue, or the axis as far as it?"""
    found = known(rows, "w1", "own_w1", source=AXIS)
    axis = found["w1"] >= found["own_w1"]
    evidence = f"{cues(found)}: the score axis moves scores {span(found['w1'] / found['own_w1'])} times as far as the "
    evidence += f"own direction, at least as far for {axis.sum()} of {len(found)}"
    if own:
        return by_count(list(~axis)), evidence
    return (HOLDS if axis.all() else LIMITED if axis.mean() >= 0.5 else NOT_SHOWN), evidence


def _cues_agree(tables: Tables) -> Verdict:
    return of_control(tables, CAUSAL, tables(CAUSAL, "cues_r"), _agreeing)


def _agreeing(rows: pd.DataFrame) -> Verdict:
    # Behind the last block there are only the norm and the head: there the two agree nearly by construction.
    found = known(rows[rows["block"] != rows["block"].max()], "r")
    each = (f"r = {row.r:.2f} over {row.cues:.0f} cues at block {row.block:.0f}" for row in found.itertuples())
    return by_count(list(found["r"] > AGREEING)), ", ".join(each)


def _order_binds(tables: Tables) -> Verdict:
    return judged(tables, SEARCH, tables(SEARCH, "panel"), _binding)


def _binding(rows: pd.DataFrame) -> Verdict:
    found = known(rows, "alpha", "binding", "validity")
    share = (found["binding"] == "spearman").mean()
    counts = ", ".join(f"{kind} {number}" for kind, number in found["binding"].value_counts().items())
    evidence = f"of {len(found)} searches {counts}; validity {span(found['validity'], '.2f')}"
    return (HOLDS if share == 1 else LIMITED if share > 0.5 else NOT_SHOWN), evidence


def _monotone_in_strength(tables: Tables) -> Verdict:
    return judged(tables, SEARCH, tables(SEARCH, "monotone"), _monotone)


def _monotone(rows: pd.DataFrame) -> Verdict:
    found = known(rows, "monotone_pct", within="boundary")
    beyond = rows[rows["within"] == "twice the boundary"]
    each = (f"{row.metric} {row.monotone_pct:.0f} %" for row in found.itertuples())
    evidence = f"{', '.join(each)} of {found['configurations'].min():.0f} configurations; to twice the boundary "
    evidence += f"{span(beyond['monotone_pct'], '.0f')} %"
    return by_count(list(found["monotone_pct"] >= MONOTONE)), evidence


def _strength_rises(tables: Tables) -> Verdict:
    return judged(tables, SEARCH, tables(SEARCH, "depth"), _rising)


def _rising(rows: pd.DataFrame) -> Verdict:
    columns = ["layer", "alpha", "alpha_units"]
    groups = known(rows, *columns).groupby("condition", sort=False)[columns]
    # A strength that is the same at all layers does not rise.
    of = {cue: part.corr(method="spearman")["layer"].fillna(0) for cue, part in groups if len(part) >= LAYERS}
    if not of:
        raise MissingTable(f"undefined on this run: no cue has a strength at {LAYERS} layers")
    mean = pd.DataFrame(of).mean(axis=1)
    evidence = f"{', '.join(of)}: mean rank correlation with the layer {mean['alpha']:+.2f} for α, "
    evidence += f"{mean['alpha_units']:+.2f} in mean ‖Δh‖"
    if mean["alpha"] < RISING:
        return NOT_SHOWN, evidence
    return (HOLDS if mean["alpha_units"] >= RISING else LIMITED), evidence


def _search_finds(tables: Tables) -> Verdict:
    return judged(tables, SEARCH, tables(SEARCH, "grid"), _finding)


def _finding(rows: pd.DataFrame) -> Verdict:
    found = known(rows, "ratio", "evaluations")
    evidence = f"{cues(found)}: {span(found['ratio'], '.3f')} of the grid's best W1 by "
    evidence += f"{span(found['evaluations'], '.0f')} strengths"
    if (found["ratio"] < NEARLY).any():
        return NOT_SHOWN, evidence
    whole = (found["ratio"] >= REACHED) & (found["evaluations"] <= STRENGTHS)
    return (HOLDS if whole.all() else LIMITED), evidence


RULES = named(
    _attack_shifts,
    _attack_beats_text,
    _text_stays_behind,
    _beats_random,
    _swap_between,
    _not_the_score_axis,
    _order_binds,
    _monotone_in_strength,
    _strength_rises,
    _search_finds,
    _score_axis_as_far,
    _cues_agree,
)
