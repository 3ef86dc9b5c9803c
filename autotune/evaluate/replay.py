"""The evaluator `replay`: times come from a recorded space, while every candidate is really lowered."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from autotune.evaluate.pool import Pool
from autotune.evaluate.recorded import RecordedSpace
from autotune.seam import (
    Candidate,
    Failed,
    Lowered,
    LoweredOnly,
    Measured,
    Outcome,
    Race,
    RaceEntry,
    RaceJob,
    ScreenJob,
    Timing,
)


@dataclass(slots=True)
class _Race:
    """A race whose finalists are still being lowered; `lanes` are the pool's jobs, in their order."""

    job: RaceJob
    lanes: dict[int, Measured | Failed | None]


class Replay:
    """An `autotune.seam.Evaluator` that needs no GPU.

    Args:
        pool: Of the kind "lower"; closed with this evaluator.
        recorded: Times of each problem. A configuration that is not in them is an error of the caller.
    """

    kind: Literal["replay"] = "replay"

    def __init__(self, pool: Pool, recorded: Sequence[RecordedSpace]):
        self._pool = pool
        self._recorded = tuple(recorded)
        self._candidates: dict[int, Candidate] = {}
        self._races: dict[int, _Race] = {}
        self._of_race: dict[int, _Race] = {}
        self._outcomes: list[Outcome] = []
        # The lowerings of a race are jobs of their own; counted below zero they meet no caller's job.
        self._own_ids = itertools.count(-1, -1)

    @property
    def capacity(self) -> int:
        return self._pool.capacity

    def submit(self, job: ScreenJob | RaceJob) -> None:
        """Queues a job. Never blocks."""
        if isinstance(job, ScreenJob):
            self._candidates[job.job_id] = job.candidate
            self._pool.submit(job)
            return
        race = _Race(job, {next(self._own_ids): None for _ in job.candidates})
        for own_id, candidate in zip(race.lanes, job.candidates, strict=True):
            self._candidates[own_id], self._of_race[own_id] = candidate, race
            self._pool.submit(ScreenJob(job_id=own_id, candidate=candidate))
        self._end_if_complete(race)

    def poll(self, timeout_s: float) -> Sequence[Outcome]:
        """Returns the outcomes that are ready, after waiting up to `timeout_s` for the first."""
        for outcome in self._pool.poll(0.0 if self._outcomes else timeout_s):
            result = self._timed(self._candidates.pop(outcome.job_id), outcome.result)
            race = self._of_race.pop(outcome.job_id, None)
            if race is None:
                self._outcomes.append(Outcome(job_id=outcome.job_id, result=result))
            else:
                race.lanes[outcome.job_id] = result
                self._end_if_complete(race)
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._pool.close()

    def _timed(self, candidate: Candidate, result: LoweredOnly | Failed) -> Measured | Failed:
        """Returns the recorded end of a candidate that was lowered; what did not lower stays failed."""
        if isinstance(result, Failed):
            return result
        recorded = self._space_of(candidate.target, candidate.problem)
        found = self._find(candidate, recorded) if isinstance(recorded, RecordedSpace) else recorded
        if isinstance(found, str):
            return Failed(reason="error", detail=found, lowered=result.lowered)
        if found.failed is not None:
            return replace(found.failed, lowered=result.lowered)
        return Measured(
            lowered=result.lowered,
            timing=Timing(samples_us=found.samples_us, l2=recorded.l2),
            duplicate_of=result.duplicate_of,
        )

    def _space_of(self, target: str, problem: Any) -> RecordedSpace | str:
        """Returns the recorded space of a problem, or in words why there is none."""
        fields: Mapping[str, Any] = problem.to_fields()
        for recorded in self._recorded:
            if target == recorded.target and fields == recorded.problem:
                return recorded
        known = " and ".join(f"{space.target} {dict(space.problem)}" for space in self._recorded)
        return f"the recorded space is of {known}, not of {fields}"

    def _find(self, candidate: Candidate, recorded: RecordedSpace) -> Any:
        """Returns the recorded row, or in words why there is none."""
        knobs = candidate.config.to_knobs()
        known = {name: knobs[name] for name in recorded.knobs if name in knobs}
        then = type(candidate.config).from_knobs(known).to_knobs()
        # A knob that is newer than the recording was at its neutral value then, and at no other.
        if then != knobs:
            changed = ", ".join(f"{name}={knobs[name]!r}" for name in knobs if then.get(name) != knobs[name])
            return (
                f"not in the recorded space, which is older than a knob: {changed}; leave it at its default"
            )
        row = recorded.row(knobs)
        if row is not None:
            return row
        strange = [name for name in recorded.knobs if knobs.get(name) not in recorded.knobs[name]]
        said = ", ".join(f"{name}={knobs.get(name)!r}" for name in strange) or f"the combination {knobs}"
        return f"not in the recorded space: {said}; narrow the space to what was recorded"

    def _end_if_complete(self, race: _Race) -> None:
        if any(result is None for result in race.lanes.values()):
            return
        entries = [
            RaceEntry(finalist=index, result=_first_rounds(result, race.job.rounds))
            for index, result in enumerate(race.lanes.values())
        ]
        rival = RaceEntry(
            finalist=None, result=_first_rounds(self._rival(race.job), race.job.rounds), formulation="plain"
        )
        self._outcomes.append(Outcome(job_id=race.job.job_id, result=Race(entries=(*entries, rival))))

    def _rival(self, job: RaceJob) -> Measured | Failed:
        recorded = self._space_of(job.target, job.problem)
        if isinstance(recorded, str):
            return Failed(reason="error", detail=recorded)
        if not recorded.rival_us:
            return Failed(reason="error", detail="the recorded space holds no time of the rival")
        # What XLA's rival lowered to was not recorded, and nothing would be learnt from lowering it again.
        lowered = Lowered(digest="", lower_s=0.0)
        return Measured(lowered=lowered, timing=Timing(samples_us=recorded.rival_us, l2=recorded.l2))


def _first_rounds(result: Measured | Failed, rounds: int) -> Measured | Failed:
    if isinstance(result, Failed):
        return result
    samples_us = result.timing.samples_us[:rounds]
    return replace(result, timing=replace(result.timing, samples_us=samples_us))
