"""The α search on objectives whose optimum is known, and against the algorithm as printed, written out line by line."""

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from biasgeom import annealing, ledger
from biasgeom.annealing import search_alpha
from biasgeom.ledger import Outcome, SearchInterrupted
from hypothesis import given, settings
from hypothesis import strategies as st

UNITS = {"start": 0.25, "tolerance": 0.02, "window": 1.0, "max_alpha": 16.0}
"""As the pages search (spec point 9)."""


class Counted:
    """An objective that counts how often it is asked for each α."""

    def __init__(self, objective: Callable[[float], Outcome]) -> None:
        self.objective, self.asked = objective, []

    def __call__(self, alpha: float) -> Outcome:
        self.asked.append(alpha)
        return self.objective(alpha)

    def many(self, alphas: list[float]) -> list[Outcome]:
        return [self(alpha) for alpha in alphas]


def monotone(edge: float) -> Callable[[float], Outcome]:
    return lambda alpha: Outcome(alpha, 1.0 if alpha <= edge else 0.5, 1.0)


def peaked(alpha: float) -> Outcome:
    """Best at 2, worse from there to the boundary at 12."""
    return Outcome(math.exp(-((alpha - 2) ** 2)) + 0.01, 1.0 if alpha <= 12 else 0.1, 0.9)


def floors(outcome: Outcome, validity: float = 0.93, spearman: float = -1.0) -> bool:
    return outcome.w1 == outcome.w1 and outcome.validity >= validity and outcome.spearman >= spearman


def printed(evaluate: Callable[[float], Outcome], start: float, tolerance: float, window: float, seed: int) -> float:
    """Algorithm 1, lines 1 to 25 (J.4), with appendix G's schedule."""
    low, high = 0.0, start
    while floors(evaluate(high)):
        low, high = high, 2 * high
    while high - low > tolerance:
        middle = (low + high) / 2
        if floors(evaluate(middle)):
            low = middle
        else:
            high = middle
    boundary = low
    best, w, t = boundary, evaluate(boundary).w1, 1.0
    rng = np.random.default_rng(seed)
    while t > 1e-3:
        candidate = max(0, boundary - window) + min(window, boundary) * rng.random()
        outcome, u = evaluate(candidate), rng.random()
        energy = -outcome.w1 + (0 if floors(outcome) else 1e3)
        if energy < -w or np.exp((-w - energy) / t) > u:
            best, w = candidate, -energy
        t *= 0.95
    return best


@pytest.mark.parametrize("edge", [0.1, 0.3, 1.0, 3.17, 40.0, 700.0])
def test_a_monotone_objective_is_best_at_its_boundary(edge: float) -> None:
    found = search_alpha(Counted(monotone(edge)), tolerance=0.01)
    assert edge - 0.01 <= found.boundary <= edge
    # A candidate between the boundary found and the true one may not be drawn: none lies above.
    assert found.alpha == found.boundary == found.outcome.w1
    assert found.binding == "validity"
    assert not found.capped
    assert found.last_alpha >= edge - 5 - 0.01


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("objective", [monotone(7.3), peaked, lambda a: Outcome(math.floor(a) / 3, 1.0 - a / 200, 0.5)])
def test_the_last_rule_is_the_algorithm_as_printed(objective: Callable[[float], Outcome], seed: int) -> None:
    found = search_alpha(objective, rule="last", seed=seed)
    assert found.alpha == found.last_alpha == pytest.approx(printed(objective, 1.0, 0.1, 5.0, seed), abs=1e-12)
    assert found.outcome == found.last_outcome == objective(found.alpha)
    best = search_alpha(objective, rule="best", seed=seed)
    assert best.last_alpha == found.alpha
    assert best.outcome.w1 >= found.outcome.w1


def test_the_printed_rule_loses_where_w1_falls_towards_the_boundary() -> None:
    best, last = search_alpha(peaked, **UNITS), search_alpha(peaked, rule="last", **UNITS)
    assert best.outcome.w1 > 0.98 * peaked(2).w1
    assert abs(best.alpha - 2) < 0.3
    assert last.alpha > 10.9
    assert last.outcome.w1 < 0.02
    # So does the search that only looks where the paper does, were it not for what doubling met by chance.
    near = search_alpha(peaked, scan=0, **{**UNITS, "start": 0.7})
    assert near.outcome.w1 < 0.8 * peaked(2).w1


