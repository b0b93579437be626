"""What an audit of one model costs: reading, mathematics, and one sentence at a time, in one interleaved run.

    python benchmarks/audit.py [--model smollm2-135m-instruct] [--rounds 2] [--templates 50] [--anchors 1000]

The loop embeds every eighth sentence and is scaled up; its embeddings are compared with those of the batches. See
``stream.py`` for how is measured; set OMP_WAIT_POLICY=passive.
"""

import argparse

import numpy as np
import torch
from biasgeom import audit, cache, models, prompts, relative
from biasgeom.models import LanguageModel
from stream import bare_passes, measure, report

EVERY = 8


def embedded(lm: LanguageModel, texts: audit.Sets) -> relative.Embeddings:
    """The audit's reading of one model, with an empty cache."""
    with cache.fresh():
        return audit.embed(lm, texts)


@torch.inference_mode()
def one_by_one(lm: LanguageModel, sentences: list[str]) -> np.ndarray:
    """What one writes first: tokenise and pass one sentence, keep all hidden states, average the last."""
    rows = []
    for sentence in sentences:
        ids = torch.tensor([lm.tokenizer(sentence)["input_ids"]])
        rows.append(lm.model(ids, output_hidden_states=True).hidden_states[-1][0].mean(0).numpy())
    return np.stack(rows)


def association(reference: relative.Embeddings, audited: relative.Embeddings) -> None:
    """Every group by every method."""
    audit.shifts(reference, audited, methods=["rr", "seat", "procrustes", "cka"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--templates", type=int, default=50)
    parser.add_argument("--anchors", type=int, default=1000)
    options = parser.parse_args()

    lm, other = models.load(options.model), models.load(options.model)
    texts = audit.sets(templates=options.templates, anchors=options.anchors)
    parts = [[s for group in texts.targets.values() for s in group], texts.positive, texts.negative, texts.anchors]
    sentences = [sentence for part in parts for sentence in part]
    encoded = [prompts.encode(lm, part) for part in parts]
    found = embedded(lm, texts)
    rows = np.concatenate([np.concatenate(list(found.targets.values())), found.positive, found.negative, found.anchors])
    difference = np.abs(rows[::EVERY] - one_by_one(other, sentences[::EVERY])).max() / np.abs(rows).max()
    tokens = sum(len(ids) for part in encoded for ids in part)
    print(f"{options.model}, {len(sentences)} sentences, {tokens} tokens, {torch.get_num_threads()} threads;", end=" ")
    print(f"largest relative difference from the loop {difference:.1e}")
    times = measure(
        {
            "bare": lambda: [bare_passes(lm, part) for part in encoded],
            "embedded": lambda: embedded(lm, texts),
            "loop": lambda: one_by_one(other, sentences[::EVERY]),
            "association": lambda: association(found, found),
            "RR": lambda: relative.delta_b(found, found),
        },
        options.rounds,
    )
    times["loop"] = tuple(EVERY * seconds for seconds in times["loop"])
    report(
        times,
        [
            ("embedding / the same passes, nothing read", "embedded", "bare", "<= 1.10"),
            ("one sentence at a time / embedding", "loop", "embedded", ">= 8"),
            ("mathematics of all methods / embedding", "association", "embedded", "<= 0.01"),
            ("mathematics of RR / embedding", "RR", "embedded", ""),
        ],
    )


if __name__ == "__main__":
    main()
