"""ΔB while a model is being fine-tuned: a callback for any ``transformers`` trainer (ΔB paper 5)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from biasgeom import audit, cache, relative
from biasgeom.audit import Sets
from biasgeom.models import LanguageModel


@dataclass
class DeltaBMonitor(TrainerCallback):
    """Audits the model in training every few optimiser steps, and before the first.

    Parameters
    ----------
    reference : LanguageModel
        What ΔB is counted from: usually the model that training started from, kept apart from the one in training.
    texts : Sets
        The sentences of the audit; a few hundred are enough for a curve.
    every : int
        Optimiser steps between two audits.
    stop_below : float, optional
        Training ends at the first audit at which the mean ΔB of ``watched`` lies below this.
    watched : list of str, optional
        The groups that count for ``stop_below``; default all.
    measure : callable, optional
        Output bias of a model, group and score, taken at the same steps.

    Attributes
    ----------
    history : list of dict
        One row an audit and group: step, group, delta_b, and score with a ``measure``.
    stopped_at : int or None
        The step at which it ended the training.

    Raises
    ------
    ValueError
        ``every`` below 1, or a watched group that the sets lack; when training begins, a model in another dtype than
        the reference's (:class:`biasgeom.audit.NotComparable`).

    Notes
    -----
    The model is put in evaluation mode for the audit and back into the mode it was in; the audit draws no random
    number, so a monitored training ends in the same weights as an unmonitored one.
    """

    reference: LanguageModel
    texts: Sets
    every: int = 5
    stop_below: float | None = None
    watched: Sequence[str] | None = None
    measure: Callable[[LanguageModel], pd.DataFrame] | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    stopped_at: int | None = None

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every must be a number of steps from 1, not {self.every}")
        if unknown := set(self.watched or ()) - set(self.texts.targets):
            raise ValueError(f"the sets have no group {', '.join(sorted(unknown))}")

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.history.clear()
        self.stopped_at = None
        audit.require_comparable(self.reference, self._wrapped(kwargs["model"], state))
        self._reference = audit.embed(self.reference, self.texts)
        if state.global_step == 0:
            self._audit(state, control, kwargs["model"])

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % self.every == 0:
            self._audit(state, control, kwargs["model"])

    def frame(self) -> pd.DataFrame:
        """The audits so far, one row each and group."""
        return pd.DataFrame(self.history)

    def _audit(self, state: TrainerState, control: TrainerControl, model: torch.nn.Module) -> None:
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            now = self._wrapped(model, state)
            # States of weights that won't come again are not worth keeping.
            with cache.fresh():
                shift = relative.delta_b(self._reference, audit.embed(now, self.texts))
                spoken = self.measure(now).set_index("group")["score"] if self.measure else {}
        finally:
            for module, training in modes:
                module.training = training
        for group, value in shift.items():
            row = {"step": state.global_step, "group": group, "delta_b": value}
            self.history.append(row | ({"score": spoken[group]} if self.measure else {}))
        counted = [shift[group] for group in self.watched or shift]
        if self.stop_below is not None and sum(counted) / len(counted) < self.stop_below:
            control.should_training_stop = True
            # Stopped before the first step, the trainer still does one.
            self.stopped_at = state.global_step if self.stopped_at is None else self.stopped_at

    def _wrapped(self, model: torch.nn.Module, state: TrainerState) -> LanguageModel:
        return LanguageModel(model, self.reference.tokenizer, f"{self.reference.name}@step{state.global_step}")
