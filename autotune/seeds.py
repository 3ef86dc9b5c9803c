"""Where a search begins: what won for this problem before, and for those nearest to it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from autotune.bestfile import BestEntry, read_best

MOST = 4
NEAR = 3.0  # in the target's distance, powers of two: beyond it a winner is no better a guess than any


def nearby_winners(
    target: Any, problem: Any, device: Any, folders: Iterable[Path], most: int = MOST
) -> list[dict[str, Any]]:
    """Returns the knobs of stored kernels that are legal for a problem, of the nearest problem first.

    Entries that XLA won count as well: their kernel is the best that is known. Configurations that are the same are
    named once.

    Args:
        target: The kernel family; its `distance` tells how near two problems are.
        device: Entries of its kind are read.
        folders: With best files, the most trusted first; of two entries of one problem the first file's comes first.
        most: How many at most.
    """
    ranked: list[tuple[float, int, BestEntry]] = []
    for folder in folders:
        file = read_best(folder / f"{device.slug}.json")
        for _, entry in file.entries() if file else ():
            if entry.target == target.name and entry.config is not None:
                distance = target.distance(problem, entry.problem)
                if distance <= NEAR and not math.isnan(distance):
                    ranked.append((distance, len(ranked), entry))
    found: list[dict[str, Any]] = []
    for _, _, entry in sorted(ranked, key=lambda row: row[:2]):
        if len(found) == most:
            break
        knobs = entry.config.to_knobs()
        if knobs not in found and not target.check(problem, entry.config, device):
            found.append(knobs)
    return found
