"""Every figure of the judge chapter's behaviour pages draws what its table says."""

import warnings
from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from biasgeom import figures, figures_judge, humans
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

VOICES = ["plain", "neutral", "tentative"]


@pytest.fixture(autouse=True)
def tidy() -> Iterator[None]:
    """Any warning is an error, also one of the layout when the figure is drawn; the style does not leak out."""
    with plt.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "The set_bad function", PendingDeprecationWarning)  # seaborn's
        figures.style()
        yield
        for number in plt.get_fignums():
            plt.figure(number).canvas.draw()
        plt.close("all")


def titled(figure: Figure) -> dict[str, Axes]:
    return {axis.get_title(loc="left"): axis for axis in figure.axes if axis.get_title(loc="left")}


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def spread(judge: str, *, share: float | None = None) -> pd.DataFrame:
    rng = np.random.default_rng(len(judge))
    rows = [
        (judge, s, score, rng.random() if share is None else share) for s in figures_judge.SETS for score in (5, 6, 7)
    ]
    return pd.DataFrame(rows, columns=["judge", "set", "score", "share"])


def test_distributions_draw_each_share_and_say_where_there_is_none() -> None:
    table = pd.concat([spread("none", share=np.nan), spread("a judge")])
    figure = figures_judge.distributions(table, panel="judge")
    panels = titled(figure)
    assert list(panels) == ["none", "a judge"]
    lines = {patch.get_label(): patch for patch in panels["a judge"].patches if patch.get_label() in figures_judge.SETS}
    for name, part in table[table["judge"] == "a judge"].groupby("set"):
        drawn = lines[name].get_data()
        np.testing.assert_array_equal(drawn.values, part["share"])
        np.testing.assert_array_equal(drawn.edges, [4.5, 5.5, 6.5, 7.5])
    assert [text.get_text() for text in panels["none"].texts] == ["no score"]
    assert not panels["a judge"].texts
    assert sorted(legend_of(figure)) == sorted(figures_judge.SETS)
    assert len({to_hex(colour) for colour, *_ in figures_judge.SETS.values()}) == 3


def cells() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = [
        (judge, bias, polarity, domain, size * rng.normal())
        for judge, size in (("small", 0.01), ("large", 1), ("none", np.nan))
        for bias in ("Prestige", "Authority")
        for polarity in ("positive", "negative")
        for domain in ("some_domain", "other", "third")
    ]
    return pd.DataFrame(rows, columns=["judge", "bias", "polarity", "domain", "delta"])


def test_shift_maps_have_a_scale_a_judge_and_white_at_zero() -> None:
    table = cells()
    table.loc[0, "delta"] = np.nan
    panels = titled(figures_judge.shift_maps(table, panel="judge"))
    assert list(panels) == [f"{judge}, {p}" for judge in ("small", "large", "none") for p in ("positive", "negative")]
    for name, axis in panels.items():
        judge, polarity = name.split(", ")
        part = table[(table["judge"] == judge) & (table["polarity"] == polarity)]
        mesh = next(c for c in axis.collections if isinstance(c, QuadMesh))
        drawn = np.ma.filled(mesh.get_array().astype(float), np.nan).reshape(2, 3)
        np.testing.assert_array_equal(drawn, part["delta"].to_numpy().reshape(2, 3))
        limit = table.loc[table["judge"] == judge, "delta"].abs().max()
        assert mesh.get_clim() == ((-limit, limit) if limit > 0 else (-1, 1))
        assert axis.patch.get_hatch()  # shows where there is no pair
    assert [t.get_text() for t in panels["none, positive"].get_xticklabels()] == ["some domain", "other", "third"]
    assert [t.get_text() for t in panels["small, positive"].get_yticklabels()] == ["Prestige", "Authority"]


def test_planted_against_recovered_draws_every_voice() -> None:
    rows = [("a", v, -2 * f, -1.9 * f, 0.1) for v, f in zip(VOICES, (0.5, 1, 1.5), strict=True)]
    rows += [("a", v, 0.0, 0.05, np.nan) for v in VOICES] + [("b", "plain", -1.0, np.nan, np.nan)]
    table = pd.DataFrame(rows, columns=["judge", "voice", "planted", "recovered", "se"])
    figure = figures_judge.planted_against_recovered(table, panel="judge", null=0.2)
    axis = titled(figure)["a"]
    for voice in VOICES:
        bars = next(c for c in axis.containers if isinstance(c, ErrorbarContainer) and c.get_label() == voice)
        part = table[(table["judge"] == "a") & (table["voice"] == voice)]
        np.testing.assert_allclose(bars.lines[0].get_ydata().astype(float), part["recovered"])
        np.testing.assert_allclose(bars.lines[0].get_xdata().astype(float), part["planted"], atol=0.061)
        lengths = [segment[1, 1] - segment[0, 1] for segment in bars.lines[2][0].get_segments()]
        np.testing.assert_allclose(lengths, 4 * part["se"].fillna(0), atol=1e-12)
    diagonal = next(line for line in axis.lines if line.get_label() == "as planted")
    np.testing.assert_array_equal(diagonal.get_xdata(), diagonal.get_ydata())
    assert {"within 0.2 of zero", "as planted", *VOICES} == set(legend_of(figure))


def test_equivalence_keeps_the_order_of_the_table() -> None:
    table = humans.tests().assign(name=lambda t: t["bias"] + " " + t["dimension"])
    how = {"label": "name", "mark": "follows", "centre": 3, "margin": 0.3, "xlabel": "mean"}
    figure = figures_judge.equivalence(table, **how)
    axis = figure.axes[0]
    assert [text.get_text() for text in axis.get_yticklabels()] == table["name"].tolist()
    assert axis.yaxis_inverted()
    drawn = {}
    for bars in axis.containers:
        for x, y in zip(bars.lines[0].get_xdata(), bars.lines[0].get_ydata(), strict=True):
            drawn[int(y)] = (x, bars.get_label())
    assert [drawn[i] for i in range(len(table))] == list(zip(table["mean"], table["follows"], strict=True))
    assert set(legend_of(figure)) == {"within 0.3 of 3", "yes", "no", "within rounding"}
