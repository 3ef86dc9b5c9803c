"""Time that the parent of a run spends on each candidate, and its peak memory. No GPU, no jax.

The evaluator answers at once with a time that follows from the knobs, so everything between two of its answers is
the parent's own work: record in a real journal, tell, ask, check, submit. The space is made up, and as large as a real
one: 16 knobs, 1,119,744 points, of which half are legal; `--target hopper_matmul` takes the real one instead.

    PYTHONPATH=.:kernels python benchmarks/parent_time.py
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import io
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from autotune.driver import run
from autotune.progress import PlainProgress
from autotune.runconfig import RaceSettings, SearchSettings
from autotune.seam import (
    Confirmed,
    ConfirmJob,
    Lowered,
    Measured,
    MeasureProtocol,
    Outcome,
    Race,
    RaceEntry,
    RaceJob,
    Timing,
)
from autotune.stages import Stages
from autotune.textable import aligned

SIZES = (4, 9, 3, 6, 3, 2, 2, 2, 2, 2, 2, 3, 3, 1, 1, 1)


class MadeUpSpace:
    """Codes are the values; legal is what keeps a weighted sum of the first knobs under a limit."""

    def __init__(self) -> None:
        self.knobs = {f"knob_{index:02}": tuple(range(size)) for index, size in enumerate(SIZES)}
        self.raw_size = int(np.prod(SIZES))
        grid = np.indices(SIZES, dtype=np.uint8).reshape(len(SIZES), -1).T
        codes = np.ascontiguousarray(grid[is_legal(grid[:, 0], grid[:, 1], grid[:, 3])])
        self._legal = SimpleNamespace(
            codes=codes,
            size=len(codes),
            rejected={"smem": self.raw_size - len(codes)},
            knobs=lambda row: dict(zip(self.knobs, codes[row].tolist())),
        )

    def legal(self) -> Any:
        return self._legal


def is_legal(first: Any, second: Any, fourth: Any) -> Any:
    return first * 2 + second + fourth < 10


class MadeUpTarget:
    name = "made_up"

    def space(self, problem: Any, device: Any, narrowing: Any) -> MadeUpSpace:
        return MadeUpSpace()

    def config_from_knobs(self, knobs: dict[str, int]) -> tuple[int, ...]:
        return tuple(knobs.values())

    def check(self, problem: Any, config: tuple[int, ...], device: Any) -> tuple[Any, ...]:
        return () if is_legal(config[0], config[1], config[3]) else (SimpleNamespace(rule="smem"),)

    def mended_knobs(self, knobs: Any) -> dict[str, int]:
        return dict(knobs)

    def default_configs(self, problem: Any, device: Any) -> list[dict[str, int]]:
        return []

    def source_digest(self) -> str:
        return "0"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MadeUpProblem:
    flops: int = 2 * 4096**3
    min_bytes: int = 3 * 2 * 4096**2

    def to_fields(self) -> dict[str, int]:
        return {"m": 4096}

    def describe(self) -> str:
        return "made up"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MadeUpDevice:
    kind: str = "NVIDIA H200"


class InstantEvaluator:
    """Answers one job a poll, at once, with twenty samples.

    Attributes:
        parent_s: Seconds between an answer and the next poll, one for each screening job.
        parent_cpu_s: The same in seconds of CPU, which other processes on the machine do not touch.
    """

    kind = "gpu"

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.parent_s: list[float] = []
        self.parent_cpu_s: list[float] = []
        self._queue: list[Any] = []
        self._answered: tuple[float, float] | None = None
        self._random = random.Random(0)

    def submit(self, job: Any) -> None:
        self._queue.append(job)

    def poll(self, timeout_s: float) -> list[Outcome]:
        if self._answered is not None:
            self.parent_s.append(time.perf_counter() - self._answered[0])
            self.parent_cpu_s.append(time.process_time() - self._answered[1])
            self._answered = None
        job = self._queue.pop(0)
        if isinstance(job, RaceJob):
            lanes = [
                RaceEntry(finalist=i, result=self._measured(c.config)) for i, c in enumerate(job.candidates)
            ]
            return [Outcome(job_id=job.job_id, result=Race(entries=tuple(lanes)))]
        if isinstance(job, ConfirmJob):
            return [Outcome(job_id=job.job_id, result=Confirmed(runs=500, error=0.00123))]
        outcome = Outcome(job_id=job.job_id, result=self._measured(job.candidate.config))
        self._answered = time.perf_counter(), time.process_time()
        return [outcome]

    def close(self) -> None:
        self._queue.clear()

    def _measured(self, config: Any) -> Measured:
        digest = hashlib.sha256(repr(config).encode()).hexdigest()
        time_us = 100 + int(digest[:4], 16) / 1000
        samples_us = tuple(time_us * self._random.uniform(1, 1.03) for _ in range(20))
        lowered = Lowered(digest=digest[:32], smem_bytes=200_000, lower_s=0.271, compile_s=0.388)
        return Measured(
            lowered=lowered, timing=Timing(samples_us=samples_us, l2="clean"), error=0.00123, poisoned=True
        )


def measure(
    target: Any, problem: Any, device: Any, candidates: int, sampler: str, folder: Path
) -> InstantEvaluator:
    """Returns the evaluator of one run, with the parent's seconds in the order of the candidates."""
    evaluator = InstantEvaluator(capacity=16)
    stages = Stages(
        target=target,
        evaluator=evaluator,
        progress=PlainProgress(io.StringIO()),
        toolchain={"jax": "0.12.0", "jaxlib": "0.12.0", "driver": "580.65.06"},
    )
    config = SimpleNamespace(
        name="parent_time",
        problems=(SimpleNamespace(problem=problem, weight=1.0),),
        space={},
        search=SearchSettings(sampler=sampler, candidates=candidates, seconds=3600.0),
        protocol=MeasureProtocol(),
        race=RaceSettings(processes=3),
        results=folder,
        storage=None,
    )
    result = run(config, device, stages)
    counts = result.problems[0].counts
    print(
        f"{counts.legal:,} of {counts.raw:,} legal; illegal draws: {dict(counts.draws_rejected)}",
        file=sys.stderr,
    )
    return evaluator


