"""The early legality check of any Pallas Mosaic GPU kernel: a walk over its traced jaxpr, without lowering.

`check(fn, *args)` returns a `Report`, `assert_legal(fn, *args)` is the same for a test. jax is imported by the first
use of either, not by this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.lint.model import Buffer, Fault, Kernel, Report, Scope

if TYPE_CHECKING:
    from autotune.lint.checking import assert_legal, check

__all__ = ["Buffer", "Fault", "Kernel", "Report", "Scope", "assert_legal", "check"]


def __getattr__(name: str) -> Any:
    if name in ("assert_legal", "check"):
        from autotune.lint import checking

        return getattr(checking, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
