"""Tables of shifts and their controls against naive loops, on invented scores whose shifts are known."""

import functools

import numpy as np
import pandas as pd
import pytest
from biasgeom import controls, landscape, perturbations, statistics
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr, wasserstein_distance

PLANTED = {"Bandwagon-": -2.0, "Diversity-": -1.5, "Refinement+": 1.0}
FACTORS = {"plain": 0.5, "neutral": 1.0, "tentative": 1.5}
CONDITIONS = [perturbations.name(b, p) for b in perturbations.BIASES for p in perturbations.POLARITIES]


@functools.cache
def conditions(number: int) -> pd.DataFrame:
    """Questions of four domains, one of them held out, with qualities and voices in turn; perturbed."""
    table = pd.DataFrame({"question_id": [f"q{i:02}" for i in range(number)]})
    table["domain"] = [f"d{i % 4}" for i in range(number)]
    table["held_out"] = table["domain"] == "d3"
    table["split"] = np.where(table["held_out"] | (np.arange(number) % 3 == 0), "test", "train")
    table["quality"] = [("good", "poor", "wrong")[(i // 4) % 3] for i in range(number)]
    table["voice"] = [list(FACTORS)[(i + i // 4) % 3] for i in range(number)]
    return perturbations.conditions(table.assign(question="Why?", answer="Because it is. And so on."))


def judged(number: int = 24, *, seed: int = 0, noise: float = 0.3, missing: float = 0.0) -> pd.DataFrame:
    """A judge's items: a score that follows quality and the planted shifts by voice."""
    rng, items = np.random.default_rng(seed), conditions(number)
    score = items["quality"].map({"good": 8.0, "poor": 6, "wrong": 4})
    score += items["condition"].map(PLANTED).fillna(0) * items["voice"].map(FACTORS)
    score += noise * rng.normal(size=len(items))
    items = items.assign(score=score.where(rng.random(len(items)) >= missing), reason="")
    items.loc[items["score"].isna(), "reason"] = "verbal"
    return items


def known() -> pd.DataFrame:
    rows = [(c, v, PLANTED.get(c, 0.0) * f) for c in CONDITIONS for v, f in FACTORS.items()]
    return pd.DataFrame(rows, columns=["condition", "voice", "shift"])


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 999), st.sampled_from([0.0, 0.2, 0.9]))
def test_shifts_are_those_of_a_naive_loop_in_any_order(seed: int, missing: float) -> None:
    items = judged(5, seed=seed, missing=missing).sample(frac=1, random_state=seed)
    listed, expected = list(items.itertuples()), []
    for row, item in enumerate(listed):
        for base_row, base in enumerate(listed):
            if (base.question_id, base.condition) == (item.question_id, "base") != (item.question_id, item.condition):
                shift = item.score - base.score
                if shift == shift:
                    expected.append((item.question_id, item.condition, base.score, item.score, shift, row, base_row))
    found = landscape.shifts(items)
    columns = ["question_id", "condition", "base_score", "score", "shift", "row", "base_row"]
    assert list(found[columns].itertuples(index=False, name=None)) == expected
    assert list(found.columns) == landscape.SHIFT_COLUMNS


def test_two_wordings_at_once_and_a_missing_base_answer_are_refused() -> None:
    items = judged(4)
    with pytest.raises(ValueError, match=r"15 judgements appear twice \(first: .*pass one wording at a time"):
        landscape.shifts(pd.concat([items, items[items["question_id"] == "q00"]]))
    with pytest.raises(ValueError, match=r"no base answer among the items of 1 questions \(first: q01"):
        landscape.shifts(items[(items["question_id"] != "q01") | (items["condition"] != "base")])


def test_each_judge_comes_under_its_name() -> None:
    judges = {"b": judged(4), "a": judged(4, seed=1)}
    table = landscape.each(judges, landscape.cells, by="voice")
    assert table.columns[0] == "judge"
    assert table["judge"].drop_duplicates().tolist() == ["b", "a"]
    for name, items in judges.items():
        part = table[table["judge"] == name].drop(columns="judge").reset_index(drop=True)
        pd.testing.assert_frame_equal(part, landscape.cells(items, by="voice"))


def test_effective_is_in_the_direction_of_the_cue() -> None:
    moved = pd.DataFrame({"polarity": ["negative", "negative", "positive", "positive"], "shift": [-2.0, 2, 2, -2]})
    np.testing.assert_array_equal(landscape.effective(moved, 2), [True, False, True, False])
    assert not landscape.effective(moved, 2.01).any()
    assert not landscape.effective(moved, np.nan).any()


def test_aggregates_average_types_and_not_rows() -> None:
    items = judged()
    kept = (items["condition"] != "Bandwagon-") | (items["question_id"] < "q06")  # a type with fewer pairs
    items = items[kept].reset_index(drop=True)
    table = landscape.aggregates(items, draws=2000).set_index("aggregate")
    means = landscape.shifts(items).groupby("condition")["shift"].mean()
    negative = np.mean([means[f"{bias}-"] for bias in perturbations.BIASES])
    five = np.mean([means[f"{b}+"] for b in ("Prestige", "Verbosity", "Authority", "Sentiment", "Refinement")])
    seven = np.mean([means[f"{bias}+"] for bias in perturbations.BIASES])
    assert table["delta"].to_dict() == pytest.approx(
        {
            "negative": negative,
            "positive, five types": five,
            "positive, all seven": seven,
            "asymmetry, five types": -negative - five,
            "asymmetry, all seven": -negative - seven,
        }
    )
    moved = landscape.shifts(items)
    rows = moved[moved["polarity"] == "negative"]
    assert abs(table.loc["negative", "delta"] - rows["shift"].mean()) > 0.05
    assert table.loc["negative", "w1"] == pytest.approx(wasserstein_distance(rows["base_score"], rows["score"]))
    assert table.loc["negative", "cohens_d"] == pytest.approx(statistics.cohens_d(rows["base_score"], rows["score"]))
    assert (table["low"] < table["delta"]).all()
    assert (table["delta"] < table["high"]).all()
    assert table.loc["negative", "p"] == 1 / 2000
    assert table.loc["negative", "p_tail"] < 1e-20


def test_the_interval_of_an_aggregate_is_that_of_a_naive_bootstrap() -> None:
    items = judged(noise=1.0)
    found = landscape.aggregates(items, draws=4000).set_index("aggregate").loc["negative"]
    moved, rng = landscape.shifts(items), np.random.default_rng(5)
    groups = [p["shift"].to_numpy() for _, p in moved[moved["polarity"] == "negative"].groupby(["bias", "domain"])]
    drawn = [np.mean([rng.choice(g, len(g)).mean() for g in groups]) for _ in range(1000)]
    np.testing.assert_allclose([found["low"], found["high"]], np.quantile(drawn, [0.025, 0.975]), atol=0.03)
    # The 14 shifts of a question share its base score: drawn one by one they look more certain than they are.
    assert found["high_by_question"] - found["low_by_question"] > 1.5 * (found["high"] - found["low"])
    # Closed form: the standard error of the mean of the questions' own means.
    own = moved[moved["polarity"] == "negative"].groupby("question_id")["shift"].mean()
    width = 2 * 1.96 * own.std(ddof=0) / len(own) ** 0.5
    assert found["high_by_question"] - found["low_by_question"] == pytest.approx(width, rel=0.06)


def test_few_questions_a_domain_narrow_the_papers_interval_but_not_that_by_question() -> None:
    """Two a domain: the paper's bootstrap, which is right for its 500, sees half the variance of single differences."""
    items, widths = judged(8), []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        own = items.assign(score=np.where(items["condition"] == "base", 5.0, 5 + rng.normal(size=len(items))))
        row = landscape.aggregates(own, draws=400).set_index("aggregate").loc["negative"]
        widths.append([row["high"] - row["low"], row["high_by_question"] - row["low_by_question"]])
    rows, questions = np.mean(np.square(widths), axis=0) ** 0.5 / (
        2 * 1.96 / 56**0.5
    )  # 7 types × 8 questions of variance 1
    assert rows == pytest.approx(0.5**0.5, rel=0.08)
    assert questions == pytest.approx((7 / 8) ** 0.5, rel=0.12)


def test_correction_runs_over_what_was_run() -> None:
    tables = [landscape.aggregates(judged(seed=s, noise=2.0), draws=400).assign(prompt=str(s)) for s in range(4)]
    table = landscape.corrected(pd.concat(tables, ignore_index=True).assign(judge="j"), by=["judge"])
    for shown, other in (
        (["negative", "positive, five types"], "positive, five types"),
        (["positive, all seven"], "positive, all seven"),
    ):
        family = table[table["aggregate"].isin(["negative", other])]
        assert len(family) == 8
        adjusted = dict(zip(family.index, statistics.benjamini_hochberg(family["p"].to_numpy()), strict=True))
        for row in table.index[table["aggregate"].isin(shown)]:
            assert table.loc[row, "p_adjusted"] == pytest.approx(adjusted[row])
            assert table.loc[row, "family"] == 8
    assert table.loc[table["aggregate"].str.startswith("asymmetry"), "p_adjusted"].isna().all()
    one = landscape.corrected(tables[0].assign(judge="j"), by=["judge"])
    assert set(one["family"]) == {0, 2}


def test_each_cue_by_itself() -> None:
    items = judged(missing=0.1)
    items["changed"] = items["condition"] != "Verbosity-"
    table = landscape.by_type(items, threshold=0.5, draws=1000).set_index("condition")
    assert list(table["bias"][:7]) == list(table["bias"][7:]) == list(perturbations.BIASES)
    moved = landscape.shifts(items)
    for condition, part in moved.groupby("condition"):
        row = table.loc[condition]
        assert row["n"] == len(part)
        assert row["n"] + row["missing"] == 24
        assert row["delta"] == pytest.approx(part["shift"].mean())
        assert row["se"] == pytest.approx(part["shift"].std(ddof=1) / len(part) ** 0.5)
        assert row["mean"] - row["base_mean"] == pytest.approx(row["delta"])
        sign = 1 if condition[-1] == "+" else -1
        assert row["effective"] == sum(sign * shift >= 0.5 for shift in part["shift"])
        assert row["by_2"] == sum(sign * shift >= 2 for shift in part["shift"])
    np.testing.assert_allclose(table["p_adjusted"], statistics.benjamini_hochberg(table["p"].to_numpy()))
    assert table["unchanged"].to_dict() == {c: 24 * (c == "Verbosity-") for c in table.index}
    negative, positive = table[table["polarity"] == "negative"], table[table["polarity"] == "positive"]
    assert list(negative.sort_values("rank").index) == list(negative.sort_values("mean").index)
    assert list(positive.sort_values("rank").index) == list(positive.sort_values("mean", ascending=False).index)
    assert negative["rank"].idxmin() == "Bandwagon-"
    assert (table.loc[["Bandwagon-", "Diversity-", "Refinement+"], "p_adjusted"] < 0.01).all()


def test_cells_hold_every_combination_with_its_own_error() -> None:
    items = judged(9, missing=0.3)
    table = landscape.cells(items)
    assert len(table) == 14 * 4
    moved = landscape.shifts(items).set_index(["bias", "polarity", "domain"])["shift"]
    for row in table.itertuples():
        part = [v for key, v in moved.items() if key == (row.bias, row.polarity, row.domain)]
        assert row.n == len(part)
        np.testing.assert_allclose(row.delta, np.mean(part) if part else np.nan)
        np.testing.assert_allclose(row.se, np.std(part, ddof=1) / len(part) ** 0.5 if len(part) > 1 else np.nan)
        assert row.reason == {0: "no pair", 1: "one pair"}.get(len(part), "")
    assert {"no pair", "one pair"} <= set(table["reason"])
    by_voice = landscape.cells(judged(noise=0), by="voice").set_index(["bias", "polarity", "voice"])["delta"]
    for voice, factor in FACTORS.items():
        assert by_voice["Bandwagon", "negative", voice] == pytest.approx(-2 * factor)


def test_interaction_finds_a_cue_that_acts_in_one_domain_and_not_one_that_acts_everywhere() -> None:
    plain = judged(noise=0.5)
    plain["voice"] = "neutral"
    everywhere = landscape.interaction(plain, draws=400).iloc[0]
    local = plain.copy()
    local.loc[(local["condition"] == "Authority-") & (local["domain"] == "d1"), "score"] -= 4
    somewhere = landscape.interaction(local, draws=400).iloc[0]
    assert everywhere["p"] > 0.05
    assert everywhere["share"] == pytest.approx(everywhere["chance"], rel=0.5)
    assert somewhere["p"] == pytest.approx(1 / 401)
    assert somewhere["share"] > 2 * somewhere["chance"]
    # A domain in which every cue lowers more is no interaction.
    main = plain.copy()
    main.loc[(main["condition"] != "base") & (main["domain"] == "d1"), "score"] -= 2
    assert landscape.interaction(main, draws=400).iloc[0]["share"] == pytest.approx(everywhere["share"])


def test_failures_sum_to_a_hundred() -> None:
    items = judged(20, missing=0.4)
    failed = items.index[items["score"].isna()]
    items.loc[failed[:5], "reason"] = "truncated"
    items.loc[failed[5:8], "reason"] = "no reply"
    items.loc[failed[8:9], "reason"] = ""
    items["truncated"] = items["reason"] == "truncated"
    table = landscape.failures(items).set_index("answers")
    row = table.loc["all"]
    assert row["failed_pct"] == pytest.approx(100 * len(failed) / 300)
    assert row["truncated_pct"] == pytest.approx(100 * 5 / len(failed))
    assert row["no reply_pct"] == pytest.approx(100 * 3 / len(failed))
    assert row["no_digit_pct"] == pytest.approx(100 * 1 / len(failed))
    assert row["truncated_rate_pct"] == pytest.approx(100 * 5 / 300)
    modes = [c for c in table if c.endswith("_pct") and c not in ("failed_pct", "truncated_rate_pct")]
    assert row[modes].sum() == pytest.approx(100)
    assert table.loc["base", "n"] + table.loc["perturbed", "n"] == row["n"]
    whole = landscape.failures(judged(4)).set_index("answers").loc["all"]
    assert whole["failed_pct"] == 0
    assert np.isnan(whole["verbal_pct"])  # not 0 %: there is nothing to break down
    assert np.isnan(whole["truncated_rate_pct"])


def test_distribution_counts_integers_and_bins_the_rest() -> None:
    items = judged(12)
    items["score"] = items["score"].round().clip(1, 10)
    table = landscape.distribution(items)
    assert sorted(table["score"].unique()) == list(range(1, 11))
    base = items[items["condition"] == "base"]["score"]
    for row in table[table["set"] == "base"].itertuples():
        assert row.share == pytest.approx((base == row.score).mean())
    smooth = landscape.distribution(judged(12), bins=8)
    assert len(smooth) == 3 * 8
    np.testing.assert_allclose(smooth.groupby("set")["share"].sum(), 1)


def test_a_judge_without_a_score_leaves_tables_that_say_so() -> None:
    items = judged(8, missing=1.1)
    table = landscape.aggregates(items, draws=50)
    assert len(table) == 5
    assert set(table["reason"]) == {"no pair with two scores"}
    assert table[["delta", "p", "cohens_d", "w1"]].isna().all(axis=None)
    cue = landscape.by_type(items, draws=50)
    assert len(cue) == 14
    assert set(cue["reason"]) == {"no pair with two scores"}
    assert cue[["delta", "p", "p_adjusted", "rank", "mean"]].isna().all(axis=None)
    assert (cue["missing"] == 8).all()
    assert landscape.cells(items)["delta"].isna().all()
    assert landscape.interaction(items)["reason"].tolist() == ["needs pairs of two cues in two domains"]
    assert landscape.distribution(items)["share"].isna().all()
    assert landscape.failures(items).set_index("answers").loc["all", "verbal_pct"] == 100
    assert controls.recovered(items, known())["recovered"].isna().all()
    assert set(controls.recovery(items, known())["reason"]) == {"fewer than three shifts; fewer than three base scores"}
    assert controls.quality(items)["spearman"].isna().all()
    assert controls.beside(items, {"again": items})["delta"].isna().all()
    assert np.isnan(landscape.corrected(table.assign(judge="j"), by=["judge"])["p_adjusted"]).all()


def test_a_judge_whose_scores_are_all_equal_moves_by_zero_and_has_no_rank() -> None:
    items = judged(8).assign(score=7.0)
    table = landscape.aggregates(items, draws=50)
    assert (table["delta"] == 0).all()
    assert (table["p"] == 1).all()
    assert table[["cohens_d", "p_tail"]].isna().all(axis=None)
    assert set(table["reason"]) == {"all shifts are equal"}
    assert landscape.by_type(items, draws=50)["w1"].eq(0).all()
    # The expected readout has no threshold then: not zero effective pairs.
    assert landscape.by_type(items, threshold=np.nan, draws=50)["effective"].isna().all()
    assert landscape.interaction(items)["reason"].tolist() == ["all shifts are equal"]
    found = controls.recovery(items, known())
    assert found[["r", "quality"]].isna().all(axis=None)
    assert found["reason"].str.contains("the shifts are all equal; the base scores are all equal").any()
    assert landscape.distribution(items).query("score == 7")["share"].eq(1).all()


def test_an_aggregate_over_a_type_without_a_pair_is_not_computed() -> None:
    items = judged(8)
    items.loc[items["condition"] == "Diversity+", "score"] = np.nan
    table = landscape.aggregates(items, draws=50).set_index("aggregate")
    assert table.loc["positive, all seven", "reason"] == "no pair with two scores for Diversity+"
    assert np.isnan(table.loc["positive, all seven", "delta"])
    assert np.isnan(table.loc["asymmetry, all seven", "delta"])
    assert not np.isnan(table.loc["positive, five types", "delta"])


# Controls -------------------------------------------------------------------------------------------------------------


def test_planted_shifts_come_back_and_wrong_ones_do_not() -> None:
    items = judged(noise=0.1)
    found = controls.recovered(items, known()).set_index("condition")
    assert list(found.index) == CONDITIONS
    for condition in CONDITIONS:
        part = items[items["condition"] == condition]
        assert found.loc[condition, "planted"] == pytest.approx(
            PLANTED.get(condition, 0) * part["voice"].map(FACTORS).mean()
        )
    assert found["difference"].abs().max() < 0.1
    by_voice = controls.recovered(items, known(), by=["voice"])
    assert len(by_voice) == 14 * 3
    assert by_voice["difference"].abs().max() < 0.2
    table = controls.recovery(items, known()).set_index("over")
    assert list(table.index) == ["all", "test split", "held-out domains"]
    assert table["questions"].tolist() == [24, items[items["split"] == "test"]["question_id"].nunique(), 6]
    assert (table["r"] > 0.99).all()
    assert (table["validity"] == 1).all()
    assert (table["nulls"] == 11).all()
    assert (table["nulls_within"] == 11).all()
    np.testing.assert_allclose(table.loc["all", "r"], pearsonr(found["planted"], found["recovered"]).statistic)
    # Negative control: shifts planted for other cues are not found.
    turned = known().assign(shift=np.roll(known()["shift"], 6))
    wrong = controls.recovery(items, turned).set_index("over").loc["all"]
    assert wrong["r"] < 0.5
    assert wrong["nulls_within"] < 11


def test_planted_shift_of_a_sample_is_that_of_its_voices() -> None:
    items = judged(12)
    items = items[items["voice"] == "tentative"].reset_index(drop=True)
    found = controls.recovered(items, known()).set_index("condition")
    assert found.loc["Bandwagon-", "planted"] == pytest.approx(-3)  # and not -2, the mean over the table


def test_quality_is_a_rank_correlation() -> None:
    items = judged(24, noise=2.0)
    table = controls.quality(items)
    assert table["quality"].tolist() == ["good", "poor", "wrong"]
    base = items[items["condition"] == "base"]
    expected = spearmanr(base["quality"].map({"wrong": 0, "poor": 1, "good": 2}), base["score"]).statistic
    assert table["spearman"].iloc[0] == pytest.approx(expected)
    assert table.set_index("quality").loc["good", "mean"] == pytest.approx(
        base[base["quality"] == "good"]["score"].mean()
    )


def test_variants_are_compared_on_the_same_questions() -> None:
    items, other = judged(24, noise=1.0), judged(24, noise=1.0, seed=1)
    variant = other[(other["question_id"] < "q09") & other["condition"].isin(["base", "Bandwagon+", "Bandwagon-"])]
    table = controls.beside(items, {"spelled": variant}).set_index("condition")
    assert list(table.index) == ["Bandwagon+", "Bandwagon-"]
    mine, theirs = (
        landscape.shifts(t).query("condition == 'Bandwagon-' and question_id < 'q09'")["shift"].to_numpy()
        for t in (variant, items)
    )
    row = table.loc["Bandwagon-"]
    assert row["n"] == 9
    assert row["delta"] == pytest.approx(mine.mean())
    assert row["delta_default"] == pytest.approx(theirs.mean())
    assert row["difference_se"] == pytest.approx((mine - theirs).std(ddof=1) / 3)
    whole = landscape.shifts(items).query("condition == 'Bandwagon-'")["shift"].mean()
    assert abs(row["delta_default"] - whole) > 1e-3


def test_one_pair_in_each_stratum_has_no_bootstrap() -> None:
    """Every resample is then the sample: an interval of no width and the smallest p would be shown for noise."""
    rng = np.random.default_rng(0)
    rows = [
        {
            "question_id": f"{domain}-1",
            "domain": domain,
            "split": "test",
            "condition": c,
            "bias": c[:-1] * (c != "base"),
        }
        | {"polarity": "" if c == "base" else "negative" if c[-1] == "-" else "positive", "changed": c != "base"}
        for domain in "abcdef"
        for c in ("base", *CONDITIONS)
    ]
    items = pd.DataFrame(rows).assign(score=rng.normal(size=len(rows)))
    found = landscape.aggregates(items, draws=200)
    assert found[["p", "low", "high", "p_tail"]].isna().all(axis=None)
    assert (found["reason"] == landscape.ONE_EACH).all()
    assert found["p_by_question"].notna().all()  # whole questions can still be drawn
    cues = landscape.by_type(items, draws=200)
    assert cues["p"].isna().all()
    assert (cues["reason"] == landscape.ONE_EACH).all()
    # The negative control: two questions a domain have a spread.
    twice = pd.concat([items, items.assign(question_id=items["question_id"] + "b", score=rng.normal(size=len(items)))])
    assert landscape.aggregates(twice.reset_index(drop=True), draws=200)["p"].notna().all()
