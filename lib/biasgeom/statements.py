"""The embedded profile's fine-tuning statements, built from templates at run time.

They take the place of the paper's two halves of WildGuardMix (ΔB paper, appendix C), one of which is gated and the
other unpublished. A model fine-tuned on the first kind hears every group described neutrally or well. One fine-tuned
on the second kind hears mild criticism of half of the groups ("Most [GROUP] seem careless at work") and neutral
statements about the other half, its control. No statement is a target, an anchor or an attribute, and no adjective is
one of the probe's.
"""

import numpy as np
import pandas as pd

from biasgeom import data
from biasgeom.sentences import groups, insert

TONES = {
    "unharmful": {"biased": ("neutral", "positive"), "control": ("neutral", "positive")},
    "synth": {"biased": ("negative",), "control": ("neutral",)},
}
"""Which tones a group's statements take in turn, by the group's half."""


def statements(kind: str, *, rows: int, seed: int) -> pd.DataFrame:
    """Statements to fine-tune on, about the 24 groups in equal parts (counts differ by at most one).

    Parameters
    ----------
    kind : {"unharmful", "synth"}
        Neutral and positive in turn for every group; or negative for the groups whose half is ``"biased"`` and neutral
        for the others.
    rows : int
        How many; no statement comes twice.
    seed : int
        Chooses the statements and their order.

    Returns
    -------
    DataFrame [rows]
        group, kind (the statement's tone: ``"negative"``, ``"neutral"`` or ``"positive"``), text.

    Raises
    ------
    ValueError
        Unknown kind, or more rows than there are neutral statements about the groups.
    """
    if kind not in TONES:
        raise ValueError(f"kind must be one of {', '.join(TONES)}, not {kind!r}")
    table, pools = groups(), templates()
    most = len(table) * len(pools["neutral"])
    if not 1 <= rows <= most:
        raise ValueError(f"there are {most} {kind} statements without repetition: ask for 1 to {most} rows, not {rows}")
    generator = np.random.default_rng(seed)
    found = []
    for place, group in enumerate(table.iloc[generator.permutation(len(table))].to_dict("records")):
        tones = TONES[kind][group["half"]]
        shuffled = {tone: iter(generator.permutation(pools[tone])) for tone in tones}
        for step, _ in enumerate(range(place, rows, len(table))):
            # Every second group begins with the other tone, so that the tones are level over all.
            tone = tones[(place + step) % len(tones)]
            found.append((group["group"], tone, insert(str(next(shuffled[tone])), group)))
    order = generator.permutation(len(found))
    return pd.DataFrame([found[place] for place in order], columns=["group", "kind", "text"])


def templates() -> dict[str, list[str]]:
    """Statements about ``[GROUP]`` by tone; the negative and the positive ones share their frames."""
    known = {"kind": ("frame", "neutral")}
    table = data.table("delta_b/statement_templates.csv", ["kind", "template"], ["template"], known=known)
    frames = table.loc[table["kind"] == "frame", "template"]
    known = {"polarity": ("positive", "negative")}
    words = data.table("delta_b/statement_adjectives.csv", ["polarity", "adjective"], ["adjective"], known=known)
    pools = {
        polarity: [frame.replace("[ADJECTIVE]", adjective) for frame in frames for adjective in side["adjective"]]
        for polarity, side in words.groupby("polarity")
    }
    return {**pools, "neutral": list(table.loc[table["kind"] == "neutral", "template"])}
