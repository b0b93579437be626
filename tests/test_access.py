"""A preflight asks for everything that a profile reads, at once, and lists what can't be had; never a token."""

import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from biasgeom import access, alignment, debiasing, embedded, models, question_benchmarks, remote, run, wildguard
from biasgeom.access import Repository
from loopback import TOKEN, Answering, started


class _Hub(Answering):
    """Has every file but those of two gated repositories and one that it does not know; or refuses the token."""

    gated: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    refuses = False
    slow = 0.0
    asked: list[tuple[str, str | None]]

    def do_HEAD(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization")))
        time.sleep(self.slow)
        if self.refuses:
            self.answer(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif any(name in self.path for name in self.gated):
            self.answer(401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
        elif any(name in self.path for name in self.unknown):
            self.answer(404, {"X-Error-Code": "RepoNotFound"})
        else:
            self.answer(200, {"X-Repo-Commit": "0" * 40, "ETag": '"x"'}, b"{}")

    do_GET = do_HEAD


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[_Hub]]:
    handler = type("Hub", (_Hub,), {"asked": []})
    with started(monkeypatch, tmp_path, handler):
        yield handler


def files_of(hub: type[_Hub]) -> dict[str, str | None]:
    """The files that were asked for, and by whom; huggingface_hub asks for other things, too."""
    return {path: who for path, who in hub.asked if not path.startswith("/api/")}


@pytest.fixture(scope="module")
def paper() -> dict[Repository, list[str]]:
    return access.needed({notebook: run.values_for(notebook, "paper", None) for notebook in run.notebooks()})


def test_the_embedded_profile_needs_nothing() -> None:
    assert (
        access.needed({n: run.values_for(n, "embedded", None) for n in ("gender/02_expressed", "judge/04_geometry")})
        == {}
    )


def test_the_paper_profile_needs_what_its_notebooks_read(paper: dict[Repository, list[str]]) -> None:
    by_name = {repository.name: (repository, used) for repository, used in paper.items()}
    assert by_name["meta-llama/Llama-3.1-8B-Instruct"][1] == run.notebooks()
    assert by_name["Qwen/Qwen3-14B"][1] == ["judge/04_geometry"]
    assert "judge/02_humans" not in by_name["microsoft/phi-4"][1]
    assert alignment.RECIPES["paper"].own_rows is None
    for source in debiasing.SOURCES.values():
        assert (
            "gender/02_expressed" in paper[Repository("data set", source.repository, source.revision, source.files[0])]
        )
    assert "delta_b/02_spectrum" in by_name[wildguard.REPOSITORY][1]  # its recipe trains on it
    assert all(b.repository in by_name for b in question_benchmarks.BENCHMARKS.values())
    # Not WildGuardMix as a benchmark: the guard is read only where the parameter names it.
    assert wildguard.GUARD not in by_name
    asked = access.needed({"delta_b/04_output": {"benchmarks": ["wildguardmix"]}})
    assert {one.name for one in asked} == {wildguard.REPOSITORY, wildguard.GUARD}


def test_what_stays_here_is_not_asked_for(tmp_path: Path) -> None:
    values = {"model": str(tmp_path), "second": "gemma-3-270m", "writers": "a/b", "writer_url": "http://x/v1"}
    assert access.needed({"x": values | {"adapter": str(tmp_path)}}) == {}
    asked = access.needed({"x": {"model": "a/b", "revision": "v1", "adapter": "a/c", "writers": "a/d, a/e"}})
    assert {(one.name, one.revision, one.file) for one in asked} == {
        ("a/b", "v1", "config.json"),
        ("a/c", None, "adapter_model.safetensors"),
        ("a/d", None, "config.json"),
        ("a/e", None, "config.json"),
    }


def test_everything_is_asked_for_and_what_is_gated_listed(hub: type[_Hub], paper: dict[Repository, list[str]]) -> None:
    assert access.missing(list(paper)).empty
    assert len(files_of(hub)) == len(paper)
    hub.gated, hub.unknown = ("meta-llama/", "Idavidrein/gpqa", "/raw/"), ("allenai/wildguardmix",)
    found = access.missing(list(paper)).set_index("name")
    github = {one.name for one in paper if one.kind == "data set" and one.revision is None}
    assert set(found.index) == {"meta-llama/Llama-3.1-8B-Instruct", "Idavidrein/gpqa", "allenai/wildguardmix"} | github
    assert found.loc["Idavidrein/gpqa", "problem"] == "is gated"
    assert found.loc["Idavidrein/gpqa", "page"] == "https://huggingface.co/datasets/Idavidrein/gpqa"
    assert found.loc["allenai/wildguardmix", "problem"] == "is not on the hub, or is private"
    assert TOKEN not in found.to_string()


def test_a_wrong_token_is_said(hub: type[_Hub]) -> None:
    hub.refuses = True
    repository = Repository("model", "org/name", None, "config.json")
    found = access.missing([repository, Repository("data set", "org/rows", "main", "rows.csv")])
    assert set(files_of(hub).values()) == {f"Bearer {TOKEN}"}
    assert all("refuses the token" in problem for problem in found["problem"])
    assert TOKEN not in found.to_string()


def test_a_wrong_token_is_said_before_a_model_is_loaded(hub: type[_Hub]) -> None:
    hub.refuses = True
    words = "org/name can't be asked for: the hub refuses the token"
    with pytest.raises(embedded.ModelNotAvailable, match=words) as raised:
        models.require("org/name")
    assert TOKEN not in "".join(traceback.format_exception(raised.value))


def test_questions_go_out_together(hub: type[_Hub]) -> None:
    hub.slow = 0.5
    start = time.monotonic()
    access.missing([Repository("model", f"org/n{number}", None, "config.json") for number in range(access.TOGETHER)])
    assert time.monotonic() - start < 0.5 * access.TOGETHER / 2


def test_a_file_that_is_here_needs_no_answer(hub: type[_Hub]) -> None:
    kept = remote.fetch("org/rows", None, "rows.json", name="rows")
    hub.gated = ("org/rows",)
    assert kept.exists()
    assert access.missing([Repository("data set", "org/rows", None, "rows.json")]).empty
    assert len(access.missing([Repository("data set", "org/rows", None, "others.json")])) == 1
