"""The plan: sizes without weights, what can't run and why, what a cluster is asked for, what is missing; in seconds."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import psutil
import pytest
from biasgeom import __main__, access, catalogue, costs, data, embedded, facts, forecast, plan, run, sweep
from biasgeom.models import LanguageModel
from safetensors import safe_open
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast, Qwen3Config

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
    notebooks = [notebook for notebook in run.notebooks() if notebook not in plan.SPOKEN]  # what these need: see below
    assert all(plan.cannot(str(saved_llama), notebook) is None for notebook in notebooks)
    (saved_llama / "chat_template.jinja").unlink()
    plan._known.clear()
    refused = [notebook for notebook in notebooks if plan.cannot(str(saved_llama), notebook)]
    asks = []  # another path to the same: the notebooks whose code asks for a chat
    for notebook in run.notebooks():
        text = (data.root() / "notebooks" / f"{notebook}.ipynb").read_text()
        if "require_chat" in text or "judge_all" in text:
            asks.append(notebook)
    assert refused == asks
    assert "no chat template" in plan.cannot(str(saved_llama), asks[0])
    # The paper's recipe fine-tunes on chats; the embedded one doesn't.
    assert "fine-tunes on chats" in plan.cannot(str(saved_llama), "delta_b/03_audit", {"recipe": "paper"})


def test_a_vocabulary_without_adjectives_speaks_of_no_group(saved_llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "letters"
    shutil.copytree(saved_llama, folder)
    letters = Tokenizer(BPE({"<s>": 0, **{chr(c): c - 96 for c in range(97, 123)}}, []))
    PreTrainedTokenizerFast(tokenizer_object=letters, bos_token="<s>").save_pretrained(folder)
    refused = [notebook for notebook in run.notebooks() if "adjective" in (plan.cannot(str(folder), notebook) or "")]
    asks = []  # another path to the same
    for notebook in run.notebooks():
        if re.search(r"(survey|probe)\.adjective", (data.root() / "notebooks" / f"{notebook}.ipynb").read_text()):
            asks.append(notebook)
    assert refused == asks
    assert "only 0 of 12 adjective pairs" in plan.cannot(str(folder), asks[0])


# What a cluster is asked for ------------------------------------------------------------------------------------------


def test_resources_grow_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "cards", list)
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
    monkeypatch.setattr(plan, "cards", list)
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
    monkeypatch.setattr(plan, "look_up", lambda *_: model)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=2**45))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10 * 10**9))
    (said,) = plan.shortages("org/name", {"gender/01_prompts": {"dtype": "bfloat16"}})
    assert "for weights" in said
    assert "HF_HUB_CACHE" in said


@pytest.fixture
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else can be had, and there is room for it."""
    monkeypatch.setattr(access, "missing", lambda needed: pd.DataFrame(columns=["kind", "name", "problem", "page"]))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**45))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=2**45))
    monkeypatch.setattr(plan, "cards", list)


def refusal(names: list[str], chapters: list[str], profile: str = "embedded") -> str:
    """What ``make book`` says where it does not start; empty if it would."""
    try:
        sweep.asked(names, profile, chapters)
    except (embedded.ModelNotAvailable, sweep.NotReady) as error:
        return str(error)
    return ""


@pytest.mark.usefixtures("plenty")
def test_the_report_ends_with_what_is_missing() -> None:
    text, starts = forecast.report(["smollm2-135m-instruct", "gemma-3-270m"], "embedded", ["gender", "judge"])
    assert starts
    assert text.endswith("Nothing is missing.")
    assert text.count("gender/03_encoded") == 2
    assert text.count("Skipped, judge/") == 9
    assert "delta_b" not in text
    with pytest.raises(run.ParameterError, match="no chapter"):
        forecast.report([], "embedded", ["music"])
    with pytest.raises(run.ParameterError, match="profile 'smoke' names no model"):
        forecast.report([], "smoke", ["gender"])


