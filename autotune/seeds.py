"""Where a search begins: what won for this problem before, and what was found best for those nearest to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A problem that a run has measured.

    Attributes:
        knobs: The fastest so far; whether they are legal for another problem is not asked.
        errors: See `Searcher.errors`.
    """

    problem: Any
    knobs: dict[str, Any]
    errors: Sequence[tuple[dict[str, Any], float]] = ()


def nearest_measured(
    target: Any, problem: Any, measured: Iterable[Neighbour], most: int = MOST
) -> list[tuple[float, Neighbour]]:
    """Returns the nearest of the problems that a run has measured, each with its distance, the nearest first.

    Args:
        target: The kernel family; its `distance` tells how near two problems are.
        most: How many at most.
    """
    ranked = [(target.distance(problem, one.problem), one) for one in measured]
    near = [row for row in ranked if row[0] <= NEAR]
    return sorted(near, key=lambda row: row[0])[:most]


def visiting_order(target: Any, problems: Sequence[Any]) -> list[int]:
    """Returns the places of problems so that each is as near as can be to one of those before it; the first is first.

    What was found for that one is where its search begins.
    """
    left = list(range(1, len(problems)))
    order = [0] if problems else []
    nearest = {place: target.distance(problems[place], problems[0]) for place in left}
    while left:
        following = min(left, key=lambda place: (nearest[place], place))
        left.remove(following)
        order.append(following)
        for place in left:
            nearest[place] = min(nearest[place], target.distance(problems[place], problems[following]))
    return order
