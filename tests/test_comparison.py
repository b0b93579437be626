"""The page that compares models: its numbers are those of the tables, and what is missing is said, not filled in."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from biasgeom import comparison, comparison_page, figures_comparison, shelf
from biasgeom.claims import MissingTable
from biasgeom.markdown import escaped
from biasgeom.shelf import Shown

ROWS = {
    "gender/02_expressed/polarization": pd.DataFrame(
        {
            "condition": ["before", "before", "after"],
            "concept": ["Professions", "Months", "Professions"],
            "kind": ["gendered", "control", "gendered"],
            "bias_pol": [0.44, 0.1, 0.08],
            "low": [0.4, 0.0, 0.05],
            "high": [0.5, 0.2, 0.1],
            "chance": [0.05, 0.1, 0.05],
            "p": [0.001, 0.5, 0.2],
        }
    ),
    "judge/03_landscape/aggregates": pd.DataFrame(
        {
            "judge": ["m", "m", "planted"],
            "aggregate": ["negative", "negative", "negative"],
            "over": ["all", "test", "all"],
            "questions": [150, 80, 150],
            "base_mean": [6.0, 6.0, 5.8],
            "delta": [-0.2, -0.3, -0.65],
            "low_by_question": [-0.3, -0.4, -0.7],
            "high_by_question": [-0.1, -0.2, -0.6],
            "cohens_d": [-0.5, -0.6, -0.8],
            "p_adjusted": [0.01, 0.01, 0.01],
        }
    ),
    "judge/03_landscape/judges": pd.DataFrame(
        {"judge": ["m", "planted"], "readout": ["expected", "greedy"], "validity": [1.0, 1.0], "base sd": [0.1, 0.6]}
    ),
}


def saved(folder: Path, rows: dict[str, pd.DataFrame], name: str = "m", **more: object) -> Shown:
    made = {"source": "s", "sha256": "ab" * 32, "dtype": "float32", "device": "cpu"}
    for path, frame in rows.items():
        notebook = path.rsplit("/", 1)[0]
        (folder / notebook).mkdir(parents=True, exist_ok=True)
        frame.to_csv(folder / f"{path}.csv", index=False)
        info = {"model": name, "notebook": notebook, "blocks": 4, "width": 8, "provenance": made, "parameters": {}}
        info |= {"seconds": {"a": 30, "b": 60}, "commit": "c0ffee", "packages": {}}
        (folder / notebook / "run.json").write_text(json.dumps(info))
    return Shown(name, folder.name, folder, **more)


def test_the_numbers_are_those_of_the_table(tmp_path: Path) -> None:
    model = saved(tmp_path / "m", ROWS)
    found = comparison.table([model], "gender/02_expressed", comparison.expressed)
    assert found[["condition", "bias_pol", "low", "high", "p"]].to_numpy().tolist() == [
        ["before", 0.44, 0.4, 0.5, 0.001],
        ["after", 0.08, 0.05, 0.1, 0.2],
    ]
    assert found["reason"].isna().all()
    assert (found["model"] == "m").all()
    judged = comparison.table([model], "judge/03_landscape", comparison.susceptibility)
    assert judged[["judge", "delta", "low", "high", "base_sd"]].to_numpy().tolist() == [
        ["m", -0.2, -0.3, -0.1, 0.1],
        ["planted", -0.65, -0.7, -0.6, 0.6],
    ]


def test_shifts_of_models_with_other_numbers_of_anchors_stand_over_the_root(tmp_path: Path) -> None:
    """With four times the anchors the same sentences give twice the ΔB."""
    keys = {"regime": ["lora", "lora"], "checkpoint": "synth", "measure": ["shift", "change"], "p": 0.01}
    found = []
    for anchors, size in ((100, 1.0), (400, 2.0), (None, 1.0)):
        rows = pd.DataFrame(keys | {"difference": -0.2 * size, "low": -0.3 * size, "high": -0.1 * size})
        model = saved(tmp_path / f"m{anchors}", {"delta_b/05_results/contrast": rows})
        path = model.folder / "delta_b/05_results/run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"parameters": {"anchors": anchors}}))
        found.append(comparison.table([model], "delta_b/05_results", comparison.contrast))
    for one in found[:2]:
        assert one[["difference", "low", "high"]].to_numpy().tolist() == [pytest.approx([-0.02, -0.03, -0.01])]
        assert one["p"].tolist() == [0.01]
    assert found[2]["reason"].tolist() == ["run, but run.json does not tell the number of anchors"]
    shown = comparison.SECTIONS["contrast"].worded(found[0])
    assert "criticised groups less the others, ΔB over √m" in shown


def test_what_a_model_lacks_is_said_with_the_reason(tmp_path: Path) -> None:
    whole = saved(tmp_path / "m", ROWS)
    part = saved(tmp_path / "raw", {k: v for k, v in ROWS.items() if k.startswith("gender")}, "raw")
    skipped = {"judge/03_landscape": "it has no chat template"}
    (part.folder / "model.json").write_text(json.dumps({"name": "raw", "profile": "smoke", "skipped": skipped}))
    found = comparison.table([whole, part], "judge/03_landscape", comparison.susceptibility)
    assert found.loc[found["model"] == "raw", "reason"].tolist() == ["not run. it has no chat template"]
    assert found.loc[found["model"] == "raw", ["delta", "low", "high"]].isna().all(axis=None)
    assert found.loc[found["model"] == "raw", "profile"].tolist() == ["smoke"]


def test_not_asked_for_and_broken_are_two_reasons(tmp_path: Path) -> None:
    model = saved(tmp_path / "m", ROWS)
    for asked, why in ((None, "NOT_TOLD"), (["delta_b/05_results"], "NOT_ENDED"), (["gender/01_prompts"], "NOT_ASKED")):
        if asked:
            described = {"name": "m", "profile": "smoke", "skipped": {}, "asked": asked}
            (model.folder / "model.json").write_text(json.dumps(described))
        again = Shown("m", "m", model.folder)
        never = comparison.table([again], "delta_b/05_results", comparison.separation)["reason"].tolist()
        assert never == [f"not run. {getattr(shelf, why)}"]
    given = saved(tmp_path / "g", ROWS, contributed=True)
    assert comparison.table([given], "delta_b/05_results", comparison.separation)["reason"].tolist() == [
        f"not run. {shelf.NOT_GIVEN}"
    ]
    (model.folder / "gender/02_expressed/polarization.csv").unlink()
    broken = comparison.table([model], "gender/02_expressed", comparison.expressed)["reason"].tolist()
    assert broken == ["run, but 02_expressed/polarization.csv is not there"]


def test_a_folder_is_titled_by_its_own_name_also_where_tables_name_it(tmp_path: Path) -> None:
    name = "/home/anna/models/tiny"
    rows = {path: frame.replace({"judge": {"m": name}}) for path, frame in ROWS.items() if "judge" in path}
    model = saved(tmp_path / "tiny-12345678", rows, name)
    assert (model.name, model.title) == (name, "tiny")
    found = comparison.table([model], "judge/03_landscape", comparison.susceptibility)
    assert found["judge"].tolist() == ["tiny", "planted"]
    comparison_page.write([model], [model], tmp_path / "out")
    for path in (tmp_path / "out").glob("*.[mc]*"):
        assert "anna" not in path.read_text(), path
    assert (tmp_path / "out" / "susceptibility.png").exists()  # its own rows are found


@pytest.mark.parametrize("bad", ["a text", "inf", "", "<b>1</b>"])
def test_a_text_where_a_number_belongs_is_missing(tmp_path: Path, bad: str) -> None:
    """Tables of contributed results are other people's."""
    table = ROWS["gender/02_expressed/polarization"].astype({"bias_pol": object})
    table.loc[0, "bias_pol"] = bad
    model = saved(tmp_path / "m", {"gender/02_expressed/polarization": table}, contributed=True)
    found = comparison.table([model], "gender/02_expressed", comparison.expressed)
    assert np.isnan(found["bias_pol"][0])
    assert found["bias_pol"][1] == 0.08


