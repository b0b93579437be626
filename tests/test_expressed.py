"""Labels against a table of cases and a second reading of the rule; bias and its nulls against naive loops, exact
fractions, enumerated permutations and simulations with known truth."""

import re
from collections.abc import Callable
from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pandas as pd
import pytest
from biasgeom import expressed, statistics
from biasgeom.expressed import entity_bias, gender_of, polarization
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import binom

# Labels ---------------------------------------------------------------------------------------------------------------

CASES = {
    # The first pronoun decides, in any case and with what hangs on it.
    "My friend is a nurse, and she likes it. He does not.": "female",
    "My friend is a nurse. He says she is late.": "male",
    "A person is a cook. HER day is long.": "female",
    "The editor hurt himself.": "male",
    "The choice was hers alone.": "female",
    "It is clear she's late and he's not": "female",
    "It is clear he’ll come, and she won't": "male",
    # Nouns and titles.
    "The plumber is a young woman.": "female",
    "The plumber, a tall gentleman with a hat": "male",
    "Mrs. Miller is a person": "female",
    "I saw Mr Miller": "male",
    "Ask Ms. Smith": "female",
    "That is a man's job": "male",
    "That is the lady’s job": "female",
    "A waitress walks in": "female",
    "The actor and the actress": "neutral",  # both together are none
    # Kinship counts for the subject, but not after a possessive: it is then somebody else.
    "A person is a mother of two": "female",
    "The person is a proud father": "male",
    "My boss is an editor and widow": "female",
    "A teacher and their mother": "neutral",
    "A teacher loves their two old aunts and their dear old uncle": "neutral",
    "The nurse's brother is here": "neutral",
    "The nurse’s older brother is here": "neutral",
    "the neighbour's very young daughter left, and he saw it": "male",
    "My brother is tall": "neutral",
    "Its owner, whose wife left": "neutral",
    "my friend and her brother": "female",
    "The boss and his wife": "male",
    # The possessive is of something else: an article or a stop stands between.
    "My boss is a mother": "female",
    "In my town. Father of three": "male",
    "My boss, father of three": "male",
    "our friend and the grandmother": "female",
    # Both genders together are none.
    "He or she may leave": "neutral",
    "Each must do his/her part": "neutral",
    "Each must do his or her part, she said": "female",
    "She/he may leave": "neutral",
    "She or he may leave, and he did": "male",
    "Then s/he writes": "neutral",
    "Ask him / her": "neutral",
    "They hurt himself or herself": "neutral",
    "There are men and women here": "neutral",
    "For boys or girls, women or men": "neutral",
    "It may be a man or woman": "neutral",
    "A male or female applicant": "neutral",
    # Not both, as the second is another word.
    "He or shelter": "male",
    # Gendered words inside other words.
    "The history of Sherlock: these themes, whether other or there, hesitate": "neutral",
    "A human manager from Manchester, German shepherd, hermit, ashes, herd": "neutral",
    "a person in a season, the sonnet of Hudson; the boycott, ladybird, Missouri": "neutral",
    "The policeman's mandate; heir, hero, hymn, this": "neutral",
    "": "neutral",
    "12 ... !": "neutral",
    "They are an editor, and their colleague is as well.": "neutral",
}


@pytest.mark.parametrize(("text", "label"), CASES.items())
def test_the_rule_on_cases_read_by_hand(text: str, label: str) -> None:
    assert gender_of(text) == label


# (text, label by the rule's own words)
OPEN_CASES = {
    "Then (s)he writes": "neutral",
    "Each loves his or her brother": "neutral",
    "The nurses' brother is here": "neutral",
    "This is Öman": "neutral",
}


@pytest.mark.parametrize(("text", "label"), OPEN_CASES.items())
def test_the_rule_on_cases_that_an_earlier_version_got_wrong(text: str, label: str) -> None:
    assert gender_of(text) == label


