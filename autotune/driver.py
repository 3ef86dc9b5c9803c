"""The one way through: screen each problem, race its finalists with XLA, promote the winner. Stages are passed in."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.interrupt import DeferredInterrupt
from autotune.problemrace import race_processes
from autotune.problemrun import ProblemRun, ProblemScreening
from autotune.result import ProblemResult, RunResult
from autotune.sessions import as_one, raced
from autotune.stages import Stages, closing
from autotune.turns import screenings_in_turn, shared_screenings

AT_ONCE = 4  # problems whose races share the card: what was won is promoted after so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Problems of a run that are searched alike. Parts share the evaluator, the progress and the job ids.

    Attributes:
        config: A RunConfig; all parts have one search.
    """

    config: Any
    stages: Stages


def run(config: Any, device: Any, stages: Stages, *, fresh: bool = False) -> RunResult:
    """Tunes every problem of `config`; see `run_parts`."""
    return run_parts([Part(config=config, stages=stages)], device, fresh=fresh)


def run_parts(parts: Sequence[Part], device: Any, *, fresh: bool = False) -> RunResult:
    """Tunes every problem of every part.

    A problem with nothing legal or no survivor does not stop the others: its result carries the error, and
    `RunResult.raise_for_failure` raises the first.

    Args:
        device: The target's device to tune for.
        fresh: Start new studies instead of going on with the recorded ones.

    Raises:
        InputError: The storage cannot be opened.
        KeyboardInterrupt: After everything that was measured is recorded.
    """
    config, stages = parts[0].config, parts[0].stages
    with closing(stages), DeferredInterrupt() as interrupt:
        # All spaces first: a wrong knob ends the run before anything is written.
        runs = [
            ProblemRun(
                part.config,
                device,
                part.stages,
                weighted,
                part.stages.target.space(weighted.problem, device, part.config.space),
                interrupt,
            )
            for part in parts
            for weighted in part.config.problems
        ]
        results: list[ProblemResult] = []
        is_gpu = stages.evaluator.kind == "gpu"
        screenings = (shared_screenings if config.search.is_shared else screenings_in_turn)(
            runs, config.search, stages, interrupt, fresh
        )
        for batch in itertools.batched(screenings, AT_ONCE if is_gpu else 1):
            _race_together(config, stages, batch, interrupt)
            for one, screened in batch:
                result = screened if isinstance(screened, ProblemResult) else one.finished(screened)
                results.append(result)
                if stages.promote is not None and is_gpu and result.winner is not None:
                    stages.promote(result)
    return RunResult(name=config.name, evaluator=stages.evaluator.kind, problems=tuple(results))


def _race_together(
    config: Any,
    stages: Stages,
    found: Sequence[tuple[ProblemRun, ProblemScreening | ProblemResult]],
    interrupt: DeferredInterrupt,
) -> None:
    """Records the first race of each problem of a batch, all of them at once.

    A race takes 12 to 30 s, of which most is starting processes, lowering and compiling (H200, 16 cores, 2026-11-30):
    while one measures, the others do that. A batch of one is left to `ProblemRun.finished`.
    """
    if len(found) < 2:
        return
    asked = {
        index: (one, screened, *first)
        for index, (one, screened) in enumerate(found)
        if isinstance(screened, ProblemScreening)
        and (first := one.races.first(screened.ledger, screened.results))
    }
    races = raced(
        stages.evaluator,
        [(index, job) for index, (_, _, _, job) in asked.items()],
        processes=race_processes(config, stages),
        job_ids=stages.job_ids,
        between=interrupt.raise_if_requested,
    )
    for index, results in races:
        one, screened, racers, _ = asked[index]
        one.races.record(screened.ledger, racers, as_one(results))
