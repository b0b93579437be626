"""Every figure draws what its table says."""

import warnings
from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from biasgeom import figures, figures_pairs
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure


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


def shown(figure: Figure) -> list[Axes]:
    return [axis for axis in figure.axes if axis.get_visible()]


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def corners(area: PolyCollection) -> set[tuple[float, float]]:
    return {(float(x), float(y)) for x, y in area.get_paths()[0].vertices.round(9)}


def strip(x: list[float], low: list[float], high: list[float]) -> set[tuple[float, float]]:
    return {*zip(x, low, strict=True), *zip(x, high, strict=True)}


# Bars -----------------------------------------------------------------------------------------------------------------

BARS = pd.DataFrame(
    {
        "concept": ["Jobs", "Jobs", "Jobs", "Colors", "Colors"],
        "entity": ["nurse", "cook", "editor", "red", "blue"],
        "score": [2.0, -1.0, 0.5, -0.25, 0.0],
        "low": [1.5, -1.5, 0.0, -1.0, -0.5],
        "high": [3.0, -0.5, 1.5, 0.25, 0.75],
    }
)
NAMES = {"panel": "concept", "label": "entity", "value": "score", "low": "low", "high": "high", "xlabel": "score s(e)"}


def test_signed_bars_draw_values_intervals_and_signs() -> None:
    figure = figures.signed_bars(BARS, **NAMES)
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["Jobs", "Colors"]
    for axis, (_, rows) in zip(figure.axes, BARS.groupby("concept", sort=False), strict=True):
        rows = rows.sort_values("score")
        assert [label.get_text() for label in axis.get_yticklabels()] == rows["entity"].tolist()
        assert [bar.get_width() for bar in axis.patches] == rows["score"].tolist()
        colours = [to_hex(bar.get_facecolor()).upper() for bar in axis.patches]
        assert colours == [figures.ORANGE if value > 0 else figures.BLUE for value in rows["score"]]
        segments = axis.containers[0][2][0].get_segments()
        np.testing.assert_allclose([s[:, 0] for s in segments], rows[["low", "high"]])
        # The bar, its name and its interval are at one height.
        heights = [bar.get_y() + bar.get_height() / 2 for bar in axis.patches]
        np.testing.assert_allclose([s[0, 1] for s in segments], heights)
        np.testing.assert_allclose(axis.get_yticks(), heights)


def test_signed_bars_share_one_scale_and_name_it_once() -> None:
    figure = figures.signed_bars(BARS, **NAMES)
    first, last = figure.axes
    assert first.get_xlim() == last.get_xlim()
    assert (first.get_xlabel(), last.get_xlabel()) == ("", "score s(e)")


def test_bars_do_not_depend_on_the_order_of_rows() -> None:
    one, two = (figures.signed_bars(table, **NAMES) for table in (BARS[:3], BARS[:3][::-1]))
    assert [b.get_width() for b in one.axes[0].patches] == [b.get_width() for b in two.axes[0].patches]


def test_an_interval_that_misses_its_value_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        figures.signed_bars(BARS.assign(low=BARS["score"] + 0.1), **NAMES)


# Lines ----------------------------------------------------------------------------------------------------------------


def line_table(panels: list[str], lines: list[str]) -> pd.DataFrame:
    rows = [
        {"panel": panel, "line": line, "block": block, "value": 10 * i + 3 * j + block}
        for i, panel in enumerate(panels)
        for j, line in enumerate(lines)
        for block in range(4)
    ]
    table = pd.DataFrame(rows)
    value = table["value"]
    return table.assign(low=value - 1, high=value + 2, null_low=value - 5, null_high=value - 3)


DRAWN = {"x": "block", "panel": "panel", "line": "line", "value": "value", "low": "low", "high": "high"}
LABELS = {"xlabel": "block", "ylabel": "S"}
BAND = [("null_low", "null_high", "null, 95 %")]


