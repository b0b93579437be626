"""What was measured on a model before is read from the cache: under a key that names all that it depends on."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
import transformers

from biasgeom import activated, cache, hooks, layout, models, prompts
from biasgeom.models import LanguageModel


def array(lm: LanguageModel, module: ModuleType, compute: Callable[[], np.ndarray], **asked: Any) -> np.ndarray:
    """``compute()``, or what it returned before for the same weights, our own edits, code and question.

    Parameters
    ----------
    module : module
        Whose code computes; the key holds it, and the code below it in the stream.
    asked : values that JSON can hold
        The question: token ids, settings.

    Raises
    ------
    ValueError
        If the model is in training mode, also where the cache would answer.

    Notes
    -----
    Under hooks that are not ours the model is not what its key says: the cache is then neither read nor written.
    """
    hooks.require_evaluation(lm)
    return compute() if hooks.foreign(lm) else cache.array(key(lm, module, **asked), compute)


def key(lm: LanguageModel, module: ModuleType, **asked: Any) -> str:
    """Under what :func:`array` keeps a value: the model's weights, our own edits, the code and the question."""
    return cache.digest(
        code=cache.source_digest(models, activated, prompts, layout, hooks, module),
        versions=[torch.__version__, transformers.__version__],
        model=lm.fingerprint(),
        device=lm.device.type,
        interventions=lm.interventions,
        **asked,
    )
