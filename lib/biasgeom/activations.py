"""Texts become arrays: last-token states at every block, pooled sentence embeddings.

Only the needed token, or the pooled vector, leaves the hook; the LM head is not run. Results come back in input order
as float32, whatever the model runs in, and are kept in the cache under a key that names everything they depend on:
the weights as they are now, the token ids, the sites, our own interventions, this code and the library versions.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tqdm.auto import tqdm

from biasgeom import hooks, memory, prompts, recall
from biasgeom.hooks import AnyDirection, Site
from biasgeom.models import LanguageModel
from biasgeom.prompts import Batch


class NonFiniteActivation(ArithmeticError):
    """An activation is infinite or NaN; the message names model, site, dtype and text."""


def last_token_states(
    lm: LanguageModel,
    texts: Sequence[str],
    *,
    blocks: Sequence[int] | None = None,
    chat: bool = False,
    prefill: str | Sequence[str] | None = None,
    budget: int | None = None,
) -> np.ndarray:
    """The hidden states of each text's last token, h^b(x), at block outputs (gender paper 3.1.3; judge paper 3.2).

    Parameters
    ----------
    texts : list of str, length n
    blocks : list of int, optional
        Default: all L blocks.
    chat, prefill
        See :func:`biasgeom.prompts.render`; with both, the last token is that of the prefilled assistant turn.
    budget : int, optional
        Tokens a batch; default by device. The result does not depend on it beyond rounding (1e-5 relative in float32).

    Returns
    -------
    array [n, L, d], float32

    Raises
    ------
    ValueError
        Empty or duplicate texts, a model in training mode, an unknown block or none.
    NonFiniteActivation
    """
    blocks = list(range(len(lm.blocks))) if blocks is None else list(blocks)
    if not blocks:
        raise ValueError("no blocks were given")
    encoded = prompts.encode(lm, texts, chat=chat, prefill=prefill)
    return _measured(lm, encoded, blocks, "last", lambda batch: hooks.at(batch.last), budget)


@dataclass(frozen=True)
class Reading:
    """How the token states of a sentence become one vector (ΔB paper 3.1, E.4).

    Attributes
    ----------
    pooling : {"mean", "max", "last"}
        Mask-aware; the mean accumulates in float32.
    site : {"final_norm", "block"}
        What the LM head reads, or the output of ``block``.
    include_first_token : bool
        Token 0 carries a norm up to a hundred times the others' at inner blocks, so a mean there is about token 0.
        ``False`` leaves it out; a text of a single token then has nothing to pool and is refused.

    Raises
    ------
    ValueError
        Another pooling or site; a site "block" without a block, or a block without it.
    """

    pooling: str = "mean"
    site: str = "final_norm"
    block: int | None = None
    include_first_token: bool = True

    def __post_init__(self) -> None:
        if self.pooling not in ("mean", "max", "last"):
            raise ValueError(f"pooling must be 'mean', 'max' or 'last', not {self.pooling!r}")
        if self.site not in ("final_norm", "block") or (self.site == "block") != (self.block is not None):
            raise ValueError("site must be 'final_norm', or 'block' together with a block number")

    @property
    def place(self) -> Site:
        """The site as :mod:`biasgeom.hooks` names it."""
        return self.site if self.block is None else self.block


def sentence_embeddings(
    lm: LanguageModel,
    texts: Sequence[str],
    *,
    pooling: str = "mean",
    site: str = "final_norm",
    block: int | None = None,
    include_first_token: bool = True,
    budget: int | None = None,
) -> np.ndarray:
    """One vector a sentence, pooled over its tokens (ΔB paper 3.1).

    Parameters
    ----------
    texts : list of str, length n
        Raw text with the tokenizer's own special tokens.
    pooling, site, block, include_first_token
        See :class:`Reading`.

    Returns
    -------
    array [n, d], float32
    """
    return readings(lm, texts, [Reading(pooling, site, block, include_first_token)], budget=budget)[0]


def readings(
    lm: LanguageModel, texts: Sequence[str], asked: Sequence[Reading], *, budget: int | None = None
) -> np.ndarray:
    """Several readings of the same texts from one pass.

    Returns
    -------
    array [readings, n, d], float32
        Each as :func:`sentence_embeddings` gives it.
    """
    if not asked:
        raise ValueError("no readings were given")
    encoded = prompts.encode(lm, texts)
    short = next((place for place, ids in enumerate(encoded) if len(ids) < 2), None)
    if short is not None and not all(reading.include_first_token for reading in asked):
        raise ValueError(f"text {short} is a single token: nothing is left without the first one: {texts[short]!r}")
    sites = list(dict.fromkeys(reading.place for reading in asked))
    poolings = list(dict.fromkeys((reading.pooling, reading.include_first_token) for reading in asked))

    def pool(batch: Batch) -> Callable[[torch.Tensor], torch.Tensor]:
        selectors = [_pooled(batch, *pooling) for pooling in poolings]
        return lambda hidden: torch.cat([select(hidden) for select in selectors], dim=-1)

    what = "; ".join(f"{pooling}, first token {'in' if first else 'out'}" for pooling, first in poolings)
    states = _measured(lm, encoded, sites, what, pool, budget, len(poolings))
    states = states.reshape(len(encoded), len(sites), len(poolings), lm.width)
    places = [
        (sites.index(reading.place), poolings.index((reading.pooling, reading.include_first_token)))
        for reading in asked
    ]
    return np.stack([states[:, site, pooling] for site, pooling in places])


def _pooled(batch: Batch, pooling: str, include_first_token: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """Selector [B, T, d] → [B, d]."""
    if pooling == "last":
        return hooks.at(batch.last)
    kept = _kept(batch, include_first_token)
    if pooling == "max":
        return lambda hidden: hooks.wide(hidden).masked_fill(~kept.to(hidden.device), -torch.inf).amax(1)
    return lambda hidden: _token_sum(hidden, kept) / kept.sum(1).to(hidden.device)


def _kept(batch: Batch, include_first_token: bool) -> torch.Tensor:
    """Bool [B, T, 1]: the tokens that are pooled."""
    kept = batch.attention_mask.bool()
    return (kept if include_first_token else kept & (batch.position_ids > 0))[..., None]


def _token_sum(hidden: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """[B, T, d] → [B, d], in float32 or better."""
    return hooks.wide(hidden).masked_fill(~kept.to(hidden.device), 0).sum(1)


def mean_projections(
    lm: LanguageModel, texts: Sequence[str], directions: Mapping[int, AnyDirection]
) -> dict[Site, float]:
    """The mean of ⟨h, v⟩ over all tokens but each text's first, per block: what guarded ablation leaves in place.

    Parameters
    ----------
    texts : list of str
        Separate neutral text, of two tokens or more each.
    directions : mapping of block → Direction or array [d]
        As given to :func:`biasgeom.hooks.ablate`; ``"embedding"`` is added if block 0 is among them.
    """
    units = {block: hooks.unit_vector(lm, direction, block) for block, direction in directions.items()}
    if 0 in units:
        units = {"embedding": units[0], **units}
    sites = list(units)
    encoded = prompts.encode(lm, texts)

    def total(batch: Batch) -> Callable[[torch.Tensor], torch.Tensor]:
        kept = _kept(batch, include_first_token=False)
        return lambda hidden: _token_sum(hidden, kept)

    sums = _measured(lm, encoded, sites, "sum without first token", total, None)
    tokens = sum(len(ids) - 1 for ids in encoded)
    if not tokens:
        raise ValueError("no text has a second token")
    totals = sums.sum(axis=0, dtype=np.float64)
    return {site: float(totals[i] @ units[site].double().cpu().numpy() / tokens) for i, site in enumerate(sites)}


def _measured(
    lm: LanguageModel,
    encoded: list[list[int]],
    sites: list[Site],
    what: str,
    selector: Callable[[Batch], Callable[[torch.Tensor], torch.Tensor]],
    budget: int | None,
    vectors: int = 1,
) -> np.ndarray:
    """[n, sites, vectors · d] from the cache, or from the model; ``vectors`` is how many the selector joins."""
    return recall.array(
        lm,
        sys.modules[__name__],
        lambda: _run(lm, encoded, sites, selector, budget, vectors * lm.width),
        tokens=encoded,
        sites=[str(site) for site in sites],
        what=what,
        budget=budget,
    )


@torch.inference_mode()
def _run(
    lm: LanguageModel,
    encoded: list[list[int]],
    sites: list[Site],
    selector: Callable[[Batch], Callable[[torch.Tensor], torch.Tensor]],
    budget: int | None,
    width: int,
) -> np.ndarray:
    def read(batch: Batch) -> np.ndarray:
        with hooks.capture(lm, sites, selector(batch)) as captured:
            lm.decoder(**batch.inputs(), use_cache=False)
        states = torch.stack([captured[site].to(lm.device).float() for site in sites], dim=1)
        if not torch.isfinite(states).all():
            _complain(lm, states, batch, sites)
        return memory.to_host(states)

    result = np.empty((len(encoded), len(sites), width), dtype=np.float32)
    tokens = sum(map(len, encoded))
    with tqdm(total=tokens, desc=f"{lm.name}: hidden states", unit="token", unit_scale=True, leave=False) as bar:
        for batch, states in prompts.in_batches(lm, encoded, read, budget=budget):
            result[batch.rows] = states
            bar.update(sum(len(encoded[row]) for row in batch.rows))
    return result


def _complain(lm: LanguageModel, states: torch.Tensor, batch: Batch, sites: list[Site]) -> None:
    row, site = (~torch.isfinite(states)).any(-1).nonzero()[0].tolist()
    raise NonFiniteActivation(
        f"{lm.name} in {lm.dtype}: the state of text {batch.rows[row]} at {sites[site]!r} (block or site) is not finite"
    )
