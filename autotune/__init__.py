"""An autotuner for Hopper matrix products in Pallas Mosaic GPU.

`best_config` looks up the tuned configuration of a matrix product, `check` says whether a kernel is legal before it
is lowered. Importing this loads neither jax, numpy, pandas nor Optuna.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # typing itself takes longer to load than all of this
if TYPE_CHECKING:
    from typing import Any

    from autotune.lookup import Best, Heuristic, NotMeasuredError, best_config

__all__ = ["Best", "Heuristic", "NotMeasuredError", "best_config", "check", "assert_legal", "__version__"]


def __getattr__(name: str) -> Any:
    # Not above: a command is interrupted in peace only once its first module could say how (autotune.__main__).
    if name in ("Best", "Heuristic", "NotMeasuredError", "best_config"):
        from autotune import lookup as module
    elif name in ("check", "assert_legal"):  # these load jax
        from autotune.lint import checking as module
    else:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    return globals().setdefault(name, getattr(module, name))
