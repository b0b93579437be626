r"""Directions of several models in one space, and their cosines (judge paper I.3, table 12).

Each model's states are projected to the same k dimensions by its own random orthonormal matrix :math:`P_m`; iterated
orthogonal Procrustes turns the clouds of the same texts onto each other. n centred texts span at most n − 1 of the k
dimensions (the paper: 499 of 1,024), and no alignment says how to turn the rest: there a full rotation's values are set
by rounding. So the shared space is what the texts span, and the part of a direction outside it overlaps with nothing.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.linalg import orthogonal_procrustes

from biasgeom.statistics import exceedance_p
from biasgeom.substrate import TINY, matrix

DIMENSION = 1024


@dataclass(frozen=True)
class SharedSpace:
    """Maps into the shared space of r dimensions.

    Attributes
    ----------
    projections : dict of model → array [d_m, k]
        Orthonormal columns.
    bases : dict of model → array [k, r]
        Orthonormal axes of the model's projected cloud; columns of zeros for axes that it lacks.
    clouds : dict of model → array [n, r]
        The clouds on these axes, centred, each of Frobenius norm 1.
    rotations : dict of model → array [r, r]
    """

    projections: dict[str, np.ndarray]
    bases: dict[str, np.ndarray]
    clouds: dict[str, np.ndarray]
    rotations: dict[str, np.ndarray]

    def place(self, model: str, direction: np.ndarray) -> np.ndarray:
        """A direction [d_m], or several [..., d_m], as vectors [..., r] of length 1 or less.

        The squared length is the share of the projected direction that the texts span.

        Raises
        ------
        ValueError
            Another width, or a direction that is zero or lost by the projection.
        """
        direction, projection = np.asarray(direction, dtype=np.float64), self.projections[model]
        if direction.shape[-1] != len(projection):
            raise ValueError(f"{model} has width {len(projection)}, the direction {direction.shape[-1]}")
        projected = direction @ projection
        lengths = np.linalg.norm(projected, axis=-1, keepdims=True)
        if (lengths <= TINY * np.linalg.norm(direction, axis=-1, keepdims=True)).any():
            raise ValueError(f"{model}: a direction is zero or lies outside the random projection")
        return projected / lengths @ self.bases[model] @ self.rotations[model]

    def misaligned(self, rng: np.random.Generator, iterations: int) -> "SharedSpace":
        """The same space, aligned on texts that are shuffled in all models but the first."""
        first = next(iter(self.clouds))
        shuffled = {name: cloud if name == first else rng.permutation(cloud) for name, cloud in self.clouds.items()}
        return SharedSpace(self.projections, self.bases, shuffled, _rotations(shuffled, iterations))


def fit(
    clouds: Mapping[str, np.ndarray], *, dimension: int | None = None, iterations: int = 10, seed: int = 42
) -> SharedSpace:
    """Project and align clouds of the same texts, of two or more models: {model: [n, d_m]}.

    Clouds are centred and scaled to one size, so that a model of large norms does not set the alignment alone. An
    iteration turns every cloud but the first onto the mean of the others.

    Parameters
    ----------
    dimension : int, optional
        k; default: 1024, or the smallest width if that is less.

    Raises
    ------
    ValueError
        One cloud, other numbers of texts, k above the smallest width, or texts that are all the same to a model.
    """
    clouds = {name: matrix(cloud, name) for name, cloud in clouds.items()}
    if len(clouds) < 2 or len({len(cloud) for cloud in clouds.values()}) > 1:
        raise ValueError(f"two or more clouds of the same texts are needed; got {[c.shape for c in clouds.values()]}")
    narrowest = min(cloud.shape[1] for cloud in clouds.values())
    dimension = min(DIMENSION, narrowest) if dimension is None else dimension
    if not 1 <= dimension <= narrowest or iterations < 1:
        raise ValueError(f"1 to {narrowest} dimensions and an iteration are needed, not {dimension} and {iterations}")
    rng = np.random.default_rng(seed)
    projections, bases, own = {}, {}, {}
    for name, cloud in clouds.items():
        # The Q factor of a Gaussian matrix: orthonormal columns of random direction.
        projections[name] = np.linalg.qr(rng.standard_normal((cloud.shape[1], dimension)))[0]
        projected = cloud @ projections[name]
        centred = projected - projected.mean(axis=0)
        left, singular, axes = np.linalg.svd(centred, full_matrices=False)
        if singular[0] <= TINY * np.linalg.norm(projected):
            raise ValueError(f"{name}: all texts have the same state; nothing can be aligned")
        rank = min(len(cloud) - 1, dimension)
        bases[name] = (axes * (singular > 1e-10 * singular[0])[:, None])[:rank].T
        own[name] = (left * singular / np.linalg.norm(singular))[:, :rank]
    return SharedSpace(projections, bases, own, _rotations(own, iterations))


def _rotations(clouds: Mapping[str, np.ndarray], iterations: int) -> dict[str, np.ndarray]:
    # The first cloud is the frame: were all to turn, they could turn together for ever.
    first, *others = clouds
    turned, rotations = dict(clouds), {first: np.eye(clouds[first].shape[1])}
    for _ in range(iterations):
        for name in others:
            goal = np.mean([cloud for other, cloud in turned.items() if other != name], axis=0)
            rotations[name] = orthogonal_procrustes(clouds[name], goal)[0]
            turned[name] = clouds[name] @ rotations[name]
    return rotations


def cosines(
    clouds: Mapping[str, np.ndarray],
    directions: Mapping[str, Mapping[str, np.ndarray]],
    *,
    dimension: int | None = None,
    iterations: int = 10,
    draws: int = 1000,
    permutations: int = 39,
    seed: int = 42,
) -> pd.DataFrame:
    """Cosines of each type's directions between models, with two chance levels and a ceiling (table 12).

    Directions keep the sign they come with, from base to biased; the paper chooses signs afterwards, which makes every
    cosine of two models positive.

    Parameters
    ----------
    clouds : mapping of model → array [n, d_m]
        Base answers' states, of the same texts in the same order.
    directions : mapping of type → mapping of model → array [d_m]
        A type may lack a model.
    draws : int
        Pairs of random directions through the same maps.
    permutations : int
        Alignments on shuffled texts.

    Returns
    -------
    DataFrame
        type, model_a, model_b; cosine; random, the 95 % quantile of random directions' cosines; misaligned, that of the
        two directions under shuffled texts, and p, one-sided, against these; ceiling, the cosine that the same steps
        find for model_a's direction and its exact copy in a rotated model_a; inside, the smaller share of the two
        directions that the texts span; cosine_inside, the cosine of these parts.
    """
    settings = {"dimension": dimension, "iterations": iterations, "seed": seed}
    space, rng = fit(clouds, **settings), np.random.default_rng(seed)
    shuffled = [space.misaligned(rng, iterations) for _ in range(permutations)]
    random = {name: space.place(name, rng.standard_normal((draws, cloud.shape[1]))) for name, cloud in clouds.items()}
    turns = {name: np.linalg.qr(rng.standard_normal((cloud.shape[1],) * 2))[0] for name, cloud in clouds.items()}
    copies = {name: fit({"it": clouds[name], "copy": clouds[name] @ turn}, **settings) for name, turn in turns.items()}
    rows = []
    for kind, known in directions.items():
        placed = {name: space.place(name, known[name]) for name in clouds if name in known}
        for a, b in itertools.combinations(placed, 2):
            null = np.array([other.place(a, known[a]) @ other.place(b, known[b]) for other in shuffled])
            row = {"type": kind, "model_a": a, "model_b": b, "cosine": float(placed[a] @ placed[b])}
            row["random"] = float(np.quantile((random[a] * random[b]).sum(axis=1), 0.95))
            row |= {"misaligned": float(np.quantile(null, 0.95)), "p": float(exceedance_p(row["cosine"], null))}
            row["ceiling"] = float(copies[a].place("it", known[a]) @ copies[a].place("copy", known[a] @ turns[a]))
            shares = [float(v @ v) for v in (placed[a], placed[b])]
            row |= {"inside": min(shares), "cosine_inside": row["cosine"] / np.sqrt(np.prod(shares))}
            rows.append(row)
    columns = "type model_a model_b cosine random misaligned p ceiling inside cosine_inside"
    return pd.DataFrame(rows, columns=columns.split())
