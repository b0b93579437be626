"""Verbosity, Sentiment and Authority as deterministic edits of an answer (judge paper, table 1 and appendix D).

The paper lets a language model write these three; :mod:`biasgeom.rewriting` does so too. Here rules stand in for it,
whose words are in ``data/judge``, so that the default needs no writer. Every content word of the answer stays, and its
hedges: how tentative an answer is belongs to its content here. The module knows no model.
"""

import functools
import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from biasgeom import data

RULED = ("Verbosity", "Sentiment")
POLARITIES = ("positive", "negative")
WORDINGS = ("published", "held_out_1", "held_out_2")
"""Wordings of all fourteen cues: table 8's, and two of this project's in other words."""

PLACES = ("first", "middle", "last", "end", "anywhere", "otherwise")
"""Where a rule of ``rewrites.csv`` acts: before the first, a middle or the last sentence, after the text, on what its
``find`` matches, or there only if nothing has changed so far."""

OTHER = "other"
"""The reference of a text from none of the twelve domains: the one printed in table 8."""

# Not after an initial or an abbreviation; what ends the text ends a sentence in any case.
_STOP = r"(?<!\b[A-Z])(?<!\be\.g)(?<!\bi\.e)(?<!\bDr)(?<!\bMr)(?<!\bMs)(?<!\bSt)(?<!\bvs)[.!?]+[\"'”’)\]]*(?=\s)"
_SENTENCE = re.compile(rf"\S.*?(?P<stop>{_STOP}|(?:[.!?]+[\"'”’)\]]*)?\s*\Z)", re.DOTALL)
_CONCLUSION = re.compile(r"(?:Therefore|Thus|Hence|So)\b")

_PLAIN_WORDS = (
    "a an the this that these those it its he she they we you one his her their our your my there here all any both "
    "each every either neither few many most much more other some several such no none nobody nothing not only even "
    "when where while who what why how which whether if because since although though as until unless once than "
    "in on at by for from of to with without under over between among during after before above below behind through "
    "into about against along across around near like unlike within apart despite perhaps maybe probably possibly "
    "likely often usually sometimes always never is are was were do does did can may might will would should could "
    "people someone somebody anyone everyone everything something half two three four five six seven eight nine ten "
    "eleven twelve twenty thirty forty fifty sixty seventy eighty ninety"
)
"""Words that lose their capital when something is set before their sentence; any other may be a name."""


class Rule(NamedTuple):
    """A row of ``rewrites.csv``: where it acts, what it looks for ("-": nothing), and its words ("-": none)."""

    place: str
    find: str
    text: str


def sentences(text: str) -> list[re.Match[str]]:
    """The sentences of a text; the group ``stop`` of each is the punctuation that ends it (empty without any)."""
    return list(_SENTENCE.finditer(text))


