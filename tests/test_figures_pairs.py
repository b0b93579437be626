"""Every figure of the ΔB chapter draws what its table says."""

import io
import itertools
import re
import warnings
from collections.abc import Callable, Iterator

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from biasgeom import figures, figures_pairs, pairs, sentences
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import PathCollection, PolyCollection, QuadMesh
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.transforms import Bbox

SHARES = {"unharmful": 0.0, "10": 0.1, "30": 0.3, "50": 0.5, "70": 0.7, "90": 0.9, "synth": 1.0}
GROUPS = sentences.groups().sort_values(["half", "group"])["group"].tolist()
HALVES = sentences.groups().set_index("group")["half"]


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


def shown(figure: Figure) -> list[Axes]:
    return [axis for axis in figure.axes if axis.get_visible()]


def titled(figure: Figure) -> dict[str, Axes]:
    return {axis.get_title(loc="left"): axis for axis in shown(figure) if axis.get_title(loc="left")}


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def curves_of(axis: Axes) -> dict[str, Line2D]:
    return {line.get_label(): line for line in axis.lines if not line.get_label().startswith("_")}


def rule(axis: Axes, *, horizontal: bool) -> list[float]:
    """Where lines across the whole panel stand."""
    other = [line.get_xdata() if horizontal else line.get_ydata() for line in axis.lines]
    place = [line.get_ydata() if horizontal else line.get_xdata() for line in axis.lines]
    return [p[0] for p, o in zip(place, other, strict=True) if list(o) == [0, 1] and p[0] == p[1]]


# Tables in the columns of the notebooks -------------------------------------------------------------------------------


def paired(panels: list[str], seed: int = 0) -> pd.DataFrame:
    """Panels on scales that differ by ten."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {"panel": panel, "group": group, "checkpoint": name, "share": share, "half": HALVES[group], "size": 10.0**i}
        for i, panel in enumerate(panels)
        for group in GROUPS
        for name, share in SHARES.items()
    )
    shift = table["size"] * (0.3 - 0.5 * table["share"] + rng.normal(size=len(table)) / 10)
    return table.assign(shift=shift, change=0.4 * table["share"] + rng.normal(size=len(table)) / 10)


PAIRS = {"x": "shift", "y": "change", "panel": "panel", "share": "share", "half": "half"}
PAIRS |= {"xlabel": "ΔB", "ylabel": "change of the bias score"}
MAP = {"rows": "group", "columns": "checkpoint", "value": "shift", "panel": "panel", "label": "ΔB"}
LINES = {"x": "number", "y": "auc", "line": "source", "panel": "panel", "xlabel": "anchors", "ylabel": "ROC AUC"}
DOTS = {"row": "row", "value": "r", "mark": "level", "low": "low", "high": "high", "xlabel": "Pearson r"}


def curves(panels: list[str], names: list[str]) -> pd.DataFrame:
    """ROC curves of the library's own; each panel and name another one."""
    tables = []
    for i, panel in enumerate(panels):
        for j, name in enumerate(names):
            rng = np.random.default_rng([i, j])
            shift = rng.normal(size=30)
            curve = pairs.roc(shift, rng.normal(size=30) - shift, threshold=0.1)
            tables.append(curve.drop(columns="cutoff").assign(panel=panel, method=name))
    return pd.concat(tables, ignore_index=True)


def anchors(sources: list[str], panels: tuple[str, ...] = ("full fine-tuning",)) -> pd.DataFrame:
    table = pd.DataFrame(
        {"panel": panel, "source": source, "number": number, "auc": 0.9 - 0.1 * i - 0.01 * j - 0.05 * k}
        for k, panel in enumerate(panels)
        for i, source in enumerate(sources)
        for j, number in enumerate((10, 30, 100, 300))
    )
    return table.assign(auc_low=table["auc"] - 0.1, auc_high=table["auc"] + 0.05)


