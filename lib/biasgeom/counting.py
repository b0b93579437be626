"""How many tokens models read and wrote in this process: what a run cost, whatever machine it ran on.

A hook on each decoder counts; it changes nothing and waits for no device. Tokens that come out of a cache on disk, or
whose keys and values were computed before, are not counted: nothing was computed for them.
"""

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # reading results needs no torch
    from torch import nn

ATTACHED = "biasgeom_counts"
"""Attribute of a decoder: the id of its hook, copied along with the decoder."""

_counts: defaultdict[tuple[str, str, str], Any] = defaultdict(int)


def attach(decoder: "nn.Module", name: str) -> int:
    """Count a decoder's tokens under a model's name from now on; returns the id of the hook, the first one's if any."""
    if not hasattr(decoder, ATTACHED):
        setattr(decoder, ATTACHED, decoder.register_forward_pre_hook(partial(_count, name), with_kwargs=True).id)
    return getattr(decoder, ATTACHED)


def _count(name: str, _: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = next((x for x in (kwargs.get("input_ids"), kwargs.get("inputs_embeds"), *args) if x is not None), None)
    if given is None:
        return  # the decoder itself says what is wrong
    rows, width = given.shape[:2]
    mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
    # A multimodal wrapper hands its text model another form of the mask: then padding is counted, too.
    padded = getattr(mask, "ndim", 0) == 2
    past = next((kwargs[key] for key in ("cache", "past_key_values") if kwargs.get(key) is not None), None)
    kind = "written" if width == 1 and past is not None and past.get_seq_length() else "read"
    # The sum stays where the mask lies: a number on a GPU would be waited for.
    number = mask[:, -width:].sum() if padded else rows * width
    place = (name, kind, str(mask.device) if padded else "")
    # Not in place: a tensor of inference mode can't be changed outside of it.
    _counts[place] = _counts[place] + number


def totals() -> dict[str, dict[str, int]]:
    """Model's name → tokens ``read`` and ``written`` (decoded one at a time after cached ones) since the start."""
    found: dict[str, dict[str, int]] = {}
    for (name, kind, _), number in list(_counts.items()):
        counted = found.setdefault(name, {"read": 0, "written": 0})
        counted[kind] += int(number)
    return found
