"""Who races, and who won: pure arithmetic over recorded times."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autotune.paired import ALPHA, TIE, p_above
from autotune.result import Winner
from autotune.seam import Measured, Race, RaceEntry, combined

__all__ = ["TIE", "finalists", "first_batch", "fixed_order", "judge", "merged"]

PLAIN = "plain"
# A finalist further behind than this is no tie even where the samples are too few to prove it.
SURELY_BEHIND = 0.01
# Sessions of one rival that differ by less ran the same algorithm; of a slower one a user need not hear.
SAME_ALGORITHM = 0.01
# Screening sees kernels alone and in bursts, so it ranks no better than this against a chain or settled clocks.
REACH = 0.01
FEWEST_FINALISTS = 3

_RESAMPLES = 2_000
_RERUNS = 400
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
        (min(m.timing.score_us for _, m in group), *min(group, key=lambda pair: fixed_order(pair[0])))
        for group in groups.values()
    ]
    best.sort(key=lambda entry: (entry[0], fixed_order(entry[1])))
    return [(knobs, measured) for _, knobs, measured in best]


def first_batch(ranked: Sequence[tuple[Knobs, Measured]], most: int) -> int:
    """Returns how many of the ranked candidates race: all whose interval reaches the best's, at most `most`."""
    if not ranked:
        return 0
    bar_us = median_interval(ranked[0][1].timing.paired_us)[1] * (1 + REACH)
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


@dataclass(frozen=True, slots=True)
class _Lanes:
    """Samples by session: of the finalists by index, and of the rivals by formulation."""

    finalists: dict[int, dict[int, RaceEntry]]
    rivals: dict[str, dict[int, RaceEntry]]

    @classmethod
    def of(cls, race: Race) -> _Lanes:
        finalists: dict[int, dict[int, RaceEntry]] = {}
        rivals: dict[str, dict[int, RaceEntry]] = {}
        for entry in race.entries:
            if isinstance(entry.result, Measured) and entry.result.timing.samples_us:
                if entry.finalist is None:
                    rivals.setdefault(entry.formulation or PLAIN, {})[entry.session] = entry
                else:
                    finalists.setdefault(entry.finalist, {})[entry.session] = entry
        # A finalist that failed in one process has not survived the race.
        lost = {e.finalist for e in race.entries if not isinstance(e.result, Measured)}
        return cls({index: lanes for index, lanes in finalists.items() if index not in lost}, rivals)


def judge(racers: Sequence[Knobs], race: Race) -> Winner | None:
    """Returns the winner of a race; None where no finalist was measured.

    Lanes are compared by the ratios of their times in the same round of the same process: the clock's wandering
    hits both alike. Ties go to XLA first, then to the fixed order.

    Args:
        racers: Knobs by the index that the race's entries carry.
        race: Of one process, or `merged` of several.
    """
    lanes = _Lanes.of(race)
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


def rival_times(race: Race) -> tuple[float | None, float | None, str | None]:
    """Returns the medians of plain and of the best formulation of a race of rivals alone, and the best one's name."""
    rivals = _Lanes.of(race).rivals
    if PLAIN not in rivals:
        return None, None, None
    found = _best_rival(_Lanes({}, rivals), rivals[PLAIN])
    assert found is not None
    name, best = found
    plain_us = statistics.median(_all(rivals[PLAIN]))
    ratios = paired(best, rivals[PLAIN])
    return plain_us, plain_us * float(np.median(ratios)), name


def paired(numerator: Mapping[int, RaceEntry], denominator: Mapping[int, RaceEntry]) -> np.ndarray:
    """Returns the ratios of two lanes' times round by round, over the processes that ran both."""
    shared = [session for session in numerator if session in denominator]
    found = [paired_ratios(_samples(numerator[s]), _samples(denominator[s])) for s in shared]
    return np.concatenate(found) if found else np.empty(0)


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


def _best_rival(lanes: _Lanes, leader: Mapping[int, RaceEntry]) -> tuple[str, dict[int, RaceEntry]] | None:
    """Returns the fastest formulation, in the processes where XLA compiled it best: it decides anew in each."""
    found = []
    for name, sessions in lanes.rivals.items():
        each = {s: paired({s: entry}, leader) for s, entry in sessions.items()}
        medians = {s: float(np.median(ratios)) for s, ratios in each.items() if ratios.size}
        if medians:
            kept = [
                s for s, median in medians.items() if median <= min(medians.values()) * (1 + SAME_ALGORITHM)
            ]
            best = {s: sessions[s] for s in kept}
            found.append((float(np.median(paired(best, leader))), name != PLAIN, name, best))
    if not found:
        return None
    # Within a tie the plain one is named: nothing is gained by writing it otherwise.
    fastest = min(entry[0] for entry in found)
    _, _, name, best = min(
        (e for e in found if e[0] <= fastest * (1 + TIE)), key=lambda e: (e[1], e[0], e[2])
    )
    return name, best


