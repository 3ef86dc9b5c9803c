"""The table that a run ends with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autotune.progress import top_rules
from autotune.result import ProblemResult, RunResult
from autotune.textable import INDENT, fitted, wrapped


def table(result: RunResult, width: int | None = None) -> str:
    """Returns the final table of `result` and, below it, the counts of each problem.

    Args:
        width: Columns of the terminal that it is for; None: one line a row, however long.
    """
    if result.evaluator == "lower":
        return _counts_table(result.problems, width)
    counts = [counts_line(problem) for problem in result.problems]
    if width is not None:
        counts = [wrapped(line, width).removeprefix(INDENT) for line in counts]
    return "\n\n".join([_times(result.problems, width), "\n".join(counts)])


def compact(knobs: Mapping[str, Any], common: Iterable[str] = ()) -> str:
    """Returns knobs as "tile_m=128 tile_n=256", leaving out the names in `common`."""
    left_out = set(common)
    return " ".join(f"{name}={_value(value)}" for name, value in knobs.items() if name not in left_out)


def counts_line(problem: ProblemResult) -> str:
    """Returns what became of the problem's configurations, in one line."""
    counts = problem.counts
    parts = [f"{counts.legal:,} of {counts.raw:,} configurations legal"]
    if counts.rejected:
        parts.append(f"rejected: {top_rules(counts.rejected)}")
    if counts.draws_rejected:
        parts.append(f"draws rejected: {top_rules(counts.draws_rejected)}")
    done = f"{counts.measured} measured"
    notes = []
    if counts.resumed:
        notes.append(f"{counts.resumed} candidates from earlier runs")
    if counts.duplicates:
        notes.append(f"{counts.duplicates} with the module of another")
    parts.append(f"{done} ({', '.join(notes)})" if notes else done)
    if counts.failed:
        parts.append(f"failed: {top_rules(counts.failed, shown=len(counts.failed))}")
    if problem.stop is not None:
        parts.append(f"stopped: {problem.stop.text}")
    if problem.winner is not None and problem.winner.tied > 1:
        parts.append(f"{problem.winner.tied} of {problem.winner.raced} finalists tied")
    return f"{problem.problem.describe()}: " + "; ".join(parts)


def _times(problems: Sequence[ProblemResult], width: int | None) -> str:
    header = ("problem", "config", "time us", "TFLOP/s", "XLA us", "XLA/kernel", "95% interval", "winner")
    shared = _shared_knobs(problems)
    rows = [_time_row(problem, shared) for problem in problems]
    text = fitted(header, rows, right=(2, 3, 4, 5), below=1, width=width)
    if shared:
        line = f"in every config: {compact(shared)}"
        text += "\n" + (line if width is None else wrapped(line, width).removeprefix(INDENT))
    return text


def _time_row(problem: ProblemResult, shared: Mapping[str, Any]) -> tuple[str, ...]:
    title, winner = problem.problem.describe(), problem.winner
    if winner is None:
        what = "nothing legal" if not problem.counts.legal else "none survived"
        return (title, what, "-", "-", "-", "-", "-", "-")
    interval = winner.ratio_interval
    return (
        title,
        compact(winner.knobs, shared) or "default",
        f"{winner.time_us:.2f}",
        f"{problem.tflops:.1f}",
        "-" if winner.xla_time_us is None else f"{winner.xla_time_us:.2f}",
        "-" if winner.ratio is None else f"{winner.ratio:.3f}",
        "-" if interval is None else f"{interval[0]:.3f} - {interval[1]:.3f}",
        _winner_text(problem),
    )


def _winner_text(problem: ProblemResult) -> str:
    assert problem.winner is not None
    if problem.winner.xla_time_us is None:
        return "kernel (XLA not measured)"
    against = f" ({problem.winner.formulation})" if problem.winner.formulation not in (None, "plain") else ""
    return f"XLA{against}" if problem.winner.backend == "xla" else "kernel"


def _shared_knobs(problems: Sequence[ProblemResult]) -> dict[str, Any]:
    """Returns the knobs that have one value in all winners; none where fewer than two problems have a winner."""
    winners = [problem.winner.knobs for problem in problems if problem.winner is not None]
    if len(winners) < 2:
        return {}
    first, *others = winners
    return {name: value for name, value in first.items() if all(o.get(name, ...) == value for o in others)}


def _counts_table(problems: Sequence[ProblemResult], width: int | None) -> str:
    header = ("problem", "raw", "legal", "lowered", "same module", "failed", "resumed", "rejected by rule")
    rows = [
        (
            problem.problem.describe(),
            f"{problem.counts.raw:,}",
            f"{problem.counts.legal:,}",
            f"{problem.counts.lowered}",
            f"{problem.counts.duplicates}",
            top_rules(problem.counts.failed, shown=len(problem.counts.failed)) or "0",
            f"{problem.counts.resumed}",
            top_rules(problem.counts.rejected) or "-",
        )
        for problem in problems
    ]
    return fitted(header, rows, right=(1, 2, 3, 4, 6), below=7, width=width)


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
