"""Targets and features: against naive loops, and proofs that no question outside the training split enters a fit."""

import functools

import numpy as np
import pandas as pd
import pytest
from biasgeom import estimators, landscape, prediction, substrate
from biasgeom.perturbations import BIASES, name
from scipy.stats import kurtosis
from sklearn.covariance import LedoitWolf
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score

Q, L, D = 45, 2, 30
CUES = [name(bias, "negative") for bias in BIASES]


def judged(*, signal: float = 3.0, seed: int = 0, cues: int = 3) -> tuple[np.ndarray, pd.DataFrame]:
    """States [rows, L, D] and items of Q questions, base and some negative cues; every other cue lowers the score."""
    rng = np.random.default_rng(seed)
    rows, states = [], []
    for q in range(Q):
        split = ("train", "train", "dev", "test", "train")[q % 5]
        about = {"question_id": f"q{q}", "domain": f"d{q % 4}", "held_out": False, "split": split, "voice": "plain"}
        content = rng.normal(size=(L, D)) + 4
        for condition in ["base", *CUES[:cues]]:
            degraded = condition != "base" and rng.random() < 0.5
            about |= {"condition": condition, "bias": condition[:-1], "polarity": "negative", "changed": True}
            if condition == "base":
                about |= {"bias": "", "polarity": ""}
            rows.append(about | {"text": f"{q} {condition}", "score": 7.0 - 2 * degraded})
            states.append(content + 0.5 * rng.normal(size=(L, D)) + signal * degraded * np.eye(D)[1])
    return np.array(states, dtype=np.float32), pd.DataFrame(rows)


