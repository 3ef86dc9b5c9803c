"""What a winner is compared with: its own settled nights, on this card if there are any, else what is stored."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.bestfile import BestEntry
from autotune.nightly.history import QUIET, History, Record
from autotune.nightly.spread import Spread, centre, error_of_centre, error_of_night, measured_spread
from autotune.nightly.values import Machine, fingerprint

NIGHTS = 14  # of the reference
# Of fewer nights than FEW one or two may lie far out, and nothing shows which: errors count so many times.
FEW, FEW_UNSURE = 5, 2.0
PROTOCOL_DEFAULTS = {"timer": "cupti", "l2": "clean", "inputs": "normal", "regime": "burst"}
SETTLED = ("unchanged", "drift", "stale", "better", "regression")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What a winner is compared with.

    Attributes:
        log_ratio, error: Of XLA's time over the kernel's; None where one lane was never measured.
        sentinels: Medians over the same nights; empty where unknown.
        kernel_us, xla_us: Centres of the same nights, as they would be at those sentinels; None where unknown.
        kernel_error: Of the logarithm of kernel_us.
        spread: From process to process: the measured one, or more where the problem's own nights lie further apart.
        is_here: On this card with this power limit.
        moved: Versions that differ from tonight's, such as "driver 570.1 -> 580.1".
    """

    log_ratio: float | None
    error: float
    kernel_us: float | None = None
    xla_us: float | None = None
    sentinels: Mapping[str, float]
    kernel_error: float = 1.0
    spread: Spread
    is_here: bool
    moved: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tonight:
    """What holds for all problems of a night.

    Attributes:
        sentinels: Median in us by name.
        z: Standard deviations that make a page.
    """

    machine: Machine
    sentinels: Mapping[str, float]
    history: History
    z: float


def reference(entry: BestEntry, records: Sequence[Record], tonight: Tonight) -> Reference:
    """Returns the settled nights that tell most: here with tonight's versions, else here, else elsewhere."""
    settled = [record for record in records if record["verdict"] in SETTLED and record.get("log_ratio_error")]
    last_fall = max((i for i, record in enumerate(settled) if record["verdict"] == "regression"), default=0)
    settled = settled[last_fall:]
    here = [record for record in settled if is_here(record, tonight.machine)]
    same = [record for record in here if not moved(record, tonight.machine)]
    if same:
        return _from_nights(same[-NIGHTS:], entry, tonight, is_here=True)
    if here:
        newest = [record for record in here if not moved(record, _machine_of(here[-1], tonight.machine))]
        return _from_nights(newest[-NIGHTS:], entry, tonight, is_here=True)
    if settled:
        return _from_nights(settled[-1:], entry, tonight, is_here=False)
    return _from_entry(entry, tonight)


def moved(record: Record, machine: Machine) -> tuple[str, ...]:
    """Returns the versions that changed between a record and a machine, in words."""
    names = ("driver", "jax", "jaxlib")
    return tuple(
        f"{name} {record.get(name)} -> {getattr(machine, name)}"
        for name in names
        if record.get(name) != getattr(machine, name)
    )


def protocol_mark(protocol: Mapping[str, Any]) -> str:
    """Returns what tells how times were taken, however many of them."""
    return " ".join(f"{protocol.get(name, default)}" for name, default in PROTOCOL_DEFAULTS.items())


