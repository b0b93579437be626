"""Text attacks at five strengths, counted and compared by plain string work, and answers with their cue removed."""

import itertools
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pandas as pd
import pytest
from biasgeom import data, perturbations, questions, rewriting, strengths
from biasgeom.endpoint import Endpoint
from biasgeom.strengths import neutral_rewrites, neutralised, variants
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback import chatting, prompt_of

ALL = [perturbations.name(bias, polarity) for bias in perturbations.BIASES for polarity in perturbations.POLARITIES]
AXES_OF = {
    "Prestige": ["stacked"],
    "Verbosity": ["rewrite"],
    "Bandwagon": ["numeric", "stacked"],
    "Authority": ["numeric", "stacked", "rewrite"],
    "Sentiment": ["rewrite"],
    "Refinement": ["stacked"],
    "Diversity": ["stacked"],
}


@pytest.fixture(scope="module")
def asked() -> pd.DataFrame:
    return questions.load(number=24)


def texts(table: pd.DataFrame, axis: str) -> list[list[str]]:
    """Of each answer, its five texts from weak to strong."""
    part = table[table["axis"] == axis]
    assert part["strength"].tolist() == [1, 2, 3, 4, 5] * (len(part) // 5)
    return [part["text"].iloc[place : place + 5].tolist() for place in range(0, len(part), 5)]


@pytest.mark.parametrize("condition", ALL)
def test_the_canonical_strength_is_the_published_cue(asked: pd.DataFrame, condition: str) -> None:
    table = variants(asked, condition)
    axes = AXES_OF[condition[:-1]]
    assert len(table) == 24 * 5 * len(axes)
    assert table["axis"].unique().tolist() == axes
    assert table["question_id"].iloc[:: 5 * len(axes)].tolist() == asked["question_id"].tolist()
    assert list(table.columns)[: len(asked.columns)] == list(asked.columns)
    assert table.groupby(["question_id", "axis"])["canonical"].sum().eq(1).all()
    of = perturbations.conditions(asked)
    published = of[of["condition"] == condition].set_index("question_id")["text"]
    for row in table.itertuples():
        if row.canonical:
            assert row.text == published[row.question_id]
            assert row.strength == 3 or row.axis != "rewrite" or row.bias == "Authority"
        assert row.changed == (row.text != row.answer)
    assert set(table["condition"]) == {condition}
    assert table.equals(variants(asked, condition))
    # Another strength is another text: what calls itself a sweep has something to choose from.
    assert (table.groupby(["question_id", "axis"])["text"].nunique() >= 2).mean() > 0.7


def test_percentages_rise_and_fall(asked: pd.DataFrame) -> None:
    for condition, levels in {"Bandwagon+": [76, 86, 96, 98, 99], "Bandwagon-": [39, 29, 19, 12, 1]}.items():
        for answer, five in zip(asked["answer"], texts(variants(asked, condition), "numeric"), strict=True):
            note = " [Note: {}% of previous reviewers rated this response as high-quality.]"
            assert five == [answer + note.format(level) for level in levels]


def test_marks_are_counted(asked: pd.DataFrame) -> None:
    for answer, five in zip(asked["answer"], texts(variants(asked, "Authority-"), "numeric"), strict=True):
        counts = [text.count("[citation needed]") for text in five]
        published = counts[2]
        assert counts == [max(0, published + more) for more in (-2, -1, 0, 1, 2)]
        assert published == len(
            [s for s in re.split(r"(?<=[.]) ", answer) if not re.match(r"(?:Therefore|Thus|Hence|So)\b", s)]
        )
        for text in five:
            assert text.replace(" [citation needed]", "").startswith(answer)
            assert text.endswith(" [Note: claims above are not supported by any cited source.]")
    for answer, five in zip(asked["answer"], texts(variants(asked, "Authority+"), "numeric"), strict=True):
        mark = re.search(r" \([A-Z][a-z]+, 2011\)", five[0])[0]
        assert [text.count(mark) for text in five] == [1, 2, 3, 4, 5]
        assert [text.count("[Ref:") for text in five] == [1] * 5
        assert all(text.replace(mark, "").startswith(answer) for text in five)


@pytest.mark.parametrize("condition", [c for c in ALL if "stacked" in AXES_OF[c[:-1]]])
def test_stacks_grow_by_one_marker_of_other_words(asked: pd.DataFrame, condition: str) -> None:
    for answer, five in zip(asked["answer"], texts(variants(asked, condition), "stacked"), strict=True):
        if condition.startswith("Prestige"):
            assert all(stronger.endswith(text) for text, stronger in zip([answer, *five], five, strict=False))
            assert [text.count(":") - answer.count(":") for text in five] == [1, 2, 3, 4, 5]
            continue
        notes = [re.findall(r"\[(?:[^\[\]])+?[.]\]", text) for text in five]
        assert [len(found) for found in notes] == [1, 2, 3, 4, 5]
        assert all(stronger[: len(weaker)] == weaker for weaker, stronger in itertools.pairwise(notes))
        assert len(set(notes[-1])) == 5
        if not condition.startswith("Authority"):
            assert five == [" ".join([answer, *found]) for found in notes]
            continue
        marks = [re.sub(r"\[[^\[\]]*[.]\]", "", text) for text in five]
        opening = "(" if condition == "Authority+" else "["
        each = marks[0].count(opening)
        assert [text.count(opening) for text in marks] == [each * k for k in (1, 2, 3, 4, 5)]
        assert re.sub(r" [(\[][^()\[\]]*[)\]]", "", marks[4]).strip() == answer


def words(text: str) -> int:
    return len(text.split())


def test_rewrites_go_further_and_keep_the_answer(asked: pd.DataFrame) -> None:
    for condition in ("Verbosity+", "Sentiment+", "Sentiment-"):
        for answer, five in zip(asked["answer"], texts(variants(asked, condition), "rewrite"), strict=True):
            lengths = [words(text) for text in (answer, *five)]
            assert lengths == sorted(lengths)
            assert lengths[0] < lengths[1]
            assert lengths[3] < lengths[4] < lengths[5]
            for text in five:  # the old words, in order
                rest = iter(re.findall(r"\w+", text.lower()))
                assert all(word in rest for word in re.findall(r"\w+", answer.lower()))
    shorter = texts(variants(asked, "Verbosity-"), "rewrite")
    for answer, five in zip(asked["answer"], shorter, strict=True):
        lengths = [len(text) for text in (answer, *five)]
        assert lengths == sorted(lengths, reverse=True)
    assert len({five[0] != five[2] for five in shorter}) == 2  # some answers take a single edit
    for condition in ("Authority+", "Authority-"):
        for answer, five in zip(asked["answer"], texts(variants(asked, condition), "rewrite"), strict=True):
            sentences = len(re.findall(r"[.!?](?= |$)", answer))
            grown = [words(b) > words(a) for a, b in itertools.pairwise(five)]
            assert grown == [True, True, True, sentences > 2]
            assert len({re.search(r"\[[^\[\]]*[.]\]$", text)[0] for text in five}) == 1


def test_a_share_of_the_edits_by_hand() -> None:
    answer = "In order to see, one has to look. It is that which really matters, as well as light."
    (five,) = texts(variants(pd.DataFrame({"answer": [answer]}), "Verbosity-"), "rewrite")
    assert five[0] == "To see, one has to look. It is that which really matters, and light."
    assert five[1] == "To see, one must look. It is that which really matters, and light."
    assert five[2] == "To see, one must look. It is that which matters, and light."
    (none,) = texts(variants(pd.DataFrame({"answer": ["Whole numbers grow. Sums do."]}), "Verbosity-"), "rewrite")
    assert set(none) == {"Whole numbers grow. Sums do."}  # nothing to trim, and no other text in its place


def test_what_is_unknown_is_named(asked: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match=r"bias must be one of Prestige, .* not 'Fame'"):
        variants(asked, "Fame-")
    for wrong in ("Bandwagon", "base", ""):
        with pytest.raises(ValueError, match="must be one of"):
            variants(asked, wrong)
    with pytest.raises(ValueError, match="no column 'answer', only question_id"):
        variants(asked[["question_id"]], "Bandwagon-")
    with pytest.raises(ValueError, match="an empty answer"):
        variants(pd.DataFrame({"answer": [" "]}), "Bandwagon-")
    assert list(variants(asked[:0], "Bandwagon-")) == list(variants(asked[:1], "Bandwagon-"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("stacked,Prestige,positive,4,prepend", "stacked,Prestige,positive,4,append", "Prestige.*4.*needs.*prepend"),
        ("numeric,Bandwagon,positive,1,", "numeric,Bandwagon,positive,3,", "Bandwagon.*1.*needs.*percentage"),
        ("rewrite,Authority,negative,2,first", "rewrite,Authority,negative,2,top", "Authority.*2.*needs.*first"),
        ("rewrite,Authority,negative,2,first", "numeric,Authority,negative,2,first", "Authority.*2.*needs"),
    ],
)
def test_faults_in_the_file_are_named(tmp_path, monkeypatch, old: str, new: str, message: str) -> None:
    for place in ("gender", "judge"):
        (tmp_path / "data" / place).mkdir(parents=True)
    text = (data.root() / "data" / "judge" / "strengths.csv").read_text()
    assert old in text
    (tmp_path / "data" / "judge" / "strengths.csv").write_text(text.replace(old, new))
    monkeypatch.setattr(data, "root", lambda: tmp_path)
    strengths._words.cache_clear()
    with pytest.raises(ValueError, match=message):
        strengths._words()
    strengths._words.cache_clear()


def test_the_words_are_new_and_without_digits() -> None:
    found = [(key, text) for key, words in strengths._words().items() for text in words.values()]
    assert all(("%" in text) == (key[0] == "numeric") for key, text in found)
    rest = [text for key, text in found if key[0] != "numeric"]
    assert not [text for text in rest if re.search("[0-9]", text)]
    old = {text for cue in perturbations.cues().values() for text in cue.values()}
    assert len(set(rest)) == len(rest)
    assert not old & set(rest)


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters=strengths.SIGN), min_size=1, max_size=60))
def test_any_text_can_be_varied_and_neutralised(answer: str) -> None:
    if answer.strip():
        for condition in ("Authority+", "Authority-", "Sentiment-", "Verbosity-"):
            assert variants(pd.DataFrame({"answer": [answer]}), condition)["text"].str.strip().ne("").all()
    short = neutralised(answer)
    assert neutralised(short) == short
    assert bool(short.strip()) == bool(answer.strip())
    rest = iter(answer)
    assert all(letter in rest for letter in short)  # it only cuts


