r"""What a judge scores while one block is steered: :math:`h' = h + \alpha v` (judge paper 3.4, equation 2).

The last token of the prompt is steered, and the one that is read after it; everything before is read once
(:mod:`biasgeom.suffix`). What was measured is kept in the cache, by content.
"""

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import spearmanr, wasserstein_distance

from biasgeom import cache, hooks, prefix, prompts, readouts, recall, suffix
from biasgeom.hooks import AnyDirection
from biasgeom.ledger import Outcome
from biasgeom.models import LanguageModel
from biasgeom.readouts import SCORES

NEGLIGIBLE = 1e-5
"""A share of "1" among the scores below this can't move their mean by 1e-4, whatever of it is the beginning of "10"."""


@dataclass(frozen=True)
class Scores:
    """Scores of n prompts under A edits.

    Attributes
    ----------
    expected : array [A, n]
        Σ k·P(k) / Σ P(k), as :mod:`biasgeom.judging` reads it.
    greedy : array [A, n]
        The integer that the likeliest reply begins with; NaN where it is none from 1 to 10.
    valid : bool array [A, n]
        Whether the likeliest token is a score.
    """

    expected: np.ndarray
    greedy: np.ndarray
    valid: np.ndarray

    def of(self, readout: str) -> np.ndarray:
        """The scores [A, n] of a readout, "expected" or "greedy"; NaN where not valid."""
        if readout not in ("expected", "greedy"):
            raise ValueError(f"readout must be 'expected' or 'greedy', not {readout!r}")
        return np.where(self.valid, getattr(self, readout), np.nan)


class Steered:
    """A judge and the prompts that it is asked under edits.

    Parameters
    ----------
    lm : LanguageModel
    texts : list of str, length n
        The user's turns; equal ones are read once.
    prefill : str
        What begins the assistant's turn; empty: the judge replies by itself.

    Raises
    ------
    ValueError
        What :func:`biasgeom.prefix.read` refuses, when something has to be measured; and always under hooks. No texts
        have no scores.
    """

    def __init__(self, lm: LanguageModel, texts: Sequence[str], *, prefill: str) -> None:
        self.lm, self.prefill = lm, prefill
        self.distinct = list(dict.fromkeys(texts))
        where = {text: place for place, text in enumerate(self.distinct)}
        self.places = np.array([where[text] for text in texts], dtype=int)
        encoded = prompts.encode(lm, self.distinct, chat=True, prefill=prefill or None) if self.distinct else []
        code = cache.source_digest(prefix, suffix, readouts)
        # The weights are read once: a search asks hundreds of times.
        self._key = recall.key(lm, sys.modules[__name__], code_below=code, tokens=encoded)
        self._prefix: prefix.Prefix | None = None
        self._runs: dict[int, suffix.SuffixRun] = {}

    def scores(self, block: int, direction: AnyDirection, alphas: Sequence[float] | np.ndarray) -> Scores:
        """Scores at each strength, with states h + αv at the last token of the prompt and the one read after it.

        Parameters
        ----------
        direction : Direction, or array [d], or array [A, d] with one for each strength
        alphas : array [A]
            In units of the direction's norm; 0 is the judge as it is.

        Raises
        ------
        ValueError
            What :func:`biasgeom.suffix.edits` refuses.
        """
        alphas = np.asarray(alphas, dtype=np.float64)
        if isinstance(direction, np.ndarray) and direction.ndim == 2:
            made = [suffix.edits(self.lm, block, v, alphas[i : i + 1]) for i, v in enumerate(direction)]
            if len(made) != len(alphas):
                raise ValueError(f"{len(direction)} directions for {len(alphas)} strengths")
            return self._measured(block, torch.cat(made))
        return self._measured(block, suffix.edits(self.lm, block, direction, alphas))

    def scores_of(self, block: int, edits: np.ndarray) -> Scores:
        """Scores with an edit of its own added to each prompt's state: edits [n, d] → one row, [1, n].

        Raises
        ------
        ValueError
            Edits that are not finite, of another shape, or that differ between equal texts.
        """
        edits = np.asarray(edits, dtype=np.float64)
        if edits.shape != (len(self.places), self.lm.width) or not np.isfinite(edits).all():
            raise ValueError(f"edits must be finite, [{len(self.places)}, {self.lm.width}], not {edits.shape}")
        own = np.empty((len(self.distinct), self.lm.width))
        own[self.places] = edits
        if not np.allclose(own[self.places], edits):
            raise ValueError("equal texts were given different edits")
        return self._measured(block, torch.as_tensor(own, dtype=torch.float32)[None])

    def _measured(self, block: int, steps: torch.Tensor) -> Scores:
        if not 0 <= block < len(self.lm.blocks):
            raise ValueError(f"{self.lm.name} has blocks 0 to {len(self.lm.blocks) - 1}, not {block!r}")
        if hooks.foreign(self.lm) or self.lm.interventions:
            raise ValueError(f"{self.lm.name} is under hooks: its steered scores would not be its own")
        if not self.distinct:
            nothing = np.empty((len(steps), 0))
            return Scores(nothing, nothing, nothing > 0)
        block = int(block)  # a number out of a table is no plain JSON
        edits = hashlib.sha256(steps.cpu().numpy().tobytes()).hexdigest()
        key = cache.digest(of=self._key, block=block, edits=edits, shape=list(steps.shape))
        found = cache.array(key, lambda: self._measure(block, steps))[:, self.places]
        return Scores(found[..., 0], found[..., 1], found[..., 2] > 0)

    def _measure(self, block: int, steps: torch.Tensor) -> np.ndarray:
        digits, ten = readouts.score_tokens(self.lm)
        if self._prefix is None:
            how = {"chat": True, "prefill": self.prefill or None, "append": digits[1]}
            self._prefix = prefix.read(self.lm, self.distinct, **how)
        # One run a block: at its first use it is compared with the whole pass.
        run = self._runs.setdefault(block, suffix.SuffixRun(self.lm, self._prefix, block))
        found = np.empty((len(steps), len(self.distinct), 3))
        # A judge that hardly ever begins with a "1" is spared the token behind it, which doubles the cost.
        _, usual, _ = _first(self._prefix.groups[0].logits[None, :1], digits, ten)
        width = 2 if usual.max() > NEGLIGIBLE else 1
        for rows, which, logits in run.passes(steps, width=width):
            first, share, token = _first(logits[:, :, 0], digits, ten)
            if width == 2:
                follows, then = _behind(logits[:, :, 1], digits)
            else:
                follows, then = torch.zeros_like(share), torch.full_like(token, -1)
                again = torch.nonzero(((share > NEGLIGIBLE) | (token == digits[1])).any(dim=1))[:, 0]
                if len(again):
                    chosen = steps[[which[i] for i in again.tolist()]]
                    more = torch.cat([logits for _, _, logits in run.passes(chosen, width=2, rows=rows)])
                    follows[again], then[again] = _behind(more[:, :, 1], digits)
            found[np.ix_(which, rows)] = _scores(first, follows, token, then, digits, ten)
        return found


