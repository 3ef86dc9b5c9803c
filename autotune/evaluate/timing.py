"""GPU time of compiled calls by CUPTI: which launches make up one sample, and which are thrown away.

CUPTI reports the kernels of this process one by one, in launch order, and does not say which call a kernel
belongs to. So each session runs a schedule that is known beforehand, and every kernel is matched by position
and name; a session that does not match is an error, never a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from autotune.evaluate.rounds import lane_order, race_rounds
from autotune.seam import L2State, MeasureProtocol, ReferenceName

FLUSH_BYTES = 256 * 2**20  # five times the L2 of an H200 (50 MB)
SESSION_SAMPLES = 64  # a race of many rounds is cut, so that a report of progress comes between
SESSION_ATTEMPTS = 2  # CUPTI may drop records; twice in a row is no accident
HOPELESS_FACTOR = 3.0
HOPELESS_ROUNDS = 3
# After so many samples a candidate this far behind is given up; drift of the clock is a fifth at most.
BEHIND_FACTOR = 1.5
BEHIND_ROUNDS = 6
ROUNDS_A_LOOK = 20
REFERENCE = -1  # in place of a lane: the fixed kernel beside it

# Times of the fixed kernels on a cool H200 (2026-11): they set the unit of a score and cancel in every comparison.
NOMINAL_US: dict[ReferenceName, float] = {"none": 1.0, "product": 24.0, "read": 58.0}

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
        launch: Launches it once and never waits; None: `call`.
        touch: Reads the activations once, so that they are in the L2; None where the protocol asks for no such state.
        chain: Launches a jitted chain of calls and returns what to wait for; None: not compiled.
        chain_calls: Calls in one chain.
        result_bytes: Of one call.
        is_kept: Stays in a race though it falls behind: the others are reported against it.
    """

    name: str
    call: Callable[[], Any]
    digest: str
    launch: Callable[[], Any] | None = None
    touch: Callable[[], Any] | None = None
    chain: Callable[[], Any] | None = None
    chain_calls: int = 1
    result_bytes: int = 0
    is_kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Samples of one lane in us, with the fixed kernel's time beside each, and the energy of a call."""

    samples_us: tuple[float, ...]
    reference_us: tuple[float, ...] = ()
    reference_nominal_us: float = 1.0
    joules: float | None = None


