"""The published values: readable, complete, and in agreement wherever a value is printed twice."""

import csv
import pathlib

import pandas as pd
import pytest

ROOT = pathlib.Path(__file__).parents[1]
PUBLISHED = ROOT / "data" / "published"
FILES = sorted(PUBLISHED.glob("*.csv"))

TABLES = {
    "delta_b": ["1", "2", "3", "4", "5a", "5b", "6", "7a", "7b"],
    "gender": [str(n) for n in range(1, 5)],
    "judge": [str(n) for n in range(1, 31)],
}
FIGURES = {"delta_b": range(1, 17), "gender": range(1, 17), "judge": range(1, 14)}
EXPECTED = {
    *((paper, f"table {n}") for paper, numbers in TABLES.items() for n in numbers),
    *((paper, f"figure {n}") for paper, numbers in FIGURES.items() for n in numbers),
    ("judge", "algorithm 1"),
}
HALF_A_HUNDREDTH = 0.005 + 1e-9  # what rounding to two decimals can hide


def read_text(name: str) -> pd.DataFrame:
    """Every cell as it is written; an empty one is an empty string."""
    return pd.read_csv(PUBLISHED / f"{name}.csv", dtype=str, keep_default_na=False)


def read_numbers(name: str) -> pd.DataFrame:
    return pd.read_csv(PUBLISHED / f"{name}.csv")


def disagreements(left: pd.Series, right: pd.Series, tolerance: float) -> list:
    """Keys of `left` whose value in `right` is absent or further away than the tolerance."""
    return [key for key, value in left.items() if not abs(value - right.get(key, float("nan"))) <= tolerance]


def test_items_name_every_table_figure_and_algorithm_once() -> None:
    items = read_text("items")
    columns = "paper item title notebook label status reason"
    assert list(items.columns) == columns.split()
    assert sorted(zip(items.paper, items.item, strict=True)) == sorted(EXPECTED)
    assert items.title.str.split().str.len().between(1, 11).all()


def test_items_say_where_they_are_or_why_not() -> None:
    items = read_text("items")
    assert set(items.status) <= {"measured", "method shown on other data", "not run"}
    absent = items[items.status == "not run"]
    shown = items[items.status != "not run"]
    assert (absent.reason != "").all()
    assert (absent.label == "").all()
    assert (absent.notebook == "").all()
    assert (shown.label != "").all()
    # Two figures of a paper may have one counterpart; a label stands in one notebook.
    assert (shown.groupby("label")["notebook"].nunique() == 1).all()


def test_notebooks_of_items_exist() -> None:
    items = read_text("items")
    named = set(items.notebook[items.status != "not run"])
    assert named
    assert "" not in named
    assert [name for name in sorted(named) if not (ROOT / "notebooks" / f"{name}.ipynb").is_file()] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_is_a_clean_table(path: pathlib.Path) -> None:
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert all(name.strip() for name in header)
    assert len(set(header)) == len(header)
    assert {len(row) for row in rows} == {len(header)}
    table = read_text(path.stem)
    assert table.shape == (len(rows), len(header))
    assert not table.duplicated().any()


def test_every_published_table_has_its_file() -> None:
    names = {path.stem for path in FILES}
    expected = {f"{p}_table{n}" for p, numbers in TABLES.items() for n in numbers}
    assert expected - names == set()


def test_inconsistencies_are_all_there() -> None:
    found = read_text("inconsistencies")
    assert len(found) == 145
    assert found.id.is_unique
    assert set(found.paper) == set(TABLES)


def test_quoted_values_point_to_listed_tables() -> None:
    quoted = read_text("figures_text")
    assert quoted.id.is_unique
    pointing = quoted[quoted.table != ""]
    assert len(pointing) > 200
    assert set(zip(pointing.paper, "table " + pointing.table, strict=True)) <= EXPECTED


def test_running_text_quotes_delta_b_table_1() -> None:
    table = read_numbers("delta_b_table1")
    table["scope"] = table.benchmark + " " + table.model + " " + table.regime
    columns = {"pearson_r": "pearson r", "roc_auc": "roc auc"}
    printed = table.rename(columns=columns).set_index("scope")[list(columns.values())].stack()
    quoted = read_numbers("figures_text").query("paper == 'delta_b' and quantity in @columns.values() and table == '1'")
    quoted = quoted.set_index(["scope", "quantity"])["value"]
    assert len(quoted) == 13
    assert disagreements(quoted, printed, HALF_A_HUNDREDTH) == []

    assert disagreements(quoted, printed + 0.01, HALF_A_HUNDREDTH) == list(quoted.index)


def test_a_disagreement_within_the_paper_is_noticed() -> None:
    """Finding delta_b_i001: one configuration, an AUC of 0.892 in table 5a and of 0.964 in tables 6 and 7a."""
    anchors = read_numbers("delta_b_table5a").set_index("variant").roc_auc["base"]
    pooling = read_numbers("delta_b_table6").set_index(["pooling", "method"]).roc_auc["mean", "RR"]
    methods = read_numbers("delta_b_table7a").set_index("method").roc_auc["RR"]
    printed = pd.Series({"table 5a": anchors, "table 6": pooling})
    assert disagreements(printed, pd.Series(methods, index=printed.index), HALF_A_HUNDREDTH) == ["table 5a"]


def test_judge_table_3_averages_to_its_margin() -> None:
    cells = read_numbers("judge_table3").query("polarity == 'negative'")
    margin = read_numbers("judge_table3_margin").set_index("bias").row_mean
    means = cells.groupby("bias").delta.mean()
    assert set(means.index) == set(margin.index)
    assert disagreements(margin, means, HALF_A_HUNDREDTH) == []

    without_one_domain = cells[cells.domain != "BBQ"].groupby("bias").delta.mean()
    assert "Diversity" in disagreements(margin, without_one_domain, HALF_A_HUNDREDTH)


@pytest.mark.parametrize(("short", "full"), [("attack_w1", "w1"), ("attack_spearman", "spearman")])
def test_judge_table_13_repeats_table_19(short: str, full: str) -> None:
    keys = ["bias", "polarity", "method"]
    summary = read_numbers("judge_table13").drop(columns="method").rename(columns={"attack_method": "method"})
    summary = summary.replace({"method": {"text": "Text"}}).set_index(keys)[short]
    detailed = read_numbers("judge_table19").set_index(keys)[full]
    assert len(summary) == 6
    assert disagreements(summary, detailed, HALF_A_HUNDREDTH) == []

    assert disagreements(summary, detailed.shift(1), HALF_A_HUNDREDTH)
