"""What reading and editing the residual stream costs, in one interleaved run.

    python benchmarks/stream.py [--model smollm2-135m-instruct] [--rounds 3]

Every round does each task once, one after the other, so that a machine that slows down slows them all. The table shows
medians over the rounds, of CPU time (all threads) and of wall time, and how two tasks compare beside what was aimed at.
Set OMP_WAIT_POLICY=passive: spinning threads count as CPU time.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from biasgeom import activations, data, generation, hooks, models, prompts
from biasgeom.models import LanguageModel

PROMPTS, NEW_TOKENS, BATCH = 16, 32, 16


@torch.inference_mode()
def bare_passes(lm: LanguageModel, encoded: list[list[int]]) -> None:
    """The decoder on the same batches, reading nothing."""
    for _ in prompts.in_batches(lm, encoded, lambda batch: lm.decoder(**batch.inputs(), use_cache=False)):
        pass


def captured(lm: LanguageModel, encoded: list[list[int]]) -> np.ndarray:
    """All blocks at the last token, as :func:`biasgeom.activations.last_token_states` does past its cache."""
    return activations._run(
        lm, encoded, list(range(len(lm.blocks))), lambda batch: hooks.at(batch.last), None, lm.width
    )


@torch.inference_mode()
def hidden_states(lm: LanguageModel, encoded: list[list[int]]) -> np.ndarray:
    """What one writes first: the whole causal LM, ``output_hidden_states``, 16 texts a batch in input order."""
    result = []
    for start in range(0, len(encoded), BATCH):
        batch = prompts.pad(lm, encoded, list(range(start, min(start + BATCH, len(encoded)))), side="right")
        output = lm.model(**batch.inputs(), output_hidden_states=True)
        rows = torch.arange(len(batch.rows))
        result.append(torch.stack([state[rows, batch.last] for state in output.hidden_states[1:]], dim=1).numpy())
    return np.concatenate(result)


def sampled(lm: LanguageModel, texts: list[str], new_tokens: int = NEW_TOKENS) -> list[list[str]]:
    """What :func:`biasgeom.generation.sample` does past its cache."""
    return generation._sampled(lm, prompts.encode(lm, texts), 1, new_tokens, 1.0, 0, None)


@torch.inference_mode()
def generate(lm: LanguageModel, texts: list[str]) -> list[str]:
    """Transformers' own sampling of one left-padded batch."""
    encoded = prompts.encode(lm, texts)
    batch = prompts.pad(lm, encoded, list(range(len(encoded))), side="left")
    output = lm.model.generate(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        do_sample=True,
        top_k=0,
        max_new_tokens=NEW_TOKENS,
        pad_token_id=0,
    )
    return lm.tokenizer.batch_decode(output[:, batch.input_ids.shape[1] :], skip_special_tokens=True)


def measure(tasks: dict[str, Callable[[], object]], rounds: int) -> dict[str, tuple[float, float]]:
    """Median CPU and wall seconds of each task; a first round warms up and is not counted."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in tasks}
    for _ in range(rounds + 1):
        for name, task in tasks.items():
            cpu, wall = time.process_time(), time.perf_counter()
            task()
            times[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    return {
        name: (statistics.median(cpu for cpu, _ in pairs[1:]), statistics.median(wall for _, wall in pairs[1:]))
        for name, pairs in times.items()
    }


def report(times: dict[str, tuple[float, float]], ratios: list[tuple[str, str, str, str]]) -> None:
    """Print seconds, and ratios (what, of which task, to which, what was aimed at)."""
    for name, (cpu, wall) in times.items():
        print(f"{name:15}{cpu:8.2f} s CPU {wall:8.2f} s")
    print(f"\n{'ratio':54}{'CPU':>8}{'wall':>8}  target")
    for what, above, below, target in ratios:
        cpu, wall = (a / b for a, b in zip(times[above], times[below], strict=True))
        print(f"{what:54}{cpu:8.3f}{wall:8.3f}  {target}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    # A second copy for Hugging Face's way, which leaves hooks of its own on the model.
    lm, other = models.load(options.model), models.load(options.model)
    for each in (lm, other):
        each.core.generation_config.eos_token_id = each.core.get_input_embeddings().num_embeddings  # none ends early
    texts = list(data.gender_prompts()["prompt"])
    encoded = prompts.encode(lm, texts)
    start = [texts[place] for place in np.linspace(0, len(texts) - 1, PROMPTS).astype(int)]
    rng = np.random.default_rng(0)
    directions = {block: rng.standard_normal(lm.width) for block in range(len(lm.blocks))}

    def ablated() -> None:
        with hooks.ablate(lm, directions):
            sampled(lm, start)

    same = np.abs(captured(lm, encoded)[:, :-1] - hidden_states(other, encoded)[:, :-1]).max()
    print(f"{options.model}, {len(texts)} texts, {torch.get_num_threads()} threads; largest difference {same:.1e}")
    times = measure(
        {
            "bare": lambda: bare_passes(lm, encoded),
            "captured": lambda: captured(lm, encoded),
            "hidden_states": lambda: hidden_states(other, encoded),
            "sample": lambda: sampled(lm, start),
            "ablated": ablated,
            "generate": lambda: generate(other, start),
        },
        options.rounds,
    )
    report(
        times,
        [
            ("all blocks captured / the same passes, nothing read", "captured", "bare", "<= 1.10"),
            ("output_hidden_states, 16 a batch / captured", "hidden_states", "captured", ">= 1.40"),
            ("sampling, every block ablated / sampling", "ablated", "sample", "<= 1.15"),
            ("sampling / transformers' generate(do_sample=True)", "sample", "generate", "<= 1.05"),
        ],
    )


if __name__ == "__main__":
    main()
