"""Supervised fine-tuning with LoRA: rows of prompt and completion become an adapter, kept in the cache.

Trained by TRL's ``SFTTrainer`` on a copy, so the caller's model stays as it is. A stopped training goes on from its
last checkpoint and ends in the same weights.
"""

import copy
import gc
import json
import math
import shutil
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl import SFTConfig, SFTTrainer

from biasgeom import cache, hooks, models
from biasgeom.models import LanguageModel

IGNORED = -100
"""The label of a token that has no part in the loss."""


@dataclass(frozen=True)
class Settings:
    """How to train. The defaults are the gender paper's (0.A.1); it names neither its target modules nor its seed.

    Attributes
    ----------
    rank, alpha, dropout
        Of the LoRA matrices.
    epochs : int
    steps : int, optional
        Optimiser steps in all, instead of ``epochs``.
    batch : int
        Rows a step.
    learning_rate : float
        The highest; it rises linearly from 0 over ``warmup`` steps and falls to 0 along a cosine.
    warmup : int
        Steps: the paper gives 10 without a unit.
    seed : int
        Of the first weights, the order of the rows and the dropout.
    targets : str or tuple of str
        Modules that get an adapter: ``"all-linear"`` is every linear layer of the decoder but the LM head.
    """

    rank: int = 128
    alpha: int = 256
    dropout: float = 0.05
    epochs: int = 3
    steps: int | None = None
    batch: int = 4
    learning_rate: float = 2e-5
    warmup: int = 10
    seed: int = 0
    targets: str | tuple[str, ...] = "all-linear"


def adapter(lm: LanguageModel, rows: pd.DataFrame, settings: Settings) -> Path:
    """The folder of a LoRA adapter trained on ``rows``, in PEFT's format; trained now unless the cache holds it.

    Parameters
    ----------
    rows : DataFrame [n], columns prompt, completion
        Raw text, joined without anything between. The loss is on the completion only, whose last token is the last of
        the text: no end token is added (TRL would), since a completion that was cut mid-sentence would teach the model
        to stop. A completion that does end says so itself, with the tokenizer's end token in its text.
    settings : Settings

    Returns
    -------
    Path
        Beside the adapter a ``training.csv``: step, loss (of the step's rows, before it), learning_rate.

    Raises
    ------
    ValueError
        A missing column; an empty prompt or completion, by row; a model in training mode, in float16, or under hooks.
    ArithmeticError
        A loss that is not finite, by step.

    Notes
    -----
    AdamW (``adamw_torch``) without weight decay, gradients clipped at norm 1. The training holds a second copy of the
    model in memory and seeds the global random generators. What a stopped one needs to go on lies in a folder
    ``<digest>.partial`` beside the adapter until it is done. Gender paper, 4.1.2 and 0.A.1.2.
    """
    _require_plain(lm)
    examples = _examples(lm, rows)
    key = cache.digest(
        code=cache.source_digest(models, sys.modules[__name__]),
        versions=[version(package) for package in ("torch", "transformers", "accelerate", "peft", "trl")],
        model=lm.fingerprint(),
        device=lm.device.type,
        examples=examples,
        settings=asdict(settings),
    )
    target = cache.root() / "adapters" / key
    work = target.with_name(f"{key}.partial")
    with cache.lock(f"adapter-{key}"):
        if not target.exists():
            try:
                model, log = _train(lm, examples, settings, work)
            except ArithmeticError:
                shutil.rmtree(work, ignore_errors=True)  # going on would end the same way
                raise
            with cache.atomic(target) as scratch:
                model.save_pretrained(scratch, save_embedding_layers=False)
                (scratch / "README.md").unlink()  # PEFT's blank form of a model card
                log.to_csv(scratch / "training.csv", index=False)
            del model
            gc.collect()  # the trainer and its copy of the weights hold each other
        shutil.rmtree(work, ignore_errors=True)
    return target


def aligned(lm: LanguageModel, rows: pd.DataFrame, settings: Settings, *, name: str) -> LanguageModel:
    """``lm`` with the adapter of :func:`adapter` on top, as a second model beside it.

    The two share no module, so that hooks on one are not on the other. Memory therefore holds the weights twice.

    Parameters
    ----------
    name : str
        The result is called ``<lm.name>+<name>``; its provenance names the adapter by digest.
    """
    folder = adapter(lm, rows, settings)
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # PEFT asks an attribute's old name
        model = PeftModel.from_pretrained(_copy(lm), folder, is_trainable=False)
    model.eval().requires_grad_(False)
    model.config.use_cache = True
    return LanguageModel(model, lm.tokenizer, f"{lm.name}+{name}", {**lm.provenance, "adapter": folder.name})


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


