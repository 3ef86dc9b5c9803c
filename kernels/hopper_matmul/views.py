"""Which matrices TMA sees in panels, as `Config.edges` has it: a swizzle's columns, which it can clip anywhere.

Plain arithmetic on numbers or on numpy arrays, which `facts`, `cost` and `geometry` share.
"""

from __future__ import annotations

from typing import Any

from hopper_matmul.direct import is_result_unfilled
from hopper_matmul.matrix import needs_view, stored_matrices
from hopper_matmul.problem import Problem


def is_lhs_viewed(p: Problem, c: Any, swizzle_bytes: Any) -> Any:
    """Returns whether the lhs is: in blocks of 8 rows no tile begins where a last one that ends with m does."""
    (lhs, size, _), _, _ = stored_matrices(p)
    is_odd = needs_view(lhs, swizzle_bytes, size)
    return (c.edges == "view") & is_odd | (c.edges == "direct") & (is_odd | (p.m % c.tile_m != 0))


def is_rhs_viewed(p: Problem, c: Any, swizzle_bytes: Any) -> Any:
    """Returns whether the rhs is: a row-major one is copied as whole tiles where the last one ends with n."""
    _, (rhs, size, _), _ = stored_matrices(p)
    is_loaded_as_it_is = not (p.layout[1] == "n" and is_result_unfilled(p))
    is_view = (c.edges == "view") | (c.edges == "direct") & is_loaded_as_it_is
    return is_view & needs_view(rhs, swizzle_bytes, size)


def is_result_viewed(c: Any, stored: tuple[Any, Any], swizzle_bytes: Any, size: Any) -> Any:
    """Returns whether what TMA stores is.

    Args:
        stored: Rows and columns of it, as they lie in memory.
        swizzle_bytes, size: Of a staged piece, and of an element.
    """
    return (c.edges == "view") & needs_view(stored, swizzle_bytes, size)
