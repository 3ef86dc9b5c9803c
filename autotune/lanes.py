"""The lanes of a race as arrays: samples by process, and the ratios of two lanes, round by round."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.seam import Measured, Race, RaceEntry

PLAIN = "plain"

_RESAMPLES = 2_000
_SEED = 0


@dataclass(frozen=True, slots=True)
class Lanes:
    """Samples by session: of the finalists by index, and of the rivals by formulation."""

    finalists: dict[int, dict[int, RaceEntry]]
    rivals: dict[str, dict[int, RaceEntry]]

    @classmethod
    def of(cls, race: Race) -> Lanes:
        """Returns the lanes that were measured; of a finalist only one that failed in no process."""
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


def paired(numerator: Mapping[int, RaceEntry], denominator: Mapping[int, RaceEntry]) -> np.ndarray:
    """Returns the ratios of two lanes' times round by round, over the processes that ran both."""
    shared = [session for session in numerator if session in denominator]
    found = [paired_ratios(samples_of(numerator[s]), samples_of(denominator[s])) for s in shared]
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


def all_samples(lane: Mapping[int, RaceEntry]) -> tuple[float, ...]:
    """Returns a lane's samples of all processes in us, in their order."""
    return tuple(sample for session in sorted(lane) for sample in samples_of(lane[session]))


def samples_of(lane: RaceEntry) -> tuple[float, ...]:
    """Returns the samples of a lane in one process in us; it must have been measured."""
    assert isinstance(lane.result, Measured)
    return tuple(lane.result.timing.samples_us)


def fixed_order(knobs: Mapping[str, Any]) -> str:
    """Returns a sort key that depends on the knobs alone, never on a time."""
    return json.dumps(knobs, sort_keys=True)
