"""What running steps may take: their limits in seconds, and the host memory of workers with their compilers."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path

from autotune.seam import Limits

START_LIMIT_S = 120.0  # jax and a CUDA context take 3 to 9 s on a busy host (H200, 16 workers, 2026-11)
MEMORY_INTERVAL_S = 0.5  # one look at all processes of a host takes some milliseconds
GIB = 2**30


class Watchdog:
    """Knows the limits, and looks at memory from time to time.

    Args:
        limits: Of one candidate.
    """

    def __init__(self, limits: Limits):
        # "ask" and "wait" have none: they wait for the parent, and for workers that have limits themselves.
        self._limits_s = {
            "start": START_LIMIT_S,
            "lower": limits.lower_s,
            "compile": limits.compile_s,
            "prepare": limits.compile_s,
            "run": limits.run_s,
        }
        self._memory_gib = limits.memory_gib
        self._next_look_s = 0.0

    def limit_s(self, step: str) -> float | None:
        return self._limits_s.get(step)

    def oversized(self, groups: Collection[int]) -> dict[int, str]:
        """Returns what to say of each process group over the limit; looks every `MEMORY_INTERVAL_S` at most."""
        if time.monotonic() < self._next_look_s:
            return {}
        self._next_look_s = time.monotonic() + MEMORY_INTERVAL_S
        return {
            group: f"took {taken / GIB:.1f} GiB of the host's memory, limit {self._memory_gib:g} GiB; "
            f"the worker was killed"
            for group, taken in resident_bytes(groups).items()
            if taken > self._memory_gib * GIB
        }


def resident_bytes(groups: Collection[int], proc: Path = Path("/proc")) -> dict[int, int]:
    """Returns the resident memory of each process group, of all its processes together."""
    page = os.sysconf("SC_PAGE_SIZE")
    taken = dict.fromkeys(groups, 0)
    for name in filter(str.isdecimal, os.listdir(proc)):
        try:
            # Behind the name in parentheses: state, parent, group, and 19 fields on the resident pages (proc(5)).
            fields = (proc / name / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        group = int(fields[2])
        if group in taken:
            taken[group] += int(fields[21]) * page
    return taken
