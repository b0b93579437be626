"""Activated adapters: the same as PEFT's own wrapper where that works, and right where it does not look."""

import copy
import json
import warnings
from pathlib import Path

import pytest
import torch
from biasgeom import activated, activations, adapters, generation, models
from biasgeom.models import LanguageModel
from peft import LoraConfig, get_peft_model

TEXT = "The nurse said that she was tired."


@pytest.fixture
def wrapped(llama: LanguageModel) -> tuple[torch.nn.Module, LanguageModel]:
    """PEFT's wrapper around a tiny model with an activated adapter, and the same weights as the library loads them."""
    invocation = llama.tokenizer("[assistant] ", add_special_tokens=False)["input_ids"][:4]
    config = LoraConfig(
        r=4, target_modules=["q_proj", "down_proj"], alora_invocation_tokens=invocation, task_type="CAUSAL_LM"
    )
    with (
        torch.random.fork_rng(),  # PEFT draws A from the global generator, which other tests have moved
        warnings.catch_warnings(action="ignore", category=FutureWarning),  # PEFT asks an attribute's old name
    ):
        torch.manual_seed(0)
        peft = get_peft_model(copy.deepcopy(llama.model), config).eval().requires_grad_(False)
    with torch.no_grad():
        for name, weight in peft.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5, generator=torch.Generator().manual_seed(len(name)))
    ours = LanguageModel(copy.deepcopy(peft).get_base_model(), llama.tokenizer, "ours", {}, invocation)
    return peft, ours


def tokens(lm: LanguageModel, *texts: str, begun: bool = True) -> list[list[int]]:
    """Chat tokens, the assistant's turn begun or not."""
    turns = [[{"role": "user", "content": text}] for text in texts]
    return [lm.tokenizer.apply_chat_template(turn, add_generation_prompt=begun)["input_ids"] for turn in turns]


def test_a_whole_text_gives_what_peft_gives(
    wrapped: tuple[torch.nn.Module, LanguageModel], llama: LanguageModel
) -> None:
    peft, ours = wrapped
    ids = torch.tensor(tokens(ours, TEXT))
    assert torch.allclose(ours.core(ids).logits, peft(ids).logits, atol=1e-6)
    # The negative control: without the adapter it is another model, and before its place it is the same one.
    bare = llama.model(ids).logits
    assert (ours.core(ids).logits[:, -1] - bare[:, -1]).abs().max() > 1e-2
    before = len(tokens(ours, TEXT, begun=False)[0])
    assert torch.allclose(ours.core(ids).logits[:, :before], bare[:, :before], atol=1e-6)


def test_the_decoder_alone_is_adapted_too(wrapped: tuple[torch.nn.Module, LanguageModel]) -> None:
    peft, ours = wrapped
    ids = torch.tensor(tokens(ours, TEXT))
    hidden = ours.decoder(input_ids=ids, use_cache=False).last_hidden_state
    assert torch.allclose(ours.core.lm_head(hidden), peft(ids).logits, atol=1e-6)
    # The negative control: PEFT's decoder, called alone, is the base model without a word.
    assert (peft.get_base_model().get_decoder()(ids).last_hidden_state - hidden).abs().max() > 1e-2


def test_cached_keys_and_values_carry_whether_it_acts(wrapped: tuple[torch.nn.Module, LanguageModel]) -> None:
    _, ours = wrapped
    ids, more = torch.tensor(tokens(ours, TEXT)), torch.tensor([[7, 9]])
    whole = ours.core(torch.cat([ids, more], dim=1)).logits[:, -2:]
    begun = ours.core(ids, use_cache=True).cache
    assert torch.allclose(ours.core(more, cache=copy.deepcopy(begun)).logits, whole, atol=1e-5)
    for token in range(2):  # one by one, as a reply is decoded
        step = ours.core(more[:, token : token + 1], cache=begun).logits
        assert torch.allclose(step[:, -1], whole[:, token], atol=1e-5)
    # The negative control: without what the cache says, the rest would be read by the base model.
    forgetful = ours.core(ids, use_cache=True).cache
    delattr(forgetful, activated.ACTIVE)
    assert (ours.core(more, cache=forgetful).logits - whole).abs().max() > 1e-2


