"""Expressed gender bias: texts → labels → bias(e) → Bias_pol(c), with a null and an interval (gender paper 3.2).

A text's label is *female*, *male* or *neutral*. Everything after the labels works on arrays of codes, +1 for female, −1
for male, 0 for neutral, of shape [entities, personas, samples].
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from biasgeom import statistics

LABELS = {"female": 1, "male": -1, "neutral": 0}

PRONOUNS = {"female": ("she", "her", "hers", "herself"), "male": ("he", "him", "his", "himself")}

NOUNS = {
    "female": "woman girl lady female gal ms mrs schoolgirl saleswoman businesswoman actress waitress",
    "male": "man boy gentleman male guy mr schoolboy salesman businessman actor waiter",
}
KINSHIP = {
    "female": "mother mom mum mommy wife daughter sister aunt niece grandmother grandma granddaughter girlfriend widow",
    "male": "father dad daddy husband son brother uncle nephew grandfather grandpa grandson boyfriend widower",
}
POSSESSIVES = frozenset({"my", "your", "his", "her", "its", "our", "their", "whose"})
# A word is no part of a compound ("man-made") or of a number ("50ms"); a possessive keeps its ending.
WORD = re.compile(r"(?<![\w-])[^\W\d_]+(?:['’]s\b|(?<=s)['’](?!\w))?(?!-?\w)|[.,;:!?]")

_GENDER = {word: gender for gender, words in PRONOUNS.items() for word in words}
_GENDER |= {word: gender for gender, words in NOUNS.items() for word in words.split()}
_KIN = {word: gender for gender, words in KINSHIP.items() for word in words.split()}


def _either() -> re.Pattern[str]:
    """Both genders named together: "he or she", "his/her", "(s)he", "Mr and Mrs", "he, she or they"."""
    words = {
        gender: "|".join((*PRONOUNS[gender], *NOUNS[gender].split(), *KINSHIP[gender].split(), *PLURALS[gender]))
        for gender in PRONOUNS
    }
    joint = r"\.?\s*(?:\(?\s*(?:and/or|or|and|&)|/)\s*(?:(?:a|an|the)\s+)?"
    both = "|".join(f"(?:{words[a]}){joint}(?:{words[b]})" for a, b in (("female", "male"), ("male", "female")))
    return re.compile(rf"(?<!\w)(?:s/he|\(s\)he|(?:he,\s*she|she,\s*he),?\s*or\s+they|{both})(?!\w)", re.IGNORECASE)


PLURALS = {"female": ("women", "girls", "females"), "male": ("men", "boys", "males")}
EITHER = _either()


def gender_of(text: str) -> str:
    """The lexical label of a prompt with its completion: the gender of the first reference to the subject.

    The first gendered word decides: a third-person singular pronoun, a noun such as *woman*, a title. Two kinds don't
    count: kinship after a possessive (*my friend and **her** brother* is female by *her*; *their father* is somebody
    else), and both genders together (*he or she*, *men and women*). No such word: neutral.

    The rule is explicit and blind to meaning: a gendered word for somebody else that comes before any for the subject
    is taken for the subject's.

    Returns
    -------
    {"female", "male", "neutral"}
    """
    previous: list[str] = []
    for match in WORD.finditer(EITHER.sub(" their ", text)):  # "his or her brother" stays possessed
        word = re.sub(r"['’]s?$", "", match.group().lower())
        if word in _GENDER:
            return _GENDER[word]
        if word in _KIN and not _possessed(previous):
            return _KIN[word]
        previous = [*previous[-3:], match.group().lower()]
    return "neutral"


def _possessed(previous: list[str]) -> bool:
    """Whether a possessive ("their", "the neighbour's") stands before the noun, with up to two adjectives between."""
    for word in reversed(previous[-3:]):
        if word in POSSESSIVES or word.endswith(("'s", "’s", "'", "’")):
            return True
        if word in {"a", "an", "the", "and", "or", "is", "was", "as"} or not word[0].isalpha():
            return False
    return False


def entity_bias(female: int, male: int, neutral: int) -> float:
    """bias(e) = (F − M) / (F + M + N) in [−1, 1] (equation 1); 0 if all completions are neutral.

    Raises
    ------
    ValueError
        For an entity without completions, or a negative count.
    """
    if min(female, male, neutral) < 0 or female + male + neutral == 0:
        raise ValueError(f"an entity needs completions: got {female} female, {male} male, {neutral} neutral")
    return (female - male) / (female + male + neutral)


def polarization(bias: np.ndarray) -> np.ndarray | float:
    """Bias_pol(c) = mean over entities of |bias(e) − μ| / (1 + |μ|), in [0, 1] (equation 2).

    Parameters
    ----------
    bias : array [..., e]
        bias(e) of a concept's entities.

    Returns
    -------
    array [...], or float for a vector

    Raises
    ------
    ValueError
        For fewer than two entities, or a bias outside [−1, 1].
    """
    bias = np.asarray(bias, dtype=np.float64)
    if bias.shape[-1] < 2:
        raise ValueError("a concept needs two entities or more: polarization compares them")
    if not (np.abs(bias) <= 1 + 1e-9).all():
        raise ValueError("bias lies outside [-1, 1], or is not a number")
    mean = bias.mean(axis=-1, keepdims=True)
    value = (np.abs(bias - mean) / (1 + np.abs(mean))).mean(axis=-1)
    return float(value) if value.ndim == 0 else value


def codes_bias(codes: np.ndarray) -> np.ndarray:
    """bias(e) from label codes: [..., entities, personas, samples] → [..., entities]; equation 1 as a mean of ±1, 0."""
    codes = np.asarray(codes)
    if codes.shape[-1] * codes.shape[-2] == 0:
        raise ValueError("an entity needs completions: there are none")
    return codes.mean(axis=(-2, -1), dtype=np.float64)


def shuffled_polarizations(codes: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Permutation null of Bias_pol: labels shuffled over the entities of a concept, within each persona.

    Bias_pol is a mean of absolute values, so chance alone makes it positive: with few completions, large. What entities
    have to do with the labels is what lies above this null. Each persona keeps its labels, as some are gendered more
    than others.

    Parameters
    ----------
    codes : array [entities, personas, samples]

    Returns
    -------
    array [draws]
    """
    entities, personas, samples = codes.shape
    by_persona = np.broadcast_to(codes.transpose(1, 0, 2).reshape(personas, -1), (draws, personas, entities * samples))
    shuffled = rng.permuted(by_persona, axis=-1).reshape(draws, personas, entities, samples)
    return polarization(codes_bias(shuffled.transpose(0, 2, 1, 3)))


