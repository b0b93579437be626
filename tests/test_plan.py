"""The plan: sizes without weights, what can't run and why, what a cluster is asked for, what is missing; in seconds."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import psutil
import pytest
from biasgeom import access, catalogue, data, embedded, facts, plan, run
from biasgeom.models import LanguageModel
from safetensors import safe_open
from transformers import Qwen3Config

Build = Callable[[str], LanguageModel]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No hub: every repository is unreachable, at once; nothing is remembered from another test."""

    def ask(*_: object) -> None:
        raise OSError("no network in tests")

    monkeypatch.setattr(facts.hub, "ask", ask)
    monkeypatch.setattr(plan, "_known", {})


# What is known of a model ---------------------------------------------------------------------------------------------


def stored(folder: Path) -> int:
    """Numbers in the files' headers, another way to the number of parameters."""
    total = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                count = 1
                for side in opened.get_slice(name).get_shape():
                    count *= side
                total += count
    return total


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen3", "gpt2"])
def test_a_folder_is_counted_without_its_weights(architecture: str, build: Build, tmp_path: Path) -> None:
    lm = build(architecture)
    lm.model.save_pretrained(tmp_path)
    lm.tokenizer.save_pretrained(tmp_path)
    found = facts.of(str(tmp_path))
    assert found.parameters == stored(tmp_path) == sum(p.numel() for p in lm.model.parameters())
    assert (found.blocks, found.width) == (len(lm.blocks), lm.width)
    assert found.chat is bool(lm.tokenizer.chat_template)
    assert (found.kind, found.here, found.missing) == ("folder", True, False)
    for file in tmp_path.glob("*.safetensors"):
        file.write_bytes(b"")  # not read
    assert facts.of(str(tmp_path)) == found


def test_embedded_models_are_what_the_catalogue_says() -> None:
    for name, chats in (("smollm2-135m-instruct", True), ("gemma-3-270m", False)):
        found, known = facts.of(name), catalogue.find(name)
        assert (found.kind, found.chat, found.parameters, found.here) == ("embedded", chats, known.parameters, True)
    assert facts.of("smollm2-135m-planted-judge").parameters == 134_515_008


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma-3-270m"])
def test_the_catalogue_counts_the_embedded_models_right(name: str) -> None:
    folder, known = embedded.folder(name), catalogue.find(name)
    assert stored(folder) == known.parameters
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"]) == (known.blocks, known.width)
    assert (config["vocab_size"], config["max_position_embeddings"]) == (known.vocabulary, known.context)


def test_what_can_not_be_had_is_a_fact(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = facts.of("Qwen/Qwen3-14B")
    assert (found.kind, found.parameters) == ("hub", 14_768_307_200)  # from the catalogue
    assert "nor reachable" in found.weights
    assert facts.of("org/unheard-of").parameters is None
    assert facts.of("gpt-4.1").weights == "is asked over an endpoint"
    assert facts.of("nonsense").missing
    (tmp_path / "config.json").write_text("{}")
    assert "describes no causal language model" in facts.of(str(tmp_path)).weights


# What can't run -------------------------------------------------------------------------------------------------------


def test_a_base_model_is_no_judge(saved_llama: Path) -> None:
    assert all(plan.cannot(str(saved_llama), notebook) is None for notebook in run.notebooks())
    (saved_llama / "chat_template.jinja").unlink()
    plan._known.clear()
    refused = [notebook for notebook in run.notebooks() if plan.cannot(str(saved_llama), notebook)]
    asks = []  # another path to the same: the notebooks whose code asks for a chat
    for notebook in run.notebooks():
        text = (data.root() / "notebooks" / f"{notebook}.ipynb").read_text()
        if "require_chat" in text or "judge_all" in text:
            asks.append(notebook)
    assert refused == asks
    assert "no chat template" in plan.cannot(str(saved_llama), asks[0])
    # The paper's recipe fine-tunes on chats; the embedded one doesn't.
    assert "fine-tunes on chats" in plan.cannot(str(saved_llama), "delta_b/03_audit", {"recipe": "paper"})


# What a cluster is asked for ------------------------------------------------------------------------------------------


def test_resources_grow_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_cards", list)
    small, large = plan.resources("smollm2-135m-instruct"), plan.resources("Qwen/Qwen3-14B")
    assert (small[1], large[1] >= 1) == (0, True)
    assert 1000 < small[0] < large[0]
    assert small[2] >= plan.SHORTEST
    values = {"judge/03_landscape": {"dtype": "bfloat16"}}
    assert plan.resources("Qwen/Qwen3-14B", values)[1] == 1
    assert plan.resources("meta-llama/Llama-3.3-70B-Instruct", values)[1] == 2  # 141 GB on cards of 80
    assert plan.resources("nonsense/unheard-of", values) == plan.UNKNOWN


# What is missing ------------------------------------------------------------------------------------------------------


def test_too_little_memory_and_disk_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_cards", list)
    values = {"delta_b/02_spectrum": {"dtype": "bfloat16"}}
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=2**45))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**45))
    assert plan.shortages("Qwen/Qwen3-14B", values) == []
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=16 * 2**30))
    (said,) = plan.shortages("Qwen/Qwen3-14B", values)
    assert "memory: Qwen/Qwen3-14B needs about" in said
    assert "there are 16 GB" in said
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**30))
    assert any(
        "disk: Qwen/Qwen3-14B" in one and "BIASGEOM_CACHE" in one for one in plan.shortages("Qwen/Qwen3-14B", values)
    )
    assert plan.shortages("smollm2-135m-instruct", {"gender/01_prompts": {}}) == []


