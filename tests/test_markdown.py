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