@pytest.mark.parametrize("lines", [["lw"], ["lw", "mean"]])
def test_lines_intervals_and_bands_are_the_tables(lines: list[str]) -> None:
    table = line_table(["a", "b"], lines)
    figure = figures.lines_with_bands(table, **DRAWN, **LABELS, bands=BAND, mark=2)
    assert [axis.get_title() for axis in shown(figure)] == ["a", "b"]
    for axis, (_, rows) in zip(shown(figure), table.groupby("panel", sort=False), strict=True):
        drawn = {line.get_label(): line for line in axis.lines if not line.get_label().startswith("_")}
        assert list(drawn) == [label for name in lines for label in (name, f"{name}: 95 % interval")]
        edges = [line.get_ydata().tolist() for line in axis.lines if line.get_linewidth() == 0.6]
        areas = [area for area in axis.collections if isinstance(area, PolyCollection)]
        assert len(areas) == 2 * len(lines)
        for i, name in enumerate(lines):
            points = rows[rows["line"] == name]
            colour = (figures.ORANGE, figures.BLUE)[i]
            np.testing.assert_array_equal(drawn[name].get_xydata(), points[["block", "value"]])
            assert drawn[name].get_color() == colour
            assert edges[2 * i : 2 * i + 2] == [points["low"].tolist(), points["high"].tolist()]
            band, interval = areas[2 * i : 2 * i + 2]
            assert corners(band) == strip(*(points[c].tolist() for c in ("block", "null_low", "null_high")))
            assert corners(interval) == strip(*(points[c].tolist() for c in ("block", "low", "high")))
            assert to_hex(band.get_facecolor()[0]).upper() == figures.GREY.upper()
        (marked,) = [line for line in axis.lines if line.get_linestyle() == ":"]
        assert marked.get_xdata() == [2, 2]


def test_legends_name_curves_and_bands() -> None:
    one = figures.lines_with_bands(line_table(["a"], ["lw"]), **DRAWN, **LABELS, bands=BAND)
    assert legend_of(one) == ["null, 95 %", "lw", "lw: 95 % interval"]
    two = figures.lines_with_bands(line_table(["a", "b"], ["lw", "mean"]), **DRAWN, **LABELS, bands=BAND)
    assert legend_of(two) == ["null, 95 %", "lw", "lw: 95 % interval", "mean", "mean: 95 % interval"]
    assert legend_of(figures.lines_with_bands(line_table(["a"], ["lw"]), **DRAWN, **LABELS)) == [
        "lw",
        "lw: 95 % interval",
    ]


def test_a_curve_that_the_first_panel_lacks_is_in_the_legend_in_its_colour() -> None:
    table = line_table(["a", "b"], ["lw", "mean"])
    figure = figures.lines_with_bands(table[(table["panel"] == "b") | (table["line"] == "mean")], **DRAWN, **LABELS)
    assert {"lw", "mean"} < set(legend_of(figure))
    for handle, name in zip(figure.legends[0].legend_handles, legend_of(figure), strict=True):
        colours = {line.get_color() for axis in shown(figure) for line in axis.lines if line.get_label() == name}
        assert colours == {handle.get_color()}


@pytest.mark.parametrize(
    ("panels", "rows", "columns"), [(1, 1, 1), (2, 1, 2), (3, 1, 3), (4, 2, 3), (6, 2, 3), (7, 3, 3)]
)
def test_every_column_of_panels_has_its_axis_named_below(panels: int, rows: int, columns: int) -> None:
    figure = figures.lines_with_bands(line_table([str(i) for i in range(panels)], ["lw"]), **DRAWN, **LABELS)
    assert len(figure.axes) == rows * columns
    visible = shown(figure)
    assert len(visible) == panels
    for i, axis in enumerate(visible):
        lowest = i + columns >= panels
        assert axis.get_xlabel() == ("block" if lowest else "")
        assert axis.xaxis.get_tick_params()["labelbottom"] == lowest
        assert axis.get_ylabel() == ("S" if i % columns == 0 else "")


def test_scales_are_shared_unless_told() -> None:
    table = line_table(["a", "b"], ["lw"])
    shared = figures.lines_with_bands(table, **DRAWN, **LABELS)
    own = figures.lines_with_bands(table, **DRAWN, **LABELS, share_y=False)
    assert shared.axes[0].get_ylim() == shared.axes[1].get_ylim()
    assert own.axes[0].get_ylim() != own.axes[1].get_ylim()


# Curves ---------------------------------------------------------------------------------------------------------------


def curve_table() -> pd.DataFrame:
    blocks = [0, 1, 2]
    lw = pd.DataFrame(
        {"estimator": "lw", "block": blocks, "accuracy": [0.7, 0.8, 0.9], "shrinkage": [0.5, np.nan, 0.3]}
    )
    mean = pd.DataFrame({"estimator": "mean", "block": blocks, "accuracy": [0.6, 0.6, 0.7], "shrinkage": np.nan})
    return pd.concat([lw, mean], ignore_index=True)


