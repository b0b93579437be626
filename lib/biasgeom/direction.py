r"""The gender direction, latent scores and their polarization, with nulls and a bootstrap (gender paper 3.3, 0.A.3).

From K contrastive pairs with state differences :math:`\Delta^{(k)} = h(x_F^{(k)}) - h(x_M^{(k)})` the direction is

.. math:: v = \hat\Sigma^{-1}\bar\Delta \,/\, \lVert\hat\Sigma^{-1}\bar\Delta\rVert,

with the Ledoit–Wolf covariance of the differences. K is far below the width d, so everything is computed from the
K × K Gram matrix of the differences: :math:`v = D^\top a` with K coefficients a. No d × d matrix is formed, and the
same few lines serve the estimate, the sign-flip null and the bootstrap (hundreds of refits a block in milliseconds).
"""

from dataclasses import dataclass

import numpy as np

ESTIMATORS = ("ledoit-wolf", "mean")


@dataclass(frozen=True)
class Direction:
    """A direction that remembers where it was estimated.

    Attributes
    ----------
    vector : array [d]
    model : str
        ``LanguageModel.name``.
    site : str
        ``"block"``: the output of block ``block``.
    block : int
    dtype : str
        What the model ran in.
    """

    vector: np.ndarray
    model: str
    site: str
    block: int
    dtype: str

    def vector_at(self, model: str, block: int) -> np.ndarray:
        """The vector, if it belongs to this model and block.

        Raises
        ------
        ValueError
            If it was estimated on another model, site or block.
        """
        if (model, "block", block) != (self.model, self.site, self.block):
            raise ValueError(
                f"this direction belongs to {self.model}, {self.site} {self.block}; it can't be applied to {model}, "
                f"block {block}"
            )
        return self.vector


@dataclass(frozen=True)
class Fit:
    """A fitted direction with its diagnostics.

    Attributes
    ----------
    vector : array [d]
        Unit norm, female positive.
    shrinkage : float
        Ledoit–Wolf intensity in [0, 1]; NaN for the mean difference.
    condition : float
        Condition number of the shrunk covariance; NaN for the mean difference.
    """

    vector: np.ndarray
    shrinkage: float
    condition: float


def _coefficients(gram: np.ndarray, width: int, estimator: str) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients a [..., K] with v ∝ Dᵀa, and the shrinkage [...], from Gram matrices DDᵀ [..., K, K].

    With J the centring, C = JD and S = CᵀC/K, the Ledoit–Wolf estimate is Σ = (1−δ)S + δμI, μ = tr(S)/d, and its δ
    depends on C through ‖x_k‖⁴ and ‖CCᵀ‖ alone. By Woodbury, βΣ⁻¹Dᵀu = Dᵀu − Cᵀ(βK I + αCCᵀ)⁻¹αC Dᵀu, where α = 1−δ,
    β = δμ and u = 1/K; the common factor β drops out with the norm.
    """
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator must be one of {', '.join(ESTIMATORS)}, not {estimator!r}")
    pairs = gram.shape[-1]
    uniform = np.full(pairs, 1 / pairs)
    # Relative, since rounding leaves no mean at exactly zero: below 3e-7 of the differences float32 states say nothing.
    if np.any(gram.mean((-2, -1)) <= 1e-13 * np.trace(gram, axis1=-2, axis2=-1) / pairs):
        raise ValueError("the pairs show no mean difference: it has no direction")
    if estimator == "mean":
        shape = gram.shape[:-2]
        return np.broadcast_to(uniform, (*shape, pairs)), np.full(shape, np.nan)
    centring = np.eye(pairs) - 1 / pairs
    centred = centring @ gram @ centring
    trace = np.trace(centred, axis1=-2, axis2=-1) / pairs
    if np.any(trace <= 1e-12 * np.trace(gram, axis1=-2, axis2=-1)):
        raise ValueError("the pair differences are all the same: their covariance is zero")
    squared = (centred**2).sum((-2, -1))
    # Ledoit & Wolf (2004) as scikit-learn computes it: beta / delta, both over d.
    fourth = (np.diagonal(centred, axis1=-2, axis2=-1) ** 2).sum(-1) / pairs
    beta = (fourth - squared / pairs**2) / pairs
    delta = squared / pairs**2 - trace**2 / width
    shrinkage = np.clip(np.divide(beta, delta, out=np.ones_like(beta), where=delta > 0), 0, 1)
    # Two pairs, or two equal clusters of them, give zero up to rounding.
    if np.any(shrinkage <= 1e-9):
        raise ValueError("Ledoit-Wolf found nothing to shrink: the covariance of so few pairs can't be inverted")
    keep, floor = (1 - shrinkage)[..., None, None], (shrinkage * trace / width)[..., None, None]
    right = (keep * (centring @ gram)) @ uniform
    inner = np.linalg.solve(floor * pairs * np.eye(pairs) + keep * centred, right[..., None])[..., 0]
    return uniform - inner @ centring, shrinkage


def _condition(differences: np.ndarray, shrinkage: float) -> float:
    """Condition number of the shrunk covariance (1−δ)S + δμI; NaN without shrinkage."""
    if np.isnan(shrinkage):
        return np.nan
    pairs, width = differences.shape
    spectrum = np.linalg.svd(differences - differences.mean(axis=0), compute_uv=False) ** 2 / pairs
    smallest = spectrum[-1] if pairs > width else 0.0
    floor = shrinkage * spectrum.sum() / width
    return float(((1 - shrinkage) * spectrum[0] + floor) / ((1 - shrinkage) * smallest + floor))


def _checked(female: np.ndarray, male: np.ndarray) -> np.ndarray:
    female, male = np.asarray(female, dtype=np.float64), np.asarray(male, dtype=np.float64)
    if female.shape != male.shape or female.ndim != 2 or len(female) < 2:
        raise ValueError(f"need two arrays [K, d] of the same pairs, K >= 2; got {female.shape} and {male.shape}")
    differences = female - male
    if not np.isfinite(differences).all():
        raise ValueError("the pair states are not all finite")
    return differences


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def fit(female: np.ndarray, male: np.ndarray, *, estimator: str = "ledoit-wolf") -> Fit:
    """Estimate the contrastive direction and report its diagnostics.

    Parameters
    ----------
    female, male : array [K, d]
        States of the two members of each pair at one block.
    estimator : {"ledoit-wolf", "mean"}
        The whitened mean difference of 0.A.3, or the plain mean difference.

    Raises
    ------
    ValueError
        Shapes that don't fit, states that are not finite, differences without a mean or without variance.
    """
    differences = _checked(female, male)
    a, shrinkage = _coefficients(differences @ differences.T, differences.shape[1], estimator)
    vector = _unit(a @ differences).astype(np.float32)
    return Fit(vector, float(shrinkage), _condition(differences, float(shrinkage)))


def contrast_direction(female: np.ndarray, male: np.ndarray, *, estimator: str = "ledoit-wolf") -> np.ndarray:
    """The unit direction [d] alone, female positive; see :func:`fit`."""
    return fit(female, male, estimator=estimator).vector


def pair_hits(female: np.ndarray, male: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Whether each held-out pair lies the right way round, ⟨h(x_F) − h(x_M), v⟩ > 0: bool [K]."""
    return _checked(female, male) @ np.asarray(direction, dtype=np.float64) > 0


