"""ToxiGen: prompts from files in its format, never shown; a tiny RoBERTa against one text at a time in float64.

The prompts here are mild and made up; the data set's own are not copied.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from biasgeom import generation, toxigen
from biasgeom.models import LanguageModel, ModelNotAvailable
from biasgeom.remote import DatasetNotAvailable
from biasgeom.toxigen import REPOSITORY
from loopback import Hosts, serving, write
from transformers import PreTrainedModel, PreTrainedTokenizerBase, RobertaConfig, RobertaForSequenceClassification

Build = Callable[[str], LanguageModel]
NAMES = {
    "Homosexuals": "lgbtq",
    "Muslims": "muslim",
    "Jews": "jewish",
    "Black people": "black",
    "Asians": "asian",
    "Mexicans": "mexican",
    "Latin Americans": "latino",
    "Women": "women",
    "Physically disabled people": "physical_disability",
}
"""Spec point 15, with the names of the files."""
SECRET = "secretword"


def prompts_of(name: str) -> list[dict[str, str]]:
    """As the hub has them: a line each, its breaks written as backslash and n; the last twice."""
    texts = [f"- {SECRET} {name} are late\\n- they are {place}\\n-" for place in (1, 2, 3)]
    return [{"prompt": text} for text in [*texts, texts[-1]]]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hosts]]:
    with serving(monkeypatch, tmp_path) as handler:
        for name in NAMES.values():
            write(handler.folder, REPOSITORY, toxigen.FILE.format(name=name), prompts_of(name))
        yield handler


def classifier(labels: int = 2) -> RobertaForSequenceClassification:
    config = RobertaConfig(
        vocab_size=300,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=520,
        pad_token_id=1,
        initializer_range=0.5,
        num_labels=labels,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return RobertaForSequenceClassification(config)


Pair = tuple[PreTrainedModel, PreTrainedTokenizerBase]


@pytest.fixture
def loaded(build: Build, tmp_path: Path) -> Pair:
    folder = tmp_path / "classifier"
    classifier().save_pretrained(folder)
    build("llama").tokenizer.save_pretrained(folder)
    return toxigen.load_classifier(str(folder), revision=None, device="cpu")


def test_first_statements_of_the_nine_groups(hosts: type[Hosts], build: Build) -> None:
    lm = build("llama")
    table = toxigen.respond(lm, number=2, samples=2, max_new_tokens=6, seed=3)
    assert list(table.columns) == ["group", "prompt", "sample", "statement"]
    assert set(table["group"]) == set(NAMES)
    assert len(table) == 9 * 2 * 2
    women = table[table["group"] == "Women"]
    assert list(women["prompt"]) == [0, 0, 1, 1]
    turns = [text["prompt"].replace("\\n", "\n") for text in prompts_of("women")[:2]]
    settings = {"n": 2, "max_new_tokens": 6, "temperature": 0.7, "seed": 3}
    answers = [answer for several in generation.sample(lm, turns, chat=True, **settings) for answer in several]
    assert list(women["statement"]) == [toxigen.first_statement(answer) for answer in answers]
    # The controls: with the breaks as they are written, or as raw text, the answers are others.
    written = [text["prompt"] for text in prompts_of("women")[:2]]
    assert answers[:2] != generation.sample(lm, written, chat=True, **settings)[0]
    assert answers[:2] != generation.sample(lm, turns, **settings)[0]


def test_prompts_are_not_shown(hosts: type[Hosts], build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    table = toxigen.respond(build("llama"), number=1, samples=1, max_new_tokens=2)
    seen = capfd.readouterr()
    assert SECRET not in table.to_csv() + repr(table) + seen.out + seen.err
    with pytest.raises(ValueError, match="4 prompts were asked for, it holds 3 different ones") as raised:
        toxigen.respond(build("llama"), number=4)
    assert SECRET not in str(raised.value)


def test_broken_and_gated(hosts: type[Hosts], build: Build) -> None:
    file = toxigen.FILE.format(name="lgbtq")
    write(hosts.folder, REPOSITORY, file, [{"text": "- x"}])
    with pytest.raises(ValueError, match=f"toxigen, {file}: no column prompt; found text"):
        toxigen.respond(build("llama"))
    hosts.gated = REPOSITORY
    with pytest.raises(DatasetNotAvailable, match=r"toxigen: prompts/hate_muslim_1k.* HF_TOKEN"):
        toxigen._prompts("muslim", None)
    hosts.gated = ""
    write(hosts.folder, REPOSITORY, toxigen.FILE.format(name="black"), [*prompts_of("black"), {"prompt": ""}])
    with pytest.raises(ValueError, match=r"row 4 .from 0. has no prompt"):
        toxigen._prompts("black", None)


@pytest.mark.parametrize(
    ("answer", "statement"),
    [
        (" they read\n- they write", "they read"),
        ("- they read\n- they write", "they read"),
        ("\n\n* they read", "they read"),
        ("1. they read\n2. they write", "they read"),
        ("Here are some more:\n- they read", "they read"),
        ("they have 2. of it", "they have 2. of it"),
        ("3 of them read", "3 of them read"),
        ("Here is one:", ""),
        (" \n-\n", ""),
        ("", ""),
    ],
)
def test_first_statement(answer: str, statement: str) -> None:
    assert toxigen.first_statement(answer) == statement


@torch.no_grad()
def alone(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str) -> np.ndarray:
    inputs = tokenizer(text, return_tensors="pt")
    return model.double()(**inputs).logits[0].softmax(-1).numpy()


TEXTS = ["It is late.", "They read a book to the children every evening.", "Who?", "Nobody knew that it was late."]


def test_probabilities_are_those_of_each_text_alone(loaded: Pair) -> None:
    model, tokenizer = loaded
    several = toxigen.toxic_probability(model, tokenizer, TEXTS, batch=3)
    expected = np.array([alone(model, tokenizer, text) for text in TEXTS])
    np.testing.assert_allclose(several, expected[:, 1], rtol=1e-5)
    assert not np.allclose(several, expected[:, 0], rtol=1e-2)
    assert len(np.unique(several.round(4))) == len(TEXTS)
    assert toxigen.toxic_probability(model.float(), tokenizer, ["so " * 600]).shape == (1,)
    assert toxigen.toxic_probability(model, tokenizer, []).shape == (0,)


def test_toxicity_by_hand(loaded: Pair) -> None:
    model, tokenizer = loaded
    p = toxigen.toxic_probability(model, tokenizer, TEXTS)
    threshold = float(np.sort(p)[2])  # two of four reach it, one of them exactly
    rows = [("Women", text) for text in [*TEXTS, "", ""]] + [("Jews", TEXTS[int(np.argmax(p))])]
    statements = pd.DataFrame(rows, columns=["group", "statement"])
    table = toxigen.toxicity(statements, model, tokenizer, threshold=threshold)
    assert list(table["group"]) == ["Women", "Jews"]
    assert list(table["n"]) == [6, 1]
    np.testing.assert_allclose(table["score"], [2 / 6, 1])  # 2/4 if answers without a statement were left out
    np.testing.assert_allclose(table["rejected"], [2 / 6, 0])


def test_classifiers_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier(labels=3).save_pretrained(tmp_path / "three")
    with pytest.raises(ValueError, match="has 3 labels; a classifier of two is needed"):
        toxigen.load_classifier(str(tmp_path / "three"), revision=None)
    with serving(monkeypatch, tmp_path), pytest.raises(ModelNotAvailable, match=r"tomh/toxigen_roberta@refs/pr/1"):
        toxigen.load_classifier()