@pytest.mark.parametrize("order", [["accuracy", "shrinkage"], ["shrinkage", "accuracy"]])
def test_curves_draw_each_column_and_leave_out_what_is_undefined(order: list[str]) -> None:
    table = curve_table()
    titles = {column: column.title() for column in order}
    figure = figures.curves(table, x="block", panels=titles, line="estimator", xlabel="block b")
    assert [axis.get_title() for axis in figure.axes] == [titles[column] for column in order]
    assert {axis.get_xlabel() for axis in figure.axes} == {"block b"}
    for axis, column in zip(figure.axes, order, strict=True):
        drawn = {line.get_label(): line for line in axis.lines}
        assert list(drawn) == ["lw", "mean"]
        assert [line.get_color() for line in axis.lines] == [figures.ORANGE, figures.BLUE]
        for name, line in drawn.items():
            known = table[table["estimator"] == name].dropna(subset=[column])
            np.testing.assert_array_equal(line.get_xydata(), known[["block", column]].to_numpy().reshape(-1, 2))
    # One legend with every curve: also one that the first panel has no values for.
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["lw", "mean"]
    assert all(axis.get_legend() is None for axis in figure.axes[1:])


@pytest.mark.parametrize("x", ["block", "step"])
@pytest.mark.parametrize("blocks", [1, 2, 4, 30])
def test_blocks_and_steps_have_whole_ticks(blocks: int, x: str) -> None:
    table = pd.DataFrame({x: range(blocks), "strength": range(blocks), "v": 0.5, "line": "a", "panel": "p"})
    how = {"line": "line", "panel": "panel", "ylabel": "v"}
    drawn = [
        figures.curves(table, x=x, panels={"v": "v"}, line="line", xlabel=x),
        figures.lines_with_bands(table, x=x, value="v", xlabel=x, **how),
        figures_pairs.lines(table, x=x, y="v", xlabel=x, **how),
    ]
    for figure in drawn:
        figure.canvas.draw()
        ticks = figure.axes[0].get_xticks()
        np.testing.assert_array_equal(ticks, ticks.round())
        assert len(ticks) >= min(blocks, 2)
    # The negative control: what is no block keeps Matplotlib's own, which fall between.
    other = figures.curves(table, x="strength", panels={"v": "v"}, line="line", xlabel="s").axes[0].get_xticks()
    assert blocks == 30 or (other != other.round()).any()


def test_an_axis_without_a_value_says_so_and_why() -> None:
    table = pd.DataFrame({"block": [0, 1, 0, 1], "rho": [np.nan, np.nan, 0.1, np.nan], "panel": ["a", "a", "b", "b"]})
    table = table.assign(line="x", undefined=["all alike", "all alike", None, None], number=1.0)
    how = {"line": "line", "panel": "panel", "xlabel": "x", "ylabel": "y"}
    bare = table.drop(columns="undefined")
    assert notes(figures.lines_with_bands(table, x="block", value="rho", **how)) == ["all alike", None]
    assert notes(figures.lines_with_bands(bare, x="block", value="rho", **how)) == ["no value is defined", None]
    assert notes(figures_pairs.lines(table, x="block", y="rho", **how)) == ["all alike", None]
    panels = {"rho": "ρ", "number": "n"}
    first = table[table["panel"] == "a"]
    assert notes(figures.curves(first, x="block", panels=panels, line="line", xlabel="x")) == ["all alike", None]
    dots = {"row": "panel", "mark": "line", "xlabel": "x"}
    assert notes(figures_pairs.dots(first, value="rho", **dots)) == ["all alike"]
    assert notes(figures_pairs.dots(table, value="rho", **dots)) == [None]


@pytest.mark.parametrize(
    ("values", "said"), [([0.0, 0.0], "every value is zero"), ([np.nan] * 2, "no value is defined"), ([0, 0.1], None)]
)
def test_bars_without_length_say_so(values: list[float], said: str | None) -> None:
    table = pd.DataFrame({"concept": ["Jobs", "Colors"], "bar": "before", "value": values})
    assert notes(figures.dodged_bars(table, group="concept", bar="bar", value="value", xlabel="x")) == [said]


def notes(figure: Figure) -> list[str | None]:
    """Why each panel is empty; None of one that is not."""
    texts = [[text.get_text() for text in axis.texts] for axis in shown(figure)]
    return [text[0].removeprefix("nothing to draw:\n") if text else None for text in texts]


