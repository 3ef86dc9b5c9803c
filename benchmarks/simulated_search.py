"""A simulated card for searches of many problems: what configurations would take, and an evaluator that says it."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from autotune.driver import run
from autotune.ledger.storage import RaceRecord, ScreenRecord
from autotune.problemlist import WeightedProblem
from autotune.progress import PlainProgress
from autotune.recordedtarget import RecordedTarget
from autotune.runconfig import RaceSettings
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
from autotune.searchsettings import SearchSettings
from autotune.stages import Stages

ERROR_SD = 0.12
NOISE_SD = 0.006  # of one sample
SAMPLES = 20
ALIKE = 2.0  # doublings of a size over which errors stay alike
TOGETHER, EFFECTS = 4, 40
# No time is far below this share of the model's least: what arithmetic or memory allows is known well.
BOUND, SHARP = 0.95, 8
IN_FLIGHT = 16

# Knobs that the simulation leaves free; some thousand legal configurations a problem.
SPACE: dict[str, tuple[Any, ...]] = {
    "compute_wgs": (1, 2),
    "tile_m": (64, 128, 256),
    "tile_n": (64, 128, 160, 256),
    "tile_k": (64, 128),
    "epi_m": (64,),
    "epi_n": (64,),
    "cluster_m": (1, 2),
    "cluster_n": (1, 2),
    "scopes": ("joint", "union", "acc_outside"),
    "stages": (3, 4, 6),
    "delay_release": (0, 1),
    "persistent": (True, False),
    "grid_minor": ("m", "n"),
    "raster_width": (8,),
}


class Truth:
    """What every configuration of a problem would take: the model's time, with an error of its own.

    An error is a sum of effects of four knobs together, so that configurations that differ in one, two and three of
    eleven knobs share some 0.64, 0.38 and 0.21 of it: 0.65, 0.38 and 0.18 in two recorded spaces (2026-11-30). Each
    effect is a wave over the logarithms of the problem's sizes: those of problems a doubling apart share 0.88 of it,
    two doublings 0.61, four 0.14. That has not been measured.
    """

    def __init__(self, target: Any, device: Any, draw: int) -> None:
        self._target, self._device, self._draw = target, device, draw
        self._known: dict[Any, tuple[Any, dict[tuple[int, ...], int], np.ndarray]] = {}

    def space(self, problem: Any) -> Any:
        return self._of(problem)[0]

    def time_us(self, problem: Any, knobs: Mapping[str, Any]) -> float:
        space, places, times_us = self._of(problem)
        codes = tuple(values.index(knobs[name]) for name, values in space.knobs.items())
        return float(times_us[places[codes]])

    def best_us(self, problem: Any) -> float:
        return float(self._of(problem)[2].min())

    def _of(self, problem: Any) -> tuple[Any, dict[tuple[int, ...], int], np.ndarray]:
        if problem not in self._known:
            space = self._target.space(problem, self._device, SPACE)
            codes = np.asarray(space.legal().codes, dtype=np.int64)
            free = [j for j, values in enumerate(space.knobs.values()) if len(values) > 1]
            places = {tuple(row): place for place, row in enumerate(codes.tolist())}
            model_us = space.predicted_us(codes)
            wrong_us = model_us * np.exp(self._errors(problem, codes, free))
            least_us = BOUND * model_us.min()
            times_us = (wrong_us**SHARP + least_us**SHARP) ** (1 / SHARP)
            self._known[problem] = space, places, times_us
        return self._known[problem]

    def _errors(self, problem: Any, codes: np.ndarray, free: list[int]) -> np.ndarray:
        sizes = np.log2([problem.m, problem.n, problem.k])
        chosen = random.Random(self._draw)
        total = np.zeros(len(codes))
        for effect in range(EFFECTS):
            key = np.full(len(codes), effect + 1, dtype=np.int64)
            for j in sorted(chosen.sample(free, TOGETHER)):
                key = key * 64 + codes[:, j]
            total += self._wave(sizes, key)
        return ERROR_SD * total / math.sqrt(EFFECTS)

    def _wave(self, sizes: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Returns the effect that each key stands for at a problem's sizes, of variance 1 over keys."""
        keys = np.asarray(keys).astype(np.uint64) * np.uint64(8) + np.uint64(self._draw * 2**40)
        slopes = [_normal(keys + np.uint64(i)) / ALIKE for i in range(3)]
        phase = 2 * math.pi * _uniform(keys + np.uint64(6))
        return math.sqrt(2) * np.cos(sum(s * x for s, x in zip(slopes, sizes)) + phase)


def _uniform(keys: np.ndarray) -> np.ndarray:
    """Returns a number from 0 to 1 for each key, the same always: splitmix64's mixing."""
    z = keys + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2**53


def _normal(keys: np.ndarray) -> np.ndarray:
    first, second = _uniform(keys * np.uint64(2)), _uniform(keys * np.uint64(2) + np.uint64(1))
    return np.sqrt(-2 * np.log(first + 1e-300)) * np.cos(2 * math.pi * second)