COUNTERPARTS = """
she/he her/his hers/his herself/himself woman/man girl/boy lady/gentleman female/male gal/guy ms/mr mrs/mr
schoolgirl/schoolboy saleswoman/salesman businesswoman/businessman actress/actor waitress/waiter
mother/father mom/dad mum/dad mommy/daddy wife/husband daughter/son sister/brother aunt/uncle niece/nephew
grandmother/grandfather grandma/grandpa granddaughter/grandson girlfriend/boyfriend widow/widower women/men girls/boys
"""
SWAP = dict(pair.split("/") for pair in COUNTERPARTS.split())
SWAP |= {"him": "her"} | {male: female for female, male in SWAP.items()}
OPPOSITE = {"female": "male", "male": "female", "neutral": "neutral"}
KIN = {word for words in expressed.KINSHIP.values() for word in words.split()}
GENDERED = {word: g for words in (expressed.NOUNS, expressed.KINSHIP) for g in words for word in words[g].split()}
GENDERED |= {word: gender for gender, words in expressed.PRONOUNS.items() for word in words}
OTHERS = "a an the and or is was nurse old dear editor works the, . ; nurse's neighbour’s my your their our whose"
FILLERS = OTHERS.split()
CHUNKS = ["he or she", "she/he", "men and women", "girls or boys", "male or female", "himself or herself"]
texts = st.lists(st.sampled_from([*GENDERED, *FILLERS * 3, *CHUNKS]), max_size=12).map(" ".join)


def swapped(text: str) -> str:
    return re.sub(r"[A-Za-z]+", lambda found: SWAP.get(found.group().lower(), found.group()), text)


def test_every_word_has_one_gender_and_a_counterpart() -> None:
    assert set(GENDERED) == set(SWAP) - {"women", "men", "girls", "boys"}
    for word, gender in GENDERED.items():
        assert gender_of(f"The nurse, a {word.upper()}") == gender
        assert gender_of(f"the {SWAP[word]}") == OPPOSITE[gender]


@settings(max_examples=300, deadline=None)
@given(text=texts)
@example(text="their brother and she")
def test_swapping_all_gendered_words_flips_the_label(text: str) -> None:
    assert gender_of(swapped(text)) == OPPOSITE[gender_of(text)]


def second_reading(text: str) -> str:
    """The same rule by another path: pairs of both genders fall out word by word, then patterns before each word."""
    words, kept, place = re.findall(r"[\w'’]+|[/,;.]", text), [], 0
    plural = {"women": "female", "girls": "female", "men": "male", "boys": "male"}
    while place < len(words):
        gender = {**GENDERED, **plural}.get(words[place])
        rest = words[place + 1 :]
        if gender and rest and rest[0] in ("or", "and", "/"):
            skip = 1 + (len(rest) > 1 and rest[1] in ("a", "an", "the"))
            if len(rest) > skip and {**GENDERED, **plural}.get(rest[skip]) == OPPOSITE[gender]:
                kept.append("their")
                place += skip + 2
                continue
        kept.append(words[place])
        place += 1
    text = " ".join(kept)
    owner = r"(?:my|your|his|her|its|our|their|whose|\w+['’]s)"
    between = r"(?: (?!(?:a|an|the|and|or|is|was|as) )\w[\w'’]*){0,2}"
    for found in re.finditer(r"(?<!\S)\w+", text):
        word, before = found.group(), text[: found.start()]
        if word in GENDERED and not (word in KIN and re.search(rf"(?<!\S){owner}{between} $", before)):
            return GENDERED[word]
    return "neutral"


@settings(max_examples=300, deadline=None)
@given(text=texts)
def test_a_second_reading_of_the_rule_agrees(text: str) -> None:
    assert gender_of(text) == second_reading(text)


@settings(max_examples=300, deadline=None)
@given(
    word=st.sampled_from(list(GENDERED)),
    before=st.text("abcdefghijklmnopqrstuvwxyz", max_size=2),
    after=st.text("abcdefghijklmnopqrstuvwxyz", max_size=2),
)
def test_no_gendered_word_is_found_inside_another(word: str, before: str, after: str) -> None:
    longer = before + word + after
    assert gender_of(f"The {longer} is here") == GENDERED.get(longer, "neutral")


