r"""Steer at one block and run again only what lies after it, for many strengths at once.

Steering the last token of a prompt (:func:`biasgeom.hooks.steer`, positions "last") leaves the keys and values of all
tokens before it, and every block up to the steered one, as they were. So a prompt is read once
(:func:`biasgeom.prefix.read`), and each strength α costs the remaining blocks, the final norm and the head of one or
two tokens. The strengths stand side by side as tokens of one row, each of which sees the prompt and itself alone, so
that the prompt's keys and values are fetched once for all of them (judge paper 3.4; spec point 13).
"""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicLayer

from biasgeom import activated, hooks, memory, prompts
from biasgeom.hooks import AnyDirection
from biasgeom.models import LanguageModel
from biasgeom.prefix import Group, Prefix, read

BUDGET = 2
"""Tokens of a batch, in budgets of a reading pass: these tokens see a prompt that is read, and no more."""
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
"""How far, relative to the largest logit but 1 at least, an unsteered re-run may be from the whole pass; else 5e-2."""


def edits(lm: LanguageModel, block: int, direction: AnyDirection, alphas: np.ndarray) -> torch.Tensor:
    """What steering adds to the state at each strength, αv: alphas [A] → [A, d].

    Raises
    ------
    ValueError
        A strength that is not finite or overflows, or a direction of another model, block or width, or zero.
    """
    if alphas.ndim != 1 or not np.isfinite(alphas).all():
        raise ValueError(f"alpha must be a finite number or a list of them, not {alphas!r}")
    unit = hooks.unit_vector(lm, direction, block)
    raw = direction.vector_at(lm.name, block) if hasattr(direction, "vector_at") else direction
    length = float(torch.as_tensor(raw).double().norm())
    steps = torch.as_tensor(alphas * length, dtype=unit.dtype, device=unit.device)[:, None] * unit
    if not torch.isfinite(steps).all():
        raise ValueError(f"the largest alpha times the direction is beyond what {steps.dtype} holds")
    return steps


