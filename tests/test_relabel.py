"""One model's labels get its ending, and so does what refers to them; all else stays, or becomes plain text."""

import re

import pytest
from biasgeom import relabel
from hypothesis import given
from hypothesis import strategies as st

OWN = {"fig-a", "tab-b", "gender-encoded"}
KNOWN = {"choices", "limits"}
ENDING = "--acme--tiny"

TEXT = """(gender-encoded)=
# A page

See {numref}`fig-a`, {ref}`the table <tab-b>`, [](gender-encoded), [here](#fig-a), [the choices](choices),
[p](https://a.b/fig-a), [a file](choices.md), {cite}`fig-a`, `fig-a`, fig-a.
Gone: {ref}`judge-card`, {numref}`this one <judge-card>`, [a page](judge-card).

:::{table} As in [](fig-a).
:name: tab-b

| {numref}`fig-a` |
:::

```{figure} x.png
:name: fig-a

See [](tab-b).
```

```python
(gender-encoded)=
f = "[](fig-a)"
```

After it [](tab-b) and $$[x](fig-a)$$
"""


def changed(text: str, ending: str = ENDING) -> str:
    return relabel.relabelled(text, own=OWN, ending=ending, known=KNOWN)


def test_every_label_and_reference_of_a_page() -> None:
    lines = changed(TEXT).splitlines()
    assert lines[0] == "(gender-encoded--acme--tiny)="
    assert lines[3] == (
        "See {numref}`fig-a--acme--tiny`, {ref}`the table <tab-b--acme--tiny>`, [](gender-encoded--acme--tiny), "
        "[here](#fig-a--acme--tiny), [the choices](choices),"
    )
    assert lines[4] == "[p](https://a.b/fig-a), [a file](choices.md), {cite}`fig-a`, `fig-a`, fig-a."
    assert lines[5] == "Gone: judge card, this one, a page."
    assert ":name: tab-b--acme--tiny" in lines
    assert ":name: fig-a--acme--tiny" in lines
    assert ":::{table} As in [](fig-a--acme--tiny)." in lines
    assert "See [](tab-b--acme--tiny)." in lines
    assert 'f = "[](fig-a)"' in lines
    assert lines[lines.index("```python") + 1] == "(gender-encoded)="
    assert lines[-1] == "After it [](tab-b--acme--tiny) and $$[x](fig-a)$$"


def test_labels_are_those_outside_code() -> None:
    assert relabel.labels(TEXT) == OWN
    assert relabel.labels("```\n(x)=\n```\n") == set()
    assert relabel.labels("(x)=\n") == {"x"}


def test_the_main_model_keeps_its_labels() -> None:
    made = changed(TEXT, ending="")
    assert relabel.labels(made) == OWN
    assert "judge-card" not in made
    assert "[](gender-encoded)" in made
    assert "a page." in made


@given(st.lists(st.sampled_from([*TEXT.splitlines(keepends=True), "```\n", "```{note}\n", ":::\n", "~~~\n"])))
def test_no_own_label_is_left_and_nothing_else_is_lost(lines: list[str]) -> None:
    text = "".join(lines)
    made = changed(text)
    assert relabel.labels(made) == {f"{label}{ENDING}" for label in relabel.labels(text)}
    # Without code and the endings, only the references that lead nowhere differ.
    assert changed(made.replace(ENDING, "")) == made
    assert made.count("\n") == text.count("\n")


@given(st.text(alphabet="ab`{}[]()<>=:\n $#-", max_size=60))
def test_any_text_without_a_reference_is_kept(text: str) -> None:
    assert relabel.relabelled(text, own=(), ending="--z", known={"a", "b", "aa", "ab", "ba", "bb"}) == text or (
        re.search(r"[(<`#][ab]{3,}", text)
    )
    assert "".join(piece for piece, _ in relabel._pieces(text)) == text


def notebook() -> dict:
    figure = {"mystnb": {"figure": {"name": "fig-a", "caption": "Like [](tab-b)."}}}
    table = {"output_type": "execute_result", "data": {"text/markdown": [":::{table} T.\n", ":name: tab-b\n"]}}
    picture = {"output_type": "display_data", "data": {"image/png": "fig-a"}}
    return {
        "cells": [
            {"cell_type": "markdown", "metadata": {}, "source": ["(gender-encoded)=\n", "# [](fig-a)"]},
            {"cell_type": "code", "metadata": figure, "source": "fig-a", "outputs": [picture]},
            {"cell_type": "code", "metadata": {}, "source": "", "outputs": [table]},
        ]
    }


def test_a_notebook() -> None:
    before = notebook()
    assert relabel.notebook_labels(before) == OWN
    made = relabel.relabelled_notebook(before, own=OWN, ending=ENDING, known=KNOWN)
    assert before == notebook()
    assert relabel.notebook_labels(made) == {f"{label}{ENDING}" for label in OWN}
    assert made["cells"][1]["metadata"]["mystnb"]["figure"]["caption"] == "Like [](tab-b--acme--tiny)."
    assert made["cells"][1]["source"] == "fig-a"
    assert made["cells"][1]["outputs"] == before["cells"][1]["outputs"]


@pytest.mark.parametrize("slug", ["smollm2-135m-instruct", "Qwen--Qwen3-14B", "a" * 100, "A" * 100, "x-.y_z"])
def test_a_tag_makes_a_label_that_sphinx_and_myst_take(slug: str) -> None:
    label = f"tab-delta-b-methods-published--{relabel.tag(slug)}"
    assert label == label.lower()
    assert len(label) <= 100
    assert relabel.labels(f"({label})=") == {label}


def test_tags_of_names_that_differ_in_case_differ() -> None:
    assert len({relabel.tag(slug) for slug in ("a--b", "A--B", "a--B", "a" * 60, "a" * 61)}) == 5
