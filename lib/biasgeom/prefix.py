"""Prompts that a model has read, with what is needed to run their last token again from any block.

Keys and values of the tokens before, and what every block put out at the last token (:mod:`biasgeom.suffix`).
"""

import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm
from transformers.cache_utils import DynamicCache

from biasgeom import hooks, memory, prompts
from biasgeom.models import LanguageModel

ROWS = 32
"""Prompts that are run again together: their keys and values are padded to one length."""
SHARED = 8
"""Tokens that all prompts must begin with for these to be read once."""


@dataclass(frozen=True)
class Prefix:
    """Prompts that a model has read.

    Attributes
    ----------
    groups : list of Group
    count : int
        Prompts, n.
    appended : bool
        Whether a token was read after each prompt.
    """

    groups: list["Group"]
    count: int
    appended: bool


@dataclass(frozen=True)
class Group:
    """B prompts, with T tokens and fewer before the last one.

    Attributes
    ----------
    rows : list of int
        Where each stood in the input.
    lengths : integer Tensor [B]
        Tokens before the last one.
    tokens : integer Tensor [B, P]
        The last token, and the appended one.
    keys, values : list of Tensor [B, heads, T, width], one a block
    states : list of Tensor [B, P, d], one a block
        What each block put out at ``tokens``.
    logits : Tensor [P, vocabulary]
        Of the first prompt.
    tuples : list of bool
        Which blocks return a tuple.
    """

    rows: list[int]
    lengths: torch.Tensor
    tokens: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    states: list[torch.Tensor]
    logits: torch.Tensor
    tuples: list[bool]


@torch.inference_mode()
def read(
    lm: LanguageModel,
    texts: Sequence[str],
    *,
    chat: bool = False,
    prefill: str | None = None,
    append: int | None = None,
) -> Prefix:
    """Read prompts once, for runs from any block.

    Parameters
    ----------
    texts : list of str, length n
    chat, prefill
        See :func:`biasgeom.prompts.render`.
    append : int, optional
        A token to read after every prompt.

    Raises
    ------
    ValueError
        What :func:`biasgeom.prompts.encode` refuses, a model in training mode or under hooks, or one with another
        attention than "sdpa" or "eager".

    Notes
    -----
    Keys and values of all blocks stay in memory: for SmolLM2-135M 46 kB a token.
    """
    hooks.require_evaluation(lm)
    if hooks.foreign(lm) or lm.interventions:
        raise ValueError(f"{lm.name} is under hooks: read the prompts first, outside of them")
    attention = lm.core.config.get_text_config(decoder=True)._attn_implementation
    if attention not in ("sdpa", "eager"):
        raise ValueError(f"{lm.name} computes attention by {attention!r}, which takes no masks; load it with 'sdpa'")
    encoded = prompts.encode(lm, texts, chat=chat, prefill=prefill)
    if (short := next((place for place, ids in enumerate(encoded) if len(ids) < 2), None)) is not None:
        raise ValueError(f"prompt {short} is a single token: there is nothing before it to keep")
    begun = _beginning(lm, [ids[:-1] for ids in encoded])
    encoded = [ids if append is None else [*ids, append] for ids in encoded]
    budget = memory.Budget(lm, prompts.token_budget(lm, cached=True))
    order = sorted(range(len(encoded)), key=lambda row: len(encoded[row]))
    groups = []
    with tqdm(total=len(order), desc=f"{lm.name}: prompts", unit="prompt", leave=False) as bar:
        for start in range(0, len(order), ROWS):
            rows = order[start : start + ROWS]
            asked = [encoded[row] for row in rows]
            groups.append(_group(lm, asked, rows, 1 if append is None else 2, begun, budget))
            bar.update(len(rows))
    return Prefix(groups, len(encoded), append is not None)


def _beginning(lm: LanguageModel, encoded: list[list[int]]) -> DynamicCache | None:
    """What all prompts begin with, read once; None if that is next to nothing."""
    shared = prompts.shared_beginning(encoded) if len(encoded) > 1 else 0
    if shared < SHARED:
        return None
    # A cache without a configuration keeps every token, also where a sliding window would drop the first ones.
    cache = DynamicCache()
    lm.decoder(torch.tensor([encoded[0][:shared]], device=lm.device), cache=cache, use_cache=True)
    return cache


def _group(
    lm: LanguageModel,
    encoded: list[list[int]],
    rows: list[int],
    kept: int,
    begun: DynamicCache | None,
    budget: memory.Budget,
) -> Group:
    longest = max(map(len, encoded)) - kept

    def piece(start: int, stop: int) -> Group:
        return _read(lm, encoded[start:stop], kept, longest, begun)

    pieces = list(budget.pieces(piece, [len(ids) for ids in encoded]))
    first = pieces[0]
    joined = {
        name: [torch.cat(parts) for parts in zip(*(getattr(piece, name) for piece in pieces), strict=True)]
        for name in ("keys", "values", "states")
    }
    single = {name: torch.cat([getattr(piece, name) for piece in pieces]) for name in ("lengths", "tokens")}
    return Group(rows=rows, logits=first.logits, tuples=first.tuples, **joined, **single)


def _read(lm: LanguageModel, encoded: list[list[int]], kept: int, longest: int, begun: DynamicCache | None) -> Group:
    cache, tuples = copy.deepcopy(begun) or DynamicCache(), [False] * len(lm.blocks)
    shared = cache.get_seq_length()
    if shared:
        cache.batch_repeat_interleave(len(encoded))
    batch = prompts.pad(lm, [ids[shared:] for ids in encoded], list(range(len(encoded))), side="right")
    inputs = batch.inputs() | {"position_ids": batch.position_ids + shared}
    read_before = batch.attention_mask.new_ones(len(encoded), shared)
    inputs["attention_mask"] = torch.cat([read_before, batch.attention_mask], dim=1)
    place = batch.last[:, None] + torch.arange(1 - kept, 1, device=batch.last.device)
    lengths = place[:, 0] + shared
    row = torch.arange(len(encoded), device=place.device)[:, None]

    def note(block: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple, output: Any) -> None:
            tuples[block] = isinstance(output, tuple)

        return hook

    def select(hidden: torch.Tensor) -> torch.Tensor:
        return hidden[row.to(hidden.device), place.to(hidden.device)]

    blocks = list(range(len(lm.blocks)))
    with ExitStack() as stack:
        for block in blocks:
            stack.callback(lm.blocks[block].register_forward_hook(note(block)).remove)
        captured = stack.enter_context(hooks.capture(lm, blocks, select))
        needed = torch.unique(place[0])
        output = lm.core(**inputs, cache=cache, use_cache=True, logits_to_keep=needed)
    pad = longest - int(lengths.max())
    keys, values = (
        [nn.functional.pad(getattr(layer, part)[:, :, : int(lengths.max())], (0, 0, 0, pad)) for layer in cache.layers]
        for part in ("keys", "values")
    )
    tokens = batch.input_ids[row, place]
    states = [captured[block] for block in blocks]
    return Group([], lengths, tokens, keys, values, states, output.logits[0].float(), tuples)