class Timer(Protocol):
    """What a worker measures with. Everything but `prepare` is called under the GPU lock.

    Attributes:
        guard: Runs one batch of samples and repeats it where the card misbehaved meanwhile.
    """

    guard: Callable[[Callable[[], Any]], Any]

    def prepare(self) -> None:
        """Compiles what the timer needs, without running anything."""

    def screen(self, lane: Lane, protocol: MeasureProtocol, best_us: float | None) -> Sampled:
        """Returns samples of one lane; fewer than asked where it is hopeless against `best_us`."""

    def race(
        self,
        lanes: Sequence[Lane],
        protocol: MeasureProtocol,
        rounds: int,
        progress: Callable[[], None],
        seconds: float,
    ) -> list[Sampled]:
        """Returns up to `rounds` samples of each lane; equal indices were taken in the same round."""


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
        product: Launches the fixed product that screening is paired with.
    """

    def __init__(
        self,
        trace: Trace,
        flush: Callable[[], Any],
        prepare: Callable[[], None] = lambda: None,
        product: Callable[[], Any] | None = None,
    ):
        self._trace = trace
        self._flush = flush
        self._prepare = prepare
        self._product = product
        self._names: dict[Callable[[], Any], tuple[str, ...]] = {}
        self.guard = _unguarded

    def prepare(self) -> None:
        self._prepare()

    def screen(self, lane: Lane, protocol: MeasureProtocol, best_us: float | None) -> Sampled:
        names, warm_us = self._warm_up(lane, protocol.warmup)
        rounds = protocol.rounds
        # Warm launches are the faster ones, so a lane that loses by this much warm would lose clean as well.
        if best_us is not None and warm_us > HOPELESS_FACTOR * best_us:
            rounds = min(rounds, HOPELESS_ROUNDS)
        first = min(rounds, BEHIND_ROUNDS) if best_us is not None else rounds
        samples, references = self._screened(lane, names, protocol, first)
        if first < rounds and min(samples) <= BEHIND_FACTOR * best_us:
            more, more_references = self._screened(lane, names, protocol, rounds - first)
            samples, references = samples + more, references + more_references
        return Sampled(
            samples_us=tuple(samples),
            reference_us=tuple(references),
            reference_nominal_us=NOMINAL_US[protocol.reference],
        )

    def race(
        self,
        lanes: Sequence[Lane],
        protocol: MeasureProtocol,
        rounds: int,
        progress: Callable[[], None],
        seconds: float = 60.0,
    ) -> list[Sampled]:
        names = [self._warm_up(lane, protocol.warmup)[0] for lane in lanes]

        def take(running: Sequence[int], start: int, count: int) -> dict[int, list[float]]:
            return self._rounds(lanes, names, running, protocol.l2, start, count, progress)

        kept = [index for index, lane in enumerate(lanes) if lane.is_kept]
        samples = race_rounds(len(lanes), rounds, seconds, take, rounds_a_look=ROUNDS_A_LOOK, kept=kept)
        return [Sampled(samples_us=times) for times in samples]

    def _warm_up(self, lane: Lane, launches: int) -> tuple[tuple[str, ...], float]:
        """Returns the names of one call's kernels and the time of the fastest call in us."""
        launches = max(1, launches)
        kernels = self._trace(lambda: _call_in_order([lane.call] * launches))
        each, rest = divmod(len(kernels), launches)
        if not each or rest:
            raise TimingError(f"{lane.name}: {launches} equal calls launched {len(kernels)} kernels in all")
        calls = [kernels[start : start + each] for start in range(0, len(kernels), each)]
        return tuple(name for name, _ in calls[0]), min(_sum_us(call) for call in calls)

    def _screened(
        self, lane: Lane, names: tuple[str, ...], protocol: MeasureProtocol, rounds: int
    ) -> tuple[list[float], list[float]]:
        """Returns samples in us, and the fixed kernel's beside each."""
        sample = self._sample(lane, names, 0, protocol.l2, alone=True)
        sample = self._reference(protocol, sample) + sample
        samples: dict[int, list[float]] = {0: [], REFERENCE: []}
        for start in range(0, rounds, SESSION_SAMPLES):
            session = sample * min(SESSION_SAMPLES, rounds - start)
            for lane_index, time_us in self.guard(lambda session=session: self._session(session)):
                samples[lane_index].append(time_us)
        return samples[0], samples[REFERENCE]

    def _reference(self, protocol: MeasureProtocol, sample: list[_Launch]) -> list[_Launch]:
        """Returns the launches to put before a sample; where its own flush can serve, that is marked in place."""
        if protocol.reference == "none":
            return []
        if protocol.reference == "product" and self._product is not None:
            return [_Launch(self._product, self._known(self._product), REFERENCE)]
        if protocol.l2 == "warm":
            # Back to back with itself again after the read, which took its operands from the L2.
            dropped = _Launch(sample[-1].call, sample[-1].names, None)
            return [_Launch(self._flush, self._known_flush(), REFERENCE), dropped]
        sample[0] = _Launch(self._flush, self._known_flush(), REFERENCE)
        return []

    def _rounds(
        self,
        lanes: Sequence[Lane],
        names: Sequence[tuple[str, ...]],
        running: Sequence[int],
        l2: L2State,
        first: int,
        rounds: int,
        progress: Callable[[], None],
    ) -> dict[int, list[float]]:
        plan = [
            self._sample(
                lanes[running[place]], names[running[place]], running[place], l2, alone=len(lanes) == 1
            )
            for index in range(first, first + rounds)
            for place in lane_order(len(running), index)
        ]
        samples_us: dict[int, list[float]] = {lane: [] for lane in running}
        for start in range(0, len(plan), SESSION_SAMPLES):
            progress()
            session = [launch for sample in plan[start : start + SESSION_SAMPLES] for launch in sample]
            for lane, time_us in self.guard(lambda session=session: self._session(session)):
                samples_us[lane].append(time_us)
        return samples_us

    def _sample(
        self, lane: Lane, names: tuple[str, ...], index: int, l2: L2State, *, alone: bool
    ) -> list[_Launch]:
        """Returns the launches behind one sample; only the last is kept."""
        kept = _Launch(lane.call, names, index)
        if l2 == "warm":
            # Back to back with itself: in a race the launch before it was another lane's.
            return [kept] if alone else [_Launch(lane.call, names, None), kept]
        before = [_Launch(self._flush, self._known_flush(), None)]
        if l2 == "activations_warm" and lane.touch is not None:
            before.append(_Launch(lane.touch, self._known(lane.touch), None))
        return [*before, kept]

    def _known(self, call: Callable[[], Any]) -> tuple[str, ...]:
        """Returns the names of the kernels that `call` launches; the first time it runs to learn them."""
        if call not in self._names:
            self._trace(call)  # the first one may also allocate and fill what it reads
            self._names[call] = tuple(name for name, _ in self._trace(call))
        return self._names[call]

    def _known_flush(self) -> tuple[str, ...]:
        return self._known(self._flush)

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


def _call_in_order(calls: Sequence[Callable[[], Any]]) -> Any:
    """Returns the last result; the others are dropped at once, so that their memory can be used again."""
    result = None
    for call in calls:
        result = call()
    return result


def _sum_us(kernels: Kernels) -> float:
    return sum(duration_ms for _, duration_ms in kernels) * 1e3


def _unguarded(batch: Callable[[], Any]) -> Any:
    return batch()
