"""What the book's sources are: each model's pages with labels of their own, no dead reference, whole chapters only."""

import json
import re
import shutil
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import yaml
from biasgeom import (
    archive,
    claims_delta_b,
    comparison,
    comparison_page,
    data,
    fragments,
    launch,
    model_page,
    pages,
    relabel,
    results,
    run,
    shelf,
)
from biasgeom.claims import HOLDS, NOT_RUN, MissingTable
from biasgeom.markdown import escaped
from biasgeom.shelf import Shown

OTHER = "acme/tiny"
PROVENANCE = {"source": "s", "sha256": "ab" * 32, "dtype": "float32", "device": "cpu", "licence": None}


@cache
def defaults(notebook: str) -> dict[str, object]:
    stated = run.parameters(data.root() / "notebooks" / f"{notebook}.ipynb")
    return {parameter.name: yaml.safe_load(parameter.default) for parameter in stated}


def executed(folder: Path, name: str, notebooks: list[str]) -> None:
    """Committed notebooks as if executed for a model: with the labels that the book's claims and items refer to."""
    labels = data.items().groupby("notebook")["label"].agg(lambda found: [label for label in found if label])
    for notebook in notebooks:
        made = json.loads((data.root() / "notebooks" / f"{notebook}.ipynb").read_text())
        figures = {cell["metadata"].get("mystnb", {}).get("figure", {}).get("name") for cell in made["cells"]}
        tables = "".join(
            f":::{{table}} T.\n:name: {label}\n\n| a |\n| --- |\n| 1 |\n:::\n\n"
            for label in sorted({*labels.get(notebook, []), "tab-judge-quality"})
            if label not in figures and (label != "tab-judge-quality" or notebook == "judge/03_landscape")
        )
        said = f"**Model of this page: `{name}`**\n\n| judge |\n| --- |\n| {escaped(name)} |\n\n{tables}"
        output = {"output_type": "display_data", "metadata": {}, "data": {"text/markdown": said}}
        code = next(cell for cell in made["cells"] if cell["cell_type"] == "code")
        code["outputs"] = [output]
        (folder / notebook).mkdir(parents=True)
        (folder / f"{notebook}.ipynb").write_text(json.dumps(made))
        info = {"model": name, "notebook": notebook, "blocks": 4, "width": 8, "provenance": PROVENANCE}
        info |= {
            "parameters": defaults(notebook),
            "seconds": {},
            "commit": "c0ffee",
            "fingerprint": "f",
        }
        info |= {"packages": {"biasgeom": "0", "torch": "2", "transformers": "5"}}
        (folder / notebook / "run.json").write_text(json.dumps(info))
        (folder / notebook / "a_table.csv").write_text(f"a,b\n1,2\n1,2\n1,2\n{name},2\n")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A results folder of its own, and nothing that anybody contributed."""
    monkeypatch.setenv("BIASGEOM_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("BIASGEOM_CONTRIBUTED", str(tmp_path / "contributed"))
    monkeypatch.setattr(launch, "line", lambda notebook: f"Open {notebook}.")
    return tmp_path


def made(place: Path, notebooks: list[str], asked: tuple[str, ...] = ("main",)) -> tuple[Path, list[Shown]]:
    models = shelf.own(asked)
    pages.sources(models, notebooks, place / "pages")
    return place / "pages", models


def every_label(folder: Path) -> list[str]:
    """The labels of all pages, a page with a label twice counted twice."""
    found: list[str] = []
    for path in sorted(folder.rglob("*.md")):
        text = path.read_text()
        found += relabel.labels(text)
    for path in folder.rglob("*.ipynb"):
        found += relabel.notebook_labels(json.loads(path.read_text()))
    return found


def references(folder: Path) -> set[str]:
    """Every label that a page refers to, found by a pattern of its own."""
    text = "".join(path.read_text() for path in [*folder.rglob("*.md"), *folder.rglob("*.ipynb")])
    roles = re.findall(r"\{(?:num)?ref\}`(?:[^`<]*<)?([\w.-]+)>?`", text)
    links = re.findall(r"\]\(#?([a-z][\w.-]*)\)", text)
    return {label for label in (*roles, *links) if not label.endswith((".md", ".html"))}


def files(toc: dict) -> list[str]:
    found = [toc["root"]]
    for part in toc["parts"]:
        for entry in part["chapters"]:
            found += [entry["file"], *(below["file"] for below in entry.get("sections", ()))]
    return found


def test_the_whole_book_of_one_model(place: Path) -> None:
    executed(place / "results" / "main", "main", run.notebooks())
    folder, models = made(place, run.notebooks())
    toc = pages.contents(models, run.notebooks())
    committed = (data.root() / "_toc.yml").read_text()
    listed = re.findall(r"(?:file|root): (\S+)", committed)
    expected = [file.replace("notebooks/", "results/main/") for file in listed]
    expected.insert(expected.index("book/comparison") + 1, "results/main/card")
    assert files(toc) == expected
    for file in files(toc):
        assert (folder / f"{file}.md").exists() or (folder / f"{file}.ipynb").exists(), file
    labels = every_label(folder)
    assert len(labels) == len(set(labels))
    assert references(folder) <= set(labels)
    assert {label for label in data.items()["label"] if label} <= set(labels)


def test_two_models_share_no_label_and_every_reference_finds_one(place: Path) -> None:
    executed(place / "results" / "main", "main", run.notebooks())
    executed(place / "results" / results.slug(OTHER), OTHER, run.notebooks())
    folder, models = made(place, run.notebooks())
    assert [model.name for model in models] == ["main", OTHER]
    labels = every_label(folder)
    assert len(labels) == len(set(labels))
    assert references(folder) <= set(labels)
    other = json.loads((folder / "results/acme--tiny/gender/04_relation.ipynb").read_text())
    assert "[](gender-encoded--acme--tiny)" in json.dumps(other)
    assert "(acme/tiny)" in other["cells"][0]["source"].replace("\\", "")
    toc = pages.contents(models, run.notebooks())
    assert toc["parts"][-1]["caption"] == OTHER
    assert toc["parts"][-1]["chapters"][0] == {"file": "results/acme--tiny/card"}


def test_without_relabelling_two_models_share_labels(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    executed(place / "results" / "main", "main", run.notebooks())
    executed(place / "results" / results.slug(OTHER), OTHER, run.notebooks())
    monkeypatch.setattr(relabel, "relabelled_notebook", lambda notebook, **_: notebook)
    monkeypatch.setattr(pages, "_complete", lambda *_, **__: None)
    labels = every_label(made(place, run.notebooks())[0])
    assert len(labels) > len(set(labels))


@pytest.mark.parametrize("paper", fragments.CHAPTERS)
def test_a_book_of_one_chapter_lacks_the_pages_of_the_others_and_has_no_dead_reference(place: Path, paper: str) -> None:
    chosen = [notebook for notebook in run.notebooks() if notebook.startswith(f"{paper}/")]
    executed(place / "results" / "main", "main", chosen)
    folder, models = made(place, chosen)
    found = files(pages.contents(models, chosen))
    assert [f for f in found if f.startswith("results/main/") and f != "results/main/card"] == [
        f"results/main/{notebook}" for notebook in chosen
    ]
    assert {f"book/{paper}", f"book/{paper}_summary", "book/choices"} <= set(found)
    absent = {f"book/{other}{page}" for other in set(fragments.CHAPTERS) - {paper} for page in ("", "_summary")}
    assert not absent & set(found)
    assert not any((folder / f"{file}.md").exists() for file in absent)
    assert references(folder) <= set(every_label(folder))


def test_what_a_model_can_t_run_is_said_on_its_card_and_its_chapter(place: Path) -> None:
    executed(place / "results" / "main", "main", run.notebooks())
    judge = [notebook for notebook in run.notebooks() if notebook.startswith("judge/")]
    rest = [notebook for notebook in run.notebooks() if notebook not in judge]
    there = place / "results" / results.slug(OTHER)
    executed(there, OTHER, rest)
    reason = "its tokenizer has no chat template <b>"
    skipped = {"name": OTHER, "profile": "smoke", "skipped": dict.fromkeys(judge, reason)}
    (there / "model.json").write_text(json.dumps(skipped))
    folder, models = made(place, run.notebooks())
    for page in ("card", "judge"):
        text = (folder / "results" / "acme--tiny" / f"{page}.md").read_text()
        assert "its tokenizer has no chat template \\<b\\>" in text
        assert "<b>" not in text
    assert not (folder / "results" / "acme--tiny" / "judge_summary.md").exists()
    assert references(folder) <= set(every_label(folder))
    # The same model as the main one: its chapter page says so, too.
    folder, models = made(place, run.notebooks(), (OTHER,))
    assert models[0].name == OTHER
    assert "no chat template" in (folder / "results" / "pages" / "judge_verdicts.md").read_text()
    assert references(folder) <= set(every_label(folder))


def test_a_page_offers_its_tables_and_says_where_to_run_it(place: Path) -> None:
    executed(place / "results" / "main", "main", run.notebooks())
    folder, _ = made(place, run.notebooks())
    cells = json.loads((folder / "results/main/gender/03_encoded.ipynb").read_text())["cells"]
    assert "{download}`a_table.csv </results/main/gender/03_encoded/a_table.csv>`" in cells[-1]["source"]
    assert cells[1]["source"] == "Open gender/03_encoded."
    assert (folder / "results/main/gender/03_encoded/a_table.csv").read_text() == "a,b\n1,2\n1,2\n1,2\nmain,2\n"
    assert "a_table.csv" in (folder / "results/main/card.md").read_text()


def test_beyond_a_few_models_only_the_asked_ones_show_their_notebooks(place: Path) -> None:
    for number in range(shelf.MOST + 2):
        executed(place / "results" / f"m{number}", f"m{number}", ["gender/01_prompts"])
    last = f"m{shelf.MOST + 1}"
    folder, models = made(place, ["gender/01_prompts"], (last,))
    shown = {path.parents[1].name for path in folder.rglob("01_prompts.ipynb")}
    assert shown == {last, *(f"m{number}" for number in range(shelf.MOST - 1))}
    for model in models:
        assert (folder / "results" / model.slug / "card.md").exists()
        assert (folder / "results" / model.slug / "gender/01_prompts/a_table.csv").exists()
    assert model_page.NOT_IN_FULL in (folder / "results" / f"m{shelf.MOST}" / "gender.md").read_text()
    assert references(folder) <= set(every_label(folder))


def test_a_card_of_a_partial_book_says_what_is_lacking_and_why(place: Path) -> None:
    gender = [notebook for notebook in run.notebooks() if notebook.startswith("gender/")]
    there = place / "results" / "main"
    executed(there, "main", gender[:-1])
    skipped = dict.fromkeys((n for n in run.notebooks() if n.startswith("judge/")), "main has no chat template.")
    told = {"name": "main", "profile": "smoke", "skipped": skipped, "asked": gender}
    (there / "model.json").write_text(json.dumps(told))
    folder, _ = made(place, gender)
    card = (folder / "results/main/card.md").read_text()
    assert f"{len(gender) - 1} of {len(run.notebooks())}" in card
    assert f"Not run for main: `{gender[-1].split('/')[1]}`. {escaped(shelf.NOT_ENDED)}" in card
    assert f"Not run for main: the chapter *Auditing a fine-tune*. {escaped(shelf.NOT_ASKED)}" in card
    assert "Not run for main: the chapter *Judging the judge*. main has no chat template" in card
    chapters = "This book was made without *Auditing a fine-tune* and *Judging the judge* (`CHAPTERS=…`).\n"
    assert (folder / "results/pages/chapters.md").read_text() == chapters
    # The negative control: all of it run, and a book of all of it.
    executed(there, "main", [notebook for notebook in run.notebooks() if notebook not in gender[:-1]])
    folder, _ = made(place, gender)
    card = (folder / "results/main/card.md").read_text()
    assert "Not run" not in card
    assert "Run, but left out of this book: *Judging the judge*, 10 notebooks." in card
    folder, _ = made(place, run.notebooks())
    assert "left out" not in (folder / "results/main/card.md").read_text()
    assert (folder / "results/pages/chapters.md").read_text() == ""


def test_folders_are_titled_by_their_own_names_and_told_apart(place: Path) -> None:
    names = ["/home/anna/my-models/tiny", "/home/ben/tiny"]
    for name in names:
        executed(place / "results" / results.slug(name), name, ["gender/01_prompts", "judge/03_landscape"])
    chosen = [notebook for notebook in run.notebooks() if not notebook.startswith("delta_b/")]
    folder, models = made(place, chosen, (names[1],))
    assert [model.title for model in models] == [results.slug(name) for name in reversed(names)]
    shutil.rmtree(place / "results" / results.slug(names[1]))
    assert shelf.own(names[:1])[0].title == "tiny"
    # Nothing that is rendered or offered names the folders above.
    for path in folder.rglob("*"):
        if path.is_file():
            text = path.read_text(errors="replace")
            assert not re.search(r"/home|/anna|my(\\\\|\\)*-models", text), path
    card = (folder / "results" / results.slug(names[0]) / "card.md").read_text()
    assert f"# Model card: {escaped(results.slug(names[0]))}" in card
    page = json.loads((folder / "results" / results.slug(names[0]) / "judge/03_landscape.ipynb").read_text())
    assert "Model of this page: `tiny`" in json.dumps(page)


def test_a_claim_that_was_not_judged_says_once_why() -> None:
    undefined = pd.Series({"auc": None, "undefined": "no pair has an increase above 0.1"})
    with pytest.raises(MissingTable) as missing:
        claims_delta_b._defined(undefined, "auc")
    said = fragments._grounds(NOT_RUN, str(missing.value))
    assert said == r"**not run**: no number to judge by (no pair has an increase above 0\.1)"
    assert fragments._grounds(NOT_RUN, "x has not been run") == "**not run**: x has not been run"
    assert fragments._grounds(HOLDS, "r = 1") == "**holds**. Measured: r = 1"


def test_weights_are_named_by_hash_commit_or_digest() -> None:
    known = {"fingerprint": "f", "provenance": {"sha256": "h", "commit": "c"}}
    assert fragments.version(known) == "h"
    assert fragments.version(known | {"provenance": {"commit": "c"}}) == "c"
    assert fragments.version(known | {"provenance": {"kind": "folder"}}) == "f"


def test_results_stay_as_they_are(place: Path) -> None:
    executed(place / "results" / "main", "main", run.notebooks())
    before = {path: path.read_bytes() for path in (place / "results").rglob("*") if path.is_file()}
    made(place, run.notebooks())
    assert {path: path.read_bytes() for path in (place / "results").rglob("*") if path.is_file()} == before


def test_contributed_results_are_compared_and_have_no_pages(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executed(place / "results" / "main", "main", run.notebooks())
    executed(place / "given", "other/model", ["gender/02_expressed"])
    given = archive.Contribution("other/model", "other--model", place / "given", place / "o.zip", "ab" * 32)
    monkeypatch.setattr(archive, "contributed", lambda: [given])
    folder, _ = made(place, run.notebooks())
    assert not (folder / "results" / "other--model").exists()
    compared = folder / "results" / "pages" / "comparison" / "models.md"
    assert (
        "other/model \\(contributed\\)" in compared.read_text() or "other/model (contributed)" in compared.read_text()
    )


def test_an_unfinished_run_is_no_result(place: Path) -> None:
    executed(place / "results" / "main", "main", ["gender/01_prompts", "gender/02_expressed"])
    hidden = place / "results" / "main" / "gender" / ".02_expressed.unfinished-host-1"
    shutil.move(place / "results" / "main" / "gender" / "02_expressed", hidden)
    (model,) = shelf.own(["main"])
    assert model.executed(run.notebooks()) == ["gender/01_prompts"]


def test_every_section_has_a_caption_and_every_figure_alt_text() -> None:
    assert set(comparison_page.FIGURES) <= {*comparison.SECTIONS, "cost"}
    assert all(caption and alt for caption, alt, _ in comparison_page.FIGURES.values())


def test_a_book_without_a_run_of_its_own_says_so() -> None:
    """As when somebody only looks at archives that others made."""
    assert fragments._runs([]) == "No model was run in this clone.\n"
