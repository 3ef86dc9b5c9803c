"""Which matrices TMA sees in panels, as `Config.edges` has it: a swizzle's columns, which it can clip anywhere.

Plain arithmetic on numbers or on numpy arrays, which `facts`, `cost` and `geometry` share.
"""

from __future__ import annotations

from typing import Any

from hopper_matmul.folding import foldable_rows, is_lhs_unfilled, is_result_unfilled
from hopper_matmul.matrix import needs_view, stored_matrices
from hopper_matmul.problem import Problem


def is_lhs_viewed(p: Problem, edges: Any, swizzle_bytes: Any) -> Any:
    """Returns whether the lhs is: nothing clips the unfilled rows of a folded one in blocks."""
    (lhs, size, _), _, _ = stored_matrices(p)
    is_odd_fold = is_lhs_unfilled(p) | needs_view((p.m // foldable_rows(p), p.k), swizzle_bytes, size)
    return (edges == "view") & needs_view(lhs, swizzle_bytes, size) | (edges == "fold") & is_odd_fold


def is_rhs_viewed(p: Problem, edges: Any, swizzle_bytes: Any) -> Any:
    """Returns whether the rhs is: a row-major one is copied as whole tiles beside a result that has ends of its own."""
    _, (rhs, size, _), _ = stored_matrices(p)
    is_loaded_as_it_is = not (p.layout[1] == "n" and is_result_unfilled(p))
    is_view = (edges == "view") | (edges == "fold") & is_loaded_as_it_is
    return is_view & needs_view(rhs, swizzle_bytes, size)


def is_result_viewed(p: Problem, edges: Any, stored: tuple[Any, Any], swizzle_bytes: Any, size: Any) -> Any:
    """Returns whether what the kernel stores is: a fold of unfilled rows begins at any column, which no block does.

    Args:
        stored: Rows and columns of it, as they lie in memory where they are not folded.
        swizzle_bytes, size: Of a staged piece, and of an element.
    """
    is_odd_fold = is_result_unfilled(p) | needs_view((p.m // foldable_rows(p), p.n), swizzle_bytes, size)
    return (edges == "view") & needs_view(stored, swizzle_bytes, size) | (edges == "fold") & is_odd_fold
