"""The next-token proxy against loops over full distributions, on the two ways in which vocabularies write a space."""

import functools
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from biasgeom import data, expressed, proxy
from biasgeom.models import LanguageModel
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

Build = Callable[[str], LanguageModel]
ROUNDING = 1e-5
# Often enough that the words become tokens; "herself" is left in pieces.
PRONOUNS = ["Then he and she: his, her, him. He, She."] * 50
WORDS = {"female": {"she", "her", "She", "Her"}, "male": {"he", "his", "him", "He", "His", "Him"}}

SEVERAL = (".", ", and", ", but")
"""More than the one that pages use: the mean over suffixes would not show with one."""
measured = functools.partial(proxy.next_token_bias, suffixes=SEVERAL)


def texts() -> list[str]:
    """Prompts of two templates, so that they differ in length and share no beginning."""
    prompts = data.gender_prompts()
    return list(prompts.loc[prompts["entity"].isin(["nurse", "engineer", "chess"]), "prompt"])[::3]


def byte_level(lm: LanguageModel, sentences: list[str]) -> LanguageModel:
    """The same model with a vocabulary of the same size that has pronouns."""
    lm.tokenizer = lm.tokenizer.train_new_from_iterator([*sentences, *PRONOUNS], 300, show_progress=False)
    return lm


def sentencepiece_like(lm: LanguageModel, sentences: list[str]) -> LanguageModel:
    """As Llama 2, Mistral and Gemma write it: "▁she"."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>", "<unk>"], show_progress=False)
    tokenizer.train_from_iterator([*sentences, *PRONOUNS], trainer)
    lm.tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    return lm


VOCABULARIES = {"byte-level": byte_level, "sentencepiece-like": sentencepiece_like}
both = pytest.mark.parametrize("vocabulary", VOCABULARIES)


@torch.no_grad()
def distribution(lm: LanguageModel, text: str) -> np.ndarray:
    """One text alone, the whole vocabulary, in float64."""
    return lm.model(**lm.tokenizer(text, return_tensors="pt")).logits[0, -1].double().softmax(-1).numpy()


def by_loop(lm: LanguageModel, prompts: list[str]) -> tuple[pd.DataFrame, np.ndarray]:
    """Female, male and proxy of each prompt; and, which is another number, the mean of each suffix's own proxy."""
    spaces = ("Ġ", "▁")
    ids = {
        gender: [
            i
            for i in range(len(lm.tokenizer))
            if (token := lm.tokenizer.convert_ids_to_tokens(i)).startswith(spaces) and token[1:] in words
        ]
        for gender, words in WORDS.items()
    }
    rows, means_of_ratios = [], []
    for prompt in prompts:
        sums, ratios = {"female": 0.0, "male": 0.0}, []
        for suffix in SEVERAL:
            p = distribution(lm, prompt + suffix)
            f, m = (sum(float(p[i]) for i in ids[gender]) for gender in ("female", "male"))
            sums["female"] += f / len(SEVERAL)
            sums["male"] += m / len(SEVERAL)
            ratios.append((f - m) / (f + m))
        rows.append(sums | {"proxy": (sums["female"] - sums["male"]) / (sums["female"] + sums["male"])})
        means_of_ratios.append(sum(ratios) / len(ratios))
    return pd.DataFrame(rows), np.array(means_of_ratios)


# Tokens ---------------------------------------------------------------------------------------------------------------


def test_pronouns_of_a_byte_level_vocabulary_decode_to_a_space_and_the_word(
    llama: LanguageModel, sentences: list[str]
) -> None:
    lm = byte_level(llama, sentences)
    found = proxy.pronoun_tokens(lm)
    decoded = {gender: {lm.tokenizer.decode([i]) for i in ids} for gender, ids in found.items()}
    assert {" she", " She", " her"} <= decoded["female"]
    assert {" he", " He", " him", " his"} <= decoded["male"]
    # All that there are: pieces of words ("the" ends in "he"), and words without a space, are others.
    every = {lm.tokenizer.decode([i]) for i in range(len(lm.tokenizer))}
    for gender, words in WORDS.items():
        assert decoded[gender] == {f" {word}" for word in words} & every
    assert lm.tokenizer.get_vocab()["he"] not in found["male"]


def test_pronouns_of_a_sentencepiece_vocabulary(llama: LanguageModel, sentences: list[str]) -> None:
    lm = sentencepiece_like(llama, sentences)
    found = proxy.pronoun_tokens(lm)
    names = {gender: set(lm.tokenizer.convert_ids_to_tokens(ids)) for gender, ids in found.items()}
    vocabulary = set(lm.tokenizer.get_vocab())
    for gender, words in WORDS.items():
        assert names[gender] == {f"▁{word}" for word in words} & vocabulary
        assert len(names[gender]) >= 2
    # Pieces of words, without the mark of a space, are in this vocabulary as well.
    assert {"he", "she", "her"} & vocabulary


@given(
    space=st.sampled_from(["Ġ", "▁"]),
    tokens=st.lists(
        st.tuples(st.booleans(), st.sampled_from([*WORDS["female"], *WORDS["male"], "sheet", "hero", "HE", "they"])),
        unique=True,
    ),
    first=st.integers(0, 1000),
)
def test_any_vocabulary(space: str, tokens: list[tuple[bool, str]], first: int) -> None:
    vocabulary = {(space if spaced else "") + word: first + place for place, (spaced, word) in enumerate(tokens)}
    expected = {
        gender: sorted(vocabulary[space + word] for spaced, word in tokens if spaced and word in words)
        for gender, words in WORDS.items()
    }
    lm = SimpleNamespace(name="any", tokenizer=SimpleNamespace(get_vocab=lambda: vocabulary))
    if all(expected.values()):
        assert proxy.pronoun_tokens(lm) == expected
    else:
        lacking = [f"no {gender}" for gender, ids in expected.items() if not ids]
        with pytest.raises(ValueError, match=f"any: {' and '.join(lacking)} pronoun is a single token"):
            proxy.pronoun_tokens(lm)


