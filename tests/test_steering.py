"""Scores under steering equal those of the whole pass under a hook; outcomes equal scipy's and naive loops."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from biasgeom import hooks, judging, models, prompts, readouts, steering, suffix
from biasgeom.models import LanguageModel
from conftest import WIDTH
from scipy.stats import spearmanr, wasserstein_distance
from test_readouts import adapted

Build = Callable[[str], LanguageModel]
_FIRST = steering._first
TEXTS = [
    f"Rate the response from 1 to 10. {text} Output one integer." for text in ("A", "The nurse said.", "Who?", "A")
]


def direction(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=WIDTH)


def slowly(lm: LanguageModel, text: str, prefill: str, block: int, edit: np.ndarray) -> tuple[float, float, bool]:
    """Expected score, greedy integer and validity by whole passes, in float64."""
    digits, _ = readouts.score_tokens(lm)
    (ids,) = prompts.encode(lm, [text], chat=True, prefill=prefill or None)
    whole = torch.tensor([[*ids, digits[1]]])
    with torch.inference_mode(), hooks.steer(lm, block, edit, 1.0, positions=torch.tensor([len(ids) - 1])):
        logits = lm.core(whole, attention_mask=torch.ones_like(whole)).logits[0, -2:].double()
    first, second = logits.softmax(-1).numpy()
    p = {k: first[digits[k]] for k in range(1, 10)}
    p[10] = p[1] * second[digits[0]]
    p[1] -= p[10]
    expected = sum(k * v for k, v in p.items()) / sum(p.values())
    token, then = first.argmax(), second.argmax()
    greedy = float(digits.index(token)) if token in digits[1:] else np.nan
    if greedy == 1:
        greedy = 10.0 if then == digits[0] else (np.nan if then in digits[1:] else 1.0)
    return expected, greedy, token in digits[1:]


def biased_to_digits(lm: LanguageModel, favourite: int) -> LanguageModel:
    """A random model never replies with a digit: let the head favour them, one most."""
    digits, _ = readouts.score_tokens(lm)
    head = lm.core.get_output_embeddings()
    bias = torch.zeros(head.weight.shape[0])
    bias[digits] = 12.0
    bias[digits[favourite]] = 14.0
    new = torch.nn.Linear(head.in_features, head.out_features)
    new.weight, new.bias = head.weight, torch.nn.Parameter(bias, requires_grad=False)
    lm.core.set_output_embeddings(new.eval())
    return lm


@pytest.mark.parametrize("prefill", ["", "Score: "])
@pytest.mark.parametrize("favourite", [1, 6])
@pytest.mark.parametrize("negligible", [1e-5, 0.5])
def test_scores_equal_whole_passes(
    build: Build, own_cache: None, monkeypatch: pytest.MonkeyPatch, prefill: str, favourite: int, negligible: float
) -> None:
    """Both ways to look behind a "1": always, and where it is likely or the reply itself."""
    lm = biased_to_digits(build("llama"), favourite)
    steered = steering.Steered(lm, TEXTS, prefill=prefill)
    if negligible == 0.5:  # unsteered, a "1" is no case
        monkeypatch.setattr(
            steering, "_first", lambda *a: (lambda w, s, t: (w, s * (len(s) > 1) + 1e-9, t))(*_FIRST(*a))
        )
    alphas = [0.0, 0.5, -2.0]
    found = steered.scores(1, direction(), alphas)
    for a, alpha in enumerate(alphas):
        for i, text in enumerate(TEXTS):
            expected, greedy, valid = slowly(
                lm, text, prefill, 1, alpha * direction() if alpha else 1e-12 * direction()
            )
            assert found.expected[a, i] == pytest.approx(expected, abs=1e-3)
            assert found.valid[a, i] == valid
            assert np.array_equal(found.greedy[a, i], greedy, equal_nan=True)
    assert found.valid.any()
    assert np.abs(found.expected[1] - found.expected[2]).max() > 0.01
    # Equal texts have equal scores; a readout's score is missing where it is not valid.
    assert np.array_equal(found.expected[:, 0], found.expected[:, 3])
    assert np.array_equal(np.isnan(found.of("expected")), ~found.valid)
    with pytest.raises(ValueError, match="readout"):
        found.of("mean")


def test_what_follows_a_one_matters(build: Build, own_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: if "0" and the rest after a "1" are not told apart, the scores are others."""
    lm = biased_to_digits(build("llama"), 1)
    right = steering.Steered(lm, TEXTS[:3], prefill="").scores(1, direction(), [1.0])

    def none(logits: torch.Tensor, digits: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(logits.shape[:2]).double(), torch.zeros(logits.shape[:2]).long()

    monkeypatch.setattr(steering, "_behind", none)
    steps = suffix.edits(lm, 1, direction(), np.array([1.0]))
    wrong = steering.Steered(lm, TEXTS[:3], prefill="")._measure(1, steps)
    assert np.abs(wrong[0, :, 0] - right.expected[0]).max() > 0.02


def test_directions_and_edits_row_by_row(llama: LanguageModel, own_cache: None) -> None:
    steered = steering.Steered(llama, TEXTS, prefill="")
    both = steered.scores(2, np.stack([direction(1), direction(2)]), [3.0, 4.0])
    for row, (seed, alpha) in enumerate([(1, 3.0), (2, 4.0)]):
        one = steered.scores(2, direction(seed), [alpha])
        assert np.allclose(both.expected[row], one.expected[0], atol=1e-4)
    edits = np.stack([3 * direction(1)] * 4)
    assert np.allclose(steered.scores_of(2, edits).expected[0], both.expected[0], atol=1e-4)
    edits[1] = 4 * direction(2)
    mixed = steered.scores_of(np.int64(2), edits).expected[0]
    assert np.allclose(mixed[[0, 1, 3]], [both.expected[0, 0], both.expected[1, 1], both.expected[0, 3]], atol=1e-4)
    with pytest.raises(ValueError, match="equal texts"):
        steered.scores_of(2, np.arange(4)[:, None] * direction()[None])
    with pytest.raises(ValueError, match="edits must be"):
        steered.scores_of(2, edits[:2])
    with pytest.raises(ValueError, match="2 directions for 3"):
        steered.scores(2, np.stack([direction(1), direction(2)]), [1.0, 2.0, 3.0])


def test_measured_once(llama: LanguageModel, own_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    first = steering.Steered(llama, TEXTS, prefill="").scores(1, direction(), [1.0])
    monkeypatch.setattr(steering.Steered, "_measure", lambda *_: pytest.fail("it was measured before"))
    again = steering.Steered(llama, TEXTS, prefill="").scores(1, direction(), [1.0])
    assert np.array_equal(first.expected, again.expected)
    for other in ((2, direction(), [1.0]), (1, direction(1), [1.0]), (1, direction(), [1.1])):
        with pytest.raises(pytest.fail.Exception):
            steering.Steered(llama, TEXTS, prefill="").scores(*other)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("block", [0, 1, 3])
def test_an_activated_adapter_is_at_work(build: Build, block: int) -> None:
    """The suffix run equals the hooked pass also where an adapter acts from the assistant's turn on."""
    bare, lm = build("llama"), adapted(build("llama"))
    ids = prompts.encode(lm, TEXTS[:3], chat=True)
    run = suffix.SuffixRun(lm, TEXTS[:3], block, chat=True)
    found = run.logits(2.0, direction())
    for row, tokens in zip(found, ids, strict=True):
        whole = torch.tensor([tokens])
        with torch.inference_mode(), hooks.steer(lm, block, direction(), 2.0):
            expected = lm.core(whole, attention_mask=torch.ones_like(whole)).logits[0, -1].numpy()
        assert np.abs(row - expected).max() < 1e-3
    # The negative control: without the adapter the logits are others.
    assert np.abs(suffix.SuffixRun(bare, TEXTS[:3], block, chat=True).logits(2.0, direction()) - found).max() > 0.1


def test_outcomes() -> None:
    rng = np.random.default_rng(0)
    before, after = rng.normal(size=30), rng.normal(size=30)
    after[:3] = np.nan
    found = steering.outcome(after, before)
    assert found.w1 == pytest.approx(wasserstein_distance(after[3:], before))
    assert found.validity == 0.9
    assert found.spearman == pytest.approx(spearmanr(after[3:], before[3:]).statistic)
    other = rng.normal(size=30)
    assert steering.outcome(after, before, baseline=other).spearman == pytest.approx(
        spearmanr(after[3:], other[3:]).statistic
    )


def test_no_prompts_have_no_scores(llama: LanguageModel, own_cache: None) -> None:
    found = steering.Steered(llama, [], prefill="").scores(1, direction(), [0.0, 1.0]).of("expected")
    assert found.shape == (2, 0)
    assert np.isnan(steering.outcome(found[1], found[0]).validity)


def test_outcomes_that_are_none() -> None:
    nothing = np.full(5, np.nan)
    found = steering.outcome(nothing, np.arange(5.0))
    assert np.isnan(found.w1)
    assert found.validity == 0
    assert np.isnan(found.spearman)
    assert np.isnan(steering.outcome(np.ones(5), np.arange(5.0)).spearman)
    assert steering.outcome(np.ones(5), np.arange(5.0)).w1 == pytest.approx(1.4)
    assert np.isnan(steering.rank_correlation(np.array([1.0, 2.0, np.nan]), np.array([1.0, 2.0, 3.0])))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("block", [0, 12, 28, 29])
def test_the_planted_judge_from_any_block(block: int) -> None:
    lm = models.load("smollm2-135m-planted-judge", dtype="float32", device="cpu")
    texts = [judging.prompt(text) for text in ("Yes, always.", "No. It depends on the weather in the north.")]
    vector = np.random.default_rng(0).normal(size=lm.width)
    found = suffix.SuffixRun(lm, texts, block, chat=True).logits([0.0, 5.0], vector)
    for place, text in enumerate(texts):
        whole = torch.tensor(prompts.encode(lm, [text], chat=True))
        for alpha, logits in zip((0.0, 5.0), found, strict=True):
            with torch.inference_mode(), hooks.steer(lm, block, vector, alpha):
                expected = lm.core(whole, attention_mask=torch.ones_like(whole)).logits[0, -1].numpy()
            assert np.abs(logits[place] - expected).max() < 1e-3
