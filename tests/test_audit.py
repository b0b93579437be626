"""The audit against one sentence at a time and loops in float64; what a pair must share; two unlike models."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from biasgeom import activations, audit, data, models, relative
from biasgeom import sentences as texts_of
from biasgeom.activations import Reading
from biasgeom.audit import NotComparable, Sets
from biasgeom.models import LanguageModel
from biasgeom.relative import Embeddings
from conftest import BEGIN, CONFIGS, END
from tokenizers import processors
from transformers import AutoModelForCausalLM

Build = Callable[[str], LanguageModel]
ROUNDING = 1e-5
SETS = Sets(
    {
        "Women": ["Women walk.", "Women came by the early train."],
        "Men": ["Men walk in the evening.", "Men read.", "Men"],
    },
    ["It was a pleasant day.", "Good."],
    ["It was a tiring day.", "The roof leaks again.", "Bad."],
    ["A doctor walks in.", "Nobody knew.", "The teacher reads a book to the children.", "Who is the manager?"],
)


def states(lm: LanguageModel, text: str) -> np.ndarray:
    """What the LM head reads of one text alone, as transformers gives it: [tokens, width]."""
    with torch.no_grad():
        out = lm.model(**lm.tokenizer(text, return_tensors="pt"), output_hidden_states=True)
    return out.hidden_states[-1][0].double().numpy()


def alone(lm: LanguageModel, texts: Sets = SETS, skip: int = 0) -> Embeddings:
    def rows(part: list[str]) -> np.ndarray:
        return np.stack([states(lm, text)[skip:].mean(axis=0) for text in part])

    targets = {group: rows(part) for group, part in texts.targets.items()}
    return Embeddings(targets, rows(texts.positive), rows(texts.negative), rows(texts.anchors))


def b_rel(e: Embeddings) -> dict[str, float]:
    """Equations 4 to 6, sentence by sentence."""

    def r(row: np.ndarray) -> list[float]:
        return [float(row @ a / math.sqrt(row @ row) / math.sqrt(a @ a)) for a in e.anchors]

    def close(row: np.ndarray, others: np.ndarray) -> float:
        return -math.fsum(math.dist(r(row), r(other)) for other in others) / len(others)

    return {
        group: math.fsum(close(row, e.positive) - close(row, e.negative) for row in rows) / len(rows)
        for group, rows in e.targets.items()
    }


def parts(e: Embeddings) -> np.ndarray:
    return np.concatenate(list(e.parts().values()))


# --- sets ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"targets": {**SETS.targets, "Jews": [], "Asians": []}}, "no sentences for Jews, Asians"),
        ({"anchors": ["Nobody knew."]}, "1 anchors; a relative representation needs two or more"),
        ({"anchors": []}, "0 anchors"),
        ({"anchors": [*SETS.anchors, SETS.anchors[1]]}, "anchors: texts 1 and 4 are the same: 'Nobody knew.'"),
        ({"positive": ["Good.", "Good."]}, "positive: texts 0 and 1 are the same"),
        ({"negative": ["Bad.", " "]}, "negative: text 1 is empty"),
        ({"negative": []}, "negative: no texts were given"),
        ({"positive": "Good."}, "positive: expected a list of texts"),
        ({"targets": {"Women": ["Women", "Men"], "Men": ["Men"]}}, "texts 1 and 2 are the same: 'Men'"),
        ({"anchors": ["Nobody knew.", "Women walk.", "Men"]}, "2 anchors are targets too, such as 'Men'"),
    ],
)
def test_sets_that_would_be_measured_wrongly(changed: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SETS, **changed)


def test_the_companions_sets() -> None:
    full = audit.sets()
    assert list(full.targets) == list(data.published("delta_b_table2")["group"])
    assert {len(part) for part in full.targets.values()} == {50}
    assert (len(full.positive), len(full.negative), len(full.anchors)) == (100, 100, 1000)
    few = audit.sets(templates=2, attributes=3, anchors=4)
    assert {len(part) for part in few.targets.values()} == {2}
    assert (len(few.positive), len(few.negative), len(few.anchors)) == (3, 3, 4)
    assert few.anchors == full.anchors[:4]
    assert set(few.positive) < set(full.positive)
    assert set(few.targets["Women"]) < set(full.targets["Women"])
    assert all("omen" in text for text in full.targets["Women"])


def test_variants_change_their_own_part_alone() -> None:
    size = {"templates": 50, "attributes": 4, "anchors": 5}
    base = audit.sets(**size)
    target = audit.sets(**size, target_variant="synonyms_v1")
    assert target.targets != base.targets
    assert replace(target, targets=base.targets) == base
    attribute = audit.sets(**size, attribute_variant="subject_v1")
    assert attribute.positive != base.positive
    assert attribute.negative != base.negative
    assert replace(attribute, positive=base.positive, negative=base.negative) == base
    words = audit.sets(**size, source="words")
    assert words.anchors == texts_of.anchors("words", number=5)
    assert replace(words, anchors=base.anchors) == base


# --- embeddings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma3"])
def test_embeddings_are_those_of_each_sentence_alone(build: Build, architecture: str) -> None:
    lm = build(architecture)
    found = audit.embed(lm, SETS)
    assert {group: rows.shape for group, rows in found.targets.items()} == {"Women": (2, 32), "Men": (3, 32)}
    assert [len(rows) for rows in (found.positive, found.negative, found.anchors)] == [2, 3, 4]
    expected = alone(lm)
    assert list(found.parts()) == list(expected.parts())
    np.testing.assert_allclose(parts(found), parts(expected), rtol=ROUNDING, atol=ROUNDING)
    assert relative.bias(found) == pytest.approx(b_rel(expected), abs=ROUNDING)
    # The controls: without the first token, and with the groups exchanged.
    assert np.abs(parts(found) - parts(alone(lm, skip=1))).max() > 1000 * ROUNDING
    assert b_rel(expected)["Women"] != pytest.approx(b_rel(expected)["Men"], abs=100 * ROUNDING)


def test_a_begin_token_that_the_tokenizer_lacks(build: Build) -> None:
    """Written before each sentence, it gives what a tokenizer gives that adds it itself."""
    lm = build("llama")
    bare = replace(lm, tokenizer=build("gpt2").tokenizer)
    begun = SETS.beginning(BEGIN)
    assert begun.targets["Men"][2] == "<s>Men"
    assert [len(part) for part in (begun.positive, begun.negative, begun.anchors)] == [2, 3, 4]
    np.testing.assert_array_equal(parts(audit.embed(bare, begun)), parts(audit.embed(lm, SETS)))
    assert np.abs(parts(audit.embed(bare, SETS)) - parts(audit.embed(lm, SETS))).max() > 1000 * ROUNDING


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts each pass through a model read."""
    read: list[int] = []
    run = activations._run

    def counted(lm: LanguageModel, encoded: list[list[int]], *rest: object) -> np.ndarray:
        read.append(len(encoded))
        return run(lm, encoded, *rest)

    monkeypatch.setattr(activations, "_run", counted)
    return read


