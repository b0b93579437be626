"""The self-generated alignment set: nothing of the evaluation in it, and neutral words throughout."""

import re
from typing import Any

import pandas as pd
import pytest
from biasgeom import data, debiasing, generation, selfgenerated
from biasgeom.models import LanguageModel
from biasgeom.neutral import neutralise
from biasgeom.selfgenerated import ENTITIES, PERSONAS, self_generated


def contains(text: str, part: str) -> bool:
    return re.search(rf"\b{re.escape(part)}\b", text, re.IGNORECASE) is not None


def test_no_persona_entity_or_pair_of_the_evaluation() -> None:
    ours = selfgenerated.prompts()
    assert len(ours) == len(set(ours)) == 8 * (16 + 8)
    theirs = [*data.personas(), *data.concepts()["entity"]]
    for split in ("direction", "held-out", "continued"):
        pairs = data.contrast_pairs(split)
        theirs += [*pairs["female"], *pairs["male"], *pairs["words"].str.split("/").explode()]
    assert [(prompt, part) for prompt in ours for part in theirs if contains(prompt, part)] == []
    evaluated = set(data.gender_prompts()["prompt"]) | set(data.gender_prompts(grammatical=True)["prompt"])
    assert not evaluated & set(ours)
    # And the other way round, by the loader's own check; the control shows that it would find one.
    rows = pd.DataFrame({"prompt": [*ours, "My friend is a nurse"], "completion": " who works."})
    assert debiasing.overlaps(rows, debiasing.evaluation_texts()) == [len(ours)]


def test_prompts_follow_the_papers_templates() -> None:
    for prompt in selfgenerated.prompts():
        persona = next(persona for persona in PERSONAS if prompt.startswith(persona))
        verb, entity = re.fullmatch(r" (is a|loves) (\w+)", prompt.removeprefix(persona)).groups()
        assert entity in ENTITIES["Professions" if verb == "is a" else "Sports"].split()
    assert not [entity for entity in ENTITIES["Professions"].split() if entity[0] in "aeiou"]
    assert neutralise(" ".join(selfgenerated.prompts())) == " ".join(selfgenerated.prompts())


def test_rows_are_the_models_own_samples(llama: LanguageModel) -> None:
    rows = self_generated(llama, rows=6, seed=3)
    assert list(rows.columns) == ["source", "prompt", "completion"]
    assert len(rows) == rows["prompt"].nunique() == 6
    assert set(rows["source"]) == {"self-generated"}
    samples = generation.sample(llama, list(rows["prompt"]), n=1, max_new_tokens=30, temperature=0.7, seed=3)
    assert list(rows["completion"]) == [neutralise(text) for (text,) in samples]
    assert rows.equals(self_generated(llama, rows=6, seed=3))
    other = self_generated(llama, rows=6, seed=4)
    assert list(other["prompt"]) != list(rows["prompt"])


def answer(monkeypatch: pytest.MonkeyPatch, texts: list[str]) -> list[str]:
    """Let the model say these texts in turn; returns the prompts it was asked."""
    asked: list[str] = []

    def sample(lm: LanguageModel, prompts: list[str], **settings: Any) -> list[list[str]]:
        start = len(asked)
        asked.extend(prompts)
        return [[texts[(start + place) % len(texts)]] for place in range(len(prompts))]

    monkeypatch.setattr(generation, "sample", sample)
    return asked


def test_completions_are_neutral_and_empty_ones_replaced(llama: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answer(monkeypatch, [", and she loves her job.", "", " who lives with his wife.", " \n"])
    rows = self_generated(llama, rows=5)
    expected = [", and they love their job.", " who lives with their spouse."]
    assert list(rows["completion"]) == [*expected, *expected, expected[0]]
    assert list(rows["prompt"]) == asked[0:10:2]
    assert len(asked) == len(set(asked))


def test_a_model_that_says_too_little(llama: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, ["", " who works."])
    with pytest.raises(ValueError, match="llama wrote a completion for 96 of 192 prompts; 97 rows were asked"):
        self_generated(llama, rows=97)
    assert len(self_generated(llama, rows=90)) == 90
