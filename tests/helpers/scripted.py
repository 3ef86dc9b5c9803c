"""A target whose times are a function of its knobs, and an evaluator that follows a script. No jax, no process."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autotune.progress import PlainProgress
from autotune.runconfig import RaceSettings, SearchSettings
from autotune.seam import (
    Confirmed,
    ConfirmJob,
    Failed,
    Lowered,
    LoweredOnly,
    Measured,
    MeasureProtocol,
    Outcome,
    Race,
    RaceEntry,
    RaceJob,
    ScreenJob,
    Timing,
)
from autotune.stages import Stages

KNOBS: dict[str, tuple[Any, ...]] = {
    "tile_m": (64, 128, 192, 256),
    "tile_n": (64, 128, 192, 256),
    "stages": (1, 2, 3, 4, 5),
    "order": ("rows", "columns"),
    "persistent": (False, True),
}


def smem_rule(knobs: Mapping[str, Any]) -> str | None:
    """192 or more of tile_m x stages is too much, as is anything wider than tile_m + tile_n = 384."""
    if knobs["tile_m"] * knobs["stages"] > 640:
        return "smem"
    return "threads" if knobs["tile_m"] + knobs["tile_n"] > 384 else None


def smooth_time_us(knobs: Mapping[str, Any]) -> float:
    """Least at tile_m=128, tile_n=256, stages=4, order=rows, persistent=True: 10 us."""
    time_us = 10.0
    time_us += abs(knobs["tile_m"] - 128) / 32 + abs(knobs["tile_n"] - 256) / 32 + abs(knobs["stages"] - 4)
    return time_us + (knobs["order"] != "rows") * 2.0 + (not knobs["persistent"]) * 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedProblem:
    m: int = 4096

    @property
    def flops(self) -> int:
        return 2 * self.m**3

    @property
    def min_bytes(self) -> int:
        return 6 * self.m**2

    def to_fields(self) -> dict[str, int]:
        return {"m": self.m}

    def describe(self) -> str:
        return f"{self.m} cubed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedDevice:
    kind: str = "NVIDIA H200"
    sm_count: int = 132


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedRejection:
    rule: str

    def line(self) -> str:
        return f"{self.rule}: no"


@dataclass(frozen=True, slots=True)
class ScriptedLegalSet:
    names: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    codes: np.ndarray
    rejected: Mapping[str, int]
    examples: Mapping[str, Mapping[str, Any]]

    @property
    def size(self) -> int:
        return len(self.codes)

    def knobs(self, row: int) -> dict[str, Any]:
        return {n: v[c] for n, v, c in zip(self.names, self.values, self.codes[row].tolist())}


class ScriptedSpace:
    def __init__(
        self,
        knobs: Mapping[str, tuple[Any, ...]],
        rule: Callable[[Mapping[str, Any]], str | None],
        runtime_knobs: tuple[str, ...] = (),
    ) -> None:
        self.knobs = dict(knobs)
        self.runtime_knobs = runtime_knobs
        self.raw_size = int(np.prod([len(values) for values in knobs.values()]))
        self._rule = rule
        self._legal: ScriptedLegalSet | None = None

    def legal(self) -> ScriptedLegalSet:
        if self._legal is None:
            names, values = tuple(self.knobs), tuple(self.knobs.values())
            rejected: Counter[str] = Counter()
            examples: dict[str, dict[str, Any]] = {}
            rows = []
            for codes in itertools.product(*(range(len(v)) for v in values)):
                knobs = {n: v[c] for n, v, c in zip(names, values, codes)}
                broken = self._rule(knobs)
                if broken is None:
                    rows.append(codes)
                else:
                    rejected[broken] += 1
                    examples.setdefault(broken, knobs)
            codes = np.array(rows, dtype=np.uint8).reshape(len(rows), len(names))
            self._legal = ScriptedLegalSet(names, values, codes, dict(rejected), examples)
        return self._legal


class ScriptedTarget:
    """Legal is what `rule` has nothing to say about."""

    name = "scripted"

    def __init__(
        self,
        rule: Callable[[Mapping[str, Any]], str | None] = smem_rule,
        knobs: Mapping[str, tuple[Any, ...]] = KNOBS,
        defaults: Sequence[Mapping[str, Any]] = (),
        runtime_knobs: tuple[str, ...] = (),
    ) -> None:
        self.rule, self.knobs, self.defaults = rule, knobs, defaults
        self.runtime_knobs = runtime_knobs
        self.checked = 0

    def space(self, problem: Any, device: Any, narrowing: Mapping[str, Any]) -> ScriptedSpace:
        narrowed = {name: tuple(values) for name, values in narrowing.items()}
        return ScriptedSpace({**self.knobs, **narrowed}, self.rule, self.runtime_knobs)

    def config_from_knobs(self, knobs: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
        return tuple(knobs.items())

    def mended_knobs(self, knobs: Any) -> dict[str, Any]:
        return dict(knobs)

    def check(self, problem: Any, config: Any, device: Any) -> tuple[ScriptedRejection, ...]:
        self.checked += 1
        broken = self.rule(dict(config))
        return () if broken is None else (ScriptedRejection(rule=broken),)

    def default_configs(self, problem: Any, device: Any) -> list[dict[str, Any]]:
        return [dict(knobs) for knobs in self.defaults]

    def distance(self, a: Any, b: Any) -> float:
        return abs(math.log2(a.m / b.m))

    def source_digest(self) -> str:
        return "0" * 16


def digest(knobs: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(knobs, sort_keys=True).encode()).hexdigest()[:32]


def measured(knobs: Mapping[str, Any], samples_us: Sequence[float], module: str | None = None) -> Measured:
    lowered = Lowered(digest=module or digest(knobs), smem_bytes=1024, lower_s=0.2, compile_s=0.4)
    return Measured(lowered=lowered, timing=Timing(samples_us=tuple(samples_us), l2="clean"), error=1e-3)


class ScriptedEvaluator:
    """Answers in the order of submission, `capacity` at a time.

    Attributes:
        screened: Knobs of every screening job that was answered.
        binaries: The binary that each of them named.
        races: Every race job.
        confirmed: Knobs of every confirmation.
        interrupt_after: Raise KeyboardInterrupt from the poll after that many answers; None: never.
    """

    def __init__(
        self,
        time_us: Callable[[Mapping[str, Any]], float] = smooth_time_us,
        *,
        fails: Callable[[Mapping[str, Any]], Failed | None] = lambda knobs: None,
        race_time_us: Callable[[Mapping[str, Any]], float] | None = None,
        race_fails: Callable[[Mapping[str, Any]], bool] = lambda knobs: False,
        confirm_fails: Callable[[Mapping[str, Any]], Failed | None] = lambda knobs: None,
        rival_us: float | None = 12.0,
        kind: str = "gpu",
        capacity: int = 3,
        interrupt_after: int | None = None,
        on_answer: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.time_us, self.fails, self.kind, self.capacity = time_us, fails, kind, capacity
        self.race_time_us, self.race_fails, self.rival_us = race_time_us or time_us, race_fails, rival_us
        self.interrupt_after, self.on_answer = interrupt_after, on_answer
        self.confirm_fails = confirm_fails
        self.screened: list[dict[str, Any]] = []
        self.binaries: list[str | None] = []
        self.confirmed: list[dict[str, Any]] = []
        self.races: list[RaceJob] = []
        self.is_closed = False
        self._queue: list[ScreenJob | RaceJob | ConfirmJob] = []

    def submit(self, job: ScreenJob | RaceJob | ConfirmJob) -> None:
        assert not self.is_closed
        self._queue.append(job)
        assert sum(getattr(each, "binary", None) is None for each in self._queue) <= self.capacity

    def poll(self, timeout_s: float) -> list[Outcome]:
        if self.interrupt_after is not None and len(self.screened) >= self.interrupt_after:
            self.interrupt_after = None
            raise KeyboardInterrupt
        if not self._queue:
            return []
        job = self._queue.pop(0)
        if isinstance(job, RaceJob):
            self.races.append(job)
            return [Outcome(job_id=job.job_id, result=self._race(job))]
        knobs = dict(job.candidate.config)
        if isinstance(job, ConfirmJob):
            self.confirmed.append(knobs)
            result = self.confirm_fails(knobs) or Confirmed(runs=500, error=1e-3, exact_runs=240)
            return [Outcome(job_id=job.job_id, result=result)]
        self.screened.append(knobs)
        self.binaries.append(job.binary)
        self.on_answer(len(self.screened))
        return [Outcome(job_id=job.job_id, result=self._screen(knobs))]

    def close(self) -> None:
        self.is_closed = True

    def _screen(self, knobs: dict[str, Any]) -> Measured | LoweredOnly | Failed:
        failed = self.fails(knobs)
        if failed is not None:
            return failed
        if self.kind == "lower":
            return LoweredOnly(lowered=Lowered(digest=digest(knobs), lower_s=0.2))
        return measured(knobs, [self.time_us(knobs)] * 3)

    def _race(self, job: RaceJob) -> Race:
        entries = []
        for index, candidate in enumerate(job.candidates):
            knobs = dict(candidate.config)
            failed = Failed(reason="crash", detail="signal 6") if self.race_fails(knobs) else None
            lane = failed or measured(knobs, [self.race_time_us(knobs)] * job.rounds)
            entries.append(RaceEntry(finalist=index, result=lane))
        if self.rival_us is not None:
            lane = measured({"rival": 1}, [self.rival_us] * job.rounds)
            entries.append(RaceEntry(finalist=None, result=lane, formulation="plain"))
        return Race(entries=tuple(entries))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedSearch(SearchSettings):
    sampler: Any = "tpe"
    candidates: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedWeighted:
    problem: ScriptedProblem = dataclasses.field(default_factory=ScriptedProblem)
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedConfig:
    """The fields of a RunConfig that a driver reads."""

    results: Path
    name: str = "scripted"
    problems: tuple[ScriptedWeighted, ...] = (ScriptedWeighted(),)
    space: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    search: ScriptedSearch = ScriptedSearch()
    protocol: MeasureProtocol = dataclasses.field(default_factory=lambda: MeasureProtocol(rounds=5))
    race: RaceSettings = dataclasses.field(default_factory=lambda: RaceSettings(processes=1, rounds=5))
    storage: str | None = None


def scripted_stages(
    evaluator: ScriptedEvaluator, target: ScriptedTarget | None = None, **stages: Any
) -> Stages:
    return Stages(
        target=target or ScriptedTarget(),
        evaluator=evaluator,
        progress=stages.pop("progress", PlainProgress(io.StringIO())),
        toolchain={"jax": "0.12.0", "jaxlib": "0.12.0", "driver": None},
        **stages,
    )


def legal_knobs(target: ScriptedTarget | None = None) -> Iterator[dict[str, Any]]:
    target = target or ScriptedTarget()
    legal = target.space(None, None, {}).legal()
    return (legal.knobs(row) for row in range(legal.size))
