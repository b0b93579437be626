"""Recipes of alignment: which rows a model is fine-tuned on and how, by one name that every notebook shares
(gender paper 4.1.2, 0.A.1).
"""

from dataclasses import dataclass

import pandas as pd

from biasgeom import debiasing, finetune, selfgenerated
from biasgeom.finetune import Settings
from biasgeom.models import LanguageModel

NAME = "debiased"
"""An aligned model is called ``<model>+debiased``."""


@dataclass(frozen=True)
class Recipe:
    """Rows of the model's own (their number), or None for the five data sets of the hub; and how to train on them."""

    own_rows: int | None
    settings: Settings


RECIPES = {
    # The paper's settings and data.
    "paper": Recipe(None, Settings()),
    # Sized for a small model on a CPU: its own completions for other people, gendered words neutralised.
    "embedded": Recipe(96, Settings(rank=16, alpha=32, steps=20, batch=4, learning_rate=3e-4, warmup=2)),
    # For tests of whole notebooks.
    "smoke": Recipe(8, Settings(rank=2, alpha=4, steps=2, batch=4, learning_rate=1e-3, warmup=0)),
}


def rows(lm: LanguageModel, recipe: str) -> pd.DataFrame:
    """The alignment set of a recipe: source, prompt, completion.

    Raises
    ------
    ValueError
        Unknown recipe.
    """
    own_rows = _recipe(recipe).own_rows
    return debiasing.load() if own_rows is None else selfgenerated.self_generated(lm, rows=own_rows)


def aligned(lm: LanguageModel, recipe: str) -> LanguageModel:
    """The model after fine-tuning by a recipe; trained once, then found in the cache."""
    return finetune.aligned(lm, rows(lm, recipe), _recipe(recipe).settings, name=NAME)


def _recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise ValueError(f"no recipe {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name]