def _first(logits: torch.Tensor, digits: list[int], ten: int | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Relative weights of 1 … 9 and, as one token, 10: [a, B, 10]; the share of "1"; the likeliest token."""
    columns = logits[..., [*digits[1:], ten if ten is not None else digits[1]]].double()
    if ten is None:
        columns[..., 9] = -torch.inf
    weights = torch.softmax(columns, dim=-1)
    return weights, weights[..., 0], logits.argmax(-1)


def _behind(logits: torch.Tensor, digits: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """P("0" | "1") and the likeliest token after a "1", [a, B]."""
    # Not in double, as the ten columns above: of the whole vocabulary that would take longer than it takes to compute.
    logits = logits.float()
    total = logits.logsumexp(-1).double()
    return torch.exp(logits[..., digits[0]].double() - total), logits.argmax(-1)


def _scores(
    weights: torch.Tensor,
    follows: torch.Tensor,
    token: torch.Tensor,
    then: torch.Tensor,
    digits: list[int],
    ten: int | None,
) -> np.ndarray:
    """Expected score, greedy integer, validity: [a, B, 3]."""
    weights = weights.clone()
    tenth = weights[..., 0] * follows
    weights[..., 0] -= tenth
    weights[..., 9] += tenth
    expected = weights @ torch.arange(1, SCORES + 1, dtype=weights.dtype, device=weights.device)
    greedy = torch.full_like(expected, torch.nan)
    for k in range(1, 10):
        greedy[token == digits[k]] = k
    if ten is not None:
        greedy[token == ten] = 10
    valid = ~greedy.isnan()
    # "10" where a "0" follows the "1"; another digit after it makes a number that is no score.
    one = token == digits[1]
    greedy[one & (then == digits[0])] = 10
    greedy[one & torch.isin(then, torch.tensor(digits[1:], device=then.device))] = torch.nan
    return torch.stack([expected, greedy, valid.double()], dim=-1).cpu().numpy()


def outcome(scores: np.ndarray, target: np.ndarray, *, baseline: np.ndarray | None = None) -> Outcome:
    """How far scores [n] are from a target's [n], and what is left of their order (equation 5).

    Parameters
    ----------
    scores, target : array [n]
        NaN where there is no valid score.
    baseline : array [n], optional
        What the order is compared with; default: the target.

    Returns
    -------
    Outcome
        W1 of the valid scores (NaN without one on either side); the share of valid ones; Spearman's coefficient (NaN
        below three pairs, or if either is constant).
    """
    known, aim = scores[~np.isnan(scores)], target[~np.isnan(target)]
    w1 = float(wasserstein_distance(known, aim)) if len(known) and len(aim) else np.nan
    validity = float(np.mean(~np.isnan(scores))) if len(scores) else np.nan
    return Outcome(w1, validity, rank_correlation(scores, target if baseline is None else baseline))


UNRANKED = "no rank correlation: fewer than three pairs of scores, or all alike"
"""Why :func:`rank_correlation` is NaN."""


def rank_correlation(scores: np.ndarray, others: np.ndarray) -> float:
    """Spearman's coefficient over the pairs with both numbers; NaN below three pairs, or if either is constant."""
    both = ~np.isnan(scores) & ~np.isnan(others)
    if both.sum() < 3 or min(np.ptp(scores[both]), np.ptp(others[both])) == 0:
        return np.nan
    return float(spearmanr(scores[both], others[both]).statistic)
