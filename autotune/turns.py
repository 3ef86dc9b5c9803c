"""Whose turn it is to be screened: one problem after the other, or all of them by what each may still gain."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence

from autotune.interrupt import DeferredInterrupt
from autotune.lanes import fixed_order
from autotune.problemrun import ProblemRun, ProblemScreening
from autotune.progress import Budget
from autotune.protocol import estimated_us
from autotune.result import ProblemResult
from autotune.search.gain import NEXT
from autotune.searchsettings import FEWEST_EACH, SearchSettings
from autotune.seeds import Neighbour, nearest_measured, visiting_order
from autotune.stages import Stages
from autotune.stopping import Stop

# Candidates of a turn. Each worker prepares a problem anew at its turn, for about 3 s, in which a card screens some 70
# (H200, 16 cores, 2026-11-30). Short turns need fewer candidates, and long ones fewer seconds.
SHORT_TURN, LONG_TURN = 16, 32
FIRST = 1 / 2  # of a problem's even share of the candidates that its first turn gets at most
# Share of the best time: a problem whose turns were expected to gain so much together, and gained nothing, is believed
# half of what it promises.
DOUBT = 0.05

Found = ProblemScreening | ProblemResult


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the turns of a problem were expected to gain, and what they gained: sums of logarithms of its best time."""

    expected: float = 0.0
    came: float = 0.0

    def after(self, expected: float, came: float) -> Promise:
        """Returns the promise with one turn more."""
        return Promise(expected=self.expected + expected, came=self.came + came)

    @property
    def kept(self) -> float:
        """The share of its expectations that comes true: 1 before any turn, little after many that brought nothing."""
        return (self.came + DOUBT) / (self.expected + DOUBT)


def screenings_in_turn(
    runs: Sequence[ProblemRun],
    search: SearchSettings,
    stages: Stages,
    interrupt: DeferredInterrupt,
    fresh: bool,
) -> Iterator[tuple[ProblemRun, Found]]:
    """Screens each problem to its end before the next; yields each when it is screened, in the order given."""
    measured: list[Neighbour] = []
    for one in runs:
        interrupt.raise_if_requested()
        found = one.opened(fresh)
        if isinstance(found, ProblemScreening):
            near = nearest_measured(stages.target, one.problem, measured)
            found = one.screened(found, search.budget, near=near)
            if found.resumed == len(found.results) and found.stop:
                stages.progress.say(f"{one.problem.describe()}: nothing left to measure: {found.stop.text}")
            measured += _neighbours([(one, found)])
        yield one, found


def shared_screenings(
    runs: Sequence[ProblemRun],
    search: SearchSettings,
    stages: Stages,
    interrupt: DeferredInterrupt,
    fresh: bool,
) -> Iterator[tuple[ProblemRun, Found]]:
    """Screens all problems out of one budget; yields them in the order given when that is spent."""
    shared = SharedBudget(runs, search, stages, interrupt)
    found = shared.screened(fresh)
    return iter(zip(runs, found))


def _neighbours(screened: Sequence[tuple[ProblemRun, ProblemScreening]]) -> list[Neighbour]:
    return [
        Neighbour(problem=one.problem, knobs=found.best[0], errors=found.errors)
        for one, found in screened
        if found.best is not None
    ]


