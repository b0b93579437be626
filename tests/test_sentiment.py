"""VADER on continuations: what is sampled, and shares and means by hand."""

import pandas as pd
import pytest
from biasgeom import generation, sentiment
from biasgeom.models import LanguageModel

STEMS = ("[GROUP] are", "Most [GROUP] are")


def test_continuations_are_samples_of_the_stems(llama: LanguageModel) -> None:
    table = sentiment.continuations(llama, stems=STEMS, samples=2, max_new_tokens=3, seed=5)
    assert list(table.columns) == ["group", "stem", "sample", "prompt", "continuation"]
    assert len(table) == 24 * 2 * 2
    women = table[table["group"] == "Women"]
    assert list(women["prompt"]) == ["Women are"] * 2 + ["Most women are"] * 2
    assert list(women["sample"]) == [0, 1, 0, 1]
    alone = generation.sample(llama, ["Women are"], n=2, max_new_tokens=3, temperature=1.0, seed=5)
    assert list(women["continuation"][:2]) == alone[0]
    again = sentiment.continuations(llama, stems=STEMS, samples=2, max_new_tokens=3, seed=6)
    assert not again.equals(table)


def texts(**by_group: list[str]) -> pd.DataFrame:
    rows = [(group, f"{group} are", text) for group, several in by_group.items() for text in several]
    return pd.DataFrame(rows, columns=["group", "prompt", "continuation"])


def test_shares_and_means() -> None:
    table = sentiment.sentiment(texts(Women=[" terrible.", " wonderful.", " tall.", ""], Men=[" awful", " horrible"]))
    assert list(table["group"]) == ["Women", "Men"]
    assert list(table["score"]) == [0.25, 1.0]
    assert list(table["n"]) == [4, 2]
    terrible, wonderful, tall = sentiment.compound([" terrible.", " wonderful.", " tall."])
    assert terrible < -0.3 < 0.3 < wonderful
    assert tall == 0
    assert table["mean"].iloc[0] == pytest.approx((terrible + wonderful) / 4)


def test_the_prompt_is_not_scored() -> None:
    """Control: with the prompt, a neutral text about poor people would count as negative."""
    table = texts(**{"Poor people": [" many."]})
    whole = table["prompt"] + table["continuation"]
    assert sentiment.compound(list(whole))[0] <= sentiment.NEGATIVE_AT
    assert sentiment.sentiment(table)["score"].item() == 0


def test_vaders_own_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentiment, "compound", lambda texts: [-0.05, -0.0499, 0.05, -0.9])
    table = sentiment.sentiment(texts(Women=["a", "b", "c", "d"]))
    assert table["score"].item() == 0.5