def tables(items: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    rows = prediction.outcomes(items, 1.0)
    base = items.assign(row=np.arange(len(items))).query("condition == 'base'")
    return rows, base, substrate.effective(landscape.shifts(items), 2.0)


def test_outcomes() -> None:
    _, items = judged()
    items.loc[[1, 2, 3], "score"] = [6.0, 6.5, np.nan]
    items.loc[0, "score"] = 7.0
    rows = prediction.outcomes(items, 1.0)
    assert len(rows) == 3 * Q - 1
    assert rows["label"].tolist()[:2] == [False, True]  # one point lower is degraded, half a point is not
    assert (items.loc[rows["row"], "text"].to_numpy() == rows["text"].to_numpy()).all()
    assert set(rows["condition"]) == set(CUES[:3])
    for points in (np.nan, 0.0):
        with pytest.raises(ValueError, match="alike"):
            prediction.outcomes(items, points)


def test_style_is_told_from_the_condition() -> None:
    _, items = judged()
    items.loc[1, "changed"] = False
    items.loc[0, "changed"] = False  # a base answer never is
    rows = prediction.stylistic(items)
    assert len(rows) == 4 * Q - 1
    assert (rows["label"] == (rows["condition"] != "base")).all()
    assert 0 in set(rows["row"])
    assert 1 not in set(rows["row"])


def test_one_class_is_named() -> None:
    rows = pd.DataFrame({"split": ["train", "train", "dev"], "label": [True, False, True]})
    prediction.require_classes(rows, "train")
    for split, what in (("dev", "true"), ("test", "none")):
        with pytest.raises(ValueError, match=rf"split {split} .*\({what}\)"):
            prediction.require_classes(rows, split)


def test_24_features_a_block_in_three_families() -> None:
    index = prediction.index([3, 5])
    assert len(index) == 48
    assert index.groupby(["block", "family"]).size().tolist() == [8, 2, 14] * 2
    assert not index.duplicated(["feature", "block"]).any()


def test_features_are_those_of_a_naive_loop() -> None:
    states, items = judged()
    rows, base, pairs = tables(items)
    made = prediction.features(states, rows, base, pairs, folds=3)
    assert not made.missing
    assert made.values.shape == (len(rows), 24 * L)
    some = made.at(rows.iloc[[5, 2]])
    np.testing.assert_array_equal(some.values, made.values[[5, 2]])
    with pytest.raises(KeyError):
        made.at(base)
    train_base, train_pairs = (t[t["split"] == "train"] for t in (base, pairs))
    fold = substrate.question_folds(train_base["question_id"], folds=3)

    @functools.cache
    def fitted(without: int, block: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        clean = train_base[fold[train_base["question_id"]].to_numpy() != without]
        moved = train_pairs[fold[train_pairs["question_id"]].to_numpy() != without]
        found, _ = estimators.from_pairs(states, moved, clean, block, methods=["lda", "classifier"])
        return states[clean["row"], block].astype(float), found

    @functools.cache
    def model(without: int, block: int) -> LedoitWolf:
        return LedoitWolf().fit(fitted(without, block)[0])

    for place in range(0, len(rows), 6):
        row = rows.iloc[place]
        own = fold[row["question_id"]] if row["split"] == "train" else -1
        for block in range(L):
            h = states[row["row"], block].astype(float)
            clean, found = fitted(own, block)
            every, whole = fitted(-1, block)
            expected = {}
            for method in ("lda", "classifier"):
                v, centred = found[method], h - clean.mean(axis=0)
                expected[f"projection_{method}"] = centred @ v + every.mean(axis=0) @ whole[method]
                if own < 0:
                    assert expected[f"projection_{method}"] == pytest.approx(h @ v)
                expected[f"centred_{method}"] = centred @ v
                expected[f"cosine_{method}"] = centred @ v / np.linalg.norm(centred)
                expected[f"perpendicular_{method}"] = np.linalg.norm(centred - (centred @ v) * v)
            near = [own] if own >= 0 else [0, 1, 2]
            distance = np.mean([np.sqrt(model(f, block).mahalanobis(h[None]))[0] for f in near])
            reference = [
                np.sqrt(model(fold[b.question_id], block).mahalanobis(states[b.row, block][None].astype(float)))[0]
                for b in train_base.itertuples()
            ]
            expected["mahalanobis"] = distance
            expected["mahalanobis_z"] = (distance - np.mean(reference)) / np.std(reference)
            axes = PCA(10).fit(every)
            for axis in range(10):
                sign = np.sign(axes.components_[axis][np.abs(axes.components_[axis]).argmax()])
                expected[f"pca_{axis + 1}"] = sign * axes.transform(h[None])[0, axis]
            expected |= {"norm": np.linalg.norm(h), "mean": h.mean(), "variance": h.var(), "kurtosis": kurtosis(h)}
            columns = made.columns[made.columns["block"] == block]
            np.testing.assert_allclose(
                made.values[place, columns.index], [expected[f] for f in columns["feature"]], rtol=1e-5, atol=1e-6
            )


def test_no_question_outside_training_enters_a_fit() -> None:
    states, items = judged()
    rows, base, pairs = tables(items)
    clean = prediction.features(states, rows, base, pairs).values
    poisoned, outside = states.copy(), items["split"] != "train"
    poisoned[outside] = 50 * np.random.default_rng(1).normal(size=poisoned[outside].shape)
    fewer = pairs[pairs["split"] == "train"]
    for_training = (rows["split"] == "train").to_numpy()
    again = prediction.features(poisoned, rows, base, fewer).values
    np.testing.assert_array_equal(again[for_training], clean[for_training])
    # Of the others only their own state counts: one of them poisoned leaves the rest as they were.
    one = states.copy()
    last = rows.index[rows["split"] == "test"][-1]
    one[rows["row"][last]] += 9
    again = prediction.features(one, rows, base, pairs).values
    np.testing.assert_array_equal(np.delete(again, last, axis=0), np.delete(clean, last, axis=0))
    assert not np.allclose(again[last], clean[last])
    # The same poison in one training base answer moves other rows: what is shown above is not trivial.
    one = states.copy()
    one[base.loc[base["split"] == "train", "row"].iloc[0]] += 9
    assert not np.allclose(prediction.features(one, rows, base, pairs).values[last], clean[last])


def test_training_rows_are_described_out_of_fold() -> None:
    # Noise in more dimensions than rows, outcomes by chance: fitted in sample, a direction would tell every pair.
    rng = np.random.default_rng(2)
    _, items = judged()
    states = rng.normal(size=(len(items), 1, 200)).astype(np.float32)
    rows, base, pairs = tables(items)
    made = prediction.features(states, rows, base, pairs)
    chosen = (rows["split"] == "train").to_numpy()
    score = made.of(made.columns["feature"] == "projection_classifier")[:, 0]
    degraded = ~rows["label"][chosen]
    assert abs(roc_auc_score(degraded, score[chosen]) - 0.5) < 0.15
    train = pairs[pairs["split"] == "train"]
    found, _ = estimators.from_pairs(states, train, base[base["split"] == "train"], 0, methods=["classifier"])
    assert roc_auc_score(degraded, (states[rows["row"], 0] @ found["classifier"])[chosen]) > 0.85


def test_three_features_repeat_others() -> None:
    states, items = judged()
    rows, base, pairs = tables(items)
    made = prediction.features(states, rows, base, pairs, blocks=[1])
    of = {f: made.values[:, place] for place, f in enumerate(made.columns["feature"])}
    for method in prediction.METHODS:
        assert np.ptp(of[f"projection_{method}"] - of[f"centred_{method}"]) < 1e-9
    assert abs(np.corrcoef(of["mahalanobis"], of["mahalanobis_z"])[0, 1]) > 1 - 1e-12
    assert abs(np.corrcoef(of["projection_lda"], of["cosine_lda"])[0, 1]) < 1 - 1e-6


def test_what_is_missing_is_named_family_by_family() -> None:
    states, items = judged()
    rows, base, pairs = tables(items)
    made = prediction.features(states, rows, base, pairs[:0], blocks=[0])
    assert list(made.missing) == ["bias direction"]
    assert "0 effective pairs" in made.missing["bias direction"]
    assert np.isfinite(made.of(made.columns["family"] != "bias direction")).all()
    with pytest.raises(ValueError, match=r"no bias direction features: .*effective pairs"):
        made.of(made.columns["feature"] == "cosine_lda")
    few = base[base["split"] == "train"].head(6)
    small = rows[rows["question_id"].isin(few["question_id"])]
    made = prediction.features(states, small, few, pairs[pairs["question_id"].isin(few["question_id"])], blocks=[0])
    assert "6 training base answers" in made.missing["semantic"]
    assert "manifold" not in made.missing
    none = prediction.features(states, small[:0], few[:2], pairs[:0], blocks=[0])
    assert set(none.missing) == set(prediction.FAMILIES)
    with pytest.raises(ValueError, match="no base answer among the training"):
        prediction.features(states, rows, few, pairs)
