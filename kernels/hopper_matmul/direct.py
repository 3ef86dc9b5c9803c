"""What threads can store directly: a result whose rows do not fill 16 bytes, which TMA takes only padded.

TMA wants every row, and every address that it begins at, at a multiple of 16 bytes; a thread stores an element at a
time, or a few. Like `facts` this is plain arithmetic on numbers or on numpy arrays.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hopper_matmul.problem import ITEMSIZE_BYTES, Problem

LANES = 32  # of a warp, which stores so many times `vector_of` neighbouring elements at once
TMA_ROW_BYTES = 16


def vector_of(problem: Problem) -> int:
    """Returns how many elements of any row of the result a thread can store at once: 1, 2 or 4."""
    row_bytes = problem.n * ITEMSIZE_BYTES[problem.out_dtype]
    return math.gcd(row_bytes, TMA_ROW_BYTES) // ITEMSIZE_BYTES[problem.out_dtype]


def is_result_unfilled(problem: Problem) -> bool:
    """Whether the rows of the result do not fill 16 bytes."""
    return vector_of(problem) * ITEMSIZE_BYTES[problem.out_dtype] < TMA_ROW_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What a direct store wants: `is_broken(problem, config)`, the value that breaks it, and what is allowed."""

    is_broken: Callable[[Problem, Any], Any]
    value: Callable[[Problem, Any], object]
    allowed: Callable[[Problem, Any], str]


_CONDITIONS = (
    Condition(
        is_broken=lambda p, c: not is_result_unfilled(p),
        value=lambda p, c: f"n={p.n}",
        allowed=lambda p, c: "a result whose rows do not fill 16 bytes",
    ),
    Condition(
        is_broken=lambda p, c: c.tile_m > p.m,
        value=lambda p, c: f"tile_m={c.tile_m}",
        allowed=lambda p, c: f"at most m={p.m}, where the last tile ends",
    ),
    Condition(
        is_broken=lambda p, c: c.tile_n > p.n,
        value=lambda p, c: f"tile_n={c.tile_n}",
        allowed=lambda p, c: f"at most n={p.n}, where the last tile ends",
    ),
    Condition(
        is_broken=lambda p, c: (p.m % c.tile_m != 0) & (p.layout[0] == "t"),
        value=lambda p, c: f"tile_m={c.tile_m} and layout {p.layout}",
        allowed=lambda p, c: f"a row-major lhs, or divisors of m={p.m}",
    ),
    Condition(
        is_broken=lambda p, c: c.epi_n % LANES != 0,
        value=lambda p, c: f"epi_n={c.epi_n}",
        allowed=lambda p, c: f"multiples of {LANES}, the threads of a warp",
    ),
    Condition(
        is_broken=lambda p, c: (c.split_k > 1) & (c.combine == "kernel"),
        value=lambda p, c: f"split_k={c.split_k} with combine=kernel",
        allowed=lambda p, c: "one part of k, or combine=cluster",
    ),
)


def cannot_store_directly(problem: Problem, config: Any) -> Any:
    """Returns whether `Config.edges` is "direct" and the result cannot be stored so, or an array of that."""
    is_direct = config.edges == "direct"
    if isinstance(is_direct, bool):  # one configuration; an array goes on
        return is_direct and any(condition.is_broken(problem, config) for condition in _CONDITIONS)
    broken = [condition.is_broken(problem, config) for condition in _CONDITIONS]
    return is_direct & functools.reduce(operator.or_, broken)


def broken_condition(problem: Problem, config: Any) -> Condition:
    """Returns the first condition that one configuration breaks, which `cannot_store_directly` says it does."""
    return next(condition for condition in _CONDITIONS if condition.is_broken(problem, config))


def refusal(problem: Problem, config: Any) -> str:
    """Returns why the result of one configuration cannot be stored directly, in words."""
    broken = broken_condition(problem, config)
    return f"edges=direct with {broken.value(problem, config)}: it takes {broken.allowed(problem, config)}"