def _beats(rival: Mapping[int, RaceEntry], lane: Mapping[int, RaceEntry]) -> bool:
    """Returns whether a finalist is faster than the rival by more than a tie, and beyond doubt faster at all."""
    ratios = paired(rival, lane)
    if not ratios.size or float(np.median(ratios)) <= 1 + TIE:
        return False
    return ratios.size < 2 or p_above(np.log(ratios).tolist(), 0.0) < ALPHA


def _tied(lanes: _Lanes, scores: Mapping[int, float], leader: int) -> list[int]:
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
    lanes: _Lanes,
    chosen: int,
    tied: Sequence[int],
    rival: tuple[str, dict[int, RaceEntry]] | None,
    xla_wins: bool,
) -> Winner:
    own = lanes.finalists[chosen]
    first = next(iter(own.values())).result
    assert isinstance(first, Measured)
    name, best = rival or (None, {})
    samples, xla_samples = _all(own), _all(best)
    ratios = paired(best, own)
    plain = paired(lanes.rivals.get(PLAIN, {}), own)
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
        plain_time_us=statistics.median(_all(lanes.rivals[PLAIN])) if PLAIN in lanes.rivals else None,
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


def rerun_chance(racers: Sequence[Knobs], race: Race) -> float:
    """Returns the estimated chance that another race of the same lanes would crown another winner.

    A bootstrap: rounds are drawn anew within each process, for all lanes alike, and judged by medians and ties.
    """
    lanes = _Lanes.of(race)
    everyone = [*lanes.finalists.items(), *lanes.rivals.items()]
    sessions = sorted({session for _, lane in everyone for session in lane})
    rng = np.random.default_rng(_SEED)
    medians: dict[Any, list[np.ndarray]] = {key: [] for key, _ in everyone}
    for session in sessions:
        rows = {key: np.log(_samples(lane[session])) for key, lane in everyone if session in lane}
        longest = max(len(row) for row in rows.values())
        picks = rng.integers(longest, size=(_RERUNS, longest))
        anchor = next(row for row in rows.values() if len(row) == longest)
        for key, row in rows.items():
            # Against a lane that ran every round, so that the rounds a lane missed do not count for or against it.
            padded = np.full(longest, np.nan)
            padded[: len(row)] = row - anchor[: len(row)]
            with np.errstate(all="ignore"):
                drawn = np.nanmedian(
                    np.where(np.isnan(padded[picks]), np.nanmedian(padded), padded[picks]), axis=1
                )
            medians[key].append(drawn)
    times = {key: np.mean(each, axis=0) for key, each in medians.items() if each}
    crowned = [_crowned(racers, {key: float(each[i]) for key, each in times.items()}) for i in range(_RERUNS)]
    most = max(crowned.count(name) for name in set(crowned))
    return 1 - most / _RERUNS


def _crowned(racers: Sequence[Knobs], logs: Mapping[Any, float]) -> str:
    own = {key: log for key, log in logs.items() if isinstance(key, int)}
    rivals = [log for key, log in logs.items() if not isinstance(key, int)]
    best = min(own.values())
    if rivals and min(rivals) - best <= math.log1p(TIE):
        return "xla"
    ceiling = best + math.log1p(TIE)
    if rivals:
        ceiling = min(ceiling, min(rivals) - math.log1p(TIE))
    return min(fixed_order(racers[key]) for key, log in own.items() if log <= ceiling)


def _all(lane: Mapping[int, RaceEntry]) -> tuple[float, ...]:
    return tuple(sample for session in sorted(lane) for sample in _samples(lane[session]))


def _joules(lane: Mapping[int, RaceEntry]) -> float | None:
    found = [e.result.timing.joules for e in lane.values() if isinstance(e.result, Measured)]
    found = [joules for joules in found if joules is not None]
    return statistics.fmean(found) if found else None


def _samples(lane: RaceEntry) -> tuple[float, ...]:
    assert isinstance(lane.result, Measured)
    return tuple(lane.result.timing.samples_us)
