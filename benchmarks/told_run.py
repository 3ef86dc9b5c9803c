"""A problem of a measured run that says at the end of each turn what it holds, and what the run has taken by then."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from autotune.problemrun import ProblemRun, ProblemScreening
from autotune.progress import Budget
from autotune.seam import Measured
from autotune.verdict import finalists
from benchmarks.card import Deadline, Lines
from benchmarks.simulated_search import MemoryLedger

NOTHING = {"candidates": 0, "seconds": 0.0, "card_s": 0.0}  # taken yet


class Tally:
    """What a run has taken so far: candidates, seconds from its first result to its last, and seconds of the card.

    Args:
        before: A row with what earlier commands took of it.
    """

    def __init__(self, run: str, say: Lines, deadline: Deadline, before: Mapping[str, Any] = NOTHING) -> None:
        self.run, self.say, self._deadline, self._before = run, say, deadline, before
        self._candidates, self._card_s = 0, 0.0
        self._first_s: float | None = None
        self._last_s = 0.0

    def count(self, result: Any) -> None:
        self._last_s = time.monotonic()
        self._first_s = self._first_s or self._last_s
        self._candidates += 1
        self._card_s += getattr(result, "locked_s", None) or 0.0

    def say_turn(self, problem: Any, found: ProblemScreening) -> None:
        """Says what a problem holds after a turn, and all that a search next to it begins with."""
        sound = [(knobs, result) for knobs, result in found.results if isinstance(result, Measured)]
        if sound:
            knobs, best = finalists(sound)[0]
            self.say(
                kind="turn",
                run=self.run,
                problem=problem.to_fields(),
                of_problem=len(found.results),
                failed=len(found.results) - len(sound),
                best_us=best.timing.score_us,
                knobs=knobs,
                errors=found.errors,
                **self.taken,
            )

    @property
    def taken(self) -> dict[str, Any]:
        seconds = self._last_s - (self._first_s or self._last_s)
        return {
            "candidates": self._before["candidates"] + self._candidates,
            "seconds": round(self._before["seconds"] + seconds, 1),
            "card_s": round(self._before["card_s"] + self._card_s, 2),
            "at_s": round(self._deadline.passed_s, 1),
        }


class CountedLedger(MemoryLedger):
    """A study that ends with the process, and counts what it is given."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally

    def record_screen(self, knobs: Mapping[str, Any], result: Any, spent_s: float) -> None:
        super().record_screen(knobs, result, spent_s)
        self._tally.count(result)


class ToldRun(ProblemRun):
    """A problem of a run that says at the end of each turn what it holds."""

    def __init__(self, tally: Tally, *parts: Any) -> None:
        super().__init__(*parts)
        self._tally = tally

    def screened(self, found: ProblemScreening, budget: Budget, **more: Any) -> ProblemScreening:
        after = super().screened(found, budget, **more)
        self._tally.say_turn(self.problem, after)
        return after
