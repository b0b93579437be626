"""A model whose blocks lie in several places, as accelerate puts them: states, samples and steered runs are the same.

Two GPUs are not to be had here. Instead half of the blocks lies on disk: their weights come and go with every pass, and
nothing may take for granted that they are where the token ids are. (An edit at such a block, or the cache's key of such
a model, needs the weights themselves: blocks on a disk are for this test.)
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import dispatch_model
from biasgeom import activations, generation, hooks, prompts, readouts, suffix
from biasgeom.models import LanguageModel
from conftest import SENTENCES, WIDTH

Build = Callable[[str], LanguageModel]
ON_DISK = (1, 3)


@pytest.fixture(params=["llama", "gemma3"])
def pair(request: pytest.FixtureRequest, build: Build, tmp_path: Path) -> tuple[LanguageModel, LanguageModel]:
    whole, spread = build(request.param), build(request.param)
    places = {name: "cpu" for name, _ in spread.core.named_children() if name != "model"}
    places |= {f"model.{name}": "cpu" for name, _ in spread.decoder.named_children() if name != "layers"}
    places |= {f"model.layers.{n}": "disk" if n in ON_DISK else "cpu" for n in range(len(spread.blocks))}
    dispatch_model(spread.core, places, main_device="cpu", offload_dir=str(tmp_path), force_hooks=True)
    return whole, spread


def test_half_of_the_blocks_is_elsewhere(pair: tuple[LanguageModel, LanguageModel]) -> None:
    """The control: were it all in one place, the tests below would show nothing."""
    where = [{weight.device.type for weight in block.parameters()} for block in pair[1].blocks]
    assert where == [{"meta"} if number in ON_DISK else {"cpu"} for number in range(4)]


def test_states_and_poolings(pair: tuple[LanguageModel, LanguageModel]) -> None:
    whole, spread = pair
    encoded = prompts.encode(whole, SENTENCES)
    for pooling in ("last", "mean", "max"):
        arrays = [
            activations._run(
                lm,
                encoded,
                [*range(4), "embedding", "final_norm"],
                lambda batch, pooling=pooling: activations._pooled(batch, pooling, True),
                None,
                WIDTH,
            )
            for lm in (whole, spread)
        ]
        np.testing.assert_array_equal(*arrays)
        assert np.abs(arrays[0][:, 1] - arrays[0][:, 0]).max() > 0.1


def test_samples_probabilities_and_likelihoods(pair: tuple[LanguageModel, LanguageModel]) -> None:
    encoded = prompts.encode(pair[0], SENTENCES)
    samples = [generation._sampled(lm, encoded, 2, 6, 1.0, 7, None) for lm in pair]
    assert samples[0] == samples[1]
    after = [ids[:1] * 10 + ids for ids in encoded]  # a common beginning, read once
    with torch.inference_mode():
        for asked in (encoded, after):
            np.testing.assert_array_equal(*(generation._next_token_probabilities(lm, asked, None, None) for lm in pair))
        np.testing.assert_array_equal(*(generation._nats(lm, encoded, None) for lm in pair))


@pytest.mark.parametrize("block", [0, 2])
def test_steered_runs_from_any_block(pair: tuple[LanguageModel, LanguageModel], block: int) -> None:
    v = np.random.default_rng(0).normal(size=WIDTH)
    found = [suffix.SuffixRun(lm, SENTENCES, block, append=23).logits([0.0, 3.0], v) for lm in pair]
    np.testing.assert_array_equal(*found)
    assert np.abs(found[0][0] - found[0][1]).max() > 0.1


@pytest.mark.parametrize("block", [0, 2])
def test_hooks_act_where_the_block_computes(pair: tuple[LanguageModel, LanguageModel], block: int) -> None:
    v = np.random.default_rng(0).normal(size=WIDTH)
    encoded, sites = prompts.encode(pair[0], SENTENCES), list(range(4))

    def last(batch: prompts.Batch) -> Callable[[torch.Tensor], torch.Tensor]:
        return hooks.at(batch.last)

    for edit in (lambda lm: hooks.steer(lm, block, v, 3.0), lambda lm: hooks.ablate(lm, {block: v})):
        arrays = []
        for lm in pair:
            with edit(lm):
                arrays.append(activations._run(lm, encoded, sites, last, None, WIDTH))
        np.testing.assert_array_equal(*arrays)
        assert np.abs(arrays[0] - activations._run(pair[0], encoded, sites, last, None, WIDTH)).max() > 0.1


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_judge_s_readout(pair: tuple[LanguageModel, LanguageModel], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LanguageModel, "fingerprint", lambda lm: f"{lm.name} {id(lm)}")
    asked = [f"Rate the response from 1 to 10. {text} Output one integer." for text in SENTENCES]
    for prefill in ("", "Score: "):
        one, other = (readouts.read([lm], asked, [prefill])[0] for lm in pair)
        np.testing.assert_array_equal(one.states, other.states)
        np.testing.assert_array_equal(one.scores, other.scores)
        np.testing.assert_array_equal(one.reply, other.reply)
        assert np.abs(one.scores[1:] - one.scores[:-1]).max() > 1e-3
