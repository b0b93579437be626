"""Parameters are refused before a kernel starts; a failed notebook keeps what it had."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import nbformat
import papermill
import pytest
from biasgeom import data, run
from biasgeom.__main__ import main

ENCODED = data.root() / "notebooks" / "gender" / "03_encoded.ipynb"


def notebook(path: Path, *cells: str, tagged: bool = True) -> Path:
    """A fixture notebook whose first cell holds the parameters."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    if tagged:
        made.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(made, path)
    return path


@pytest.fixture
def simple(tmp_path: Path) -> Path:
    lines = ["n: int = 1  # how many; at least 1, at most 6", 'kind: str = "a"  # which; choices: a, b']
    lines += ["x: float = 0.5  # size", "flag: bool = False", "few: int = 1  # of them; at least 1, at most n"]
    cell = "\n".join([*lines, "several: list = []  # which of them; choices: a, b"])
    return notebook(tmp_path / "simple.ipynb", cell, "print(n, kind, x, flag)")


@pytest.fixture
def own_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository root of its own, so that unfinished notebooks land in the test's folder."""
    (tmp_path / "data" / "gender").mkdir(parents=True)
    monkeypatch.setenv("BIASGEOM_ROOT", str(tmp_path))
    return tmp_path


def test_parameters_are_read_with_type_help_and_choices(simple: Path) -> None:
    stated = {p.name: p for p in run.parameters(simple)}
    assert list(stated) == ["n", "kind", "x", "flag", "few", "several"]
    assert [(p.least, p.most) for p in stated.values() if p.type == "int"] == [(1, 6), (1, "n")]
    assert (stated["kind"].type, stated["kind"].choices, stated["kind"].help) == ("str", ("a", "b"), "which")


