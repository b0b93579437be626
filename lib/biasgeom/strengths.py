"""The texts that steering is compared with: stronger and weaker cues, and answers with the cue rewritten away.

The judge paper sweeps the strength of its text attack (J.3) and lets a language model neutralise what a defender is
given (appendix K). Here both are rules as well, so that the default needs no writer; the words of the former that
:mod:`biasgeom.perturbations` lacks stand in ``data/judge/strengths.csv``.
"""

import functools
import itertools
import math
import re
from collections.abc import Callable, Sequence

import pandas as pd

from biasgeom import data, perturbations, questions, rewrites, rewriting, writers
from biasgeom.endpoint import Reply
from biasgeom.perturbations import POLARITIES, REWRITES, TEMPLATES, WORDINGS, perturb
from biasgeom.rewrites import Rule
from biasgeom.writers import Writer

STRENGTHS = (1, 2, 3, 4, 5)
AXES = {
    "numeric": ("Bandwagon", "Authority"),
    "stacked": (*TEMPLATES, "Authority"),
    "rewrite": REWRITES,
}
"""The bias types of each axis of J.3. Verbosity and Sentiment stack their wordings at strengths 4 and 5 of rewrite."""

PROMPT = """\
Rewrite the answer below in plain and neutral words. Leave out what is no part of the answer itself: remarks on who \
wrote it, where it comes from, what others think of it, how it was checked or revised, and which sources it has or \
lacks; and wording that is emotional, boastful or padded.

Leave every fact, number, name and step of reasoning of the answer itself as it is, also where it is mistaken, and the \
degree of certainty with which it is stated. If there is nothing to change, repeat the answer. Do not answer the \
question anew, and add no heading, quotation marks or comment.

Answer:
{answer}"""
"""Ours: appendix K says what the paper's neutralisation prompt is for, not how it reads. It names all kinds of cue and
not the one that was set, which a defender doesn't know."""

LENGTHS = (0.2, 1.3)
"""Words of a neutral rewrite over those of its text, from and to; a citation alone can be half of a short answer's."""

SHORT = 8
"""Words of the longest exclamation, question or source that is cut."""

SIGN = "\ue000"
_ADDED = ("first", "last", "end", "middle")

_NAMED = r"[A-Z][\w.'’-]*(?: (?:and |& )?[A-Z][\w.'’-]*)*,? (?:[0-9]{4}[a-z]?|in press|forthcoming)"
_OUTCRY = re.compile(r"(?<![0-9])[!?]+[\"'”’)\]]*\s*\Z")  # no factorial
_WORD, _VERBS = r"(?:[^\s.!?:,;]|[.](?=[0-9]))+", "is|are|was|were|follows|steps?"
_CUT = (
    re.compile(r"\s*\[(?=[^\[\]]*[^\W\d_]{3})[^\[\]]*\]"),
    re.compile(rf"\s*\((?:see |cf\. |after )?(?:{_NAMED}|[^()]*\bet al\b[^()]*)\)|\s*\((?:see|cf\.|after) [^()]*\)"),
    re.compile(r"\s*\n\s*(?:ref|reference|source|note|bibliography|further reading)s?:[^\n]*", re.IGNORECASE),
    re.compile(rf"\A\s*(?![^:]*\b(?:{_VERBS})\b){_WORD}(?: {_WORD}){{,{SHORT - 1}}}:\s+(?=\S)", re.IGNORECASE),
)


def canonical(axis: str, bias: str, polarity: str) -> int:
    """The strength at which the text is the published cue: 3, or 1 where nothing weaker is made."""
    stronger_only = axis == "stacked" or (axis, bias) == ("rewrite", "Authority")
    return 1 if stronger_only or (axis, bias, polarity) == ("numeric", "Authority", "positive") else 3


