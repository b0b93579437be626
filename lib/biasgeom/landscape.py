"""Shifts of a judge's scores under surface cues, and the tables made of them (judge paper 4.2, B.4, G.1, I.1).

Every function takes one judge's items: a table of :func:`biasgeom.perturbations.conditions` with a ``score``, NaN where
the judge gave none. What can't be computed from them is NaN, never 0, with the reason in a column of that name.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import wasserstein_distance

from biasgeom import statistics
from biasgeom.parsing import REASONS
from biasgeom.perturbations import BIASES, POLARITIES, name

INFLATING = ("Prestige", "Verbosity", "Authority", "Sentiment", "Refinement")
"""The five types over which the paper's positive aggregate goes (table 2, I.1)."""

SHIFT_COLUMNS = ["question_id", "domain", "split", "condition", "bias", "polarity"]
SHIFT_COLUMNS += ["base_score", "score", "shift", "row", "base_row"]

_NEGATIVE = {name(bias, "negative"): 1 / len(BIASES) for bias in BIASES}
_FIVE = {name(bias, "positive"): 1 / len(INFLATING) for bias in INFLATING}
_SEVEN = {name(bias, "positive"): 1 / len(BIASES) for bias in BIASES}

AGGREGATES = {
    "negative": _NEGATIVE,
    "positive, five types": _FIVE,
    "positive, all seven": _SEVEN,
    "asymmetry, five types": {**{c: -w for c, w in _NEGATIVE.items()}, **{c: -w for c, w in _FIVE.items()}},
    "asymmetry, all seven": {**{c: -w for c, w in _NEGATIVE.items()}, **{c: -w for c, w in _SEVEN.items()}},
}
"""Weights of the conditions' mean shifts. Asymmetry: by how much more negative cues lower than positive ones raise."""

ONE_EACH = "one pair in each type × domain: its bootstrap has no spread"


def each(judges: Mapping[str, pd.DataFrame], table: Callable[..., pd.DataFrame], **how: object) -> pd.DataFrame:
    """One table after the other for every judge's items, with the name in the first column, ``judge``."""
    found = [table(items, **how) for items in judges.values()]
    return pd.concat(found, keys=judges, names=["judge"]).reset_index("judge").reset_index(drop=True)


def shifts(items: pd.DataFrame) -> pd.DataFrame:
    """What each cue does to the score of each answer (judge paper B.4), where both scores exist.

    Parameters
    ----------
    items : DataFrame [n]
        A judge's items: ``question_id, domain, split, condition, bias, polarity`` and ``score`` (NaN where the judge
        gave none).

    Returns
    -------
    DataFrame
        One row a question and condition but the base one, in the order of the items: the shift is ``score`` minus
        ``base_score``; ``row`` and ``base_row`` are row numbers in the items, which index a judge's states. Pairs with
        a missing score are left out; their number is ``len(items)`` less the base rows less the rows returned.

    Raises
    ------
    ValueError
        If a question holds a condition twice, or has no base answer.
    """
    twice = items.duplicated(["question_id", "condition"])
    if twice.any():
        first = items.loc[twice, ["question_id", "condition"]].iloc[0].tolist()
        raise ValueError(f"{int(twice.sum())} judgements appear twice (first: {first}); pass one wording at a time")
    table = items.assign(row=np.arange(len(items)))
    base = table[table["condition"] == "base"].set_index("question_id")[["score", "row"]]
    without = sorted(set(table["question_id"]) - set(base.index))
    if without:
        raise ValueError(f"no base answer among the items of {len(without)} questions (first: {without[0]})")
    table = table[table["condition"] != "base"].join(base.add_prefix("base_"), on="question_id")
    table["shift"] = table["score"] - table["base_score"]
    return table.loc[table["shift"].notna(), SHIFT_COLUMNS].reset_index(drop=True)


def effective(moved: pd.DataFrame, threshold: float) -> np.ndarray:
    """Bool [n]: rows of :func:`shifts` that move at least ``threshold`` points in the cue's direction (F.1, eq. 3)."""
    return np.where(moved["polarity"] == "negative", -1, 1) * moved["shift"].to_numpy() >= threshold


