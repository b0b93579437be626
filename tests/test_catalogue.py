"""Known models: every file describes one, its settings are parameters of the notebooks, its numbers are the model's."""

from pathlib import Path

import pytest
import torch
from biasgeom import catalogue, data, embedded, models, results, run
from transformers import (
    AutoModelForCausalLM,
    Gemma3Config,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

KNOWN = catalogue.models()
FILES = sorted(catalogue.folder().glob("*.yaml"))


def shape(
    width: int, blocks: int, inner: int, heads: int, grouped: int, vocabulary: int, **more: int
) -> dict[str, int]:
    names = ["hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "num_key_value_heads"]
    sizes = dict(zip(names, (width, blocks, inner, heads, grouped), strict=True))
    return {**sizes, "vocab_size": vocabulary, "tie_word_embeddings": False, **more}


def gemma3(*sizes: int, head: int) -> Gemma3Config:
    text = shape(*sizes, 262208, head_dim=head)
    vision = {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "num_attention_heads": 16}
    vision |= {"num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False}
    return Gemma3Config(text_config=Gemma3TextConfig(**{**text, "tie_word_embeddings": True}), vision_config=vision)


SMALL = (4096, 32, 14336, 32, 8)
CONFIGS: dict[str, PreTrainedConfig] = {
    "meta-llama/Llama-3.1-8B-Instruct": LlamaConfig(**shape(*SMALL, 128256)),
    "mistralai/Mistral-7B-Instruct-v0.1": MistralConfig(**shape(*SMALL, 32000)),
    "mistralai/Mistral-7B-Instruct-v0.3": MistralConfig(**shape(*SMALL, 32768)),
    "google/gemma-7b-it": GemmaConfig(
        **{**shape(3072, 28, 24576, 16, 16, 256000, head_dim=256), "tie_word_embeddings": True}
    ),
    "google/gemma-3-4b-it": gemma3(2560, 34, 10240, 8, 4, head=256),
    "google/gemma-3-12b-it": gemma3(3840, 48, 15360, 16, 8, head=256),
    "google/gemma-3-27b-it": gemma3(5376, 62, 21504, 32, 16, head=128),
    "Qwen/Qwen3-14B": Qwen3Config(**shape(5120, 40, 17408, 40, 8, 151936, head_dim=128)),
    "meta-llama/Llama-3.3-70B-Instruct": LlamaConfig(**shape(8192, 80, 28672, 64, 8, 128256)),
    "Qwen/Qwen2.5-72B-Instruct": Qwen2Config(**shape(8192, 80, 29568, 64, 8, 152064)),
    "microsoft/phi-4": Phi3Config(**shape(5120, 40, 17920, 40, 10, 100352, pad_token_id=0)),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_sizes_are_those_of_the_architecture(name: str) -> None:
    known, config = catalogue.find(name), CONFIGS[name]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config(decoder=True)
    assert known.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (known.blocks, known.width) == (text.num_hidden_layers, text.hidden_size)
    assert known.vocabulary == text.vocab_size


def test_the_size_that_the_makers_state() -> None:
    assert catalogue.find("meta-llama/Llama-3.1-8B-Instruct").parameters == 8_030_261_248
    assert catalogue.find("google/gemma-3-4b-it").parameters == 4_300_079_472


def test_names_are_unique_and_name_their_files() -> None:
    assert len({known.name for known in KNOWN}) == len(KNOWN) == len(FILES)
    for path, known in zip(FILES, KNOWN, strict=True):
        assert path.stem == results.slug(known.name)
        assert catalogue.find(known.name) == known
        assert known.page.startswith("https://")
        assert known.licence


def test_every_model_of_the_papers_is_known() -> None:
    judges = data.published("judge_models")
    names = " ".join(known.name.lower().replace("-it", "") for known in KNOWN)
    for model in judges["model"].str.lower().unique():
        assert model.replace("llama-3.3-70b", "llama-3.3-70b-instruct") in names, model
    for paper, count in (("gender", 3), ("delta_b", 3)):
        assert sum(paper in known.papers for known in KNOWN) == count
    white = set(judges.loc[judges["white_box"] == "yes", "model"].str.lower())
    loaded = {known.name.lower() for known in KNOWN if "white-box judge" in known.papers.get("judge", "")}
    assert len(white) == len(loaded) == 3


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_its_settings_are_parameters(known: catalogue.Known) -> None:
    base = run.profile(known.base)
    profile = f"models/{results.slug(known.name)}" if known.endpoint else known.base
    for notebook, own in known.notebooks.items():
        values = run.values_for(notebook, profile, base["model"] if known.endpoint else known.name)
        assert {**base["notebooks"][notebook], **own}.items() <= values.items()
        assert any(base["notebooks"][notebook].get(key) != value for key, value in own.items())  # else it says nothing


def test_settings_hold_for_the_model_and_under_its_base_only() -> None:
    def second(profile: str, model: str) -> str | None:
        return run.values_for("judge/04_geometry", profile, model).get("second")

    assert second("paper", "Qwen/Qwen3-14B") == "google/gemma-3-12b-it"
    assert second("paper", "meta-llama/Llama-3.1-8B-Instruct") == "Qwen/Qwen3-14B"
    assert second("embedded", "Qwen/Qwen3-14B") is None
    asked = run.values_for("judge/03_landscape", "models/gpt-4.1", None)
    assert (asked["judge_model"], asked["judge_url"]) == ("gpt-4.1", "https://api.openai.com/v1")
    assert asked["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert "judge_url" not in run.values_for("judge/03_landscape", "paper", "deepseek-ai/DeepSeek-V3")


def test_a_model_that_is_only_asked_is_not_loaded() -> None:
    with pytest.raises(embedded.ModelNotAvailable, match=r"PROFILE=models/gpt-4\.1 CHAPTERS=judge"):
        models.require("gpt-4.1")


def test_a_revision_or_an_adapter_leaves_the_model_known() -> None:
    assert catalogue.find("Qwen/Qwen3-14B@main+org/adapter").name == "Qwen/Qwen3-14B"
    assert catalogue.find("Qwen/Qwen3-15B") is None


def test_a_wrong_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org--name.yaml").write_text("name: org/name\nlicense: MIT\n")
    monkeypatch.setattr(catalogue, "folder", lambda: tmp_path)
    with pytest.raises(ValueError, match=r"org--name\.yaml does not describe a model: .*license"):
        catalogue.find("org/name")
