r"""Relative representations, associations and the Representational Bias Shift ΔB, with its baselines (ΔB paper 3, 4.5).

Sentence embeddings go in, numbers a group come out; no model is known here. Everything is computed in float64, since
ΔB is a small difference of means over thousands of distances.

A distance between relative representations is a root over m anchors, so B_rel and ΔB grow as :math:`\sqrt m`: divide
ΔB by it wherever different m are compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.linalg import orthogonal_procrustes
from scipy.spatial.distance import cdist

METHODS = ("rr", "seat", "procrustes")
FITS = ("anchors", "targets", "all")


def _rows(values: np.ndarray, what: str) -> np.ndarray:
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"{what}: need an array [sentences, width] that isn't empty; got the shape {rows.shape}")
    if (bad := ~np.isfinite(rows).all(axis=1)).any():
        raise ValueError(f"{what}: the embedding of sentence {bad.argmax()} is not finite; look at the model's dtype")
    return rows


def _unit(values: np.ndarray, what: str) -> np.ndarray:
    rows = _rows(values, what)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if (norms == 0).any():
        raise ValueError(f"{what}: the embedding of sentence {norms[:, 0].argmin()} is zero; it has no cosine")
    return rows / norms


def _one_width(parts: Mapping[str, np.ndarray]) -> None:
    widths = {name: rows.shape[1] for name, rows in parts.items()}
    if len(set(widths.values())) > 1:
        raise ValueError(f"the embeddings differ in width, so they are not of one model: {widths}")


@dataclass(frozen=True, eq=False)
class Embeddings:
    """One model's embeddings of all sentence sets, kept in float64.

    Attributes
    ----------
    targets : mapping of group → array [n, d]
    positive, negative : array [p, d], [q, d]
        Attribute sentences.
    anchors : array [m, d]
        At least two.

    Raises
    ------
    ValueError
        Sets that are empty, not finite, zero, or of several widths.
    """

    targets: Mapping[str, np.ndarray]
    positive: np.ndarray
    negative: np.ndarray
    anchors: np.ndarray

    def __post_init__(self) -> None:
        if not self.targets:
            raise ValueError("there are no target groups")
        object.__setattr__(self, "targets", {g: _rows(rows, f"group {g}") for g, rows in self.targets.items()})
        for part in ("positive", "negative", "anchors"):
            object.__setattr__(self, part, _rows(getattr(self, part), part))
        if len(self.anchors) < 2:
            raise ValueError(f"need at least 2 anchors, got {len(self.anchors)}")
        _one_width(self.parts())
        for name, rows in self.parts().items():
            _unit(rows, name)

    def parts(self) -> dict[str, np.ndarray]:
        """All sentence sets by name."""
        groups = {f"group {group}": rows for group, rows in self.targets.items()}
        return groups | {"positive": self.positive, "negative": self.negative, "anchors": self.anchors}


def _closeness(rows: np.ndarray, others: np.ndarray, metric: str) -> np.ndarray:
    """Negated distances or cosines: [n, k], [p, k] → [n, p]."""
    _one_width({"sentences": (rows := _rows(rows, "sentences")), "the others": (others := _rows(others, "the others"))})
    if metric == "cosine":
        return _unit(rows, "sentences") @ _unit(others, "the others").T
    if metric == "euclidean":
        # Not from inner products: they lose the digits of a small distance between long vectors.
        return -cdist(rows, others)
    raise ValueError(f"metric must be 'euclidean' or 'cosine', not {metric!r}")


def relative_representation(embeddings: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """Cosines with the anchors, not centred: [n, d], [m, d] → [n, m] (ΔB paper, equation 4)."""
    return _closeness(embeddings, anchors, "cosine")


def association(
    targets: np.ndarray, positive: np.ndarray, negative: np.ndarray, *, metric: str = "euclidean"
) -> np.ndarray:
    """S⁺ − S⁻ of each target sentence: above zero, it is closer to the positive sentences (ΔB paper, 2 and 5).

    Parameters
    ----------
    targets, positive, negative : array [n, k], [p, k], [q, k]
        Embeddings, or relative representations.
    metric : {"euclidean", "cosine"}
        Negated Euclidean distance, as the paper has it for relative representations, or cosine, as for embeddings.

    Returns
    -------
    array [n], float64
        A difference of means, not divided by anything.
    """
    return _closeness(targets, positive, metric).mean(axis=1) - _closeness(targets, negative, metric).mean(axis=1)


@dataclass(frozen=True, eq=False)
class Similarities:
    """How close every target sentence is to every attribute sentence, or by how much that changed.

    Attributes
    ----------
    positive, negative : array [n, p], [n, q]
        Rows are the target sentences, group after group.
    sizes : dict of group → number of its sentences, in the order of the rows
    """

    positive: np.ndarray
    negative: np.ndarray
    sizes: dict[str, int]

    def by_group(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """Values [n, ...] of the target sentences, group by group."""
        parts = np.split(values, np.cumsum(list(self.sizes.values()))[:-1])
        return dict(zip(self.sizes, parts, strict=True))

    def bias(self) -> dict[str, float]:
        """B of every group, the mean association of its sentences (ΔB paper, equations 3 and 6)."""
        sentences = self.positive.mean(axis=1) - self.negative.mean(axis=1)
        return {group: float(part.mean()) for group, part in self.by_group(sentences).items()}


def similarities(embeddings: Embeddings, *, method: str = "rr") -> Similarities:
    """Of one model: negated distances of relative representations ("rr") or cosines of embeddings ("seat")."""
    sets = np.concatenate(list(embeddings.targets.values())), embeddings.positive, embeddings.negative
    if method == "rr":
        sets = tuple(relative_representation(rows, embeddings.anchors) for rows in sets)
    elif method != "seat":
        raise ValueError(f"the bias of one model has the methods rr and seat, not {method!r}")
    metric = "euclidean" if method == "rr" else "cosine"
    sizes = {group: len(rows) for group, rows in embeddings.targets.items()}
    return Similarities(_closeness(sets[0], sets[1], metric), _closeness(sets[0], sets[2], metric), sizes)


def bias(embeddings: Embeddings, *, method: str = "rr") -> dict[str, float]:
    """B of every group: B_rel with ``method="rr"``, the SEAT-style B with ``"seat"`` (ΔB paper 3.2, 3.3)."""
    return similarities(embeddings, method=method).bias()


def _same_sentences(reference: Embeddings, audited: Embeddings) -> Embeddings:
    """The audited embeddings, groups in the reference's order."""
    if odd := sorted(set(reference.targets) ^ set(audited.targets)):
        raise ValueError(f"reference and audited model must have the same groups; only one has {', '.join(odd)}")
    audited = replace(audited, targets={group: audited.targets[group] for group in reference.targets})
    for (name, rows), others in zip(reference.parts().items(), audited.parts().values(), strict=True):
        if len(rows) != len(others):
            raise ValueError(
                f"{name}: the reference has {len(rows)} sentences, the audited model {len(others)}; embed the same ones"
            )
    return audited


