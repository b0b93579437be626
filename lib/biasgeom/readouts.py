"""One pass over a judge's prompts: the last token's state at every block, the distribution over scores, the reply.

What all prompts begin with is read once. Judges that share their weights up to the assistant's turn (a model, and an
activated adapter on it) share the reading of the prompt (spec points 3, 13, 17).
"""

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from biasgeom import cache, generation, hooks, memory, prompts, recall
from biasgeom.activations import NonFiniteActivation
from biasgeom.models import LanguageModel

SCORES = 10
"""The scale is 1 … 10."""
REPLY_TOKENS = 16
"""The paper's cap of a reply without chain of thought (G.1)."""
TOGETHER = 4
"""Batches of prompts whose answers are read together on a CPU: a short pass costs the same for ten rows as for five."""


@dataclass(frozen=True)
class Readout:
    """A judge's answers to n prompts, memory-mapped.

    Attributes
    ----------
    states : array [n, L, d], float32
        At the last token of the prompt, its prefilled beginning of the assistant's turn included.
    scores : array [n, 10], float32
        P(1) … P(10) of what follows, with P(10) = P("1")·P("0"|"1") where 10 is two tokens, added where it may be both.
    reply : integer array [n, tokens]
        The greedy reply, -1 after its end; after a prefilled beginning its first token alone.
    """

    states: np.ndarray
    scores: np.ndarray
    reply: np.ndarray


def sharing(judges: Sequence[LanguageModel]) -> list[list[LanguageModel]]:
    """Judges in groups that read a prompt alike: one model, bare or under activated adapters."""
    groups: dict[Any, list[LanguageModel]] = {}
    for lm in judges:
        made = lm.provenance
        source = [made.get(part) for part in ("kind", "source", "sha256", "commit", "revision", "dtype", "device")]
        # Only weights that are known by a hash or a commit are known to be the same.
        known = (made.get("sha256") or made.get("commit")) and (lm.invocation or not made.get("adapter"))
        groups.setdefault(tuple(source) if known else lm.name, []).append(lm)
    return list(groups.values())


def read(
    judges: Sequence[LanguageModel], asked: Sequence[str], prefills: Sequence[str], *, budget: int | None = None
) -> list[Readout]:
    """What each judge makes of each prompt.

    Parameters
    ----------
    judges : list of LanguageModel
        One, or several that read a prompt alike up to the assistant's turn; see :func:`sharing`.
    asked : list of str, length n
        The user's turns; equal ones are read twice.
    prefills : list of str, one a judge
        What begins the assistant's turn; empty: the judge replies by itself.
    budget : int, optional
        Tokens a batch, without the shared beginning; default by device.

    Raises
    ------
    ValueError
        No prompts, foreign hooks, a tokenizer without digits, judges that tokenize a prompt differently.
    NonFiniteActivation

    Notes
    -----
    Kept row by row: a run that was killed goes on where it was.
    """
    if not asked:
        raise ValueError("no prompts were given")
    for lm in judges:
        hooks.require_evaluation(lm)
        if hooks.foreign(lm):
            raise ValueError(f"{lm.name} carries forward hooks that are not ours: what it would read is not its own")
    encoded = [
        lm.tokenizer([prompts.render(lm, text, chat=True, prefill=begin) for text in asked], add_special_tokens=False)[
            "input_ids"
        ]
        for lm, begin in zip(judges, prefills, strict=True)
    ]
    tails = [assistant_turn(lm, ids, begin) for lm, ids, begin in zip(judges, encoded, prefills, strict=True)]
    bodies = [[ids[: -len(tail)] for ids in texts] for texts, tail in zip(encoded, tails, strict=True)]
    if any(body != bodies[0] for body in bodies):
        raise ValueError("these judges tokenize the same prompt differently: read them one at a time")
    keys = [
        recall.key(lm, sys.modules[__name__], tokens=texts, budget=budget)
        for lm, texts in zip(judges, encoded, strict=True)
    ]
    with ExitStack() as stack:
        # In the order of their keys, so that two processes never wait for each other.
        order = sorted(range(len(judges)), key=keys.__getitem__)
        held = {
            i: stack.enter_context(
                cache.rows(keys[i], len(asked), _columns(judges[i], 1 if prefills[i] else REPLY_TOKENS))
            )
            for i in order
        }
        _fill(list(judges), bodies[0], tails, [held[i] for i in range(len(judges))], budget)
        return [Readout(**held[i].read_only()) for i in range(len(judges))]


def _columns(lm: LanguageModel, width: int) -> dict[str, tuple[tuple[int, ...], str]]:
    return {
        "states": ((len(lm.blocks), lm.width), "float32"),
        "scores": ((SCORES,), "float32"),
        "reply": ((width,), "int64"),
    }


