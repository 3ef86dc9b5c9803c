"""One CUPTI session: a schedule of launches, and which of the reported kernels belong to which.

CUPTI reports the kernels of this process one by one, in launch order, and does not say which call a kernel
belongs to. So each session runs a schedule that is known beforehand, and every kernel is matched by position
and name; a session that does not match is an error, never a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.evaluate.heldtime import HeldTime

ATTEMPTS = 2  # CUPTI may drop records; twice in a row is no accident

Kernels = list[tuple[str, float]]  # name and duration in milliseconds, in launch order
Trace = Callable[[Callable[[], Any]], Kernels]


class TimingError(RuntimeError):
    """CUPTI did not report the kernels that were launched."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One call of a schedule.

    Attributes:
        names: Of the kernels that it must report; None: not known yet.
        lane: That keeps the sum; None: it is dropped.
    """

    call: Callable[[], Any]
    names: tuple[str, ...] | None
    lane: int | None


@dataclass(frozen=True, slots=True)
class Launched:
    """A call of a session that came out as scheduled, and the time of its kernels together."""

    launch: Launch
    time_us: float


class Sessions:
    """Runs schedules.

    Args:
        trace: Runs a function, and returns the kernels that were launched on the GPU meanwhile.
        wait: Waits for the last result of a session to be there.

    Attributes:
        held: Hears what of the time is CUPTI's and what the kernels'.
    """

    def __init__(self, trace: Trace, wait: Callable[[Any], Any]):
        self._trace_kernels = trace
        self._wait = wait
        self.held = HeldTime()

    def names(self, call: Callable[[], Any]) -> tuple[str, ...]:
        """Returns the names of the kernels that a call launches."""
        self._trace([call])  # the first one may also allocate and fill what it reads
        return tuple(name for name, _ in self._trace([call]))

    def run(self, schedule: Sequence[Launch], unknown: str = "") -> list[Launched]:
        """Returns the calls of one session with their times.

        Args:
            schedule: Calls whose kernels are not known are all the same one, and the first call is one of them.
            unknown: Name of that call.

        Raises:
            TimingError: Kernels are missing or out of order, twice.
        """
        kernels: Kernels = []
        for _ in range(ATTEMPTS):
            kernels = self._trace([launch.call for launch in schedule])
            named = _named(schedule, kernels)
            expected = [name for launch in named for name in launch.names]
            if named and [name for name, _ in kernels] == expected:
                return _timed(named, kernels)
        raise TimingError(_mismatch(schedule, len(kernels), unknown))

    def _trace(self, calls: Sequence[Callable[[], Any]]) -> Kernels:
        def run() -> None:
            with self.held.timed("kernels"):
                self._wait(_call_in_order(calls))

        with self.held.timed("profiler"):
            return self._trace_kernels(run)


def _named(schedule: Sequence[Launch], kernels: Kernels) -> list[Launch]:
    """Returns the schedule with all names of kernels; nothing where their number does not come out even."""
    unknown = sum(launch.names is None for launch in schedule)
    if not unknown:
        return list(schedule)
    each, rest = divmod(len(kernels) - sum(len(launch.names or ()) for launch in schedule), unknown)
    if each < 1 or rest:
        return []
    names = tuple(name for name, _ in kernels[:each])
    return [
        dataclasses.replace(launch, names=names) if launch.names is None else launch for launch in schedule
    ]


def _timed(schedule: Sequence[Launch], kernels: Kernels) -> list[Launched]:
    launched, position = [], 0
    for launch in schedule:
        end = position + len(launch.names)
        launched.append(Launched(launch, 1e3 * sum(time_ms for _, time_ms in kernels[position:end])))
        position = end
    return launched


def _mismatch(schedule: Sequence[Launch], reported: int, unknown: str) -> str:
    calls = sum(launch.names is None for launch in schedule)
    known = sum(len(launch.names or ()) for launch in schedule)
    if calls:
        beside = f" and {known} other kernels" if known else ""
        return f"{unknown}: {calls} equal calls{beside} launched {reported} kernels in all"
    return f"CUPTI reported {reported} kernels where {known} were launched, or out of order"


def _call_in_order(calls: Sequence[Callable[[], Any]]) -> Any:
    """Returns the last result; the others are dropped at once, so that their memory can be used again."""
    result = None
    for call in calls:
        result = call()
    return result
