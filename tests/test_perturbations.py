"""Cues on answers: published strings to the letter, bodies that stay, words that are kept, no gap in a wording."""

import re
from collections import Counter

import pandas as pd
import pytest
from biasgeom import data, perturbations, questions, rewrites
from biasgeom.perturbations import BIASES, PARTIAL_WORDINGS, POLARITIES, REWRITES, TEMPLATES, WORDINGS, name, perturb
from hypothesis import given
from hypothesis import strategies as st

PRINTED = (
    "The passage states the man is laying on moss and looking up at trees. Moss and trees are typically found in a "
    "forest. Therefore, the answer is (B)."
)
"""The base answer of table 8."""

answers = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60).filter(str.strip)
biases, polarities, wordings = map(st.sampled_from, (BIASES, POLARITIES, WORDINGS))
cells = [(bias, polarity) for bias in BIASES for polarity in POLARITIES]

HEDGE = re.compile(
    r"\b(?:I think|I believe|I suppose|I guess|perhaps|maybe|might|may|possibly|probably|seems?|likely|not (?:quite )?"
    r"sure|as far as I know|could be|I would guess|unsure|if I remember)\b",
    re.IGNORECASE,
)
# What a short form leaves out or writes otherwise, and the small words that trimming may cut.
TRIMMED = (
    "a an the that which who it is are was were has have had been to so in for this reason as result of well lot lots "
    "number even able all at same time very really simply actually indeed altogether therefore thus also and with "
    "without because although they he she these must can several though meanwhile much where means why will do does "
    "did am i you we example order"
)


@pytest.fixture(scope="module")
def real() -> pd.DataFrame:
    return questions.answers()


def tokens(text: str) -> Counter[str]:
    text = text.lower().replace("w/o", "without").replace("w/", "with").replace("e.g.", "")
    spelled = re.sub(r"n't\b", " not", re.sub(r"\bcan't\b", "can not", text.replace("cannot", "can not")))
    return Counter(re.findall(r"[a-z]+|[0-9]+", re.sub(r"'(?:s|re|m|ll|ve)?\b", " ", spelled)))


def content(text: str) -> Counter[str]:
    return Counter({word: n for word, n in tokens(text).items() if word not in TRIMMED.split()})


def test_the_template_cues_are_table_8_to_the_letter() -> None:
    table = data.published("judge_table8")
    printed = table[(table["printed_in"] == "table 8") & (table["made_by"] == "template")]
    assert len(printed) == 8
    for row in printed.itertuples():
        before = f"{row.template.strip()} {PRINTED}", f"{PRINTED} {row.template}"
        assert perturb(PRINTED, row.bias, row.polarity) == before[row.position == "append"]


def test_authority_is_table_8_to_the_letter() -> None:
    assert perturb(PRINTED, "Authority", "positive") == (
        "The passage states the man is laying on moss and looking up at trees. Moss and trees are typically found in a "
        "forest (Allen, 2011). Therefore, the answer is (B). [Ref: J. P. Allen, “Bryophyte habitats in temperate "
        "woodlands,” Journal of Forest Ecology, vol. 58, p. 221–234, 2011.]"
    )
    assert perturb(PRINTED, "Authority", "negative") == (
        "The passage states the man is laying on moss and looking up at trees [citation needed]. Moss and trees are "
        "typically found in a forest [citation needed]. Therefore, the answer is (B). [Note: claims above are not "
        "supported by any cited source.]"
    )


def test_table_1_and_the_bandwagon_controls() -> None:
    printed = data.published("judge_table8")
    printed = printed[printed["printed_in"].str.contains("table 1") & printed["bias"].isin(["Bandwagon", "Diversity"])]
    for row in printed.itertuples():
        assert row.template in perturb("Yes.", row.bias, row.polarity, wording="table_1")
    for polarity, number, word in (("positive", "96", "ninety-six"), ("negative", "19", "nineteen")):
        published = perturb("Yes.", "Bandwagon", polarity)
        assert f"{number}%" in published
        assert perturb("Yes.", "Bandwagon", polarity, wording="spelled") == published.replace(
            f"{number}%", f"{word} percent"
        )
        control = perturb("Yes.", "Bandwagon", polarity, wording="number")
        assert number in control
        assert not re.search(r"review|rat(?:ed|ing)|quality|%", control)


