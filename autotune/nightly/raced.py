"""What a race says of a stored winner."""

from __future__ import annotations

from typing import Any

from autotune.nightly.decide import CERTAIN
from autotune.nightly.meter import Check
from autotune.nightly.values import Seen
from autotune.seam import Failed, Measured, Race

PLAIN = "plain"


def formulation_of(entry: Any) -> str:
    return getattr(entry, "formulation", None) or PLAIN


def is_complete(race: Race) -> bool:
    """Returns whether a rival was timed, and the kernel too unless it failed by a fault of its own."""
    kernels = [lane.result for lane in race.entries if lane.finalist is not None]
    rivals = [lane.result for lane in race.entries if lane.finalist is None]
    return any(isinstance(rival, Measured) for rival in rivals) and all(
        isinstance(kernel, Measured) or kernel.reason in CERTAIN for kernel in kernels
    )


def rival_of(race: Race, formulation: str) -> Any:
    """Returns the result of one of XLA's formulations; the plain one where that did not run."""
    lanes = {lane.formulation or PLAIN: lane.result for lane in race.entries if lane.finalist is None}
    found = lanes.get(formulation)
    return found if isinstance(found, Measured) else lanes.get(PLAIN)


def seen_of(result: Any, check: Check) -> Seen:
    if not isinstance(result, Race):
        return Seen(failure=(getattr(result, "reason", "error"), detail_of(result)))
    rival = rival_of(result, formulation_of(check.entry))
    xla_us = tuple(rival.timing.samples_us) if isinstance(rival, Measured) else ()
    kernel = next((lane.result for lane in result.entries if lane.finalist == 0), None)
    if kernel is None:
        return Seen(xla_us=xla_us)
    digest = kernel.lowered.digest if kernel.lowered else None
    if isinstance(kernel, Failed):
        return Seen(xla_us=xla_us, digest=digest, failure=(kernel.reason, detail_of(kernel)))
    return Seen(kernel_us=tuple(kernel.timing.samples_us), xla_us=xla_us, digest=digest)


def detail_of(result: Any) -> str:
    return getattr(result, "detail", None) or "no result"
