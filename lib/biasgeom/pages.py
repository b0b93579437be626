"""Render the book: generate what reads ``results/``, point the contents at executed notebooks, build strictly."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import yaml

from biasgeom import claims, claims_delta_b, claims_gender, claims_judge, data, results, run
from biasgeom.markdown import escaped, table

CHAPTERS = {"gender": claims_gender.RULES, "delta_b": claims_delta_b.RULES, "judge": claims_judge.RULES}
"""The chapters that are built, with the rules of their claims."""


def _dashed(paper: str) -> str:
    return paper.replace("_", "-")


def generate(model: str, notebooks: list[str], folder: Path) -> None:
    """Write the fragments that the book's pages include: parameters, runs, coverage, inconsistencies."""
    folder.mkdir(parents=True, exist_ok=True)
    stated = []
    for notebook in notebooks:
        stated.append(f"## `notebooks/{notebook}.ipynb`\n")
        rows = run.parameters(data.root() / "notebooks" / f"{notebook}.ipynb")
        frame = pd.DataFrame(
            {
                "parameter": [f"`{p.name}`" for p in rows],
                "type": [p.type for p in rows],
                "default": [f"`{p.default}`" for p in rows],
                "what": [p.help for p in rows],
                "choices": [", ".join(p.choices) for p in rows],
            }
        )
        stated.append(table(frame, markup=("parameter", "default")))
    (folder / "parameters.md").write_text("\n".join(stated))

    done = [info for info in results.runs() if (info["model"], info["notebook"]) in {(model, n) for n in notebooks}]
    frame = pd.DataFrame(
        {
            "model": [info["model"] for info in done],
            "notebook": [info["notebook"] for info in done],
            "blocks x width": [f"{info['blocks']} × {info['width']}" for info in done],
            "weights from": [info["provenance"].get("source", "") for info in done],
            "file hash or commit": [_version(info) for info in done],
            "computed in": [f"{info['provenance']['dtype']} on {info['provenance']['device']}" for info in done],
        }
    )
    (folder / "runs.md").write_text(table(frame))

    for paper, rules in CHAPTERS.items():
        (folder / f"{paper}_verdicts.md").write_text(_verdicts(paper, rules, model))
        (folder / f"{paper}_beside.md").write_text(_beside(paper, model))

    for paper, rows in data.items().groupby("paper", sort=False):
        where = [f"{{numref}}`{label}`" if label else "" for label in rows["label"]]
        frame = rows[["item", "title", "status", "reason"]].assign(where=where)
        (folder / f"items_{paper}.md").write_text(table(frame, markup=("where",)))
    for paper, rows in data.published("inconsistencies").groupby("paper", sort=False):
        (folder / f"inconsistencies_{paper}.md").write_text(table(rows[["id", "where", "class", "finding"]]))


def _verdicts(paper: str, rules: claims.Rules, model: str) -> str:
    found = claims.verdicts(paper, rules, model)
    short = pd.DataFrame(
        {
            "section": found["section"],
            "claim": found["claim"],
            "verdict": [f"**{verdict}**" for verdict in found["verdict"]],
            "where": [f"{{numref}}`{label}`" for label in found["label"]],
        }
    )
    shown = table(short, name=f"tab-{_dashed(paper)}-verdicts", caption=VERDICTS, markup=("verdict", "where"))
    reasons = [
        f"- *{escaped(row.claim)}* **{row.verdict}**. Measured: {escaped(row.evidence)}. Rule: {escaped(row.rule)}"
        for row in found.itertuples()
    ]
    return shown + "\n### What was measured, by which rule\n\n" + "\n".join(reasons) + "\n"


VERDICTS = "What the paper claims, and what this run's tables say by rules in code."


def _beside(paper: str, model: str) -> str:
    """Numbers that a paper prints beside the same quantities in this run's tables."""
    found = claims.beside(paper, model)
    shown = found.assign(where=[f"{{numref}}`{label}`" for label in found["label"]]).drop(columns="label")
    return table(shown, name=f"tab-{_dashed(paper)}-beside", caption=BESIDE, markup=("where",))


BESIDE = "Published numbers (the paper's Llama-3.1-8B) beside those of the model of this book. Not a replication."


def _version(info: dict) -> str:
    known = info["provenance"].get("sha256") or info["provenance"].get("commit") or ""
    return known[:12]


def contents(model: str, notebooks: list[str], path: Path) -> None:
    """Write ``_toc.yml`` anew with this model's executed notebooks in place of the committed ones.

    Of a chapter without a notebook among them, its own pages are left out too.
    """
    toc = yaml.safe_load((data.root() / "_toc.yml").read_text())
    chapters = {notebook.split("/")[0] for notebook in notebooks}
    absent = {f"book/{paper}{page}" for paper in set(CHAPTERS) - chapters for page in ("", "_summary")}
    for part in toc["parts"]:
        files = [entry["file"] for entry in part["chapters"]]
        kept = [f for f in files if f not in absent and (not f.startswith("notebooks/") or f[10:] in notebooks)]
        part["chapters"] = [
            {"file": f.replace("notebooks/", f"results/{results.slug(model)}/", 1) if f.startswith("notebooks/") else f}
            for f in kept
        ]
    toc["parts"] = [part for part in toc["parts"] if part["chapters"]]
    path.write_text(yaml.safe_dump(toc, sort_keys=False))


def build(model: str, notebooks: list[str]) -> Path:
    """Render the book to ``_build/html`` and return its first page.

    Raises
    ------
    RuntimeError
        On any Sphinx warning: a dead cross-reference, a doubled label, a missing picture. A book of some chapters is
        rendered all the same, since links to the others lead nowhere.
    """
    root = data.root()
    (root / "_build").mkdir(exist_ok=True)
    html = root / "_build" / "html"
    generate(model, notebooks, root / "results" / "pages")
    contents(model, notebooks, root / "_build" / "_toc.yml")
    # Sphinx reports a page's warnings only when it reads the page: an incremental build would hide them.
    for stale in (html, root / "_build" / ".doctrees", root / "_build" / ".jupyter_cache"):
        shutil.rmtree(stale, ignore_errors=True)
    jupyter_book = Path(sys.executable).with_name("jupyter-book")
    command = [str(jupyter_book), "build", ".", "--toc", "_build/_toc.yml", "--quiet"]
    if set(notebooks) == set(run.notebooks()):
        command += ["-n", "-W", "--keep-going"]
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
