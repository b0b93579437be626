"""Rules of the house that a reader relies on: notebooks, imports, sizes, and a README that is true."""

import ast
import importlib
import json
import re
from pathlib import Path

import pytest
from biasgeom import data, run

ROOT = data.root()
MODULES = sorted((ROOT / "lib" / "biasgeom").glob("*.py"))
STREAM = [
    "data",
    "cache",
    "names",
    "remote",
    "sentences",
    "statements",
    "questions",
    "rewrites",
    "perturbations",
    "parsing",
    "catalogue",
    "counting",
    "embedded",
    "hub",
    "activated",
    "adapters",
    "models",
    "facts",
    "memory",
    "prompts",
    "layout",
    "hooks",
    "recall",
    "drawing",
    "vllm_sampling",
    "activations",
    "generation",
    "readouts",
    "prefix",
    "suffix",
    "direction",
    "ledger",
    "annealing",
    "statistics",
    "relative",
    "pairs",
    "landscape",
    "controls",
    "humans",
    "substrate",
    "maps",
    "estimators",
    "separability",
    "geometry",
    "shared_space",
    "encoded",
    "expressed",
    "relation",
    "proxy",
    "pacing",
    "endpoint",
    "annotation",
    "neutral",
    "debiasing",
    "selfgenerated",
    "training",
    "finetune",
    "capability",
    "alignment",
    "protocol",
    "ablation",
    "merging",
    "probe",
    "sentiment",
    "topics",
    "wildguard",
    "writers",
    "rewriting",
    "question_benchmarks",
    "asked",
    "decodingtrust",
    "toxigen",
    "splits",
    "spectrum",
    "audit",
    "survey",
    "robustness",
    "benchmarks",
    "monitor",
    "judging",
    "planted",
    "steering",
    "ground",
    "attack",
    "causal",
    "strengths",
    "text_attack",
    "erasure",
    "defence",
    "defended",
    "folded",
    "prediction",
    "boosting",
    "ranking",
    "detectors",
    "zeroshot",
    "card",
    "markdown",
    "timing",
    "results",
    "figures",
    "figures_pairs",
    "figures_judge",
    "figures_judge_geometry",
    "claims",
    "claims_gender",
    "claims_delta_b",
    "claims_judge_geometry",
    "claims_judge_causal",
    "claims_judge_defence",
    "claims_judge_prediction",
    "claims_judge",
    "run",
    "request",
    "access",
    "costs",
    "plan",
    "forecast",
    "cluster",
    "sweep",
    "redaction",
    "inspection",
    "archive",
    "launch",
    "release",
    "relabel",
    "shelf",
    "fragments",
    "comparison",
    "figures_comparison",
    "model_page",
    "comparison_page",
    "sphinx_book",
    "pages",
    "__main__",
]
KNOWS_NO_MODEL = {"data", "cache", "remote", "sentences", "statements", "direction", "statistics", "relative", "pairs"}
KNOWS_NO_MODEL |= {"encoded", "expressed", "relation", "markdown", "figures", "figures_pairs"}
KNOWS_NO_MODEL |= {"questions", "rewrites", "perturbations", "parsing", "question_benchmarks", "landscape", "controls"}
KNOWS_NO_MODEL |= {"humans", "substrate", "maps", "estimators", "separability", "geometry", "shared_space"}
KNOWS_NO_MODEL |= {"figures_judge", "figures_judge_geometry", "annealing", "ledger"}
KNOWS_NO_MODEL |= {"names", "relabel", "fragments", "comparison", "figures_comparison", "redaction", "inspection"}
KNOWS_NO_MODEL |= {"prediction", "boosting", "ranking", "detectors"}