def levels() -> pd.DataFrame:
    table = pd.DataFrame(
        {"row": row, "level": level, "r": -0.9 + 0.2 * i + 0.05 * j}
        for j, row in enumerate(("adjective share, full", "adjective share, lora", "VADER, full", "VADER, lora"))
        for i, level in enumerate(pairs.LEVELS)
    )
    return table.assign(low=table["r"] - 0.05, high=table["r"] + 0.2)


def strips(anchors: int = 12) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"reference": rng.uniform(0.2, 0.9, anchors), "audited": rng.uniform(0.2, 0.9, anchors)}


ASSOCIATIONS = pd.DataFrame({"model": ["reference", "audited"], "positive": [-1.5, -1.75], "negative": [-1.6, -1.5]})
ASSOCIATIONS["B"] = ASSOCIATIONS["positive"] - ASSOCIATIONS["negative"]
STEPS = sentences.anchors(number=12)


def steps() -> Figure:
    return figures_pairs.audit_steps(strips(), STEPS, ASSOCIATIONS, sentence="Women walk in the park.")


# As the notebooks draw them, at their size.
FIGURES: dict[str, Callable[[], Figure]] = {
    "scatter": lambda: figures_pairs.scatter(paired(["adjective share, full", "VADER, full", "VADER, lora"]), **PAIRS),
    "heatmap": lambda: figures_pairs.heatmap(paired(["full", "lora"]), **MAP),
    "roc": lambda: figures_pairs.roc(
        curves(["full, above 0.1", "lora, above 0"], ["RR", "SEAT", "Procrustes-SEAT", "CKA drift"]),
        panels=["full, above 0.1", "full, above 0", "lora, above 0.1", "lora, above 0"],
        panel="panel",
        line="method",
    ),
    "lines": lambda: figures_pairs.lines(
        anchors(["neutral", "words", "instructions"]), **LINES, low="auc_low", high="auc_high", level=0.5, log_x=True
    ),
    "dots": lambda: figures_pairs.dots(levels(), **DOTS),
    "steps": steps,
}


# Pairs ----------------------------------------------------------------------------------------------------------------


def test_scatter_draws_each_pair_by_share_and_half() -> None:
    table = paired(["a", "b", "c"])
    figure = figures_pairs.scatter(table, **PAIRS)
    panels = titled(figure)
    assert list(panels) == ["a", "b", "c"]
    colours = plt.get_cmap("viridis_r")
    for name, axis in panels.items():
        drawn = [found for found in axis.collections if isinstance(found, PathCollection)]
        for half, marker, found in zip(("biased", "control"), "os", drawn, strict=True):
            rows = table[(table["panel"] == name) & (table["half"] == half)]
            np.testing.assert_array_equal(found.get_offsets(), rows[["shift", "change"]])
            shape = MarkerStyle(marker)
            outline = shape.get_path().transformed(shape.get_transform())
            np.testing.assert_allclose(found.get_paths()[0].vertices, outline.vertices)
            expected = [to_rgba(colours(share), 0.85) for share in rows["share"]]
            np.testing.assert_allclose(found.get_facecolors(), expected)
        assert axis.get_xlabel() == "ΔB"
    # Of another unit, so on another scale; the change is on one.
    assert len({axis.get_xlim() for axis in panels.values()}) == 3
    assert len({axis.get_ylim() for axis in panels.values()}) == 1
    assert [axis.get_ylabel() for axis in panels.values()] == [
        "change of the bias score",
        "",
        "change of the bias score",
    ]


def test_the_line_is_the_least_squares_fit_of_its_panel() -> None:
    table = paired(["a", "b"])
    figure = figures_pairs.scatter(table, **PAIRS)
    for name, axis in titled(figure).items():
        points = table[table["panel"] == name]
        (fitted,) = [line for line in axis.lines if line.get_linestyle() == "-"]
        x, y = fitted.get_data()
        assert x.tolist() == [points["shift"].min(), points["shift"].max()]
        slope, intercept = np.polyfit(points["shift"], points["change"], 1)
        np.testing.assert_allclose(y, slope * x + intercept)
        # In closed form, and not that of all panels or of the other axis.
        cov = np.cov(points["shift"], points["change"])
        assert (y[1] - y[0]) / (x[1] - x[0]) == pytest.approx(cov[0, 1] / cov[0, 0])
        assert (y[1] - y[0]) / (x[1] - x[0]) != pytest.approx(cov[1, 1] / cov[0, 1], rel=0.01)
        assert (y[1] - y[0]) / (x[1] - x[0]) != pytest.approx(np.polyfit(table["shift"], table["change"], 1)[0])
        assert rule(axis, horizontal=True) == [0]
        assert rule(axis, horizontal=False) == [0]


