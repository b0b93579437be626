"""Results packed and read back: the same bytes, nothing private, and no archive that can do harm."""

import contextlib
import io
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import nbformat
import pandas as pd
import pytest
from biasgeom import __main__, archive, data, inspection, redaction, release, results, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

REPOSITORY = Path(__file__).parents[1]
FOLDER = "/home/anna/my models/tiny-llama"
ITEMS = pd.DataFrame(
    {"question_id": ["GSM8K-0a1b", "GSM8K-2c3d"], "judge": "", "answer": ["4", "7"], "said": ["so <b>it</b> is", "no"]}
)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of its own: this one's contents and data, without results and without archives."""
    place = tmp_path / "a repository"
    place.mkdir()
    (place / "_toc.yml").symlink_to(REPOSITORY / "_toc.yml")
    (place / "data").symlink_to(REPOSITORY / "data")
    monkeypatch.setenv("BIASGEOM_ROOT", str(place))
    for variable in ("BIASGEOM_RESULTS", "BIASGEOM_CONTRIBUTED"):
        monkeypatch.delenv(variable, raising=False)
    return place


def ran(model: str = "org/tiny", notebook: str = "judge/01_data", said: str = "hello", **parameters: object) -> Path:
    """One finished run of a notebook, as a sweep leaves it; returns the model's folder."""
    provenance = {"kind": "folder", "source": model, "dtype": "float32", "device": "cpu"}
    made = SimpleNamespace(name=model, blocks=[None] * 3, width=8, provenance=provenance, fingerprint=lambda: "0123")
    opened = results.Run(made, notebook, {"model": model, **parameters})
    opened.table("items", ITEMS.assign(judge=f"{model}, expected"))
    figure, axis = plt.subplots(figsize=(1, 1))
    axis.set_title(Path(model).name)
    opened.figure("shifts", figure)
    opened.finish()
    folder = results.root() / results.slug(model)
    output = nbformat.v4.new_output("stream", text=f"{said}\n{data.root()}/lib/x.py:3: UserWarning of {model}\n")
    cell = nbformat.v4.new_code_cell(f'model = "{model}"', outputs=[output])
    page = nbformat.v4.new_notebook(cells=[cell], metadata={"papermill": {"output_path": "/scratch/anna/01.ipynb"}})
    nbformat.write(page, folder / f"{notebook}.ipynb")
    return folder


def packed(model: str = "org/tiny", to: str = "x.zip", **parameters: object) -> Path:
    """An archive of one run in the folder of contributed ones; no results of it are here."""
    target, key = archive.root() / to, (model, *parameters.items())
    if key not in MADE:
        folder = ran(model, **parameters)
        MADE[key] = archive.export(folder.name, target).read_bytes()
        shutil.rmtree(results.root())
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(MADE[key])
    return target


MADE: dict[tuple[Any, ...], bytes] = {}
"""Archives by what they are of: most tests want the same one."""


