"""Raw or chat text → token batches: sorted by length, filled to a token budget, masks and positions right.

What a padded batch needs besides ids is computed here from the lengths, never from ``ids != pad``: a text may contain
the padding token (SmolLM2 pads with its end-of-turn token), and GPT-2 has none.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from biasgeom import memory
from biasgeom.models import LanguageModel

T = TypeVar("T")

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
        No texts, an empty text, two equal texts (the message names their places), ``prefill`` of another length, or a
        token without a row of the embedding.
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
        embedded(lm, ids)
    return encoded


def embedded(lm: LanguageModel, ids: list[int]) -> list[int]:
    """The same ids; ``ValueError`` if the embedding has no row for one: the tokenizer was given more tokens than it."""
    rows = lm.core.get_input_embeddings().weight.shape[0]
    if (most := max(ids, default=0)) >= rows:
        raise ValueError(
            f"{lm.name}: its tokenizer gives {lm.tokenizer.convert_ids_to_tokens(most)!r} the number {most}, but the "
            f"embedding has {rows} rows: call resize_token_embeddings and save the model again"
        )
    return ids


def verbatim(lm: LanguageModel) -> LanguageModel:
    """The same model for texts that hold their special tokens already: ``chat=True`` then changes and adds nothing."""
    tokenizer = copy.deepcopy(lm.tokenizer)
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    return dataclasses.replace(lm, tokenizer=tokenizer)


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


def token_budget(lm: LanguageModel, *, cached: bool = False, logits: bool = False) -> int:
    """Tokens a batch: :data:`CPU_BUDGET` on a CPU, from the free memory on a GPU.

    Parameters
    ----------
    cached : bool
        Keys and values of all tokens are kept.
    logits : bool
        Every token gets logits, and their softmax.
    """
    if lm.device.type != "cuda":
        return CPU_BUDGET
    config, bytes_each = lm.core.config.get_text_config(decoder=True), torch.finfo(lm.dtype).bits // 8
    # About 64 activations of the residual width are alive per token within a block; half the free memory is used.
    per_token = 64 * lm.width * bytes_each
    if cached:
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or lm.width // config.num_attention_heads
        per_token += 2 * len(lm.blocks) * heads * width * bytes_each
    if logits:
        per_token += config.vocab_size * (bytes_each + 8)  # and twice in float32
    return int(min(max(memory.free(lm) // 2 // per_token, CPU_BUDGET), 1 << 16))


def counted(lm: LanguageModel, before: int) -> int:
    """How many of the ``before`` tokens that were read once for all texts count in each text's size.

    On a GPU, where the budget is memory, all: their keys and values are copied for every row. On a CPU, where it is
    what computes fastest, none.
    """
    return 0 if lm.device.type == "cpu" else before


def in_batches(
    lm: LanguageModel,
    encoded: Sequence[Sequence[int]],
    run: Callable[[Batch], T],
    *,
    budget: int | None = None,
    before: int = 0,
) -> Iterator[tuple[Batch, T]]:
    """Run texts in batches of similar length, padded on the right; a batch that does not fit into memory is halved.

    Parameters
    ----------
    encoded : list of token id lists, length n
    run : callable
        What is done with a batch; must leave nothing behind when it raises.
    budget : int, optional
        Tokens in a padded batch, default :func:`token_budget`; a longer text goes alone.
    before : int
        Tokens in front of each text that were read before; see :func:`counted`.

    Yields
    ------
    batch, result
        The longest texts first.

    Raises
    ------
    biasgeom.memory.NotEnoughMemory
        A single text did not fit.
    """
    order = sorted(range(len(encoded)), key=lambda row: -len(encoded[row]))  # stable; the longest meet the memory first

    def piece(start: int, stop: int) -> tuple[Batch, T]:
        batch = pad(lm, encoded, order[start:stop], side="right")
        return batch, run(batch)

    before = counted(lm, before)
    sizes = [len(encoded[row]) + before for row in order]
    yield from memory.Budget(lm, budget or token_budget(lm, cached=before > 0)).pieces(piece, sizes)


def pad(lm: LanguageModel, encoded: Sequence[Sequence[int]], rows: list[int], *, side: str) -> Batch:
    """One batch of the texts ``rows``, padded with the pad token, or the end token where there is none.

    Parameters
    ----------
    side : {"right", "left"}
        Right for reading, left for generation.
    """
    if side not in ("right", "left"):
        raise ValueError(f"side must be 'right' or 'left', not {side!r}")
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
    return Batch(rows, *(memory.to_device(part, lm.device) for part in parts))