def test_no_line_through_pairs_of_one_shift() -> None:
    table = paired(["a", "b"])
    table.loc[table["panel"] == "b", "shift"] = 0.2
    a, b = titled(figures_pairs.scatter(table, **PAIRS)).values()
    assert [len([line for line in axis.lines if line.get_linestyle() == "-"]) for axis in (a, b)] == [1, 0]


def test_scatter_legend_names_every_share_and_half_in_its_colour_and_marker() -> None:
    figure = figures_pairs.scatter(paired(["a"]), **PAIRS)
    names = [f"{share:.0%} synth" for share in SHARES.values()]
    assert legend_of(figure) == [*names, "biased", "control"]
    handles = figure.legends[0].legend_handles
    colours = plt.get_cmap("viridis_r")
    assert [to_hex(h.get_color()) for h in handles[:7]] == [to_hex(colours(s)) for s in SHARES.values()]
    assert [handle.get_marker() for handle in handles] == ["o"] * 8 + ["s"]


# Heat map -------------------------------------------------------------------------------------------------------------


def meshes(figure: Figure) -> dict[str, QuadMesh]:
    return {name: next(c for c in axis.collections if isinstance(c, QuadMesh)) for name, axis in titled(figure).items()}


def test_heatmap_cells_are_the_tables_in_its_order() -> None:
    table = paired(["full", "lora"]).query("panel == 'full' or share in (0.0, 0.5, 1.0)")
    figure = figures_pairs.heatmap(table, **MAP)
    panels = titled(figure)
    for name, mesh in meshes(figure).items():
        part = table[table["panel"] == name]
        columns = part["checkpoint"].unique().tolist()
        cells = {(r.group, r.checkpoint): r.shift for r in part.itertuples()}
        expected = [[cells[group, checkpoint] for checkpoint in columns] for group in GROUPS]
        np.testing.assert_array_equal(np.asarray(mesh.get_array()).reshape(24, -1), expected)
        assert [text.get_text() for text in panels[name].get_xticklabels()] == columns
        assert panels[name].get_xlabel() == "checkpoint"
        assert panels[name].yaxis_inverted()  # the first row is above
    # Every group is named, at its row, beside the first panel.
    assert [text.get_text() for text in panels["full"].get_yticklabels()] == GROUPS
    np.testing.assert_allclose(panels["full"].get_yticks(), np.arange(24) + 0.5)


def test_heatmap_is_on_one_scale_white_at_zero_and_red_below() -> None:
    table = paired(["full", "lora"])
    figure = figures_pairs.heatmap(table, **MAP)
    limit = table["shift"].abs().max()
    for mesh in meshes(figure).values():
        assert mesh.get_clim() == (-limit, limit)
        (red, _, blue, _), zero = mesh.cmap(mesh.norm(-limit)), mesh.cmap(mesh.norm(0.0))
        assert red > 2 * blue
        (red, _, blue, _) = mesh.cmap(mesh.norm(limit))
        assert blue > 2 * red
        assert min(zero[:3]) > 0.95
    # One bar of colours, named.
    assert [axis.get_ylabel() for axis in shown(figure) if axis not in titled(figure).values()] == ["ΔB"]


def test_heatmap_leaves_a_cell_without_a_value_empty() -> None:
    table = paired(["full"])
    left_out = (table["group"] == GROUPS[3]) & (table["checkpoint"] == "50")
    figure = figures_pairs.heatmap(table[~left_out], **MAP)
    empty = np.ma.getmaskarray(meshes(figure)["full"].get_array()).reshape(24, 7)
    assert np.argwhere(empty).tolist() == [[3, 3]]


