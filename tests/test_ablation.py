"""Ablation tables on tiny models: edits against the stream itself, tables against hooks of our own and plain loops."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from biasgeom import ablation, data, expressed, hooks, proxy
from biasgeom import protocol as gender_protocol
from biasgeom.ablation import Setting
from biasgeom.models import LanguageModel
from biasgeom.protocol import Condition, Sampling
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sklearn.covariance import LedoitWolf

Build = Callable[[str], LanguageModel]
ARCHITECTURES = ["llama", "gemma3", "gpt2"]
EVERYWHERE = Setting("literal", "literal", (0, 1, 2, 3))
KEYS = ["condition", "setting", "direction", "concept", "kind"]
SAMPLING = Sampling(professions=2, others=1, tokens=4, temperature=1.0, seed=4)


def prompts() -> pd.DataFrame:
    table = data.gender_prompts()
    chosen = table["entity"].isin(["nurse", "cook", "editor", "red", "blue"])
    return table[chosen & table["persona"].isin(["A person", "My friend"])]


def speak(lm: LanguageModel, sentences: list[str]) -> LanguageModel:
    """The same model with pronouns in its vocabulary."""
    text = [*sentences, *["Then he and she: his, her, him. He, She."] * 50]
    lm.tokenizer = lm.tokenizer.train_new_from_iterator(text, 300, show_progress=False)
    return lm


@pytest.fixture
def condition(llama: LanguageModel, sentences: list[str]) -> Condition:
    return gender_protocol.before(speak(llama, sentences))


@torch.no_grad()
def stream(lm: LanguageModel, text: str) -> dict[hooks.Site, np.ndarray]:
    """What enters block 0 ("embedding") and leaves each block, [T, d] in float64, for one text; by our own hooks."""
    kept: dict[hooks.Site, np.ndarray] = {}

    def keep(site: hooks.Site, hidden: torch.Tensor) -> None:
        kept[site] = hidden[0].double().numpy().copy()

    def entering(module: Any, args: Any, kwargs: Any) -> None:
        keep("embedding", args[0] if args else kwargs["hidden_states"])

    def leaving(site: int) -> Callable[..., None]:
        return lambda module, args, output: keep(site, output[0] if isinstance(output, tuple) else output)

    handles = [lm.blocks[0].register_forward_pre_hook(entering, with_kwargs=True)]
    handles += [block.register_forward_hook(leaving(site)) for site, block in enumerate(lm.blocks)]
    lm.model(**lm.tokenizer(text, return_tensors="pt"))
    for handle in handles:
        handle.remove()
    return kept


@contextmanager
def removed(lm: LanguageModel, vectors: Mapping[int, np.ndarray]) -> Iterator[None]:
    """Equation 5 written out once more: h − ⟨h, v⟩v at the embedding and every block, all tokens."""
    axes = {block: torch.tensor(v / np.linalg.norm(v), dtype=torch.float32) for block, v in vectors.items()}

    def project(hidden: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return hidden - (hidden * v).sum(-1, keepdim=True) * v

    def entering(module: Any, args: Any, kwargs: Any) -> Any:
        if args:
            return (project(args[0], axes[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": project(kwargs["hidden_states"], axes[0])}

    def leaving(v: torch.Tensor) -> Callable[..., Any]:
        return lambda module, args, output: (
            (project(output[0], v), *output[1:]) if isinstance(output, tuple) else project(output, v)
        )

    handles = [lm.blocks[0].register_forward_pre_hook(entering, with_kwargs=True)]
    handles += [lm.blocks[block].register_forward_hook(leaving(v)) for block, v in axes.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def naive_nats(lm: LanguageModel) -> float:
    """Nats a token of the held-out neutral sentences by Hugging Face's own loss."""
    nats, tokens = 0.0, 0
    for text in data.neutral_texts("likelihood"):
        inputs = lm.tokenizer(text, return_tensors="pt")
        predicted = inputs["input_ids"].shape[1] - 1
        nats += float(lm.model(**inputs, labels=inputs["input_ids"]).loss) * predicted
        tokens += predicted
    return nats / tokens


