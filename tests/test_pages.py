"""What the book's contents are: the executed notebooks in the place of the committed ones, and whole chapters only."""

from pathlib import Path

import pytest
import yaml
from biasgeom import data, pages, results, run

MODEL = "acme/tiny"


def files(toc: dict) -> list[str]:
    return [entry["file"] for part in toc["parts"] for entry in part["chapters"]]


def test_contents_of_the_whole_book_name_executed_notebooks(tmp_path: Path) -> None:
    pages.contents(MODEL, run.notebooks(), tmp_path / "toc.yml")
    made = yaml.safe_load((tmp_path / "toc.yml").read_text())
    committed = yaml.safe_load((data.root() / "_toc.yml").read_text())
    assert made["root"] == committed["root"]
    assert [part["caption"] for part in made["parts"]] == [part["caption"] for part in committed["parts"]]
    assert files(made) == [f.replace("notebooks/", f"results/{results.slug(MODEL)}/") for f in files(committed)]


@pytest.mark.parametrize("paper", pages.CHAPTERS)
def test_a_book_of_one_chapter_lacks_the_pages_of_the_others(tmp_path: Path, paper: str) -> None:
    chosen = [notebook for notebook in run.notebooks() if notebook.startswith(f"{paper}/")]
    pages.contents(MODEL, chosen, tmp_path / "toc.yml")
    found = files(yaml.safe_load((tmp_path / "toc.yml").read_text()))
    assert [f for f in found if f.startswith("results/")] == [f"results/{results.slug(MODEL)}/{n}" for n in chosen]
    assert {f"book/{paper}", f"book/{paper}_summary", "book/choices"} <= set(found)
    assert not {f"book/{other}{page}" for other in set(pages.CHAPTERS) - {paper} for page in ("", "_summary")} & set(
        found
    )
    assert not [f for f in found if f.startswith("notebooks/")]