def contents(target: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(target) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def rewritten(target: Path, change: Callable[[dict[str, bytes]], None], *, honest: bool = True) -> None:
    """The archive with changed contents; an honest manifest fits them."""
    content = contents(target)
    change(content)
    if honest and "manifest.json" in content:
        manifest = json.loads(content["manifest.json"])
        files = {name: body for name, body in content.items() if name != "manifest.json"}
        manifest["files"] = {n: {"sha256": inspection.sha256(b), "size": len(b)} for n, b in files.items()}
        content["manifest.json"] = json.dumps(manifest).encode()
    archive.write(content, target)


def changed(name: str, **values: Any) -> Callable[[dict[str, bytes]], None]:
    def change(content: dict[str, bytes]) -> None:
        content[name] = json.dumps(json.loads(content[name]) | values).encode()

    return change


# Packing --------------------------------------------------------------------------------------------------------------


def test_the_same_results_give_the_same_bytes_whatever_the_clock_says(tmp_path: Path) -> None:
    folder = ran()
    first = archive.export("org--tiny", tmp_path / "1.zip").read_bytes()
    for path in folder.rglob("*"):
        os.utime(path, (10**9, 10**9))
    assert archive.export("org--tiny", tmp_path / "2.zip").read_bytes() == first
    ran(said="something else")
    assert archive.export("org--tiny", tmp_path / "2.zip").read_bytes() != first


def test_an_archive_holds_all_of_a_model_and_says_what_it_is(tmp_path: Path) -> None:
    folder = ran()
    (folder / "model.json").write_text(json.dumps({"name": "org/tiny", "profile": "smoke", "skipped": {}}))
    ran(notebook="gender/01_prompts")
    content = contents(archive.export("org--tiny", tmp_path / "to" / "x.zip"))
    files = {"items.csv", "stages_timing.csv", "run.json", "shifts.png", "shifts.svg"}
    made = ("gender/01_prompts", "judge/01_data")
    assert content.keys() == {f"{one}/{file}" for one in made for file in files} | {f"{one}.ipynb" for one in made} | {
        "manifest.json",
        "model.json",
    }
    manifest = json.loads(content["manifest.json"])
    assert (manifest["model"], manifest["slug"], manifest["left_out"]) == ("org/tiny", "org--tiny", [])
    body = (folder / "judge/01_data/items.csv").read_bytes()
    assert content["judge/01_data/items.csv"] == body
    assert manifest["files"]["judge/01_data/items.csv"] == {"sha256": inspection.sha256(body), "size": len(body)}


OWN = {"source": "project", "recipe": "embedded", "benchmarks": [], "tasks": [], "sources": ["words", "neutral"]}


@pytest.mark.parametrize(
    "other",
    [
        {"source": "benchmarks"},
        {"recipe": "paper"},
        {"alignment": "paper"},
        {"benchmarks": ["toxigen"]},
        {"tasks": ["mmlu"]},
        {"sources": ["neutral", "alpaca"]},
        {"source": "one that does not exist yet"},
    ],
)
def test_texts_of_data_sets_from_the_hub_stay_here(tmp_path: Path, other: dict[str, Any]) -> None:
    assert not redaction.foreign(OWN)
    parameters = OWN | other
    folder = ran(**parameters)
    content = contents(archive.export("org--tiny", tmp_path / "x.zip"))
    assert "judge/01_data.ipynb" not in content
    table = pd.read_csv(io.BytesIO(content["judge/01_data/items.csv"]))
    assert list(table) == list(ITEMS)
    assert table["question_id"].tolist() == ITEMS["question_id"].tolist()
    assert table[["answer", "said"]].isna().all(axis=None)  # also the answers that are numbers
    left_out = {entry["file"]: entry["what"] for entry in json.loads(content["manifest.json"])["left_out"]}
    assert left_out["judge/01_data.ipynb"] == "the executed notebook"
    # The negative control: what the repository's own texts gave is all there.
    ran(**OWN)
    again = contents(archive.export(folder.name, tmp_path / "x.zip"))
    assert b"so <b>it</b> is" in again["judge/01_data/items.csv"]
    assert b"hello" in again["judge/01_data.ipynb"]


def test_what_counts_as_own_are_values_that_notebooks_take() -> None:
    """A renamed or new choice would count as foreign: tables of every run would be emptied, or of none."""
    choices: dict[str, set[str]] = {}
    for notebook in run.notebooks():
        for parameter in run.parameters(REPOSITORY / "notebooks" / f"{notebook}.ipynb"):
            choices.setdefault(parameter.name, set()).update(parameter.choices)
    for name, elsewhere in {"source": {"benchmarks"}, "recipe": {"paper"}, "alignment": {"paper"}}.items():
        assert choices[name] - redaction.OWN[name] == elsewhere
        assert choices[name] >= redaction.OWN[name]
    assert choices.keys() >= redaction.OWN.keys()


def test_places_of_this_machine_become_their_last_part(tmp_path: Path, root: Path) -> None:
    folder = ran(FOLDER)
    content = contents(archive.export(folder.name, tmp_path / "x.zip"))
    for name, body in content.items():
        assert b"anna" not in body, name
        assert str(root.parent).encode() not in body, name
    assert json.loads(content["judge/01_data/run.json"])["model"] == "tiny-llama"
    assert b"tiny-llama, expected" in content["judge/01_data/items.csv"]
    assert b"x.py:3: UserWarning of tiny-llama" in content["judge/01_data.ipynb"]
    assert json.loads(content["manifest.json"])["slug"] == folder.name != "tiny-llama"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/anna", "~"),
        ("see /home/anna/x/y.csv: 3", "see y.csv: 3"),
        ("file:///home/anna/y.csv", "y.csv"),
        ("PATH=/usr/bin:/home/anna/bin", "PATH=bin:bin"),
        ("https://anna:secret@host.org/a/b?c=/d/e", "https://host.org/a/b?c=/d/e"),
        ("<td>1/2</td> and/or 3/4 <br/>", "<td>1/2</td> and/or 3/4 <br/>"),
        ("org/name+/home/anna/adapter", "org/name+adapter"),
        ("image/png", "image/png"),
        ("`results/<model>/judge/01_data/`", "`results/<model>/judge/01_data/`"),
        ("| org/name\\+/home/anna/adapter |", "| org/name\\+adapter |"),
    ],
)
def test_paths_in_texts(text: str, shown: str) -> None:
    assert redaction.Places("org/name+/home/anna/adapter").text(text) == shown


