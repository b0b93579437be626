"""What a notebook leaves behind: folder, tables, figures, ``run.json``; the same bytes when it runs again."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import psutil
import pytest
from biasgeom import counting, data, results
from matplotlib.figure import Figure

MODEL = SimpleNamespace(
    name="org/tiny",
    blocks=[None] * 3,
    width=8,
    provenance={"kind": "hub", "dtype": "float32", "device": "cpu"},
    fingerprint=lambda: "0123",
)
TABLE = pd.DataFrame(
    {"concept": ["a", "b, c", "d"], "block": [0, 1, 2], "value": [1 / 3, -2e-7, 123456.7], "above": [True, False, True]}
)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BIASGEOM_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results"


def opened(notebook: str = "gender/03_encoded", **parameters: object) -> results.Run:
    return results.Run(MODEL, notebook, parameters)


def drawing(height: float = 2) -> Figure:
    figure, axis = plt.subplots(figsize=(2, 1))
    axis.plot([0, 1, height], label="curve")
    axis.fill_between([0, 1, 2], 0, height, alpha=0.2)
    axis.legend()
    return figure


# The folder's name ----------------------------------------------------------------------------------------------------

DISTINCT = [
    "smollm2-135m-instruct",
    "org/name",
    "org--name",
    "org/name@main",
    "org/name@v1.0",
    "org/name+org/adapter",
    "org/name+/home/me/adapter",
    "org/name+/home/you/adapter",
    "/home/me/model",
    "/home/you/model",
    "./model",
    "../model",
    "~/model",
    "model",
    "model/",
    "-model",
    "model-",
    "model.",
    "a b",
    "a_b",
    "a  b",
    "ä",
    "ö",
    "C:\\models\\tiny",
    "..",
    "",
    "x" * 300,
    "x" * 301,
]


def test_plain_names_stay_readable() -> None:
    assert results.slug("smollm2-135m-instruct") == "smollm2-135m-instruct"
    assert results.slug("meta-llama/Llama-3.1-8B-Instruct") == "meta-llama--Llama-3.1-8B-Instruct"
    assert results.slug("/home/me/tiny").startswith("tiny-")
    assert results.slug("org/name+/home/me/adapter").startswith("org--name--adapter-")
    assert results.slug("org/name@v1.0").startswith("org--name--v1.0-")


def test_two_models_never_share_a_folder() -> None:
    slugs = [results.slug(name) for name in DISTINCT]
    assert len(set(slugs)) == len(DISTINCT)


@pytest.mark.parametrize("name", DISTINCT)
def test_every_name_gives_a_plain_folder_name(name: str) -> None:
    slug = results.slug(name)
    assert set(slug) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert slug[0] not in ".-"
    assert len(slug) <= 100


def test_the_folder_does_not_depend_on_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [results.slug(name) for name in DISTINCT]
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "smollm2-135m-instruct").mkdir()
    monkeypatch.chdir(tmp_path)
    assert [results.slug(name) for name in DISTINCT] == before


# Tables and figures ---------------------------------------------------------------------------------------------------


def test_layout(place: Path) -> None:
    run = opened()
    run.table("scores", TABLE)
    run.figure("curves", drawing())
    run.finish()
    found = sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file())
    names = ["curves.png", "curves.svg", "run.json", "scores.csv", "stages_timing.csv"]
    assert found == [f"org--tiny/gender/03_encoded/{name}" for name in names]


def test_a_table_comes_back_as_a_reader_sees_it() -> None:
    run = opened()
    back = run.table("scores", TABLE)
    pd.testing.assert_frame_equal(back, pd.read_csv(run.folder / "scores.csv"))
    pd.testing.assert_frame_equal(back, TABLE, rtol=1e-5, check_dtype=False)
    # Six significant digits: what differs by rounding only is the same file.
    assert back["value"].tolist() == [0.333333, -2e-07, 123457]
    assert list(back.columns) == list(TABLE.columns)


def test_text_of_a_model_cannot_break_a_table(place: Path) -> None:
    texts = [
        "plain",
        'a "quoted", cell',
        "two\nlines",
        "a\rreturn",
        "a \x00 null",
        "\x1b[31mred",
        "a\u2028separator",
        "tab\t",
    ]
    frame = pd.DataFrame({"text": texts, "label": "neutral"})
    run = opened()
    found = run.table("texts", frame)
    assert found.shape == frame.shape
    assert (found["label"] == "neutral").all()
    assert found["text"].tolist()[3:7] == ["a\\rreturn", "a \\x00 null", "\\x1b[31mred", "a\\u2028separator"]
    assert [found["text"][i] for i in (0, 1, 2, 7)] == [texts[i] for i in (0, 1, 2, 7)]
    with (run.folder / "texts.csv").open(newline="") as stream:  # another reader
        assert len(list(csv.reader(stream))) == 1 + len(texts)
    # Negative control: as pandas writes it, a row breaks.
    frame.to_csv(place / "raw.csv", index=False)
    assert len(pd.read_csv(place / "raw.csv")) > len(frame)


def test_undefined_values_stay_empty_cells() -> None:
    run = opened()
    back = run.table("gaps", pd.DataFrame({"estimator": ["lw", "mean"], "shrinkage": [0.5, np.nan]}))
    assert (run.folder / "gaps.csv").read_text() == "estimator,shrinkage\nlw,0.5\nmean,\n"
    assert back["shrinkage"].isna().tolist() == [False, True]


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame(),
        pd.DataFrame({"value": []}),
        pd.DataFrame({"name": ["a", "b"], "value": [1.0, np.inf]}),
        pd.DataFrame({"value": np.array([1.0, -np.inf], dtype=np.float32)}),
    ],
)
def test_infinite_and_empty_tables_are_refused(frame: pd.DataFrame) -> None:
    run = opened()
    with pytest.raises(ValueError, match="table bad is empty or holds an infinite number"):
        run.table("bad", frame)
    assert list(run.folder.iterdir()) == []


def test_a_figure_is_returned_closed() -> None:
    run, figure = opened(), drawing()
    assert run.figure("curves", figure) is figure
    assert figure.number not in plt.get_fignums()


def test_no_figure_names_the_folders_above_a_model() -> None:
    figure = drawing()
    figure.axes[0].set_title("/home/anna/tiny, negative")
    run = opened()
    run.info["model"] = "/home/anna/tiny"
    run.figure("curves", figure)
    assert figure.axes[0].get_title() == "tiny, negative"


def test_a_second_run_writes_the_same_bytes() -> None:
    contents = []
    for _ in range(2):
        run = opened()
        run.table("scores", TABLE)
        run.figure("curves", drawing())
        contents.append({path.name: path.read_bytes() for path in run.folder.iterdir()})
    assert set(contents[0]) == {"curves.png", "curves.svg", "scores.csv"}
    assert contents[0] == contents[1]
    # Negative control: another figure is another file.
    run = opened()
    run.figure("curves", drawing(height=3))
    for name in ("curves.png", "curves.svg"):
        assert (run.folder / name).read_bytes() != contents[0][name]


# run.json -------------------------------------------------------------------------------------------------------------


def test_run_json_says_what_was_run() -> None:
    run = opened(block=3, dtype="float32", seed=0)
    returned = run.finish()
    info = json.loads((run.folder / "run.json").read_text())
    assert info == json.loads(json.dumps(returned))
    assert info["notebook"] == "gender/03_encoded"
    assert (info["model"], info["blocks"], info["width"]) == ("org/tiny", 3, 8)
    assert info["provenance"] == MODEL.provenance
    assert info["fingerprint"] == "0123"
    assert info["parameters"] == {"block": 3, "dtype": "float32", "seed": 0}
    assert set(info["packages"]) == set(results.PACKAGES)
    assert all(info["packages"].values())
    assert {"python", "commit", "seconds"} <= set(info)


def test_the_headline_names_the_model_and_what_it_ran_in() -> None:
    told = "**Model of this page: `org/tiny`**, 3 blocks of width 8, in float32 on CPU."
    run = opened()
    assert run.headline == told
    run.finish()
    assert run.headline == told
    # Negative control: another model, type and device are told.
    other = {"name": "org/other", "blocks": [None] * 5, "width": 16}
    other |= {"provenance": {"kind": "hub", "dtype": "bfloat16", "device": "cuda"}, "fingerprint": MODEL.fingerprint}
    run = results.Run(SimpleNamespace(**other), "gender/03_encoded", {})
    assert run.headline == "**Model of this page: `org/other`**, 5 blocks of width 16, in bfloat16 on CUDA."


def test_stages_are_timed_and_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.5, 10.0, 10.25, 20.0, 22.0])
    monkeypatch.setattr(results.time, "perf_counter", lambda: next(ticks))
    run = opened()
    for name in ("read", "draw", "read"):
        with run.stage(name):
            pass
    info = run.finish()
    assert (run.folder / "stages_timing.csv").read_text() == "stage,seconds\nread,3.5\ndraw,0.25\n"
    assert info["seconds"] == {"read": 3.5, "draw": 0.25}


def test_without_stages_the_timing_has_its_header() -> None:
    run = opened()
    run.finish()
    assert (run.folder / "stages_timing.csv").read_text() == "stage,seconds\n"


def test_commit_and_changes_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data" / "gender").mkdir(parents=True)
    monkeypatch.setenv("BIASGEOM_ROOT", str(tmp_path))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert opened().info["commit"] is None

    def git(*words: str) -> str:
        identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false"]
        command = ["git", *identity, *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / ".gitignore").write_text("/results/\n")
    git("init", "--quiet")
    git("add", ".gitignore")
    git("commit", "--quiet", "--message", "first")
    commit = git("rev-parse", "HEAD")[:12]
    assert opened().info["commit"] == commit
    (tmp_path / ".gitignore").write_text("/results/\n/other/\n")
    assert opened().info["commit"] == commit + "+"


def test_a_finished_run_replaces_the_earlier_one_whole() -> None:
    first, other = opened(), opened("gender/04_other")
    for run in (first, other):
        run.table("old", TABLE)
        run.finish()
    again = opened()
    again.table("new", TABLE)
    again.finish()
    assert again.folder == first.folder
    assert sorted(path.name for path in again.folder.iterdir()) == ["new.csv", "run.json", "stages_timing.csv"]
    assert (other.folder / "old.csv").exists()


def test_an_unfinished_run_costs_no_earlier_result(place: Path) -> None:
    assert results.runs() == []
    opened("gender/03_encoded").finish()
    opened("delta_b/01_first").finish()
    opened("judge/01_first").table("scores", TABLE)
    opened("gender/03_encoded").table("scores", TABLE)
    assert [info["notebook"] for info in results.runs()] == ["delta_b/01_first", "gender/03_encoded"]
    assert not (place / "org--tiny" / "gender" / "03_encoded" / "scores.csv").exists()
    # What an unfinished run left does not get into the next one.
    last = opened("judge/01_first")
    last.finish()
    assert not (last.folder / "scores.csv").exists()


def test_two_runs_at_once_do_not_mix(place: Path) -> None:
    """Another process has the same notebook open: its files stay its own, and whoever ends last is kept whole."""
    script = (
        "import sys, types; import pandas as pd; from biasgeom import results\n"
        "lm = types.SimpleNamespace(name='org/tiny', blocks=[], width=8, provenance={}, fingerprint=lambda: '0')\n"
        "run = results.Run(lm, 'gender/03_encoded', {}); run.table('theirs', pd.DataFrame({'a': [1]}))\n"
        "print('open', flush=True); sys.stdin.read(); run.finish()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "open\n"
        ours = opened()
        ours.table("ours", TABLE)
        ours.finish()
        assert sorted(path.name for path in ours.folder.glob("*.csv")) == ["ours.csv", "stages_timing.csv"]
        other.stdin.close()
        assert other.wait() == 0
    assert sorted(path.name for path in ours.folder.glob("*.csv")) == ["stages_timing.csv", "theirs.csv"]


def test_what_a_killed_run_left_is_removed(place: Path) -> None:
    folder = opened().folder
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    left = folder.with_name(folder.name.replace(f"-{os.getpid()}", f"-{ended.stdout.strip()}"))
    elsewhere = folder.with_name(".03_encoded.unfinished-another-1")
    for old in (left, elsewhere):
        old.mkdir()
    opened()
    assert folder.exists()
    assert elsewhere.exists()  # another machine's process may live
    assert not left.exists()


def test_a_process_that_nobody_waited_for_has_ended(place: Path) -> None:
    """In a container without an init, a killed notebook's process stays as a zombie for ever."""
    folder = place / f".03_encoded.unfinished-{results._machine()}-"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        scratch = Path(f"{folder}{process.pid}")
        assert not results.ended(scratch)
        process.kill()
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert results.ended(scratch)
    assert results.ended(scratch)
    assert not results.ended(Path(f"{folder}{process.pid}-copy"))
    assert not results.ended(Path(f"{folder}x"))
    assert not results.ended(Path(str(scratch).replace(results._machine(), "another")))


def test_memory_and_tokens_are_recorded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"org/tiny": {"read": 5, "written": 1}, "org/tiny-larger": {"read": 7, "written": 0}}
    monkeypatch.setattr(counting, "totals", lambda: counts)
    run = opened()
    counts = {
        "org/tiny": {"read": 8, "written": 1},
        "org/tiny+debiased": {"read": 10, "written": 2},
        "org/tiny-larger": {"read": 7, "written": 4},
        "planted": {"read": 100, "written": 0},
    }
    hold = bytearray(50 << 20)
    info = run.finish()
    assert info["tokens"] == {"read": 13, "written": 2, "others_read": 100, "others_written": 4}
    assert len(hold) >> 20 < info["peak_memory_mb"] < 20_000
    assert json.loads((run.folder / "run.json").read_text())["tokens"] == info["tokens"]
    assert info["wall_seconds"] >= 0


def test_results_lie_in_the_repository_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BIASGEOM_RESULTS", "~/elsewhere")
    assert results.root() == tmp_path / "elsewhere"
    monkeypatch.delenv("BIASGEOM_RESULTS")
    assert results.root() == data.root() / "results"
