"""Each rule of the gender chapter on made-up tables in the notebooks' columns: every verdict that it can return."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from biasgeom import ablation, claims, claims_gender, data, encoded, expressed, relation, results, run
from biasgeom.claims import HOLDS, LIMITED, NOT_RUN, NOT_SHOWN
from biasgeom.claims_gender import RULES
from biasgeom.models import LanguageModel
from claimed import Edit, Tables, both, put

MODEL = "acme/tiny"
CONCEPTS = {"Professions": "gendered", "Sports": "gendered"}
CONCEPTS |= dict.fromkeys(("Months", "Diseases", "Languages", "Colors"), "control")
GENDERED, CONTROLS = ([c for c, k in CONCEPTS.items() if k == kind] for kind in ("gendered", "control"))
BEFORE, AFTER, AFTER_1950S, BEFORE_1950S = "before", "after", "after, 1950s", "before, 1950s"
AT = 2
"""Of four blocks the one at the relative depth of the paper's layer 20: 20 / 31 of 3, rounded."""
RECORDS = {"03_encoded": {"blocks": 4, "parameters": {"published_layer": 20}}}
RECORDS |= {"07_alignment": {"parameters": {"limit": 0}}}
"""What the rules read of a section's ``run.json``."""


def polarization_rows(**values: object) -> dict[str, object]:
    row = {"samples": 12, "female": 0.2, "male": 0.2, "neutral": 0.6, "mean_bias": 0.0, "bias_pol": 0.1}
    return row | {"low": 0.05, "high": 0.2, "chance": 0.1, "chance_high": 0.15, "p": 0.5} | values


def polarizations() -> pd.DataFrame:
    level = {BEFORE: {"Professions": 0.5, "Sports": 0.4}, AFTER_1950S: {"Professions": 0.45, "Sports": 0.3}}
    rows = []
    for condition in (BEFORE, AFTER, AFTER_1950S, BEFORE_1950S):
        for concept in GENDERED if condition == BEFORE_1950S else CONCEPTS:
            value = level.get(condition, {}).get(concept, 0.1)
            row = {"condition": condition, "concept": concept, "kind": CONCEPTS[concept]}
            neutral = 0.9 if condition == AFTER else 0.6
            rows.append(row | polarization_rows(bias_pol=value, p=0.001 if value > 0.1 else 0.5, neutral=neutral))
    return pd.DataFrame(rows)


def changes() -> pd.DataFrame:
    center = {f"{AFTER} - {BEFORE}": -0.3, f"{AFTER_1950S} - {AFTER}": 0.3, f"{BEFORE_1950S} - {BEFORE}": 0.0}
    return pd.DataFrame(
        {"comparison": comparison, "concept": concept, "kind": kind}
        | {"difference": value, "low": value - half, "high": value + half}
        for comparison, gendered in center.items()
        for concept, kind in CONCEPTS.items()
        for value, half in [(gendered, 0.1) if kind == "gendered" else (0.01, 0.05)]
        if kind == "gendered" or not comparison.startswith(BEFORE_1950S)
    )


def biases() -> pd.DataFrame:
    of = {"nurse": 0.9, "secretary": 0.8, "electrician": -0.9, "butcher": -0.8, "editor": 0.0}
    return pd.DataFrame(
        {"condition": condition, "concept": "Professions", "kind": "gendered", "entity": entity}
        | {"female": 5, "male": 5, "neutral": 2, "bias": by * bias, "low": by * bias - 0.1, "high": by * bias + 0.1}
        for condition, by in {AFTER: 0.1, BEFORE: 1.0}.items()
        for entity, bias in of.items()
    )


def encodings() -> Tables:
    ratios, counted = [], []
    for condition in (BEFORE, AFTER):
        for estimator in ("ledoit-wolf", "mean"):
            whitened = estimator == "ledoit-wolf"
            for block in range(4):
                # Only the right row lies above one.
                ratio = 2.0 if (condition, whitened, block) == (BEFORE, True, AT) else 0.8
                row = {"block": block, "estimator": estimator, "ratio": ratio, "low": ratio - 0.2, "high": ratio + 0.2}
                ratios.append(row | {"condition": condition})
            for concept, kind in CONCEPTS.items():
                gendered = kind == "gendered"
                # The mean difference puts everything above the band: reading it would show.
                above = 20 if (gendered and condition == AFTER) or not whitened else 0
                row = {"concept": concept, "kind": kind, "estimator": estimator, "blocks": 20, "above_isotropic": above}
                p = 0.01 if gendered and whitened and condition == BEFORE else 0.6
                counted.append(row | {"above_flip": 1, "p_flip": p, "condition": condition})
    return {
        "03_encoded/gendered_over_control": pd.DataFrame(ratios),
        "03_encoded/concepts": pd.DataFrame(counted),
    }


