"""Where each row's first and last tokens lie in the forward pass that is running: read from its attention mask."""

from typing import Any

import torch
from torch import nn


class Layout:
    """Listens to a model's forward passes for their masks, so that a hook on a block needs no guess.

    ``read`` and ``forget`` are hooks: the one before each of the modules that may be given the mask, the other after
    the decoder. The questions are put between them, about hidden states [B, T, d] of a whole pass or a decoding step.

    Raises
    ------
    ValueError
        By every question, if the pass of a batch came without a 2-D mask.
    """

    def __init__(self) -> None:
        self.mask: torch.Tensor | None = None

    def read(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        ids = next(x for x in (kwargs.get("input_ids"), kwargs.get("inputs_embeds"), *args) if x is not None)
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        # Newer transformers call the K/V cache `cache`, older ones `past_key_values`; both still accept the latter.
        past = next((kwargs[name] for name in ("cache", "past_key_values") if kwargs.get(name) is not None), None)
        if isinstance(mask, torch.Tensor) and mask.dim() == 2:
            self.mask = mask
        elif mask is None and ids.shape[0] == 1:
            seen = past.get_seq_length() if past is not None else 0
            self.mask = torch.ones(1, seen + ids.shape[1], device=ids.device)
        # Any other form is what a multimodal wrapper made, for its text model, of the 2-D mask that it got itself.

    def forget(self, module: nn.Module, args: tuple, output: Any) -> None:
        self.mask = None

    def _columns(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.mask is None:
            raise ValueError("this edit needs the pass's 2-D attention_mask: token positions are read from it")
        width = self.mask.shape[1]  # prompt and all decoded tokens; the hidden states are those of the last columns
        column = torch.arange(width - hidden.shape[1], width, device=hidden.device)
        return self.mask.to(hidden.device).long(), column

    def is_last(self, hidden: torch.Tensor) -> torch.Tensor:
        """Bool [B, T]: each row's last token; a token decoded with a K/V cache is always the last."""
        mask, column = self._columns(hidden)
        last = mask.shape[1] - 1 - mask.flip(1).argmax(1)
        return column == last[:, None]

    def is_first(self, hidden: torch.Tensor) -> torch.Tensor:
        """Bool [B, T]: each row's token 0."""
        mask, column = self._columns(hidden)
        return column == mask.argmax(1)[:, None]

    def is_from(self, hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Bool [B, T]: each row's tokens from its position on, tokens already in the K/V cache counted."""
        mask, column = self._columns(hidden)
        if len(positions) != len(mask):
            raise ValueError(f"{len(positions)} positions for a pass of {len(mask)} rows")
        return column >= positions.to(hidden.device)[:, None]