@pytest.mark.parametrize("middle", [1.2e-5, 3.7e-7, 5.00001, 123456.0])
def test_tick_labels_are_the_values(middle: float) -> None:
    """No factor or offset in a corner: the tiny values of a random model would be read as ones of order one."""
    table = pd.DataFrame({"direction": ["none", "gender", "random 1"], "setting": "literal", "condition": "before"})
    table = table.assign(nats=middle * (1 + np.arange(3) * 1e-6), bias_pol=middle * np.arange(1, 4))
    drawn = dict(rows="condition", columns="setting", x="nats", y="bias_pol", xlabel="nats", ylabel="b")
    figure = figures.against_random(table, **drawn)
    figure.canvas.draw()
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        assert axis.get_offset_text().get_text() == ""
        shown_as = [float(label.get_text().replace("\N{MINUS SIGN}", "-")) for label in axis.get_ticklabels()]
        np.testing.assert_allclose(shown_as, axis.get_ticklocs(), rtol=1e-7, atol=1e-12)


def test_a_column_without_any_value_is_an_empty_panel() -> None:
    table = curve_table().assign(shrinkage=np.nan)
    figure = figures.curves(table, x="block", panels={"shrinkage": "shrinkage"}, line="estimator", xlabel="block")
    assert all(len(line.get_xdata()) == 0 for line in figure.axes[0].lines)


def test_bands_of_one_curve_and_levels_of_each() -> None:
    table = line_table(["a"], ["lw", "mean"]).assign(chance=lambda rows: rows["line"].map({"lw": 0.3, "mean": 0.7}))
    kept = {name: column for name, column in DRAWN.items() if name not in ("low", "high")}
    figure = figures.lines_with_bands(table, **kept, **LABELS, bands=BAND, bands_of="mean", level="chance")
    (axis,) = shown(figure)
    (band,) = [area for area in axis.collections if isinstance(area, PolyCollection)]
    points = table[table["line"] == "mean"]
    assert corners(band) == strip(*(points[c].tolist() for c in ("block", "null_low", "null_high")))
    levels = {line.get_ydata()[0]: line.get_color() for line in axis.lines if line.get_linestyle() == "-."}
    assert levels == {0.3: figures.ORANGE, 0.7: figures.BLUE}
    assert not [line for line in axis.lines if line.get_linewidth() == 0.6]


def share_table() -> pd.DataFrame:
    rows = [("P", "before", "nurse", 6, 2, 2), ("P", "before", "butcher", 1, 7, 2), ("P", "after", "nurse", 3, 3, 4)]
    rows += [("P", "after", "butcher", 0, 5, 5)]
    table = pd.DataFrame(rows, columns=["concept", "condition", "entity", "female", "male", "neutral"])
    bias = (table["female"] - table["male"]) / 10
    return table.assign(bias=bias, low=bias - 0.2, high=bias + 0.1)


def test_shares_draw_female_right_male_left_and_the_bias_between() -> None:
    figure = figures.shares(share_table(), rows="concept", columns="condition", label="entity")
    before, after = shown(figure)
    assert [tick.get_text() for tick in before.get_yticklabels()] == ["butcher", "nurse"]  # by bias, in each panel
    female, male = before.containers[:2]
    assert [bar.get_width() for bar in female] == pytest.approx([0.1, 0.6])
    assert [bar.get_width() for bar in male] == pytest.approx([-0.7, -0.2])
    dots = after.containers[2].lines[0]
    assert dots.get_xdata() == pytest.approx([-0.5, 0.0])
    assert legend_of(figure) == ["female", "male", "bias(e)"]


def test_a_panel_without_bars_is_left_out() -> None:
    table = share_table()
    other = table[table["condition"] == "before"].assign(concept="Q", entity=["red", "blue"])
    figure = figures.shares(pd.concat([table, other]), rows="concept", columns="condition", label="entity")
    assert len(shown(figure)) == 3


def test_dodged_bars_stand_beside_each_other_with_their_ticks() -> None:
    rows = [("P", "before", 0.4), ("P", "after", 0.2), ("Q", "before", 0.1)]  # Q lacks a bar
    table = pd.DataFrame(rows, columns=["concept", "condition", "value"])
    table = table.assign(low=table["value"] - 0.05, high=table["value"] + 0.1, chance=table["value"] / 2)
    drawn = dict(group="concept", bar="condition", value="value", low="low", high="high", level="chance", xlabel="x")
    (axis,) = shown(figures.dodged_bars(table, **drawn))
    bars = [patch for patch in axis.patches]
    assert [bar.get_width() for bar in bars] == pytest.approx([0.4, 0.1, 0.2])
    middles = [bar.get_y() + bar.get_height() / 2 for bar in bars]
    assert middles == pytest.approx([-0.2, 0.8, 0.2])
    ticks = [line for line in axis.lines if line.get_marker() == "|"]
    assert [x for line in ticks for x in line.get_xdata()] == pytest.approx([0.2, 0.05, 0.1])
    plain = figures.dodged_bars(table, group="concept", bar="condition", value="value", xlabel="x")
    assert not shown(plain)[0].lines