def percentiles(times_s: list[float], step: int = 250) -> str:
    """Returns the table of percentiles in milliseconds, a row for each `step` candidates."""
    rows = []
    for start in [*range(0, len(times_s), step), None]:
        part = np.array(times_s if start is None else times_s[start : start + step]) * 1e3
        name = "all" if start is None else f"{start + 1} - {start + len(part)}"
        cells = [f"{value:.2f}" for value in (*np.percentile(part, [50, 90, 99]), part.max(), part.mean())]
        rows.append((name, *cells))
    return aligned(
        ("candidates", "p50 ms", "p90 ms", "p99 ms", "max ms", "mean ms"), rows, right=(1, 2, 3, 4, 5)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--candidates", type=int, default=2000)
    parser.add_argument("--sampler", default="tpe", choices=("tpe", "random", "exhaustive"))
    parser.add_argument("--target", default="made_up", choices=("made_up", "hopper_matmul"))
    options = parser.parse_args()
    target, problem, device = MadeUpTarget(), MadeUpProblem(), MadeUpDevice()
    if options.target == "hopper_matmul":
        from autotune.target import load_target

        target = load_target("hopper_matmul")
        problem = target.problem_from_fields({"m": 4096, "n": 8192, "k": 4096})
        device = target.device_named("NVIDIA H200")
    with tempfile.TemporaryDirectory() as folder:
        done = measure(target, problem, device, options.candidates, options.sampler, Path(folder))
    print(f"wall time\n{percentiles(done.parent_s)}\n\nCPU time\n{percentiles(done.parent_cpu_s)}\n")
    print(f"peak RSS {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
