"""Whether the asked models, and everything that a profile reads from the hub, can be had: all is asked for at once."""

import difflib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
from safetensors import SafetensorError, safe_open

from biasgeom import (
    adapters,
    alignment,
    catalogue,
    debiasing,
    decodingtrust,
    hub,
    models,
    question_benchmarks,
    remote,
    sentences,
    spectrum,
    toxigen,
    wildguard,
)

TOGETHER = 16
"""Requests in flight: each that is not answered costs five seconds."""


@dataclass(frozen=True)
class Repository:
    """Something on the hub or on GitHub that notebooks read.

    ``kind`` is "model" or "data set". ``revision`` None is a model's default branch, or a data set on GitHub. ``file``
    is one that it must have.
    """

    kind: str
    name: str
    revision: str | None
    file: str

    @property
    def page(self) -> str:
        """Where its terms are read and accepted."""
        return f"https://huggingface.co/{self.name}" if self.kind == "model" else remote.page(self.name, self.revision)


def unavailable(asked: Sequence[tuple[str, str | None, str | None]]) -> list[str]:
    """Why each asked model (name, revision, adapter) can't be had, as a sentence; "" for one that can.

    Of folders the files' heads are read as well: weights that were cut on the way would be missed only when they are
    loaded. Nothing is loaded or kept.
    """
    # Side by side, since each name that the hub does not answer for costs seconds.
    with ThreadPoolExecutor(TOGETHER) as several:
        return list(several.map(lambda one: _absent(*one), asked))


def _absent(name: str, revision: str | None, adapter: str | None) -> str:
    try:
        models.require(name, revision=revision, adapter=adapter)
    except models.ModelNotAvailable as error:
        return f"{error}{_nearest(name)}"
    return _broken(name, "config.json", "tokenizer*") or _broken(adapter, "adapter_config.json")


def _nearest(name: str) -> str:
    """What may have been meant by a name that is neither a folder's nor a hub id."""
    known = [*adapters.PLANTED, *(one.name for one in catalogue.models())]
    if hub.ID.fullmatch(name) or name in known or Path(name).is_dir():
        return ""
    meant = {spelt.lower(): full for full in known for spelt in (full, full.rpartition("/")[2])}
    near = difflib.get_close_matches(name.lower(), meant, n=1, cutoff=0.5)
    return f" Did you mean {meant[near[0]]}?" if near else ""


def _broken(place: str | None, *wanted: str) -> str:
    """Why a folder can't be loaded, by the names of its files and the heads of its weights; "" if it seems sound."""
    if not place or not (folder := Path(place).expanduser()).is_dir():
        return ""
    again = "download or save it again"
    if lacking := [name for name in wanted if not any(folder.glob(name))]:
        return f"{folder}: holds no {' and no '.join(lacking).replace('*', '')}; {again}"
    try:
        index = folder / "model.safetensors.index.json"
        stated = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else set()
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{folder}: {index.name} can't be read; {again}"
    if absent := sorted(name for name in stated if not (folder / name).is_file()):
        return f"{folder}: holds no {', '.join(absent)}, which {index.name} names; {again}"
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt"):
                pass
        except (SafetensorError, OSError) as error:
            return f"{folder}: {file.name} is cut or no safetensors file ({error}); {again}"
    return ""


def needed(values: Mapping[str, Mapping[str, Any]]) -> dict[Repository, list[str]]:
    """What notebooks with these parameter values read from outside, each with the notebooks that do.

    Folders, embedded models and what is behind an endpoint are not listed.
    """
    found: dict[Repository, list[str]] = {}
    for notebook, chosen in values.items():
        for repository in dict.fromkeys([*_models(chosen), *_data_sets(chosen)]):
            found.setdefault(repository, []).append(notebook)
    return found


def _models(values: Mapping[str, Any]) -> list[Repository]:
    named = [(values.get("model"), values.get("revision")), (values.get("audited"), values.get("audited_revision"))]
    named += [(values.get(key), None) for key in ("second", "judge_local")]
    if not values.get("writer_url"):
        named += [(name.strip(), None) for name in values.get("writers", "").split(",")]
    benchmarks = values.get("benchmarks", [])
    if "wildguardmix" in benchmarks:
        named.append((wildguard.GUARD, None))
    found = [Repository("model", name, revision or None, "config.json") for name, revision in named if _on_hub(name)]
    if "toxigen" in benchmarks:
        found.append(Repository("model", toxigen.CLASSIFIER, toxigen.CLASSIFIER_REVISION, "model.safetensors"))
    adapters = (values.get("adapter"), values.get("audited_adapter"))
    return found + [Repository("model", a, None, "adapter_model.safetensors") for a in adapters if _on_hub(a)]


def _on_hub(name: str | None) -> bool:
    return bool(name and hub.ID.fullmatch(name) and not Path(name).is_dir())


def _data_sets(values: Mapping[str, Any]) -> list[Repository]:
    sources: list[tuple[str, str | None, str]] = []
    if "alignment" in values and alignment.RECIPES[values["alignment"]].own_rows is None:
        sources += [(s.repository, s.revision, s.files[0]) for s in debiasing.SOURCES.values()]
    if values.get("source") == "benchmarks":
        sources += [(b.repository, b.revision, b.files[0]) for b in question_benchmarks.BENCHMARKS.values()]
    sources += [
        (hub_set.repository, hub_set.revision, hub_set.files[0])
        for name, hub_set in sentences.HUB.items()
        if name in values.get("sources", [])
    ]
    benchmarks = values.get("benchmarks", [])
    recipe = spectrum.RECIPES.get(values.get("recipe", ""))
    if "wildguardmix" in benchmarks or (recipe and recipe.on_chats):
        sources.append((wildguard.REPOSITORY, wildguard.REVISION, wildguard.TRAIN))
    if "decodingtrust" in benchmarks:
        file = f"{decodingtrust.FOLDER}/{decodingtrust.USER_FILE}"
        sources.append((decodingtrust.REPOSITORY, decodingtrust.REVISION, file))
    if "toxigen" in benchmarks:
        file = toxigen.FILE.format(name=toxigen.FILE_NAMES["physical_dis"])
        sources.append((toxigen.REPOSITORY, toxigen.REVISION, file))
    return [Repository("data set", *source) for source in sources]


def missing(repositories: Sequence[Repository]) -> pd.DataFrame:
    """Which of these can't be had now, by what the hub and GitHub say to us; in seconds, and nothing is downloaded.

    Returns
    -------
    DataFrame
        ``kind``, ``name``, ``problem`` and ``page``. Never a token.
    """
    with ThreadPoolExecutor(TOGETHER) as several:
        problems = list(several.map(_problem, repositories))
    rows = [
        (one.kind, one.name, problem, one.page)
        for one, problem in zip(repositories, problems, strict=True)
        if problem is not None
    ]
    return pd.DataFrame(rows, columns=["kind", "name", "problem", "page"])


def _problem(repository: Repository) -> str | None:
    try:
        if repository.kind == "model":
            hub.ask(repository.name, repository.revision, repository.file)
        else:
            remote.require(repository.name, repository.revision, repository.file)
    except (httpx.HTTPError, OSError) as error:
        return hub.trouble(error, repository.file)
    return None