def test_each_removed_direction_is_one_dot_of_its_kind() -> None:
    names = ["none", "gender", "random 1", "random 2"]
    table = pd.DataFrame({"direction": names, "nats": [4.0, 4.5, 4.1, 4.2], "bias_pol": [0.4, 0.2, 0.39, 0.41]})
    table = table.assign(condition="before", setting="literal")
    drawn = dict(rows="condition", columns="setting", x="nats", y="bias_pol", xlabel="x", ylabel="y")
    (axis,) = shown(figures.against_random(table, **drawn))
    points = {dots.get_label(): dots.get_offsets().tolist() for dots in axis.collections}
    assert points["random direction"] == [[4.1, 0.39], [4.2, 0.41]]
    assert points["gender direction"] == [[4.5, 0.2]]
    assert points["nothing removed"] == [[4.0, 0.4]]


def test_the_lowest_panel_of_each_column_has_its_numbers() -> None:
    """One setting is not tried in the last row's condition: its numbers stand under the panel above."""
    places = [("before", "literal"), ("before", "late"), ("after", "literal")]
    table = pd.DataFrame([{"condition": c, "setting": s, "direction": "none"} for c, s in places])
    drawn = dict(rows="condition", columns="setting", x="nats", y="bias_pol", xlabel="x", ylabel="y")
    figure = figures.against_random(table.assign(nats=[1.0, 2.0, 3.0], bias_pol=0.1), **drawn)
    numbered = [axis.get_title() for axis in shown(figure) if axis.xaxis.get_tick_params()["labelbottom"]]
    assert numbered == ["late\nbefore", "literal\nafter"]
    assert [axis.get_xlabel() for axis in shown(figure)] == ["", "x", "x"]


# Colours --------------------------------------------------------------------------------------------------------------


def bar_table(bars: int) -> pd.DataFrame:
    return pd.DataFrame({"group": "a", "bar": [f"bar {i}" for i in range(bars)], "value": np.arange(1.0, bars + 1)})


def test_as_many_curves_and_bars_as_there_are_colours_are_told_apart() -> None:
    lines = ["one", "two", "three"]
    figure = figures.lines_with_bands(line_table(["a"], lines), **DRAWN, **LABELS)
    (axis,) = shown(figure)
    colours = {line.get_label(): line.get_color() for line in axis.lines if line.get_label() in lines}
    assert list(colours) == lines
    assert len(set(colours.values())) == 3
    figure = figures.curves(line_table(["a"], lines), x="block", panels={"value": "v"}, line="line", xlabel="block")
    drawn = figure.axes[0].lines
    assert len({line.get_color() for line in drawn}) == len({line.get_linewidth() for line in drawn}) == 3
    (axis,) = shown(figures.dodged_bars(bar_table(5), group="group", bar="bar", value="value", xlabel="x"))
    assert [bar.get_width() for bar in axis.patches] == [1, 2, 3, 4, 5]
    assert len({to_hex(bar.get_facecolor()) for bar in axis.patches}) == 5
    assert legend_of(axis.figure) == [f"bar {i}" for i in range(5)]


def test_more_curves_or_bars_than_colours_are_refused_rather_than_left_out() -> None:
    table = line_table(["a"], ["one", "two", "three", "four"])
    message = "tells 3 things apart, not 4: one, two, three, four"
    with pytest.raises(ValueError, match=message):
        figures.lines_with_bands(table, **DRAWN, **LABELS)
    with pytest.raises(ValueError, match=message):
        figures.curves(table, x="block", panels={"value": "v"}, line="line", xlabel="block")
    with pytest.raises(ValueError, match=r"tells 5 things apart, not 6: bar 0, .*, bar 5"):
        figures.dodged_bars(bar_table(6), group="group", bar="bar", value="value", xlabel="x")
    # Four that are never in one panel are as many in the legend.
    apart = table.assign(panel=table["line"].isin(["one", "two"]).map({True: "a", False: "b"}))
    with pytest.raises(ValueError, match=message):
        figures.lines_with_bands(apart, **DRAWN, **LABELS)
