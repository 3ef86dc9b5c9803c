"""The one place where environment variables are read."""

from __future__ import annotations

import os
from pathlib import Path


def visible_devices() -> tuple[str, ...] | None:
    """Returns CUDA_VISIBLE_DEVICES as its entries (indices or UUIDs); None where it is not set.

    NVML lists every GPU of the host; by this variable a user, or a scheduler, says which of them are ours.
    """
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    return tuple(entry.strip() for entry in text.split(",") if entry.strip())


def results_folder() -> Path | None:
    """Returns AUTOTUNE_RESULTS, a results folder whose best files are looked up first; None if not set."""
    text = os.environ.get("AUTOTUNE_RESULTS")
    return Path(text) if text else None


def is_verbose() -> bool:
    """Returns whether AUTOTUNE_TRACEBACK asks for the traceback of an error that normally prints one line."""
    return os.environ.get("AUTOTUNE_TRACEBACK", "") not in ("", "0")


def leave_cores_to_workers() -> None:
    """Keeps numpy's matrix products to one thread, unless the user says otherwise; before numpy is imported.

    The search multiplies small matrices beside as many workers as there are cores: several threads that wait for
    each other made a proposal of 5 ms one of 150 (two busy cores, OpenBLAS 0.3, 2026-11-30).
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
