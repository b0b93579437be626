"""Tables of encoded bias against loops over :mod:`biasgeom.direction`, on planted states."""

import numpy as np
import pandas as pd
import pytest
from biasgeom import data, direction, encoded, statistics
from scipy.stats import beta, norm
from sklearn.covariance import LedoitWolf

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


# Concepts without controls --------------------------------------------------------------------------------------------

COLUMNS = ["concept", "kind", "block", "s_latent", "low", "high"]
COLUMNS += ["isotropic_low", "isotropic_high", "flip_low", "flip_high"]
DRAWS = 39


def uneven(seed: int, strength: float) -> tuple[list[encoded.Concept], encoded.Pairs]:
    """Planted with noise of unequal size: where it is the same in all directions there is nothing to whiten."""
    found, pairs = planted(np.random.default_rng(seed), strength)
    scale = np.geomspace(0.5, 4, WIDTH)
    return found, encoded.Pairs(pairs.female * scale, pairs.male * scale, pairs.words)


def whitened(differences: np.ndarray) -> np.ndarray:
    """The unit Ledoit–Wolf direction, by scikit-learn and a dense solution."""
    vector = np.linalg.solve(LedoitWolf().fit(differences).covariance_, differences.mean(axis=0))
    return vector / np.linalg.norm(vector)


def spread_along(states: np.ndarray, vector: np.ndarray, weights: np.ndarray | None = None) -> float:
    """S_latent in loops over entities and personas; ``weights`` says how much each persona counts."""
    personas, entities, _ = states.shape
    weights = np.full(personas, 1 / personas) if weights is None else weights
    scores = [sum(weights[p] * float(states[p, e] @ vector) for p in range(personas)) for e in range(entities)]
    norms = [sum(weights[p] * np.linalg.norm(states[p, e]) for p in range(personas)) for e in range(entities)]
    centre = sum(scores) / entities
    return float((sum((s - centre) ** 2 for s in scores) / entities) ** 0.5 / (sum(norms) / entities))


def edges(values: list[float]) -> list[float]:
    """2.5 % and 97.5 %, interpolated between order statistics by hand."""
    ordered, found = sorted(values), []
    for share in (0.025, 0.975):
        place = share * (len(ordered) - 1)
        below = min(int(place), len(ordered) - 2)
        found.append(ordered[below] + (place - below) * (ordered[below + 1] - ordered[below]))
    return found


def test_latent_table_is_the_whitened_part_of_the_polarization_tables() -> None:
    found, pairs = uneven(7, 2.0)
    numbers = {"draws": DRAWS, "bootstrap": 17, "seed": 4}
    latent = encoded.latent_table(found, pairs, **numbers)
    assert list(latent.columns) == COLUMNS
    assert len(latent) == 2 * BLOCKS
    by_block, _, _ = encoded.polarization_tables(found, pairs, **numbers)
    for estimator in direction.ESTIMATORS:
        part = by_block[by_block["estimator"] == estimator].drop(columns="estimator").reset_index(drop=True)
        if estimator == "ledoit-wolf":
            pd.testing.assert_frame_equal(latent, part[COLUMNS], rtol=1e-9)
        else:  # negative control: the other estimator has the isotropic band in common, and no more
            np.testing.assert_allclose(latent[["isotropic_low", "isotropic_high"]], part[COLUMNS[6:8]])
            for column in ("s_latent", "low", "high", "flip_high"):
                assert not np.isclose(latent[column], part[column], rtol=1e-3).any()


def test_latent_table_needs_no_controls_and_no_other_concept() -> None:
    found, pairs = uneven(8, 2.0)
    both, alone = (encoded.latent_table(f, pairs, draws=20, bootstrap=10, seed=1) for f in (found, found[:1]))
    assert set(alone["kind"]) == {"gendered"}
    assert alone.notna().all(axis=None)
    pd.testing.assert_frame_equal(alone, both[both["concept"] == "spread"].reset_index(drop=True), rtol=1e-12)