def assistant_turn(lm: LanguageModel, encoded: list[list[int]], prefill: str = "") -> list[int]:
    """The tokens of the begun assistant's turn, with which every rendered prompt ends.

    Raises
    ------
    ValueError
        If an activated adapter would not act from there on.
    """
    turn = [{"role": "user", "content": "x"}]
    without, begun = (
        lm.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=begins) for begins in (False, True)
    )
    tail = lm.tokenizer(begun.removeprefix(without) + prefill, add_special_tokens=False)["input_ids"]
    # Where tokens run across the turn's beginning, what all prompts end with is shorter.
    length = next((k for k in range(len(tail), 1, -1) if len({tuple(ids[-k:]) for ids in encoded}) == 1), 1)
    tail = encoded[0][-length:]
    if lm.invocation and lm.invocation != tail[: len(lm.invocation)]:
        raise ValueError(f"{lm.name}: its adapter does not act from the assistant's turn on")
    return tail


@torch.inference_mode()
def _fill(
    judges: list[LanguageModel],
    bodies: list[list[int]],
    tails: list[list[int]],
    held: list[cache.Rows],
    budget: int | None,
) -> None:
    missing = sorted(set().union(*(rows.missing for rows in held)))
    if not missing:
        return

    def answer(places: list[int], read: Read) -> None:
        rows = [missing[place] for place in places]
        for lm, tail, store in zip(judges, tails, held, strict=True):
            # The last judge may keep what the others had to copy.
            _answer(lm, tail, read if lm is judges[-1] else copy.deepcopy(read), rows, store)

    with tqdm(total=len(missing), desc=f"{judges[0].name}: judgements", unit="answer", leave=False) as bar:
        for places, _ in prompts_read(judges[0], [bodies[row] for row in missing], answer, budget=budget):
            bar.update(len(places))


@dataclass
class Read:
    """What a model holds of a batch of texts of one length that it has read: the beginning of what comes next.

    Attributes
    ----------
    cached : Cache
        Keys and values.
    length : int
        Tokens read so far.
    """

    cached: Any
    length: int

    def go_on(self, lm: LanguageModel, ids: torch.Tensor, *, logits: int) -> torch.Tensor:
        """Read further tokens [B, t]; the logits [B, logits, vocabulary] of the last ``logits`` of them."""
        along = torch.arange(ids.shape[1], device=ids.device)
        places = (self.length + along).expand(ids.shape)
        # By their places: a slice would reach the LM head in pieces, a multiplication a row, ten times slower.
        kept = along[-logits:]
        output = lm.core(ids, position_ids=places, cache=self.cached, use_cache=True, logits_to_keep=kept)
        self.cached, self.length = output.cache, self.length + ids.shape[1]
        return output.logits


