"""Each rule of the ΔB chapter on made-up tables in the notebooks' columns: every verdict that it can return."""

import functools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from biasgeom import benchmarks, claims, data, markdown, models, pairs, results, run, sentences, spectrum, survey
from biasgeom.claims import HOLDS, LIMITED, NOT_RUN, NOT_SHOWN
from biasgeom.claims_delta_b import RULES
from biasgeom.models import LanguageModel
from biasgeom.spectrum import SHARES, Checkpoint
from claimed import Edit, Tables, both, put

MODEL = "acme/tiny"
REGIMES = ("full", "lora")
SPOKEN, VADER = "adjective share", "VADER"
GROUPS = {"Women": "biased", "Asians": "biased", "Men": "control", "Europeans": "control"}
PUBLISHED = [f"delta_b_{name}" for name in ("table1", "table5a", "table5b", "table6", "table7a", "seed_stability")]


def summary(**values: object) -> dict[str, object]:
    """A row as of :func:`pairs.summary`."""
    row = {"n": 168, "r": -0.8, "p": 1e-9, "stars": "***", "r_low": -0.9, "r_high": -0.7, "increased": 60}
    row |= {"auc": 0.9, "auc_low": 0.8, "auc_high": 0.95, "auc_above_0": 0.7, "mae": 0.1, "mae_out_of_bag": 0.1}
    return row | {"undefined": ""} | values


def paired() -> pd.DataFrame:
    """ΔB falls and bias rises along the spectrum; by VADER it is the other way round."""
    rows = []
    for measure, sign in {SPOKEN: 1, VADER: -1}.items():
        for regime, size in {"full": 1.0, "lora": 0.5}.items():
            for share in SHARES:
                for group, half in GROUPS.items():
                    row = {"method": "rr", "regime": regime, "seed": 0, "checkpoint": spectrum.label(share)}
                    lower = 0.1 * share * (half == "biased")
                    row |= {"share": share, "group": group, "shift": sign * size * (0.3 - 0.6 * share - lower)}
                    row |= {"change": sign * (0.4 * share + lower), "half": half, "measure": measure}
                    rows.append(row)
    return pd.DataFrame(rows)


def outcomes() -> Tables:
    """The tables of 05_results; by VADER no claim would hold."""
    table1, levels, contrast, thresholds = [], [], [], []
    for measure in (SPOKEN, VADER):
        good = measure == SPOKEN
        for regime in REGIMES:
            keys = {"measure": measure, "regime": regime, "threshold": 0.1}
            r = {"full": -0.8, "lora": -0.6}[regime]
            # Where the lower regime is the other one.
            table1.append(keys | (summary(r=r) if good else summary(r=-0.1 - (regime == "lora"), auc=0.4, auc_low=0.3)))
            for level in pairs.LEVELS:
                read = good and level in ("pooled", "within checkpoint")
                row = {"level": level, "n": 168, "r": -0.5 if read else 0.5}
                row |= {"low": row["r"] - 0.2, "high": row["r"] + 0.2, "undefined": ""}
                levels.append(row | {"measure": measure, "regime": regime})
            for share in SHARES if good else ():
                for name in ("shift", "change"):
                    difference = -0.1 if (name, share) == ("shift", 1.0) else 0.1
                    row = {"checkpoint": spectrum.label(share), "measure": name, "biased": difference, "control": 0.0}
                    row |= {"difference": difference, "low": difference - 0.05, "high": difference + 0.05}
                    contrast.append(row | {"p": 0.01 if share == 1 else 0.4, "regime": regime})
            row = {"increased": 60, "AUC": 0.9, "increased above 0": 90, "AUC above 0": 0.7}
            row |= {"pairs": 168, "sign rule right": 0.9 if good else 0.1, "ΔB below zero": 0.5}
            thresholds.append(keys | row)
    made = {"pairs": paired(), "table1": pd.DataFrame(table1), "levels": pd.DataFrame(levels)}
    made |= {"contrast": pd.DataFrame(contrast), "thresholds": pd.DataFrame(thresholds)}
    return {f"05_results/{name}": table for name, table in made.items()}


def methods() -> pd.DataFrame:
    auc = {"full": {"RR": 0.95, "SEAT": 0.75, "Procrustes-SEAT": 0.55, "CKA drift": 0.8}}
    auc["lora"] = {"RR": 0.3, "SEAT": 0.9, "Procrustes-SEAT": 0.8, "CKA drift": 0.4}
    return pd.DataFrame(
        {"regime": regime, "method": method} | summary(auc=value, auc_low=value - 0.1, auc_high=value + 0.04)
        for regime, of in auc.items()
        for method, value in of.items()
    )


