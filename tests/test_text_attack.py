"""A cue at five strengths, scored by a judge of which every score is known: by a formula of the text."""

import zlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from biasgeom import ground, judging, perturbations, strengths, text_attack
from biasgeom.judging import Judged
from biasgeom.models import LanguageModel
from biasgeom.steering import Scores
from scipy.stats import spearmanr, wasserstein_distance
from test_steering import biased_to_digits

ANSWERS = pd.DataFrame(
    {
        "question_id": [f"q{i}" for i in range(12)],
        "domain": "d",
        "answer": [f"It is the {word}. That is known." for word in ("one", "two", "three", "four", "five", "six")]
        + [f"I think of {word}. It may be so." for word in ("red", "blue", "green", "grey", "pink", "white")],
    }
)
LM = SimpleNamespace(width=4, blocks=[None] * 3)


def judge(readout: str = "expected", lm: object = None) -> Judged:
    return Judged("j", pd.DataFrame(), None, readout, 1.0, 1.0)


def score(text: str) -> float:
    """Quality by the answer's body, less a penalty by the percentage or the length, and noise of its own."""
    body = text.split("]")[-1].split("[")[0][:20]
    percent = [int(part.rstrip("%")) for part in text.split() if part.rstrip("%").isdigit()]
    noise = zlib.crc32(text.encode()) % 1000 / 1000
    return 4 + zlib.crc32(body.encode()) % 7 - 0.02 * len(text) - sum(percent) / 50 + noise


class Reader:
    """In the place of a Steered."""

    def __init__(self, lm: object, texts: Sequence[str], *, prefill: str) -> None:
        before, after = judging.prompt("@@").split("@@")
        self.texts = [text.removeprefix(before).removesuffix(after) for text in texts]
        self.read.append((prefill, self.texts))

    read: list = []  # noqa: RUF012
    score: Callable[[str], float] = staticmethod(score)

    def scores(self, block: int, direction: np.ndarray, alphas: Sequence[float]) -> Scores:
        assert list(alphas) == [0.0]
        found = np.array([[type(self).score(text) for text in self.texts]])
        return Scores(found, np.round(found), ~np.isnan(found))


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> type[Reader]:
    made = type("Fresh", (Reader,), {"read": []})
    monkeypatch.setattr(ground, "Steered", made)
    return made


def naive(condition: str, answers: pd.DataFrame, of: Callable[[str], float] = score) -> dict[tuple[str, int], tuple]:
    """(axis, strength) → W1 and ρ, by a loop over answers."""
    made, found = strengths.variants(answers, condition), {}
    for axis, strength in {(row.axis, row.strength): None for row in made.itertuples()}:
        base, moved = [], []
        for row in answers.itertuples():
            (text,) = (
                v.text
                for v in made.itertuples()
                if (v.question_id, v.axis, v.strength) == (row.question_id, axis, strength)
            )
            base.append(of(row.answer))
            moved.append(of(text))
        found[axis, strength] = wasserstein_distance(moved, base), rank_correlation(moved, base)
    return found


def rank_correlation(x: list[float], y: list[float]) -> float:
    return np.corrcoef(pd.Series(x).rank(), pd.Series(y).rank())[0, 1] if np.ptp(x) and np.ptp(y) else np.nan


@pytest.mark.parametrize("condition", ["Bandwagon-", "Diversity-", "Sentiment-"])
def test_every_strength_is_that_of_a_naive_loop(reader: type[Reader], condition: str) -> None:
    table = text_attack.by_strength(LM, judge(), ANSWERS, condition)
    expected = naive(condition, ANSWERS)
    assert len(table) == len(expected)
    for row in table.itertuples():
        assert (row.w1, row.spearman) == pytest.approx(expected[row.axis, row.strength])
        assert (row.n, row.validity) == (12, 1)
    # The canonical rows: judging the published cue, on each axis the same.
    bias = condition[:-1]
    cue = [score(perturbations.perturb(a, bias, "negative")) for a in ANSWERS["answer"]]
    canonical = table[table["canonical"]]
    assert len(canonical) == table["axis"].nunique()
    base = [score(a) for a in ANSWERS["answer"]]
    np.testing.assert_allclose(canonical["w1"], wasserstein_distance(cue, base))
    np.testing.assert_allclose(canonical["spearman"], spearmanr(cue, base)[0])
    # The negative control: with answers in another order than their variants, the rank correlation is another.
    assert abs(spearmanr(cue, base[::-1])[0] - canonical["spearman"].iloc[0]) > 0.05


@pytest.mark.parametrize("readout", ["expected", "greedy"])
def test_how_the_judge_is_asked(reader: type[Reader], readout: str) -> None:
    table = text_attack.by_strength(LM, judge(readout), ANSWERS, "Bandwagon-", readout="greedy", chosen=("numeric", 5))
    assert [prefill for prefill, _ in reader.read] == ["Score: " if readout == "expected" else ""]
    # Base answers first, then only what was chosen and the published text of both axes.
    kept = table[["axis", "strength", "canonical"]].to_numpy().tolist()
    assert kept == [["numeric", 3, True], ["numeric", 5, False], ["stacked", 1, True]]
    assert reader.read[0][1][:12] == ANSWERS["answer"].tolist()
    assert len(reader.read[0][1]) == 4 * 12
    expected = naive("Bandwagon-", ANSWERS, of=lambda text: np.round(score(text)))["numeric", 5]
    assert table.loc[1, ["w1", "spearman"]].tolist() == pytest.approx(expected)