def shifts(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Returns the logarithm of the change of each sentinel that is known from both times."""
    return {name: math.log(now[name] / before[name]) for name in now if name in before}


def _from_nights(
    records: Sequence[Record], entry: BestEntry, tonight: Tonight, *, is_here: bool
) -> Reference:
    records = [_unselected(record) for record in records]
    nights = [tonight.history.nights[record["night"]]["sentinels"] for record in records]
    names = set(nights[0]).intersection(*nights[1:])
    sentinels = {name: statistics.median([night[name] for night in nights]) for name in names}
    ratios = [record["log_ratio"] for record in records]
    kernel = _at_sentinels(records, "kernel_us", nights, sentinels)
    xla = _at_sentinels(records, "xla_us", nights, sentinels)
    errors = [record["log_ratio_error"] for record in records]
    prior = measured_spread(entry.protocol, math.exp(centre(kernel)) if kernel else entry.kernel_us)
    spread = Spread(ratio=_raised(prior.ratio, ratios, errors), kernel=_raised(prior.kernel, kernel))
    unsure = FEW_UNSURE if len(records) < FEW else 1.0
    asked = [record.get("processes") or 1 for record in records]
    return Reference(
        log_ratio=centre(ratios),
        error=unsure
        * error_of_centre(
            [math.hypot(error, error_of_night(spread.ratio, n)) for error, n in zip(errors, asked)]
        ),
        kernel_us=math.exp(centre(kernel)) if kernel else None,
        xla_us=math.exp(centre(xla)) if xla else None,
        kernel_error=unsure * error_of_centre([error_of_night(spread.kernel, n) for n in asked]),
        sentinels=sentinels,
        spread=spread,
        is_here=is_here,
        moved=moved(records[-1], tonight.machine),
    )


def _unselected(record: Record) -> Record:
    """Returns a night that ended quietly as it was seen at first.

    Only what looks slow is asked again. To keep the answers of those, and what looked fast as it was, would make a
    reference that is too fast.
    """
    first = record.get("first")
    is_quiet = record["verdict"] in (*QUIET, "stale")
    return {**record, **first} if first and first.get("log_ratio_error") and is_quiet else record


def _at_sentinels(
    records: Sequence[Record],
    lane: str,
    nights: Sequence[Mapping[str, float]],
    sentinels: Mapping[str, float],
) -> list[float]:
    """Returns logarithms of a lane's times as they would have been, had the sentinels taken `sentinels`."""
    return [
        math.log(record[lane]) - (statistics.fmean(shifts(night, sentinels).values()) if sentinels else 0.0)
        for record, night in zip(records, nights)
        if record.get(lane)
    ]


def _raised(prior: float, values: Sequence[float], errors: Sequence[float] = (0.0,)) -> float:
    """Returns the measured spread, or what a problem's own nights say where that is more."""
    if len(values) < 4:
        return prior
    middle = statistics.median(values)
    # 1.4826 of the median deviation is a normal value's standard deviation, and one night far out does not stretch it.
    own = 1.4826 * statistics.median([abs(value - middle) for value in values])
    return max(prior, math.sqrt(max(0.0, own**2 - statistics.fmean(error**2 for error in errors))))


def _from_entry(entry: BestEntry, tonight: Tonight) -> Reference:
    """Returns the stored race as a reference; the card it ran on may be unknown."""
    ratio, machine = entry.ratio, tonight.machine
    spread = measured_spread(entry.protocol, entry.kernel_us)
    one = error_of_night(spread.ratio, 1)
    return Reference(
        log_ratio=math.log(ratio.median) if ratio else None,
        # The interval spans 2 x 1.96 standard errors.
        error=math.hypot(one, math.log(ratio.high / ratio.low) / 3.92) if ratio else 1.0,
        sentinels={},
        spread=spread,
        is_here=(entry.card, entry.power_limit_w) == (machine.card, machine.power_limit_w),
        moved=moved({"driver": entry.driver, "jax": entry.jax, "jaxlib": entry.jaxlib}, machine),
    )


def of_config(records: Sequence[Record], entry: BestEntry) -> list[Record]:
    """Returns the newest run of records about the stored configuration, measured as it is."""
    knobs = entry.config.to_knobs() if entry.config is not None else None
    mark, protocol = fingerprint(knobs), protocol_mark(entry.protocol)
    kept: list[Record] = []
    for record in reversed(records):
        if record.get("config") != mark or record.get("protocol") != protocol:
            break
        kept.append(record)
    return kept[::-1]


def is_here(record: Record, machine: Machine) -> bool:
    return (record["card"], record.get("power_limit_w")) == (machine.card, machine.power_limit_w)


def _machine_of(record: Record, like: Machine) -> Machine:
    return Machine(
        card=record["card"],
        kind=like.kind,
        power_limit_w=record.get("power_limit_w"),
        driver=record["driver"],
        jax=record["jax"],
        jaxlib=record["jaxlib"],
    )
