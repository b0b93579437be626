"""Audit a model against its reference: sentence sets → embeddings of both → ΔB (ΔB paper 3.1-3.4).

One pass a model and sentence set, kept in the cache; the mathematics is in :mod:`biasgeom.relative`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from biasgeom import activations, prompts, relative, sentences
from biasgeom.activations import Reading
from biasgeom.models import LanguageModel
from biasgeom.relative import Embeddings

MEAN = Reading()
"""The paper's reading: the mean over all tokens of what the LM head reads."""


class NotComparable(ValueError):
    """Reference and audited model differ in what a pair must share; the message names what to override."""


@dataclass(frozen=True)
class Sets:
    """The sentences of an audit.

    Attributes
    ----------
    targets : mapping of group → list of str
    positive, negative, anchors : list of str

    Raises
    ------
    ValueError
        A group without sentences, fewer than two anchors, duplicates within a set, or an anchor that is a target too.
    """

    targets: Mapping[str, list[str]]
    positive: list[str]
    negative: list[str]
    anchors: list[str]

    def __post_init__(self) -> None:
        if empty := [group for group, texts in self.targets.items() if not texts]:
            raise ValueError(f"no sentences for {', '.join(empty)}")
        if len(self.anchors) < 2:
            raise ValueError(f"{len(self.anchors)} anchors; a relative representation needs two or more")
        targets = [text for texts in self.targets.values() for text in texts]
        parts = {"targets": targets, "positive": self.positive, "negative": self.negative, "anchors": self.anchors}
        for name, texts in parts.items():
            try:
                prompts.check_texts(texts)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        if both := sorted(set(self.anchors) & set(targets)):
            raise ValueError(f"{len(both)} anchors are targets too, such as {both[0]!r}")

    def lists(self) -> list[list[str]]:
        """The four sets as lists: targets, group after group, positive, negative, anchors."""
        return [[text for texts in self.targets.values() for text in texts], self.positive, self.negative, self.anchors]

    def beginning(self, text: str) -> "Sets":
        """The same sentences with ``text`` before each: a BOS token that the tokenizer does not add."""
        targets = {group: [text + sentence for sentence in texts] for group, texts in self.targets.items()}
        return Sets(targets, *([text + s for s in part] for part in (self.positive, self.negative, self.anchors)))


def sets(
    *,
    templates: int = 50,
    attributes: int = 100,
    anchors: int = 1000,
    source: str = "neutral",
    target_variant: str = "base",
    attribute_variant: str = "base",
) -> Sets:
    """The companion's sentence sets (ΔB paper, App. E, F), or the first of each.

    Parameters
    ----------
    templates : int
        Target sentences a group, at most 50.
    attributes : int
        Positive and negative sentences each, at most 100.
    anchors : int
    source, target_variant, attribute_variant
        See :mod:`biasgeom.sentences`.
    """
    targets = sentences.targets(variant=target_variant, templates=templates)
    by_group = {str(group): list(rows["text"]) for group, rows in targets.groupby("group", sort=False)}
    positive, negative = sentences.attributes(variant=attribute_variant, number=attributes)
    return Sets(by_group, positive, negative, sentences.anchors(source, number=anchors))


def embed(lm: LanguageModel, texts: Sets, reading: Reading = MEAN, *, together: Sequence[Reading] = ()) -> Embeddings:
    """A model's embeddings of the sets.

    Parameters
    ----------
    reading : Reading
    together : list of Reading
        Read in the same pass and kept in the cache, so that asking for another of them later costs no pass.
        ``reading`` must be among them.

    Returns
    -------
    Embeddings
        The four sets are four entries of the cache, so that sets which share one share its pass.
    """
    asked = list(together) or [reading]
    if reading not in asked:
        raise ValueError(f"{reading} is not among the readings of the pass: add it to together")
    place = asked.index(reading)
    return _arranged(texts, [activations.readings(lm, part, asked)[place] for part in texts.lists()])