def imported(module: Path) -> set[str]:
    """Modules of the package that a module imports, at the top or within functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "biasgeom":
            names |= {alias.name for alias in node.names if alias.name != "__version__"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("biasgeom."):
            names.add(node.module.split(".")[1])
    return names


def test_every_module_has_its_place_in_the_stream() -> None:
    assert {m.stem for m in MODULES} - {"__init__"} == set(STREAM)
    text = (ROOT / "lib" / "biasgeom" / "__init__.py").read_text()
    assert all(re.search(rf"\b{name}\b", text) for name in STREAM if name != "__main__")


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.stem)
def test_imports_run_one_way(module: Path) -> None:
    if module.stem == "__init__":
        assert not imported(module)
    else:
        later = {name for name in imported(module) if STREAM.index(name) >= STREAM.index(module.stem)}
        assert not later, f"{module.stem} imports from later in the stream: {later}"


@pytest.mark.parametrize("module", [m for m in MODULES if m.stem in KNOWS_NO_MODEL], ids=lambda m: m.stem)
def test_mathematics_has_never_heard_of_a_model(module: Path) -> None:
    text = module.read_text()
    assert not re.search(r"^\s*(import|from) (torch|transformers|peft)", text, re.MULTILINE)
    assert not imported(module) & {"models", "hooks", "activations", "generation", "prompts"}


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.stem)
def test_one_idea_a_file_with_documented_public_names(module: Path) -> None:
    assert len(module.read_text().splitlines()) <= 320
    tree = ast.parse(module.read_text())
    assert ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_") and node.name != "main":
            assert ast.get_docstring(node), f"{module.stem}.{node.name} has no docstring"


def cells(notebook: str) -> list[dict]:
    return json.loads((ROOT / "notebooks" / f"{notebook}.ipynb").read_text())["cells"]


@pytest.mark.parametrize("notebook", run.notebooks())
def test_notebooks_tell_and_do_not_define(notebook: str) -> None:
    code = [cell for cell in cells(notebook) if cell["cell_type"] == "code"]
    assert sum("parameters" in cell["metadata"].get("tags", []) for cell in code) == 1
    for cell in code:
        source = "".join(cell["source"])
        assert not cell["outputs"], "committed with outputs"
        assert cell["execution_count"] is None, "committed with outputs"
        assert not re.search(r"^\s*(def|class) |\blambda\b.*\n.*\blambda\b", source, re.MULTILINE)
        stated = "parameters" in cell["metadata"].get("tags", [])  # one a line, however many there are
        assert stated or len(source.splitlines()) <= 16, source


@pytest.mark.parametrize("notebook", run.notebooks())
def test_figure_cells_have_caption_label_and_alt_text(notebook: str) -> None:
    drawing = [cell for cell in cells(notebook) if "run.figure(" in "".join(cell["source"])]
    assert drawing or notebook == "gender/01_prompts"  # that page has tables only
    for cell in drawing:
        shown = cell["metadata"]["mystnb"]
        assert shown["figure"]["caption"].endswith(".")
        assert shown["figure"]["name"].startswith("fig-")
        assert shown["image"]["alt"]


def test_no_label_stands_on_two_pages() -> None:
    """A reference would lead to either of them."""
    every = [cell for notebook in run.notebooks() for cell in cells(notebook)]
    labels = [name for cell in every for name in re.findall(r'name="((?:tab|lst)-[^"]+)"', "".join(cell["source"]))]
    labels += [c["metadata"]["mystnb"]["figure"]["name"] for c in every if "figure" in c["metadata"].get("mystnb", {})]
    assert len(labels) > 100
    assert sorted(name for name in set(labels) if labels.count(name) > 1) == []


def test_every_notebook_stands_in_contents_and_readme() -> None:
    committed = {p.relative_to(ROOT / "notebooks").with_suffix("").as_posix() for p in ROOT.glob("notebooks/*/*.ipynb")}
    assert committed == set(run.notebooks())
    assert all(f"notebooks/{name}.ipynb" in (ROOT / "README.md").read_text() for name in committed)


def test_the_readme_names_things_that_exist() -> None:
    text = (ROOT / "README.md").read_text()
    table = text[text.index("| paper section |") : text.index("## Another model")]
    for name in re.findall(r"`((?:notebooks|data|lib)/[^`]+)`", text):
        assert (ROOT / name).exists(), name
    for module, function in re.findall(r"`(\w+)\.(\w+)`", table):
        assert hasattr(importlib.import_module(f"biasgeom.{module}"), function), f"{module}.{function}"
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / target).exists(), target


def test_gotchas_point_at_files_that_exist() -> None:
    for name in re.findall(r"`((?:tests|lib)/[^`]+)`", (ROOT / "book" / "gotchas.md").read_text()):
        assert (ROOT / name).exists(), name


def test_nothing_is_fetched_from_a_path_of_one_machine() -> None:
    for path in [*MODULES, *ROOT.glob("notebooks/*/*.ipynb"), ROOT / "workflow" / "Snakefile", ROOT / "Makefile"]:
        assert not re.search(r"(?<![\w.~])/(?:home|root|work|Users)/", path.read_text()), path