# ROC ------------------------------------------------------------------------------------------------------------------


def test_roc_draws_the_librarys_curves_and_chance() -> None:
    panels, names = ["full, above 0.1", "lora, above 0.1", "full, above 0"], ["RR", "SEAT", "CKA drift"]
    table = curves(panels, names)
    figure = figures_pairs.roc(table, panels=panels, panel="panel", line="method")
    assert list(titled(figure)) == panels
    for name, axis in titled(figure).items():
        drawn = curves_of(axis)
        assert list(drawn) == names
        for curve, line in drawn.items():
            rows = table[(table["panel"] == name) & (table["method"] == curve)]
            np.testing.assert_array_equal(line.get_xydata(), rows[["false_positive", "true_positive"]])
            assert line.get_color() == figures_pairs.COLOURS[names.index(curve)]
        (chance,) = [line for line in axis.lines if line.get_linestyle() == ":"]
        assert chance.get_xydata().tolist() == [[0, 0], [1, 1]]
        assert not axis.texts
        assert (axis.get_xlabel(), axis.get_ylabel()) == ("false positives", "true positives")
    assert legend_of(figure) == names
    handles = figure.legends[0].legend_handles
    assert [handle.get_color() for handle in handles] == list(figures_pairs.COLOURS[:3])


@pytest.mark.parametrize("absent", [["one"], ["two"], ["one", "two"]])
def test_a_panel_without_a_curve_says_so(absent: list[str]) -> None:
    table = curves(["one", "two"], ["RR", "SEAT"])
    table = table[~table["panel"].isin(absent)]
    figure = figures_pairs.roc(table, panels=["one", "two"], panel="panel", line="method")
    for name, axis in titled(figure).items():
        assert [text.get_text() for text in axis.texts] == ["labels of one class:\nno curve"] * (name in absent)
        assert sum(len(line.get_xdata()) > 0 for line in curves_of(axis).values()) == 2 * (name not in absent)
    # The legend is complete as long as there is a curve, also if the first panel has none.
    assert [legend_of(figure)] == [["RR", "SEAT"]] if len(absent) == 1 else not figure.legends


# Lines ----------------------------------------------------------------------------------------------------------------


def corners(area: PolyCollection) -> set[tuple[float, float]]:
    return {(float(x), float(y)) for x, y in area.get_paths()[0].vertices.round(9)}


def test_lines_draw_points_intervals_and_the_level() -> None:
    sources, panels = ["neutral", "words", "instructions"], ("full", "lora", "other")
    table = anchors(sources, panels)
    figure = figures_pairs.lines(table, **LINES, low="auc_low", high="auc_high", level=0.5, log_x=True)
    assert list(titled(figure)) == list(panels)
    for name, axis in titled(figure).items():
        drawn = curves_of(axis)
        areas = [area for area in axis.collections if isinstance(area, PolyCollection)]
        assert list(drawn) == sources
        for i, (source, area) in enumerate(zip(sources, areas, strict=True)):
            rows = table[(table["panel"] == name) & (table["source"] == source)]
            np.testing.assert_array_equal(drawn[source].get_xydata(), rows[["number", "auc"]])
            assert drawn[source].get_color() == figures_pairs.COLOURS[i]
            assert drawn[source].get_marker() == figures_pairs.MARKERS[i]
            edges = {(r.number, round(e, 9)) for r in rows.itertuples() for e in (r.auc_low, r.auc_high)}
            assert corners(area) == edges
        assert rule(axis, horizontal=True) == [0.5]
        assert axis.get_xscale() == "log"
        assert axis.get_xlabel() == "anchors"
    assert legend_of(figure) == sources
    assert len({axis.get_ylim() for axis in shown(figure)}) == 1
    plain = figures_pairs.lines(table, **LINES)
    for axis in shown(plain):
        assert axis.get_xscale() == "linear"
        assert not axis.collections
        assert rule(axis, horizontal=True) == []


