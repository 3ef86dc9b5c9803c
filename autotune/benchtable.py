"""The rows of the verb bench, and the tables that are made of them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.seam import MeasureProtocol

COLUMNS = (
    "family", "problem", "match", "ours", "ours_us", "plain_us", "best_us", "formulation",
    "plain_ratio", "plain_low", "plain_high", "ratio", "low", "high", "roofline", "joules", "xla_joules",
    "timer", "l2", "regime", "torch_us", "note",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One problem as it was measured. None: not measured, and `note` says why.

    Attributes:
        ours: "kernel" or "xla": what the lookup answers, or a kernel where one was asked for.
        match: How the lookup found it.
        plain, best: Interval (low, median, high) of XLA's time over ours, for both formulations.
        roofline: Least time by what the card did in the same run, over ours; 1 is the limit.
    """

    family: str
    problem: Any
    ours: str
    match: str
    ours_us: float | None = None
    plain_us: float | None = None
    best_us: float | None = None
    formulation: str | None = None
    plain: tuple[float, float, float] | None = None
    best: tuple[float, float, float] | None = None
    roofline: float | None = None
    joules: float | None = None
    xla_joules: float | None = None
    protocol: MeasureProtocol
    torch_us: float | None = None
    note: str = ""

    def cells(self) -> dict[str, object]:
        """Returns the row as a CSV has it."""
        plain, best = self.plain or (None,) * 3, self.best or (None,) * 3
        given = {
            "family": self.family,
            "problem": self.problem.describe(),
            "match": self.match,
            "ours": self.ours,
            "formulation": self.formulation,
            "plain_low": plain[0],
            "plain_ratio": plain[1],
            "plain_high": plain[2],
            "low": best[0],
            "ratio": best[1],
            "high": best[2],
            "timer": self.protocol.timer,
            "l2": self.protocol.l2,
            "regime": self.protocol.regime,
        }
        rest = ("ours_us", "plain_us", "best_us", "roofline", "joules", "xla_joules", "torch_us", "note")
        given |= {name: getattr(self, name) for name in rest}
        return {name: _cell(given[name]) for name in COLUMNS}


def geometric_means(rows: Sequence[BenchRow]) -> list[tuple[str, int, float, float, float | None]]:
    """Returns family, count, and geometric means of both ratios and of the roofline's fraction; all rows last."""
    measured = [row for row in rows if row.plain and row.best]
    families = dict.fromkeys(row.family for row in measured)
    groups = [(name, [row for row in measured if row.family == name]) for name in families]
    if len(groups) > 1:
        groups.append(("all", measured))
    return [
        (
            name,
            len(group),
            _mean([row.plain[1] for row in group]),
            _mean([row.best[1] for row in group]),
            _mean([row.roofline for row in group]) if all(row.roofline for row in group) else None,
        )
        for name, group in groups
    ]


def csv_text(rows: Sequence[BenchRow]) -> str:
    """Returns the rows as CSV."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.cells() for row in rows)
    return stream.getvalue()


def markdown(rows: Sequence[BenchRow]) -> str:
    """Returns the rows and the geometric means by family as two Markdown tables."""
    head = (
        "problem",
        "ours",
        "us",
        "XLA plain",
        "XLA best",
        "plain/ours",
        "best/ours",
        "95%",
        "roofline",
        "how",
    )
    body = [_shown(row) for row in rows]
    means = [
        (name, str(count), f"{plain:.3f}", f"{best:.3f}", "-" if limit is None else f"{limit:.2f}")
        for name, count, plain, best, limit in geometric_means(rows)
    ]
    second = ("family", "problems", "plain/ours", "best/ours", "roofline")
    return f"{_table(head, body)}\nGeometric means; over 1 ours is faster.\n\n{_table(second, means)}"


def _shown(row: BenchRow) -> tuple[str, ...]:
    how = f"{row.protocol.regime} {row.protocol.timer} {row.protocol.l2}"
    if row.ours_us is None:
        return (row.problem.describe(), row.ours, *["-"] * 7, row.note or how)
    best = "-" if row.best_us is None else f"{row.best_us:.2f} {row.formulation}"
    interval = f"{row.best[0]:.3f} - {row.best[2]:.3f}" if row.best else "-"
    return (
        row.problem.describe(),
        f"{row.ours} ({row.match})",
        f"{row.ours_us:.2f}",
        "-" if row.plain_us is None else f"{row.plain_us:.2f}",
        best,
        "-" if row.plain is None else f"{row.plain[1]:.3f}",
        "-" if row.best is None else f"{row.best[1]:.3f}",
        interval,
        "-" if row.roofline is None else f"{row.roofline:.2f}",
        how,
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)


def line(row: BenchRow) -> str:
    """Returns a row as one line, to be said as it is measured."""
    return "  ".join(cell for cell in _shown(row) if cell != "-")


def _mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _cell(value: object) -> object:
    return "" if value is None else round(value, 4) if isinstance(value, float) else value
