"""Controls of an attack on linear judges, where every control has a closed form."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pytest
import torch
from biasgeom import causal, prompts, readouts
from biasgeom.ground import Ground, Handle
from biasgeom.models import LanguageModel
from biasgeom.steering import Scores, Steered
from scipy.stats import pearsonr, spearmanr, ttest_rel, wasserstein_distance
from sklearn.linear_model import Ridge
from steerable import World
from test_attack import BASE, UP, WIDTH, Line, handle
from test_ground import judge
from test_steering import TEXTS, biased_to_digits, slowly

ASIDE = np.eye(WIDTH)[1]
GAIN = 0.5 + 0.02 * np.linspace(0, 1, 20)


class Sided(Line):
    """No score is valid where an edit's second coordinate is above 0."""

    def scores(self, block: int, direction: np.ndarray, alphas: Sequence[float]) -> Scores:
        found = super().scores(block, direction, alphas)
        edits = np.asarray(alphas)[:, None] * np.broadcast_to(direction, (len(alphas), WIDTH))
        return Scores(found.expected, found.greedy, found.valid & (edits[:, 1] <= 0)[:, None])


# random directions


def beside(*where: object, **how: object) -> dict[str, float | str]:
    """The row of :func:`causal.against_random`."""
    return causal.against_random(*where, **how)[0]


def test_random_directions_are_uniform_on_the_sphere() -> None:
    drawn = causal.random_directions(50, 4000, seed=1)
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1)
    # E |cos| = Γ(d/2) / (√π Γ((d+1)/2)) ≈ √(2 / πd); on both sides of every plane, and no axis is preferred.
    assert np.abs(drawn[:, 0]).mean() == pytest.approx(np.sqrt(2 / (np.pi * 50)), rel=0.05)
    np.testing.assert_allclose(drawn.mean(axis=0), 0, atol=0.012)
    np.testing.assert_allclose(drawn.T @ drawn / 4000, np.eye(50) / 50, atol=0.003)
    np.testing.assert_array_equal(causal.random_directions(50, 3, seed=1), causal.random_directions(50, 3, seed=1))
    assert not np.allclose(causal.random_directions(50, 3, seed=1), causal.random_directions(50, 3, seed=2))
    # The negative control: coordinates from 0 to 1 lie on one side, normalised or not.
    wrong = np.random.default_rng(1).random((4000, 50))
    wrong /= np.linalg.norm(wrong, axis=1, keepdims=True)
    assert wrong.mean(axis=0).min() > 0.1


def test_against_random_in_closed_form() -> None:
    gain = -GAIN
    line = Line(BASE, gain=gain, limit=8 + 1e-9)  # a direction that is longer than 1 would leave no valid score
    found = beside(line, handle(), 2.0, draws=30, seed=5)
    cosines = causal.random_directions(WIDTH, 30, seed=5)[:, 0]
    w1 = [wasserstein_distance(BASE + 8 * c * gain, BASE) for c in cosines]
    assert found["w1"] == pytest.approx(wasserstein_distance(BASE + 8 * gain, BASE))
    assert found["random_mean"] == pytest.approx(np.mean(w1))
    assert found["random_max"] == pytest.approx(max(w1))
    assert found["ratio"] == pytest.approx(found["w1"] / np.mean(w1))
    assert found["ratio"] == pytest.approx(1 / np.abs(cosines).mean(), rel=1e-6)  # every score moves by its cosine
    assert found["random_spearman"] == pytest.approx(
        np.mean([spearmanr(BASE + 8 * c * gain, BASE)[0] for c in cosines])
    )
    assert found["p_paired"] == pytest.approx(ttest_rel(8 * gain, 8 * gain * cosines.mean()).pvalue)
    assert (found["quantile"], found["random_validity"], found["draws"], found["alpha_units"]) == (1, 1, 30, 2)
    assert found["reason"] == ""
    table = causal.against_random(line, handle(), 2.0, draws=30, seed=5)[1]
    assert table["draw"].tolist() == list(range(30))
    np.testing.assert_allclose(table["w1"], w1)
    np.testing.assert_allclose(table["shift"], 8 * gain.mean() * cosines)  # signed, of either sign
    assert set(np.sign(table["shift"])) == {-1, 1}
    assert (table["validity"] == 1).all()
    assert set(line.asked) == {0, 8}  # in units of the handle's, and all of one length
    # The order of strengths: 2 units move more than 1, of own and random directions alike.
    half = beside(line, handle(), 1.0, draws=30, seed=5)
    assert half["random_mean"] == pytest.approx(found["random_mean"] / 2)
    # A direction that the judge does not read is like any random one or weaker: no ratio above 1, and a low quantile.
    blind = beside(line, handle(np.cos(1.5) * UP + np.sin(1.5) * ASIDE), 2.0, draws=30, seed=5)
    assert blind["ratio"] < 1
    assert blind["quantile"] == np.mean([abs(c) < np.cos(1.5) for c in cosines])


