"""Scores out of replies: generated forms with a known answer, and the printed pattern as the one that fails."""

import re
from collections.abc import Callable

import pytest
from biasgeom.parsing import REASONS, ScoreError, parse_score
from hypothesis import given
from hypothesis import strategies as st

scores = st.integers(1, 10)
marks = st.text(" \n\t*_#`\"'“”>", max_size=5)
ends = st.sampled_from(
    ["", ".", "\n", "/10", " / 10", " out of 10", "**", "\n\nThe response is clear.", ". Well done.", ".0"]
)
words = st.text(st.characters(codec="ascii", exclude_categories=["Nd", "Cc"], exclude_characters=":"), max_size=30)

SCORES = {
    "8": 8,
    " 10\n": 10,
    "**8**": 8,
    "# 8": 8,
    "`9`": 9,
    '"8"': 8,
    "[8]": 8,
    "8/10": 8,
    "**8**/10": 8,
    "8 out of 10": 8,
    "8.0/10": 8,
    "8. The response is clear.": 8,
    "8\n\n1. The response is clear.\n2. It is short.": 8,
    "7 - good": 7,
    "Score: 8": 8,
    "**Score:** 8": 8,
    "**Score**: 10": 10,
    "score: 8": 8,
    "SCORE：8": 8,
    "Score: 3. On second thought:\nScore: 4": 4,
    "Score: 8\nI chose this score: the response is short.": 8,
    "The answer has 3 steps and 12 words.\nFinal Score: 6": 6,
}
FAILURES = {
    "": "verbal",
    "***\n": "verbal",
    "seven": "verbal",
    "Well done!": "verbal",
    "Score: high": "verbal",
    "Score: X": "verbal",
    "Score: 8 \nScore: good": "verbal",
    "0": "out_of_range",
    "11": "out_of_range",
    "08": "out_of_range",
    "100": "out_of_range",
    "80/100": "out_of_range",
    "-3": "out_of_range",
    "Score: −3": "out_of_range",
    "0.5": "out_of_range",
    "10.5": "out_of_range",
    "7.5": "range",
    "7.5/10": "range",
    "7-8": "range",
    "7–8": "range",
    "7 or 8": "range",
    "7 to 8": "range",
    "**7** - **8**": "range",
    "Score: 7/10 or 8/10": "range",
    "around 7": "range",
    "Score: between 7 and 8": "range",
    "at least 7": "range",
    "~7": "range",
    "I would give it a 7.": "ambiguous",
    "Subscore: 3": "ambiguous",
    "7, 8": "ambiguous",
    "7 8": "ambiguous",
    "7,5": "ambiguous",
    "8/20": "ambiguous",
}


def reason_of(text: str, **mode: bool) -> str:
    with pytest.raises(ScoreError) as caught:
        parse_score(text, **mode)
    assert str(caught.value).startswith(caught.value.reason)
    return caught.value.reason


@pytest.mark.parametrize("text", SCORES)
def test_scores(text: str) -> None:
    assert parse_score(text) == SCORES[text]


@pytest.mark.parametrize("text", FAILURES)
def test_failures(text: str) -> None:
    assert reason_of(text) == FAILURES[text]


def test_every_reason_is_met_and_none_is_new() -> None:
    assert {*FAILURES.values(), "truncated"} == set(REASONS)


def as_printed(text: str) -> int:
    """The paper's pattern (appendix G.1): after "Score:", else at the start."""
    rest = text.rpartition("Score:")[2]
    found = re.match(r"[\s*_#`\"'“”>]*([1-9]|10)", rest)
    return int(found[1]) if found else 0


def check_numbers(parser: Callable[[str], int]) -> None:
    @given(scores, st.sampled_from(["", "Score: ", "The response has 3 parts.\nScore:"]), marks, ends)
    def check(score: int, lead: str, before: str, after: str) -> None:
        assert parser(f"{lead}{before}{score}{after}") == score

    check()


def test_a_number_in_any_dress() -> None:
    check_numbers(parse_score)


def test_the_printed_pattern_would_not_do() -> None:
    assert as_printed("10") == 1
    assert as_printed("7.5") == 7
    with pytest.raises(AssertionError):
        check_numbers(as_printed)


@given(st.integers(-(10**6), 10**6), marks)
def test_any_other_integer_is_out_of_range(number: int, before: str) -> None:
    if 1 <= number <= 10:
        assert parse_score(f"{before}{number}") == number
    else:
        assert reason_of(f"{before}{number}") == "out_of_range"


@given(scores, scores, st.sampled_from(["-", "–", "—", " - ", " or ", " to ", "/10 or "]), st.booleans())
def test_any_interval_is_a_range(low: int, high: int, between: str, cot: bool) -> None:
    for lead in ("Score: ", ""):
        assert reason_of(f"{lead}{low}{between}{high}", cot=cot) == "range"


@given(words, st.booleans())
def test_without_a_number_it_is_verbal_or_cut_off(text: str, cot: bool) -> None:
    assert reason_of(text, cot=cot) == "verbal"
    assert reason_of(text, cot=cot, truncated=True) == "truncated"


@given(words, scores, marks)
def test_reasoning_before_the_score_does_not_matter(text: str, score: int, before: str) -> None:
    for lead in (text, f"1. {text}\n2. {text} 11 of 12.", f"Score: 3, or rather\n{text}"):
        assert parse_score(f"{lead}\nScore: {before}{score}", cot=True) == score


def test_a_chain_of_thought_that_begins_with_a_number_has_given_no_score() -> None:
    chain = "1. The response names the cause.\n2. It is short."
    assert parse_score("**7**/10.", cot=True) == 7
    assert reason_of(chain, cot=True) == "ambiguous"
    assert reason_of(chain, cot=True, truncated=True) == "truncated"
    assert parse_score(chain) == 1  # asked for one integer only: the paper's rule, and its risk


@pytest.mark.parametrize("lead", ["", "Score: ", "**Score:** "])
def test_a_number_at_the_cut_may_go_on(lead: str) -> None:
    for text in ("1", "7", "7.", "7-"):
        assert reason_of(f"{lead}{text}", truncated=True) == "truncated"
    assert parse_score(f"{lead}7\n", truncated=True) == 7
    assert parse_score(f"{lead}7. The response", truncated=True) == 7
    assert parse_score(f"{lead}7", truncated=False) == 7


def test_cut_off_before_or_after_the_anchor() -> None:
    assert reason_of("The response is long and", cot=True, truncated=True) == "truncated"
    assert reason_of("The response is long.\n**Score:** ", cot=True, truncated=True) == "truncated"
    assert reason_of("The response is long.\nScore: high, because", cot=True, truncated=True) == "verbal"
