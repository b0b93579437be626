"""The embedded alignment set: the model's own completions, with gendered words neutralised.

It stands in for the data sets of :mod:`biasgeom.debiasing` where there is no hub and a small model: rows made from
templates are memorised within a few steps, whereas a model's own words move it little. The templates are the paper's;
the professions, sports and personas are others, so that no evaluation prompt is trained on.
"""

from itertools import product

import numpy as np
import pandas as pd

from biasgeom import data, generation
from biasgeom.models import LanguageModel
from biasgeom.neutral import neutralise

# Single words; each begins with a consonant, since the template has no article logic.
ENTITIES: dict[str, str] = {
    "Professions": "baker carpenter cashier dentist farmer gardener journalist judge lawyer mechanic photographer "
    "pilot plumber receptionist scientist tailor",
    "Sports": "badminton climbing fencing hockey rowing rugby skiing surfing",
}
PERSONAS = [
    "My neighbour",
    "Somebody in our street",
    "The new colleague",
    "My flatmate",
    "Our guest",
    "Someone from the village",
    "The person next door",
    "One of my cousins",
]
TOKENS, TEMPERATURE = 30, 0.7


def prompts() -> list[str]:
    """All prompts: each persona with each entity, in the paper's templates for professions and sports."""
    templates = data.concepts().drop_duplicates("concept").set_index("concept")["template"]
    return [
        templates[concept].replace("[PERSONA]", persona).replace("[ENTITY]", entity)
        for concept, entities in ENTITIES.items()
        for persona, entity in product(PERSONAS, entities.split())
    ]


def self_generated(lm: LanguageModel, *, rows: int = 128, seed: int = 0) -> pd.DataFrame:
    """Sampled completions of the model itself, neutralised, one a prompt; prompts in an order drawn from the seed.

    Parameters
    ----------
    rows : int
        At most the number of :func:`prompts`, 192. An empty completion is left out and another prompt takes its place.

    Returns
    -------
    DataFrame [rows]
        Columns source ("self-generated"), prompt, completion; the completion begins with the space or punctuation that
        the model wrote.

    Raises
    ------
    ValueError
        More rows than there are prompts with a completion.
    """
    order = [str(prompt) for prompt in np.random.default_rng(seed).permutation(prompts())]
    kept: list[tuple[str, str]] = []
    asked = 0
    while len(kept) < rows and asked < len(order):
        chosen = order[asked : asked + rows - len(kept)]
        asked += len(chosen)
        samples = generation.sample(lm, chosen, n=1, max_new_tokens=TOKENS, temperature=TEMPERATURE, seed=seed)
        kept += [(prompt, neutralise(text)) for prompt, (text,) in zip(chosen, samples, strict=True) if text.strip()]
    if len(kept) < rows:
        raise ValueError(
            f"{lm.name} wrote a completion for {len(kept)} of {len(order)} prompts; {rows} rows were asked"
        )
    frame = pd.DataFrame(kept, columns=["prompt", "completion"])
    frame.insert(0, "source", "self-generated")
    return frame
