"""Who races, and who won: pure arithmetic over recorded times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autotune.lanes import (
    PLAIN,
    Lanes,
    all_samples,
    bootstrap_interval,
    fixed_order,
    paired,
    paired_ratios,
    samples_of,
)
from autotune.paired import ALPHA, TIE, p_above
from autotune.rerun import rerun_chance
from autotune.result import Winner
from autotune.seam import Measured, Race, RaceEntry, combined

# A finalist further behind than this is no tie even where the samples are too few to prove it.
SURELY_BEHIND = 0.01
# Sessions of one rival that differ by less ran the same algorithm; of a slower one a user need not hear.
SAME_ALGORITHM = 0.01
# Screening sees kernels alone and in bursts, so it ranks no better than this against a chain or settled clocks.
REACH = 0.01
# Nor does it see what lies between the kernels of a chain: of candidates for 128 products of 128 cubed, 5 us, the
# fastest in a chain was 0.09 us behind another in screening, where pairing them with a kernel of 60 us adds noise too.
CHAIN_REACH_US = 0.2
FEWEST_FINALISTS = 3

Knobs = Mapping[str, Any]


def finalists(screened: Iterable[tuple[Knobs, Measured]]) -> list[tuple[Knobs, Measured]]:
    """Returns the measured candidates with distinct lowered modules, fastest first.

    Of several with one module the first in the fixed order stands for all, so that who is named does not depend on
    which of them was measured first.
    """
    groups: dict[str, list[tuple[Knobs, Measured]]] = {}
    for knobs, measured in screened:
        groups.setdefault(measured.lowered.digest, []).append((knobs, measured))
    best = [
        (min(m.timing.score_us for _, m in group), *min(group, key=lambda pair: fixed_order(pair[0])))
        for group in groups.values()
    ]
    best.sort(key=lambda entry: (entry[0], fixed_order(entry[1])))
    return [(knobs, measured) for _, knobs, measured in best]


def first_batch(ranked: Sequence[tuple[Knobs, Measured]], most: int, *, in_chain: bool = False) -> int:
    """Returns how many of the ranked candidates race: all whose interval reaches the best's, at most `most`.

    Args:
        ranked: With what they took in screening, the fastest first.
        most: No more than these.
        in_chain: They race in chains of calls.
    """
    if not ranked:
        return 0
    bar_us = median_interval(ranked[0][1].timing.paired_us)[1] * (1 + REACH) + CHAIN_REACH_US * in_chain
    reaching = sum(median_interval(measured.timing.paired_us)[0] <= bar_us for _, measured in ranked)
    return min(most, len(ranked), max(FEWEST_FINALISTS, reaching))


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the 95% interval of the median by order statistics (the sign test's), which assumes no distribution."""
    ordered = sorted(values)
    half = 0.98 * math.sqrt(len(ordered))
    low = max(0, math.floor(len(ordered) / 2 - half))
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + half) - 1)
    return ordered[low], ordered[max(low, high)]


def merged(sessions: Sequence[Race]) -> Race:
    """Returns the races of several processes as one."""
    ceilings = [race.ceilings for race in sessions if race.ceilings]
    best = {name: max(each[name] for each in ceilings) for name in ceilings[0]} if ceilings else None
    entries = tuple(replace(entry, session=n) for n, race in enumerate(sessions) for entry in race.entries)
    conditions = combined([race.conditions for race in sessions])
    return Race(entries=entries, ceilings=best, conditions=conditions)