def correlated() -> pd.DataFrame:
    p = {"Base-Base": 0.01, "FT-FT": 0.9, "FT-Base": 0.9}
    return pd.DataFrame(
        {"expressed": measure, "pairing": pairing, "concept": concept, "kind": kind, "entities": 14, "spread": 0.3}
        | {"undefined": "", "largest": 0.9, "at": 3, "mean": 0.6 if kind == "gendered" else -0.1, "chance": 0.7}
        | {"p": value if kind == "gendered" else 0.6}
        for measure in ("sampled", "proxy")
        for pairing, value in p.items()
        for concept, kind in CONCEPTS.items()
    )


def ablated() -> pd.DataFrame:
    return pd.DataFrame(
        {"condition": condition, "setting": setting, "concept": "Professions", "kind": "gendered", "plain": 0.5}
        | {"gender": 0.1, "plain_mean": -0.2, "gender_mean": 0.1, "random_low": 0.3, "random_high": 0.6, "p": 0.04}
        | {"gender_nats": 0.2, "random_nats": 0.9}
        for condition in (BEFORE, AFTER_1950S)
        for setting in ("literal", "guarded", "guarded, late")
    )


def sampled() -> pd.DataFrame:
    settings = [("none", "none"), ("literal", "gender"), ("guarded", "gender")]
    # None of these levels is one of the section on expressed bias, and what chance does differs between all.
    value = {"none": 0.52, "literal": 0.2, "guarded": 0.3}
    rows = []
    for condition in (BEFORE, AFTER_1950S):
        for setting, direction in settings + [("literal", "random 1")] * (condition == BEFORE):
            keys = {"condition": condition, "setting": setting, "direction": direction}
            level = 0.44 if direction == "random 1" else value[setting] - 0.05 * (condition == AFTER_1950S)
            row = polarization_rows(bias_pol=level, chance=level / 4)
            rows.append(keys | {"concept": "Professions", "kind": "gendered"} | row)
    return pd.DataFrame(rows)


def realistic() -> Tables:
    rows, differences = [], []
    for condition in (BEFORE, AFTER, AFTER_1950S):
        for concept in ("Stories", "ESL"):
            value = 0.1 if (condition, concept) == (AFTER, "ESL") else 0.3
            keys = {"condition": condition, "concept": concept, "kind": "gendered"}
            rows.append(keys | polarization_rows(bias_pol=value, p=0.001))
    for comparison in (f"{AFTER} - {BEFORE}", f"{AFTER_1950S} - {AFTER}"):
        for concept, value in {"Stories": 0.0, "ESL": -0.2}.items():
            keys = {"comparison": comparison, "concept": concept, "kind": "gendered"}
            differences.append(keys | {"difference": value, "low": value - 0.09, "high": value + 0.09})
    return {"06_realistic/polarization": pd.DataFrame(rows), "06_realistic/change": pd.DataFrame(differences)}


def capabilities() -> pd.DataFrame:
    return pd.DataFrame(
        {"task": task, "metric": metric, "value": value + 0.03 * (condition == AFTER), "stderr": 0.01, "n": 500}
        | {"condition": condition}
        for condition in (BEFORE, AFTER)
        for task, metric, value in [("mmlu", "acc", 0.3), ("ifeval", "prompt_level_strict_acc", 0.2)]
    )


