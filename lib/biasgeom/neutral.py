"""English text with its gendered words made neutral: singular *they*, *parent* for *mother*.

Limits, all of them harmless for training text that is mostly one person's description:

* names stay (but King, as a surname, is taken for the word), and so do words outside :data:`NOUNS`;
* the verb agrees with *they* only if it follows the pronoun directly or after adverbs: in "she sings and dances" the
  second verb stays, and so does the verb before the pronoun in "Is she at home?";
* *her* is *their* or *them* by the word that follows, which is wrong in "I gave her flowers";
* "he's" is "they're" unless one of :data:`PARTICIPLES` follows.
"""

import re


def _words(text: str) -> set[str]:
    return set(text.split())


NEUTRAL: dict[tuple[str, str], str] = {
    ("person", "people"): "woman man lady gentleman guy gal male female bloke fella dame",
    ("child", "children"): "girl boy daughter son lass lad stepdaughter stepson",
    ("parent", "parents"): "mother father mom mum dad mommy mummy daddy mama papa stepmother stepfather",
    ("grandparent", "grandparents"): "grandmother grandfather grandma grandpa granny grandad",
    ("grandchild", "grandchildren"): "granddaughter grandson",
    ("spouse", "spouses"): "wife husband",
    ("newlywed", "newlyweds"): "bride bridegroom",
    ("partner", "partners"): "girlfriend boyfriend",
    ("sibling", "siblings"): "sister brother stepsister stepbrother",
    ("relative", "relatives"): "aunt uncle niece nephew auntie",
    ("monarch", "monarchs"): "queen king",
    ("royal", "royals"): "princess prince",
    ("performer", "performers"): "actress actor",
    ("pupil", "pupils"): "schoolgirl schoolboy",
    ("widowed person", "widowed people"): "widow widower",
    ("server", "servers"): "waitress waiter",
    ("host", "hosts"): "hostess",
    ("hero", "heroes"): "heroine",
    ("flight attendant", "flight attendants"): "stewardess steward",
    ("police officer", "police officers"): "policewoman policeman",
    ("firefighter", "firefighters"): "firewoman fireman",
    ("friend", "friends"): "madam sir",
    ("mx", "mx"): "mrs mr ms",
    **{
        (f"{stem}person", f"{stem}people"): f"{stem}woman {stem}man"
        for stem in sorted(_words("business camera chair congress crafts horse sales spokes sports states trades"))
    },
}
"""Neutral word, singular and plural, and the gendered words it stands for."""


def _plural(noun: str) -> str:
    if noun.endswith("man"):
        return noun[:-2] + "en"
    if noun.endswith("wife"):
        return noun[:-2] + "ves"
    if noun.endswith("y") and noun[-2] not in "aeiou":  # ladies, but boys
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith("s") else "s")


NOUNS: dict[str, str] = {
    form: neutral
    for (singular, plural), words in NEUTRAL.items()
    for word in words.split()
    for form, neutral in ((word, singular), (_plural(word), plural))
}
"""Gendered noun or title, in lower case → its neutral word."""

SUBJECTS = {"he", "she"}
PRONOUNS = SUBJECTS | {"him", "his", "himself", "her", "hers", "herself"}

IRREGULAR = {
    "is": "are",
    "was": "were",
    "has": "have",
    "does": "do",
    # Before n't, which is a word of its own here.
    "isn": "aren",
    "wasn": "weren",
    "hasn": "haven",
    "doesn": "don",
}
ADVERBS = _words(
    "also always already even ever just maybe never now often once only perhaps seldom sometimes soon still"
)
NOT_VERBS = _words("across as besides its others plus this thus towards us whereas yes")
PARTICIPLES = _words(
    "become been begun come decided done finished gone got gotten grown had known learned lived lost made moved seen "
    "started stopped taken taught tried won worked written"
)
# What follows "her" or "his" where it stands alone. Words that are nouns as well ("back", "home") are left out.
FUNCTION_WORDS = _words(
    "a about after again all an and are around as at away because before but by can could did do does down for from "
    "had has have he how if in into is it may might must not of off on onto or out over she should since so some than "
    "that the their then they this to too towards until up was we were what when where whether which while who why "
    "will with without would you"
)
LY_BEFORE_NOUNS = _words("belly daily early elderly family friendly lonely lovely only reply weekly")

WORD = re.compile(r"([^\W\d_]+)")
APOSTROPHES = ("'", "’")
_PAIRS = (("he", "she"), ("him", "her"), ("his", "hers"), ("his", "her"), ("himself", "herself"))
DOUBLE = re.compile(
    "|".join(rf"\b{first}(?:\s+or\s+|\s*/\s*){second}\b" for pair in _PAIRS for first, second in (pair, pair[::-1]))
    + r"|(?:\bs/|\(s\))he\b",
    re.IGNORECASE,
)
"""he or she, his/her, s/he: one pronoun in two forms."""


