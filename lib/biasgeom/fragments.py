"""What the book's pages include: tables of parameters, runs, verdicts, published beside measured, coverage."""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

import pandas as pd

from biasgeom import claims, claims_delta_b, claims_gender, claims_judge, costs, data, names, run
from biasgeom.markdown import escaped, table
from biasgeom.shelf import Shown

CHAPTERS = {"gender": claims_gender.RULES, "delta_b": claims_delta_b.RULES, "judge": claims_judge.RULES}
"""The chapters that are built, with the rules of their claims."""
TITLES = {"gender": "Gender", "delta_b": "Auditing a fine-tune", "judge": "Judging the judge"}
VERDICTS = "What the paper claims, and what this run's tables say by rules in code."
BESIDE = "Published numbers (the paper's Llama-3.1-8B) beside those of the model of this book. Not a replication."


def dashed(paper: str) -> str:
    """A chapter's name as its labels begin."""
    return paper.replace("_", "-")


def write(models: Sequence[Shown], notebooks: Collection[str], labels: Collection[str], folder: Path) -> None:
    """Write the fragments about the main model, the first one, and about all; ``labels`` are those of its pages."""
    main = models[0]
    folder.mkdir(parents=True, exist_ok=True)
    fragments = {"parameters": _parameters(notebooks), "runs": _runs(models), "costs": costs.fragment()}
    fragments["chapters"] = _left_out(notebooks)
    for paper in CHAPTERS:
        fragments[f"{paper}_verdicts"] = skipped(main, paper, notebooks) + verdicts(paper, main, labels)
        fragments[f"{paper}_beside"] = beside(paper, main, labels)
    for paper, rows in data.items().groupby("paper", sort=False):
        frame = rows[["item", "title", "status", "reason"]].assign(where=[_numbered(x, labels) for x in rows["label"]])
        fragments[f"items_{paper}"] = table(frame, markup=("where",))
    for paper, rows in data.published("inconsistencies").groupby("paper", sort=False):
        fragments[f"inconsistencies_{paper}"] = table(rows[["id", "where", "class", "finding"]])
    for name, text in fragments.items():
        (folder / f"{name}.md").write_text(text)


def _left_out(notebooks: Collection[str]) -> str:
    """Which chapters the book was made without; nothing if it has all."""
    lacking = [f"*{title}*" for paper, title in TITLES.items() if not any(n.startswith(f"{paper}/") for n in notebooks)]
    return f"This book was made without {' and '.join(lacking)} (`CHAPTERS=…`).\n" if lacking else ""


def _parameters(notebooks: Collection[str]) -> str:
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
    return "\n".join(stated)


def _runs(models: Sequence[Shown]) -> str:
    """Which model ran in which notebooks: one row for every kind of weights and number format of a model."""
    rows = [
        {
            "model": f"[{escaped(model.title)}](model--{model.tag})",
            "blocks x width": f"{info['blocks']} × {info['width']}",
            "weights from": info["provenance"].get("source", ""),
            "hash, commit or digest": version(info)[:12],
            "computed in": f"{info['provenance']['dtype']} on {info['provenance']['device']}",
            "notebooks": notebook,
        }
        for model in models
        for notebook, info in model.runs.items()
    ]
    if not rows:
        return "No model was run in this clone.\n"
    frame = pd.DataFrame(rows)
    by = [column for column in frame if column != "notebooks"]
    return table(frame.groupby(by, sort=False, as_index=False)["notebooks"].count(), markup=("model",))


def version(info: Mapping) -> str:
    """Which weights a run read: the file's hash, the hub's commit, or of a folder the digest of what was loaded."""
    made = info["provenance"]
    return str(made.get("sha256") or made.get("commit") or info.get("fingerprint") or "")


def skipped(model: Shown, paper: str, notebooks: Collection[str]) -> str:
    """Which notebooks of a chapter the model did not run, and why; nothing if it ran all."""
    mine = [notebook for notebook in notebooks if notebook.startswith(f"{paper}/")]
    reasons: dict[str, list[str]] = {}
    for notebook in mine:
        if reason := model.why_not(notebook):
            reasons.setdefault(reason, []).append(f"`{notebook.split('/')[1]}`")
    return "".join(
        f":::{{warning}}\nNot run for {escaped(model.title)}: "
        + (f"the chapter *{TITLES[paper]}*" if len(lacking) == len(mine) else ", ".join(lacking))
        + f". {escaped(reason)}\n:::\n\n"
        for reason, lacking in reasons.items()
    )


@cache
def judged(paper: str, name: str) -> pd.DataFrame:
    """The chapter's claims with their verdicts on one model; a card counts them, a chapter lists them."""
    found = claims.verdicts(paper, CHAPTERS[paper], name)
    return found.assign(evidence=[text.replace(name, names.public(name)) for text in found["evidence"]])


def verdicts(paper: str, model: Shown, labels: Collection[str], ending: str = "") -> str:
    """Every claim with its verdict, and what it rests on; ``ending`` is what the labels of this model's pages have."""
    found = judged(paper, model.name)
    short = pd.DataFrame(
        {
            "section": found["section"],
            "claim": found["claim"],
            "verdict": [f"**{verdict}**" for verdict in found["verdict"]],
            "where": [_numbered(label, labels, ending) for label in found["label"]],
        }
    )
    name = f"tab-{dashed(paper)}-verdicts{ending}"
    shown = table(short, name=name, caption=VERDICTS, markup=("verdict", "where"))
    reasons = [
        f"- *{escaped(row.claim)}* {_grounds(row.verdict, row.evidence)}. Rule: {escaped(row.rule)}"
        for row in found.itertuples()
    ]
    return shown + "\n### What was measured, by which rule\n\n" + "\n".join(reasons) + "\n"


def _grounds(verdict: str, evidence: str) -> str:
    """A verdict with what was measured; of a claim that was not judged, why not."""
    if verdict != claims.NOT_RUN:
        return f"**{verdict}**. Measured: {escaped(evidence)}"
    _, undefined, reason = evidence.partition("undefined on this run: ")
    return f"**{verdict}**: " + (f"no number to judge by ({escaped(reason)})" if undefined else escaped(evidence))


def beside(paper: str, model: Shown, labels: Collection[str], ending: str = "") -> str:
    """Numbers that a paper prints beside the same quantities in this run's tables."""
    found = claims.beside(paper, model.name)
    shown = found.assign(where=[_numbered(x, labels, ending) for x in found["label"]]).drop(columns="label")
    return table(shown, name=f"tab-{dashed(paper)}-beside{ending}", caption=BESIDE, markup=("where",))


def _numbered(label: str, labels: Collection[str], ending: str = "") -> str:
    """A reference by number, or a dash if no page has the label.

    Of a model beside the main one by a word: Sphinx reads a page's whole tree to find one number.
    """
    if label not in labels:
        return "–"
    return f"{{ref}}`see <{label}{ending}>`" if ending else f"{{numref}}`{label}`"
