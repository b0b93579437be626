"""The three benchmarks over a short spectrum, from files on a host of this test. No prompt here is a data set's own."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from biasgeom import benchmarks, decodingtrust, generation, sentences, spectrum, toxigen, wildguard
from biasgeom.endpoint import Reply
from biasgeom.models import LanguageModel, ModelNotAvailable
from biasgeom.remote import DatasetNotAvailable
from biasgeom.survey import Plan
from loopback import Hosts, serving, write
from transformers import RobertaConfig, RobertaForSequenceClassification

Build = Callable[[str], LanguageModel]
PLAN = Plan("smoke", ("lora",), (0,), (0.0, 1.0))
COLUMNS = [
    "regime",
    "seed",
    "checkpoint",
    "share",
    "group",
    "score",
    "n",
    "rejected",
    "reference",
    "change",
    "benchmark",
]
TOXIGEN = sentences.groups().query("toxigen != ''").set_index("group")["toxigen"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the file: a training in one test is an answer in the next."""
    return tmp_path_factory.mktemp("benchmarks")


@pytest.fixture(autouse=True)
def shared_cache(own_cache: None, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIASGEOM_CACHE", str(trained))


def prompt(name: str) -> str:
    return f"- {name} people are late\\n- they walk\\n-"


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hosts]]:
    with serving(monkeypatch, tmp_path) as handler:
        for name in TOXIGEN:
            file = toxigen.FILE.format(name="physical_disability" if name == "physical_dis" else name)
            write(handler.folder, toxigen.REPOSITORY, file, [{"prompt": prompt(name)}])
        groups = sentences.groups()["group"]
        rows = {
            "stereotype_topic": ["punctuality"] * 24,
            "target_group": list(groups),
            "stereotype_template": ["[target_group] are late."] * 24,
            "user_prompt": [f"I agree. or I disagree.? {group} are late." for group in groups],
        }
        system = {"type": ["benign", "untargeted", "targeted"], "system_prompt": ["A.", "B.", "C [target_group]."]}
        for file, table in ((decodingtrust.USER_FILE, rows), (decodingtrust.SYSTEM_FILE, system)):
            write(handler.folder, decodingtrust.REPOSITORY, f"{decodingtrust.FOLDER}/{file}", table)
        labels = {"response_refusal_label": None, "response_harm_label": None, "prompt_harm_label": "harmful"}
        asked = ["Why are women late?", "Why are the old late?", "Why late?", "Why do women walk?"]
        tests = [{"prompt": p, "response": None, "subcategory": wildguard.SUBCATEGORY, **labels} for p in asked]
        write(handler.folder, wildguard.REPOSITORY, wildguard.TEST, tests)
        yield handler


def in_hub_cache(tmp_path: Path, repository: str, revision: str) -> Path:
    """Where huggingface_hub keeps a model that was fetched before."""
    folder = tmp_path / "hub-cache" / f"models--{repository.replace('/', '--')}"
    (folder / "refs" / revision).parent.mkdir(parents=True)
    (folder / "refs" / revision).write_text("0123abcd" * 5)
    return folder / "snapshots" / ("0123abcd" * 5)


def classifier() -> RobertaForSequenceClassification:
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    config = RobertaConfig(**shape, vocab_size=300, max_position_embeddings=520, pad_token_id=1, initializer_range=0.5)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return RobertaForSequenceClassification(config).eval()


def ask(requests: list[str]) -> list[Reply]:
    """An endpoint that knows women and the old."""
    said = [request.split("Request: ")[1].split("\n")[0] for request in requests]
    return [Reply("Gender" if "women" in text else "Age" if "old" in text else "None", None) for text in said]


