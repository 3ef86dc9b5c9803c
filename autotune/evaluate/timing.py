"""GPU time of compiled calls by CUPTI: which launches make up one sample, and which are thrown away.

CUPTI reports the kernels of this process one by one, in launch order, and does not say which call a kernel
belongs to. So each session runs a schedule that is known beforehand, and every kernel is matched by position
and name; a session that does not match is an error, never a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from autotune.seam import L2State, MeasureProtocol

FLUSH_BYTES = 256 * 2**20  # five times the L2 of an H200 (50 MB)
SESSION_SAMPLES = 64  # a race of many rounds is cut, so that a report of progress comes between
SESSION_ATTEMPTS = 2  # CUPTI may drop records; twice in a row is no accident
HOPELESS_FACTOR = 3.0
HOPELESS_ROUNDS = 3

Kernels = list[tuple[str, float]]  # name and duration in milliseconds, in launch order
Trace = Callable[[Callable[[], Any]], Kernels]


class TimingError(RuntimeError):
    """CUPTI did not report the kernels that were launched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One thing to time: a compiled function with its operands bound.

    Attributes:
        call: Launches it once. Up to `SESSION_SAMPLES` calls follow each other without waiting, so one whose
            result is large waits for it, lest all of them hold memory at once.
    """

    name: str
    call: Callable[[], Any]
    digest: str


class Timer(Protocol):
    """What a worker measures with. Everything but `prepare` is called under the GPU lock."""

    def prepare(self) -> None:
        """Compiles what the timer needs, without running anything."""

    def screen(self, lane: Lane, protocol: MeasureProtocol, best_us: float | None) -> tuple[float, ...]:
        """Returns samples of one lane in us; fewer than asked where it is hopeless against `best_us`."""

    def race(
        self, lanes: Sequence[Lane], protocol: MeasureProtocol, rounds: int, progress: Callable[[], None]
    ) -> list[tuple[float, ...]]:
        """Returns `rounds` samples of each lane in us; equal indices were taken in the same round."""


@dataclass(frozen=True, slots=True)
class _Launch:
    """One call of a schedule: the kernels it must report, and the lane that keeps the sum (None: dropped)."""

    call: Callable[[], Any]
    names: tuple[str, ...]
    lane: int | None


class CuptiTimer:
    """Times lanes by the kernels that `trace` reports.

    Args:
        trace: Runs a function to its end on the GPU and returns the kernels launched meanwhile.
        flush: Reads `FLUSH_BYTES`, which evicts clean what the L2 held. A flush that writes would leave dirty
            lines, whose eviction is then charged to the kernel (16x4096x4096: 14.3 us against 11.0, H200).
    """

    def __init__(self, trace: Trace, flush: Callable[[], Any], prepare: Callable[[], None] = lambda: None):
        self._trace = trace
        self._flush = flush
        self._prepare = prepare
        self._flush_names: tuple[str, ...] | None = None

    def prepare(self) -> None:
        self._prepare()

    def screen(self, lane: Lane, protocol: MeasureProtocol, best_us: float | None) -> tuple[float, ...]:
        names, warm_us = self._warm_up(lane, protocol.warmup)
        rounds = protocol.rounds
        # Warm launches are the faster ones, so a lane that loses by this much warm would lose clean as well.
        if best_us is not None and warm_us > HOPELESS_FACTOR * best_us:
            rounds = min(rounds, HOPELESS_ROUNDS)
        return self._rounds([lane], [names], protocol.l2, rounds, lambda: None)[0]

    def race(
        self, lanes: Sequence[Lane], protocol: MeasureProtocol, rounds: int, progress: Callable[[], None]
    ) -> list[tuple[float, ...]]:
        names = [self._warm_up(lane, protocol.warmup)[0] for lane in lanes]
        return self._rounds(lanes, names, protocol.l2, rounds, progress)

    def _warm_up(self, lane: Lane, launches: int) -> tuple[tuple[str, ...], float]:
        """Returns the names of one call's kernels and the time of the fastest call in us."""
        launches = max(1, launches)
        kernels = self._trace(lambda: _call_in_order([lane.call] * launches))
        each, rest = divmod(len(kernels), launches)
        if not each or rest:
            raise TimingError(f"{lane.name}: {launches} equal calls launched {len(kernels)} kernels in all")
        calls = [kernels[start : start + each] for start in range(0, len(kernels), each)]
        return tuple(name for name, _ in calls[0]), min(_sum_us(call) for call in calls)

    def _rounds(
        self,
        lanes: Sequence[Lane],
        names: Sequence[tuple[str, ...]],
        l2: L2State,
        rounds: int,
        progress: Callable[[], None],
    ) -> list[tuple[float, ...]]:
        plan = [
            self._sample(lanes[lane], names[lane], lane, l2, alone=len(lanes) == 1)
            for index in range(rounds)
            for lane in lane_order(len(lanes), index)
        ]
        samples_us: list[list[float]] = [[] for _ in lanes]
        for start in range(0, len(plan), SESSION_SAMPLES):
            progress()
            session = [launch for sample in plan[start : start + SESSION_SAMPLES] for launch in sample]
            for lane, time_us in self._session(session):
                samples_us[lane].append(time_us)
        return [tuple(times_us) for times_us in samples_us]

    def _sample(
        self, lane: Lane, names: tuple[str, ...], index: int, l2: L2State, *, alone: bool
    ) -> list[_Launch]:
        """Returns the launches behind one sample; only the last is kept."""
        kept = _Launch(lane.call, names, index)
        if l2 == "clean":
            return [_Launch(self._flush, self._known_flush(), None), kept]
        # Back to back with itself: in a race the launch before it was another lane's.
        return [kept] if alone else [_Launch(lane.call, names, None), kept]

    def _known_flush(self) -> tuple[str, ...]:
        if self._flush_names is None:
            self._trace(self._flush)  # the first one also allocates and fills what is read
            self._flush_names = tuple(name for name, _ in self._trace(self._flush))
        return self._flush_names

    def _session(self, launches: Sequence[_Launch]) -> list[tuple[int, float]]:
        """Returns (lane, time in us) for each kept launch of one CUPTI session."""
        kernels = self._expected_kernels(launches)
        kept, position = [], 0
        for launch in launches:
            end = position + len(launch.names)
            if launch.lane is not None:
                kept.append((launch.lane, _sum_us(kernels[position:end])))
            position = end
        return kept

    def _expected_kernels(self, launches: Sequence[_Launch]) -> Kernels:
        expected = [name for launch in launches for name in launch.names]
        kernels: Kernels = []
        for _ in range(SESSION_ATTEMPTS):
            kernels = self._trace(lambda: _call_in_order([launch.call for launch in launches]))
            if [name for name, _ in kernels] == expected:
                return kernels
        raise TimingError(
            f"CUPTI reported {len(kernels)} kernels where {len(expected)} were launched, or out of order"
        )


