"""The gender paper's protocol: in each condition the same neutral prompts are read and continued (3.1, 4.1).

A condition is a model and what stands before the prompt. States, samples and the proxy of a model come from identical
prompts, which is what makes encoded and expressed bias comparable; states are read without an instruction.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from biasgeom import activations, alignment, data, direction, encoded, expressed, generation, proxy
from biasgeom.encoded import Concept, Pairs
from biasgeom.models import LanguageModel

BEFORE, AFTER, AFTER_1950S, BEFORE_1950S = data.CONDITIONS


@dataclass(frozen=True)
class Condition:
    """A model and an instruction.

    Attributes
    ----------
    name : str
    lm : LanguageModel
    instruction : str
        Stands on a line of its own before the prompt; empty for none.
    """

    name: str
    lm: LanguageModel
    instruction: str = ""

    def texts(self, prompts: Sequence[str]) -> list[str]:
        """What the model reads."""
        return [f"{self.instruction}.\n{prompt}" if self.instruction else prompt for prompt in prompts]


def before(lm: LanguageModel) -> Condition:
    """The model as it was loaded."""
    return Condition(BEFORE, lm)


def after(lm: LanguageModel, recipe: str) -> Condition:
    """The aligned model, a second one beside ``lm``; trained unless the cache holds its adapter."""
    return Condition(AFTER, alignment.aligned(lm, recipe))


def instructed(condition: Condition) -> Condition:
    """The same model under the 1950s instruction.

    The paper does not say where the instruction stands. Here it is before the prompt, the end of which is what is read
    and continued.
    """
    return Condition(f"{condition.name}, 1950s", condition.lm, data.instruction())


OF_PROFESSIONS = ("Professions", "ESL", "Stories")
"""Concepts whose entities are the professions."""


@dataclass(frozen=True)
class Sampling:
    """How completions are sampled; gender paper 4.1.4: 10 a prompt, temperature 0.7, at most 50 tokens.

    Attributes
    ----------
    professions, others : int
        Completions a prompt of a concept in :data:`OF_PROFESSIONS`, and of any other.
    sampler : {"transformers", "vllm"}
        See :func:`biasgeom.generation.sample`.
    """

    professions: int
    others: int
    tokens: int
    temperature: float
    seed: int
    sampler: str = "transformers"


def completions(condition: Condition, prompts: pd.DataFrame, sampling: Sampling) -> pd.DataFrame:
    """Sampled completions with their lexical labels.

    Parameters
    ----------
    prompts : DataFrame
        From :func:`biasgeom.data.gender_prompts` or :func:`biasgeom.data.realistic_prompts`.

    Returns
    -------
    DataFrame
        condition, concept, kind, entity, persona, sample, text (prompt and completion, without the instruction), label.
    """
    tables = []
    of_professions = prompts["concept"].isin(OF_PROFESSIONS)
    for chosen, count in ((of_professions, sampling.professions), (~of_professions, sampling.others)):
        rows = prompts[chosen]
        if rows.empty:
            continue
        samples = generation.sample(
            condition.lm,
            condition.texts(rows["prompt"]),
            n=count,
            max_new_tokens=sampling.tokens,
            temperature=sampling.temperature,
            seed=sampling.seed,
            sampler=sampling.sampler,
        )
        table = rows.loc[rows.index.repeat(count)].reset_index(drop=True)
        table["sample"] = np.tile(np.arange(count), len(rows))
        table["text"] = table.pop("prompt") + pd.Series([text for group in samples for text in group])
        tables.append(table)
    found = pd.concat(tables, ignore_index=True)
    found.insert(0, "condition", condition.name)
    return found.assign(label=[expressed.gender_of(text) for text in found["text"]])


def proxies(condition: Condition, prompts: pd.DataFrame) -> pd.DataFrame:
    """The next-token proxy by entity.

    Returns
    -------
    DataFrame
        condition, concept, kind, entity, proxy (mean over personas).
    """
    found = proxy.next_token_bias(condition.lm, condition.texts(prompts["prompt"]))
    table = prompts.reset_index(drop=True).assign(proxy=found["proxy"])
    table = table.groupby(["concept", "kind", "entity"], sort=False, as_index=False)["proxy"].mean()
    table.insert(0, "condition", condition.name)
    return table


def proxy_polarizations(table: pd.DataFrame) -> pd.DataFrame:
    """Bias_pol(c) of :func:`proxies`, with mean_bias: one row a concept and whatever other keys the table has."""
    keys = [column for column in table if column not in ("entity", "proxy")]
    grouped = table.groupby(keys, sort=False)["proxy"]
    found = grouped.agg(mean_bias="mean", bias_pol=lambda bias: expressed.polarization(bias.to_numpy()))
    return found.reset_index()


def pair_states(lm: LanguageModel, split: str) -> Pairs:
    """Last-token states of a split of the contrastive pairs at all blocks; always without instruction."""
    pairs = data.contrast_pairs(split)
    female, male = (activations.last_token_states(lm, list(pairs[side])) for side in ("female", "male"))
    return Pairs(female, male, pairs["words"].to_numpy())


def concept_states(lm: LanguageModel, prompts: pd.DataFrame) -> list[Concept]:
    """Last-token states of the prompts at all blocks, by concept."""
    return encoded.concepts(prompts, activations.last_token_states(lm, list(prompts["prompt"])))


def latent_scores(lm: LanguageModel, prompts: pd.DataFrame) -> pd.DataFrame:
    """s(e) at every block along the model's own Ledoit–Wolf direction: concept, kind, entity, block, score."""
    pairs, found = pair_states(lm, "direction"), concept_states(lm, prompts)
    tables = []
    for block in range(len(lm.blocks)):
        vector = direction.contrast_direction(pairs.female[:, block], pairs.male[:, block], estimator="ledoit-wolf")
        for concept in found:
            table = pd.DataFrame({"concept": concept.name, "kind": concept.kind, "entity": concept.entities})
            tables.append(table.assign(block=block, score=direction.latent_scores(concept.states[:, :, block], vector)))
    return pd.concat(tables, ignore_index=True)
