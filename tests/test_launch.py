"""Ways to open a notebook elsewhere: links that lead to its file, and set-ups that install what ``make`` installs."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from biasgeom import launch
from packaging.specifiers import SpecifierSet
from pygments.lexers import get_lexer_by_name
from pygments.token import Error

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data" / "gender").mkdir(parents=True)
    monkeypatch.setenv("BIASGEOM_ROOT", str(tmp_path))
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    return tmp_path


def with_remote(clone: Path, address: str) -> str:
    subprocess.run(["git", "remote", "add", "origin", address], cwd=clone, check=True)
    return launch.line("gender/03_encoded")


@pytest.mark.parametrize(
    "address",
    [
        "https://github.com/a-b/bias.geom",
        "https://github.com/a-b/bias.geom.git",
        "https://github.com/a-b/bias.geom/",
        "https://anna:ghp_secret@github.com/a-b/bias.geom.git",
        "git@github.com:a-b/bias.geom.git",
        "ssh://git@github.com/a-b/bias.geom.git",
    ],
)
def test_links_lead_to_the_notebook_of_the_remote(clone: Path, address: str) -> None:
    shown = with_remote(clone, address)
    file = "notebooks/gender/03_encoded.ipynb"
    assert f"(https://colab.research.google.com/github/a-b/bias.geom/blob/HEAD/{file})" in shown
    assert f"(https://mybinder.org/v2/gh/a-b/bias.geom/HEAD?labpath={file.replace('/', '%2F')})" in shown
    assert "git clone --quiet --depth 1 https://github.com/a-b/bias.geom " in shown
    assert "secret" not in shown
    assert "![" not in shown  # no picture of another host
    assert (ROOT / file).exists()


@pytest.mark.parametrize(
    "address",
    [
        "https://gitlab.com/a/b",
        "https://github.com.evil.org/a/b",
        "https://github.com/a",
        "/srv/git/b.git",
        "https://github.com/a/b)[x](http://c",
    ],
)
def test_other_remotes_give_no_links(clone: Path, address: str) -> None:
    assert with_remote(clone, address) == ""


def test_git_is_asked_once(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = with_remote(clone, "https://github.com/a/b")
    monkeypatch.setenv("PATH", "")
    assert launch.line("gender/03_encoded") == shown != ""


def test_no_remote_gives_no_links(clone: Path) -> None:
    assert launch.line("gender/03_encoded") == ""


def installed(text: str) -> tuple[str, ...]:
    """What an install command is given, less the interpreter, which differs from place to place."""
    (words,) = re.findall(r"uv pip install (.*)", text.replace("\\\n", " "))
    kept = re.sub(r"--quiet|--no-cache|--python (\"[^\"]*\"|\S+)|\$\(LINKS\)", " ", words)
    return tuple(sorted(kept.replace("$(LOCK)", "requirements.lock").replace("'", "").split()))


def test_every_place_installs_what_make_installs() -> None:
    book = re.search(r"installed-book: pyproject.*\n\t\$\(INSTALL\) (.*)", MAKEFILE)
    command = re.search(r"^INSTALL := (.*)$", MAKEFILE, re.MULTILINE)
    assert book
    assert command
    wanted = installed(f"{command[1]} {book[1]}")
    assert wanted == ("--constraint", "--editable", ".[judge]", "requirements.lock")
    assert installed(launch.setup("a/b")) == wanted
    assert installed((ROOT / ".binder" / "postBuild").read_text()) == wanted
    assert installed("uv pip install --editable '.[gemma]'") != wanted


def test_binder_gets_a_python_and_a_uv_that_this_project_takes() -> None:
    python = (ROOT / ".binder" / "runtime.txt").read_text().strip().removeprefix("python-")
    assert SpecifierSet(PROJECT["project"]["requires-python"]).contains(python)
    script = ROOT / ".binder" / "postBuild"
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
    assert script.stat().st_mode & 0o100
    text = script.read_text()
    assert text.startswith("#!/bin/bash\n")
    assert "set -e" in text  # repo2docker goes on after an error otherwise
    version = re.search(r"^UV_VERSION := (\S+)", MAKEFILE, re.MULTILINE)
    assert version
    assert f"uv=={version[1]}" in text


def test_the_devcontainer_calls_what_exists() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    python = container["image"].rsplit(":", 1)[1]
    assert SpecifierSet(PROJECT["project"]["requires-python"]).contains(python)
    commands = [container["postCreateCommand"], container["portsAttributes"]["8888"]["label"].split("(")[1].strip(")")]
    for command in commands:
        assert command.startswith("make ")
        dry = subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True)
        assert dry.returncode == 0, dry.stderr
    assert subprocess.run(["make", "no-such-target", "--dry-run"], cwd=ROOT, capture_output=True).returncode
    interpreter = container["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert interpreter == "${containerWorkspaceFolder}/.venv/bin/python"


def test_the_set_up_cell_is_code_that_the_book_can_colour_and_ipython_can_read() -> None:
    from IPython.core.inputtransformer2 import TransformerManager

    cell = launch.setup("a/b")
    compile(TransformerManager().transform_cell(cell), "cell", "exec")
    (lexer,) = set(re.findall(r"```(\S+)\n", fenced(cell)))
    assert Error not in {kind for kind, _ in get_lexer_by_name(lexer).get_tokens(cell)}
    # The negative control: with Python's own lexer the strict build of the book would fail.
    assert Error in {kind for kind, _ in get_lexer_by_name("python").get_tokens(cell)}


def fenced(cell: str) -> str:
    source = Path(launch.__file__).read_text()
    assert "{setup(repository)}" in source
    return source.replace("{setup(repository)}", cell)
