"""The tables, figures and words of the page that compares models."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from biasgeom import comparison, figures
from biasgeom.comparison import BIAS, FORMULAS, LATENT, PARTS, SECTIONS
from biasgeom.figures_comparison import intervals
from biasgeom.markdown import escaped, table
from biasgeom.shelf import Shown

GENDERED = ("Professions", "Sports")


def write(everyone: Sequence[Shown], linked: Sequence[Shown], folder: Path) -> None:
    """Write one fragment a section, with its CSV file and its figure.

    Parameters
    ----------
    everyone : sequence of Shown
        All models, those of this clone and contributed ones.
    linked : sequence of Shown
        Those that have pages of their own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figures.style()
    (folder / "models.md").write_text(_models(everyone, linked))
    tables = {key: comparison.table(everyone, one.notebook, one.read) for key, one in SECTIONS.items()}
    tables["cost"] = comparison.cost(everyone).assign(reason=None)
    shapes = {key: (one.caption, one.worded) for key, one in SECTIONS.items()} | {"cost": (COST, _cost)}
    said: set[tuple[str, str, str]] = set()
    for key, frame in tables.items():
        frame.to_csv(folder / f"{key}.csv", index=False, float_format="%.6g")
        # Two sections of one notebook stand below one heading, which says once that a model did not run it.
        why = frame.assign(notebook=SECTIONS[key].notebook if key in SECTIONS else "")[["notebook", "model", "reason"]]
        new = [one not in said for one in why.itertuples(index=False, name=None)]
        text = _section(key, frame[new], *shapes[key], linked)
        said |= set(why.dropna().itertuples(index=False, name=None))
        caption, alt, draw = FIGURES.get(key, ("", "", None))
        figure = draw(frame[frame["reason"].isna()]) if draw and frame["reason"].isna().any() else None
        if figure:
            _save(figure, folder / key)
            text += (
                f"\n```{{figure}} /results/pages/comparison/{key}.png\n:name: fig-comparison-{key}\n:alt: {alt}\n\n"
                f"{caption}\n```\n"
            )
        (folder / f"{key}.md").write_text(text)


def _save(figure: Figure, path: Path) -> None:
    for suffix in ("png", "svg"):
        figure.savefig(path.with_suffix(f".{suffix}"))
    plt.close(figure)


def _models(everyone: Sequence[Shown], linked: Sequence[Shown]) -> str:
    """Every model with what it is and where its numbers come from."""
    rows = []
    for model in everyone:
        made = comparison.architecture(model)
        rows.append(
            {
                "model": _name(model.title, model.contributed, linked),
                "blocks × width": f"{made['blocks']} × {made['width']}",
                "computed in": f"{made['dtype']} on {made['device']}",
                "profile": model.described["profile"],
                "notebooks": len(model.runs),
                "contributed": model.archive or "no",
            }
        )
    frame = pd.DataFrame(rows).dropna(axis="columns", how="all")
    return table(frame, name="tab-comparison-models", caption="All models that have results.", markup=("model",))


def _name(title: str, contributed: bool, linked: Sequence[Shown]) -> str:
    """A model's title, as a link if it has a card here."""
    tags = {model.title: model.tag for model in linked}
    if contributed or title not in tags:
        return f"{escaped(title)} (contributed)" if contributed else escaped(title)
    return f"[{escaped(title)}](model--{tags[title]})"


def _cost(frame: pd.DataFrame) -> pd.DataFrame:
    made = frame[["chapter", "notebooks", "minutes", "peak_memory_mb", "tokens_read", "tokens_written"]]
    made = made.assign(**{"computed in": frame["computed_in"]})
    return made.rename(columns={c: c.replace("_mb", ", MB").replace("_", " ") for c in made})


COST = "What each chapter took on the machine that it was run on."


def _section(
    key: str,
    frame: pd.DataFrame,
    caption: str,
    worded: Callable[[pd.DataFrame], pd.DataFrame],
    linked: Sequence[Shown],
) -> str:
    there = frame[frame["reason"].isna()]
    text = ""
    if len(there):
        # What no model has is no column.
        shown = worded(there).dropna(axis="columns", how="all")
        names = [_name(*pair, linked) for pair in there.loc[shown.index, ["model", "contributed"]].to_numpy()]
        shown.insert(0, "model", names)
        text = table(shown, name=f"tab-comparison-{key}", caption=caption, markup=("model", *FORMULAS))
        text += f"\n{{download}}`{key}.csv </results/pages/comparison/{key}.csv>`\n"
    lacking = frame[frame["reason"].notna()]
    lines = [f"- {_name(row.model, row.contributed, linked)}: {escaped(row.reason)}" for row in lacking.itertuples()]
    return "\n".join([text, *lines, ""])


def _draw_expressed(frame: pd.DataFrame) -> Figure | None:
    shown = frame[frame["concept"].isin(GENDERED)]
    return intervals(shown, panel="concept", series="condition", value="bias_pol", xlabel="$Bias_{pol}$", line=0)


def _draw_encoded(frame: pd.DataFrame) -> Figure | None:
    shown = frame.assign(panel="at the compared block")
    return intervals(shown, panel="panel", series="condition", value="ratio", xlabel="gendered over control", line=1)


def _draw_separation(frame: pd.DataFrame) -> Figure | None:
    bounds = ("auc_low", "auc_high")
    return intervals(frame, panel="measure", series="regime", value="auc", xlabel="AUC", bounds=bounds, line=0.5)


def _draw_susceptibility(frame: pd.DataFrame) -> Figure | None:
    made = frame[(frame["judge"] == frame["model"]) & frame["aggregate"].isin(PARTS)]
    scale = made["base_sd"].where(made["base_sd"] > 0)
    for column in ("delta", "low", "high"):
        made = made.assign(**{column: made[column] / scale})
    xlabel = "mean shift in standard deviations of the base scores"
    return intervals(made, panel="readout", series="aggregate", value="delta", xlabel=xlabel, line=0)


def _draw_cost(frame: pd.DataFrame) -> Figure | None:
    shown = frame.assign(panel="measured")
    return intervals(shown, panel="panel", series="chapter", value="minutes", xlabel="minutes", bounds=None)


NOT_SAME = "An asterisk marks contributed results."
FIGURES: dict[str, tuple[str, str, Callable[[pd.DataFrame], Figure | None]]] = {
    "expressed": (
        f"{BIAS} by model and condition, with 95 % intervals. {NOT_SAME}",
        "For each model a point with its interval for every condition, in one panel for each gendered concept.",
        _draw_expressed,
    ),
    "encoded": (
        f"{LATENT} of gendered over control concepts, with 95 % intervals. At one, none is encoded. {NOT_SAME}",
        "For each model a point with its interval before and after alignment, beside a line at one.",
        _draw_encoded,
    ),
    "separation": (
        f"AUC of ΔB for pairs that became more biased, with 95 % intervals; chance is a half. {NOT_SAME}",
        "For each model a point with its interval for full fine-tuning and LoRA, in one panel a measure.",
        _draw_separation,
    ),
    "susceptibility": (
        f"Mean shift of scores by cues over the spread of a judge's base scores, with 95 % intervals. {NOT_SAME}",
        "For each judge a point with its interval for negative and positive cues, in one panel a readout.",
        _draw_susceptibility,
    ),
    "cost": (
        f"Minutes by chapter, each on its own machine. {NOT_SAME}",
        "For each model a point for every chapter.",
        _draw_cost,
    ),
}
"""Caption, alt text and picture of each section that has one."""
