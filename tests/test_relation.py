"""Rank correlation against scipy, enumerated permutations, and simulations without any relation."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from biasgeom import relation
from biasgeom.relation import correlation_table, correlations, largest_by_chance, spearman
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, pearsonr, spearmanr

NUMBERS = {"draws": 199, "seed": 0}


def scipy_rho(x: np.ndarray, y: np.ndarray) -> float:
    return float("nan") if np.ptp(x) == 0 or np.ptp(y) == 0 else float(spearmanr(x, y).statistic)


@settings(max_examples=100, deadline=None)
@given(
    entities=st.integers(2, 15),
    blocks=st.integers(1, 4),
    levels=st.integers(1, 6),
    seed=st.integers(0, 10**6),
)
def test_rho_is_scipys_also_with_ties_and_undefined_for_a_constant(
    entities: int, blocks: int, levels: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(levels, size=(blocks, entities)) / 3
    bias = rng.integers(levels, size=entities) / 7 - 0.5
    found = spearman(scores, bias)
    expected = [scipy_rho(row, bias) for row in scores]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


def test_of_itself_reversed_monotone_and_constant() -> None:
    x = np.random.default_rng(0).normal(size=9)
    assert spearman(x, x) == pytest.approx(1, abs=1e-14)
    assert spearman(x, -x) == pytest.approx(-1, abs=1e-14)
    assert spearman(x, np.exp(3 * x)) == pytest.approx(1, abs=1e-14)
    assert np.isnan(spearman(x, np.full(9, 0.3)))
    assert np.isnan(spearman(np.full(9, 0.1 + 0.2), x))
    # Negative controls: a correlation of values, and ranks that break ties by place, are something else.
    assert pearsonr(x, np.exp(3 * x)).statistic < 0.9
    tied = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 2.0, 0.0, 0.0, 1.0])
    by_place = np.corrcoef(np.argsort(np.argsort(x)), np.argsort(np.argsort(tied, kind="stable")))[0, 1]
    assert abs(spearman(x, tied) - by_place) > 1e-2


def test_leading_axes_are_broadcast() -> None:
    rng = np.random.default_rng(1)
    scores, bias = rng.normal(size=(2, 3, 6)), rng.normal(size=(3, 6))
    found = spearman(scores, bias)
    assert found.shape == (2, 3)
    for place in np.ndindex(2, 3):
        assert found[place] == pytest.approx(scipy_rho(scores[place], bias[place[1]]), abs=1e-12)


def test_of_columns() -> None:
    rng = np.random.default_rng(2)
    table = pd.DataFrame({"proxy": rng.normal(size=12), "bias": rng.integers(3, size=12)}, index=range(5, 17))
    found = relation.of_columns(table)
    assert isinstance(found, float)
    assert found == pytest.approx(scipy_rho(table["proxy"].to_numpy(), table["bias"].to_numpy()), abs=1e-12)
    assert np.isnan(relation.of_columns(table.assign(bias=0)))
    keyed = pd.concat([table.assign(of="a"), table.assign(of="b", bias=-table["bias"])])
    by = keyed.groupby("of", sort=False)[["proxy", "bias"]].apply(relation.of_columns)
    assert by.to_dict() == pytest.approx({"a": found, "b": -found})


# The maximum over blocks by chance ------------------------------------------------------------------------------------


def test_maxima_have_the_enumerated_distribution() -> None:
    scores = np.array([[0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 0.1, 0.3], [0.0, 1.0, 0.5, 0.2], [7.0, 7.0, 7.0, 7.0]])
    bias = np.array([0.5, -0.5, 0.5, 0.0])
    exact: dict[float, int] = {}
    for order in permutations(range(4)):
        # The same order at all blocks; the constant block has no ρ and takes no part.
        value = round(max(scipy_rho(row, bias[list(order)]) for row in scores[:3]), 9)
        exact[value] = exact.get(value, 0) + 1
    draws = 20_000
    found = largest_by_chance(scores, bias, draws, np.random.default_rng(0))
    assert found.shape == (draws,)
    for value, count in exact.items():
        share = count / 24
        assert np.isclose(found, value, atol=1e-8).mean() == pytest.approx(
            share, abs=5 * (share * (1 - share) / draws) ** 0.5
        )
    assert sum(np.isclose(found, value, atol=1e-8).sum() for value in exact) == draws


def test_maxima_look_like_a_naive_loop_at_paper_size() -> None:
    rng = np.random.default_rng(3)
    scores, bias = rng.normal(size=(5, 14)), rng.integers(-3, 4, size=14) / 12
    found = largest_by_chance(scores, bias, 4000, np.random.default_rng(0))
    naive = [
        max(scipy_rho(row, shuffled) for row in scores) for shuffled in (rng.permutation(bias) for _ in range(300))
    ]
    assert found.mean() == pytest.approx(np.mean(naive), abs=5 * np.std(naive) / 300**0.5)
    assert np.mean(np.array(naive) > np.quantile(found, 0.95)) == pytest.approx(0.05, abs=0.05)


def test_biases_are_permuted_alike_at_all_blocks() -> None:
    rng = np.random.default_rng(4)
    one, bias = rng.normal(size=(1, 8)), rng.normal(size=8)
    alone, copies = (
        np.quantile(largest_by_chance(np.repeat(one, n, axis=0), bias, 3000, np.random.default_rng(0)), 0.95)
        for n in (1, 20)
    )
    assert copies == pytest.approx(alone, abs=1e-12)
    # Negative control: blocks that have nothing to do with each other have larger maxima.
    apart = np.quantile(largest_by_chance(rng.normal(size=(20, 8)), bias, 3000, np.random.default_rng(0)), 0.95)
    assert apart > alone + 0.1


def test_a_constant_bias_is_refused() -> None:
    with pytest.raises(ValueError, match="all the same"):
        largest_by_chance(np.arange(6.0).reshape(2, 3), np.zeros(3), 10, np.random.default_rng(0))


def test_p_is_uniform_without_relation_unlike_that_of_the_best_block() -> None:
    runs, found, best = 300, [], []
    for seed in range(runs):
        rng = np.random.default_rng([5, seed])
        # Neighbouring blocks are alike, as in a model.
        scores = np.cumsum(rng.normal(size=(8, 10)), axis=0)
        bias = rng.integers(-4, 5, size=10) / 12
        _, summary = correlation_table(scores, bias, draws=199, seed=seed)
        found.append(summary["p"])
        best.append(spearmanr(scores[summary["at"]], bias, alternative="greater").pvalue)
    for level in (0.05, 0.2, 0.5, 0.8):
        low, high = binom.ppf([0.001, 0.999], runs, level)
        assert low <= (np.array(found) <= level).sum() <= high
    # Negative control: the p of one look at the best of eight.
    assert (np.array(best) <= 0.05).mean() > 0.1


# Tables ---------------------------------------------------------------------------------------------------------------


def test_table_has_every_block_and_the_largest_beside_chance() -> None:
    rng = np.random.default_rng(6)
    bias = rng.normal(size=10)
    scores = rng.normal(size=(6, 10))
    scores[4] = bias + 0.2 * rng.normal(size=10)
    scores[1] = 3.0
    by_block, summary = correlation_table(scores, bias, draws=499, seed=1)
    expected = [scipy_rho(row, bias) for row in scores]
    assert list(by_block.columns) == ["block", "rho"]
    assert by_block["block"].tolist() == list(range(6))
    np.testing.assert_allclose(by_block["rho"], expected, atol=1e-12)
    assert np.isnan(by_block["rho"][1])
    assert list(summary) == ["entities", "spread", "undefined", "largest", "at", "mean", "chance", "p"]
    assert (summary["entities"], summary["undefined"], summary["at"]) == (10, "", 4)
    # Of the entities as they are, not as a sample of more: the divisor is their number.
    mean = sum(bias) / 10
    assert summary["spread"] == pytest.approx((sum((b - mean) ** 2 for b in bias) / 10) ** 0.5)
    assert summary["spread"] != pytest.approx((sum((b - mean) ** 2 for b in bias) / 9) ** 0.5, rel=0.01)
    # It is in the units of the bias, where ρ is in none.
    tenth = correlation_table(scores, bias / 10, draws=499, seed=1)[1]
    assert tenth["spread"] == pytest.approx(summary["spread"] / 10)
    assert (tenth["largest"], tenth["p"]) == (summary["largest"], summary["p"])
    assert summary["largest"] == pytest.approx(np.nanmax(expected))
    assert summary["mean"] == pytest.approx(np.nanmean(expected))
    null = largest_by_chance(scores, bias, 499, np.random.default_rng(1))
    assert summary["chance"] == pytest.approx(np.quantile(null, 0.95))
    assert summary["p"] == pytest.approx((1 + sum(value >= summary["largest"] - 1e-9 for value in null)) / 500)
    assert summary["p"] < 0.05 < summary["chance"]


def test_a_tie_with_the_maximum_counts() -> None:
    """Of three entities one order in six is the observed one, however its ρ is rounded."""
    for seed in range(5):
        scores = np.random.default_rng(seed).normal(size=(1, 3))
        _, summary = correlation_table(scores, np.exp(scores[0]), draws=2000, seed=seed)
        assert summary["largest"] == pytest.approx(1)
        assert summary["p"] == pytest.approx(1 / 6, abs=0.04)


@pytest.mark.parametrize(
    ("scores", "bias", "word"),
    [
        (np.arange(8.0).reshape(2, 4), np.zeros(4), "expressed bias"),
        (np.ones((2, 4)), np.arange(4) / 4, "latent score"),
        (np.ones((2, 4)), np.zeros(4), "expressed bias"),
    ],
)
def test_no_rho_at_all_says_why(scores: np.ndarray, bias: np.ndarray, word: str) -> None:
    by_block, summary = correlation_table(scores, bias, **NUMBERS)
    assert by_block["rho"].isna().all()
    spread = {"expressed bias": 0.0, "latent score": np.sqrt(5) / 8}[word]  # of 0, 1/4, 1/2, 3/4
    assert summary == {
        "entities": 4,
        "spread": pytest.approx(spread),
        "undefined": f"the {word} of all entities is the same",
    }


CONCEPTS = {"Jobs": ("gendered", ["nurse", "cook", "editor", "boxer", "clerk"]), "Colors": ("control", ["red", "blue"])}
PAIRINGS = {"Base-Base": ("before", "before"), "FT-FT": ("after", "after"), "FT-Base": ("after", "before")}


def made(seed: int) -> tuple[dict[str, pd.DataFrame], dict[str, pd.Series]]:
    """Scores by condition, and biases by measure; rows in another order everywhere."""
    rng = np.random.default_rng(seed)
    names = [(concept, kind, entity) for concept, (kind, entities) in CONCEPTS.items() for entity in entities]
    scores = {
        condition: pd.DataFrame(
            [(*name, block, rng.normal()) for name in names for block in range(3)],
            columns=["concept", "kind", "entity", "block", "score"],
        ).sample(frac=1, random_state=seed + place)
        for place, condition in enumerate(("before", "after"))
    }
    index = [(condition, concept, entity) for condition in ("before", "after") for concept, _, entity in names]
    keys = pd.MultiIndex.from_tuples(index, names=["condition", "concept", "entity"])
    measures = {
        name: pd.Series(rng.normal(size=len(index)), index=keys).sample(frac=1, random_state=seed + place)
        for place, name in enumerate(("sampled", "proxy"))
    }
    # As the notebooks have them, conditions and concepts stand together; entities within are in any order.
    return scores, {name: s.sort_index(level=[0, 1], sort_remaining=False) for name, s in measures.items()}


def naive(scores: pd.DataFrame, bias: pd.Series, condition: str, concept: str, block: int) -> float:
    of = {r.entity: r.score for r in scores.itertuples() if (r.concept, r.block) == (concept, block)}
    entities = sorted(of, reverse=True)
    return scipy_rho(np.array([of[e] for e in entities]), np.array([bias[condition, concept, e] for e in entities]))


def test_correlations_join_by_entity() -> None:
    scores, biases = made(7)
    by_block, summary = correlations(scores, biases, PAIRINGS, **NUMBERS)
    assert len(by_block) == 2 * 3 * 2 * 3
    assert len(summary) == 2 * 3 * 2
    for row in by_block.itertuples():
        of_scores, of_bias = PAIRINGS[row.pairing]
        expected = naive(scores[of_scores], biases[row.expressed], of_bias, row.concept, row.block)
        assert row.rho == pytest.approx(expected, abs=1e-12)
        assert row.kind == CONCEPTS[row.concept][0]
    keys = ["expressed", "pairing", "concept", "kind"]
    assert list(by_block.columns) == [*keys, "block", "rho"]
    assert list(summary.columns) == [*keys, "entities", "spread", "undefined", "largest", "at", "mean", "chance", "p"]
    for key, rows in by_block.groupby(keys, sort=False):
        (row,) = summary[(summary[keys] == list(key)).all(axis=1)].to_dict("records")
        assert row["largest"] == rows["rho"].max()
        assert row["mean"] == pytest.approx(rows["rho"].mean())
        assert row["entities"] == len(CONCEPTS[row["concept"]][1])
        # Of the biases that were paired with the scores, in the condition that they are from.
        paired = biases[row["expressed"]].loc[PAIRINGS[row["pairing"]][1], row["concept"]]
        assert row["spread"] == pytest.approx(np.sqrt(np.mean((paired - np.mean(paired)) ** 2)))
    spreads = summary.pivot(index=["expressed", "concept"], columns="pairing", values="spread")
    assert spreads["FT-Base"].equals(spreads["Base-Base"])
    assert (spreads["FT-Base"] - spreads["FT-FT"]).abs().min() > 1e-6
    # Negative control: by place, ρ would be another.
    first = scores["before"].query("concept == 'Jobs' and block == 0")
    by_place = scipy_rho(first["score"].to_numpy(), biases["sampled"].loc["before", "Jobs"].to_numpy())
    assert abs(by_place - by_block["rho"][0]) > 1e-3


def test_the_order_of_rows_changes_nothing() -> None:
    scores, biases = made(8)
    one = correlations(scores, biases, PAIRINGS, **NUMBERS)[1]
    again = {
        name: table.sort_values(["kind", "entity", "block"], ascending=[False, True, False])
        for name, table in scores.items()
    }
    other = correlations(again, {name: s.sort_index() for name, s in biases.items()}, PAIRINGS, **NUMBERS)[1]
    keys = ["expressed", "pairing", "concept"]
    one, other = (
        t.groupby(keys)[["spread", "largest", "at", "mean", "chance", "p"]].first().sort_index() for t in (one, other)
    )
    pd.testing.assert_frame_equal(one, other)


def test_an_entity_without_bias_is_an_error() -> None:
    scores, biases = made(9)
    short = {"sampled": biases["sampled"].drop(("before", "Jobs", "cook"))}
    with pytest.raises(KeyError, match="cook"):
        correlations(scores, short, PAIRINGS, **NUMBERS)


def test_one_concept_without_rho_leaves_the_others() -> None:
    scores, biases = made(10)
    bias = biases["sampled"].copy()
    bias.loc[:, "Colors"] = 0.0
    by_block, summary = correlations(scores, {"sampled": bias}, PAIRINGS, **NUMBERS)
    without = summary[summary["concept"] == "Colors"]
    assert without[["largest", "at", "mean", "chance", "p"]].isna().all(axis=None)
    assert set(without["undefined"]) == {"the expressed bias of all entities is the same"}
    assert (without["spread"] == 0).all()
    assert (summary.loc[summary["concept"] == "Jobs", "spread"] > 0).all()
    assert (summary.loc[summary["concept"] == "Jobs", "undefined"] == "").all()
    assert by_block.loc[by_block["concept"] == "Colors", "rho"].isna().all()
    assert by_block.loc[by_block["concept"] == "Jobs", "rho"].notna().all()


def test_without_any_rho_the_numbers_are_missing_and_their_columns_are_not() -> None:
    scores, biases = made(11)
    _, summary = correlations(scores, {"sampled": 0 * biases["sampled"]}, PAIRINGS, **NUMBERS)
    assert summary.reindex(columns=["largest"]).isna().all(axis=None)
    assert {"largest", "at", "mean", "chance", "p"} <= set(summary.columns)
