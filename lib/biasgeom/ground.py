"""What steering a judge starts from: its pairs and base answers by split, and directions of its cues.

Directions are estimated on training questions, strengths searched on development ones, effects reported on test ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from biasgeom import estimators, judging, landscape, substrate
from biasgeom.judging import Judged
from biasgeom.models import LanguageModel
from biasgeom.steering import Steered, rank_correlation

CONDITIONS = ("Authority-", "Bandwagon-", "Refinement-", "Diversity-", "Verbosity-", "Refinement+")
"""The paper's five strongest negative cues and its strongest positive one (J.6)."""
RETAINED = ("geometric_median", "pca", "classifier")
"""The estimators that the paper keeps for its causal experiments (4.4)."""


@dataclass(frozen=True)
class Ground:
    """A judge's answers, made ready: all pairs (``shifts``), the effective ones (``pairs``), and the base answers."""

    judge: Judged
    shifts: pd.DataFrame
    pairs: pd.DataFrame
    baselines: pd.DataFrame

    def only(self, *splits: str) -> "Ground":
        """The part of some splits: "train", "dev", "test"."""
        parts = [table[table["split"].isin(splits)] for table in (self.shifts, self.pairs, self.baselines)]
        return Ground(self.judge, *parts)


def ground(judge: Judged) -> Ground:
    """Pairs, effective pairs and base answers of a judge that has read all conditions."""
    shifts = landscape.shifts(judge.items)
    items = judge.items.assign(row=np.arange(len(judge.items)))
    return Ground(judge, shifts, substrate.effective(shifts, judge.effective), items[items["condition"] == "base"])


def asked(lm: LanguageModel, judge: Judged, answers: Iterable[str]) -> Steered:
    """The judge on these answers, asked as it was in :func:`biasgeom.judging.judge_all`."""
    return Steered(lm, [judging.prompt(text) for text in answers], prefill=judging.prefill(judge.readout))


def unsteered(lm: LanguageModel, judge: Judged, answers: Iterable[str], *, readout: str) -> np.ndarray:
    """What the judge scores these answers [n] as it is; NaN where not valid."""
    last, anything = len(lm.blocks) - 1, np.eye(1, lm.width)[0]
    return asked(lm, judge, answers).scores(last, anything, [0.0]).of(readout)[0]


def clean(lm: LanguageModel, of: Ground, *, number: int = 0) -> tuple[Steered, list[str]]:
    """A judge's base answers as prompts to steer on, and their questions' ids; the first ``number``, 0 for all."""
    base = of.baselines.head(number) if number else of.baselines
    return asked(lm, of.judge, base["text"]), base["question_id"].tolist()


def most_affected(of: Ground, number: int, *, least: int = 2) -> pd.DataFrame:
    """The paper's six cues with their effective pairs; ``chosen``: the ``number`` with most, of ``least`` and more."""
    counts = of.pairs["condition"].value_counts().reindex(CONDITIONS, fill_value=0)
    order = counts.sort_values(ascending=False, kind="stable")
    picked = order.index[order >= least][:number]
    return pd.DataFrame({"condition": CONDITIONS, "pairs": counts.to_numpy(), "chosen": counts.index.isin(picked)})


def complete(table: pd.DataFrame, judges: Iterable[str], reason: str) -> pd.DataFrame:
    """A table with a row and a ``reason`` for each of the judges that has none in its column ``judge``."""
    table = table.reindex(columns=["judge", *table.columns.drop(["judge", "reason"], errors="ignore"), "reason"])
    lacking = [judge for judge in judges if judge not in set(table["judge"])]
    if not lacking:
        return table
    rows = pd.DataFrame({"judge": lacking, "reason": reason})
    return pd.concat([table, rows], ignore_index=True) if len(table) else rows.reindex(columns=table.columns)


@dataclass(frozen=True)
class Handle:
    """A unit ``vector`` [d] of a cue at a block, by one estimator, and the ``unit`` that its strength is counted in."""

    condition: str
    method: str
    block: int
    vector: np.ndarray
    unit: float


def handles(
    judge: Judged,
    pairs: pd.DataFrame,
    baselines: pd.DataFrame,
    condition: str,
    blocks: Sequence[int],
    *,
    methods: Sequence[str] = RETAINED,
    seed: int = 42,
) -> tuple[list[Handle], str]:
    """The directions of one cue from its effective pairs.

    Parameters
    ----------
    pairs : DataFrame
        Effective pairs of the questions that directions may be estimated on; see
        :func:`biasgeom.substrate.effective`.
    baselines : DataFrame
        Base answers of the same questions: question_id, row.
    condition : str
        Such as "Bandwagon-".

    Returns
    -------
    list of Handle, str
        By block and method; and why there are none, else "".
    """
    chosen, found = pairs[pairs["condition"] == condition], []
    for block in blocks:
        vectors, table = estimators.from_pairs(judge.states, chosen, baselines, block, methods=methods, seed=seed)
        if not vectors:
            return [], str(table["reason"].iloc[0])
        unit = mean_length(judge.states, chosen, block)
        found += [Handle(condition, method, block, vector, unit) for method, vector in vectors.items()]
    return found, ""


def differences(states: np.ndarray, pairs: pd.DataFrame, block: int) -> np.ndarray:
    """Δh of pairs [n] at a block: states [rows, L, d] → [n, d], float64."""
    return states[pairs["row"], block].astype(np.float64) - states[pairs["base_row"], block]


def mean_length(states: np.ndarray, pairs: pd.DataFrame, block: int) -> float:
    """The mean ‖Δh‖ of pairs at a block."""
    return float(np.linalg.norm(differences(states, pairs, block), axis=1).mean())


def text_scores(items: pd.DataFrame, condition: str, questions: Sequence[object], readout: str) -> np.ndarray:
    """A judge's scores of the answers to ``questions`` [n] under a condition; NaN where there is no valid one."""
    part = items[items["condition"] == condition].set_index("question_id")
    return part[readout].where(part["valid"]).reindex(list(questions)).to_numpy(dtype=float)


def text_floor(items: pd.DataFrame, condition: str, questions: Sequence[object], readout: str) -> float:
    """ρ_text: the rank correlation of the scores under a cue with those of the base answers; NaN if undefined."""
    return rank_correlation(*(text_scores(items, c, questions, readout) for c in (condition, "base")))
