"""The two commands' inner part, end to end: a copy of the repository, a tiny model, the smoke profile, a rendered book.

What is asserted of that book is also asserted of ``_build/html``, if ``make book`` has made it.
"""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import browser
import numpy as np
import pandas as pd
import pytest
import torch
from biasgeom import data, models, run
from biasgeom.models import LanguageModel
from bookcopy import Copy, copied

ROOT = data.root()
pytestmark = pytest.mark.book
THROUGH_THE_COMMAND = ["gender/01_prompts", "gender/04_relation"]
"""The command finds the other notebooks' results there and newer than what they depend on, and executes these."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory, build: Callable[[str], LanguageModel]) -> Copy:
    made = copied(tmp_path_factory.mktemp("copy"), build("llama"))
    made.execute_in_one_kernel([name for name in run.notebooks() if name not in THROUGH_THE_COMMAND])
    ended = made.book()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return made


def html_folders(copy: Copy) -> list[Path]:
    return [folder / "_build" / "html" for folder in (copy.root, ROOT) if (folder / "_build/html/index.html").exists()]


def test_each_item_that_counts_as_done_is_in_the_book(copy: Copy) -> None:
    items = data.items()
    done = items[items["status"] != "not run"]
    assert len(done)
    for html in html_folders(copy):
        text = "\n".join(page.read_text() for page in html.rglob("*.html"))
        missing = [label for label in done["label"] if f'id="{label}"' not in text]
        assert not missing, f"{html}: {missing}"
        assert 'id="fig-that-does-not-exist"' not in text


def test_no_page_names_a_resource_of_another_host(copy: Copy) -> None:
    """Links for people may lead elsewhere; scripts, styles and pictures may not."""
    for html in html_folders(copy):
        for page in html.rglob("*.html"):
            for tag in (
                '<script src="http',
                '<link rel="stylesheet" href="http',
                '<img src="http',
                "unpkg.com",
                "cdn.",
            ):
                assert tag not in page.read_text(), f"{page}: {tag}"
        assert (html / "_static" / "mathjax" / "tex-chtml-full.js").exists()


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium on this machine (apt install chromium)")
def test_every_page_shows_in_a_browser(copy: Copy) -> None:
    # The book of make book if there is one: it has the real figures, and every page takes a second.
    found = browser.visit(html_folders(copy)[-1])
    assert {"book/index.html", "book/choices.html", "search.html"} <= set(found)
    assert not {page: complaints for page, complaints in found.items() if complaints}


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium on this machine (apt install chromium)")
def test_the_browser_check_notices_what_is_missing(copy: Copy, tmp_path: Path) -> None:
    """The negative control: without MathJax and pictures the same pages are complained about."""
    broken = tmp_path / "html"
    shutil.copytree(copy.root / "_build" / "html", broken)
    shutil.rmtree(broken / "_static" / "mathjax")
    shutil.rmtree(broken / "_images")
    for page in broken.rglob("*.html"):
        if page.name not in ("03_encoded.html", "glossary.html"):
            page.unlink()
    complaints = {Path(page).name: " ".join(c) for page, c in browser.visit(broken).items()}
    assert "formula not rendered" in complaints["glossary.html"]
    assert "picture not shown" in complaints["03_encoded.html"]


def test_a_second_run_does_nothing(copy: Copy) -> None:
    before = (copy.results / "run.json").stat().st_mtime_ns
    touched = f"notebooks/{THROUGH_THE_COMMAND[0]}.ipynb"
    os.utime(copy.root / touched)  # which is not a changed one
    start = time.monotonic()
    assert copy.book().returncode == 0
    assert time.monotonic() - start < 60
    assert (copy.results / "run.json").stat().st_mtime_ns == before


def test_what_changed_is_made_again(copy: Copy) -> None:
    """One run after three changes: a notebook's text, a deleted result, and results of a run by hand."""
    chapter = copy.results.parent
    records = {
        name: chapter / name / "run.json" for name in ("01_prompts", "03_encoded", "04_relation", "07_alignment")
    }
    words = ["-p", "model", str(copy.model), "-p", "grammatical", "true"]
    assert copy.command("run", "notebooks/gender/01_prompts.ipynb", "mine.ipynb", *words).returncode == 0
    assert json.loads(records["01_prompts"].read_text())["parameters"]["grammatical"] is True
    times = {name: path.stat().st_mtime_ns for name, path in records.items()}
    records["04_relation"].unlink()
    tables = {path.name: path.read_bytes() for path in copy.results.glob("*.csv")}
    notebook = copy.root / "notebooks" / "gender" / "03_encoded.ipynb"
    notebook.write_text(notebook.read_text().replace("## How to read this", "## How to read that"))

    assert copy.book("--no-render").returncode == 0
    assert json.loads(records["01_prompts"].read_text())["parameters"]["grammatical"] is False
    assert records["04_relation"].exists()
    assert records["03_encoded"].stat().st_mtime_ns != times["03_encoded"]
    assert records["07_alignment"].stat().st_mtime_ns == times["07_alignment"]  # nothing of it changed
    # The rerun gives the same tables, to the byte; timings apart.
    again = {path.name: path.read_bytes() for path in copy.results.glob("*.csv")}
    assert {n: b for n, b in again.items() if "timing" not in n} == {
        n: b for n, b in tables.items() if "timing" not in n
    }
    assert len(tables) >= 5


