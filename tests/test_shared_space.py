"""Directions across models: a rotated copy is found, unrelated models give chance."""

import numpy as np
import pytest
from biasgeom import shared_space
from scipy.stats import ortho_group


def unit(rng: np.random.Generator, d: int) -> np.ndarray:
    vector = rng.normal(size=d)
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize("known", [1.0, 0.6, -0.3])
def test_a_rotated_copy_keeps_a_known_cosine(known: float) -> None:
    rng = np.random.default_rng(0)
    cloud, turn = rng.normal(size=(80, 20)) * 30 + 5, ortho_group.rvs(20, random_state=1)
    first, other = unit(rng, 20), unit(rng, 20)
    other -= (other @ first) * first
    second = known * first + np.sqrt(1 - known**2) * other / np.linalg.norm(other)
    clouds = {"a": cloud, "b": 0.01 * cloud @ turn + 3}  # size and place do not matter
    found = shared_space.cosines(clouds, {"cue": {"a": first, "b": 7 * second @ turn}}, permutations=19).iloc[0]
    assert found["cosine"] == pytest.approx(known, abs=1e-8)
    assert found["ceiling"] == pytest.approx(1, abs=1e-8)
    assert found["inside"] == pytest.approx(1, abs=1e-8)
    # Without the alignment the number means nothing.
    assert abs(first @ (second @ turn) - known) > 0.05


def test_what_no_text_spans_overlaps_with_nothing() -> None:
    rng = np.random.default_rng(2)
    cloud, turn = rng.normal(size=(10, 40)), ortho_group.rvs(40, random_state=3)
    direction = unit(rng, 40)
    found = shared_space.cosines({"a": cloud, "b": cloud @ turn}, {"cue": {"a": direction, "b": direction @ turn}})
    axes = np.linalg.svd(cloud - cloud.mean(axis=0))[2][:9]
    share = ((axes @ direction) ** 2).sum()
    assert found["inside"][0] == pytest.approx(share)
    assert found["cosine"][0] == pytest.approx(share)
    assert found["ceiling"][0] == pytest.approx(share)


def test_a_narrow_projection_lowers_the_ceiling() -> None:
    rng = np.random.default_rng(4)
    cloud, turn = rng.normal(size=(200, 40)), ortho_group.rvs(40, random_state=5)
    direction = unit(rng, 40)
    directions = {"cue": {"a": direction, "b": direction @ turn}}
    found = shared_space.cosines({"a": cloud, "b": cloud @ turn}, directions, dimension=10, permutations=9)
    assert found["ceiling"][0] < 0.9
    assert found["cosine"][0] < 0.9


def test_unrelated_models_give_chance() -> None:
    rng = np.random.default_rng(6)
    clouds = {"a": rng.normal(size=(150, 60)), "b": rng.normal(size=(150, 80)), "c": rng.normal(size=(150, 70))}
    directions = {f"cue{i}": {name: unit(rng, cloud.shape[1]) for name, cloud in clouds.items()} for i in range(40)}
    found = shared_space.cosines(clouds, directions, permutations=19)
    assert len(found) == 40 * 3
    assert found["cosine"].abs().mean() < 0.2
    assert found["cosine"].std() == pytest.approx(1 / np.sqrt(60), rel=0.3)
    assert found["random"].mean() == pytest.approx(1.645 / np.sqrt(60), rel=0.15)
    assert 0.01 < (found["p"] <= 0.05).mean() < 0.15


def test_shuffled_texts_show_what_shared_texts_add() -> None:
    # Two models that see the same causes through their own maps and with their own noise.
    rng = np.random.default_rng(7)
    causes = rng.normal(size=(120, 10)) * np.arange(10, 0, -1)
    views = {"a": rng.normal(size=(10, 30)), "b": rng.normal(size=(10, 40))}
    views = {name: np.linalg.qr(view.T)[0].T for name, view in views.items()}
    clouds = {name: causes @ view + 0.3 * rng.normal(size=(120, view.shape[1])) for name, view in views.items()}
    cause = np.eye(10)[4]
    found = shared_space.cosines(clouds, {"cue": {name: cause @ view for name, view in views.items()}}).iloc[0]
    assert found["cosine"] > 0.7
    assert found["p"] == 1 / 40
    assert found["misaligned"] < found["cosine"]


def test_a_type_may_lack_a_model() -> None:
    rng = np.random.default_rng(8)
    clouds = {name: rng.normal(size=(30, 8)) for name in "abc"}
    found = shared_space.cosines(clouds, {"cue": {"a": unit(rng, 8), "c": unit(rng, 8)}}, permutations=3)
    assert found[["model_a", "model_b"]].to_numpy().tolist() == [["a", "c"]]
    assert list(shared_space.cosines(clouds, {}, permutations=3)) == list(found)


def test_refusals() -> None:
    rng = np.random.default_rng(9)
    cloud = rng.normal(size=(30, 8))
    for clouds, settings, message in [
        ({"a": cloud}, {}, "two or more"),
        ({"a": cloud, "b": cloud[:9]}, {}, "same texts"),
        ({"a": cloud, "b": cloud}, {"dimension": 9}, "1 to 8"),
        ({"a": cloud, "b": np.ones((30, 8))}, {}, "b: all texts"),
    ]:
        with pytest.raises(ValueError, match=message):
            shared_space.fit(clouds, **settings)
    space = shared_space.fit({"a": cloud, "b": cloud})
    with pytest.raises(ValueError, match="width 8"):
        space.place("a", np.ones(5))
    with pytest.raises(ValueError, match="zero"):
        space.place("a", np.zeros(8))
