"""``python -m biasgeom``: notebooks, sweeps over models, the book, and what is shared; ``--help`` lists it."""

import argparse
import os
import sys
import time
from pathlib import Path

from biasgeom import cluster, data, names, request, results, run, sweep


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m biasgeom", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    one = commands.add_parser("run", help="execute one notebook; its parameters are checked first")
    one.add_argument("notebook", type=Path, help="a notebook file, such as notebooks/gender/03_encoded.ipynb")
    one.add_argument("output", type=Path, help="where the executed notebook goes")
    one.add_argument("-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    one.add_argument("--profile", help="take parameter values from profiles/PROFILE.yaml")

    book = commands.add_parser("book", help="execute every notebook for each model and render the book")
    _asked(book)
    book.add_argument("--cores", default="all", help="half of them for a notebook, so that two run side by side")
    book.add_argument("--no-render", action="store_true", help="execute only")

    ends = "The exit code is 0 if book with these arguments would start, and 1 if not: what is missing comes last."
    what = "what a sweep would need, and whether it is there; nothing is run or kept"
    _asked(commands.add_parser("plan", help=what, description=f"{what[0].upper()}{what[1:]}. {ends}"))

    render = commands.add_parser("render", help="render the book from notebooks that were executed")
    render.add_argument("--models", nargs="+", required=True, metavar="MODEL", help="the first is the main one")
    render.add_argument("--chapters", nargs="+", metavar="PAPER")

    export = commands.add_parser("export", help="pack one model's results into an archive that others can read")
    export.add_argument("model")
    export.add_argument("--to", type=Path, metavar="FILE", help="default: _build/<model>.zip")

    release = commands.add_parser("release", help="pack the rendered book into one file")
    release.add_argument("--to", type=Path, metavar="FILE")

    planted = commands.add_parser("planted-judge", help="train the planted judge again and compare it with the stored")
    planted.add_argument("--folder", type=Path, default=Path("_build/planted"), help="where the new adapter goes")

    chosen = parser.parse_args(arguments)
    # Spinning OpenMP threads beside another busy process made a forward pass 16 times slower; kernels inherit this.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    does = {"run": _run, "book": _book, "plan": _plan, "render": _render, "export": _export, "release": _release}
    does["planted-judge"] = _planted_judge
    try:
        return does[chosen.command](chosen)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; outputs so far are in _build/unfinished", file=sys.stderr)
        return 130


def _asked(command: argparse.ArgumentParser) -> None:
    what = "embedded name, hub id or folder, with @revision and +adapter if need be; default: the profile's"
    command.add_argument("--models", nargs="+", default=[], metavar="MODEL", help=what)
    command.add_argument("--profile", default="embedded")
    command.add_argument("--chapters", nargs="+", metavar="PAPER", help="only these: gender, delta_b, judge")
    command.add_argument("--cluster", type=Path, metavar="FOLDER", help="Snakemake profile, as workflow/profiles/slurm")
    command.add_argument("--anyway", action="store_true", help="start although memory, disk or access seem missing")


def _run(chosen: argparse.Namespace) -> int:
    values, notebook = dict(chosen.parameter), f"{chosen.notebook.parent.name}/{chosen.notebook.stem}"
    if chosen.profile:
        values = {**run.values_for(notebook, chosen.profile, None), **values}
    what, start = notebook + (f" for {values['model']}" if "model" in values else ""), time.monotonic()
    print(f"{what}: begins", flush=True)
    run.execute(chosen.notebook, chosen.output, values)
    print(f"{what}: done in {time.monotonic() - start:.0f} s", flush=True)
    return 0


def _book(chosen: argparse.Namespace) -> int:
    if chosen.cluster:
        cluster.require(chosen.cluster)
    if not chosen.no_render:
        from biasgeom import archive

        archive.contributed()  # a broken one is told now, not after the notebooks
    how = {"here": chosen.cluster is None, "anyway": chosen.anyway}
    asked = sweep.asked(chosen.models, chosen.profile, chosen.chapters, **how)
    for model in asked["models"]:
        for reason in sorted(set(model["skipped"].values())):
            skipped = [notebook for notebook, why in model["skipped"].items() if why == reason]
            print(f"Skipped: {', '.join(skipped)}. {reason}")
    sweep.run_all(asked, cores=chosen.cores, profile=chosen.cluster, render=not chosen.no_render)
    for model in asked["models"]:
        print(f"Results: {results.root() / model['slug']}")
    if not chosen.no_render:
        print(f"Open {data.root() / '_build' / 'html' / 'index.html'}")
    return 0


def _plan(chosen: argparse.Namespace) -> int:
    from biasgeom import forecast

    if chosen.cluster:
        cluster.require(chosen.cluster)
    how = {"here": chosen.cluster is None, "anyway": chosen.anyway}
    text, starts = forecast.report(chosen.models, chosen.profile, chosen.chapters, **how)
    print(text)
    return 0 if starts else 1


def _render(chosen: argparse.Namespace) -> int:
    from biasgeom import pages  # pulls in what a notebook run does not need

    pages.build(chosen.models, request.notebooks(chosen.chapters))
    return 0


def _export(chosen: argparse.Namespace) -> int:
    from biasgeom import archive, inspection

    slug = results.slug(names.full_name(*request.parts(chosen.model)))
    target = archive.export(slug, chosen.to or data.root() / "_build" / f"{slug}.zip")
    left_out: dict[str, list[str]] = {}
    for entry in inspection.checked(target)[0]["left_out"]:
        left_out.setdefault(entry["why"], []).append(entry["file"])
    for why, files in left_out.items():
        print(f"Left out, in part or whole, since it {why}: {', '.join(dict.fromkeys(files))}")
    print(target)
    return 0


def _release(chosen: argparse.Namespace) -> int:
    from biasgeom import release

    print(release.pack(data.root() / "_build" / "html", chosen.to))
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
