"""Random numbers that belong to a sample alone, and the token that one of them chooses."""

import hashlib

import numpy as np
import torch
from transformers import LogitsProcessor


class InverseCdf(LogitsProcessor):
    """Choose each row's next token by inverse-CDF sampling: the processor leaves that token alone as possible.

    Parameters
    ----------
    uniforms : array or Tensor [B, max_new_tokens]
        Numbers in [0, 1).
    temperature : float
        Positive.
    prompt_length : int
        Columns of ``input_ids`` before the first new token.
    """

    def __init__(self, uniforms: np.ndarray | torch.Tensor, temperature: float, prompt_length: int) -> None:
        self.uniforms = torch.as_tensor(uniforms, dtype=torch.float64)
        self.temperature = temperature
        self.prompt_length = prompt_length

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        step = input_ids.shape[1] - self.prompt_length
        probabilities = torch.softmax(scores.float() / self.temperature, dim=-1)
        cumulative = probabilities.cumsum(-1, dtype=torch.float64)
        threshold = self.uniforms[:, step, None].to(scores.device) * cumulative[:, -1:]
        token = torch.searchsorted(cumulative, threshold, right=True).clamp(max=scores.shape[-1] - 1)
        return torch.full_like(scores, -torch.inf).scatter_(1, token, 0.0)


def uniforms(seed: int, ids: list[int], k: int, count: int) -> np.ndarray:
    """Numbers in [0, 1) [count] that depend on the seed, the prompt's tokens and the sample's number alone."""
    return _generator(seed, ids, k).random(count)


def own_seed(seed: int, ids: list[int], k: int) -> int:
    """A seed, below 2⁶³, that depends on the same; for a sampler that draws its own numbers."""
    return int(_generator(seed, ids, k).integers(1 << 63))


def _generator(seed: int, ids: list[int], k: int) -> np.random.Generator:
    prompt = int.from_bytes(hashlib.sha256(str(ids).encode()).digest()[:8])
    return np.random.default_rng([seed, prompt, k])
