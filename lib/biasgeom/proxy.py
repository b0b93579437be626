"""Expressed bias by the next token: a deterministic proxy for sampled completions (not in the gender paper).

After each prompt comes a short suffix after which a pronoun may follow, and the probabilities of the single-token
gendered pronouns are compared there. Cheap enough for every ablation setting; a page that shows it also shows how it
ranks the entities beside sampled completions.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from biasgeom import expressed, generation
from biasgeom.models import LanguageModel

SUFFIXES = (".",)
"""After a full stop a text about the subject often goes on with a pronoun; two more were dropped for time."""


def pronoun_tokens(lm: LanguageModel) -> dict[str, list[int]]:
    """Ids of the tokens that are one gendered pronoun after a space, in lower case or capitalised.

    Returns
    -------
    dict
        ``"female"`` and ``"male"`` → list of int.

    Raises
    ------
    ValueError
        If the vocabulary has none for one gender: the proxy can't be computed for this model.
    """
    # Byte-level vocabularies write the space as Ġ, SentencePiece ones as ▁; encoding " she" differs among the latter.
    ids = {token.replace("Ġ", " ").replace("▁", " "): place for token, place in lm.tokenizer.get_vocab().items()}
    found = {
        gender: sorted(ids[f" {w}"] for word in words for w in (word, word.capitalize()) if f" {w}" in ids)
        for gender, words in expressed.PRONOUNS.items()
    }
    if lacking := [gender for gender, tokens in found.items() if not tokens]:
        raise ValueError(f"{lm.name}: no {' and no '.join(lacking)} pronoun is a single token; the proxy needs one")
    return found


def next_token_bias(lm: LanguageModel, texts: Sequence[str], *, suffixes: Sequence[str] = SUFFIXES) -> pd.DataFrame:
    """(p_F − p_M) / (p_F + p_M) after each text, with p the mean over suffixes of the pronouns' probability.

    Parameters
    ----------
    texts : list of str, length n
        Prompts, without trailing white space: a pronoun's token starts with the space.

    Returns
    -------
    DataFrame
        n rows: female and male, the mean probabilities, and proxy, in [−1, 1].

    Raises
    ------
    ValueError
        A text that ends in white space, or see :func:`pronoun_tokens`.
    """
    if (ragged := next((text for text in texts if text != text.rstrip()), None)) is not None:
        raise ValueError(f"a prompt must not end in white space, the next token begins with it: {ragged!r}")
    tokens = pronoun_tokens(lm)
    asked = [text + suffix for text in texts for suffix in suffixes]
    columns = tokens["female"] + tokens["male"]
    probabilities = generation.next_token_probabilities(lm, asked, columns).astype(np.float64)
    probabilities = probabilities.reshape(len(texts), len(suffixes), -1).mean(axis=1)
    split = len(tokens["female"])
    female, male = probabilities[:, :split].sum(axis=1), probabilities[:, split:].sum(axis=1)
    return pd.DataFrame({"female": female, "male": male, "proxy": (female - male) / (female + male)})
