"""Raw or chat text → token batches: sorted by length, filled to a token budget, masks and positions right.

What a padded batch needs besides ids is computed here from the lengths, never from ``ids != pad``: a text may contain
the padding token (SmolLM2 pads with its end-of-turn token), and GPT-2 has none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from biasgeom.models import LanguageModel

CPU_BUDGET = 512
"""Tokens a batch on a CPU. Larger batches are slower there: 2,048 cost 20-45 % more."""


@dataclass(frozen=True)
class Batch:
    """B texts of up to T tokens.

    Attributes
    ----------
    rows : list of int, length B
        Where each text stood in the input.
    input_ids, attention_mask, position_ids : Tensor [B, T]
        Integer. Positions count each text's own tokens from 0.
    last : Tensor [B]
        Index of each text's last token on the T axis.
    """

    rows: list[int]
    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    position_ids: torch.Tensor
    last: torch.Tensor

    def inputs(self) -> dict[str, torch.Tensor]:
        """The keyword arguments of a model's forward pass."""
        return {
            "input_ids": self.input_ids,
            "attention_mask": self.attention_mask,
            "position_ids": self.position_ids,
        }


def render(lm: LanguageModel, text: str, *, chat: bool = False, prefill: str | None = None) -> str:
    """The exact text the model reads, special tokens of the chat template included.

    Parameters
    ----------
    text : str
        The raw prompt, or the user's turn if ``chat``.
    prefill : str, optional
        Begins the assistant's turn (chat), or is appended to the raw text.

    Raises
    ------
    ValueError
        If ``chat`` is asked of a model without a chat template.
    """
    if not chat:
        return text + (prefill or "")
    if not lm.tokenizer.chat_template:
        raise ValueError(f"{lm.name} has no chat template (a base model): read it from raw text, chat=False")
    turn = [{"role": "user", "content": text}]
    return lm.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True) + (prefill or "")


def encode(
    lm: LanguageModel, texts: Sequence[str], *, chat: bool = False, prefill: str | Sequence[str] | None = None
) -> list[list[int]]:
    """Token ids of each text, with the special tokens the tokenizer or the chat template itself adds, and no others.

    Raises
    ------
    ValueError
        No texts, an empty text, two equal texts (the message names their places), or ``prefill`` of another length.
    """
    prefills = [prefill] * len(texts) if prefill is None or isinstance(prefill, str) else list(prefill)
    if len(prefills) != len(texts):
        raise ValueError(f"{len(texts)} texts but {len(prefills)} prefills")
    check_texts(texts, prefills)
    rendered = [render(lm, text, chat=chat, prefill=begin) for text, begin in zip(texts, prefills, strict=True)]
    # A rendered chat template holds its own BOS; the tokenizer would add a second one.
    encoded = lm.tokenizer(rendered, add_special_tokens=not chat)["input_ids"]
    for place, ids in enumerate(encoded):
        if not ids:
            raise ValueError(f"text {place} has no tokens: {texts[place]!r}")
    return encoded


def check_texts(texts: Sequence[str], prefills: Sequence[str | None] | None = None) -> None:
    """Refuse what would be measured wrongly without a word: no texts, empty ones, duplicates, one string for a list."""
    if isinstance(texts, str):
        raise ValueError("expected a list of texts, got one string")
    if not len(texts):
        raise ValueError("no texts were given")
    seen: dict[tuple[str, str | None], int] = {}
    for place, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"text {place} is empty or no text: {text!r}")
        item = (text, prefills[place] if prefills is not None else None)
        if item in seen:
            raise ValueError(f"texts {seen[item]} and {place} are the same: {text!r}")
        seen[item] = place


def shared_beginning(encoded: Sequence[Sequence[int]]) -> int:
    """How many tokens all texts begin with. Not the last token of a text: that has to be in its batch."""
    first, last = min(encoded), max(encoded)  # in lexical order, so what these two share, all do
    differ = (place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return min(next(differ, len(first)), min(map(len, encoded)) - 1)


def token_budget(lm: LanguageModel) -> int:
    """Tokens a batch: :data:`CPU_BUDGET` on a CPU, from the free memory on a GPU."""
    if lm.device.type != "cuda":
        return CPU_BUDGET
    free, _ = torch.cuda.mem_get_info(lm.device)
    # About 64 activations of the residual width are alive per token within a block; half the free memory is used.
    per_token = 64 * lm.width * torch.finfo(lm.dtype).bits // 8
    return int(min(max(free // 2 // per_token, CPU_BUDGET), 1 << 16))


def batches(
    lm: LanguageModel, encoded: Sequence[Sequence[int]], *, budget: int | None = None, side: str = "right"
) -> Iterator[Batch]:
    """Batches of similar length, padded to at most ``budget`` tokens each; a longer text goes alone.

    Parameters
    ----------
    encoded : list of token id lists, length n
    budget : int, optional
        Tokens in a padded batch; default :func:`token_budget`.
    side : {"right", "left"}
        Right for reading, left for generation.
    """
    if side not in ("right", "left"):
        raise ValueError(f"side must be 'right' or 'left', not {side!r}")
    budget = budget or token_budget(lm)
    order = sorted(range(len(encoded)), key=lambda row: -len(encoded[row]))  # stable; the longest meet the memory first
    start = 0
    while start < len(order):
        size = max(1, budget // len(encoded[order[start]]))
        yield pad(lm, encoded, order[start : start + size], side=side)
        start += size


def pad(lm: LanguageModel, encoded: Sequence[Sequence[int]], rows: list[int], *, side: str) -> Batch:
    """One batch of the texts ``rows``, padded with the pad token, or the end token where there is none."""
    tokenizer = lm.tokenizer
    filler = next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)
    lengths = torch.tensor([len(encoded[row]) for row in rows])
    width = int(lengths.max())
    column = torch.arange(width).expand(len(rows), width)
    first = torch.zeros_like(lengths) if side == "right" else width - lengths
    position = column - first[:, None]
    mask = (position >= 0) & (position < lengths[:, None])
    ids = torch.full((len(rows), width), filler)
    ids[mask] = torch.tensor([i for row in rows for i in encoded[row]])
    parts = (ids, mask.long(), position.clamp(min=0), first + lengths - 1)
    return Batch(rows, *(part.to(lm.device) for part in parts))