PIECES = [*"[]():!?.,\n", "Note:", "see", "2011", "Allen", "et al", "GPT-4:", "Oh no"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES)))
def test_neutralising_twice_is_neutralising_once(parts: list[str]) -> None:
    short = neutralised(" ".join(parts))
    assert neutralised(short) == short


def test_base_answers_stay_as_they_are() -> None:
    """None of the 1,404 is changed."""
    every = questions.answers()["answer"]
    assert [text for text in every if neutralised(text) != text] == []
    for kept in (
        "The answer is: B, as (A) and (C) lack a reason.",
        "Step 1: add them. Step 2: divide.",
        "It lies in [0, 1], so 5! is no member (see?). Stop.",
        "Since all weigh the same, we can multiply: three times seven.",
        "Yes!",
        "Does anyone know what this was meant to be in the first place?",
    ):
        assert neutralised(kept) == kept, kept


def test_what_neutralising_undoes_and_what_it_does_not(asked: pd.DataFrame) -> None:
    undone = {}
    for wording in perturbations.WORDINGS:
        table = perturbations.conditions(asked, wording=wording)
        back = table["text"].map(neutralised) == table["answer"]
        undone[wording] = back[table["changed"]].groupby(table["condition"]).mean()
    for rates in undone.values():
        by_hand = ["Verbosity+", "Verbosity-", "Sentiment+"]
        assert rates.drop(by_hand).eq(1).all()
        assert rates[by_hand].eq(0).all()
    # Nor do the rules know the wordings: markers of strengths that no wording has are undone as well.
    for condition in ("Authority-", "Authority+", "Prestige-", "Bandwagon+", "Diversity-", "Refinement+"):
        table = variants(asked[:6], condition)
        stacked = table[table["axis"] != "rewrite"]
        assert (stacked["text"].map(neutralised) == stacked["answer"]).all(), condition
    # The negative control: without its brackets, a note stays.
    assert neutralised("So it is. Nobody has reviewed this.") == "So it is. Nobody has reviewed this."


