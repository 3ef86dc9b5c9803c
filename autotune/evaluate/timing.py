"""GPU time of compiled calls by CUPTI: which launches make up one sample, and which are thrown away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from autotune.evaluate.heldtime import HeldTime
from autotune.evaluate.rounds import lane_order, race_rounds
from autotune.evaluate.session import Launch, Launched, Sessions, Trace
from autotune.seam import L2State, MeasureProtocol, ReferenceName, paired_us

FLUSH_BYTES = 256 * 2**20  # five times the L2 of an H200 (50 MB)
SESSION_SAMPLES = 64  # a race of many rounds is cut, so that a report of progress comes between
# A candidate of whose first six paired samples none comes this near to the best score gets no more: its median is
# between the least and the greatest of six with 97%. docs/measuring.md says what that would have missed.
BEHIND_FACTOR = 1.05
BEHIND_ROUNDS = 6
ROUNDS_A_LOOK = 20
REFERENCE = -1  # in place of a lane: the fixed kernel beside it

# Times of the fixed kernels on a cool H200 (2026-11): they set the unit of a score and cancel in every comparison.
NOMINAL_US: dict[ReferenceName, float] = {"none": 1.0, "product": 24.0, "read": 58.0}


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
        held: Hears what of the time is CUPTI's and what the kernels'.
    """

    guard: Callable[[Callable[[], Any]], Any]
    held: HeldTime

    def prepare(self) -> None:
        """Compiles what the timer needs, without running anything."""

    def screen(self, lane: Lane, protocol: MeasureProtocol, best_us: float | None) -> Sampled:
        """Returns samples of one lane; fewer than asked where it is hopeless against `best_us`, the best score."""

    def race(
        self,
        lanes: Sequence[Lane],
        protocol: MeasureProtocol,
        rounds: int,
        progress: Callable[[], None],
        seconds: float,
    ) -> list[Sampled]:
        """Returns up to `rounds` samples of each lane; equal indices were taken in the same round."""