def test_values_are_typed_as_from_a_command_line(simple: Path) -> None:
    values = run.check(simple, {"n": "3", "x": "2", "flag": "true", "kind": "b", "several": "[a, b]", "few": "3"})
    assert values == {"n": 3, "x": 2.0, "flag": True, "kind": "b", "several": ["a", "b"], "few": 3}
    assert isinstance(values["x"], float)
    assert run.check(simple, {"x": "1e-3"}) == {"x": 0.001}
    with pytest.raises(run.ParameterError, match="n must be at most 6, not 10"):
        run.check(simple, {"n": "010"})  # which YAML takes for 8


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"x": float("nan")}, "x must be a finite number, not nan"),
        ({"x": "inf"}, "x must be a finite number, not inf"),
        ({"x": "-.inf"}, "x must be float, not '-.inf'"),
        ({"n": 2.0}, "n must be int, not 2.0"),
        ({"n": "2.0"}, "n must be int, not '2.0'"),
        ({"n": "1:30"}, "n must be int, not '1:30'"),
        ({"n": 7}, "n must be at most 6, not 7"),
        ({"few": 3}, "few must be at most n, which is 1, not 3"),
        ({"n": 3, "few": 4}, "few must be at most n, which is 3, not 4"),
        ({"several": ["a", "c"]}, "several holds values among a, b, not 'c'"),
        ({"several": "a"}, "several must be list, not 'a'"),
        ({"knid": "a"}, "did you mean 'kind'"),
        ({"zzzzz": 1}, "it has n, kind, x, flag, few, several"),
        ({"n": "many"}, "n must be int"),
        ({"n": 1.5}, "n must be int"),
        ({"n": True}, "n must be int"),
        ({"n": 0}, "n must be at least 1"),
        ({"flag": 1}, "flag must be bool"),
        ({"kind": "c"}, "must be one of a, b"),
    ],
)
def test_wrong_parameters_are_refused(
    simple: Path, tmp_path: Path, values: dict[str, object], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(papermill, "execute_notebook", lambda *a, **k: pytest.fail("a kernel was started"))
    with pytest.raises(run.ParameterError, match=complaint):
        run.execute(simple, tmp_path / "out.ipynb", values)
    assert not (tmp_path / "out.ipynb").exists()


def test_a_notebook_without_a_usable_parameters_cell_is_refused(tmp_path: Path) -> None:
    with pytest.raises(run.ParameterError, match="no cell tagged"):
        run.parameters(notebook(tmp_path / "a.ipynb", "x: int = 1", tagged=False))
    with pytest.raises(run.ParameterError, match="x needs a type"):
        run.parameters(notebook(tmp_path / "b.ipynb", "x = 1"))
    with pytest.raises(run.ParameterError, match="no notebook at"):
        run.parameters(tmp_path / "missing.ipynb")
    with pytest.raises(run.ParameterError, match="n has the bound 'm', neither a number nor a parameter"):
        run.parameters(notebook(tmp_path / "c.ipynb", "n: int = 1  # of them; at most m"))


def test_a_failed_notebook_keeps_its_partial_output_and_exits_1(
    own_build: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = notebook(
        own_build / "failing.ipynb", "n: int = 1", "print('before the failure')", "raise ValueError('broken')"
    )
    assert main(["run", str(failing), str(own_build / "out.ipynb")]) == 1
    assert not (own_build / "out.ipynb").exists()
    (kept,) = (own_build / "_build" / "unfinished").glob("*.ipynb")
    message = capsys.readouterr().err
    assert str(kept) in message
    assert "ValueError: broken" in message
    assert "before the failure" in kept.read_text()


def test_a_good_notebook_leaves_nothing_unfinished(own_build: Path, simple: Path) -> None:
    output = own_build / "deep" / "out.ipynb"
    assert main(["run", str(simple), str(output), "-p", "n", "5"]) == 0
    assert "5 a 0.5 False" in output.read_text()
    assert not list((own_build / "_build" / "unfinished").iterdir())


def test_ctrl_c_keeps_what_was_done(own_build: Path) -> None:
    slow = notebook(own_build / "slow.ipynb", "n: int = 1", "print('done so far')", "import time; time.sleep(60)")
    environment = {**os.environ, "BIASGEOM_ROOT": str(own_build)}
    command = [sys.executable, "-m", "biasgeom", "run", str(slow), str(own_build / "out.ipynb")]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    unfinished = own_build / "_build" / "unfinished"
    deadline = time.monotonic() + 60
    while not any("done so far" in p.read_text() for p in unfinished.glob("*.ipynb")):
        assert time.monotonic() < deadline, "the notebook never got to its second cell"
        time.sleep(0.3)
    time.sleep(2)  # into the middle of the sleeping cell: between two cells nothing listens for the signal
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=50)
    assert process.returncode == 130, message
    assert "_build/unfinished" in message
    assert not (own_build / "out.ipynb").exists()
    assert any("done so far" in p.read_text() for p in unfinished.glob("*.ipynb"))


@pytest.mark.parametrize("name", ["smoke", "embedded", "thorough", "paper"])
def test_profiles_fit_the_notebooks(name: str) -> None:
    profile = run.profile(name)
    assert set(profile) <= {"model", "parameters", "notebooks"}
    assert set(profile.get("notebooks", {})) <= set(run.notebooks())
    for stated in run.notebooks():
        run.values_for(stated, name, None)


def test_every_bound_admits_its_default() -> None:
    for stated in run.notebooks():
        path = data.root() / "notebooks" / f"{stated}.ipynb"
        defaults = {parameter.name: ast.literal_eval(parameter.default) for parameter in run.parameters(path)}
        assert run.check(path, defaults) == defaults


@pytest.mark.parametrize(
    ("notebook_name", "values", "complaint"),
    [
        ("gender/03_encoded", {"published_layer": 32}, "at most 31"),
        ("gender/05_ablation", {"personas": 9}, "at most 6"),
        ("gender/05_ablation", {"late": 1.5}, "at most 1"),
        ("gender/05_ablation", {"samples": 5}, "samples must be at most samples_professions, which is 3"),
        ("gender/06_realistic", {"wordings": 7}, "at most 6"),
        ("delta_b/03_audit", {"templates": 60}, "at most 50"),
        ("delta_b/04_output", {"benchmarks": ["toxygen"]}, "values among wildguardmix, decodingtrust, toxigen"),
        ("delta_b/05_results", {"toxic_from": 2}, "at most 1"),
        ("delta_b/06_methods", {"bos_attributes": 101}, "at most 100"),
        ("delta_b/07_robustness", {"most_anchors": 1001}, "at most 1000"),
        ("delta_b/07_robustness", {"sources": ["neutral", "wiki"]}, "values among neutral, words"),
        ("delta_b/09_audit_pair", {"anchors": 2000}, "at most 1000"),
    ],
)
def test_no_notebook_takes_more_than_there_is(notebook_name: str, values: dict[str, object], complaint: str) -> None:
    with pytest.raises(run.ParameterError, match=complaint):
        run.check(data.root() / "notebooks" / f"{notebook_name}.ipynb", values)


def test_an_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(run.ParameterError, match="embedded, paper, smoke, thorough"):
        run.profile("everything")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("gender/03_encodde: {draws: 20}", "no notebook 'gender/03_encodde'; did you mean 'gender/03_encoded'"),
        ("3: {draws: 20}", "no notebook 3; there are delta_b/01_sentences, "),
        ("gender/03_encoded:", "gender/03_encoded must hold parameter values by name, not None"),
        ("[]", r"notebooks must hold parameter values by notebook, not \[\]"),
        ("", "notebooks must hold parameter values by notebook, not None"),
    ],
)
def test_a_profile_that_names_no_notebook_is_refused(own_build: Path, text: str, complaint: str) -> None:
    (own_build / "notebooks").symlink_to(ENCODED.parents[1])
    (own_build / "profiles" / "models").mkdir(parents=True)
    named = own_build / "profiles" / "mine.yaml"
    named.write_text(f"model: org/name\nnotebooks:\n  {text}\n")
    with pytest.raises(run.ParameterError, match=rf"mine\.yaml: {complaint}"):
        run.values_for("gender/03_encoded", "mine", None)
    # Also where another profile starts from it, and where a model's own file names notebooks.
    (own_build / "profiles" / "other.yaml").write_text("base: mine\n")
    with pytest.raises(run.ParameterError, match=complaint):
        run.profile("other")
    named.write_text("model: org/name\n")
    if text.startswith("gender"):
        head = "name: org/name\nlicence: MIT\npage: ''\ngated: false\nbase: mine\nnotebooks:\n"
        (own_build / "profiles" / "models" / "org--name.yaml").write_text(f"{head}  {text}\n")
        with pytest.raises(run.ParameterError, match=rf"org--name\.yaml: {complaint}"):
            run.values_for("gender/03_encoded", "mine", None)


