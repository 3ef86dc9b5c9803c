"""Which protocol a problem is measured by: "auto" made definite, by a pure function of the problem."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from autotune.seam import MeasureProtocol

AUTO = MeasureProtocol(timer="auto", l2="auto", regime="auto")

# What an H200 reaches on large bfloat16 products, and when it copies (XLA and CUPTI, H200, 2026-11). They only tell
# the kinds of problems apart, so one pair serves all dtypes and cards.
FLOPS_PER_S = 815e12
BYTES_PER_S = 4.3e12

CHAIN_BELOW_US = 30.0  # launch gaps of about a microsecond and extra kernels are a tenth of such a time
SUSTAINED_ABOVE_US = 100.0  # shorter ones cannot be launched fast enough to reach the power cap
WEIGHTS_SHARE = 0.5  # of the bytes that must be moved


def estimated_us(problem: Any) -> float:
    """Returns the least time that the problem can take, by arithmetic or by memory."""
    return max(_arithmetic_us(problem), _memory_us(problem))


def resolved(protocol: MeasureProtocol, problem: Any, target: Any) -> MeasureProtocol:
    """Returns `protocol` without any "auto", and with the reference that fits the problem.

    A problem that only has to read its weights is measured as in a decoding step, where the activations were just
    written and the weights were not touched for long. One under 30 us is timed in a chain. One that the tensor cores
    bound for more than 100 us runs at settled clocks, as in a training step.

    Args:
        problem: With `flops` and `min_bytes`.
        target: Its `operand_roles`, where it has one, gives the bytes of each role.
    """
    arithmetic_us, memory_us = _arithmetic_us(problem), _memory_us(problem)
    is_compute_bound = arithmetic_us > memory_us
    timer, l2, regime = protocol.timer, protocol.l2, protocol.regime
    if l2 == "auto":
        l2 = "activations_warm" if is_skinny(problem, target) else "clean"
    if regime == "auto":
        is_long = is_compute_bound and arithmetic_us > SUSTAINED_ABOVE_US and timer != "chain"
        regime = "sustained" if is_long else "burst"
    if timer == "auto":
        is_short = estimated_us(problem) < CHAIN_BELOW_US and regime == "burst"
        timer = "chain" if is_short else "cupti"
    reference = "product" if is_compute_bound else "read"
    return dataclasses.replace(protocol, timer=timer, l2=l2, regime=regime, reference=reference)


def stored_protocol(fields: Mapping[str, Any]) -> MeasureProtocol:
    """Returns the protocol that a record names; fields that are younger than the record are defaults."""
    names = {field.name for field in dataclasses.fields(MeasureProtocol)}
    return MeasureProtocol(**{name: value for name, value in fields.items() if name in names})


def is_skinny(problem: Any, target: Any) -> bool:
    """Returns whether reading the weights is what bounds the problem."""
    roles = getattr(target, "operand_roles", None)
    weights_bytes = roles(problem).get("weights", 0) if roles else 0
    bound_by_memory = _memory_us(problem) > _arithmetic_us(problem)
    return bound_by_memory and weights_bytes >= WEIGHTS_SHARE * problem.min_bytes


def _arithmetic_us(problem: Any) -> float:
    return problem.flops / FLOPS_PER_S * 1e6


def _memory_us(problem: Any) -> float:
    return problem.min_bytes / BYTES_PER_S * 1e6
