"""Samplers compared on a recorded space: the regret of what each has found, by candidates measured.

The best so far is chosen on one half of each configuration's samples and scored on the other half: chosen and scored
on the same ones, what was measured luckily would pass for what is fast.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.errors import InputError
from autotune.evaluate import RecordedSpace
from autotune.progress import Budget
from autotune.recordedtarget import UNRECORDED
from autotune.search import make_searcher
from autotune.searchsettings import SearchSettings
from autotune.stopping import GainRule

IN_FLIGHT = 16  # candidates, as in a run on 16 cores
ALONE = ("random", "exhaustive")  # samplers that know nothing get none of the target's untuned choices either


@dataclass(frozen=True, slots=True, kw_only=True)
class Arena:
    """A recorded space, ready to be searched many times.

    Attributes:
        title: Of its problem.
        target, problem, device: As the searcher's space is of them.
        space: Only what was recorded and is legal today.
        samples_us: (rows, samples), of the legal rows that did not fail, by their place in `places`.
        places: By the codes of the recording; None where it failed.
    """

    title: str
    target: Any
    problem: Any
    recorded: RecordedSpace
    space: Any
    default_knobs: Sequence[dict[str, Any]]
    samples_us: np.ndarray
    places: dict[tuple[int, ...], int | None]

    @property
    def size(self) -> int:
        """Configurations that can be proposed."""
        return len(self.places)


def arena_of(target: Any, problem: Any, device: Any, recorded: RecordedSpace, space: Any) -> Arena:
    """Returns a recorded space ready to be searched.

    Args:
        target: A `RecordedTarget`.
        space: Its space of `problem`.

    Raises:
        InputError: Nothing of it is legal today, nothing was measured, or it holds one sample a configuration.
    """
    title = problem.describe()
    places: dict[tuple[int, ...], int | None] = {}
    samples: list[tuple[float, ...]] = []
    legal = space.legal()
    for row in range(legal.size):
        knobs = legal.knobs(row)
        found = recorded.row(knobs)
        places[recorded.codes(knobs)] = None if found.failed else len(samples)
        if not found.failed:
            samples.append(found.samples_us)
    if not samples:
        raise InputError(
            f"the recorded space of {title} ({recorded.date}): none of its {len(recorded.rows)} configurations was "
            "measured and is legal today; record it again"
        )
    fewest = min(map(len, samples))
    if fewest < 2:
        raise InputError(
            f"the recorded space of {title} ({recorded.date}): a configuration has {fewest} sample; comparing takes "
            "at least 2, to choose on one half and score on the other; record it with more protocol.rounds"
        )
    return Arena(
        title=title,
        target=target,
        problem=problem,
        recorded=recorded,
        space=space,
        default_knobs=target.default_configs(problem, device),
        samples_us=np.array([row[:fewest] for row in samples]),
        places=places,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Searches:
    """One sampler's searches of an arena, one a seed.

    Attributes:
        regret: (seeds, candidates): time of the best so far over that of the space's best, less 1. Column i is after
            i + 1 candidates; inf while all of them failed. Where the space ends first, the last value stays.
        stopped: (seeds,) candidates after which a run would have ended the search for want of gain; 0: never.
    """

    regret: np.ndarray
    stopped: np.ndarray


def searches(
    arena: Arena, sampler: str, seeds: int, candidates: int, budget: Budget, in_flight: int = IN_FLIGHT
) -> Searches:
    """Searches the arena once a seed; past the end that `budget.gain` would have set, it goes on."""
    done = [_search(arena, sampler, seed, candidates, in_flight, budget) for seed in range(seeds)]
    return Searches(
        regret=np.array([regret for regret, _ in done]), stopped=np.array([stopped for _, stopped in done])
    )


def halves(samples_us: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns medians of two halves of each row's samples, (rows,) each; `seed` decides which samples go where."""
    order = np.random.default_rng(seed).random(samples_us.shape).argsort(axis=1)
    shuffled = np.take_along_axis(samples_us, order, axis=1)
    middle = samples_us.shape[1] // 2
    return np.median(shuffled[:, :middle], axis=1), np.median(shuffled[:, middle:], axis=1)


def median_interval(values: np.ndarray) -> tuple[float, float, float]:
    """Returns the median of values and a 95% interval of it, by their ranks."""
    ordered = np.sort(values)
    reach = 0.98 * math.sqrt(len(ordered))
    low = max(0, math.floor(len(ordered) / 2 - reach))
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + reach) - 1)
    return float(np.median(ordered)), float(ordered[low]), float(ordered[high])


def _search(
    arena: Arena, sampler: str, seed: int, candidates: int, in_flight: int, budget: Budget
) -> tuple[np.ndarray, int]:
    chosen_us, scored_us = halves(arena.samples_us, seed)
    reference_us = scored_us[np.argmin(chosen_us)]
    defaults = () if sampler in ALONE else arena.default_knobs
    searcher = make_searcher(SearchSettings(sampler=sampler, seed=seed), arena.space, defaults)
    rule = GainRule(budget, searcher)
    regret = np.full(candidates, np.inf)
    flying: deque[dict[str, Any]] = deque()
    best, asked, stopped = None, 0, 0
    for told in range(candidates):
        samples_us = None if best is None else arena.samples_us[best]
        is_held = not stopped and rule.stop(told, len(flying), samples_us) is not None
        if is_held and not flying:
            stopped, is_held = told, False
        while not is_held and asked < candidates and len(flying) < in_flight:
            knobs = _next(arena, searcher)
            if knobs is None:
                break
            flying.append(knobs)
            asked += 1
        if not flying:
            regret[told:] = regret[told - 1]
            break
        knobs = flying.popleft()
        place = arena.places[arena.recorded.codes(knobs)]
        if place is not None and (best is None or chosen_us[place] < chosen_us[best]):
            best = place
        searcher.tell(knobs, None if place is None else float(chosen_us[place]))
        if best is not None:
            regret[told] = scored_us[best] / reference_us - 1
    return regret, stopped


def _next(arena: Arena, searcher: Any) -> dict[str, Any] | None:
    """Returns what the searcher proposes next, as a run would measure it."""
    while (knobs := searcher.ask()) is not None:
        if arena.recorded.codes(knobs) in arena.places:
            return knobs
        searcher.reject(knobs, [UNRECORDED], arena.target.mended_knobs(knobs))
    return None
