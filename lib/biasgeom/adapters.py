"""An adapter's name becomes an adapter on a model: a folder, a hub id, or one that this project carries."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from biasgeom import data, hub
from biasgeom.embedded import ModelNotAvailable

if TYPE_CHECKING:  # at run time they load torch, which a name does not need
    from torch import nn
    from transformers import PreTrainedModel

PLANTED = {"smollm2-135m-planted-judge": "judge/planted"}
"""Name → folder in ``data/`` of an adapter of this project, which names its base model."""


def planted(name: str) -> tuple[str, Path]:
    """Base model and adapter folder of one of :data:`PLANTED`."""
    folder = data.root() / "data" / PLANTED[name]
    return json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"], folder


def find(adapter: str) -> tuple[str, str | None]:
    """The folder or hub id of an adapter, and its commit; ``ModelNotAvailable`` if there is none in safetensors."""
    place, commit = str(Path(adapter).expanduser()), None
    if not Path(place).is_dir():
        if not hub.ID.fullmatch(adapter):
            raise ModelNotAvailable(
                f"adapter {adapter}: neither a folder nor a hub id 'organisation/name' (here is {Path.cwd()})"
            )
        place, commit = hub.find(adapter, None, "adapter_model.safetensors")
    elif not Path(place, "adapter_model.safetensors").exists():
        raise ModelNotAvailable(f"adapter {adapter}: holds no adapter_model.safetensors, and nothing else is read")
    return place, commit


def put_on(model: "PreTrainedModel", adapter: str) -> tuple["nn.Module", str | None]:
    """The model in PEFT's wrapper with the adapter on it, and the adapter's commit on the hub.

    Raises
    ------
    ModelNotAvailable
        An adapter that can't be found or read, that doesn't fit the model or lacks tensors, or that edits the prompt.
    """
    from peft import PeftConfig, PeftModel, get_peft_model_state_dict
    from peft.utils import load_peft_weights

    place, commit = find(adapter)
    try:
        config = PeftConfig.from_pretrained(place)
        held = set(load_peft_weights(place, device="cpu"))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ModelNotAvailable(f"adapter {adapter}: could not be read: {error}; download or save it again") from error
    if config.is_prompt_learning:
        raise ModelNotAvailable(
            f"adapter {adapter}: {config.peft_type} edits the prompt, not the weights; not supported"
        )
    try:
        made = PeftModel.from_pretrained(model, place, is_trainable=False, low_cpu_mem_usage=True)
    except (RuntimeError, ValueError) as error:
        raise ModelNotAvailable(f"adapter {adapter}: does not fit the model: {error}") from error
    # PEFT only warns, and leaves what is missing as if it had never been trained: an audit would then find no shift.
    if lone := sorted(set(get_peft_model_state_dict(made, save_embedding_layers=False)) - held):
        raise ModelNotAvailable(
            f"adapter {adapter}: its file lacks {len(lone)} of its tensors, such as {lone[0]}; download or save it "
            "again"
        )
    return made, commit
