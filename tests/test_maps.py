"""Maps and the purity of neighbourhoods: closed forms, naive loops, planted clusters and their absence."""

import numpy as np
import pandas as pd
import pytest
from biasgeom import maps
from scipy.spatial.distance import pdist
from sklearn.decomposition import PCA

Q, C = 20, 6


def grid(*, by_condition: float = 0.0, by_domain: float = 0.0, seed: int = 0) -> tuple[np.ndarray, pd.DataFrame]:
    """States [Q C, 12] of every question in every condition; questions differ, conditions and domains as asked."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"question": np.repeat(np.arange(Q), C), "condition": np.tile(np.arange(C), Q)})
    table["domain"] = table["question"] % 4
    states = 2 * rng.normal(size=(Q, 12))[table["question"]] + 0.5 * rng.normal(size=(Q * C, 12))
    states += by_condition * rng.normal(size=(C, 12))[table["condition"]]
    states += by_domain * rng.normal(size=(4, 12))[table["domain"]]
    return states, table


def test_mds_keeps_distances_that_fit_in_a_plane() -> None:
    rng = np.random.default_rng(0)
    plane = rng.normal(size=(30, 2)) @ np.linalg.qr(rng.normal(size=(50, 2)))[0].T * 100
    points, stress = maps.mds(plane)
    np.testing.assert_allclose(pdist(points), pdist(plane), rtol=1e-3)
    assert stress < 1e-3
    cloud = rng.normal(size=(40, 50))
    points, stress = maps.mds(cloud)
    assert stress == pytest.approx(
        np.sqrt(((pdist(points) - pdist(cloud)) ** 2).sum() / (pdist(cloud) ** 2).sum()), 0.2
    )
    # The map is no PCA map in another dress.
    worse = np.sqrt(((pdist(maps.pca(cloud)[0]) - pdist(cloud)) ** 2).sum() / (pdist(cloud) ** 2).sum())
    assert stress < 0.9 * worse


def test_maps_are_deterministic_and_upright() -> None:
    states, _ = grid()
    assert (maps.mds(states)[0] == maps.mds(states.copy())[0]).all()
    for points in (maps.mds(states)[0], maps.pca(states)[0], maps.pca(-states)[0]):
        assert (((points - points.mean(axis=0)) ** 3).sum(axis=0) > 0).all()


def test_pca_is_scikit_learns_up_to_signs() -> None:
    states, _ = grid()
    points, shares = maps.pca(states)
    expected = PCA(2).fit(states)
    np.testing.assert_allclose(np.abs(points), np.abs(expected.transform(states)), atol=1e-8)
    np.testing.assert_allclose(shares, expected.explained_variance_ratio_)
    for rows in (states[:2], np.ones((5, 3))):
        with pytest.raises(ValueError, match="three or more"):
            maps.mds(rows)


def test_neighbours_are_of_other_questions() -> None:
    states, table = grid()
    near = maps.neighbours(states, table["question"], number=4)
    for i in (0, 17, 119):
        others = [j for j in range(len(states)) if table["question"][j] != table["question"][i]]
        others.sort(key=lambda j: ((states[i] - states[j]) ** 2).sum())
        assert near[i].tolist() == others[:4]
    with pytest.raises(ValueError, match="fewer than"):
        maps.neighbours(states[:8], table["question"][:8])


@pytest.mark.parametrize(("planted", "shuffle"), [("condition", "within"), ("domain", "between")])
def test_purity_finds_what_was_planted_and_nothing_else(planted: str, shuffle: str) -> None:
    states, table = grid(**{f"by_{planted}": 3.0})
    near = maps.neighbours(states, table["question"])
    found = maps.purity(near, table[planted], table["question"], shuffle=shuffle)
    assert found["purity"] > found["chance"] > found["expected"]
    assert found["p"] < 0.01
    labels = table[planted].to_numpy()
    assert found["purity"] == np.mean([labels[j] == labels[i] for i in range(len(labels)) for j in near[i]])
    other, way = {"condition": ("domain", "between"), "domain": ("condition", "within")}[planted]
    assert maps.purity(near, table[other], table["question"], shuffle=way)["p"] > 0.05


def test_a_free_permutation_would_find_domains_in_questions() -> None:
    # Questions cluster and domains do not; permuting rows one by one would still call the domain pure.
    states, table = grid(seed=4)
    near = np.argsort(((states[:, None] - states) ** 2).sum(axis=2), axis=1)[:, 1:6]
    labels, rng = table["domain"].to_numpy(), np.random.default_rng(0)
    free = [(p[near] == p[:, None]).mean() for p in (rng.permutation(labels) for _ in range(200))]
    assert (labels[near] == labels[:, None]).mean() > max(free)
    near = maps.neighbours(states, table["question"], number=5)
    assert maps.purity(near, labels, table["question"], shuffle="between")["p"] > 0.05


def test_purity_refusals() -> None:
    states, table = grid()
    near = maps.neighbours(states, table["question"])
    with pytest.raises(ValueError, match="alike"):
        maps.purity(near, [1] * len(near), table["question"], shuffle="within")
    with pytest.raises(ValueError, match="within or between"):
        maps.purity(near, table["domain"], table["question"], shuffle="free")
    with pytest.raises(ValueError, match="number of rows"):
        maps.purity(near[1:], table["domain"][1:], table["question"][1:], shuffle="between")


def test_thirds_keep_ties_together() -> None:
    assert maps.thirds(pd.Series([1.0, 2, 3, 4, 5, 6])).tolist() == [0, 0, 1, 1, 2, 2]
    assert len(set(maps.thirds(pd.Series([7.0] * 5)))) == 1
    assert maps.thirds(pd.Series([7, np.nan, 3.0]))[1] == -1


def test_purities_and_maps_say_what_is_missing() -> None:
    states, table = grid(by_condition=3.0)
    items = table.rename(columns={"question": "question_id"}).assign(score=7.0, quality=table["question"] % 3)
    found = maps.purities(states, items, draws=50).set_index("label")
    assert found["p"]["condition"] < 0.05
    assert "alike" in found["reason"]["score"]
    assert (found.drop(index="score")["reason"] == "").all()
    drawn = maps.mapped(items, states)
    assert drawn[["x", "y"]].notna().all(axis=None)
    assert 0 < drawn["fit"][0] < 1
    missing = maps.mapped(items[:2], states[:2], how="pca")
    assert "three or more" in missing["reason"][0]


def test_difference_maps_by_block() -> None:
    rng = np.random.default_rng(6)
    states = rng.normal(size=(40, 3, 8))
    pairs = pd.DataFrame({"question_id": np.arange(20), "condition": ["a", "b", "c", "d"] * 5})
    pairs = pairs.assign(row=20 + np.arange(20), base_row=np.arange(20))
    found = maps.difference_maps(states, pairs, {5: 0, 25: 2}, ["a", "c"])
    assert found.groupby("layer").size().to_dict() == {5: 10, 25: 10}
    chosen = pairs[pairs["condition"].isin(["a", "c"])]
    points, stress = maps.mds(states[chosen["row"], 2] - states[chosen["base_row"], 2])
    np.testing.assert_allclose(found.loc[found["layer"] == 25, ["x", "y"]], points)
    assert (found.loc[found["layer"] == 25, "fit"] == stress).all()
    none = maps.difference_maps(states, pairs[:0], {5: 0, 25: 2}, ["a", "c"])
    assert none["layer"].tolist() == [5, 25]
    assert none["x"].isna().all()
    assert none["reason"].str.contains("too few").all()