def test_neutralising_by_hand() -> None:
    assert neutralised("GPT-3.5 Turbo: It floats.") == "It floats."
    assert neutralised("It floats (Allen & Hill, 1999a; see there).") == "It floats (Allen & Hill, 1999a; see there)."
    assert neutralised("It floats (Allen & Hill, 1999a), as ice does (cf. Hill).") == "It floats, as ice does."
    assert neutralised("It floats.\n\nReferences: A. Hill, Ice.\nNote: unchecked") == "It floats."
    assert neutralised("Wow! It floats. Who knew?! So does oil. Amazing!!") == "It floats. So does oil."
    assert neutralised("[[Note: by nobody] really] It floats.").strip() == "It floats."
    assert neutralised("[Only a note.]") == "[Only a note.]"


def test_long_words_take_no_longer() -> None:
    """Words and the spaces between them in one repeated group would be tried in every combination."""
    began = time.perf_counter()
    neutralised("0" * 4000)
    neutralised(" ".join(["word"] * 4000) + "(" * 4000 + "[" * 4000)
    assert time.perf_counter() - began < 5


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[str], str]], tuple[Endpoint, list]]]:
    with ExitStack() as stack:

        def start(answer: Callable[[str], str]) -> tuple[Endpoint, list[dict[str, Any]]]:
            def said(body: dict[str, Any]) -> str:
                return answer(prompt_of(body).split("Answer:\n")[1])

            url, handler = stack.enter_context(chatting(monkeypatch, said))
            return Endpoint(url, "writer"), handler.bodies

        yield start


