"""TRL's ``SFTTrainer`` on ready-made token ids: kept to this machine, stopped by a bad loss, resumed where it was.

Apart from :mod:`biasgeom.finetune`, which every notebook imports, because TRL alone takes seconds to import.
"""

import copy
import json
import math
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from datasets import Dataset
from peft import LoraConfig, PeftModel
from safetensors import SafetensorError, safe_open
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl import SFTConfig, SFTTrainer

from biasgeom import cache

STATES = ("optimizer.pt", "scheduler.pt", "rng_state.pth")
"""Of a checkpoint, beside the weights. The trainer starts afresh, silently, what it finds no file of."""


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


def train(
    core: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Mapping[str, list[list[int]]],
    work: Path,
    *,
    name: str,
    options: Mapping[str, Any],
    lora: LoraConfig | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> tuple[PreTrainedModel | PeftModel, pd.DataFrame]:
    """Train ``core`` in place, from the newest whole checkpoint in ``work`` if there is one.

    Parameters
    ----------
    core : PreTrainedModel
        A copy that is the training's own.
    examples : dict with input_ids and labels
        TRL adds no end token to them and cuts nothing.
    work : Path
        Where checkpoints go.
    name : str
        Of the model, in messages.
    options : dict
        What ``trl.SFTConfig`` takes, beyond what is settled here.
    lora : LoraConfig, optional
        Train an adapter on top; without one all weights.
    callbacks : list of TrainerCallback

    Returns
    -------
    model, DataFrame
        The trained model, under an adapter or not, and by step: loss (before the step) and learning rate.

    Raises
    ------
    ArithmeticError
        A loss that is not finite, by step.
    biasgeom.cache.CacheUnwritable
        A full disk while a checkpoint is written.

    Warns
    -----
    UserWarning
        A checkpoint that lacks a file or whose file is cut off: the one before it is taken, or none.
    """
    core.name_or_path = ""  # with a name, PEFT asks the hub about it whenever it saves
    on_cpu = core.device.type == "cpu"
    config = SFTConfig(
        output_dir=str(work),
        optim="adamw_torch_fused",  # the same steps in one pass over the weights instead of ten
        max_length=None,
        use_cpu=on_cpu,
        activation_checkpointing=not on_cpu,
        dataloader_pin_memory=not on_cpu,
        save_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        **options,
    )
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # PEFT asks an attribute's old name
        trainer = _Trainer(
            model=core,
            args=config,
            train_dataset=Dataset.from_dict(dict(examples)),
            # A copy: where there is no padding token the trainer sets one.
            processing_class=copy.deepcopy(tokenizer),
            peft_config=lora,
            callbacks=[_Watch(name), *callbacks],
        )
    trainer.remove_callback(PrinterCallback)
    try:
        trainer.train(resume_from_checkpoint=_last_checkpoint(list(work.glob("checkpoint-*")), name))
    except (SafetensorError, RuntimeError) as error:
        # What these two say of a full disk is no OSError.
        if "No space left" in str(error) or "PytorchStreamWriter" in str(error):
            raise cache.unwritable(f"{error}; the last whole checkpoint is kept") from error
        raise
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    return trainer.model, pd.DataFrame(steps)[["step", "loss", "learning_rate"]]


def _last_checkpoint(folders: Sequence[Path], name: str) -> str | None:
    """The newest whole checkpoint: the trainer writes its state last, so a readable one says that all was there."""
    for folder in sorted(folders, key=lambda folder: int(folder.name.split("-")[1]), reverse=True):
        try:
            json.loads((folder / "trainer_state.json").read_text())
        except (OSError, ValueError):
            continue
        if damaged := _damaged(folder):
            warnings.warn(
                f"training {name}: {damaged} of {folder.name} is missing or cut off; going on from an earlier one, or "
                "from the beginning",
                stacklevel=4,
            )
            continue
        return str(folder)
    return None


def _damaged(folder: Path) -> str | None:
    """A file without which the trainer would stop, or go on from another state without a word."""
    for file in [*STATES, *sorted(path.name for path in folder.glob("*.safetensors"))]:
        try:
            if file.endswith(".safetensors"):
                with safe_open(folder / file, "pt"):  # compares the file's size with what its header lists
                    pass
            else:
                zipfile.ZipFile(folder / file).close()  # the list of contents stands at the end
        except (OSError, zipfile.BadZipFile, SafetensorError):
            return file
    return None
