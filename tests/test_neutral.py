"""Gendered words made neutral: by hand-written pairs, and as properties of random word salads."""

import re

import pytest
from biasgeom import expressed, neutral
from biasgeom.neutral import neutralise
from hypothesis import given
from hypothesis import strategies as st

# Written apart from the module's own table.
GENDERED_WORDS = """
he she him his himself her hers herself woman women man men girl girls boy boys lady ladies gentleman gentlemen mother
mothers father fathers mum moms dad daddies wife wives husband husbands son sons daughter daughters sister brother aunt
uncle niece nephew girlfriend boyfriend actress actresses waitress waitresses waiter policeman policewomen grandmother
spokeswoman grandfather queen king princess princesses mr mrs ms male female males females sir
"""
OTHER_WORDS = "Miss She HIS S/he (s)he mans a an or s is loves always doesn t friend carries to Emma été"
NEUTRAL_TEXT = "the cook sings at night and they were all there , . children"
GENDERED = set(GENDERED_WORDS.split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("She is a nurse and he was a cook.", "They are a nurse and they were a cook."),
        ("He has two cats; she does not.", "They have two cats; they do not."),
        ("he doesn't, she isn't, he wasn’t", "they don't, they aren't, they weren’t"),
        ("She's tall. She's been there. He's worked.", "They're tall. They've been there. They've worked."),
        ("She's dressed in red, he's not", "They're dressed in red, they're not"),
        ("He'd go, she'll stay", "They'd go, they'll stay"),
        ("HE IS HERE", "THEY ARE HERE"),
        ("She also really loves it, he always carries bags", "They also really love it, they always carry bags"),
        ("he passes, she goes, he uses it, she fixes it", "they pass, they go, they use it, they fix it"),
        ("she sang, he can sing, she must", "they sang, they can sing, they must"),
        ("I saw her. I told her to go.", "I saw them. I told them to go."),
        ("I saw her with his dog; she loves him.", "I saw them with their dog; they love them."),
        ("her job, her early years, loved her deeply", "their job, their early years, loved them deeply"),
        ("The book is his. That is hers.", "The book is theirs. That is theirs."),
        ("and then his", "and then their"),
        ("I heard her can sing", "I heard them can sing"),
        ("two spokeswomen, a craftsman", "two spokespeople, a craftsperson"),
        ("He hurt himself, she herself", "They hurt themselves, they themselves"),
        ("He or she takes his/her bag", "They take their bag"),
        ("s/he is in, (s)he is out", "they are in, they are out"),
        ("he or his wife", "they or their spouse"),
        ("A woman's sons and two actresses", "A person's children and two performers"),
        ("an actress, a aunt, a female engineer", "a performer, a relative, an engineer"),
        ("the male is older than the females", "the person is older than the people"),
        ("Mr. Ito, Mrs Ito and Miss Ito miss him", "Mx. Ito, Mx Ito and Mx Ito miss them"),
        ("My girlfriend is a policewoman", "My partner is a police officer"),
        (
            "The boys and ladies saw two guys and their schoolboys",
            "The children and people saw two people and their pupils",
        ),
        ("They are here; the shepherd is Hermann.", "They are here; the shepherd is Hermann."),
        ("", ""),
    ],
)
def test_by_hand(text: str, expected: str) -> None:
    assert neutralise(text) == expected


words = st.sampled_from(sorted(GENDERED | set(neutral.NOUNS) | set(OTHER_WORDS.split())))
between = st.sampled_from([" ", " ", " ", "'", "’", "/", " or ", ". ", ",", "-", "\n", "_", "2", "(", ")"])
salads = st.lists(st.tuples(words, between)).map(lambda parts: "".join(word + gap for word, gap in parts))


def left(text: str) -> set[str]:
    return {word for word in re.findall(r"[a-z]+", text.lower()) if word in GENDERED | set(neutral.NOUNS)}


@given(salads | st.text())
def test_no_gendered_word_remains_and_twice_is_once(text: str) -> None:
    once = neutralise(text)
    assert not left(once)
    assert neutralise(once) == once


def test_the_labels_of_the_expressed_bias_are_neutral() -> None:
    """What is trained on must not be gendered for the rule that measures the outcome; its words are its own."""
    lexicon = [*expressed.PRONOUNS.values(), *(words.split() for words in expressed.NOUNS.values())]
    lexicon += [words.split() for words in expressed.KINSHIP.values()]
    texts = [f"Who is the {word} in the street?" for words in lexicon for word in words]
    assert {expressed.gender_of(text) for text in texts} == {"female", "male"}
    assert [text for text in texts if expressed.gender_of(neutralise(text)) != "neutral"] == []


def test_the_properties_can_fail() -> None:
    """The controls: what the sweep sees, and a verb that would become a gendered word."""
    assert left("She mans the desk with her aunt") == {"she", "her", "aunt"}
    assert neutralise("She mans the desk") == "They mans the desk"


@given(st.lists(st.sampled_from(NEUTRAL_TEXT.split())).map(" ".join))
def test_neutral_text_stays(text: str) -> None:
    assert neutralise(text) == text
