"""What the judge paper's landscape lacks: other wordings and prompts beside its own, and shifts that are known.

Tables like :mod:`biasgeom.landscape`, and like there of one judge's items.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import pearsonr, spearmanr

from biasgeom import landscape

NULL = 0.2
"""A cue without a planted shift may move the score by this much (spec point 17)."""
ORDER = {"wrong": 0, "poor": 1, "good": 2}


def beside(items: pd.DataFrame, variants: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Shifts of each variant of cue or prompt beside those of the default, on the questions that both have.

    Parameters
    ----------
    items : DataFrame
        The judge's items with the default wording and prompt.
    variants : mapping of name → DataFrame
        The same judge's items of each variant, base answers included; conditions that the default lacks are shown
        without a counterpart.

    Returns
    -------
    DataFrame
        variant, condition, n, base_mean, delta, se; of the default ``delta_default``; ``difference`` (variant less
        default, paired by question) and its ``difference_se``. NaN without pairs, or below two for standard errors.
    """
    default = landscape.shifts(items).set_index(["question_id", "condition"])["shift"]
    rows = []
    for variant, table in variants.items():
        moved = landscape.shifts(table)
        for condition in [c for c in table["condition"].unique() if c != "base"]:
            part = moved[moved["condition"] == condition].set_index(["question_id", "condition"])
            other = default.reindex(part.index)
            if other.notna().any():  # both columns over the same questions
                part, other = part[other.notna()], other.dropna()
            difference = (part["shift"] - other).dropna()
            row = {"variant": variant, "condition": condition, "n": len(part), "base_mean": part["base_score"].mean()}
            row |= {"delta": part["shift"].mean(), "se": part["shift"].sem(), "delta_default": other.mean()}
            rows.append(row | {"difference": difference.mean(), "difference_se": difference.sem()})
    return pd.DataFrame(rows)


def recovered(items: pd.DataFrame, planted: pd.DataFrame, *, by: Sequence[str] = ()) -> pd.DataFrame:
    """Planted shifts beside those found, one row a condition, or a combination of it with the columns ``by``.

    Parameters
    ----------
    planted : DataFrame
        ``shift`` by condition and, if it depends on them, by other columns of the items
        (:func:`biasgeom.planted.shifts`: by voice).
    by : list of str, optional
        Such other columns.

    Returns
    -------
    DataFrame
        condition, [by,] planted (mean over the pairs), n, recovered, se, difference, reason. The scale ends at 1 and
        10, so that a shift of a score near an end can't be recovered in full. Where the items' ``voice`` is "", planted
        is the mean over voices, and none has pairs of its own.
    """
    depends = [column for column in planted if column != "shift"]
    moved = landscape.shifts(items)
    for column in depends:
        moved[column] = items[column].to_numpy()[moved["row"]]
    moved = moved.merge(planted.rename(columns={"shift": "planted"}), on=depends, how="left")
    keys = ["condition", *by]
    every = planted.groupby(keys, sort=False)["shift"].mean()
    measured = {"planted": ("planted", "mean"), "n": ("shift", "size"), "recovered": ("shift", "mean")}
    table = moved.groupby(keys).agg(**measured, se=("shift", "sem")).reindex(every.index)
    # Of a cue without a pair, what was planted is known all the same.
    table["planted"], table["n"] = table["planted"].fillna(every), table["n"].fillna(0).astype(int)
    table["difference"] = table["recovered"] - table["planted"]
    reason = np.where(table["n"] > 1, "", "fewer than two pairs")
    if blank := [column for column in depends if (items[column] == "").all()]:
        reason = f"the answers' {blank[0]} is not known"
    return table.reset_index().assign(reason=reason)


def recovery(items: pd.DataFrame, planted: pd.DataFrame) -> pd.DataFrame:
    """How well known shifts (see :func:`recovered`) come back: over all questions, the test split, held-out domains.

    Returns
    -------
    DataFrame
        questions; n, judgements asked for; validity, the share of them with a score; r of planted and mean recovered
        shift over conditions; largest_null, the largest |mean shift| of a cue with nothing planted, and nulls_within,
        how many lie within :data:`NULL`, of nulls; quality, the rank correlation of a base answer's score with its
        quality (good, poor, wrong). NaN with a reason where undefined.
    """
    rows = []
    test, unseen = items["split"] == "test", items["held_out"].astype(bool)
    for questions, kept in {"all": test | ~test, "test split": test, "held-out domains": unseen}.items():
        part = items[kept]
        row = {"over": questions, "questions": part["question_id"].nunique(), "n": len(part)}
        row["validity"] = part["score"].notna().mean()
        found = recovered(part, planted).dropna(subset=["recovered"])
        null = found.loc[found["planted"] == 0, "recovered"].abs()
        row |= {"largest_null": null.max(), "nulls_within": int((null <= NULL).sum()), "nulls": len(null)}
        row["r"], why = _correlation(pearsonr, found["planted"], found["recovered"], "shifts")
        base = part[(part["condition"] == "base") & part["score"].notna()]
        row["quality"], why_not = _by_quality(base)
        rows.append(row | {"reason": "; ".join(filter(None, (why, why_not)))})
    return pd.DataFrame(rows)


def quality(items: pd.DataFrame) -> pd.DataFrame:
    """Mean base score by quality of the answer, and its rank correlation with quality, the same in every row.

    NaN with a reason where the items' ``quality`` is "": nobody rated them.
    """
    base = items[(items["condition"] == "base") & items["score"].notna()]
    rho, why = _by_quality(base)
    table = base.groupby("quality")["score"].agg(n="size", mean="mean", sd="std").reindex(list(ORDER)[::-1])
    table["n"] = table["n"].fillna(0).astype(int)
    return table.reset_index().assign(spearman=rho, reason=why)


def _by_quality(base: pd.DataFrame) -> tuple[float, str]:
    if len(base) and (base["quality"] == "").all():
        return np.nan, "the answers' quality is not known"
    return _correlation(spearmanr, base["quality"].map(ORDER), base["score"], "base scores")


def _correlation(of: Callable, known: pd.Series, measured: pd.Series, what: str) -> tuple[float, str]:
    if len(measured) < 3:
        return np.nan, f"fewer than three {what}"
    if min(known.nunique(), measured.nunique()) < 2:
        return np.nan, f"the {what} are all equal"
    return float(of(known, measured).statistic), ""