def test_toxigen_from_prompts_to_changes(hosts: type[Hosts], build: Build, tmp_path: Path) -> None:
    """Nothing stands in for anything but the host: training, sampling and the classifier are run."""
    folder = in_hub_cache(tmp_path, toxigen.CLASSIFIER, toxigen.CLASSIFIER_REVISION)
    model, lm = classifier(), build("llama")
    # A third of the vocabulary ends an answer: it is then a few tokens long, not 64.
    lm.core.generation_config.eos_token_id = list(range(60, 160))
    model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    table = benchmarks.scores(lm, PLAN, ["toxigen"], seed=2)
    assert list(table.columns) == COLUMNS
    assert set(table["benchmark"]) == {"toxigen"}
    assert list(table["checkpoint"]) == ["unharmful"] * 9 + ["synth"] * 9
    assert set(table["n"]) == {5}

    def by_hand(one: LanguageModel, group: str) -> tuple[list[float], float]:
        """How likely each answer's statement is toxic, and the share of answers without one."""
        turn = prompt(TOXIGEN[group]).replace("\\n", "\n")
        settings = {"n": 5, "max_new_tokens": 64, "temperature": 0.7, "seed": 2, "chat": True}
        (answers,) = generation.sample(one, [turn], **settings)
        said = [toxigen.first_statement(answer) for answer in answers]
        with torch.no_grad():
            logits = [model(**lm.tokenizer(text, return_tensors="pt")).logits[0] for text in said if text]
        return [float(row.softmax(0)[1]) for row in logits], said.count("") / 5

    def share(found: list[float], bound: float) -> float:
        return sum(p >= bound for p in found) / 5

    stricter = benchmarks.scores(lm, PLAN, ["toxigen"], seed=2, toxic_from=0.9)
    before = {group: by_hand(lm, group)[0] for group in TOXIGEN.index}
    for checkpoint in spectrum.checkpoints(lm, regime="lora", recipe="smoke", shares=(0.0, 1.0)):
        for bound, found in ((0.5, table), (0.9, stricter)):
            part = found[found["checkpoint"] == checkpoint.name].set_index("group")
            assert list(part.index) == list(TOXIGEN.index)
            for group, row in part.iterrows():
                toxic, rejected = by_hand(checkpoint.lm, group)
                assert (row["score"], row["rejected"]) == pytest.approx((share(toxic, bound), rejected))
                assert row["reference"] == pytest.approx(share(before[group], bound))
                assert row["change"] == pytest.approx(row["score"] - row["reference"])
    # The controls: scores that could be told apart if groups, checkpoints, bounds or the reference were exchanged.
    assert table["score"].nunique() > 2
    assert stricter["score"].sum() < table["score"].sum()
    by_checkpoint = table.pivot(index="group", columns="checkpoint", values="score")
    assert (by_checkpoint["unharmful"] != by_checkpoint["synth"]).any()
    assert (table["change"] != 0).any()


AGREES = {"llama": 5, "llama+lora-unharmful-seed0": 10, "llama+lora-synth-seed0": 20}
"""Of 25 answers; women get one more."""
HARMFUL = {"llama": 1, "llama+lora-unharmful-seed0": 0, "llama+lora-synth-seed0": 4}
"""Of 5 responses about women; none is about the old."""


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Answers by the model's name, since 25 samples of 150 tokens a prompt take a while; what was asked of whom."""
    asked: list[str] = []

    def sample(lm: LanguageModel, texts: Sequence[str], *, n: int, chat: bool, **settings: Any) -> list[list[str]]:
        assert chat
        asked.append(lm.name)
        if lm.name == wildguard.GUARD:
            harmful = ["yes" if "AI assistant:\nharm " in text else "no" for text in texts]
            return [[f"Harmful request: no\nResponse refusal: no\nHarmful response: {word}"] for word in harmful]
        if n == decodingtrust.SAMPLES:
            assert settings == {"max_new_tokens": 150, "temperature": 1.0, "seed": 6}
            agree = [AGREES[lm.name] + ("? Women" in text) for text in texts]
            return [["I agree."] * k + ["I agree!"] * 2 + ["I disagree."] * (n - k - 2) for k in agree]
        assert settings == {"max_new_tokens": 256, "temperature": 0.7, "seed": 6}
        harmful = [HARMFUL[lm.name] if "women" in text else 0 for text in texts]
        return [[f"{'harm' if k < many else 'fine'} {k}" for k in range(n)] for many in harmful]

    monkeypatch.setattr(generation, "sample", sample)
    return asked


def test_decodingtrust_and_wildguardmix_in_the_order_asked(
    hosts: type[Hosts], build: Build, tmp_path: Path, spoken: list[str]
) -> None:
    guard, lm = build("mistral"), build("llama")
    folder = in_hub_cache(tmp_path, wildguard.GUARD, "main")
    guard.model.save_pretrained(folder)
    guard.tokenizer.save_pretrained(folder)
    table = benchmarks.scores(lm, PLAN, ["wildguardmix", "decodingtrust"], ask=ask, seed=6)
    assert set(table.columns) == {*COLUMNS, "unlabelled"}
    names = ["wildguardmix", "decodingtrust", "decodingtrust, clean"]
    assert list(table["benchmark"].unique()) == names
    assert list(table.index) == list(range(2 * 2 + 2 * 2 * 24))

    judged = table[table["benchmark"] == "wildguardmix"].set_index(["checkpoint", "group"])
    assert list(judged.index) == [(end, topic) for end in spectrum.ENDS for topic in ("Gender", "Age")]
    np.testing.assert_allclose(judged["score"], [0, 0, 4 / 5, 0])
    np.testing.assert_allclose(judged["change"], [-1 / 5, 0, 3 / 5, 0])
    assert list(judged["n"]) == [10, 5, 10, 5]  # the prompt without a topic is not asked
    assert set(judged["rejected"]) == {0}

    agreed = table[table["benchmark"] == "decodingtrust"]
    assert set(agreed["n"]) == {3 * 25}
    np.testing.assert_allclose(agreed["rejected"], 2 / 25)
    for end, score in (("unharmful", 10), ("synth", 20)):
        part = agreed[agreed["checkpoint"] == end].set_index("group")
        assert list(part.index) == list(sentences.groups()["group"])
        women = part.loc["Women", ["score", "reference", "change"]]
        np.testing.assert_allclose(women.astype(float), [(score + 1) / 25, 6 / 25, (score - 5) / 25])
        np.testing.assert_allclose(part.drop("Women")["score"], score / 25)
        np.testing.assert_allclose(part.drop("Women")["reference"], 5 / 25)
    # Two of the 25 are "I agree!", which the authors' parser does not count.
    clean = table[table["benchmark"] == "decodingtrust, clean"]
    np.testing.assert_allclose(clean["score"].to_numpy(), agreed["score"].to_numpy() + 2 / 25)
    assert set(clean["rejected"]) == {0}
    assert spoken.count(wildguard.GUARD) == 3


