"""Detectors of degraded judgements but language models (judge paper M.3, M.4, M.7, tables 26-28).

Beside the paper's stand two that it lacks: the type of the cue alone, which every detector can read and which says much
about the outcome, and what was planted.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from biasgeom import boosting, data, questions
from biasgeom.boosting import Boosted
from biasgeom.prediction import Features, require_classes
from biasgeom.ranking import Scores, measured

NAMES = {"ARC": "ARC-Challenge", "CSQA": "CommonsenseQA"}
"""Table 27's short names."""


def linear(values: np.ndarray, rows: pd.DataFrame) -> np.ndarray:
    """Logistic regression on the training rows (L2, C = 1, balanced classes) of standardised columns: [n, k] → [n].

    Raises
    ------
    ValueError
        Training rows of one class.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    require_classes(rows, "train")
    train = (rows["split"] == "train").to_numpy()
    model = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, class_weight="balanced", max_iter=5000))
    return model.fit(values[train], rows["label"][train]).decision_function(values)


def type_only(rows: pd.DataFrame) -> np.ndarray:
    """The same on nothing but which cue an answer carries, one-hot: [n]."""
    return linear(pd.get_dummies(rows["condition"]).to_numpy(float), rows)


def bag_of_words(rows: pd.DataFrame) -> np.ndarray:
    """Logistic regression on the TF-IDF of words and pairs of words of the answers as the judge sees them: [n]."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    require_classes(rows, "train")
    train = rows["split"] == "train"
    words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    model = make_pipeline(words, LogisticRegression(C=1.0, class_weight="balanced", max_iter=5000))
    return model.fit(rows["text"][train], rows["label"][train]).decision_function(rows["text"])


def oracle(rows: pd.DataFrame, planted: pd.DataFrame) -> np.ndarray:
    """The planted shift of each row, fitted to nothing: [n].

    Parameters
    ----------
    planted : DataFrame
        condition, voice, shift (:func:`biasgeom.planted.shifts`).

    Raises
    ------
    ValueError
        Rows of a condition or voice without a planted shift.
    """
    shift = rows.merge(planted, on=["condition", "voice"], how="left", validate="m:1")["shift"]
    if shift.isna().any():
        raise ValueError("the voice of these answers is not known, nor is what was planted for them")
    return shift.to_numpy()


def projection(rows: pd.DataFrame, features: Features) -> np.ndarray:
    """The paper's linear projection: logistic regression on the signed projections on both directions, each block's."""
    return _linear_on(rows, features, _kinds(features) == "projection")


def attempt(make: Callable[..., Any], *arguments: object, **how: object) -> Any:
    """What ``make`` returns, or in a string why it can't: the other detectors are still compared."""
    try:
        return make(*arguments, **how)
    except (ValueError, ImportError) as error:
        return str(error)


def simple(rows: pd.DataFrame, features: Features, *, planted: pd.DataFrame | None = None) -> dict[str, Scores]:
    """Every detector but trees and language models, fitted on the training rows (M.3).

    Beside :func:`projection` the same with the Mahalanobis distances, and logistic regression on the projections on the
    baselines' axes; the cue's type, and the words. ``planted`` is given for the positive control.
    """
    kinds, distances = _kinds(features), features.columns["feature"] == "mahalanobis"
    truth = "nothing is planted in this judge" if planted is None else attempt(oracle, rows, planted)
    return {
        "type only": attempt(type_only, rows),
        "oracle": truth,
        "linear projection": attempt(projection, rows, features),
        "projection + Mahalanobis": attempt(_linear_on, rows, features, (kinds == "projection") | distances),
        "PCA + LR": attempt(_linear_on, rows, features, kinds == "pca"),
        "TF-IDF + LR": attempt(bag_of_words, rows),
    }


def _kinds(features: Features) -> pd.Series:
    return features.columns["feature"].str.split("_").str[0]


def _linear_on(rows: pd.DataFrame, features: Features, chosen: Sequence[bool]) -> np.ndarray:
    return linear(features.of(chosen), rows)


def ablations(
    features: Features, rows: pd.DataFrame, full: Boosted | str, block: int, **search: object
) -> pd.DataFrame:
    """Trees on a part of the features (M.4, table 28): variant, n_features (retained), split, auc, ap, reason.

    Parameters
    ----------
    full : Boosted, or str
        With all features, or why there is none.
    block : int
        Of the one Mahalanobis distance; set beforehand, not chosen by result.
    search
        As for :func:`biasgeom.boosting.boosted`, the same for every variant.
    """
    columns = features.columns
    of_family = {family: columns["family"] == family for family in columns["family"].unique()}
    variants = {
        "Mahalanobis distance only": ((columns["feature"] == "mahalanobis") & (columns["block"] == block), {}),
        "PCA and intrinsic statistics only": (of_family["semantic"], {}),
        "bias-direction features only": (of_family["bias direction"], {}),
        "all features, no elimination": (np.ones(len(columns), bool), {"keep": None}),
    }
    made: dict[str, Boosted | str] = {}
    for name, (chosen, otherwise) in variants.items():
        made[name] = attempt(boosting.on_features, features, rows, chosen, **search | otherwise)
    made["all features, elimination and search"] = full
    scores = {name: one if isinstance(one, str) else one.scores for name, one in made.items()}
    parts = {split: rows["split"] == split for split in ("dev", "test")}
    table = measured(rows, scores, parts, draws=0).rename(columns={"detector": "variant", "part": "split"})
    retained = {name: len(one.columns) for name, one in made.items() if not isinstance(one, str)}
    table.insert(1, "n_features", table["variant"].map(retained).astype("Int64"))
    return table[["variant", "n_features", "split", "auc", "ap", "prevalence", "within_type_auc", "reason"]]


def trios(domains: Sequence[str], default: Sequence[str], *, number: int = 5, seed: int = 42) -> list[tuple[str, ...]]:
    """The default held-out domains and others, three each (M.7): table 27's where they exist.

    Else the domains are dealt into threes, again and again, so that each is held out about equally often.
    """
    names, default = sorted(set(domains)), tuple(sorted(set(default)))
    printed = [trio.split(";") for trio in data.published("judge_table27")["unseen_trio"]]
    others = [tuple(sorted(NAMES.get(name, name) for name in trio)) for trio in printed]
    if not set().union(*others) <= set(names):
        rng = np.random.default_rng(seed)
        deals = [rng.permutation(names).tolist() for _ in range(number)]
        others = [tuple(sorted(deal[i : i + 3])) for deal in deals for i in range(0, len(names) - 2, 3)]
    return [default, *[trio for trio in dict.fromkeys(others) if trio != default][:number]]


def resplit(trio: Sequence[str], *tables: pd.DataFrame) -> list[pd.DataFrame]:
    """The tables with ``split`` and ``held_out`` as if these domains were held out; the first holds every question."""
    known = tables[0].drop_duplicates("question_id")
    split = questions.split(known["question_id"], known["domain"], trio)
    return [t.assign(split=t["question_id"].map(split), held_out=t["domain"].isin(trio)) for t in tables]