def prompts_read(
    lm: LanguageModel,
    bodies: list[list[int]],
    then: Callable[[list[int], Read], Any] = lambda places, read: read,
    *,
    budget: int | None = None,
    together: int | None = None,
) -> Iterator[tuple[list[int], Any]]:
    """Read texts in batches, what all begin with once; yields the places of several batches' texts, and what was read.

    They have one length: a sliding window would count padding between the beginning and the rest.

    Parameters
    ----------
    then : callable
        Gives what is yielded instead of what was read; called again for fewer texts where memory runs out.
    budget : int, optional
        Tokens a batch; default by device.
    together : int, optional
        How many batches; default: :data:`TOGETHER` on a CPU, else 1, as a batch fills a GPU's memory.
    """
    shared = prompts.shared_beginning(bodies)
    past = None
    if shared:
        past = lm.decoder(torch.tensor([bodies[0][:shared]], device=lm.device), use_cache=True).cache
    budget = budget or prompts.token_budget(lm, cached=True)
    together = together or (TOGETHER if lm.device.type == "cpu" else 1)
    before = prompts.counted(lm, shared)
    held = memory.Budget(lm, together * budget)

    def piece(places: list[int], length: int, rows: int, start: int, stop: int) -> tuple[list[int], Any]:
        chosen = places[start:stop]
        batches = [chosen[at : at + rows] for at in range(0, len(chosen), rows)]
        caches = [_body(lm, [bodies[place][shared:] for place in batch], shared, past) for batch in batches]
        return chosen, then(chosen, Read(_joined(caches), shared + length))

    lengths = np.array([len(ids) - shared for ids in bodies])
    for length in np.unique(lengths)[::-1]:
        places = np.flatnonzero(lengths == length).tolist()
        size = min(int(length) + before, budget)
        most = together * (budget // size)
        for start in range(0, len(places), most):
            chosen = places[start : start + most]
            yield from held.pieces(partial(piece, chosen, int(length), budget // size), [size] * len(chosen))


def _body(lm: LanguageModel, ids: list[list[int]], shared: int, past: Any) -> Any:
    """The cache after texts of one length [B, t], read behind what they begin with."""
    cached = copy.deepcopy(past)
    if cached is not None:
        cached.batch_repeat_interleave(len(ids))
    tokens = torch.tensor(ids, device=lm.device)
    position = torch.arange(shared, shared + tokens.shape[1], device=lm.device).expand(tokens.shape)
    return lm.decoder(tokens, position_ids=position, cache=cached, use_cache=True).cache


def _joined(caches: list[Any]) -> Any:
    """One cache of all rows, of caches of equal length."""
    first = caches[0]
    for number, layer in enumerate(first.layers):
        for part in ("keys", "values"):
            setattr(layer, part, torch.cat([getattr(cache.layers[number], part) for cache in caches]))
    return first


def _answer(lm: LanguageModel, tail: list[int], read: Read, rows: list[int], store: cache.Rows) -> None:
    """Read the assistant's turn and what follows, and store it."""
    digits, ten = score_tokens(lm)
    width = store.arrays["reply"].shape[1]
    turn = torch.tensor([tail], device=lm.device).expand(len(rows), -1)
    # A "1" after it also says what would follow that: "10" may be two tokens.
    one = torch.tensor([[digits[1]]], device=lm.device).expand(len(rows), -1)
    blocks = list(range(len(lm.blocks)))
    with hooks.capture(lm, blocks, lambda hidden: hidden[:, len(tail) - 1]) as captured:
        # Where the reply is decoded, the "1" must not be in its way: it is then read in a copy.
        joined = [turn, one] if width == 1 else [turn]
        logits = read.go_on(lm, torch.cat(joined, dim=1), logits=len(joined))
    if width > 1:
        logits = torch.cat([logits, copy.deepcopy(read).go_on(lm, one, logits=1)], dim=1)
    states = torch.stack([captured[block].to(lm.device).float() for block in blocks], dim=1)
    if bad := (~torch.cat([states.abs().amax(-1), logits.amax(-1)], dim=1).isfinite()).nonzero().tolist():
        where = f"the state at block {bad[0][1]}" if bad[0][1] < len(blocks) else "a logit"
        raise NonFiniteActivation(f"{lm.name} in {lm.dtype}: {where} of answer {rows[bad[0][0]]} is not finite")
    chances = torch.softmax(logits.float(), dim=-1).double()
    scores = chances[:, 0, digits[1:]]
    tenth = scores[:, 0] * chances[:, 1, digits[0]]
    scores[:, 0] -= tenth
    if ten is not None:
        tenth += chances[:, 0, ten]
    reply = _reply(lm, read, logits[:, 0], width)
    store.arrays["states"][rows] = memory.to_host(states)
    store.arrays["scores"][rows] = memory.to_host(torch.cat([scores, tenth[:, None]], dim=1).float())
    store.arrays["reply"][rows] = memory.to_host(reply)
    store.done(rows)


def score_tokens(lm: LanguageModel) -> tuple[list[int], int | None]:
    """The tokens of the digits 0 … 9, and that of 10 if it is a single one."""
    found = [lm.tokenizer(str(k), add_special_tokens=False)["input_ids"][-1:] for k in range(10)]
    ten = lm.tokenizer("10", add_special_tokens=False)["input_ids"]
    digits = [ids[0] for ids in found]
    if len(set(digits)) < 10:
        raise ValueError(f"{lm.name}: its tokenizer has no token of its own for every digit")
    # A tokenizer may put a word-start mark before it: then there are two tokens, of which the first is no digit.
    ten = [token for token in ten if lm.tokenizer.decode([token]).strip()]
    return digits, ten[0] if len(ten) == 1 else None


def _reply(lm: LanguageModel, read: Read, logits: torch.Tensor, width: int) -> torch.Tensor:
    """Greedy continuation [B, width] from the first token's logits [B, vocabulary]; -1 from the end token on."""
    ends = generation.end_tokens(lm)
    ends = torch.tensor(ends if isinstance(ends, list) else [] if ends is None else [ends], device=lm.device)
    reply = torch.full((len(logits), width), -1, device=lm.device)
    going = torch.ones(len(logits), dtype=torch.bool, device=lm.device)
    for place in range(width):
        token = logits.argmax(-1)
        going = going & ~torch.isin(token, ends)
        reply[:, place] = torch.where(going, token, -1)
        if place == width - 1 or not going.any():
            break
        logits = read.go_on(lm, token[:, None], logits=1)[:, -1]
    return reply
