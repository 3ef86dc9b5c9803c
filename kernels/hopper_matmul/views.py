"""Which matrices TMA sees in panels, as `Config.edges` has it: a swizzle's columns, which it can clip anywhere.

Plain arithmetic on numbers or on numpy arrays, which `facts`, `cost` and `geometry` share.
"""

from __future__ import annotations

from typing import Any

from hopper_matmul.matrix import needs_view, stored_matrices
from hopper_matmul.problem import Problem


def is_lhs_viewed(p: Problem, edges: Any, swizzle_bytes: Any) -> Any:
    """Returns whether the lhs is."""
    (lhs, size, _), _, _ = stored_matrices(p)
    return (edges != "pad") & needs_view(lhs, swizzle_bytes, size)


def is_rhs_viewed(p: Problem, edges: Any, swizzle_bytes: Any) -> Any:
    """Returns whether the rhs is: a row-major one is copied as whole tiles where the last one ends with n."""
    _, (rhs, size, _), _ = stored_matrices(p)
    is_view = (edges == "view") | (edges == "direct") & (p.layout[1] == "t")
    return is_view & needs_view(rhs, swizzle_bytes, size)


def is_result_viewed(edges: Any, stored: tuple[Any, Any], swizzle_bytes: Any, size: Any) -> Any:
    """Returns whether what TMA stores is.

    Args:
        edges: As in `Config.edges`.
        stored: Rows and columns of it, as they lie in memory.
        swizzle_bytes, size: Of a staged piece, and of an element.
    """
    return (edges == "view") & needs_view(stored, swizzle_bytes, size)