@torch.no_grad()
def naive_polarizations(condition: Condition, table: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Concept → mean bias and Bias_pol by next token, a prompt and a suffix at a time."""
    lm, found = condition.lm, {}
    ids = {}
    for gender, words in expressed.PRONOUNS.items():
        wanted = {f" {w}" for word in words for w in (word, word.capitalize())}
        ids[gender] = [i for i in range(len(lm.tokenizer)) if lm.tokenizer.decode([i]) in wanted]
    for concept, rows in table.groupby("concept", sort=False):
        biases = []
        for _, own in rows.groupby("entity", sort=False):
            proxies = []
            for text in condition.texts(own["prompt"]):
                f = m = 0.0
                for suffix in proxy.SUFFIXES:
                    logits = lm.model(**lm.tokenizer(text + suffix, return_tensors="pt")).logits[0, -1]
                    p = logits.double().softmax(-1).numpy()
                    f, m = f + p[ids["female"]].sum(), m + p[ids["male"]].sum()
                proxies.append((f - m) / (f + m))
            biases.append(sum(proxies) / len(proxies))
        mean = sum(biases) / len(biases)
        found[concept] = (mean, sum(abs(b - mean) / (1 + abs(mean)) for b in biases) / len(biases))
    return found


def component(states: np.ndarray, v: np.ndarray) -> np.ndarray:
    """|⟨h, v⟩| / ‖h‖ of each state, v of norm 1."""
    v = np.asarray(v, dtype=np.float64)
    return np.abs(states @ v) / np.linalg.norm(states, axis=-1) / np.linalg.norm(v)


# Settings and directions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [*range(2, 40), 80])
def test_settings_cover_all_blocks_or_the_last_third(blocks: int) -> None:
    literal, guarded, late = ablation.settings(blocks)
    assert [s.name for s in (literal, guarded, late)] == ["literal", "guarded", "guarded, late"]
    assert [s.variant for s in (literal, guarded, late)] == ["literal", "guarded", "guarded"]
    assert literal.blocks == guarded.blocks == tuple(range(blocks))
    assert late.blocks == tuple(range(blocks - len(late.blocks), blocks))
    assert abs(len(late.blocks) - blocks / 3) <= 0.5
    assert late.blocks


@hypothesis_settings(max_examples=60, deadline=None)
@given(blocks=st.integers(1, 80), late=st.floats(0, 1))
def test_the_late_setting_starts_after_a_share_of_the_blocks(blocks: int, late: float) -> None:
    everywhere = list(ablation.settings(blocks))[:2]
    literal, guarded, last = ablation.settings(blocks, late=late)
    assert [literal, guarded] == everywhere  # they have no part in it
    assert (last.name, last.variant) == ("guarded, late", "guarded")
    # Blocks at the end of the stack, at least one, as many as the share leaves, to half a block.
    assert last.blocks == tuple(range(blocks))[-len(last.blocks) :]
    assert abs(len(last.blocks) - (1 - late) * blocks) <= 0.5 + 1e-9 or len(last.blocks) == 1


def test_late_blocks_of_given_shares() -> None:
    late = {share: ablation.settings(30, late=share)[2].blocks for share in (0.0, 0.5, 0.67, 0.99, 1.0)}
    assert {share: blocks[0] for share, blocks in late.items()} == {0.0: 0, 0.5: 15, 0.67: 20, 0.99: 29, 1.0: 29}
    assert all(blocks[-1] == 29 for blocks in late.values())
    assert ablation.settings(30)[2].blocks == tuple(range(20, 30))
    # Of a single block all that is late is that block.
    assert [setting.blocks for setting in ablation.settings(1)] == [(0,)] * 3


def test_gender_directions_are_ledoit_wolfs_and_know_where_they_belong(build: Build) -> None:
    lm = build("llama")
    found = ablation.gender_directions(lm)
    assert list(found) == [0, 1, 2, 3]
    pairs = data.contrast_pairs("direction")
    female, male = ([stream(lm, text) for text in pairs[side]] for side in ("female", "male"))
    for block, stored in found.items():
        assert (stored.model, stored.site, stored.block, stored.dtype) == ("llama", "block", block, "float32")
        differences = np.stack([f[block][-1] - m[block][-1] for f, m in zip(female, male, strict=True)])
        covariance = LedoitWolf(assume_centered=False).fit(differences).covariance_
        vector = np.linalg.solve(covariance, differences.mean(axis=0))
        assert stored.vector @ (vector / np.linalg.norm(vector)) == pytest.approx(1, abs=1e-5)
        assert np.linalg.norm(stored.vector) == pytest.approx(1, abs=1e-6)
        # Negative control: the plain mean difference is another one.
        mean = differences.mean(axis=0)
        assert stored.vector @ (mean / np.linalg.norm(mean)) < 1 - 1e-3
    with pytest.raises(ValueError, match="belongs to"), hooks.ablate(lm, {1: found[0]}):
        pass
    other = build("qwen2")
    with pytest.raises(ValueError, match="belongs to llama"), ablation.applied(other, EVERYWHERE, found):
        pass


def test_random_directions_depend_on_the_seed_alone(llama: LanguageModel, gpt2: LanguageModel) -> None:
    three, again, other = (ablation.random_directions(llama, 3, seed) for seed in (5, 5, 6))
    assert len(three) == 3
    for vectors, same in zip(three, again, strict=True):
        assert list(vectors) == [0, 1, 2, 3]
        # One vector at all blocks, of norm 1.
        assert all(np.array_equal(v, vectors[0]) for v in vectors.values())
        assert np.linalg.norm(vectors[0]) == pytest.approx(1)
        np.testing.assert_array_equal(vectors[0], same[0])
    matrix = np.stack([vectors[0] for vectors in (*three, *other)])
    assert np.abs(matrix @ matrix.T - np.eye(6)).max() < 0.9
    # The first of more are the same; what is sampled is thus among what the proxy saw.
    np.testing.assert_array_equal(ablation.random_directions(llama, 1, 5)[0][0], three[0][0])
    np.testing.assert_array_equal(ablation.random_directions(gpt2, 1, 5)[0][0], three[0][0])


def test_random_directions_have_no_preferred_axis(llama: LanguageModel) -> None:
    matrix = np.stack([vectors[0] for vectors in ablation.random_directions(llama, 4000, 0)])
    # Squares of a coordinate have mean 1/d and variance about 2/d²: five standard errors.
    assert np.abs((matrix**2).mean(axis=0) * 32 - 1).max() < 5 * np.sqrt(2 / 4000)
    assert np.abs(matrix.mean(axis=0)).max() < 5 / np.sqrt(32 * 4000)


# Applied --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_literal_leaves_nothing_and_is_removed_afterwards(build: Build, architecture: str) -> None:
    lm = build(architecture)
    directions = ablation.gender_directions(lm)
    vectors: dict[hooks.Site, np.ndarray] = {block: stored.vector for block, stored in directions.items()}
    vectors["embedding"] = vectors[0]
    texts = list(prompts()["prompt"])[:4]
    plain = [stream(lm, text) for text in texts]
    with ablation.applied(lm, EVERYWHERE, directions):
        edited = [stream(lm, text) for text in texts]
        assert len(lm.interventions) == 1
    for one, other in zip(plain, edited, strict=True):
        for site, v in vectors.items():
            assert component(other[site], v).max() < 1e-6, site
            assert component(one[site], v).max() > 1e-3, site
        # Negative control: each block has its own direction; another's is still there.
        assert max(component(other[block], vectors[(block + 2) % 4]).max() for block in range(4)) > 1e-3
    assert lm.interventions == []
    for text, one in zip(texts, plain, strict=True):
        after = stream(lm, text)
        assert all(np.array_equal(after[site], one[site]) for site in one)


@pytest.mark.parametrize("setting", ["literal", "guarded", "guarded, late"])
def test_hooks_are_gone_after_an_error(llama: LanguageModel, setting: str) -> None:
    chosen = next(s for s in ablation.settings(4) if s.name == setting)
    text = "A person is a nurse"
    plain = stream(llama, text)
    with pytest.raises(KeyboardInterrupt), ablation.applied(llama, chosen, ablation.random_directions(llama, 1, 0)[0]):
        raise KeyboardInterrupt
    assert llama.interventions == []
    assert all(np.array_equal(stream(llama, text)[site], plain[site]) for site in plain)


def projection_means(lm: LanguageModel, vectors: Mapping[hooks.Site, np.ndarray]) -> dict[hooks.Site, float]:
    """⟨h, v⟩ of the neutral projection sentences, over all tokens but each first, a text at a time."""
    streams = [stream(lm, text) for text in data.neutral_texts("projection")]
    return {
        site: float(np.concatenate([s[site][1:] @ v.astype(np.float64) for s in streams]).mean())
        for site, v in vectors.items()
    }


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_guarded_sets_the_mean_of_neutral_text_and_leaves_token_0(build: Build, architecture: str) -> None:
    lm = build(architecture)
    directions = ablation.gender_directions(lm)
    vectors: dict[hooks.Site, np.ndarray] = {block: stored.vector for block, stored in directions.items()}
    vectors["embedding"] = vectors[0]
    means = projection_means(lm, vectors)
    texts = list(prompts()["prompt"])[:3]
    plain = {text: stream(lm, text) for text in texts}
    _, everywhere, late = ablation.settings(4)
    for setting, sites in ((everywhere, ["embedding", 0, 1, 2, 3]), (late, [3])):
        with ablation.applied(lm, setting, directions):
            edited = {text: stream(lm, text) for text in texts}
        for text in texts:
            for site in sites:
                states = edited[text][site][1:]
                error = np.abs(states @ vectors[site] - means[site]) / np.linalg.norm(states, axis=-1)
                assert error.max() < 1e-5, (setting.name, site)
                # Token 0 sees no other token and is not edited: it is what it was, at every block.
                np.testing.assert_array_equal(edited[text][site][0], plain[text][site][0])
                assert np.abs(plain[text][site][1:] @ vectors[site] - means[site]).max() > 1e-2
            for site in {0, 1, 2} - set(sites):
                np.testing.assert_array_equal(edited[text][site], plain[text][site])
    # Negative controls: zero is not the mean, and with first tokens in it would be another.
    assert max(abs(mean) for mean in means.values()) > 1e-2
    streams = [stream(lm, text) for text in data.neutral_texts("projection")]
    with_first = np.concatenate([s[3] @ vectors[3].astype(np.float64) for s in streams]).mean()
    assert abs(with_first - means[3]) > 1e-3


# The proxy's table ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nats_per_token_is_a_mean_over_tokens(build: Build, architecture: str) -> None:
    lm = build(architecture)
    found = ablation.nats_per_token(lm)
    assert found == pytest.approx(naive_nats(lm), rel=1e-5)
    with ablation.applied(lm, EVERYWHERE, ablation.random_directions(lm, 1, 0)[0]):
        edited = ablation.nats_per_token(lm)
        assert edited == pytest.approx(naive_nats(lm), rel=1e-5)
    assert abs(edited - found) > 1e-3


def test_proxy_table_rows(condition: Condition) -> None:
    condition = gender_protocol.instructed(condition)
    lm, table = condition.lm, prompts()
    settings = ablation.settings(4)
    found = ablation.proxy_table(condition, table, settings, draws=2, seed=3)
    assert list(found.columns) == [*KEYS, "mean_bias", "bias_pol", "nats"]
    names = ["none", "gender", "random 1", "random 2"]
    rows = [
        (condition.name, setting.name, name, concept, kind)
        for setting in settings
        for name in names
        for concept, kind in (("Professions", "gendered"), ("Colors", "control"))
    ]
    assert list(found[KEYS].itertuples(index=False, name=None)) == rows
    by_key = found.set_index(["setting", "direction", "concept"])

    def check(name: str, within: list[str]) -> None:
        nats = naive_nats(lm)
        for concept, expected in naive_polarizations(condition, table).items():
            for setting in within:
                row = by_key.loc[setting, name, concept]
                assert (row["mean_bias"], row["bias_pol"]) == pytest.approx(expected, abs=1e-5)
                assert row["nats"] == pytest.approx(nats, rel=1e-5)

    check("none", [setting.name for setting in settings])
    gender = {block: stored.vector for block, stored in ablation.gender_directions(lm).items()}
    for name, vectors in (("gender", gender), ("random 2", ablation.random_directions(lm, 2, 3)[1])):
        with removed(lm, vectors):
            check(name, ["literal"])
    # Whatever is removed changes the table, and no two directions or settings do it alike.
    edited = found[found["direction"] != "none"]
    unedited = edited["concept"].map(by_key.sort_index().loc["literal", "none"]["bias_pol"])
    assert (edited["bias_pol"] - unedited).abs().min() > 1e-6
    assert edited.groupby("concept")["bias_pol"].nunique().eq(9).all()
    assert edited["nats"].nunique() == 9
    assert lm.interventions == []


def test_proxy_table_depends_on_the_seed_in_random_rows_only(condition: Condition) -> None:
    chosen = ablation.settings(4)[1:2]
    first, again, other = (ablation.proxy_table(condition, prompts(), chosen, draws=2, seed=seed) for seed in (3, 3, 4))
    pd.testing.assert_frame_equal(first, again)
    random = first["direction"].str.startswith("random")
    assert set(first["setting"]) == {"guarded"}
    pd.testing.assert_frame_equal(first[~random], other[~random])
    assert (first.loc[random, "bias_pol"] != other.loc[random, "bias_pol"]).all()
    # Without draws: the plain and the gender rows alone.
    none = ablation.proxy_table(condition, prompts(), chosen, draws=0, seed=3)
    pd.testing.assert_frame_equal(none, first[~random].reset_index(drop=True))


# Against random directions --------------------------------------------------------------------------------------------


@hypothesis_settings(max_examples=8, deadline=None)
@given(draws=st.integers(1, 12), seed=st.integers(0, 10**6), ties=st.booleans())
def test_against_random_equals_a_loop(draws: int, seed: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    names = ["none", "gender", *(f"random {i}" for i in range(1, draws + 1))]
    rows, expected = [], []
    for condition in ("before", "after"):
        for setting in ("literal", "guarded, late"):
            for concept, kind in (("Professions", "gendered"), ("Colors", "control")):
                pol = rng.integers(0, 4, len(names)) / 4 if ties else rng.uniform(size=len(names))
                nats, mean = rng.uniform(1, 5, len(names)), rng.uniform(-1, 1, len(names))
                for name, value, bias, cost in zip(names, pol, mean, nats, strict=True):
                    keys = dict(zip(KEYS, (condition, setting, name, concept, kind), strict=True))
                    rows.append(keys | {"mean_bias": bias, "bias_pol": value, "nats": cost})
                at_least_as_low = 0
                for value in pol[2:]:
                    if value <= pol[1]:
                        at_least_as_low += 1
                values = (pol[0], pol[1], mean[0], mean[1], min(pol[2:]), max(pol[2:]))
                values += ((1 + at_least_as_low) / (1 + draws),)
                values += (nats[1] - nats[0], max(nats[2:]) - nats[0])
                expected.append((condition, setting, concept, kind, *values))
    table = pd.DataFrame(rows)
    found = ablation.against_random(table)
    columns = ["condition", "setting", "concept", "kind", "plain", "gender", "plain_mean", "gender_mean"]
    assert list(found.columns) == [*columns, "random_low", "random_high", "p", "gender_nats", "random_nats"]
    pd.testing.assert_frame_equal(found, pd.DataFrame(expected, columns=found.columns))
    # The order of rows within is of no account.
    shuffled = ablation.against_random(table.sample(frac=1, random_state=0)).sort_values(columns[:4])
    pd.testing.assert_frame_equal(shuffled.reset_index(drop=True), found.sort_values(columns[:4], ignore_index=True))


def test_p_is_never_zero_and_one_if_all_random_directions_do_more() -> None:
    def p(gender: float, random: list[float]) -> float:
        names = ["none", "gender", *(f"random {i}" for i in range(len(random)))]
        keys = {"condition": "c", "setting": "s", "concept": "x", "kind": "gendered", "mean_bias": 0.0, "nats": 1.0}
        return ablation.against_random(
            pd.DataFrame({"direction": names, "bias_pol": [0.5, gender, *random]}).assign(**keys)
        )["p"].item()

    assert p(0.1, [0.2] * 9) == pytest.approx(0.1)
    assert p(0.3, [0.2] * 9) == 1
    assert p(0.2, [0.2] * 9) == 1  # a random direction that does as much counts against
    assert p(0.2, [0.1, 0.2, 0.3]) == pytest.approx(3 / 4)


# Samples --------------------------------------------------------------------------------------------------------------


def test_sampled_rows_with_and_without_a_random_direction(condition: Condition) -> None:
    lm, table = condition.lm, prompts()
    edits = [("literal", "gender"), ("literal", "random 1"), ("guarded", "gender"), ("guarded, late", "random 1")]
    found = ablation.sampled(condition, table, SAMPLING, edits, seed=3)
    plain = gender_protocol.completions(condition, table, SAMPLING)
    assert len(found) == 4 * len(plain)
    assert set(found.columns) == {"setting", "direction", *plain.columns}
    assert list(found[["setting", "direction"]].drop_duplicates().itertuples(index=False, name=None)) == edits
    gender = {block: stored.vector for block, stored in ablation.gender_directions(lm).items()}
    expected = {"gender": gender, "random 1": ablation.random_directions(lm, 3, 3)[0]}
    texts = {"none": tuple(plain["text"])}
    for setting, name in edits:
        part = found[(found["setting"] == setting) & (found["direction"] == name)].reset_index(drop=True)
        # The rows are those of the completions, in the same order.
        fixed = ["condition", "concept", "kind", "entity", "persona", "sample"]
        pd.testing.assert_frame_equal(part[fixed], plain[fixed])
        assert list(part["label"]) == [expressed.gender_of(text) for text in part["text"]]
        if setting == "literal":
            with removed(lm, expected[name]):
                pd.testing.assert_frame_equal(
                    part[list(plain.columns)], gender_protocol.completions(condition, table, SAMPLING)
                )
        texts[setting, name] = tuple(part["text"])
    assert len(set(texts.values())) == 5  # each edit, and none, says something else
    only = ablation.sampled(condition, table, SAMPLING, edits[:1], seed=3)
    pd.testing.assert_frame_equal(only, found.head(len(plain)))
    # Another seed is another random direction; the gender direction has none.
    other = ablation.sampled(condition, table, SAMPLING, edits, seed=4)
    differ = (other["text"] != found["text"]).groupby(found["direction"]).mean()
    assert differ["gender"] == 0
    assert differ["random 1"] > 0.5
    assert lm.interventions == []


@pytest.mark.parametrize("edit", [("nothing", "gender"), ("literal", "random 2")])
def test_an_unknown_edit_is_refused(condition: Condition, edit: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=edit[0] if edit[0] == "nothing" else edit[1]):
        ablation.sampled(condition, prompts(), SAMPLING, [edit], seed=3)


@pytest.mark.parametrize("late", [-0.1, 1.5, float("nan")])
def test_a_share_of_the_blocks_lies_between_0_and_1(late: float) -> None:
    with pytest.raises(ValueError, match="late is a share of the blocks, from 0 to 1"):
        ablation.settings(12, late)
