"""One winner's verification as a worker does it: a race in a process that served other problems before."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.evaluate.messages import Assign, Done, LaneLost, Step
from autotune.seam import Race, RaceJob

STEPS = ("lower", "prepare", "compile", "wait", "load", "rivals", "check", "samples")
LOCKED = ("load", "rivals", "check", "samples")  # of these, under the lock of the card

_raced: set[tuple[str, str]] = set()  # by this process


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A race with the seconds that its worker spent on each of `STEPS`."""

    race: Race
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RacedBefore:
    """The process has raced this problem: XLA would repeat what it chose then. It ends; ask another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyJob:
    """A race for any process that has not raced its problem yet.

    A tuning run races one problem again and again, and XLA decides once a process how to multiply, so there each race
    takes a process of its own: seconds of a core to start it, and under the lock the first use of CUPTI and cuBLAS.
    A night's winners are other problems each, whose rivals XLA has yet to decide about in whatever process.
    """

    race: RaceJob

    @property
    def job_id(self) -> int:
        return self.race.job_id

    @property
    def candidate(self) -> RaceJob:
        """What tells the pool the problem: something with `target` and `problem`."""
        return self.race

    def run(self, worker: Any, assign: Assign) -> Done | LaneLost:
        """Runs the race in `worker`, which stays; see `autotune.evaluate.race.run_race`."""
        from autotune.evaluate.race import run_race

        mark = self.race.target, repr(self.race.problem)
        if mark in _raced:
            return Done(result=RacedBefore(), leaving=True)
        _raced.add(mark)
        # The guard holds a clock against those before it, which here were another problem's under another load.
        worker.guard.forget()
        send = worker.send
        clock = StepClock(send)
        worker.send = clock
        try:
            end = run_race(worker, dataclasses.replace(assign, job=self.race))
        finally:
            worker.send = send
        if isinstance(end, LaneLost):
            return end
        return Done(result=Verified(race=end.result, seconds=clock.seconds()))


class StepClock:
    """Stands in for a worker's `send`, and adds up its seconds by the steps that it reports."""

    def __init__(self, send: Callable[[Any], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send, self._clock = send, clock
        self._seconds = dict.fromkeys(STEPS, 0.0)
        self._doing, self._since_s, self._is_locked = "lower", clock(), False

    def __call__(self, message: Any) -> None:
        if isinstance(message, Step):
            self._enter(message)
        self._send(message)

    def seconds(self) -> dict[str, float]:
        """Returns the seconds so far."""
        self._count()
        return dict(self._seconds)

    def _enter(self, step: Step) -> None:
        self._count()
        if step.name == "run":
            self._doing = "check" if step.lane is not None else "samples" if self._is_locked else "load"
            self._is_locked = True
        elif step.name == "compile" and self._is_locked:
            self._doing = "rivals"
        else:
            self._doing = step.name
            self._is_locked = False

    def _count(self) -> None:
        now_s = self._clock()
        self._seconds[self._doing] += now_s - self._since_s
        self._since_s = now_s
