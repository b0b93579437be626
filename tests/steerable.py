"""A judge that is known in full: its score is linear in its states, and so is what steering does to it.

States of block b are content + (b / 2) · shift along the cue's direction; the score is 6 + ⟨h, W⟩ at block 2. In the
place of :class:`biasgeom.steering.Steered`, with the same calls.
"""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pandas as pd
from biasgeom import judging
from biasgeom.steering import Scores

D, L, QUESTIONS = 40, 3, 60
PASSED = 0.8
NEUTRAL = " neutral"


class World:
    """A judge of 60 questions, each with a base answer and one with the cue "Bandwagon-".

    Attributes
    ----------
    judge : Judged
    pairs, baselines : DataFrame
        All pairs, effective; all base answers.
    cue, weight : array [D]
        The unit direction of the cue, and what the score reads.
    read : list of str
        Answers that were asked for, each time a Steered was made.
    """

    def __init__(self, *, shift: float = 2.0, noise: float = 0.05, valid_up_to: float = np.inf, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.cue = np.eye(D)[0]
        self.weight = -0.5 * self.cue + 0.3 * np.eye(D)[1]
        self.valid_up_to, self.read, self.lm = valid_up_to, [], SimpleNamespace(width=D, blocks=[None] * L)
        content = 0.6 * rng.normal(size=(QUESTIONS, 1, 1, D))
        states = np.repeat(np.repeat(content, 2, axis=1), L, axis=2) + noise * rng.normal(size=(QUESTIONS, 2, L, D))
        self.moved = shift * (1 + 0.2 * rng.normal(size=QUESTIONS))
        states[:, 1] += self.moved[:, None, None] * (np.arange(L) / 2)[:, None] * self.cue
        self.states = states.reshape(2 * QUESTIONS, L, D)
        questions = np.repeat([f"q{i:02d}" for i in range(QUESTIONS)], 2)
        items = pd.DataFrame({"question_id": questions, "condition": ["base", "Bandwagon-"] * QUESTIONS})
        items["text"] = items["question_id"] + " " + items["condition"]
        items["split"] = np.repeat(np.where(np.arange(QUESTIONS) < 30, "train", "dev"), 2)
        items.loc[items["question_id"] >= "q40", "split"] = "test"
        items["expected"] = self.score(self.states[:, 2])
        self.judge = judging.Judged("world", items.assign(valid=True), self.states, "greedy", 0.1, 0.1)
        self.baselines = items[items["condition"] == "base"].assign(row=2 * np.arange(QUESTIONS))
        self.pairs = items[items["condition"] != "base"].assign(row=2 * np.arange(QUESTIONS) + 1)
        self.pairs["base_row"] = self.pairs["row"] - 1
        # A rewrite takes off nine tenths of the cue's shift.
        rewritten = self.states.copy()
        rewritten[1::2, 2] -= 0.9 * self.moved[:, None] * self.cue
        self.of = dict(zip(items["text"], self.states[:, 2], strict=True))
        self.of |= {text + NEUTRAL: h for text, h in zip(items["text"], rewritten[:, 2], strict=True)}
        self.rewrites: dict[str, str | None] = {text: text + NEUTRAL for text in items["text"]}

    def score(self, states: np.ndarray) -> np.ndarray:
        return 6 + states @ self.weight

    def split(self, name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Pairs and base answers of one split."""
        return tuple(table[table["split"] == name] for table in (self.pairs, self.baselines))

    def steered(self, lm: object, texts: Sequence[str], *, prefill: str) -> "Steerable":
        """What stands for ``Steered(lm, texts, prefill=…)``."""
        frame = judging.prompt("@@").split("@@")
        answers = [text.removeprefix(frame[0]).removesuffix(frame[1]) for text in texts]
        self.read += answers
        return Steerable(self, np.array([self.of[answer] for answer in answers]))


class Steerable:
    """The prompts of a :class:`World` under edits; each block passes on :data:`PASSED` of what is added before it."""

    def __init__(self, world: World, states: np.ndarray) -> None:
        self.world, self.states = world, states

    def scores(self, block: int, direction: np.ndarray, alphas: Sequence[float]) -> Scores:
        return self._of(block, np.asarray(alphas, dtype=float)[:, None, None] * np.asarray(direction))

    def scores_of(self, block: int, edits: np.ndarray) -> Scores:
        assert edits.shape == self.states.shape
        return self._of(block, np.asarray(edits)[None])

    def _of(self, block: int, edits: np.ndarray) -> Scores:
        expected = self.world.score(self.states + edits * PASSED ** (L - 1 - block))
        lengths = np.broadcast_to(np.linalg.norm(edits, axis=-1), expected.shape)
        return Scores(expected, np.round(expected), lengths <= self.world.valid_up_to)