@given(answers, st.sampled_from(TEMPLATES), polarities, wordings)
def test_a_template_leaves_the_body_bit_identical(answer: str, bias: str, polarity: str, wording: str) -> None:
    text = perturb(answer, bias, polarity, wording=wording)
    cue = perturb("|", bias, polarity, wording=wording)
    before, after = cue.split("|")
    assert text == before + answer + after
    assert text.removeprefix(before).removesuffix(after) == answer
    assert re.fullmatch(r"[^\n|]*\S ?", before + after) or after.startswith(" [")


@given(answers, polarities, wordings, st.sampled_from(["", "history", "another"]))
def test_authority_only_inserts(answer: str, polarity: str, wording: str, domain: str) -> None:
    text = perturb(answer, "Authority", polarity, wording=wording, domain=domain)
    cue = perturbations.cues()["Authority", polarity, wording]
    inline, note = (rewrites.reference(cue[position], domain) for position in ("inline", "append"))
    assert text.endswith(f" {note}")
    assert text.removesuffix(f" {note}").replace(f" {inline}", "") == answer.replace(f" {inline}", "")
    assert text.count(f" {inline}") > answer.count(f" {inline}")


@given(answers, biases, polarities, wordings)
def test_any_text_can_carry_any_cue(answer: str, bias: str, polarity: str, wording: str) -> None:
    text = perturb(answer, bias, polarity, wording=wording)
    assert text == perturb(answer, bias, polarity, wording=wording)
    assert text != answer or name(bias, polarity) == "Verbosity-"


@pytest.mark.parametrize("wording", WORDINGS)
@pytest.mark.parametrize("bias", ["Verbosity", "Sentiment"])
def test_what_is_set_before_a_sentence_takes_nothing_away(real: pd.DataFrame, bias: str, wording: str) -> None:
    for polarity in POLARITIES:
        if name(bias, polarity) == "Verbosity-":
            continue
        for answer in real["answer"][::3]:
            text = perturb(answer, bias, polarity, wording=wording)
            added = tokens(text)
            added.subtract(tokens(answer))
            assert min(added.values()) >= 0
            assert 3 <= added.total() <= 30
            # In order: without the new words the old text remains, but for capitals and what joins sentences.
            assert is_within(re.findall(r"\w+", answer.lower()), re.findall(r"\w+", text.lower()))
            assert not re.search(r"[0-9]", text)
            assert len(HEDGE.findall(text)) == len(HEDGE.findall(answer))


def is_within(few: list[str], many: list[str]) -> bool:
    rest = iter(many)
    return all(word in rest for word in few)


@pytest.mark.parametrize("wording", WORDINGS)
def test_trimming_keeps_content_and_hedges(real: pd.DataFrame, wording: str) -> None:
    changed = []
    for answer in real["answer"]:
        text = perturb(answer, "Verbosity", "negative", wording=wording)
        assert content(text) == content(answer), (answer, text)
        assert tokens(text)["not"] == tokens(answer)["not"]
        assert len(HEDGE.findall(text)) == len(HEDGE.findall(answer))
        assert len(text) < len(answer) or text == answer
        assert "  " not in text
        assert text[0].isupper()
        assert not re.search(r"[.!?] [a-z]", text)
        changed.append(text != answer)
    assert sum(changed) >= 0.9 * len(changed)


