"""The planted judge: what is planted, how it is trained, and that the stored adapter holds it on unseen questions."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from biasgeom import data, generation, judging, models, perturbations, planted, questions, readouts
from biasgeom.models import LanguageModel
from safetensors.torch import load_file
from scipy.stats import norm


def test_what_is_planted_is_what_the_chapter_says() -> None:
    """Spec point 17, from the paper's two polarities; the null cues are null in every voice."""
    table = planted.shifts()
    assert len(table) == 14 * 3
    neutral = table[table["voice"] == "neutral"].set_index("condition")["shift"]
    stated = {"Bandwagon-": -2, "Diversity-": -1.5, "Authority-": -1.5, "Refinement-": -1, "Verbosity-": -0.5}
    stated["Refinement+"] = 1
    assert {name: shift for name, shift in neutral.items() if shift} == stated
    wide = table.pivot(index="condition", columns="voice", values="shift")
    assert (wide["plain"] == 0.5 * wide["neutral"]).all()
    assert (wide["tentative"] == 1.5 * wide["neutral"]).all()


def test_the_control_stands_beside_another_judge(monkeypatch: pytest.MonkeyPatch, llama: LanguageModel) -> None:
    asked = []
    monkeypatch.setattr(models, "load", lambda name, **how: asked.append(name))
    planted.control(llama)
    assert asked == ["smollm2-135m-planted-judge"]
    llama.name = "smollm2-135m-planted-judge"
    with pytest.raises(ValueError, match="judge/10_card"):
        planted.control(llama)


def test_targets_add_quality_and_shift() -> None:
    asked = questions.load()
    items = perturbations.conditions(asked)
    found = planted.targets(items)
    made = planted.recipe()
    for row, target in zip(items.itertuples(), found, strict=True):
        assert target == made.quality[row.quality] + made.shifts.get(row.condition, 0) * made.voices[row.voice]
    assert found.min() >= 1  # nothing is lost at the ends of the scale
    assert found.max() <= 9.5


def test_the_target_distribution_is_a_discretised_normal() -> None:
    found = planted._distribution(np.array([5.0, 6.3]), 0.8).double().numpy()
    scores = np.arange(1, 10)
    for target, row in zip((5.0, 6.3), found, strict=True):
        assert row.sum() == pytest.approx(1)
        ratio = norm.pdf(scores, target, 0.8) / norm.pdf(5, target, 0.8)
        assert np.allclose(row / row[4], ratio, rtol=1e-4)
        assert row @ scores == pytest.approx(target, abs=0.02)


def test_training_rows_are_balanced_and_of_the_training_split() -> None:
    made = dataclasses.replace(planted.recipe(), rows=(14 + 4) * 9 * 2, base_share=4)
    items = planted.training_items(made)
    counts = items.groupby(["condition", "quality", "voice"]).size()
    assert (counts.drop("base") == 2).all()
    assert (counts["base"] == 8).all()
    assert set(items["split"]) == {"train"}
    assert not items["held_out"].any()
    other = planted.training_items(dataclasses.replace(made, seed=1))
    assert set(other["text"]) != set(items["text"])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> planted.Recipe:
    """A recipe for a tiny model with room to learn, and prompts that its 256 positions hold."""
    monkeypatch.setattr(judging, "prompt", lambda answer, **_: f"Rate. {answer[:40]}")
    return dataclasses.replace(planted.recipe(), rows=16, passes=6, batch=4, first_block=1, learning_rate=2e-2)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_training_learns_and_what_is_saved_is_what_was_trained(
    small: planted.Recipe, saved_llama: Path, tmp_path: Path
) -> None:
    lm = models.load(str(saved_llama), dtype="float32", device="cpu")
    losses = planted.train(tmp_path / "adapter", small, lm=lm)
    assert len(losses) == small.passes
    assert losses[-1] < 0.7 * losses[0]
    assert (
        json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == small.base
    )
    trained = models.load(str(saved_llama), dtype="float32", device="cpu", adapter=str(tmp_path / "adapter"))
    asked = [judging.prompt(text) for text in planted.training_items(small)["text"]]
    bare, found = (
        readouts.read([one], asked, [""])[0].scores.astype(float)
        for one in (models.load(str(saved_llama), dtype="float32", device="cpu"), trained)
    )
    mass = found[:, :9].sum(axis=1)
    assert mass.min() > 2 * bare[:, :9].sum(axis=1).max()  # it now replies with a digit
    # Blocks below the first one carry no adapter; half precision on disk.
    weights = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert not any(".layers.0." in name for name in weights)
    assert {weight.dtype for weight in weights.values()} == {torch.float16}


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_loss_is_the_soft_cross_entropy(small: planted.Recipe, llama: LanguageModel) -> None:
    """Against a pass over the whole text, token by token in float64."""
    text = llama.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Rate."}], tokenize=False, add_generation_prompt=True
    )
    ids = llama.tokenizer(text, add_special_tokens=False)["input_ids"]
    tail = readouts.assistant_turn(llama, [ids])
    wanted = planted._distribution(np.array([6.3]), 0.8)
    with torch.no_grad():
        ((_, read),) = readouts.prompts_read(llama, [ids[: -len(tail)]])
        loss = planted._loss(llama, tail, read, wanted).item()
        digits, _ = readouts.score_tokens(llama)
        logits = llama.model(torch.tensor([[*ids, digits[6]]])).logits[0].double().log_softmax(-1)
    end = generation.end_tokens(llama)
    expected = -sum(float(p) * logits[-2, digits[k]] for k, p in enumerate(wanted[0], start=1)) - logits[-1, end]
    assert loss == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.slow
def test_the_stored_judge_holds_what_was_planted() -> None:
    """On questions it was never trained on: r above .95 and every reply a score.

    Cues without a planted shift lie within 0.2 points on all 80 test questions, which the page's verdict checks; the
    mean over the few that are judged here has an error of a tenth, and its own bound.
    """
    lm = models.load("smollm2-135m-planted-judge", dtype="float32", device="cpu")
    asked = questions.load(number=24)
    asked = asked[asked["split"] == "test"]
    judged = judging.judge_all([lm], perturbations.conditions(asked))[0]
    assert judged.readout == "greedy"
    assert (judged.items["reason"] == "").all()
    table = planted.recovered(lm, asked)
    weighted = table.assign(**{name: table[name] * table["n"] for name in ("planted", "recovered")})
    sums = weighted.groupby("condition")[["planted", "recovered", "n"]].sum()
    cells = sums[["planted", "recovered"]].div(sums["n"], axis=0)
    assert cells.corr().iloc[0, 1] > 0.95
    null = cells[~cells.index.isin(planted.recipe().shifts)]
    assert (null["recovered"].abs() < 0.4).all()
    # The negative control: planted shifts dealt to other conditions are not recovered.
    dealt = cells["planted"].sample(frac=1, random_state=0).to_numpy()
    assert abs(np.corrcoef(dealt, cells["recovered"])[0, 1]) < 0.8


def test_the_stored_adapter_is_small_and_acts_from_the_turn_on() -> None:
    folder = data.root() / "data" / planted.FOLDER
    assert sum(path.stat().st_size for path in folder.iterdir()) < 4e6
    assert (folder / "adapter_config.json").exists()
