"""Which answers the judge chapter's judges read: this project's, or a pool of writers' to the paper's nine benchmarks.

Every page of the chapter takes them from here, so that all read the same. An answer or rewrite that a writer fails to
give is left out and listed; no other text stands in for it.
"""

import pandas as pd

from biasgeom import cache, models, perturbations, question_benchmarks, questions, rewriting, writers
from biasgeom.endpoint import Endpoint
from biasgeom.writers import Writer

SOURCES = ("project", "benchmarks")
LOST = ["question_id", "domain", "split", "condition", "writer", "problem"]


def answers(
    source: str = "project", number: int = 0, *, names: str = "", url: str = ""
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The questions, each with the base answer that is judged.

    Parameters
    ----------
    source : {"project", "benchmarks"}
        :func:`biasgeom.questions.load`, or :func:`biasgeom.question_benchmarks.load` with
        :func:`biasgeom.writers.baseline_answers`.
    number : int
        Questions, of each benchmark if it is these; 0 for all, of a benchmark the paper's 500.
    names, url : str
        The writers of the benchmarks' answers: see :func:`pool`.

    Returns
    -------
    table : DataFrame [n]
        The columns of :func:`biasgeom.questions.load`, and ``writer`` of a benchmark's. The beginnings of either are
        balanced over domains and splits. Nobody rated the quality and voice of a benchmark's answers: they are "".
    lost : DataFrame
        Questions without a usable answer: the columns :data:`LOST`.

    Raises
    ------
    ValueError
        An unknown source, benchmarks without writers, or no usable answer. Else what the functions named above raise.

    Notes
    -----
    Ids and split of the benchmarks' questions are stored in the cache, in a folder for each ``number``.
    """
    if (own := _checked(source, number, names, url)) is not None:
        return own, pd.DataFrame(columns=LOST)
    number = number or question_benchmarks.NUMBER
    found = question_benchmarks.load(cache.root() / f"benchmarks_{number}", number=number)
    held_out = found.loc[found["held_out"], "domain"].unique()
    order = questions.draw(found["question_id"], found["domain"], held_out)["question_id"]
    found = found.set_index("question_id").loc[order].reset_index()
    written = found.merge(writers.baseline_answers(pool(names, url), found), on="question_id", validate="1:1")
    table, lost = _without_problems(written.assign(quality="", voice="", condition=perturbations.BASE))
    if table.empty:
        raise ValueError(f"no writer gave a usable answer; the first: {lost['problem'].iloc[0]}")
    table["answer"] = table["answer"].str.strip()
    return table[[*questions.BASE_COLUMNS, "writer"]], lost


def require(source: str, number: int, *, names: str = "", url: str = "") -> None:
    """Raise what :func:`answers` would raise about its arguments, before a judge is loaded.

    Raises
    ------
    ValueError
        An unknown source, more questions than there are, benchmarks without writers, or an address that can't be meant.
    biasgeom.models.ModelNotAvailable
        A writer to be loaded here that can't be found.
    """
    _checked(source, number, names, url)


def _checked(source: str, number: int, names: str, url: str) -> pd.DataFrame | None:
    """What :func:`require` does; returns this project's questions, whose number is known once they are read."""
    if source not in SOURCES:
        raise ValueError(f"source must be one of {', '.join(SOURCES)}, not {source!r}")
    own = questions.load(number=number or None) if source == "project" else None
    if own is None and not _named(names):
        raise ValueError("the benchmarks have no answers of their own: name one or more writers")
    for name in _named(names):
        if url:
            Endpoint(url, name)
        else:
            models.require(name)
    return own


def conditions(
    asked: pd.DataFrame, *, wording: str = perturbations.WORDINGS[0], names: str = "", url: str = ""
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every answer without and with each cue, as :func:`biasgeom.perturbations.conditions` orders them.

    Parameters
    ----------
    asked : DataFrame [n]
        From :func:`answers`.
    wording : str
        As there. A writer has words of its own, beside the published wording of the other cues only.
    names, url : str
        The first of these writers rewrites for Verbosity, Sentiment and Authority; without one, rules do.

    Returns
    -------
    table : DataFrame [15 n, less what is lost]
    lost : DataFrame
        Rewrites that are none: the columns :data:`LOST`.

    Raises
    ------
    ValueError
        A writer and another wording than the published one. Else as :func:`biasgeom.rewriting.rewritten` does.
    """
    if not (chosen := _named(names)):
        return perturbations.conditions(asked, wording=wording), pd.DataFrame(columns=LOST)
    if wording != perturbations.WORDINGS[0]:
        raise ValueError(f"a writer rewrites in its own words; with one, wording must be published, not {wording}")
    (writer,) = pool(chosen[0], url)
    table, lost = _without_problems(rewriting.rewritten(writer, asked))
    return table.drop(columns="problem"), lost.assign(writer=writers.name(writer))


def _without_problems(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    good = table["problem"].isna()
    return table[good].reset_index(drop=True), table[~good].reindex(columns=LOST).reset_index(drop=True)


def pool(names: str, url: str = "") -> list[Writer]:
    """Writers from what a notebook's parameters say.

    Parameters
    ----------
    names : str
        Separated by commas: models of the endpoint; without one, embedded names, folders or hub ids, loaded here.
    url : str
        The endpoint's address, its key in ``BIASGEOM_API_KEY``; empty: none.
    """
    return [Endpoint(url, name) if url else models.load(name) for name in _named(names)]


def _named(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]
