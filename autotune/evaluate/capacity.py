"""How many workers this machine can carry, and how many of them a problem's memory allows."""

from __future__ import annotations

import os
from pathlib import Path

GPU_WORKER_BYTES = 2 * 2**30  # host memory of a worker with a CUDA context and the compilers loaded
BLIND_WORKER_BYTES = 1 * 2**30
# GPU memory of a worker besides its problem: a CUDA context with jax's libraries, and results in flight.
WORKER_CARD_BYTES = 7 * 2**28
CARD_SHARE = 0.9  # of the card's memory; the rest is for fragments and for whoever else draws a little


def default_workers(*, on_gpu: bool, memory_bytes: int | None = None) -> int:
    """Returns one worker for each core that this process may use, as far as memory reaches; at least one.

    Args:
        on_gpu: Whether each worker opens a CUDA context.
        memory_bytes: Free memory of the host; None: ask the system.
    """
    available = free_memory_bytes() if memory_bytes is None else memory_bytes
    each = GPU_WORKER_BYTES if on_gpu else BLIND_WORKER_BYTES
    return max(1, min(len(os.sched_getaffinity(0)), available // each))


def free_memory_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns the host memory that can still be taken, within the cgroup's limit."""
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):  # no cgroup v2, or its limit is the word "max"
        return available
    return min(available, max(0, limit - used))


def workers_that_fit(card_bytes: int | None, problem_bytes: int) -> int | None:
    """Returns how many workers may hold a problem on one card at once, at least one; None: no limit is known.

    An 8192x128256x8192 product in bfloat16 takes about 13 GB a worker with its float32 reference, so that 16
    workers would overfill 141 GB.
    """
    if card_bytes is None:
        return None
    return max(1, int(card_bytes * CARD_SHARE) // (problem_bytes + WORKER_CARD_BYTES))