def test_a_draw_without_a_valid_score_is_left_out() -> None:
    found = beside(Sided(BASE, gain=GAIN), handle(), 1.0, draws=12, seed=3)
    drawn = causal.random_directions(WIDTH, 12, seed=3)
    seen = np.abs(drawn[drawn[:, 1] <= 0, 0])
    assert 0 < len(seen) < 12
    # Scores move by their gain times the cosine, all to one side.
    assert found["random_mean"] == pytest.approx(4 * np.mean(GAIN) * seen.mean())
    assert found["random_max"] == pytest.approx(4 * np.mean(GAIN) * seen.max())
    assert found["random_validity"] == pytest.approx(len(seen) / 12)
    assert found["quantile"] == 1  # of those that have a W1
    table = causal.against_random(Sided(BASE, gain=GAIN), handle(), 1.0, draws=12, seed=3)[1]
    assert (table["w1"].isna() == (drawn[:, 1] > 0)).all()
    assert (table["shift"].isna() == table["w1"].isna()).all()
    assert (table["validity"] == (drawn[:, 1] <= 0)).all()
    assert found["reason"] == ""


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_no_number_of_what_is_not_valid() -> None:
    # All draws invalid, the direction not.
    away = next(s for s in range(200) if (causal.random_directions(WIDTH, 2, seed=s)[:, 1] > 0).all())
    none = beside(Sided(BASE), handle(), 1.0, draws=2, seed=away)
    assert none["w1"] == pytest.approx(4)
    assert none["reason"] == "no valid score under any of the draws"
    # The direction itself invalid: a quantile of 0 would say that every draw moves more.
    own = beside(Sided(BASE), handle(ASIDE), 1.0, draws=12, seed=3)
    assert np.isnan(own["w1"])
    assert own["random_mean"] > 0
    assert own["reason"] == "no valid score under the direction"
    for found in (none, own):
        assert np.isnan([found["ratio"], found["quantile"], found["p_paired"]]).all()
    # Integers that no draw moves have no ratio, and not an infinite one.
    still = beside(Line(np.arange(3.0, 8)), handle(unit=0.6), 1.0, draws=4, seed=0, readout="greedy")
    assert (still["w1"], still["random_mean"]) == (1, 0)
    assert np.isnan(still["ratio"])
    assert still["reason"] == "random directions move no score: there is no ratio"


def test_no_prompts_no_numbers() -> None:
    found = beside(Line(np.array([])), handle(), 1.0, draws=3)
    assert np.isnan([found["w1"], found["ratio"], found["quantile"]]).all()
    assert found["reason"] != ""
    assert causal.swapped(Line(np.array([])), handle(), {"a": UP}, 1.0)["reason"].tolist() != [""]


# the score axis


def test_the_score_axis_is_ridge_by_explicit_leave_one_out() -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(14, 6)) * [5, 1, 1, 1, 1, 0.2] + 3
    scores = states @ [0.1, 1, 0, 0, -1, 0] + 0.3 * rng.normal(size=14)
    scaled = (states - states.mean(axis=0)) / states.std()
    errors = {}
    for alpha in np.logspace(-1, 6, 15):
        left = []
        for i in range(14):
            rest = np.arange(14) != i
            left.append((Ridge(alpha=alpha).fit(scaled[rest], scores[rest]).predict(scaled[[i]])[0] - scores[i]) ** 2)
        errors[alpha] = np.mean(left)
    expected = Ridge(alpha=min(errors, key=errors.get)).fit(scaled, scores).coef_
    found = causal.score_axis(states, scores)
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=1e-6)
    # Scale and origin don't matter, nor does a score that is missing; the sign does.
    np.testing.assert_allclose(causal.score_axis(10 * states - 50, 3 * scores + 1), found, atol=1e-6)
    more = np.vstack([states, 99 * np.ones(6)])
    np.testing.assert_allclose(causal.score_axis(more, np.append(scores, np.nan)), found, atol=1e-6)
    np.testing.assert_allclose(causal.score_axis(states, -scores), -found, atol=1e-6)
    # The negative control: the covariance with the scores alone follows the widest coordinate.
    wrong = (states - states.mean(axis=0)).T @ scores
    assert abs(found @ wrong / np.linalg.norm(wrong)) < 0.9
    for few in (scores[:2], np.r_[scores[:2], np.nan], np.full(5, 6.0)):
        with pytest.raises(ValueError, match="no score axis"):
            causal.score_axis(states[: len(few)], few)


