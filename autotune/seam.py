"""The data that passes between the stages of a run: candidate -> job -> outcome.

Everything here is a frozen dataclass that pickles, so that a job can cross into a worker process and an outcome
can come back. The stages (search, evaluate, ledger) import this module and never each other.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Knobs = dict[str, Any]
L2State = Literal["warm", "clean"]
FailureReason = Literal[
    "lower",  # the compiler refused to lower: a bug of the early check, since the candidate had passed it
    "compile",  # ptxas or the executable's load failed
    "launch",  # the kernel did not start or ended with a CUDA error
    "timeout",  # a limit passed; the worker was killed
    "crash",  # the worker process died
    "memory",  # operands, result or reference did not fit
    "wrong",  # ran, but the result differs from the reference
    "unwritten",  # ran, but left poison in the output
    "error",  # any other exception of the candidate's own, with its text
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureProtocol:
    """How a time was taken. Part of every record, and of the name of a study.

    Attributes:
        timer: "cupti" sums the durations of all kernels of one call, in microseconds.
        l2: "clean" evicts the operands with reads before each launch; "warm" launches back to back.
        rounds: Launches that are kept for each candidate; the race interleaves that many rounds.
        warmup: Launches before them that are thrown away.
    """

    timer: Literal["cupti"] = "cupti"
    l2: L2State = "clean"
    rounds: int = 20
    warmup: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one candidate may take before its worker is killed, in seconds."""

    lower_s: float = 60.0
    compile_s: float = 120.0
    run_s: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A problem with one configuration, as asked for by the search and passed by the check."""

    target: str
    problem: Any
    config: Any
    device: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenJob:
    """Lower, compile, verify and measure one candidate."""

    job_id: int
    candidate: Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceJob:
    """Measure several candidates and the target's rival, interleaved round by round in one process.

    Attributes:
        candidates: The finalists, best first. May be empty: then only the rival is measured.
    """

    job_id: int
    problem: Any
    target: str
    candidates: tuple[Candidate, ...]
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """GPU time of one candidate. Every sample is kept, so that a report can judge the noise."""

    samples_us: tuple[float, ...]  # all kernels of one call summed, in launch order, after warm-up
    l2: L2State

    @property
    def median_us(self) -> float:
        return statistics.median(self.samples_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """What lowering and compiling a candidate gave.

    Attributes:
        digest: SHA-256 of the lowered module's text, first 32 hex digits.
        smem_bytes: Dynamic shared memory of one CTA; None where the target does not report it.
        lower_s, compile_s: Wall time of each step; compile_s is None where it was not compiled.
    """

    digest: str
    smem_bytes: int | None = None
    lower_s: float
    compile_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A candidate that ran, was right, and was timed.

    Attributes:
        error: ||out - reference|| / ||reference|| in float32.
        poisoned: Whether the output buffer provably held NaN before the verified call.
        duplicate_of: Job whose identical lowered module was measured instead; None when measured itself.
    """

    lowered: Lowered
    timing: Timing
    error: float | None = None
    poisoned: bool = False
    duplicate_of: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredOnly:
    """What the evaluator `lower` gives: the candidate lowers, nothing is known of its time."""

    lowered: Lowered
    duplicate_of: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A candidate that did not survive. Never a time, never infinity."""

    reason: FailureReason
    detail: str  # one line: exception type and text, exit signal, error figure, or the limit that passed
    lowered: Lowered | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceEntry:
    """One lane of a race: a finalist (its index in RaceJob.candidates) or the rival (None)."""

    finalist: int | None
    result: Measured | Failed
    formulation: str | None = None  # of the rival, such as "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """All lanes of one race; samples with the same index were taken in the same round."""

    entries: tuple[RaceEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a job."""

    job_id: int
    result: Measured | LoweredOnly | Failed | Race


class Evaluator(Protocol):
    """The one seam behind "lower, compile, verify, measure": gpu, replay and lower implement it.

    `submit` never blocks; `poll` waits up to `timeout_s` for at least one outcome and returns all that are ready.
    Each submitted job ends in exactly one outcome, unless `close` is called first. `close` ends all workers.
    """

    kind: Literal["gpu", "replay", "lower"]
    capacity: int  # jobs worth keeping in flight

    def submit(self, job: ScreenJob | RaceJob) -> None: ...

    def poll(self, timeout_s: float) -> Sequence[Outcome]: ...

    def close(self) -> None: ...


def to_json(record: Any) -> dict[str, Any]:
    """Returns a frozen dataclass of this module as plain JSON-able data."""
    return dataclasses.asdict(record)
