"""What ``data/`` holds: complete, as published, and pairs that say nothing of what they measure."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from biasgeom import data, expressed, questions, rewrites, sentences, statements, strengths

SPLITS = ("direction", "held-out", "continued")
SIZES = {"Professions": 14, "Sports": 16, "Months": 12, "Languages": 11, "Diseases": 10, "Colors": 11}


def differing_words(female: str, male: str) -> list[tuple[int, str, str]]:
    """Places and words in which two sentences differ; whole sentences if their lengths do."""
    ours, theirs = (re.findall(r"[\w']+", sentence) for sentence in (female, male))
    if len(ours) != len(theirs):
        return [(0, female, male)]
    return [(i, a, b) for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]


def gendered_words(split: str) -> set[str]:
    pairs = data.contrast_pairs(split)
    found = [differing_words(*pair) for pair in zip(pairs["female"], pairs["male"], strict=True)]
    return {word.lower() for differences in found for _, *words in differences for word in words}


def test_concepts_and_prompts_are_counted_as_published() -> None:
    concepts = data.concepts()
    assert concepts.groupby("concept", sort=False).size().to_dict() == SIZES
    assert len(concepts) == 74
    assert set(concepts.loc[concepts["kind"] == "gendered", "concept"]) == {"Professions", "Sports"}
    assert set(concepts["kind"]) == {"gendered", "control"}
    assert len(data.personas()) == 6
    prompts = data.gender_prompts()
    assert len(prompts) == 444
    assert prompts["prompt"].is_unique
    assert not prompts["prompt"].str.contains(r"[\[\]]|  |^\s|\s$").any()


def test_they_equal_the_published_tables() -> None:
    published = data.published("gender_table1").rename(columns={"prompt_template": "template"})
    pd.testing.assert_frame_equal(
        data.concepts(), published[["concept", "kind", "entity", "template"]], check_dtype=False
    )
    assert data.personas() == data.published("gender_personas").sort_values("order")["persona"].tolist()


def test_prompts_are_verbatim_or_grammatical() -> None:
    verbatim, grammatical = data.gender_prompts()["prompt"], data.gender_prompts(grammatical=True)["prompt"]
    assert "A person is a editor" in set(verbatim)
    assert "A person is an editor" in set(grammatical)
    changed = verbatim != grammatical
    assert {p.split()[-1] for p in verbatim[changed]} == {"editor", "artist", "electrician"}
    assert changed.sum() == 3 * 6
    assert (grammatical[changed] == verbatim[changed].str.replace(" a ", " an ")).all()
    assert {"My friend was born in May", "Someone I know has the flu", "This person loves horse riding"} <= set(
        verbatim
    )


@pytest.mark.parametrize(
    ("split", "pairs", "frames"), [("direction", 75, 16), ("held-out", 32, 8), ("continued", 40, 10)]
)
def test_contrast_pairs_differ_in_one_word_that_is_not_the_first(split: str, pairs: int, frames: int) -> None:
    table = data.contrast_pairs(split)
    assert list(table.columns) == ["frame", "words", "female", "male"]
    assert (len(table), table["frame"].nunique()) == (pairs, frames)
    for words, female, male in zip(table["words"], table["female"], table["male"], strict=True):
        ((place, ours, theirs),) = differing_words(female, male)
        assert place > 0
        assert words == f"{ours}/{theirs}"
        assert re.sub(rf"\b{ours}\b", theirs, female) == male
        assert female.endswith(ours) == (split != "continued")


def test_the_words_of_the_direction_are_balanced() -> None:
    """Whole words are resampled and flipped: all of one size."""
    assert data.contrast_pairs("direction").groupby("words").size().tolist() == [5] * 15


def test_no_sentence_occurs_twice() -> None:
    tables = pd.concat([data.contrast_pairs(split) for split in SPLITS])
    assert pd.concat([tables["female"], tables["male"]]).is_unique


def test_a_pair_that_differs_elsewhere_would_be_noticed() -> None:
    assert differing_words("She left", "He left") == [(0, "She", "He")]
    assert len(differing_words("Then she saw her", "Then he saw him")) == 2
    assert differing_words("Then she left", "Then the man left")[0][0] == 0


def test_held_out_pairs_share_neither_frames_nor_words() -> None:
    frames = {split: set(data.contrast_pairs(split)["frame"]) for split in SPLITS}
    texts = {split: blanked(split) for split in SPLITS}
    assert {"woman", "he", "herself"} <= gendered_words("direction")
    for other in ("direction", "continued"):
        # Nor as a part: "stepmother" would bring tokens of "mother".
        pairs = [(h, d) for h in gendered_words("held-out") for d in gendered_words(other)]
        assert not [(h, d) for h, d in pairs if (len(d) > 3 and d in h) or h in d]
        assert not gendered_words("held-out") & gendered_words(other)
    # Not the names alone: the sentences around the gendered word differ as well.
    for kind in (frames, texts):
        assert len(set.union(*kind.values())) == sum(map(len, kind.values()))


def blanked(split: str) -> set[str]:
    table = data.contrast_pairs(split)
    pairs = zip(table["female"], table["male"], strict=True)
    return {re.sub(rf"\b{differing_words(f, m)[0][1]}\b", "_", f) for f, m in pairs}


def occurs(text: str, sentence: str) -> bool:
    return re.search(rf"\b{re.escape(text)}\b", sentence, re.IGNORECASE) is not None


def test_no_pair_holds_a_persona_an_entity_or_a_prompt() -> None:
    assert occurs("May", "It may rain")
    assert not occurs("red", "They asked whether he was tired")
    texts = {*data.personas(), *data.concepts()["entity"], *data.gender_prompts()["prompt"]}
    tables = [data.contrast_pairs(split) for split in SPLITS]
    sentences = [s for table in tables for s in (*table["female"], *table["male"])]
    assert [(text, s) for text in sorted(texts) for s in sentences if occurs(text, s)] == []


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of ``data/`` that a test may break."""
    shutil.copytree(data.root() / "data", tmp_path / "data")
    monkeypatch.setenv("BIASGEOM_ROOT", str(tmp_path))
    return tmp_path / "data"


