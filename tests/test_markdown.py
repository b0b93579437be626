"""Untrusted text in a table is shown as it is: checked with the parser that renders the book."""

import pandas as pd
import pytest
from biasgeom import markdown
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

PARSER = MarkdownIt("commonmark", {"html": True}).enable("table")


def cell(source: str) -> str:
    """The visible text of the only body cell."""
    tokens = PARSER.parse(source)
    inline = [t for t in tokens if t.type == "inline"][-1]
    kinds = {child.type for child in inline.children or ()}
    assert kinds <= {"text", "text_special"}, f"something was markup: {kinds}"
    return inline.content if not inline.children else "".join(child.content for child in inline.children)


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "a | b",
        "**bold** _it_ `code`",
        "[x](http://e.org)",
        "![x](y)",
        "$x$",
        "&lt;",
        "\\|",
        "a\nb",
    ],
)
def test_nothing_is_markup(text: str) -> None:
    shown = cell(markdown.table(pd.DataFrame({"c": [text]})))
    assert shown == " ".join(text.split())


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1).filter(str.strip))
def test_any_text_survives(text: str) -> None:
    assert cell(markdown.table(pd.DataFrame({"c": [text]}))) == " ".join(text.split())


def test_without_escaping_it_would_be_markup() -> None:
    """The negative control."""
    with pytest.raises(AssertionError, match="markup"):
        cell(markdown.table(pd.DataFrame({"c": ["**bold**"]}), markup=("c",)))


def test_a_number_with_its_interval_in_one_cell() -> None:
    frame = pd.DataFrame({"r": [0.123, 0.5, None], "low": [0.1, None, 0.0], "high": [0.2, 1.0, 1.0], "k": 1}, [7, 8, 9])
    shown = markdown.with_interval(frame, value="r", name="$r$")
    assert list(shown) == ["$r$", "k"]
    assert shown["$r$"].tolist()[:2] == ["0.12 (0.1 to 0.2)", "0.5"]
    assert shown["$r$"].isna().tolist() == [False, False, True]
    assert markdown.with_interval(frame)["95 % interval"].tolist()[0] == "0.1 to 0.2"
    text = markdown.table(markdown.with_interval(frame), digits=2)
    assert "| 0\\.5 | – | 1 |" in text


def test_only_columns_of_our_own_have_markup_in_their_names() -> None:
    frame = pd.DataFrame({"$r$": ["*a*"]})
    assert markdown.table(frame, markup=("$r$",)).startswith("| $r$ |")
    assert markdown.table(frame).startswith("| \\$r\\$ |")


def test_directive_numbers_and_missing_values() -> None:
    frame = pd.DataFrame({"n": [0.123456, float("nan")], "k": [1, 2]})
    text = markdown.table(frame, name="tab-x", caption="Cap.", digits=2)
    assert text.startswith(":::{table} Cap.\n:name: tab-x\n\n| n | k |")
    assert text.endswith("| – | 2 |\n:::\n")
    assert "0\\.12 " in text


def test_what_is_not_there_is_said_in_words() -> None:
    assert markdown.number(float("nan"), ".2f", "no AUC (one class)") == "no AUC (one class)"
    assert markdown.number(None, ".2f") == "undefined"
    assert markdown.number(-0.0004, "+z.3f") == "+0.000"
    assert markdown.span([0.25, float("nan"), 0.5], ".2f") == "0.25 to 0.50"
    assert markdown.span([0.251, 0.249], ".2f") == "0.25"
    assert markdown.span([float("nan")], ".2f", "no AUC") == "no AUC"
    assert [markdown.count(n, "persona") for n in (0, 1, 2)] == ["0 personas", "1 persona", "2 personas"]


def test_rows_without_a_value_become_a_sentence() -> None:
    frame = pd.DataFrame({"judge": ["a_b", "a_b", "c"], "delta": [None, None, 0.5], "r": [None] * 3})
    shown, left = markdown.known(frame, "delta", of="judge", why="for want of scores")
    assert shown.to_dict("list") == {"judge": ["c"], "delta": [0.5]}
    assert left == r" Left out, for want of scores: 2 rows of a\_b."
    shown, left = markdown.known(frame[:2], "delta", of="judge", why="for want of scores")
    assert shown.empty
    assert list(shown) == list(frame)  # a table has its head, at least
    assert markdown.known(frame[2:], "delta", of="judge", why="")[1] == ""


@pytest.mark.parametrize(
    ("number", "shown"), [(1012.4, "1012"), (999.6, "1000"), (-2.5e6, "-2500000"), (99.96, "100"), (1.2e-5, "1.2e-05")]
)
def test_a_large_number_is_whole(number: float, shown: str) -> None:
    assert cell(markdown.table(pd.DataFrame({"c": [number]}))) == shown


def test_a_large_number_is_whole_also_with_its_interval() -> None:
    frame = pd.DataFrame({"v": [123.4], "low": [99.7], "high": [1500.0]})
    assert markdown.with_interval(frame, value="v", name="v")["v"].tolist() == ["123 (100 to 1500)"]