def judge(racers: Sequence[Knobs], race: Race) -> Winner | None:
    """Returns the winner of a race; None where no finalist was measured.

    Lanes are compared by the ratios of their times in the same round of the same process: the clock's wandering
    hits both alike. Ties go to XLA first, then to the fixed order.

    Args:
        racers: Knobs by the index that the race's entries carry.
        race: Of one process, or `merged` of several.
    """
    lanes = Lanes.of(race)
    if not lanes.finalists:
        return None
    base = lanes.rivals.get(PLAIN) or next(iter(lanes.rivals.values()), None)
    base = base or lanes.finalists[min(lanes.finalists)]
    gains = {index: paired(base, lane) for index, lane in lanes.finalists.items()}
    gains = {index: each for index, each in gains.items() if each.size}
    if not gains:
        return None
    scores = {index: float(np.median(each)) for index, each in gains.items()}
    leader = min(scores, key=lambda index: (-scores[index], fixed_order(racers[index])))
    rival = _best_rival(lanes, lanes.finalists[leader])
    tied = _tied(lanes, scores, leader)
    xla_wins = rival is not None and not _beats(rival[1], lanes.finalists[leader])
    eligible = tied
    if rival is not None and not xla_wins:
        # A tied finalist that XLA also ties with is not named winner over one that beats XLA.
        eligible = [index for index in tied if _beats(rival[1], lanes.finalists[index])] or [leader]
    chosen = min(eligible, key=lambda index: fixed_order(racers[index]))
    return _winner(racers, race, lanes, chosen, tied, rival, xla_wins)


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalTimes:
    """A race of rivals alone.

    Attributes:
        plain_us: Median of the plain formulation, in the processes where XLA compiled it best.
        best_us: Of the fastest formulation.
        formulation: Its name.
        ratio: Interval (low, median, high) of the fastest formulation's time over plain's. Where plain is the fastest,
            1 with the interval of its even rounds over its odd ones: what this race could tell apart.
    """

    plain_us: float
    best_us: float
    formulation: str
    ratio: tuple[float, float, float]


def rival_times(race: Race) -> RivalTimes | None:
    """Returns the times of a race of rivals alone; None where the plain one was not measured."""
    rivals = Lanes.of(race).rivals
    if PLAIN not in rivals:
        return None
    medians = {session: statistics.median(samples_of(entry)) for session, entry in rivals[PLAIN].items()}
    plain = _fastest(rivals[PLAIN], medians)
    # Against the fastest compilation of plain, which is what a user may get.
    found = _best_rival(Lanes({}, {**rivals, PLAIN: plain}), plain)
    assert found is not None
    name, best = found
    if name == PLAIN:
        rounds = [samples_of(entry) for entry in plain.values()]
        ratios = np.concatenate([paired_ratios(samples[0::2], samples[1::2]) for samples in rounds])
    else:
        ratios = paired(best, plain)
    median = float(np.median(ratios)) if ratios.size and name != PLAIN else 1.0
    low, high = bootstrap_interval(ratios) if ratios.size else (1.0, 1.0)
    plain_us = statistics.median(all_samples(plain))
    return RivalTimes(
        plain_us=plain_us,
        best_us=plain_us * median,
        formulation=name,
        ratio=(min(low, median), median, max(high, median)),
    )


def best_rival(race: Race, leader: Mapping[int, RaceEntry]) -> tuple[str, dict[int, RaceEntry]] | None:
    """Returns the name and the lanes, by session, of the fastest rival beside a lane; None where none was measured."""
    return _best_rival(Lanes.of(race), leader)


def _best_rival(lanes: Lanes, leader: Mapping[int, RaceEntry]) -> tuple[str, dict[int, RaceEntry]] | None:
    """Returns the fastest formulation, in the processes where XLA compiled it best: it decides anew in each."""
    found = []
    for name, sessions in lanes.rivals.items():
        best = _best_compiled(sessions, leader)
        if best:
            found.append((float(np.median(paired(best, leader))), name != PLAIN, name, best))
    if not found:
        return None
    # Within a tie the plain one is named: nothing is gained by writing it otherwise.
    fastest = min(entry[0] for entry in found)
    _, _, name, best = min(
        (e for e in found if e[0] <= fastest * (1 + TIE)), key=lambda e: (e[1], e[0], e[2])
    )
    return name, best


