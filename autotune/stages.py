"""The parts that a run is made of."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.ledger.storage import Ledger, open_ledger
from autotune.progress import Progress
from autotune.result import ProblemResult
from autotune.seam import Evaluator
from autotune.search import make_searcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The parts that a run is made of.

    Attributes:
        evaluator: Closed by the driver, however the run ends.
        toolchain: Versions by tool; "jax", "jaxlib" and "driver" take part in a study's name.
        evaluator_source: Digest of what a replay replays, so that another recorded space is another study.
        seeds: Returns knobs to begin the search of a problem on a device with.
        promote: Hears of each problem's result, on a GPU only and never of one without a winner.
    """

    target: Any
    evaluator: Evaluator
    progress: Progress
    toolchain: Mapping[str, str | None]
    evaluator_source: str = ""
    promote: Callable[[ProblemResult], None] | None = None
    seeds: Callable[[Any, Any], list[dict[str, Any]]] = lambda problem, device: []
    open_ledger: Callable[..., Ledger] = open_ledger
    make_searcher: Callable[..., Any] = make_searcher
    job_ids: Iterator[int] = field(default_factory=itertools.count)


@contextlib.contextmanager
def closing(stages: Stages) -> Iterator[None]:
    """Ends the progress display and the evaluator's workers, however the body ends."""
    try:
        yield
    finally:
        stages.progress.end()
        stages.evaluator.close()