@pytest.mark.parametrize("variable", ["HF_TOKEN", "OPENAI_API_KEY"])
def test_a_token_in_an_output_is_refused_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "correct-horse-battery")
    ran(said="the key is correct-horse-battery")
    with pytest.raises(redaction.TokenFound, match=rf"org--tiny/judge/01_data.ipynb.*{variable}") as refused:
        archive.export("org--tiny", tmp_path / "x.zip")
    assert "horse" not in str(refused.value)
    monkeypatch.delenv(variable)
    archive.export("org--tiny", tmp_path / "x.zip")
    ran(said="and hf_" + "a1B2" * 9)
    with pytest.raises(redaction.TokenFound, match=r"01_data\.ipynb.*looks like a token"):
        archive.export("org--tiny", tmp_path / "x.zip")


def test_what_can_not_be_packed_is_named(tmp_path: Path) -> None:
    folder = ran()
    with pytest.raises(archive.ArchiveError, match="no results to pack; there are org--tiny"):
        archive.export("org--other", tmp_path / "x.zip")
    (folder / "judge" / ".03_landscape.unfinished-here-1").mkdir()
    with pytest.raises(archive.ArchiveError, match=r"\.03_landscape.*is going on"):
        archive.export("org--tiny", tmp_path / "x.zip")
    (folder / "judge" / ".03_landscape.unfinished-here-1").rmdir()
    ran(notebook="gender/01_prompts")
    (folder / "gender" / "01_prompts" / "run.json").unlink()
    with pytest.raises(archive.ArchiveError, match="01_prompts has tables of a run"):
        archive.export("org--tiny", tmp_path / "x.zip")
    assert not (tmp_path / "x.zip").exists()


def dead() -> int:
    """The number of a process that has ended."""
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    return int(ended.stdout)


def scratch(final: Path, process: int) -> Path:
    """The folder that a process of this machine keeps beside what it makes."""
    own = results.own_folder(final)
    return own.with_name(own.name.replace(f"-{os.getpid()}", f"-{process}"))


def test_a_run_that_was_killed_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ran()
    whole = archive.export("org--tiny", tmp_path / "whole.zip")
    left = scratch(folder / "judge" / "03_landscape", dead())
    left.mkdir()
    (left / "half.csv").write_text("a\n1\n")
    (left / "run.json").write_text("{}")  # the last that a run writes before its folder takes its place
    content = contents(archive.export("org--tiny", tmp_path / "x.zip"))
    assert {name: body for name, body in content.items() if name != "manifest.json"} == {
        name: body for name, body in contents(whole).items() if name != "manifest.json"
    }
    (entry,) = json.loads(content["manifest.json"])["left_out"]
    assert (entry["file"], entry["why"]) == ("judge/03_landscape", "was killed before it ended")
    assert socket.gethostname() not in json.dumps(entry)
    assert left.exists()  # a run of that notebook clears it
    monkeypatch.chdir(tmp_path)
    assert __main__.main(["export", "org/tiny", "--to", "y.zip"]) == 0
    assert "Left out, in part or whole, since it was killed before it ended: judge/03_landscape" in (
        capsys.readouterr().out
    )
    # The negative control: a process that lives.
    scratch(folder / "judge" / "03_landscape", os.getppid()).mkdir()
    with pytest.raises(archive.ArchiveError, match=r"03_landscape.*is going on"):
        archive.export("org--tiny", tmp_path / "x.zip")


