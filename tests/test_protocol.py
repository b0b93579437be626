"""The protocol's tables against loops over single texts on tiny models; nothing is trained."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from biasgeom import alignment, data, expressed, generation, proxy
from biasgeom import protocol as gender_protocol
from biasgeom.models import LanguageModel
from biasgeom.protocol import Condition, Sampling
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import LedoitWolf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SAMPLING = Sampling(professions=3, others=2, tokens=5, temperature=1.0, seed=4)
COLUMNS = ["condition", "concept", "kind", "entity", "persona", "sample", "text", "label"]
KEYS = ["concept", "kind", "entity"]


def prompts() -> pd.DataFrame:
    """Rows of one control and two gendered concepts out of the middle of the table, the control first."""
    table = data.gender_prompts()
    chosen = table["entity"].isin(["nurse", "cook", "boxing", "ballet", "red", "blue", "green"])
    table = table[chosen & table["persona"].isin(["A person", "My friend"])]
    assert table["kind"].nunique() == 2
    assert table.index[0] != 0
    return table.sort_values("kind", kind="stable")


@pytest.fixture
def speaking(llama: LanguageModel, sentences: list[str]) -> LanguageModel:
    """A model with pronouns in its vocabulary, which it therefore also samples now and then."""
    text = [*sentences, *["Then he and she: his, her, him. He, She."] * 50]
    llama.tokenizer = llama.tokenizer.train_new_from_iterator(text, 300, show_progress=False)
    return llama


@torch.no_grad()
def states(lm: LanguageModel, text: str) -> np.ndarray:
    """Last-token states [L, d] of one text alone, by hooks of our own, in float64."""
    kept: list[torch.Tensor] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        kept.append((output[0] if isinstance(output, tuple) else output)[0, -1])

    handles = [block.register_forward_hook(keep) for block in lm.blocks]
    lm.model(**lm.tokenizer(text, return_tensors="pt"))
    for handle in handles:
        handle.remove()
    return torch.stack(kept).double().numpy()


# Conditions -----------------------------------------------------------------------------------------------------------


def test_the_instruction_stands_on_a_line_of_its_own(llama: LanguageModel) -> None:
    before = gender_protocol.before(llama)
    asked = gender_protocol.instructed(before)
    assert (before.name, before.instruction, before.lm) == ("before", "", llama)
    assert (asked.name, asked.lm) == ("before, 1950s", llama)
    found = asked.texts(["A person is a nurse", "A person loves boxing"])
    assert [text.splitlines()[1:] for text in found] == [["A person is a nurse"], ["A person loves boxing"]]
    assert {text.splitlines()[0] for text in found} == {data.instruction() + "."}
    assert "1950s" in found[0]
    assert ".." not in found[0]
    assert before.texts(["a", "b"]) == ["a", "b"]


def test_after_is_the_aligned_model_of_the_recipe(
    llama: LanguageModel, gpt2: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[LanguageModel, str]] = []

    def aligned(lm: LanguageModel, recipe: str) -> LanguageModel:
        asked.append((lm, recipe))
        return gpt2

    monkeypatch.setattr(alignment, "aligned", aligned)
    after = gender_protocol.after(llama, "smoke")
    assert asked == [(llama, "smoke")]
    assert (after.name, after.lm, after.instruction) == ("after", gpt2, "")
    names = [after.name, gender_protocol.instructed(after).name]
    assert names == [gender_protocol.AFTER, gender_protocol.AFTER_1950S]
    before = gender_protocol.before(llama)
    assert [before.name, gender_protocol.instructed(before).name] == [
        gender_protocol.BEFORE,
        gender_protocol.BEFORE_1950S,
    ]


# Completions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instructed", [False, True])
def test_completions_are_samples_after_each_prompt(speaking: LanguageModel, instructed: bool) -> None:
    condition = gender_protocol.before(speaking)
    condition = gender_protocol.instructed(condition) if instructed else condition
    table = prompts()
    found = gender_protocol.completions(condition, table, SAMPLING)
    assert list(found.columns) == COLUMNS
    assert set(found["condition"]) == {condition.name}
    assert list(found.index) == list(range(len(found)))

    expected = []
    of_professions = table["concept"] == "Professions"
    for chosen, count in ((of_professions, 3), (~of_professions, 2)):
        for row in table[chosen].itertuples():
            text = f"{data.instruction()}.\n{row.prompt}" if instructed else row.prompt
            # One prompt at a time; another batch, so that the cache does not answer.
            samples = generation.sample(
                speaking, [text], n=count, max_new_tokens=5, temperature=1.0, seed=4, rows=count
            )[0]
            for number, sample in enumerate(samples):
                expected.append((row.concept, row.kind, row.entity, row.persona, number, row.prompt + sample))
    assert list(found[COLUMNS[1:-1]].itertuples(index=False, name=None)) == expected
    assert list(found["label"]) == [expressed.gender_of(text) for *_, text in expected]
    assert not found["text"].str.contains("1950s").any()


def test_labels_are_not_all_alike_and_are_of_prompt_and_completion(
    speaking: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sample(lm: LanguageModel, texts: list[str], *, n: int, **options: Any) -> list[list[str]]:
        return [[", and she sings.", ", and he sings.", " who sings."][:n] for _ in texts]

    monkeypatch.setattr(generation, "sample", sample)
    found = gender_protocol.completions(gender_protocol.before(speaking), prompts(), SAMPLING)
    found["of"] = found["concept"].where(found["concept"] == "Professions", "others")
    by_sample = found.groupby(["of", "sample"])["label"].agg(lambda labels: "/".join(sorted(set(labels))))
    assert by_sample.to_dict() == {
        ("Professions", 0): "female",
        ("Professions", 1): "male",
        ("Professions", 2): "neutral",
        ("others", 0): "female",
        ("others", 1): "male",
    }
    # A gendered word in the prompt comes first: the label is of the whole.
    boys = prompts().head(2).assign(prompt=["The boy is a cook", "The girl is a cook"], concept="ESL")
    found = gender_protocol.completions(gender_protocol.before(speaking), boys, SAMPLING)
    assert list(found["label"]) == ["male"] * 3 + ["female"] * 3


def test_fewer_samples_are_the_first_of_more(speaking: LanguageModel) -> None:
    condition = gender_protocol.before(speaking)
    few = gender_protocol.completions(condition, prompts(), Sampling(2, 1, 5, 1.0, 4))
    more = gender_protocol.completions(condition, prompts(), Sampling(5, 3, 5, 1.0, 4))
    first = more[more["sample"] < (more["concept"] == "Professions") + 1].reset_index(drop=True)
    pd.testing.assert_frame_equal(few, first)
    sizes = few.groupby(["concept", "persona", "entity"]).size()
    assert (sizes == [1 + (concept == "Professions") for concept, *_ in sizes.index]).all()
    other = gender_protocol.completions(condition, prompts(), Sampling(2, 1, 5, 1.0, 5))
    assert (other["text"] != few["text"]).mean() > 0.9
    # Samples of one prompt are different ones, and no two prompts share theirs.
    assert more["text"].is_unique


def test_a_table_without_controls_and_conditions_differ(speaking: LanguageModel) -> None:
    realistic = data.realistic_prompts()
    realistic = realistic[realistic["entity"].isin(["nurse", "engineer"])]
    before = gender_protocol.before(speaking)
    found = gender_protocol.completions(before, realistic, SAMPLING)
    assert len(found) == 3 * len(realistic)
    assert set(found["kind"]) == {"gendered"}
    asked = gender_protocol.completions(gender_protocol.instructed(before), realistic, SAMPLING)
    pd.testing.assert_frame_equal(asked[COLUMNS[1:6]], found[COLUMNS[1:6]])
    assert (asked["text"] != found["text"]).mean() > 0.9


def test_a_completion_keeps_the_space_that_it_begins_with(llama: LanguageModel, sentences: list[str]) -> None:
    """Else the prompt's last word and the completion's first become one: "a nurseand she"."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>", "<unk>"], show_progress=False)
    tokenizer.train_from_iterator(sentences, trainer)
    llama.tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    # The state of the model is of no account: the next token is always this one.
    token = llama.tokenizer.get_vocab()["▁the"]
    llama.final_norm.weight[:] = 0
    llama.core.lm_head = torch.nn.Linear(32, 300, bias=True).requires_grad_(False).eval()
    llama.core.lm_head.bias[:] = torch.nn.functional.one_hot(torch.tensor(token), 300) * 100.0
    table = prompts().head(1)
    found = gender_protocol.completions(gender_protocol.before(llama), table, Sampling(1, 1, 2, 1.0, 0))
    assert found["text"].item() == table["prompt"].item() + " the the"


