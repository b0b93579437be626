"""Spectra through the audit: against checkpoints that are put together by hand, and summaries against scikit-learn."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from biasgeom import activations, audit, data, models, pairs, probe, robustness, sentiment, spectrum, survey
from biasgeom.activations import Reading
from biasgeom.audit import MEAN, Sets
from biasgeom.models import LanguageModel
from biasgeom.survey import FLAGS, NAMES, Plan
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score

Build = Callable[[str], LanguageModel]
SIZE = {"templates": 2, "attributes": 3}
TEXTS = audit.sets(**SIZE, anchors=8)
FULL = Plan("smoke", ("full",), (0,), (0.3, 1.0))
HOW = {"draws": 20, "seed": 0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the file: a training in one test is an answer in the next."""
    return tmp_path_factory.mktemp("survey")


@pytest.fixture(autouse=True)
def shared_cache(own_cache: None, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIASGEOM_CACHE", str(trained))


def _speaking(build: Build) -> LanguageModel:
    """A tiny Llama whose vocabulary has the probe's words, which one of 300 tokens lacks."""
    lm = build("llama")
    lm.tokenizer.add_tokens([f" {word}" for word in ("yes", "no", *probe.POSITIVE, *probe.NEGATIVE)])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        lm.model.resize_token_embeddings(len(lm.tokenizer), mean_resizing=False)
    lm.model.eval().requires_grad_(False)
    return lm


@pytest.fixture(scope="module")
def lm(build: Build) -> LanguageModel:
    return _speaking(build)


@pytest.fixture(scope="module")
def saved(lm: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    return folder


def mixed(build: Build, folders: tuple[Path, Path], share: float) -> LanguageModel:
    """A full checkpoint by the definition: (1 − λ) U + λ S, entry by entry, in a new model."""
    made = _speaking(build)
    unharmful, synth = (load_file(folder / "model.safetensors") for folder in folders)
    assert unharmful.keys() == synth.keys()
    mean = {name: (1 - share) * unharmful[name] + share * synth[name] for name in synth}
    missing, unexpected = made.model.load_state_dict(mean, strict=False)
    assert not unexpected
    assert not missing
    return made


def by_hand(lm: LanguageModel, other: LanguageModel, method: str, texts: Sets = TEXTS) -> dict[str, float]:
    table = audit.shifts(audit.embed(lm, texts), audit.embed(other, texts), methods=[method])
    return dict(table[["group", "shift"]].to_numpy())


def cell(table: pd.DataFrame, value: str, **where: Any) -> dict[str, float]:
    chosen = table[(table[list(where)] == pd.Series(where)).all(axis=1)]
    assert len(chosen) == 24
    return dict(chosen[["group", value]].to_numpy())


@pytest.fixture(scope="module")
def scores(lm: LanguageModel, trained: Path) -> pd.DataFrame:
    """Changes on both sides of the threshold, which two steps of training do not give: made up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIASGEOM_CACHE", str(trained))
        table = survey.scores(lm, FULL, survey.adjectives)
    return table.assign(change=np.random.default_rng(0).normal(0.1, 0.2, len(table)))


# --- shifts, scores, pairs -------------------------------------------------------------------------------------------


def test_shifts_are_those_of_each_checkpoint_loaded_by_hand(lm: LanguageModel, build: Build, saved: Path) -> None:
    table = survey.shifts(lm, FULL, TEXTS, methods=survey.METHODS)
    assert list(table.columns) == ["method", "regime", "seed", "checkpoint", "share", "group", "shift"]
    assert len(table) == 4 * 2 * 24
    assert list(table["checkpoint"].unique()) == ["30", "synth"]
    assert set(table["seed"]) == {0}
    folders = spectrum.ends(lm, regime="full", recipe="smoke")
    for share in FULL.shares:
        other = mixed(build, folders, share)
        # On fewer anchors than dimensions Procrustes' map hangs on the last digit, which the merged weights differ in.
        for method in survey.METHODS if share == 1 else ("rr", "seat", "cka"):
            found = cell(table, "shift", method=method, regime="full", share=share)
            assert found == pytest.approx(by_hand(lm, other, method), abs=1e-6), method
    found = cell(table, "shift", method="rr", regime="full", checkpoint="30")
    assert found != pytest.approx(by_hand(lm, mixed(build, folders, 0.7), "rr"), abs=1e-6)  # the shares the other way
    table = survey.shifts(lm, Plan("smoke", ("lora",), (0,), (0.0, 1.0)), TEXTS)
    adapters = spectrum.ends(lm, regime="lora", recipe="smoke")
    for share, folder in zip((0.0, 1.0), adapters, strict=True):
        other = models.load(str(saved), device="cpu", adapter=str(folder))
        found = cell(table, "shift", method="rr", regime="lora", share=share)
        assert found == pytest.approx(by_hand(lm, other, "rr"), abs=1e-6)
        assert max(map(abs, found.values())) > 1e-4


def test_a_plan_is_every_regime_and_seed_in_turn(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def checkpoints(one: LanguageModel, **asked: Any) -> list[dict[str, Any]]:
        assert one is lm
        return [asked]

    monkeypatch.setattr(spectrum, "checkpoints", checkpoints)
    given = {"recipe": "smoke", "shares": (0.0, 0.5)}
    plan = Plan("smoke", ("lora", "full"), (0, 2), (0.0, 0.5))
    asked = [{"regime": regime, "seed": seed, **given} for regime in ("lora", "full") for seed in (0, 2)]
    assert list(plan.checkpoints(lm)) == asked


def test_the_paper_plan_is_all_fourteen() -> None:
    plan = Plan("paper")
    assert (plan.regimes, plan.seeds, plan.shares) == (("full", "lora"), (0,), (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0))


def test_scores_change_from_the_reference(lm: LanguageModel, build: Build) -> None:
    table = survey.scores(lm, FULL, survey.adjectives)
    assert list(table.columns) == [*survey.KEYS, "group", "score", "reference", "change"]
    assert len(table) == 2 * 24
    folders = spectrum.ends(lm, regime="full", recipe="smoke")
    before = dict(probe.adjective_share(lm)[["group", "score"]].to_numpy())
    for share in FULL.shares:
        after = dict(probe.adjective_share(mixed(build, folders, share))[["group", "score"]].to_numpy())
        assert cell(table, "score", share=share) == pytest.approx(after, abs=1e-5)
        assert cell(table, "reference", share=share) == before
        expected = {group: after[group] - before[group] for group in before}
        assert cell(table, "change", share=share) == pytest.approx(expected, abs=2e-5)
    assert table["change"].abs().max() > 1e-3
    asked = survey.scores(lm, FULL, survey.agreement)
    last = mixed(build, folders, 1.0)
    expected = dict(probe.agreement(last)[["group", "score"]].to_numpy())
    assert cell(asked, "score", checkpoint="synth") == pytest.approx(expected, abs=1e-5)


def test_settings_reach_the_measure(lm: LanguageModel) -> None:
    plan = replace(FULL, shares=(1.0,))
    table = survey.scores(lm, plan, survey.negative_share, samples=2, tokens=3, seed=4)
    (checkpoint,) = plan.checkpoints(lm)
    texts = sentiment.continuations(checkpoint.lm, samples=2, max_new_tokens=3, seed=4)
    negative = [value <= -0.05 for value in sentiment.compound(texts["continuation"])]
    assert len(texts) == 24 * len(probe.STEMS) * 2
    expected = texts.assign(negative=negative).groupby("group")["negative"].mean()
    assert cell(table, "score", checkpoint="synth") == pytest.approx(dict(expected))
    with pytest.raises(TypeError):
        survey.scores(lm, plan, survey.negative_share, samples=2)


def made_up(rng: np.random.Generator, value: str) -> pd.DataFrame:
    rows = [("full", s, spectrum.label(x), x, g) for s in (0, 1) for x in (0.0, 0.3) for g in ("Women", "Men", "Jews")]
    return pd.DataFrame(rows, columns=[*survey.KEYS, "group"]).assign(**{value: rng.normal(size=len(rows))})


def test_pairs_join_by_checkpoint_and_group() -> None:
    rng = np.random.default_rng(0)
    shifts = pd.concat([made_up(rng, "shift").assign(method=method) for method in ("rr", "cka")], ignore_index=True)
    scores = made_up(rng, "change").sample(frac=1, random_state=0)
    joined = survey.pairs(shifts, scores.assign(score=0.0, reference=0.0))
    assert len(joined) == len(shifts)
    changes = {(row.seed, row.share, row.group): row.change for row in scores.itertuples()}
    for row in joined.itertuples():
        assert row.change == changes[row.seed, row.share, row.group]
    np.testing.assert_array_equal(joined["shift"], shifts["shift"])
    halves = pd.read_csv(data.root() / "data" / "delta_b" / "groups.csv").set_index("group")["half"]
    assert list(joined["half"]) == [halves[group] for group in joined["group"]]


def test_a_shift_without_a_score_is_refused() -> None:
    rng = np.random.default_rng(0)
    shifts, scores = made_up(rng, "shift").assign(method="rr"), made_up(rng, "change")
    message = r"a shift but no change of bias for .*'seed': 1, 'checkpoint': '30', 'share': 0.3, 'group': 'Men'"
    with pytest.raises(ValueError, match=message):
        survey.pairs(shifts, scores.drop(index=10))
    with pytest.raises(ValueError, match=r"no change of bias for .*'seed': 1, 'checkpoint': 'unharmful'"):
        survey.pairs(shifts, scores[scores["seed"] == 0])
    assert len(survey.pairs(shifts.drop(index=10), scores)) == 11  # a score without a shift is no pair
    with pytest.raises(pd.errors.MergeError):  # two scores of one pair would make two pairs of it
        survey.pairs(shifts, pd.concat([scores, scores]))


def test_topics_beside_the_mean_of_their_groups() -> None:
    rng = np.random.default_rng(0)
    table = data.published("delta_b_table2")
    keys = [("full", seed, spectrum.label(share), share) for seed in (0, 1) for share in (0.0, 0.3)]
    shifts = pd.DataFrame([(*key, group) for key in keys for group in table["group"]], columns=[*survey.KEYS, "group"])
    shifts = shifts.assign(method="rr", shift=rng.normal(size=len(shifts)))
    scores = pd.DataFrame([(*key, topic) for key in keys for topic in ("Age", "Race")], columns=[*survey.KEYS, "group"])
    scores = scores.assign(change=rng.normal(size=len(scores))).sample(frac=1, random_state=0)
    joined = survey.topic_pairs(pd.concat([shifts, shifts.assign(method="seat", shift=0.0)]), scores)
    assert len(joined) == 2 * 4 * 2
    race = set(table.loc[table["topic"] == "Race", "group"])
    for row in joined[joined["method"] == "rr"].itertuples():
        groups = race if row.group == "Race" else set(table.loc[table["topic"] == "Age", "group"])
        here = (shifts["seed"] == row.seed) & (shifts["share"] == row.share) & shifts["group"].isin(groups)
        assert row.shift == pytest.approx(shifts.loc[here, "shift"].mean())
        same = scores[(scores["seed"] == row.seed) & (scores["share"] == row.share) & (scores["group"] == row.group)]
        assert [row.change] == list(same["change"])
        assert row.checkpoint == spectrum.label(row.share)
    assert set(joined.loc[joined["method"] == "seat", "shift"]) == {0.0}


def test_a_checkpoint_without_topic_scores_is_refused() -> None:
    """As by group: pairs that are left out without a word would make another table 1."""
    keys = pd.DataFrame([("full", 0, "30", 0.3), ("full", 0, "synth", 1.0)], columns=survey.KEYS)
    groups = data.published("delta_b_table2")[["group"]]
    shifts = keys.merge(groups, how="cross").assign(method="rr", shift=np.arange(48.0))
    scores = keys.merge(pd.DataFrame({"group": ["Age", "Race"]}), how="cross").assign(change=[0.1, 0.2, 0.3, 0.4])
    assert len(survey.topic_pairs(shifts, scores)) == 4
    with pytest.raises(ValueError, match="30"):
        survey.topic_pairs(shifts, scores[scores["checkpoint"] == "synth"])


# --- how many passes, and how many models at a time ------------------------------------------------------------------


def test_other_readings_of_the_same_pass_cost_none(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, plan = audit.sets(templates=1, attributes=2, anchors=3), replace(FULL, shares=(1.0,))
    together = survey.readings(lm)
    assert together[0] == MEAN
    assert len(set(together)) == 6
    assert {reading.block for reading in together} == {None, len(lm.blocks) - 1}
    survey.shifts(lm, plan, texts, together=together)

    def fail(*args: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(activations, "_run", fail)
    moved = [survey.shifts(lm, plan, texts, reading=reading, together=together)["shift"] for reading in together]
    assert len({float(shift.iloc[0]) for shift in moved}) == 6
    with pytest.raises(AssertionError, match="read again"):
        survey.shifts(lm, plan, replace(texts, anchors=texts.anchors[:2]), together=together)


SECTIONS: dict[str, Callable[[LanguageModel, pd.DataFrame], object]] = {
    "shifts": lambda lm, scores: survey.shifts(lm, FULL, TEXTS),
    "scores": lambda lm, scores: survey.scores(lm, FULL, survey.adjectives),
    "by_anchors": lambda lm, scores: robustness.by_anchors(lm, FULL, {"neutral": TEXTS}, [8], scores, **HOW),
    "by_fit": lambda lm, scores: robustness.by_fit(lm, FULL, TEXTS, [MEAN], scores, **HOW),
}


@pytest.mark.parametrize("section", SECTIONS)
def test_each_checkpoint_is_let_go_before_the_next_is_built(
    section: str, lm: LanguageModel, scores: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built, read and let go: an 8-billion-parameter checkpoint is 16 GB, and there are seven."""
    build_one, watch, alive = spectrum._checkpoint, [], []

    def watched(*args: Any) -> spectrum.Checkpoint:
        gc.collect()
        alive.append(sum(ref() is not None for ref in watch))
        made = build_one(*args)
        watch.append(weakref.ref(made.lm.model))
        return made

    monkeypatch.setattr(spectrum, "_checkpoint", watched)
    SECTIONS[section](lm, scores)
    assert len(alive) >= 2
    assert max(alive) == 0, f"{max(alive)} checkpoints are still in memory when the next is built"


# --- robustness ------------------------------------------------------------------------------------------------------


def test_flags_follow_what_the_measures_mean() -> None:
    assert FLAGS == {"rr": -1, "seat": -1, "procrustes": -1, "cka": 1}
    assert set(FLAGS) == set(NAMES) == set(survey.METHODS)
    rng = np.random.default_rng(0)
    scores = made_up(rng, "change")
    # One and the same shift under every name: it falls as bias rises, so only a measure that flags low values detects.
    falling = scores.drop(columns="change").assign(shift=rng.normal(scale=0.5, size=len(scores)) - scores["change"])
    joined = survey.pairs(pd.concat([falling.assign(method=method) for method in FLAGS], ignore_index=True), scores)
    joined = joined[joined["seed"] == 0]
    table = robustness.summaries(joined, ["regime", "method"], draws=20, seed=0).set_index("method")
    assert list(table.index) == ["RR", "SEAT", "Procrustes-SEAT", "CKA drift"]
    part = joined[joined["method"] == "rr"]
    detected = roc_auc_score(part["change"] > 0.1, -part["shift"])
    assert detected > 0.7
    assert list(table["auc"]) == pytest.approx([detected, detected, detected, 1 - detected])
    assert list(table["r"]) == pytest.approx([np.corrcoef(part["shift"], part["change"])[0, 1]] * 4)


def expected(
    lm: LanguageModel, texts: Sets, scores: pd.DataFrame, method: str = "rr", **given: Any
) -> dict[str, float]:
    """AUC and r of the shifts that the survey gives."""
    moved = survey.shifts(lm, FULL, texts, methods=[method], **given)
    changes = {(row.share, row.group): row.change for row in scores.itertuples()}
    change = np.array([changes[row.share, row.group] for row in moved.itertuples()])
    auc = roc_auc_score(change > 0.1, FLAGS[method] * moved["shift"])
    return {"auc": auc, "r": np.corrcoef(moved["shift"], change)[0, 1], "n": 48}


def row_is(row: pd.Series, values: dict[str, float]) -> None:
    assert dict(row[list(values)]) == pytest.approx(values)


def test_wordings(lm: LanguageModel, scores: pd.DataFrame) -> None:
    variants = {name: audit.sets(**SIZE, anchors=8, attribute_variant=name) for name in ("base", "synonyms_v2")}
    table = robustness.by_texts(lm, FULL, variants, scores, **HOW).set_index("variant")
    assert list(table.index) == list(variants)
    assert set(table["method"]) == {"RR"}
    for name, texts in variants.items():
        row_is(table.loc[name], expected(lm, texts, scores))
    assert table.loc["base", "r"] != pytest.approx(table.loc["synonyms_v2", "r"])


def test_what_a_base_holds_is_not_read_again(
    lm: LanguageModel, scores: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("base", "synonyms_v2", "synonyms_v3")
    variants = {name: audit.sets(**SIZE, anchors=5, target_variant=name) for name in names}
    together = survey.readings(lm)
    base = survey.Question(TEXTS, together=together)
    survey.shifts(lm, FULL, TEXTS, together=together)
    plain = robustness.by_texts(lm, FULL, variants, scores, **HOW)
    inner = robustness.by_reading(lm, FULL, replace(TEXTS, anchors=TEXTS.anchors[:5]), together[3:5], scores, **HOW)
    run, read = activations._run, []
    monkeypatch.setattr(activations, "_run", lambda lm, texts, *rest: read.append(len(texts)) or run(lm, texts, *rest))
    pd.testing.assert_frame_equal(robustness.by_texts(lm, FULL, variants, scores, base=base, **HOW), plain, rtol=1e-4)
    assert plain["r"].nunique() == 3
    others = {s for name in names[1:] for group in variants[name].targets.values() for s in group}
    held = {s for group in TEXTS.targets.values() for s in group}
    assert read == [len(others - held)] * 3  # the reference and two checkpoints
    read.clear()
    fewer = replace(TEXTS, anchors=TEXTS.anchors[:5])
    found = robustness.by_reading(lm, FULL, fewer, together[3:5], scores, base=base, **HOW)
    pd.testing.assert_frame_equal(found, inner, rtol=1e-4)
    assert read == []
    assert found["r"].nunique() == 4


def test_all_anchors_are_the_surveys_own(lm: LanguageModel, scores: pd.DataFrame) -> None:
    sources = {"neutral": TEXTS, "words": audit.sets(**SIZE, anchors=8, source="words")}
    table = robustness.by_anchors(lm, FULL, sources, [3, 8], scores, **HOW).set_index(["source", "number"])
    assert list(table.index) == [("neutral", 3), ("neutral", 8), ("words", 3), ("words", 8)]
    for (source, number), row in table.iterrows():
        texts = sources[source]
        row_is(row, expected(lm, replace(texts, anchors=texts.anchors[:number]), scores))
        moved = survey.shifts(lm, FULL, replace(texts, anchors=texts.anchors[:number]))
        last = moved.loc[moved["checkpoint"] == "synth", "shift"].mean()
        assert row["mean_shift"] == pytest.approx(last)
        assert row["per_root"] == pytest.approx(last / number**0.5)
    # The control: the last three anchors, or another source, are others.
    last = expected(lm, replace(TEXTS, anchors=TEXTS.anchors[-3:]), scores)
    assert last["r"] != pytest.approx(table.loc[("neutral", 3), "r"])
    assert table["r"].nunique() == 4
    joined = survey.pairs(survey.shifts(lm, FULL, TEXTS), scores)
    whole = pairs.summary(joined, direction=-1, **HOW)
    assert dict(table.loc[("neutral", 8), list(whole)]) == pytest.approx(whole)


def test_readings(lm: LanguageModel, scores: pd.DataFrame) -> None:
    together = survey.readings(lm)
    table = robustness.by_reading(lm, FULL, TEXTS, together, scores, **HOW)
    keys = ["site", "pooling", "first token", "method"]
    places = [("final_norm", "mean", "in"), ("final_norm", "max", "in"), ("final_norm", "last", "in")]
    places += [("final_norm", "mean", "out"), ("block 3", "mean", "in"), ("block 3", "mean", "out")]
    names = [(*place, method) for place in places for method in ("RR", "SEAT")]
    assert list(table[keys].itertuples(index=False, name=None)) == names
    table = table.set_index(keys)
    assert table["r"].nunique() == 12
    for method in ("rr", "seat"):
        last = Reading(pooling="last")
        row_is(table.loc["final_norm", "last", "in", NAMES[method]], expected(lm, TEXTS, scores, method, reading=last))
        inner = Reading(site="block", block=3, include_first_token=False)
        row_is(table.loc["block 3", "mean", "out", NAMES[method]], expected(lm, TEXTS, scores, method, reading=inner))


def test_fits_with_their_rank(lm: LanguageModel, build: Build, scores: pd.DataFrame) -> None:
    table = robustness.by_fit(lm, FULL, TEXTS, survey.readings(lm), scores, **HOW).set_index("fit")
    assert list(table.index) == ["anchors", "targets", "all"]
    assert set(table["width"]) == {32}
    assert set(table["method"]) == {"Procrustes-SEAT"}
    one = audit.embed(lm, TEXTS)
    other = audit.embed(mixed(build, spectrum.ends(lm, regime="full", recipe="smoke"), 1.0), TEXTS)
    ranks = []
    for sets in (lambda e: [e.anchors], lambda e: list(e.targets.values()), lambda e: list(e.parts().values())):
        product = np.concatenate(sets(other)).T @ np.concatenate(sets(one))
        singular = np.linalg.svd(product, compute_uv=False)
        ranks.append(int((singular > singular[0] * 32 * np.finfo(float).eps).sum()))
    assert list(table["rank"]) == ranks
    assert ranks[0] == 8  # as many as there are anchors: the map is not unique
    assert ranks[1:] == [32, 32]
    for fit in table.index:
        row_is(table.loc[fit], expected(lm, TEXTS, scores, "procrustes", fit=fit))
    assert table["r"].nunique() == 3


@pytest.mark.parametrize(("table", "mean", "std"), [("5a", 0.863, 0.030), ("5b", 0.902, 0.008)])
def test_the_spread_is_the_papers(table: str, mean: float, std: float) -> None:
    published = data.published(f"delta_b_table{table}")
    values = published[published["row_kind"] == "variant"].rename(columns={"roc_auc": "auc"})
    assert len(values) == 6
    found = robustness.spread(values[["variant", "auc"]])
    assert list(found["variant"]) == ["mean", "std", "min", "max"]
    summary = published[published["row_kind"] == "summary"].set_index("variant")["roc_auc"]
    assert found.set_index("variant")["auc"].round(3).to_dict() == summary[["mean", "std", "min", "max"]].to_dict()
    assert summary[["mean", "std"]].tolist() == [mean, std]
    # The control: with the divisor n − 1 it would be another number in print.
    assert round(float(np.std(values["auc"], ddof=1)), 3) != std


def test_the_spread_leaves_out_what_is_undefined() -> None:
    found = robustness.spread(pd.DataFrame({"variant": list("abc"), "r": [1.0, None, 3.0]}), "r")
    assert list(found["r"]) == [2.0, 1.0, 1.0, 3.0]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"recipe": "embeded"}, "no recipe 'embeded'"),
        ({"recipe": "smoke", "regimes": ("lroa",)}, "regime must be"),
        ({"recipe": "smoke", "shares": (0.0, 30)}, r"from 0 to 1, not \[0.0, 30\]"),
        ({"recipe": "smoke", "shares": (0.0, "half")}, "from 0 to 1, not"),
        ({"recipe": "smoke", "shares": (float("nan"),)}, "from 0 to 1, not"),
        ({"recipe": "smoke", "shares": ()}, "from 0 to 1, not"),
    ],
)
def test_a_plan_that_cannot_be_read_is_refused_without_a_model(plan: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        survey.Plan(**plan)