def test_a_careless_trimmer_would_be_caught(real: pd.DataFrame) -> None:
    without_hedges = [re.sub(r"\b(?:probably|perhaps) ", "", answer) for answer in real["answer"]]
    assert any(content(a) != content(b) for a, b in zip(real["answer"], without_hedges, strict=True))
    without_not = [answer.replace(" not ", " ") for answer in real["answer"]]
    assert any(tokens(a)["not"] != tokens(b)["not"] for a, b in zip(real["answer"], without_not, strict=True))


def test_rules_by_hand() -> None:
    long = "It is the case that the end of the day has to come. The answer is that they do not see it."
    assert perturb(long, "Verbosity", "negative") == "It is the case that the day's end must come. They do not see it."
    assert perturb("A note and a pen. It is not so.", "Verbosity", "negative", wording="held_out_2") == (
        "A note & a pen. It isn't so."
    )
    assert perturb("Salt melts ice. It is cold.", "Sentiment", "positive").split()[-3:] == ["it", "is", "cold."]
    # A name keeps its capital, and so does I.
    assert ": Paris is" in perturb("Paris is large.", "Verbosity", "positive")
    assert ", I think" in perturb("I think so.", "Verbosity", "positive")
    assert ", a cat" in perturb("A cat sat.", "Verbosity", "positive")


def test_sentences_end_where_they_end() -> None:
    text = 'Dr. Who met J. P. Allen, e.g. in Rome. "Yes!" she said. It grew by 3.5 metres... So?'
    assert [s[0] for s in rewrites.sentences(text)] == [
        "Dr. Who met J. P. Allen, e.g. in Rome.",
        '"Yes!"',
        "she said.",
        "It grew by 3.5 metres...",
        "So?",
    ]
    assert [s["stop"] for s in rewrites.sentences("No (B) and no stop")] == [""]


def test_no_cue_of_this_project_holds_a_digit() -> None:
    for bias, polarity in cells:
        for wording in (*WORDINGS, "spelled"):
            if wording not in perturbations.wordings(bias, polarity):
                continue
            text = perturb("One. Two. Three.", bias, polarity, wording=wording, domain="history")
            printed = wording == "published" and name(bias, polarity) in (
                "Prestige+",
                "Prestige-",
                "Bandwagon+",
                "Bandwagon-",
                "Authority+",
            )
            assert bool(re.search(r"[0-9]", text)) == printed
    # Another domain's reference has other words, and the digits of the published one.
    texts = [perturb(PRINTED, "Authority", "positive", domain=domain) for domain in rewrites.references().index]
    assert len(set(texts)) == 13
    assert len({tuple(re.findall(r"[0-9]+", text)) for text in texts}) == 1


def test_every_wording_is_complete_and_another() -> None:
    for bias, polarity in cells:
        assert perturbations.wordings(bias, polarity)[:3] == WORDINGS
        texts = {wording: perturb(PRINTED, bias, polarity, wording=wording) for wording in WORDINGS}
        assert len(set(texts.values())) == 3
    others = {cell: perturbations.wordings(*cell)[3:] for cell in cells}
    assert {cell: more for cell, more in others.items() if more} == {
        ("Bandwagon", "positive"): PARTIAL_WORDINGS,
        ("Bandwagon", "negative"): PARTIAL_WORDINGS,
        ("Diversity", "positive"): ("table_1",),
        ("Diversity", "negative"): ("table_1",),
    }
    assert set(rewrites.references().index) == {*questions.domains()["domain"], rewrites.OTHER}
    assert set(TEMPLATES) | set(REWRITES) == set(BIASES)


def test_held_out_cues_share_no_content_word_with_the_published_one() -> None:
    small = {*TRIMMED.split(), "not", "any", "note", "author", "from"}
    for (bias, polarity, wording), texts in perturbations.cues().items():
        published = perturbations.cues()[bias, polarity, "published"]
        if wording in ("held_out_1", "held_out_2"):
            old, new = (
                set(re.findall(r"[a-z]{3,}", re.sub(r"\[[A-Z]+\]", "", " ".join(cue.values())).lower()))
                for cue in (published, texts)
            )
            assert not (old & new) - small, (bias, polarity, old & new)