def test_a_pass_for_each_set_and_none_when_asked_again(build: Build, passes: list[int]) -> None:
    lm = build("llama")
    first = audit.embed(lm, SETS)
    assert sorted(passes) == [2, 3, 4, 5]
    passes.clear()
    np.testing.assert_array_equal(parts(audit.embed(build("llama"), SETS)), parts(first))
    assert passes == []
    audit.embed(lm, replace(SETS, anchors=SETS.anchors[:2]))
    assert passes == [2]  # the sets that are shared are not read again
    passes.clear()
    audit.embed(build("mistral"), SETS)
    assert len(passes) == 4


def test_readings_taken_together_are_those_taken_alone(build: Build, passes: list[int]) -> None:
    lm = build("llama")
    asked = [Reading(pooling="last"), audit.MEAN, Reading(site="block", block=1, include_first_token=False)]
    longer = replace(SETS, targets={"Women": SETS.targets["Women"]})
    found = [parts(audit.embed(lm, longer, reading, together=asked)) for reading in asked]
    assert sorted(passes) == [2, 2, 3, 4]
    np.testing.assert_allclose(found[0][0], states(lm, "Women walk.")[-1], rtol=ROUNDING, atol=ROUNDING)
    for reading, rows in zip(asked, found, strict=True):
        np.testing.assert_allclose(rows, parts(audit.embed(lm, longer, reading)), rtol=ROUNDING, atol=ROUNDING)
    assert min(np.abs(found[0] - found[1]).max(), np.abs(found[1] - found[2]).max()) > 1000 * ROUNDING