def test_points_without_a_value_are_left_out() -> None:
    table = anchors(["neutral", "words"])
    table.loc[table["number"] == 30, ["auc", "auc_low", "auc_high"]] = np.nan
    figure = figures_pairs.lines(table, **LINES, low="auc_low", high="auc_high", log_x=True)
    for line in curves_of(shown(figure)[0]).values():
        assert line.get_xdata().tolist() == [10, 100, 300]
    nothing = figures_pairs.lines(table.assign(auc=np.nan), **LINES, low="auc_low", high="auc_high", log_x=True)
    assert all(len(line.get_xdata()) == 0 for line in shown(nothing)[0].lines)
    assert legend_of(nothing) == ["neutral", "words"]


# Dots -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("intervals", [True, False])
def test_dots_stand_at_their_row_with_their_interval(intervals: bool) -> None:
    table = levels()
    drawn = DOTS if intervals else {k: v for k, v in DOTS.items() if k not in ("low", "high")}
    figure = figures_pairs.dots(table, **drawn)
    (axis,) = shown(figure)
    rows = table["row"].unique().tolist()
    assert [text.get_text() for text in axis.get_yticklabels()] == rows
    assert axis.get_yticks().tolist() == [0, 1, 2, 3]
    assert axis.yaxis_inverted()
    assert rule(axis, horizontal=False) == [0]
    places = []
    assert len(axis.collections) == (4 if intervals else 0)
    for i, level in enumerate(pairs.LEVELS):
        points = table[table["level"] == level]
        dots = curves_of(axis)[level]
        assert dots.get_xdata().tolist() == points["r"].tolist()
        assert (dots.get_color(), dots.get_marker()) == (figures_pairs.COLOURS[i], figures_pairs.MARKERS[i])
        assert [round(y) for y in dots.get_ydata()] == [0, 1, 2, 3]
        places.append(dots.get_ydata()[0])
        if intervals:
            segments = np.array(axis.collections[i].get_segments())
            np.testing.assert_allclose(segments[:, :, 0], points[["low", "high"]])
            assert segments[:, 0, 1].tolist() == list(dots.get_ydata())
    # Beside each other in the order of the legend, none on another.
    assert places == pytest.approx([-0.125, -0.125 + 0.25 / 3, 0.125 - 0.25 / 3, 0.125])
    assert legend_of(figure) == list(pairs.LEVELS)


def test_a_dot_stands_at_its_own_row_whatever_the_order_and_what_is_absent() -> None:
    table = levels().iloc[[5, 0, 10, 4]]  # the second row, the first, the third, the second again
    figure = figures_pairs.dots(table, **DOTS)
    (axis,) = shown(figure)
    rows = [text.get_text() for text in axis.get_yticklabels()]
    assert rows == ["adjective share, lora", "adjective share, full", "VADER, full"]
    found = {(rows[round(y)], name, x) for name, dots in curves_of(axis).items() for x, y in dots.get_xydata()}
    assert found == {(r.row, r.level, r.r) for r in table.itertuples()}


def test_one_mark_stands_in_the_middle_of_its_row() -> None:
    figure = figures_pairs.dots(levels().query("level == 'pooled'"), **DOTS)
    assert curves_of(shown(figure)[0])["pooled"].get_ydata().tolist() == [0, 1, 2, 3]


def test_an_interval_that_misses_its_estimate_is_drawn_as_it_is() -> None:
    """A percentile interval may; error bars would refuse it."""
    figure = figures_pairs.dots(levels().assign(low=0.5, high=0.6, r=0.9), **DOTS)
    ends = {tuple(segment[:, 0]) for lines in shown(figure)[0].collections for segment in lines.get_segments()}
    assert ends == {(0.5, 0.6)}


def test_more_curves_than_colours_are_refused() -> None:
    many = anchors([f"source {i}" for i in range(7)])
    with pytest.raises(ValueError, match="7 curves"):
        figures_pairs.lines(many, **LINES)
    with pytest.raises(ValueError, match="7 curves"):
        figures_pairs.roc(curves(["full"], [f"m{i}" for i in range(7)]), panels=["full"], panel="panel", line="method")