@pytest.mark.parametrize("pack", ["export", "release"])
def test_what_a_killed_export_left_is_removed(root: Path, tmp_path: Path, pack: str) -> None:
    ran()
    (root / "_build" / "html").mkdir(parents=True)
    (root / "_build" / "html" / "index.html").write_text("<p>first</p>")
    target = tmp_path / "to" / "x.zip"
    stale, living = scratch(target, dead()), scratch(target, os.getppid())
    for folder in (stale, living):
        folder.mkdir(parents=True)
        (folder / target.name).write_bytes(b"half")
    made = {"export": lambda: archive.export("org--tiny", target), "release": lambda: release.pack(html(), target)}
    made[pack]()
    assert contents(target)
    assert sorted(target.parent.iterdir()) == sorted([living, target])


def html() -> Path:
    return data.root() / "_build" / "html"


def test_an_export_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran()
    target = archive.export("org--tiny", tmp_path / "to" / "x.zip")
    before = target.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "write", full)
    with pytest.raises(archive.ArchiveError, match=r"x\.zip can't be written: No space left"):
        archive.export("org--tiny", target)
    assert list(target.parent.iterdir()) == [target]
    assert target.read_bytes() == before


@pytest.mark.parametrize("name", ["", " ", "+x", "org/other", "org--other", "../org--tiny", "<b>", "a b"])
def test_an_export_of_nothing_says_so(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    ran()
    assert __main__.main(["export", name]) == 1
    said = capsys.readouterr()
    assert re.match("error: .*(names no model|no results to pack; there are org--tiny)", said.err), said.err
    assert not said.out


def test_what_others_would_refuse_is_not_written(tmp_path: Path) -> None:
    folder = ran("/home/anna/<b>model")
    with pytest.raises(archive.ArchiveError, match=rf"{folder.name} can't be packed: manifest\.json: has markup"):
        archive.export(folder.name, tmp_path / "x.zip")
    assert not (tmp_path / "x.zip").exists()


def test_files_that_are_no_results_are_left_out(tmp_path: Path) -> None:
    folder = ran()
    (folder / "judge/01_data/notes of mine.txt").write_text("private")
    (folder / "judge/01_data/.ipynb_checkpoints").mkdir()
    content = contents(archive.export("org--tiny", tmp_path / "x.zip"))
    assert not any("notes" in name or "checkpoints" in name for name in content)
    assert len(json.loads(content["manifest.json"])["left_out"]) == 2


# Reading back ---------------------------------------------------------------------------------------------------------


def test_what_was_packed_is_read_back(root: Path) -> None:
    target = packed(FOLDER)
    (found,) = archive.contributed()
    assert (found.name, found.slug) == ("tiny-llama", results.slug(FOLDER))
    assert found.sha256 == inspection.sha256(target.read_bytes())
    assert found.folder == root / "_build" / "contributed" / found.sha256[:16]
    unpacked = {path.relative_to(found.folder).as_posix() for path in found.folder.rglob("*") if path.is_file()}
    assert unpacked == {f"judge/01_data/{name}" for name in ("items.csv", "stages_timing.csv", "run.json")}
    table = pd.read_csv(found.folder / "judge/01_data/items.csv")
    assert table["said"].tolist() == ITEMS["said"].tolist()  # a model's text: pages escape it
    before = (found.folder / "judge/01_data/items.csv").stat().st_mtime_ns
    assert archive.contributed() == [found]
    assert (found.folder / "judge/01_data/items.csv").stat().st_mtime_ns == before
    (found.folder / "judge/01_data/items.csv").unlink()  # half of it gone: made again
    archive.contributed()
    assert pd.read_csv(found.folder / "judge/01_data/items.csv").equals(table)


def test_no_cell_of_a_contributed_table_is_a_formula(root: Path) -> None:
    """Pages offer the tables for download, and a spreadsheet would compute it."""
    cells = ["=1+1", "@SUM(1)", "+cmd|' /C calc'!A0", '-2+3+cmd|"x"', "\tx", "- item (one)", "plain", "a=b", "x, y"]
    numbers = ["-0.5", "+3", "-1e-05", "7", "0", "-12", "1", "2", "3"]
    table = pd.DataFrame({"said": cells, "n": [float(n) for n in numbers], "mixed": [*numbers[:-1], "=x"]})
    target = packed()
    rewritten(target, table_of(table.to_csv(index=False)))
    (found,) = archive.contributed()
    read = pd.read_csv(found.folder / "judge/01_data/items.csv")
    assert read["said"].tolist() == [f"'{cell}" for cell in cells[:6]] + cells[6:]
    assert read["n"].tolist() == table["n"].tolist()
    assert read["mixed"].tolist() == [*numbers[:-1], "'=x"]
    before = tree(root.parent)
    archive.contributed()
    assert tree(root.parent) == before
    # The negative control: a table without any stays as it is, byte by byte.
    plain = 'a,b\n-0.5,"x, = y"\n-1e-05,z\n'
    rewritten(target, table_of(plain))
    (found,) = archive.contributed()
    assert (found.folder / "judge/01_data/items.csv").read_text() == plain


def test_without_archives_there_are_no_contributions(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert archive.contributed() == []
    packed()
    (archive.root() / "README.md").write_text("not an archive")
    assert [one.name for one in archive.contributed()] == ["org/tiny"]
    monkeypatch.setenv("BIASGEOM_CONTRIBUTED", str(tmp_path))
    assert archive.contributed() == []


def test_a_model_that_has_results_here_too_is_shown_beside_them() -> None:
    packed()
    (alone,) = archive.contributed()
    ran()
    (beside,) = archive.contributed()
    assert alone.slug == "org--tiny"
    assert beside.slug == f"org--tiny--contributed-{beside.sha256[:8]}"


def test_two_archives_of_one_model_are_refused() -> None:
    packed(to="a.zip")
    packed(to="b.zip", said="another run")
    with pytest.raises(archive.ArchiveError, match=r"contributed/a\.zip and contributed/b\.zip are of one model"):
        archive.contributed()


def renamed(name: str) -> Callable[[dict[str, bytes]], None]:
    return lambda content: content.update({name: content.pop("judge/01_data/items.csv")})


def table_of(text: str) -> Callable[[dict[str, bytes]], None]:
    return lambda content: content.update({"judge/01_data/items.csv": text.encode("utf-8", "surrogateescape")})


HARM: dict[str, tuple[Callable[[dict[str, bytes]], None], str]] = {
    "path traversal": (renamed("../../evil.csv"), "no archive of this version has"),
    "traversal within": (renamed("judge/01_data/../../../evil.csv"), "no archive of this version has"),
    "absolute path": (renamed("/tmp/evil.csv"), "no archive of this version has"),
    "backslashes": (renamed("judge\\01_data\\items.csv"), "no archive of this version has"),
    "a folder's entry": (renamed("judge/01_data/"), "no archive of this version has"),
    "a folder's name": (renamed("judge/01_data"), "no archive of this version has"),
    "unknown notebook": (renamed("judge/99_other/items.csv"), "no archive of this version has"),
    "unknown kind of file": (renamed("judge/01_data/items.html"), "no archive of this version has"),
    "hidden file": (renamed("judge/01_data/.items.csv"), "no archive of this version has"),
    "no manifest": (lambda content: content.pop("manifest.json"), "has no manifest.json"),
    "no run.json": (lambda content: content.pop("judge/01_data/run.json"), "has no run.json"),
    "a table without its run": (renamed("gender/01_prompts/items.csv"), "has no run.json beside it"),
    "schema version": (changed("manifest.json", schema=2), r"\$\.schema: 1 was expected"),
    "no model": (changed("manifest.json", model=""), r"\$\.model"),
    "slug with a path": (changed("manifest.json", slug="../up"), r"\$\.slug"),
    "more than the schema": (changed("manifest.json", run="rm"), "run"),
    "HTML in the name": (changed("manifest.json", model="<script>x</script>"), "markup or control characters"),
    "control character": (changed("manifest.json", commits=["a\x1b[2J"]), "markup or control characters"),
    "text that turns round": (changed("manifest.json", model="a\u202eb"), "markup or control characters"),
    "HTML in a record": (
        changed("judge/01_data/run.json", provenance={"dtype": "<img src=x>", "device": "cpu"}),
        r"run\.json: has markup",
    ),
    "a formula for a name": (changed("manifest.json", model="=HYPERLINK(1)"), r"\$\.model"),
    "a slug that is a folder of pages": (changed("manifest.json", slug="pages"), r"\$\.slug"),
    "a number that is none": (changed("judge/01_data/run.json", wall_seconds=float("nan")), "not finite"),
    "an endless number": (changed("judge/01_data/run.json", parameters={"a": [float("inf")]}), "not finite"),
    "a number beyond all": (changed("judge/01_data/run.json", blocks=10**400), r"\$\.blocks"),
    "another model's run": (changed("judge/01_data/run.json", model="org/huge"), "is of 'org/huge'"),
    "another notebook's run": (changed("judge/01_data/run.json", notebook="judge/02_humans"), "is of the notebook"),
    "run.json without keys": (
        lambda content: content.update({"judge/01_data/run.json": b'{"model": "org/tiny"}'}),
        "'notebook' is a required property",
    ),
    "run.json that is no JSON": (lambda content: content.update({"judge/01_data/run.json": b"{"}), "Expecting"),
    "run.json that nests": (lambda content: content.update({"judge/01_data/run.json": b"[" * 10**5}), "recursion"),
    "a table without rows": (table_of("a,b\n"), "has no rows"),
    "an empty table": (table_of(""), "header"),
    "rows of unequal length": (table_of("a,b\n1,2,3\n"), "unequal length"),
    "columns of one name": (table_of("a,a\n1,2\n"), "header"),
    "HTML in a header": (table_of("a,<b>\n1,2\n"), "header"),
    "an infinite number": (table_of("a\ninf\n"), "infinite"),
    "a control character in a cell": (table_of("a\n\x1b[31m\n"), "control characters"),
    "a quote that does not end": (table_of('a\n"b\n'), r"items\.csv: unexpected end"),
    "a table that is no UTF-8": (table_of("a\n\udcff\n"), "utf-8"),
    "a bomb": (table_of("a\n" + "1\n" * 10**6), "too many"),
}


@pytest.mark.parametrize("case", HARM)
def test_an_archive_that_could_do_harm_is_refused_and_nothing_of_it_unpacked(root: Path, case: str) -> None:
    target = packed()
    assert archive.contributed()  # the negative control
    before = tree(root.parent)
    change, reason = HARM[case]
    rewritten(target, change)
    with pytest.raises(archive.ArchiveError, match=rf"(?s)^contributed/x\.zip: .*{reason}.*or remove it"):
        archive.contributed()
    assert tree(root.parent) == before


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_symlink()}


def test_a_checksum_that_does_not_fit_is_refused() -> None:
    target = packed()
    rewritten(target, table_of("a\n1\n"), honest=False)
    with pytest.raises(archive.ArchiveError, match=r"items\.csv differs from its checksum"):
        archive.contributed()
    rewritten(target, lambda content: content.update({"judge/01_data/more.csv": b"a\n1\n"}), honest=False)
    with pytest.raises(archive.ArchiveError, match=r"more\.csv stands in the manifest or in the archive"):
        archive.contributed()


def test_entries_that_zip_allows_and_this_does_not() -> None:
    target = packed()
    content = contents(target)

    def with_entry(name: str, body: bytes = b"a\n1\n", attributes: int = 0, how: int = zipfile.ZIP_DEFLATED) -> None:
        archive.write(content, target)
        info = zipfile.ZipInfo(name)
        info.external_attr = attributes
        with zipfile.ZipFile(target, "a") as opened, warnings.catch_warnings(action="ignore", category=UserWarning):
            opened.writestr(info, body, how)  # it warns of a doubled name

    with_entry("judge/01_data/items.csv")
    with pytest.raises(archive.ArchiveError, match=r"holds judge/01_data/items\.csv twice"):
        archive.contributed()
    with_entry("judge/01_data/ITEMS.csv")  # one file on some disks
    with pytest.raises(archive.ArchiveError, match="twice"):
        archive.contributed()
    with_entry("judge/01_data/link.csv", b"/etc/passwd", (stat.S_IFLNK | 0o777) << 16)
    with pytest.raises(archive.ArchiveError, match="is no plain file"):
        archive.contributed()
    with_entry("judge/01_data/more.csv", how=zipfile.ZIP_LZMA)
    with pytest.raises(archive.ArchiveError, match="other than deflate"):
        archive.contributed()


def test_truncated_at_any_place() -> None:
    whole = packed().read_bytes()
    for size in {0, 1, 100, len(whole) // 2, len(whole) - 30, len(whole) - 1}:
        (archive.root() / "x.zip").write_bytes(whole[:size])
        with pytest.raises(archive.ArchiveError, match=r"contributed/x\.zip: .*zip"):
            archive.contributed()


# Any archive at all ---------------------------------------------------------------------------------------------------

ANY = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def only_refused(root: Path, target: Path, harmful: bytes) -> None:
    """Reading it ends well or with an ArchiveError, and writes nowhere but into the folder of unpacked ones."""
    target.write_bytes(harmful)
    before = tree(root.parent)
    with contextlib.suppress(archive.ArchiveError):
        archive.contributed()
    unpacked = f"{root.name}/_build"
    assert {path for path in tree(root.parent) - before if not path.startswith(unpacked)} == set()


@ANY
@given(
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=6), st.integers(0, 6)), min_size=1, max_size=8)
)
def test_bytes_that_changed_on_the_way(root: Path, changes: list[tuple[int, bytes, int]]) -> None:
    target = packed()
    whole = target.read_bytes()
    for place, new, old in changes:
        at = place % len(whole)
        whole = whole[:at] + new + whole[at + old :]
    only_refused(root, target, whole)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = ["schema", "model", "slug", "libraries", "commits", "left_out", "notebook", "provenance", "packages", "seconds"]