def test_latent_table_equals_naive_loops() -> None:
    found, pairs = uneven(9, 2.0)
    table = encoded.latent_table(found, pairs, draws=DRAWS, bootstrap=15, seed=2).set_index(["concept", "block"])
    signs = statistics.group_signs(pairs.words, DRAWS, np.random.default_rng([2, 0]))
    # One sign a pair of words, the same at all blocks.
    assert all(len(set(row[pairs.words == word])) == 1 for row in signs for word in range(10))
    rng = np.random.default_rng([2, 1])
    resampled = statistics.resample_groups(pairs.words, 15, rng)
    personas = rng.multinomial(6, np.full(6, 1 / 6), size=15) / 6
    of_pairs = np.random.default_rng(3).choice([-1.0, 1.0], size=signs.shape)
    right, wrong, outside = [], [], 0
    for block in range(BLOCKS):
        differences = pairs.female[:, block] - pairs.male[:, block]
        vector, mean = whitened(differences), differences.mean(axis=0)
        assert vector @ mean < 0.9 * np.linalg.norm(mean)  # whitening has something to do here
        flips = [whitened(row[:, None] * differences) for row in signs]
        apart = [whitened(row[:, None] * differences) for row in of_pairs]
        drawn = [whitened(differences[rows]) for rows in resampled]
        for concept in found:
            row, states = table.loc[concept.name, block], concept.states[:, :, block]
            observed = spread_along(states, vector)
            assert row["s_latent"] == pytest.approx(observed, rel=1e-6)
            null = [spread_along(states, flip) for flip in flips]
            assert row[["flip_low", "flip_high"]].tolist() == pytest.approx(edges([*null, observed]), rel=1e-6)
            replicates = [spread_along(states, v, w) for v, w in zip(drawn, personas, strict=True)]
            half = norm.ppf(0.975) * np.std(replicates, ddof=1)
            assert row[["low", "high"]].tolist() == pytest.approx([observed - half, observed + half], rel=1e-6)
            wrong.append([edges([*(spread_along(states, flip) for flip in apart), observed])[1], row["isotropic_high"]])
            right.append([row["flip_high"]])
        # Where the observed value lies outside the flipped ones, it does widen the band that it counts in.
        states = found[0].states[:, :, block]
        null = [spread_along(states, flip) for flip in flips]
        if spread_along(states, vector) > max(null):
            outside += 1
            assert table.loc[("spread", block), "flip_high"] > edges(null)[1] * (1 + 1e-6)
    assert outside
    # Negative controls: signs a pair at a time, and the isotropic null, have other bands.
    assert (np.isclose(right, wrong, rtol=1e-2).mean(axis=0) < 0.5).all()


def test_the_isotropic_band_of_the_latent_table_is_that_of_the_sphere() -> None:
    """Of a fixed axis, ⟨v, axis⟩² is Beta(1/2, (d−1)/2): states that vary along one axis have a known band."""
    _, pairs = planted(np.random.default_rng(10), 1.0)
    states = np.broadcast_to(np.linspace(-3, 3, 8)[None, :, None, None] * AXIS, (6, 8, BLOCKS, WIDTH))
    concept = encoded.Concept("axis", "gendered", [str(i) for i in range(8)], states)
    table = encoded.latent_table([concept], pairs, draws=1000, bootstrap=2, seed=0)
    scale = np.linspace(-3, 3, 8).std() / np.abs(np.linspace(-3, 3, 8)).mean()
    low, high = scale * np.sqrt(beta.ppf([0.025, 0.975], 0.5, (WIDTH - 1) / 2))
    np.testing.assert_allclose(table["isotropic_high"], high, rtol=0.12)
    np.testing.assert_allclose(table["isotropic_low"], low, atol=0.05 * high)
    # Drawn anew for each block.
    assert table["isotropic_high"].nunique() == BLOCKS


def test_latent_table_finds_a_planted_spread_and_depends_on_the_seed_alone() -> None:
    found, pairs = planted(np.random.default_rng(11), 3.0)
    one, again, other = (encoded.latent_table(found, pairs, draws=100, bootstrap=10, seed=s) for s in (5, 5, 6))
    pd.testing.assert_frame_equal(one, again)
    assert not np.isclose(one[COLUMNS[6:]], other[COLUMNS[6:]], rtol=1e-9).all(axis=1).any()
    assert one["s_latent"].equals(other["s_latent"])
    above = (one["s_latent"] > one["flip_high"]).groupby(one["concept"]).mean()
    assert above["spread"] == 1
    # Negative control: without a direction in the pairs, the spread of the same states stays within the band.
    found, pairs = planted(np.random.default_rng(12), 0.0)
    table = encoded.latent_table(found, pairs, draws=100, bootstrap=10, seed=5)
    assert (table["s_latent"] > table["flip_high"]).mean() < 0.5