def test_a_table_of_an_older_version_is_not_read(tmp_path: Path) -> None:
    table = ROWS["gender/02_expressed/polarization"].drop(columns="chance")
    model = saved(tmp_path / "m", {"gender/02_expressed/polarization": table})
    with pytest.raises(MissingTable, match="lacks chance"):
        comparison.expressed(model.tables("gender"))


def test_cost_sums_a_chapter_and_leaves_out_what_was_not_counted(tmp_path: Path) -> None:
    model = saved(tmp_path / "m", ROWS)
    found = comparison.cost([model]).set_index("chapter")
    assert found["minutes"].to_dict() == {"gender": 1.5, "judge": 1.5}
    assert found[["tokens_read", "peak_memory_mb"]].isna().all(axis=None)
    path = model.folder / "gender/02_expressed/run.json"
    info = json.loads(path.read_text())
    tokens = {"read": 5, "written": 2, "others_read": 1, "others_written": 0}
    path.write_text(json.dumps(info | {"wall_seconds": 120, "peak_memory_mb": 900, "tokens": tokens}))
    again = comparison.cost([Shown("m", "m", model.folder)]).set_index("chapter").loc["gender"]
    assert again[["minutes", "peak_memory_mb", "tokens_read", "tokens_written"]].tolist() == [2, 900, 6, 2]


