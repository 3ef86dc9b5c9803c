"""The card that a benchmark measures on, its evaluator, and the time after which a benchmark stops and reports."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from autotune import machine
from autotune.evaluate import make_evaluator
from autotune.evaluate.capacity import default_workers
from autotune.protocol import AUTO
from autotune.runconfig import RaceSettings
from autotune.seam import Candidate, Evaluator, Limits, MeasureProtocol, RaceJob

MOST_WORKERS = 12  # races wait for the card's lock, so that more of them only start up in vain


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A Hopper GPU, and the target's device for it."""

    gpu: machine.GpuInfo
    device: Any

    def evaluator(self, target_name: str, *, workers: int | None = None, **options: Any) -> Evaluator:
        """Returns the real evaluator on this card; its workers start at once."""
        return make_evaluator(
            "gpu",
            protocol=AUTO,
            limits=Limits(),
            target_name=target_name,
            device=self.device,
            workers=workers or min(MOST_WORKERS, default_workers(on_gpu=True)),
            gpu=self.gpu,
            **options,
        )


def card_of(parser: argparse.ArgumentParser, target: Any, index: int | None = None) -> Card:
    """Returns the first Hopper GPU, or the one of NVML's `index`; ends the program where there is none."""
    gpus = [gpu for gpu in machine.hopper_gpus() if index in (None, gpu.index)]
    if not gpus:
        parser.error(f"there is no Hopper GPU{'' if index is None else f' {index}'} to measure on")
    gpu = gpus[0]
    known = target.device_named(gpu.kind)
    device = dataclasses.replace(known, sm_count=gpu.sm_count, memory_bytes=gpu.memory_bytes)
    return Card(gpu=gpu, device=device)


def race_job(
    target_name: str,
    problem: Any,
    configs: Sequence[Any],
    device: Any,
    *,
    protocol: MeasureProtocol,
    formulations: tuple[str, ...] | None = None,
) -> RaceJob:
    """Returns one session of a race of these kernels as long as a run's; `formulations` as in RaceJob."""
    settings = RaceSettings()
    return RaceJob(
        job_id=0,
        problem=problem,
        target=target_name,
        candidates=tuple(
            Candidate(target=target_name, problem=problem, config=config, device=device) for config in configs
        ),
        rounds=settings.rounds,
        protocol=protocol,
        formulations=formulations,
        seconds=settings.seconds,
    )


class Deadline:
    """Called between two steps; raises TimeoutError once `seconds` have passed since it was made."""

    def __init__(self, seconds: float):
        self._began_s = time.monotonic()
        self._seconds = seconds

    def __call__(self) -> None:
        if self.passed_s > self._seconds:
            raise TimeoutError

    @property
    def passed_s(self) -> float:
        return time.monotonic() - self._began_s


class Lines:
    """Says each result as a line of JSON as it comes, and appends it to a file where one is named.

    Args:
        unsaid: Fields that only the file is given.
    """

    def __init__(self, path: str | None, unsaid: Collection[str] = ()):
        self._path, self._unsaid = Path(path) if path else None, unsaid

    def __call__(self, **fields: Any) -> None:
        print(json.dumps({name: one for name, one in fields.items() if name not in self._unsaid}), flush=True)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(fields) + "\n")
