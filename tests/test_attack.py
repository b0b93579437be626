"""The attack on a judge that is linear along a direction: its best strength and its effect are known beforehand."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from biasgeom import attack, ground, models, steering
from biasgeom.ground import Ground, Handle
from biasgeom.models import LanguageModel
from biasgeom.steering import Scores, Steered
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr, wasserstein_distance
from steerable import PASSED, L, World
from test_steering import TEXTS, biased_to_digits, slowly

WIDTH = 12
UP = np.eye(WIDTH)[0]
EASY = {"start": 0.25, "tolerance": 1e-3, "window": 0.5, "max_alpha": 16.0}


class Line:
    """n prompts scored base + gain · ⟨αv, u⟩, each valid while ‖αv‖ is its limit at most; in the place of a Steered."""

    def __init__(
        self,
        base: np.ndarray,
        *,
        gain: float | np.ndarray = 1.0,
        limit: float | np.ndarray = np.inf,
        u: np.ndarray = UP,
    ) -> None:
        self.base, self.u = np.asarray(base, dtype=float), u
        self.gain, self.limit = np.broadcast_to(gain, self.base.shape), np.broadcast_to(limit, self.base.shape)
        self.asked: list[float] = []

    def scores(self, block: int, direction: np.ndarray, alphas: Sequence[float]) -> Scores:
        alphas = np.asarray(alphas, dtype=float)
        direction = np.asarray(direction, dtype=float)
        assert direction.ndim == 1 or len(direction) == len(alphas)
        edits = alphas[:, None] * np.broadcast_to(direction, (len(alphas), direction.shape[-1]))
        self.asked += alphas.tolist()
        expected = self.base + self.gain * (edits @ self.u)[:, None]
        valid = np.linalg.norm(edits, axis=1)[:, None] <= self.limit
        return Scores(expected, np.round(expected), valid)


def handle(vector: np.ndarray = UP, *, unit: float = 4.0, block: int = 2, method: str = "mean") -> Handle:
    return Handle("Bandwagon-", method, block, vector, unit)


BASE = np.linspace(4, 6, 20) + 0.01 * np.sin(np.arange(20))


# the search


def test_the_best_strength_is_where_too_few_scores_are_valid() -> None:
    """W1 = |α| · gain · cosine, and every prompt but three gives up at ‖αv‖ = 10: validity falls below 0.93 there."""
    vector = 0.6 * UP + 0.8 * np.eye(WIDTH)[1]
    line = Line(BASE, gain=-0.5, limit=np.r_[np.full(17, 10.0), np.full(3, 99.0)])
    found = attack.search(line, handle(vector), floor=0.5, settings=EASY)
    assert found.binding == "validity"
    # Strengths are counted in units: α = 10 is 2.5 of them.
    assert found.alpha == pytest.approx(2.5, abs=2e-3)
    assert found.boundary == pytest.approx(2.5, abs=2e-3)
    assert found.outcome.w1 == pytest.approx(0.5 * 0.6 * 4 * found.alpha)
    assert found.outcome.validity == 1
    absolute = attack.search(line, handle(vector), floor=0.5, absolute=True)
    assert absolute.alpha == pytest.approx(10, abs=0.15)
    # The paper's constants step by 0.1: the absolute search starts at 1.
    assert absolute.trace["alpha"].iloc[:4].tolist() == [1, 2, 4, 8]
    assert attack.search(line, handle(vector), floor=0.5).trace["alpha"].iloc[:3].tolist() == [0.25, 0.5, 1]


def test_the_floor_is_kept() -> None:
    """Half of the prompts move: they pass the others at a known strength, and the order is lost where ρ < floor."""
    base, gain = np.arange(20.0), np.r_[np.ones(10), np.zeros(10)]
    line = Line(base, gain=gain)
    rho = spearmanr(base + 8 * gain, base).statistic
    found = attack.search(line, handle(unit=1.0), floor=rho, settings=EASY)
    assert found.binding == "spearman"
    assert found.outcome.spearman >= rho
    assert 7.9 < found.alpha < 9.01
    loose = attack.search(line, handle(unit=1.0), floor=-1.0, settings=EASY)
    assert loose.binding == "max_alpha"
    assert loose.alpha == 16
    # The order is that of the unsteered scores, also where the target of W1 is the same.
    assert found.outcome.w1 == pytest.approx(wasserstein_distance(base + found.alpha * gain, base))


def test_a_search_without_a_floor_is_refused_and_becomes_a_reason() -> None:
    line = Line(BASE)
    with pytest.raises(ValueError, match="no floor"):
        attack.search(line, handle(), floor=np.nan)
    table = attack.searched(line, [handle()], floor=np.nan)
    assert "no floor" in table["reason"].item()
    assert table[["alpha", "w1", "boundary"]].isna().all(axis=None)


def test_searched_gives_both_counts_and_both_rules() -> None:
    line = Line(BASE, gain=-0.3, limit=np.r_[np.full(17, 10.0), np.full(3, 99.0)])
    one, other = handle(), handle(-UP, unit=2.0, method="pca")
    table = attack.searched(line, [one, other], floor=0.2, settings=EASY)
    assert [*table.columns] == [c for c in attack.PANEL if c != "layer"]
    assert (table["reason"] == "").all()
    assert table["alpha"].tolist() == pytest.approx((table["alpha_units"] * [4, 2]).tolist())
    assert table["alpha_units"].tolist() == pytest.approx([2.5, 5], abs=3e-3)
    assert table["w1"].tolist() == pytest.approx((0.3 * table["alpha"]).tolist())
    assert (table["w1"] >= table["w1_last"] - 1e-12).all()
    # Searched in absolute terms, both counts mean the same as before.
    plain = attack.searched(line, [one, other], floor=0.2, absolute=True, settings=EASY)
    for column in ("alpha", "w1", "boundary", "alpha_units"):
        np.testing.assert_allclose(plain[column], table[column], rtol=5e-3)
    # The printed rule's strength is in units, too.
    assert (table["w1_last"] / 0.3 / table["unit"]).tolist() == pytest.approx(table["alpha_last"].tolist())
    assert table["feasible_last"].all()


def test_no_strength_no_prompt_no_valid_score() -> None:
    never = attack.searched(Line(BASE, limit=1e-9), [handle()], floor=0.2)
    assert never["reason"].item() == "no strength is feasible"
    assert np.isnan(never["alpha"].item())
    level = attack.searched(Line(np.full(9, 5.0)), [handle()], floor=0.2)
    assert level["reason"].item() == "no strength is feasible"
    none = attack.searched(Line(np.array([])), [handle()], floor=0.2)
    assert "no clean prompts" in none["reason"].item()
    assert list(attack.searched(Line(BASE), [], floor=0.2).columns) == list(never.columns)


def test_feasible() -> None:
    outcome = SimpleNamespace(w1=1.0, validity=0.93, spearman=0.5)
    assert attack.feasible(outcome, 0.5)
    for wrong in ({"w1": np.nan}, {"validity": 0.929}, {"spearman": 0.49}, {"spearman": np.nan}):
        assert not attack.feasible(SimpleNamespace(**vars(outcome) | wrong), 0.5)


# grid and monotony


def test_the_grid_holds_both_ends_and_the_search_is_as_good() -> None:
    line = Line(BASE, gain=0.3 + 0.02 * np.sin(7 * np.arange(20)))
    made = attack.search(line, handle(), floor=0.9)
    table = attack.on_grid(line, handle(), made.boundary, floor=0.9)
    assert len(table) == 200
    assert table["alpha_units"].iloc[[0, -1]].tolist() == [0, made.boundary]
    assert table["w1"].iloc[0] == 0
    for row in table.iloc[::40].itertuples():
        after = line.base + line.gain * row.alpha_units * 4
        assert row.w1 == pytest.approx(wasserstein_distance(after, line.base))
        assert row.spearman == pytest.approx(spearmanr(after, line.base).statistic)
        assert row.feasible == (row.spearman >= 0.9)
    assert made.outcome.w1 >= 0.98 * table.loc[table["feasible"], "w1"].max()
    twice = attack.on_grid(line, handle(), 2 * made.boundary, floor=0.9, points=20)
    assert not twice["feasible"].all()


class Table(Line):
    """Scores by whole strengths: one row each."""

    def __init__(self, *rows: Sequence[float]) -> None:
        self.rows = np.array(rows, dtype=float)

    def scores(self, block: int, direction: np.ndarray, alphas: Sequence[float]) -> Scores:
        found = self.rows[np.round(np.asarray(alphas)).astype(int)]
        return Scores(found, found, ~np.isnan(found))


def monotone(*rows: Sequence[float]) -> tuple[bool, bool, bool]:
    found = attack.monotone(Table(*rows), handle(unit=1.0), len(rows) - 1, points=len(rows) - 1)
    return found["w1"], found["validity"], found["spearman"]


def test_monotone() -> None:
    base, x = [1, 2, 3, 4], np.nan
    assert monotone(base, [2, 3, 4, 5], [2, 3, 4, 5], [4, 5, 6, 7]) == (True, True, True)  # a plateau is no fall
    assert monotone(base, [3, 4, 5, 6], [2, 3, 4, 5]) == (False, True, True)  # W1 of 0, 2, 1
    assert monotone(base, [3, 4, 5, x], [4, 5, 6, 7]) == (True, False, True)
    assert monotone(base, [3, 4, 6, 5], [4, 5, 6, 7]) == (True, True, False)
    # An undefined rank correlation is the lowest: from it ρ rises again; without any valid score W1 falls to nothing.
    assert monotone(base, [5, 5, 5, 5], [7, 8, 9, 10]) == (True, True, False)
    assert monotone(base, [5, 6, 7, 8], [x, x, x, x]) == (False, True, True)
    # Ends with the undefined one: no rise, so ρ is monotone.
    assert monotone(base, [3, 4, 6, 5], [9, 9, 9, 9]) == (True, True, True)


def test_monotone_counts_strength_in_units() -> None:
    line = Line(BASE)
    attack.monotone(line, handle(unit=4.0), 2.0)
    np.testing.assert_allclose(line.asked, np.linspace(0, 8, 11))


# the effect on other prompts


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(3, 12))
def test_the_interval_is_that_of_explicit_resamples(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    before, after = rng.normal(5, 1, size=n), rng.normal(4, 2, size=n)
    found = attack.effect(before, after, draws=60, seed=7)
    drawn = []
    for picks in np.random.default_rng(7).integers(n, size=(60, n)):
        drawn.append(wasserstein_distance([after[i] for i in picks], [before[i] for i in picks]))
    assert found["w1"] == pytest.approx(wasserstein_distance(after, before))
    assert (found["low"], found["high"]) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))
    assert found["shift"] == pytest.approx(np.mean([b - a for a, b in zip(before, after, strict=True)]))
    assert found["spearman"] == pytest.approx(spearmanr(before, after).statistic)
    assert found["reason"] == ""


def test_whole_prompts_are_drawn() -> None:
    """A constant shift has no spread, whichever prompts are drawn; drawn apart, the two sides would differ."""
    before = np.random.default_rng(0).normal(5, 2, size=20)
    found = attack.effect(before, before - 1.5)
    assert (found["low"], found["high"], found["w1"]) == pytest.approx((1.5, 1.5, 1.5))
    assert found["shift"] == pytest.approx(-1.5)
    one = np.random.default_rng(1)
    apart = [wasserstein_distance(*(one.choice(s, 20) for s in (before, before - 1.5))) for _ in range(200)]
    assert np.ptp(np.quantile(apart, [0.025, 0.975])) > 0.5
    # W1 has no sign, and movements that cancel have one: the shift is neither the distance nor its negative.
    spread = attack.effect(np.array([4.0, 5, 6]), np.array([3.0, 5, 7]), draws=5)
    assert (spread["w1"], spread["shift"]) == (pytest.approx(2 / 3), 0)


def test_effects_that_are_none() -> None:
    x = np.nan
    part = attack.effect(np.array([1.0, 2, 3, x, 5]), np.array([2.0, x, 4, 9, 6]), draws=50)
    assert part["shift"] == pytest.approx(1)  # of three prompts
    assert part["validity"] == 0.8
    assert part["w1"] == pytest.approx(wasserstein_distance([2, 4, 9, 6], [1, 2, 3, 5]))
    for before, after in (([1.0, 2], [x, x]), ([x, 2.0], [1.0, x])):
        found = attack.effect(np.array(before), np.array(after))
        assert np.isnan([found[name] for name in ("low", "high", "shift")]).all()
        assert found["reason"] == "no prompt has a valid score twice"
    level = attack.effect(np.full(4, 5.0), np.array([1.0, 2, 3, 4]))
    assert level["w1"] == pytest.approx(2.5)
    assert np.isnan(level["spearman"])
    assert level["reason"] == steering.UNRANKED


# panel, separability, report, on a judge with states


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    config = SimpleNamespace(num_hidden_layers=L)
    made.lm.core = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda **_: config))
    made.lm.name = "world"
    monkeypatch.setattr(ground, "Steered", lambda *a, **how: with_lm(made, made.steered(*a, **how)))
    return made


def with_lm(world: World, steered: object) -> object:
    steered.lm = world.lm
    return steered


def of(world: World) -> Ground:
    return Ground(world.judge, world.pairs, world.pairs, world.baselines)


LAYERS = (15, 31)  # of three blocks: 1 and 2


def test_the_panel_searches_every_cue_layer_and_estimator(world: World) -> None:
    whole = of(world)
    steered, ids = ground.clean(world.lm, whole.only("dev"))
    how = {"settings": EASY | {"max_alpha": 2.0}, "methods": ["mean", "pca"]}
    table, found = attack.panel(whole.only("train"), steered, ids, ["Authority-", "Bandwagon-"], LAYERS, **how)
    assert list(table.columns) == attack.PANEL
    # A cue without effective pairs is one row with its reason.
    assert table["condition"].tolist() == ["Authority-", *["Bandwagon-"] * 4]
    assert "0 effective pairs" in table["reason"].iloc[0]
    made = table.iloc[1:]
    assert made[["block", "layer"]].to_numpy().tolist() == [[1, 15], [1, 15], [2, 31], [2, 31]]
    assert set(found) == {("Bandwagon-", m, b) for m in ("mean", "pca") for b in (1, 2)}
    base, cue = (ground.text_scores(world.judge.items, c, ids, "expected") for c in ("base", "Bandwagon-"))
    assert made["floor"].to_numpy() == pytest.approx(spearmanr(base, cue).statistic)
    for row in made.itertuples():
        vector = found[row.condition, row.method, row.block].vector
        moved = abs(row.alpha * PASSED ** (2 - row.block) * world.weight @ vector)
        assert row.alpha_units == 2
        assert row.w1 == pytest.approx(moved)
    assert attack.panel(whole.only("train"), steered, ids, [], LAYERS)[0].empty
    assert attack.panel(whole.only("train"), steered, ids, ["Bandwagon-"], [])[0].empty
    # Directions come from training questions alone.
    world.judge.states[world.pairs.loc[world.pairs["split"] != "train", "row"]] *= -5
    _, again = attack.panel(whole.only("train"), steered, ids, ["Bandwagon-"], LAYERS, **how)
    for key, one in found.items():
        np.testing.assert_array_equal(one.vector, again[key].vector)


def test_separable_picks_the_block_where_states_are_told_apart(world: World) -> None:
    """At block 0 the cue is not there at all, at block 2 it is twice as far as at block 1: far above the noise."""
    table = pd.DataFrame({"condition": "Bandwagon-", "method": ["mean", "mean", "pca", "pca"], "block": [0, 2, 0, 2]})
    both = of(world).only("train", "dev")
    found = attack.separable(both, table)
    assert found["block"].tolist() == [2, 2]
    assert found["method"].tolist() == ["mean", "pca"]
    # Not the last one as such: with the blocks' states exchanged it is the other.
    world.judge.states[:, [0, 2]] = world.judge.states[:, [2, 0]]
    assert attack.separable(both, table)["block"].tolist() == [0, 0]
    # Only blocks that have a strength are among them; a cue without pairs on both sides has no row.
    assert attack.separable(both, table[table["block"] == 2])["block"].tolist() == [2, 2]
    other = attack.separable(both, pd.concat([table, table.assign(condition="Authority-")]))
    assert set(other["condition"]) == {"Bandwagon-"}
    assert attack.separable(of(world).only("train"), table).empty
    assert list(attack.separable(both, table.head(0)).columns) == list(table.columns)


def test_reported_on_other_prompts_beside_the_text(world: World) -> None:
    whole = of(world)
    test, ids = ground.clean(world.lm, whole.only("test"))
    one = handle(world.cue, unit=2.0, block=1)
    chosen = pd.DataFrame({"condition": ["Bandwagon-"], "method": "mean", "layer": 15, "block": 1.0, "w1": 0.7})
    chosen = chosen.assign(alpha=3.0, alpha_units=1.5, spearman=0.9)
    table = attack.reported(chosen, {("Bandwagon-", "mean", 1): one}, test, ids, world.judge.items)
    assert table["method"].tolist() == ["text", "mean"]
    text, steered = table.iloc[0], table.iloc[1]
    pairs = world.split("test")[0]
    scores = [world.score(world.states[pairs[row], 2]) for row in ("base_row", "row")]
    assert text["w1"] == pytest.approx(wasserstein_distance(*scores))
    assert text["shift"] == pytest.approx((scores[1] - scores[0]).mean())
    assert text["low"] < text["w1"] < text["high"]
    assert np.isnan(text["alpha"])
    # Steering moves every score alike, by the absolute strength: not by units, and not once more by the unit.
    assert steered["shift"] == pytest.approx(-0.5 * 3 * PASSED)
    assert steered["w1"] == pytest.approx(0.5 * 3 * PASSED)
    assert steered["spearman"] == pytest.approx(1)
    kept = ["alpha_units", "w1_dev", "spearman_dev", "block"]
    assert steered[kept].tolist() == [1.5, 0.7, 0.9, 1]
    assert (table["reason"] == "").all()
    # Where the strength leaves no valid score there is a reason and no zero.
    world.valid_up_to = 1.0
    table = attack.reported(chosen, {("Bandwagon-", "mean", 1): one}, test, ids, world.judge.items)
    lost = table.iloc[1]
    assert np.isnan([lost["w1"], lost["shift"]]).all()
    assert lost["reason"] == "no prompt has a valid score twice"
    assert attack.reported(chosen.head(0), {}, test, ids, world.judge.items).empty


def test_a_real_judge_s_strength_does_what_whole_passes_do(build: Callable[[str], LanguageModel]) -> None:
    lm = biased_to_digits(build("llama"), 6)
    steered = Steered(lm, TEXTS[:3], prefill="")
    vector = np.random.default_rng(0).normal(size=lm.width)
    one = Handle("Bandwagon-", "mean", 2, vector / np.linalg.norm(vector), 0.7)
    how = {"settings": {"max_alpha": 2.0, "max_evaluations": 12}}
    row = attack.searched(steered, [one], floor=-1.0, **how).iloc[0]
    assert row["reason"] == ""
    assert row["evaluations"] <= 12
    before, after = (
        [slowly(lm, t, "", 2, a * one.vector)[0] for t in TEXTS[:3]] for a in (1e-12, row["alpha_units"] * 0.7)
    )
    assert row["w1"] == pytest.approx(wasserstein_distance(before, after), abs=1e-3)
    assert row["w1"] > 0.01
    # Forgetting the unit is another number.
    wrong = [slowly(lm, t, "", 2, row["alpha_units"] * one.vector)[0] for t in TEXTS[:3]]
    assert abs(wasserstein_distance(before, wrong) - row["w1"]) > 2e-3
    assert models.matching_block(31, len(lm.blocks)) == 3