def test_sentences_in_common_are_read_once(build: Build, passes: list[int]) -> None:
    lm = build("llama")
    several = [
        replace(SETS, positive=["Good.", "The sun is out."], anchors=SETS.anchors[:2]),
        replace(SETS, targets={"Men": ["Men read.", "Men write."]}, negative=["The sun is out.", "Bad."]),
    ]
    asked = [Reading(pooling="last"), audit.MEAN]
    for reading in asked:
        passes.clear()
        found = audit.embed_several(lm, several, reading, base=SETS, together=asked)
        assert passes == [*([5, 2, 3, 4] if reading == asked[0] else []), 2]  # two sentences that the base lacks
        for one, texts in zip(found, several, strict=True):
            alone = audit.embed(lm, texts, reading)
            assert list(one.parts()) == list(alone.parts())
            np.testing.assert_allclose(parts(one), parts(alone), rtol=ROUNDING, atol=ROUNDING)
    np.testing.assert_array_equal(found[0].positive[1], found[1].negative[0])
    assert np.abs(found[1].targets["Men"] - found[0].targets["Men"][:2]).max() > 1000 * ROUNDING
    passes.clear()
    audit.embed_several(lm, [SETS, replace(SETS, anchors=SETS.anchors[::-1])], base=SETS, together=asked)
    assert passes == []
    with pytest.raises(ValueError, match="is not among the readings of the pass"):
        audit.embed_several(lm, several, Reading(pooling="max"), base=SETS, together=asked)


def test_fewer_anchors_of_the_same_embeddings(build: Build) -> None:
    lm = build("llama")
    whole = audit.embed(lm, SETS)
    cut = audit.subset(whole, anchors=2)
    np.testing.assert_array_equal(cut.anchors, whole.anchors[:2])
    assert relative.bias(cut) == pytest.approx(
        relative.bias(audit.embed(lm, replace(SETS, anchors=SETS.anchors[:2]))), abs=ROUNDING
    )
    assert len(audit.subset(whole, anchors=4).anchors) == 4
    for number in (1, 5):
        with pytest.raises(ValueError, match=f"{number} anchors were asked of 4"):
            audit.subset(whole, anchors=number)


# --- pairs -----------------------------------------------------------------------------------------------------------


def test_shifts_are_those_of_each_method(build: Build) -> None:
    reference, audited = (audit.embed(build(name), SETS) for name in ("llama", "mistral"))
    table = audit.shifts(reference, audited, methods=["rr", "seat", "procrustes", "cka"], fit="all")
    assert list(table.columns) == ["method", "group", "shift"]
    by_method = {method: dict(part[["group", "shift"]].to_numpy()) for method, part in table.groupby("method")}
    for method in ("rr", "seat"):
        assert by_method[method] == relative.delta_b(reference, audited, method=method)
    assert by_method["procrustes"] == relative.delta_b(reference, audited, method="procrustes", fit="all")
    assert by_method["procrustes"] != relative.delta_b(reference, audited, method="procrustes")  # fitted on anchors
    assert by_method["cka"] == relative.cka_drifts(reference, audited)
    assert len({value for method in by_method.values() for value in method.values()}) == 8
    before, after = b_rel(reference), b_rel(audited)
    assert by_method["rr"] == pytest.approx({g: after[g] - before[g] for g in before}, abs=1e-12)
    assert set(audit.shifts(reference, reference, methods=["rr", "seat"])["shift"]) == {0.0}
    with pytest.raises(ValueError, match="method must be one of rr, seat, procrustes, not 'weat'"):
        audit.shifts(reference, audited, methods=["weat"])


def test_the_dtype_must_be_one(build: Build) -> None:
    lm, narrow = build("llama"), build("llama")
    narrow.model.bfloat16()
    message = r"llama and llama differ in dtype: torch.float32 against torch.bfloat16.*allow=\['dtype'\]"
    with pytest.raises(NotComparable, match=message):
        audit.require_comparable(lm, narrow)
    with pytest.raises(NotComparable, match="differ in dtype"):
        audit.require_comparable(lm, narrow, allow=["special tokens"])
    assert audit.require_comparable(lm, narrow, allow=["dtype"]) == []
    assert audit.require_comparable(lm, build("llama")) == []
    # Why: the dtype alone, with the same weights, moves every group.
    moved = audit.shifts(audit.embed(lm, SETS), audit.embed(narrow, SETS))["shift"]
    assert np.abs(moved).min() > 1e-5


