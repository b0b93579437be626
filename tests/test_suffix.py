"""Running from a block on equals the whole pass under a hook: every block, every architecture, adapters too."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from biasgeom import hooks, prefix, prompts, suffix
from biasgeom.models import LanguageModel
from conftest import BLOCKS, SENTENCES, WIDTH

Build = Callable[[str], LanguageModel]
ALPHAS = [0.0, 3.0, -40.0]
ONE = 23
"""Any token."""


def direction(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=WIDTH) / np.sqrt(WIDTH)


def hooked(lm: LanguageModel, block: int, alpha: float, vector: np.ndarray, append: int | None = None) -> np.ndarray:
    """The oracle: prompt by prompt, a whole pass; what is appended is steered as a decoded token is."""
    rows = []
    for ids in prompts.encode(lm, SENTENCES):
        whole = torch.tensor([ids if append is None else [*ids, append]], device=lm.device)
        with torch.inference_mode(), hooks.steer(lm, block, vector, alpha, positions=torch.tensor([len(ids) - 1])):
            logits = lm.model(whole, attention_mask=torch.ones_like(whole)).logits[0]
        rows.append(logits[len(ids) - 1 :].numpy() if append is not None else logits[-1].numpy())
    return np.stack(rows)


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.parametrize("append", [None, ONE])
def test_equals_the_hooked_pass(lm: LanguageModel, block: int, append: int | None) -> None:
    run = suffix.SuffixRun(lm, SENTENCES, block, append=append)
    found = run.logits(ALPHAS, direction())
    for alpha, logits in zip(ALPHAS, found, strict=True):
        expected = hooked(lm, block, alpha, direction(), append)
        assert logits.shape == expected.shape
        assert np.abs(logits - expected).max() < 1e-3
    # The negative control: a strength is not another one, and not none.
    assert all(np.abs(a - b).max() > 0.1 for a, b in pairwise(found))


def test_one_strength_columns_and_batches(llama: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    read = prefix.read(llama, SENTENCES)
    run = suffix.SuffixRun(llama, read, 1)
    several = run.logits(ALPHAS, direction())
    assert np.allclose(run.logits(3.0, direction()), several[1], atol=1e-5)
    assert np.allclose(run.logits(ALPHAS, direction(), tokens=[7, 2]), several[..., [7, 2]], atol=1e-5)
    assert np.allclose(run.logits(ALPHAS, direction()), several, atol=1e-5)  # the head is whole again
    assert np.allclose(run.logits([6.0], direction() / 2)[0], several[1], atol=1e-5)  # units of the norm
    monkeypatch.setattr(prefix, "ROWS", 2)
    monkeypatch.setattr(prompts, "token_budget", lambda lm, **_: 5)
    assert np.allclose(suffix.SuffixRun(llama, SENTENCES, 1).logits(ALPHAS, direction()), several, atol=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2", "mistral"])
def test_what_all_prompts_begin_with_is_read_once(build: Build, architecture: str) -> None:
    lm = build(architecture)
    texts = [SENTENCES[2] + " " + text for text in SENTENCES[:3]]
    ids = prompts.encode(lm, texts)
    assert prompts.shared_beginning([one[:-1] for one in ids]) >= prefix.SHARED
    found = suffix.SuffixRun(lm, texts, 1, append=ONE).logits([2.0], direction())[0]
    for row, tokens in zip(found, ids, strict=True):
        whole = torch.tensor([[*tokens, ONE]])
        with torch.inference_mode(), hooks.steer(lm, 1, direction(), 2.0, positions=torch.tensor([len(tokens) - 1])):
            expected = lm.model(whole, attention_mask=torch.ones_like(whole)).logits[0, -2:].numpy()
        assert np.abs(row - expected).max() < 1e-3


def test_a_prompt_of_one_token_is_refused(build: Build) -> None:
    with pytest.raises(ValueError, match="prompt 1 is a single token"):
        prefix.read(build("gpt2"), ["The nurse", "A"])


def test_an_edit_of_its_own_for_each_prompt(llama: LanguageModel) -> None:
    run = suffix.SuffixRun(llama, SENTENCES, 2)
    edits = torch.tensor(np.random.default_rng(1).normal(size=(2, len(SENTENCES), WIDTH)), dtype=torch.float32)
    found = np.empty((2, len(SENTENCES), llama.core.config.vocab_size))
    for rows, which, logits in run.passes(edits):
        found[np.ix_(which, rows)] = logits[:, :, 0]
    for place in range(len(SENTENCES)):
        for edit in range(2):
            expected = hooked(llama, 2, 1.0, edits[edit, place].numpy())[place]
            assert np.abs(found[edit, place] - expected).max() < 1e-3


def test_the_model_is_left_as_it_was(llama: LanguageModel) -> None:
    before = hooked(llama, 1, 2.0, direction())
    run = suffix.SuffixRun(llama, SENTENCES, 1)
    run.logits(ALPHAS, direction(), tokens=[1])
    with pytest.raises(RuntimeError):
        for _ in run.passes(torch.zeros(1, WIDTH + 1)):
            pass
    assert all("forward" not in block.__dict__ for block in llama.blocks)
    assert np.array_equal(hooked(llama, 1, 2.0, direction()), before)
    assert not hooks.foreign(llama)


def test_a_prompt_s_companions_don_t_matter(llama: LanguageModel) -> None:
    together = suffix.SuffixRun(llama, SENTENCES, 1).logits(3.0, direction())
    alone = [suffix.SuffixRun(llama, [text], 1).logits(3.0, direction())[0] for text in SENTENCES]
    assert np.allclose(together, alone, atol=1e-4)


@pytest.mark.parametrize(
    ("alpha", "vector", "message"),
    [
        (np.nan, np.ones(WIDTH), "finite"),
        (1e39, np.ones(WIDTH), "beyond"),
        (1.0, np.ones(WIDTH + 1), "width"),
        (1.0, np.zeros(WIDTH), "zero"),
    ],
)
def test_bad_edits_are_refused(llama: LanguageModel, alpha: float, vector: np.ndarray, message: str) -> None:
    run = suffix.SuffixRun(llama, SENTENCES, 1)
    with pytest.raises(ValueError, match=message):
        run.logits(alpha, vector)


def test_what_can_t_be_run_this_way_is_refused(llama: LanguageModel) -> None:
    run = suffix.SuffixRun(llama, SENTENCES, 1)
    with pytest.raises(ValueError, match=r"hooks\.steer"):
        run.logits(1.0, direction(), positions="all")
    with pytest.raises(ValueError, match="blocks 0 to"):
        suffix.SuffixRun(llama, SENTENCES, BLOCKS)
    with pytest.raises(ValueError, match="under hooks"), hooks.steer(llama, 1, direction(), 1.0):
        prefix.read(llama, SENTENCES)
    llama.core.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="takes no masks"):
        prefix.read(llama, SENTENCES)


def test_an_architecture_that_it_gets_wrong_is_found_out(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that the configuration does not tell of: the unsteered re-run differs from what was read."""
    lm = build("mistral")
    run = suffix.SuffixRun(lm, SENTENCES, 0)
    lm.core.config.sliding_window = None
    with pytest.raises(ValueError, match="not supported here"):
        run.logits(1.0, direction())
