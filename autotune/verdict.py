"""Who races, and who won: pure arithmetic over recorded times."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from autotune.result import Winner
from autotune.seam import Measured, Race, RaceEntry

# Lanes of a race that differ by less are a tie. One kernel's median of 20 launches, repeated, wandered by 3.6% on
# an H200; interleaving takes out what all lanes share, and what is left under half a percent is called noise.
TIE = 0.005

_RESAMPLES = 2_000
_SEED = 0

Knobs = Mapping[str, Any]


def fixed_order(knobs: Knobs) -> str:
    """Returns a sort key that depends on the knobs alone, never on a time."""
    return json.dumps(knobs, sort_keys=True)


def finalists(screened: Iterable[tuple[Knobs, Measured]]) -> list[tuple[Knobs, Measured]]:
    """Returns the measured candidates with distinct lowered modules, fastest first.

    Of several with one module the first in the fixed order stands for all, so that who is named does not depend on
    which of them was measured first.
    """
    groups: dict[str, list[tuple[Knobs, Measured]]] = {}
    for knobs, measured in screened:
        groups.setdefault(measured.lowered.digest, []).append((knobs, measured))
    best = [
        (min(m.timing.median_us for _, m in group), *min(group, key=lambda pair: fixed_order(pair[0])))
        for group in groups.values()
    ]
    best.sort(key=lambda entry: (entry[0], fixed_order(entry[1])))
    return [(knobs, measured) for _, knobs, measured in best]


def judge(racers: Sequence[Knobs], race: Race) -> Winner | None:
    """Returns the winner of a race; None where no finalist was measured.

    Each lane is scored by the median over rounds of the reference's time over its own, where the reference is the
    fastest rival, or the first measured finalist where there is no rival: the clock's wandering hits both alike.
    Ties go to XLA first, then to the fixed order.

    Args:
        racers: Knobs by the index that the race's entries carry.
        race: Samples with the same index were taken in the same round.
    """
    lanes = [lane for lane in race.entries if lane.finalist is not None and isinstance(lane.result, Measured)]
    if not lanes:
        return None
    rival = _fastest_rival(race)
    reference = _samples(rival or lanes[0])
    scores = [float(np.median(paired_ratios(reference, _samples(lane)))) for lane in lanes]
    best = max(scores)
    xla_wins = rival is not None and best <= 1 + TIE
    floor = best * (1 - TIE)
    if rival is not None and not xla_wins:
        # A tied finalist that XLA also ties with is not named winner over one that beats XLA.
        floor = max(floor, np.nextafter(1 + TIE, 2))
    tied = [index for index, score in enumerate(scores) if score >= floor]
    chosen = min(tied, key=lambda index: fixed_order(racers[lanes[index].finalist]))
    return _winner(racers, lanes[chosen], rival, xla_wins, raced=len(lanes), tied=len(tied))


def paired_ratios(reference_us: Sequence[float], samples_us: Sequence[float]) -> np.ndarray:
    """Returns reference over sample, round by round, as float64; a lane that is shorter ends the pairing."""
    rounds = min(len(reference_us), len(samples_us))
    return np.asarray(reference_us[:rounds], dtype=float) / np.asarray(samples_us[:rounds], dtype=float)


def bootstrap_interval(ratios: np.ndarray) -> tuple[float, float]:
    """Returns the 95% percentile interval of the median of `ratios`, resampling whole rounds with a fixed seed."""
    rng = np.random.default_rng(_SEED)
    picks = rng.integers(ratios.size, size=(_RESAMPLES, ratios.size))
    low, high = np.quantile(np.median(ratios[picks], axis=1), [0.025, 0.975])
    return float(low), float(high)


def _winner(
    racers: Sequence[Knobs], lane: RaceEntry, rival: RaceEntry | None, xla_wins: bool, raced: int, tied: int
) -> Winner:
    measured = lane.result
    assert isinstance(measured, Measured) and lane.finalist is not None
    xla_samples = _samples(rival) if rival else ()
    ratios = paired_ratios(xla_samples, measured.timing.samples_us) if rival else None
    return Winner(
        knobs=dict(racers[lane.finalist]),
        backend="xla" if xla_wins else "kernel",
        time_us=measured.timing.median_us,
        samples_us=tuple(measured.timing.samples_us),
        xla_time_us=statistics.median(xla_samples) if rival else None,
        xla_samples_us=xla_samples,
        formulation=rival.formulation if rival else None,
        ratio=None if ratios is None else float(np.median(ratios)),
        ratio_interval=None if ratios is None else bootstrap_interval(ratios),
        digest=measured.lowered.digest,
        error=measured.error,
        smem_bytes=measured.lowered.smem_bytes,
        raced=raced,
        tied=tied,
    )


def _fastest_rival(race: Race) -> RaceEntry | None:
    rivals = [lane for lane in race.entries if lane.finalist is None and isinstance(lane.result, Measured)]
    return min(rivals, key=lambda lane: statistics.median(_samples(lane)), default=None)


def _samples(lane: RaceEntry) -> tuple[float, ...]:
    assert isinstance(lane.result, Measured)
    return tuple(lane.result.timing.samples_us)