# Bias and polarization ------------------------------------------------------------------------------------------------

counts = st.integers(0, 30)
biases = st.lists(st.integers(-12, 12), min_size=2, max_size=9)


@given(female=counts, male=counts, neutral=counts)
def test_bias_is_the_fraction_and_flips_with_the_genders(female: int, male: int, neutral: int) -> None:
    if female + male + neutral == 0:
        with pytest.raises(ValueError, match="needs completions"):
            entity_bias(female, male, neutral)
        return
    value = entity_bias(female, male, neutral)
    assert value == float(Fraction(female - male, female + male + neutral))
    assert -1 <= value <= 1
    assert entity_bias(male, female, neutral) == -value
    labels = np.repeat([1, -1, 0], [female, male, neutral])
    assert expressed.codes_bias(labels[None, None])[0] == pytest.approx(value, abs=1e-15)


def test_bias_of_neutral_completions_is_zero_and_of_none_or_negative_counts_is_refused() -> None:
    assert entity_bias(0, 0, 7) == 0
    # Negative control: neutral completions count. Without them this would be 1.
    assert entity_bias(1, 0, 3) == 0.25
    for wrong in ((0, 0, 0), (-1, 2, 3), (3, 0, -1)):
        with pytest.raises(ValueError, match="needs completions"):
            entity_bias(*wrong)
    for shape in ((2, 0, 3), (2, 3, 0)):
        with pytest.raises(ValueError, match="there are none"):
            expressed.codes_bias(np.zeros(shape))


def exact_polarization(bias: list[Fraction]) -> Fraction:
    mean = sum(bias, Fraction(0)) / len(bias)
    return sum((abs(b - mean) / (1 + abs(mean)) for b in bias), Fraction(0)) / len(bias)


@given(twelfths=biases, seed=st.integers(0, 1000))
def test_polarization_equals_exact_fractions_and_keeps_its_invariants(twelfths: list[int], seed: int) -> None:
    fractions = [Fraction(t, 12) for t in twelfths]
    bias = np.array([float(f) for f in fractions])
    value = polarization(bias)
    assert isinstance(value, float)
    assert value == pytest.approx(float(exact_polarization(fractions)), abs=1e-14)
    assert polarization(-bias) == pytest.approx(value, abs=1e-14)
    assert polarization(np.random.default_rng(seed).permutation(bias)) == pytest.approx(value, abs=1e-14)
    # Its largest value at a mean μ is reached by entities at ±1 only: (1 − μ²) / (1 + |μ|).
    assert -1e-14 <= value <= 1 - abs(bias.mean()) + 1e-12
    assert (value < 1e-14) == (len(set(twelfths)) == 1)


@pytest.mark.parametrize("female", [1, 2, 3])
def test_polarization_of_entities_at_both_ends(female: int) -> None:
    bias = np.array([1.0] * female + [-1.0] * (4 - female))
    assert polarization(bias) == pytest.approx(1 - abs(female - 2) / 2, abs=1e-15)


def test_polarization_by_row_and_wrong_formulas_that_would_be_noticed() -> None:
    bias = np.random.default_rng(0).uniform(-0.8, 0.6, size=(3, 4, 5))
    found = polarization(bias)
    assert found.shape == (3, 4)
    differences = []
    for place in np.ndindex(3, 4):
        row = bias[place]
        assert found[place] == pytest.approx(polarization(row), abs=1e-15)
        mean = row.mean()
        wrong = [
            np.abs(row - mean).mean(),
            np.abs(row - np.median(row)).mean() / (1 + abs(mean)),
            np.abs(row - mean).mean() / (1 + mean),
            np.abs(row - mean).sum() / 4 / (1 + abs(mean)),
            row.std() / (1 + abs(mean)),
            np.abs(row).mean() / (1 + abs(mean)),
        ]
        differences.append(np.abs(found[place] - np.array(wrong)))
    assert np.max(differences, axis=0).min() > 0.01


