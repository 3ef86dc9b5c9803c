"""What a winner is compared with: its own settled nights, on this card if there are any, else what is stored."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.bestfile import BestEntry
from autotune.nightly.history import History, Record
from autotune.nightly.values import Machine, fingerprint

# Two nights' ratios of one unchanged kernel differ by more than their samples say, since clocks and the memory
# layout differ. The history of a problem raises this where its own nights wander further.
BETWEEN_NIGHTS = 0.005
NIGHTS = 14  # of the reference
PROTOCOL_DEFAULTS = {"timer": "cupti", "l2": "clean", "inputs": "normal", "regime": "burst"}
SETTLED = ("unchanged", "drift", "stale", "better", "regression")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What a winner is compared with.

    Attributes:
        log_ratio, error: Of XLA's time over the kernel's; None where one lane was never measured.
        kernel_us, xla_us, sentinels: Medians over the same nights; None and empty where unknown.
        between: Standard deviation of the logarithm from night to night.
        is_here: On this card with this power limit.
        moved: Versions that differ from tonight's, such as "driver 570.1 -> 580.1".
    """

    log_ratio: float | None
    error: float
    kernel_us: float | None = None
    xla_us: float | None = None
    sentinels: Mapping[str, float]
    between: float = BETWEEN_NIGHTS
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
        return _from_nights(same[-NIGHTS:], tonight, is_here=True)
    if here:
        newest = [record for record in here if not moved(record, _machine_of(here[-1], tonight.machine))]
        return _from_nights(newest[-NIGHTS:], tonight, is_here=True)
    if settled:
        return _from_nights(settled[-1:], tonight, is_here=False)
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


def _from_nights(records: Sequence[Record], tonight: Tonight, *, is_here: bool) -> Reference:
    ratios = [record["log_ratio"] for record in records]
    errors = [record["log_ratio_error"] for record in records]
    between = BETWEEN_NIGHTS
    if len(records) >= 4:
        own = statistics.variance(ratios) - statistics.fmean(error**2 for error in errors)
        between = max(between, math.sqrt(max(0.0, own)))
    nights = [tonight.history.nights[record["night"]]["sentinels"] for record in records]
    names = set(nights[0]).intersection(*nights[1:])
    return Reference(
        log_ratio=statistics.fmean(ratios),
        error=math.sqrt(sum(error**2 + between**2 for error in errors)) / len(errors),
        kernel_us=_median(record.get("kernel_us") for record in records),
        xla_us=_median(record.get("xla_us") for record in records),
        sentinels={name: statistics.median([night[name] for night in nights]) for name in names},
        between=between,
        is_here=is_here,
        moved=moved(records[-1], tonight.machine),
    )


def _from_entry(entry: BestEntry, tonight: Tonight) -> Reference:
    """Returns the stored race as a reference; the card it ran on may be unknown."""
    ratio, machine = entry.ratio, tonight.machine
    return Reference(
        log_ratio=math.log(ratio.median) if ratio else None,
        # The interval spans 2 x 1.96 standard errors.
        error=max(BETWEEN_NIGHTS, math.log(ratio.high / ratio.low) / 3.92) if ratio else 1.0,
        sentinels={},
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


def _median(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