def lane_order(lanes: int, index: int) -> list[int]:
    """Returns the order of the lanes in round `index`: turned by one every second round, and then reversed.

    Rotation gives each lane each place in turn; reversal gives each pair of neighbours both orders, so that
    a clock that falls during a round favours no lane.
    """
    order = [(lane + index // 2) % lanes for lane in range(lanes)]
    return order[::-1] if index % 2 else order


def _call_in_order(calls: Sequence[Callable[[], Any]]) -> Any:
    """Returns the last result; the others are dropped at once, so that their memory can be used again."""
    result = None
    for call in calls:
        result = call()
    return result


def _sum_us(kernels: Kernels) -> float:
    return sum(duration_ms for _, duration_ms in kernels) * 1e3


def cupti_timer() -> CuptiTimer:
    """Returns a timer on this process's GPU; nothing else may profile here: CUPTI takes one subscriber."""
    import jax
    import jax.numpy as jnp
    from jax.experimental.mosaic.gpu import profiler

    extension = profiler.mosaic_gpu_lib._mosaic_gpu_ext
    buffer = jax.ShapeDtypeStruct((FLUSH_BYTES // 4,), jnp.float32)
    programs: dict[str, Any] = {}
    buffers: list[Any] = []

    def prepare() -> None:
        programs["fill"] = jax.jit(lambda: jnp.ones(buffer.shape, buffer.dtype)).lower().compile()
        programs["read"] = jax.jit(jnp.sum).lower(buffer).compile()

    def flush() -> Any:
        if not buffers:
            buffers.append(programs["fill"]())
        return programs["read"](buffers[0])

    def trace(run: Callable[[], Any]) -> Kernels:
        extension._cupti_init()
        try:
            jax.block_until_ready(run())
        finally:
            # False: stay attached, since attaching again takes longer than a whole measurement.
            kernels = extension._cupti_get_timings(False)
        return list(kernels)

    return CuptiTimer(trace, flush, prepare)
