"""How shifts of representations go together with changes of output bias (ΔB paper 4.1-4.5, table 1).

A table of pairs has one row a checkpoint and group: ``checkpoint``, ``group``, ``shift`` (ΔB, or another measure) and
``change`` (bias score minus the reference's). The paper pools them. Its p-values take pairs of one group, or of one
checkpoint, as independent, which they are not: beside them stand intervals that resample whole groups, and the
correlations between checkpoints, within groups and within checkpoints. What is undefined is None, with the reason
beside it in ``undefined``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import pearsonr, rankdata
from sklearn.metrics import roc_auc_score, roc_curve

from biasgeom.statistics import band, exceedance_p, resample_groups

# Averaging over groups leaves the checkpoints; subtracting a mean leaves what varies within. Axes: groups, checkpoints.
LEVELS = {
    "pooled": lambda v: v,
    "between checkpoints": lambda v: v.mean(axis=-2, keepdims=True),
    "within group": lambda v: v - v.mean(axis=-1, keepdims=True),
    "within checkpoint": lambda v: v - v.mean(axis=-2, keepdims=True),
}


@dataclass(frozen=True)
class Correlation:
    """Pearson's r of n pairs with its two-sided p; None where ``undefined`` says why."""

    n: int
    r: float | None = None
    p: float | None = None
    undefined: str = ""

    @property
    def stars(self) -> str:
        """``***`` below 0.001, ``**`` below 0.01, ``*`` below 0.05, as the paper's table 1 is read."""
        return "" if self.p is None else "*" * sum(self.p < bound for bound in (0.05, 0.01, 0.001))


@dataclass(frozen=True)
class Detection:
    """ROC AUC for n pairs of which some show increased bias; None where ``undefined`` says why."""

    n: int
    increased: int
    auc: float | None = None
    undefined: str = ""


