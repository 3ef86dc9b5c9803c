"""The sessions of a race: the same lanes in several fresh processes, of one race or of many at once.

XLA decides once a process how to multiply, and memory is laid out once. So a ratio to XLA is against the fastest of
at least `FEWEST_COMPILATIONS` compilations of it, each in a process of its own.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

from autotune.seam import FEWEST_COMPILATIONS, Evaluator, Failed, Measured, Race, RaceJob
from autotune.verdict import merged

POLL_S = 0.25


@dataclasses.dataclass(slots=True)
class _Open:
    """A race of which sessions are still to come; `results` are in the order of their coming."""

    job: RaceJob
    awaited: int
    results: list[Race | Failed] = dataclasses.field(default_factory=list)
    was_topped_up: bool = False


def raced(
    evaluator: Evaluator,
    races: Iterable[tuple[Hashable, RaceJob]],
    *,
    processes: int,
    job_ids: Iterator[int],
    between: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Any, list[Race | Failed]]]:
    """Yields the sessions of each race with its key, as races end; many are in flight at once.

    While one process measures, the others start, lower and compile. Where sessions ended without a time of XLA
    although XLA can be measured, as many are run again, once.

    Args:
        evaluator: Must have no other job in flight.
        races: Keys with the job of each session but for its `job_id` and `session`, which are given here.
        processes: Sessions of each race.
        between: Called between two polls; what it raises ends everything.
    """
    queue: deque[tuple[Hashable, RaceJob]] = deque()
    open_races: dict[Hashable, _Open] = {}
    in_flight: dict[int, Hashable] = {}
    waiting = iter(races)
    is_exhausted = False
    while True:
        while not is_exhausted and len(queue) + len(in_flight) < evaluator.capacity:
            key, job = next(waiting, (None, None))
            if job is None:
                is_exhausted = True
                break
            open_races[key] = _Open(job, processes)
            queue.extend((key, _session(job, number)) for number in range(processes))
        while queue and len(in_flight) < evaluator.capacity:
            key, job = queue.popleft()
            job = dataclasses.replace(job, job_id=next(job_ids))
            in_flight[job.job_id] = key
            evaluator.submit(job)
        if not in_flight:
            return
        for outcome in evaluator.poll(POLL_S):
            key = in_flight.pop(outcome.job_id)
            one = open_races[key]
            one.results.append(outcome.result)
            one.awaited -= 1
            if one.awaited:
                continue
            again = _missing(one, processes)
            if again:
                one.was_topped_up, one.awaited = True, len(again)
                queue.extendleft((key, job) for job in again)
                continue
            del open_races[key]
            yield key, one.results
        between()


def as_one(results: Sequence[Race | Failed]) -> Race | Failed:
    """Returns the sessions of a race as one race; a failure where none of them was a race."""
    races = [result for result in results if isinstance(result, Race)]
    return merged(races) if races else results[0]


def compilations(results: Sequence[Race | Failed]) -> int:
    """Returns in how many sessions XLA was measured, and so compiled anew."""
    return sum(
        any(lane.finalist is None and isinstance(lane.result, Measured) for lane in result.entries)
        for result in results
        if isinstance(result, Race)
    )


def _missing(one: _Open, processes: int) -> list[RaceJob]:
    """Returns the sessions to run again. XLA that was measured nowhere cannot be measured."""
    found = compilations(one.results)
    short = min(processes, FEWEST_COMPILATIONS) - found
    if one.was_topped_up or not found or short <= 0:
        return []
    return [_session(one.job, processes + extra) for extra in range(short)]


def _session(job: RaceJob, number: int) -> RaceJob:
    # What the card can do is asked of the first process alone: the large product takes XLA seconds to compile.
    return dataclasses.replace(job, session=number, ceilings=job.ceilings and not number)
