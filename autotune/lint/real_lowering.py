"""Lowers for real, on any machine, and says what lowering said: the fallback, and the truth the audit compares with."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from autotune.lint import rules
from autotune.lint.model import Fault, Location
from autotune.lint.tracebacks import user_location


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """The outcome of one real lowering for CUDA."""

    error: Exception | None
    has_mosaic_kernel: bool  # False too where lowering failed
    seconds: float


def lower(traced: Any) -> Lowering:
    """Lowers a `jax.stages.Traced` for CUDA; needs no GPU."""
    start = time.perf_counter()
    try:
        lowered = traced.lower(lowering_platforms=("cuda",))
    except Exception as error:  # noqa: BLE001 - whatever lowering raises is the answer
        return Lowering(error=error, has_mosaic_kernel=False, seconds=time.perf_counter() - start)
    seconds = time.perf_counter() - start
    return Lowering(error=None, has_mosaic_kernel="mosaic_gpu" in lowered.as_text(), seconds=seconds)


def lowering_fault(error: Exception, subject: Location) -> Fault:
    """Returns a failed lowering as a fault, marked as such: no buffers, and no mend beyond the compiler's words."""
    place = user_location(error) or subject
    return Fault(
        rule=rules.rule_of_message(str(error)),
        message=str(error),
        exception=type(error).__name__,
        stage="lower",
        file=place.file,
        line=place.line,
        tier="lowering",
    )