def latent_scores(states: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """s(e): the projection on the direction, averaged over personas (gender paper, equation 3).

    Parameters
    ----------
    states : array [personas, entities, d]
    direction : array [d]

    Returns
    -------
    array [entities], float64
        Rank and dispersion mean something; the sign across entities does not (the projection is not centred).
    """
    return np.asarray(states, dtype=np.float64).mean(axis=0) @ np.asarray(direction, dtype=np.float64)


def latent_polarization(states: np.ndarray, direction: np.ndarray) -> float:
    """S_latent(c): std over entities (ddof 0) of s(e), over the mean norm of the states (gender paper, equation 4)."""
    return float(polarizations(states, np.asarray(direction)[None])[0])


def polarizations(states: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """S_latent of one concept for many directions: [personas, entities, d], [m, d] → [m].

    Raises
    ------
    ValueError
        A concept with a single entity has no dispersion.
    """
    states = np.asarray(states, dtype=np.float64)
    if states.ndim != 3 or states.shape[1] < 2:
        raise ValueError(f"need states [personas, entities >= 2, d]; got {states.shape}")
    scores = states.mean(axis=0) @ np.asarray(directions, dtype=np.float64).T
    return scores.std(axis=0) / np.linalg.norm(states, axis=-1).mean()


def isotropic_directions(width: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Unit vectors [draws, d] uniform on the sphere: the paper's reference distribution (3.3)."""
    return _unit(rng.standard_normal((draws, width)))


def sign_flip_directions(female: np.ndarray, male: np.ndarray, signs: np.ndarray, *, estimator: str) -> np.ndarray:
    """Directions [draws, d] from pairs whose members were exchanged at random, through the same estimator.

    Unlike the isotropic null this respects the covariance of the differences: it asks what the estimator finds in these
    very pairs when which member is female carries no information.

    Parameters
    ----------
    female, male : array [K, d]
    signs : array [draws, K] of ±1
        The same signs at every block keep the null's dependence between blocks. Pairs that depend on each other, such
        as those of one word, need a common sign.

    Notes
    -----
    For ``"mean"`` the null has little power: signs that don't cancel leave part of a strong direction in every draw.
    """
    differences = _checked(female, male)
    gram = differences @ differences.T
    a, _ = _coefficients(signs[:, :, None] * gram * signs[:, None, :], differences.shape[1], estimator)
    return _unit((a * signs) @ differences)


def bootstrap_directions(female: np.ndarray, male: np.ndarray, resampled: np.ndarray, *, estimator: str) -> np.ndarray:
    """Directions [draws, d] from resampled pairs.

    Parameters
    ----------
    resampled : integer array [draws, K]
        Indices of pairs; see :func:`biasgeom.statistics.resample_groups`.
    """
    differences = _checked(female, male)
    gram = differences @ differences.T
    a, _ = _coefficients(gram[resampled[:, :, None], resampled[:, None, :]], differences.shape[1], estimator)
    weights = np.zeros((len(resampled), len(differences)))
    np.add.at(weights, (np.arange(len(resampled))[:, None], resampled), a)
    return _unit(weights @ differences)


def bootstrap_scores(states: np.ndarray, directions: np.ndarray, persona_weights: np.ndarray) -> np.ndarray:
    """s(e) for resampled directions and personas.

    Parameters
    ----------
    states : array [personas, entities, d]
    directions : array [draws, d]
    persona_weights : array [draws, personas]

    Returns
    -------
    array [draws, entities]
    """
    projections = np.einsum("ped,bd->bpe", np.asarray(states, dtype=np.float64), directions, optimize=True)
    return np.einsum("bpe,bp->be", projections, persona_weights)


def bootstrap_polarizations(states: np.ndarray, directions: np.ndarray, persona_weights: np.ndarray) -> np.ndarray:
    """S_latent for resampled directions and personas → [draws]; see :func:`bootstrap_scores`."""
    norms = np.linalg.norm(np.asarray(states, dtype=np.float64), axis=-1).mean(axis=1)
    return bootstrap_scores(states, directions, persona_weights).std(axis=1) / (persona_weights @ norms)
