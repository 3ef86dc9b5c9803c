"""Where the rules differ between versions of jax: all of it, in one table."""

from __future__ import annotations

import functools
import importlib.metadata

# What changed, and the first version that has it. Only messages differ: verdicts and exceptions are the same.
_SINCE = {"tma_tiling_before_strides": (0, 12), "copies_in_the_plural": (0, 12)}


@functools.cache
def _has(change: str) -> bool:
    version = tuple(int(part) for part in importlib.metadata.version("jax").split(".")[:2])
    return version >= _SINCE[change]


def is_tma_tiling_before_strides() -> bool:
    """Whether a copy's sizes are held against its tiling before its strides are looked at."""
    return _has("tma_tiling_before_strides")


def strides_subject() -> str:
    """Returns the first words of what a copy with odd strides is refused with."""
    return "Async copies require" if _has("copies_in_the_plural") else "async_copy requires"
