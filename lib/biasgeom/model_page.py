"""The pages about one model that no notebook writes: its card, and what its chapters begin and end with."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from biasgeom import __version__, comparison, fragments, names, run
from biasgeom.claims import HOLDS, LIMITED, NOT_RUN, NOT_SHOWN, MissingTable
from biasgeom.fragments import TITLES
from biasgeom.markdown import count, escaped, table
from biasgeom.shelf import Shown

NOT_IN_FULL = (
    "The pages of its notebooks are not in this book, which has them for the asked models and few others: "
    'name this one in `make book MODELS="…"`. Its tables are on its card.\n'
)


def card(model: Shown, notebooks: Collection[str], *, main: bool) -> str:
    """A model's card in Markdown: what was run and in what, headline numbers, verdicts, how to cite, its tables."""
    name, ending = escaped(model.title), "" if main else f"--{model.tag}"
    infos = [info for notebook, info in model.runs.items() if notebook in notebooks]
    papers = dict.fromkeys(notebook.split("/")[0] for notebook in notebooks)
    parts = [
        f"(model--{model.tag})=\n# Model card: {name}\n",
        f"What this book measured on **{name}**. A card is no recommendation: a number holds for this model, in this "
        "number format, under this profile, with this project's data ([limits](limits)). How it compares with "
        "other models stands on [the page that compares them](models-compared).\n",
        "## What was run\n",
        _provenance(model, infos),
        *(fragments.skipped(model, paper, run.notebooks()) for paper in fragments.CHAPTERS),
        *(_not_in_this_book(model, paper) for paper in fragments.CHAPTERS if paper not in papers),
        "## Headline numbers\n",
        "Intervals are 95 %. A small p alone says that something is there, not that it is large.\n",
    ]
    for key, section in comparison.SECTIONS.items():
        if section.notebook not in notebooks:
            continue
        try:
            rows = section.read(model.tables(section.notebook.split("/")[0]))
        except MissingTable as missing:
            reason = comparison.absence(model, section.notebook, missing)
            parts.append(f"*{section.caption}* No numbers: {escaped(reason)}\n")
            continue
        if "judge" in rows:  # the planted one has a row, too
            rows = rows[rows["judge"] == model.name]
        shown = section.worded(rows).drop(columns="judge", errors="ignore").dropna(axis="columns", how="all")
        label = f"tab-card-{key}--{model.tag}"
        parts.append(table(shown, name=label, caption=section.caption, markup=comparison.FORMULAS))
    counts = [{"chapter": _chapter_link(p, ending), **_counted(p, model)} for p in papers if p in fragments.CHAPTERS]
    parts += [
        "## The papers' claims on this model\n",
        "By rules in code; the chapters list them with their evidence.\n",
        table(pd.DataFrame(counts), markup=("chapter",)),
        "## Cite this card\n",
        _citation(model, infos),
        "## All tables\n",
        "As CSV files; the tables also stand under each page's end.\n",
        *(downloads(model, notebook, title=f"`{notebook}`") for notebook in model.runs if notebook in notebooks),
    ]
    return "\n".join(parts)


def _provenance(model: Shown, infos: Sequence[Mapping[str, Any]]) -> str:
    """What was run, one row a fact; where notebooks differ, all values are listed."""
    book = run.notebooks()
    made = [info["provenance"] for info in infos]
    facts = {
        "weights from": [p.get("source") for p in made],
        "hash, commit or digest of the weights": [fragments.version(info) for info in infos],
        "revision": [p.get("revision") for p in made],
        "adapter": [names.public(p.get("adapter") or "") for p in made],
        "licence": [p.get("licence") for p in made],
        "blocks × width": [f"{info['blocks']} × {info['width']}" for info in infos],
        "number format": [p["dtype"] for p in made],
        "device": [p["device"] for p in made],
        "profile": [model.described["profile"]],
        "biasgeom": [info["packages"]["biasgeom"] for info in infos],
        "torch, transformers": [f"{info['packages']['torch']}, {info['packages']['transformers']}" for info in infos],
        "commit of the code": [info["commit"] for info in infos],
        "notebooks of the whole book": [f"{len(set(model.runs) & set(book))} of {len(book)}"],
    }
    rows = [(fact, ", ".join(dict.fromkeys(str(v) for v in values if v))) for fact, values in facts.items()]
    return table(pd.DataFrame([row for row in rows if row[1]], columns=["", "of this model"]))