def _best_compiled(
    sessions: Mapping[int, RaceEntry], leader: Mapping[int, RaceEntry]
) -> dict[int, RaceEntry]:
    """Returns a rival's lanes of the processes where it was fastest beside `leader`; none where they never met."""
    each = {session: paired({session: entry}, leader) for session, entry in sessions.items()}
    return _fastest(sessions, {s: float(np.median(ratios)) for s, ratios in each.items() if ratios.size})


def _fastest(sessions: Mapping[int, RaceEntry], medians: Mapping[int, float]) -> dict[int, RaceEntry]:
    """Returns the sessions whose median is the least, or so near that XLA must have chosen the same."""
    limit = min(medians.values(), default=0.0) * (1 + SAME_ALGORITHM)
    return {session: sessions[session] for session, median in medians.items() if median <= limit}


def _beats(rival: Mapping[int, RaceEntry], lane: Mapping[int, RaceEntry]) -> bool:
    """Returns whether a finalist is faster than the rival by more than a tie, and beyond doubt faster at all."""
    ratios = paired(rival, lane)
    if not ratios.size or float(np.median(ratios)) <= 1 + TIE:
        return False
    return ratios.size < 2 or p_above(np.log(ratios).tolist(), 0.0) < ALPHA


def _tied(lanes: Lanes, scores: Mapping[int, float], leader: int) -> list[int]:
    """Returns the finalists that cannot be told from the leader, the leader among them."""
    tied = []
    for index in scores:
        ratios = paired(lanes.finalists[index], lanes.finalists[leader])
        behind = float(np.median(ratios)) - 1 if ratios.size else math.inf
        level = ALPHA / max(1, len(scores) - 1)
        is_open = behind <= SURELY_BEHIND and p_above(np.log(ratios).tolist(), 0.0) >= level
        if index == leader or behind <= TIE or is_open:
            tied.append(index)
    return tied


def _winner(
    racers: Sequence[Knobs],
    race: Race,
    lanes: Lanes,
    chosen: int,
    tied: Sequence[int],
    rival: tuple[str, dict[int, RaceEntry]] | None,
    xla_wins: bool,
) -> Winner:
    own = lanes.finalists[chosen]
    first = next(iter(own.values())).result
    assert isinstance(first, Measured)
    name, best = rival or (None, {})
    samples, xla_samples = all_samples(own), all_samples(best)
    ratios = paired(best, own)
    plain_lanes = _best_compiled(lanes.rivals.get(PLAIN, {}), own)
    plain = paired(plain_lanes, own)
    tie_set = sorted(fixed_order(racers[index]) for index in tied)
    return Winner(
        knobs=dict(racers[chosen]),
        backend="xla" if xla_wins else "kernel",
        time_us=statistics.median(samples),
        samples_us=samples,
        xla_time_us=statistics.median(xla_samples) if xla_samples else None,
        xla_samples_us=xla_samples,
        formulation=name,
        ratio=float(np.median(ratios)) if ratios.size else None,
        ratio_interval=bootstrap_interval(ratios) if ratios.size else None,
        plain_time_us=statistics.median(all_samples(plain_lanes)) if plain_lanes else None,
        plain_ratio=float(np.median(plain)) if plain.size else None,
        plain_interval=bootstrap_interval(plain) if plain.size else None,
        joules=_joules(own),
        xla_joules=_joules(best),
        digest=first.lowered.digest,
        error=max((e.result.error for e in own.values() if e.result.error is not None), default=None),
        smem_bytes=first.lowered.smem_bytes,
        raced=len(lanes.finalists),
        tied=len(tied),
        tie_set=(*(["xla"] if xla_wins and ratios.size and np.median(ratios) > 1 - TIE else []), *tie_set),
        rerun_chance=rerun_chance(racers, race),
    )


def _joules(lane: Mapping[int, RaceEntry]) -> float | None:
    found = [e.result.timing.joules for e in lane.values() if isinstance(e.result, Measured)]
    found = [joules for joules in found if joules is not None]
    return statistics.fmean(found) if found else None
