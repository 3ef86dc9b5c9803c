"""How far apart two processes see one unchanged winner, by how it is measured."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BETWEEN_NIGHTS = 0.003  # that stays however many processes of one night are asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Standard deviations of logarithms, from one process to another.

    Attributes:
        ratio: Of XLA's time over the kernel's.
        kernel: Of the kernel's time, next to sentinels.
    """

    ratio: float
    kernel: float


# All of an H200 with jax 0.11.2, 2026-11-30. Settled clocks and CUPTI: of two nights of 100 winners, not the spread of
# single processes, whose tails are heavier than normal, but what the centre of five showed, times the square root of
# five, less what samples explain. In two later nights (results/nightly/two_nights.json, docs/nightly.md) medians moved
# alike, and one long ratio of ten by 4%, XLA's choice. Chains: of those later nights. Kernels moved by 0.2 to 0.4%;
# 0.5% was chosen, for their tails: one in 56 was 3%.
SETTLED_CLOCKS = Spread(ratio=0.013, kernel=0.010)
CHAIN = Spread(ratio=0.030, kernel=0.005)
CUPTI = Spread(ratio=0.0155, kernel=0.006)
LONG_CUPTI = Spread(ratio=0.004, kernel=0.006)
LONG_US = 60.0  # of a kernel


def measured_spread(protocol: Mapping[str, Any], kernel_us: float | None) -> Spread:
    """Returns the spread of winners that are measured by this protocol and take about this long."""
    if protocol.get("regime") == "sustained":
        return SETTLED_CLOCKS
    if protocol.get("timer") == "chain":
        return CHAIN
    return LONG_CUPTI if (kernel_us or 0.0) >= LONG_US else CUPTI


def centre(values: Sequence[float]) -> float:
    """Returns the median of the means of all pairs, each value with itself too (Hodges and Lehmann's estimate).

    It is nearly as sharp as the mean, and of five values one may lie far out.
    """
    return statistics.median([(a + b) / 2 for a, b in itertools.combinations_with_replacement(values, 2)])


def error_of_centre(errors: Sequence[float]) -> float:
    """Returns the standard deviation of the centre of values with these."""
    return math.sqrt(sum(error**2 for error in errors)) / len(errors)


def error_of_night(spread: float, processes: int) -> float:
    """Returns how far the centre of so many processes of one night lies from the truth, samples aside."""
    return math.hypot(error_of_centre([spread] * processes), BETWEEN_NIGHTS)
