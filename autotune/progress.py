"""What a run shows while it works: a bar on a terminal, a line every few seconds elsewhere. All of it on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

_PLAIN_INTERVAL_S = 5.0
_SHOWN_RULES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Where screening one problem ends, whichever comes first. None: no limit of that kind.

    Attributes:
        candidates: Recorded candidates, those of earlier runs included.
        seconds: Seconds of screening, those of earlier runs included.
        gain: Ends where the searcher expects to gain less than this share of the best time, or than the spread of
            the best's samples where that is more; 0: never.
        fewest: Recorded candidates before `gain` may end it.
    """

    candidates: int | None = None
    seconds: float | None = None
    gain: float = 0.0
    fewest: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """How far screening a problem is.

    Attributes:
        done: Recorded candidates, resumed ones included.
        resumed: Those that an earlier run recorded.
        failed: Of `done`, those that failed.
        elapsed_s: Seconds of screening in this run.
        spent_s: Seconds of screening over all runs.
        best_us: Best median so far, in microseconds.
        rejected: The sampler's illegal draws, by rule.
        stopped: Why it ended, in words; empty while it goes on.
    """

    done: int
    resumed: int = 0
    failed: int = 0
    elapsed_s: float = 0.0
    spent_s: float = 0.0
    best_us: float | None = None
    rejected: Mapping[str, int] = field(default_factory=dict)
    stopped: str = ""

    @property
    def rate(self) -> float:
        """Candidates a second in this run; 0 before the first."""
        return (self.done - self.resumed) / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def left_s(self, budget: Budget) -> float | None:
        """Returns the seconds until the budget ends at this rate; None where nothing bounds them yet."""
        ends = []
        if budget.seconds is not None:
            ends.append(max(0.0, budget.seconds - self.spent_s))
        if budget.candidates is not None and self.rate > 0:
            ends.append(max(0.0, (budget.candidates - self.done) / self.rate))
        return min(ends, default=None)

    def line(self, budget: Budget) -> str:
        """Returns the snapshot as one line of text."""
        parts = [f"{self.done}/{budget.candidates}" if budget.candidates is not None else f"{self.done}"]
        parts[0] += " candidates"
        if self.failed:
            parts[0] += f" ({self.failed} failed)"
        parts.append(f"{self.rate:.1f}/s")
        parts.append("no time yet" if self.best_us is None else f"best {self.best_us:.2f} us")
        if self.rejected:
            parts.append(f"draws rejected: {top_rules(self.rejected)}")
        left_s = self.left_s(budget)
        if self.stopped:
            parts.append(f"stopped: {self.stopped}")
        elif left_s is not None:
            parts.append(f"{left_s:.0f} s left")
        return ", ".join(parts)


def top_rules(rejected: Mapping[str, int], shown: int = _SHOWN_RULES) -> str:
    """Returns the most frequent rules with their counts, such as "smem 812, threads 3, 2 more rules 4"."""
    ranked = sorted(rejected.items(), key=lambda item: (-item[1], item[0]))
    text = ", ".join(f"{rule} {count:,}" for rule, count in ranked[:shown])
    rest = ranked[shown:]
    if rest:
        text += f", {len(rest)} more {'rule' if len(rest) == 1 else 'rules'} {sum(n for _, n in rest):,}"
    return text


class Progress(Protocol):
    """Hears how a run goes."""

    def begin(self, title: str, budget: Budget) -> None: ...

    def update(self, snapshot: Snapshot) -> None: ...

    def say(self, line: str) -> None: ...

    def end(self) -> None: ...


class PlainProgress:
    """Lines on a stream that is no terminal, at most one every few seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._title, self._budget = "", Budget()
        self._latest: Snapshot | None = None
        self._shown = ""
        self._next_s = 0.0

    def begin(self, title: str, budget: Budget) -> None:
        self._title, self._budget = title, budget
        self._latest, self._shown = None, ""
        self._next_s = self._clock() + _PLAIN_INTERVAL_S

    def update(self, snapshot: Snapshot) -> None:
        self._latest = snapshot
        if self._clock() >= self._next_s:
            self._show()

    def say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)

    def end(self) -> None:
        if self._latest is not None:
            self._show()
        self._latest = None

    def _show(self) -> None:
        assert self._latest is not None
        line = f"{self._title}: {self._latest.line(self._budget)}"
        if line != self._shown:
            self.say(line)
        self._shown = line
        self._next_s = self._clock() + _PLAIN_INTERVAL_S


class RichProgress:
    """A bar on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=stream)
        self._bar: Any = None
        self._task: Any = None
        self._budget = Budget()

    def begin(self, title: str, budget: Budget) -> None:
        from rich.markup import escape
        from rich.progress import BarColumn, Progress, TextColumn

        self.end()
        self._budget = budget
        columns = (
            TextColumn("{task.description}", markup=True),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[line]}", markup=False),
        )
        self._bar = Progress(*columns, console=self._console)
        self._task = self._bar.add_task(escape(title), total=budget.candidates, line="starting")
        self._bar.start()

    def update(self, snapshot: Snapshot) -> None:
        if self._bar is not None:
            line = snapshot.line(self._budget)
            self._bar.update(self._task, completed=self._completed(snapshot), total=self._total(), line=line)

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None

    def _total(self) -> float | None:
        return self._budget.candidates if self._budget.candidates is not None else self._budget.seconds

    def _completed(self, snapshot: Snapshot) -> float:
        return snapshot.done if self._budget.candidates is not None else snapshot.spent_s


def make_progress(stream: TextIO | None = None) -> Progress:
    """Returns a bar where `stream` is a terminal, else plain lines. The default is stderr."""
    stream = sys.stderr if stream is None else stream
    return RichProgress(stream) if stream.isatty() else PlainProgress(stream)