def _replicates(moved: pd.DataFrame, draws: int, seed: int, *, whole: bool = False) -> pd.DataFrame:
    """Bootstrap replicates of every condition's mean shift: [draws, conditions].

    The paper's strata, type × domain, or whole questions of all domains. The latter without strata: of the n questions
    of a stratum, resamples show a variance too small by 1 / n, which with two questions a domain is half of it.
    """
    shift, condition = moved["shift"].to_numpy(), moved["condition"].to_numpy()
    stratum = np.zeros(len(moved)) if whole else moved["domain"].to_numpy()
    how = {"rng": np.random.default_rng(seed), "units": moved["question_id"].to_numpy() if whole else None}
    drawn = statistics.stratified_means(shift, condition, stratum, draws=draws, **how)
    return pd.DataFrame(drawn, columns=np.unique(condition))


def _interval(drawn: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def _with_spread(shifts: pd.Series, replicates: np.ndarray) -> np.ndarray:
    """The replicates, or NaN where every resample is the sample though the shifts differ: one value in each stratum."""
    stuck = shifts.nunique() > 1 and np.ptp(replicates) <= 1e-12 * max(1.0, np.abs(replicates).max())
    return np.full_like(replicates, np.nan) if stuck else replicates


def _spread(part: pd.DataFrame) -> dict[str, float]:
    before, after = part["base_score"].to_numpy(), part["score"].to_numpy()
    return {
        "base_mean": before.mean(),
        "mean": after.mean(),
        "cohens_d": statistics.cohens_d(before, after),
        "w1": wasserstein_distance(before, after),
    }


def aggregates(items: pd.DataFrame, *, draws: int = 10_000, seed: int = 42) -> pd.DataFrame:
    """The asymmetric response: mean shift of negative and positive cues (tables 2 and 11), a row an aggregate.

    The mean of each type's shifts, then over types. ``low``, ``high`` and ``p`` are from the paper's bootstrap, which
    draws single differences within type × domain; those ``…_by_question`` draw whole questions, because the 14
    differences of one question share its base score. ``p_tail`` is the paper's Gaussian extrapolation. An aggregate
    over a type without a pair is not computed.
    """
    moved = shifts(items)
    drawn = whole = pd.DataFrame()
    if len(moved):
        drawn, whole = _replicates(moved, draws, seed), _replicates(moved, draws, seed, whole=True)
    means, rows = moved.groupby("condition")["shift"].mean(), []
    for aggregate, weights in AGGREGATES.items():
        part = moved[moved["condition"].isin(weights)]
        row = {"aggregate": aggregate, "n": len(part), "questions": part["question_id"].nunique()}
        if lacking := [condition for condition in weights if condition not in means]:
            of = "" if len(lacking) == len(weights) else " for " + ", ".join(lacking)
            rows.append(row | {"reason": f"no pair with two scores{of}"})
            continue
        if not aggregate.startswith("asymmetry"):
            row |= _spread(part)
        weight = pd.Series(weights)
        row["delta"] = float(means[weight.index] @ weight)
        paper, by_question = (
            _with_spread(part["shift"], (replicates[weight.index] @ weight).to_numpy()) for replicates in (drawn, whole)
        )
        for suffix, one in (("", paper), ("_by_question", by_question)):
            row[f"low{suffix}"], row[f"high{suffix}"] = _interval(one)
            row[f"p{suffix}"] = statistics.sign_p(row["delta"], one)
        row["p_tail"] = statistics.gaussian_tail_p(row["delta"], paper)
        reason = "a resample of questions lacks a type" if np.isnan(by_question).any() else ""
        reason = ONE_EACH if np.isnan(paper).any() else reason
        rows.append(row | {"reason": reason if part["shift"].nunique() > 1 else "all shifts are equal"})
    columns = "aggregate n questions base_mean mean delta low high low_by_question high_by_question cohens_d w1 p"
    return pd.DataFrame(rows, columns=[*columns.split(), "p_by_question", "p_tail", "reason"])


def corrected(table: pd.DataFrame, *, by: Sequence[str]) -> pd.DataFrame:
    """Aggregates of several prompts with ``p_adjusted`` (Benjamini–Hochberg) and the ``family`` it was taken over.

    A family, for each combination of ``by``, is the negative and one positive aggregate of every prompt in the table
    (the paper: 4 prompts × 2 polarities = 8). Both positive ones have a family; the negative rows show the adjusted p
    of the one with five types, as published. Asymmetries belong to neither and are not adjusted.
    """
    table = table.assign(p_adjusted=np.nan, family=0)
    for _, part in table.groupby(list(by), sort=False):
        for shown in (("negative", "positive, five types"), ("positive, all seven",)):
            family = part[part["aggregate"].isin({"negative", *shown})]
            adjusted = pd.Series(statistics.benjamini_hochberg(family["p"].to_numpy()), index=family.index)
            mine = family.index[family["aggregate"].isin(shown)]
            table.loc[mine, "p_adjusted"] = adjusted[mine]
            table.loc[mine, "family"] = int(family["p"].notna().sum())
    return table


def by_type(items: pd.DataFrame, *, threshold: float = 2.0, draws: int = 10_000, seed: int = 42) -> pd.DataFrame:
    """Each cue by itself (table 4 and the per-type tests of appendix G), 14 rows in the order of BIASES.

    ``rank`` is within a polarity, the largest mean score first for positive cues and the smallest for negative ones;
    ``missing`` counts pairs that lack a score and ``unchanged`` answers that the cue left as they were; ``effective``
    and ``by_2`` count shifts of ``threshold`` (NaN: none is set) and of 2 points in the cue's direction;
    ``p_adjusted`` is over the 14.
    """
    moved, rows = shifts(items), []
    drawn = _replicates(moved, draws, seed) if len(moved) else pd.DataFrame()
    for polarity in POLARITIES:
        for bias in BIASES:
            condition = name(bias, polarity)
            part, asked = moved[moved["condition"] == condition], items[items["condition"] == condition]
            row = {"bias": bias, "polarity": polarity, "condition": condition, "n": len(part)}
            row |= {"missing": len(asked) - len(part), "unchanged": int((~asked["changed"].astype(bool)).sum())}
            if part.empty:
                rows.append(row | {"reason": "no pair with two scores"})
                continue
            one, delta = _with_spread(part["shift"], drawn[condition].to_numpy()), float(part["shift"].mean())
            reason = "" if part["shift"].nunique() > 1 else "all shifts are equal"
            reason = ONE_EACH if np.isnan(one).any() else reason
            low, high = _interval(one)
            row |= _spread(part) | {"delta": delta, "se": part["shift"].sem(), "low": low, "high": high}
            row |= {"p": statistics.sign_p(delta, one), "p_tail": statistics.gaussian_tail_p(delta, one)}
            row |= {"by_2": effective(part, 2).sum()}
            # Without a threshold no shift is large or small, which is not the same as none being effective.
            row["effective"] = np.nan if np.isnan(threshold) else effective(part, threshold).sum()
            rows.append(row | {"reason": reason})
    columns = "bias polarity condition n missing unchanged base_mean mean delta se low high cohens_d w1 p p_tail"
    table = pd.DataFrame(rows, columns=[*columns.split(), "effective", "by_2", "reason"])
    ordered = table["mean"].where(table["polarity"] == "negative", -table["mean"])
    table.insert(table.columns.get_loc("delta"), "rank", ordered.groupby(table["polarity"]).rank(method="min"))
    table.insert(table.columns.get_loc("p_tail"), "p_adjusted", statistics.benjamini_hochberg(table["p"].to_numpy()))
    return table


def cells(items: pd.DataFrame, *, by: str = "domain") -> pd.DataFrame:
    """Mean shift and its standard error by bias, polarity and a column of the items (table 3), every cell a row.

    The standard error is that of the paired differences; the paper's 0.07 a cell is pooled SD / √n, which leaves out
    that the two scores of a pair go together. NaN below two pairs.
    """
    moved = shifts(items)
    moved[by] = items[by].to_numpy()[moved["row"]]
    found = moved.groupby(["bias", "polarity", by])["shift"].agg(n="size", delta="mean", se="sem")
    every = pd.MultiIndex.from_product([BIASES, POLARITIES, items[by].unique()], names=found.index.names)
    table = found.reindex(every).reset_index()
    table["n"] = table["n"].fillna(0).astype(int)
    return table.assign(reason=np.select([table["n"] == 0, table["n"] == 1], ["no pair", "one pair"], ""))


def interaction(items: pd.DataFrame, *, draws: int = 1000, seed: int = 42) -> pd.DataFrame:
    """Does what a cue does depend on the domain? One row, against domains dealt anew to whole questions.

    ``share`` is the part of the shifts' variation that type × domain cells hold after the mean of each condition and of
    each question is taken off; ``chance`` is its mean over the deals. Not in the paper, which reads cells by eye.
    """
    moved = shifts(items)
    wide = moved.pivot(index="question_id", columns="condition", values="shift")
    domains = moved.groupby("question_id")["domain"].first().reindex(wide.index)
    labels, codes = np.unique(domains.to_numpy(dtype=str), return_inverse=True)
    table = wide.to_numpy(dtype=float)
    row = {"questions": len(wide), "domains": len(labels), "share": np.nan, "chance": np.nan, "p": np.nan}
    if len(labels) < 2 or wide.shape[1] < 2:
        return pd.DataFrame([row | {"reason": "needs pairs of two cues in two domains"}])
    table = table - np.nanmean(table, axis=0)
    table = table - np.nanmean(table, axis=1, keepdims=True)
    known, table = ~np.isnan(table), np.nan_to_num(table)
    total = (table**2).sum()
    if total < 1e-12:
        return pd.DataFrame([row | {"reason": "all shifts are equal"}])
    rng = np.random.default_rng(seed)
    found = []
    for deal in [codes, *(rng.permutation(codes) for _ in range(draws))]:
        member = np.eye(len(labels))[deal].T
        found.append(((member @ table) ** 2 / np.maximum(member @ known, 1)).sum() / total)
    observed, null = found[0], np.array(found[1:])
    row |= {"share": observed, "chance": null.mean(), "p": statistics.exceedance_p(observed, null)}
    return pd.DataFrame([row | {"reason": ""}])


def failures(items: pd.DataFrame, *, score: str = "score") -> pd.DataFrame:
    """Validity and modes of failure (table 10), one row each for base answers, perturbed ones and all.

    ``failed_pct`` is the share of judgements without the column ``score``; ``<mode>_pct`` are shares of those failures
    and sum to 100, NaN without a failure. ``truncated_rate_pct`` is the share of replies that reach the cap, where the
    items know it.
    """
    base, rows = items["condition"] == "base", []
    for answers, part in {"base": items[base], "perturbed": items[~base], "all": items}.items():
        failed = part[part[score].isna()]
        row = {"answers": answers, "n": len(part), "failed": len(failed)}
        row["failed_pct"] = 100 * len(failed) / len(part) if len(part) else np.nan
        row["truncated_rate_pct"] = 100 * part["truncated"].mean() if "truncated" in part else np.nan
        modes = failed["reason"].where(failed["reason"] != "", "no_digit").value_counts()
        every = [*REASONS, *sorted(set(modes.index) - set(REASONS))]
        row |= {f"{mode}_pct": 100 * modes.get(mode, 0) / len(failed) if len(failed) else np.nan for mode in every}
        rows.append(row)
    return pd.DataFrame(rows)


def distribution(items: pd.DataFrame, *, bins: int = 24) -> pd.DataFrame:
    """Shares of the scores of base, negative and positive answers (figure 3): set, score, share.

    Integers are counted one by one from 1 to 10; other scores in ``bins`` bins of the judge's own range, each named by
    its middle. A set without a score has shares that are NaN.
    """
    scores, polarity = items["score"].to_numpy(dtype=float), items["polarity"].replace("", "base")
    known = scores[~np.isnan(scores)]
    edges = np.arange(0.5, 11)
    if len(known) and (known != np.round(known)).any():
        edges = np.linspace(known.min(), known.max(), bins + 1)
    rows = []
    for part in ("base", "negative", "positive"):
        counts = np.histogram(known := scores[(polarity == part) & ~np.isnan(scores)], edges)[0]
        share = counts / len(known) if len(known) else np.full(len(counts), np.nan)
        rows.append(pd.DataFrame({"set": part, "score": (edges[:-1] + edges[1:]) / 2, "share": share}))
    return pd.concat(rows, ignore_index=True)