def embed_several(
    lm: LanguageModel, several: Sequence[Sets], reading: Reading = MEAN, *, base: Sets, together: Sequence[Reading] = ()
) -> list[Embeddings]:
    """A model's embeddings of sets that have sentences in common with each other and with ``base``.

    Parameters
    ----------
    base : Sets
        Embedded as :func:`embed` does with ``together``, so that its pass is the one of the audit. The sentences that
        it lacks are one entry of the cache, each read once, and ``reading`` alone is kept of them.
    """
    rows = np.concatenate(list(embed(lm, base, reading, together=together).parts().values()))
    known = dict(zip(_flat(base), rows, strict=True))
    lacking = [text for text in dict.fromkeys(t for texts in several for t in _flat(texts)) if text not in known]
    if lacking:
        known |= dict(zip(lacking, activations.readings(lm, lacking, [reading])[0], strict=True))
    return [_arranged(texts, [np.stack([known[text] for text in part]) for part in texts.lists()]) for texts in several]


def _flat(texts: Sets) -> list[str]:
    return [text for part in texts.lists() for text in part]


def _arranged(texts: Sets, rows: Sequence[np.ndarray]) -> Embeddings:
    """The rows of :meth:`Sets.lists`, targets by group."""
    ends = np.cumsum([len(group) for group in texts.targets.values()])[:-1]
    return Embeddings(dict(zip(texts.targets, np.split(rows[0], ends), strict=True)), *rows[1:])


def require_comparable(reference: LanguageModel, audited: LanguageModel, *, allow: Sequence[str] = ()) -> list[str]:
    """Refuse a pair whose difference would be about something else than the weights.

    Parameters
    ----------
    allow : list of {"dtype", "special tokens"}
        What may differ all the same.

    Returns
    -------
    list of str
        Warnings, a sentence each: another tokenizer, or another width (which rules Procrustes out).

    Raises
    ------
    NotComparable
        Another dtype (bfloat16 alone shifts B by about as much as fine-tuning does), or special tokens added by one
        tokenizer only.
    """
    probe = "A text."
    differences = {
        "dtype": (str(reference.dtype), str(audited.dtype)),
        "special tokens": (_added(reference, probe), _added(audited, probe)),
    }
    if unknown := set(allow) - set(differences):
        raise ValueError(f"allow names 'dtype' or 'special tokens', not {', '.join(sorted(unknown))}")
    for what, (one, other) in differences.items():
        if one != other and what not in allow:
            raise NotComparable(
                f"{reference.name} and {audited.name} differ in {what}: {one} against {other}. Load both alike, or "
                f"allow it by name: allow=[{what!r}]"
            )
    warnings = []
    if reference.tokenizer.get_vocab() != audited.tokenizer.get_vocab():
        warnings.append(f"{audited.name} has another tokenizer than {reference.name}: token counts differ too.")
    if reference.width != audited.width:
        warnings.append(
            f"{audited.name} is {audited.width} wide and {reference.name} {reference.width}: Procrustes does not apply."
        )
    return warnings


def _added(lm: LanguageModel, text: str) -> str:
    """How many special tokens the tokenizer puts before and after a text."""
    whole = lm.tokenizer(text)["input_ids"]
    plain = lm.tokenizer(text, add_special_tokens=False)["input_ids"]
    before = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), len(whole))
    return f"{before} before and {len(whole) - before - len(plain)} after"


def shifts(
    reference: Embeddings, audited: Embeddings, *, methods: Sequence[str] = ("rr",), fit: str = "anchors"
) -> pd.DataFrame:
    """ΔB of each group by each method, and the CKA drift if ``methods`` names ``"cka"``.

    Returns
    -------
    DataFrame [methods · groups]
        Columns method, group, shift.
    """
    rows = []
    for method in methods:
        if method == "cka":
            by_group = relative.cka_drifts(reference, audited)
        else:
            by_group = relative.delta_b(reference, audited, method=method, fit=fit)
        rows += [{"method": method, "group": group, "shift": value} for group, value in by_group.items()]
    return pd.DataFrame(rows)


def subset(embeddings: Embeddings, *, anchors: int) -> Embeddings:
    """The same embeddings with the first ``anchors`` anchors only."""
    if not 2 <= anchors <= len(embeddings.anchors):
        raise ValueError(f"{anchors} anchors were asked of {len(embeddings.anchors)}; two or more are needed")
    return replace(embeddings, anchors=embeddings.anchors[:anchors])
