"""Texts become arrays: last-token states at every block, pooled sentence embeddings.

Only the needed token, or the pooled vector, leaves the hook; the LM head is not run. Results come back in input order
as float32, whatever the model runs in, and are kept in the cache under a key that names everything they depend on:
the weights as they are now, the token ids, the sites, our own interventions, this code and the library versions.
"""

import sys
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from tqdm.auto import tqdm

from biasgeom import hooks, prompts, recall
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
    pooling : {"mean", "max", "last"}
        Mask-aware; the mean accumulates in float32.
    site : {"final_norm", "block"}
        What the LM head reads, or the output of ``block``.
    include_first_token : bool
        Token 0 carries a norm up to a hundred times the others' at inner blocks, so a mean there is about token 0.
        ``False`` leaves it out; a text of a single token then has nothing to pool and is refused.

    Returns
    -------
    array [n, d], float32
    """
    if pooling not in ("mean", "max", "last"):
        raise ValueError(f"pooling must be 'mean', 'max' or 'last', not {pooling!r}")
    if site not in ("final_norm", "block") or (site == "block") != (block is not None):
        raise ValueError("site must be 'final_norm', or 'block' together with a block number")
    encoded = prompts.encode(lm, texts)
    short = next((place for place, ids in enumerate(encoded) if len(ids) < 2), None)
    if not include_first_token and short is not None:
        raise ValueError(f"text {short} is a single token: nothing is left without the first one: {texts[short]!r}")

    def pool(batch: Batch) -> Callable[[torch.Tensor], torch.Tensor]:
        if pooling == "last":
            return hooks.at(batch.last)
        kept = _kept(batch, include_first_token)
        if pooling == "max":
            return lambda hidden: hooks.wide(hidden).masked_fill(~kept.to(hidden.device), -torch.inf).amax(1)
        return lambda hidden: _token_sum(hidden, kept) / kept.sum(1).to(hidden.device)

    what = f"{pooling}, first token {'in' if include_first_token else 'out'}"
    return _measured(lm, encoded, [site if block is None else block], what, pool, budget)[:, 0]


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
) -> np.ndarray:
    """[n, sites, d] from the cache, or from the model."""
    return recall.array(
        lm,
        sys.modules[__name__],
        lambda: _run(lm, encoded, sites, selector, budget),
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
) -> np.ndarray:
    result = np.empty((len(encoded), len(sites), lm.width), dtype=np.float32)
    with tqdm(total=len(encoded), desc=f"{lm.name}: hidden states", unit="text", leave=False) as bar:
        for batch in prompts.batches(lm, encoded, budget=budget):
            with hooks.capture(lm, sites, selector(batch)) as captured:
                lm.decoder(**batch.inputs(), use_cache=False)
            states = torch.stack([captured[site].to(lm.device).float() for site in sites], dim=1)
            if not torch.isfinite(states).all():
                _complain(lm, states, batch, sites)
            result[batch.rows] = states.cpu().numpy()
            bar.update(len(batch.rows))
    return result


def _complain(lm: LanguageModel, states: torch.Tensor, batch: Batch, sites: list[Site]) -> None:
    row, site = (~torch.isfinite(states)).any(-1).nonzero()[0].tolist()
    raise NonFiniteActivation(
        f"{lm.name} in {lm.dtype}: the state of text {batch.rows[row]} at {sites[site]!r} (block or site) is not finite"
    )