def test_the_strength_is_chosen_on_development_answers(reader: type[Reader]) -> None:
    answers = {"dev": ANSWERS[::2], "test": ANSWERS[1::2]}
    dev, test = (naive("Bandwagon-", part) for part in answers.values())
    # A floor that the strongest does not keep: the choice has to look at both.
    strongest = max(dev, key=lambda key: dev[key][0])
    floor = dev[strongest][1] + 1e-6
    kept = {key: value for key, value in dev.items() if value[1] >= floor}
    best = max(kept, key=lambda key: kept[key][0])
    assert best != strongest
    row = text_attack.matched(LM, judge(), answers, "Bandwagon-", floor=floor)
    assert row["strength"] == f"{best[0]} {best[1]}"
    assert (row["matched_w1"], row["matched_spearman"]) == pytest.approx(test[best])
    assert (row["text_w1"], row["text_spearman"]) == pytest.approx(test["numeric", 3])
    assert row["reason"] == ""
    # On development answers it is another number, and without a floor another strength.
    assert row["matched_w1"] != pytest.approx(dev[best][0], abs=1e-3)
    assert text_attack.matched(LM, judge(), answers, "Bandwagon-", floor=-1)["strength"] == " ".join(
        map(str, strongest)
    )
    # A floor that is just kept is kept.
    exact = text_attack.matched(LM, judge(), answers, "Bandwagon-", floor=dev[best][1] - 1e-12)
    assert exact["strength"] == row["strength"]
    # What test answers score chooses nothing.
    tested = set(answers["test"]["answer"])
    reader.score = staticmethod(lambda t: -(score(t) ** 2) if any(a[:20] in t for a in tested) else score(t))
    again = text_attack.matched(LM, judge(), answers, "Bandwagon-", floor=floor)
    assert again["strength"] == row["strength"]
    assert again["matched_w1"] != pytest.approx(row["matched_w1"])


def test_reasons(reader: type[Reader]) -> None:
    answers = {"dev": ANSWERS[::2], "test": ANSWERS[1::2]}
    columns = {"text_w1", "text_spearman", "strength", "matched_w1", "matched_spearman", "reason"}
    for floor, why in ((1.01, "no strength keeps"), (np.nan, "the attack has no rank correlation")):
        row = text_attack.matched(LM, judge(), answers, "Bandwagon-", floor=floor)
        assert why in row["reason"]
        assert row["text_w1"] > 0  # the published text is known all the same
        assert np.isnan([row["matched_w1"], row["matched_spearman"]]).all()
        assert row["strength"] == ""
        assert set(row) == columns
    for split in answers:
        row = text_attack.matched(LM, judge(), answers | {split: ANSWERS.head(0)}, "Bandwagon-", floor=0.5)
        assert row["reason"] == f"no answers in split {split}"
        assert np.isnan(row["text_w1"])
        assert set(row) == columns
    empty = text_attack.by_strength(LM, judge(), ANSWERS.head(0), "Bandwagon-")
    assert empty.empty
    assert "spearman" in empty
    # No valid score, everywhere or on the answers that are reported: NaN with a reason, and no row that was chosen.
    tested = set(answers["test"]["answer"])
    for invalid, why in ((set(ANSWERS["answer"]), "no strength keeps"), (tested, "no valid score on test answers")):
        reader.score = staticmethod(lambda t, i=invalid: np.nan if any(a[:20] in t for a in i) else score(t))
        row = text_attack.matched(LM, judge(), answers, "Bandwagon-", floor=-1.0)
        assert why in row["reason"]
        assert np.isnan(row["matched_w1"])


def test_a_real_judge_gives_its_items_scores(
    build: Callable[[str], LanguageModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = biased_to_digits(build("llama"), 6)
    monkeypatch.setattr(judging, "prompt", lambda text, **_: f"Rate it from 1 to 10: {text}")
    some = ANSWERS.iloc[[0, 3, 7, 9]]
    items = perturbations.conditions(some)
    items = items[items["condition"].isin(["base", "Bandwagon-"])]
    (made,) = judging.judge_all([lm], items, readout="expected")
    table = text_attack.by_strength(lm, made, some, "Bandwagon-", chosen=("", 0))
    base, cue = (made.items.loc[made.items["condition"] == c, "expected"].to_numpy() for c in ("base", "Bandwagon-"))
    assert table["canonical"].all()
    np.testing.assert_allclose(table["w1"], wasserstein_distance(cue, base), atol=1e-4)
    np.testing.assert_allclose(table["spearman"], spearmanr(cue, base)[0])
    assert table["w1"].iloc[0] > 1e-3