def procrustes(reference: Embeddings, audited: Embeddings, *, fit: str = "anchors") -> tuple[np.ndarray, int]:
    """The orthogonal map of Procrustes-SEAT, neither centred nor scaled (ΔB paper 4.5).

    Parameters
    ----------
    fit : {"anchors", "targets", "all"}
        The sentences it is fitted on; all: targets, attributes and anchors.

    Returns
    -------
    rotation : array [d, d]
        ``audited @ rotation`` lies nearest to the reference.
    rank : int
        Of the cross product. Below d the map is not unique: what no fitted sentence spans is turned arbitrarily, even
        between a model and itself.
    """
    audited = _same_sentences(reference, audited)
    if reference.anchors.shape != audited.anchors.shape:
        widths = [e.anchors.shape[1] for e in (reference, audited)]
        raise ValueError(f"Procrustes needs one width, not {widths}; rr compares any two models")
    if fit not in FITS:
        raise ValueError(f"fit must be one of {', '.join(FITS)}, not {fit!r}")
    goal, start = (
        np.concatenate(list({"anchors": {"": e.anchors}, "targets": e.targets, "all": e.parts()}[fit].values()))
        for e in (reference, audited)
    )
    return orthogonal_procrustes(start, goal)[0], int(np.linalg.matrix_rank(start.T @ goal))


