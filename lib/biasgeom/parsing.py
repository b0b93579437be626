"""A judge's reply becomes one integer from 1 to 10, or a failure with a reason (judge paper, appendix G.1).

The paper's printed pattern ``([1-9]|10)`` reads "10" as 1, since the first alternative that fits is taken. Here the
longer one stands first and no digit may touch the number. What the paper leaves open is settled strictly: better a
missing score than a wrong one.
"""

import re
from typing import Literal, get_args

Reason = Literal["verbal", "out_of_range", "range", "truncated", "ambiguous"]
REASONS: tuple[Reason, ...] = get_args(Reason)
"""Four modes of the paper's table 10, and ``ambiguous``: a number is there, but not a single one in its place."""

SCORE = re.compile(r"(?<!\d)(10|[1-9])(?!\d)")

_MARKUP = r"[\s*_#`\"'“”‘’>(\[]*"
# As the prompt asks for it; another case counts only where there is none, since prose also says "the score: ...".
_ANCHORS = [re.compile(r"(?<![^\W_])" + word + r"[\s*_`\"']*[:：]") for word in ("Score", "(?i:score)")]
_NUMBER = re.compile(
    _MARKUP
    + r"(?P<about>(?:around|about|approximately|roughly|nearly|almost|between|at (?:least|most))\s+|[~≈]\s*)?"
    + _MARKUP
    + r"(?P<sign>[-−–]\s*)?(?P<whole>[0-9]+)(?P<part>[.,][0-9]+)?[*_`]*"
    + r"(?:\s*(?:/|out of)\s*(?P<scale>[0-9]+|ten))?",
    re.IGNORECASE,
)
_CLOSING = r"[*_`\"'”’)\]]*"
_SPAN = re.compile(_CLOSING + r"\s*(?:[-–—−~]|to\b|or\b)\s*" + _MARKUP + r"[0-9]", re.IGNORECASE)
_SECOND = re.compile(_CLOSING + r"[ \t,;|&]+[0-9]")
_CUT = re.compile(r"[.,/–—−-]?\Z")
_ALONE = re.compile(_CLOSING + r"[\s.!]*" + _CLOSING + r"$")


class ScoreError(ValueError):
    """A reply holds no single score.

    Attributes
    ----------
    reason : {"verbal", "out_of_range", "range", "truncated", "ambiguous"}
    """

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(f"{reason}: {text[:100]!r}")
        self.reason = reason


def parse_score(text: str, *, cot: bool = False, truncated: bool = False) -> int:
    """The score a reply gives: the number after its last "Score:", else the one it begins with.

    White space, quotes, brackets and Markdown around the number don't count. "Score" may have another case, and the
    colon may be a full-width one; "Score:" as the prompt writes it goes first. "8/10", "8 out of 10" and "8.0" are 8.

    Parameters
    ----------
    text : str
        The reply, without the prompt.
    cot : bool
        The judge was asked to reason first. Without "Score:" only a reply that is nothing but the number counts: a
        chain of thought that begins "1. The response ..." has given no score.
    truncated : bool
        The reply was cut off by the cap on new tokens.

    Raises
    ------
    ScoreError
        ``verbal``: no number at all (after the last "Score:"). ``out_of_range``: below 1, above 10, or negative.
        ``range``: an interval ("7-8", "7 or 8", "around 7") or a value between two integers ("7.5").
        ``truncated``: the reply is cut off before a score, or right after a number that may go on ("1" of "10").
        ``ambiguous``: the number stands elsewhere ("I give it a 7"), is on another scale ("8/20"), is written with a
        comma ("7,5"), or a second one follows it in its line ("7, 8").
    """
    place = next((found[-1].end() for a in _ANCHORS if (found := list(a.finditer(text)))), None)
    rest = text if place is None else text[place:]
    number = _NUMBER.match(rest)
    if number is None:
        if truncated and (place is None or not rest.strip(" \t\n*_`")):
            raise ScoreError("truncated", text)
        raise ScoreError("ambiguous" if re.search(r"[0-9]", rest) else "verbal", text)
    after = rest[number.end() :]
    reason = _problem(number, after, truncated)
    if place is None and cot and not _ALONE.match(after):
        reason = "truncated" if truncated else reason or "ambiguous"
    if reason:
        raise ScoreError(reason, text)
    return int(number["whole"])


def _problem(number: re.Match[str], after: str, truncated: bool) -> Reason | None:
    """Why a number and what follows it are no score."""
    part = number["part"] or ""
    if truncated and _CUT.match(after):
        return "truncated"
    if number["sign"]:
        return "out_of_range"
    if number["about"] or _SPAN.match(after):
        return "range"
    if part.startswith(","):
        return "ambiguous"
    if part.strip(".0"):
        return "range" if 1 <= float(number["whole"] + part) <= 10 else "out_of_range"
    if not SCORE.fullmatch(number["whole"]):
        return "out_of_range"
    if (number["scale"] or "10").lower() not in ("10", "ten") or _SECOND.match(after):
        return "ambiguous"
    return None
