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


def test_directive_numbers_and_missing_values() -> None:
    frame = pd.DataFrame({"n": [0.123456, float("nan")], "k": [1, 2]})
    text = markdown.table(frame, name="tab-x", caption="Cap.", digits=2)
    assert text.startswith(":::{table} Cap.\n:name: tab-x\n\n| n | k |")
    assert text.endswith("| – | 2 |\n:::\n")
    assert "0\\.12 " in text
