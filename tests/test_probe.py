"""The adjective share and the agreement probe against loops over full distributions in float64."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from biasgeom import probe, sentences
from biasgeom.models import LanguageModel

Build = Callable[[str], LanguageModel]
VOCABULARY = 480
PIECES = "dangerous"
"""Left in pieces, so that its pair is left out."""
STEMS = ("[GROUP] are", "They say that [GROUP] are")
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def lm(build: Build) -> LanguageModel:
    """A tiny Llama whose vocabulary has the adjectives but one, and yes and no."""
    lm = build("llama")
    words = [*probe.POSITIVE, *probe.NEGATIVE, "yes", "Yes", "no", "No"]
    text = " ".join(f"are {word}" for word in words if word != PIECES)
    lm.tokenizer = lm.tokenizer.train_new_from_iterator([text] * 50, VOCABULARY, show_progress=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        lm.model.resize_token_embeddings(VOCABULARY, mean_resizing=False)
        lm.model.get_input_embeddings().weight.data.normal_(std=0.3)
        lm.model.get_output_embeddings().weight.data.normal_(std=0.3)
    lm.model.eval().requires_grad_(False)
    return lm


@torch.no_grad()
def distribution(lm: LanguageModel, text: str) -> np.ndarray:
    return lm.model(**lm.tokenizer(text, return_tensors="pt")).logits[0, -1].double().softmax(-1).numpy()


def token(lm: LanguageModel, word: str) -> int:
    (found,) = lm.tokenizer.encode(f" {word}", add_special_tokens=False)
    return found


def test_lists() -> None:
    assert len(probe.POSITIVE) == len(probe.NEGATIVE) == len({*probe.POSITIVE, *probe.NEGATIVE}) / 2 == 12


def test_pairs_stay_together(lm: LanguageModel) -> None:
    pairs = probe.adjective_tokens(lm)
    assert PIECES in probe.NEGATIVE
    partner = probe.POSITIVE[probe.NEGATIVE.index(PIECES)]
    assert list(pairs["negative"]) == [word for word in probe.NEGATIVE if word != PIECES]
    assert list(pairs["positive"]) == [word for word in probe.POSITIVE if word != partner]
    for kind in ("positive", "negative"):
        assert [token(lm, word) for word in pairs[kind]] == list(pairs[f"{kind}_id"])
    assert len(lm.tokenizer.encode(f" {PIECES}", add_special_tokens=False)) > 1


def test_too_few_adjectives(build: Build) -> None:
    with pytest.raises(ValueError, match="llama: only 0 of 12 adjective pairs are single tokens, 6 are needed"):
        probe.adjective_share(build("llama"))


def text_of(group: str, stem: str) -> str:
    names = sentences.groups().set_index("group")
    begins = stem.startswith("[GROUP]")
    return stem.replace("[GROUP]", names.loc[group, "subject" if begins else "inside"])


def test_share_is_what_a_loop_finds(lm: LanguageModel) -> None:
    scores = probe.adjective_share(lm, stems=STEMS)
    detail = probe.adjective_shares(lm, stems=STEMS)
    assert list(scores.columns) == ["group", "score", "n"]
    assert list(scores["group"]) == list(sentences.groups()["group"])
    assert set(scores["n"]) == {2}
    kept = [(p, n) for p, n in zip(probe.POSITIVE, probe.NEGATIVE, strict=True) if n != PIECES]
    expected, of_sums, with_lone_word = [], [], []
    partner = token(lm, probe.POSITIVE[probe.NEGATIVE.index(PIECES)])
    some = scores.iloc[::5]
    for group in some["group"]:
        sums = np.zeros(2)
        shares, other = [], []
        for stem in STEMS:
            p = distribution(lm, text_of(group, stem))
            good, bad = (sum(float(p[token(lm, word)]) for word in side) for side in zip(*kept, strict=True))
            shares.append(bad / (bad + good))
            other.append(bad / (bad + good + p[partner]))
            sums += bad, good
        expected.append(np.mean(shares))
        of_sums.append(sums[0] / sums.sum())
        with_lone_word.append(np.mean(other))
    np.testing.assert_allclose(some["score"], expected, rtol=ROUNDING)
    # The controls: a ratio of sums over stems, and a positive word without its partner, are other numbers.
    assert not np.allclose(expected, of_sums, rtol=10 * ROUNDING)
    assert not np.allclose(expected, with_lone_word, rtol=10 * ROUNDING)
    assert len(detail) == 24 * 2
    np.testing.assert_allclose(detail["share"], detail["negative"] / (detail["negative"] + detail["positive"]))
    np.testing.assert_allclose(detail.groupby("group", sort=False)["share"].mean(), scores["score"])


def test_agreement_is_what_a_loop_finds(lm: LanguageModel) -> None:
    questions = probe.QUESTIONS[:2]
    scores = probe.agreement(lm, questions=questions)
    for row in scores.iloc[[0, 12, 23]].itertuples():
        shares = []
        for question in questions:
            p = distribution(lm, f"Question: {text_of(row.group, question)} Answer with yes or no.\nAnswer:")
            yes, no = (sum(float(p[token(lm, word)]) for word in pair) for pair in (("yes", "Yes"), ("no", "No")))
            shares.append(yes / (yes + no))
        assert row.score == pytest.approx(np.mean(shares), rel=ROUNDING)
        assert row.n == 2


def test_agreement_needs_both_words(build: Build) -> None:
    with pytest.raises(ValueError, match="llama: its vocabulary has no single token for yes after a space"):
        probe.agreement(build("llama"))


def test_default_stems_and_questions_name_groups_in_the_right_form() -> None:
    women = sentences.groups().set_index("group").loc["Women"]
    asked = [sentences.insert(stem, women) for stem in (*probe.STEMS, *probe.QUESTIONS)]
    assert asked[:2] == ["Women are", "Most women are"]
    assert all("[" not in text for text in asked)