@pytest.mark.usefixtures("plenty")
def test_plan_and_book_say_the_same_of_models_that_cannot_be_had(saved_llama: Path) -> None:
    names = ["gema-3-270m", "llama-3.1-8b", "org/unheard-of", "gpt-4.1", f"{saved_llama}+nowhere", f"{saved_llama}@v1"]
    text, starts = forecast.report([str(saved_llama), *names], "embedded", ["gender"])
    assert not starts
    said = text.split("Missing:\n- ")[1].splitlines()
    assert said[-1] == "make book would not start."
    assert "\n".join(said[:-1]).replace("\n- ", "\n") == refusal([str(saved_llama), *names], ["gender"])
    assert len(said) == len(names) + 1
    for line, what in zip(
        said,
        [
            r"Embedded: smollm2-135m-instruct, .* hub id 'organisation/name'. Did you mean gemma-3-270m\?$",
            r"Did you mean meta-llama/Llama-3.1-8B-Instruct\?$",
            r"org/unheard-of is neither .* reachable .* HF_TOKEN .* An embedded model",
            "asked over an endpoint",
            "adapter nowhere",
            "has no revisions",
        ],
        strict=False,
    ):
        assert re.search(what, line), line
    assert "Did you mean" not in said[2]
    assert refusal([str(saved_llama)], ["gender"]) == ""


@pytest.mark.usefixtures("plenty")
def test_plan_fails_where_book_would_not_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "--chapters", "gender", "--models"]
    assert __main__.main([*words, "smollm2-135m-instruct"]) == 0
    assert __main__.main([*words, "nonsense"]) == __main__.main([*words, "nonsense", "--anyway"]) == 1
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=2**29))
    capsys.readouterr()
    assert __main__.main([*words, "smollm2-135m-instruct"]) == 1
    text = capsys.readouterr().out
    assert text.endswith("make book would not start; with ANYWAY=yes it would.\n")
    (line,) = [line for line in text.splitlines() if line.startswith("- memory: ")]
    assert line in refusal(["smollm2-135m-instruct"], ["gender"])
    assert __main__.main([*words, "smollm2-135m-instruct", "--anyway"]) == 0
    assert "ANYWAY=yes would start all the same" in capsys.readouterr().out
    assert sweep.asked(["smollm2-135m-instruct"], "embedded", ["gender"], anyway=True)["models"]
    # Another machine's memory does not count on a cluster.
    assert forecast.report(["smollm2-135m-instruct"], "embedded", ["gender"], here=False)[1]
    assert sweep.asked(["smollm2-135m-instruct"], "embedded", ["gender"], here=False)["models"]


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights that were cut": (cut, "model.safetensors is cut or no safetensors file"),
    "weights that are a page": (lambda f: (f / "model.safetensors").write_text("<html>"), "is cut or no safetensors"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "holds no .safetensors file"),
    "a shard less": (
        lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-2.safetensors"}}'),
        "holds no model-2.safetensors, which model.safetensors.index.json names",
    ),
    "an index that is none": (lambda f: (f / "model.safetensors.index.json").write_text("[]"), "can't be read"),
    "no configuration": (lambda f: (f / "config.json").unlink(), "holds no config.json"),
    "no tokenizer": (lambda f: [p.unlink() for p in f.glob("tokenizer*")], "holds no tokenizer;"),
    "a configuration that is a list": (lambda f: (f / "config.json").write_text("[1]"), "describes no causal language"),
    "a strange size": (
        lambda f: (f / "config.json").write_text('{"model_type": "llama", "num_attention_heads": 0}'),
        "describes no causal language",
    ),
    "settings cut": (
        lambda f: [(f / "chat_template.jinja").unlink(), (f / "tokenizer_config.json").write_text('{"a": ')],
        "tokenizer_config.json is no JSON",
    ),
}


@pytest.mark.usefixtures("plenty")
@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_folder_is_told_before_anything_starts(saved_llama: Path, case: str) -> None:
    name = str(saved_llama)
    assert forecast.report([name], "smoke", ["gender"])[1]  # the negative control
    damage, said = DAMAGE[case]
    damage(saved_llama)
    plan._known.clear()
    text, starts = forecast.report([name], "smoke", ["gender"])
    assert not starts
    assert re.search(said, text), text
    assert re.search(said, refusal([name], ["gender"], "smoke"))


@pytest.mark.usefixtures("plenty")
def test_an_adapter_that_was_cut_is_told_too(saved_llama: Path) -> None:
    adapter = saved_llama.with_name("adapter")
    shutil.copytree(data.root() / "data" / "judge" / "planted", adapter)
    name = f"{saved_llama}+{adapter}"
    assert refusal([name], ["gender"], "smoke") == ""
    path = adapter / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "adapter_model.safetensors is cut" in refusal([name], ["gender"], "smoke")