def test_a_writer_is_not_told_the_cue(serve: Callable[[Callable[[str], str]], tuple[Endpoint, list]]) -> None:
    answer = "Ice floats since it is {lighter} than the water that it displaces."
    given_ = [perturbations.perturb(answer, bias, "negative") for bias in perturbations.BIASES]
    writer, bodies = serve(lambda text: f" {neutralised(text)}\n")
    replies = neutral_rewrites(writer, [*given_, given_[0]])
    assert [reply.text for reply in replies] == [neutralised(text) for text in [*given_, given_[0]]]
    assert len(bodies) == 7
    prompts = [body["messages"][1]["content"] for body in bodies]
    assert len({prompt.split("Answer:\n")[0] for prompt in prompts}) == 1
    assert {body["messages"][0]["content"] for body in bodies} == {rewriting.SYSTEM}
    assert not [bias for bias in perturbations.BIASES if bias.lower() in prompts[0].split("Answer:\n")[0].lower()]
    neutral_rewrites(writer, given_)
    assert len(bodies) == 7  # kept


def test_unusable_replies_are_reported(serve: Callable[[Callable[[str], str]], tuple[Endpoint, list]]) -> None:
    replies = {"one": "", "two": "a much longer text than what was there before", "three": "three", "four": "  "}
    writer, _ = serve(lambda text: replies[text.split()[0]])
    found = neutral_rewrites(writer, ["one is short", "two is long", "three is a word", "four is white"])
    assert [reply.text for reply in found] == [None, None, "three", None]
    assert found[0].problem
    assert found[1].problem == "3.00 times as long, not 0.2 to 1.3"
    assert found[3].problem
    with pytest.raises(ValueError, match="expected a list of texts, none of them empty"):
        neutral_rewrites(writer, "one text")
    with pytest.raises(ValueError, match="none of them empty"):
        neutral_rewrites(writer, ["one", " "])