def test_pronouns_added_to_a_vocabulary(llama: LanguageModel) -> None:
    """As added tokens they stand with the space itself in it."""
    llama.tokenizer.add_tokens([" she", " he"])
    llama.model.resize_token_embeddings(len(llama.tokenizer), mean_resizing=False)
    llama.model.eval().requires_grad_(False)
    assert proxy.pronoun_tokens(llama) == {"female": [300], "male": [301]}
    found = measured(llama, texts())
    pairs = [[distribution(llama, text + suffix)[300:302] for suffix in SEVERAL] for text in texts()]
    female, male = np.mean(pairs, axis=1).T
    np.testing.assert_allclose(found["proxy"], (female - male) / (female + male), rtol=0, atol=ROUNDING)


def test_a_model_without_pronouns_has_no_proxy(llama: LanguageModel) -> None:
    with pytest.raises(ValueError, match="llama: no female and no male pronoun is a single token"):
        measured(llama, ["A person is a nurse"])


# The proxy ------------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
def test_it_equals_a_loop_over_whole_distributions(
    build: Build, architecture: str, vocabulary: str, sentences: list[str]
) -> None:
    lm = VOCABULARIES[vocabulary](build(architecture), sentences)
    prompts = texts()
    found = measured(lm, prompts)
    expected, mean_of_ratios = by_loop(lm, prompts)
    pd.testing.assert_frame_equal(found, expected, check_exact=False, rtol=0, atol=ROUNDING)
    assert found["proxy"].between(-1, 1).all()
    assert found["proxy"].std() > 1e-3  # prompts differ by more than rounding
    # Controls: probabilities are averaged, not ratios; and they are shares of the whole vocabulary.
    assert np.abs(found["proxy"] - mean_of_ratios).max() > 1e-3
    assert (found["female"] + found["male"] < 0.9).all()


def test_a_common_beginning_longer_than_a_prompt(llama: LanguageModel, sentences: list[str]) -> None:
    """As under an instruction: what all texts begin with is read once."""
    lm = byte_level(llama, sentences)
    prompts = [f"{data.instruction()}.\n{prompt}" for prompt in texts()]
    found = measured(lm, prompts)
    pd.testing.assert_frame_equal(found, by_loop(lm, prompts)[0], check_exact=False, rtol=0, atol=ROUNDING)
    assert np.abs(found["proxy"] - measured(lm, texts())["proxy"]).max() > 1e-2


def test_order_and_suffixes(llama: LanguageModel, sentences: list[str]) -> None:
    lm = byte_level(llama, sentences)
    prompts = texts()
    found = measured(lm, prompts)
    backwards = measured(lm, prompts[::-1])
    np.testing.assert_allclose(backwards[::-1].to_numpy(), found.to_numpy(), rtol=0, atol=ROUNDING)
    assert np.abs(backwards["proxy"] - found["proxy"]).max() > 1e-3
    # The mean over suffixes is that of each suffix alone.
    alone = [proxy.next_token_bias(lm, prompts, suffixes=[suffix]) for suffix in SEVERAL]
    for column in ("female", "male"):
        np.testing.assert_allclose(np.mean([a[column] for a in alone], axis=0), found[column], rtol=0, atol=ROUNDING)


@both
def test_exchanged_word_lists_turn_the_sign(
    llama: LanguageModel, vocabulary: str, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = VOCABULARIES[vocabulary](llama, sentences)
    found = measured(lm, texts())
    exchanged = {"female": expressed.PRONOUNS["male"], "male": expressed.PRONOUNS["female"]}
    monkeypatch.setattr(expressed, "PRONOUNS", exchanged)
    turned = measured(lm, texts())
    np.testing.assert_allclose(turned["proxy"], -found["proxy"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(turned["female"], found["male"], rtol=0, atol=1e-6)
    assert (found["proxy"].abs() > 1e-3).all()


def test_a_model_that_knows_one_pronoun_is_at_the_end_of_the_scale(gpt2: LanguageModel, sentences: list[str]) -> None:
    """The output weights of a single pronoun made large: the proxy is the sign of its gender."""
    lm = byte_level(gpt2, sentences)
    for gender, sign in (("female", 1), ("male", -1)):
        head = lm.core.lm_head.weight
        kept = head.clone()
        head[:] = 0
        # Tied to the embedding, so the last state is what it is: the bias of the norm alone, made the pronoun's.
        lm.final_norm.weight[:], lm.final_norm.bias[:] = 0, 1
        head[proxy.pronoun_tokens(lm)[gender][0]] = 1
        assert measured(lm, ["A person is a nurse"])["proxy"].item() == pytest.approx(sign, abs=1e-6)
        head[:] = kept


@pytest.mark.parametrize("text", ["A person is a nurse ", "A person is a nurse\n", "A person is a nurse\t"])
def test_trailing_white_space_is_refused(llama: LanguageModel, sentences: list[str], text: str) -> None:
    lm = byte_level(llama, sentences)
    with pytest.raises(ValueError, match="must not end in white space"):
        measured(lm, ["A person is a cook", text])
    assert len(measured(lm, [text.rstrip()])) == 1
