"""How much slower a night saw a kernel: against XLA, or next to the sentinels, whichever is the sharper."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.nightly.reference import Reference
from autotune.nightly.spread import error_of_night

MOVED = 0.02  # a sentinel, or a lane, that changed by more
UNKNOWN_MACHINE = 0.2  # how far off a machine without comparable sentinels may be


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What one night saw of a winner.

    Attributes:
        log_ratio: Of XLA's time over the kernel's, and its error by the samples; None where one was not measured.
        shifts: By how much the sentinels moved, as logarithms; empty where absolute times do not compare.
    """

    log_ratio: tuple[float, float] | None
    kernel_us: float | None
    processes: int
    shifts: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """How much slower a kernel is than its reference.

    Attributes:
        own, common: Standard deviations; `common` is the reference's, the same for all nights.
        by: The time that tells: the ratio to XLA's, or the kernel's alone.
    """

    value: float
    own: float
    common: float
    by: str

    @property
    def error(self) -> float:
        return math.hypot(self.own, self.common)

    @property
    def z(self) -> float:
        return self.value / self.error


def fall_by_ratio(sight: Sight, against: Reference) -> Fall | None:
    if sight.log_ratio is None or against.log_ratio is None:
        return None
    value, error = sight.log_ratio
    own = math.hypot(error, error_of_night(against.spread.ratio, sight.processes))
    return Fall(value=against.log_ratio - value, own=own, common=against.error, by="ratio")


def fall_by_kernel(sight: Sight, against: Reference) -> Fall | None:
    """Returns the fall of the kernel's own time; the less certain, the less the sentinels agree.

    With no sentinel to go by the machine is taken to stand still, which says next to nothing.
    """
    if not sight.kernel_us or not against.kernel_us:
        return None
    moved = sight.shifts.values()
    machine = (max(moved) - min(moved)) / 2 if moved else UNKNOWN_MACHINE
    own = math.hypot(error_of_night(against.spread.kernel, sight.processes), machine)
    value = math.log(sight.kernel_us / against.kernel_us) - (statistics.fmean(moved) if moved else 0.0)
    return Fall(value=value, own=own, common=against.kernel_error, by="kernel")


def sharper(sight: Sight, against: Reference) -> Fall | None:
    """Returns the evidence with the smaller error; None where there is nothing to compare with.

    XLA chooses anew in each process: for short kernels its lane scatters more than the kernel's own.
    """
    found = [fall for tell in (fall_by_ratio, fall_by_kernel) if (fall := tell(sight, against)) is not None]
    return min(found, key=lambda fall: fall.error, default=None)


def together(falls: Sequence[Fall]) -> Fall:
    """Returns several nights' evidence against one reference as one."""
    weights = [1 / fall.own**2 for fall in falls]
    mean = sum(weight * fall.value for weight, fall in zip(weights, falls)) / sum(weights)
    return Fall(value=mean, own=1 / math.sqrt(sum(weights)), common=falls[0].common, by=falls[0].by)
