"""Detectors: planted data where one must win, shuffled labels where none may, sums checked pair by pair."""

import sys
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pytest
import torch
from biasgeom import boosting, detectors, endpoint, prediction, questions, ranking, zeroshot
from biasgeom.endpoint import Endpoint, Reply
from biasgeom.models import LanguageModel
from biasgeom.perturbations import BIASES, name
from sklearn.metrics import roc_auc_score

CUES = [name(bias, "negative") for bias in BIASES]
FAST = {"keep": 8, "step": 8, "trials": 3, "rounds": 20}


def predicted(*, shuffled: bool = False, seed: int = 0, q: int = 100) -> tuple[pd.DataFrame, prediction.Features]:
    """Rows of q questions × 7 cues and ready features of two blocks: the projections carry the outcome, the type a
    little of it, all else is noise."""
    rng = np.random.default_rng(seed)
    index = np.arange(7 * q) // 7
    rows = pd.DataFrame({"question_id": [f"q{i}" for i in index], "domain": [f"d{i % 12:02}" for i in index]})
    rows["split"] = np.array(["train", "dev", "test", "test", "train"])[index % 5]
    rows["held_out"] = (rows["split"] == "test") & (rows["domain"] < "d05")
    rows["condition"], rows["voice"] = CUES * q, "plain"
    strength = rng.normal(size=len(rows)) + 0.3 * (np.arange(len(rows)) % 7 - 3)
    rows["label"] = strength < 0.5
    if shuffled:
        rows["label"] = rng.permutation(rows["label"])
    words = rng.choice(["plain", "clear", "short", "long", "kind"], size=(len(rows), 4))
    rows["text"] = [" ".join([*w, c[:-1]]) for w, c in zip(words, rows["condition"], strict=True)]
    columns = prediction.index([0, 1])
    values = rng.normal(size=(len(rows), len(columns)))
    carrying = columns["feature"].isin(["projection_lda", "projection_classifier"])
    values[:, carrying] = strength[:, None] + 0.4 * rng.normal(size=(len(rows), carrying.sum()))
    return rows, prediction.Features(values, np.arange(len(rows)), columns, {})


def splits(rows: pd.DataFrame) -> dict[str, pd.Series]:
    return {split: rows["split"] == split for split in ("dev", "test")}


def test_the_projection_wins_where_it_carries_the_outcome() -> None:
    rows, features = predicted()
    planted = pd.DataFrame({"condition": CUES, "voice": "plain", "shift": np.arange(7.0)[::-1]})
    found = detectors.simple(rows, features, planted=planted)
    found["GBDT"] = boosting.boosted(features.values, rows, **FAST).scores
    table = ranking.measured(rows, found, splits(rows), draws=200)
    test = table[table["part"] == "test"].set_index("detector")
    assert (table["reason"].fillna("").str.contains("type has") | (table["reason"] == "")).all()
    assert test.loc["linear projection", ["auc", "within_type_auc"]].min() > 0.9
    assert test.loc["GBDT", "auc"] > 0.85
    others = ["type only", "oracle", "PCA + LR", "TF-IDF + LR"]
    assert test.loc[others, "auc"].max() < 0.85
    assert test.loc["type only", "auc"] > 0.55
    assert test.loc["oracle", "within_type_auc"] == 0.5
    assert test.loc["linear projection", "gain_low"] > 0.1
    assert np.isnan(test.loc["type only", "gain"])
    assert (test["low"] < test["auc"]).all()
    assert (test["auc"] < test["high"]).all()


def test_the_type_alone_is_one_half_within_a_type() -> None:
    for seed in range(3):
        rows, _ = predicted(seed=seed)
        table = ranking.measured(rows, {"type only": detectors.type_only(rows)}, splits(rows), draws=20)
        assert table["within_type_auc"].tolist() == [0.5, 0.5]
        assert table[["within_low", "within_high"]].to_numpy().tolist() == [[0.5, 0.5]] * 2


def test_nothing_is_found_in_shuffled_labels() -> None:
    rows, features = predicted(shuffled=True, seed=3)
    found = detectors.simple(rows, features)
    found["GBDT"] = boosting.boosted(features.values, rows, **FAST).scores
    table = ranking.measured(rows, found, {"test": rows["split"] == "test"}, draws=200)
    table = table[table["detector"] != "oracle"]
    assert len(table) == 6
    assert (table["low"] < 0.5).all()
    assert (table["high"] > 0.5).all()
    # In sample even shuffled labels are learned: what holds .5 above is the split, not a weak detector.
    train = rows["split"] == "train"
    assert roc_auc_score(rows["label"][train], found["GBDT"][train]) > 0.7


def pairs_in_order(labels: np.ndarray, scores: np.ndarray, types: np.ndarray | None = None) -> float:
    good = total = 0.0
    for i in np.flatnonzero(labels):
        for j in np.flatnonzero(~labels):
            if types is None or types[i] == types[j]:
                total += 1
                good += (scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j])
    return good / total


