"""The pages about one model that no notebook writes: its card, and what its chapters begin and end with."""

from collections import Counter
from collections.abc import Callable, Collection

import pandas as pd

from biasgeom import __version__, comparison, fragments
from biasgeom.claims import HOLDS, LIMITED, NOT_RUN, NOT_SHOWN, MissingTable, Tables
from biasgeom.markdown import escaped, table, with_interval
from biasgeom.shelf import Shown

NOT_IN_FULL = (
    "The pages of its notebooks are not in this book, which has them for the asked models and few others: "
    'name this one in `make book MODELS="…"`. Its tables are on its card.\n'
)
TITLES = {"gender": "Gender", "delta_b": "Auditing a fine-tune", "judge": "Judging the judge"}

HEADLINES: dict[str, tuple[str, str, Callable[[Tables], pd.DataFrame]]] = {
    "expressed": (
        "gender/02_expressed",
        "Expressed bias: Bias_pol beside its mean under shuffled labels.",
        comparison.expressed,
    ),
    "latent": (
        "gender/03_encoded",
        "Encoded bias: S_latent at the compared block beside the upper ends of two nulls, random directions and "
        "flipped pairs.",
        comparison.latent,
    ),
    "encoded": ("gender/03_encoded", "Gendered over control concepts at the compared block.", comparison.encoded),
    "separation": (
        "delta_b/05_results",
        "ΔB against the change of output bias: correlation, and AUC for pairs that became more biased.",
        comparison.separation,
    ),
    "contrast": (
        "delta_b/05_results",
        "Mean ΔB of the criticised groups less that of the others, synth end.",
        comparison.contrast,
    ),
    "susceptibility": (
        "judge/03_landscape",
        "Mean shift of the judge's scores by group of cues.",
        comparison.susceptibility,
    ),
    "predictability": ("judge/10_card", "Test AUC for degraded scores.", comparison.predictability),
}
"""The headline numbers: section, caption, how they are read."""


def card(model: Shown, notebooks: Collection[str], *, main: bool) -> str:
    """A model's card in Markdown: what was run and in what, headline numbers, verdicts, how to cite, its tables."""
    name, ending = escaped(model.name), "" if main else f"--{model.tag}"
    parts = [
        f"(model--{model.tag})=\n# Model card: {name}\n",
        f"What this book measured on **{name}**. A card is no recommendation: a number holds for this model, in this "
        "number format, under this profile, with this project's data ([limits](limits)). How it compares with "
        "other models stands on [the page that compares them](models-compared).\n",
        "## What was run\n",
        _provenance(model, notebooks),
        *(fragments.skipped(model, paper, notebooks) for paper in fragments.CHAPTERS),
        "## Headline numbers\n",
        "Intervals are 95 %. A small p alone says that something is there, not that it is large.\n",
    ]
    for key, (notebook, caption, read) in HEADLINES.items():
        if notebook not in notebooks:
            continue
        try:
            rows = read(model.tables(notebook.split("/")[0]))
        except MissingTable as missing:
            parts.append(f"*{caption}* Not run: {escaped(model.why_not(notebook) or missing)}\n")
            continue
        if "judge" in rows:
            rows = rows[rows["judge"] == model.name]
        shown = _bounds_as_text(rows.dropna(axis="columns", how="all"))
        parts.append(table(shown, name=f"tab-card-{key}--{model.tag}", caption=caption))
    papers = dict.fromkeys(notebook.split("/")[0] for notebook in notebooks)
    counts = [{"chapter": _chapter_link(p, ending), **_counted(p, model)} for p in papers if p in fragments.CHAPTERS]
    parts += [
        "## The papers' claims on this model\n",
        "By rules in code; the chapters list them with their evidence.\n",
        table(pd.DataFrame(counts), markup=("chapter",)),
        "## Cite this card\n",
        _citation(model),
        "## All tables\n",
        "As CSV files; the tables also stand under each page's end.\n",
        *(downloads(model, notebook, title=f"`{notebook}`") for notebook in model.runs if notebook in notebooks),
    ]
    return "\n".join(parts)


def _bounds_as_text(rows: pd.DataFrame) -> pd.DataFrame:
    """Each pair of bounds as one column of text after its number."""
    if {"low", "high"} <= set(rows):
        rows = with_interval(rows)
    for column in [c.removesuffix("_low") for c in rows if c.endswith("_low")]:
        rows = with_interval(rows, low=f"{column}_low", high=f"{column}_high", name=f"95 % interval of {column}")
    return rows


def _provenance(model: Shown, notebooks: Collection[str]) -> str:
    """What was run, one row a fact; where notebooks differ, all values are listed."""
    infos = [info for notebook, info in model.runs.items() if notebook in notebooks]
    made = [info["provenance"] for info in infos]
    facts = {
        "weights from": [p.get("source") for p in made],
        "file hash or commit": [p.get("sha256") or p.get("commit") for p in made],
        "revision": [p.get("revision") for p in made],
        "adapter": [p.get("adapter") for p in made],
        "licence": [p.get("licence") for p in made],
        "blocks × width": [f"{info['blocks']} × {info['width']}" for info in infos],
        "number format": [p["dtype"] for p in made],
        "device": [p["device"] for p in made],
        "profile": [model.described["profile"]],
        "biasgeom": [info["packages"]["biasgeom"] for info in infos],
        "torch, transformers": [f"{info['packages']['torch']}, {info['packages']['transformers']}" for info in infos],
        "commit of the code": [info["commit"] for info in infos],
        "notebooks": [f"{len(infos)} of {len(notebooks)}"],
    }
    rows = [(fact, ", ".join(dict.fromkeys(str(v) for v in values if v))) for fact, values in facts.items()]
    return table(pd.DataFrame([row for row in rows if row[1]], columns=["", "of this model"]))


def _chapter_link(paper: str, ending: str) -> str:
    return f"[{TITLES[paper]}]({fragments.dashed(paper)}-chapter{ending})"


def _counted(paper: str, model: Shown) -> dict[str, int]:
    found = Counter(fragments.judged(paper, model.name)["verdict"])
    return {verdict: found[verdict] for verdict in (HOLDS, LIMITED, NOT_SHOWN, NOT_RUN)}


def _citation(model: Shown) -> str:
    infos = list(model.runs.values())
    which = ", ".join(dict.fromkeys(fragments.version(info) for info in infos if fragments.version(info)))
    commits = ", ".join(dict.fromkeys(str(info["commit"]) for info in infos if info["commit"]))
    profile = model.described["profile"]
    words = [f"Model card of {model.name}" + (f" (weights {which})" if which else "")]
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
        f"({dashed}-chapter{ending})=\n# {TITLES[paper]}: {escaped(model.name)}\n",
        f"The chapter's pages for [{escaped(model.name)}](model--{model.tag}). What it asks, its equations and how a "
        f"verdict comes about stand on [its first page]({dashed}-chapter).\n",
        fragments.skipped(model, paper, notebooks),
    ]
    if not any(n.startswith(f"{paper}/") for n in model.runs):
        return "\n".join([*parts, "Nothing of this chapter was run for this model.\n"])
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