class RecordedTruth:
    """What every configuration of a recorded space took."""

    def __init__(self, target: Any, spaces: Mapping[Any, Any], device: Any) -> None:
        self._recorded, self._spaces = dict(spaces), {}
        self._target, self._device = target, device

    def space(self, problem: Any) -> Any:
        if problem not in self._spaces:
            recorded = self._recorded[problem]
            full = RecordedTarget(self._target, recorded)
            self._spaces[problem] = full.space(problem, self._device, recorded.knobs)
        return self._spaces[problem]

    def time_us(self, problem: Any, knobs: Mapping[str, Any]) -> float:
        row = self._recorded[problem].row(knobs)
        return float(np.median(row.samples_us)) if row and not row.failed else math.inf

    def best_us(self, problem: Any) -> float:
        rows = self._recorded[problem].rows.values()
        return min(float(np.median(row.samples_us)) for row in rows if not row.failed)


class MemoryLedger:
    """A study that ends with the process."""

    def __init__(self) -> None:
        self.name, self.spent_s, self.stopped = "simulated", 0.0, None
        self._screened: list[ScreenRecord] = []
        self._races: list[RaceRecord] = []

    def screened(self) -> list[ScreenRecord]:
        return list(self._screened)

    def news(self) -> list[ScreenRecord]:
        return []

    def races(self) -> list[RaceRecord]:
        return list(self._races)

    def confirmations(self) -> list[Any]:
        return []

    def record_screen(self, knobs: Mapping[str, Any], result: Any, spent_s: float) -> None:
        self._screened.append(ScreenRecord(number=len(self._screened), knobs=dict(knobs), result=result))

    def record_race(self, finalists: Any, rounds: int, result: Any, winner: Any, time_us: float) -> None:
        knobs = tuple(dict(one) for one in finalists)
        self._races.append(RaceRecord(number=0, finalists=knobs, rounds=rounds, result=result))

    def record_confirmation(self, knobs: Mapping[str, Any], result: Any) -> None:
        pass

    def finish_screening(self, spent_s: float, stopped: Any = None) -> None:
        self.spent_s, self.stopped = spent_s, stopped


class SimulatedEvaluator:
    """Answers with the truth and noise, in the order of submission.

    Attributes:
        trace: Problem, true time and score of every candidate, in their order.
    """

    kind, capacity = "gpu", IN_FLIGHT

    def __init__(self, truth: Any, seed: int) -> None:
        self._truth, self._rng = truth, np.random.default_rng(seed)
        self._queue: list[Any] = []
        self.trace: list[tuple[Any, float, float]] = []

    def submit(self, job: Any) -> None:
        self._queue.append(job)

    def poll(self, timeout_s: float) -> list[Outcome]:
        job = self._queue.pop(0)
        if isinstance(job, ConfirmJob):
            return [Outcome(job_id=job.job_id, result=Confirmed(runs=1, error=0.0))]
        if isinstance(job, RaceJob):
            lanes = [
                RaceEntry(finalist=place, result=self._measured(one)[0], session=job.session)
                for place, one in enumerate(job.candidates)
            ]
            return [Outcome(job_id=job.job_id, result=Race(entries=tuple(lanes)))]
        result, true_us = self._measured(job.candidate)
        self.trace.append((job.candidate.problem, true_us, result.timing.score_us))
        return [Outcome(job_id=job.job_id, result=result)]

    def close(self) -> None:
        self._queue.clear()

    def _measured(self, candidate: Any) -> tuple[Measured, float]:
        true_us = self._truth.time_us(candidate.problem, candidate.config.to_knobs())
        samples_us = true_us * np.exp(NOISE_SD * self._rng.standard_normal(SAMPLES))
        digest = f"{hash(candidate.config) % 2**64:032x}"
        timing = Timing(samples_us=tuple(samples_us.tolist()), l2="clean")
        return Measured(lowered=Lowered(digest=digest, lower_s=0.0), timing=timing, error=1e-3), true_us


class SimulatedTarget:
    """The target, with the spaces of the truth."""

    def __init__(self, target: Any, truth: Any) -> None:
        self._target, self._truth = target, truth

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def space(self, problem: Any, device: Any, narrowing: Any) -> Any:
        return self._truth.space(problem)


def searched(world: SimpleNamespace, problems: list[Any], seed: int, **search: Any) -> Any:
    """Returns the trace of a run over problems and its result; `search` as in SearchSettings."""
    evaluator = SimulatedEvaluator(world.truth, seed)
    stages = Stages(
        target=SimulatedTarget(world.target, world.truth),
        evaluator=evaluator,
        progress=PlainProgress(io.StringIO()),
        toolchain={},
        open_ledger=lambda *_, **__: MemoryLedger(),
    )
    config = SimpleNamespace(
        name="simulated",
        problems=tuple(WeightedProblem(problem=problem) for problem in problems),
        space={},
        search=SearchSettings(**{"seed": seed, "seconds": 1e6, **search}),
        protocol=MeasureProtocol(),
        race=RaceSettings(finalists=3, processes=3, rounds=3),
        results=Path("unused"),
        storage=None,
    )
    return evaluator.trace, run(config, world.device, stages)


def best_so_far(trace: list[tuple[Any, float, float]]) -> Iterator[dict[Any, tuple[float, float]]]:
    """Yields after each candidate the score and the true time of each problem's fastest as it was measured."""
    best: dict[Any, tuple[float, float]] = {}
    for problem, true_us, score_us in trace:
        if problem not in best or score_us < best[problem][0]:
            best[problem] = score_us, true_us
        yield best


def workload_regret(world: Any, best: Mapping[Any, tuple[float, float]]) -> float:
    """Returns by how much the workload takes longer with what was found than with the best of each, as a share."""
    if len(best) < len(world.problems):
        return math.inf
    return sum(true_us for _, true_us in best.values()) / sum(map(world.truth.best_us, world.problems)) - 1
