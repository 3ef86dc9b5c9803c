"""How likely another race of the same lanes would crown another winner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autotune.lanes import Lanes, fixed_order, samples_of
from autotune.paired import TIE
from autotune.seam import Race

_RERUNS = 400
_SEED = 0


def rerun_chance(racers: Sequence[Mapping[str, Any]], race: Race) -> float:
    """Returns the estimated chance that another race of the same lanes would crown another winner.

    A bootstrap: rounds are drawn anew within each process, for all lanes alike, and judged by medians and ties.
    """
    lanes = Lanes.of(race)
    everyone = [*lanes.finalists.items(), *lanes.rivals.items()]
    sessions = sorted({session for _, lane in everyone for session in lane})
    rng = np.random.default_rng(_SEED)
    medians: dict[Any, list[np.ndarray]] = {key: [] for key, _ in everyone}
    for session in sessions:
        rows = {key: np.log(samples_of(lane[session])) for key, lane in everyone if session in lane}
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


def _crowned(racers: Sequence[Mapping[str, Any]], logs: Mapping[Any, float]) -> str:
    own = {key: log for key, log in logs.items() if isinstance(key, int)}
    rivals = [log for key, log in logs.items() if not isinstance(key, int)]
    best = min(own.values())
    if rivals and min(rivals) - best <= math.log1p(TIE):
        return "xla"
    ceiling = best + math.log1p(TIE)
    if rivals:
        ceiling = min(ceiling, min(rivals) - math.log1p(TIE))
    return min(fixed_order(racers[key]) for key, log in own.items() if log <= ceiling)
