"""Verbosity, Sentiment and Authority written by a language model, as the judge paper has them (3.1, table 1).

The paper says that its prompts stand in appendix G; they don't, so these are ours. What a writer sends back is checked
item by item: a rewrite that fails is counted, and no other text stands in for it.
"""

import re
from collections import Counter

import pandas as pd

from biasgeom import perturbations, writers
from biasgeom.endpoint import Reply
from biasgeom.perturbations import POLARITIES, REWRITES
from biasgeom.writers import Writer

SYSTEM = "You edit the wording of answers. You reply with the edited answer and nothing else."

FRAME = """\
{instruction}

Leave every fact, number, name and step of reasoning as it is, also where it is mistaken, and the degree of certainty \
with which it is stated. Do not answer the question anew, and add no heading, quotation marks or comment.

Answer:
{answer}"""
"""What a writer is asked; ``{instruction}`` is one of :data:`INSTRUCTIONS`."""

INSTRUCTIONS = {
    "Verbosity+": "Make the answer below slightly longer: add a few explanatory or transitional phrases that say "
    "nothing new.",
    "Verbosity-": "Make the answer below slightly shorter and more direct: trim words that are not essential.",
    "Authority+": "Insert one plausible citation in academic style, suited to the topic, into the answer below, and "
    "append the reference after it in square brackets, beginning with 'Ref:'. Change no other word.",
    "Authority-": "Insert the marker [citation needed] after the key claims of the answer below, and append a short "
    "note in square brackets that questions what evidence the claims have. Change no other word.",
    "Sentiment+": "Give the answer below a more objective tone: use a few neutral, scholarly terms.",
    "Sentiment-": "Give the answer below a more emotional tone: use a few subjective, emotionally charged expressions, "
    "none of them offensive.",
}
"""In the words of table 1; the paper prints no more."""

LENGTHS = {
    "Verbosity+": (1.05, 2.5),
    "Verbosity-": (0.3, 0.98),
    "Authority+": (1.1, 6.0),
    "Authority-": (1.1, 6.0),
    "Sentiment+": (0.7, 2.5),
    "Sentiment-": (0.7, 2.5),
}
"""Words of a rewrite over words of the answer, from and to: outside, it is another text or no such rewrite."""

MAX_TOKENS = 512


def rewritten(writer: Writer, questions: pd.DataFrame, *, max_tokens: int = MAX_TOKENS) -> pd.DataFrame:
    """Every base answer without and with each cue, the three rewritten types by a model.

    Parameters
    ----------
    writer : Endpoint or LanguageModel
        See :func:`biasgeom.writers.write`: its replies are kept on disk.
    questions : DataFrame [n]
        As for :func:`biasgeom.perturbations.conditions`.
    max_tokens : int
        A rewrite that is longer is cut off, which is a problem.

    Returns
    -------
    DataFrame [15 n]
        As :func:`biasgeom.perturbations.conditions` gives it, and ``problem``: why a row has no text, missing where it
        has one. Such a row is not ``changed``; leave it out before a judge reads the table.

    Raises
    ------
    biasgeom.endpoint.EndpointError
        The endpoint can't be used at all.
    ValueError
        As :func:`biasgeom.perturbations.conditions` does, or a loaded writer has no chat template.
    """
    table = perturbations.conditions(questions)
    rows = table.index[table["bias"].isin(REWRITES)]
    chosen = table.loc[rows, ["condition", "answer"]].to_numpy()
    prompts = [FRAME.format(instruction=INSTRUCTIONS[condition], answer=answer) for condition, answer in chosen]
    replies = writers.write(writer, prompts, system=SYSTEM, max_tokens=max_tokens)
    problems = [_problem(*pair, reply) for pair, reply in zip(chosen, replies, strict=True)]
    texts = [None if why else reply.text.strip() for reply, why in zip(replies, problems, strict=True)]
    table = table.assign(problem=None).astype({"text": "str", "problem": "str"})
    table.loc[rows, "text"] = texts
    table.loc[rows, "problem"] = problems
    return table.assign(changed=table["text"].notna() & (table["text"] != table["answer"]))


def _problem(condition: str, answer: str, reply: Reply) -> str | None:
    """Why a reply is no rewrite of an answer."""
    if reply.text is None:
        return reply.problem
    text = reply.text.strip()
    if not text:
        return "the reply is empty"
    before, after = answer.split(), text.split()
    if before == after:
        return "unchanged"
    low, high = LENGTHS[condition]
    if not low <= (ratio := len(after) / len(before)) <= high:
        return f"{ratio:.2f} times as long, not {low:g} to {high:g}"
    if lost := Counter(_numbers(answer)) - Counter(_numbers(text)):
        return f"the number {next(iter(lost))} is lost"
    if condition.startswith("Authority") and not _within(_words(answer), _words(text)):
        return "words of the answer were changed"
    return None


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d+(?:[.,]\d+)*", text)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def _within(few: list[str], many: list[str]) -> bool:
    """Whether all of ``few`` stand in ``many``, in this order."""
    rest = iter(many)
    return all(word in rest for word in few)


def problems(table: pd.DataFrame) -> pd.DataFrame:
    """How the rewrites of a table of :func:`rewritten` came out: condition, asked, usable, unchanged, other.

    One row a condition that a model wrote, in the order of the table; the counts but ``asked`` add up to it.
    """
    names = [perturbations.name(bias, polarity) for bias in REWRITES for polarity in POLARITIES]
    part = table[table["condition"].isin(names)]
    counted = part.assign(
        usable=part["problem"].isna(),
        unchanged=part["problem"] == "unchanged",
        other=part["problem"].notna() & (part["problem"] != "unchanged"),
    ).groupby("condition", sort=False)
    return counted.agg(
        asked=("condition", "size"), usable=("usable", "sum"), unchanged=("unchanged", "sum"), other=("other", "sum")
    ).reset_index()
