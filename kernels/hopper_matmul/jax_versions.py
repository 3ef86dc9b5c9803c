"""Where the rules differ between versions of jax: all of it, in one table."""

from __future__ import annotations

import functools

# What changed, and the first version that has it. Only exceptions and messages differ: verdicts are the same.
_SINCE = {"layout_error_of_planes": (0, 12), "reason_of_no_layout": (0, 12)}


@functools.cache
def _has(change: str) -> bool:
    import importlib.metadata  # 25 ms, which a lookup need not spend: only messages are asked for by version

    version = tuple(int(part) for part in importlib.metadata.version("jax").split(".")[:2])
    return version >= _SINCE[change]


def is_plane_asserted() -> bool:
    """Whether layout inference asserts, instead of refusing, what it cannot store in a stack of matrices."""
    return not _has("layout_error_of_planes")


def no_turned_store(columns: int, swizzle_bytes: int) -> str:
    """Returns what a store of 4-byte values from WGMMA's layout into a transposed tile is refused with."""
    if not _has("reason_of_no_layout"):
        return "Failed to infer a possible set of layouts."
    return (
        "Failed to infer a possible set of layouts: no optimized SMEM <-> registers transfer plan could be synthesized"
        f" for register layout WGMMA and ref with transforms (TilingTransform(({columns}, 8)),"
        f" SwizzleTransform({swizzle_bytes}))"
    )
