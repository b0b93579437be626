r"""The strength α that moves scores most within two constraints (judge paper 3.4, F.3, J.4: algorithm 1).

Feasible are strengths at which enough replies are scores and their order is kept (equation 5). Doubling and bisection
find where feasibility ends, annealing searches below that. The paper's argument that the best strength lies there needs
W1 to grow with α; where it does not, evenly spaced strengths further down are looked at as well. The module knows no
model: it gets a function from α to :class:`biasgeom.ledger.Outcome`.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from biasgeom.ledger import Ledger, Outcome, digits

RULES = ("best", "last")


@dataclass(frozen=True)
class AlphaSearch:
    """What a search found.

    Attributes
    ----------
    alpha : float or None
        The strength by the ``rule`` that was asked for; None if nothing above 0 was feasible.
    outcome : Outcome or None
        At ``alpha``.
    last_alpha, last_outcome : float and Outcome, or None
        By the rule as printed, whichever was asked for.
    boundary : float
        The largest feasible strength of doubling and bisection; 0 if there is none.
    binding : {"validity", "spearman", "both", "max_alpha", "none"}
        What is violated just above the boundary, or ended the doubling; "none": the cap on evaluations did.
    evaluations : int
        Distinct strengths that the search looked at, those given by a trace included.
    capped : bool
        Whether the cap on evaluations cut the search short.
    trace : DataFrame
        One row each, in the order of the search: :data:`biasgeom.ledger.TRACE`.
    """

    alpha: float | None
    outcome: Outcome | None
    last_alpha: float | None
    last_outcome: Outcome | None
    boundary: float
    binding: str
    evaluations: int
    capped: bool
    trace: pd.DataFrame


def search_alpha(
    evaluate: Callable[[float], Outcome],
    *,
    evaluate_many: Callable[[Sequence[float]], Sequence[Outcome]] | None = None,
    start: float = 1.0,
    tolerance: float = 0.1,
    window: float = 5.0,
    min_validity: float = 0.93,
    min_spearman: float = -1.0,
    temperature: float = 1.0,
    cooling: float = 0.95,
    min_temperature: float = 1e-3,
    penalty: float = 1e3,
    max_alpha: float = 1000.0,
    max_evaluations: int = 200,
    scan: int = 24,
    step: float = 0.0,
    ahead: int = 1,
    rule: str = "best",
    seed: int = 0,
    trace: pd.DataFrame | None = None,
) -> AlphaSearch:
    r"""Algorithm 1 of the judge paper; the defaults are those of its appendix G.

    Parameters
    ----------
    evaluate : callable
        α → :class:`biasgeom.ledger.Outcome`. Never asked for α = 0, which edits nothing.
    evaluate_many : callable, optional
        Several α → as many outcomes, the same as one by one: annealing's candidates don't depend on what they yield.
    start, tolerance, window, max_alpha : float
        α₀, ε and Δ, and where doubling ends; in the units of α.
    min_validity, min_spearman : float
        The constraints; an undefined value does not meet them.
    temperature, cooling, min_temperature, penalty : float
        T₀, γ and T_min, and the energy M of what is infeasible; energies are in points of W1.
    max_evaluations : int
        Distinct α in all. Where it binds, first the scan gives way, then annealing's last and coldest steps, then the
        bisection, whose boundary is then too low.
    scan : int
        Evenly spaced α from 0 to the window's lower end, if that is above 0, and then a third as many around the best
        so far. The paper has none: 0.
    step : float
        Annealing's candidates are rounded to multiples of this below the boundary, so that equal ones are evaluated
        once. The paper's are not: 0.
    ahead : int
        So many doublings, and levels of the bisection, are evaluated together: their outcomes decide as if they had
        come one by one, and the strengths that were not needed are looked at all the same. The paper: 1.
    rule : {"best", "last"}
        The best feasible α of the whole search up to the boundary, of equal ones the smallest; or the one accepted
        last, as printed, which may be worse and, where the penalty is small against the temperature, infeasible.
    seed : int
        Of candidates and acceptances.
    trace : DataFrame, optional
        An earlier search's on the same ``evaluate``; α in it are not evaluated again. Constraints may differ.

    Raises
    ------
    ValueError
        An argument that makes no sense.
    SearchInterrupted
        An evaluation failed; its ``trace`` resumes the search. A KeyboardInterrupt passes with a ``trace`` set on it.

    Notes
    -----
    With α₀ infeasible, [0, α₀] is bisected, as printed. Feasible α above the boundary are not sought, nor taken where
    ``ahead`` met one; below it, a piece narrower than the scan's spacing can be missed. The printed search returns 0
    where none is feasible.
    """
    values = {"start": start, "tolerance": tolerance, "window": window, "max_alpha": max_alpha}
    values |= {"temperature": temperature, "min_temperature": min_temperature, "penalty": penalty}
    wrong = {f"{n} must be a positive, finite number, not {v!r}": not 0 < v < math.inf for n, v in values.items()}
    wrong |= {
        f"start ({start:g}) lies above max_alpha ({max_alpha:g})": start > max_alpha,
        f"cooling must lie between 0 and 1, not {cooling!r}": not 0 < cooling < 1,
        f"rule must be one of {', '.join(RULES)}, not {rule!r}": rule not in RULES,
        f"max_evaluations must be 1 or more, not {max_evaluations!r}": max_evaluations < 1,
        f"scan must be 0 or more, not {scan!r}": scan < 0,
        f"step must be 0 or more, and finite, not {step!r}": not 0 <= step < math.inf,
        f"ahead must be 1 or more, not {ahead!r}": ahead < 1,
        f"min_validity is a share from 0 to 1, not {min_validity!r}": not 0 <= min_validity <= 1,
        f"min_spearman must lie between -1 and 1, not {min_spearman!r} (an undefined one, of constant scores, sets no "
        "floor)": not -1 <= min_spearman <= 1,
    }
    if any(wrong.values()):
        raise ValueError(next(message for message, is_so in wrong.items() if is_so))
    ledger = Ledger(evaluate, evaluate_many, min_validity, min_spearman, max_evaluations, trace)
    boundary, binding = _boundary(ledger, float(start), tolerance, float(max_alpha), ahead)
    last = boundary if boundary > 0 else None
    if last is not None:
        low = max(0.0, boundary - window)
        warm = itertools.takewhile(lambda t: t > min_temperature, (temperature * cooling**k for k in itertools.count()))
        temperatures = list(itertools.islice(warm, max_evaluations))
        last = _annealed(ledger, boundary, low, temperatures, penalty, step, np.random.default_rng(seed))
        if low > 0 and scan:
            step = low / scan
            ledger.ask([step * k for k in range(1, scan + 1)], "scan")
            top = ledger.best(boundary)
            near = max(0.0, top - step), min(boundary, top + step)
            ledger.ask(np.linspace(*near, scan // 3 + 2)[1:-1].tolist(), "scan")
    found = ledger.trace()
    chosen = last if rule == "last" else ledger.best(boundary)
    both = chosen, ledger.outcome(chosen), last, ledger.outcome(last)
    return AlphaSearch(*both, boundary, binding, evaluations=len(found), capped=ledger.capped, trace=found)


def _boundary(ledger: Ledger, start: float, tolerance: float, max_alpha: float, ahead: int) -> tuple[float, str]:
    """Stage 1: the largest feasible α found, and what binds there (lines 1 to 14)."""
    low, high, binding, rung = 0.0, start, "none", 0
    while found := ledger.ask([high], "doubling"):
        if violated := ledger.violated(found[0]):
            binding = violated
            break
        if high == max_alpha:
            return high, "max_alpha"
        low, high, rung = high, min(2 * high, max_alpha), rung + 1
        if rung % ahead == 0 or rung == 1:
            ledger.ask([min(high * 2**k, max_alpha) for k in range(ahead)], "doubling")
    # Without a violation there is no bracket: the cap ended the doubling.
    level = 0
    while binding != "none" and high - low > tolerance:
        if level % ahead == 0:
            ledger.ask(_middles(low, high, tolerance, ahead), "bisection")
        level += 1
        middle = (low + high) / 2
        if digits(middle) in (digits(low), digits(high)) or not (found := ledger.ask([middle], "bisection")):
            break
        if violated := ledger.violated(found[0]):
            high, binding = middle, violated
        else:
            low = middle
    return low, binding


def _middles(low: float, high: float, tolerance: float, levels: int) -> list[float]:
    """The middles that so many levels of bisection may ask for, the first level's first."""
    intervals, found = [(low, high)], []
    for _ in range(levels):
        intervals = [(a, b) for a, b in intervals if b - a > tolerance]
        middles = [(a + b) / 2 for a, b in intervals]
        found += middles
        intervals = [half for (a, b), m in zip(intervals, middles, strict=True) for half in ((a, m), (m, b))]
    return found


def _annealed(
    ledger: Ledger,
    boundary: float,
    low: float,
    temperatures: list[float],
    penalty: float,
    step: float,
    rng: np.random.Generator,
) -> float:
    """Stage 2: the α accepted last (lines 15 to 25)."""
    # Row after row, a candidate and the number that decides on it: what a loop would draw one by one.
    drawn = rng.random((len(temperatures), 2))
    below = (boundary - low) * (1 - drawn[:, 0])
    if step:
        below = step * np.minimum(np.round(below / step), np.ceil(boundary / step) - 1)
    candidates = (boundary - below).tolist()
    outcomes = ledger.ask(candidates, "annealing")
    current, energy = boundary, -ledger.outcome(boundary).w1
    for candidate, found, warmth, chance in zip(candidates, outcomes, temperatures, drawn[:, 1], strict=False):
        proposed = -found.w1 + penalty * bool(ledger.violated(found))
        # Without a valid score there is no energy: never accepted.
        if math.isfinite(proposed) and math.exp(min(0.0, (energy - proposed) / warmth)) > chance:
            current, energy = candidate, proposed
    return current