def test_the_embedded_profile_is_the_notebooks_default() -> None:
    model = next(p for p in run.parameters(ENCODED) if p.name == "model")
    assert run.values_for("gender/03_encoded", "embedded", None) == {"model": model.default.strip('"')}


def test_an_unknown_chapter_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["book", "--chapters", "gendre"]) == 1
    assert "no chapter gendre; there are delta_b, gender" in capsys.readouterr().err


def test_folders_are_given_from_where_the_command_is(
    tmp_path: Path, own_build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ['model: str = "a"  # which', 'adapter: str = ""  # on it', 'kind: str = "x"  # of it']
    asked = notebook(tmp_path / "deep.ipynb", "\n".join(lines))
    (tmp_path / "here" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    given: list[dict[str, object]] = []

    def execute(source: str, target: str, values: dict[str, object], **_: object) -> None:
        given.append(values)
        Path(target).touch()

    monkeypatch.setattr(papermill, "execute_notebook", execute)
    mine = str(tmp_path / "here" / "mine")
    for values, expected in (
        ({"adapter": "mine"}, {"adapter": mine}),
        ({"adapter": "./mine", "model": "mine"}, {"adapter": mine, "model": mine}),
        ({"adapter": "organisation/name", "kind": "mine"}, {"adapter": "organisation/name", "kind": "mine"}),
        ({"adapter": ""}, {"adapter": ""}),
    ):
        run.execute(asked, tmp_path / "out.ipynb", values)
        assert given.pop() == expected


@pytest.mark.parametrize("notebook", run.notebooks())
def test_a_parameters_cell_is_read_as_papermill_reads_it(notebook: str) -> None:
    path = data.root() / "notebooks" / f"{notebook}.ipynb"
    stated = papermill.inspect_notebook(str(path))
    read = {name: (line["inferred_type_name"], line["default"], line["help"]) for name, line in stated.items()}
    assert run._stated(path) == read


def test_a_cell_that_is_no_python_is_refused(tmp_path: Path) -> None:
    notebook = tmp_path / "broken.ipynb"
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": ["draws: int = = 2\n"]}
    notebook.write_text(json.dumps({"cells": [cell]}))
    with pytest.raises(run.ParameterError, match=r"broken.ipynb can't be read"):
        run.parameters(notebook)


@pytest.mark.skipif(find_spec("ipywidgets") is not None, reason="with ipywidgets tqdm has nothing to warn of")
@pytest.mark.parametrize(("first", "warned"), [("import biasgeom", False), ("pass", True)])
def test_no_page_begins_with_a_warning_about_widgets(first: str, warned: bool) -> None:
    # To tqdm, a loaded ipykernel.zmqshell is a notebook.
    command = [sys.executable, "-c", f"import ipykernel.zmqshell\n{first}\nimport tqdm.auto"]
    assert ("IProgress" in subprocess.run(command, capture_output=True, text=True, check=True).stderr) is warned
