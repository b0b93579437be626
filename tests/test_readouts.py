"""One pass over a judge's prompts equals the separate, slow ways; rows survive a kill; memory stays flat."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from biasgeom import activations, cache, generation, readouts
from biasgeom.models import LanguageModel
from peft import LoraConfig, get_peft_model

Build = Callable[[str], LanguageModel]
PROMPTS = [
    f"Rate the response from 1 to 10. {text} Output one integer." for text in ("A", "The nurse said so.", "Who is it?")
]


@pytest.mark.parametrize("prefill", ["", "Score: "])
def test_one_pass_equals_the_separate_ways(lm: LanguageModel, prefill: str) -> None:
    """States by the reader of activations, P(k) by next-token probabilities, the reply by sampling at temperature 0."""
    if not lm.tokenizer.chat_template:
        pytest.skip("a base model can't judge")
    found = readouts.read([lm], PROMPTS, [prefill])[0]
    how = {"chat": True, "prefill": prefill}
    states = activations.last_token_states(lm, PROMPTS, **how)
    assert np.abs(found.states - states).max() <= 1e-4 * np.abs(states).max()
    digits, ten = readouts.score_tokens(lm)
    one = generation.next_token_probabilities(lm, PROMPTS, digits, **how).astype(float)
    then = generation.next_token_probabilities(lm, PROMPTS, digits, chat=True, prefill=prefill + "1").astype(float)
    assert ten is None
    tenth = one[:, 1] * then[:, 0]
    expected = np.column_stack([one[:, 1] - tenth, one[:, 2:], tenth])
    assert np.allclose(found.scores, expected, atol=1e-6)
    # The negative control: P(10) is not what P("1") alone would give to 1.
    assert not np.allclose(found.scores[:, 0], one[:, 1], rtol=1e-5, atol=0)
    replies = generation.sample(
        lm, PROMPTS, n=1, max_new_tokens=found.reply.shape[1], temperature=0, seed=0, chat=True, prefill=prefill or None
    )
    assert found.reply.shape[1] == (1 if prefill else readouts.REPLY_TOKENS)
    for ids, (text,) in zip(found.reply, replies, strict=True):
        assert lm.tokenizer.decode(ids[ids >= 0].tolist(), skip_special_tokens=True).strip() == text.strip()


def test_batches_don_t_matter(llama: LanguageModel) -> None:
    whole = readouts.read([llama], PROMPTS, [""])[0]
    for budget in (1, 90):
        small = readouts.read([llama], PROMPTS, [""], budget=budget)[0]
        assert np.allclose(small.states, whole.states, atol=1e-4)
        assert np.allclose(small.scores, whole.scores, atol=1e-6)
        assert np.array_equal(small.reply, whole.reply)
    alone = readouts.read([llama], PROMPTS[:1], [""])[0]
    assert np.allclose(alone.states, whole.states[:1], atol=1e-4)


def adapted(lm: LanguageModel) -> LanguageModel:
    """The same weights under an activated adapter that acts from the assistant's turn on."""
    turn = readouts.assistant_turn(lm, [lm.tokenizer("[user] x\n[assistant] ")["input_ids"]])
    config = LoraConfig(
        r=4, target_modules=["q_proj", "down_proj"], alora_invocation_tokens=turn, task_type="CAUSAL_LM"
    )
    core = get_peft_model(lm.core, config).eval().requires_grad_(False).get_base_model()
    with torch.no_grad():
        for name, weight in core.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5, generator=torch.Generator().manual_seed(len(name)))
    return LanguageModel(core, lm.tokenizer, "adapted", {**lm.provenance, "adapter": "x"}, turn)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_judges_that_share_the_prompt_read_as_alone(build: Build) -> None:
    known = {"kind": "embedded", "source": "s", "sha256": "0", "dtype": "float32", "device": "cpu"}
    bare, other = build("llama"), build("llama")
    bare.provenance, other.provenance = dict(known), dict(known)
    planted = adapted(other)
    unknown = build("qwen2")
    assert readouts.sharing([bare, planted, unknown]) == [[bare, planted], [unknown]]
    prefills = ["Score: ", ""]
    alone = [readouts.read([lm], PROMPTS, [prefill])[0] for lm, prefill in zip((bare, planted), prefills, strict=True)]
    alone = [readouts.Readout(*(np.array(a) for a in (r.states, r.scores, r.reply))) for r in alone]
    for order in ([0, 1], [1, 0]):
        judges = [(bare, planted)[i] for i in order]
        # Another budget: what was read alone is not looked up.
        found = readouts.read(judges, PROMPTS, [prefills[i] for i in order], budget=200 + order[0])
        for i, together in zip(order, found, strict=True):
            assert np.allclose(together.states, alone[i].states, atol=1e-4)
            assert np.allclose(together.scores, alone[i].scores, atol=1e-6)
            assert np.array_equal(together.reply, alone[i].reply)
    # The negative control: the adapter does something.
    assert np.abs(alone[0].states - alone[1].states).max() > 0.1


