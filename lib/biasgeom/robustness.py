"""The audit's parts varied one at a time: anchors, wording, reading, Procrustes' fit (ΔB paper 4.5, appendix E).

Each variant is scored as the paper scores it, by how well its shift goes with the same changes of output bias: one row
of :func:`biasgeom.pairs.summary` a variant.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from biasgeom import audit, pairs, relative, survey
from biasgeom.activations import Reading
from biasgeom.audit import Sets
from biasgeom.models import LanguageModel
from biasgeom.survey import FLAGS, NAMES, Plan, Question


def summaries(joined: pd.DataFrame, by: Sequence[str], *, draws: int, seed: int) -> pd.DataFrame:
    """A summary for each combination of the columns ``by``, ``method`` among them.

    Parameters
    ----------
    joined : DataFrame
        From :func:`biasgeom.survey.pairs`; within a combination one regime and seed.
    """
    rows = []
    for values, part in joined.groupby(list(by), sort=False):
        keys = dict(zip(by, values, strict=True))
        rows.append(keys | pairs.summary(part, direction=FLAGS[keys["method"]], draws=draws, seed=seed))
    return pd.DataFrame(rows).assign(method=lambda table: table["method"].map(NAMES))


def _scored(
    lm: LanguageModel,
    plan: Plan,
    questions: Mapping[tuple[Any, ...], Question],
    names: Sequence[str],
    scores: pd.DataFrame,
    how: Mapping[str, int],
    base: Question | None = None,
) -> pd.DataFrame:
    joined = survey.pairs(survey.answers(lm, plan, questions, names, base=base), scores)
    return summaries(joined, [*names, "method"], **how)


def by_texts(
    lm: LanguageModel,
    plan: Plan,
    variants: Mapping[str, Sets],
    scores: pd.DataFrame,
    *,
    base: Question | None = None,
    draws: int,
    seed: int,
) -> pd.DataFrame:
    """RR for each variant of the sentence sets (tables 5a and 5b): variant, method, and the summary.

    Parameters
    ----------
    base : Question, optional
        Here and below: see :func:`biasgeom.survey.answers`.
    """
    questions = {(name,): Question(texts) for name, texts in variants.items()}
    return _scored(lm, plan, questions, ["variant"], scores, {"draws": draws, "seed": seed}, base)


def by_anchors(
    lm: LanguageModel,
    plan: Plan,
    sources: Mapping[str, Sets],
    numbers: Sequence[int],
    scores: pd.DataFrame,
    *,
    base: Question | None = None,
    draws: int,
    seed: int,
) -> pd.DataFrame:
    """RR for each source and number of anchors (figure 4).

    Parameters
    ----------
    sources : mapping of source → Sets
        With as many anchors as the largest number; a smaller number takes the first of them.

    Returns
    -------
    DataFrame
        source, number, method, the summary, and of the last checkpoint the mean ΔB over groups (mean_shift) and that
        over the root of the number (per_root), which sets of different sizes can be compared by.
    """
    names = ["source", "number"]
    questions = {
        (source, number): Question(texts, anchors=number) for source, texts in sources.items() for number in numbers
    }
    found = survey.answers(lm, plan, questions, names, base=base)
    table = summaries(survey.pairs(found, scores), [*names, "method"], draws=draws, seed=seed)
    last = found[found["share"] == found["share"].max()].groupby(names)["shift"].mean().rename("mean_shift")
    table = table.merge(last.reset_index(), on=names, how="left", validate="one_to_one")
    return table.assign(per_root=table["mean_shift"] / np.sqrt(table["number"]))


def by_reading(
    lm: LanguageModel,
    plan: Plan,
    texts: Sets,
    asked: Sequence[Reading],
    scores: pd.DataFrame,
    *,
    together: Sequence[Reading] = (),
    base: Question | None = None,
    draws: int,
    seed: int,
) -> pd.DataFrame:
    """RR and SEAT for each reading of the same pass (table 6, and what the paper does not vary).

    Parameters
    ----------
    asked : list of Reading
    together : list of Reading, optional
        All readings of the pass; default: those asked for.

    Returns
    -------
    DataFrame
        site, pooling, first token ("in", "out"), method, and the summary.
    """
    names = ["site", "pooling", "first token"]
    questions = {}
    for reading in asked:
        where = reading.site if reading.block is None else f"block {reading.block}"
        key = (where, reading.pooling, "in" if reading.include_first_token else "out")
        questions[key] = Question(texts, ("rr", "seat"), reading, tuple(together or asked))
    return _scored(lm, plan, questions, names, scores, {"draws": draws, "seed": seed}, base)


def by_fit(
    lm: LanguageModel,
    plan: Plan,
    texts: Sets,
    together: Sequence[Reading],
    scores: pd.DataFrame,
    *,
    draws: int,
    seed: int,
) -> pd.DataFrame:
    """Procrustes-SEAT for each set of sentences that the rotation is fitted on.

    Returns
    -------
    DataFrame
        fit, rank (of the reference's sentences that it is fitted on: below the width the rotation is not unique),
        width, method, and the summary.
    """
    reference = audit.embed(lm, texts, together=together)
    questions = {}
    for fit in relative.FITS:
        rank = relative.procrustes(reference, reference, fit=fit)[1]
        questions[fit, rank, lm.width] = Question(texts, ("procrustes",), together=together, fit=fit)
    return _scored(lm, plan, questions, ["fit", "rank", "width"], scores, {"draws": draws, "seed": seed})


def spread(table: pd.DataFrame, value: str = "auc") -> pd.DataFrame:
    """Mean, standard deviation (divisor n, as the paper's), smallest and largest of a column: variant, value."""
    column = table[value].dropna()
    found = {"mean": column.mean(), "std": column.std(ddof=0), "min": column.min(), "max": column.max()}
    return pd.DataFrame({"variant": found.keys(), value: found.values()})