def test_evaluation_counts_pairs_and_draws_questions() -> None:
    rows, _ = predicted(q=12)
    scores = np.random.default_rng(1).integers(0, 6, size=len(rows)) + rows["label"].to_numpy()
    other = detectors.type_only(predicted()[0])[: len(rows)]
    found = ranking.evaluate(rows, scores, against=other, draws=50, seed=7)
    labels, types, ids = (rows[c].to_numpy() for c in ("label", "condition", "question_id"))
    assert found["auc"] == pytest.approx(pairs_in_order(labels, scores))
    assert found["within_type_auc"] == pytest.approx(pairs_in_order(labels, scores, types))
    assert found["gain"] == pytest.approx(found["auc"] - roc_auc_score(labels, other))
    names = np.unique(ids)
    times = np.random.default_rng(7).multinomial(len(names), np.full(len(names), 1 / len(names)), size=50)
    drawn = []
    for row in times:
        chosen = np.concatenate([np.flatnonzero(ids == n).repeat(k) for n, k in zip(names, row, strict=True)])
        drawn.append(roc_auc_score(labels[chosen], scores[chosen]))
    assert (found["low"], found["high"]) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))
    # Rows drawn one by one would give another interval.
    alone = ranking.evaluate(rows.assign(question_id=range(len(rows))), scores, draws=50, seed=7)
    assert alone["low"] != found["low"]


def test_evaluation_of_several_runs_and_of_what_is_missing() -> None:
    rows, _ = predicted(q=12)
    labels = rows["label"].to_numpy()
    runs = np.stack([labels.astype(float), -labels.astype(float)])
    runs[0, :10] = np.nan
    found = ranking.evaluate(rows, runs, draws=20)
    assert found["auc"] == 0.5
    assert found["n"] == len(rows)
    assert found["prevalence"] == labels.mean()
    perfect = ranking.evaluate(rows, runs[0], draws=20)
    assert (perfect["auc"], perfect["ap"], perfect["n"]) == (1, 1, len(rows) - 10)
    assert ranking.evaluate(rows, "no model")["reason"] == "no model"
    assert "one class" in ranking.evaluate(rows.assign(label=True), runs)["reason"]
    assert "scored" in ranking.evaluate(rows, runs * np.nan)["reason"]
    own = rows.assign(condition=np.where(labels, "Prestige-", "Authority-"))
    found = ranking.evaluate(own, runs[1], draws=20)
    assert "within_type_auc" not in found
    assert found["reason"] == "no type has both outcomes"
    single = rows.iloc[[labels.argmax(), labels.argmin()]].assign(question_id=["a", "b"], condition="Prestige-")
    assert "interval" in ranking.evaluate(single, np.array([1.0, 0.0]), draws=9, seed=1)["reason"]


def test_detectors_that_cannot_be_fitted_say_why() -> None:
    rows, features = predicted()
    lacking = prediction.Features(
        features.values, features.rows, features.columns, {"bias direction": "0 effective pairs"}
    )
    found = detectors.simple(rows, lacking)
    assert "effective pairs" in found["linear projection"]
    assert isinstance(found["PCA + LR"], np.ndarray)
    assert "planted" in found["oracle"]
    found = detectors.simple(rows.assign(label=True), features)
    assert all("one class" in str(scores) or "planted" in str(scores) for scores in found.values())
    unknown = pd.DataFrame({"condition": CUES, "voice": "tentative", "shift": 0.0})
    assert "voice" in detectors.simple(rows, features, planted=unknown)["oracle"]


def test_trees_are_the_same_again_and_keep_what_matters() -> None:
    rows, features = predicted()
    first, again = (boosting.boosted(features.values, rows, **FAST) for _ in range(2))
    np.testing.assert_array_equal(first.scores, again.scores)
    assert first.parameters == again.parameters
    assert len(first.columns) == 8
    assert first.pool == len(features.columns)
    dev = rows["split"] == "dev"
    assert first.dev_auc == pytest.approx(roc_auc_score(rows["label"][dev], first.scores[dev]))
    table = boosting.importance(first, features)
    assert table["gini_importance_pct"].sum() == pytest.approx(100)
    assert table["features_retained"].sum() == 8
    assert table.set_index("family")["gini_importance_pct"]["bias direction"] > 70
    assert boosting.boosted(features.values, rows, **FAST | {"seed": 1}).parameters != first.parameters
    fixed = boosting.boosted(features.values, rows, **FAST, parameters=first.parameters)
    np.testing.assert_array_equal(fixed.scores, first.scores)
    low, high = boosting.LEAVES
    assert low <= first.parameters["num_leaves"] <= high


def test_trees_never_see_a_test_label() -> None:
    rows, features = predicted()
    first = boosting.boosted(features.values, rows, **FAST)
    other = rows.assign(label=np.where(rows["split"] == "test", ~rows["label"], rows["label"]))
    np.testing.assert_array_equal(boosting.boosted(features.values, other, **FAST).scores, first.scores)
    other = rows.assign(label=np.where(rows["split"] == "dev", ~rows["label"], rows["label"]))
    assert not np.array_equal(boosting.boosted(features.values, other, **FAST).scores, first.scores)


