"""The tables, figures and words of the page that compares models."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from biasgeom import comparison, figures, model_page
from biasgeom.figures_comparison import intervals
from biasgeom.markdown import escaped, table
from biasgeom.shelf import Shown

GENDERED = {"Professions": 0, "Sports": 1}
PARTS = ("negative", "positive, five types", "positive, all seven")


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
    tables = {
        key: comparison.table(everyone, notebook, read) for key, (notebook, _, read) in model_page.HEADLINES.items()
    }
    tables["cost"] = comparison.cost(everyone).assign(reason=None)
    for key, frame in tables.items():
        frame.to_csv(folder / f"{key}.csv", index=False, float_format="%.6g")
        text = _section(key, frame, SHAPES[key], linked)
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
                "model": _name(model.name, model.contributed, linked),
                "blocks × width": f"{made['blocks']} × {made['width']}",
                "computed in": f"{made['dtype']} on {made['device']}",
                "profile": model.described["profile"],
                "notebooks": len(model.runs),
                "contributed": model.archive or "no",
            }
        )
    frame = pd.DataFrame(rows).dropna(axis="columns", how="all")
    return table(frame, name="tab-comparison-models", caption="All models that have results.", markup=("model",))


def _name(name: str, contributed: bool, linked: Sequence[Shown]) -> str:
    """A model's name, as a link if it has a card here."""
    tags = {model.name: model.tag for model in linked}
    if contributed or name not in tags:
        return f"{escaped(name)} (contributed)" if contributed else escaped(name)
    return f"[{escaped(name)}](model--{tags[name]})"


def _said(value: float, low: float, high: float) -> str | None:
    if pd.isna(value):
        return None
    return f"{value:.2g}" if pd.isna(low) or pd.isna(high) else f"{value:.2g} ({low:.2g} to {high:.2g})"


def _pairs(frame: pd.DataFrame, value: str, low: str, high: str) -> list[str | None]:
    return [_said(*numbers) for numbers in zip(frame[value], frame[low], frame[high], strict=True)]


def _expressed(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(
        **{"Bias_pol": _pairs(frame, "bias_pol", "low", "high"), "by chance": frame["chance"], "p": frame["p"]}
    )[["model", "condition", "concept", "Bias_pol", "by chance", "p"]]


def _encoded(frame: pd.DataFrame) -> pd.DataFrame:
    ratio = _pairs(frame, "ratio", "low", "high")
    return frame.assign(**{"gendered over control": ratio})[["model", "condition", "block", "gendered over control"]]


def _latent(frame: pd.DataFrame) -> pd.DataFrame:
    made = frame.assign(S_latent=_pairs(frame, "s_latent", "low", "high"))
    made["random directions up to"], made["flipped pairs up to"] = frame["isotropic_high"], frame["flip_high"]
    columns = ["model", "condition", "concept", "block", "S_latent", "random directions up to", "flipped pairs up to"]
    return made[columns]


def _separation(frame: pd.DataFrame) -> pd.DataFrame:
    made = frame.assign(r=_pairs(frame, "r", "r_low", "r_high"), AUC=_pairs(frame, "auc", "auc_low", "auc_high"))
    return made[["model", "measure", "regime", "n", "r", "AUC"]]


def _contrast(frame: pd.DataFrame) -> pd.DataFrame:
    made = frame.assign(**{"biased less control": _pairs(frame, "difference", "low", "high")})
    return made[["model", "regime", "biased less control", "p"]]


def _susceptibility(frame: pd.DataFrame) -> pd.DataFrame:
    made = frame[frame["aggregate"].isin(PARTS)]
    made = made.assign(shift=_pairs(made, "delta", "low", "high")).rename(columns={"cohens_d": "Cohen's d"})
    return made[["model", "judge", "readout", "validity", "aggregate", "shift", "Cohen's d"]]


def _predictability(frame: pd.DataFrame) -> pd.DataFrame:
    made = frame.assign(AUC=_pairs(frame, "auc", "low", "high"), gain=_pairs(frame, "gain", "gain_low", "gain_high"))
    return made[["model", "detector", "n", "AUC", "gain"]].rename(columns={"gain": "above the cue's type"})


def _cost(frame: pd.DataFrame) -> pd.DataFrame:
    made = frame[["model", "chapter", "notebooks", "minutes", "peak_memory_mb", "tokens_read", "tokens_written"]]
    made = made.assign(**{"computed in": frame["computed_in"]})
    return made.rename(columns={c: c.replace("_mb", ", MB").replace("_", " ") for c in made})


SHAPES: dict[str, tuple[str, Callable[[pd.DataFrame], pd.DataFrame]]] = {
    "expressed": ("Expressed bias: Bias_pol with its 95 % interval, and its mean under shuffled labels.", _expressed),
    "encoded": ("Encoded bias: S_latent of gendered over control concepts, with its 95 % interval.", _encoded),
    "latent": ("S_latent itself, in the units of each model's own states: no column to compare down.", _latent),
    "separation": ("ΔB against the change of output bias, over pairs of checkpoint and group.", _separation),
    "contrast": ("Mean ΔB of the criticised groups less that of the others, synth end.", _contrast),
    "susceptibility": ("Shift of scores by cues, with its 95 % interval over questions.", _susceptibility),
    "predictability": ("Test AUC for degraded scores, and what the state adds to the cue's type.", _predictability),
    "cost": ("What each chapter took on the machine that it was run on.", _cost),
}
"""Caption of each table, and how its numbers are set."""


def _section(
    key: str,
    frame: pd.DataFrame,
    shape: tuple[str, Callable[[pd.DataFrame], pd.DataFrame]],
    linked: Sequence[Shown],
) -> str:
    caption, shaped = shape
    there = frame[frame["reason"].isna()]
    text = ""
    if len(there):
        # What no model has is no column.
        shown = shaped(there).dropna(axis="columns", how="all")
        names = [_name(*pair, linked) for pair in there.loc[shown.index, ["model", "contributed"]].to_numpy()]
        text = table(shown.assign(model=names), name=f"tab-comparison-{key}", caption=caption, markup=("model",))
        text += f"\n{{download}}`{key}.csv </results/pages/comparison/{key}.csv>`\n"
    lacking = frame[frame["reason"].notna()]
    lines = [f"- {_name(row.model, row.contributed, linked)}: {escaped(row.reason)}" for row in lacking.itertuples()]
    return "\n".join([text, *lines, ""])


def _draw_expressed(frame: pd.DataFrame) -> Figure | None:
    shown = frame[frame["concept"].isin(GENDERED)]
    return intervals(shown, panel="concept", series="condition", value="bias_pol", xlabel="Bias_pol", line=0)


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
        f"Bias_pol by model and condition, with 95 % intervals. {NOT_SAME}",
        "For each model a point with its interval for every condition, in one panel for each gendered concept.",
        _draw_expressed,
    ),
    "encoded": (
        f"S_latent of gendered over control concepts, with 95 % intervals. At one, none is encoded. {NOT_SAME}",
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
