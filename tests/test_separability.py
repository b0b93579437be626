"""Held-out separability: against a naive loop, with nulls that a leak would not pass."""

import numpy as np
import pandas as pd
import pytest
from biasgeom import separability, substrate
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

Q, L, D = 40, 3, 60


def judged(*, signal: float = 4.0, seed: int = 0) -> tuple[np.ndarray, pd.DataFrame, pd.DataFrame]:
    """States [2 Q, L, D] of base and biased rows, in turn; the shift grows with the block from nothing."""
    rng = np.random.default_rng(seed)
    content = rng.normal(size=(Q, 1, L, D))
    states = content + 0.4 * rng.normal(size=(Q, 2, L, D))
    states[:, 1, :, 0] += signal * np.arange(L)
    table = pd.DataFrame({"question_id": [f"q{i}" for i in range(Q)], "base_row": 2 * np.arange(Q)})
    table["split"] = np.where(np.arange(Q) < 26, "train", "dev")
    baselines = table.rename(columns={"base_row": "row"})
    return states.reshape(2 * Q, L, D).astype(np.float32), table.assign(row=table["base_row"] + 1), baselines


def test_scores_are_those_of_a_naive_loop() -> None:
    states, pairs, baselines = judged()
    rows = np.concatenate([states[baselines["row"], 1], states[pairs["row"], 1]]).astype(float)
    questions, labels = np.tile(pairs["question_id"], 2), np.repeat([False, True], Q)
    train = np.arange(2 * Q) % 5 > 0
    found = separability.cross_fitted_scores("lda", rows, labels, questions, train=train)
    fold = substrate.question_folds(questions)
    for i in range(0, 2 * Q, 7):
        others = [j for j in range(2 * Q) if fold[questions[j]] != fold[questions[i]] and train[j]]
        model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(rows[others], labels[others])
        assert found[i] == pytest.approx(model.decision_function(rows[i : i + 1])[0], rel=1e-6)


def test_no_question_leaks() -> None:
    # Noise with a label that each question repeats: rows of one question in both folds would look predictable.
    rng = np.random.default_rng(1)
    questions = np.repeat(np.arange(30), 6)
    rows = np.repeat(rng.normal(size=(30, D)), 6, axis=0) + 0.1 * rng.normal(size=(180, D))
    labels = np.repeat(rng.permutation(np.arange(30) % 2 == 0), 6)
    honest = separability.auc(labels, separability.cross_fitted_scores("classifier", rows, labels, questions))
    leaking = separability.auc(labels, separability.cross_fitted_scores("classifier", rows, labels, np.arange(180)))
    assert abs(honest - 0.5) < 0.25
    assert leaking > 0.95


def test_auc_counts_pairs_in_order() -> None:
    scores = [0.1, 0.4, 0.4, 0.9]
    assert separability.auc([False, False, True, True], scores) == (3 + 0.5) / 4
    with pytest.raises(ValueError, match="alike"):
        separability.auc([True, True], [1, 2])


def test_layers_sharpen_where_the_shift_grows() -> None:
    states, pairs, baselines = judged()
    found = separability.by_block(states, pairs, baselines, range(L)).set_index("block")
    assert (found["reason"] == "").all()
    assert abs(found["lda_effective"][0] - 0.5) < 0.2
    assert found.loc[2, ["lda_separability", "lda_effective", "classifier_auc"]].min() > 0.95
    assert found["biased_core_fraction"][2] > found["biased_core_fraction"][0]
    assert (found["in_sample_fraction"] >= found["biased_core_fraction"]).all()
    assert found["cos_lda_classifier"][2] > 0.3
    assert (found["pairs"] == Q).all()


def test_layers_say_what_is_missing() -> None:
    states, pairs, baselines = judged()
    none = separability.by_block(states, pairs[:0], baselines, [0])
    assert "no effective pair" in none["reason"][0]
    assert none["lda_separability"].isna().all()
    few = separability.by_block(states, pairs[:3], baselines[:3], [0])
    assert "folds" in few["reason"][0]


def test_the_block_is_chosen_on_development_questions() -> None:
    states, pairs, baselines = judged(signal=12)
    found = separability.on_development(states, pairs, baselines, range(L))
    assert found.loc[found["chosen"], "block"].tolist() == [2]
    assert (found["train_pairs"] + found["dev_pairs"] == Q).all()
    # Both later blocks reach 1: the wider gap decides, not the order.
    backwards = separability.on_development(states, pairs, baselines, [2, 1, 0])
    assert backwards.loc[backwards["chosen"], "block"].tolist() == [2]
    assert found["auc"].tolist()[1:] == [1, 1]
    with pytest.raises(ValueError, match="split dev"):
        separability.on_development(states, pairs[pairs["split"] == "train"], baselines, [0])


def test_two_types() -> None:
    states, pairs, _ = judged()
    other = pairs.assign(row=pairs["row"].to_numpy()[::-1])  # differences to unrelated rows
    found = separability.two_types(states, pairs[:20], pairs[20:], range(L))
    assert ((found["auc"] - 0.5).abs() < 0.35).all()
    apart = separability.two_types(states, pairs, pairs.assign(row=pairs["base_row"]), [2])
    assert apart["auc"][0] > 0.99
    assert apart["silhouette"][0] > 0.3
    assert separability.two_types(states, pairs, other, [2])["reason"][0] == ""
    assert "2 or more" in separability.two_types(states, pairs, pairs[:1], [0])["reason"][0]