def test_hot_chains_end_anywhere() -> None:
    """A rule that accepts everything would not be seen on the default schedule, whose end is cold."""
    hot = {"temperature": 100.0, "min_temperature": 50.0, "rule": "last"}
    ends = {search_alpha(monotone(9.0), seed=seed, **hot).alpha for seed in range(8)}
    assert max(ends) - min(ends) > 1
    cold = [search_alpha(monotone(9.0), seed=seed, rule="last").outcome.w1 for seed in range(8)]
    assert min(cold) > 8.9


def test_the_printed_rule_may_end_on_an_infeasible_alpha() -> None:
    def striped(alpha: float) -> Outcome:
        return Outcome(alpha, 1.0, 1.0 if alpha == 4 or alpha in (1, 2) else 0.0)

    loose = {"penalty": 1e-3, "tolerance": 3.0, "min_spearman": 0.5}
    last = search_alpha(striped, rule="last", **loose)
    assert last.outcome.spearman == 0  # said, not hidden
    best = search_alpha(striped, **loose)
    assert (best.alpha, best.outcome.spearman) == (4, 1)
    assert search_alpha(striped, rule="last", min_spearman=0.5, tolerance=3.0).alpha == 4  # the default penalty forbids


@pytest.mark.parametrize("many", [False, True])
def test_on_a_plateau_the_smallest_of_the_best_is_taken(many: bool) -> None:
    plateau = Counted(lambda alpha: Outcome(min(2.0, math.floor(alpha)), 1.0, 1.0 if alpha <= 6 else 0.0))
    found = search_alpha(plateau, evaluate_many=plateau.many if many else None, min_spearman=0.9)
    assert found.outcome.w1 == 2
    assert found.alpha == 2
    assert found.alpha == min(a for a in plateau.asked if plateau.objective(a).w1 == 2)


def test_non_monotone_near_the_boundary() -> None:
    """Order is lost in a gap below the boundary, where W1 is largest: its infeasible strengths are not taken."""

    def gapped(alpha: float) -> Outcome:
        return Outcome(5 - abs(alpha - 7), 1.0, 0.2 if 6.5 < alpha < 7.4 or alpha > 7.9 else 0.8)

    found = search_alpha(gapped, min_spearman=0.5, tolerance=0.01)
    assert found.outcome.spearman == 0.8
    if found.boundary > 7:  # beyond the gap: 7.4 is best
        assert found.outcome.w1 > 4.55
    within = found.trace[(found.trace["alpha"] > 6.5) & (found.trace["alpha"] < 7.4)]
    assert not within["feasible"].any()


@pytest.mark.parametrize(("edge", "expected"), [(0.37, 0.37), (0.0, None)])
def test_infeasible_at_the_start(edge: float, expected: float | None) -> None:
    objective = Counted(lambda alpha: Outcome(alpha, 1.0, 1.0 if alpha <= edge else -0.5))
    found = search_alpha(objective, min_spearman=0.0, tolerance=0.02)
    assert 0 not in objective.asked
    assert found.binding == "spearman"
    if expected is None:
        assert found.alpha is found.outcome is found.last_alpha is found.last_outcome is None
        assert found.boundary == 0
        assert not found.trace["feasible"].any()
        assert found.evaluations == 1 + 6  # 1, then halved to below the tolerance
    else:
        assert expected - 0.02 <= found.alpha <= expected


def test_unbounded_stops_at_max_alpha() -> None:
    objective = Counted(lambda alpha: Outcome(alpha, 1.0, 1.0))
    found = search_alpha(objective, max_alpha=100.0)
    assert (found.alpha, found.boundary, found.binding) == (100, 100, "max_alpha")
    assert max(objective.asked) == 100
    assert search_alpha(objective, start=3.0, max_alpha=3.0).alpha == 3


