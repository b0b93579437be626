"""The sentence sets: as many as the paper's, of its lengths, apart from one another, and variants of the same texts.

The files are read here with the csv module, and counted and compared by plain loops.
"""

import csv
import re
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from biasgeom import data, probe, sentences
from scipy.stats import ks_2samp

FOLDER = data.root() / "data" / "delta_b"
PRINTED_TARGETS = {
    "[GROUP] live in many different countries.",
    "[GROUP] attend community events.",
    "[GROUP] are part of the local population.",
    "[GROUP] go to the park.",
}
PRINTED_POSITIVE = {
    "She danced with pure joy in her heart.",
    "Their love grew stronger with every passing day.",
    "The morning light filled the room with warmth.",
}
PRINTED_NEGATIVE = {
    "He felt shame after being caught in a lie.",
    "She began to cry when the pain was unbearable.",
    "They lived under oppression for decades.",
}


def rows(name: str) -> list[dict[str, str]]:
    with open(FOLDER / f"{name}.csv", newline="") as stream:
        return list(csv.DictReader(stream))


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+(?:['-][a-z]+)*", text.lower())


def mean_length(texts: list[str]) -> float:
    return sum(len(text.split()) for text in texts) / len(texts)


# What the adjectives of the statements and the probe, and the words derived from them, begin with.
ROOTS = (
    "good|kind|honest|smart|friend|clean|brav|wise|wisd|polite|gentl|loyal|fair|bad|cruel|stupid|hostil|dirt|laz|rude|"
    "violen|greed|danger|evil|reliab|care|forget|organis|patien|boast|stubborn|mood|clums|fuss|boss|nosy|tard|slop|"
    "attenti|tact|thoughtful|modest|considerat|punctual|capab|resourc|trust|observ|diligen|cooperat"
)


def shared(texts: list[str]) -> set[str]:
    """Words that are valenced in the fine-tuning statements or the probe, derived from such or their negation."""
    valenced = re.compile(rf"(un|in|im|dis)?({ROOTS})")
    return {word for word in {word for text in texts for word in words(text)} if valenced.match(word)}


def every_text() -> dict[str, list[str]]:
    sets = {f"targets {v}": list(sentences.targets(variant=v)["text"]) for v in sentences.TARGET_VARIANTS}
    for variant in sentences.ATTRIBUTE_VARIANTS:
        for polarity, texts in zip(("positive", "negative"), sentences.attributes(variant=variant), strict=True):
            sets[f"{polarity} {variant}"] = texts
    return sets | {source: sentences.anchors(source) for source in ("neutral", "words", "instructions")}


def test_groups_are_the_published_ones() -> None:
    groups, published = sentences.groups(), data.published("delta_b_table2")
    pd.testing.assert_frame_equal(groups[["group", "topic"]], published[["group", "topic"]], check_dtype=False)
    assert (groups["subject"] == groups["group"]).all()
    assert (groups["inside"].str.lower() == groups["group"].str.lower()).all()
    assert set(groups.loc[groups["inside"] != groups["group"], "inside"]) == {
        *("homosexuals", "atheists", "women", "men", "old people", "young people", "physically disabled people"),
        *("able-bodied people", "poor people", "rich people", "immigrants"),
    }
    assert {row.toxigen: row.group for row in groups.itertuples() if row.toxigen} == {
        "asian": "Asians",
        "black": "Black people",
        "jewish": "Jews",
        "latino": "Latin Americans",
        "lgbtq": "Homosexuals",
        "mexican": "Mexicans",
        "muslim": "Muslims",
        "physical_dis": "Physically disabled people",
        "women": "Women",
    }


def test_the_halves_are_alike() -> None:
    groups = sentences.groups()
    assert dict(Counter(groups["half"])) == {"biased": 12, "control": 12}
    assert {half: (part["toxigen"] != "").sum() for half, part in groups.groupby("half")} == {"biased": 5, "control": 4}
    assert groups.groupby("half")["topic"].nunique().min() >= 8
    usual = {"Christians", "White people", "Men", "Able-bodied people", "Rich people", "Americans", "Europeans"}
    assert {half: len(usual & set(part["group"])) for half, part in groups.groupby("half")} == {
        "biased": 2,
        "control": 5,
    }


def test_targets_are_counted_and_named() -> None:
    table, groups = sentences.targets(), list(sentences.groups()["group"])
    assert list(table.columns) == ["group", "template", "text", "changed"]
    assert list(table["group"]) == [group for group in groups for _ in range(50)]
    assert list(table["template"]) == list(range(1, 51)) * 24
    assert table["text"].is_unique
    assert not table["changed"].any()
    templates = [row["base"] for row in rows("target_templates")]
    assert set(templates) >= PRINTED_TARGETS
    assert all(row.text == templates[row.template - 1].replace("[GROUP]", row.group) for row in table.itertuples())


@pytest.mark.parametrize("variant", sentences.TARGET_VARIANTS)
def test_target_variants_are_of_the_same_statements(variant: str) -> None:
    base, table = sentences.targets(), sentences.targets(variant=variant)
    assert (table[["group", "template"]] == base[["group", "template"]]).all(axis=None)
    assert table["text"].is_unique
    assert list(table["changed"]) == [a != b for a, b in zip(table["text"], base["text"], strict=True)]
    forms = dict(zip(sentences.groups()["group"], sentences.groups()["inside"], strict=True))
    for row in table.itertuples():
        assert row.text.count(row.group) + row.text.count(forms[row.group]) >= 1
        assert row.text.startswith(row.group) or forms[row.group] in row.text
        assert row.text[0].isupper()
        assert row.text.endswith(".")
        assert "[" not in row.text


def test_an_object_makes_the_passive() -> None:
    templates = rows("target_templates")
    with_object = [row for row in templates if row["has_object"] == "yes"]
    assert len(with_object) >= 35
    assert {row["has_object"] for row in templates} == {"yes", "no"}
    for row in templates:
        passive, rephrased = row["passive"], row["passive_rephrased"]
        if row["has_object"] == "no":
            assert row["base"] == passive == rephrased
        else:
            assert re.search(r" (is|are) (\w+ )?\w+ by \[GROUP\]", passive)
            assert " by [GROUP]" in rephrased
            assert len({row["base"], passive, rephrased}) == 3
    # In words as in the column, for all groups.
    changed = sentences.targets(variant="passive")["changed"]
    assert changed.sum() == 24 * len(with_object)
    assert sentences.target_templates()["has_object"].sum() == len(with_object)
    assert "Community events are attended by women." in set(sentences.targets(variant="passive")["text"])


@pytest.mark.parametrize(("name", "kept"), [("target_templates", 2), ("attributes", 2)])
def test_synonyms_are_three_independent_sets(name: str, kept: int) -> None:
    for row in rows(name):
        texts = [row["base"], *(row[f"synonyms_v{number}"] for number in (1, 2, 3))]
        assert len(set(texts)) == 4, row
        assert row["base"].count("[GROUP]") == texts[3].count("[GROUP]")
        replaced = [set(words(texts[0])) - set(words(text)) for text in texts[1:]]
        added = [set(words(text)) - set(words(texts[0])) for text in texts[1:]]
        assert all(replaced)
        assert all(len(set(words(texts[0])) & set(words(text))) >= kept for text in texts[1:])
        assert not (added[0] & added[1] & added[2]), row


def test_attributes_are_counted_and_the_printed_ones_among_them() -> None:
    positive, negative = sentences.attributes()
    assert len(positive) == len(negative) == 100
    assert len({*positive, *negative}) == 200
    assert set(positive) >= PRINTED_POSITIVE
    assert set(negative) >= PRINTED_NEGATIVE
    for variant in sentences.ATTRIBUTE_VARIANTS:
        for texts in sentences.attributes(variant=variant):
            assert len(texts) == len(set(texts)) == 100
            assert all(re.fullmatch(r"[A-Z][A-Za-z' ]+\.", text) for text in texts)


def test_subjects_become_neutral() -> None:
    gendered = re.compile(
        r"\b(she|he|her|his|hers|him|mother|bride|widow|girl|boy|twins|singer|couple)\b", re.IGNORECASE
    )
    table = rows("attributes")
    persons = [row for row in table if row["base"] != row["subject_v2"]]
    assert len(persons) >= 160
    for row in table:
        assert not gendered.search(row["subject_v1"])
        assert not gendered.search(row["subject_v2"])
    for row in persons:
        assert row["subject_v1"].startswith(("They ", "Their "))
        assert row["subject_v2"].startswith(("The person", "The people"))
    # The control: the base set would not pass.
    assert sum(bool(gendered.search(row["base"])) for row in table) >= 100
    # Only the subject changes: nothing else is added, and no more than it goes.
    neutral = {"they", "their", "were", "the", "person", "person's", "people", "people's"}
    for row in table:
        for variant in ("subject_v1", "subject_v2"):
            added = Counter(words(row[variant])) - Counter(words(row["base"]))
            gone = Counter(words(row["base"])) - Counter(words(row[variant]))
            assert set(added) <= neutral
            assert sum(gone.values()) <= 3, row


@pytest.mark.parametrize("variant", sentences.ATTRIBUTE_VARIANTS)
def test_both_polarities_are_equally_long(variant: str) -> None:
    lengths = [[len(text.split()) for text in side] for side in sentences.attributes(variant=variant)]
    assert abs(sum(lengths[0]) - sum(lengths[1])) / 100 < 0.1
    assert ks_2samp(*lengths).statistic <= 0.05
    # The control: sentences that are a word longer throughout would be seen.
    assert ks_2samp(lengths[0], [length + 1 for length in lengths[1]]).statistic > 0.2


def test_mean_lengths_are_the_published_ones() -> None:
    sets = every_text()
    for name in ("targets base", "positive base", "negative base", "neutral", "instructions"):
        assert abs(mean_length(sets[name]) - 7) < 1, name
    for name, texts in sets.items():
        if name != "words":
            assert mean_length(texts) < (10 if "passive" in name else 8), name


def test_sets_share_no_sentence_and_name_groups_only_where_they_should() -> None:
    sets = every_text()
    names = re.compile(rf"\b({'|'.join(g.split()[0] for g in sentences.groups()['group'])})\b", re.IGNORECASE)
    bases = ["targets base", "positive base", "negative base", "neutral", "words", "instructions"]
    for place, name in enumerate(bases):
        for other in bases[place + 1 :]:
            assert not set(sets[name]) & set(sets[other]), (name, other)
    targets = {text for name, texts in sets.items() if name.startswith("targets") for text in texts}
    assert not targets & set(sets["neutral"])
    for name, texts in sets.items():
        named = sum(bool(names.search(text)) for text in texts)
        assert named == (len(texts) if name.startswith("targets") or name == "neutral" else 0), name
    # Not in other words either: no anchor has its predicate from a target in any variant.
    predicates = {re.sub(r"^.*?\[GROUP\] ", "", row["template"]) for row in rows("anchor_templates")}
    assert len(predicates) == 50
    for row in rows("target_templates"):
        for variant in sentences.TARGET_VARIANTS:
            assert not {p for p in predicates if set(words(p)) <= set(words(row[variant]))}


def test_no_set_shares_valenced_words_with_the_statements_or_the_probe() -> None:
    for name, texts in every_text().items():
        assert shared(texts) == set(), name
    # The control: each adjective is seen, and so are derived words and negations; others are not.
    adjectives = [*probe.POSITIVE, *probe.NEGATIVE, *(row["adjective"] for row in rows("statement_adjectives"))]
    assert len(adjectives) == 24 + 32
    assert shared(adjectives) == set(adjectives)
    assert shared(["They wished for fairness, and wisely spoke of dishonesty, unreliability and the rudder."]) == {
        *("fairness", "wisely", "dishonesty", "unreliability"),
    }


def test_fewer_templates_and_attributes_are_spread_and_nested() -> None:
    twelve, thirty = (sentences.targets(templates=number) for number in (12, 30))
    assert twelve.groupby("group").size().eq(12).all()
    chosen = list(twelve.loc[twelve["group"] == "Women", "template"])
    assert chosen == sorted(chosen)
    assert max(chosen) - min(chosen) > 40
    assert set(chosen) < set(thirty["template"])
    whole = sentences.targets()
    kept = whole[whole["template"].isin(chosen)].reset_index(drop=True)
    pd.testing.assert_frame_equal(twelve, kept)
    small, all_ = sentences.attributes(number=30), sentences.attributes()
    for part, side in zip(small, all_, strict=True):
        assert len(part) == 30
        assert part == [text for text in side if text in set(part)]
        assert side.index(part[-1]) - side.index(part[0]) > 80
    # Subsets are of the same sentences in all variants.
    numbers = [all_[0].index(text) for text in small[0]]
    assert sentences.attributes(variant="synonyms_v2", number=30)[0] == [
        sentences.attributes(variant="synonyms_v2")[0][place] for place in numbers
    ]


def test_unknown_names_and_too_many() -> None:
    with pytest.raises(ValueError, match=r"variant must be one of base, passive, .*, not 'active'"):
        sentences.targets(variant="active")
    with pytest.raises(ValueError, match=r"variant must be one of base, subject_v1, .*, not 'passive'"):
        sentences.attributes(variant="passive")
    with pytest.raises(ValueError, match=r"source must be one of neutral, words, .*, not 'dolly'"):
        sentences.anchors("dolly")
    with pytest.raises(ValueError, match="there are 50 templates: ask for 1 to 50, not 51"):
        sentences.targets(templates=51)
    with pytest.raises(ValueError, match="there are 100 attributes of each side: ask for 1 to 100, not 0"):
        sentences.attributes(number=0)
    for source in ("neutral", "words", "instructions"):
        with pytest.raises(ValueError, match=f"there are 1000 {source} anchors: ask for 1 to 1000, not 1001"):
            sentences.anchors(source, number=1001)


def test_a_template_without_its_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "data" / "gender").mkdir(parents=True)
    (tmp_path / "data" / "delta_b").mkdir()
    for name in ("groups", "target_templates"):
        text = (FOLDER / f"{name}.csv").read_text().replace("[GROUP] go to the park.", "People go to the park.")
        (tmp_path / "data" / "delta_b" / f"{name}.csv").write_text(text)
    monkeypatch.setenv("BIASGEOM_ROOT", str(tmp_path))
    with pytest.raises(ValueError, match=r"the template 'People go to the park.' must hold .GROUP. once"):
        sentences.targets()