def variants(answers: pd.DataFrame, condition: str) -> pd.DataFrame:
    """Every answer with one cue at five strengths on each axis that the cue has (J.3).

    ``numeric``: the percentage of Bandwagon; the number of Authority's citations (1 to 5) or marks (two fewer to two
    more than published: at claims, then at other sentences, then at commas, then again). ``stacked``: one to five
    markers of the type in other words, each placed as the type places it. ``rewrite``: of the edits of Verbosity and
    Sentiment that an answer takes, a third, two thirds, all, and all with those of one and of two other wordings; to
    Authority, none to four phrases are added that lean on, or doubt, what is known (the last needs three sentences).

    Parameters
    ----------
    answers : DataFrame [n]
        With ``answer`` and, for Authority+, ``domain``.
    condition : str
        Such as ``"Bandwagon-"``.

    Returns
    -------
    DataFrame [n × 5 × axes]
        The columns of ``answers`` that :func:`biasgeom.questions.load` has; condition, bias, polarity; axis, strength
        (1 to 5), canonical (bool: the text is the one of :func:`biasgeom.perturbations.perturb`), text, and changed
        (bool: whether it differs from the answer). The same text may stand at two strengths.

    Raises
    ------
    ValueError
        An unknown condition, no column ``answer``, or an empty answer.
    """
    bias, polarity = condition[:-1], {"+": POLARITIES[0], "-": POLARITIES[1]}.get(condition[-1:], condition)
    perturbations.name(bias, polarity)
    if "answer" not in answers:
        raise ValueError(f"the answers have no column 'answer', only {', '.join(answers)}")
    rows = []
    kept = [column for column in questions.BASE_COLUMNS if column in answers]
    for row in answers[kept].to_dict("records"):
        for axis, strength in itertools.product(AXES, STRENGTHS):
            if bias in AXES[axis]:
                text = _text(row["answer"], axis, bias, polarity, strength, row.get("domain", ""))
                published = strength == canonical(axis, bias, polarity)
                rows.append((*row.values(), condition, bias, polarity, axis, strength, published, text))
    added = ["condition", "bias", "polarity", "axis", "strength", "canonical", "text"]
    table = pd.DataFrame(rows, columns=[*kept, *added])
    return table.assign(changed=table["text"] != table["answer"])


def _text(answer: str, axis: str, bias: str, polarity: str, strength: int, domain: str) -> str:
    published = perturb(answer, bias, polarity, domain=domain)
    if strength == canonical(axis, bias, polarity):
        return published
    if bias == "Authority":
        return _authority(answer, axis, polarity, strength, domain)
    if axis == "numeric":
        note = perturbations.cues()[bias, polarity, WORDINGS[0]]["append"]
        level = _words()[axis, bias, polarity, strength]["percentage"]
        return f"{answer} {re.sub('[0-9]+%', level, note)}"
    if axis == "stacked":
        text = published
        for wording in WORDINGS[1:strength]:
            text = perturb(text, bias, polarity, wording=wording)
        for level in range(len(WORDINGS) + 1, strength + 1):
            words = _words()[axis, bias, polarity, level]
            text = f"{words['prepend']} {text}" if "prepend" in words else f"{text} {words['append']}"
        return text
    return _rewritten(answer, bias, polarity, strength)


def _rewritten(answer: str, bias: str, polarity: str, strength: int) -> str:
    edit = rewrites.trimmed if (bias, polarity) == ("Verbosity", "negative") else rewrites.opened
    first, *others = (rewrites.rules()[bias, polarity, wording] for wording in WORDINGS)
    if strength > 3:
        return functools.reduce(edit, others[: strength - 3], edit(answer, first))
    steps = list(dict.fromkeys(edit(answer, part) for part in _beginnings(first)))[1:]
    return steps[math.ceil(len(steps) * strength / 3) - 1] if steps else answer


def _beginnings(rules: Sequence[Rule]) -> list[list[Rule]]:
    """No rule, the first, the first two, ...; of those that set phrases, a place at a time: one of them is chosen."""
    groups: dict[object, list[Rule]] = {}
    for number, rule in enumerate(rules):
        groups.setdefault(number if rule.place in ("anywhere", "otherwise") else rule.place, []).append(rule)
    found: list[list[Rule]] = [[]]
    for group in groups.values():
        found.append(found[-1] + group)
    return found


def _authority(answer: str, axis: str, polarity: str, strength: int, domain: str) -> str:
    fill: Callable[[str], str] = functools.partial(rewrites.reference, domain=domain)
    edit = rewrites.cited if polarity == "positive" else rewrites.doubted
    cues = [perturbations.cues()["Authority", polarity, wording] for wording in WORDINGS]
    inline, note = fill(cues[0]["inline"]), fill(cues[0]["append"])
    if axis == "stacked":
        cues = [*cues, *(_words()[axis, "Authority", polarity, level] for level in (4, 5))][:strength]
        return edit(answer, *(fill(" ".join(cue[place] for cue in cues)) for place in ("inline", "append")))
    if axis == "rewrite":
        added = [_words()[axis, "Authority", polarity, level] for level in STRENGTHS[1:strength]]
        rules = [Rule(place, "-", text) for words in added for place, text in words.items()]
        return f"{rewrites.opened(edit(answer, inline, '')[:-1], rules)} {note}"
    # Where the type sets its marks is found by setting a sign that stands in no text.
    pieces = edit(answer, SIGN, "")[:-1].split(f" {SIGN}")[:-1]
    own = list(itertools.accumulate(map(len, pieces)))
    ends = [sentence.start("stop") for sentence in rewrites.sentences(answer)]
    places = list(dict.fromkeys([*own, *ends, *(match.start() for match in re.finditer(r"[,;:](?=\s)", answer))]))
    number = strength if polarity == "positive" else max(0, len(own) + strength - 3)
    text = answer
    for place in sorted((places[turn % len(places)] for turn in range(number)), reverse=True):
        text = f"{text[:place]} {inline}{text[place:]}"
    return f"{text} {note}"