# The proxy ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instructed", [False, True])
def test_proxies_are_means_over_personas(speaking: LanguageModel, instructed: bool) -> None:
    condition = gender_protocol.before(speaking)
    condition = gender_protocol.instructed(condition) if instructed else condition
    # Shuffled, so that an entity's personas do not stand together, and one persona fewer for one entity.
    table = prompts().sample(frac=1, random_state=0).iloc[1:]
    found = gender_protocol.proxies(condition, table)
    assert list(found.columns) == ["condition", *KEYS, "proxy"]
    assert set(found["condition"]) == {condition.name}
    assert list(found["entity"]) == list(dict.fromkeys(table["entity"]))
    for row in found.itertuples():
        own = table[table["entity"] == row.entity]
        values = [proxy.next_token_bias(speaking, condition.texts([p]))["proxy"].item() for p in own["prompt"]]
        assert row.proxy == pytest.approx(sum(values) / len(own), abs=1e-5)
        assert (row.concept, row.kind) == (own["concept"].iloc[0], own["kind"].iloc[0])
    # Controls: entities differ, and without the instruction they are others.
    assert found["proxy"].std() > 1e-3
    if instructed:
        plain = gender_protocol.proxies(gender_protocol.before(speaking), table)
        assert np.abs(plain["proxy"] - found["proxy"]).min() > 1e-5


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(2, 6), min_size=1, max_size=4),
    seed=st.integers(0, 10**6),
    extra=st.sampled_from([(), ("setting",), ("setting", "direction")]),
)
def test_proxy_polarizations_by_the_papers_formula(sizes: list[int], seed: int, extra: tuple[str, ...]) -> None:
    rng = np.random.default_rng(seed)
    rows, expected = [], {}
    for condition in ("before", "after"):
        for setting in range(2 if extra else 1):
            for c, size in enumerate(sizes):
                bias = rng.uniform(-1, 1, size)
                keys = {"condition": condition, "concept": f"c{c}", "kind": "gendered"}
                keys |= {name: f"{name} {setting}" for name in extra}
                rows += [keys | {"entity": f"e{e}", "proxy": value} for e, value in enumerate(bias)]
                mean = sum(bias) / size
                spread = sum(abs(value - mean) / (1 + abs(mean)) for value in bias) / size
                expected[tuple(keys.values())] = (mean, spread)
    table = pd.DataFrame(rows)
    found = gender_protocol.proxy_polarizations(table)
    keys = [column for column in table if column not in ("entity", "proxy")]
    assert list(found.columns) == [*keys, "mean_bias", "bias_pol"]
    got = found.set_index(keys)
    assert list(got.index) == list(expected)
    np.testing.assert_allclose(got.to_numpy(), list(expected.values()), rtol=1e-10, atol=1e-12)
    # Exchanging female and male turns the mean and leaves the polarization.
    turned = gender_protocol.proxy_polarizations(table.assign(proxy=-table["proxy"]))
    np.testing.assert_allclose(turned["bias_pol"], found["bias_pol"], rtol=1e-10)
    np.testing.assert_allclose(turned["mean_bias"], -found["mean_bias"], rtol=1e-10)
    assert found["bias_pol"].between(0, 1).all()