def test_the_axis_is_turned_to_the_cue_s_side() -> None:
    world = World()
    train = Ground(world.judge, world.pairs, world.pairs, world.baselines.assign(valid=True)).only("train")
    down, reason = causal.oriented_axis(train, 2, "Bandwagon-")
    up, _ = causal.oriented_axis(train, 2, "Refinement+")
    assert reason == ""
    np.testing.assert_array_equal(up, -down)
    # Scores rise along the weights: to lower them, against these. With 30 answers in 40 dimensions it is a good part.
    assert up @ world.weight / np.linalg.norm(world.weight) > 0.6
    assert np.linalg.norm(up) == pytest.approx(1)
    # Not the cue's own direction: along that no base answer differs more than along others.
    first, _ = causal.oriented_axis(train, 0, "Refinement+")
    assert not np.allclose(first, up)
    # Only these answers are looked at, and only valid ones.
    world.judge.states[world.baselines.loc[world.baselines["split"] == "test", "row"]] = 1e6
    np.testing.assert_array_equal(causal.oriented_axis(train, 2, "Refinement+")[0], up)
    for spoilt in (train.baselines.assign(valid=False), train.baselines.assign(expected=7.0), train.baselines.head(0)):
        axis, reason = causal.oriented_axis(Ground(world.judge, train.shifts, train.pairs, spoilt), 2, "Bandwagon-")
        assert axis is None
        assert "no score axis" in reason


# other directions in the place of the own one


def test_a_swapped_direction_shifts_by_its_cosine() -> None:
    others = {name: np.cos(t) * UP + np.sin(t) * ASIDE for name, t in (("near", 0.4), ("far", 1.4), ("against", 2.8))}
    line = Line(BASE, gain=-0.25)
    table = causal.swapped(line, handle(), others, 3.0)
    assert table["source"].tolist() == ["near", "far", "against"]
    assert table["cosine"].tolist() == pytest.approx([np.cos(0.4), np.cos(1.4), np.cos(2.8)])
    np.testing.assert_allclose(table["own_shift"], -3)  # -0.25 · 3 · 4
    np.testing.assert_allclose(table["own_w1"], 3)
    np.testing.assert_allclose(table["shift"], table["cosine"] * table["own_shift"])
    # Against the own direction W1 says as much and the sign says the contrary.
    np.testing.assert_allclose(table["w1"], np.abs(table["shift"]))
    assert table["shift"].iloc[2] > 2.8
    assert (table["reason"] == "").all()
    # If the judge reads another direction than the own one, the cosine says nothing of it.
    other = causal.swapped(Line(BASE, gain=-0.25, u=ASIDE), handle(), others, 3.0)
    assert np.abs(other["shift"] - other["cosine"] * other["own_shift"]).min() > 0.5
    none = causal.swapped(line, handle(), {}, 3.0)
    assert none.empty
    assert list(none.columns) == list(table.columns)


def test_a_swap_without_a_valid_score_has_a_reason() -> None:
    table = causal.swapped(Sided(BASE), handle(), {"valid": -UP, "not": ASIDE}, 1.0)
    assert table["reason"].tolist() == ["", "no valid score at this strength"]
    assert table["shift"].isna().tolist() == [False, True]
    assert table["validity"].tolist() == [1, 0]
    assert table["spearman"].iloc[0] == pytest.approx(1)
    assert (table["own_shift"] == 4).all()


# every cue's own shift


def shifted(lengths: dict[str, float]) -> tuple[np.ndarray, pd.DataFrame]:
    """States of five questions at two blocks; each cue moves block 1 by its length along UP, and by noise aside."""
    rng = np.random.default_rng(2)
    states, rows = [*rng.normal(size=(5, 2, WIDTH))], []
    for condition, length in lengths.items():
        for q in range(5):
            noise = rng.normal(size=(2, WIDTH)) * (length != 0) * (np.arange(WIDTH) > 0)
            states.append(states[q] + noise + length * np.array([[0], [1]]) * UP)
            rows.append((condition, len(states) - 1, q))
    return np.array(states), pd.DataFrame(rows, columns=["condition", "row", "base_row"])


