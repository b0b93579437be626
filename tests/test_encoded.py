"""Tables of encoded bias against loops over :mod:`biasgeom.direction`, on planted states."""

import numpy as np
import pandas as pd
import pytest
from biasgeom import data, direction, encoded, statistics

BLOCKS, WIDTH = 3, 24
AXIS = np.eye(WIDTH)[0]


def planted(rng: np.random.Generator, strength: float) -> tuple[list[encoded.Concept], encoded.Pairs]:
    """Pairs that differ along one axis, and two concepts of which only the first is spread along it."""
    noise = rng.normal(size=(2, 40, BLOCKS, WIDTH))
    pairs = encoded.Pairs(noise[0] + strength * AXIS, noise[1], np.repeat(np.arange(10), 4))
    spread = np.linspace(-1, 1, 8)[:, None] * 4 * AXIS
    states = [s + rng.normal(scale=0.1, size=(6, 8, BLOCKS, WIDTH)) for s in (spread[None, :, None], 0.0)]
    names = [f"entity {i}" for i in range(8)]
    kinds = [("spread", "gendered"), ("flat", "control")]
    return [encoded.Concept(n, k, names, s + 10) for (n, k), s in zip(kinds, states, strict=True)], pairs


def test_concepts_puts_each_prompt_in_its_place() -> None:
    prompts = data.gender_prompts()
    # The state of a prompt is its row number: nothing else can be mistaken for it.
    states = np.arange(len(prompts), dtype=float)[:, None, None]
    for concept in encoded.concepts(prompts, states):
        for p, persona in enumerate(data.personas()):
            for e, entity in enumerate(concept.entities):
                row = prompts.iloc[int(concept.states[p, e, 0, 0])]
                assert (row["concept"], row["persona"], row["entity"]) == (concept.name, persona, entity)


def test_polarization_equals_direct_computation() -> None:
    found, pairs = planted(np.random.default_rng(0), 3.0)
    by_block, _, _ = encoded.polarization_tables(found, pairs, draws=10, bootstrap=10, seed=0)
    for row in by_block.itertuples():
        vector = direction.contrast_direction(
            pairs.female[:, row.block], pairs.male[:, row.block], estimator=row.estimator
        )
        states = next(c.states for c in found if c.name == row.concept)[:, :, row.block]
        scores = [np.mean([state @ vector.astype(float) for state in entity]) for entity in states.transpose(1, 0, 2)]
        norm = np.mean([np.linalg.norm(state) for state in states.reshape(-1, WIDTH)])
        assert row.s_latent == pytest.approx(np.std(scores) / norm, rel=1e-9)
    assert len(by_block) == 2 * 2 * BLOCKS


def test_ratios_compare_gendered_with_control_concepts() -> None:
    found, pairs = planted(np.random.default_rng(6), 3.0)
    by_block, _, ratios = encoded.polarization_tables(found, pairs, draws=5, bootstrap=200, seed=0)
    means = by_block.pivot_table(index=["block", "estimator"], columns="kind", values="s_latent")
    expected = (means["gendered"] / means["control"]).reset_index(drop=True)
    np.testing.assert_allclose(ratios.sort_values(["block", "estimator"])["ratio"], expected)
    assert ((ratios["low"] < ratios["ratio"]) & (ratios["ratio"] < ratios["high"])).all()
    assert (ratios.loc[ratios["estimator"] == "ledoit-wolf", "low"] > 1).all()  # the spread was planted


def test_planted_spread_is_found_and_the_flat_concept_is_not() -> None:
    found, pairs = planted(np.random.default_rng(1), 3.0)
    _, by_concept, _ = encoded.polarization_tables(found, pairs, draws=200, bootstrap=10, seed=0)
    p = by_concept.set_index(["concept", "estimator"])["p_flip"]
    assert p["spread", "ledoit-wolf"] < 0.05
    assert p["flat", "ledoit-wolf"] > 0.05


def test_without_a_planted_direction_the_spread_is_not_called_significant() -> None:
    """The negative control: members of the pairs differ by noise alone."""
    p = []
    for seed in range(20):
        found, pairs = planted(np.random.default_rng(100 + seed), 0.0)
        _, by_concept, _ = encoded.polarization_tables(found, pairs, draws=100, bootstrap=5, seed=seed)
        p += by_concept.loc[by_concept["concept"] == "spread", "p_flip"].tolist()
    # 40 p-values of which 5 % fall below .05 by chance: more than 8 would have probability 2e-4.
    assert sum(value <= 0.05 for value in p) <= 8


