"""``python -m biasgeom``: run one notebook with checked parameters, the whole book, or train the planted judge."""

import argparse
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from biasgeom import data, results, run


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m biasgeom", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    one = commands.add_parser("run", help="execute one notebook; its parameters are checked first")
    one.add_argument("notebook", type=Path, help="a notebook file, such as notebooks/gender/03_encoded.ipynb")
    one.add_argument("output", type=Path, help="where the executed notebook goes")
    one.add_argument("-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    one.add_argument("--profile", help="take parameter values from profiles/PROFILE.yaml")

    book = commands.add_parser("book", help="execute every notebook for a model and render the book")
    book.add_argument("--model", help="embedded name, folder or hub id; default: the profile's")
    book.add_argument("--profile", default="embedded")
    book.add_argument("--chapters", nargs="+", metavar="PAPER", help="only these: gender, delta_b, judge")
    book.add_argument("--cores", default="all", help="half of them for a notebook, so that two run side by side")
    book.add_argument("--no-render", action="store_true", help="execute only")

    render = commands.add_parser("render", help="render the book from notebooks that were executed")
    render.add_argument("--model", required=True)
    render.add_argument("--chapters", nargs="+", metavar="PAPER")

    planted = commands.add_parser("planted-judge", help="train the planted judge again and compare it with the stored")
    planted.add_argument("--folder", type=Path, default=Path("_build/planted"), help="where the new adapter goes")

    chosen = parser.parse_args(arguments)
    # Spinning OpenMP threads beside another busy process made a forward pass 16 times slower; kernels inherit this.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        commands = {"run": _run, "book": _book, "render": _render, "planted-judge": _planted_judge}
        return commands[chosen.command](chosen)
    except (run.ParameterError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; outputs so far are in _build/unfinished", file=sys.stderr)
        return 130


def _run(chosen: argparse.Namespace) -> int:
    values = dict(chosen.parameter)
    if chosen.profile:
        notebook = f"{chosen.notebook.parent.name}/{chosen.notebook.stem}"
        values = {**run.values_for(notebook, chosen.profile, None), **values}
    run.execute(chosen.notebook, chosen.output, values)
    return 0


def _chosen_notebooks(chapters: list[str] | None) -> list[str]:
    names = run.notebooks()
    papers = {name.split("/")[0] for name in names}
    if unknown := set(chapters or ()) - papers:
        raise run.ParameterError(f"no chapter {', '.join(sorted(unknown))}; there are {', '.join(sorted(papers))}")
    return [name for name in names if not chapters or name.split("/")[0] in chapters]


def _book(chosen: argparse.Namespace) -> int:
    root = data.root()
    notebooks = _chosen_notebooks(chosen.chapters)
    model = chosen.model or run.profile(chosen.profile).get("model")
    if not model:
        raise run.ParameterError(f"profile {chosen.profile!r} names no model; give one")
    if Path(model).expanduser().is_dir():
        model = str(Path(model).expanduser().resolve())  # notebooks run in folders of their own
    # Refuse a wrong parameter, and a model that can't be had, before anything starts.
    values = {notebook: run.values_for(notebook, chosen.profile, model) for notebook in notebooks}
    name = _available(list(values.values()))
    folder = root / "results" / results.slug(name)
    asked = {"name": name, "slug": folder.name, "values": values, "chapters": chosen.chapters or []}
    # Both targets: asked for the book alone, Snakemake does not miss a result that was deleted or failed to be made.
    snakemake = [sys.executable, "-m", "snakemake", "executed", *([] if chosen.no_render else ["book"])]
    snakemake += ["--snakefile", "workflow/Snakefile", "--cores", chosen.cores, "--keep-going", "--rerun-incomplete"]
    snakemake += ["--quiet", "rules", "host", "--configfile", "_build/asked.json"]
    import torch

    if torch.cuda.is_available():
        snakemake += ["--resources", "accelerator=1"]
    (root / "_build").mkdir(exist_ok=True)
    with open(root / "_build" / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError("another run of the book is going on in this folder; wait for it to end") from None
        (root / "_build" / "asked.json").write_text(json.dumps(asked, indent=1))
        _forget_runs_by_hand(folder, notebooks)
        if any((root / ".snakemake" / "locks").glob("*")):
            # Nobody holds our lock, so Snakemake's is what a killed run left.
            subprocess.run([*snakemake, "--unlock"], cwd=root, check=True, capture_output=True)
        # Snakemake inherits the lock: it is held as long as either lives, also after this process is killed.
        code = subprocess.run(snakemake, cwd=root, pass_fds=[lock.fileno()]).returncode
    if code:
        raise RuntimeError("not everything ended well; the messages above name what failed")
    print(f"Results: {folder}")
    if not chosen.no_render:
        print(f"Open {root / '_build' / 'html' / 'index.html'}")
    return 0


def _available(values: list[dict[str, Any]]) -> str:
    """The full name of the one model that all notebooks read."""
    from biasgeom import models  # pulls in torch, which a wrong parameter should not wait for

    keys = ("model", "revision", "adapter")
    asked = {tuple(chosen.get(key) or None for key in keys) for chosen in values}
    if len(asked) > 1:
        raise run.ParameterError(f"one book reads one model, not {sorted(map(str, asked))}; change the profile")
    (name, revision, adapter) = asked.pop()
    models.require(name, revision=revision, adapter=adapter)
    return models.full_name(name, revision, adapter)


def _forget_runs_by_hand(folder: Path, notebooks: list[str]) -> None:
    """Results newer than the book's executed notebook are of a run by hand, maybe with other parameters: run again."""
    for notebook in notebooks:
        record, page = folder / notebook / "run.json", folder / f"{notebook}.ipynb"
        if record.exists() and page.exists() and record.stat().st_mtime > page.stat().st_mtime:
            record.unlink()


def _render(chosen: argparse.Namespace) -> int:
    from biasgeom import pages  # pulls in what a notebook run does not need

    pages.build(chosen.model, _chosen_notebooks(chosen.chapters))
    return 0


def _planted_judge(chosen: argparse.Namespace) -> int:
    from biasgeom import models, planted, questions

    planted.train(chosen.folder)
    asked = questions.load()
    asked = asked[asked["split"] == "test"]
    made = planted.recipe()
    judges = {
        "stored": models.load("smollm2-135m-planted-judge", dtype="float32"),
        "new": models.load(made.base, dtype="float32", adapter=str(chosen.folder)),
    }
    tables = {name: planted.recovered(lm, asked) for name, lm in judges.items()}
    both = tables["new"].merge(tables["stored"][["condition", "voice", "recovered"]], on=["condition", "voice"])
    by_condition = both.groupby("condition", sort=False)[["planted", "recovered_y", "recovered_x"]].mean()
    print(by_condition.rename(columns={"recovered_y": "stored", "recovered_x": "new"}).round(2).to_string())
    for name, table in tables.items():
        r = table["planted"].corr(table["recovered"])
        print(f"{name}: r of planted and recovered shifts over conditions and voices {r:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
