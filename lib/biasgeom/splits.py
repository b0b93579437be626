"""Which rows a model is fine-tuned on, by name: the two ends of a checkpoint spectrum (ΔB paper 4.1, appendix C)."""

import pandas as pd

from biasgeom import prompts, statements, wildguard
from biasgeom.models import LanguageModel

STATEMENTS = ("unharmful", "synth")
"""Short sentences about groups, built at run time for small models."""

WILDGUARD = {"wildguard_unharmful": "unharmful", "wildguard_harmful_half": "harmful_half"}
"""Chats from WildGuardMix. The paper's harmful end is half synthetic rows that are unpublished: what trains on
``wildguard_harmful_half`` can't be compared with its numbers."""

NAMES = (*STATEMENTS, *WILDGUARD)


def rows(name: str, *, lm: LanguageModel, seed: int, number: int) -> pd.DataFrame:
    """The rows of a split, as :func:`biasgeom.finetune.adapter` and ``full`` take them.

    Parameters
    ----------
    name : str
        One of :data:`NAMES`.
    lm : LanguageModel
        Its chat template renders the WildGuardMix rows.
    seed : int
        Of the draw.
    number : int
        Rows; the paper has 8,000.

    Returns
    -------
    DataFrame
        Columns group, kind, text (statements), or prompt, completion (WildGuardMix): the prompt is the user's turn up
        to where the assistant's begins, the completion the assistant's turn with what ends it.

    Raises
    ------
    ValueError
        Unknown name; a chat split for a model without a chat template, or with one that renders a conversation other
        than turn by turn.
    biasgeom.remote.DatasetNotAvailable
        WildGuardMix is gated.
    """
    if name in STATEMENTS:
        return statements.statements(name, rows=number, seed=seed)
    if name not in WILDGUARD:
        raise ValueError(f"no split {name!r}; there are {', '.join(NAMES)}")
    if not lm.tokenizer.chat_template:  # before a download
        raise ValueError(f"{lm.name} has no chat template, and {name} holds chats: use the statements instead")
    half = wildguard.training_half(WILDGUARD[name], seed, rows=number)
    pairs = [_rendered(lm, prompt, answer) for prompt, answer in zip(half["prompt"], half["completion"], strict=True)]
    return pd.DataFrame(pairs, columns=["prompt", "completion"])


def _rendered(lm: LanguageModel, prompt: str, answer: str) -> tuple[str, str]:
    before = prompts.render(lm, prompt, chat=True)
    turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    whole = lm.tokenizer.apply_chat_template(turns, tokenize=False)
    if not whole.startswith(before):
        raise ValueError(
            f"{lm.name}: its chat template renders a prompt with its answer otherwise than the prompt alone, so where "
            "the answer begins is unknown; fine-tune on the statements instead"
        )
    return before, whole[len(before) :]