def test_scores_of_the_page_follow_from_the_model_by_another_path(copy: Copy) -> None:
    """Recompute some cells from the model: one text at a time, Hugging Face's own hidden states, a plain mean."""
    lm = models.load(str(copy.model))
    pairs = data.contrast_pairs("direction")
    scores = pd.read_csv(copy.results / "entity_scores.csv").query("concept == 'Sports' and estimator == 'mean'")
    block = int(scores["block"].iloc[0])

    @torch.inference_mode()
    def state(text: str) -> np.ndarray:
        ids = torch.tensor([lm.tokenizer(text)["input_ids"]])
        return lm.model(ids, output_hidden_states=True).hidden_states[block + 1][0, -1].numpy()

    difference = np.mean([state(f) - state(m) for f, m in zip(pairs["female"], pairs["male"], strict=True)], axis=0)
    unit = difference / np.linalg.norm(difference)
    for row in scores.head(3).itertuples():
        projections = [state(f"{persona} loves {row.entity}") @ unit for persona in data.personas()]
        assert row.score == pytest.approx(np.mean(projections), rel=1e-4)


def test_run_json_says_what_was_run(copy: Copy) -> None:
    info = json.loads((copy.results / "run.json").read_text())
    assert info["parameters"]["draws"] == 20
    assert info["provenance"]["kind"] == "folder"
    assert info["packages"]["torch"]
    executed = copy.results.with_suffix(".ipynb").read_text()
    assert "no replication" in executed


@pytest.mark.parametrize("notebook", run.notebooks())
def test_run_json_has_every_parameter_and_the_aligned_model(copy: Copy, notebook: str) -> None:
    info = json.loads((copy.results.parents[1] / notebook / "run.json").read_text())
    stated = {parameter.name for parameter in run.parameters(ROOT / "notebooks" / f"{notebook}.ipynb")}
    assert set(info["parameters"]) == stated
    if "alignment" in stated and notebook != "gender/07_alignment":
        assert len(info["aligned"]) >= 16


def test_removed_and_plain_completions_are_equally_many(copy: Copy) -> None:
    """Bias_pol has a floor that falls with the number of completions: only equal numbers compare."""
    table = pd.read_csv(copy.results.parent / "05_ablation" / "ablation_sampled.csv")
    assert table["samples"].nunique() == 1
    assert np.isfinite(table["nats"]).all()  # a broken model is not polarized either