def all_hold() -> Tables:
    """Tables on which every claim holds."""
    tables = {"02_expressed/polarization": polarizations(), "02_expressed/change": changes()}
    tables |= {"02_expressed/bias": biases(), "04_relation/correlation": correlated()}
    tables |= {"05_ablation/against_random": ablated(), "05_ablation/ablation_sampled": sampled()}
    return tables | encodings() | realistic() | {"07_alignment/capability": capabilities()}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the model's tables of the chapter lie."""
    monkeypatch.setenv("BIASGEOM_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results" / results.slug(MODEL) / "gender"


def write(folder: Path, tables: Tables, records: dict[str, object] = RECORDS) -> None:
    for name, table in tables.items():
        section = (folder / name).parent
        section.mkdir(parents=True, exist_ok=True)
        table.to_csv(folder / f"{name}.csv", index=False, float_format="%.6g")
        if section.name in records:
            (section / "run.json").write_text(json.dumps(records[section.name]))


def level(concept: object, condition: str = BEFORE, **values: float) -> Edit:
    return put("02_expressed/polarization", {"condition": condition, "concept": concept}, **values)


def change(comparison: str, concept: object, low: float, high: float) -> Edit:
    where = {"comparison": comparison, "concept": concept}
    return put("02_expressed/change", where, difference=(low + high) / 2, low=low, high=high)


def entity(name: str, bias: float, half: float = 0.1) -> Edit:
    where = {"condition": BEFORE, "entity": name}
    return put("02_expressed/bias", where, bias=bias, low=bias - half, high=bias + half)


def above(condition: str, concept: object, count: int) -> Edit:
    where = {"condition": condition, "estimator": "ledoit-wolf", "concept": concept}
    return put("03_encoded/concepts", where, above_isotropic=count)


def ratio(low: float) -> Edit:
    where = {"condition": BEFORE, "estimator": "ledoit-wolf", "block": AT}
    return put("03_encoded/gendered_over_control", where, low=low)


def flip(concept: object, p: float) -> Edit:
    where = {"condition": BEFORE, "estimator": "ledoit-wolf", "concept": concept}
    return put("03_encoded/concepts", where, p_flip=p)


def rho(
    pairing: str, concept: object, measure: object = ("sampled", "proxy"), **values: float | str
) -> Callable[..., None]:
    where = {"pairing": pairing, "concept": concept, "expressed": measure}
    return put("04_relation/correlation", where, **values)


def no_rho(pairing: str, concept: object) -> Edit:
    """As a table has it where all completions are alike."""
    values = dict.fromkeys(("largest", "at", "mean", "chance", "p"), np.nan)
    return rho(pairing, concept, spread=0.0, undefined="the expressed bias of all entities is the same", **values)


def removed(condition: str, setting: object, **values: float) -> Edit:
    return put("05_ablation/against_random", {"condition": condition, "setting": setting}, **values)


def before_task(concept: str, **values: float) -> Edit:
    return put("06_realistic/polarization", {"condition": BEFORE, "concept": concept}, **values)


def task(concept: str, low: float, high: float) -> Edit:
    where = {"comparison": f"{AFTER} - {BEFORE}", "concept": concept}
    return put("06_realistic/change", where, low=low, high=high)


def score(name: str, value: float) -> Edit:
    return put("07_alignment/capability", {"task": name, "condition": AFTER}, value=value)


ALIGNED, REACTIVATED = f"{AFTER} - {BEFORE}", f"{AFTER_1950S} - {AFTER}"
EVERY = ["literal", "guarded", "guarded, late"]

CASES: list[tuple[str, str, Edit]] = [
    ("polarization-order", HOLDS, level("Months", bias_pol=0.38, chance=0.37)),
    # Neither the raw level counts nor p alone.
    ("polarization-order", LIMITED, level("Sports", bias_pol=0.6)),
    ("polarization-order", LIMITED, level("Months", p=0.01)),
    ("polarization-order", LIMITED, level("Sports", p=0.2)),
    ("polarization-order", LIMITED, level("Sports", chance=0.45)),
    ("polarization-order", NOT_SHOWN, level(GENDERED, p=0.06)),
    ("polarization-order", NOT_SHOWN, level("Colors", bias_pol=0.7)),
    ("polarization-order", NOT_SHOWN, level(GENDERED, chance=0.55)),
    ("extreme-entities", HOLDS, entity("editor", -0.99)),
    ("extreme-entities", LIMITED, entity("nurse", 0.69)),
    ("extreme-entities", LIMITED, entity("butcher", -0.2)),
    ("extreme-entities", NOT_SHOWN, entity("butcher", -0.2, half=0.3)),
    ("extreme-entities", NOT_SHOWN, entity("butcher", 0.9)),
    ("extreme-entities", NOT_SHOWN, entity("secretary", -0.9)),
    ("alignment-lowers", HOLDS, change(ALIGNED, GENDERED, -0.9, -0.01)),
    ("alignment-lowers", LIMITED, change(ALIGNED, "Sports", -0.9, 0.01)),
    ("alignment-lowers", LIMITED, change(ALIGNED, "Professions", 0.1, 0.2)),
    ("alignment-lowers", NOT_SHOWN, change(ALIGNED, GENDERED, -0.9, 0.0)),
    # A fall counts only from a polarization beyond chance; what is left afterwards is no matter.
    ("alignment-lowers", HOLDS, level(GENDERED, p=0.049)),
    ("alignment-lowers", HOLDS, level(GENDERED, AFTER, p=0.001)),
    ("alignment-lowers", LIMITED, level("Sports", p=0.05)),
    ("alignment-lowers", NOT_SHOWN, level(GENDERED, p=0.05)),
    ("alignment-lowers", NOT_SHOWN, both(level("Sports", p=0.05), change(ALIGNED, "Professions", -0.9, 0.01))),
    ("controls-unchanged", HOLDS, change(ALIGNED, CONTROLS, -0.099, 0.099)),
    # A change that excludes zero but is negligible is none; one that may be large is not excluded.
    ("controls-unchanged", HOLDS, change(ALIGNED, CONTROLS, 0.01, 0.05)),
    ("controls-unchanged", HOLDS, change(ALIGNED, GENDERED, -0.9, -0.5)),
    ("controls-unchanged", LIMITED, change(ALIGNED, "Months", -0.05, 0.1)),
    ("controls-unchanged", LIMITED, change(ALIGNED, "Months", -0.1, 0.05)),
    ("controls-unchanged", LIMITED, change(ALIGNED, CONTROLS, -0.5, 0.5)),
    ("controls-unchanged", NOT_SHOWN, change(ALIGNED, "Months", 0.01, 0.2)),
    ("controls-unchanged", NOT_SHOWN, change(ALIGNED, "Months", -0.2, -0.01)),
    ("controls-unchanged", NOT_SHOWN, change(ALIGNED, ["Months", "Colors"], -0.2, -0.01)),
    # 80 % of the excess over chance, not of the level: 0.45 is 80 % of 0.56, but 0.35 is not 80 % of 0.46.
    ("instruction-reactivates", HOLDS, level("Professions", bias_pol=0.53)),
    ("instruction-reactivates", LIMITED, level("Professions", bias_pol=0.56)),
    ("instruction-reactivates", HOLDS, level("Professions", bias_pol=0.56, chance=0.13)),
    ("instruction-reactivates", LIMITED, level("Professions", AFTER_1950S, chance=0.14)),
    ("instruction-reactivates", NOT_SHOWN, change(REACTIVATED, "Professions", -0.01, 0.5)),
    ("instruction-reactivates", NOT_SHOWN, change(REACTIVATED, "Professions", 0.0, 0.5)),
    ("instruction-reactivates", NOT_SHOWN, level("Professions", AFTER_1950S, p=0.05)),
    ("instruction-reactivates", HOLDS, level(["Professions", "Sports"], AFTER, p=0.9)),
    ("instruction-reactivates", HOLDS, level("Sports", AFTER_1950S, p=0.9)),
    # The interval starts at 0.2: what chance adds must be less, and is taken off where chance takes away.
    ("instruction-reactivates", HOLDS, level("Professions", AFTER_1950S, bias_pol=0.62, chance=0.29)),
    ("instruction-reactivates", NOT_SHOWN, level("Professions", AFTER_1950S, bias_pol=0.64, chance=0.31)),
    (
        "instruction-reactivates",
        HOLDS,
        both(level("Professions", AFTER, chance=0.3), change(REACTIVATED, "Professions", -0.1, 0.5)),
    ),
    ("encoded-above-controls", HOLDS, ratio(1.01)),
    ("encoded-above-controls", LIMITED, flip("Sports", 0.05)),
    ("encoded-above-controls", NOT_SHOWN, ratio(1.0)),
    ("encoded-above-controls", NOT_SHOWN, both(ratio(0.9), flip("Sports", 0.5))),
    ("controls-like-random", HOLDS, above(BEFORE, CONTROLS, 2)),
    ("controls-like-random", HOLDS, above(BEFORE, GENDERED, 20)),
    ("controls-like-random", LIMITED, above(BEFORE, CONTROLS, 3)),
    ("controls-like-random", LIMITED, above(BEFORE, "Months", 20)),
    ("controls-like-random", NOT_SHOWN, above(BEFORE, CONTROLS, 6)),
    ("encoded-persists", HOLDS, above(AFTER, GENDERED, 18)),
    ("encoded-persists", LIMITED, above(AFTER, CONTROLS, 6)),
    ("encoded-persists", NOT_SHOWN, above(AFTER, "Sports", 17)),
    ("correlation-gendered", HOLDS, rho("Base-Base", GENDERED, p=0.049)),
    ("correlation-gendered", LIMITED, rho("Base-Base", "Professions", p=0.05)),
    ("correlation-gendered", NOT_SHOWN, rho("Base-Base", GENDERED, p=0.05)),
    ("correlation-gendered", NOT_SHOWN, no_rho("Base-Base", GENDERED)),
    ("correlation-gendered", LIMITED, no_rho("Base-Base", "Sports")),
    # The proxy's rows are another measure.
    ("correlation-gendered", HOLDS, rho("Base-Base", GENDERED, "proxy", p=0.9)),
    ("correlation-gendered", NOT_SHOWN, rho("Base-Base", GENDERED, "sampled", p=0.9)),
    ("correlation-controls", LIMITED, no_rho("Base-Base", CONTROLS)),
    # A control without ρ gives no support, and no reason against.
    ("correlation-controls", LIMITED, no_rho("Base-Base", "Months")),
    ("correlation-controls", HOLDS, rho("FT-FT", CONTROLS, p=0.001, mean=0.9)),
    ("correlation-controls", HOLDS, rho("Base-Base", CONTROLS, "proxy", p=0.001, mean=0.9)),
    ("correlation-controls", HOLDS, rho("Base-Base", CONTROLS, mean=-0.2)),
    ("correlation-controls", HOLDS, rho("Base-Base", GENDERED, p=0.6, mean=0.9)),
    ("correlation-controls", LIMITED, rho("Base-Base", "Months", mean=0.21)),
    ("correlation-controls", LIMITED, rho("Base-Base", CONTROLS, mean=-0.9)),
    ("correlation-controls", LIMITED, rho("Base-Base", "Months", "sampled", p=0.01)),
    ("correlation-controls", LIMITED, rho("Base-Base", "Months", p=0.01, mean=0.8)),
    ("correlation-controls", NOT_SHOWN, rho("Base-Base", ["Months", "Colors"], p=0.01)),
    ("correlation-controls", NOT_SHOWN, rho("Base-Base", ["Months", "Colors"], p=0.049, mean=0.0)),
    ("encoded-after-predicts-before", HOLDS, rho("FT-Base", GENDERED, mean=0.51)),
    ("encoded-after-predicts-before", LIMITED, rho("FT-Base", "Sports", mean=0.45)),
    ("encoded-after-predicts-before", NOT_SHOWN, rho("FT-Base", "Sports", mean=0.35)),
    ("encoded-after-predicts-before", NOT_SHOWN, rho("Base-Base", GENDERED, p=0.5)),
    ("encoded-after-predicts-before", NOT_SHOWN, rho("FT-Base", GENDERED, mean=np.nan)),
    *(
        (f"ablation-lowers-{name}", verdict, removed(condition, setting, **values))
        for name, condition in {"before": BEFORE, "1950s": AFTER_1950S}.items()
        for verdict, setting, values in [
            (HOLDS, "literal", {"gender": 0.29, "gender_nats": 0.5}),
            (HOLDS, ["guarded", "guarded, late"], {"gender": 0.4}),
            (HOLDS, ["guarded", "guarded, late"], {"p": 0.9}),
            (LIMITED, "literal", {"gender_nats": 0.51}),
            (LIMITED, ["literal", "guarded"], {"gender": 0.3}),
            # Ten random directions can't reach p < .05, though all lie above.
            (LIMITED, EVERY, {"p": 1 / 11}),
            (LIMITED, "literal", {"p": 0.05}),
            # Below every random direction is not enough: it must be below nothing removed as well.
            (LIMITED, "literal", {"plain": 0.1}),
            (NOT_SHOWN, EVERY, {"plain": 0.1}),
            (NOT_SHOWN, EVERY, {"plain": 0.05}),
            (NOT_SHOWN, EVERY, {"gender": 0.3}),
            (NOT_SHOWN, EVERY, {"gender_nats": 2.0}),
        ]
    ),
    # Too few directions, and no other setting: literal ablation is then the limit by itself.
    (
        "ablation-lowers-before",
        LIMITED,
        both(removed(BEFORE, EVERY, p=0.09), removed(BEFORE, ["guarded", "guarded, late"], gender=0.4)),
    ),
    # Each setting fails one of the two tests.
    (
        "ablation-lowers-before",
        NOT_SHOWN,
        both(removed(BEFORE, "literal", gender_nats=1.0), removed(BEFORE, ["guarded", "guarded, late"], gender=0.4)),
    ),
    ("esl-alignment-lowers", HOLDS, task("ESL", -0.5, -0.01)),
    ("esl-alignment-lowers", HOLDS, both(task("Stories", -0.5, 0.5), before_task("Stories", p=0.9))),
    ("esl-alignment-lowers", NOT_SHOWN, task("ESL", -0.5, 0.0)),
    ("esl-alignment-lowers", NOT_SHOWN, before_task("ESL", p=0.05)),
    ("stories-alignment-fails", HOLDS, task("Stories", -0.099, 0.5)),
    ("stories-alignment-fails", HOLDS, task("Stories", 0.2, 0.5)),
    ("stories-alignment-fails", HOLDS, before_task("Stories", p=0.049)),
    ("stories-alignment-fails", LIMITED, task("Stories", -0.1, 0.5)),
    ("stories-alignment-fails", LIMITED, task("Stories", -0.5, 0.0)),
    ("stories-alignment-fails", NOT_SHOWN, task("Stories", -0.5, -0.01)),
    # However small, a fall is one.
    ("stories-alignment-fails", NOT_SHOWN, task("Stories", -0.09, -0.01)),
    ("stories-alignment-fails", NOT_SHOWN, before_task("Stories", p=0.05)),
    ("stories-alignment-fails", NOT_SHOWN, both(before_task("Stories", p=0.05), task("Stories", -0.5, 0.5))),
    ("capabilities-kept", HOLDS, score("mmlu", 0.27)),
    ("capabilities-kept", NOT_SHOWN, score("mmlu", 0.26)),
    ("capabilities-kept", NOT_SHOWN, score("ifeval", 0.24)),
]


def verdict_of(claim: str) -> tuple[str, str]:
    row = claims.verdicts("gender", RULES, MODEL).set_index("id").loc[claim]
    return row["verdict"], row["evidence"]


def test_every_claim_has_a_rule_and_every_rule_a_claim() -> None:
    listed = claims.listed("gender")
    assert list(listed.columns) == ["id", "section", "claim", "rule", "notebook", "label"]
    assert sorted(listed["id"]) == sorted(RULES)
    assert listed["id"].is_unique
    assert listed.map(lambda cell: isinstance(cell, str) and cell.strip() == cell != "").all(axis=None)


def test_every_claim_points_to_a_notebook_of_the_book_and_a_label_on_it() -> None:
    items = data.items().set_index("label")["notebook"]
    text_values = data.published("gender_text_values")
    pointed = [(c.notebook, c.label) for c in claims.listed("gender").itertuples()]
    pointed += [(f"gender/{v.notebook}", v.label) for v in text_values.itertuples()]
    for notebook, label in pointed:
        assert notebook in run.notebooks()
        source = (data.root() / "notebooks" / f"{notebook}.ipynb").read_text()
        assert notebook in np.atleast_1d(items.get(label, "")) or re.search(rf"{label}(?![\w-])", source)


def test_the_cases_cover_every_verdict_that_a_rule_states() -> None:
    stated = claims.listed("gender").set_index("id")["rule"]
    stated["ablation-lowers-1950s"] = stated["ablation-lowers-before"]
    for claim, rule in stated.items():
        possible = {HOLDS, NOT_SHOWN} | ({LIMITED} if "Limit" in rule else set())
        assert {verdict for of, verdict, _ in CASES if of == claim} == possible


@pytest.mark.parametrize(("claim", "verdict", "edit"), CASES, ids=[f"{c}: {v}" for c, v, _ in CASES])
def test_verdicts(folder: Path, claim: str, verdict: str, edit: Edit) -> None:
    tables = all_hold()
    edit(tables)
    write(folder, tables)
    found, evidence = RULES[claim](claims.Tables(folder))
    assert found == verdict, evidence
    assert evidence


def test_all_claims_hold_where_all_is_as_published(folder: Path) -> None:
    write(folder, all_hold())
    found = claims.verdicts("gender", RULES, MODEL)
    assert list(found.columns) == [*claims.listed("gender").columns, "verdict", "evidence"]
    assert found["id"].tolist() == claims.listed("gender")["id"].tolist()
    assert set(found["verdict"]) == {HOLDS}
    assert found["evidence"].str.contains(r"\d").all()


def test_nothing_holds_where_nothing_was_run(folder: Path) -> None:
    write(folder.parents[1] / "another" / "gender", all_hold())
    found = claims.verdicts("gender", RULES, MODEL)
    assert set(found["verdict"]) == {NOT_RUN}
    for row in found.itertuples():
        assert row.evidence.startswith(row.notebook.removeprefix("gender/"))
        assert row.evidence.endswith((".csv is not there", "has not been run"))


@pytest.mark.parametrize("notebook", sorted(set(claims.listed("gender")["notebook"])))
def test_claims_of_one_section_alone_are_not_run_without_its_tables(folder: Path, notebook: str) -> None:
    kept = {name: t for name, t in all_hold().items() if not name.startswith(notebook.removeprefix("gender/"))}
    write(folder, kept)
    found = claims.verdicts("gender", RULES, MODEL)
    assert set(found.loc[found["notebook"] == notebook, "verdict"]) == {NOT_RUN}
    assert set(found.loc[found["notebook"] != notebook, "verdict"]) == {HOLDS}


def test_evidence_has_the_numbers_of_the_tables(folder: Path) -> None:
    tables = all_hold()
    both(entity("nurse", 0.37), change(ALIGNED, "Sports", -0.456, 0.01), ratio(1.23), score("mmlu", 0.123))(tables)
    write(folder, tables)
    found = claims.verdicts("gender", RULES, MODEL).set_index("id")["evidence"]
    assert "nurse +0.37" in found["extreme-entities"]
    told = "before 0.40 (by chance 0.10, p = 0.001); gendered completions 40% → 10%"
    assert f"Sports -0.22 (-0.46 to +0.01); {told}" in found["alignment-lowers"]
    assert "p = 0.001); gendered completions 40% → 10% → 40%" in found["instruction-reactivates"]
    assert f"2.00 (1.23 to 2.20) at block {AT}" in found["encoded-above-controls"]
    assert "mmlu -0.177" in found["capabilities-kept"]
    for condition in ("before", "1950s"):
        assert found[f"ablation-lowers-{condition}"].startswith("by next-token proxy; literal: 0.50 → 0.10")
        assert "0.50 → 0.10, random 0.30 to 0.60 (p = 0.04), +0.20 nats" in found[f"ablation-lowers-{condition}"]


def test_evidence_says_what_chance_adds_and_why_there_is_no_rho(folder: Path) -> None:
    tables = all_hold()
    both(level("Professions", AFTER_1950S, chance=0.234), no_rho("Base-Base", "Sports"))(tables)
    before_task("Stories", p=0.05)(tables)
    write(folder, tables)
    found = claims.verdicts("gender", RULES, MODEL).set_index("id")["evidence"]
    assert "of which +0.13 is the change of what chance does" in found["instruction-reactivates"]
    assert "Professions: largest ρ 0.90 at block 3" in found["correlation-gendered"]
    assert "Sports: no ρ, the expressed bias of all entities is the same" in found["correlation-gendered"]
    assert found["stories-alignment-fails"].endswith("no polarization that alignment could lower")
    assert not found.str.contains("nan").any()
    for lacking, told in ((["Months"], "Colors -0.10; largest"), (CONTROLS, "no control has a ρ: the completions")):
        no_rho("Base-Base", lacking)(tables)
        write(folder, tables)
        evidence = verdict_of("correlation-controls")[1]
        assert told in evidence
        assert "Months" not in evidence


# What the rules read of run.json --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("published", "blocks", "at"), [(0, 4, 0), (31, 4, 3), (20, 4, AT), (20, 30, 19), (20, 2, 1)])
def test_the_compared_block_is_that_of_the_sections_own_parameter(
    folder: Path, published: int, blocks: int, at: int
) -> None:
    """The ratio is above one at that block alone, whatever blocks the tables have."""
    tables = all_hold()
    template = tables["03_encoded/gendered_over_control"].query("condition == 'before' and estimator == 'ledoit-wolf'")
    rows = [template.iloc[[0]].assign(block=b, ratio=2.0, low=1.5 if b == at else 0.5) for b in range(30)]
    tables["03_encoded/gendered_over_control"] = pd.concat(rows)
    records = RECORDS | {"03_encoded": {"blocks": blocks, "parameters": {"published_layer": published}}}
    write(folder, tables, records)
    verdict, evidence = verdict_of("encoded-above-controls")
    assert verdict == HOLDS
    assert f"at block {at};" in evidence
    assert claims_gender.compared_block(claims.Tables(folder)) == at
    # Negative control: another parameter is another block, where the ratio is below one.
    records["03_encoded"] = {"blocks": blocks, "parameters": {"published_layer": 31 if published < 16 else 0}}
    write(folder, tables, records)
    assert verdict_of("encoded-above-controls")[0] == NOT_SHOWN


def test_tables_without_their_record_are_not_run(folder: Path) -> None:
    write(folder, all_hold(), {})
    found = claims.verdicts("gender", RULES, MODEL).set_index("id")
    unknown = {"encoded-above-controls": "03_encoded", "capabilities-kept": "07_alignment"}
    for claim, section in unknown.items():
        assert found["verdict"][claim] == NOT_RUN
        assert found["evidence"][claim] == f"{section} has not been run"
    assert set(found["verdict"].drop(list(unknown))) == {HOLDS}


@pytest.mark.parametrize(("limit", "verdict"), [(0, HOLDS), (1, NOT_RUN), (500, NOT_RUN)])
def test_a_part_of_the_items_is_no_score(folder: Path, limit: int, verdict: str) -> None:
    write(folder, all_hold(), RECORDS | {"07_alignment": {"parameters": {"limit": limit}}})
    found, evidence = verdict_of("capabilities-kept")
    assert found == verdict
    assert (evidence == "a part of the items is no score") == (limit > 0)
    assert set(claims.verdicts("gender", RULES, MODEL).set_index("id")["verdict"].drop("capabilities-kept")) == {HOLDS}


def test_records_hold_what_the_rules_read(folder: Path, llama: LanguageModel) -> None:
    """The keys are those of :class:`results.Run` and of the notebooks' parameters."""
    for section, record in RECORDS.items():
        path = data.root() / "notebooks" / "gender" / f"{section}.ipynb"
        assert set(record["parameters"]) < {parameter.name for parameter in run.parameters(path)}
        source = "".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
        for name in record["parameters"]:
            assert f'"{name}": {name}' in source  # among what is recorded
    llama.name = MODEL
    left = results.Run(llama, "gender/03_encoded", RECORDS["03_encoded"]["parameters"])
    left.finish()
    assert claims.Tables(folder).info("03_encoded")["blocks"] == len(llama.blocks)
    assert claims_gender.compared_block(claims.Tables(folder)) == AT


def test_the_tables_have_the_columns_that_the_library_makes() -> None:
    """Made-up tables in columns of their own would prove nothing."""
    rng = np.random.default_rng(0)
    labels = list(expressed.LABELS)
    completions = pd.DataFrame(
        {"condition": condition, "concept": concept, "kind": CONCEPTS[concept], "entity": f"{concept} {e}"}
        | {"persona": persona, "sample": 0, "label": labels[rng.integers(3)]}
        for condition in (BEFORE, AFTER)
        for concept in CONCEPTS
        for e in range(3)
        for persona in range(2)
    )
    numbers = {"draws": 20, "seed": 0}
    made = {
        "polarization": expressed.for_each(completions, ["condition"], expressed.polarization_table, **numbers),
        "bias": expressed.for_each(completions, ["condition"], expressed.bias_table, **numbers),
        "change": expressed.changes(completions, [(BEFORE, AFTER)], **numbers),
    }
    of = {f"02_expressed/{name}": table for name, table in made.items()}
    of |= {f"06_realistic/{name}": made[name] for name in ("polarization", "change")}
    settings = completions.assign(setting="none", direction="none")
    keys = ["condition", "setting", "direction"]
    of["05_ablation/ablation_sampled"] = expressed.for_each(settings, keys, expressed.polarization_table, **numbers)
    bias = {"sampled": made["bias"].set_index(["condition", "concept", "entity"])["bias"].sort_index()}
    scores = completions.query("persona == 0").assign(block=0, score=rng.normal(size=len(completions) // 2))
    both_conditions = {name: part for name, part in scores.groupby("condition")}
    of["04_relation/correlation"] = relation.correlations(both_conditions, bias, {"x": (BEFORE, BEFORE)}, **numbers)[1]
    proxies = pd.DataFrame(
        {"condition": BEFORE, "setting": "literal", "direction": direction, "concept": "Professions"}
        | {"kind": "gendered", "mean_bias": 0.0, "bias_pol": 0.1, "nats": 2.0}
        for direction in ("none", "gender", "random 1")
    )
    of["05_ablation/against_random"] = ablation.against_random(proxies)
    female, male = rng.normal(size=(2, 8, 4, 6))
    pairs = encoded.Pairs(female, male, np.repeat(list("abcd"), 2))
    prompts = completions.query("condition == 'before'").assign(prompt="").reset_index(drop=True)
    concepts = encoded.concepts(prompts, rng.normal(size=(len(prompts), 4, 6)))
    tables = encoded.polarization_tables(concepts, pairs, draws=20, bootstrap=10, seed=0)
    for name, table in zip(("polarization", "concepts", "gendered_over_control"), tables, strict=True):
        of[f"03_encoded/{name}"] = table.assign(condition=BEFORE)
    for name, table in all_hold().items():
        if name in of:
            assert list(table.columns) == list(of[name].columns), name
            for column in {"kind", "estimator", "block"} & set(table.columns):
                assert set(table[column]) <= set(of[name][column]), name
    assert set(all_hold()) - set(of) == {"07_alignment/capability"}
    assert [setting.name for setting in ablation.settings(9)] == EVERY


def test_notebooks_write_these_tables() -> None:
    for name in all_hold():
        notebook, table = name.split("/")
        cells = json.loads((data.root() / "notebooks" / "gender" / f"{notebook}.ipynb").read_text())["cells"]
        source = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        assert f'run.table("{table}"' in source or ("run.table(name" in source and f'"{table}"' in source), name


def test_subjects_of_a_benchmark_are_not_compared(folder: Path) -> None:
    tables = all_hold()
    table = tables["07_alignment/capability"]
    parts = table[table["task"] == "mmlu"].assign(task="mmlu_anatomy", value=[0.1, 0.9])
    tables["07_alignment/capability"] = pd.concat([parts, table])
    write(folder, tables)
    assert verdict_of("capabilities-kept")[0] == HOLDS
    write(folder, {"07_alignment/capability": parts})
    assert verdict_of("capabilities-kept") == (
        NOT_RUN,
        "07_alignment/capability.csv does not hold both MMLU and IFEval",
    )


def test_a_task_may_have_several_metrics(folder: Path) -> None:
    tables = all_hold()
    table = tables["07_alignment/capability"]
    loose = table[table["task"] == "ifeval"].assign(metric="prompt_level_loose_acc", value=[0.1, 0.9])
    tables["07_alignment/capability"] = pd.concat([table, loose])
    write(folder, tables)
    assert verdict_of("capabilities-kept")[0] == HOLDS


def test_one_control_above_chance_is_one_by_either_measure(folder: Path) -> None:
    tables = all_hold()
    rho("Base-Base", "Months", p=0.01)(tables)
    write(folder, tables)
    verdict, evidence = verdict_of("correlation-controls")
    assert evidence.count("Months") == 2  # its mean ρ, and that it is above chance; not once more for the proxy
    assert verdict == LIMITED


# Numbers of the text --------------------------------------------------------------------------------------------------


def test_printed_numbers_stand_beside_their_cells(folder: Path) -> None:
    tables = all_hold()
    write(folder, tables)
    found = claims.beside("gender", MODEL)
    printed = data.published("gender_text_values")
    columns = ["section", "quantity", "published", "measured", "95 % interval", "by chance", "label"]
    assert list(found.columns) == columns
    for row, value in zip(found.itertuples(index=False), printed.itertuples(), strict=True):
        assert (row.quantity, row.published, row.label) == (value.quantity, value.published, value.label)
        rows = tables[f"{value.notebook}/{value.table}"].to_dict("records")
        for part in value.where.split(";"):
            column, wanted = part.split("=")
            rows = [r for r in rows if r[column] == wanted]
        (cell,) = rows
        assert row.measured == pytest.approx(cell[value.column], rel=1e-5)
        assert row[4] == f"{cell['low']:.2f} to {cell['high']:.2f}"
        # One entity's bias has no polarization by chance.
        assert pd.isna(row[5]) if value.table == "bias" else row[5] == pytest.approx(cell["chance"], rel=1e-5)
    # By quantity, as a reader expects them.
    measured = found.set_index("quantity")["measured"]
    assert measured["bias(e) of electrician, before"] == pytest.approx(-0.9)
    # Of one set of completions, with and without the direction; the section on expressed bias has others (0.5, 0.45).
    assert measured["Bias_pol of Professions, before"] == 0.52
    assert measured["Bias_pol of Professions, before, gender direction removed"] == 0.2
    assert measured["Bias_pol of Professions, after fine-tuning, with the instruction"] == 0.47
    removed_then = "Bias_pol of Professions, after fine-tuning, with the instruction, gender direction removed"
    assert measured[removed_then] == pytest.approx(0.15)
    assert found.loc[found["section"] == "4.4.2", "by chance"].tolist() == pytest.approx([0.13, 0.05, 0.1175, 0.0375])
    assert measured["Bias_pol of ESL, after fine-tuning"] == 0.1


def test_a_printed_number_without_its_section_is_missing(folder: Path) -> None:
    write(folder, {name: table for name, table in all_hold().items() if not name.startswith("05_")})
    found = claims.beside("gender", MODEL)
    absent = found["section"] == "4.4.2"
    assert absent.sum() == 4
    assert found.loc[absent, ["measured", "by chance"]].isna().all(axis=None)
    assert (found.loc[absent, "95 % interval"] == "not run").all()
    assert found.loc[~absent, "measured"].notna().all()
    assert claims.beside("gender", "nobody")["measured"].isna().all()
