"""The paper's outcome predictor: boosted trees on the features, after selection and search (judge paper G, M.2).

LightGBM and Optuna are in the extra ``judge``. One thread and fixed seeds: a rerun gives the same trees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from biasgeom.prediction import FAMILIES, Features, require_classes

if TYPE_CHECKING:  # an extra
    import lightgbm

LEAVES, MIN_CHILD, RATE = (31, 127), (10, 40), (0.01, 0.1)
"""The paper's ranges of num_leaves, min_child_samples and learning_rate (G)."""
PATIENCE = 30
"""Rounds without a better development AUC that end the boosting (G)."""
CONSTANT = 1e-4
"""A column whose standard deviation is a smaller share of its largest size is taken as constant."""


@dataclass(frozen=True)
class Boosted:
    """Trees that were fitted.

    Attributes
    ----------
    scores : array [n]
        Of every row; higher means the positive class.
    pool : int
        Columns after the variance filter.
    columns : integer array
        The retained ones, as columns of what was given; ``gain`` is theirs: the loss that their splits saved.
    parameters : dict
        The search's best, or as given.
    rounds : int
    dev_auc : float
        On the rows that chose the parameters and the number of rounds: no held-out estimate.
    """

    scores: np.ndarray
    pool: int
    columns: np.ndarray
    gain: np.ndarray
    parameters: dict[str, Any]
    rounds: int
    dev_auc: float


def varying(values: np.ndarray) -> np.ndarray:
    """Bool [columns]: what the variance filter keeps.

    Relative to a column's size: an absolute threshold would drop cosines and keep norms, whatever they tell.
    """
    return values.std(axis=0) > CONSTANT * np.abs(values).max(axis=0)


def boosted(
    values: np.ndarray,
    rows: pd.DataFrame,
    *,
    keep: int | None = 120,
    step: int = 32,
    trials: int = 200,
    rounds: int = 800,
    parameters: dict[str, Any] | None = None,
    seed: int = 42,
) -> Boosted:
    """Filter, recursive feature elimination, search, trees; all fitted on the training rows.

    Parameters
    ----------
    values : array [n, columns]
    rows : DataFrame [n]
        label (bool), split. Classes are weighted to equal sums.
    keep : int, optional
        Columns that the elimination retains, ``step`` fewer at a time; None: no elimination.
    trials : int
        Of Optuna, against the AUC on the development rows.
    rounds : int
        Trees at most.
    parameters : dict, optional
        num_leaves, min_child_samples, learning_rate: then there is no search.

    Raises
    ------
    ImportError
        Without the extra ``judge``.
    ValueError
        Training or development rows of one class, or no column that varies.
    """
    _require()
    require_classes(rows, "train")
    require_classes(rows, "dev")
    train, dev = ((rows["split"] == split).to_numpy() for split in ("train", "dev"))
    labels = rows["label"].to_numpy(bool)
    columns = np.flatnonzero(varying(values[train]))
    if not len(columns):
        raise ValueError("no feature varies over the training rows")
    pool = len(columns)
    if keep is not None and keep < pool:
        columns = columns[_eliminated(values[train][:, columns], labels[train], keep, step, rounds, seed)]
    fit = _Fit(values[:, columns], labels, train, dev, rounds, seed)
    found = _searched(fit, trials, seed) if parameters is None else fit(parameters)
    scores = found.predict(values[:, columns], num_iteration=found.best_iteration, raw_score=True)
    gain = found.feature_importance("gain", iteration=found.best_iteration)
    given = {name: found.params[name] for name in ("num_leaves", "min_child_samples", "learning_rate")}
    best = float(found.best_score["dev"]["auc"])
    return Boosted(scores, pool, columns, gain, given, found.best_iteration, best)


def on_features(features: Features, rows: pd.DataFrame, chosen: Sequence[bool] | None = None, **how: Any) -> Boosted:
    """:func:`boosted` on the features of the rows, all or the chosen columns; ``ValueError`` if some are missing."""
    everything = np.ones(len(features.columns), bool)
    return boosted(features.of(everything if chosen is None else chosen), rows, **how)


def importance(found: Boosted, features: Features) -> pd.DataFrame:
    """Table 30: family, features_retained, gini_importance_pct (of the total gain; the paper calls it Gini)."""
    families = features.columns["family"].to_numpy()[found.columns]
    total = found.gain.sum()
    rows = []
    for family in FAMILIES:
        share = 100 * found.gain[families == family].sum() / total if total > 0 else np.nan
        rows.append((family, int((families == family).sum()), share, "" if total > 0 else "no tree has a split"))
    return pd.DataFrame(rows, columns=["family", "features_retained", "gini_importance_pct", "reason"])


def _require() -> None:
    try:
        import lightgbm  # noqa: F401
        import optuna  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "boosted trees need LightGBM and Optuna, the extra named judge: pip install 'biasgeom[judge]', or run "
            "make book, which installs it"
        ) from error


def _fixed(seed: int, rows: int) -> dict[str, Any]:
    fixed = {"deterministic": True, "force_row_wise": True, "num_threads": 1, "seed": seed, "verbosity": -1}
    # A bin holds as many rows as the smallest leaf may: finer ones, up to LightGBM's default of 255, only cost time.
    return fixed | {"max_bin": int(np.clip(rows // MIN_CHILD[0], 2, 255))}


def _eliminated(values: np.ndarray, labels: np.ndarray, keep: int, step: int, rounds: int, seed: int) -> np.ndarray:
    from lightgbm import LGBMClassifier
    from sklearn.feature_selection import RFE

    how = _fixed(seed, len(labels)) | {"class_weight": "balanced", "importance_type": "gain", "n_estimators": rounds}
    how["n_jobs"] = how.pop("num_threads")
    return RFE(LGBMClassifier(**how), n_features_to_select=keep, step=step).fit(values, labels).support_


class _Fit:
    """Parameters → trees; the rows are sorted into bins once."""

    def __init__(
        self, values: np.ndarray, labels: np.ndarray, train: np.ndarray, dev: np.ndarray, rounds: int, seed: int
    ) -> None:
        import lightgbm

        self.rounds, self.fixed = rounds, _fixed(seed, int(train.sum())) | {"objective": "binary", "metric": "auc"}
        weights = 1 / np.bincount(labels[train], minlength=2)[labels[train].astype(int)]
        # Else the bins would depend on the first trial's min_child_samples.
        how = {"params": self.fixed | {"feature_pre_filter": False}}
        self.train = lightgbm.Dataset(values[train], labels[train], weight=weights * train.sum() / 2, **how)
        self.dev = lightgbm.Dataset(values[dev], labels[dev], reference=self.train, **how)

    def __call__(self, parameters: dict[str, Any]) -> "lightgbm.Booster":
        import lightgbm

        return lightgbm.train(
            self.fixed | {"feature_pre_filter": False} | parameters,
            self.train,
            num_boost_round=self.rounds,
            valid_sets=[self.dev],
            valid_names=["dev"],
            callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
        )


def _searched(fit: _Fit, trials: int, seed: int) -> "lightgbm.Booster":
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    made: list[lightgbm.Booster] = []

    def auc(trial: optuna.Trial) -> float:
        chosen = {
            "num_leaves": trial.suggest_int("num_leaves", *LEAVES),
            "min_child_samples": trial.suggest_int("min_child_samples", *MIN_CHILD),
            "learning_rate": trial.suggest_float("learning_rate", *RATE, log=True),
        }
        made.append(fit(chosen))
        return float(made[-1].best_score["dev"]["auc"])

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(auc, n_trials=trials)
    return made[study.best_trial.number]
