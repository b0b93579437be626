"""Statistics of pairs against scipy, sklearn and loops, and the published table's own stars."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from biasgeom import data, pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, permutation_test
from sklearn.linear_model import LinearRegression
from sklearn.metrics import auc as area

GROUPS, CHECKPOINTS = list("dbeacf"), ["unharmful", "30", "70", "synth"]


def table(seed: int = 0, *, drift: float = 1.0, groups: list[str] = GROUPS) -> pd.DataFrame:
    """Pairs in no order: a drift along the checkpoints, what sets groups apart, and noise."""
    rng = np.random.default_rng(seed)
    rows = pd.DataFrame(itertools.product(CHECKPOINTS, groups), columns=["checkpoint", "group"])
    share = rows["checkpoint"].map(dict(zip(CHECKPOINTS, (0, 0.3, 0.7, 1), strict=True)))
    rows["shift"] = -drift * share + rng.normal(size=len(rows)) / 4
    rows["change"] = drift * share - 0.3 * rows["shift"] + rng.normal(size=len(rows)) / 4
    return rows.sample(frac=1, random_state=seed)


def matrices(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    return tuple(rows.pivot(index="group", columns="checkpoint", values=v).to_numpy() for v in ("shift", "change"))


@settings(max_examples=50, deadline=None)
@given(n=st.integers(3, 40), seed=st.integers(0, 10**6))
def test_r_and_p_are_scipys(n: int, seed: int) -> None:
    x, y = np.random.default_rng(seed).normal(size=(2, n))
    found, expected = pairs.pearson(x, y), pearsonr(x, y, alternative="two-sided")
    assert (found.n, found.undefined) == (n, "")
    assert (found.r, found.p) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-12)
    assert found.r == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-12)


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ([0.1 + 0.2, 0.3, 0.3], [1, 2, 3], "the shift of all pairs is the same"),
        ([1, 2, 3], [0, 0, 0], "the change of all pairs is the same"),
        ([1, 2], [2, 1], "fewer than three pairs"),
    ],
)
def test_no_coefficient_where_there_is_none(x: list, y: list, reason: str) -> None:
    found = pairs.pearson(x, y)
    assert (found.r, found.p, found.undefined, found.stars) == (None, None, reason, "")


def exactly_correlated(r: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    x, e = np.linalg.qr(np.column_stack([np.ones(n), np.random.default_rng(n).normal(size=(n, 2))]))[0].T[1:]
    return x, r * x + math.sqrt(1 - r**2) * e


def reproduced(row, n: int) -> bool:
    """Whether some r that is printed as the published one has the published stars."""
    rounded = (row.pearson_r + d for d in (-0.00499, 0, 0.00499))
    return row.significance in {pairs.pearson(*exactly_correlated(r, n)).stars for r in rounded}


def test_published_stars_fit_63_and_168_pairs() -> None:
    """7 checkpoints × 9 topics or groups, and 7 × 24 groups. The paper prints no n; its stars bound it."""
    path = data.root() / "data" / "published" / "delta_b_table1.csv"
    published = pd.read_csv(path, keep_default_na=False)
    fit = {
        benchmark: {k for k in range(1, 36) if all(reproduced(row, 7 * k) for row in part.itertuples())}
        for benchmark, part in published.groupby("benchmark")
    }
    assert 9 in fit["ToxiGen"] <= {9, 10}
    assert 9 in fit["WildGuardMix"] <= set(range(7, 12))
    assert 24 in fit["DecodingTrust"] <= set(range(12, 31))
    # Negative controls: one observation a checkpoint, and each benchmark with the other's number.
    assert not any({1, 2, 3} & ks for ks in fit.values())
    assert 24 not in fit["WildGuardMix"]
    assert 9 not in fit["DecodingTrust"]
    # Section 4.4 prints a p of 0.14 for r = -0.19.
    assert pairs.pearson(*exactly_correlated(-0.19, 63)).p == pytest.approx(0.14, abs=0.005)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(2, 25), levels=st.integers(1, 9), seed=st.integers(0, 10**6), direction=st.sampled_from([-1, 1]))
def test_auc_is_the_share_of_pairs_in_the_right_order(n: int, levels: int, seed: int, direction: int) -> None:
    rng = np.random.default_rng(seed)
    shift, change = rng.integers(levels, size=n) / 3, rng.normal(size=n) / 4
    high, low = ([s for s, c in zip(shift, change, strict=True) if (c > 0.1) == label] for label in (True, False))
    found = pairs.auc(shift, change, direction=direction)
    assert (found.n, found.increased) == (n, len(high))
    if not high or not low:
        assert found.auc is None
        assert found.undefined == f"{'no' if not high else 'every'} pair has an increase above 0.1"
        assert pairs.roc(shift, change, direction=direction).empty
        return
    wins = [1.0 if direction * (h - k) > 0 else 0.5 if h == k else 0.0 for h in high for k in low]
    assert found.auc == pytest.approx(np.mean(wins), abs=1e-12)
    assert pairs._aucs(direction * shift[None], change[None] > 0.1)[0] == pytest.approx(found.auc, abs=1e-12)
    curve = pairs.roc(shift, change, direction=direction)
    assert area(curve["false_positive"], curve["true_positive"]) == pytest.approx(found.auc, abs=1e-12)
    for row in curve.itertuples():
        flagged = direction * shift >= direction * row.cutoff
        assert row.true_positive == pytest.approx(flagged[change > 0.1].mean())
        assert row.false_positive == pytest.approx(flagged[change <= 0.1].mean())


def test_the_direction_is_never_chosen_by_the_outcome() -> None:
    shift, change = np.array([-3.0, -2, -1, 0]), np.array([0.0, 0, 0.3, 0.3])
    assert pairs.auc(shift, change).auc == 0
    assert pairs.auc(shift, change, direction=1).auc == 1
    with pytest.raises(ValueError, match="direction must be -1"):
        pairs.auc(shift, change, direction=0)


def test_the_threshold_is_on_the_change_and_exclusive() -> None:
    shift, change = np.array([-3.0, -2, -1, 0]), np.array([0.3, 0.4 - 0.3, 0.05, -0.2])
    assert change[1] > 0.1, "by rounding alone"
    assert [pairs.auc(shift, change, threshold=at).increased for at in (0.1, 0.0, 0.04, 0.3, -1)] == [1, 3, 3, 0, 4]


def test_mae_is_the_loop() -> None:
    rows = table()
    x, y = rows["shift"].to_numpy(), rows["change"].to_numpy()
    inside, outside = [], []
    for drawn in np.random.default_rng(5).integers(len(x), size=(200, len(x))):
        line = LinearRegression().fit(x[drawn, None], y[drawn])
        inside.append(np.abs(y[drawn] - line.predict(x[drawn, None])).mean())
        rest = np.setdiff1d(np.arange(len(x)), drawn)
        outside.append(np.abs(y[rest] - line.predict(x[rest, None])).mean())
    found = pairs.mae(x, y, draws=200, seed=5)
    assert found["in_sample"] == pytest.approx(np.mean(inside), abs=1e-12)
    assert found["out_of_bag"] == pytest.approx(np.mean(outside), abs=1e-12)
    # The two are not the same thing, and in-sample is the kinder.
    assert found["out_of_bag"] > found["in_sample"] * 1.02
    assert pairs.mae(x, 2 - 3 * x)["out_of_bag"] == pytest.approx(0, abs=1e-12)


def test_no_fit_without_two_shifts() -> None:
    for x in ([1.0, 1, 1, 1], [2.0], [1.0, 2]):
        found = pairs.mae(x, np.arange(len(x)))
        assert found["in_sample"] is None
        assert found["out_of_bag"] is None
        assert "two shifts" in found["undefined"]
    # Few pairs: degenerate resamples are left out, without a warning.
    assert np.isfinite(pairs.mae([1.0, 1, 2], [0.0, 1, 2])["out_of_bag"])


def levels(rows: pd.DataFrame) -> dict[str, float]:
    """The four correlations by pandas."""
    part = rows[["shift", "change"]]
    return {
        "pooled": part,
        "between checkpoints": part.groupby(rows["checkpoint"]).mean(),
        "within group": part - part.groupby(rows["group"]).transform("mean"),
        "within checkpoint": part - part.groupby(rows["checkpoint"]).transform("mean"),
    }


@pytest.mark.parametrize("seed", range(5))
def test_decomposition_by_pandas(seed: int) -> None:
    rows = table(seed)
    found = pairs.decomposition(rows, draws=50).set_index("level")
    expected = {name: part.corr().loc["shift", "change"] for name, part in levels(rows).items()}
    assert found["r"].to_dict() == pytest.approx(expected, abs=1e-12)
    assert found["n"].to_dict() == {name: len(part) for name, part in levels(rows).items()}
    assert (found["low"] <= found["high"]).all()


def test_global_drift_shows_between_checkpoints_alone() -> None:
    """The case the decomposition is for: a pooled r near -1 that says nothing about which group moved."""
    rng = np.random.default_rng(0)
    rows = table()
    share = rows["checkpoint"].map(dict(zip(CHECKPOINTS, range(4), strict=True)))
    rows["shift"], rows["change"] = -share + 0.1 * rng.normal(size=24), share + 0.1 * rng.normal(size=24)
    found = pairs.decomposition(rows).set_index("level")
    assert found.loc["pooled", "r"] < -0.95
    assert found.loc["between checkpoints", "r"] < -0.99
    assert abs(found.loc["within checkpoint", "r"]) < 0.4
    assert found.loc["within checkpoint", "low"] < 0 < found.loc["within checkpoint", "high"]
    # Groups that differ without moving: the reverse.
    code = rows["group"].map({group: i for i, group in enumerate(GROUPS)})
    rows["shift"], rows["change"] = code.astype(float), -code + 1e-3 * rng.normal(size=24)
    still = pairs.decomposition(rows).set_index("level")
    assert still.loc["within checkpoint", "r"] < -0.99
    assert still["undefined"].to_dict() == {
        "pooled": "",
        "between checkpoints": (reason := "fewer than three values, or shift or change is the same throughout"),
        "within group": reason,
        "within checkpoint": "",
    }
    assert still["r"].isna().tolist() == [False, True, True, False]


def test_intervals_resample_whole_groups() -> None:
    """Against a loop that draws groups by name; drawing pairs one by one gives other intervals."""
    rng = np.random.default_rng(1)
    groups = [f"g{i}" for i in range(20)]
    rows = table(2, drift=0.1, groups=groups)
    level = rows["group"].map(dict(zip(groups, rng.normal(size=20), strict=True)))
    rows["shift"], rows["change"] = rows["shift"] / 4 + level, rows["change"] / 4 - 0.5 * level + 0.1
    found = pairs.summary(rows, draws=2000, seed=1)
    x, y = matrices(rows)
    drawn = []
    for chosen in rng.integers(20, size=(1000, 20)):
        again = [(shift, change) for i in chosen for shift, change in zip(x[i], y[i], strict=True)]
        high, low = (np.array([s for s, c in again if (c > 0.1) == label]) for label in (True, False))
        drawn.append([np.corrcoef(np.transpose(again))[0, 1], (high[:, None] < low).mean()])
    (r_low, auc_low), (r_high, auc_high) = np.quantile(drawn, [0.025, 0.975], axis=0)
    assert (found["r_low"], found["r_high"]) == pytest.approx((r_low, r_high), abs=0.2 * (r_high - r_low))
    assert (found["auc_low"], found["auc_high"]) == pytest.approx((auc_low, auc_high), abs=0.2 * (auc_high - auc_low))
    singly = rng.integers(len(rows), size=(1000, len(rows)))
    naive = [np.corrcoef(rows["shift"].to_numpy()[i], rows["change"].to_numpy()[i])[0, 1] for i in singly]
    assert np.ptp(np.quantile(naive, [0.025, 0.975])) < 0.75 * (r_high - r_low)
    decomposed = pairs.decomposition(rows, draws=2000, seed=1).set_index("level")
    pooled = decomposed.loc["pooled", ["r", "low", "high"]].tolist()
    assert pooled == pytest.approx([found["r"], found["r_low"], found["r_high"]], abs=1e-12)


def test_summary_is_its_parts() -> None:
    rows = table()
    x, y = rows["shift"], rows["change"]
    found = pairs.summary(rows, threshold=0.2, draws=300, seed=4)
    r, detection, errors = pairs.pearson(x, y), pairs.auc(x, y, threshold=0.2), pairs.mae(x, y, draws=300, seed=4)
    assert (found["n"], found["r"], found["p"], found["stars"]) == (24, r.r, r.p, "***")
    assert (found["increased"], found["auc"]) == (detection.increased, detection.auc)
    assert found["auc_above_0"] == pairs.auc(x, y, threshold=0).auc
    assert (found["mae"], found["mae_out_of_bag"]) == (errors["in_sample"], errors["out_of_bag"])
    assert found["undefined"] == ""
    assert found["auc_low"] <= found["auc"] <= found["auc_high"]
    assert found == pairs.summary(rows.iloc[::-1], threshold=0.2, draws=300, seed=4) | {
        key: found[key] for key in ("mae", "mae_out_of_bag", "r", "p", "r_low", "r_high", "auc_low", "auc_high")
    }
    mirrored = pairs.summary(rows.assign(shift=-x), direction=1, threshold=0.2, draws=300, seed=4)
    assert (mirrored["auc"], mirrored["auc_low"]) == pytest.approx((found["auc"], found["auc_low"]))


def test_a_summary_without_anything_says_why() -> None:
    found = pairs.summary(table().assign(change=0.0), draws=20)
    assert found["undefined"] == (
        "the change of all pairs is the same; no pair has an increase above 0.1; no pair has an increase above 0"
    )
    for key in ("r", "p", "r_low", "r_high", "auc", "auc_low", "auc_high", "auc_above_0"):
        assert found[key] is None
    assert found["mae"] == pytest.approx(0, abs=1e-12)


HALVES = {group: "biased" if group in "abc" else "control" for group in GROUPS}


def test_contrast_of_the_halves() -> None:
    rows = table(3)
    rows.loc[rows["group"].isin(list("abc")), "shift"] -= 1.2
    found = pairs.contrast(rows, HALVES, draws=2000).set_index(["measure", "checkpoint"])
    assert len(found) == 2 * len(CHECKPOINTS)
    for (measure, checkpoint), row in found.iterrows():
        at = rows[rows["checkpoint"] == checkpoint].set_index("group")[measure]
        biased, control = at[list("abc")], at[list("def")]
        assert (row["biased"], row["control"]) == pytest.approx((biased.mean(), control.mean()), abs=1e-12)
        assert row["difference"] == pytest.approx(biased.mean() - control.mean(), abs=1e-12)
        assert row["low"] <= row["difference"] <= row["high"]
        # All 20 ways to halve six groups.
        exact = permutation_test((biased, control), lambda a, b: abs(np.mean(a) - np.mean(b)), alternative="greater")
        assert row["p"] == pytest.approx(exact.pvalue, abs=0.04)
        resampled = [
            np.mean(b) - np.mean(c)
            for b in itertools.product(biased, repeat=3)
            for c in itertools.product(control, repeat=3)
        ]
        low, high = np.quantile(resampled, [0.025, 0.975])
        assert (row["low"], row["high"]) == pytest.approx((low, high), abs=0.15 * (high - low))
    assert (found.loc["shift", "difference"] < -0.2).all()


@pytest.mark.parametrize("halves", [{**HALVES, "a": "other"}, {g: "biased" for g in GROUPS}, {"a": "biased"}])
def test_halves_must_cover_the_groups(halves: dict) -> None:
    with pytest.raises(ValueError, match="every group needs the half biased or control"):
        pairs.contrast(table(), halves)


def test_topics_take_the_mean_shift_of_their_groups() -> None:
    rows = table()
    topics = {group: "T1" if group in "ab" else "T2" if group in "cde" else "T3" for group in GROUPS}
    changes = pd.DataFrame(itertools.product(["T2", "T1"], CHECKPOINTS[::-1]), columns=["topic", "checkpoint"])
    changes["change"] = np.arange(8) / 10
    found = pairs.by_topic(rows[["checkpoint", "group", "shift"]], changes, topics)
    assert list(found.columns) == ["checkpoint", "group", "shift", "change"]
    assert len(found) == 8, "a topic without a score has no pair"
    for row, change in zip(found.itertuples(), changes.itertuples(), strict=True):
        members = [g for g, topic in topics.items() if topic == row.group]
        at = rows[(rows["checkpoint"] == row.checkpoint) & rows["group"].isin(members)]
        assert row.shift == pytest.approx(at["shift"].mean(), abs=1e-12)
        assert (row.group, row.checkpoint, row.change) == (change.topic, change.checkpoint, change.change)
    with pytest.raises(ValueError, match="only one has g"):
        pairs.by_topic(rows, changes, topics | {"g": "T1"})
    with pytest.raises(ValueError, match="needs a finite shift at every checkpoint; look at"):
        pairs.by_topic(rows.iloc[1:], changes, topics)
    with pytest.raises(ValueError, match=r"no shift for \('T4', "):
        pairs.by_topic(rows, changes.replace("T1", "T4"), topics)
    with pytest.raises(ValueError, match=r"\('T2', 'synth'\) is there twice"):
        pairs.by_topic(rows, pd.concat([changes, changes.head(1)]), topics)


@pytest.mark.parametrize("function", [pairs.summary, pairs.decomposition, lambda t: pairs.contrast(t, HALVES)])
def test_a_table_that_is_not_complete_is_refused(function) -> None:
    rows = table()
    first = tuple(rows[["group", "checkpoint"]].iloc[0])
    with pytest.raises(ValueError, match=r"lacks \{'change'\}"):
        function(rows.drop(columns="change"))
    with pytest.raises(ValueError, match=f"{first[1]}'\\) is there twice"):
        function(pd.concat([rows, rows.head(1)]))
    with pytest.raises(ValueError, match=f"look at \\('{first[0]}', '{first[1]}'\\)"):
        function(rows.iloc[1:])
    with pytest.raises(ValueError, match="a finite shift"):
        function(rows.assign(shift=np.inf))


def test_vectors_that_do_not_pair() -> None:
    for x, y in (([1, 2], [1]), ([], []), ([[1]], [[2]])):
        with pytest.raises(ValueError, match="as many shifts as changes"):
            pairs.pearson(x, y)
    with pytest.raises(ValueError, match="must be finite"):
        pairs.mae([1, 2, np.nan], [1, 2, 3])
