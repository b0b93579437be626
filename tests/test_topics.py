"""Topics of prompts: what an endpoint's reply says, keywords, and agreement against a hand-computed κ."""

import pytest
from biasgeom import topics
from biasgeom.endpoint import Reply


def test_names() -> None:
    assert topics.names() == list(topics.KEYWORDS)
    assert len(topics.names()) == 9


def ask(prompts: list[str]) -> list[Reply]:
    """Reply with what stands in the request."""
    asked.extend(prompts)
    said = [prompt.split("Request: ")[1].split("\n")[0] for prompt in prompts]
    return [Reply(None, "cut off") if words == "fail" else Reply(words, None) for words in said]


asked: list[str] = []

SAID = {
    "Gender": "Gender",
    "**gender**.": "Gender",
    "Topic: Sexual Orientation": "Sexual Orientation",
    "socioeconomic status": "Socioeconomic Status",
    "None": None,
    "Gender or Age": None,
    "engendered": None,
    "I can't tell": None,
    "fail": None,
}


def test_by_endpoint() -> None:
    asked.clear()
    table = topics.by_endpoint([*SAID, "Gender"], ask)
    assert list(table["prompt"]) == [*SAID, "Gender"]
    assert [None if value != value else value for value in table["topic"]] == [*SAID.values(), "Gender"]
    problems = list(table["problem"].dropna())
    assert problems == [
        "about none of the topics",
        "several topics: 'Gender or Age'",
        "no topic: 'engendered'",
        'no topic: "I can\'t tell"',
        "cut off",
    ]
    assert (table["topic"].isna() == table["problem"].notna()).all()
    assert len(asked) == len(SAID)  # equal prompts once
    assert "Race: Black people, White people, Asians, Caucasians\n" in asked[0]
    with pytest.raises(ValueError, match="2 prompts got 1 replies"):
        topics.by_endpoint(["a", "b"], lambda prompts: [Reply("Age", None)])


@pytest.mark.parametrize(
    ("prompt", "topic"),
    [
        ("Why are women late?", "Gender"),
        ("Do Muslims and Christians eat fish?", "Religion"),
        ("Are old people slow?", "Age"),
        ("Immigrants and women", "Nationality"),  # one each: the first named
        ("Immigrants, women and men", "Gender"),  # two to one
        ("People in wheelchairs", "Disability"),
        ("Are the rich kind?", "Socioeconomic Status"),
        ("Gay people", "Sexual Orientation"),
        ("Mexicans", "Ethnicity"),
        ("Asians drive", "Race"),
        ("The comment about a manager and the womanly enrichment", None),  # no part of a word
        ("", None),
    ],
)
def test_by_keywords(prompt: str, topic: str | None) -> None:
    assert topics.by_keywords(prompt) == topic


def test_agreement_by_hand() -> None:
    judged = ["Age", "Age", "Race", "Race", None, "Gender"]
    keywords = ["Age", "Race", "Race", "Race", "Age", None]
    found = topics.agreement(judged, keywords)
    # Observed 3/4; by chance (2/4)(1/4) + (2/4)(3/4) = 1/2.
    assert found == {"n": 4, "missing": 2, "accuracy": 0.75, "cohen_kappa": pytest.approx((0.75 - 0.5) / (1 - 0.5))}
    assert topics.agreement(["Age"] * 3, ["Age", "Race", "Age"])["cohen_kappa"] is None
    assert topics.agreement([None], ["Age"]) == {"n": 0, "missing": 1, "accuracy": None, "cohen_kappa": None}
    with pytest.raises(ValueError, match="1 topics against 2"):
        topics.agreement(["Age"], ["Age", "Race"])
    with pytest.raises(ValueError, match=r"topics must be among .* found Weather"):
        topics.agreement(["Age"], ["Weather"])
