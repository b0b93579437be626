"""What a search over strengths has evaluated: each α once, no more than the budget, and nothing lost if one fails.

See :mod:`biasgeom.annealing`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

TRACE = ["alpha", "stage", "w1", "validity", "spearman", "feasible"]
SLACK = 1e-9
"""Below a floor on the rank correlation, for rounding: the floor may be another computation's 1."""
BATCH = 64
"""Strengths evaluated together: an interruption loses these at most."""


@dataclass(frozen=True)
class Outcome:
    """What one strength does.

    Attributes
    ----------
    w1 : float
        What is maximised: the Wasserstein distance from the target's scores, in points; NaN without a valid score.
    validity : float
        Share of replies that are a score.
    spearman : float
        Rank correlation with the baseline's scores; NaN where it is undefined.
    """

    w1: float
    validity: float
    spearman: float


class SearchInterrupted(RuntimeError):
    """An evaluation failed. ``trace`` (DataFrame) holds what was evaluated; given back to the search, it resumes."""

    def __init__(self, message: str, trace: pd.DataFrame) -> None:
        super().__init__(message)
        self.trace = trace


class Ledger:
    """Evaluates each α once and no more than the budget, and keeps all of it."""

    def __init__(
        self,
        evaluate: Callable[[float], Outcome],
        evaluate_many: Callable[[Sequence[float]], Sequence[Outcome]] | None,
        min_validity: float,
        min_spearman: float,
        budget: int,
        trace: pd.DataFrame | None,
    ) -> None:
        self.many = evaluate_many or (lambda alphas: [evaluate(alpha) for alpha in alphas])
        self.batch = BATCH if evaluate_many else 1
        self.floors, self.budget, self.capped = (min_validity, min_spearman), budget, False
        self.used: dict[str, tuple[float, str]] = {}
        self.known: dict[str, tuple[float, Outcome]] = {}
        if trace is not None:
            columns = ["alpha", "w1", "validity", "spearman"]
            if missing := set(columns) - set(trace):
                raise ValueError(f"the trace lacks {', '.join(sorted(missing))}; give back a search's trace as it was")
            for alpha, *measured in trace[columns].astype(float).itertuples(index=False):
                self.known[digits(alpha)] = alpha, Outcome(*measured)

    def ask(self, alphas: Sequence[float], stage: str) -> list[Outcome]:
        """The outcomes of as many of ``alphas``, from the first on, as the budget allows."""
        new: dict[str, float] = {}
        for count, alpha in enumerate(alphas):
            if (key := digits(alpha)) in self.used or key in new:
                continue
            if len(self.used) + len(new) >= self.budget:
                self.capped, alphas = True, alphas[:count]
                break
            new[key] = alpha
        keys = list(new)
        for place in range(0, len(keys), self.batch):
            part = keys[place : place + self.batch]
            self._evaluate([new[key] for key in part if key not in self.known])
            self.used |= {key: (new[key], stage) for key in part}
        return [self.outcome(alpha) for alpha in alphas]

    def _evaluate(self, alphas: list[float]) -> None:
        if not alphas:
            return
        try:
            if len(outcomes := list(self.many(alphas))) != len(alphas):
                raise ValueError(f"{len(outcomes)} outcomes for {len(alphas)} strengths")
        except KeyboardInterrupt as stop:
            stop.trace = self.trace(everything=True)
            raise
        except Exception as error:
            where = f"α = {alphas[0]:g}" if len(alphas) == 1 else f"{len(alphas)} α from {alphas[0]:g} on"
            done = f"{len(self.known)} evaluated before are kept in this error's trace: pass it as trace= to go on"
            kept = self.trace(everything=True)
            raise SearchInterrupted(f"evaluating {where} failed ({error}); {done}", kept) from error
        self.known |= {digits(alpha): (alpha, outcome) for alpha, outcome in zip(alphas, outcomes, strict=True)}

    def outcome(self, alpha: float | None) -> Outcome | None:
        return None if alpha is None else self.known[digits(alpha)][1]

    def violated(self, outcome: Outcome) -> str:
        """Which constraint does not hold; empty: feasible."""
        return violated(outcome, *self.floors)

    def best(self, most: float) -> float | None:
        """The feasible α of largest W1, up to ``most``; of equal ones, the smallest."""
        feasible = [(-o.w1, a) for a, _ in self.used.values() if a <= most and not self.violated(o := self.outcome(a))]
        return min(feasible)[1] if feasible else None

    def trace(self, *, everything: bool = False) -> pd.DataFrame:
        """What this search looked at; and ``everything`` that an earlier trace gave and was not needed yet."""
        rows = [(alpha, stage, self.outcome(alpha)) for alpha, stage in self.used.values()]
        if everything:
            rows += [(alpha, "given", found) for key, (alpha, found) in self.known.items() if key not in self.used]
        table = [(a, stage, o.w1, o.validity, o.spearman, not self.violated(o)) for a, stage, o in rows]
        return pd.DataFrame(table, columns=TRACE).astype({"feasible": bool})


def violated(outcome: Outcome, min_validity: float, min_spearman: float) -> str:
    """Which of the two constraints an outcome does not meet, "validity", "spearman" or "both"; empty: feasible.

    Undefined values don't meet them; without a W1 there is no valid score.
    """
    valid = math.isfinite(outcome.w1) and outcome.validity >= min_validity
    kept = outcome.spearman >= min_spearman - SLACK
    return {(True, True): "", (False, True): "validity", (True, False): "spearman"}.get((valid, kept), "both")


def digits(alpha: float) -> str:
    """What makes two α the same: nine digits, so that a trace may pass through a CSV file."""
    return f"{alpha:.9g}"