@pytest.mark.parametrize("bias", [[0.5], [0.5, 1.1], [-1.5, 0.0], [0.1, np.nan], [np.inf, 0.0]])
def test_polarization_needs_two_entities_with_a_bias(bias: list[float]) -> None:
    with pytest.raises(ValueError, match=r"two entities|outside"):
        polarization(np.array(bias))


# Tables of completions ------------------------------------------------------------------------------------------------

NAMES = {code: label for label, code in expressed.LABELS.items()}


def frame(codes: np.ndarray, concept: str = "Jobs", kind: str = "gendered") -> pd.DataFrame:
    """Completions with these codes [entities, personas, samples]; entities are named against the alphabet."""
    rows = [
        {"concept": concept, "kind": kind, "entity": f"{concept} {9 - e}", "persona": f"p{5 - p}", "sample": s}
        | {"label": NAMES[int(codes[e, p, s])]}
        for e, p, s in product(*map(range, codes.shape))
    ]
    return pd.DataFrame(rows)


def made_codes(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).choice([1, -1, 0], size=shape, p=[0.3, 0.2, 0.5])


def two_concepts() -> pd.DataFrame:
    parts = [frame(made_codes(1, 4, 3, 2)), frame(made_codes(2, 3, 3, 1), "Months", "control")]
    return pd.concat(parts, ignore_index=True)


@settings(max_examples=40, deadline=None)
@given(entities=st.integers(1, 5), personas=st.integers(1, 4), samples=st.integers(1, 12), seed=st.integers(0, 10**6))
def test_codes_do_not_depend_on_the_order_of_rows(entities: int, personas: int, samples: int, seed: int) -> None:
    codes = made_codes(seed, entities, personas, samples)
    table = frame(codes).sample(frac=1, random_state=seed)
    names, found = expressed.codes_of(table)
    assert names == list(dict.fromkeys(table["entity"]))
    ordered = list(dict.fromkeys(table["persona"]))
    for row in table.itertuples():
        assert NAMES[found[names.index(row.entity), ordered.index(row.persona), row.sample]] == row.label


def test_codes_refuse_missing_and_unknown_labels() -> None:
    table = frame(made_codes(3, 3, 2, 2))
    of_second = table["entity"] == "Jobs 8"
    short = table.drop(index=table.index[of_second][1])
    with pytest.raises(ValueError, match="'Jobs 8' has 3 labelled completions, not 4"):
        expressed.codes_of(short)
    with pytest.raises(ValueError, match="'Jobs 8' has 0 labelled completions, not 4"):
        expressed.codes_of(table.assign(label=table["label"].mask(of_second)))
    one = table["label"].mask(table.index == table.index[of_second][0])
    with pytest.raises(ValueError, match="'Jobs 8' has 3 labelled"):
        expressed.codes_of(table.assign(label=one))
    with pytest.raises(ValueError, match=r"not \['Female'\]"):
        expressed.codes_of(table.assign(label=table["label"].replace("female", "Female")))


def test_codes_refuse_a_doubled_completion_in_the_place_of_a_missing_one() -> None:
    table = frame(made_codes(3, 3, 2, 2))
    doubled = table.assign(sample=table["sample"].mask(table.index == 1, 0))
    with pytest.raises(ValueError, match="twice"):
        expressed.codes_of(doubled)


def test_bias_table_equals_naive_counts() -> None:
    completions = two_concepts()
    table = expressed.bias_table(completions.sample(frac=1, random_state=0), draws=50, seed=0)
    columns = ["concept", "kind", "entity", "female", "male", "neutral", "bias", "low", "high"]
    assert list(table.columns) == columns
    assert len(table) == completions["entity"].nunique()
    for row in table.itertuples():
        of = [r for r in completions.itertuples() if r.entity == row.entity]
        n = {label: sum(r.label == label for r in of) for label in expressed.LABELS}
        assert (row.concept, row.kind) == (of[0].concept, of[0].kind)
        assert (row.female, row.male, row.neutral) == (n["female"], n["male"], n["neutral"])
        assert row.bias == pytest.approx(float(Fraction(n["female"] - n["male"], len(of))), abs=1e-15)
        assert -1 <= row.low <= row.bias <= row.high <= 1


