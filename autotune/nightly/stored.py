"""Changes to a best file that a verification makes: fresh times for a winner that stays, or its withdrawal."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.bestfile import BestEntry, Ratio, entry_to_json, locked, read_best, write_best
from autotune.nightly.decide import TIE
from autotune.nightly.values import Machine, Seen
from autotune.target import load_target


def renewed(entry: BestEntry, seen: Seen, machine: Machine, day: str) -> BestEntry:
    """Returns the entry with what tonight's race says; XLA takes a tie."""
    return dataclasses.replace(
        entry,
        backend="kernel" if _kernel_wins(seen, entry) else "xla",
        kernel_us=seen.kernel_median_us,
        xla_us=seen.xla_median_us,
        ratio=interval(seen),
        digest=seen.digest,
        driver=machine.driver,
        jax=machine.jax,
        jaxlib=machine.jaxlib,
        card=machine.card,
        power_limit_w=machine.power_limit_w,
        date=day,
    )


def withdrawn(entry: BestEntry, seen: Seen, machine: Machine, day: str) -> BestEntry | None:
    """Returns XLA's answer in place of a kernel that fails; None where XLA's time is not known either."""
    xla_us = seen.xla_median_us or entry.xla_us
    if xla_us is None:
        return None
    without = dataclasses.replace(entry, config=None, kernel_us=None, ratio=None, digest=None)
    return dataclasses.replace(
        without,
        backend="xla",
        xla_us=xla_us,
        driver=machine.driver,
        jax=machine.jax,
        jaxlib=machine.jaxlib,
        card=machine.card,
        power_limit_w=machine.power_limit_w,
        date=day,
    )


def interval(seen: Seen) -> Ratio | None:
    """Returns the 95% interval of XLA's time over the kernel's, from the spread of the rounds."""
    known = seen.log_lead()
    if known is None:
        return None
    middle, error = known
    return Ratio(
        low=math.exp(middle - 1.96 * error), median=math.exp(middle), high=math.exp(middle + 1.96 * error)
    )


def replace_entry(
    path: Path,
    key: str,
    old: BestEntry,
    new: BestEntry,
    load: Callable[[str], Any] = load_target,
) -> bool:
    """Puts `new` in the place of `old`, which stays in it as "previous"; False where another entry stands there now.

    The previous one is kept only where the answer changes: fresh times of one winner push no winner out.
    """
    with locked(path.parent):
        found = read_best(path, load)
        if found is None or found.entry(key) != old:
            return False
        block = entry_to_json(new)
        before = found.raw[key].get("previous")
        if (new.backend, new.config) != (old.backend, old.config):
            before = {name: value for name, value in entry_to_json(old).items() if name != "problem"}
        if before is not None:
            block["previous"] = before
        write_best(path, found.device, {**found.raw, key: block})
    return True


def _kernel_wins(seen: Seen, entry: BestEntry) -> bool:
    known = seen.log_lead()
    return entry.backend == "kernel" if known is None else known[0] > math.log(1 + TIE)
