"""Tiny random models, one an architecture, with a tokenizer trained on a few sentences: offline, in milliseconds."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from biasgeom.models import LanguageModel
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

SENTENCES = [
    "The nurse said that she was tired after the long shift.",
    "A doctor walks in.",
    "My colleague is an engineer, and he repairs bridges in the north of the country.",
    "Nobody knew.",
    "The teacher from the village school reads a book to the children every evening.",
    "Who is the manager?",
    "A person is a plumber.",
]
"""Of different lengths, so that every batch of them is padded."""

VOCABULARY, WIDTH, BLOCKS = 300, 32, 4
BEGIN, END = "<s>", "</s>"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)

# Widths that differ from one another, so that a transposed or confused axis can't go unnoticed.
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": BLOCKS,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    # The usual 0.02 at this width would give states that hardly differ between tokens, and logits that are all alike.
    "initializer_range": 0.2,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
# Shorter than most test sentences: a window that is never left would not be tested.
SLIDING = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"] * (BLOCKS // 2)}


def _multimodal() -> Gemma3Config:
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 4,
    }
    return Gemma3Config(
        text_config={**SHAPE, **GROUPED, **SLIDING},
        vision_config=vision,
        mm_tokens_per_image=4,
        boi_token_index=297,
        eoi_token_index=298,
        image_token_index=299,
    )


CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SHAPE, **GROUPED),
    "mistral": lambda: MistralConfig(**SHAPE, **GROUPED, sliding_window=4),
    "gemma": lambda: GemmaConfig(**SHAPE, **GROUPED),
    "gemma2": lambda: Gemma2Config(**SHAPE, **GROUPED, **SLIDING),
    "gemma3": lambda: Gemma3TextConfig(**SHAPE, **GROUPED, **SLIDING),
    "gemma3-multimodal": _multimodal,
    "qwen2": lambda: Qwen2Config(**SHAPE, **GROUPED),
    "qwen3": lambda: Qwen3Config(**SHAPE, **GROUPED),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=WIDTH,
        n_layer=BLOCKS,
        n_head=4,
        n_positions=256,
        bos_token_id=1,
        eos_token_id=1,
        initializer_range=0.2,
    ),
    "gpt-neox": lambda: GPTNeoXConfig(**SHAPE),
    "llama-lora": lambda: LlamaConfig(**SHAPE, **GROUPED),
}
ARCHITECTURES = list(CONFIGS)


def _tokenizer(*, gpt2_style: bool = False) -> PreTrainedTokenizerFast:
    """Byte-level BPE: with BOS and a chat template as chat models have them, or with one end token and no padding."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    if gpt2_style:
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, 0)])
    # As with SmolLM2, padding is the end-of-turn token, which also stands inside texts.
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END, pad_token=END)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _build(architecture: str) -> LanguageModel:
    config = CONFIGS[architecture]()
    with torch.random.fork_rng():
        torch.manual_seed(ARCHITECTURES.index(architecture))
        multimodal = isinstance(config, Gemma3Config)
        model: nn.Module = (
            Gemma3ForConditionalGeneration(config) if multimodal else AutoModelForCausalLM.from_config(config)
        )
        with torch.no_grad():
            # Norms start as the identity and biases as zero: what they do would not be seen.
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter += 0.3 * torch.randn_like(parameter)
        if architecture.endswith("-lora"):
            with warnings.catch_warnings(action="ignore", category=FutureWarning):  # PEFT asks an attribute's old name
                model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "down_proj"], lora_dropout=0.5))
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if "lora_B" in name:
                        parameter.normal_(std=0.3)
    model.float().eval().requires_grad_(False)
    return LanguageModel(model, _tokenizer(gpt2_style=architecture.startswith("gpt")), architecture)


@pytest.fixture(scope="session")
def build() -> Callable[[str], LanguageModel]:
    """Architecture → a new model; the same weights every time."""
    return _build


@pytest.fixture(params=ARCHITECTURES)
def lm(request: pytest.FixtureRequest) -> LanguageModel:
    """Each architecture in turn."""
    return _build(request.param)


@pytest.fixture
def llama() -> LanguageModel:
    return _build("llama")


@pytest.fixture
def gpt2() -> LanguageModel:
    return _build("gpt2")


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    return list(SENTENCES)


@pytest.fixture
def saved_llama(tmp_path: Path, llama: LanguageModel) -> Path:
    """A folder in Hugging Face format, as :func:`biasgeom.models.load` takes it."""
    folder = tmp_path / "tiny-llama"
    llama.model.save_pretrained(folder)
    llama.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def own_cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads what another measured. Slow ones keep the user's cache, which holds the de-quantised models."""
    if "slow" not in request.keywords:
        monkeypatch.setenv("BIASGEOM_CACHE", str(tmp_path / "cache"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that two workers end at about the same time (with --no-loadscope-reorder)."""
    items.sort(key=lambda item: ("book" not in item.keywords, "slow" not in item.keywords))
