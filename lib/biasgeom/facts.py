"""What is known of a model before it is loaded: its size from its configuration, its licence, where its weights are.

A configuration of a few kilobytes is read, from where the model lies or from the hub, and the model is built without
memory to count its parameters. Where the hub can't be asked, :mod:`biasgeom.catalogue` knows the papers' models.
"""

import json
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from huggingface_hub import hf_hub_download, try_to_load_from_cache
from transformers import AutoConfig, AutoModelForCausalLM

from biasgeom import adapters, catalogue, embedded, hub
from biasgeom.embedded import EMBEDDED, ModelNotAvailable

TEMPLATE = "chat_template"


@dataclass(frozen=True)
class Facts:
    """A model by name.

    Attributes
    ----------
    kind : {"embedded", "folder", "hub", "unknown"}
    parameters, blocks, width, vocabulary : int or None
        None where neither a configuration nor the catalogue tells.
    chat : bool or None
        Whether its tokenizer has a chat template.
    licence, page : str
        Empty if unknown.
    weights : str
        "here", "to download", or why they can't be had.
    """

    name: str
    kind: str
    parameters: int | None = None
    blocks: int | None = None
    width: int | None = None
    vocabulary: int | None = None
    chat: bool | None = None
    licence: str = ""
    page: str = ""
    weights: str = "here"

    @property
    def here(self) -> bool:
        """Whether nothing has to be downloaded."""
        return self.weights == "here"

    @property
    def missing(self) -> bool:
        """Whether the weights can't be had."""
        return self.weights not in ("here", "to download")


def of(name: str, revision: str | None = None) -> Facts:
    """The facts about a model; weights that can't be had are a fact, too, and no error.

    Parameters
    ----------
    name : str
        As :func:`biasgeom.models.load` takes it.
    revision : str, optional
    """
    if name in adapters.PLANTED:
        name = adapters.planted(name)[0]
    folder = Path(name).expanduser()
    if name in EMBEDDED:
        return _embedded(name)
    if folder.is_dir():
        try:
            return Facts(name, "folder", **_counted(str(folder), None), chat=_chats(folder))
        except ModelNotAvailable as error:
            return Facts(name, "folder", weights=str(error))
    if hub.ID.fullmatch(name):
        return _of_hub(name, revision)
    known = catalogue.find(name)
    return Facts(name, "unknown", weights="is asked over an endpoint" if known else "is no model's name")


def _embedded(name: str) -> Facts:
    known = catalogue.find(name)
    try:
        pieces = embedded.pieces(name)
        weights, chat = "here", any(_holds(piece, f"tokenizer.{TEMPLATE}") for piece in pieces)
    except ModelNotAvailable as error:
        weights, chat = str(error), None
    return Facts(name, "embedded", **_of_catalogue(known), chat=chat, weights=weights)


def _of_hub(name: str, revision: str | None) -> Facts:
    known = catalogue.find(name)
    told = _of_catalogue(known) if known else {}
    local = isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)
    try:
        place, _ = hub.ask(name, revision, "config.json")
        counted = {**told, **_counted(place, revision if place == name else None)}
        return Facts(name, "hub", **counted, chat=_chats_on_hub(name, revision), weights=_weights(name, revision))
    except (httpx.HTTPError, OSError) as error:
        return Facts(name, "hub", **told, weights="here" if local else hub.trouble(error, "config.json"))
    except ModelNotAvailable as error:
        return Facts(name, "hub", **told, weights=str(error))


def _of_catalogue(known: catalogue.Known) -> dict[str, Any]:
    return {key: getattr(known, key) for key in ("parameters", "blocks", "width", "vocabulary", "licence", "page")}


def _counted(place: str, revision: str | None) -> dict[str, int]:
    """Sizes by a configuration; parameters that stand in two places count once."""
    try:
        config = AutoConfig.from_pretrained(place, revision=revision, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # a stranger's configuration can raise anything
        raise ModelNotAvailable(f"{place}: its config.json describes no causal language model: {error}") from error
    text = config.get_text_config(decoder=True)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    blocks, width = text.num_hidden_layers, text.hidden_size
    return {"parameters": parameters, "blocks": blocks, "width": width, "vocabulary": text.vocab_size}


def _weights(name: str, revision: str | None) -> str:
    files = ("model.safetensors", "model.safetensors.index.json")
    cached = (try_to_load_from_cache(name, file, revision=revision) for file in files)
    return "here" if any(isinstance(path, str) for path in cached) else "to download"


def _chats(folder: Path) -> bool:
    return (folder / f"{TEMPLATE}.jinja").exists() or bool(_json(folder / "tokenizer_config.json").get(TEMPLATE))


def _chats_on_hub(name: str, revision: str | None) -> bool | None:
    for file in (f"{TEMPLATE}.jinja", "tokenizer_config.json"):
        try:
            hub.ask(name, revision, file)
            path = Path(hf_hub_download(name, file, revision=revision))
        except (httpx.HTTPError, OSError):
            continue
        if path.suffix == ".jinja" or _json(path).get(TEMPLATE):
            return True
    return False


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ModelNotAvailable(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelNotAvailable(f"{path} holds no settings by name")
    return found


def _holds(path: Path, key: str) -> bool:
    """Whether a GGUF file's head names a key; parsing it would take seconds."""
    with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(key.encode()) >= 0
