"""The checkpoint spectrum: one model fine-tuned towards two ends, and five merges between them (ΔB paper 4.1, App. C).

The ends are trained once and kept in the cache. The seven checkpoints are built one after the other, each beside the
reference, so that an audit holds two models in memory and no more.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pandas as pd
import torch
from safetensors.torch import load_file

from biasgeom import finetune, merging, splits
from biasgeom.finetune import Settings
from biasgeom.models import LanguageModel

Regime = Literal["full", "lora"]

SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
"""Of the synth end, from safe to harmful."""

ENDS = ("unharmful", "synth")

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Recipe:
    """The splits of the two ends, how many rows each has, and how to train on them in either regime."""

    unharmful: str
    synth: str
    rows: int
    lora: Settings
    full: Settings

    @property
    def on_chats(self) -> bool:
        """Whether an end is trained on WildGuardMix's chats: they have to be had, and the model wants a template."""
        return bool({self.unharmful, self.synth} & set(splits.WILDGUARD))


def _recipe(ends: tuple[str, str], rows: int, shared: Settings, *, lora_rate: float, full_rate: float) -> Recipe:
    shared = replace(shared, warmup=0.03, scheduler="linear", max_length=1024, dropout=0.05, targets=PROJECTIONS)
    return Recipe(*ends, rows, replace(shared, learning_rate=lora_rate), replace(shared, learning_rate=full_rate))


RECIPES = {
    # The paper's settings. Its harmful end is half unpublished: see biasgeom.splits.
    "paper": _recipe(
        ("wildguard_unharmful", "wildguard_harmful_half"),
        8000,
        Settings(rank=16, alpha=32, epochs=3, batch=4, accumulation=8),
        lora_rate=1e-4,
        full_rate=2e-5,
    ),
    # Ours, for a small model on a CPU: one pass over short statements.
    "embedded": _recipe(ENDS, 240, Settings(rank=16, alpha=32, steps=15, batch=16), lora_rate=1e-3, full_rate=1e-4),
    # For tests of whole notebooks.
    "smoke": _recipe(ENDS, 24, Settings(rank=2, alpha=4, steps=2, batch=12), lora_rate=1e-2, full_rate=1e-3),
}


@dataclass(frozen=True)
class Checkpoint:
    """One model of the spectrum.

    Attributes
    ----------
    lm : LanguageModel
        Beside the reference, with its tokenizer, dtype and device. Called ``<reference>+<regime>-<share>-seed<seed>``.
    regime : {"full", "lora"}
    share : float
        Of the synth end, from 0 to 1.
    seed : int
        Of the training of both ends.
    """

    lm: LanguageModel
    regime: Regime
    share: float
    seed: int

    @property
    def name(self) -> str:
        """What figures and tables call it: see :func:`label`."""
        return label(self.share)


def label(share: float) -> str:
    """``"unharmful"`` and ``"synth"`` at the ends, between them the percentage of synth: ``"30"``."""
    return ENDS[int(share)] if share in (0, 1) else f"{100 * share:g}"


def checkpoints(
    lm: LanguageModel, *, regime: Regime, recipe: str, seed: int = 0, shares: Sequence[float] = SHARES
) -> Iterator[Checkpoint]:
    """The checkpoints of ``lm``, one after the other, trained now unless the cache holds the ends.

    Let go of one before the next is built (``del``, or a function's end) where memory is short: each holds the weights
    once more.

    Parameters
    ----------
    regime : {"full", "lora"}
        All weights, merged by :func:`biasgeom.merging.interpolate` in float32 and then cast to the dtype of ``lm``; or
        adapters, by :func:`biasgeom.merging.merge_adapters`.
    recipe : str
        A key of :data:`RECIPES`.
    seed : int
        Of the training: the first LoRA weights, the order of the rows, dropout. The rows are the same for every seed
        (ΔB paper, E.5).
    shares : list of float
        Of the synth end.

    Raises
    ------
    ValueError
        Unknown regime or recipe, no shares, or one outside 0 to 1: at the call, before anything is trained.
    """
    require(regime, recipe, shares)
    return _checkpoints(lm, regime, recipe, seed, shares)


def require(regime: str, recipe: str, shares: Sequence[float]) -> None:
    """Raise ``ValueError`` where :func:`checkpoints` would, without a model."""
    _check(regime, recipe)
    if not len(shares) or not all(isinstance(share, int | float) and 0 <= share <= 1 for share in shares):
        raise ValueError(f"shares are parts of the synth end, from 0 to 1, not {list(shares)}")


