"""Times from start to end, gaps included: chains of short calls, and blocks of long ones at settled clocks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.evaluate.rounds import lane_order, race_rounds
from autotune.evaluate.timing import Lane, Sampled

# By the host's clock: the wait at the end of a sample, about 20 us, is a hundredth of it.
CHAIN_SAMPLE_S = 2e-3
CARD_SAMPLE_S = 5e-4  # by the card's, of which the coarsest ticks are a microsecond
MAX_CHAINS = 4  # a card takes about a thousand launches ahead, and a call may be three
HOLD_S = 2.5e-4  # of one hold, at the least
AHEAD = 1.3  # times the launching of a sample, the card is held
MOST_HOLDS = 400  # a host that needs more of them to be ahead of the card is not worth waiting for
EMPTY_SAMPLES = 20
CHAIN_ROUNDS_A_LOOK = 10
BLOCK_S = 0.1  # shorter ones are not at the clock that the power cap settles on
BLOCK_ROUNDS_A_LOOK = 2
# The ratio of two blocks next to each other has a standard deviation of 2 to 5% (three large products, H200, 2026-11):
# at 3%, by 1.25 sd / sqrt(n), 8 in each of three processes give the median to 0.8%, the 4 that 2.5 s held to 1.1%.
BLOCK_ROUNDS = 8
SETTLE_S = 0.5, 3.0  # at least and at most; 3 s of load settled every product that was tried (H200, 2026-11)
SETTLED = 0.01  # spread of three blocks in a row
IN_FLIGHT_BYTES = 2**30  # of results, between two waits
IN_FLIGHT_CALLS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CardClock:
    """The card's own clock, and what keeps the card busy while launches queue up.

    Attributes:
        hold: Launches what occupies the card for at least `HOLD_S`; returns its mark.
        stamp: Launches what takes as good as no time; returns its mark.
        is_over: Whether the card is done with what left a mark; does not wait.
        between_s: Seconds on the card from the end of what left one mark to the beginning of what left another.
    """

    hold: Callable[[], Any]
    stamp: Callable[[], Any]
    is_over: Callable[[Any], bool]
    between_s: Callable[[Any, Any], float]


@dataclass(slots=True, kw_only=True)
class _ChainPlan:
    """How a sample of a lane's chain is taken: so many chains behind so many holds."""

    chains: int
    holds: int