class SuffixRun:
    """The blocks after one, for prompts that were read.

    Parameters
    ----------
    lm : LanguageModel
    prompts : Prefix, or list of str
        From :func:`biasgeom.prefix.read`; texts are read by it, with the further arguments.
    block : int
        What it puts out is steered.

    Raises
    ------
    ValueError
        An unknown block; what :func:`biasgeom.prefix.read` refuses; at the first run, if the unsteered re-run does not
        give what the whole pass gave: then this architecture needs the hooked pass, :func:`biasgeom.hooks.steer`.
    """

    def __init__(
        self,
        lm: LanguageModel,
        prompts: Prefix | Sequence[str],
        block: int,
        *,
        chat: bool = False,
        prefill: str | None = None,
        append: int | None = None,
    ) -> None:
        if not 0 <= block < len(lm.blocks):
            raise ValueError(f"{lm.name} has blocks 0 to {len(lm.blocks) - 1}, not {block!r}")
        self.lm, self.block = lm, block
        self.prefix = (
            prompts if isinstance(prompts, Prefix) else read(lm, prompts, chat=chat, prefill=prefill, append=append)
        )
        self._checked = False

    def logits(
        self,
        alpha: float | Sequence[float] | np.ndarray,
        direction: AnyDirection,
        *,
        tokens: Sequence[int] | None = None,
        positions: str = "last",
    ) -> np.ndarray:
        """Logits after each prompt, steered by h′ = h + αv at its last token and the appended one.

        Parameters
        ----------
        alpha : float, or array [A]
        direction : Direction, or array [d]
            Used as it is: α counts in units of its norm.
        tokens : list of int, optional
            Compute these columns only.
        positions : {"last"}

        Returns
        -------
        array, float32
            [n, vocabulary]; with an array of alphas [A, n, vocabulary]; with an appended token two positions before the
            vocabulary: what follows the prompt, and what follows the token.

        Raises
        ------
        ValueError
            A strength that is not finite, a direction of another width, model or block, or positions other than "last".
        """
        if positions != "last":
            raise ValueError(
                f"positions={positions!r} changes what the other tokens hand on, which is not run again here: "
                "use hooks.steer with a whole pass"
            )
        steps = edits(self.lm, self.block, direction, np.atleast_1d(np.asarray(alpha, dtype=np.float64)))
        width = 2 if self.prefix.appended else 1
        found = None
        for rows, which, logits in self.passes(steps, tokens=tokens, width=width):
            if found is None:
                found = np.empty((len(steps), self.prefix.count, width, logits.shape[-1]), dtype=np.float32)
            found[np.ix_(which, rows)] = memory.to_host(logits.float())
        if not self.prefix.appended:
            found = found[:, :, 0]
        return found if np.ndim(alpha) else found[0]

    @torch.inference_mode()
    def passes(
        self,
        steps: torch.Tensor,
        *,
        tokens: Sequence[int] | None = None,
        width: int = 1,
        rows: Sequence[int] | None = None,
    ) -> Iterator[tuple[list[int], list[int], torch.Tensor]]:
        """Run the suffix batch by batch, for whoever does not want all logits at once.

        Parameters
        ----------
        steps : Tensor [A, d], or [A, n, d] with an edit of its own for every prompt
        width : {1, 2}
            Positions: after the prompt, and after the appended token.
        rows : list of int, optional
            Of one yielded batch: run this one only.

        Yields
        ------
        rows, which, logits
            Prompts [B], edits [a], and Tensor [a, B, width, vocabulary].
        """
        if not self._checked:
            self._check()
        budget = memory.Budget(self.lm, BUDGET * prompts.token_budget(self.lm, logits=tokens is None))

        def piece(group: Group, first: int, start: int, stop: int) -> tuple[list[int], list[int], torch.Tensor]:
            which = list(range(first + start, first + stop))
            chosen = steps[which]
            chosen = chosen[:, group.rows] if steps.ndim == 3 else chosen
            return group.rows, which, self._run(group, chosen, width, tokens)

        for group in self.prefix.groups:
            if rows is not None and group.rows != rows:
                continue
            size = len(group.rows) * width
            most = max(1, budget.tokens // size)
            # Batches of about equal size: the last one of a few strengths would cost nearly as much as a full one.
            together = math.ceil(len(steps) / math.ceil(len(steps) / most))
            for first in range(0, len(steps), together):
                count = min(together, len(steps) - first)
                yield from budget.pieces(partial(piece, group, first), [size] * count)

    def _run(self, group: Group, steps: torch.Tensor, width: int, tokens: Sequence[int] | None) -> torch.Tensor:
        lm, count, size = self.lm, len(steps), len(group.rows)
        per_prompt = steps if steps.ndim == 3 else steps[:, None].expand(count, size, -1)
        state = group.states[self.block][:, None, :width]
        edited = hooks.wide(state) + per_prompt.transpose(0, 1)[:, :, None].to(state.device)
        edited = edited.to(state.dtype).flatten(1, 2)  # [B, A · width, d]
        ids = group.tokens[:, :width].repeat(1, count)
        places = (group.lengths[:, None] + torch.arange(width, device=ids.device)).repeat(1, count)
        cached = Cache(layers=[_Kept(k, v) for k, v in zip(group.keys, group.values, strict=True)])
        setattr(cached, activated.ACTIVE, [True] * size)  # the adapter's place is in what was read
        with _from(lm, self.block, edited, group, _Masks(lm, group, places, count, width)), _head(lm, tokens):
            logits = lm.core(ids, position_ids=places, cache=cached, use_cache=True).logits
        return logits.view(size, count, width, -1).transpose(0, 1)

    def _check(self) -> None:
        group = self.prefix.groups[0]
        width = group.tokens.shape[1]
        found = self._run(group, torch.zeros(1, self.lm.width), width, None)[0, 0].float()
        limit = TOLERANCE.get(self.lm.dtype, 5e-2) * max(1.0, float(group.logits.abs().max()))
        error = float((found - group.logits.to(found.device)).abs().max())
        if not error <= limit:
            raise ValueError(
                f"{self.lm.name}: running from block {self.block} gives logits that are {error:.2g} from the whole "
                "pass; this architecture is not supported here, use hooks.steer"
            )
        self._checked = True


class _Kept(DynamicLayer):
    """A prompt's keys and values; new ones are used and not kept."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.dtype, self.device = keys, values, keys.dtype, keys.device
        self.is_initialized = True

    def update(self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        return torch.cat([self.keys, keys], dim=-2), torch.cat([self.values, values], dim=-2)


class _Masks:
    """Who sees whom: a token its prompt, as far as a block's window reaches, and the tokens of its own strength."""

    def __init__(self, lm: LanguageModel, group: Group, places: torch.Tensor, count: int, width: int) -> None:
        config = lm.core.config.get_text_config(decoder=True)
        self.window = getattr(config, "sliding_window", None)
        kinds = getattr(config, "layer_types", None) or ["sliding_attention" if self.window else ""] * len(lm.blocks)
        self.slides = [kind == "sliding_attention" for kind in kinds]
        column = torch.arange(group.keys[0].shape[2], device=places.device)
        inside = (column < group.lengths[:, None])[:, None].expand(-1, count * width, -1)
        near = places[:, :, None] - column < (self.window or 1)
        own = torch.block_diag(*[torch.ones(width, width, device=places.device).tril()] * count).bool()
        own = own.expand(len(group.rows), -1, -1)
        self.made = {
            s: self._additive(torch.cat([inside & near if s else inside, own], dim=-1), lm) for s in set(self.slides)
        }

    def _additive(self, seen: torch.Tensor, lm: LanguageModel) -> torch.Tensor:
        return torch.zeros(seen.shape, dtype=lm.dtype, device=seen.device).masked_fill(
            ~seen, torch.finfo(lm.dtype).min
        )[:, None]

    def of(self, block: int, device: torch.device) -> torch.Tensor:
        return self.made[self.slides[block]].to(device)


@contextmanager
def _from(lm: LanguageModel, start: int, edited: torch.Tensor, group: Group, masks: _Masks) -> Iterator[None]:
    """Let the model run from behind block ``start``, which then puts out ``edited``; later blocks get our masks."""

    def skipped(block: int) -> Callable[..., Any]:
        def forward(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            output = edited if block == start else hidden_states
            return (output,) if group.tuples[block] else output

        return forward

    def masked(block: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(forward)

        def again(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.arguments["attention_mask"] = masks.of(block, edited.device)
            return forward(*bound.args, **bound.kwargs)

        return again

    with ExitStack() as stack:
        for number, block in enumerate(lm.blocks):
            own = block.__dict__.get("forward")
            stack.callback(_restore, block, own)
            block.forward = skipped(number) if number <= start else masked(number, block.forward)
        yield


def _restore(module: nn.Module, forward: Callable[..., Any] | None) -> None:
    if forward is None:
        del module.forward
    else:
        module.forward = forward


@contextmanager
def _head(lm: LanguageModel, tokens: Sequence[int] | None) -> Iterator[None]:
    """Let the head compute some columns only."""
    if tokens is None:
        yield
        return
    whole = lm.core.get_output_embeddings()
    chosen = torch.as_tensor(list(tokens), device=whole.weight.device)
    narrow = nn.Linear(whole.in_features, len(chosen), bias=whole.bias is not None, device="meta")
    narrow.weight = nn.Parameter(whole.weight[chosen], requires_grad=False)
    if whole.bias is not None:
        narrow.bias = nn.Parameter(whole.bias[chosen], requires_grad=False)
    lm.core.set_output_embeddings(narrow)
    try:
        yield
    finally:
        lm.core.set_output_embeddings(whole)
