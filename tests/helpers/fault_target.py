"""The fake target as a whole target with a space of planted faults, and a program that tunes it with real workers."""

from __future__ import annotations

import dataclasses
import io
import itertools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.driver import run
from autotune.evaluate.pool import Pool
from autotune.progress import PlainProgress
from autotune.result import RunResult
from autotune.runconfig import RaceSettings
from autotune.seam import Limits, MeasureProtocol
from autotune.searchsettings import SearchSettings
from autotune.stages import Stages
from tests.helpers.fake_target import FakeConfig, FakeProblem, FakeTarget
from tests.helpers.pools import fake_pool
from tests.helpers.scripted import ScriptedLegalSet

# A fault in twenty: of 20 variants one crashes, hangs, faults or is wrong, in turn. Faulty variants would be the
# fastest of all if they were believed: `ScriptedTimer` gives variant v a time of 10 + v us.
FAULTS = ("abort", "wrong", "hang_while_measured", "segfault", "unwritten", "lose_context", "wrong", "exit")
EVERY = 20


def fault_of(variant: int) -> str:
    return "good" if variant % EVERY else FAULTS[variant // EVERY % len(FAULTS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultProblem(FakeProblem):
    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def min_bytes(self) -> int:
        return 4 * (self.m * self.k + self.k * self.n + self.m * self.n)

    def describe(self) -> str:
        return f"{self.m}x{self.n}x{self.k} float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultDevice:
    kind: str = "Fake Hopper"


class FaultSpace:
    def __init__(self, variants: int):
        import numpy as np

        # Codes are bytes, so a variant has two digits.
        digits = (tuple(range(0, variants, 100)), tuple(range(100)))
        self.knobs = {"hundreds": digits[0], "ones": digits[1]}
        self.raw_size = len(digits[0]) * len(digits[1])
        codes = np.array(list(itertools.product(*(range(len(one)) for one in digits))), dtype=np.uint8)
        codes = codes[[digits[0][a] + digits[1][b] < variants for a, b in codes.tolist()]]
        rejected = {"beyond": self.raw_size - len(codes)} if len(codes) < self.raw_size else {}
        self._legal = ScriptedLegalSet(tuple(self.knobs), digits, codes, rejected, examples={})

    def legal(self) -> ScriptedLegalSet:
        return self._legal


class FaultTarget(FakeTarget):
    """Variant v of `variants`; `now_and_then` makes the given one wrong once in a hundred runs."""

    def __init__(self, variants: int, now_and_then: int | None = None):
        self.variants, self.now_and_then = variants, now_and_then

    def space(self, problem: Any, device: Any, narrowing: Mapping[str, Any]) -> FaultSpace:
        return FaultSpace(self.variants)

    def config_from_knobs(self, knobs: Mapping[str, Any]) -> FakeConfig:
        variant = knobs["hundreds"] + knobs["ones"]
        mode = "now_and_then" if variant == self.now_and_then else fault_of(variant)
        return FakeConfig(mode=mode, variant=variant)

    def check(self, problem: Any, config: Any, device: Any) -> tuple[Any, ...]:
        return ()

    def default_configs(self, problem: Any, device: Any) -> list[dict[str, Any]]:
        return []

    def source_digest(self) -> str:
        return "0" * 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultWeighted:
    problem: FaultProblem = dataclasses.field(default_factory=FaultProblem)
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultConfig:
    """The fields of a RunConfig that a driver reads."""

    results: Path
    name: str = "faults"
    problems: tuple[FaultWeighted, ...] = (FaultWeighted(),)
    space: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    search: SearchSettings = dataclasses.field(
        default_factory=lambda: SearchSettings(sampler="exhaustive", candidates=1_000_000, seconds=600.0)
    )
    protocol: MeasureProtocol = dataclasses.field(default_factory=lambda: MeasureProtocol(rounds=3))
    race: RaceSettings = dataclasses.field(default_factory=lambda: RaceSettings(processes=1, rounds=5))
    storage: str | None = None


# Generous to a busy host but for the run, which hangs on purpose.
LIMITS = Limits(lower_s=30.0, compile_s=60.0, run_s=3.0)


def tune(folder: Path, variants: int, *, workers: int = 2, now_and_then: int | None = None) -> RunResult:
    """Tunes the fault target with worker processes; goes on with what `folder` holds."""
    folder.mkdir(parents=True, exist_ok=True)
    pool: Pool = fake_pool(folder, workers=workers, limits=LIMITS)
    stages = Stages(
        target=FaultTarget(variants, now_and_then),
        evaluator=pool,
        progress=PlainProgress(io.StringIO()),
        toolchain={"jax": "0.12.0", "jaxlib": "0.12.0", "driver": None},
    )
    return run(FaultConfig(results=folder), FaultDevice(), stages)


def main() -> None:
    """Tunes in the folder, and as many variants, as the command line says; prints the winner."""
    outcome = tune(Path(sys.argv[1]), int(sys.argv[2])).problems[0]
    print(outcome.winner.knobs["hundreds"] + outcome.winner.knobs["ones"], outcome.counts.resumed, flush=True)