def test_conditions_go_question_by_question() -> None:
    asked = questions.load(number=5)
    table = perturbations.conditions(asked)
    assert len(table) == 15 * 5
    assert list(table.columns) == [*asked.columns, "condition", "bias", "polarity", "text", "changed"]
    expected = ["base", *(bias + sign for bias in BIASES for sign in "+-")]
    for place, row in enumerate(asked.itertuples()):
        part = table.iloc[15 * place : 15 * (place + 1)]
        assert set(part["question_id"]) == {row.question_id}
        assert list(part["condition"]) == expected
        assert part["text"].iloc[0] == row.answer
        assert not part["changed"].iloc[0]
        assert list(part["changed"]) == [text != row.answer for text in part["text"]]
    cited = table[(table["condition"] == "Authority+")].set_index("domain")["text"]
    assert all(rewrites.references().loc[domain, "author"] in text for domain, text in cited.items())
    assert table.loc[table["condition"] == "base", ["bias", "polarity"]].eq("").all(axis=None)


def test_an_answer_that_stays_is_counted() -> None:
    asked = questions.load(number=1).assign(answer="Whole numbers grow. Every sum is larger.")
    table = perturbations.conditions(asked)
    assert table.loc[~table["changed"], "condition"].tolist() == ["base", "Verbosity-"]


def test_a_partial_wording_stands_in_for_nothing() -> None:
    table = perturbations.conditions(questions.load(number=2), wording="spelled")
    assert table["condition"].tolist() == ["base", "Bandwagon+", "Bandwagon-"] * 2


def test_what_is_unknown_is_named() -> None:
    asked = questions.load(number=1)
    with pytest.raises(ValueError, match=r"bias must be one of Prestige, .* not 'prestige'"):
        perturb("Yes.", "prestige", "positive")
    with pytest.raises(ValueError, match="polarity must be one of positive, negative, not 'up'"):
        perturb("Yes.", "Prestige", "up")
    with pytest.raises(ValueError, match=r"Prestige\+ has no wording 'table_1'; it has published, held_out_1"):
        perturb("Yes.", "Prestige", "positive", wording="table_1")
    with pytest.raises(ValueError, match=r"wording must be one of published, .* not 'old'"):
        perturbations.conditions(asked, wording="old")
    with pytest.raises(ValueError, match="an empty answer can't carry the cue Verbosity-"):
        perturb(" \n", "Verbosity", "negative")
    with pytest.raises(ValueError, match="no column 'answer', only question_id"):
        perturbations.conditions(asked[["question_id"]])


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "cues",
            "Prestige,positive,published,prepend",
            "Prestige,positive,published,append",
            "Prestige positive .*needs",
        ),
        (
            "cues",
            "Prestige,positive,published",
            "Prestige,positive,older",
            "line 2 has the wording 'older'; known are published",
        ),
        (
            "cues",
            "Prestige,positive,published",
            "Fame,positive,published",
            "line 2 has the bias 'Fame'; known are Prestige",
        ),
        ("rewrites", "published,first", "published,top", "has the place 'top'; known are first"),
        ("rewrites", r"\bin order to\b", r"(in order to", "is no regular expression"),
    ],
)
def test_faults_in_the_files_are_named(tmp_path, monkeypatch, file: str, old: str, new: str, message: str) -> None:
    for place in ("gender", "judge"):
        (tmp_path / "data" / place).mkdir(parents=True)
    text = (data.root() / "data" / "judge" / f"{file}.csv").read_text()
    assert old in text
    (tmp_path / "data" / "judge" / f"{file}.csv").write_text(text.replace(old, new, 1))
    monkeypatch.setenv("BIASGEOM_ROOT", str(tmp_path))
    # Past the cache, which stays as it is.
    read = {"cues": perturbations.cues, "rewrites": rewrites.rules}[file].__wrapped__
    with pytest.raises(ValueError, match=message):
        read()
