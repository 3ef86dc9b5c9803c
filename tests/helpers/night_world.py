"""A machine, stored winners and a meter that follow a script: nights without a GPU, jax or a process."""

from __future__ import annotations

import dataclasses
import datetime
import math
import os
import random
import signal
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune.bestfile import entry_key
from autotune.nightly.budget import Clocks
from autotune.nightly.command import guarded
from autotune.nightly.config import NightConfig
from autotune.nightly.files import folder_within, night_lock
from autotune.nightly.profile import Profile
from autotune.nightly.values import Machine, Seen
from autotune.problemlist import WeightedProblem
from autotune.result import Counts, ProblemResult, Winner
from autotune.runconfig import RunConfig, SearchSettings
from autotune.seam import MeasureProtocol
from tests.helpers.best_entries import H200, TOOLS, best_file, entry, problem

SENTINELS_US = {"copy": 450.0, "fixed_kernel": 1200.0, "xla_dot": 180.0}
FIRST_NIGHT = datetime.datetime(2026, 12, 1, 2, 30, tzinfo=datetime.UTC)
SIZES = (64, 128, 256, 512)


def key(m: int) -> str:
    return entry_key("hopper_matmul", problem(m=m))


@dataclasses.dataclass
class World:
    """What is true of the machine tonight; change it between nights.

    Attributes:
        factor: Of all times, sentinels included.
        slower, xla_slower: Of single problems, by m.
        digests, failures: Of single problems, by m; the module of others is the stored one.
        found: Times that tuning comes to, by m; others come to the incumbent's.
        die_after: The process "dies" (KeyboardInterrupt) after so many verifications.
    """

    folder: Path
    factor: float = 1.0
    noise: float = 0.005
    card: str = "GPU-one"
    power_limit_w: float = 700.0
    driver: str = "580.1"
    jax: str = "0.12.0.1"
    slower: dict[int, float] = dataclasses.field(default_factory=dict)
    xla_slower: dict[int, float] = dataclasses.field(default_factory=dict)
    digests: dict[int, str] = dataclasses.field(default_factory=dict)
    failures: dict[int, tuple[str, str]] = dataclasses.field(default_factory=dict)
    found: dict[int, float] = dataclasses.field(default_factory=dict)
    unfit: str | None = None
    die_after: int | None = None
    asked: tuple[int, ...] = SIZES
    nights: int = 0
    pause_s: float = 0.0
    minutes: float = 60.0

    def __post_init__(self) -> None:
        self.random = random.Random(7)
        self.verified: list[str] = []
        self.tuned: list[int] = []

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def best_path(self) -> Path:
        return self.results / "best" / "nvidia_h200.json"

    def store(self, *sizes: int, **changes: Any) -> None:
        """Writes winners of 100 us against XLA's 110 us."""
        best_file(self.results / "best", *(entry(problem(m=m), **changes) for m in sizes))

    def config(self) -> NightConfig:
        run = RunConfig(
            path=Path("run.yaml"),
            name="simulated",
            evaluator="gpu",
            problems=tuple(WeightedProblem(problem=problem(m=m)) for m in self.asked),
            space={},
            search=SearchSettings(),
            protocol=MeasureProtocol(),
            results=self.results,
        )
        return NightConfig(path=Path("night.yaml"), run=run, minutes=self.minutes)

    def run(self, meter: ScriptedMeter | None = None, *, same_night: bool = False) -> int:
        """Runs the next night and returns its exit code."""
        if not same_night:
            self.nights += 1
        now = FIRST_NIGHT + datetime.timedelta(days=self.nights)
        with night_lock(folder_within(self.results, "nightly")):
            return guarded(self.config(), meter or ScriptedMeter(self), Clocks(now=lambda: now))

    def nights_pass(self, count: int) -> list[int]:
        return [self.run() for _ in range(count)]