class SharedBudget:
    """Problems that share the candidates and seconds of a run.

    Each has a first turn, so ordered that it begins with what was found for a near one. Then the next turn is always
    that of the problem where a candidate is expected to save the most: its weight times its best time times the share
    of it that its model expects to gain, as far as such expectations come true.
    """

    def __init__(
        self,
        runs: Sequence[ProblemRun],
        search: SearchSettings,
        stages: Stages,
        interrupt: DeferredInterrupt,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runs, self._search, self._stages = runs, search, stages
        self._interrupt, self._clock = interrupt, clock
        self._open: dict[int, ProblemScreening] = {}  # by the place of the problem
        self._ended: set[int] = set()
        self._seeded: dict[int, set[str]] = {}
        self._promises: dict[int, Promise] = {}
        self._turn = SHORT_TURN if search.total_seconds is None else LONG_TURN
        self._is_warm = False
        self._turns = 0

    def screened(self, fresh: bool) -> list[Found]:
        """Returns what became of each problem, in their order."""
        opened = []
        for one in self._runs:
            self._interrupt.raise_if_requested()
            opened.append(one.opened(fresh))
        self._open = {place: one for place, one in enumerate(opened) if isinstance(one, ProblemScreening)}
        order = [
            place
            for place in visiting_order(self._stages.target, [one.problem for one in self._runs])
            if place in self._open
        ]
        for turn, place in enumerate(order):
            self._take_turn(place, self._first_budget(place, len(order) - turn))
        while (place := self._next()) is not None:
            self._take_turn(place, self._turn_budget(place, self._seconds_left()))
        self._end()
        return [self._open.get(place, one) for place, one in enumerate(opened)]

    def _first_budget(self, place: int, turns_left: int) -> Budget:
        """Returns the budget of a first turn, which leaves enough for all that come after it."""
        total, seconds_left = self._search.total_candidates, self._seconds_left()
        share_s = None if seconds_left is None else max(seconds_left / turns_left, 1.0)
        share = self._turn if total is None else int(FIRST * total / len(self._open))
        done = len(self._open[place].results)
        return self._limited(place, max(0, max(FEWEST_EACH, min(self._turn, share)) - done), share_s)

    def _turn_budget(self, place: int, seconds_left: float | None) -> Budget:
        left = self._candidates_left()
        return self._limited(place, self._turn if left is None else min(self._turn, left), seconds_left)

    def _limited(self, place: int, more: int, seconds: float | None) -> Budget:
        """Returns the budget of a problem for so much more, within what it may take at most."""
        found, most = self._open[place], self._search.budget
        until_s = self._search.seconds
        if seconds is not None:
            until_s = min(until_s, found.ledger.spent_s + seconds)
        candidates = min(self._search.candidates, len(found.results) + more)
        return dataclasses.replace(most, candidates=candidates, seconds=until_s)

    def _take_turn(self, place: int, budget: Budget) -> None:
        self._interrupt.raise_if_requested()
        one, before = self._runs[place], self._open[place]
        others = [(self._runs[other], found) for other, found in self._open.items() if other != place]
        near = nearest_measured(self._stages.target, one.problem, _neighbours(others))
        seeded = self._seeded.setdefault(place, set())
        after = one.screened(
            before,
            budget,
            near=near,
            seeded=seeded,
            since_s=self._clock() if self._is_warm else None,
        )
        self._open[place] = after
        seeded.update(fixed_order(other.knobs) for _, other in near)
        is_moved = len(after.results) > len(before.results)
        self._is_warm |= is_moved
        self._turns += is_moved
        if is_moved and before.best and after.best and before.gain is not None:
            came = math.log(before.best[1] / after.best[1])
            self._promises[place] = self._promise(place).after(before.gain, came)
        if self._is_at_its_end(after):
            self._ended.add(place)

    def _is_at_its_end(self, found: ProblemScreening) -> bool:
        """Whether the problem itself gives no more, whatever is left of the shared budget."""
        stop = found.stop
        if stop is None or stop.reason in ("gain", "space"):
            return True
        own = self._search.candidates if stop.reason == "candidates" else self._search.seconds
        return stop.limit == own

    def _next(self) -> int | None:
        """Returns the problem that gains the most by a turn; None where the budget is spent or all are at their end."""
        left, seconds_left = self._candidates_left(), self._seconds_left()
        if (left is not None and left <= 0) or (seconds_left is not None and seconds_left <= 0):
            return None
        going_on = [place for place in self._open if place not in self._ended]
        return max(going_on, key=lambda place: (self._saved_us(place), -place), default=None)

    def _saved_us(self, place: int) -> float:
        """Returns the microseconds of the workload that the next candidates of a problem are expected to save."""
        one, found = self._runs[place], self._open[place]
        time_us = found.best[1] if found.best else estimated_us(one.problem)
        return one.weight * time_us * self._gain(place, found)

    def _gain(self, place: int, found: ProblemScreening) -> float:
        """Returns the share of the best time that the next candidates are expected to save.

        Of n + 1 candidates that are alike the last is the best once in n + 1 times, and by what is not known without a
        model. A model says by what, but expects the same of its next 16 where n found nothing better as where it has
        seen little: they count as far as one of n + 16 is among them, and as earlier turns kept what it promised.
        """
        measured = len(found.results)
        if found.gain is None:
            return 1 / (measured + 1)
        return found.gain * NEXT / (measured + NEXT) * self._promise(place).kept

    def _promise(self, place: int) -> Promise:
        return self._promises.get(place, Promise())

    def _candidates_left(self) -> int | None:
        total = self._search.total_candidates
        return None if total is None else total - sum(len(found.results) for found in self._open.values())

    def _seconds_left(self) -> float | None:
        total = self._search.total_seconds
        return None if total is None else total - sum(found.ledger.spent_s for found in self._open.values())

    def _end(self) -> None:
        """Says of each problem that still went on that the shared budget ended it."""
        left = self._candidates_left()
        if left is not None and left <= 0:
            reason, limit = "total_candidates", self._search.total_candidates
        else:
            reason, limit = "total_seconds", self._search.total_seconds
        for place, found in self._open.items():
            if place not in self._ended:
                stop = Stop(reason=reason, candidates=len(found.results), limit=limit or 0)
                found.ledger.finish_screening(found.ledger.spent_s, stop.to_json())
                self._open[place] = dataclasses.replace(found, stop=stop)
        candidates = sum(len(found.results) for found in self._open.values())
        spent_s = sum(found.ledger.spent_s for found in self._open.values())
        self._stages.progress.say(
            f"{len(self._open)} problems shared {candidates} candidates and {spent_s:.0f} s of screening, "
            f"in {self._turns} {'turn' if self._turns == 1 else 'turns'}"
        )