def test_special_tokens_must_be_the_same(build: Build) -> None:
    lm, bare, ended = build("llama"), build("gpt2"), build("mistral")
    message = r"llama and gpt2 differ in special tokens: 1 before and 0 after against 0 before and 0 after\. Load both"
    with pytest.raises(NotComparable, match=message):
        audit.require_comparable(lm, bare)
    assert audit.require_comparable(lm, bare, allow=["special tokens"]) == []
    both = processors.TemplateProcessing(single=f"{BEGIN} $A {END}", special_tokens=[(BEGIN, 0), (END, 1)])
    assert audit.require_comparable(lm, ended) == []
    ended.tokenizer.backend_tokenizer.post_processor = both
    with pytest.raises(NotComparable, match="1 before and 0 after against 1 before and 1 after"):
        audit.require_comparable(lm, ended)


def wide(build: Build) -> LanguageModel:
    """A Llama that shares neither width nor vocabulary with the others."""
    config = CONFIGS["llama"]()
    config.hidden_size, config.vocab_size = 48, 301
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_config(config).float().eval().requires_grad_(False)
    tokenizer = build("llama").tokenizer
    tokenizer.add_tokens([" walks in"])
    return LanguageModel(model, tokenizer, "wide")


def test_the_audited_model_need_not_come_from_the_reference(build: Build) -> None:
    """Spec, point 17: another architecture, width, tokenizer and begin token."""
    reference, audited = build("gpt2"), wide(build)
    with pytest.raises(NotComparable, match="special tokens"):
        audit.require_comparable(reference, audited)
    assert audit.require_comparable(reference, audited, allow=["special tokens"]) == [
        "wide has another tokenizer than gpt2: token counts differ too.",
        "wide is 48 wide and gpt2 32: Procrustes does not apply.",
    ]
    both = [audit.embed(lm, SETS) for lm in (reference, audited)]
    assert both[1].anchors.shape == (4, 48)
    before, after = (b_rel(alone(lm)) for lm in (reference, audited))
    found = audit.shifts(*both, methods=["rr"]).set_index("group")["shift"]
    assert dict(found) == pytest.approx({group: after[group] - before[group] for group in before}, abs=ROUNDING)
    assert np.abs(found).min() > 100 * ROUNDING
    assert np.isfinite(audit.shifts(*both, methods=["seat", "cka"])["shift"]).all()
    with pytest.raises(ValueError, match=r"Procrustes needs one width, not \[32, 48\]; rr compares any two models"):
        audit.shifts(*both, methods=["procrustes"])


@pytest.mark.slow
def test_smollm2_against_gemma() -> None:
    """Spec, point 17, on the two embedded models."""
    smollm2, gemma = (models.load(name, dtype="float32") for name in ("smollm2-135m-instruct", "gemma-3-270m"))
    with pytest.raises(NotComparable, match="special tokens: 0 before and 0 after against 1 before and 0 after"):
        audit.require_comparable(smollm2, gemma)
    warned = audit.require_comparable(smollm2, gemma, allow=["special tokens"])
    assert [warning.split(" ")[1:4] for warning in warned] == [["has", "another", "tokenizer"], ["is", "640", "wide"]]
    assert warned[1].endswith("smollm2-135m-instruct 576: Procrustes does not apply.")
    texts = audit.sets(templates=2, attributes=5, anchors=10)
    both = [audit.embed(lm, texts) for lm in (smollm2, gemma)]
    found = audit.shifts(*both, methods=["rr", "seat", "cka"])
    assert found.groupby("method")["group"].nunique().to_dict() == {"rr": 24, "seat": 24, "cka": 24}
    assert np.isfinite(found["shift"]).all()
    naive = [b_rel(e) for e in both]
    rr = found[found["method"] == "rr"].set_index("group")["shift"]
    assert dict(rr) == pytest.approx({group: naive[1][group] - naive[0][group] for group in naive[0]}, abs=1e-9)
    assert rr.abs().min() > 0
    text = texts.targets["Women"][0]
    for lm, e in zip((smollm2, gemma), both, strict=True):
        np.testing.assert_allclose(e.targets["Women"][0], states(lm, text).mean(axis=0), rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match=r"Procrustes needs one width, not \[576, 640\]"):
        audit.shifts(*both, methods=["procrustes"])