class ScriptedMeter:
    """A `NightMeter` of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.device = H200
        self.machine = Machine(
            card=world.card,
            kind="NVIDIA H200",
            power_limit_w=world.power_limit_w,
            driver=world.driver,
            jax=world.jax,
            jaxlib=world.jax,
        )
        self.toolchain = dataclasses.replace(TOOLS, driver=world.driver, jax=world.jax, jaxlib=world.jax)
        self.gpu_s = 0.0
        self.profile = Profile()

    def unfit(self) -> str | None:
        return self.world.unfit

    def sentinels(self) -> dict[str, float]:
        factor, noise = self.world.factor, self.world.random.gauss
        return {name: time_us * factor * math.exp(noise(0, 0.002)) for name, time_us in SENTINELS_US.items()}

    def verify(self, checks: Any, rounds: int) -> Iterator[tuple[str, Seen]]:
        world = self.world
        for check in checks:
            if world.die_after is not None and len(world.verified) >= world.die_after:
                raise KeyboardInterrupt
            time.sleep(world.pause_s)
            world.verified.append(check.key)
            self.gpu_s += 1.0
            yield check.key, self._seen(check.entry, rounds)

    def retune(self, problem: Any, weight: float, incumbent: Any, space: Any, **_: Any) -> ProblemResult:
        world = self.world
        time.sleep(world.pause_s)
        world.tuned.append(problem.m)
        time_us = world.found.get(problem.m, 100.0)
        knobs = dict(incumbent or {}) if problem.m not in world.found else {"tile_m": 64, "compute_wgs": 1}
        ratio = 110.0 / time_us
        winner = Winner(
            knobs=self.knobs(knobs),
            backend="kernel",
            time_us=time_us,
            samples_us=(time_us,) * 3,
            xla_time_us=110.0,
            xla_samples_us=(110.0,) * 3,
            ratio=ratio,
            ratio_interval=(ratio - 0.01, ratio + 0.01),
            digest="f" * 32,
        )
        return ProblemResult(
            problem=problem,
            weight=weight,
            device=H200,
            protocol=MeasureProtocol(),
            evaluator="gpu",
            study="s",
            counts=Counts(raw=1, legal=1, rejected={}),
            winner=winner,
        )

    @staticmethod
    def knobs(knobs: dict[str, Any]) -> dict[str, Any]:
        from autotune.target import load_target

        return load_target("hopper_matmul").config_from_knobs(knobs).to_knobs()

    def close(self) -> None:
        """Nothing runs."""

    def _seen(self, stored: Any, rounds: int) -> Seen:
        world, m = self.world, stored.problem.m
        noise = world.random.gauss
        xla_us = 110.0 * world.factor * world.xla_slower.get(m, 1.0)
        xla = tuple(xla_us * math.exp(noise(0, world.noise)) for _ in range(rounds))
        if stored.config is None:
            return Seen(xla_us=xla)
        digest = world.digests.get(m, stored.digest)
        if m in world.failures:
            return Seen(xla_us=xla, digest=digest, failure=world.failures[m])
        kernel_us = stored.kernel_us if stored.digest == "f" * 32 else 100.0
        kernel_us *= world.factor * world.slower.get(m, 1.0)
        return Seen(
            kernel_us=tuple(kernel_us * math.exp(noise(0, world.noise)) for _ in range(rounds)),
            xla_us=xla,
            digest=digest,
        )


def kill_nights(folder: Path, count: int, seed: int, check: types.FunctionType) -> int:
    """Kills `count` nights in forked processes, each at a random moment, and calls `check` after each.

    Returns how many of them were killed before they ended.
    """
    import hopper_matmul.space  # noqa: F401 - before the forks, lest each spends its life importing it

    rng = random.Random(seed)
    killed = 0
    for round_ in range(count):
        child = os.fork()
        if child == 0:
            _nights_for_ever(folder, round_)
        time.sleep(rng.uniform(0.002, 0.15))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        check(World(folder))
    return killed


def _nights_for_ever(folder: Path, round_: int) -> None:
    """Runs nights in which something happens, until it is killed."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - of a process that is killed
    try:
        world = World(folder, pause_s=0.001)
        world.random.seed(round_)
        for number in range(1000):
            world.nights = round_ // 2 * 1000 + number  # every other one goes on with the one before
            world.digests = {64: f"{number % 2}" * 32}
            world.slower = {128: 1.1} if number % 3 else {}
            world.found = {128: 90.0 + number % 5}
            world.run()
    except BaseException as error:  # noqa: BLE001 - the parent reads the status
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)
