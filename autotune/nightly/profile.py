"""Where a night's time goes."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.nightly.verifyjob import LOCKED, STEPS


@dataclass(slots=True, kw_only=True)
class Profile:
    """Seconds of a night.

    Attributes:
        wall_s: Of the night by part: "start" of the workers, "sentinels", "verify", "retune".
        worker_s: Of all workers together by `STEPS`. Those in `LOCKED` follow one another, the rest overlaps.
        races: How many winners were raced in a process that served others ("shared"), and in one of their own ("own").
    """

    wall_s: Counter[str] = field(default_factory=Counter)
    worker_s: Counter[str] = field(default_factory=Counter)
    races: Counter[str] = field(default_factory=Counter)

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Counts what runs inside as `part`."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.wall_s[part] += time.monotonic() - began_s

    def add(self, seconds: Mapping[str, float]) -> None:
        """Counts a worker's seconds by step."""
        self.worker_s.update(seconds)

    def to_json(self) -> dict[str, Any]:
        """Returns what the summary says; docs/nightly.md lists its keys."""
        return {
            "wall_s": {part: round(spent_s, 1) for part, spent_s in self.wall_s.items()},
            "worker_s": {step: round(self.worker_s[step], 1) for step in STEPS},
            "locked_s": round(sum(self.worker_s[step] for step in LOCKED), 1),
            "races": dict(self.races),
        }
