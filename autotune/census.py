"""How large a problem's space is, and what became of its configurations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autotune.progress import top_rules
from autotune.result import Counts
from autotune.seam import Failed, LoweredOnly, Measured
from autotune.textable import fitted


@dataclass(frozen=True, slots=True, kw_only=True)
class CensusRow:
    """One problem of a census."""

    problem: Any
    counts: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """What a run would search, without measuring anything."""

    device: Any
    rows: tuple[CensusRow, ...]

    def text(self, width: int | None = None) -> str:
        """Returns a table: raw and legal configurations of each problem, and the rejected ones by rule.

        Args:
            width: Columns of the terminal that it is for; None: one line a row, however long.
        """
        body = [
            (
                row.problem.describe(),
                f"{row.counts.raw:,}",
                f"{row.counts.legal:,}",
                f"{row.counts.raw - row.counts.legal:,}",
                top_rules(row.counts.rejected, shown=len(row.counts.rejected)) or "-",
            )
            for row in self.rows
        ]
        header = ("problem", "raw", "legal", "rejected", "by rule")
        return fitted(header, body, right=(1, 2, 3), below=4, width=width)


def census(config: Any, target: Any, device: Any) -> Census:
    """Counts the configurations of every problem of `config` on `device`. Nothing is lowered or written."""
    rows = [
        CensusRow(problem=w.problem, counts=space_counts(target.space(w.problem, device, config.space)))
        for w in config.problems
    ]
    return Census(device=device, rows=tuple(rows))


def space_counts(space: Any) -> Counts:
    """Returns how many points of `space` are legal, and which rule refused each of the others."""
    legal = space.legal()
    return Counts(raw=int(space.raw_size), legal=int(legal.size), rejected=dict(legal.rejected))


def screened_counts(
    counts: Counts,
    screened: Iterable[tuple[Any, Measured | LoweredOnly | Failed]],
    resumed: int,
    draws_rejected: Mapping[str, int],
) -> Counts:
    """Returns `counts` with what became of the screened candidates."""
    results = [result for _, result in screened]
    digests = Counter(
        result.lowered.digest for result in results if isinstance(result, Measured | LoweredOnly)
    )
    return replace(
        counts,
        draws_rejected=dict(draws_rejected),
        resumed=resumed,
        measured=sum(isinstance(result, Measured) for result in results),
        lowered=sum(isinstance(result, LoweredOnly) for result in results),
        duplicates=sum(times - 1 for times in digests.values()),
        failed=dict(Counter(result.reason for result in results if isinstance(result, Failed))),
    )


def first_reason(target: Any, problem: Any, space: Any, device: Any) -> str:
    """Returns in words what the rule that rejects the most of `space` says, for a line that ends there."""
    legal = space.legal()
    if not legal.rejected:
        return ""
    rule = max(legal.rejected, key=legal.rejected.get)
    rejections = target.check(problem, target.config_from_knobs(legal.examples[rule]), device)
    return next((f"; most of all {one.line()}" for one in rejections if one.rule == rule), "")