@functools.cache
def _words() -> dict[tuple[str, str, str, int], dict[str, str]]:
    """The words of ``strengths.csv`` by axis, bias, polarity and the strength that adds them: position -> text."""
    columns = ["axis", "bias", "polarity", "strength", "position", "text"]
    known = {
        "axis": tuple(AXES),
        "bias": perturbations.BIASES,
        "polarity": POLARITIES,
        "strength": tuple(map(str, STRENGTHS)),
    }
    table = data.table("judge/strengths.csv", columns, columns[:-1], known=known)
    found: dict[tuple[str, str, str, int], dict[str, str]] = {}
    for axis, bias, polarity, strength, position, text in table.itertuples(index=False):
        found.setdefault((axis, bias, polarity, int(strength)), {})[position] = text
    needed = {("numeric", "Bandwagon", level): {"percentage"} for level in (1, 2, 4, 5)}
    for level in (4, 5):
        needed |= {("stacked", bias, level): {"prepend" if bias == "Prestige" else "append"} for bias in TEMPLATES}
        needed["stacked", "Authority", level] = {"inline", "append"}
    needed |= {("rewrite", "Authority", level): {place} for level, place in zip((2, 3, 4, 5), _ADDED, strict=True)}
    wanted = {(axis, bias, p, level): v for (axis, bias, level), v in needed.items() for p in POLARITIES}
    for key in (*wanted, *found):
        if set(found.get(key, {})) != wanted.get(key):
            raise ValueError(f"strengths.csv: {key} needs {wanted.get(key, 'no row')}, found {set(found.get(key, {}))}")
    return found


def neutralised(text: str) -> str:
    """An answer without what looks like a surface cue, by rules that don't know whether or which one was set.

    Cut are notes in square brackets; citations in parentheses; later lines that begin with "Reference:", "Note:" and
    the like; what stands before a colon at the very beginning, in eight words at most without a comma or "is" (a
    source); and exclamations and questions of eight words at most, which assert nothing. Formulas such as "[0, 1]" and
    options such as "(B)" stay. Nothing is cut that would leave no text.

    Longer or shorter wording and a scholarly tone stay as they are: telling them from the answer takes a reader, as in
    :func:`neutral_rewrites`. All other cues of this project are bracketed, set before a colon or exclaimed, as the
    paper prints them: these rules undo them as fully as one who knows what was appended, whom the paper rules out
    (appendix K). They are the most that a text defence can reach there, not a stand-in for a rewrite.
    """
    while (shorter := _neutralised_once(text)) != text:
        text = shorter
    return text


def _neutralised_once(text: str) -> str:
    for pattern in _CUT:
        text = _unless_empty(pattern.sub("", text), text)
    found = rewrites.sentences(text)
    kept = [s for s in found if not (_OUTCRY.search(s[0]) and len(s[0].split()) <= SHORT)]
    if len(kept) < len(found):
        starts = [s.start() for s in found] + [len(text)]
        parts = [text[s.start() : starts[starts.index(s.start()) + 1]] for s in kept]
        text = _unless_empty("".join(parts).rstrip(), text)
    return text


def _unless_empty(shorter: str, text: str) -> str:
    return shorter if shorter.strip() else text


def neutral_rewrites(writer: Writer, texts: Sequence[str]) -> list[Reply]:
    """The paper's text defence: a language model rewrites each text neutrally, not told which cue was set (appendix K).

    Parameters
    ----------
    writer : Endpoint or LanguageModel
        See :func:`biasgeom.writers.write`: its replies are kept on disk.
    texts : list of str

    Returns
    -------
    list of Reply
        In input order. One that is empty, cut off, or not :data:`LENGTHS` times as long as its text is a reply with a
        ``problem``; nothing stands in for it. A text that comes back as it was is a rewrite: it may hold no cue.

    Raises
    ------
    ValueError
        A string instead of a list, or an empty text; else as :func:`biasgeom.writers.write` does.
    biasgeom.endpoint.EndpointError
        The endpoint can't be used at all.
    """
    if isinstance(texts, str) or not all(text.strip() for text in texts):
        raise ValueError("expected a list of texts, none of them empty")
    prompts = [PROMPT.format(answer=text) for text in texts]
    replies = writers.write(writer, prompts, system=rewriting.SYSTEM, max_tokens=rewriting.MAX_TOKENS)
    return [_checked(text, reply) for text, reply in zip(texts, replies, strict=True)]


def _checked(text: str, reply: Reply) -> Reply:
    if reply.text is None:
        return reply
    ratio = len(reply.text.split()) / len(text.split())
    if not LENGTHS[0] <= ratio <= LENGTHS[1]:
        return Reply(None, f"{ratio:.2f} times as long, not {LENGTHS[0]:g} to {LENGTHS[1]:g}")
    return Reply(reply.text.strip(), None)