def test_steering_by_each_cue_s_own_mean() -> None:
    lengths = {"Bandwagon-": -3.0, "Refinement+": 2.0, "Authority-": -1.0, "Prestige+": 0.5, "Verbosity-": 0.0}
    states, shifts = shifted(lengths)
    table = causal.steered_by_cue(Line(BASE, gain=0.5), states, shifts, 1)
    assert table["condition"].tolist() == list(lengths)
    # The whole mean Δh is added, whatever its length: not a unit vector, and not the mean length.
    np.testing.assert_allclose(table["steered_shift"], 0.5 * np.array([*lengths.values()]), atol=1e-9)
    assert (table["length"] > np.abs([*lengths.values()]) - 1e-9).all()
    assert table["length"].iloc[-1] == table["steered_shift"].iloc[-1] == 0
    assert table["axis_shift"].isna().all()
    # Of the mean Δh only the part along an axis: half as long along one at 60 degrees, whose own reach is half, too.
    tilted = 0.5 * UP + np.sqrt(0.75) * ASIDE
    means = [
        (states[p["row"], 1] - states[p["base_row"], 1]).mean(axis=0)
        for _, p in shifts.groupby("condition", sort=False)
    ]
    for axis in (UP, tilted):
        along = causal.steered_by_cue(Line(BASE, gain=0.5), states, shifts, 1, axis=axis)
        expected = [0.5 * (mean @ axis) * axis[0] for mean in means]
        np.testing.assert_allclose(along["axis_shift"], expected, atol=1e-9)
        np.testing.assert_allclose(along[["steered_shift", "length"]], table[["steered_shift", "length"]])
    at_first = causal.steered_by_cue(Line(BASE, gain=0.5), states, shifts, 0)
    np.testing.assert_allclose(at_first["steered_shift"], 0, atol=1e-9)
    empty = causal.steered_by_cue(Line(BASE), states, shifts.head(0), 1)
    assert list(empty.columns) == list(table.columns)
    assert empty.empty
    # As far as the text moves scores, so does steering: r = 1.
    both = table.assign(text_shift=2 * table["steered_shift"] - 1)
    found = causal.correlation(both, "text_shift", "steered_shift", draws=50)
    assert (found["r"], found["spearman"], found["cues"], found["reason"]) == (
        pytest.approx(1),
        pytest.approx(1),
        5,
        "",
    )
    assert (found["low"], found["high"]) == (pytest.approx(1), pytest.approx(1))
    # Unsigned, or by length, it is not.
    assert (
        causal.correlation(both.assign(text_shift=both["text_shift"].abs()), "text_shift", "steered_shift")["r"] < 0.5
    )
    assert causal.correlation(both, "text_shift", "length")["r"] < 0.5


def test_a_cue_that_changed_no_answer_moves_nothing(build: Callable[[str], LanguageModel]) -> None:
    """Its mean Δh is zero and no direction, which a real judge refuses; also where it comes first."""
    lm = biased_to_digits(build("llama"), 6)
    states = np.random.default_rng(0).normal(size=(4, 4, lm.width))
    states[1] = states[0]
    shifts = pd.DataFrame({"condition": ["Verbosity-", "Bandwagon-"], "row": [1, 3], "base_row": [0, 2]})
    steered = Steered(lm, TEXTS[:3], prefill="")
    table = causal.steered_by_cue(steered, states, shifts, 2)
    assert table["steered_shift"].iloc[0] == pytest.approx(0, abs=1e-6)
    assert table["length"].iloc[0] == 0
    vector = states[3, 2] - states[2, 2]
    whole = [slowly(lm, t, "", 2, vector)[0] - slowly(lm, t, "", 2, 1e-12 * vector)[0] for t in TEXTS[:3]]
    assert table["steered_shift"].iloc[1] == pytest.approx(np.mean(whole), abs=2e-3)
    assert abs(np.mean(whole)) > 0.01
    # One direction a row reaches the judge: swapped shifts are those of whole passes, too.
    unit = vector / np.linalg.norm(vector)
    one = Handle("Bandwagon-", "mean", 2, unit, 2.0)
    swap = causal.swapped(steered, one, {"x": np.eye(lm.width)[3]}, 1.0)
    before = [slowly(lm, t, "", 2, 1e-12 * unit)[0] for t in TEXTS[:3]]
    for column, edit in (("shift", 2 * np.eye(lm.width)[3]), ("own_shift", 2 * unit)):
        moved = np.mean([slowly(lm, t, "", 2, edit)[0] for t in TEXTS[:3]]) - np.mean(before)
        assert swap[column].item() == pytest.approx(moved, abs=2e-3)