@pytest.mark.parametrize(
    ("bad", "binding"),
    [
        (Outcome(3.0, 1.0, math.nan), "spearman"),
        (Outcome(math.nan, 0.0, math.nan), "both"),
        (Outcome(math.nan, 1.0, 1.0), "validity"),
        (Outcome(9.0, 0.5, -0.5), "both"),
    ],
)
def test_undefined_values_are_infeasible(bad: Outcome, binding: str) -> None:
    found = search_alpha(lambda alpha: Outcome(alpha, 1.0, 1.0) if alpha < 3 else bad)
    assert 2.9 <= found.alpha < 3
    assert found.binding == (binding if not math.isfinite(bad.w1 + bad.spearman) else "validity")
    never = search_alpha(lambda alpha: bad, min_spearman=0.0)
    assert never.alpha is None
    assert never.binding == binding
    # Also within the window, where annealing meets them: a NaN is no energy to compare with.
    holed = search_alpha(lambda a: bad if 2.5 < a < 2.9 else Outcome(a, float(a < 3), 1.0), min_spearman=0, rule="last")
    assert floors(holed.outcome, spearman=0.0)


def test_the_chain_never_steps_into_a_hole_without_scores() -> None:
    """Nor does one such candidate let every later one in: a NaN compares with nothing."""

    def evaluate(alpha: float) -> Outcome:
        return (
            Outcome(math.nan, 0.0, math.nan) if 2.55 < alpha < 2.7 else Outcome(alpha, 1.0, 1.0 if alpha < 3 else 0.0)
        )

    ends = [
        search_alpha(evaluate, min_spearman=0.5, start=0.25, tolerance=0.02, window=1.0, rule="last", seed=seed)
        for seed in range(40)
    ]
    assert all(math.isfinite(one.outcome.w1) for one in ends)
    assert any(((one.trace["alpha"] > 2.55) & (one.trace["alpha"] < 2.7)).any() for one in ends)  # it was met


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("fails_at", [1, 4, 9, 40, 150])
def test_an_evaluation_that_raises_loses_nothing(batched: bool, fails_at: int, tmp_path) -> None:
    def evaluate(alpha: float) -> Outcome:
        if len(objective.asked) == fails_at and not objective.failed:
            objective.failed = True
            raise OSError("device lost")
        return Outcome(math.sin(alpha / 3) + alpha / 9, 1.0, 1.0 if alpha < 13.3 else 0.0)

    def search(**more: object) -> annealing.AlphaSearch:
        return search_alpha(objective, evaluate_many=objective.many if batched else None, **limits, **more)

    limits = {**UNITS, "min_spearman": 0.5, "seed": 3}
    objective = Counted(evaluate)
    objective.failed = True
    whole = search()
    objective = Counted(evaluate)
    objective.failed = False
    with pytest.raises(SearchInterrupted, match=r"device lost.* pass it as trace= to go on") as caught:
        search()
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value.__cause__, OSError)
    trace = caught.value.trace
    # All but the failed one; of a batch, all that came before it.
    assert len(trace) == fails_at - 1 if not batched else fails_at - ledger.BATCH <= len(trace) < fails_at
    trace.to_csv(tmp_path / "trace.csv", index=False)  # stored and read back, as a notebook would
    before = len(objective.asked)
    resumed = search(trace=pd.read_csv(tmp_path / "trace.csv"))
    assert not set(objective.asked[before:]) & set(trace["alpha"])
    assert len(objective.asked) - before == whole.evaluations - len(trace)
    assert resumed.alpha == whole.alpha
    assert resumed.last_alpha == whole.last_alpha
    assert resumed.evaluations == whole.evaluations
    pd.testing.assert_frame_equal(resumed.trace, whole.trace, rtol=1e-12)


def test_an_interrupt_keeps_its_trace_and_stays_an_interrupt() -> None:
    def evaluate(alpha: float) -> Outcome:
        if len(objective.asked) == 5:
            raise KeyboardInterrupt
        return Outcome(alpha, 1.0, 1.0)

    objective = Counted(evaluate)
    with pytest.raises(KeyboardInterrupt) as caught:
        search_alpha(objective)
    assert caught.value.trace["alpha"].tolist() == [1, 2, 4, 8]
    # A second one while going on, before all that was known has been asked for, loses none of it.
    objective = Counted(evaluate)
    objective.asked = [0.0] * 4
    known = pd.DataFrame({"alpha": [1.0, 3.0], "w1": [1.0, 3.0], "validity": 1.0, "spearman": 1.0})
    with pytest.raises(KeyboardInterrupt) as caught:
        search_alpha(objective, trace=known)
    assert caught.value.trace[["alpha", "stage"]].to_numpy().tolist() == [[1, "doubling"], [3, "given"]]


