"""What ncu wrote: its messages, and the counters of each kernel, given to the lanes that launched them.

The page "raw" as CSV is a row of names, a row of units, then a row for each kernel. Lines of ncu's own begin with "==".
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

MARK = "counters_lane_"
NOT_FOUND = "Failed to find metric"
# Into us; ncu is asked for its base units, which are bytes and nanoseconds, and versions write these in two ways.
UNITS = {"ns": 1e-3, "nsecond": 1e-3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel that ncu read; times in us, sizes in bytes, shares in percent. What ncu could not read is left out."""

    name: str
    metrics: Mapping[str, float]


def mark_name(index: int) -> str:
    """Returns the name of the empty kernel that comes before those of a lane."""
    return f"{MARK}{index}"


def messages(text: str) -> list[str]:
    """Returns ncu's errors and warnings, each once."""
    lines = (line.strip() for line in text.splitlines())
    return list(dict.fromkeys(line for line in lines if line.startswith(("==ERROR==", "==WARNING=="))))


def unknown_metrics(said: Sequence[str], asked: Sequence[str]) -> list[str]:
    """Returns those of the metrics asked for that ncu says it does not find; it reads no kernel then."""
    lines = [line for line in said if NOT_FOUND in line]
    return [
        name
        for name in asked
        if any(re.search(rf"\b{re.escape(name.split('.')[0])}\b", line) for line in lines)
    ]


def kernels_of(text: str) -> list[Kernel]:
    """Returns the kernels in the order in which they were launched."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    starts = [index for index, line in enumerate(lines) if line.startswith('"ID"')]
    found = []
    for start, end in itertools.pairwise([*starts, len(lines)]):
        header, *rows = csv.reader(lines[start:end])
        found += _kernels(header, [row for row in rows if len(row) == len(header)])
    return found


def by_lane(kernels: Sequence[Kernel]) -> dict[int, list[Kernel]]:
    """Returns the kernels behind each lane's mark; those before the first one belong to no lane."""
    lanes: dict[int, list[Kernel]] = {}
    lane: list[Kernel] = []
    for kernel in kernels:
        mark = re.search(rf"{MARK}(\d+)", kernel.name)
        if mark:
            lane = lanes.setdefault(int(mark[1]), [])
        else:
            lane.append(kernel)
    return {index: kernels for index, kernels in lanes.items() if kernels}


def _kernels(header: list[str], rows: list[list[str]]) -> Iterator[Kernel]:
    units = dict(zip(header, rows[0], strict=True)) if rows and not rows[0][0] else {}
    for row in rows[1 if units else 0 :]:
        fields = dict(zip(header, row, strict=True))
        values = {name: _value(text, units.get(name, "")) for name, text in fields.items() if "__" in name}
        known = {name: value for name, value in values.items() if value is not None}
        yield Kernel(name=fields["Kernel Name"], metrics=known)


def _value(text: str, unit: str) -> float | None:
    """Returns a number such as "1,205.00" in us or bytes; None for "n/a" and for what is no number."""
    try:
        return float(text.replace(",", "")) * UNITS.get(unit, 1.0)
    except ValueError:
        return None