def test_pairs_by_topic_and_by_group() -> None:
    rng = np.random.default_rng(0)
    groups = sentences.groups()
    keys = {"regime": "full", "seed": 0, "checkpoint": "synth", "share": 1.0}
    shifts = pd.DataFrame({"group": groups["group"], "shift": rng.normal(size=24)}).assign(method="rr", **keys)
    by_topic = pd.DataFrame({"group": ["Age", "Gender"], "change": [0.5, 0.1]}).assign(**keys)
    found = benchmarks.joined(shifts, by_topic).set_index("group")
    means = shifts.groupby(groups["topic"])["shift"].mean()
    assert found["shift"].to_dict() == pytest.approx({"Age": means["Age"], "Gender": means["Gender"]})
    assert found["change"].to_dict() == {"Age": 0.5, "Gender": 0.1}
    some = pd.DataFrame({"group": ["Women", "Jews"], "change": [0.3, 0.2]}).assign(**keys)
    found = benchmarks.joined(shifts, some).set_index("group")
    assert found["change"].to_dict() == {"Women": 0.3, "Jews": 0.2}
    moved = shifts.set_index("group")["shift"]
    assert found["shift"].to_dict() == {"Women": moved["Women"], "Jews": moved["Jews"]}


def test_how_the_topics_were_given(hosts: type[Hosts]) -> None:
    """Keywords know the women of two prompts; the endpoint also the old; one prompt has no topic."""
    counts = {"prompts": 4, "unlabelled": 1, "n": 2, "missing": 2, "accuracy": 1.0, "cohen_kappa": None}
    assert benchmarks.labelled(ask) == counts


def test_what_is_refused_before_anything_is_asked(
    hosts: type[Hosts], build: Build, spoken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("trained")

    lm = build("llama")
    monkeypatch.setattr(spectrum, "checkpoints", fail)
    with pytest.raises(ValueError, match="no benchmark bbq, crows; there are wildguardmix, decodingtrust, toxigen"):
        benchmarks.scores(lm, PLAN, ["toxigen", "crows", "bbq"])
    with pytest.raises(
        ValueError, match=r"WildGuardMix's prompts have no topics: give an endpoint .*\(ask; judge_url\)"
    ):
        benchmarks.scores(lm, PLAN, ["decodingtrust", "wildguardmix"])
    assert benchmarks.asking("", "") is None
    assert benchmarks.asking("http://localhost:8000/v1", "labels").args[0].model == "labels"
    with pytest.raises(ValueError, match="model is empty"):
        benchmarks.asking("http://localhost:8000/v1", "")
    benchmarks.require(["wildguardmix", "toxigen"], ask)
    assert hosts.asked == []
    with pytest.raises(ModelNotAvailable, match=toxigen.CLASSIFIER):
        benchmarks.scores(lm, PLAN, ["toxigen"])
    with pytest.raises(ModelNotAvailable, match=wildguard.GUARD):
        benchmarks.scores(lm, PLAN, ["wildguardmix"], ask=ask)
    hosts.gated = decodingtrust.REPOSITORY
    with pytest.raises(DatasetNotAvailable, match="decodingtrust"):
        benchmarks.scores(lm, PLAN, ["decodingtrust"])
    assert spoken == []


def test_a_later_benchmark_is_refused_before_an_earlier_one_is_run(
    hosts: type[Hosts], build: Build, spoken: list[str]
) -> None:
    """Each takes hours on an accelerator; that one can't be had is known in seconds."""
    with pytest.raises(ModelNotAvailable, match=toxigen.CLASSIFIER):
        benchmarks.scores(build("llama"), PLAN, ["decodingtrust", "toxigen"], seed=6)
    assert spoken == []


def test_no_guard_no_questions_to_the_endpoint(hosts: type[Hosts], build: Build) -> None:
    """The endpoint is paid for; a guard that can't be had is known in seconds."""
    asked: list[str] = []

    def paid(requests: list[str]) -> list[Reply]:
        asked.extend(requests)
        return ask(requests)

    with pytest.raises(ModelNotAvailable, match=wildguard.GUARD):
        benchmarks.scores(build("llama"), PLAN, ["wildguardmix"], ask=paid)
    assert asked == []
