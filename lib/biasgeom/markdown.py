"""Tables as Markdown. What is shown is untrusted text (a model may have written it), so nothing in it is markup."""

import re
from collections.abc import Iterable

import pandas as pd


def escaped(text: object) -> str:
    """Text as a Markdown cell shows it literally, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>()#+\-.!|$~&^@:])", r"\\\1", " ".join(str(text).split()))


def table(
    frame: pd.DataFrame, *, name: str = "", caption: str = "", digits: int = 3, markup: tuple[str, ...] = ()
) -> str:
    """A Markdown table of a frame.

    Parameters
    ----------
    name, caption : str, optional
        Label and caption; a MyST ``table`` directive is put around the table.
    digits : int
        Significant digits of floating-point columns; a missing number is shown as a dash.
    markup : tuple of str
        Columns that hold Markdown of our own, as their names do; all others are escaped.
    """
    shown = pd.DataFrame({column: _column(frame[column], digits, column in markup) for column in frame})
    heads = [column if column in markup else escaped(column) for column in frame]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    lines += ["| " + " | ".join(row) + " |" for row in shown.to_numpy()]
    if name:
        lines = [f":::{{table}} {caption}", f":name: {name}", "", *lines, ":::"]
    return "\n".join(lines) + "\n"


def with_interval(
    frame: pd.DataFrame,
    *,
    low: str = "low",
    high: str = "high",
    name: str = "95 % interval",
    digits: int = 2,
    value: str = "",
) -> pd.DataFrame:
    """The frame with one column of text, ``name``, in the place of the two bounds; a dash without them.

    With ``value``, the number's column, it takes its place, too: the number, and the bounds in brackets if there are.
    """
    bounds = zip(frame[low], frame[high], strict=True)
    texts: list[str | None] = [
        None if pd.isna(a) or pd.isna(b) else f"{_number(a, digits)} to {_number(b, digits)}" for a, b in bounds
    ]
    if value:
        both = zip(frame[value], texts, strict=True)
        texts = [None if pd.isna(v) else _number(v, digits) + (f" ({text})" if text else "") for v, text in both]
    place = list(frame).index(value or low)
    shown = frame.drop(columns=[low, high, *filter(None, [value])])
    shown.insert(place, name, pd.Series(texts, frame.index, dtype=object))
    return shown


def number(value: float | None, form: str, otherwise: str = "undefined") -> str:
    """A number in a sentence, and words in its place if there is none."""
    return otherwise if pd.isna(value) else format(value, form)


def span(values: Iterable[float], form: str = ".2g", otherwise: str = "none") -> str:
    """The smallest and the largest number in words, the one if they look alike, ``otherwise`` without any."""
    found = pd.Series(values, dtype=float).dropna()
    ends = dict.fromkeys(format(end, form) for end in (found.min(), found.max())) if len(found) else [otherwise]
    return " to ".join(ends)


def count(number: int, noun: str) -> str:
    """How many in a sentence: 1 persona, 2 personas."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def known(frame: pd.DataFrame, value: str, *, of: str, why: str) -> tuple[pd.DataFrame, str]:
    """The rows that have ``value``, without columns that are empty then, and a sentence on the others, else "".

    Parameters
    ----------
    of : str
        The column by which the sentence counts the rows that are left out; ``why`` is its reason.
    """
    lacking = frame[value].isna()
    left = frame.loc[lacking, of].value_counts(sort=False)
    counted = ", ".join(f"{count(n, 'row')} of {escaped(name)}" for name, n in left.items())
    rows = frame[~lacking]
    return rows.dropna(axis=1, how="all") if len(rows) else rows, f" Left out, {why}: {counted}." if counted else ""


def _number(value: float, digits: int) -> str:
    """So many significant digits, but no power of ten for a large number: that is whole, with all digits."""
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in text else text


def _column(values: pd.Series, digits: int, markup: bool) -> list[str]:
    if pd.api.types.is_float_dtype(values):
        return ["–" if pd.isna(v) else escaped(_number(v, digits)) for v in values]
    return ["–" if pd.isna(v) else str(v) if markup else escaped(v) for v in values]
