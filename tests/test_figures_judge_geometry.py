"""Maps draw what their tables say, and say where there is nothing to draw."""

import warnings
from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from biasgeom import figures, figures_judge_geometry
from matplotlib.colors import to_hex

TYPES = ["base", "Prestige", "Verbosity", "Bandwagon", "Authority", "Sentiment", "Refinement", "Diversity"]


@pytest.fixture(autouse=True)
def tidy() -> Iterator[None]:
    """Any warning is an error, also one of the layout when the figure is drawn; the style does not leak out."""
    with plt.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("error")
        figures.style()
        yield
        for number in plt.get_fignums():
            plt.figure(number).canvas.draw()
        plt.close("all")


def points(judges: tuple[str, ...] = ("natural", "planted")) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = [(j, layer, t) for j in judges for layer in (5, 25) for t in TYPES for _ in range(4)]
    table = pd.DataFrame(rows, columns=["judge", "layer", "type"])
    polarity = pd.Series(["negative", "positive"] * (len(table) // 2))
    table["polarity"] = polarity.where(table["type"] != "base")
    table[["x", "y"]] = rng.normal(size=(len(table), 2))
    return table.assign(score=rng.uniform(1, 10, len(table)), domain=[f"domain {i % 12}" for i in table.index])


def at(axis: plt.Axes, colour: str) -> list[list[float]]:
    """Points of a colour, sorted."""
    found = [
        p.get_offsets() for p in axis.collections if len(p.get_offsets()) and to_hex(p.get_facecolor()[0]) == colour
    ]
    return sorted(np.concatenate(found).tolist())


def test_each_panel_holds_its_points_in_their_groups_colour() -> None:
    table = points()
    how = {"x": "x", "y": "y", "rows": "judge", "columns": "layer", "colour": "type", "base": "base"}
    figure = figures_judge_geometry.maps(table, marker="polarity", **how)
    panels = {axis.get_title(): axis for axis in figure.axes}
    assert list(panels) == ["natural\n5", "natural\n25", "planted\n5", "planted\n25"]
    here = table[(table["judge"] == "planted") & (table["layer"] == 5)]
    colours = dict(zip(TYPES[1:], figures_judge_geometry.HUES, strict=True)) | {"base": "#000000"}
    for group, colour in colours.items():
        expected = sorted(here.loc[here["type"] == group, ["x", "y"]].to_numpy().tolist())
        assert at(panels["planted\n5"], colour.lower()) == pytest.approx(np.array(expected))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [*TYPES, "negative", "positive"]


def test_a_panel_without_points_says_so() -> None:
    table = points()
    table.loc[table["layer"] == 5, ["x", "y"]] = np.nan
    how = {"x": "x", "y": "y", "rows": "judge", "columns": "layer", "colour": "type", "base": "base"}
    figure = figures_judge_geometry.maps(table, **how)
    said = ["can't be computed" in " ".join(text.get_text() for text in axis.texts) for axis in figure.axes]
    assert said == [True, False, True, False]
    nothing = pd.DataFrame({"judge": ["natural"], "layer": [5], "type": [None], "x": [np.nan], "y": [np.nan]})
    assert "can't" in figures_judge_geometry.maps(nothing, **how).axes[0].texts[0].get_text()
    with pytest.raises(ValueError, match="7 groups"):
        figures_judge_geometry.maps(table.assign(type=table["domain"]), **how)


def test_the_same_points_in_other_colours() -> None:
    table = points()
    panels = {"type": "by type", "score": "by score", "domain": "by domain"}
    figure = figures_judge_geometry.recoloured(table, x="x", y="y", rows="judge", panels=panels)
    maps = [axis for axis in figure.axes if axis.get_title()]
    assert len(maps) == 6
    here = table[table["judge"] == "natural"]
    for axis in maps[:3]:
        found = np.concatenate([part.get_offsets() for part in axis.collections])
        assert sorted(found[:, 0]) == pytest.approx(sorted(here["x"]))
    np.testing.assert_allclose(maps[1].collections[0].get_array(), here["score"])
    texts = [text.get_text() for text in maps[5].get_legend().get_texts()]
    assert texts == [f"domain {i}" for i in range(12)]
    with pytest.raises(ValueError, match="groups apart"):
        figures_judge_geometry.recoloured(
            table.assign(type=[f"t{i % 30}" for i in table.index]), x="x", y="y", rows="judge", panels=panels
        )


def test_scores_that_are_missing_leave_a_panel_that_says_so() -> None:
    table = points(("natural",)).assign(score=np.nan)
    figure = figures_judge_geometry.recoloured(table, x="x", y="y", rows="judge", panels={"score": "by score"})
    assert "can't be computed" in figure.axes[0].texts[0].get_text()
