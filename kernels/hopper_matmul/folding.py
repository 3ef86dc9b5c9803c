"""What can be folded: rows of lhs and result that do not fill 16 bytes; TMA sees so many side by side that they do.

Like `facts` this is plain arithmetic on numbers or on numpy arrays.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hopper_matmul.problem import ITEMSIZE_BYTES, Problem

BLOCK_ROWS = 8  # of an operand's tile in SMEM


def is_result_unfilled(problem: Problem) -> bool:
    """Whether the rows of the result do not fill 16 bytes: folded, nothing clips them."""
    return _rows_of_result(problem) > 1


def is_lhs_unfilled(problem: Problem) -> bool:
    """Whether the rows of a row-major lhs do not fill 16 bytes: folded, nothing clips them."""
    return _rows_of_lhs(problem) > 1


def foldable_rows(problem: Problem) -> int:
    """Returns how many rows of lhs and result lie side by side where `Config.edges` is "fold"; 1: they cannot."""
    rows = _rows(problem)
    return rows if problem.layout[0] == "n" and problem.m % rows == 0 else 1


def _rows(problem: Problem) -> int:
    return max(_rows_of_result(problem), _rows_of_lhs(problem))


def _rows_of_result(problem: Problem) -> int:
    return _rows_that_fill(problem.n, ITEMSIZE_BYTES[problem.out_dtype])


def _rows_of_lhs(problem: Problem) -> int:
    return _rows_that_fill(problem.k, ITEMSIZE_BYTES[problem.lhs_dtype])


def _rows_that_fill(columns: int, itemsize_bytes: int) -> int:
    """Returns how many rows of a matrix, side by side, fill 16 bytes: 1, 2, 4 or 8."""
    return 16 // math.gcd(16, columns * itemsize_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What a fold wants: `is_broken(problem, config)`, the value that breaks it, and what is allowed."""

    is_broken: Callable[[Problem, Any], Any]
    value: Callable[[Problem, Any], object]
    allowed: Callable[[Problem, Any], str]


def _fold_rows(p: Problem, c: Any) -> Any:
    """Returns the rows of a tile that are of one fold."""
    return c.tile_m // foldable_rows(p)


def _is_cut(p: Problem, c: Any) -> Any:
    """Whether a piece of the epilogue is neither whole folds nor part of one."""
    rows = _fold_rows(p, c)
    return (c.epi_m % (rows + (rows == 0)) != 0) & (rows % c.epi_m != 0)


_CONDITIONS = (
    Condition(
        is_broken=lambda p, c: p.layout[0] != "n",
        value=lambda p, c: f"layout {p.layout}",
        allowed=lambda p, c: "a row-major lhs",
    ),
    Condition(
        is_broken=lambda p, c: _rows(p) == 1,
        value=lambda p, c: f"k={p.k} and n={p.n}",
        allowed=lambda p, c: "rows of lhs or result that do not fill 16 bytes",
    ),
    Condition(
        is_broken=lambda p, c: p.m % _rows(p) != 0,
        value=lambda p, c: f"m={p.m}",
        allowed=lambda p, c: f"a multiple of {_rows(p)}",
    ),
    Condition(
        is_broken=lambda p, c: c.tile_m % (BLOCK_ROWS * foldable_rows(p)) != 0,
        value=lambda p, c: f"tile_m={c.tile_m}",
        allowed=lambda p, c: f"a multiple of {BLOCK_ROWS * foldable_rows(p)}",
    ),
    Condition(
        is_broken=lambda p, c: is_result_unfilled(p) & (c.tile_n > p.n),
        value=lambda p, c: f"tile_n={c.tile_n}",
        allowed=lambda p, c: f"at most n={p.n}, where the last tile ends",
    ),
    Condition(
        is_broken=_is_cut,
        value=lambda p, c: f"epi_m={c.epi_m}",
        allowed=lambda p, c: (
            f"a multiple or divisor of {_fold_rows(p, c)}, the rows of a tile that are of one fold"
        ),
    ),
    Condition(
        is_broken=lambda p, c: (c.split_k > 1) & (c.combine == "kernel"),
        value=lambda p, c: f"split_k={c.split_k} with combine=kernel",
        allowed=lambda p, c: "one part of k, or combine=cluster",
    ),
)


def cannot_fold(problem: Problem, config: Any) -> Any:
    """Returns whether `Config.edges` is "fold" and lhs and result cannot be folded, or an array of that."""
    is_folded = config.edges == "fold"
    if isinstance(is_folded, bool):  # one configuration; an array goes on
        return is_folded and any(condition.is_broken(problem, config) for condition in _CONDITIONS)
    broken = [condition.is_broken(problem, config) for condition in _CONDITIONS]
    return is_folded & functools.reduce(operator.or_, broken)


def broken_condition(problem: Problem, config: Any) -> Condition:
    """Returns the first condition that one configuration breaks, which `cannot_fold` says it does."""
    return next(condition for condition in _CONDITIONS if condition.is_broken(problem, config))


def refusal(problem: Problem, config: Any) -> str:
    """Returns why one configuration cannot be folded, in words."""
    broken = broken_condition(problem, config)
    return f"edges=fold with {broken.value(problem, config)}: it takes {broken.allowed(problem, config)}"