def _examples(lm: LanguageModel, rows: pd.DataFrame) -> dict[str, list[list[int]]]:
    """Token ids and labels of each row; the label is :data:`IGNORED` up to where the completion starts."""
    if missing := {"prompt", "completion"} - set(rows.columns):
        raise ValueError(f"rows need the columns prompt and completion; missing: {', '.join(sorted(missing))}")
    if rows.empty:
        raise ValueError("no rows to train on")
    examples: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
    for place, (prompt, completion) in enumerate(zip(rows["prompt"], rows["completion"], strict=True)):
        for column, text in (("prompt", prompt), ("completion", completion)):
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"row {place}: the {column} is empty or no text: {text!r}")
        before, ids = _encode(lm, prompt), _encode(lm, prompt + completion)
        # A token may reach over the boundary; it then belongs to the completion.
        kept = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, ids, strict=False)))
        if not 0 < kept < len(ids):
            raise ValueError(f"row {place}: prompt and completion are one token; end the prompt at a word: {prompt!r}")
        examples["input_ids"].append(ids)
        examples["labels"].append([IGNORED] * kept + ids[kept:])
    return examples


def _encode(lm: LanguageModel, text: str) -> list[int]:
    # A rendered chat turn holds its own BOS; the tokenizer would add a second one.
    rendered = bool(lm.tokenizer.bos_token) and text.startswith(lm.tokenizer.bos_token)
    return lm.tokenizer(text, add_special_tokens=not rendered)["input_ids"]


class _Trainer(SFTTrainer):
    """Keeps to this machine: no report of use to the hub, no model card with every checkpoint."""

    def _send_telemetry(self) -> None:
        pass

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        pass


class _Watch(TrainerCallback):
    """Stop at a loss that is not finite; leave no checkpoint at the last step."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float],
        **kwargs: Any,
    ) -> None:
        if not math.isfinite(logs.get("loss", 0.0)):
            raise ArithmeticError(
                f"training {self.name}: the loss of step {state.global_step} is {logs['loss']}; the weights, the rows "
                "or the learning rate are to blame"
            )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # Going on from the last step, the trainer would do one step too many.
        if state.global_step >= state.max_steps:
            control.should_save = False


def _train(
    lm: LanguageModel, examples: dict[str, list[list[int]]], settings: Settings, work: Path
) -> tuple[PeftModel, pd.DataFrame]:
    """The trained copy, and its loss by step; checkpoints go to ``work`` ten times a training."""
    core = _copy(lm)
    core.name_or_path = ""  # with a name, PEFT asks the hub about it whenever it saves
    on_cpu = lm.device.type == "cpu"
    config = SFTConfig(
        output_dir=str(work),
        num_train_epochs=settings.epochs,
        max_steps=settings.steps or -1,
        per_device_train_batch_size=settings.batch,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=settings.warmup,
        optim="adamw_torch",
        max_length=None,
        seed=settings.seed,
        data_seed=settings.seed,
        use_cpu=on_cpu,
        bf16=lm.dtype is torch.bfloat16,
        activation_checkpointing=not on_cpu,
        dataloader_pin_memory=not on_cpu,
        save_strategy="steps",
        save_steps=0.1,
        save_total_limit=2,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
    )
    targets = settings.targets if isinstance(settings.targets, str) else list(settings.targets)
    lora = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # PEFT asks an attribute's old name
        trainer = _Trainer(
            model=core,
            args=config,
            # With ids and labels in place, TRL adds no end token and cuts nothing.
            train_dataset=Dataset.from_dict(examples),
            # A copy: where there is no padding token the trainer sets one.
            processing_class=copy.deepcopy(lm.tokenizer),
            peft_config=lora,
            callbacks=[_Watch(lm.name)],
        )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=_last_checkpoint(sorted(work.glob("checkpoint-*"))))
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    return trainer.model, pd.DataFrame(steps)[["step", "loss", "learning_rate"]]


def _last_checkpoint(folders: Sequence[Path]) -> str | None:
    """The newest whole checkpoint: the trainer writes its state last, so a readable one says that all is there."""
    for folder in sorted(folders, key=lambda folder: int(folder.name.split("-")[1]), reverse=True):
        try:
            json.loads((folder / "trainer_state.json").read_text())
        except (OSError, ValueError):
            continue
        return str(folder)
    return None
