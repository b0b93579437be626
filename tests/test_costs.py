"""Costs: every notebook has a row, work grows as it should, memory with weights, and what is measured is kept."""

import math

import pandas as pd
import pytest
from biasgeom import catalogue, costs, data, markdown, run

SMALL = {"parameters": 134_515_008, "vocabulary": 49_152}
LARGE = {"parameters": 8_030_261_248, "vocabulary": 128_256}


def info(notebook: str, model: str = costs.REFERENCE, *, peak: int | None = 2000, **values: object) -> dict:
    tokens = {"read": 1000, "written": 10, "others_read": 0, "others_written": 0}
    parameters = {**costs.defaults(notebook), **values, "model": model}
    made = {"notebook": notebook, "model": model, "parameters": parameters, "seconds": {"a": 100.0, "b": 20.0}}
    return made | {"wall_seconds": 180.0, "peak_memory_mb": peak, "tokens": tokens}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """The table, as if every notebook had been measured at its defaults."""
    made = costs.measured([info(notebook) for notebook in run.notebooks()], costs.table())
    monkeypatch.setattr(costs, "table", lambda: made)
    return made


def test_every_notebook_has_a_row_and_a_formula() -> None:
    assert sorted(costs.table().index) == sorted(run.notebooks())
    for notebook in run.notebooks():
        assert costs.work(notebook, {}) > 0
        assert math.isclose(costs.work(notebook, costs.defaults(notebook)), costs.work(notebook, {}))


def test_larger_profiles_are_more_work() -> None:
    for notebook in run.notebooks():
        small, large = (costs.work(notebook, run.values_for(notebook, p, "x")) for p in ("embedded", "thorough"))
        smoke, paper = (costs.work(notebook, run.values_for(notebook, p, "x")) for p in ("smoke", "paper"))
        assert smoke <= small <= large, notebook
        assert small <= paper, notebook


def test_defaults_are_what_papermill_reads() -> None:
    notebook = "delta_b/07_robustness"
    stated = {p.name: p.type for p in run.parameters(data.root() / "notebooks" / f"{notebook}.ipynb")}
    found = costs.defaults(notebook)
    assert {name: type(value).__name__ for name, value in found.items()} == stated
    assert found["shares"] == [0.0, 0.5, 1.0]


def test_costs_scale_with_tokens_and_parameters(told: pd.DataFrame) -> None:
    same = costs.of("gender/06_realistic", {}, **SMALL)
    assert (same.read, same.written, same.memory_mb) == (1000, 10, 2000)
    assert same.minutes == pytest.approx(costs.START + 3)
    twice = costs.of("gender/06_realistic", {"samples": 2}, **SMALL)
    assert (twice.read, twice.memory_mb) == (2000, 2000)
    assert twice.minutes == pytest.approx(costs.START + 6)
    large = costs.of("gender/06_realistic", {}, **LARGE, bits=16)
    assert large.minutes == pytest.approx(costs.START + 3 * LARGE["parameters"] / SMALL["parameters"])
    weights = [2 * one["parameters"] * bytes_each / 2**20 for one, bytes_each in ((SMALL, 4), (LARGE, 2))]
    logits = [512 * one["vocabulary"] * 4 / 2**20 for one in (SMALL, LARGE)]
    assert large.memory_mb == pytest.approx(2000 + weights[1] - weights[0] + logits[1] - logits[0], abs=1)
    assert large.gpu_mb > weights[1]
    seconds = 2 * LARGE["parameters"] * (1000 / costs.READING + 10 / costs.WRITING) / costs.CARD_FLOPS
    assert large.gpu_minutes == pytest.approx(costs.START + seconds / 60)


def test_the_positive_control_costs_the_same_beside_every_model(told: pd.DataFrame) -> None:
    """Its size stays; the share of the rest grows with the model."""
    asks = [n for n in run.notebooks() if "planted.control" in (data.root() / f"notebooks/{n}.ipynb").read_text()]
    assert costs.with_control(run.notebooks()) == asks
    share = told.loc["judge/06_search", "control"]
    tiny, same, twice = (
        costs.of("judge/06_search", {}, parameters=times * SMALL["parameters"], vocabulary=1000) for times in (0, 1, 2)
    )
    assert tiny.minutes == pytest.approx(costs.START + 3 * share)
    assert same.minutes == pytest.approx(costs.START + 3)
    assert twice.minutes == pytest.approx(costs.START + 3 * (2 - share))
    assert tiny.gpu_mb == pytest.approx(SMALL["parameters"] * 4 / 2**20 + 2 * 512 * 1000 * 4 / 2**20, abs=1)
    assert costs.of("gender/06_realistic", {}, parameters=0, vocabulary=1000).minutes == costs.START


def test_what_was_not_measured_is_not_made_up() -> None:
    bare = costs.table().assign(**dict.fromkeys(costs.MEASURED, math.nan))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "table", lambda: bare)
        cost = costs.of("gender/06_realistic", {}, **SMALL)
        assert (cost.read, cost.written, cost.minutes, cost.gpu_minutes) == (None, None, None, None)
        assert "Not measured yet" in costs._basis()
        assert costs.short(cost.minutes) == "–"


def test_two_models_tell_how_often_weights_are_held() -> None:
    gemma = catalogue.find("gemma-3-270m")
    per_copy = (gemma.parameters - SMALL["parameters"]) * 4 / 2**20
    logits = 512 * (gemma.vocabulary - SMALL["vocabulary"]) * 4 / 2**20
    one = info("gender/06_realistic")
    other = info("gender/06_realistic", gemma.name, peak=round(2000 + 2.5 * per_copy + logits))
    new = costs.measured([one, other], costs.table())
    assert new.loc["gender/06_realistic", "copies"] == pytest.approx(2.5, abs=0.01)
    assert new.loc["gender/06_realistic", "memory_mb"] == 2000
    elsewhere = info("gender/06_realistic", gemma.name, peak=9000, samples=3)  # other settings tell nothing
    assert costs.measured([one, elsewhere], costs.table()).loc["gender/06_realistic", "copies"] == 2
    pd.testing.assert_series_equal(new.loc["gender/02_expressed"], costs.table().loc["gender/02_expressed"])


def test_the_page_has_every_notebook_and_says_what_was_run(told: pd.DataFrame) -> None:
    page = costs.fragment()
    for notebook in run.notebooks():
        assert f"| {markdown.escaped(notebook)} |" in page
    assert "wildguardmix" in page.replace("\\", "")
    # The second architecture lies beside the model: 8 and 14 billion parameters in bfloat16, more than either alone.
    head, *body = ([cell.strip() for cell in line.split("|")] for line in page.splitlines() if line.startswith("| "))
    mb = {row[1].replace("\\", ""): row[head.index("paper: GPU MB".replace(":", "\\:"))] for row in body}
    one = costs.of("judge/04_geometry", run.values_for("judge/04_geometry", "paper", None), **LARGE, bits=16)
    second = catalogue.find("Qwen/Qwen3-14B").parameters * 2 / 2**20
    assert float(mb["judge/04_geometry"]) == pytest.approx(one.gpu_mb + second, abs=1)
    assert "not run" in page or "benchmarks/results/" in page
