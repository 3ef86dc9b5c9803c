"""An autotuner for Hopper matrix products in Pallas Mosaic GPU.

`best_config` looks up the tuned configuration of a matrix product, `check` says whether a kernel is legal before it
is lowered. Importing this loads neither jax, numpy, pandas nor Optuna.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

from autotune.lookup import Best, Heuristic, NotMeasuredError, best_config

__all__ = ["Best", "Heuristic", "NotMeasuredError", "best_config", "check", "assert_legal", "__version__"]


def __getattr__(name: str) -> Any:
    if name in ("check", "assert_legal"):  # these load jax
        from autotune.lint import checking

        return getattr(checking, name)
    raise AttributeError(f"module 'autotune' has no attribute {name!r}")
