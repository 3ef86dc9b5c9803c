"""The rounds of a race: who runs when, who falls out, and when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from autotune.paired import behind

# Lanes still running, number of the first round, number of rounds -> their samples in us.
Take = Callable[[Sequence[int], int, int], dict[int, list[float]]]


def race_rounds(
    lanes: int,
    rounds: int,
    seconds: float,
    take: Take,
    *,
    rounds_a_look: int,
    kept: Sequence[int] = (),
    clock: Callable[[], float] = time.monotonic,
) -> list[tuple[float, ...]]:
    """Returns the samples of each lane; a lane that is beyond doubt slower than the leader gets no more.

    Args:
        rounds: At most.
        seconds: No look begins after so long.
        take: Measures some rounds.
        rounds_a_look: Rounds between two looks at the evidence.
        kept: Lanes that stay in though they fall behind.
    """
    samples: list[list[float]] = [[] for _ in range(lanes)]
    running = list(range(lanes))
    ends_s = clock() + seconds
    done = look = 0
    while done < rounds and (not done or clock() < ends_s):
        count = min(rounds_a_look, rounds - done)
        for lane, times_us in take(running, done, count).items():
            samples[lane] += times_us
        done += count
        look += 1
        losers = behind({lane: samples[lane] for lane in running}, look, lanes)
        running = [lane for lane in running if lane in kept or lane not in losers]
    return [tuple(times_us) for times_us in samples]


def lane_order(lanes: int, index: int) -> list[int]:
    """Returns the order of the lanes in round `index`: turned by one every second round, and then reversed.

    Rotation gives each lane each place in turn; reversal gives each pair of neighbours both orders (ABBA), so that
    a clock that falls during a round favours no lane.
    """
    order = [(lane + index // 2) % lanes for lane in range(lanes)]
    return order[::-1] if index % 2 else order
