"""What the runner refuses, in a copy of the repository in which nothing was run."""

import time
from collections.abc import Callable

import pytest
from biasgeom.models import LanguageModel
from bookcopy import Copy, copied
from filelock import FileLock


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory, build: Callable[[str], LanguageModel]) -> Copy:
    return copied(tmp_path_factory.mktemp("copy"), build("llama"))


def test_a_wrong_value_stops_the_book_before_anything_starts(copy: Copy) -> None:
    profile = copy.root / "profiles" / "smoke.yaml"
    right = profile.read_text()
    profile.write_text(right.replace("draws", "drawz"))
    ended = copy.book()
    profile.write_text(right)
    assert ended.returncode == 1
    assert "did you mean 'draws'" in ended.stderr
    assert "snakemake" not in (ended.stdout + ended.stderr).lower()


def test_a_model_that_cannot_be_had_stops_the_book_before_anything_starts(copy: Copy) -> None:
    start = time.monotonic()
    ended = copy.command("book", "--models", "smolm2")
    assert ended.returncode == 1
    assert "no model named 'smolm2'" in ended.stderr
    assert "snakemake" not in (ended.stdout + ended.stderr).lower()
    assert time.monotonic() - start < 60  # importing torch, beside other tests


def test_an_error_of_the_system_is_told_without_a_traceback(copy: Copy) -> None:
    (copy.root / "_build").write_text("a file")
    ended = copy.book("--chapters", "gender")
    (copy.root / "_build").unlink()
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("error: ")
    assert "_build" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_unknown_model_fails_by_name_and_keeps_the_notebook(copy: Copy) -> None:
    notebook = "notebooks/gender/03_encoded.ipynb"
    ended = copy.command("run", notebook, "out.ipynb", "-p", "model", "smolm2")
    assert ended.returncode == 1
    assert "no model named 'smolm2'. Embedded: smollm2-135m-instruct, gemma-3-270m" in ended.stderr
    assert list((copy.root / "_build" / "unfinished").glob("out*.ipynb"))


def test_a_second_run_at_the_same_time_is_refused(copy: Copy) -> None:
    with FileLock(copy.root / "_build" / ".lock"):
        ended = copy.book()
    assert ended.returncode == 1
    assert "another run" in ended.stderr
