"""A target for tests of the workers: a small product whose build misbehaves as its configuration asks."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.evaluate.guard import Reading
from autotune.evaluate.timing import NOMINAL_US, Lane, Sampled
from autotune.seam import Candidate, MeasureProtocol, RaceJob, ScreenJob

NAME = "fake"
FOREVER_S = 600.0
WRONG_ORDER, FATAL_ORDER = 13, 66


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeProblem:
    """A float32 product of (m, k) by (k, n)."""

    m: int = 8
    n: int = 8
    k: int = 8

    def to_fields(self) -> dict[str, int]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeConfig:
    """What the candidate does.

    Attributes:
        mode: See `_misbehave`, `FakeTarget.build` and `ScriptedTimer`.
        variant: Configurations of different variants lower to different modules.
        note: No part of the module: configurations that differ in it alone are duplicates.
        order: A run-time knob, see `build_shared`.
    """

    mode: str = "good"
    variant: int = 0
    note: str = ""
    order: int = 0

    @classmethod
    def from_knobs(cls, knobs: Mapping[str, Any]) -> FakeConfig:
        return cls(**knobs)

    def to_knobs(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeDevice:
    kind: str = "Fake Hopper"


class FakeTarget:
    """The part of `autotune.target.Target` that workers use."""

    name = NAME

    def build(self, problem: FakeProblem, config: FakeConfig, device: FakeDevice) -> Callable[..., Any]:
        import jax.numpy as jnp

        _misbehave(config.mode)
        # A maximum with a number that no element reaches: another module for each variant, the same product.
        floor = -1000.0 - config.variant
        if config.mode == "wrong":
            return lambda lhs, rhs: jnp.maximum(1.5 * (lhs @ rhs), floor)
        if config.mode == "unwritten":
            return lambda lhs, rhs: jnp.where(lhs @ rhs > floor, jnp.nan, 0.0).at[0, 0].set(1.0)
        if config.mode == "fault_when_run":
            return _faulting
        if config.mode == "now_and_then":
            return _wrong_once_in_a_hundred
        if config.mode == "slow_compile":
            return _hard_to_compile
        if config.mode == "wrong_shape":
            return lambda lhs, rhs: (lhs @ rhs).T[:1]
        return lambda lhs, rhs: jnp.maximum(lhs @ rhs, floor)

    def build_shared(
        self, problem: FakeProblem, config: FakeConfig, device: FakeDevice
    ) -> Callable[..., Any]:
        """The order changes nothing, but that WRONG_ORDER gives a wrong product."""
        import jax.numpy as jnp

        function = self.build(problem, config, device)
        return lambda lhs, rhs, order: function(lhs, rhs) * jnp.where(order[0] == WRONG_ORDER, 1.5, 1.0)

    def shared_operand(self, problem: FakeProblem, config: FakeConfig, device: FakeDevice) -> Any:
        import numpy as np

        return np.array([config.order], np.int32)

    def operand_types(self, problem: FakeProblem) -> tuple[Any, ...]:
        import jax

        shapes = (problem.m, problem.k), (problem.k, problem.n)
        return tuple(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)

    def operands(self, problem: FakeProblem, seed: int) -> tuple[Any, ...]:
        import jax

        keys = jax.random.split(jax.random.key(seed))
        types = self.operand_types(problem)
        return tuple(jax.random.normal(key, each.shape) for key, each in zip(keys, types, strict=True))

    def exact_operands(self, problem: FakeProblem, seed: int) -> tuple[Any, ...]:
        import jax

        keys = jax.random.split(jax.random.key(seed))
        types = self.operand_types(problem)
        return tuple(
            jax.random.randint(key, each.shape, -2, 3).astype("float32")
            for key, each in zip(keys, types, strict=True)
        )

    def rival(self, problem: FakeProblem) -> Callable[..., Any]:
        return lambda lhs, rhs: lhs @ rhs

    def reference(self, problem: FakeProblem) -> Callable[..., Any]:
        import jax

        return lambda lhs, rhs: jax.lax.dot(lhs, rhs, precision=jax.lax.Precision.HIGHEST)

    def tolerance(self, problem: FakeProblem) -> float:
        return 1e-3


def _faulting(lhs: Any, rhs: Any) -> Any:
    """Raises the runtime's error when it runs, as an illegal access on a GPU does."""
    import jax

    def fail(product: Any) -> Any:
        raise RuntimeError("the fake kernel faults")

    product = lhs @ rhs
    return jax.pure_callback(fail, jax.ShapeDtypeStruct(product.shape, product.dtype), product)


def _wrong_once_in_a_hundred(lhs: Any, rhs: Any) -> Any:
    """Gives one element of every hundredth product the wrong sign."""
    import jax
    import numpy as np

    runs = itertools.count(1)

    def spoil(product: Any) -> Any:
        spoilt = np.array(product)
        if next(runs) % 100 == 0:
            spoilt[0, 0] *= -1
        return spoilt

    product = lhs @ rhs
    return jax.pure_callback(spoil, jax.ShapeDtypeStruct(product.shape, product.dtype), product)