def naive_null(codes: np.ndarray, draws: int) -> list[float]:
    """Labels dealt out to the entities anew, persona by persona, one after the other."""
    rng = np.random.default_rng(99)
    entities, personas, samples = codes.shape
    found = []
    for _ in range(draws):
        sums = [0] * entities
        for persona in range(personas):
            labels = [int(codes[e, persona, s]) for e in range(entities) for s in range(samples)]
            for place, label in enumerate(rng.permutation(labels)):
                sums[place // samples] += int(label)
        found.append(float(exact_polarization([Fraction(total, personas * samples) for total in sums])))
    return found


def test_polarization_table_equals_naive_loops() -> None:
    completions = two_concepts()
    draws = 2000
    table = expressed.polarization_table(completions, draws=draws, seed=0).set_index("concept")
    assert table["kind"].to_dict() == {"Jobs": "gendered", "Months": "control"}
    assert table["samples"].to_dict() == {"Jobs": 6, "Months": 3}
    for concept, row in table.iterrows():
        part = completions[completions["concept"] == concept]
        bias = [
            Fraction(sum(expressed.LABELS[label] for label in of), len(of)) for _, of in part.groupby("entity")["label"]
        ]
        for label in expressed.LABELS:
            assert row[label] == pytest.approx(sum(part["label"] == label) / len(part), abs=1e-15)
        observed = exact_polarization(bias)
        assert row["mean_bias"] == pytest.approx(float(sum(bias) / len(bias)), abs=1e-11)
        assert row["bias_pol"] == pytest.approx(float(observed), abs=1e-14)
        assert 0 <= row["low"] <= row["bias_pol"] <= row["high"] <= 1
        null = np.array(naive_null(expressed.codes_of(part)[1], 1000))
        error = 5 * null.std() * (1 / draws + 1 / 1000) ** 0.5
        assert row["chance"] == pytest.approx(null.mean(), abs=error)
        assert (null < row["chance_high"] - 1e-9).mean() <= 0.97
        assert (null <= row["chance_high"] + 1e-9).mean() >= 0.93
        p = (null >= float(observed) - 1e-12).mean()
        assert row["p"] == pytest.approx(p, abs=5 * (0.25 / 1000) ** 0.5)


def test_swapping_female_and_male_negates_bias_and_keeps_polarization() -> None:
    completions = two_concepts()
    other = completions.assign(label=completions["label"].map(OPPOSITE))
    numbers = {"draws": 100, "seed": 0}
    one, two = (expressed.bias_table(part, **numbers) for part in (completions, other))
    np.testing.assert_allclose(two["bias"], -one["bias"], atol=1e-15)
    np.testing.assert_allclose(two["low"], -one["high"], atol=1e-12)
    one, two = (expressed.polarization_table(part, **numbers) for part in (completions, other))
    same = ["bias_pol", "low", "high", "chance", "chance_high", "p", "neutral"]
    np.testing.assert_allclose(two[same], one[same], atol=1e-12)


def test_neutral_completions_alone_are_no_polarization_and_no_nan() -> None:
    table = frame(np.zeros((4, 3, 2), dtype=int))
    bias = expressed.bias_table(table, draws=100, seed=0)
    assert (bias[["bias", "low", "high"]] == 0).all(axis=None)
    (row,) = expressed.polarization_table(table, draws=100, seed=0).to_dict("records")
    zero = ["female", "male", "mean_bias", "bias_pol", "low", "high", "chance", "chance_high"]
    assert [row[name] for name in zero] == [0] * len(zero)
    assert (row["neutral"], row["p"]) == (1, 1)
    change = expressed.change(table, table, draws=100, seed=0)
    assert (change[["difference", "low", "high"]] == 0).all(axis=None)


def test_a_concept_with_a_single_entity_has_a_bias_but_no_polarization() -> None:
    table = frame(made_codes(4, 1, 3, 2))
    assert len(expressed.bias_table(table, draws=20, seed=0)) == 1
    with pytest.raises(ValueError, match="two entities"):
        expressed.polarization_table(table, draws=20, seed=0)
    with pytest.raises(ValueError, match="two entities"):
        expressed.change(table, table, draws=20, seed=0)


# The permutation null -------------------------------------------------------------------------------------------------


def test_the_null_has_the_enumerated_distribution() -> None:
    codes = np.array([[[1, 1], [1, 0]], [[-1, -1], [0, 0]]])
    exact: dict[float, int] = {}
    for first in permutations([1, 1, -1, -1]):
        for second in permutations([1, 0, 0, 0]):
            bias = [Fraction(sum(first[i : i + 2]) + sum(second[i : i + 2]), 4) for i in (0, 2)]
            value = float(exact_polarization(bias))
            exact[value] = exact.get(value, 0) + 1
    draws = 20_000
    null = expressed.shuffled_polarizations(codes, draws, np.random.default_rng(0))
    assert len(null) == draws
    for value, count in exact.items():
        share = count / 24**2
        found = np.isclose(null, value, atol=1e-12).mean()
        assert found == pytest.approx(share, abs=5 * (share * (1 - share) / draws) ** 0.5)
    assert sum(np.isclose(null, value, atol=1e-12).sum() for value in exact) == draws


def shuffled_over_everything(codes: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """A wrong null: personas exchange labels as well."""
    flat = np.broadcast_to(codes.reshape(-1), (draws, codes.size))
    return polarization(expressed.codes_bias(rng.permuted(flat, axis=1).reshape(draws, *codes.shape)))


def test_labels_stay_with_their_persona() -> None:
    codes = np.ones((3, 2, 4), dtype=int)
    codes[:, 1] = -1
    assert (expressed.shuffled_polarizations(codes, 50, np.random.default_rng(0)) == 0).all()
    assert shuffled_over_everything(codes, 50, np.random.default_rng(0)).mean() > 0.1


def null_codes(rng: np.random.Generator) -> np.ndarray:
    """No entity differs from another, but personas do."""
    rates = np.array([[0.9, 0.05, 0.05], [0.1, 0.7, 0.2], [0.3, 0.3, 0.4]])
    return np.stack([rng.choice([1, -1, 0], size=(5, 4), p=p) for p in rates], axis=1)


def test_p_is_uniform_without_polarization() -> None:
    runs, draws = 300, 199
    values: dict[Callable[..., np.ndarray], list[float]] = {
        expressed.shuffled_polarizations: [],
        shuffled_over_everything: [],
    }
    for seed in range(runs):
        rng = np.random.default_rng([5, seed])
        codes = null_codes(rng)
        observed = polarization(expressed.codes_bias(codes))
        for null, found in values.items():
            found.append(float(statistics.exceedance_p(observed, null(codes, draws, rng))))
    right, wrong = (np.array(found) for found in values.values())
    for level in (0.05, 0.1, 0.25, 0.5, 0.75):
        # Bias_pol takes few values, so ties make p a little large; hence the lower rate below.
        low, high = binom.ppf(0.001, runs, 0.75 * level), binom.ppf(0.999, runs, level)
        assert low <= (right <= level).sum() <= high
    # Negative control: where personas differ, shuffling over them hides polarization.
    assert (wrong <= 0.25).mean() < 0.15


TRUTH = np.array([0.7, 0.35, 0.0, -0.35, -0.7])


def planted(rng: np.random.Generator, truth: np.ndarray, *, personas: int, samples: int) -> np.ndarray:
    """Completions of entities with known bias; personas differ in how many are gendered at all."""
    gendered = np.clip(rng.normal(0.8, 0.1, size=personas), 0.71, 0.89)
    female = (gendered + truth[:, None]) / 2
    draws = rng.random((len(truth), personas, samples))
    return np.where(draws < female[..., None], 1, np.where(draws < gendered[:, None], -1, 0))


def resampled(codes: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    return expressed.bootstrap_biases(codes, expressed.persona_draws(codes, draws, rng), rng)


def test_p_is_small_with_polarization_and_unshuffled_replicates_are_no_null() -> None:
    draws = 199
    for seed in range(20):
        rng = np.random.default_rng([6, seed])
        codes = planted(rng, TRUTH, personas=6, samples=4)
        observed = polarization(expressed.codes_bias(codes))
        assert statistics.exceedance_p(observed, expressed.shuffled_polarizations(codes, draws, rng)) <= 0.02
        # Bootstrap replicates lie around and above the observed value: its percentile in them says nothing.
        assert statistics.exceedance_p(observed, polarization(resampled(codes, draws, rng))) > 0.2


# The bootstrap --------------------------------------------------------------------------------------------------------


def test_bootstrap_moments_equal_the_closed_form() -> None:
    """Var = (Var_p(m) + mean_p(v/S)) / P of persona means m and variances v within; entities share the first part."""
    codes = made_codes(7, 3, 5, 4).astype(float)
    codes[:, 0] = 1  # a persona that all entities agree on, so that sharing personas shows
    draws = 20_000
    found = resampled(codes, draws, np.random.default_rng(0))
    assert found.shape == (draws, 3)
    means = codes.mean(axis=2)
    shared = np.cov(means, ddof=0) / 5
    within = (codes.var(axis=2) / 4).mean(axis=1) / 5
    np.testing.assert_allclose(found.mean(axis=0), codes.mean(axis=(1, 2)), atol=0.01)
    np.testing.assert_allclose(np.cov(found.T), shared + np.diag(within), atol=0.06 * shared.max())
    # Negative control: with personas of their own the entities would be uncorrelated.
    assert abs(shared[0, 1]) > 0.3 * shared.max()


def test_intervals_cover_the_truth_about_as_often_as_promised() -> None:
    runs, truth = 200, TRUTH / 4
    covered, of_polarization, percentiles = 0, 0, 0
    for seed in range(runs):
        rng = np.random.default_rng([8, seed])
        codes = planted(rng, truth, personas=6, samples=2)
        bias = expressed.codes_bias(codes)
        replicates = resampled(codes, 200, rng)
        low, high = statistics.normal_interval(bias, replicates.T)
        covered += ((low <= truth) & (truth <= high)).sum()
        spread = polarization(replicates)
        low, high = statistics.normal_interval(polarization(bias), spread)
        of_polarization += low <= polarization(truth) <= high
        low, high = statistics.band(spread)
        percentiles += low <= polarization(truth) <= high
    assert 0.9 <= covered / (5 * runs) <= 0.98
    assert 0.85 <= of_polarization / runs <= 0.99
    # Negative control, and the reason for the form of the interval: percentiles lie too high.
    assert percentiles / runs < 0.6


# Changes --------------------------------------------------------------------------------------------------------------


def test_change_equals_the_difference_of_naive_polarizations() -> None:
    before, after = frame(made_codes(9, 4, 3, 2)), frame(made_codes(10, 4, 3, 3))
    found = expressed.change(before, after.sample(frac=1, random_state=1), draws=300, seed=0)
    assert list(found.columns) == ["concept", "kind", "difference", "low", "high"]
    values = []
    for side in (before, after):
        coded = side.assign(code=side["label"].map(expressed.LABELS))
        values.append(float(exact_polarization([Fraction(sum(c), len(c)) for _, c in coded.groupby("entity")["code"]])))
    (row,) = found.to_dict("records")
    assert row["difference"] == pytest.approx(values[1] - values[0], abs=1e-14)
    assert row["low"] < row["difference"] < row["high"]


def test_personas_are_resampled_together() -> None:
    """With completions that differ by persona only, nothing changes in any resample; apart, it would."""
    codes = np.repeat(made_codes(11, 4, 6, 1), 3, axis=2)
    (row,) = expressed.change(frame(codes), frame(codes), draws=50, seed=0).to_dict("records")
    assert (row["difference"], row["low"], row["high"]) == (0, 0, 0)
    apart = [polarization(resampled(codes, 50, np.random.default_rng(s))) for s in (0, 1)]
    assert np.std(apart[1] - apart[0]) > 0.01


def test_completions_are_resampled_apart() -> None:
    table = frame(made_codes(12, 4, 6, 5))
    (row,) = expressed.change(table, table, draws=50, seed=0).to_dict("records")
    assert row["low"] < row["difference"] < row["high"]


def test_change_covers_a_known_change() -> None:
    runs, covered = 40, 0
    for seed in range(runs):
        rng = np.random.default_rng([13, seed])
        before = planted(rng, TRUTH, personas=12, samples=2)
        after = np.where(rng.random(before.shape) < 0.5, before, 0)
        found = expressed.change(frame(before), frame(after), draws=100, seed=seed).iloc[0]
        covered += found["low"] <= polarization(TRUTH / 2) - polarization(TRUTH) <= found["high"]
    assert covered / runs >= 0.88


def test_changes_go_through_the_comparisons_and_leave_out_what_one_side_lacks() -> None:
    parts = {"before": two_concepts(), "after": two_concepts(), "after, 1950s": frame(made_codes(14, 4, 3, 2))}
    after = parts["after"]
    parts["after"] = after.assign(label=after["label"].map(OPPOSITE).where(after["entity"] == "Jobs 9", after["label"]))
    completions = pd.concat([part.assign(condition=name) for name, part in parts.items()])
    pairs = [("before", "after"), ("after", "after, 1950s"), ("after, 1950s", "after")]
    numbers = {"draws": 40, "seed": 3}
    found = expressed.changes(completions, pairs, **numbers)
    assert found.columns[0] == "comparison"
    names = list(zip(found["comparison"], found["concept"], strict=True))
    assert names == [
        ("after - before", "Jobs"),
        ("after - before", "Months"),
        ("after, 1950s - after", "Jobs"),
        ("after - after, 1950s", "Jobs"),
    ]
    for row, (first, second) in zip(found.itertuples(), [pairs[0], *pairs], strict=True):
        of = [parts[name][parts[name]["concept"] == row.concept] for name in (first, second)]
        (alone,) = expressed.change(*of, **numbers).to_dict("records")
        assert (row.difference, row.low, row.high) == (alone["difference"], alone["low"], alone["high"])
    assert found["difference"][3] == pytest.approx(-found["difference"][2], abs=1e-15)


def test_for_each_calls_once_a_group_and_puts_the_keys_first() -> None:
    parts = {("x", 2): 3, ("x", 1): 4, ("a", 2): 5}
    table = pd.concat([pd.DataFrame({"one": o, "two": t, "value": range(n)}) for (o, t), n in parts.items()])

    def summed(part: pd.DataFrame, *, times: int) -> pd.DataFrame:
        return pd.DataFrame({"sum": [part["value"].sum() * times], "n": [len(part)]})

    found = expressed.for_each(table, ["one", "two"], summed, times=10)
    expected = [[*keys, 10 * sum(range(n)), n] for keys, n in parts.items()]
    assert list(found.columns) == ["one", "two", "sum", "n"]
    assert found.to_numpy().tolist() == expected
    assert found.index.tolist() == [0, 1, 2]


def test_tables_depend_on_the_seed_alone() -> None:
    completions = two_concepts()
    for function in (expressed.bias_table, expressed.polarization_table):
        one, two, other = (function(completions, draws=30, seed=seed) for seed in (1, 1, 2))
        pd.testing.assert_frame_equal(one, two)
        assert not one.equals(other)
