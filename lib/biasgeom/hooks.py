"""Read or edit the residual stream: ``capture``, ``steer``, ``ablate``.

All three are context managers over block outputs. They add forward hooks of their own, and on leaving remove exactly
those, whatever happened inside. Nothing is edited in place: a hook returns a new tensor of the activation's own dtype.

Sites: a block number 0 … L−1 stands for that block's output; ``"embedding"`` for what enters block 0 and
``"final_norm"`` for what the LM head reads. Hugging Face's ``hidden_states`` are, in this order, the embedding, the
outputs of blocks 0 … L−2, and the final norm: it does not hold the output of the last block. It is not used here, since
its content depends on whether it was ever asked for before a hook edited the stream.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from biasgeom import cache
from biasgeom.layout import Layout
from biasgeom.models import LanguageModel

Site = int | str
Edit = Callable[[torch.Tensor], torch.Tensor | None]
"""Gets the hidden states [B, T, d]; returns what replaces them, or None to leave the pass alone."""


class StoredDirection(Protocol):
    """A direction that knows where it belongs and checks it; see :class:`biasgeom.direction.Direction`."""

    def vector_at(self, model: str, block: int) -> np.ndarray: ...


AnyDirection = StoredDirection | np.ndarray | torch.Tensor


@contextmanager
def capture(
    lm: LanguageModel, blocks: Sequence[Site], select: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> Iterator[dict[Site, torch.Tensor]]:
    """Collect activations of the next forward pass.

    Parameters
    ----------
    blocks : list of int, "embedding" or "final_norm"
        Where to read; see the sites at the top of this module.
    select : callable, optional
        Maps the hidden states [B, T, d] to what is kept, within the hook, so that nothing else outlives the pass;
        see :func:`at`. Default: a copy of all of them.

    Yields
    ------
    dict
        Site → tensor, filled by the forward pass; a further pass overwrites it. Hooks run in the order they were added:
        enter ``steer`` or ``ablate`` first to see the edited states.

    Raises
    ------
    ValueError
        If a module is in training mode (dropout would be live), or a site does not exist.
    """
    require_evaluation(lm)
    captured: dict[Site, torch.Tensor] = {}
    keep = select or torch.clone

    def reader(site: Site) -> Edit:
        def read(hidden: torch.Tensor) -> None:
            captured[site] = keep(hidden.detach())

        return read

    with _attached(lm, [(site, reader(site)) for site in blocks], edits_stream=False):
        yield captured


def require_evaluation(lm: LanguageModel) -> None:
    """Raise ``ValueError`` if a module is in training mode: PEFT leaves dropout live after wrapping."""
    training = next(
        (name or type(module).__name__ for name, module in lm.model.named_modules() if module.training), None
    )
    if training is not None:
        raise ValueError(f"{lm.name} is in training mode ({training}); call lm.model.eval() before reading activations")


def at(positions: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """A selector for :func:`capture`: the token at ``positions`` [B] of each row, [B, T, d] → [B, d]."""

    def select(hidden: torch.Tensor) -> torch.Tensor:
        index = positions.to(hidden.device)
        return hidden[torch.arange(len(index), device=hidden.device), index]

    return select


@contextmanager
def steer(
    lm: LanguageModel, block: int, direction: AnyDirection, alpha: float, *, positions: str | torch.Tensor = "last"
) -> Iterator[None]:
    """Add α·v to one block's output: h′ = h + αv.

    Parameters
    ----------
    direction : Direction, or array [d]
        Used as it is: α counts in units of its norm.
    positions : {"last", "all"} or Tensor [B]
        ``"last"``: the last prompt token and every token decoded after it. ``"all"``: every token. A tensor: in a pass
        over prompt and continuation, each row's tokens from that index on, padding counted; its rows are those of the
        pass.

    Raises
    ------
    ValueError
        Other positions, a strength that is not finite or overflows, or what :func:`ablate` refuses. Within the pass:
        no 2-D attention mask to read positions from, or a tensor of another number of rows.
    """
    if not (isinstance(positions, torch.Tensor) or positions in ("last", "all")):
        raise ValueError(f"positions must be 'last', 'all' or a tensor of row positions, not {positions!r}")
    if not np.isfinite(alpha):
        raise ValueError(f"alpha must be finite, not {alpha}")
    step = alpha * _vector(lm, direction, block)
    if not torch.isfinite(step).all():
        raise ValueError(f"alpha {alpha} times the direction is beyond what {step.dtype} holds")
    start = positions.tolist() if isinstance(positions, torch.Tensor) else None

    with _layout(lm) as layout:

        def edit(hidden: torch.Tensor) -> torch.Tensor:
            if positions == "all":
                chosen: Any = 1.0
            elif start is not None:
                chosen = layout.is_from(hidden, positions)[..., None]
            else:
                chosen = layout.is_last(hidden)[..., None]
            return (wide(hidden) + chosen * step).to(hidden.dtype)

        label = ["steer", block, step.tolist(), start or str(positions)]
        with _attached(lm, [(block, edit)], label=label):
            yield


@contextmanager
def ablate(
    lm: LanguageModel,
    directions: Mapping[int, AnyDirection],
    *,
    variant: str = "literal",
    means: Mapping[Site, float] | None = None,
) -> Iterator[None]:
    """Directional ablation: remove the component along v_b from each block's output (gender paper, equation 5).

    ``literal``: h − ⟨h, v⟩v at every token, as the paper writes it. ``guarded``: h − (⟨h, v⟩ − m)v with the mean
    projection m of separate neutral text, and token 0, the attention sink, is left alone.

    Parameters
    ----------
    directions : mapping of block → Direction or array [d]
        Normalised here. If block 0 is among them, the embedding output is projected with its vector too, as what block
        0 adds to the stream would otherwise carry the component on.
    variant : {"literal", "guarded"}
    means : mapping, for ``guarded`` only
        m at each block, and at ``"embedding"`` if block 0 is among the blocks;
        see :func:`biasgeom.activations.mean_projections`.

    Raises
    ------
    ValueError
        Unknown variant or block, a direction of another model, site or width, a zero vector, missing means.
    """
    if variant not in ("literal", "guarded"):
        raise ValueError(f"variant must be 'literal' or 'guarded', not {variant!r}")
    if not directions:
        raise ValueError("no directions were given")
    vectors: dict[Site, torch.Tensor] = {block: unit_vector(lm, v, block) for block, v in directions.items()}
    if 0 in vectors:
        vectors = {"embedding": vectors[0], **vectors}
    if variant == "guarded" and (missing := set(vectors) - set(means or {})):
        raise ValueError(f"guarded ablation needs the mean projection at {sorted(missing, key=str)}")

    def literal(v: torch.Tensor) -> Edit:
        def edit(hidden: torch.Tensor) -> torch.Tensor:
            flat = wide(hidden).reshape(-1, hidden.shape[-1])
            return torch.addr(flat, flat @ v, v, alpha=-1).view(hidden.shape).to(hidden.dtype)

        return edit

    with _layout(lm) as layout:

        def guarded(v: torch.Tensor, mean: float) -> Edit:
            def edit(hidden: torch.Tensor) -> torch.Tensor:
                full = wide(hidden)
                deviation = (full @ v - mean) * ~layout.is_first(hidden)
                return (full - deviation[..., None] * v).to(hidden.dtype)

            return edit

        kept = {site: float(means[site]) for site in vectors} if variant == "guarded" else {}
        edits = [(s, guarded(v, kept[s]) if variant == "guarded" else literal(v)) for s, v in vectors.items()]
        label = ["ablate", variant, [[str(s), v.tolist(), kept.get(s)] for s, v in vectors.items()]]
        with _attached(lm, edits, label=label):
            yield


def foreign(lm: LanguageModel) -> bool:
    """Whether forward hooks that are not ours hang on the model: its activations are then not what the key says."""
    ids = {
        hook
        for module in lm.model.modules()
        for table in (module._forward_hooks, module._forward_pre_hooks)
        for hook in table
    }
    everywhere = nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks
    return bool(ids - lm.own_hooks) or bool(everywhere)


def unit_vector(lm: LanguageModel, direction: AnyDirection, block: int) -> torch.Tensor:
    """A direction for ``block``, checked and normalised, where the block computes."""
    return _vector(lm, direction, block, unit=True)


def _vector(lm: LanguageModel, direction: AnyDirection, block: int, *, unit: bool = False) -> torch.Tensor:
    if isinstance(block, str) or not 0 <= block < len(lm.blocks):
        raise ValueError(f"{lm.name} has blocks 0 to {len(lm.blocks) - 1}, not {block!r}")
    raw = direction.vector_at(lm.name, block) if hasattr(direction, "vector_at") else direction
    raw = raw.detach().double().cpu().numpy() if isinstance(raw, torch.Tensor) else raw
    vector = torch.as_tensor(np.asarray(raw, dtype=np.float64))
    if vector.shape != (lm.width,):
        raise ValueError(
            f"{lm.name} has width {lm.width}; the direction for block {block} has shape {tuple(vector.shape)}"
        )
    norm = vector.norm()
    if not torch.isfinite(norm) or norm == 0:
        raise ValueError(f"the direction for block {block} is zero or not finite")
    device = next(lm.blocks[block].parameters()).device
    return (vector / norm if unit else vector).to(torch.promote_types(lm.dtype, torch.float32)).to(device)


def wide(hidden: torch.Tensor) -> torch.Tensor:
    """Inner products and sums happen in float32 or better, whatever the model runs in."""
    return hidden.to(torch.promote_types(hidden.dtype, torch.float32))


@contextmanager
def _layout(lm: LanguageModel) -> Iterator[Layout]:
    layout = Layout()
    with _own(lm) as add:
        # A PEFT wrapper calls the core's forward directly, past its hooks: listen on the wrapper as well.
        for module in dict.fromkeys([lm.model, lm.core, lm.decoder]):
            add(module.register_forward_pre_hook(layout.read, with_kwargs=True))
        add(lm.decoder.register_forward_hook(layout.forget, always_call=True))
        yield layout


@contextmanager
def _own(lm: LanguageModel) -> Iterator[Callable[[Any], None]]:
    with ExitStack() as stack:

        def add(handle: Any) -> None:
            lm.own_hooks.add(handle.id)
            stack.callback(lm.own_hooks.discard, handle.id)
            stack.callback(handle.remove)

        yield add


@contextmanager
def _attached(
    lm: LanguageModel, edits: Sequence[tuple[Site, Edit]], *, edits_stream: bool = True, label: Any = None
) -> Iterator[None]:
    with _own(lm) as add:
        for site, edit in edits:
            add(_register(lm, site, edit))
        name = cache.digest(intervention=label)
        if edits_stream:
            lm.interventions.append(name)
        try:
            yield
        finally:
            if edits_stream:
                lm.interventions.remove(name)


def _register(lm: LanguageModel, site: Site, edit: Edit) -> Any:
    def after(module: nn.Module, args: tuple, output: Any) -> Any:
        # Current transformers blocks return a tensor, older ones a tuple whose further members pass through.
        edited = edit(output[0] if isinstance(output, tuple) else output)
        return (edited, *output[1:]) if isinstance(output, tuple) and edited is not None else edited

    def before(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
        edited = edit(args[0] if args else kwargs["hidden_states"])
        if edited is None:
            return None
        return ((edited, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": edited})

    if site == "embedding":
        return lm.blocks[0].register_forward_pre_hook(before, with_kwargs=True)
    if site == "final_norm":
        return lm.final_norm.register_forward_hook(after)
    if isinstance(site, str) or not 0 <= site < len(lm.blocks):
        raise ValueError(f"{lm.name} has blocks 0 to {len(lm.blocks) - 1}, 'embedding' and 'final_norm', not {site!r}")
    return lm.blocks[site].register_forward_hook(after)