def _hard_to_compile(lhs: Any, rhs: Any) -> Any:
    """XLA folds this running sum of a constant, which takes it time that is quadratic in the length."""
    import jax.numpy as jnp
    from jax import lax

    ones = lax.full((400_000,), 1.0, jnp.float32) * jnp.arange(400_000.0)
    sums = lax.reduce_window(ones, 0.0, lax.add, (200_000,), (1,), "SAME")
    return lhs @ rhs + sums[0] * 0.0


def _misbehave(mode: str) -> None:
    match mode:
        case "abort":
            print("Check failed: the fake kernel aborts", file=sys.stderr, flush=True)
            os.abort()
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(7)
        case "hang":
            time.sleep(FOREVER_S)
        case "segfault":
            ctypes.memset(1, 0, 1)  # writes far outside of anything that is mapped
        case "fill_memory":
            hoard = []
            while True:
                hoard.append(bytearray(os.urandom(2**20) * 32))
                time.sleep(0.01)
        case "raise":
            raise ValueError("the fake kernel refuses\nto be built")
        case "babble":
            sys.stdout.write("\x80garbage\x00" * 100_000)
            os.write(1, b"\xff\xfe\x00\x00" * 100_000)
            sys.stdout.flush()
        case "slow":
            time.sleep(0.5)


REFERENCE_US = 30.0  # of the fixed kernel that the protocol may name


class ScriptedTimer:
    """A `timing.Timer` without a GPU: variant v takes 10 + v us, and the mode may misbehave while measured.

    Each call is one line in the file that the environment variable FAKE_TIMER_LOG names.
    """

    def prepare(self) -> None:
        """Nothing to compile."""

    def screen(self, lane: Lane, protocol: MeasureProtocol, best_us: float | None) -> Sampled:
        self._log(f"screen {lane.digest} {best_us}")
        lane.call()
        _misbehave_in_timer(lane.name)
        return Sampled(
            samples_us=(_time_us(lane.name),) * protocol.rounds,
            reference_us=() if protocol.reference == "none" else (REFERENCE_US,) * protocol.rounds,
            reference_nominal_us=NOMINAL_US[protocol.reference],
        )

    def race(
        self,
        lanes: Sequence[Lane],
        protocol: MeasureProtocol,
        rounds: int,
        progress: Callable[[], None],
        seconds: float,
    ) -> list[Sampled]:
        self._log(f"race {len(lanes)}")
        progress()
        return [Sampled(samples_us=(_time_us(lane.name),) * rounds) for lane in lanes]

    @staticmethod
    def _log(line: str) -> None:
        if path := os.environ.get("FAKE_TIMER_LOG"):
            with Path(path).open("a") as file:
                file.write(line + "\n")


def _time_us(name: str) -> float:
    _, found, rest = name.partition("variant=")
    return 10.0 + int(rest.partition(",")[0]) if found else 20.0


def _misbehave_in_timer(name: str) -> None:
    if f"order={FATAL_ORDER})" in name:
        os.abort()
    if "mode='hang_while_measured'" in name:
        time.sleep(FOREVER_S)
    if "mode='lose_context'" in name:
        import jax

        raise jax.errors.JaxRuntimeError("INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access")
    if "mode='room_at_second_try'" in name:
        log = Path(os.environ["FAKE_TIMER_LOG"])
        if log.read_text().count("screen ") == 1:
            name = "mode='out_of_memory'"
    if "mode='out_of_memory'" in name:
        import jax

        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes")


def load_fake_target(name: str) -> FakeTarget:
    if name != NAME:
        raise ValueError(f"{name!r} is no target of the tests")
    return FakeTarget()


def candidate(mode: str = "good", variant: int = 0, note: str = "", *, problem: Any = None) -> Candidate:
    return Candidate(
        target=NAME,
        problem=problem or FakeProblem(),
        config=FakeConfig(mode=mode, variant=variant, note=note),
        device=FakeDevice(),
    )


def screen(job_id: int, mode: str = "good", variant: int = 0, note: str = "", **fields: Any) -> ScreenJob:
    return ScreenJob(job_id=job_id, candidate=candidate(mode, variant, note, **fields))


def shared(job_id: int, order: int, variant: int = 0, mode: str = "good", m: int = 8) -> ScreenJob:
    """A candidate whose order is a run-time knob."""
    config = FakeConfig(mode=mode, variant=variant, order=order)
    one = Candidate(target=NAME, problem=FakeProblem(m=m), config=config, device=FakeDevice())
    return ScreenJob(job_id=job_id, candidate=one, binary=f"{mode} {variant}")


def race(job_id: int, *candidates: Candidate, rounds: int = 4) -> RaceJob:
    return RaceJob(
        job_id=job_id, problem=FakeProblem(), target=NAME, candidates=tuple(candidates), rounds=rounds
    )


class TroubledWatch:
    """A `guard.Watch` of a card that is too hot at the end of the first batch, and sound after that."""

    card, clock = "GPU-fake", "spin"

    def __init__(self) -> None:
        self._readings = 0

    def prepare(self) -> None:
        """Nothing to compile."""

    def read(self) -> Reading:
        self._readings += 1
        hot = ("hw_thermal_slowdown",) if self._readings == 1 else ()
        return Reading(sm_mhz=1980.0, throttle=hot, others=None, xids=())

    def power_and_heat(self) -> tuple[float, int]:
        return 300.0, 50
