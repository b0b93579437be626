"""The audit's parts varied one at a time: anchors, wording, reading, Procrustes' fit (ΔB paper 4.5, appendix E).

Each variant is scored as the paper scores it, by how well its shift goes with the same changes of output bias: one row
of :func:`biasgeom.pairs.summary` a variant.
"""

from collections.abc import Mapping, Sequence

import pandas as pd

from biasgeom import audit, pairs, relative, survey
from biasgeom.activations import Reading
from biasgeom.audit import MEAN, Sets
from biasgeom.models import LanguageModel
from biasgeom.survey import FLAGS, NAMES, Plan


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


def by_texts(
    lm: LanguageModel, plan: Plan, variants: Mapping[str, Sets], scores: pd.DataFrame, *, draws: int, seed: int
) -> pd.DataFrame:
    """RR for each variant of the sentence sets (tables 5a and 5b): variant, method, and the summary."""
    joined = [
        survey.pairs(survey.shifts(lm, plan, texts), scores).assign(variant=name) for name, texts in variants.items()
    ]
    return summaries(pd.concat(joined), ["variant", "method"], draws=draws, seed=seed)


def by_anchors(
    lm: LanguageModel,
    plan: Plan,
    sources: Mapping[str, Sets],
    numbers: Sequence[int],
    scores: pd.DataFrame,
    *,
    draws: int,
    seed: int,
) -> pd.DataFrame:
    """RR for each source and number of anchors (figure 4): source, number, method, and the summary.

    Parameters
    ----------
    sources : mapping of source → Sets
        With as many anchors as the largest number; a smaller number takes the first of them.
    """
    tables = []
    for source, texts in sources.items():
        reference = audit.embed(lm, texts)
        audited = [(checkpoint, audit.embed(checkpoint.lm, texts)) for checkpoint in plan.checkpoints(lm)]
        for number in numbers:
            cut = audit.subset(reference, anchors=number)
            tables += [
                audit.shifts(cut, audit.subset(embeddings, anchors=number)).assign(
                    source=source, number=number, **survey.keys(checkpoint)
                )
                for checkpoint, embeddings in audited
            ]
    joined = survey.pairs(pd.concat(tables), scores)
    return summaries(joined, ["source", "number", "method"], draws=draws, seed=seed)


def by_reading(
    lm: LanguageModel,
    plan: Plan,
    texts: Sets,
    together: Sequence[Reading],
    scores: pd.DataFrame,
    *,
    draws: int,
    seed: int,
) -> pd.DataFrame:
    """RR and SEAT for each reading of the same pass (table 6, and what the paper does not vary).

    Returns
    -------
    DataFrame
        site, pooling, first token ("in", "out"), method, and the summary.
    """
    tables = []
    for reading in together:
        moved = survey.shifts(lm, plan, texts, methods=["rr", "seat"], reading=reading, together=together)
        where = reading.site if reading.block is None else f"block {reading.block}"
        first = "in" if reading.include_first_token else "out"
        tables.append(moved.assign(site=where, pooling=reading.pooling, **{"first token": first}))
    joined = survey.pairs(pd.concat(tables), scores)
    return summaries(joined, ["site", "pooling", "first token", "method"], draws=draws, seed=seed)


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
        fit, rank (of the fit at the last checkpoint), width, method, and the summary.
    """
    reference, tables = audit.embed(lm, texts, together=together), []
    *_, last = plan.checkpoints(lm)
    audited = audit.embed(last.lm, texts, MEAN, together=together)
    for fit in relative.FITS:
        moved = survey.shifts(lm, plan, texts, methods=["procrustes"], together=together, fit=fit)
        rank = relative.procrustes(reference, audited, fit=fit)[1]
        tables.append(moved.assign(fit=fit, rank=rank, width=lm.width))
    joined = survey.pairs(pd.concat(tables), scores)
    return summaries(joined, ["fit", "rank", "width", "method"], draws=draws, seed=seed)


def spread(table: pd.DataFrame, value: str = "auc") -> pd.DataFrame:
    """Mean, standard deviation (divisor n, as the paper's), smallest and largest of a column: variant, value."""
    column = table[value].dropna()
    found = {"mean": column.mean(), "std": column.std(ddof=0), "min": column.min(), "max": column.max()}
    return pd.DataFrame({"variant": found.keys(), value: found.values()})