def test_a_trace_serves_other_constraints() -> None:
    objective = Counted(lambda alpha: Outcome(alpha, 1.0, 1 - alpha / 20))
    loose = search_alpha(objective, min_spearman=0.2)
    strict = search_alpha(Counted(objective.objective), min_spearman=0.85, trace=loose.trace)
    assert strict.alpha == search_alpha(objective.objective, min_spearman=0.85).alpha
    assert strict.alpha == pytest.approx(3, abs=0.1)
    with pytest.raises(ValueError, match="the trace lacks spearman, validity"):
        search_alpha(objective, trace=loose.trace[["alpha", "w1"]])


def test_batches_change_nothing_and_seeds_repeat() -> None:
    objective = Counted(lambda a: Outcome(math.sin(a) + a / 4, 1.0, 1.0 if a < 11.7 else 0.0))
    one = search_alpha(objective, min_spearman=0.5, seed=7)
    alone = list(objective.asked)
    objective.asked.clear()
    batches = []

    def together(alphas: list[float]) -> list[Outcome]:
        batches.append(alphas)
        return objective.many(alphas)

    many = search_alpha(objective, min_spearman=0.5, seed=7, evaluate_many=together)
    assert alone == objective.asked
    assert 1 < max(map(len, batches)) <= ledger.BATCH
    assert (one.alpha, one.last_alpha, one.evaluations) == (many.alpha, many.last_alpha, many.evaluations)
    pd.testing.assert_frame_equal(one.trace, many.trace)
    other = search_alpha(objective, min_spearman=0.5, seed=8)
    assert other.trace["alpha"].tolist() != one.trace["alpha"].tolist()
    with pytest.raises(SearchInterrupted, match="1 outcomes for 64 strengths"):
        search_alpha(objective, evaluate_many=lambda alphas: objective.many(alphas[:1]))


@pytest.mark.parametrize("cap", [1, 3, 8, 20, 60, 200])
def test_at_most_so_many_distinct_alphas(cap: int) -> None:
    objective = Counted(lambda a: Outcome(a, 1.0, 1.0 if a < 11.7 else 0.0))
    slow = {"min_spearman": 0.5, "cooling": 0.97, "tolerance": 0.01}
    found = search_alpha(objective, max_evaluations=cap, **slow)
    assert len(objective.asked) == len(set(objective.asked)) == found.evaluations == cap
    assert found.capped
    whole = search_alpha(objective.objective, max_evaluations=1000, **slow)
    assert not whole.capped
    # What gives way: the end of the same sequence, for doubling and bisection have theirs first.
    assert found.trace["alpha"].tolist() == whole.trace["alpha"][:cap].tolist()
    assert found.binding == ("none" if cap < 5 else "spearman")
    assert found.alpha is not None
    assert found.boundary <= whole.boundary


curves = st.builds(
    lambda slope, bend, wave, length, phase: (
        lambda a: slope * a / (1 + a / bend) * (1 + wave * math.sin(a / length + phase))
    ),
    st.floats(0.05, 3),
    st.floats(0.5, 30),
    st.floats(0, 0.6),
    st.floats(0.8, 10),
    st.floats(0, 6.3),
)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(curves, st.floats(0.2, 30), st.floats(0, 0.2), st.floats(0.5, 5), st.integers(0, 2**31))
def test_within_two_percent_of_a_grid_of_200(
    w1: Callable[[float], float], scale: float, ripple: float, length: float, seed: int
) -> None:
    """Order falls with ripples, so that the feasible strengths may come in pieces."""

    def smooth(alpha: float) -> Outcome:
        rho = math.exp(-alpha / scale) + ripple * (math.sin(alpha / length) if alpha else 0)
        return Outcome(w1(alpha), 1.0, max(-1.0, min(1.0, rho)))

    objective = Counted(smooth)
    found = search_alpha(objective, evaluate_many=objective.many, **UNITS, min_spearman=0.5, seed=seed)
    assert len(set(objective.asked)) <= 200
    if found.alpha is None:
        return
    assert floors(found.outcome, spearman=0.5)
    grid = [smooth(found.boundary * k / 199) for k in range(200)]
    best = max(outcome.w1 for outcome in grid if floors(outcome, spearman=0.5))
    assert found.outcome.w1 >= 0.98 * best


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"start": 0}, "start must be a positive, finite number, not 0"),
        ({"tolerance": -1}, "tolerance must be a positive"),
        ({"window": math.inf}, "window must be a positive"),
        ({"max_alpha": math.nan}, "max_alpha must be a positive"),
        ({"start": 9, "max_alpha": 8}, r"start \(9\) lies above max_alpha \(8\)"),
        ({"cooling": 1.0}, "cooling must lie between 0 and 1"),
        ({"penalty": 0}, "penalty must be"),
        ({"rule": "first"}, "rule must be one of best, last, not 'first'"),
        ({"max_evaluations": 0}, "max_evaluations must be 1 or more"),
        ({"scan": -1}, "scan must be 0 or more"),
        ({"min_validity": 93}, "min_validity is a share"),
        ({"min_spearman": math.nan}, "min_spearman must lie between -1 and 1, not nan .* constant scores"),
    ],
)
def test_arguments_that_make_no_sense(wrong: dict[str, float], message: str) -> None:
    objective = Counted(monotone(3.0))
    with pytest.raises(ValueError, match=message):
        search_alpha(objective, **wrong)
    assert not objective.asked


