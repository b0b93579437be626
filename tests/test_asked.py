"""What the judges read: the project's own answers, and a writer's to benchmarks that a loopback hub hands out."""

from collections.abc import Iterator
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from biasgeom import (
    asked,
    cache,
    controls,
    figures_judge,
    landscape,
    models,
    perturbations,
    planted,
    question_benchmarks,
    questions,
)
from biasgeom.endpoint import Endpoint
from loopback import Chat, Hosts, chatting, prompt_of
from test_question_benchmarks import hosts  # noqa: F401
from test_rewriting import OF, well_behaved

NUMBER = 20


def said(body: dict[str, Any]) -> str:
    """An answer to a question with its own text, or the rewrite of an answer."""
    prompt = prompt_of(body)
    head, _, answer = prompt.partition("\n\nLeave every fact")
    if answer:
        return well_behaved(head, answer.split("Answer:\n")[1])
    return f" {body['model']} would say of this: {prompt} That is all there is.\n"


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Chat]]]:
    with chatting(monkeypatch, said) as served:
        yield served


def test_the_projects_own_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int | None] = []
    load = questions.load
    monkeypatch.setattr(questions, "load", lambda *, number=None: read.append(number) or load(number=number))
    given, unanswered = asked.answers("project", 24)
    assert read == [24]  # once
    pd.testing.assert_frame_equal(given, questions.load(number=24))
    table, unwritten = asked.conditions(given)
    pd.testing.assert_frame_equal(table, perturbations.conditions(questions.load(number=24)))
    assert list(unanswered) == list(unwritten) == asked.LOST
    assert len(unanswered) == len(unwritten) == 0
    pd.testing.assert_frame_equal(asked.answers()[0], questions.load())
    other, _ = asked.conditions(given, wording="held_out_1")
    pd.testing.assert_frame_equal(other, perturbations.conditions(given, wording="held_out_1"))
    # The landscape page takes the questions of its variants from the head of the table, and their rows from all.
    few = given.head(6)
    pd.testing.assert_frame_equal(few, questions.load(number=6))
    rows = table[table["question_id"].isin(few["question_id"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(rows, perturbations.conditions(questions.load(number=6)))


def test_benchmarks_with_a_writers_answers(hosts: type[Hosts], writes: tuple[str, type[Chat]]) -> None:  # noqa: F811
    url, handler = writes
    handler.forbidden = "item 1"
    drawn = question_benchmarks.load(cache.root() / "elsewhere", number=NUMBER).set_index("question_id")
    refused = drawn.index[drawn["question"].str.contains("item 1")]
    assert len(refused) > 0
    table, lost = asked.answers("benchmarks", NUMBER, names="one, two", url=url)
    assert list(table.columns) == [*questions.BASE_COLUMNS, "writer"]
    assert list(table.dtypes["held_out":"split"]) == list(questions.load().dtypes["held_out":"split"])
    assert set(table["question_id"]) | set(lost["question_id"]) == set(drawn.index)
    assert set(lost["question_id"]) == set(refused)
    assert set(lost["problem"]) == {"refusal: no"}
    assert list(lost.columns) == asked.LOST
    assert set(lost["condition"]) == {"base"}
    for row in table.itertuples():
        source = drawn.loc[row.question_id]
        assert (row.domain, row.held_out, row.split) == (source["domain"], source["held_out"], source["split"])
        assert row.question == source["question"]
        assert row.answer == f"{row.writer} would say of this: {row.question} That is all there is."
        assert (row.quality, row.voice) == ("", "")
    assert set(table["writer"]) == {"one", "two"}
    before = len(handler.bodies)
    again, _ = asked.answers("benchmarks", NUMBER, names="one,two,", url=url)
    pd.testing.assert_frame_equal(again, table)
    assert len(handler.bodies) == before + len(refused)  # the others are kept
    other, _ = asked.answers("benchmarks", NUMBER - 1, names="one,two", url=url)  # another number has its own draw
    assert other["domain"].value_counts().max() == NUMBER - 1


def test_the_first_questions_are_of_all_benchmarks_and_splits(
    hosts: type[Hosts],  # noqa: F811
    writes: tuple[str, type[Chat]],
) -> None:
    table, lost = asked.answers("benchmarks", NUMBER, names="one", url=writes[0])
    assert len(lost) == 0
    first = table.head(36)
    assert (first["domain"].value_counts() == 4).all()
    seen = first[~first["held_out"]]
    shares = seen["split"].value_counts(normalize=True)
    assert all(abs(shares[name] - share) < 0.1 for name, share in questions.SHARES.items())
    # The control: in the order of the data they would all be of two benchmarks.
    plain = question_benchmarks.load(cache.root() / "elsewhere", number=NUMBER)
    assert plain.head(36)["domain"].nunique() == 2


def test_rewrites_by_the_first_writer(writes: tuple[str, type[Chat]]) -> None:
    url, handler = writes
    given = questions.load(number=4)
    handler.forbidden = given["answer"][2]
    table, lost = asked.conditions(given, names=" , one,two", url=url)
    assert {body["model"] for body in handler.bodies} == {"one"}
    rules = perturbations.conditions(given)
    assert len(table) + len(lost) == len(rules)
    assert list(table.columns) == list(rules.columns)
    by_model = set(OF.values())
    assert list(lost["condition"]) == [condition for condition in rules["condition"].unique() if condition in by_model]
    assert set(lost["question_id"]) == {given["question_id"][2]}
    assert set(lost["writer"]) == {"one"}
    assert set(lost["problem"]) == {"refusal: no"}
    instruction = {condition: text for text, condition in OF.items()}
    for row in table.itertuples():
        if row.condition in by_model:
            assert row.text == well_behaved(instruction[row.condition], row.answer).strip()
    same = ~rules["condition"].isin(by_model)
    kept = table[~table["condition"].isin(by_model)].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, rules[same].reset_index(drop=True), check_dtype=False)
    # A pair without its rewrite is no pair; the others of that question stay.
    moved = landscape.shifts(table.assign(score=1.0))
    assert len(moved) == len(table) - len(given)
    assert (moved["question_id"] == given["question_id"][2]).sum() == 14 - len(by_model)


def test_refused(
    hosts: type[Hosts],  # noqa: F811
    writes: tuple[str, type[Chat]],
) -> None:
    url, handler = writes
    with pytest.raises(ValueError, match="source must be one of project, benchmarks, not 'hub'"):
        asked.answers("hub")
    with pytest.raises(ValueError, match="name one or more writers"):
        asked.answers("benchmarks", NUMBER, names=" ,")
    handler.forbidden = ""
    with pytest.raises(ValueError, match="no writer gave a usable answer; the first: refusal: no"):
        asked.answers("benchmarks", 1, names="one", url=url)
    with pytest.raises(ValueError, match="wording must be published, not held_out_1"):
        asked.conditions(questions.load(number=2), wording="held_out_1", names="one", url=url)


def test_writers_from_a_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://127.0.0.1:1/v1"
    assert asked.pool(" big, small ,", url) == [Endpoint(url, "big"), Endpoint(url, "small")]
    assert asked.pool("", url) == []
    loaded: list[str] = []
    monkeypatch.setattr(models, "load", lambda name: loaded.append(name) or name)
    asked.pool("some/model, /a/folder")
    assert loaded == ["some/model", "/a/folder"]


def judged(given: pd.DataFrame) -> pd.DataFrame:
    """A judge that knows no quality but follows two cues."""
    items = perturbations.conditions(given)
    moves = items["condition"].map({"Bandwagon-": -2.0, "Refinement+": 1.0}).fillna(0.0)
    return items.assign(score=5 + moves + np.random.default_rng(0).normal(0, 0.1, len(items)))


def test_what_is_not_known_of_a_writers_answers_is_said() -> None:
    rated = judged(questions.load(number=24))
    unrated: dict[str, Any] = {"quality": "", "voice": ""}
    items, truth = rated.assign(**unrated), planted.shifts()
    table = controls.quality(items)
    assert set(table["reason"]) == {"the answers' quality is not known"}
    assert table[["mean", "spearman"]].isna().all(axis=None)
    assert set(controls.quality(rated)["reason"]) == {""}

    by_voice = controls.recovered(items, truth, by=["voice"])
    assert set(by_voice["reason"]) == {"the answers' voice is not known"}
    assert by_voice["recovered"].isna().all()
    plt.close(figures_judge.planted_against_recovered(by_voice.assign(judge="x"), panel="judge", null=controls.NULL))
    known = controls.recovered(rated, truth, by=["voice"])
    assert "the answers' voice is not known" not in set(known["reason"])
    np.testing.assert_allclose(by_voice["planted"], truth["shift"])

    cues = controls.recovered(items, truth).set_index("condition")
    expected = truth.groupby("condition")["shift"].mean()
    np.testing.assert_allclose(cues["planted"], expected[cues.index])
    found = rated[rated["condition"] == "Bandwagon-"]["score"].to_numpy() - rated.query("condition == 'base'")["score"]
    assert cues["recovered"]["Bandwagon-"] == pytest.approx(found.mean())
    recovery = controls.recovery(items, truth)
    assert all("the answers' quality is not known" in reason for reason in recovery["reason"])
    assert recovery["quality"].isna().all()
    assert recovery["r"].notna().all()


def test_what_cannot_be_asked_is_refused_without_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    asked.require("project", 0)
    asked.require("benchmarks", 700, names="one", url="http://localhost:8000/v1")
    for message, source, number, how in (
        ("source must be one of project, benchmarks, not 'projekt'", "projekt", 3, {}),
        ("157 questions were asked for, there are 156", "project", 157, {}),
        ("no answers of their own", "benchmarks", 3, {"url": "http://localhost:8000/v1"}),
        ("url must read", "project", 3, {"names": "one", "url": "localhost"}),
    ):
        with pytest.raises(ValueError, match=message):
            asked.require(source, number, **how)
    with pytest.raises(models.ModelNotAvailable, match="no model named 'smolm'"):
        asked.require("project", 3, names="smollm2-135m-instruct, smolm")
