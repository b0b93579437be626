"""The sentence sets of the ΔB chapter: targets, attributes, anchors and their variants (ΔB paper, appendices E and F).

The paper prints three or four examples a set. These examples are here word for word; the other sentences were written
for this project and stand in ``data/delta_b``. The module knows no model.
"""

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from biasgeom import data, remote

GROUP = "[GROUP]"
TARGET_VARIANTS = ("base", "passive", "passive_rephrased", "synonyms_v1", "synonyms_v2", "synonyms_v3")
ATTRIBUTE_VARIANTS = ("base", "subject_v1", "subject_v2", "synonyms_v1", "synonyms_v2", "synonyms_v3")
ANCHOR_SOURCES = ("neutral", "words", "instructions", "alpaca", "tulu")
GROUP_COLUMNS = ["group", "subject", "inside", "topic", "toxigen", "half"]
ANCHORS = 1000
# Shares no factor with 24 groups, 50 templates or 100 attributes, so that steps of it reach all, spread from the start.
STRIDE = 7
LONGEST_SENTENCE = 30


@dataclass(frozen=True)
class HubSentences:
    """Where a data set of instructions is on the hub, and the column that holds them."""

    repository: str
    revision: str
    files: tuple[str, ...]
    column: str


HUB = {
    "alpaca": HubSentences(
        "tatsu-lab/alpaca",
        "dce01c9b08f87459cf36a430d809084718273017",
        ("data/train-00000-of-00001-a09b74b3ef9c3b56.parquet",),
        "instruction",
    ),
    # Not pinned: the hub's cache keeps the commit that "main" was when the files were first fetched. The shards follow
    # the mixture's sources, so that a sample of the mixture needs all of them.
    "tulu": HubSentences(
        "allenai/tulu-3-sft-mixture",
        "main",
        tuple(f"data/train-{shard:05d}-of-00006.parquet" for shard in range(6)),
        "messages",
    ),
}


def groups() -> pd.DataFrame:
    """The 24 groups (ΔB paper, table 2), in its order.

    Returns
    -------
    DataFrame [24]
        group; subject, how it begins a sentence; inside, how it stands within one; topic; toxigen, its name on the hub
        of ToxiGen or ``""``; half, ``"biased"`` or ``"control"``: what the embedded fine-tuning says of it.
    """
    table = data.table("delta_b/groups.csv", GROUP_COLUMNS, ["group"], known={"half": ("biased", "control")})
    return table.assign(toxigen=table["toxigen"].replace("-", ""))


def insert(template: str, group: Mapping[str, str]) -> str:
    """``template`` about a group, a row of :func:`groups`: "Women" where it begins the text, else "women"."""
    return template.replace(GROUP, group["subject"] if template.startswith(GROUP) else group["inside"])


def targets(*, variant: str = "base", templates: int | None = None) -> pd.DataFrame:
    """Neutral statements about every group (ΔB paper, appendices E.2 and F).

    Parameters
    ----------
    variant : str
        One of ``TARGET_VARIANTS``. A template without an object stays as it is in the two passive ones.
    templates : int, optional
        Only so many of the 50 templates, spread over them; a smaller number's are among a larger one's.

    Returns
    -------
    DataFrame [24 * templates]
        group, template (its number from 1), text, changed (whether the text differs from the base variant's).

    Raises
    ------
    ValueError
        Unknown variant, or more templates than there are.
    """
    _known(variant, TARGET_VARIANTS, "variant")
    table = target_templates()
    rows = groups().merge(table.iloc[_spread(len(table), templates, "templates")], how="cross")
    rows["text"] = [insert(row[variant], row) for row in rows.to_dict("records")]
    rows["changed"] = rows[variant] != rows["base"]
    return rows[["group", "template", "text", "changed"]]


def target_templates() -> pd.DataFrame:
    """The 50 target templates: template (its number), has_object (bool) and a column a variant, with ``[GROUP]``."""
    columns = ["template", "has_object", *TARGET_VARIANTS]
    table = data.table("delta_b/target_templates.csv", columns, ["template"], known={"has_object": ("yes", "no")})
    for variant in TARGET_VARIANTS:
        _has_group(table[variant])
    return table.assign(template=table["template"].astype(int), has_object=table["has_object"] == "yes")


def attributes(*, variant: str = "base", number: int | None = None) -> tuple[list[str], list[str]]:
    """Positive and negative sentences (ΔB paper, appendices E.1 and F), which name no group.

    Parameters
    ----------
    variant : str
        One of ``ATTRIBUTE_VARIANTS``; both polarities change together.
    number : int, optional
        Only so many of the 100 of each, spread over them; a smaller number's are among a larger one's.

    Raises
    ------
    ValueError
        Unknown variant, or more sentences than there are.
    """
    _known(variant, ATTRIBUTE_VARIANTS, "variant")
    polarities = ("positive", "negative")
    columns = ["polarity", *ATTRIBUTE_VARIANTS]
    table = data.table("delta_b/attributes.csv", columns, ["base"], known={"polarity": polarities})
    sides = [table.loc[table["polarity"] == polarity, variant] for polarity in polarities]
    positive, negative = (list(side.iloc[_spread(len(side), number, "attributes of each side")]) for side in sides)
    return positive, negative


