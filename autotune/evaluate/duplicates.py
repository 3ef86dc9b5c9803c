"""Identical lowered modules are measured once: who measures, and who waits for whose result."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from dataclasses import dataclass, field

from autotune.seam import Failed, Lowered, LoweredOnly, Measured, Outcome

Result = Measured | LoweredOnly | Failed


@dataclass(slots=True)
class _Claim:
    """The first job with a module."""

    job_id: int
    result: Result | None = None
    waiting: list[tuple[int, Lowered]] = field(default_factory=list)


class Duplicates:
    """Keeps, for each lowered module seen, the job that measures it and its result."""

    def __init__(self) -> None:
        self._claims: dict[Hashable, _Claim] = {}
        self._by_job: dict[int, _Claim] = {}

    def claim(self, job_id: int, key: Hashable, lowered: Lowered) -> int | None:
        """Returns None where this job is the first with `key`, which includes the digest; else the first one.

        A later job need do nothing more: its outcome comes from `settle`, or from `settled` where the first
        one has ended.
        """
        claim = self._claims.get(key)
        if claim is not None and claim.job_id == job_id:  # it is tried again
            return None
        if claim is None:
            self._claims[key] = self._by_job[job_id] = _Claim(job_id)
            return None
        claim.waiting.append((job_id, lowered))
        return claim.job_id

    def settle(self, job_id: int, result: Result) -> list[Outcome]:
        """Records the end of a job and returns the outcomes of those that waited for it."""
        claim = self._by_job.pop(job_id, None)
        if claim is None:
            return []
        claim.result = result
        return self._drain(claim)

    def settled(self, key: Hashable) -> list[Outcome]:
        """Returns the outcomes of jobs that came after the first one with `key` had ended."""
        return self._drain(self._claims[key])

    @staticmethod
    def _drain(claim: _Claim) -> list[Outcome]:
        if claim.result is None:
            return []
        waiting, claim.waiting = claim.waiting, []
        return [
            Outcome(job_id=job_id, result=_as_duplicate(claim.result, claim.job_id, lowered))
            for job_id, lowered in waiting
        ]


def _as_duplicate(result: Result, first: int, lowered: Lowered) -> Result:
    if isinstance(result, Failed):
        detail = f"{result.detail} (same lowered module as job {first})"
        return Failed(reason=result.reason, detail=detail, lowered=lowered)
    if isinstance(result, LoweredOnly):
        return dataclasses.replace(result, lowered=lowered, duplicate_of=first)
    return dataclasses.replace(result, lowered=lowered, duplicate_of=first, locked_s=None, held_s=None)
