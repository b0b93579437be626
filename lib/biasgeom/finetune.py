"""Supervised fine-tuning, of a LoRA adapter or of all weights: rows of text become a folder kept in the cache.

Trained by TRL's ``SFTTrainer`` on a copy, so the caller's model stays as it is. A stopped training goes on from its
last checkpoint and ends in the same weights.
"""

import copy
import gc
import json
import math
import shutil
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import PreTrainedModel, TrainerCallback

from biasgeom import adapters, cache, hooks, models, prompts
from biasgeom.models import LanguageModel

IGNORED = -100
"""The label of a token that has no part in the loss."""

FULL_SAVE_EVERY = 100
"""A full training keeps its state, three times the weights, at most twice and never before this many steps."""


@dataclass(frozen=True)
class Settings:
    """How to train. The defaults are the gender paper's (0.A.1); it names neither its target modules nor its seed.

    Attributes
    ----------
    rank, alpha, dropout, targets
        Of the LoRA matrices, without a part in full fine-tuning. ``targets``: the modules that get an adapter by name,
        or ``"all-linear"``, every linear layer of the decoder but the LM head.
    epochs : int
    steps : int, optional
        Optimiser steps in all, instead of ``epochs``.
    batch, accumulation : int
        Rows at a time, and how many times before a step.
    learning_rate : float
        The highest; it rises linearly from 0 over ``warmup`` and falls to 0 along ``scheduler``.
    warmup : int or float
        Steps, or below 1 a share of all steps. The gender paper gives 10 without a unit.
    scheduler : {"cosine", "linear"}
    max_length : int, optional
        Tokens of a row; the rest is cut off.
    seed : int
        Of the first LoRA weights, the order of the rows and the dropout.
    """

    rank: int = 128
    alpha: int = 256
    dropout: float = 0.05
    targets: str | tuple[str, ...] = "all-linear"
    epochs: int = 3
    steps: int | None = None
    batch: int = 4
    accumulation: int = 1
    learning_rate: float = 2e-5
    warmup: float = 10
    scheduler: str = "cosine"
    max_length: int | None = None
    seed: int = 0


def adapter(lm: LanguageModel, rows: pd.DataFrame, settings: Settings) -> Path:
    """The folder of a LoRA adapter trained on ``rows``, in PEFT's format; trained now unless the cache holds it.

    Parameters
    ----------
    rows : DataFrame [n], columns prompt, completion, or text
        Raw text, prompt and completion joined without anything between. The loss is on the completion only, or on the
        whole ``text`` but its first token, which nothing predicts. Rows are padded, never packed. No end token is added
        (TRL would), since a completion that was cut mid-sentence would teach the model to stop. A text that does end
        says so itself, with the tokenizer's end token.
    settings : Settings

    Returns
    -------
    Path
        Beside the adapter a ``training.csv``: step, loss (of the step's rows, before it), learning_rate; and a
        ``recipe.json``.

    Raises
    ------
    ValueError
        A missing column; an empty text, by row; no row with a loss; a model in training mode, in float16, or under
        hooks.
    ArithmeticError
        A loss that is not finite, by step.
    biasgeom.cache.CacheUnwritable
        A full or read-only cache; what checkpoints were written is kept.

    Warns
    -----
    UserWarning
        The number of rows that are left out because ``max_length`` cuts off all that has a loss. A damaged checkpoint
        of a stopped training: it goes on from an earlier one, or begins again.

    Notes
    -----
    Fused AdamW without weight decay, gradients clipped at norm 1. The training holds a second copy of the
    model in memory and seeds the global random generators. What a stopped one needs to go on lies in a folder
    ``<digest>.partial`` beside the adapter until it is done. Gender paper, 4.1.2 and 0.A.1.2; ΔB paper, appendix C.
    """
    return _trained(lm, rows, settings, full=False)


def full(lm: LanguageModel, rows: pd.DataFrame, settings: Settings) -> Path:
    """The folder of a model trained on ``rows`` with all its weights; trained now unless the cache holds it.

    As :func:`adapter`, but the folder holds a whole model in Hugging Face format with its tokenizer, in float32 all
    through: in bfloat16 nine of ten updates would be rounded away. A model in that is widened first, and computes in it
    (autocast) on an accelerator.
    """
    return _trained(lm, rows, settings, full=True)