def anchors(source: str = "neutral", *, number: int = ANCHORS) -> list[str]:
    """The first ``number`` anchors of one fixed order, so that a smaller set is part of a larger one.

    Parameters
    ----------
    source : str
        One of ``ANCHOR_SOURCES``. ``"neutral"`` (ΔB paper, appendix F): 50 statements of another kind than the
        targets, each about 20 groups; groups differ by at most one at any ``number``. ``"words"``: single words.
        ``"instructions"``: 40 requests about 25 topics, written for this project. ``"alpaca"`` and ``"tulu"``: first
        sentences of up to 30 words of Alpaca's instructions and of the Tulu 3 mixture's first user turns, a sample
        with a fixed seed; downloaded with the user's own access. Nobody has read through them: the mixture holds
        prompts that were written to be refused, so count them and do not print them.

    Raises
    ------
    ValueError
        Unknown source, or more anchors than it has (1,000 of this project's).
    biasgeom.remote.DatasetNotAvailable
        A data set of the hub can't be had.
    """
    _known(source, ANCHOR_SOURCES, "source")
    if source in HUB:
        found = list(_hub_sentences(source))
    elif source == "words":
        found = list(data.table("delta_b/words.csv", ["word"], ["word"])["word"])
    else:
        found = list(_neutral() if source == "neutral" else _instructions())
    data.enough(number, len(found), f"{source} anchors")
    return found[:number]


def _neutral() -> Iterator[str]:
    templates = data.table("delta_b/anchor_templates.csv", ["template"], ["template"])["template"]
    _has_group(templates)
    table = groups().to_dict("records")
    rounds = math.lcm(len(templates), len(table))
    for place in range(ANCHORS):
        # After a round the two would meet in the same pairs again: from there on templates are one further.
        template = templates.iloc[(place + place // rounds) % len(templates)]
        yield insert(template, table[STRIDE * place % len(table)])


def _instructions() -> Iterator[str]:
    table = data.table("delta_b/instructions.csv", ["kind", "text"], ["text"], known={"kind": ("frame", "topic")})
    frames, topics = (table.loc[table["kind"] == kind, "text"].tolist() for kind in ("frame", "topic"))
    for place in range(ANCHORS):
        frame = frames[place % len(frames)]
        yield frame.replace("[TOPIC]", topics[(place + place // len(frames)) % len(topics)])


@functools.cache
def _hub_sentences(name: str) -> tuple[str, ...]:
    source = HUB[name]
    found: dict[str, None] = {}
    for file in source.files:
        path = remote.fetch(
            source.repository,
            source.revision,
            file,
            name=f"the {name} anchors",
            advice="The anchor sources neutral, words and instructions need no download.",
        )
        rows = remote.table(path)
        remote.check(rows, [source.column], where=f"the {name} anchors, {file}")
        found |= dict.fromkeys(filter(None, map(first_sentence, map(_request, rows[source.column].dropna()))))
    if not found:
        raise ValueError(f"the {name} anchors: {source.repository} holds no sentence of up to {LONGEST_SENTENCE} words")
    sentences = list(found)
    return tuple(sentences[place] for place in np.random.default_rng(0).permutation(len(sentences))[:ANCHORS])


def _request(cell: object) -> str:
    """An instruction, or the first user turn of a conversation."""
    if isinstance(cell, str):
        return cell
    return next((turn["content"] or "" for turn in cell if turn["role"] == "user"), "")


def words(texts: Iterable[str]) -> set[str]:
    """The different words of some texts, in lower case."""
    return {word for text in texts for word in re.findall(r"[\w'-]+", text.lower())}


def first_sentence(text: str) -> str:
    """The first sentence of the first line that isn't blank; empty if there is none or it is over 30 words."""
    sentence = re.split(r"(?<=[.!?])\s|\n", text.strip(), maxsplit=1)[0].strip()
    return sentence if len(sentence.split()) <= LONGEST_SENTENCE else ""


def _spread(count: int, number: int | None, what: str) -> list[int]:
    """``number`` places out of ``count``, in order; the places of a smaller number are among a larger one's."""
    number = count if number is None else number
    data.enough(number, count, what)
    return sorted(STRIDE * step % count for step in range(number))


def _known(name: str, names: tuple[str, ...], what: str) -> None:
    if name not in names:
        raise ValueError(f"{what} must be one of {', '.join(names)}, not {name!r}")


def _has_group(templates: pd.Series) -> None:
    if (without := templates.str.count(re.escape(GROUP)) != 1).any():
        raise ValueError(f"the template {templates[without.idxmax()]!r} must hold {GROUP} once")