def test_trees_refuse_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, features = predicted()
    values = features.values * [1.0, *[0.0] * (len(features.columns) - 1)] + 5
    assert boosting.boosted(values, rows, **FAST).pool == 1
    with pytest.raises(ValueError, match="no feature varies"):
        boosting.boosted(values * 0 + 5, rows, **FAST)
    one = rows.assign(label=rows["label"] | (rows["split"] == "dev"))
    with pytest.raises(ValueError, match="split dev"):
        boosting.boosted(features.values, one, **FAST)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"biasgeom\[judge\]"):
        boosting.boosted(features.values, rows, **FAST)
    table = detectors.ablations(features, rows, "no trees", 1, **FAST)
    assert table["reason"].str.contains("judge|no trees").all()


def test_ablations() -> None:
    rows, features = predicted()
    full = boosting.boosted(features.values, rows, **FAST)
    table = detectors.ablations(features, rows, full, 1, **FAST)
    assert table.groupby("variant", sort=False)["n_features"].first().tolist() == [1, 8, 8, 48, 8]
    auc = table[table["split"] == "test"].set_index("variant")["auc"]
    assert auc["bias-direction features only"] > 0.85
    assert abs(auc["Mahalanobis distance only"] - 0.5) < 0.2
    lacking = prediction.Features(features.values, features.rows, features.columns, {"bias direction": "no pair"})
    table = detectors.ablations(lacking, rows, "none", 1, **FAST)
    assert table["auc"].notna().groupby(table["variant"], sort=False).any().tolist() == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_no_question_is_in_two_splits_of_a_trio() -> None:
    known = questions.load()
    default = questions.domains().query("held_out")["domain"]
    trios = detectors.trios(known["domain"], default)
    assert len(set(trios)) == 6
    assert set(trios[0]) == set(default)
    assert trios == detectors.trios(known["domain"][::-1], default)
    assert len(set().union(*trios[1:])) >= 11  # dealt, not drawn: nearly all domains are held out once
    rows = known.loc[known.index.repeat(3)]
    for trio in trios:
        table, again = detectors.resplit(trio, rows, rows[:50])
        assert (table.groupby("question_id")["split"].nunique() == 1).all()
        assert set(table["domain"][table["held_out"]]) == set(trio)
        assert set(table["split"][table["held_out"]]) == {"test"}
        assert {"train", "dev"} <= set(table["split"])
        pd.testing.assert_frame_equal(again, table[:50])
    nine = ["GSM8K", "MMLU", "TruthfulQA", "CommonsenseQA", "PubMedQA", "GPQA", "ARC-Challenge", "SocialMaze", "BBQ"]
    published = detectors.trios(nine, ["SocialMaze", "BBQ", "GPQA"])
    assert published[1] == ("BBQ", "CommonsenseQA", "SocialMaze")
    assert len(published) == 6


def test_a_model_is_asked_by_its_next_token(llama: LanguageModel) -> None:
    texts = ["Nobody knew.", "A doctor walks in.", "Nobody knew."]
    scores, mass = zeroshot.by_model(llama, texts)
    assert scores.shape == (3, 3)
    assert (scores[:, 0] == scores[:, 2]).all()
    assert (mass["mass"] > 0).all()
    assert "no answer" in detectors.attempt(zeroshot.by_model, llama, [])
    turn = [{"role": "user", "content": zeroshot.prompt(texts[1], "red flags")}]
    ids = llama.tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    with torch.inference_mode():
        after = torch.softmax(llama.model(ids["input_ids"]).logits[0, -1], dim=-1).numpy()
    spellings = (("Yes", "yes", "YES"), ("No", "no", "NO"))
    begin = [{llama.tokenizer.encode(w, add_special_tokens=False)[0] for w in words} for words in spellings]
    assert not begin[0] & begin[1]
    yes, no = (after[list(tokens)].sum() for tokens in begin)
    assert scores[1, 1] == pytest.approx(no / (yes + no), rel=1e-3)


def test_a_base_model_is_not_asked(build: Callable[[str], LanguageModel]) -> None:
    assert "chat template" in detectors.attempt(zeroshot.by_model, build("gpt2"), ["A doctor walks in."])


def test_an_endpoint_is_asked_and_what_is_no_probability_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"a": "0.25", "b": "80 %", "c": "1.5", "d": None, "e": " 1\n", "f": "nan"}
    seen = []

    def ask(where: Endpoint, prompts: Sequence[str], **how: object) -> list[Reply]:
        seen.append(how)
        words = [said[p.split("answer]\n")[1][0]] for p in prompts]
        return [Reply(w, None) if w is not None else Reply(None, "refusal: no") for w in words]

    monkeypatch.setattr(endpoint, "ask", ask)
    scores, counts = zeroshot.by_endpoint(Endpoint("http://localhost/v1", "m"), list(said), seeds=2)
    assert scores.shape == (6, 6)
    np.testing.assert_array_equal(scores[0], [0.75, np.nan, np.nan, np.nan, 0, np.nan])
    assert counts[["refused", "malformed"]].drop_duplicates().to_numpy().tolist() == [[1, 3]]
    assert [how["seed"] for how in seen] == [0, 1] * 3
    assert all(how["temperature"] == 1 for how in seen)