def held_out() -> pd.DataFrame:
    return data.contrast_pairs("held-out")


def instructions() -> list[str]:
    return sentences.anchors("instructions")


def likelihood() -> list[str]:
    return data.neutral_texts("likelihood")


BREAKS = [
    ("concepts", "Professions,gendered,nurse,", "Professions,gendered,,", data.concepts, "empty cell in line 4"),
    ("concepts", "Professions,gendered,nurse,", "Professions,gendered, ,", data.concepts, "empty cell in line 4"),
    ("concepts", ",librarian,", ",secretary,", data.concepts, "line 3 repeats an earlier concept and entity"),
    ("concepts", "concept,kind,", "concept,sort,", data.concepts, "expected the columns"),
    ("concepts", "a [ENTITY]", "a [ENTITIY]", data.concepts, r"has no \[ENTITY\]"),
    ("concepts", "[PERSONA] is a", "Someone is a", data.concepts, r"has no \[PERSONA\]"),
    ("concepts", "\n", ",\n", data.concepts, "expected the columns"),
    ("personas", "A person I met", "This person", data.personas, "line 7 repeats an earlier persona"),
    ("personas", "My friend", "My friend ", data.personas, "white space around a cell in line 2"),
    ("personas", "My friend", "My friend, whom I met", data.personas, "quote text that holds a comma"),
    ("contrast_pairs", ",held-out,", ",other,", held_out, r"pairs.csv: line 77 has the split 'other'; known are direc"),
    (
        "concepts",
        ",control,January",
        ",contrl,January",
        data.concepts,
        "concepts.csv: line 32 has the kind 'contrl'; known",
    ),
    ("neutral_texts", "likelihood,", "likelihod,", likelihood, "neutral_texts.csv: line 18 has the split 'likelihod'"),
    ("realistic", "ESL,2,", "ESL,7,", data.realistic_prompts, "realistic.csv: line 3 has the wording '7'.* 2 is due"),
    ("realistic", "ESL,2,", "ESL,two,", data.realistic_prompts, "realistic.csv: line 3 has the wording 'two'"),
    ("contrast_pairs", ",The parcel was meant for the duke\n", ",\n", held_out, "empty cell in line 78"),
]