@pytest.mark.parametrize("left", [1, 3, 9])
def test_a_prompt_may_be_read_before_its_place_comes(wrapped: tuple[torch.nn.Module, LanguageModel], left: int) -> None:
    _, ours = wrapped
    ids = torch.tensor(tokens(ours, TEXT))
    assert left <= len(tokens(ours, TEXT, begun=False)[0])
    first = ours.core(ids[:, :left], use_cache=True)
    rest = ours.core(ids[:, left:], cache=first.cache).logits
    assert torch.allclose(rest, ours.core(ids).logits[:, left:], atol=1e-5)


def test_rows_of_a_batch_are_told_apart(wrapped: tuple[torch.nn.Module, LanguageModel]) -> None:
    _, ours = wrapped
    with_, without = tokens(ours, TEXT)[0], [5] * 12
    width = min(len(with_), len(without))
    batch = torch.tensor([with_[-width:], without[:width]])
    together = ours.core(batch, use_cache=True)
    for row in (0, 1):
        assert torch.allclose(together.logits[row], ours.core(batch[row : row + 1]).logits[0], atol=1e-5)
    together.cache.batch_select_indices(torch.tensor([0]))
    with pytest.raises(ValueError, match="reordered"):
        ours.core(torch.tensor([[3]]), cache=together.cache)


def test_embeddings_in_place_of_ids_are_refused(wrapped: tuple[torch.nn.Module, LanguageModel]) -> None:
    with pytest.raises(ValueError, match="token ids"):
        wrapped[1].core(inputs_embeds=torch.zeros(1, 3, wrapped[1].width))


def test_readers_and_samplers_use_it(
    wrapped: tuple[torch.nn.Module, LanguageModel], llama: LanguageModel, sentences: list[str]
) -> None:
    peft, ours = wrapped
    states = activations.last_token_states(ours, sentences, chat=True)
    assert abs(states - activations.last_token_states(llama, sentences, chat=True))[:, -1].max() > 1e-2
    probabilities = generation.next_token_probabilities(ours, sentences, chat=True)
    for row, ids in enumerate(tokens(ours, *sentences)):
        expected = peft(torch.tensor([ids])).logits[0, -1].softmax(-1)
        assert torch.allclose(torch.tensor(probabilities[row]), expected, atol=1e-5)
    greedy = generation.sample(ours, sentences[:2], n=1, max_new_tokens=4, temperature=0, seed=0, chat=True)
    for (text,), prompt in zip(greedy, tokens(ours, *sentences[:2]), strict=True):
        new: list[int] = []
        for _ in range(4):
            new.append(int(peft(torch.tensor([[*prompt, *new]])).logits[0, -1].argmax()))
        assert text == generation.continuation(ours, prompt, new)


def test_a_saved_adapter_loads_by_name(
    wrapped: tuple[torch.nn.Module, LanguageModel], saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peft, ours = wrapped
    peft.save_pretrained(tmp_path / "data" / "judge" / "adapter")
    loaded = models.load(
        str(saved_llama), dtype="float32", device="cpu", adapter=str(tmp_path / "data" / "judge" / "adapter")
    )
    ids = torch.tensor(tokens(ours, TEXT))
    assert torch.allclose(loaded.core(ids).logits, peft(ids).logits, atol=1e-5)
    assert loaded.fingerprint() != models.load(str(saved_llama), dtype="float32", device="cpu").fingerprint()
    monkeypatch.setattr(adapters.data, "root", lambda: tmp_path)
    monkeypatch.setitem(adapters.PLANTED, "known", "judge/adapter")
    record = tmp_path / "data" / "judge" / "adapter" / "adapter_config.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"base_model_name_or_path": str(saved_llama)}))
    models.require("known")
    named = models.load("known", dtype="float32", device="cpu")
    assert named.name == "known"
    assert named.provenance["adapter"] == "data/judge/adapter"
    assert torch.equal(named.core(ids).logits, loaded.core(ids).logits)
    with pytest.raises(models.ModelNotAvailable, match="adapter already"):
        models.load("known", adapter="another")
