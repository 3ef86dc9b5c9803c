"""From a race to a best file: whether a result replaces the entry that stands there, and writing it."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.bestfile import BestEntry, Ratio, entry_key, entry_to_json, locked, read_best, write_best
from autotune.machine import Toolchain
from autotune.result import ProblemResult
from autotune.seam import MeasureProtocol
from autotune.target import load_target


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """Whether an entry was written, and why."""

    written: bool
    reason: str


def promote(
    folder: Path,
    result: ProblemResult,
    toolchain: Toolchain,
    *,
    target: str,
    incumbent_raced: bool = False,
    day: str | None = None,
    load: Callable[[str], Any] = load_target,
) -> Promotion:
    """Writes a result into the best file of its device, unless something better stands there.

    Two processes may promote at once: a lock on the folder makes one wait, and nothing is lost. What is
    replaced stays in the new entry as "previous".

    Args:
        folder: results/best; it is made where it is missing.
        incumbent_raced: The configuration that stands there was a lane of the race that gave this result.
        day: Of the race, ISO 8601; None is today, in UTC.

    Raises:
        ValueError: The result was not measured on a GPU, or has no winner.
        InputError: The file that stands there cannot be read, or is newer; it is left as it is.
    """
    if result.evaluator != "gpu":
        raise ValueError(
            f"evaluator={result.evaluator!r}: allowed: gpu; only measured results are best results"
        )
    entry = entry_of(result, toolchain, load(target), day)
    path = folder / f"{result.device.slug}.json"
    key = entry_key(target, result.problem)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        found = read_best(path, load)
        incumbent = found.entry(key) if found else None
        promotion = decide(entry, incumbent, incumbent_raced=incumbent_raced)
        if promotion.written:
            block = entry_to_json(entry)
            if incumbent is not None:
                previous = entry_to_json(incumbent)
                del previous["problem"]
                block["previous"] = previous
            write_best(path, _device_block(result.device), {**(found.raw if found else {}), key: block})
    return promotion


def entry_of(result: ProblemResult, toolchain: Toolchain, target: Any, day: str | None = None) -> BestEntry:
    """Returns the entry that a race's result makes."""
    winner = result.winner
    if winner is None:
        raise ValueError(f"{result.problem.describe()} has no winner")
    interval = winner.ratio_interval
    return BestEntry(
        target=target.name,
        problem=result.problem,
        backend=winner.backend,
        config=target.config_from_knobs(winner.knobs),
        kernel_us=winner.time_us,
        xla_us=winner.xla_time_us,
        # The interval is of resampled medians, and need not hold the median itself.
        ratio=Ratio(
            low=min(interval[0], winner.ratio), median=winner.ratio, high=max(interval[1], winner.ratio)
        )
        if interval and winner.ratio
        else None,
        formulation=winner.formulation,
        plain_us=winner.plain_time_us,
        joules=winner.joules,
        xla_joules=winner.xla_joules,
        rerun_chance=winner.rerun_chance,
        digest=winner.digest,
        driver=toolchain.driver or "unknown",
        jax=toolchain.jax,
        jaxlib=toolchain.jaxlib,
        protocol=asdict(result.protocol),
        numerics=result.problem.accumulation,
        date=day or datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def decide(entry: BestEntry, incumbent: BestEntry | None, *, incumbent_raced: bool = False) -> Promotion:
    """Returns whether `entry` takes the place of `incumbent`.

    Times of two days cannot be compared, since clocks wander by percents; gains over XLA can, as each comes
    from one interleaved race. A stale incumbent, measured with other software, has no say.
    """
    if incumbent is None:
        return Promotion(written=True, reason="the first sound entry of its problem")
    for name in ("jax", "jaxlib", "driver"):
        old, new = getattr(incumbent, name), getattr(entry, name)
        if old != new:
            return Promotion(written=True, reason=f"the entry there is stale: {name} {old}, now {new}")
    if incumbent.config == entry.config and incumbent.digest != entry.digest:
        return Promotion(written=True, reason="the entry there is stale: its lowered module has changed")
    if incumbent_raced:
        return Promotion(written=True, reason="the entry there was in the race")
    if any(_how(incumbent, name) != _how(entry, name) for name in ("timer", "l2", "inputs", "regime")):
        return Promotion(written=True, reason="the entry there was measured by another protocol")
    compared = f"gain over XLA {entry.gain:.4f}, the entry there {incumbent.gain:.4f}"
    return Promotion(written=entry.gain >= incumbent.gain, reason=compared)


def _how(entry: BestEntry, name: str) -> object:
    """Returns a field of the entry's protocol; where it is older than the field, what it was then."""
    return entry.protocol.get(name, getattr(MeasureProtocol(), name))


def _device_block(device: Any) -> dict[str, Any]:
    names = ("kind", "sm_count", "memory_bytes", "power_limit_w")
    return {name: getattr(device, name) for name in names}