class WallTimer:
    """Races lanes by the time from start to end: chains by the card's clock, blocks by the host's.

    Launching a kernel takes the host 10 to 20 us on a virtual machine (H200, 2026-11), longer than a short kernel
    runs. So a chain is launched while the card is held, and timed by the card's own clock from the end of the hold to
    the beginning of a stamp behind the chain: the kernels and the gaps between them, as in a program that is ahead of
    the card. By the host's clock, less the holds, what was left over was off by 0.1 to 0.4 ms, differently in each
    process: a product of 5.6 us, by CUPTI in every process, took 4.0 to 7.3 us in chains (1024x1024x1024, H200).

    Args:
        wait: Waits until a result is there.
        energy_j: Reads the card's counter of all energy it ever drew, in joules; None where it has none.
        clock: Of the host, in seconds.
        card: The card's clock; None: chains are timed by the host's, as the host launches them.
    """

    def __init__(
        self,
        wait: Callable[[Any], Any],
        energy_j: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
        card: CardClock | None = None,
    ):
        self._wait = wait
        self._energy_j = energy_j
        self._clock = clock
        self._card = card
        self._empty_s: float | None = None  # between a hold and a stamp with nothing between them
        self.guard: Callable[[Callable[[], Any]], Any] = lambda batch: batch()

    def race_chains(
        self, lanes: Sequence[Lane], rounds: int, progress: Callable[[], None], seconds: float
    ) -> list[Sampled]:
        """Returns samples of a call's share of its chain, in us."""
        plans = [self._plan(lane) for lane in lanes]

        def take(running: Sequence[int], first: int, count: int) -> dict[int, list[float]]:
            progress()
            return self.guard(
                lambda: self._take(running, first, count, lambda i: self._chain(lanes[i], plans[i]))
            )

        samples = race_rounds(
            len(lanes),
            rounds,
            seconds,
            take,
            rounds_a_look=CHAIN_ROUNDS_A_LOOK,
            kept=_kept(lanes),
            clock=self._clock,
        )
        return [Sampled(samples_us=times) for times in samples]

    def race_blocks(
        self, lanes: Sequence[Lane], rounds: int, progress: Callable[[], None], seconds: float
    ) -> list[Sampled]:
        """Returns samples of a call's share of a block at settled clocks, in us, and joules per call.

        Takes longer than `seconds` where that is too short for `BLOCK_ROUNDS` of all lanes.

        The energy counter lags by some tens of milliseconds, so that the first of two blocks in a row is charged
        with a little of what ran before it; in the order ABBA every lane pays for every other one alike.
        """
        seconds = max(seconds, BLOCK_ROUNDS * len(lanes) * BLOCK_S)
        progress()
        self._settle(lanes[0])
        progress()
        calls = [self._calls(lane) for lane in lanes]
        energy = [[0.0, 0] for _ in lanes]  # joules and calls
        has_energy = self._energy_j() is not None

        def block(index: int) -> float:
            before_j = self._energy_j()
            time_us = self._block(lanes[index], calls[index])
            after_j = self._energy_j()
            if before_j is not None and after_j is not None:
                energy[index][0] += after_j - before_j
                energy[index][1] += calls[index]
            return time_us

        def take(running: Sequence[int], first: int, count: int) -> dict[int, list[float]]:
            progress()
            return self.guard(lambda: self._take(running, first, count, block))

        samples = race_rounds(
            len(lanes),
            rounds,
            seconds,
            take,
            rounds_a_look=BLOCK_ROUNDS_A_LOOK,
            kept=_kept(lanes),
            clock=self._clock,
        )
        joules = [total / count if has_energy and count else None for total, count in energy]
        return [Sampled(samples_us=times, joules=each) for times, each in zip(samples, joules, strict=True)]

    def sustained_us(self, lane: Lane) -> float:
        """Returns the time of a call at settled clocks, in us."""
        self._settle(lane)
        return self._block(lane, self._calls(lane))

    @staticmethod
    def _take(
        running: Sequence[int], first: int, count: int, sample: Callable[[int], float]
    ) -> dict[int, list[float]]:
        taken: dict[int, list[float]] = {lane: [] for lane in running}
        for index in range(first, first + count):
            for place in lane_order(len(running), index):
                taken[running[place]].append(sample(running[place]))
        return taken

    def _plan(self, lane: Lane) -> _ChainPlan:
        """Returns how a sample is taken; the first run warms up."""
        plan = _ChainPlan(chains=1, holds=1)
        self._chain(lane, plan)
        start_s = self._clock()
        result = lane.chain()
        launching_s = self._clock() - start_s
        self._wait(result)
        plan.holds = _holds(launching_s)
        took_s = self._chain(lane, plan) * lane.chain_calls / 1e6
        if not self._card:
            return _ChainPlan(chains=max(1, math.ceil(CHAIN_SAMPLE_S / took_s)), holds=0)
        chains = min(MAX_CHAINS, max(1, math.ceil(CARD_SAMPLE_S / took_s)))
        return _ChainPlan(chains=chains, holds=_holds(chains * launching_s))

    def _chain(self, lane: Lane, plan: _ChainPlan) -> float:
        """Returns a call's share of a sample's chains, in us; holds longer where launching outlasted the holds."""

        def launch() -> Any:
            return _last(lane.chain, plan.chains)

        if self._card is None:
            start_s = self._clock()
            self._wait(launch())
            took_s = self._clock() - start_s
        else:
            if self._empty_s is None:
                # The least: what is more is the host, late with the stamp while others keep it busy.
                empty = [self._on_card(self._card, 1, lambda: None)[0] for _ in range(EMPTY_SAMPLES)]
                self._empty_s = min(empty)
            took_s, was_ahead = self._on_card(self._card, plan.holds, launch)
            while not was_ahead and plan.holds < MOST_HOLDS:
                plan.holds = min(2 * plan.holds, MOST_HOLDS)
                took_s, was_ahead = self._on_card(self._card, plan.holds, launch)
            took_s -= self._empty_s
        return took_s / (plan.chains * lane.chain_calls) * 1e6

    def _on_card(self, card: CardClock, holds: int, launch: Callable[[], Any]) -> tuple[float, bool]:
        """Returns what the card took between its holds and a stamp, and whether all was launched while it was held."""
        held = [card.hold() for _ in range(holds)]
        result = launch()
        stamp = card.stamp()
        was_ahead = not card.is_over(held[-1])
        self._wait([held, result, stamp])
        return card.between_s(held[-1], stamp), was_ahead

    def _calls(self, lane: Lane) -> int:
        """Returns how many calls fill a block."""
        self._block(lane, 3)
        return max(1, math.ceil(BLOCK_S / (self._block(lane, 20) / 1e6)))

    def _block(self, lane: Lane, calls: int) -> float:
        launch = lane.launch or lane.call
        apart = max(2, min(IN_FLIGHT_CALLS, IN_FLIGHT_BYTES // max(1, lane.result_bytes)))
        start_s = self._clock()
        for index in range(1, calls + 1):
            result = launch()
            if index % apart == 0 or index == calls:
                self._wait(result)
        return (self._clock() - start_s) / calls * 1e6

    def _settle(self, lane: Lane) -> None:
        least_s, most_s = SETTLE_S
        start_s = self._clock()
        calls = self._calls(lane)
        blocks: list[float] = []
        while (passed_s := self._clock() - start_s) < most_s:
            last = blocks[-3:]
            if passed_s >= least_s and len(last) == 3 and max(last) <= (1 + SETTLED) * min(last):
                return
            blocks.append(self._block(lane, calls))


def _holds(launching_s: float) -> int:
    return min(MOST_HOLDS, math.ceil(AHEAD * launching_s / HOLD_S) + 1)


def _last(launch: Callable[[], Any], times: int) -> Any:
    """Launches so many times and returns what the last one returned; the others' results may be freed."""
    result = None
    for _ in range(times):
        result = launch()
    return result


def _kept(lanes: Sequence[Lane]) -> list[int]:
    return [index for index, lane in enumerate(lanes) if lane.is_kept]