def _not_in_this_book(model: Shown, paper: str) -> str:
    """That a chapter was run, if it was, which the book was made without."""
    ran = sum(notebook.startswith(f"{paper}/") for notebook in model.runs)
    return f"Run, but left out of this book: *{TITLES[paper]}*, {count(ran, 'notebook')}.\n" if ran else ""


def _chapter_link(paper: str, ending: str) -> str:
    return f"[{TITLES[paper]}]({fragments.dashed(paper)}-chapter{ending})"


def _counted(paper: str, model: Shown) -> dict[str, int]:
    found = Counter(fragments.judged(paper, model.name)["verdict"])
    return {verdict: found[verdict] for verdict in (HOLDS, LIMITED, NOT_SHOWN, NOT_RUN)}


def _citation(model: Shown, infos: Sequence[Mapping[str, Any]]) -> str:
    which = ", ".join(dict.fromkeys(filter(None, (fragments.version(info)[:12] for info in infos))))
    commits = ", ".join(dict.fromkeys(str(info["commit"]) for info in infos if info["commit"]))
    profile = model.described["profile"]
    words = [f"Model card of {model.title}" + (f" (weights {which})" if which else "")]
    words += [f"profile {profile}"] if profile else []
    words += [f"biasgeom {__version__}" + (f", commit {commits}" if commits else "")]
    words += [f"page results/{model.slug}/card.html"]
    cited = "\n".join([f"> {escaped('; '.join(words))}.", ""])
    return f"{cited}\nTogether with `CITATION.cff` and the paper whose method is meant.\n"


def downloads(model: Shown, notebook: str, *, title: str) -> str:
    """A collapsed list of a notebook's tables to download."""
    folder = model.folder / notebook
    files = sorted(path for path in folder.glob("*.csv") if path.stat().st_size > len("stage,seconds\n"))
    lines = [f"- {{download}}`{path.name} </results/{model.slug}/{notebook}/{path.name}>`" for path in files]
    return "\n".join([f":::{{dropdown}} {title}", *(lines or ["No table."]), ":::", ""])


def chapter(model: Shown, paper: str, notebooks: Collection[str], labels: Collection[str]) -> str:
    """The first page of a chapter of another model: its pages and verdicts, or why there is nothing."""
    ending = f"--{model.tag}"
    mine = [n for n in model.executed(notebooks) if n.startswith(f"{paper}/")]
    dashed = fragments.dashed(paper)
    parts = [
        f"({dashed}-chapter{ending})=\n# {TITLES[paper]}: {escaped(model.title)}\n",
        f"The chapter's pages for [{escaped(model.title)}](model--{model.tag}). What it asks, its equations and how a "
        f"verdict comes about stand on [its first page]({dashed}-chapter).\n",
        fragments.skipped(model, paper, notebooks),
    ]
    if not any(n.startswith(f"{paper}/") for n in model.runs):
        return "\n".join(parts)
    if not model.in_full:
        parts.append(NOT_IN_FULL)
    parts += [f"1. {{doc}}`/results/{model.slug}/{notebook}`" for notebook in mine]
    return "\n".join(
        [*parts, "\n## The paper's claims on this model\n", fragments.verdicts(paper, model, labels, ending)]
    )


def summary(model: Shown, paper: str, labels: Collection[str]) -> str:
    """Published beside measured, for a model beside the main one."""
    ending = f"--{model.tag}"
    head = f"({fragments.dashed(paper)}-summary{ending})=\n# {TITLES[paper]}: published beside measured\n\n"
    said = "What the paper prints, beside the same quantity on this model. Models, data and settings differ.\n\n"
    return head + said + fragments.beside(paper, model, labels, ending)
