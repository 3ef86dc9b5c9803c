"""The time of a night: what it is, how much has passed, and how much is left."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Time, so that tests can pass their own."""

    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC)
    monotonic: Callable[[], float] = time.monotonic


class Budget:
    """The wall clock that a night may take, from when it is made."""

    def __init__(self, minutes: float, clocks: Clocks) -> None:
        self._clock = clocks.monotonic
        self._began_s = self._clock()
        self._deadline_s = self._began_s + minutes * 60

    @property
    def spent_s(self) -> float:
        return self._clock() - self._began_s

    @property
    def left_s(self) -> float:
        return self._deadline_s - self._clock()

    @property
    def is_late(self) -> bool:
        return self.left_s <= 0
