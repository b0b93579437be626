"""Text by a model, an endpoint's or one that is loaded here: baseline answers and rewrites (judge paper, B.1 and B.2).

Both kinds are asked through :func:`write`. Replies are kept on disk, an endpoint's by :mod:`biasgeom.endpoint` and a
loaded model's by :mod:`biasgeom.generation`, so that a run can be repeated and an interrupted one goes on.
"""

from collections.abc import Sequence

import pandas as pd
from jinja2 import TemplateError

from biasgeom import endpoint, generation, questions
from biasgeom.endpoint import Endpoint, Reply
from biasgeom.models import LanguageModel
from biasgeom.prompts import verbatim

Writer = Endpoint | LanguageModel
MAX_TOKENS = 512


def write(writer: Writer, prompts: Sequence[str], *, system: str | None = None, max_tokens: int) -> list[Reply]:
    """One reply to each prompt, in input order: at temperature 0 by an endpoint, greedily by a loaded model.

    Parameters
    ----------
    writer : Endpoint or LanguageModel
    prompts : list of str
        Each is a user's turn of its own; equal ones are asked once.
    system : str, optional
    max_tokens : int
        A reply that is cut off here is a problem.

    Returns
    -------
    list of Reply
        An item without a usable text is a reply with a ``problem``.

    Raises
    ------
    endpoint.EndpointError
        The endpoint can't be used at all; replies that came before are kept.
    ValueError
        One string instead of a list; a loaded model without a chat template, or whose template takes no system prompt.

    Notes
    -----
    Whether a loaded model's reply is cut off is told from its length in tokens, counted from its text.
    """
    if isinstance(writer, Endpoint):
        return endpoint.ask(writer, prompts, system=system, max_tokens=max_tokens)
    if isinstance(prompts, str):
        raise ValueError("expected a list of prompts, got one string")
    rendered = {prompt: _rendered(writer, prompt, system) for prompt in prompts}
    if not rendered:
        return []
    texts = list(dict.fromkeys(rendered.values()))
    samples = generation.sample(
        verbatim(writer), texts, n=1, max_new_tokens=max_tokens, temperature=0, seed=0, chat=True
    )
    said = [text for (text,) in samples]
    cut = reached_cap(writer, said, max_tokens)
    written = dict(zip(texts, map(_reply, said, cut), strict=True))
    return [written[rendered[prompt]] for prompt in prompts]


def _rendered(lm: LanguageModel, prompt: str, system: str | None) -> str:
    if not lm.tokenizer.chat_template:
        raise ValueError(f"{lm.name} has no chat template (a base model), so it can't be told what to write")
    first = [] if system is None else [{"role": "system", "content": system}]
    turns = [*first, {"role": "user", "content": prompt}]
    try:
        return lm.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise ValueError(f"{lm.name}: its chat template takes no such conversation ({error})") from error


def _reply(text: str, cut: bool) -> Reply:
    if not text.strip():
        return Reply(None, "the reply is empty")
    return Reply(None, endpoint.CUT, text) if cut else Reply(text.strip(), None)


def reached_cap(lm: LanguageModel, texts: Sequence[str], max_tokens: int) -> list[bool]:
    """Whether each sampled text is cut off, as far as its length in tokens tells: it is counted from the text."""
    if not len(texts):
        return []
    return [len(ids) >= max_tokens for ids in lm.tokenizer(list(texts), add_special_tokens=False)["input_ids"]]


def name(writer: Writer) -> str:
    """What tables call a writer: the model's name."""
    return writer.model if isinstance(writer, Endpoint) else writer.name


def baseline_answers(
    writers: Sequence[Writer],
    asked: pd.DataFrame,
    *,
    system: str | None = None,
    max_tokens: int = MAX_TOKENS,
    seed: int = questions.SEED,
) -> pd.DataFrame:
    """An answer to each question by one writer of a pool, drawn for each question (judge paper, B.1).

    Parameters
    ----------
    writers : list of Endpoint or LanguageModel
        The paper's pool has six. Their order is part of the draw.
    asked : DataFrame [n]
        question_id and question, as :func:`biasgeom.questions.load` and the benchmarks' have them. The question alone
        is the user's turn: the paper prints no prompt.
    seed : int
        With the question's id, decides who writes: not the order, nor which other questions are asked.

    Returns
    -------
    DataFrame [n]
        question_id, writer, answer (missing where there is a problem), problem (else missing).

    Raises
    ------
    ValueError
        No writer, two of one name, or a question that stands twice. Else as :func:`write` does.
    """
    names = [name(writer) for writer in writers]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"need writers of different names, got {names}")
    if (twice := asked["question_id"].duplicated()).any():
        raise ValueError(f"question {asked['question_id'].iloc[int(twice.argmax())]} stands twice")
    numbers = (int(questions.shuffled(seed, f"writer of {question}"), 16) for question in asked["question_id"])
    drawn = [number % len(names) for number in numbers]
    table = asked[["question_id"]].assign(writer=[names[place] for place in drawn], answer=None, problem=None)
    table = table.astype({"answer": "str", "problem": "str"}).reset_index(drop=True)
    for place, writer in enumerate(writers):
        rows = [row for row, who in enumerate(drawn) if who == place]
        replies = write(writer, asked["question"].iloc[rows].tolist(), system=system, max_tokens=max_tokens)
        table.loc[rows, "answer"] = [reply.text for reply in replies]
        table.loc[rows, "problem"] = [reply.problem for reply in replies]
    return table