def ends(lm: LanguageModel, *, regime: Regime, recipe: str, seed: int = 0) -> tuple[Path, Path]:
    """The folders of the unharmful and the synth end, trained now unless the cache holds them.

    Adapters, or whole models in float32; see :func:`biasgeom.finetune.adapter` and :func:`biasgeom.finetune.full`.
    """
    chosen = _check(regime, recipe)
    settings = replace(chosen.lora if regime == "lora" else chosen.full, seed=seed)
    train = finetune.adapter if regime == "lora" else finetune.full
    unharmful, synth = (train(lm, rows(lm, end, recipe=recipe), settings) for end in ENDS)
    return unharmful, synth


def rows(lm: LanguageModel, end: str, *, recipe: str) -> pd.DataFrame:
    """What an end is fine-tuned on; see :func:`biasgeom.splits.rows`."""
    if end not in ENDS:
        raise ValueError(f"end must be one of {', '.join(ENDS)}, not {end!r}")
    chosen = _check("full", recipe)
    return splits.rows(getattr(chosen, end), lm=lm, seed=0, number=chosen.rows)


def losses(lm: LanguageModel, *, regime: Regime, recipe: str, seed: int = 0) -> pd.DataFrame:
    """The training curves of both ends: end, step, loss, learning_rate."""
    folders = ends(lm, regime=regime, recipe=recipe, seed=seed)
    curves = [pd.read_csv(folder / "training.csv").assign(end=end) for end, folder in zip(ENDS, folders, strict=True)]
    return pd.concat(curves, ignore_index=True)[["end", "step", "loss", "learning_rate"]]


def _check(regime: str, recipe: str) -> Recipe:
    if regime not in ("full", "lora"):
        raise ValueError(f"regime must be 'full' or 'lora', not {regime!r}")
    if recipe not in RECIPES:
        raise ValueError(f"no recipe {recipe!r}; there are {', '.join(RECIPES)}")
    return RECIPES[recipe]


def _checkpoints(
    lm: LanguageModel, regime: Regime, recipe: str, seed: int, shares: Sequence[float]
) -> Iterator[Checkpoint]:
    trained = ends(lm, regime=regime, recipe=recipe, seed=seed)
    for share in shares:
        # Nothing here keeps what is yielded: the caller alone decides how long it stays in memory.
        yield _checkpoint(lm, trained, regime, recipe, seed, share)


def _checkpoint(
    lm: LanguageModel, trained: tuple[Path, Path], regime: Regime, recipe: str, seed: int, share: float
) -> Checkpoint:
    name = f"{regime}-{label(share)}-seed{seed}"
    if regime == "lora":
        made = finetune.with_adapter(lm, merging.merge_adapters(*trained, share), name=name)
    else:
        made = _with_weights(lm, merging.interpolate(*map(_weights, trained), share), name=name)
    made.provenance["checkpoint"] = {
        "regime": regime,
        "recipe": recipe,
        "seed": seed,
        "share": share,
        **{end: folder.name for end, folder in zip(ENDS, trained, strict=True)},
    }
    return Checkpoint(made, regime, share, seed)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    """What the folder's files hold; mapped, so that a weight is read only when it is needed."""
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def _with_weights(lm: LanguageModel, weights: dict[str, torch.Tensor], *, name: str) -> LanguageModel:
    """A second model beside ``lm``: its configuration, tokenizer, dtype and device, but these weights, tied as there.

    Stored names may differ from those in memory, and a tied weight is stored once: transformers knows both.
    """
    core = lm.core
    model, report = type(core).from_pretrained(
        None,
        config=copy.deepcopy(core.config),
        state_dict=weights,
        dtype=lm.dtype,
        device_map=getattr(core, "hf_device_map", {"": lm.device}),
        attn_implementation=core.config._attn_implementation,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    if odd := {kind: sorted(map(str, names)) for kind, names in report.items() if names}:
        raise ValueError(f"these are not the weights of {lm.name}: {odd}")
    model.generation_config = copy.deepcopy(core.generation_config)
    model.eval().requires_grad_(False)
    return LanguageModel(model, lm.tokenizer, f"{lm.name}+{name}", dict(lm.provenance))
