"""Times by the clock on the wall: chains of short calls, and blocks of long ones at settled clocks."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.evaluate.rounds import lane_order, race_rounds
from autotune.evaluate.timing import Lane, Sampled

CHAIN_SAMPLE_S = 2e-3  # the wait at the end of a sample, about 20 us, is a hundredth of it
MAX_CHAINS = 4  # a card takes about a thousand launches ahead, and a call may be three
HOLD_S = 1e-3  # of one hold, at the least
AHEAD = 1.5  # times the launching of a sample, the card is held
OVERHEAD_SAMPLES = 5
CHAIN_ROUNDS_A_LOOK = 10
BLOCK_S = 0.1  # shorter ones are not at the clock that the power cap settles on
BLOCK_ROUNDS_A_LOOK = 2
# The ratio of two blocks next to each other has a standard deviation of 2 to 5% (three large products, H200, 2026-11):
# at 3%, by 1.25 sd / sqrt(n), 8 in each of three processes give the median to 0.8%, the 4 that 2.5 s held to 1.1%.
BLOCK_ROUNDS = 8
SETTLE_S = (
    0.5,
    3.0,
)  # at least and at most; 3 s of load settled every product that was tried (H200, 2026-11)
SETTLED = 0.01  # spread of three blocks in a row
IN_FLIGHT_BYTES = 2**30  # of results, between two waits
IN_FLIGHT_CALLS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What keeps the card busy while launches queue up behind it.

    Attributes:
        launch: Occupies the card for at least `HOLD_S` and returns what to wait for.
        seconds: From what it returned, how long it did.
    """

    launch: Callable[[], Any]
    seconds: Callable[[Any], float]


class WallTimer:
    """Races lanes by wall time.

    Launching a kernel takes the host 10 to 20 us on a virtual machine (H200, 2026-11), longer than a short kernel
    runs. So a chain is launched while the card is held: what is timed is the card running it, with the gaps between
    its kernels, as in a program that is ahead of the card.

    Args:
        wait: Waits until a result is there.
        energy_j: Reads the card's counter of all energy it ever drew, in joules; None where it has none.
        clock: In seconds.
        hold: Holds the card; None: chains are timed as the host launches them.
    """

    def __init__(
        self,
        wait: Callable[[Any], Any],
        energy_j: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
        hold: Hold | None = None,
    ):
        self._wait = wait
        self._energy_j = energy_j
        self._clock = clock
        self._hold = hold
        self._overhead_s: dict[int, float] = {}  # of a wait behind so many holds
        self.guard: Callable[[Callable[[], Any]], Any] = lambda batch: batch()

    def race_chains(
        self, lanes: Sequence[Lane], rounds: int, progress: Callable[[], None], seconds: float
    ) -> list[Sampled]:
        """Returns samples of a call's share of its chain, in us."""
        chains = [self._chains(lane) for lane in lanes]

        def take(running: Sequence[int], first: int, count: int) -> dict[int, list[float]]:
            progress()
            return self.guard(
                lambda: self._take(running, first, count, lambda i: self._chain(lanes[i], chains[i]))
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

    def _chains(self, lane: Lane) -> tuple[int, int]:
        """Returns how many chains make a sample, and how many holds their launches need; the first run warms up."""
        self._chain(lane, (1, 1))
        start_s = self._clock()
        result = lane.chain()
        launching_s = self._clock() - start_s
        self._wait(result)
        holds = self._holds(launching_s)
        took_s = self._chain(lane, (1, holds)) * lane.chain_calls / 1e6
        chains = max(1, math.ceil(CHAIN_SAMPLE_S / took_s))
        if self._hold:
            chains = min(chains, MAX_CHAINS)
        return chains, self._holds(chains * launching_s)

    @staticmethod
    def _holds(launching_s: float) -> int:
        return math.ceil(AHEAD * launching_s / HOLD_S) + 1

    def _chain(self, lane: Lane, chains_and_holds: tuple[int, int]) -> float:
        """Returns a call's share of some chains that are launched while the card is held, in us."""
        chains, holds = chains_and_holds
        took_s = self._behind_holds(holds, lambda: _last(lane.chain, chains))
        if self._hold:
            if holds not in self._overhead_s:
                empty = [self._behind_holds(holds, lambda: None) for _ in range(OVERHEAD_SAMPLES)]
                self._overhead_s[holds] = statistics.median(empty)
            took_s -= self._overhead_s[holds]
        return took_s / (chains * lane.chain_calls) * 1e6

    def _behind_holds(self, holds: int, launch: Callable[[], Any]) -> float:
        """Returns the time of launching, running and waiting, in seconds, less that of the holds."""
        start_s = self._clock()
        held = [self._hold.launch() for _ in range(holds)] if self._hold else []
        result = launch()
        self._wait([held, result])
        took_s = self._clock() - start_s
        return took_s - sum(self._hold.seconds(each) for each in held)

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


def _last(launch: Callable[[], Any], times: int) -> Any:
    """Launches so many times and returns what the last one returned; the others' results may be freed."""
    result = None
    for _ in range(times):
        result = launch()
    return result


def _kept(lanes: Sequence[Lane]) -> list[int]:
    return [index for index, lane in enumerate(lanes) if lane.is_kept]