def test_a_standard_deviation_is_another_number() -> None:
    table = pd.DataFrame({"concept": "c", "entity": list("abc"), "proxy": [0.5, 0.1, -0.2]})
    found = gender_protocol.proxy_polarizations(table)
    assert found["bias_pol"].item() == pytest.approx((11 / 30 + 1 / 30 + 10 / 30) / 3 / (1 + 4 / 30))
    assert found["bias_pol"].item() != pytest.approx(table["proxy"].std(ddof=0), rel=1e-2)


# States ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["direction", "held-out"])
def test_pair_states_are_of_the_split_in_order(llama: LanguageModel, split: str) -> None:
    found = gender_protocol.pair_states(llama, split)
    pairs = data.contrast_pairs(split)
    assert found.female.shape == found.male.shape == (len(pairs), 4, 32)
    assert list(found.words) == list(pairs["words"])
    for place in (0, 7, len(pairs) - 1):
        for side in ("female", "male"):
            own = states(llama, pairs[side][place])
            np.testing.assert_allclose(getattr(found, side)[place], own, rtol=1e-4, atol=1e-4)
        assert np.abs(found.female[place] - found.male[place]).max() > 1e-2


def test_latent_scores_equal_single_texts_and_scikit_learn(llama: LanguageModel) -> None:
    table = prompts().reset_index(drop=True)
    found = gender_protocol.latent_scores(llama, table)
    assert list(found.columns) == [*KEYS, "block", "score"]
    assert len(found) == 4 * table["entity"].nunique()

    pairs = data.contrast_pairs("direction")
    differences = np.stack(
        [states(llama, f) - states(llama, m) for f, m in zip(pairs["female"], pairs["male"], strict=True)]
    )
    own = {prompt: states(llama, prompt) for prompt in table["prompt"]}
    scale = np.mean([np.linalg.norm(state, axis=-1) for state in own.values()])
    scores = found.set_index(["entity", "block"])["score"]
    wrong = []
    for block in range(4):
        covariance = LedoitWolf(assume_centered=False).fit(differences[:, block]).covariance_
        vector = np.linalg.solve(covariance, differences[:, block].mean(axis=0))
        vector /= np.linalg.norm(vector)
        mean = differences[:, block].mean(axis=0) / np.linalg.norm(differences[:, block].mean(axis=0))
        for entity, rows in table.groupby("entity"):
            projections = [own[prompt][block] @ vector for prompt in rows["prompt"]]
            assert scores[entity, block] == pytest.approx(sum(projections) / len(rows), abs=1e-4 * scale)
            wrong.append(
                sum(own[prompt][block] @ mean for prompt in rows["prompt"]) / len(rows) - scores[entity, block]
            )
    assert np.abs(wrong).max() > 0.05 * scale  # the plain mean difference gives others
    # Each entity is in the table with its own concept.
    kept = found[KEYS].drop_duplicates().sort_values(KEYS).to_numpy().tolist()
    assert kept == table[KEYS].drop_duplicates().sort_values(KEYS).to_numpy().tolist()