def test_an_ordinary_adapter_does_not_share(build: Build) -> None:
    known = {"kind": "folder", "source": "s", "commit": "c", "dtype": "float32", "device": "cpu"}
    bare, tuned = build("llama"), build("llama-lora")
    bare.provenance, tuned.provenance = dict(known), {**known, "adapter": "a"}
    assert readouts.sharing([bare, tuned]) == [[bare], [tuned]]
    unhashed = build("llama")
    assert (
        readouts.sharing([unhashed, build("qwen2")]) == [[unhashed], [unhashed]]
        or len(readouts.sharing([unhashed, build("qwen2")])) == 2
    )


def test_a_killed_run_goes_on_where_it_was(llama: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"Rate this. {i} words here" for i in range(40)]
    whole = readouts.read([llama], texts, [""], budget=21)[0]
    expected = np.array(whole.states)
    calls = []
    plain = readouts._answer

    def dying(lm: LanguageModel, tail: list[int], read: readouts.Read, rows: list[int], store: cache.Rows) -> None:
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(rows)
        plain(lm, tail, read, rows, store)

    monkeypatch.setattr(readouts, "_answer", dying)
    with pytest.raises(KeyboardInterrupt):
        readouts.read([llama], texts, [""], budget=20)
    kept = [row for rows in calls for row in rows]
    assert 0 < len(kept) < 40
    again: list[int] = []

    def counting(lm: LanguageModel, tail: list[int], read: readouts.Read, rows: list[int], store: cache.Rows) -> None:
        again.extend(rows)
        plain(lm, tail, read, rows, store)

    monkeypatch.setattr(readouts, "_answer", counting)
    found = readouts.read([llama], texts, [""], budget=20)[0]
    assert sorted(kept + again) == list(range(40))  # none lost, none twice
    assert np.allclose(found.states, expected, atol=1e-4)
    again.clear()
    readouts.read([llama], texts, [""], budget=20)
    assert again == []


def test_what_can_t_be_read_is_refused(llama: LanguageModel) -> None:
    with pytest.raises(ValueError, match="no prompts"):
        readouts.read([llama], [], [""])
    handle = llama.blocks[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="not ours"):
        readouts.read([llama], PROMPTS, [""])
    handle.remove()
    llama.model.train()
    with pytest.raises(ValueError, match="training"):
        readouts.read([llama], PROMPTS, [""])
    llama.model.eval()
    with torch.no_grad():
        llama.blocks[1].mlp.down_proj.weight[0, 0] = torch.inf
    with pytest.raises(activations.NonFiniteActivation, match=r"the state at block 1 of answer \d is not finite"):
        readouts.read([llama], PROMPTS, [""])


@torch.no_grad()
def test_the_answer_that_is_not_finite_is_named(llama: LanguageModel) -> None:
    asked = ["A nurse.", "A doctor walks in.", "A doctor walks in Z."]
    private = llama.tokenizer("Z", add_special_tokens=False)["input_ids"][0]
    llama.core.get_input_embeddings().weight[private] = torch.nan
    with pytest.raises(activations.NonFiniteActivation, match="the state at block 0 of answer 2 is not finite"):
        readouts.read([llama], asked, [""])


def test_rows_are_memory_mapped_and_stay(llama: LanguageModel) -> None:
    found = readouts.read([llama], PROMPTS, [""])[0]
    assert isinstance(found.states, np.memmap)
    before = np.array(found.states)
    with pytest.raises(ValueError, match="read-only"):
        found.states[0] = 0
    assert np.array_equal(readouts.read([llama], PROMPTS, [""])[0].states, before)


@pytest.mark.slow
def test_five_thousand_answers_stream_with_flat_memory(llama: LanguageModel) -> None:
    """The peak of what Python allocates grows with a batch, not with the number of answers."""
    import tracemalloc

    peaks = []
    for count in (500, 5000):
        texts = [f"Rate {i}." for i in range(count)]
        tracemalloc.start()
        readouts.read([llama], texts, ["Score: "])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    per_answer = llama.width * len(llama.blocks) * 4
    # Texts and token ids are held; the states of 4,500 more answers (512 bytes each here) are not.
    assert peaks[1] - peaks[0] < 4500 * 4000
    assert per_answer == 512