def aligned(lm: LanguageModel, rows: pd.DataFrame, settings: Settings, *, name: str) -> LanguageModel:
    """``lm`` with the adapter of :func:`adapter` on top; see :func:`with_adapter`."""
    return with_adapter(lm, adapter(lm, rows, settings), name=name)


def with_adapter(lm: LanguageModel, folder: Path, *, name: str) -> LanguageModel:
    """A second model beside ``lm`` with a stored adapter on top, merged in float32, which makes a pass cheaper.

    The two share no module, so that hooks on one are not on the other. Memory holds the weights twice.

    Parameters
    ----------
    name : str
        The result is called ``<lm.name>+<name>``; its provenance names the adapter by digest.
    """
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # PEFT asks an attribute's old name
        model, _ = adapters.put_on(_copy(lm), str(folder))
        # In a narrower dtype a part of it would be rounded away.
        model = model.merge_and_unload() if lm.dtype is torch.float32 else model
    model.eval().requires_grad_(False)
    model.config.use_cache = True
    return LanguageModel(model, lm.tokenizer, f"{lm.name}+{name}", {**lm.provenance, "adapter": folder.name})


def watched(
    lm: LanguageModel, rows: pd.DataFrame, settings: Settings, *, callbacks: Sequence[TrainerCallback]
) -> pd.DataFrame:
    """Train an adapter under callbacks, as :func:`adapter` does, and keep nothing but the log.

    What a callback (such as :class:`biasgeom.monitor.DeltaBMonitor`) sees is no function of the result, so there is
    nothing to look up: each call trains.

    Returns
    -------
    DataFrame
        step, loss, learning_rate.
    """
    _require_plain(lm)
    examples = _examples(lm, rows, settings.max_length)
    with tempfile.TemporaryDirectory() as folder:
        return _train(lm, examples, settings, Path(folder), full=False, callbacks=callbacks)[1]


def _trained(lm: LanguageModel, rows: pd.DataFrame, settings: Settings, *, full: bool) -> Path:
    _require_plain(lm)
    examples = _examples(lm, rows, settings.max_length)
    chosen = asdict(settings)
    if full:
        chosen = {key: value for key, value in chosen.items() if key not in ("rank", "alpha", "dropout", "targets")}
    kind = "checkpoint" if full else "adapter"
    packages = ("torch", "transformers", "accelerate", "trl") + (() if full else ("peft",))
    recipe = {
        "kind": kind,
        "versions": {package: version(package) for package in packages},
        "model": lm.fingerprint(),
        "device": lm.device.type,
        "settings": chosen,
        "examples": cache.digest(**examples),
    }
    key = cache.digest(
        code=cache.source_digest(models, sys.modules[__name__]),
        # Read, not imported: an answer from the cache needs no trainer, which takes seconds to import.
        trainer=Path(__file__).with_name("training.py").read_text(),
        **recipe,
    )
    target = cache.root() / f"{kind}s" / key
    work = target.with_name(f"{key}.partial")
    with cache.lock(f"{kind}-{key}"):
        if not target.exists():
            try:
                with cache.writing():
                    model, log = _train(lm, examples, settings, work, full=full)
            except ArithmeticError:
                shutil.rmtree(work, ignore_errors=True)  # going on would end the same way
                raise
            with cache.atomic(target) as scratch:
                if full:
                    model.config = copy.deepcopy(lm.core.config)  # the trainer changes use_cache and the special tokens
                    model.generation_config = copy.deepcopy(lm.core.generation_config)
                    model.save_pretrained(scratch)
                    lm.tokenizer.save_pretrained(scratch)
                else:
                    model.save_pretrained(scratch, save_embedding_layers=False)
                    (scratch / "README.md").unlink()  # PEFT's blank form of a model card
                log.to_csv(scratch / "training.csv", index=False)
                (scratch / "recipe.json").write_text(json.dumps({**recipe, "name": lm.name}, indent=1))
            del model
            gc.collect()  # the trainer and its copy of the weights hold each other
        shutil.rmtree(work, ignore_errors=True)
    return target


def _require_plain(lm: LanguageModel) -> None:
    """Refuse a model whose copy would not be what its name says."""
    hooks.require_evaluation(lm)
    if lm.interventions or hooks.foreign(lm):
        raise ValueError(f"{lm.name} is under hooks, which a copy would keep: leave them before training")
    if lm.dtype is torch.float16:
        raise ValueError(f"{lm.name} is in float16, which training overflows: load it in bfloat16 or float32")