class CuptiTimer:
    """Times lanes by the kernels that `trace` reports.

    Args:
        trace: Runs a function, and returns the kernels that were launched on the GPU meanwhile.
        flush: Reads `FLUSH_BYTES`, which evicts clean what the L2 held. A flush that writes would leave dirty
            lines, whose eviction is then charged to the kernel (16x4096x4096: 14.3 us against 11.0, H200).
        product: Launches the fixed product that screening is paired with.
        wait: Waits for the last result of a session to be there.
    """

    def __init__(
        self,
        trace: Trace,
        flush: Callable[[], Any],
        prepare: Callable[[], None] = lambda: None,
        product: Callable[[], Any] | None = None,
        wait: Callable[[Any], Any] = lambda result: result,
    ):
        self._sessions = Sessions(trace, wait)
        self._flush = flush
        self._prepare = prepare
        self._product = product
        self._names: dict[Callable[[], Any], tuple[str, ...]] = {}
        self.guard = _unguarded

    @property
    def held(self) -> HeldTime:
        return self._sessions.held

    @held.setter
    def held(self, held: HeldTime) -> None:
        self._sessions.held = held

    def prepare(self) -> None:
        self._prepare()

    def screen(self, lane: Lane, protocol: MeasureProtocol, best_us: float | None) -> Sampled:
        rounds = protocol.rounds
        first = rounds if best_us is None else min(rounds, BEHIND_ROUNDS)
        nominal_us = NOMINAL_US[protocol.reference]
        names, samples, references = self._screened(lane, None, protocol, first)
        if first < rounds and min(paired_us(samples, references, nominal_us)) <= BEHIND_FACTOR * best_us:
            _, more, more_references = self._screened(lane, names, protocol, rounds - first)
            samples, references = samples + more, references + more_references
        return Sampled(
            samples_us=tuple(samples), reference_us=tuple(references), reference_nominal_us=nominal_us
        )

    def race(
        self,
        lanes: Sequence[Lane],
        protocol: MeasureProtocol,
        rounds: int,
        progress: Callable[[], None],
        seconds: float = 60.0,
    ) -> list[Sampled]:
        names = [self._warm_up(lane, protocol.warmup) for lane in lanes]

        def take(running: Sequence[int], start: int, count: int) -> dict[int, list[float]]:
            return self._rounds(lanes, names, running, protocol.l2, start, count, progress)

        kept = [index for index, lane in enumerate(lanes) if lane.is_kept]
        samples = race_rounds(len(lanes), rounds, seconds, take, rounds_a_look=ROUNDS_A_LOOK, kept=kept)
        return [Sampled(samples_us=times) for times in samples]

    def _warm_up(self, lane: Lane, launches: int) -> tuple[str, ...]:
        """Returns the names of one call's kernels."""
        return self._sessions.run(_warming(lane, launches), lane.name)[0].launch.names

    def _screened(
        self, lane: Lane, names: tuple[str, ...] | None, protocol: MeasureProtocol, rounds: int
    ) -> tuple[tuple[str, ...], list[float], list[float]]:
        """Returns the names of a call's kernels, samples in us, and the fixed kernel's beside each.

        Args:
            names: None: not known yet; the lane is warmed up and they are learnt at the head of the first session,
                since a session of its own costs CUPTI as long as some samples.
        """
        samples: dict[int, list[float]] = {0: [], REFERENCE: []}
        for start in range(0, rounds, SESSION_SAMPLES):
            sample = self._sample(lane, names, 0, protocol.l2, alone=True)
            sample = self._reference(protocol, sample) + sample
            session = sample * min(SESSION_SAMPLES, rounds - start)
            if names is None:
                session = _warming(lane, protocol.warmup) + session
            taken = self.guard(lambda session=session: self._sessions.run(session, lane.name))
            names = taken[0].launch.names if names is None else names
            _share_out(taken, samples)
        return names, samples[0], samples[REFERENCE]

    def _reference(self, protocol: MeasureProtocol, sample: list[Launch]) -> list[Launch]:
        """Returns the launches to put before a sample; where its own flush can serve, that is marked in place."""
        if protocol.reference == "none":
            return []
        if protocol.reference == "product" and self._product is not None:
            return [Launch(self._product, self._known(self._product), REFERENCE)]
        if protocol.l2 == "warm":
            # Back to back with itself again after the read, which took its operands from the L2.
            dropped = Launch(sample[-1].call, sample[-1].names, None)
            return [Launch(self._flush, self._known_flush(), REFERENCE), dropped]
        sample[0] = Launch(self._flush, self._known_flush(), REFERENCE)
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
            _share_out(self.guard(lambda session=session: self._sessions.run(session)), samples_us)
        return samples_us

    def _sample(
        self, lane: Lane, names: tuple[str, ...] | None, index: int, l2: L2State, *, alone: bool
    ) -> list[Launch]:
        """Returns the launches behind one sample; only the last is kept."""
        kept = Launch(lane.call, names, index)
        if l2 == "warm":
            # Back to back with itself: in a race the launch before it was another lane's.
            return [kept] if alone else [Launch(lane.call, names, None), kept]
        before = [Launch(self._flush, self._known_flush(), None)]
        if l2 == "activations_warm" and lane.touch is not None:
            before.append(Launch(lane.touch, self._known(lane.touch), None))
        return [*before, kept]

    def _known(self, call: Callable[[], Any]) -> tuple[str, ...]:
        """Returns the names of the kernels that `call` launches; the first time it runs to learn them."""
        if call not in self._names:
            self._names[call] = self._sessions.names(call)
        return self._names[call]

    def _known_flush(self) -> tuple[str, ...]:
        return self._known(self._flush)


def _warming(lane: Lane, launches: int) -> list[Launch]:
    """Returns the calls that warm a lane up, whose kernels nobody knows yet."""
    return [Launch(lane.call, None, None)] * max(1, launches)


def _share_out(session: Sequence[Launched], samples_us: Mapping[int, list[float]]) -> None:
    """Adds the times that are kept to the samples of their lanes."""
    for each in session:
        if each.launch.lane is not None:
            samples_us[each.launch.lane].append(each.time_us)


def _unguarded(batch: Callable[[], Any]) -> Any:
    return batch()