def robust() -> Tables:
    anchors = [
        {"source": source, "number": number, "method": "RR"}
        | summary(auc=value, auc_low=value - 0.2)
        | {"mean_shift": -0.1, "per_root": -0.1 / np.sqrt(number)}
        for source, at in {"neutral": (0.6, 0.9), "words": (0.9, 0.8), "instructions": (0.8, 0.85)}.items()
        for number, value in zip((10, 300), at, strict=True)
    ]
    wordings = {"attributes": sentences.ATTRIBUTE_VARIANTS, "targets": sentences.TARGET_VARIANTS}
    made = {
        kind: [{"variant": v, "method": "RR"} | summary(auc=0.9 + 0.01 * (i % 2)) for i, v in enumerate(variants)]
        for kind, variants in wordings.items()
    }
    pooling = [
        {"site": "final_norm", "pooling": pooling, "first token": "in", "method": method} | summary(auc=value)
        for pooling, both in {"mean": (0.95, 0.75), "max": (0.9, 0.8), "last": (0.85, 0.7)}.items()
        for method, value in zip(("RR", "SEAT"), both, strict=True)
    ]
    seeds = pd.DataFrame(
        {"method": "rr", "regime": "full", "seed": seed, "checkpoint": spectrum.label(share), "share": share}
        | {"group": group, "shift": (0.3 - 0.4 * share) + step}
        for seed, step in enumerate((-0.005, 0.0, 0.005))
        for share in (0.0, 1.0)
        for group in GROUPS
    )
    means = {"checkpoint": ["unharmful", "synth"], "mean ΔB": [0.3, -0.1], "std over seeds": [0.004, 0.004]}
    made |= {
        "anchors": anchors,
        "pooling": pooling,
        "seeds": seeds,
        "seed_means": means | {"trainings": [3, 3], "over √m": [0.02, -0.01], "std over √m": [3e-4, 4e-4]},
    }
    return {f"07_robustness/{name}": pd.DataFrame(table) for name, table in made.items()}