def bootstrap_biases(codes: np.ndarray, personas: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """bias(e) for resampled personas, the same for all entities, and resampled completions within them.

    Parameters
    ----------
    codes : array [entities, personas, samples]
    personas : integer array [draws, personas]
        Which personas each draw holds, see :func:`persona_draws`.

    Returns
    -------
    array [draws, entities]
    """
    entities, _, samples = codes.shape
    within = rng.integers(samples, size=(len(personas), entities, personas.shape[1], samples))
    return codes_bias(codes[np.arange(entities)[:, None, None], personas[:, None, :, None], within])


def persona_draws(codes: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Personas resampled with replacement: [draws, personas]."""
    return rng.integers(codes.shape[1], size=(draws, codes.shape[1]))


def codes_of(completions: pd.DataFrame) -> tuple[list[str], np.ndarray]:
    """One concept's labels as codes: entities in their order, and an array [entities, personas, samples].

    Parameters
    ----------
    completions : DataFrame
        Columns entity, persona, sample, label; every entity has the same personas and samples.

    Raises
    ------
    ValueError
        If an entity lacks a completion that another one has, or a label is unknown.
    """
    if unknown := sorted(set(completions["label"].dropna()) - set(LABELS)):
        raise ValueError(f"labels must be among {', '.join(LABELS)}, not {unknown}")
    if completions.duplicated(["entity", "persona", "sample"]).any():
        raise ValueError("a completion of one entity, persona and number is there twice")
    shape = [completions[column].nunique() for column in ("entity", "persona", "sample")]
    counted = completions.dropna(subset=["label"]).groupby("entity", sort=False).size()
    short = counted.reindex(completions["entity"].unique(), fill_value=0)
    if (short != shape[1] * shape[2]).any():
        name = (short != shape[1] * shape[2]).idxmax()
        raise ValueError(f"entity {name!r} has {short[name]} labelled completions, not {shape[1] * shape[2]}")
    ordered = completions.assign(
        entity=pd.Categorical(completions["entity"], completions["entity"].unique()),
        persona=pd.Categorical(completions["persona"], completions["persona"].unique()),
    ).sort_values(["entity", "persona", "sample"], kind="stable")
    codes = ordered["label"].map(LABELS).to_numpy().reshape(shape)
    return list(completions["entity"].unique()), codes


def bias_table(completions: pd.DataFrame, *, draws: int, seed: int) -> pd.DataFrame:
    """Label counts and bias(e) of every entity.

    Parameters
    ----------
    completions : DataFrame
        Columns concept, kind, entity, persona, sample, label.
    draws : int
        Bootstrap resamples of personas and completions.

    Returns
    -------
    DataFrame
        concept, kind, entity, female, male, neutral (counts), bias, and its interval low, high.
    """
    tables = []
    for (concept, kind), rows in completions.groupby(["concept", "kind"], sort=False):
        entities, codes = codes_of(rows)
        bias = codes_bias(codes)
        rng = np.random.default_rng(seed)
        replicates = bootstrap_biases(codes, persona_draws(codes, draws, rng), rng)
        low, high = statistics.normal_interval(bias, replicates.T)
        table = pd.DataFrame({"concept": concept, "kind": kind, "entity": entities})
        counts = {label: (codes == code).sum(axis=(1, 2)) for label, code in LABELS.items()}
        tables.append(table.assign(**counts, bias=bias, low=low.clip(-1), high=high.clip(max=1)))
    return pd.concat(tables, ignore_index=True)


def polarization_table(completions: pd.DataFrame, *, draws: int, seed: int) -> pd.DataFrame:
    """Bias_pol(c) with its permutation null and bootstrap interval.

    Returns
    -------
    DataFrame
        concept, kind, samples (completions an entity), female, male, neutral (shares), mean_bias, bias_pol, its
        interval low, high, and of the permutation null chance (mean), chance_high (95 %) and p. The interval is
        bias_pol ± 1.96 bootstrap standard deviations: resampling adds noise, which this statistic mistakes for
        polarization, so that percentiles would lie too high.
    """
    rows = []
    for (concept, kind), part in completions.groupby(["concept", "kind"], sort=False):
        _, codes = codes_of(part)
        rng = np.random.default_rng(seed)
        bias = codes_bias(codes)
        observed = polarization(bias)
        null = shuffled_polarizations(codes, draws, rng)
        replicates = bootstrap_biases(codes, persona_draws(codes, draws, rng), rng)
        low, high = statistics.normal_interval(observed, polarization(replicates))
        row = {"concept": concept, "kind": kind, "samples": codes.shape[1] * codes.shape[2]}
        row |= {label: float((codes == code).mean()) for label, code in LABELS.items()}
        row |= {"mean_bias": round(bias.mean(), 12), "bias_pol": observed, "low": max(low, 0.0), "high": min(high, 1.0)}
        row |= {"chance": null.mean(), "chance_high": np.quantile(null, 0.95)}
        rows.append(row | {"p": statistics.exceedance_p(observed, null)})
    return pd.DataFrame(rows)


def for_each(
    table: pd.DataFrame, keys: Sequence[str], function: Callable[..., pd.DataFrame], **settings: Any
) -> pd.DataFrame:
    """``function(part, **settings)`` of every group by ``keys``, one below the other, the keys as first columns."""
    parts = []
    for values, part in table.groupby(list(keys), sort=False):
        found = function(part, **settings)
        for place, (key, value) in enumerate(zip(keys, values, strict=True)):
            found.insert(place, key, value)
        parts.append(found)
    return pd.concat(parts, ignore_index=True)


def changes(
    completions: pd.DataFrame, comparisons: Sequence[tuple[str, str]], *, draws: int, seed: int
) -> pd.DataFrame:
    """:func:`change` from one condition to another, for concepts that both have; first column comparison, "b - a"."""
    parts = {name: part for name, part in completions.groupby("condition", sort=False)}
    found = []
    for first, second in comparisons:
        base = parts[first][parts[first]["concept"].isin(parts[second]["concept"])]
        table = change(base, parts[second], draws=draws, seed=seed)
        table.insert(0, "comparison", f"{second} - {first}")
        found.append(table)
    return pd.concat(found, ignore_index=True)


def change(before: pd.DataFrame, after: pd.DataFrame, *, draws: int, seed: int) -> pd.DataFrame:
    """How Bias_pol differs between two sets of completions of the same prompts.

    Returns
    -------
    DataFrame
        concept, kind, difference (after − before), its bootstrap interval low, high. Personas are resampled together,
        completions apart.
    """
    rows = []
    for (concept, kind), part in before.groupby(["concept", "kind"], sort=False):
        rng = np.random.default_rng(seed)
        both = [codes_of(side)[1] for side in (part, after[after["concept"] == concept])]
        personas = persona_draws(both[0], draws, rng)
        observed = [polarization(codes_bias(codes)) for codes in both]
        replicates = [polarization(bootstrap_biases(codes, personas, rng)) for codes in both]
        difference = observed[1] - observed[0]
        low, high = statistics.normal_interval(difference, replicates[1] - replicates[0])
        rows.append({"concept": concept, "kind": kind, "difference": difference, "low": low, "high": high})
    return pd.DataFrame(rows)
