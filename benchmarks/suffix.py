"""What a steering strength costs: the blocks after the steered one against a whole hooked pass, in one interleaved run.

    python benchmarks/suffix.py [--model smollm2-135m-instruct] [--rounds 3]

Every round runs both at each block, one after the other. The table shows medians over the rounds of CPU time (all
threads) for one strength and all prompts, and their ratio beside what was aimed at. Set OMP_WAIT_POLICY=passive.
"""

import argparse
import statistics
import time

import numpy as np
import torch
from biasgeom import hooks, judging, models, prefix, prompts, questions, readouts, suffix
from biasgeom.models import LanguageModel

PROMPTS, STRENGTHS = 24, 40
AIMS = {14: 15.0, 28: 60.0}
"""Block of SmolLM2's 30 → least ratio aimed at."""


@torch.inference_mode()
def hooked(lm: LanguageModel, encoded: list[list[int]], block: int, vector: np.ndarray) -> None:
    """Whole passes at one strength, batches filled as for reading; only the last token's logits."""

    def run(batch: prompts.Batch) -> None:
        lm.core(**batch.inputs(), use_cache=False, logits_to_keep=torch.unique(batch.last))

    with hooks.steer(lm, block, vector, 1.0):
        for _ in prompts.in_batches(lm, encoded, run):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    lm = models.load(chosen.model, dtype="float32")
    asked = [judging.prompt(text) for text in questions.load(number=PROMPTS)["answer"]]
    encoded = prompts.encode(lm, asked, chat=True, prefill=judging.PREFILL)
    digits, _ = readouts.score_tokens(lm)
    read = prefix.read(lm, asked, chat=True, prefill=judging.PREFILL, append=digits[1])
    vector = np.random.default_rng(0).normal(size=lm.width)
    steps = {b: suffix.edits(lm, b, vector, np.linspace(0, 1, STRENGTHS)) for b in (0, len(lm.blocks) // 2 - 1, *AIMS)}
    runs = {block: suffix.SuffixRun(lm, read, block) for block in steps}
    took = {(block, what): [] for block in steps for what in ("hooked", "one position", "two positions")}
    for _ in range(chosen.rounds + 1):
        for block, run in runs.items():
            for what in ("hooked", "one position", "two positions"):
                begun = time.process_time()
                if what == "hooked":
                    hooked(lm, encoded, block, vector)
                else:
                    for _batch in run.passes(steps[block], width=1 if what == "one position" else 2):
                        pass
                took[block, what].append((time.process_time() - begun) / (1 if what == "hooked" else STRENGTHS))
    print(
        f"{lm.name}: {len(encoded)} prompts of {np.mean([len(ids) for ids in encoded]):.0f} tokens, CPU ms a strength"
    )
    for block in steps:
        whole, *rest = (
            1000 * statistics.median(took[block, what][1:]) for what in ("hooked", "one position", "two positions")
        )
        ratios = ", ".join(f"{ms:.1f} ms ({whole / ms:.0f} times)" for ms in rest)
        aim = f"; aimed at {AIMS[block]:.0f} times" if block in AIMS else ""
        print(f"block {block}: hooked {whole:.0f} ms; suffix, one and two positions: {ratios}{aim}")


if __name__ == "__main__":
    main()