def test_what_is_gated_is_listed_with_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    page = "https://huggingface.co/meta-llama/Llama-Guard"
    row, columns = ("model", "meta-llama/Llama-Guard", "is gated", page), ["kind", "name", "problem", "page"]
    asked = []

    def missing(needed: list[access.Repository]) -> pd.DataFrame:
        asked.extend(needed)
        return pd.DataFrame([row], columns=columns)

    guard = {access.Repository("model", "meta-llama/Llama-Guard", None, "config.json"): ["gender/01_prompts"]}
    needed = access.needed
    monkeypatch.setattr(access, "missing", missing)
    monkeypatch.setattr(
        access, "needed", lambda values: needed(values) | (guard if "gender/01_prompts" in values else {})
    )
    text, starts = forecast.report([], "paper", ["gender"])
    assert not starts
    assert f"- model meta-llama/Llama-Guard (gender/01_prompts) is gated; {page}" in text
    assert "HF_TOKEN" in text
    # The asked model is asked for by itself, and once.
    assert "- meta-llama/Llama-3.1-8B-Instruct is neither in the local hub cache nor reachable" in text
    assert "meta-llama/Llama-3.1-8B-Instruct" not in {one.name for one in asked}


@pytest.mark.usefixtures("plenty")
def test_the_positive_control_and_a_second_architecture_are_named_and_counted(saved_llama: Path) -> None:
    text, _ = forecast.report([str(saved_llama)], "smoke", ["gender", "judge"])
    control = "also load the positive control smollm2-135m-planted-judge, 134,515,008 parameters"
    (line,) = [line for line in text.splitlines() if control in line]
    assert line.startswith("judge/03_landscape, ")
    assert "gender" not in line
    assert "A model this small is not estimated" in text
    made = plan.costs_of(facts.of(str(saved_llama)), {n: run.values_for(n, "smoke", "x") for n in run.notebooks()})
    assert made["judge/03_landscape"].minutes > costs.START + 1  # the control's judgements
    assert made["gender/02_expressed"].minutes == pytest.approx(costs.START, abs=0.1)
    assert "positive control" not in forecast.report([str(saved_llama)], "smoke", ["gender"])[0]

    paper = run.values_for("judge/04_geometry", "paper", None)
    alone = plan.costs_of(facts.of("Qwen/Qwen3-14B"), {"judge/04_geometry": paper | {"second": ""}})
    both = plan.costs_of(facts.of("Qwen/Qwen3-14B"), {"judge/04_geometry": paper | {"second": "google/gemma-3-12b-it"}})
    more = both["judge/04_geometry"].gpu_mb - alone["judge/04_geometry"].gpu_mb
    assert more == pytest.approx(catalogue.find("google/gemma-3-12b-it").parameters * 2 / 2**20, abs=1)
    named = forecast._beside({"judge/04_geometry": {"second": "gemma-3-270m"}})
    assert named[0].startswith("judge/04_geometry also loads gemma-3-270m, 268,098,176 parameters")


def test_a_model_of_14_billion_is_planned_in_seconds(tmp_path: Path) -> None:
    """A folder with nothing but a configuration; in seconds of this process, since others compute here, too."""
    sizes = {"hidden_size": 5120, "num_hidden_layers": 40, "intermediate_size": 17408, "num_attention_heads": 40}
    sizes |= {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
    Qwen3Config(**sizes, tie_word_embeddings=False).save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    memory, start = psutil.Process().memory_info().rss, time.process_time()
    text, _ = forecast.report([str(tmp_path)], "embedded", None)
    assert time.process_time() - start < 6
    assert psutil.Process().memory_info().rss - memory < 2**30  # 59 GB of weights
    assert "14,768,307,200 parameters" in text
    assert "Skipped" not in text


def test_what_renders_and_plans_does_not_wait_for_torch() -> None:
    """Its modules are imported without; what needs a model's configuration imports it then."""
    script = "import sys, biasgeom.{}; sys.exit('torch' in sys.modules)"
    words = "__main__, biasgeom.pages, biasgeom.forecast, biasgeom.sweep, biasgeom.archive, biasgeom.release"
    assert subprocess.run([sys.executable, "-c", script.format(words)]).returncode == 0
    checked = "plan; biasgeom.plan.asked(['a/b@c+d/e'], 'embedded', None)"  # all that a wrong parameter waits for
    assert subprocess.run([sys.executable, "-c", script.format(checked)]).returncode == 0
    assert subprocess.run([sys.executable, "-c", script.format("facts")]).returncode == 1  # the negative control
