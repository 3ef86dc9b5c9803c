"""Measuring the whole legal space of each problem, for replay."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autotune.errors import NothingSurvivedError
from autotune.interrupt import DeferredInterrupt
from autotune.lanes import fixed_order
from autotune.problemrace import none_survived
from autotune.problemrun import ProblemRun
from autotune.progress import Budget
from autotune.result import ProblemResult
from autotune.seam import Failed, Measured, Race, RaceEntry
from autotune.stages import Stages, closing


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSpace:
    """An exhaustively measured space.

    Attributes:
        space: Values of each knob.
        rows: Knobs with what became of them, in the fixed order of knobs.
        rival: The rival's lanes; a lane whose result is Failed says why there is no time.
    """

    problem: Any
    device: Any
    protocol: Any
    space: Any
    rows: tuple[tuple[dict[str, Any], Measured | Failed], ...]
    rival: tuple[RaceEntry, ...]


def record(
    config: Any, device: Any, stages: Stages, write: Callable[[RecordedSpace], Any], *, fresh: bool = False
) -> list[RecordedSpace]:
    """Measures every legal configuration of every problem and the rival, and hands each problem to `write`.

    It is a study like any other: interrupted, it goes on where it stopped, and what a run measured before is kept.

    Args:
        write: Writes one recorded space to its file.

    Raises:
        NothingLegalError: A problem has no legal configuration.
        NothingSurvivedError: Every configuration of a problem failed, or the rival's process died.
        KeyboardInterrupt: After everything that was measured is recorded.
    """
    # A replay races what was screened, so both are timed alike here: by CUPTI, in bursts.
    protocol = dataclasses.replace(config.protocol, timer="cupti", regime="burst")
    search = dataclasses.replace(config.search, sampler="exhaustive")
    exhaustive = dataclasses.replace(config, search=search, protocol=protocol)
    written = []
    with closing(stages), DeferredInterrupt() as interrupt:
        spaces = [stages.target.space(w.problem, device, config.space) for w in config.problems]
        for weighted, space in zip(config.problems, spaces):
            interrupt.raise_if_requested()
            one = ProblemRun(exhaustive, device, stages, weighted, space, interrupt)
            recorded = _record_problem(one, device, weighted.problem, space, fresh)
            write(recorded)
            written.append(recorded)
    return written


def _record_problem(one: ProblemRun, device: Any, problem: Any, space: Any, fresh: bool) -> RecordedSpace:
    opened = one.opened(fresh)
    if isinstance(opened, ProblemResult):
        assert opened.failure is not None
        raise opened.failure
    ledger, screened = opened.ledger, one.screened(opened, Budget()).results
    if not any(isinstance(result, Measured) for _, result in screened):
        raise none_survived(problem, [result for _, result in screened if isinstance(result, Failed)])
    race = one.races.race(ledger, [])
    if not isinstance(race, Race):
        raise NothingSurvivedError(
            f"{problem.describe()}: the rival was not measured: {race.reason}: {race.detail}"
        )
    rows = sorted(screened, key=lambda row: fixed_order(row[0]))
    return RecordedSpace(
        problem=problem,
        device=device,
        protocol=one.protocol,
        space=space.knobs,
        rows=tuple((knobs, result) for knobs, result in rows if isinstance(result, Measured | Failed)),
        rival=race.entries,
    )
