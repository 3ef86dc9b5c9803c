"""The places of the pool, and the jobs that go into them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from autotune.evaluate.process import WorkerProcess
from autotune.seam import ConfirmJob, Failed, Lowered, RaceJob, ScreenJob


@dataclass(slots=True)
class Pending:
    """A job to hand out.

    Attributes:
        lost: Lanes of a race that already ended a worker.
        is_second_try: It found no room on the card once, which another candidate may have filled.
    """

    job: ScreenJob | RaceJob | ConfirmJob
    lost: dict[int, Failed] = field(default_factory=dict)
    is_second_try: bool = False

    @property
    def problem_key(self) -> Hashable:
        if isinstance(self.job, RaceJob):
            return self.job.target, repr(self.job.problem)
        return self.job.candidate.target, repr(self.job.candidate.problem)


@dataclass(slots=True)
class Slot:
    """One place in the pool, with the process that fills it."""

    process: WorkerProcess | None = None  # None: given up
    pending: Pending | None = None
    lowered: Lowered | None = None
    is_ready: bool = False
    has_begun: bool = False  # the job reported a step
    has_served: bool = False  # the process was given a job before
    start_deaths: int = 0
    held_key: Hashable = None
    held_bytes: int = 0

    @property
    def is_idle(self) -> bool:
        return self.process is not None and self.is_ready and self.pending is None

    def holds(self, problem_key: Hashable) -> bool:
        """Returns whether the process has a problem's operands on the card, or is about to."""
        if self.process is None:
            return False
        return problem_key in (self.held_key, self.pending and self.pending.problem_key)

    def free(self) -> None:
        """Ends the job, but not the process."""
        self.pending, self.lowered, self.has_begun = None, None, False
        self.start_deaths = 0

    def fill(self, process: WorkerProcess) -> None:
        """Takes a fresh process, which knows nothing yet."""
        self.process = process
        self.pending, self.lowered, self.has_begun = None, None, False
        self.is_ready = self.has_served = False
        self.held_key, self.held_bytes = None, 0