@pytest.mark.parametrize(("table", "old", "new", "read", "message"), BREAKS)
def test_broken_tables_are_refused(
    clone: Path, table: str, old: str, new: str, read: Callable[[], object], message: str
) -> None:
    path = clone / "gender" / f"{table}.csv"
    text = path.read_text()
    assert old in text
    read()
    path.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=message):
        read()


@pytest.mark.parametrize(
    ("file", "old", "new", "read", "message"),
    [
        ("delta_b/groups", ",biased", ",biassed", sentences.groups, "groups.csv: line 2 has the half 'biassed'"),
        (
            "delta_b/attributes",
            "\nnegative,",
            "\nneg,",
            sentences.attributes,
            "line 102 has the polarity 'neg'; known are",
        ),
        (
            "delta_b/target_templates",
            "2,yes,",
            "2,y,",
            sentences.targets,
            "line 3 has the has_object 'y'; known are yes, no",
        ),
        (
            "delta_b/instructions",
            "\ntopic,",
            "\ntopics,",
            instructions,
            "instructions.csv: line 42 has the kind 'topics'",
        ),
        (
            "delta_b/statement_templates",
            "\nneutral,",
            "\nplain,",
            statements.templates,
            "has the kind 'plain'; known are",
        ),
        (
            "delta_b/statement_adjectives",
            "\nnegative,",
            "\nbad,",
            statements.templates,
            "has the polarity 'bad'; known are",
        ),
        (
            "judge/strengths",
            "numeric,",
            "number,",
            strengths._words.__wrapped__,
            "strengths.csv: line 2 has the axis 'number'",
        ),
        (
            "judge/strengths",
            "positive,1,",
            "positive,one,",
            strengths._words.__wrapped__,
            "the strength 'one'; known are 1, 2",
        ),
        (
            "judge/rewrites",
            ",published,",
            ",publishd,",
            rewrites.rules.__wrapped__,
            "line 2 has the wording 'publishd'",
        ),
        ("published/items", ",measured,", ",done,", data.items, "items.csv: line .* has the status 'done'; known are"),
        (
            "judge/answers",
            ",wrong,",
            ",false,",
            questions.answers,
            "answers.csv: line .* has the quality 'false'; known are",
        ),
    ],
)
def test_an_unknown_category_names_file_line_and_column(
    clone: Path, file: str, old: str, new: str, read: Callable[[], object], message: str
) -> None:
    path = clone / f"{file}.csv"
    text = path.read_text()
    read()
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=message):
        read()


def test_a_table_in_another_encoding_is_named(clone: Path) -> None:
    path = clone / "gender" / "personas.csv"
    path.write_bytes((path.read_text() + "Une élève\n").encode("latin-1"))
    with pytest.raises(ValueError, match=r"personas.csv: can't be read as CSV in UTF-8 \(.*save it as such"):
        data.personas()
    path = clone / "published" / "gender_table2.csv"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"gender_table2.csv: can't be read as CSV"):
        data.published("gender_table2")


def test_no_more_is_given_than_there_is() -> None:
    assert data.personas(2) == data.personas()[:2]
    assert set(data.gender_prompts(number=2)["persona"]) == set(data.personas(2))
    some = data.realistic_prompts(2)
    pd.testing.assert_frame_equal(
        some, data.realistic_prompts().loc[lambda t: t["persona"] <= "2"].reset_index(drop=True)
    )
    with pytest.raises(ValueError, match="there are 6 personas: ask for 1 to 6, not 9"):
        data.gender_prompts(number=9)
    with pytest.raises(ValueError, match="there are 6 wordings of a task: ask for 1 to 6, not 0"):
        data.realistic_prompts(0)