def test_every_section_is_written_and_names_are_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script> [x](y) | $z$ {ref}`a`"
    models = [saved(tmp_path / "m", ROWS), saved(tmp_path / "e", ROWS, evil, contributed=True, archive="e.zip")]
    comparison_page.write(models, models[:1], tmp_path / "out")
    for key in [*comparison.SECTIONS, "cost"]:
        assert (tmp_path / "out" / f"{key}.csv").exists()
        text = (tmp_path / "out" / f"{key}.md").read_text()
        assert evil not in text
        if key not in ("encoded", "contrast"):  # the other table of the same notebook says that it was not run
            assert f"{escaped(evil)} (contributed)" in text
    expressed = (tmp_path / "out" / "expressed.md").read_text()
    assert "[m](model--m)" in expressed
    assert f"| model | condition | concept | {comparison.BIAS} | by chance | p |" in expressed
    assert "0.44 (0.4 to 0.5)" in expressed
    assert (tmp_path / "out" / "expressed.png").exists()
    assert ":alt: For each model" in expressed
    # Nobody has the chapter on ΔB: no empty table, no empty picture, but the reason.
    separation = (tmp_path / "out" / "separation.md").read_text()
    assert "{table}" not in separation
    assert "{figure}" not in separation
    assert separation.count("not run") == 2
    # Both tables of a notebook stand below one heading: that it was not run is said once.
    for first, second in (("latent", "encoded"), ("separation", "contrast")):
        both = "".join((tmp_path / "out" / f"{key}.md").read_text() for key in (first, second))
        assert both.count("not run") == 2, first


def test_a_shift_that_no_judge_has_is_a_dash_with_the_reason(tmp_path: Path) -> None:
    none = ROWS["judge/03_landscape/aggregates"].assign(reason="no pair with two scores")
    none[["delta", "low_by_question", "high_by_question", "cohens_d", "p_adjusted"]] = np.nan
    model = saved(tmp_path / "m", ROWS | {"judge/03_landscape/aggregates": none})
    comparison_page.write([model], [model], tmp_path / "out")
    page = (tmp_path / "out" / "susceptibility.md").read_text()
    assert "| model | judge | readout | validity | cues | shift | note |" in page
    assert "| negative | – | no pair with two scores |" in page
    # The control: with shifts, and an older version's table without reasons.
    rows = comparison.susceptibility(saved(tmp_path / "n", ROWS).tables("judge"))
    shown = comparison.SECTIONS["susceptibility"].worded(rows)
    assert shown["shift"].tolist() == ["-0.2 (-0.3 to -0.1)", "-0.65 (-0.7 to -0.6)"]
    assert shown["note"].isna().all()


def test_a_point_lies_where_its_number_is() -> None:
    frame = pd.DataFrame(
        {
            "model": ["m", "n", "n"],
            "contributed": [False, True, True],
            "panel": "p",
            "kind": ["a", "a", "b"],
            "x": [1.0, 2.0, np.nan],
            "low": [0.5, np.nan, 0],
            "high": [2.0, np.nan, 0],
        }
    )
    nothing = frame.assign(x=float("nan"))
    assert figures_comparison.intervals(nothing, panel="panel", series="kind", value="x", xlabel="x") is None
    figure = figures_comparison.intervals(frame, panel="panel", series="kind", value="x", xlabel="x", line=0)
    axis = figure.axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["m", "n *"]
    (points,) = [line for line in axis.lines if line.get_marker() == "o"]
    assert points.get_xdata().tolist() == [1, 2]
    assert points.get_ydata().tolist() == [0, 1]
    (bar, _) = axis.collections[0].get_segments()
    assert bar[:, 0].tolist() == [0.5, 2]


def test_reading_a_model_twice_gives_the_same(tmp_path: Path) -> None:
    """A rule that changes what it got must not change what the next one gets."""
    tables = saved(tmp_path / "m", ROWS).tables("gender")
    changed = tables("02_expressed", "polarization")
    changed["bias_pol"] = 0
    assert tables("02_expressed", "polarization")["bias_pol"].tolist() == [0.44, 0.1, 0.08]
