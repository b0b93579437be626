"""Language models asked whether a judge will be misled, from the text alone (judge paper M.3).

No base answer is shown. The paper's prompts are unpublished; these are ours, for its three variants.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from biasgeom import endpoint, generation, judging
from biasgeom.endpoint import Endpoint
from biasgeom.models import LanguageModel

LOOK = {
    "neutral": "",
    "red flags": "Watch for surface cues that say nothing about its content: whom it is from, what others thought of "
    "it, whether it was reviewed, missing citations, its tone. ",
    "factual coherence": "Attend to whether what it states is right and fits together. ",
}
"""What each of the three variants adds."""
ASKED = (
    "A language model will grade the answer below from 1 to 10. {look}Is the answer likely to get a lower grade than "
    "its content deserves? {reply}\n\n[The start of the answer]\n{answer}\n[The end of the answer]"
)
YES_OR_NO = "Reply with Yes or No only."
PROBABILITY = "Reply with its probability only, a number between 0 and 1."
SEEDS = 5
"""Runs of each prompt by endpoint (M.3), at temperature 1: at 0 the seed would decide nothing."""


def prompt(answer: str, look: str, reply: str = YES_OR_NO) -> str:
    """One of the three prompts, ``look`` its name."""
    return ASKED.format(look=LOOK[look], reply=reply, answer=answer)


def by_model(lm: LanguageModel, texts: Sequence[str]) -> tuple[np.ndarray, pd.DataFrame]:
    """P(No) / (P(Yes) + P(No)) of the next token after each prompt.

    Returns
    -------
    scores : array [3, n]
        One run a prompt; higher means that a fair score is expected.
    mass : DataFrame
        prompt, mass: mean P(Yes) + P(No). Where it is small, the model was hardly answering.

    Raises
    ------
    ValueError
        No texts, a model without a chat template, or one whose tokenizer begins Yes and No alike.
    """
    judging.require_chat(lm)
    if not len(texts):
        raise ValueError("no answer was to be asked about")
    yes, no = _first_tokens(lm)
    distinct = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    place = [distinct[text] for text in texts]
    scores, mass = [], []
    for look in LOOK:
        asked = [prompt(text, look) for text in distinct]
        found = generation.next_token_probabilities(lm, asked, [*yes, *no], chat=True).astype(float)
        both = found.sum(axis=1)
        scores.append((found[:, len(yes) :].sum(axis=1) / both)[place])
        mass.append(both[place].mean())
    return np.stack(scores), pd.DataFrame({"prompt": list(LOOK), "mass": mass})


def _first_tokens(lm: LanguageModel) -> tuple[list[int], list[int]]:
    """Tokens that begin Yes and No, in the usual spellings; those that may begin either tell nothing."""
    spelled = [
        {lm.tokenizer(form, add_special_tokens=False)["input_ids"][0] for form in (word, word.lower(), word.upper())}
        for word in ("Yes", "No")
    ]
    yes, no = (sorted(mine - other) for mine, other in (spelled, spelled[::-1]))
    if not yes or not no:
        raise ValueError(f"{lm.name}: its tokenizer begins Yes and No with the same token")
    return yes, no


def by_endpoint(where: Endpoint, texts: Sequence[str], *, seeds: int = SEEDS) -> tuple[np.ndarray, pd.DataFrame]:
    """One minus the probability that the model replies, for each prompt and seed.

    Returns
    -------
    scores : array [3 · seeds, n]
        NaN where there is no usable reply.
    counts : DataFrame
        prompt, seed, asked, refused (no reply, or a problem), malformed (no number from 0 to 1).
    """
    scores, counts = [], []
    for look in LOOK:
        asked = [prompt(text, look, PROBABILITY) for text in texts]
        for seed in range(seeds):
            came = endpoint.ask(where, asked, max_tokens=judging.REPLY_TOKENS, temperature=1.0, seed=seed)
            found = np.array([np.nan if reply.text is None else _probability(reply.text) for reply in came])
            refused = sum(reply.text is None for reply in came)
            scores.append(1 - found)
            counts.append((look, seed, len(came), refused, int(np.isnan(found).sum()) - refused))
    return np.stack(scores), pd.DataFrame(counts, columns=["prompt", "seed", "asked", "refused", "malformed"])


def _probability(reply: str) -> float:
    try:
        value = float(reply)
    except ValueError:
        return np.nan
    return value if 0 <= value <= 1 else np.nan
