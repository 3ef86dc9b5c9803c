"""Where the time goes for which a worker holds the lock of the card."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

HeldStep = Literal[
    "check",  # operands on the card; poison, both runs, comparisons
    "kernels",  # launching a session's calls and waiting for the last
    "profiler",  # starting CUPTI and fetching what it saw
    "watch",  # the card's clock and health between batches
    "other",
]


class HeldTime:
    """Adds up seconds by what was done; what is timed inside of another step counts in the inner one alone.

    Nothing is counted before the first `begin`, nor after `end`.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._seconds: dict[HeldStep, float] = {}
        self._doing: HeldStep | None = None
        self._since_s = 0.0

    def begin(self) -> None:
        """Forgets what was counted, and counts from now on."""
        self._seconds, self._doing, self._since_s = {}, "other", self._clock()

    def end(self) -> dict[HeldStep, float]:
        """Returns the seconds since `begin` by step; together they are all of that time."""
        self._enter(None)
        return dict(self._seconds)

    @contextmanager
    def timed(self, step: HeldStep) -> Iterator[None]:
        """Counts what runs inside as `step`."""
        outer = self._doing
        if outer is None:
            yield
            return
        self._enter(step)
        try:
            yield
        finally:
            self._enter(outer)

    def _enter(self, step: HeldStep | None) -> None:
        now_s = self._clock()
        if self._doing is not None:
            self._seconds[self._doing] = self._seconds.get(self._doing, 0.0) + now_s - self._since_s
        self._doing, self._since_s = step, now_s