def test_weights_need_room_before_they_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    model = facts.Facts("org/name", "hub", 8 * 10**9, 32, 4096, 128_000, weights="to download")
    monkeypatch.setattr(plan, "_facts", lambda *_: model)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=2**45))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10 * 10**9))
    (said,) = plan.shortages("org/name", {"gender/01_prompts": {"dtype": "bfloat16"}})
    assert "for weights" in said
    assert "HF_HUB_CACHE" in said


def test_the_report_ends_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "missing", lambda needed: pd.DataFrame(columns=["kind", "name", "problem", "page"]))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**45))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=2**45))
    text = plan.report(["smollm2-135m-instruct", "gemma-3-270m"], "embedded", ["gender", "judge"])
    assert text.endswith("Nothing is missing.")
    assert text.count("gender/03_encoded") == 2
    assert text.count("Skipped, judge/") == 9
    assert "delta_b" not in text
    lost = plan.report(["smollm2-135m-instruct", "nonsense"], "embedded", ["gender"])
    assert lost.splitlines()[-1] == "- nonsense is no model's name"
    with pytest.raises(run.ParameterError, match="no chapter"):
        plan.report([], "embedded", ["music"])


def test_what_is_gated_is_listed_with_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    row = (
        "model",
        "meta-llama/Llama-3.1-8B-Instruct",
        "is gated",
        "https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct",
    )
    columns = ["kind", "name", "problem", "page"]
    monkeypatch.setattr(access, "missing", lambda needed: pd.DataFrame([row], columns=columns))
    text = plan.report([], "paper", ["gender"])
    assert "- model meta-llama/Llama-3.1-8B-Instruct (7 notebooks) is gated; https://huggingface.co/meta-llama" in text
    assert "HF_TOKEN" in text


def test_a_model_of_14_billion_is_planned_in_seconds(tmp_path: Path) -> None:
    """A folder with nothing but a configuration; in seconds of this process, since others compute here, too."""
    sizes = {"hidden_size": 5120, "num_hidden_layers": 40, "intermediate_size": 17408, "num_attention_heads": 40}
    sizes |= {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
    Qwen3Config(**sizes, tie_word_embeddings=False).save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    memory, start = psutil.Process().memory_info().rss, time.process_time()
    text = plan.report([str(tmp_path)], "embedded", None)
    assert time.process_time() - start < 6
    assert psutil.Process().memory_info().rss - memory < 2**30  # 59 GB of weights
    assert "14,768,307,200 parameters" in text
    assert "Skipped" not in text
