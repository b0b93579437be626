"""What a GPU makes of an 8-billion-parameter model: audit, capture, steering and sampling beside the bare forward pass.

    python benchmarks/gpu.py            # on a CUDA device of 40 GB or more; keeps benchmarks/results/<card>.json
    python benchmarks/gpu.py --small    # the same code on a CPU with a tiny model; --to FILE keeps what it found

The model has the architecture of Llama-3.1-8B and random weights, made on the device in bfloat16: nothing is downloaded
and what it says means nothing. One word is one token. Every round does each task once, one after the other, after a
round that is not counted; the table shows medians. A task's bare pass runs the decoder on the same tokens, in the same
batches, and reads nothing. A share of the peak counts two operations a weight and token, attention left out, against
the fastest matrix product measured here.
"""

import argparse
import json
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from audit import embedded  # the benchmark
from biasgeom import audit, hooks, prefix, prompts, suffix
from biasgeom.models import LanguageModel
from stream import bare_passes, captured, sampled
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

RESULTS = Path(__file__).parent / "results"
ARCHITECTURE: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}
SMALL = {"vocab_size": 4096, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2}


@dataclass(frozen=True)
class Sizes:
    """How much of each task."""

    templates: int = 50
    attributes: int = 100
    anchors: int = 1000
    prompts: int = 1000
    length: int = 150
    steered: int = 24
    strengths: int = 40
    sampled: int = 96
    new_tokens: int = 50
    matrix: int = 8192
    rounds: int = 2


TINY = Sizes(2, 4, 20, prompts=20, length=20, steered=4, strengths=6, sampled=4, new_tokens=6, matrix=128, rounds=1)


def built(architecture: dict[str, Any], sentences: list[str], device: torch.device) -> LanguageModel:
    """Random weights made on the device, and a tokenizer that knows the sentences' words, and numbers for the rest."""
    split = pre_tokenizers.Whitespace()
    words = {word for sentence in sentences for word, _ in split.pre_tokenize_str(sentence)}
    known = sorted(words) + [str(number) for number in range(architecture["vocab_size"]) if str(number) not in words]
    vocabulary = {word: place for place, word in enumerate(known[: architecture["vocab_size"]])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=known[0]))
    tokenizer.pre_tokenizer = split
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(LlamaConfig(**architecture), dtype=dtype)
    model.eval().requires_grad_(False)
    model.generation_config.eos_token_id = architecture["vocab_size"]  # none ends early
    return LanguageModel(model, PreTrainedTokenizerFast(tokenizer_object=tokenizer), "llama-3.1-8b, random weights")


def random_texts(lm: LanguageModel, count: int, length: int) -> list[str]:
    """Texts of exactly so many tokens."""
    chosen = np.random.default_rng(0).integers(lm.core.config.vocab_size, size=(count, length))
    return [" ".join(lm.tokenizer.convert_ids_to_tokens(ids.tolist())) for ids in chosen]


def timed(task: Callable[[], Any], device: torch.device) -> float:
    """Wall seconds until the device has finished."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    begun = time.perf_counter()
    task()
    wait()
    return time.perf_counter() - begun


def peak_flops(size: int, device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a matrix product, the fastest of ten."""
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / min(timed(lambda: a @ b, device) for _ in range(10))


