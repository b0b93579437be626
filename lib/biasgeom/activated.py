"""Adapters that act from a place in the text on (PEFT's activated LoRA), whoever calls the model.

PEFT looks for the place, the invocation tokens, in the ``forward`` and ``generate`` of its own wrapper. Here the
decoder is also called alone, and with keys and values that were computed before; PEFT would then leave the adapter off,
without a word. So the place is found where every pass comes by: at the decoder. That an adapter was already at work
travels with the cached keys and values.
"""

from typing import Any

from torch import nn

ACTIVE = "biasgeom_active_rows"
"""Attribute of a cache: for each row whether its adapter is at work at the cache's end."""


def attach(decoder: nn.Module, layers: list[nn.Module], invocation: list[int]) -> set[int]:
    """Let the adapters in ``layers`` act from the last occurrence of the invocation tokens on.

    Parameters
    ----------
    decoder : Module
        The base model without its head; every pass goes through it.
    layers : list of Module
        The LoRA layers within.
    invocation : list of int
        ``alora_invocation_tokens`` of the adapter.

    Returns
    -------
    set of int
        Ids of the hooks, which stay.

    Notes
    -----
    The cached keys and values of a row whose text had no invocation yet are those of the base model.
    """
    now: list[list[int] | None] = [None]

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        if ids is None:
            raise ValueError("an activated adapter needs token ids to find its place; embeddings were given")
        went_on = _active(kwargs.get("cache", kwargs.get("past_key_values")), len(ids))
        starts = [_last_occurrence(row, invocation) for row in ids.tolist()]
        whole = ids.shape[1]
        now[0] = [
            whole if on else (0 if start is None else whole - start) for start, on in zip(starts, went_on, strict=True)
        ]

    def after(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        cache = output.get("cache")
        if cache is not None:
            setattr(cache, ACTIVE, [offset > 0 for offset in now[0]])

    def hand_over(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        return args, {**kwargs, "alora_offsets": now[0]}

    handles = [
        decoder.register_forward_pre_hook(before, with_kwargs=True),
        decoder.register_forward_hook(after),
        *(layer.register_forward_pre_hook(hand_over, with_kwargs=True) for layer in layers),
    ]
    return {handle.id for handle in handles}


def _active(cache: Any, rows: int) -> list[bool]:
    known = getattr(cache, ACTIVE, None)
    if known is None or not any(known):
        return [False] * rows
    if all(known):
        return [True] * rows
    if len(known) != rows:
        raise ValueError("cached keys and values were reordered after an activated adapter had begun in some rows only")
    return known


def _last_occurrence(ids: list[int], invocation: list[int]) -> int | None:
    width = len(invocation)
    return next((i for i in range(len(ids) - width, -1, -1) if ids[i : i + width] == invocation), None)


def is_activated(config: Any) -> bool:
    """Whether a PEFT configuration is that of an activated adapter."""
    return bool(getattr(config, "alora_invocation_tokens", None))


def lora_layers(model: nn.Module) -> list[nn.Module]:
    """The modules of a model that carry LoRA weights."""
    from peft.tuners.lora import LoraLayer

    return [module for module in model.modules() if isinstance(module, LoraLayer)]