def _finite(shift: np.ndarray, change: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(shift, dtype=np.float64), np.asarray(change, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1 or not len(x):
        raise ValueError(f"need as many shifts as changes, and at least one; got {x.shape} and {y.shape}")
    if not np.isfinite([x, y]).all():
        raise ValueError("shifts and changes must be finite; leave out pairs without a score and say so")
    return x, y


def _constant(values: np.ndarray) -> bool:
    """Whether the values differ by rounding alone."""
    return bool(np.ptp(values) <= 1e-12 * np.abs(values).max())


def _increased(change: np.ndarray, threshold: float) -> np.ndarray:
    # 0.4 - 0.3 is above 0.1 by rounding alone.
    return change > threshold + 1e-9


def pearson(shift: np.ndarray, change: np.ndarray) -> Correlation:
    """Pearson's r with the two-sided p of independent pairs (ΔB paper 4.1): [n], [n] → Correlation.

    ValueError, here and below, for values that are not finite or don't pair.
    """
    x, y = _finite(shift, change)
    if len(x) < 3:
        return Correlation(len(x), undefined="fewer than three pairs")
    for name, values in (("shift", x), ("change", y)):
        if _constant(values):
            return Correlation(len(x), undefined=f"the {name} of all pairs is the same")
    found = pearsonr(x, y)
    return Correlation(len(x), float(found.statistic), float(found.pvalue))


def auc(shift: np.ndarray, change: np.ndarray, *, threshold: float = 0.1, direction: int = -1) -> Detection:
    """ROC AUC of the shift as a flag for increased bias, change > threshold (ΔB paper 4.2, 4.5).

    Parameters
    ----------
    direction : {-1, 1}
        Fixed by what the measure means, never by the outcome: −1 flags low values (ΔB), 1 high ones (CKA drift).
    """
    x, y = _finite(shift, change)
    if direction not in (-1, 1):
        raise ValueError(f"direction must be -1 (low values flag) or 1 (high values flag), not {direction!r}")
    increased = _increased(y, threshold)
    if increased.all() or not increased.any():
        reason = f"{'every' if increased.any() else 'no'} pair has an increase above {threshold:g}"
        return Detection(len(x), int(increased.sum()), undefined=reason)
    return Detection(len(x), int(increased.sum()), float(roc_auc_score(increased, direction * x)))


def roc(shift: np.ndarray, change: np.ndarray, *, threshold: float = 0.1, direction: int = -1) -> pd.DataFrame:
    """The ROC curve: false_positive, true_positive, cutoff (a shift that flags); no row where the AUC is undefined."""
    x, y = _finite(shift, change)
    if auc(x, y, threshold=threshold, direction=direction).auc is None:
        return pd.DataFrame({"false_positive": [], "true_positive": [], "cutoff": []})
    false, true, cutoff = roc_curve(_increased(y, threshold), direction * x)
    return pd.DataFrame({"false_positive": false, "true_positive": true, "cutoff": direction * cutoff})


def mae(shift: np.ndarray, change: np.ndarray, *, draws: int = 1000, seed: int = 0) -> dict[str, float | str | None]:
    """Mean absolute error of a linear fit of the change on the shift, mean over bootstrap resamples (ΔB paper 4.1).

    The paper doesn't say on which pairs the error is taken: here on the resample that was fitted, and on the pairs it
    left out. Resamples without two different shifts, or with nothing left out, don't count.

    Returns
    -------
    dict
        in_sample, out_of_bag, undefined. Resample b is row b of ``default_rng(seed).integers(n, size=(draws, n))``.
    """
    x, y = _finite(shift, change)
    drawn = np.random.default_rng(seed).integers(len(x), size=(draws, len(x)))
    left_out = np.ones(drawn.shape, dtype=bool)
    np.put_along_axis(left_out, drawn, False, axis=1)
    usable = (np.ptp(x[drawn], axis=1) > 1e-12 * np.abs(x).max()) & left_out.any(axis=1)
    if not usable.any():
        return {"in_sample": None, "out_of_bag": None, "undefined": "no resample has two shifts and leaves a pair out"}
    drawn, left_out = drawn[usable], left_out[usable]
    centre_x, centre_y = (part[drawn].mean(axis=1, keepdims=True) for part in (x, y))
    dx, dy = x[drawn] - centre_x, y[drawn] - centre_y
    slope = (dx * dy).sum(axis=1, keepdims=True) / (dx**2).sum(axis=1, keepdims=True)
    errors = np.abs(y - centre_y - slope * (x - centre_x)).mean(axis=1, where=left_out)
    return {"in_sample": float(np.abs(dy - slope * dx).mean()), "out_of_bag": float(errors.mean()), "undefined": ""}


def _complete(table: pd.DataFrame, value: str) -> pd.DataFrame:
    """One value, a row a group and a column a checkpoint."""
    if missing := {"checkpoint", "group", value} - set(table.columns):
        raise ValueError(f"a table with the columns checkpoint, group and {value} is needed; it lacks {missing}")
    if (twice := table.duplicated(["group", "checkpoint"])).any():
        raise ValueError(f"{tuple(table.loc[twice, ['group', 'checkpoint']].iloc[0])} is there twice")
    wide = table.pivot(index="group", columns="checkpoint", values=value)
    wide = wide.loc[table["group"].unique(), table["checkpoint"].unique()]
    if (absent := ~np.isfinite(wide.stack())).any():
        raise ValueError(f"every group needs a finite {value} at every checkpoint; look at {absent.idxmax()}")
    return wide


def _grid(pairs: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    return _complete(pairs, "shift").to_numpy(), _complete(pairs, "change").to_numpy()


def by_topic(shifts: pd.DataFrame, changes: pd.DataFrame, topics: Mapping[str, str]) -> pd.DataFrame:
    """Pairs of topic-level scores, the topic as group: its groups' mean shift beside its change of bias.

    Parameters
    ----------
    shifts : DataFrame
        checkpoint, group, shift; of all groups, since a mean over some would be another topic's shift.
    changes : DataFrame
        checkpoint, topic, change. A topic that was never scored has no pairs.
    topics : mapping of group → topic
    """
    wide = _complete(shifts, "shift")
    if odd := set(wide.index) ^ set(topics):
        raise ValueError(f"shifts and topics must be of the same groups; only one has {', '.join(sorted(odd))}")
    means = wide.groupby(dict(topics)).mean().stack()
    pairs = changes.rename(columns={"topic": "group"})
    if len(unknown := _complete(pairs, "change").stack().index.difference(means.index)):
        raise ValueError(f"there is a change of bias but no shift for {unknown[0]}")
    pairs = pairs.assign(shift=means.loc[pd.MultiIndex.from_frame(pairs[["group", "checkpoint"]])].to_numpy())
    return pairs[["checkpoint", "group", "shift", "change"]].reset_index(drop=True)


def _correlations(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """r at the four levels, NaN where undefined: [..., groups, checkpoints] twice → [..., 4]."""
    found = []
    for part in LEVELS.values():
        dx, dy = (part(v).reshape(*v.shape[:-2], -1) for v in (x, y))
        dx, dy = (v - v.mean(axis=-1, keepdims=True) for v in (dx, dy))
        norms = [np.linalg.norm(v, axis=-1) for v in (dx, dy)]
        # Relative to the pairs themselves: deviations from means are never exactly zero.
        defined = [norm > 1e-12 * np.abs(v).max(axis=(-2, -1)) for norm, v in zip(norms, (x, y), strict=True)]
        where = defined[0] & defined[1] & (dx.shape[-1] >= 3)
        nothing = np.full(norms[0].shape, np.nan)
        found.append(np.divide((dx * dy).sum(axis=-1), norms[0] * norms[1], out=nothing, where=where))
    return np.stack(found, axis=-1)


def _aucs(flag: np.ndarray, increased: np.ndarray) -> np.ndarray:
    """ROC AUC along the last axis from ranks (Mann and Whitney), NaN for labels of one class."""
    positive = increased.sum(axis=-1)
    negative = increased.shape[-1] - positive
    above = (rankdata(flag, axis=-1) * increased).sum(axis=-1) - positive * (positive + 1) / 2
    return np.divide(above, positive * negative, out=np.full(len(flag), np.nan), where=positive * negative > 0)


def _resampled(pairs: pd.DataFrame, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Shifts and changes of resampled groups: [draws, groups, checkpoints] twice."""
    x, y = _grid(pairs)
    drawn = resample_groups(np.repeat(np.arange(len(x)), x.shape[1]), draws, np.random.default_rng(seed))
    return x.ravel()[drawn].reshape(draws, *x.shape), y.ravel()[drawn].reshape(draws, *y.shape)


def _interval(replicates: np.ndarray) -> tuple[float | None, float | None]:
    """2.5 % and 97.5 % over the resamples where the statistic is defined."""
    defined = replicates[~np.isnan(replicates)]
    return tuple(map(float, band(defined))) if len(defined) else (None, None)


def decomposition(pairs: pd.DataFrame, *, draws: int = 1000, seed: int = 0) -> pd.DataFrame:
    """Where the pooled correlation comes from.

    Between checkpoints: of their means over groups, so of global drift. Within group: of the deviations from each
    group's mean, without what sets groups apart. Within checkpoint: of the deviations from each checkpoint's mean, so
    of which groups moved more than others, without global drift.

    Returns
    -------
    DataFrame
        level, n, r, low, high (95 % over resampled groups), undefined; empty cells where undefined.
    """
    x, y = _grid(pairs)
    replicates = _correlations(*_resampled(pairs, draws, seed))
    rows = []
    for name, r, drawn in zip(LEVELS, _correlations(x, y), replicates.T, strict=True):
        row = {"level": name, "n": x.shape[1] if name == "between checkpoints" else x.size, "undefined": ""}
        if np.isnan(r):
            row["undefined"] = "fewer than three values, or shift or change is the same throughout"
        else:
            row["r"] = float(r)
            row["low"], row["high"] = _interval(drawn)
        rows.append(row)
    return pd.DataFrame(rows, columns=["level", "n", "r", "low", "high", "undefined"])


def summary(
    pairs: pd.DataFrame, *, threshold: float = 0.1, direction: int = -1, draws: int = 1000, seed: int = 0
) -> dict[str, float | int | str | None]:
    """A row of the paper's table 1 for one setting, with 95 % intervals that resample groups.

    Returns
    -------
    dict
        n, r, p, stars, r_low, r_high; increased (pairs above the threshold), auc, auc_low, auc_high; auc_above_0
        (label: change > 0); mae, mae_out_of_bag; undefined, the reasons for what is None.
    """
    x, y = _resampled(pairs, draws, seed)
    shift, change = pairs["shift"].to_numpy(), pairs["change"].to_numpy()
    r, errors = pearson(shift, change), mae(shift, change, draws=draws, seed=seed)
    found, above = (auc(shift, change, threshold=at, direction=direction) for at in (threshold, 0.0))
    r_low, r_high = _interval(_correlations(x, y)[:, 0])
    low, high = _interval(_aucs(direction * x.reshape(draws, -1), _increased(y.reshape(draws, -1), threshold)))
    reasons = dict.fromkeys([r.undefined, found.undefined, above.undefined, errors["undefined"]])
    row = {"n": r.n, "r": r.r, "p": r.p, "stars": r.stars, "r_low": r_low, "r_high": r_high}
    row |= {"increased": found.increased, "auc": found.auc, "auc_low": low, "auc_high": high, "auc_above_0": above.auc}
    row |= {"mae": errors["in_sample"], "mae_out_of_bag": errors["out_of_bag"]}
    return row | {"undefined": "; ".join(reason for reason in reasons if reason)}


def contrast(pairs: pd.DataFrame, halves: Mapping[str, str], *, draws: int = 1000, seed: int = 0) -> pd.DataFrame:
    """Groups that were trained to be seen badly against the others, checkpoint by checkpoint.

    Parameters
    ----------
    halves : mapping of group → "biased" or "control"

    Returns
    -------
    DataFrame
        checkpoint, measure (shift, change), biased and control (means), difference, low, high (95 % over groups
        resampled within their half), p (two-sided, halves permuted over groups).
    """
    tables = {measure: _complete(pairs, measure) for measure in ("shift", "change")}
    labels = np.array([halves.get(group, "") for group in tables["shift"].index])
    sizes = {half: int((labels == half).sum()) for half in ("biased", "control")}
    if sum(sizes.values()) < len(labels) or min(sizes.values()) < 2:
        raise ValueError(f"every group needs the half biased or control, and each half two groups; found {sizes}")
    biased, rng = labels == "biased", np.random.default_rng(seed)
    permuted = rng.permuted(np.broadcast_to(biased, (draws, len(biased))), axis=1)
    null = permuted / sizes["biased"] - ~permuted / sizes["control"]
    resampled = np.zeros((draws, len(biased)))
    for half, n in sizes.items():
        shares = rng.multinomial(n, np.full(n, 1 / n), size=draws) / n
        resampled[:, labels == half] = shares if half == "biased" else -shares
    rows = []
    for measure, table in tables.items():
        values = table.to_numpy()
        means = values[biased].mean(axis=0), values[~biased].mean(axis=0)
        p = exceedance_p(np.abs(means[0] - means[1]), np.abs(null @ values).T)
        bounds = band((resampled @ values).T)
        rows += zip(table.columns, [measure] * len(p), *means, means[0] - means[1], *bounds, p, strict=True)
    return pd.DataFrame(rows, columns=["checkpoint", "measure", "biased", "control", "difference", "low", "high", "p"])