def opened(answer: str, rules: Sequence[Rule]) -> str:
    """Phrases set before the first, a middle (of three and more) and the last sentence, and after the text.

    Of several phrases for one place, the answer's checksum chooses, so that the same answer always gets the same.
    """
    found = sentences(answer)
    places = {"first": 0, "middle": len(found) // 2, "last": len(found) - 1}
    if len(found) < 3:
        del places["middle"]
    if len(found) < 2:
        del places["last"]
    phrases = {place: _one_of(answer, [rule.text for rule in rules if rule.place == place]) for place, *_ in rules}
    text = answer
    for place, number in sorted(places.items(), key=lambda item: -item[1]):
        if place in phrases:
            start = found[number].start()
            text = text[:start] + _before(phrases[place], text[start:])
    return f"{text} {phrases['end']}" if "end" in phrases else text


def _one_of(answer: str, texts: list[str]) -> str:
    return texts[zlib.crc32(answer.encode()) % len(texts)]


def _before(phrase: str, text: str) -> str:
    """A phrase and the sentence it opens; before what may be a name, a colon takes the comma's place."""
    if phrase[-1] in ".!?:":
        return f"{phrase} {text}"
    first = re.match(r"[\w']*", text)[0]
    if first.split("'")[0].lower() in _PLAIN_WORDS.split():
        return f"{phrase} {text[0].lower()}{text[1:]}"
    # "I" and "I'm" stay as they are.
    return f"{phrase} {text}" if first.split("'")[0] == "I" else f"{phrase.rstrip(',')}: {text}"


def trimmed(answer: str, rules: Sequence[Rule]) -> str:
    """The answer without words that it can do without; unchanged where no rule fits.

    The rules are applied in turn, those whose place is ``otherwise`` until one has changed the answer.
    """
    text = answer
    for rule in rules:
        if rule.place == "anywhere" or text == answer:
            text = _replaced(text, re.compile(rule.find, re.IGNORECASE), "" if rule.text == "-" else rule.text)
    return text


def _replaced(text: str, pattern: re.Pattern[str], replacement: str) -> str:
    """Every match replaced, or cut together with the space after it; a capital passes to what takes its place."""
    parts, end, capital = [], 0, False
    for match in pattern.finditer(text):
        new = match.expand(replacement)
        between = text[end : match.start()]
        parts += [between[:1].upper() + between[1:] if capital else between]
        end = match.end() + (not new and text[match.end() : match.end() + 1] == " ")
        capital = match[0][0].isupper() and not new
        parts += [new[0].upper() + new[1:] if new and match[0][0].isupper() else new]
    rest = text[end:]
    return "".join([*parts, rest[:1].upper() + rest[1:] if capital else rest])


def cited(answer: str, inline: str, note: str) -> str:
    """A citation where the last claim but the conclusion ends, and a reference after the text.

    As in table 8, it stands before the full stop of the last sentence but one, of the only one if there is no other.
    """
    found = sentences(answer)
    return f"{_marked(answer, found[-2:][:1], inline)} {note}"


def doubted(answer: str, inline: str, note: str) -> str:
    """A mark at the end of every sentence, and a note after the text.

    As in table 8, a conclusion ("Therefore, ...") is no claim of its own and gets none.
    """
    found = sentences(answer)
    claims = [sentence for sentence in found if not _CONCLUSION.match(sentence[0])]
    return f"{_marked(answer, claims or found, inline)} {note}"


def _marked(answer: str, found: list[re.Match[str]], mark: str) -> str:
    text = answer
    for sentence in reversed(found):
        place = sentence.start("stop")
        text = f"{text[:place]} {mark}{text[place:]}"
    return text


def reference(text: str, domain: str) -> str:
    """``text`` with the placeholders filled by the invented reference of a domain, or of :data:`OTHER`."""
    table = references()
    row = table.loc[domain if domain in table.index else OTHER]
    for column, value in row.items():
        text = text.replace(f"[{column.upper()}]", value)
    return text


@functools.cache
def references() -> pd.DataFrame:
    """One invented reference a domain (the index): author, initials, title, journal. Nobody has written them."""
    table = data.table("judge/references.csv", ["domain", "author", "initials", "title", "journal"], ["domain"])
    return table.set_index("domain")


@functools.cache
def rules() -> dict[tuple[str, str, str], list[Rule]]:
    """The words of Verbosity and Sentiment by bias, polarity and wording.

    Raises
    ------
    ValueError
        A bias, polarity, wording or place that is unknown, or a ``find`` that is no regular expression.
    """
    columns = ["bias", "polarity", "wording", "place", "find", "text"]
    found: dict[tuple[str, str, str], list[Rule]] = {}
    known = {"bias": RULED, "polarity": POLARITIES, "wording": WORDINGS, "place": PLACES}
    table = data.table("judge/rewrites.csv", columns, columns, known=known)
    for bias, polarity, wording, *rest in table.itertuples(index=False):
        rule = Rule(*rest)
        try:
            re.compile(rule.find)
        except re.error as error:
            raise ValueError(f"rewrites.csv: {rule.find!r} is no regular expression ({error})") from error
        found.setdefault((bias, polarity, wording), []).append(rule)
    return found