def similarity_shift(
    reference: Embeddings, audited: Embeddings, *, method: str = "rr", fit: str = "anchors"
) -> Similarities:
    """By how much every similarity changed; its ``bias()`` is ΔB. See :func:`delta_b`."""
    audited = _same_sentences(reference, audited)
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    if method == "procrustes":
        # A rotation of targets and attributes alike changes no cosine, so the attributes stay the reference's own.
        rotation, _ = procrustes(reference, audited, fit=fit)
        audited = replace(reference, targets={group: rows @ rotation for group, rows in audited.targets.items()})
        method = "seat"
    before, after = (similarities(e, method=method) for e in (reference, audited))
    return Similarities(after.positive - before.positive, after.negative - before.negative, before.sizes)


def delta_b(
    reference: Embeddings, audited: Embeddings, *, method: str = "rr", fit: str = "anchors"
) -> dict[str, float]:
    """ΔB = B_audited − B_reference of every group; below zero, the group moved towards the negative sentences.

    Parameters
    ----------
    reference, audited : Embeddings
        Of the same sentences in the same order; other groups or numbers of sentences raise a ValueError.
    method : {"rr", "seat", "procrustes"}
        Relative representations; cosines in each model's own space; audited targets, turned into the reference's
        space, against the reference's attributes (ΔB paper 3.4, 4.5).
    fit : {"anchors", "targets", "all"}
        What the Procrustes map is fitted on; see :func:`procrustes` for its rank.
    """
    return similarity_shift(reference, audited, method=method, fit=fit).bias()


def delta_b_interval(
    reference: Embeddings,
    audited: Embeddings,
    *,
    method: str = "rr",
    shared_templates: bool = False,
    draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> pd.DataFrame:
    """ΔB with percentile intervals over the choice of target and attribute sentences: group, delta_b, low, high.

    Both models see the same resampled sentences. Attributes are drawn within their polarity and serve all groups of a
    draw. Anchors, and with them a Procrustes map, stay as they are.

    Parameters
    ----------
    shared_templates : bool
        Sentence i of every group is the same template: then all groups of a draw get the same ones.
    """
    shift = similarity_shift(reference, audited, method=method)
    if shared_templates and len(set(shift.sizes.values())) > 1:
        raise ValueError(f"groups that share their templates have one number of sentences, not {shift.sizes}")
    rng = np.random.default_rng(seed)

    def shares(n: int) -> np.ndarray:
        return rng.multinomial(n, np.full(n, 1 / n), size=draws) / n

    # A mean over resampled sentences is a product with how often each was drawn: [n, draws].
    sentences = shift.positive @ shares(shift.positive.shape[1]).T - shift.negative @ shares(shift.negative.shape[1]).T
    common = shares(next(iter(shift.sizes.values()))) if shared_templates else None
    rows = []
    for (group, part), value in zip(shift.by_group(sentences).items(), shift.bias().values(), strict=True):
        replicates = ((shares(len(part)) if common is None else common) * part.T).sum(axis=1)
        rows.append((group, value, *np.quantile(replicates, [0.5 - level / 2, 0.5 + level / 2])))
    return pd.DataFrame(rows, columns=["group", "delta_b", "low", "high"])


def cka_drift(reference: np.ndarray, audited: np.ndarray) -> float:
    """1 − linear CKA of the same sentences in two models: [n, d], [n, e] → how far they moved (ΔB paper 4.5).

    Columns are centred. Zero up to a rotation, a translation and a common scale; it has no sign, so it flags when high.
    ValueError if the sentences are not as many in both, fewer than two, or all the same.
    """
    x, y = _rows(reference, "reference"), _rows(audited, "audited")
    if len(x) != len(y) or len(x) < 2:
        raise ValueError(f"CKA needs the same 2 or more sentences of both models; got {len(x)} and {len(y)}")
    centred = [rows - rows.mean(axis=0) for rows in (x, y)]
    if any(np.linalg.norm(c) <= 1e-12 * np.linalg.norm(rows) for c, rows in zip(centred, (x, y), strict=True)):
        raise ValueError("all sentences have the same embedding: there is no CKA")
    # The n × n form: a group has tens of sentences in hundreds of dimensions.
    first, second = (c @ c.T for c in centred)
    return float(1 - (first * second).sum() / np.linalg.norm(first) / np.linalg.norm(second))


def cka_drifts(reference: Embeddings, audited: Embeddings) -> dict[str, float]:
    """:func:`cka_drift` of every group's target sentences."""
    audited = _same_sentences(reference, audited)
    return {group: cka_drift(rows, audited.targets[group]) for group, rows in reference.targets.items()}