def test_correlation_is_a_bootstrap_over_cues() -> None:
    rng = np.random.default_rng(4)
    table = pd.DataFrame({"x": rng.normal(size=9)})
    table["y"] = -table["x"] + 0.4 * rng.normal(size=9)
    table.loc[9] = [np.nan, 3.0]
    table.loc[10] = [3.0, np.nan]
    found = causal.correlation(table, "x", "y", draws=80, seed=3)
    x, y = table["x"].to_numpy()[:9], table["y"].to_numpy()[:9]
    drawn = [pearsonr(x[p], y[p])[0] for p in np.random.default_rng(3).integers(9, size=(80, 9))]
    assert found["r"] == pytest.approx(pearsonr(x, y)[0])
    assert (found["low"], found["high"]) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))
    assert found["spearman"] == pytest.approx(spearmanr(x, y)[0])
    assert found["cues"] == 9
    assert found["high"] < 0
    for lacking in (table[:3], table[9:], table.head(0), table.assign(y=2.0)):
        made = causal.correlation(lacking, "x", "y")
        assert np.isnan([made["r"], made["low"], made["high"]]).all()
        assert "fewer than four cues" in made["reason"]


def test_text_shifts_by_hand() -> None:
    items, questions = judge().items, [f"q{q}" for q in range(6)]
    table = causal.text_shifts(items, questions).set_index("condition")["text_shift"]
    assert table.to_dict() == {"Bandwagon-": pytest.approx(np.mean([-2, -1.5, -1, -0.5, 0])), "Refinement+": 1}
    assert causal.text_shifts(items, ["q0", "q3"]).loc[0, "text_shift"] == pytest.approx(-1.25)
    assert causal.text_shifts(items, ["q5"])["text_shift"].isna().tolist() == [True, False]
    assert causal.text_shifts(items, []).loc[:, "text_shift"].isna().all()
    assert list(causal.text_shifts(items.head(0), []).columns) == ["condition", "text_shift"]


# where the push is set


@pytest.mark.parametrize("prefill", ["", "Score: "])
def test_positions_equal_whole_passes_by_hand(build: Callable[[str], LanguageModel], prefill: str) -> None:
    lm = biased_to_digits(build("llama"), 6)
    vector = np.random.default_rng(1).normal(size=lm.width)
    one = Handle("Bandwagon-", "mean", 1, vector / np.linalg.norm(vector), 1.5)
    found = causal.positions(lm, TEXTS[:3], prefill=prefill, handle=one, alpha=2.0)
    digits, _ = readouts.score_tokens(lm)
    edit = torch.tensor(3 * one.vector, dtype=torch.float32)
    means = {}
    for where in ("none", "last", "all"):

        def push(module: torch.nn.Module, args: tuple, output: object, where: str = where) -> object:
            hidden = (output[0] if isinstance(output, tuple) else output).clone()
            hidden[:, {"none": [], "last": [-1], "all": slice(None)}[where]] += edit
            return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

        hook, scores = lm.blocks[1].register_forward_hook(push), []
        for text in TEXTS[:3]:
            (ids,) = prompts.encode(lm, [text], chat=True, prefill=prefill or None)
            with torch.inference_mode():
                p = lm.core(torch.tensor([ids])).logits[0, -1].double().softmax(-1).numpy()
            scores.append(sum(k * p[digits[k]] for k in range(1, 10)) / sum(p[digits[k]] for k in range(1, 10)))
        hook.remove()
        means[where] = np.mean(scores)
    assert found["shift_last"] == pytest.approx(means["last"] - means["none"], abs=1e-4)
    assert found["shift_all"] == pytest.approx(means["all"] - means["none"], abs=1e-4)
    # What all texts begin with is longer than what is read by itself: its last token, pushed too, gives another number.
    # The two are not the same thing, and neither is nothing.
    assert min(abs(found["shift_last"]), abs(found["shift_all"] - found["shift_last"])) > 1e-3
    with pytest.raises(ValueError, match="no texts"):
        causal.positions(lm, [], prefill=prefill, handle=one, alpha=1.0)