def memory_mb(device: torch.device) -> float:
    """The most memory since the last call on a GPU; of the whole process on a CPU."""
    if device.type == "cuda":
        most = torch.cuda.max_memory_allocated(device) / 2**20
        torch.cuda.reset_peak_memory_stats(device)
        return most
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def tasks(lm: LanguageModel, sizes: Sizes, sets: audit.Sets) -> dict[str, dict[str, Any]]:
    """Task → what is done, its bare pass, and the tokens that go through each block."""
    audited = [prompts.encode(lm, part) for part in sets.lists()]
    texts = random_texts(lm, sizes.prompts, sizes.length)
    encoded = prompts.encode(lm, texts)
    blocks = len(lm.blocks)
    rng = np.random.default_rng(0)
    directions = {block: rng.standard_normal(lm.width) for block in range(blocks)}
    steered, start = texts[: sizes.steered], texts[: sizes.sampled]
    read = prefix.read(lm, steered)
    run = suffix.SuffixRun(lm, read, blocks // 2 - 1)
    steps = suffix.edits(lm, run.block, directions[run.block], np.linspace(0, 1, sizes.strengths))

    def strengths() -> None:
        for _ in run.passes(steps, tokens=range(10)):
            pass

    def ablated() -> None:
        with hooks.ablate(lm, directions):
            sampled(lm, start, sizes.new_tokens)

    written = [[*ids, *ids[: sizes.new_tokens]] for ids in encoded[: sizes.sampled]]
    return {
        "audit": {
            "run": lambda: embedded(lm, sets),
            "bare": lambda: [bare_passes(lm, part) for part in audited],
            "tokens": sum(len(ids) for part in audited for ids in part),
        },
        "capture of every block": {
            "run": lambda: captured(lm, encoded),
            "bare": lambda: bare_passes(lm, encoded),
            "tokens": sum(map(len, encoded)),
        },
        "strengths by suffix": {
            "run": strengths,
            "bare": lambda: bare_passes(lm, encoded[: sizes.steered]),
            "tokens": sizes.steered * sizes.strengths,
            "blocks": blocks - 1 - run.block,
        },
        "sampling under ablation": {
            "run": ablated,
            "bare": lambda: bare_passes(lm, written),
            "tokens": sum(map(len, written)),
        },
    }


def measured(lm: LanguageModel, sizes: Sizes, sets: audit.Sets) -> dict[str, Any]:
    """All tasks, timed."""
    device = lm.device
    peak = peak_flops(sizes.matrix, device, lm.dtype)
    todo = tasks(lm, sizes, sets)
    took: dict[tuple[str, str], list[float]] = {(name, what): [] for name in todo for what in ("bare", "run")}
    memory: dict[str, float] = {}
    for _ in range(sizes.rounds + 1):
        for name, task in todo.items():
            for what in ("bare", "run"):
                memory_mb(device)
                took[name, what].append(timed(task[what], device))
                if what == "run":
                    memory[name] = max(memory.get(name, 0.0), memory_mb(device))
    a_block = sum(weight.numel() for weight in lm.blocks[0].parameters())
    stages = []
    for name, task in todo.items():
        seconds, bare = (statistics.median(took[name, what][1:]) for what in ("run", "bare"))
        through = task["tokens"] * task.get("blocks", len(lm.blocks)) * a_block
        stages.append(
            {
                "stage": name,
                "tokens": task["tokens"],
                "seconds": round(seconds, 4),
                "tokens_per_second": round(task["tokens"] / seconds, 1),
                "share_of_peak": round(2 * through / seconds / peak, 4),
                "bare_seconds": round(bare, 4),
                "ratio_to_bare": round(seconds / bare, 4),
                "peak_memory_mb": round(memory[name]),
            }
        )
    return {
        "card": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "memory_mb": round(torch.cuda.get_device_properties(device).total_memory / 2**20)
        if device.type == "cuda"
        else None,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "dtype": str(lm.dtype).removeprefix("torch."),
        "attention": lm.core.config._attn_implementation,
        "parameters": lm.core.num_parameters(),
        "sentences": sum(map(len, sets.lists())),
        "sizes": asdict(sizes),
        "matmul_tflops": round(peak / 1e12, 2),
        "stages": stages,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tiny model on the CPU")
    parser.add_argument("--to", type=Path, help="where the JSON goes; default: benchmarks/results/<card>.json")
    options = parser.parse_args()
    if not options.small and not torch.cuda.is_available():
        sys.exit("error: no CUDA device was found; --small runs the same code with a tiny model on the CPU")
    device = torch.device("cpu") if options.small else torch.device("cuda", 0)
    sizes = TINY if options.small else Sizes()
    begun = time.perf_counter()
    sets = audit.sets(templates=sizes.templates, attributes=sizes.attributes, anchors=sizes.anchors)
    sentences = [sentence for part in sets.lists() for sentence in part]
    lm = built(ARCHITECTURE | (SMALL if options.small else {}), sentences, device)
    found = measured(lm, sizes, sets)
    found["seconds"] = round(time.perf_counter() - begun, 1)
    head = f"{found['card']}: {found['parameters']:,} parameters in {found['dtype']}, {found['attention']}"
    print(f"{head}; matrix product {found['matmul_tflops']} TFLOP/s; {found['seconds']} s in all")
    for stage in found["stages"]:
        print(
            f"{stage['stage']:24}{stage['seconds']:9.3f} s {stage['tokens_per_second']:12,.0f} tokens/s"
            f"{stage['share_of_peak']:7.1%} of the peak {stage['ratio_to_bare']:7.3f} x bare"
            f"{stage['peak_memory_mb']:9,} MB"
        )
    target = options.to or (None if options.small else RESULTS / f"{slug(found['card'])}.json")
    if target:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(found, indent=2) + "\n")
        print(f"kept in {target}")


def slug(card: str) -> str:
    """A card's name as that of a file."""
    return re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-")


if __name__ == "__main__":
    main()
