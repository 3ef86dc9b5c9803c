"""The places of the pool, and the jobs that go into them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from autotune.evaluate.process import WorkerProcess
from autotune.seam import ConfirmJob, Failed, Lowered, RaceJob, ScreenJob

# Executables that each worker keeps, the latest ones: another candidate of a binary is asked for when the first one's
# time is known, and by then the worker has turned to something else.
KEPT_BINARIES = 4


@dataclass(slots=True)
class Pending:
    """A job to hand out.

    Attributes:
        lost: Lanes of a race that already ended a worker.
        is_second_try: It found no room on the card once, which another candidate may have filled.
        problem_key: Names the problem.
        binary_key: Names the executable that it may share with other jobs; None where it shares none.
    """

    job: ScreenJob | RaceJob | ConfirmJob
    lost: dict[int, Failed] = field(default_factory=dict)
    is_second_try: bool = False
    problem_key: Hashable = field(init=False)
    binary_key: Hashable = field(init=False)

    def __post_init__(self) -> None:
        of = self.job if isinstance(self.job, RaceJob) else self.job.candidate
        self.problem_key = of.target, repr(of.problem)
        binary = self.job.binary if isinstance(self.job, ScreenJob) else None
        self.binary_key = None if binary is None else (self.problem_key, binary)


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
    binaries: list[Hashable] = field(default_factory=list)  # that the worker keeps, the latest last

    @property
    def is_idle(self) -> bool:
        return self.process is not None and self.is_ready and self.pending is None

    def holds(self, problem_key: Hashable) -> bool:
        """Returns whether the process has a problem's operands on the card, or is about to."""
        if self.process is None:
            return False
        return problem_key in (self.held_key, self.pending and self.pending.problem_key)

    def take(self, pending: Pending) -> None:
        """Notes a job that is being handed over, and what its worker keeps from then on."""
        self.pending, self.has_served = pending, True
        if pending.binary_key is not None:
            self.binaries = [key for key in self.binaries if key != pending.binary_key]
            self.binaries = [*self.binaries, pending.binary_key][-KEPT_BINARIES:]

    def hold(self, problem_key: Hashable, size_bytes: int) -> None:
        """Notes that the worker has given up the problem before, with its executables, for another one."""
        if problem_key != self.held_key:
            self.binaries = [key for key in self.binaries if key == self.pending.binary_key]
        self.held_key, self.held_bytes = problem_key, size_bytes

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
        self.binaries.clear()