@ANY
@given(
    records=st.dictionaries(
        st.sampled_from(["manifest.json", "model.json", "judge/01_data/run.json"]),
        st.dictionaries(st.sampled_from(KEYS), JSON, max_size=2) | JSON,
        max_size=2,
    ),
    table=st.none() | st.binary(max_size=40) | st.text(max_size=40),
    name=st.sampled_from(["judge/01_data/items.csv", "judge/01_data/x.csv"]) | st.text(max_size=20),
)
def test_contents_of_any_kind_with_a_manifest_that_fits(root: Path, records: dict, table: Any, name: str) -> None:
    target = packed()

    def change(content: dict[str, bytes]) -> None:
        if table is not None:
            content[name] = table if isinstance(table, bytes) else table.encode("utf-8", "surrogatepass")
        for file, record in records.items():
            known = json.loads(content.get(file, b"{}"))
            mixed = known | record if isinstance(record, dict) else record
            content[file] = json.dumps(mixed).encode()

    try:
        rewritten(target, change, honest=not isinstance(records.get("manifest.json", {}), list | str | int | float))
    except (TypeError, UnicodeError, ValueError):
        return  # no such archive can be written: a manifest that is no object, a name that zip does not take
    only_refused(root, target, target.read_bytes())


# The book in one file -------------------------------------------------------------------------------------------------


def test_a_release_holds_the_pages_and_the_version(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    html = root / "_build" / "html"
    with pytest.raises(release.NotReady, match="no rendered book"):
        release.pack(html)
    ran()
    (html / "book").mkdir(parents=True)
    (html / "index.html").write_text("<p>first</p>")
    (html / "book" / "index.html").write_text("<p>book</p>")
    target = release.pack(html)
    title = f"biasgeom-{release.__version__}-book"
    assert target == root / "_build" / f"{title}.zip"
    assert contents(target) == {
        f"{title}/index.html": b"<p>first</p>",
        f"{title}/book/index.html": b"<p>book</p>",
    }
    first = target.read_bytes()
    os.utime(html / "book" / "index.html", (10**9, 10**9))
    assert release.pack(html, tmp_path / "other.zip").read_bytes() == first
    monkeypatch.setenv("HF_TOKEN", "correct-horse-battery")
    (html / "book" / "index.html").write_text("correct-horse-battery")
    with pytest.raises(redaction.TokenFound, match=r"book/index\.html holds the value of HF_TOKEN"):
        release.pack(html)
    os.utime(html / "index.html", (10**9, 10**9))
    with pytest.raises(release.NotReady, match=r"01_data is newer than the book"):
        release.pack(html)