def _copy(lm: LanguageModel) -> PreTrainedModel:
    """The core apart from ``lm``; an adapter that it carries is merged into the weights."""
    model = copy.deepcopy(lm.model)
    return model if lm.model is lm.core else model.merge_and_unload()


def _examples(lm: LanguageModel, rows: pd.DataFrame, max_length: int | None = None) -> dict[str, list[list[int]]]:
    """Token ids and labels of each row; the label is :data:`IGNORED` up to where the completion starts."""
    raw = "text" in rows.columns
    if raw and {"prompt", "completion"} & set(rows.columns):
        raise ValueError("rows have a text beside a prompt or completion: drop what is not to be trained on")
    if not raw and (missing := {"prompt", "completion"} - set(rows.columns)):
        raise ValueError(f"rows need the columns prompt and completion, or text; missing: {', '.join(sorted(missing))}")
    if rows.empty:
        raise ValueError("no rows to train on")
    examples: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
    for place, parts in enumerate(rows[["text"] if raw else ["prompt", "completion"]].to_dict("records")):
        for column, text in parts.items():
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"row {place}: the {column} is empty or no text: {text!r}")
        ids = _encode(lm, "".join(parts.values()))
        # Nothing predicts a first token. Another may reach over the boundary; it then belongs to the completion.
        before = ids[:1] if raw else _encode(lm, parts["prompt"])
        kept = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, ids, strict=False)))
        if not 0 < kept < len(ids):
            shown = next(iter(parts.values()))
            what = "the text is" if raw else "prompt and completion are"
            raise ValueError(f"row {place}: {what} one token, without a loss; end a prompt at a word: {shown!r}")
        if max_length is None or kept < max_length:
            examples["input_ids"].append(ids[:max_length])
            examples["labels"].append(([IGNORED] * kept + ids[kept:])[:max_length])
    if not (left := len(examples["labels"])):
        raise ValueError(f"every row is cut off at {max_length} tokens before its loss begins: raise max_length")
    if left < len(rows):
        warnings.warn(f"{len(rows) - left} rows are left out: {max_length} tokens hold none of the loss", stacklevel=4)
    return examples


def _encode(lm: LanguageModel, text: str) -> list[int]:
    # A rendered chat turn holds its own BOS; the tokenizer would add a second one.
    bos = lm.tokenizer.bos_token
    ids = lm.tokenizer(text, add_special_tokens=not (bos and text.startswith(bos)))["input_ids"]
    return prompts.embedded(lm, ids)


def _train(
    lm: LanguageModel,
    examples: dict[str, list[list[int]]],
    settings: Settings,
    work: Path,
    *,
    full: bool,
    callbacks: Sequence[TrainerCallback] = (),
) -> tuple[Any, pd.DataFrame]:
    """The trained copy, and its loss by step; what a stopped training needs goes to ``work``."""
    from peft import LoraConfig

    from biasgeom import training

    rows = len(examples["labels"])
    steps = settings.steps or settings.epochs * math.ceil(rows / settings.batch / settings.accumulation)
    core, lora = _copy(lm), None
    if full:
        core.float().requires_grad_(True)
    else:
        lora = LoraConfig(
            r=settings.rank,
            lora_alpha=settings.alpha,
            lora_dropout=settings.dropout,
            target_modules=settings.targets if isinstance(settings.targets, str) else list(settings.targets),
            task_type="CAUSAL_LM",
        )
    options = {
        "num_train_epochs": settings.epochs,
        "max_steps": settings.steps or -1,
        "per_device_train_batch_size": settings.batch,
        "gradient_accumulation_steps": settings.accumulation,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": settings.scheduler,
        "warmup_steps": settings.warmup,
        "seed": settings.seed,
        "data_seed": settings.seed,
        "bf16": lm.dtype is torch.bfloat16 and not (full and lm.device.type == "cpu"),
        "save_steps": max(FULL_SAVE_EVERY, math.ceil(steps / 3)) if full else math.ceil(steps / 10),
        "save_total_limit": 1 if full else 2,
    }
    return training.train(
        core, lm.tokenizer, examples, work, name=lm.name, options=options, lora=lora, callbacks=callbacks
    )