def test_tables_depend_on_the_seed_alone() -> None:
    found, pairs = planted(np.random.default_rng(2), 1.0)
    runs = [encoded.polarization_tables(found, pairs, draws=20, bootstrap=20, seed=seed)[0] for seed in (5, 5, 6)]
    pd.testing.assert_frame_equal(runs[0], runs[1])
    assert not runs[0]["flip_high"].equals(runs[2]["flip_high"])
    assert runs[0]["s_latent"].equals(runs[2]["s_latent"])


def test_entity_table_centres_and_brackets() -> None:
    found, pairs = planted(np.random.default_rng(3), 3.0)
    table = encoded.entity_table(found[0], pairs, 1, estimator="mean", draws=100, seed=0)
    vector = direction.contrast_direction(pairs.female[:, 1], pairs.male[:, 1], estimator="mean")
    np.testing.assert_allclose(table["score"], direction.latent_scores(found[0].states[:, :, 1], vector))
    np.testing.assert_allclose(table["deviation"], table["score"] - table["score"].mean())
    assert ((table["low"] < table["deviation"]) & (table["deviation"] < table["high"])).all()
    assert table["deviation"].is_monotonic_increasing  # as planted


def test_a_shift_of_all_entities_leaves_the_deviations_alone() -> None:
    found, pairs = planted(np.random.default_rng(4), 3.0)
    moved = encoded.Concept("moved", "gendered", found[0].entities, found[0].states + 7 * AXIS)
    tables = [encoded.entity_table(c, pairs, 0, estimator="mean", draws=20, seed=0) for c in (found[0], moved)]
    np.testing.assert_allclose(
        tables[0][["deviation", "low", "high"]], tables[1][["deviation", "low", "high"]], atol=1e-9
    )
    assert not np.allclose(tables[0]["score"], tables[1]["score"])


def test_flipping_pairs_of_the_same_words_apart_would_find_what_is_not_there() -> None:
    """Word pairs differ from each other, sentences hardly: 75 pairs are then 15 observations, not 75."""
    rejected = {"words": 0, "pairs": 0}
    for seed in range(30):
        rng = np.random.default_rng(300 + seed)
        of_words = rng.normal(size=(15, 60)) * 3
        female = np.repeat(of_words, 5, axis=0)[:, None] + rng.normal(scale=0.3, size=(75, 1, 60))
        male = rng.normal(scale=0.3, size=(75, 1, 60))
        # Entities differ where words differ: in the space that the pairs' differences span.
        states = (rng.normal(size=(8, 15)) @ of_words)[None, :, None] + rng.normal(scale=0.1, size=(6, 8, 1, 60))
        concept = encoded.Concept("any", "gendered", [str(i) for i in range(8)], states)
        other = encoded.Concept("other", "control", concept.entities, states)
        for unit, words in (("words", np.repeat(np.arange(15), 5)), ("pairs", np.arange(75))):
            pairs = encoded.Pairs(female, male, words)
            _, table, _ = encoded.polarization_tables([concept, other], pairs, draws=99, bootstrap=5, seed=seed)
            row = table[table["estimator"] == "ledoit-wolf"].iloc[0]
            rejected[unit] += row["above_flip"]
    # At most 2.5 % are due: more than 4 of 30 by chance would have probability 1e-3.
    assert rejected["words"] <= 4
    assert rejected["pairs"] > 15


def test_accuracy_and_direction_tables() -> None:
    _, pairs = planted(np.random.default_rng(5), 3.0)
    swapped = encoded.Pairs(pairs.male, pairs.female, pairs.words)
    accuracy = encoded.accuracy_table(pairs, {"same": pairs, "swapped": swapped})
    wide = accuracy.pivot(index=["block", "estimator"], columns="check", values="accuracy")
    np.testing.assert_allclose(wide["same"] + wide["swapped"], 1)
    assert (wide["same"] > 0.9).all()
    row = accuracy.iloc[0]
    assert (row["low"], row["high"]) == statistics.wilson_interval(row["hits"], row["pairs"])
    diagnostics = encoded.direction_table(pairs)
    assert diagnostics.loc[diagnostics["estimator"] == "mean", "cosine_to_mean"].to_numpy() == pytest.approx(1)
    assert diagnostics.loc[diagnostics["estimator"] == "mean", "shrinkage"].isna().all()
    assert diagnostics.loc[diagnostics["estimator"] == "ledoit-wolf", "condition"].ge(1).all()
