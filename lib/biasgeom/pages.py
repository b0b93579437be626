"""Render the book: set its sources out, those of each model beside the shared ones, and build them strictly.

The sources lie under ``_build/pages/``, as the book's addresses have them: the prose of ``book/``; of every model with
results, ``results/<slug>/`` with its card, its chapters and copies of its executed notebooks. In them no reference
leads nowhere: what a model or a chosen chapter lacks becomes plain text.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from nbformat.v4 import new_markdown_cell

from biasgeom import comparison_page, data, fragments, launch, model_page, redaction, relabel, shelf
from biasgeom.fragments import CHAPTERS, dashed
from biasgeom.markdown import escaped
from biasgeom.shelf import Shown


def contents(models: Sequence[Shown], notebooks: Sequence[str]) -> dict[str, Any]:
    """The table of contents: ``_toc.yml`` with the main model's executed notebooks, then a part for each other model.

    Parameters
    ----------
    models : sequence of Shown
        The main model first.
    notebooks : sequence of str
        Those of the chosen chapters. Of a chapter without any, its own pages are left out too.
    """
    toc = yaml.safe_load((data.root() / "_toc.yml").read_text())
    main, *others = models
    chapters = list(dict.fromkeys(notebook.split("/")[0] for notebook in notebooks))
    absent = {f"book/{paper}{page}" for paper in set(CHAPTERS) - set(chapters) for page in ("", "_summary")}
    executed = main.executed(notebooks)
    for part in toc["parts"]:
        files = [entry["file"] for entry in part["chapters"]]
        kept = [f for f in files if f not in absent and (not f.startswith("notebooks/") or f[10:] in executed)]
        part["chapters"] = [{"file": f.replace("notebooks/", f"results/{main.slug}/", 1)} for f in kept]
        if "book/comparison" in kept:
            part["chapters"].append({"file": f"results/{main.slug}/card"})
    parts = [part for part in toc["parts"] if part["chapters"]]
    for model in others:
        pages: list[dict[str, Any]] = [{"file": f"results/{model.slug}/card"}]
        for paper in chapters:
            mine = [n for n in model.executed(notebooks) if n.startswith(f"{paper}/")]
            ran = any(n.startswith(f"{paper}/") for n in model.runs)
            below = [f"results/{model.slug}/{page}" for page in (*mine, *([f"{paper}_summary"] if ran else []))]
            page: dict[str, Any] = {"file": f"results/{model.slug}/{paper}"}
            pages.append(page | ({"sections": [{"file": file} for file in below]} if below else {}))
        parts.append({"caption": model.title, "chapters": pages})
    return toc | {"parts": parts}


def sources(models: Sequence[Shown], notebooks: Sequence[str], folder: Path) -> None:
    """Write all that Sphinx reads into a new folder."""
    root = data.root()
    fragments.judged.cache_clear()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(root / "book", folder / "book")
    toc = contents(models, notebooks)
    (folder / "_toc.yml").write_text(yaml.safe_dump(toc, sort_keys=False))
    prose = [f"{file}.md" for file in _files(toc) if file.startswith("book/")]
    for path in (folder / "book").glob("*.md"):
        if f"book/{path.name}" not in prose:
            path.unlink()
    shared = set().union(*(relabel.labels((folder / name).read_text()) for name in prose))
    everyone = [*models, *shelf.contributed(models)]
    places = {model.slug: redaction.Places(model.name) for model in models}
    executed = {
        model.slug: {
            n: places[model.slug].page(json.loads((model.folder / f"{n}.ipynb").read_text()))
            for n in model.executed(notebooks)
        }
        for model in models
    }
    labels = {slug: set().union(*map(relabel.notebook_labels, each.values())) for slug, each in executed.items()}
    chapters = dict.fromkeys(notebook.split("/")[0] for notebook in notebooks)
    chapter_labels = {f"{dashed(paper)}-{page}" for paper in chapters for page in ("chapter", "summary")}
    chapter_labels |= {f"tab-{dashed(paper)}-{page}" for paper in chapters for page in ("verdicts", "beside")}
    known = shared | labels[models[0].slug] | {f"model--{model.tag}" for model in models} | chapter_labels

    pages = folder / "results" / "pages"
    fragments.write(models, notebooks, labels[models[0].slug], pages)
    comparison_page.write(everyone, models, pages / "comparison")
    for page in (*(folder / name for name in prose), *pages.rglob("*.md")):
        page.write_text(relabel.relabelled(page.read_text(), own=(), ending="", known=known))
    for model in models:
        main = model is models[0]
        ending = "" if main else f"--{model.tag}"
        own = labels[model.slug] | (chapter_labels if not main else set())
        there = folder / "results" / model.slug
        written = {"card": model_page.card(model, notebooks, main=main)}
        for paper in () if main else chapters:
            written[paper] = model_page.chapter(model, paper, notebooks, labels[model.slug])
            if any(n.startswith(f"{paper}/") for n in model.runs):
                written[f"{paper}_summary"] = model_page.summary(model, paper, labels[model.slug])
        # What a page of ours refers to has its ending already.
        reachable = known | {f"{label}{ending}" for label in own}
        for name, text in written.items():
            (there / name).parent.mkdir(parents=True, exist_ok=True)
            (there / f"{name}.md").write_text(relabel.relabelled(text, own=(), ending="", known=reachable))
        for name, notebook in executed[model.slug].items():
            made = relabel.relabelled_notebook(notebook, own=own, ending=ending, known=known)
            _complete(made, model, name, main=main)
            (there / name).parent.mkdir(parents=True, exist_ok=True)
            (there / f"{name}.ipynb").write_text(json.dumps(made))
        for name in (name for name in notebooks if name in model.runs):
            (there / name).mkdir(parents=True, exist_ok=True)
            for path in (model.folder / name).glob("*.csv"):
                (there / name / path.name).write_text(places[model.slug].exact(path.read_text()))


def _files(toc: dict[str, Any]) -> list[str]:
    return [toc["root"], *(entry["file"] for part in toc["parts"] for entry in part["chapters"])]


def _complete(notebook: dict[str, Any], model: Shown, name: str, *, main: bool) -> None:
    """Add what a reader of the page wants and the notebook has not: whose page it is, where to run it, its tables."""
    if not main:
        first = notebook["cells"][0]
        lines = first["source"].splitlines()
        place = next(i for i, line in enumerate(lines) if line.startswith("# "))
        lines[place] += f" ({escaped(model.title)})"
        # Its words are those of the main model's page: the search would find each eleven times.
        notebook["metadata"]["nosearch"] = True
        first["source"] = "\n".join(lines)
    if links := launch.line(name):
        notebook["cells"].insert(1, new_markdown_cell(links))
    notebook["cells"].append(new_markdown_cell(model_page.downloads(model, name, title="Tables of this page (CSV)")))


def build(models: Sequence[str], notebooks: Sequence[str]) -> Path:
    """Render the book to ``_build/html`` and return its first page.

    Parameters
    ----------
    models : sequence of str
        Full names. The first is the main model, which the prose is about; others that have results follow.
    notebooks : sequence of str
        Those of the chosen chapters, ``"<paper>/<name>"``.

    Raises
    ------
    RuntimeError
        On any Sphinx warning: a dead cross-reference, a doubled label, a missing picture.
    ArchiveError
        A contributed archive is broken or unsafe; nothing is rendered.
    """
    root = data.root()
    folder, html = root / "_build" / "pages", root / "_build" / "html"
    sources(shelf.own(models), notebooks, folder)
    # Sphinx reports a page's warnings only when it reads the page: an incremental build would hide them.
    for stale in (html, root / "_build" / ".doctrees", root / "_build" / ".jupyter_cache"):
        shutil.rmtree(stale, ignore_errors=True)
    command = [sys.executable, "-m", "biasgeom.sphinx_book", folder, html, root / "_config.yml"]
    if subprocess.run(command, cwd=root).returncode:
        raise RuntimeError("the book was not rendered without warnings; they are printed above")
    _bundle_mathjax(html / "_static" / "mathjax")
    return html / "index.html"


def _bundle_mathjax(target: Path) -> None:
    """Copy the one MathJax file and the fonts that the book needs, so that formulas show without a network."""
    spec = find_spec("sphinx-mathjax-offline")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package sphinx-mathjax-offline is missing; run make book, or reinstall")
    source = Path(spec.origin).parent / "static" / "mathjax"
    target.mkdir(parents=True)
    shutil.copy(source / "tex-chtml-full.js", target)
    shutil.copytree(source / "output" / "chtml" / "fonts", target / "output" / "chtml" / "fonts")