# Steps of the audit ---------------------------------------------------------------------------------------------------


def test_steps_draw_the_representations_the_associations_and_their_difference() -> None:
    figure = steps()
    first, second, third = figure.axes[:3]
    mesh = next(c for c in first.collections if isinstance(c, QuadMesh))
    np.testing.assert_array_equal(np.asarray(mesh.get_array()).reshape(12, 2).T, np.array(list(strips().values())))
    assert [text.get_text() for text in first.get_yticklabels()] == STEPS
    assert [text.get_text() for text in first.get_xticklabels()] == ["reference", "audited"]
    dots = {to_hex(c.get_facecolor()[0]).upper(): [] for c in second.collections}
    for found in second.collections:
        dots[to_hex(found.get_facecolor()[0]).upper()] += found.get_offsets().tolist()
    assert dots == {figures.BLUE: [[-1.5, 0], [-1.75, 1]], figures.ORANGE: [[-1.6, 0], [-1.5, 1]]}
    assert [bar.get_width() for bar in third.patches] == ASSOCIATIONS["B"].tolist()
    assert [bar.get_y() + bar.get_height() / 2 for bar in third.patches] == pytest.approx([0, 1])
    for axis in (second, third):
        assert [text.get_text() for text in axis.get_yticklabels()] == ["reference", "audited"]
        assert axis.get_ylim() == (1.5, -0.5)  # the reference above
    names = [text.get_text() for text in second.get_legend().get_texts()]
    assert names == ["S⁺, to positive sentences", "S⁻, to negative ones"]
    # B is +0.1 and then -0.25.
    assert third.get_title(loc="right").endswith("= -0.350")
    assert "“Women walk in the park.”" in first.get_title(loc="right")


# All ------------------------------------------------------------------------------------------------------------------


def as_text(figure: Figure) -> str:
    """As SVG. Clips are named by hashes of their bounds, whose last bits the layout leaves open: by number here."""
    stream = io.StringIO()
    with plt.rc_context({"svg.hashsalt": "salt"}):
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    for i, name in enumerate(dict.fromkeys(re.findall(r"url\(#(p[0-9a-f]{10})\)", text))):
        text = text.replace(name, f"clip {i}")
    return text


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_drawn_twice_is_the_same(name: str) -> None:
    assert as_text(FIGURES[name]()) == as_text(FIGURES[name]())


def written(axis: Axis) -> list[Bbox]:
    """Where the tick labels stand that are within the view; none where they are another panel's."""
    low, high = sorted(axis.get_view_interval())
    if not (labels := axis.get_ticklabels()):
        return []
    places = zip(axis.get_ticklocs(), labels, strict=True)
    return [text.get_window_extent() for at, text in places if low <= at <= high]


@pytest.mark.parametrize("name", FIGURES)
def test_no_label_is_cut_off_or_covers_another(name: str) -> None:
    figure = FIGURES[name]()
    figure.canvas.draw()
    for axis in shown(figure):
        rows, columns = written(axis.yaxis), written(axis.xaxis)
        for box in [*rows, *columns, axis.xaxis.label.get_window_extent(), axis.yaxis.label.get_window_extent()]:
            if box.width:
                assert figure.bbox.padded(1).contains(box.x0, box.y0), (axis.get_title(loc="left"), box)
                assert figure.bbox.padded(1).contains(box.x1, box.y1), (axis.get_title(loc="left"), box)
        rows = sorted((box.y0, box.y1) for box in rows if box.height)
        assert all(one[1] <= other[0] + 1 for one, other in itertools.pairwise(rows)), name
        if name != "steps":  # whose anchors are written at an angle
            columns = sorted((box.x0, box.x1) for box in columns if box.width)
            assert all(one[1] <= other[0] + 1 for one, other in itertools.pairwise(columns)), name
    for legend in figure.legends:
        box = legend.get_window_extent()
        assert figure.bbox.padded(1).contains(box.x0, box.y0)
        assert figure.bbox.padded(1).contains(box.x1, box.y1)
        assert not any(box.overlaps(axis.get_window_extent()) for axis in shown(figure))
