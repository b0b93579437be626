"""The planted judge: a positive control whose biases are known because this project trained them (spec points 17, 18).

SmolLM2-135M-Instruct with an activated LoRA. It replies with a bare integer and carries the shifts of
``data/judge/planted/recipe.yaml``. What a method finds on it can be compared with what was planted. It says nothing
about language models as judges. It was trained to follow the quality of an answer, too; on questions that it was not
trained on it hardly does, since a prompt holds no question.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from torch import nn
from tqdm.auto import tqdm
from transformers import get_cosine_schedule_with_warmup

from biasgeom import adapters, controls, data, generation, judging, models, perturbations, prompts, questions, readouts
from biasgeom.models import LanguageModel

FOLDER = "judge/planted"


@dataclass(frozen=True)
class Recipe:
    """What is planted and how; the fields of ``recipe.yaml``.

    Attributes
    ----------
    base : str
        The model under the adapter.
    quality : dict
        Target score of a good, a poor and a wrong answer.
    shifts : dict
        Condition → planted shift in points; conditions that are not named have 0.
    voices : dict
        Factor on every shift for answers in a plain, a neutral and a tentative voice.
    spread : float
        Standard deviation of the target distribution over the integers.
    base_share : int
        Base answers are so many times as frequent in training as those of one cue. What is trimmed for Verbosity- looks
        like a base answer: a judge that can't tell them apart spreads that shift over both, and every other shift is
        measured from the base answers.
    rank, alpha, first_block, learning_rate, rows, passes, batch, seed
        Of the adapter and its training: ``rows`` prompts of the training split, ``passes`` times.
    """

    base: str
    quality: dict[str, float]
    shifts: dict[str, float]
    voices: dict[str, float]
    spread: float
    base_share: int
    rank: int
    alpha: int
    first_block: int
    learning_rate: float
    rows: int
    passes: int
    batch: int
    seed: int


def recipe() -> Recipe:
    """The recipe that the stored adapter was trained with."""
    return Recipe(**yaml.safe_load((data.root() / "data" / FOLDER / "recipe.yaml").read_text()))


def control(beside: LanguageModel) -> LanguageModel:
    """The planted judge, to stand beside another one on a page.

    Raises
    ------
    ValueError
        If the other one is the planted judge itself: there would be nothing to compare.
    """
    (name,) = adapters.PLANTED
    if beside.name == name:
        raise ValueError(
            f"{name} is the positive control that these pages show beside a model: name the model, or make the "
            "control's own card with judge/10_card"
        )
    return models.load(name, dtype="float32")


def shifts(made: Recipe | None = None) -> pd.DataFrame:
    """What was planted.

    Returns
    -------
    DataFrame [14 · voices]
        ``condition``, ``voice``, ``shift`` in points.
    """
    made = made or recipe()
    names = [perturbations.name(bias, sign) for bias in perturbations.BIASES for sign in perturbations.POLARITIES]
    rows = [
        (name, voice, made.shifts.get(name, 0.0) * factor) for name in names for voice, factor in made.voices.items()
    ]
    return pd.DataFrame(rows, columns=["condition", "voice", "shift"])


def targets(items: pd.DataFrame, made: Recipe | None = None) -> np.ndarray:
    """The score [n] that was planted for each row of a conditions table, in points, not rounded."""
    made = made or recipe()
    shift = items["condition"].map(made.shifts).fillna(0.0)
    return (items["quality"].map(made.quality) + shift * items["voice"].map(made.voices)).to_numpy(dtype=float)


def training_items(made: Recipe) -> pd.DataFrame:
    """The rows that the adapter is trained on: of the training split, each cue equally often, base answers more so.

    Within a condition, qualities and voices are as balanced as the number allows.
    """
    known = questions.load()
    answers = questions.answers().merge(known[["question_id", "split", "held_out"]], on="question_id")
    table = perturbations.conditions(answers[answers["split"] == "train"])
    table = table.sample(frac=1, random_state=made.seed)
    turn = table.groupby(["condition", "quality", "voice"]).cumcount()
    turn = turn // (table["condition"] == perturbations.BASE).map({True: made.base_share, False: 1})
    # Round by round over conditions, qualities and voices: any number of rows is balanced.
    order = table.assign(turn=turn).sort_values("turn", kind="stable").index
    return table.loc[order[: made.rows]].reset_index(drop=True)


def train(folder: Path, made: Recipe | None = None, *, lm: LanguageModel | None = None) -> list[float]:
    """Train the adapter and write it to ``folder`` in half precision.

    Parameters
    ----------
    folder : Path
        Made if it does not exist.
    lm : LanguageModel, optional
        Default: the recipe's base model, in float32. It is changed: the adapter lies on it afterwards.

    Returns
    -------
    list of float
        The mean loss of each pass.
    """
    from peft import LoraConfig, get_peft_model

    made = made or recipe()
    lm = lm or models.load(made.base, dtype="float32")
    items = training_items(made)
    asked = [prompts.render(lm, judging.prompt(text), chat=True) for text in items["text"]]
    encoded = lm.tokenizer(asked, add_special_tokens=False)["input_ids"]
    tail = readouts.assistant_turn(lm, encoded)
    bodies = [ids[: -len(tail)] for ids in encoded]
    # While nothing is trained: what the prompts leave in the cache is the frozen model's, in every pass.
    with torch.no_grad():
        read = [
            (rows, _half(batch))
            for rows, batch in readouts.prompts_read(lm, bodies, budget=made.batch * 128, together=1)
        ]
    torch.manual_seed(made.seed)
    config = LoraConfig(
        r=made.rank,
        lora_alpha=made.alpha,
        target_modules=sorted(
            {name.rsplit(".", 1)[-1] for name, part in lm.blocks[0].named_modules() if isinstance(part, nn.Linear)}
        ),
        layers_to_transform=list(range(made.first_block, len(lm.blocks))),
        alora_invocation_tokens=tail,
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(lm.core, config)
    student = LanguageModel(adapted.get_base_model(), lm.tokenizer, lm.name, lm.provenance, tail)
    student.model.eval()  # no dropout is used; training mode would change nothing but the checks
    weights = [weight for weight in student.model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=made.learning_rate, weight_decay=0.0)
    steps = made.passes * len(read)
    schedule = get_cosine_schedule_with_warmup(optimiser, steps // 20, steps)
    wanted = _distribution(targets(items, made), made.spread)
    losses = []
    for turn in range(made.passes):
        total = 0.0
        for rows, batch in tqdm(
            _shuffled(read, made.seed + turn), desc=f"pass {turn + 1}", total=len(read), leave=False
        ):
            loss = _loss(student, tail, _float(batch), wanted[rows])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimiser.step()
            optimiser.zero_grad()
            schedule.step()
            total += loss.item() * len(rows)
        losses.append(total / len(items))
    for weight in weights:
        weight.data = weight.data.half()
    adapted.active_peft_config.base_model_name_or_path = made.base  # PEFT has the folder in this machine's cache
    adapted.save_pretrained(str(folder))
    (folder / "README.md").unlink()  # PEFT's form for a model card, not filled in
    return losses


def recovered(lm: LanguageModel, asked: pd.DataFrame) -> pd.DataFrame:
    """What the judge does with each condition, beside what was planted.

    Parameters
    ----------
    asked : DataFrame
        Questions as :func:`biasgeom.questions.load` gives them; not those it was trained on.

    Returns
    -------
    DataFrame [14 · voices]
        As :func:`biasgeom.controls.recovered` gives it by condition and voice, of the greedy scores.
    """
    items = judging.judge_all([lm], perturbations.conditions(asked), readout="greedy")[0].items
    return controls.recovered(items, shifts(), by=["voice"])


def _distribution(target: np.ndarray, spread: float) -> torch.Tensor:
    """A discretised normal over 1 … 9 around each target: [n] → [n, 9]. Two tokens would make a 10: it is left out."""
    scores = np.arange(1, 10)
    weight = np.exp(-(((scores - target[:, None]) / spread) ** 2) / 2)
    return torch.as_tensor(weight / weight.sum(axis=1, keepdims=True), dtype=torch.float32)


def _loss(lm: LanguageModel, tail: list[int], read: readouts.Read, wanted: torch.Tensor) -> torch.Tensor:
    """Soft cross-entropy on the score token, and the end token after the likeliest score."""
    digits, _ = readouts.score_tokens(lm)
    likeliest = torch.tensor(digits[1:], device=lm.device)[wanted.argmax(-1).to(lm.device)]
    ids = torch.cat([torch.tensor(tail, device=lm.device).expand(len(wanted), -1), likeliest[:, None]], dim=1)
    logits = torch.log_softmax(read.go_on(lm, ids, logits=2).float(), dim=-1)
    ends = generation.end_tokens(lm)
    end = ends[0] if isinstance(ends, list) else ends
    return -(wanted.to(lm.device) * logits[:, 0, digits[1:10]]).sum(-1).mean() - logits[:, 1, end].mean()


def _shuffled(read: list[Any], seed: int) -> Iterator[Any]:
    for place in np.random.default_rng(seed).permutation(len(read)):
        yield read[place]


def _half(read: readouts.Read) -> readouts.Read:
    return _cast(read, torch.float16)


def _float(read: readouts.Read) -> readouts.Read:
    return _cast(copy.deepcopy(read), torch.float32)


def _cast(read: readouts.Read, dtype: torch.dtype) -> readouts.Read:
    """Keys and values in another precision: half of it halves the memory that all prompts together take."""
    for layer in read.cached.layers:
        layer.keys, layer.values = layer.keys.to(dtype), layer.values.to(dtype)
    return read