def neutralise(text: str) -> str:
    """The text with gendered pronouns, nouns and titles made neutral; case and everything else is kept.

    Idempotent. No word of :data:`NOUNS` or :data:`PRONOUNS` remains. See the module for the limits.
    """
    # Odd places hold the words, even places what stands between them.
    pieces = _without_adjectives(WORD.split(DOUBLE.sub(_single, text)))
    agree = False
    for place in range(1, len(pieces), 2):
        word, after = pieces[place].lower(), _follower(pieces, place)
        agree = agree and pieces[place - 1].isspace()
        if word in SUBJECTS:
            _put(pieces, place, "they")
            if pieces[place + 1] in APOSTROPHES and "".join(pieces[place + 2 : place + 3]).lower() == "s":
                _put(pieces, place + 2, "ve" if _follower(pieces, place + 2).lower() in PARTICIPLES else "re")
            agree = True
            continue
        if word in PRONOUNS:
            _put(pieces, place, _they_form(word, after, pieces[place + 1]))
        elif word in NOUNS:
            _put(pieces, place, NOUNS[word])
            _fit_article(pieces, place)
        elif word == "miss" and pieces[place].istitle() and pieces[place + 1].isspace() and after.istitle():
            _put(pieces, place, "mx")
        elif agree:
            if word in ADVERBS or (word.endswith("ly") and len(word) > 3):
                continue
            if (base := _base_form(word)) != word:
                _put(pieces, place, base)
        agree = False
    return "".join(pieces)


def _single(match: re.Match[str]) -> str:
    words = WORD.findall(match.group())
    # The masculine form: "her" alone does not say whether it is "their" or "them".
    return _like(words[0], next(word.lower() for word in words if word.lower() in ("he", "him", "his", "himself")))


def _without_adjectives(pieces: list[str]) -> list[str]:
    """Leave out "male" and "female" before a noun: "a female engineer" is "an engineer"."""
    kept = pieces[:1]
    for place in range(1, len(pieces), 2):
        after = _follower(pieces, place).lower()
        if pieces[place].lower() in ("male", "female") and after and after not in FUNCTION_WORDS:
            if len(kept) > 1 and kept[-1].isspace():
                _match_article(kept, len(kept) - 2, after)
            continue
        kept += pieces[place : place + 2]
    return kept


def _follower(pieces: list[str], place: int) -> str:
    """The next word, if only white space stands between."""
    return pieces[place + 2] if pieces[place + 1].isspace() and place + 2 < len(pieces) else ""


def _put(pieces: list[str], place: int, word: str) -> None:
    pieces[place] = _like(pieces[place], word)


def _like(model: str, word: str) -> str:
    if len(model) > 1 and model.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if model[:1].isupper() else word


def _they_form(pronoun: str, after: str, gap: str) -> str:
    after = after.lower()
    if pronoun == "her":
        adverb = after.endswith("ly") and after not in LY_BEFORE_NOUNS
        return "them" if not after or after in FUNCTION_WORDS or adverb else "their"
    if pronoun == "his":
        # At the very end the text was cut off, most likely before a noun.
        return "theirs" if after in FUNCTION_WORDS or (not after and gap.strip()) else "their"
    return {"him": "them", "hers": "theirs"}.get(pronoun, "themselves")


def _fit_article(pieces: list[str], place: int) -> None:
    if place > 2 and pieces[place - 1].isspace():
        _match_article(pieces, place - 2, pieces[place])


def _match_article(pieces: list[str], place: int, noun: str) -> None:
    if pieces[place].lower() in ("a", "an"):
        pieces[place] = pieces[place][0] + ("n" if noun[:1].lower() in tuple("aeiou") else "")


def _base_form(verb: str) -> str:
    """The form that goes with *they*: is → are, carries → carry, passes → pass, sings → sing; sang stays."""
    if verb in IRREGULAR:
        return IRREGULAR[verb]
    if not verb.endswith("s") or verb.endswith("ss") or verb in NOT_VERBS:
        return verb
    if verb.endswith("ies") and len(verb) > 4:
        base = verb[:-3] + "y"
    elif verb.endswith(("sses", "shes", "ches", "xes", "zzes", "oes")):
        base = verb[:-2]
    else:
        base = verb[:-1]
    # "He mans the desk": a gendered word must not come out of it.
    return verb if base in NOUNS or base in PRONOUNS else base
