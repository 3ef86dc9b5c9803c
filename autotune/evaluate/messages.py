"""What crosses the pipe between the parent of a run and a worker process. Everything here pickles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autotune.seam import (
    Confirmed,
    ConfirmJob,
    Failed,
    Lowered,
    LoweredOnly,
    Measured,
    MeasureProtocol,
    Race,
    RaceJob,
    ScreenJob,
)

RIVAL = -1  # the lane of the target's rival; finalists count from 0

StepName = Literal[
    "start",  # interpreter, jax and the CUDA context
    "lower",
    "ask",  # waits for the parent to say whether an identical module is measured already
    "compile",  # of the candidate
    "prepare",  # compiles what verifies a problem; once for each problem and worker
    "wait",  # for the GPU lock
    "run",  # verifies and measures, under the lock
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """All that a worker is told before its first job.

    Attributes:
        measures: False: stop after lowering; the worker then never asks for a device.
        platform: What candidates are lowered and compiled for; "cpu" serves the tests.
        target_loader: Importable function from a target's name to the target.
        make_timer: Importable function that returns a `timing.Timer`.
        lock_path: File whose flock stands for the GPU.
        make_watch: Picklable function that returns a `guard.Watch` of the card; None: nobody watches it.
        shared: The card is in use by others, and the user said to go on.
        seed: Of the operands; equal for all workers, so that all verify the same product.
    """

    measures: bool
    platform: Literal["cuda", "cpu"]
    protocol: MeasureProtocol
    target_loader: Callable[[str], Any]
    make_timer: Callable[[], Any] | None = None
    lock_path: str | None = None
    make_watch: Callable[[], Any] | None = None
    shared: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Parent to worker: do this job. `lost` names the lanes of a race that already ended a worker."""

    job: ScreenJob | RaceJob | ConfirmJob
    lost: Mapping[int, Failed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Parent to worker: compile and measure it. `best_us` is the best score of the problem so far."""

    best_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Parent to worker: an identical module is measured already or elsewhere; drop the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Worker to parent: started, send a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailed:
    """Worker to parent: cannot serve, and why, in one line."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Worker to parent: a new step begins, and with it its limit."""

    name: StepName
    lane: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Worker to parent: GPU memory that serving this job's problem takes in one worker, in bytes."""

    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Worker to parent: lowered; answered by Grant or Release."""

    lowered: Lowered


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Worker to parent: the job's end. `leaving`: the CUDA context is lost, this process ends now."""

    result: Measured | LoweredOnly | Failed | Race | Confirmed
    leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLost:
    """Worker to parent: this lane of a race cost the CUDA context; race without it. The process ends."""

    lane: int
    failed: Failed