def test_a_tolerance_below_rounding_ends() -> None:
    found = search_alpha(monotone(math.pi), tolerance=1e-300)
    assert found.boundary == pytest.approx(math.pi, rel=1e-8)


@pytest.mark.parametrize("edge", [0.13, 0.9, 2.2, 7.7, 40.0])
@pytest.mark.parametrize("ahead", [2, 3])
def test_looking_ahead_changes_no_decision(edge: float, ahead: int) -> None:
    """The boundary and what binds are those of one step at a time; only more strengths were looked at."""

    def evaluate(alpha: float) -> Outcome:
        return Outcome(math.sin(alpha), 1.0 if alpha < 1.2 * edge else 0.5, 1.0 if alpha <= edge else 0.0)

    how = {"min_spearman": 0.5, "start": 0.25, "tolerance": 0.02, "window": 1.0, "max_alpha": 16.0}
    one, several = (search_alpha(evaluate, **how, ahead=k) for k in (1, ahead))
    assert (one.boundary, one.binding, one.last_alpha) == (several.boundary, several.binding, several.last_alpha)
    assert set(one.trace["alpha"]) <= set(several.trace["alpha"])
    assert several.evaluations <= 200


def test_a_strength_beyond_the_boundary_is_not_taken_where_looking_ahead_met_one() -> None:
    """Feasible up to 2, not between 2 and 5, feasible again above: one step at a time stops at the first violation."""

    def evaluate(alpha: float) -> Outcome:
        return Outcome(alpha, 1.0, 0.0 if 2 < alpha < 5 else 1.0)

    how = {"min_spearman": 0.5, "start": 0.25, "tolerance": 0.02, "window": 1.0, "max_alpha": 16.0}
    one, several = (search_alpha(evaluate, **how, ahead=ahead) for ahead in (1, 3))
    beyond = several.trace["alpha"] > several.boundary
    assert several.trace.loc[beyond, "feasible"].any()  # it was seen
    assert several.alpha == one.alpha == one.boundary == several.boundary <= 2


def test_rounded_candidates_are_evaluated_once() -> None:
    objective = Counted(lambda alpha: Outcome(alpha, 1.0, 1.0 if alpha < 3.017 else 0.0))
    found = search_alpha(objective, min_spearman=0.5, start=0.25, tolerance=0.02, window=1.0, step=0.02, scan=0)
    inside = found.trace[found.trace["stage"] == "annealing"]["alpha"]
    assert np.allclose((found.boundary - inside) / 0.02, np.round((found.boundary - inside) / 0.02))
    assert inside.between(found.boundary - 1.0001, found.boundary).all()
    assert len(inside) <= 51
    free = search_alpha(objective, min_spearman=0.5, start=0.25, tolerance=0.02, window=1.0, scan=0)
    assert (free.trace["stage"] == "annealing").sum() > 100  # the paper's draws are all different
    # A window that reaches 0 never asks for it.
    small = search_alpha(lambda a: Outcome(a, 1.0, float(a < 0.4)), min_spearman=0.5, start=0.25, step=0.02, window=1.0)
    assert small.trace["alpha"].min() > 0