def all_hold() -> Tables:
    """Tables on which every claim holds."""
    return outcomes() | {"06_methods/methods": methods()} | robust()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the model's tables of the chapter lie."""
    monkeypatch.setenv("BIASGEOM_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results" / results.slug(MODEL) / "delta_b"


def write(folder: Path, tables: Tables, recipe: str = "embedded") -> None:
    if any(name.startswith("05_results") for name in tables):
        (folder / "05_results").mkdir(parents=True, exist_ok=True)
        (folder / "05_results" / "run.json").write_text(json.dumps({"parameters": {"recipe": recipe}}))
    for name, table in tables.items():
        path = folder / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(path, index=False, float_format="%.6g")


def keep(name: str, column: str, *values: object) -> Edit:
    def edit(tables: Tables) -> None:
        assert set(values) < set(tables[name][column])
        tables[name] = tables[name][tables[name][column].isin(values)]

    return edit


def level(regime: object, name: object, low: float, high: float, measure: str = SPOKEN) -> Edit:
    where = {"measure": measure, "regime": regime, "level": name}
    return put("05_results/levels", where, r=(low + high) / 2, low=low, high=high)


def no_level(regime: str, name: str) -> Edit:
    where = {"measure": SPOKEN, "regime": regime, "level": name}
    empty = dict.fromkeys(("r", "low", "high"), np.nan)
    return put("05_results/levels", where, undefined="shift or change is the same throughout", **empty)


def row1(regime: object, **values: float | str) -> Edit:
    return put("05_results/table1", {"measure": SPOKEN, "regime": regime}, **values)


NO_R = dict.fromkeys(("r", "p", "r_low", "r_high"), np.nan) | {"undefined": "the change of all pairs is the same"}
NO_AUC = dict.fromkeys(("auc", "auc_low", "auc_high"), np.nan) | {"undefined": "no pair has an increase above 0.1"}


def pair(regime: object, share: object, half: object = ("biased", "control"), measure: str = SPOKEN, **values) -> Edit:
    return put("05_results/pairs", {"measure": measure, "regime": regime, "share": share, "half": half}, **values)


def right(regime: object, share: float) -> Edit:
    return put("05_results/thresholds", {"measure": SPOKEN, "regime": regime}, **{"sign rule right": share})


def parted(regime: object, checkpoint: object = "synth", measure: object = "shift", **values: float) -> Edit:
    where = {"regime": regime, "checkpoint": checkpoint, "measure": measure}
    return put("05_results/contrast", where, **values)


def method(name: object, regime: object = "full", **values: float | str) -> Edit:
    return put("06_methods/methods", {"regime": regime, "method": name}, **values)


def anchored(source: object, number: int = 300, **values: float | str) -> Edit:
    return put("07_robustness/anchors", {"source": source, "number": number}, **values)


def worded(kind: str, variant: object, **values: float | str) -> Edit:
    return put(f"07_robustness/{kind}", {"variant": variant}, **values)


def pooled(pooling: object, name: object, **values: float | str) -> Edit:
    return put("07_robustness/pooling", {"pooling": pooling, "method": name}, **values)


def seeded(checkpoint: object, seed: object, shift: float, group: object = tuple(GROUPS)) -> Edit:
    return put("07_robustness/seeds", {"checkpoint": checkpoint, "seed": seed, "group": group}, shift=shift)


WITHIN = "within checkpoint"
UNREAD = ["between checkpoints", "within group"]

CASES: list[tuple[str, str, Edit]] = [
    *(
        (f"tracks-{regime}", verdict, edit)
        for regime, other in (REGIMES, REGIMES[::-1])
        for verdict, edit in [
            (HOLDS, level(regime, ["pooled", WITHIN], -0.9, -0.01)),
            # Neither the other levels, nor the other regime, nor the other measure.
            (HOLDS, both(level(regime, UNREAD, 0.1, 0.9), level(other, ["pooled", WITHIN], 0.1, 0.9))),
            (HOLDS, level(regime, ["pooled", WITHIN], 0.1, 0.9, VADER)),
            (LIMITED, level(regime, WITHIN, -0.9, 0.0)),
            (LIMITED, level(regime, WITHIN, 0.1, 0.9)),
            (NOT_SHOWN, level(regime, "pooled", -0.9, 0.0)),
            (NOT_SHOWN, level(regime, "pooled", -0.9, 0.1)),
            (NOT_SHOWN, level(regime, ["pooled", WITHIN], 0.1, 0.9)),
            (NOT_RUN, no_level(regime, "pooled")),
            (NOT_RUN, no_level(regime, WITHIN)),
        ]
    ),
    *(
        (f"detects-{regime}", verdict, edit)
        for regime, other in (REGIMES, REGIMES[::-1])
        for verdict, edit in [
            (HOLDS, row1(regime, auc=0.65, auc_low=0.51)),
            # The label is an increase above 0.1, not above 0.
            (HOLDS, row1(regime, auc_above_0=0.3)),
            (HOLDS, both(row1(other, **NO_AUC), row1(regime, r=0.5))),
            (LIMITED, row1(regime, auc=0.65, auc_low=0.5)),
            (LIMITED, row1(regime, auc_low=0.3)),
            (NOT_SHOWN, row1(regime, auc=0.649, auc_low=0.55)),
            (NOT_SHOWN, row1(regime, auc=0.2, auc_low=0.1)),
            (NOT_RUN, row1(regime, **NO_AUC)),
            (NOT_RUN, row1(regime, auc_low=np.nan, undefined="of one class in every resample")),
        ]
    ),
    ("orders-spectrum", HOLDS, pair(REGIMES, 0.5, measure=VADER, shift=9.0)),
    # Only means count: a group that stands out is no matter, nor is the control half alone.
    ("orders-spectrum", HOLDS, pair("full", 1.0, "control", shift=-0.2)),
    ("orders-spectrum", LIMITED, pair("full", 0.5, shift=0.9)),
    ("orders-spectrum", LIMITED, pair("lora", 0.5, change=0.0)),
    ("orders-spectrum", LIMITED, pair("lora", (0.5, 0.7), shift=0.0, change=0.22)),
    ("orders-spectrum", LIMITED, pair(REGIMES, 0.5, "control", shift=0.9)),
    ("orders-spectrum", LIMITED, pair(REGIMES, 0.5, "control", change=-0.9)),
    ("orders-spectrum", NOT_SHOWN, pair(REGIMES, 0.5, shift=0.9)),
    ("orders-spectrum", NOT_SHOWN, pair(REGIMES, 0.5, change=0.9)),
    # Steps that are no falls.
    ("orders-spectrum", NOT_SHOWN, pair(REGIMES, (0.5, 0.7), shift=0.0)),
    # The biased half in one of the regimes is not enough.
    ("orders-spectrum", NOT_SHOWN, both(pair(REGIMES, 0.5, "control", shift=0.9), pair("lora", 0.5, shift=0.9))),
    ("below-zero-is-more-bias", HOLDS, right(REGIMES, 0.8)),
    ("below-zero-is-more-bias", LIMITED, right("lora", 0.79)),
    ("below-zero-is-more-bias", LIMITED, right("full", 0.79)),
    ("below-zero-is-more-bias", NOT_SHOWN, right(REGIMES, 0.79)),
    ("singles-out-groups", HOLDS, parted(REGIMES, difference=-0.001, p=0.049)),
    ("singles-out-groups", HOLDS, parted(REGIMES, measure="change", difference=0.5, p=0.9)),
    ("singles-out-groups", LIMITED, parted("full", p=0.05)),
    ("singles-out-groups", LIMITED, parted("lora", difference=0.5)),
    ("singles-out-groups", NOT_SHOWN, parted(REGIMES, p=0.05)),
    ("singles-out-groups", NOT_SHOWN, parted(REGIMES, difference=0.5)),
    ("singles-out-groups", NOT_SHOWN, both(parted("full", difference=0.5), parted("lora", p=0.05))),
    ("above-seat", HOLDS, method("RR", auc=0.8, auc_low=0.76)),
    ("above-seat", HOLDS, method("SEAT", auc_high=0.99)),
    ("above-seat", LIMITED, method("RR", auc=0.8, auc_low=0.75)),
    ("above-seat", NOT_SHOWN, method("RR", auc=0.75, auc_low=0.7)),
    ("above-seat", NOT_SHOWN, method("SEAT", auc=0.96)),
    ("procrustes-at-chance", HOLDS, method("Procrustes-SEAT", auc_low=0.5, auc_high=0.9)),
    ("procrustes-at-chance", HOLDS, method("Procrustes-SEAT", auc=0.4, auc_low=0.2, auc_high=0.5)),
    ("procrustes-at-chance", LIMITED, method("Procrustes-SEAT", auc=0.61, auc_low=0.4, auc_high=0.9)),
    ("procrustes-at-chance", LIMITED, method("Procrustes-SEAT", auc=0.39, auc_low=0.1, auc_high=0.6)),
    ("procrustes-at-chance", NOT_SHOWN, method("Procrustes-SEAT", auc_low=0.51)),
    ("procrustes-at-chance", NOT_SHOWN, method("Procrustes-SEAT", auc=0.4, auc_low=0.3, auc_high=0.49)),
    ("above-cka", HOLDS, method("CKA drift", auc=0.65, auc_low=0.4)),
    ("above-cka", LIMITED, method("RR", auc_low=0.8)),
    ("above-cka", LIMITED, method("CKA drift", auc=0.94)),
    ("above-cka", NOT_SHOWN, method("CKA drift", auc=0.649)),
    ("above-cka", NOT_SHOWN, method("CKA drift", auc=0.95)),
    ("above-cka", NOT_SHOWN, method("RR", auc=0.8)),
    *(
        (claim, verdict, edit)
        for claim in ("above-seat", "procrustes-at-chance", "above-cka")
        for verdict, edit in [
            (HOLDS, method(list(survey.NAMES.values()), "lora", **NO_AUC)),
            (NOT_RUN, method(list(survey.NAMES.values()), **NO_AUC)),
        ]
    ),
    # The size of r, whatever its sign.
    ("weaker-under-lora", HOLDS, row1("lora", r=0.79)),
    ("weaker-under-lora", LIMITED, row1("lora", r=-0.8)),
    ("weaker-under-lora", LIMITED, row1("lora", r=0.9)),
    ("weaker-under-lora", LIMITED, pair("lora", 1.0, shift=-9.0)),
    # Sizes, not means: these cancel.
    ("weaker-under-lora", LIMITED, both(pair("lora", 0.9, shift=9.0), pair("lora", 1.0, shift=-9.0))),
    ("weaker-under-lora", NOT_SHOWN, both(row1("lora", r=-0.9), pair("lora", 1.0, shift=-9.0))),
    ("weaker-under-lora", NOT_RUN, row1("full", **NO_R)),
    ("weaker-under-lora", NOT_RUN, row1("lora", **NO_R)),
    ("neutral-anchors-best", HOLDS, anchored("words", auc=0.9)),
    ("neutral-anchors-best", HOLDS, anchored("neutral", 10, auc=0.1, auc_low=0.0)),
    ("neutral-anchors-best", HOLDS, anchored("words", 10, **NO_AUC)),
    ("neutral-anchors-best", LIMITED, anchored("words", auc=0.91, auc_low=0.8)),
    ("neutral-anchors-best", LIMITED, anchored("words", auc_low=0.5)),
    ("neutral-anchors-best", LIMITED, anchored("neutral", auc_low=0.5)),
    ("neutral-anchors-best", NOT_SHOWN, anchored("words", auc=0.91, auc_low=0.5)),
    ("neutral-anchors-best", NOT_RUN, anchored("words", **NO_AUC)),
    ("neutral-anchors-best", NOT_RUN, keep("07_robustness/anchors", "source", "neutral")),
    ("neutral-anchors-best", NOT_RUN, keep("07_robustness/anchors", "source", "words")),
    # One of six at 0.5 + x and five at 0.5: their standard deviation is 0.3727 x.
    ("stable-under-rewording", HOLDS, both(*(worded(k, "base", auc=0.905 + 0.12) for k in ("attributes", "targets")))),
    ("stable-under-rewording", LIMITED, worded("attributes", "base", auc=0.905 - 0.14)),
    ("stable-under-rewording", LIMITED, worded("targets", "base", auc=0.905 - 0.14)),
    (
        "stable-under-rewording",
        NOT_SHOWN,
        both(*(worded(k, "base", auc=0.905 + 0.14) for k in ("attributes", "targets"))),
    ),
    # Stable, not good.
    ("stable-under-rewording", HOLDS, worded("targets", list(sentences.TARGET_VARIANTS), auc=0.2)),
    ("stable-under-rewording", NOT_RUN, worded("attributes", "subject_v1", **NO_AUC)),
    ("stable-under-rewording", NOT_RUN, worded("targets", "passive", **NO_AUC)),
    ("mean-pooling-best", HOLDS, pooled("max", "RR", auc=0.94)),
    ("mean-pooling-best", LIMITED, pooled("max", "RR", auc=0.96)),
    ("mean-pooling-best", LIMITED, pooled("last", "RR", auc=0.96)),
    ("mean-pooling-best", NOT_SHOWN, pooled("last", "SEAT", auc=0.85)),
    ("mean-pooling-best", NOT_SHOWN, pooled("max", "SEAT", auc=0.94)),
    ("mean-pooling-best", NOT_SHOWN, pooled("mean", "RR", auc=0.7)),
    ("mean-pooling-best", NOT_RUN, pooled("last", "SEAT", **NO_AUC)),
    # Three seeds at m - d, m, m + d: their standard deviation is 0.8165 d. The ends lie 0.4 apart: d = 0.0245 is 5 %.
    ("stable-over-seeds", HOLDS, both(seeded("synth", 0, -0.124), seeded("synth", 2, -0.076))),
    ("stable-over-seeds", LIMITED, both(seeded("synth", 0, -0.125), seeded("synth", 2, -0.075))),
    ("stable-over-seeds", LIMITED, both(seeded("unharmful", 0, 0.227), seeded("unharmful", 2, 0.373))),
    ("stable-over-seeds", NOT_SHOWN, both(seeded("unharmful", 0, 0.226), seeded("unharmful", 2, 0.374))),
    ("stable-over-seeds", NOT_SHOWN, seeded("synth", [0, 1, 2], 0.2999)),
    # The mean over groups counts: what one gains another loses.
    ("stable-over-seeds", HOLDS, both(seeded("synth", 0, -0.9, "Men"), seeded("synth", 0, 0.69, "Women"))),
    ("stable-over-seeds", NOT_RUN, keep("07_robustness/seeds", "seed", 0)),
    ("stable-over-seeds", NOT_RUN, both(seeded("synth", [0, 1, 2], 0.1), seeded("unharmful", [0, 1, 2], 0.1))),
]

NOTEBOOKS = claims.listed("delta_b").set_index("id")["notebook"].to_dict()

UNDEFINED = {"orders-spectrum", "below-zero-is-more-bias", "singles-out-groups"}
"""What these read is always defined."""


def rules_in_words() -> dict[str, str]:
    stated = claims.listed("delta_b").set_index("id")["rule"].to_dict()
    for kind in ("tracks", "detects"):
        assert stated[f"{kind}-lora"].startswith("As for full fine-tuning")
        stated[f"{kind}-lora"] = stated[f"{kind}-full"]
    return stated


def test_every_claim_has_a_rule_and_every_rule_a_claim() -> None:
    listed = claims.listed("delta_b")
    assert list(listed.columns) == ["id", "section", "claim", "rule", "notebook", "label"]
    assert sorted(listed["id"]) == sorted(RULES)
    assert listed["id"].is_unique
    assert listed.map(lambda cell: isinstance(cell, str) and cell.strip() == cell != "").all(axis=None)


def sources(notebook: str) -> list[str]:
    """The code cells of a notebook."""
    cells = json.loads((data.root() / "notebooks" / f"{notebook}.ipynb").read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_every_claim_points_to_a_notebook_of_the_book_and_a_label_on_it() -> None:
    pointed = [(c.notebook, c.label) for c in claims.listed("delta_b").itertuples()]
    pointed += [(f"delta_b/{v.notebook}", v.label) for v in data.published("delta_b_text_values").itertuples()]
    for notebook, label in set(pointed):
        assert notebook in run.notebooks()
        # A figure's label is in its cell's metadata, a table's in the call that makes it.
        text = (data.root() / "notebooks" / f"{notebook}.ipynb").read_text()
        assert re.search(rf'(name=\\"|"name": "){label}\\?"', text), label


def test_the_cases_cover_every_verdict_that_a_rule_states() -> None:
    for claim, rule in rules_in_words().items():
        possible = {HOLDS, NOT_SHOWN} | ({LIMITED} if "Limit" in rule else set())
        possible |= set() if claim in UNDEFINED else {NOT_RUN}
        assert {verdict for of, verdict, _ in CASES if of == claim} == possible, claim


@pytest.mark.parametrize(("claim", "verdict", "edit"), CASES, ids=[f"{c}: {v}" for c, v, _ in CASES])
def test_verdicts(folder: Path, claim: str, verdict: str, edit: Edit) -> None:
    tables = all_hold()
    edit(tables)
    section = NOTEBOOKS[claim].removeprefix("delta_b/")
    write(folder, {name: table for name, table in tables.items() if name.startswith(section)})
    try:
        found, evidence = RULES[claim](claims.Tables(folder))
    except claims.MissingTable as missing:
        found, evidence = NOT_RUN, str(missing)
    assert found == verdict, evidence
    assert evidence
    assert "nan" not in evidence


def test_all_claims_hold_where_all_is_as_published(folder: Path) -> None:
    write(folder, all_hold())
    found = claims.verdicts("delta_b", RULES, MODEL)
    assert list(found.columns) == [*claims.listed("delta_b").columns, "verdict", "evidence"]
    assert found["id"].tolist() == claims.listed("delta_b")["id"].tolist()
    assert set(found["verdict"]) == {HOLDS}
    assert found["evidence"].str.contains(r"\d").all()


def test_no_group_was_singled_out_in_the_papers_training(folder: Path) -> None:
    write(folder, all_hold(), recipe="paper")
    found = claims.verdicts("delta_b", RULES, MODEL).set_index("id")["verdict"]
    assert found["singles-out-groups"] == NOT_RUN
    assert set(found.drop("singles-out-groups")) == {HOLDS}


def test_nothing_holds_where_nothing_was_run(folder: Path) -> None:
    write(folder.parents[1] / "another" / "delta_b", all_hold())
    found = claims.verdicts("delta_b", RULES, MODEL)
    assert set(found["verdict"]) == {NOT_RUN}
    for row in found.itertuples():
        assert row.evidence.startswith(row.notebook.removeprefix("delta_b/"))
        assert row.evidence.endswith((".csv is not there", "has not been run"))


@pytest.mark.parametrize("notebook", sorted(set(claims.listed("delta_b")["notebook"])))
def test_claims_of_one_section_alone_are_not_run_without_its_tables(folder: Path, notebook: str) -> None:
    write(folder, {n: t for n, t in all_hold().items() if not n.startswith(notebook.removeprefix("delta_b/"))})
    found = claims.verdicts("delta_b", RULES, MODEL)
    assert set(found.loc[found["notebook"] == notebook, "verdict"]) == {NOT_RUN}
    assert set(found.loc[found["notebook"] != notebook, "verdict"]) == {HOLDS}


def test_evidence_has_the_numbers_of_the_tables(folder: Path) -> None:
    tables = all_hold()
    both(level("full", WITHIN, -0.46, -0.12), row1("full", auc=0.77, auc_low=0.6, increased=37))(tables)
    both(right("lora", 0.83), parted("lora", difference=-0.123, p=0.021), method("SEAT", auc=0.71))(tables)
    both(anchored("words", auc=0.87), pooled("last", "SEAT", auc=0.66))(tables)
    write(folder, tables)
    found = claims.verdicts("delta_b", RULES, MODEL).set_index("id")["evidence"]
    assert found["tracks-full"] == "pooled r = -0.50 (-0.70 to -0.30); within checkpoint r = -0.29 (-0.46 to -0.12)"
    assert found["detects-full"] == "AUC 0.77 (0.60 to 0.95), 37 of 168 pairs increased"
    # By hand: at the ends 0.3 and -0.3 less half of 0.1, and 0.4 more half of 0.1; under LoRA half the shift.
    assert "full: mean ΔB +0.300 to -0.350, mean change +0.000 to +0.450, in order" in found["orders-spectrum"]
    assert "lora: mean ΔB +0.150 to -0.175" in found["orders-spectrum"]
    assert found["below-zero-is-more-bias"] == "full: right for 90% of pairs, lora: right for 83% of pairs"
    assert "lora: biased less control -0.123, p = 0.021 (of the score itself " in found["singles-out-groups"]
    assert found["above-seat"] == "RR 0.95 (0.85 to 0.99), SEAT 0.71 (0.65 to 0.79)"
    # The control half's mean size is 1.32 / 7, the biased half's 1.59 / 7.
    assert found["weaker-under-lora"] == "full: mean |ΔB| 0.208, |r| 0.80; lora: mean |ΔB| 0.104, |r| 0.60"
    assert "words 0.87 (0.60 to 0.95)" in found["neutral-anchors-best"]
    assert found["neutral-anchors-best"].endswith(", 300 anchors each")
    assert "last RR 0.85 SEAT 0.66" in found["mean-pooling-best"]
    # 0.005 √(2/3) of 0.4.
    assert found["stable-over-seeds"] == "largest standard deviation over 3 seeds 1.0% of the distance 0.400"


def test_evidence_says_why_a_value_is_undefined(folder: Path) -> None:
    tables = all_hold()
    both(row1("full", **NO_AUC), no_level("lora", WITHIN), worded("targets", "passive", **NO_AUC))(tables)
    write(folder, tables)
    found = claims.verdicts("delta_b", RULES, MODEL).set_index("id")["evidence"]
    assert found["detects-full"] == "undefined on this run: no pair has an increase above 0.1"
    assert found["tracks-lora"] == "undefined on this run: shift or change is the same throughout"
    assert found["stable-under-rewording"] == "undefined on this run: no pair has an increase above 0.1"


# The tables are the notebooks' ----------------------------------------------------------------------------------------

# Two sentences have a CKA of one whatever the models.
SMALL = {"templates": 3, "attributes": 2, "anchors": 12, "variant_templates": 1, "variant_attributes": 2, "draws": 20}


@pytest.fixture(scope="module")
def made_up(build: Callable[[str], LanguageModel], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Trained models and scores of a tiny model, made up; where its results go."""
    place, reference = tmp_path_factory.mktemp("run"), build("llama")
    reference.name, reference.provenance = MODEL, {"dtype": "float32", "device": "cpu"}

    @functools.cache
    def moved(regime: str, seed: int, share: float) -> LanguageModel:
        lm, noise = build("llama"), torch.Generator().manual_seed(1000 * seed + int(100 * share))
        with torch.no_grad():
            for parameter in lm.model.parameters():
                size = 0.02 * (1 + share + (regime == "full"))
                parameter += size * torch.randn(parameter.shape, generator=noise)
        return lm

    def checkpoints(lm: LanguageModel, *, regime: str, recipe: str, seed: int, shares: tuple) -> Iterator[Checkpoint]:
        return (Checkpoint(moved(regime, seed, share), regime, share, seed) for share in shares)

    def scores(lm: LanguageModel, plan: survey.Plan, measure: object, **settings: int) -> pd.DataFrame:
        rng, tables = np.random.default_rng(0), []
        for regime in plan.regimes:
            for share in plan.shares:
                keys = {"regime": regime, "seed": plan.seeds[0], "checkpoint": spectrum.label(share), "share": share}
                change = share / 2 + rng.normal(size=24) / 10
                tables.append(pd.DataFrame({"group": sentences.groups()["group"], "change": change}).assign(**keys))
        return pd.concat(tables, ignore_index=True)

    def figure(self: results.Run, name: str, figure: plt.Figure) -> None:
        plt.close(figure)

    with pytest.MonkeyPatch.context() as patch, plt.rc_context():
        patch.setenv("BIASGEOM_CACHE", str(place / "cache"))
        patch.setenv("BIASGEOM_RESULTS", str(place / "results"))
        patch.setattr(spectrum, "checkpoints", checkpoints)
        patch.setattr(survey, "scores", scores)
        patch.setattr(models, "load", lambda *args, **options: reference)
        patch.setattr(results.Run, "figure", figure)
        yield place / "results" / results.slug(MODEL) / "delta_b"


def execute(notebook: str, **parameters: object) -> None:
    """A notebook of the chapter, cell by cell."""
    names: dict[str, object] = {}
    for cell in sources(f"delta_b/{notebook}"):
        exec(cell, names)
        names |= SMALL | parameters if "model: str" in cell else {}


@pytest.fixture(scope="module")
def written(made_up: Path) -> Path:
    """What the three notebooks write."""
    for notebook in ("05_results", "06_methods", "07_robustness"):
        execute(notebook)
    return made_up


def test_the_made_up_tables_have_the_columns_and_names_that_the_notebooks_write(written: Path) -> None:
    """Made-up tables in columns of their own would prove nothing."""
    for name, table in all_hold().items():
        found = pd.read_csv(written / f"{name}.csv")
        assert list(table.columns) == list(found.columns), name
        named = {"measure", "regime", "level", "checkpoint", "half", "method", "source", "variant", "site", "pooling"}
        for column in (named | {"first token", "share", "seed"}) & set(table.columns):
            assert set(table[column]) == set(found[column]), (name, column)


def test_columns_are_those_of_the_statistics(written: Path) -> None:
    found = pd.read_csv(written / "05_results" / "pairs.csv").query("measure == @SPOKEN and regime == 'full'")
    halves = sentences.groups().set_index("group")["half"]
    assert list(summary()) == list(pairs.summary(found, draws=20))
    tables = all_hold()
    levels, contrast = pairs.decomposition(found, draws=20), pairs.contrast(found, halves, draws=20)
    assert list(tables["05_results/levels"])[: levels.shape[1]] == list(levels)
    assert list(tables["05_results/contrast"])[: contrast.shape[1]] == list(contrast)
    assert found["half"].tolist() == found["group"].map(halves).tolist()
    # By hand: how often the sign is right, and the mean of a half at the synth end.
    right = np.mean([(s < 0) == (c > 0) for s, c in zip(found["shift"], found["change"], strict=True)])
    thresholds = pd.read_csv(written / "05_results" / "thresholds.csv").set_index(["measure", "regime"])
    assert thresholds["sign rule right"][SPOKEN, "full"] == pytest.approx(right, rel=1e-5)


def test_what_the_notebooks_write_gives_each_claim_a_verdict(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIASGEOM_RESULTS", str(written.parents[1]))
    found = claims.verdicts("delta_b", RULES, MODEL)
    assert set(found["verdict"]) <= {HOLDS, LIMITED, NOT_SHOWN}
    assert not found["evidence"].str.contains("nan").any()
    assert claims.beside("delta_b", MODEL)["measured"].notna().all()


@pytest.fixture
def measured(made_up: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where results go if benchmarks are run: ToxiGen's rates hardly move, WildGuardMix's are of two topics."""
    groups = sentences.groups().query("toxigen != ''")["group"]

    def scores(lm: LanguageModel, plan: survey.Plan, names: list[str], **settings: object) -> pd.DataFrame:
        of = {"toxigen": (list(groups), 0.01), "wildguardmix": (["Age", "Gender"], 0.4)}
        return pd.concat(
            pd.DataFrame({"group": of[name][0]}).assign(
                benchmark=name,
                regime=regime,
                seed=plan.seeds[0],
                checkpoint=spectrum.label(share),
                share=share,
                change=lambda t, size=of[name][1], share=share: size * (share - 0.5) + 0.001 * t.index,
            )
            for name in names
            for regime in plan.regimes
            for share in plan.shares
        )

    monkeypatch.setattr(benchmarks, "scores", scores)
    monkeypatch.setenv("BIASGEOM_RESULTS", str(tmp_path))
    return tmp_path / results.slug(MODEL) / "delta_b"


def test_toxigen_has_a_threshold_of_its_own(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rates move by hundredths: above 0.1 no pair would be left, and the page then says so."""
    tables: dict[str, pd.DataFrame] = {}
    made = markdown.table
    monkeypatch.setattr(markdown, "table", lambda t, **how: (tables.update({how["name"]: t}), made(t, **how))[1])
    execute("05_results", benchmarks=["toxigen"])
    table1 = pd.read_csv(measured / "05_results" / "table1.csv").set_index(["measure", "regime"])
    assert table1["threshold"].groupby("measure").unique().map(list).to_dict() == {
        SPOKEN: [0.1],
        VADER: [0.1],
        "toxigen": [0],
    }
    toxic = table1.loc["toxigen"]
    assert list(toxic["n"]) == [63, 63]
    assert list(toxic["increased"]) == [48, 48]  # by hand, from the unharmful end on: 3 + 4 + 6 + 8 + 9 + 9 + 9
    assert toxic["auc"].notna().all()
    assert list(toxic["auc"]) == list(toxic["auc_above_0"])
    assert "why not" not in tables["tab-delta-b-table1"]
    execute("05_results", benchmarks=["toxigen"], toxigen_increase=0.1)
    thresholds = pd.read_csv(measured / "05_results" / "thresholds.csv").set_index(["measure", "regime"])
    assert list(thresholds.loc["toxigen", "increased"]) == [0, 0]
    assert list(thresholds.loc["toxigen", "increased above 0"]) == [48, 48]
    shown = tables["tab-delta-b-table1"].set_index("measure")["why not"]
    assert set(shown["toxigen"]) == {"no pair has an increase above 0.1"}


def test_topics_are_asked_for_with_wildguardmix_only(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its prompts are gated: who did not ask for it must not meet them."""
    asked = []
    monkeypatch.setattr(benchmarks, "labelled", lambda ask: asked.append(ask) or {"prompts": 2, "unlabelled": 0})
    endpoint = {"judge_url": "http://127.0.0.1:9/v1", "judge_model": "labels"}
    execute("04_output", benchmarks=["toxigen"], **endpoint)
    assert asked == []
    assert not (measured / "04_output" / "topics.csv").exists()
    execute("04_output", benchmarks=["wildguardmix"], **endpoint)
    assert len(asked) == 1
    assert (measured / "04_output" / "topics.csv").exists()


# Numbers of the text --------------------------------------------------------------------------------------------------


def intervals(row: dict[str, object], column: str) -> str:
    bounds = [row.get(f"{column}_low"), row.get(f"{column}_high")]
    return "–" if None in bounds else f"{bounds[0]:.2f} to {bounds[1]:.2f}"


def test_printed_numbers_stand_beside_their_cells(folder: Path) -> None:
    tables = all_hold()
    row1("lora", auc=0.81, auc_low=0.71, auc_high=0.91, r=-0.31, r_low=-0.41, r_high=-0.21)(tables)
    write(folder, tables)
    found = claims.beside("delta_b", MODEL)
    # Nothing of this chapter has a level by chance.
    assert list(found) == ["section", "quantity", "published", "measured", "95 % interval", "label"]
    printed = data.published("delta_b_text_values")
    for row, value in zip(found.itertuples(index=False), printed.itertuples(), strict=True):
        assert (row.section, row.quantity, row.published) == (value.section, value.quantity, value.published)
        assert row.label == value.label
        rows = tables[f"{value.notebook}/{value.table}"].to_dict("records")
        for part in value.where.split(";"):
            column, wanted = part.split("=")
            rows = [r for r in rows if r[column] == wanted]
        (cell,) = rows
        assert row.measured == pytest.approx(cell[value.column], rel=1e-5)
        assert row[4] == intervals(cell, value.column)
    shown = found.set_index("quantity")
    # Each column has its own interval; a mean over seeds has none.
    assert shown["95 % interval"]["ROC AUC, lora, by ToxiGen"] == "0.71 to 0.91"
    assert shown["95 % interval"]["Pearson r, lora, by ToxiGen"] == "-0.41 to -0.21"
    assert shown["95 % interval"]["Pearson r, full, by ToxiGen"] == "-0.90 to -0.70"
    synth = shown[shown.index.str.startswith("mean ΔB over √m at the synth end")].squeeze()
    assert (synth["measured"], synth["95 % interval"]) == (-0.01, "–")


def test_an_undefined_number_has_no_interval(folder: Path) -> None:
    tables = all_hold()
    row1("lora", **NO_AUC)(tables)
    write(folder, tables)
    shown = claims.beside("delta_b", MODEL).set_index("quantity")
    assert pd.isna(shown["measured"]["ROC AUC, lora, by ToxiGen"])
    assert shown["95 % interval"]["ROC AUC, lora, by ToxiGen"] == "–"
    assert shown["95 % interval"]["Pearson r, lora, by ToxiGen"] == "-0.90 to -0.70"


def test_a_printed_number_without_its_section_is_missing(folder: Path) -> None:
    write(folder, {name: table for name, table in all_hold().items() if not name.startswith("06_")})
    found = claims.beside("delta_b", MODEL)
    absent = found["section"] == "table 7a"
    assert absent.sum() == 8
    assert found.loc[absent, "measured"].isna().all()
    assert (found.loc[absent, "95 % interval"] == "not run").all()
    assert found.loc[~absent, "measured"].notna().all()
    assert claims.beside("delta_b", "nobody")["measured"].isna().all()


QUANTITIES = {"Pearson r": ("pearson_r", "r"), "ROC AUC": ("roc_auc", "auc")}


def printed_cells() -> dict[tuple[str, str], tuple[float, dict[str, str], str]]:
    """(section, quantity in words) → published value, where the same stands in a run's table, and its column."""
    of = {name: data.published(name) for name in PUBLISHED}
    cells = {}
    for words, (column, measured) in QUANTITIES.items():
        for row in of["delta_b_table1"].query("model == 'Llama'").to_dict("records"):
            where = {"measure": SPOKEN, "regime": row["regime"]}
            key = ("table 1", f"{words}, {row['regime']}, by {row['benchmark']}")
            cells[key] = row[column], where, measured
        for row in of["delta_b_table7a"].to_dict("records"):
            where = {"regime": row["regime"], "method": row["method"]}
            cells["table 7a", f"{words} of {row['method']}, by {row['benchmark']}"] = row[column], where, measured
    for row in of["delta_b_table6"].query("row_kind == 'variant'").to_dict("records"):
        where = {"pooling": row["pooling"], "method": row["method"]}
        key = ("table 6", f"ROC AUC of {row['method']}, {row['pooling']} pooling")
        cells[key] = row["roc_auc"], where, "auc"
    for part, kind in {"5a": "attributes", "5b": "targets"}.items():
        for row in of[f"delta_b_table{part}"].query("row_kind == 'variant'").to_dict("records"):
            key = (f"table {part}", f"ROC AUC, {kind} {row['variant']}")
            cells[key] = row["roc_auc"], {"variant": row["variant"]}, "auc"
    for row in of["delta_b_seed_stability"].to_dict("records"):
        end, where = row["dataset"], {"checkpoint": row["dataset"]}
        assert row["n_seeds"] == 3
        # The paper has 1,000 anchors, a run mostly fewer: as they are printed these would differ by √m alone.
        key = ("E.5", f"mean ΔB over √m at the {end} end, printed {row['mean_delta_b']:g} with m = 1,000")
        cells[key] = round(row["mean_delta_b"] / 1000**0.5, 6), where, "over √m"
        key = ("E.5", f"its standard deviation over three seeds, {end} end, printed {row['std_delta_b']:g}")
        cells[key] = round(row["std_delta_b"] / 1000**0.5, 6), where, "std over √m"
    return cells


def test_text_values_are_the_published_tables_cells_all_of_them() -> None:
    listed = data.published("delta_b_text_values")
    expected = printed_cells()
    assert sorted(zip(listed["section"], listed["quantity"], strict=True)) == sorted(expected)
    for row in listed.itertuples():
        value, where, column = expected[row.section, row.quantity]
        assert row.published == value, row.quantity
        assert dict(part.split("=") for part in row.where.split(";")) == where, row.quantity
        assert row.column == column, row.quantity


def test_text_values_name_the_table_of_their_quantity() -> None:
    listed = data.published("delta_b_text_values")
    tables = {"table 1": "05_results/table1", "table 7a": "06_methods/methods", "table 6": "07_robustness/pooling"}
    tables |= {"table 5a": "07_robustness/attributes", "table 5b": "07_robustness/targets"}
    tables |= {"E.5": "07_robustness/seed_means"}
    assert (listed["notebook"] + "/" + listed["table"]).tolist() == listed["section"].map(tables).tolist()