def test_states_never_see_the_instruction(llama: LanguageModel) -> None:
    """Scores take a model and prompts, no condition: the paper reads h(x) of the prompts themselves."""
    table = prompts().reset_index(drop=True)
    (first, *_) = gender_protocol.concept_states(llama, table)
    concept = table[table["concept"] == first.name]
    for p, persona in enumerate(concept["persona"].unique()):
        for e, entity in enumerate(first.entities):
            prompt = concept[(concept["persona"] == persona) & (concept["entity"] == entity)]["prompt"].item()
            np.testing.assert_allclose(first.states[p, e], states(llama, prompt), rtol=1e-4, atol=1e-4)
    instructed = states(llama, Condition("x", llama, data.instruction()).texts([prompt])[0])
    assert np.abs(instructed - states(llama, prompt)).max() > 1e-2


def test_states_of_rows_in_another_order_are_their_own(llama: LanguageModel) -> None:
    """Labels of a sorted or filtered table are not places: proxies and completions take such tables."""
    table = prompts().reset_index(drop=True)
    keys = [*KEYS, "block"]
    expected = gender_protocol.latent_scores(llama, table).set_index(keys)["score"].sort_index()
    found = gender_protocol.latent_scores(llama, table[::-1]).set_index(keys)["score"].sort_index()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