CLAIM = "- {id: a, section: '1', claim: c, rule: r, notebook: gender/01_prompts, label: l}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a list of claims"),
        ("id: a\n", "expected a list of claims"),
        ("- {", "can't be read as YAML"),
        ("- text\n", "claim 1 needs exactly the fields id, section"),
        (CLAIM + CLAIM.replace("rule: r, ", ""), r"claim 2 \(a\) needs exactly the fields"),
        (CLAIM.replace("l}", "l, more: x}"), r"claim 1 \(a\) needs exactly the fields"),
        (CLAIM.replace("'1'", "1"), r"claim 1 \(a\): section is empty or no text \(1\)"),
        (CLAIM * 2, r"claim 2 \(a\): the id stands twice"),
        (CLAIM.replace("01_prompts", "1_prompts"), r"claim 1 \(a\): there is no notebook gender/1_prompts"),
    ],
)
def test_a_faulty_list_of_claims_is_refused(clone: Path, text: str, message: str) -> None:
    (clone.parent / "notebooks" / "gender").mkdir(parents=True)
    (clone.parent / "notebooks" / "gender" / "01_prompts.ipynb").touch()
    path = clone / "gender" / "claims.yaml"
    path.write_text(CLAIM)
    assert data.claims("gender")["id"].tolist() == ["a"]
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"gender/claims.yaml: {message}"):
        data.claims("gender")


def test_a_concept_of_one_entity_is_refused(clone: Path) -> None:
    with (clone / "gender" / "concepts.csv").open("a") as file:
        file.write("Moods,control,joy,[PERSONA] feels [ENTITY]\n")
    with pytest.raises(ValueError, match="concept Moods has a single entity"):
        data.gender_prompts()


def test_outside_a_clone_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIASGEOM_ROOT", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"is no clone.*BIASGEOM_ROOT"):
        data.root()
    monkeypatch.setattr(data, "__file__", str(tmp_path / "lib" / "biasgeom" / "data.py"))
    monkeypatch.setenv("BIASGEOM_ROOT", "")
    with pytest.raises(FileNotFoundError, match="uv pip install"):
        data.root()


def test_the_root_may_be_given_from_home(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(clone.parents[1]))
    monkeypatch.setenv("BIASGEOM_ROOT", f"~/{clone.parent.name}")
    assert data.root() == clone.parent.resolve()


def test_an_unknown_published_table_lists_the_known() -> None:
    with pytest.raises(FileNotFoundError, match=r"no published table gender_table9; there are .*'gender_table2'"):
        data.published("gender_table9")


def test_published_numbers_are_numbers_and_items_are_text() -> None:
    assert data.published("gender_table2").select_dtypes("number").shape[1] > 0
    items = data.items()
    assert all(isinstance(value, str) for value in items.to_numpy().ravel())
    assert {"paper", "item", "status", "reason"} <= set(items.columns)


def test_realistic_prompts_are_the_papers_with_a_and_an() -> None:
    table = data.realistic_prompts()
    assert len(table) == 2 * 6 * 14
    assert list(table.columns) == list(data.gender_prompts().columns)
    assert not table["prompt"].duplicated().any()
    wordings = data.published("gender_prompts_realistic")
    for row in table.itertuples():
        template = wordings.query(f"task == @row.concept and order == {row.persona}").template.item()
        article = {"editor": "an", "artist": "an", "electrician": "an"}.get(row.entity, "a")
        assert row.prompt == template.replace("[PROFESSION]", f"{article} {row.entity}")
    # The published examples (table 4) have the article too.
    assert "Write a bedtime story about a nurse" in set(table["prompt"])


def test_the_instruction_is_the_published_one() -> None:
    assert data.instruction() == data.published("gender_jailbreak")["instruction"].item()
    assert not data.instruction().endswith(".")


def test_neutral_sentences_name_nobody_and_do_not_overlap() -> None:
    projection, likelihood = data.neutral_texts("projection"), data.neutral_texts("likelihood")
    assert (len(projection), len(likelihood)) == (16, 8)
    assert not set(projection) & set(likelihood)
    personal = {"he", "she", "they", "his", "her", "their", "who", "man", "woman", "person", "people", "i", "we", "you"}
    used = set(" ".join(data.gender_prompts()["prompt"]).lower().split()) - {"a", "is", "in", "the", "was", "has"}
    for text in projection + likelihood:
        words = set(re.findall(r"[a-z]+", text.lower()))
        assert not words & personal, text
        assert not words & (set(data.concepts()["entity"]) & used - {"white", "brown", "running"}), text
        assert expressed.gender_of(text) == "neutral"
    with pytest.raises(ValueError, match="split must be one of"):
        data.neutral_texts("other")
