"""What one budget saves, measured: 20 related problems each by itself, then under one budget, then their choices race.

    OPENBLAS_NUM_THREADS=1 PYTHONPATH=.:kernels python benchmarks/shared_budget_gpu.py --out FILE.jsonl [--seed 0]

(OpenBLAS is kept to one thread as the command line keeps it, since the search runs beside as many workers as cores.)

Three runs of the real search on one card, each with workers of its own, since a pool measures an identical module only
once: `alone` searches each problem for 60 candidates and knows nothing of the others, `next` searches some of them for
20, beside what `alone` found for the problem of half their rows, and `shared` has 0.4 of the candidates of `alone` for
all. No run reads stored winners or ends by its expected gain; each chooses what it screened fastest. Then the choices
of each problem race in fresh processes, without XLA. `alone` comes first: what the card drifts by is divided out of
screened times by a fixed kernel, and out of races round by round.

The same command goes on with what FILE holds: it repeats no run that is whole and no race (but `next` is made with
`alone` or not at all). The exit code is 0 where both claims hold: `shared` has cost at most 0.4 of the candidates, and
its choices are as fast as those of `alone`; and `next` is in the median within 1% of the faster of the other two.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from autotune.evaluate.capacity import default_workers
from autotune.problemlist import WeightedProblem
from autotune.problemrun import ProblemRun
from autotune.progress import PlainProgress
from autotune.protocol import AUTO
from autotune.runconfig import RunConfig
from autotune.seam import Measured
from autotune.searchsettings import SearchSettings
from autotune.seeds import Neighbour, nearest_measured
from autotune.stages import Stages, closing
from autotune.target import load_target
from autotune.turns import SharedBudget
from autotune.verdict import finalists
from benchmarks.card import Deadline, Lines, card_of
from benchmarks.choices_raced import race, rows_of, verdict, whole_runs
from benchmarks.shared_budget import EACH, NEXT_TO, SHARE, related_problems
from benchmarks.simulated_search import MemoryLedger

PAIRS = 6  # problems of `next`


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Where and what is measured.

    Attributes:
        evaluator: Returns a new evaluator with so many workers; None: as many as races take.
        each: Candidates of a problem by itself.
        next_each: Candidates of a problem next to a tuned one.
    """

    target: Any
    device: Any
    problems: Sequence[Any]
    evaluator: Callable[[int | None], Any]
    seed: int = 0
    each: int = EACH
    next_each: int = NEXT_TO[1]

    @property
    def total(self) -> int:
        """Candidates of the shared budget."""
        return int(SHARE * self.each * len(self.problems))

    @property
    def next_problems(self) -> list[Any]:
        """Some problems of which that with half the rows is another, spread over the list."""
        pairs = [one for one in self.problems if half_of(one) in self.problems]
        return pairs[:: max(1, math.ceil(len(pairs) / PAIRS))]


def half_of(problem: Any) -> Any:
    return dataclasses.replace(problem, m=problem.m // 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, metavar="FILE", help="what is found, as lines of JSON")
    parser.add_argument("--seconds", type=float, default=540.0, help="of all; then it stops and reports")
    parser.add_argument("--seed", type=int, default=0, help="of the searches")
    arguments = parser.parse_args()
    target = load_target("hopper_matmul")
    card = card_of(parser, target)
    world = World(
        target=target,
        device=card.device,
        problems=related_problems(target),
        evaluator=lambda workers: card.evaluator(target.name, workers=workers, seed=arguments.seed),
        seed=arguments.seed,
    )
    return 0 if measured(world, Path(arguments.out), arguments.seconds) else 1


def measured(world: World, path: Path, seconds: float) -> bool:
    """Makes the runs and races that the file does not hold yet, says what they show, and returns whether all holds."""
    say, deadline = Lines(str(path)), Deadline(seconds)
    try:
        screen(world, rows_of(path), say, deadline)
        race(world, rows_of(path), say, deadline)
    except TimeoutError:
        say(kind="stopped", at_s=round(deadline.passed_s, 1), note="the same command goes on")
    return verdict(world, rows_of(path), say)


def screen(world: World, rows: Sequence[Mapping[str, Any]], say: Lines, deadline: Deadline) -> None:
    """Makes the runs that are not whole yet."""
    whole = whole_runs(rows)
    if "alone" not in whole:
        each = SearchSettings(candidates=world.each, seconds=math.inf, stop_gain=0.0, seed=world.seed)
        tuned = {}
        with started(world, "alone", world.problems, each, say, deadline) as (runs, _):
            for one in runs:
                tuned[one.problem] = one.screened(one.opened(fresh=True), each.budget)
        search_next(world, tuned, say, deadline)
    if "shared" not in whole:
        together = SearchSettings(
            total_candidates=world.total, seconds=math.inf, stop_gain=0.0, seed=world.seed
        )
        with started(world, "shared", world.problems, together, say, deadline) as (runs, stages):
            SharedBudget(runs, together, stages, until(deadline)).screened(fresh=True)


def search_next(world: World, tuned: Mapping[Any, Any], say: Lines, deadline: Deadline) -> None:
    """Searches problems next to tuned ones, as a run searches a problem after the other."""
    search = SearchSettings(candidates=world.next_each, seconds=math.inf, stop_gain=0.0, seed=world.seed)
    with started(world, "next", world.next_problems, search, say, deadline) as (runs, _):
        for one in runs:
            half = half_of(one.problem)
            if tuned[half].best is not None:
                neighbour = Neighbour(problem=half, knobs=tuned[half].best[0], errors=tuned[half].errors)
                near = nearest_measured(world.target, one.problem, [neighbour])
                one.screened(one.opened(fresh=True), search.budget, near=near)


@contextlib.contextmanager
def started(
    world: World, run: str, problems: Sequence[Any], search: SearchSettings, say: Lines, deadline: Deadline
) -> Iterator[tuple[list[ProblemRun], Stages]]:
    """Yields the problems of a run on workers of its own, and says what it took once the body has ended soundly."""
    tally = Tally(run, say, deadline)
    stages = Stages(
        target=world.target,
        evaluator=world.evaluator(default_workers(on_gpu=True)),
        progress=PlainProgress(io.StringIO()),
        toolchain={},
        open_ledger=lambda provenance, **_: ToldLedger(provenance.problem, tally),
    )
    config = RunConfig(
        path=Path(run),
        name=run,
        problems=tuple(WeightedProblem(problem=problem) for problem in problems),
        space={},
        search=search,
        protocol=AUTO,
    )
    with closing(stages):
        yield (
            [
                ProblemRun(
                    config,
                    world.device,
                    stages,
                    weighted,
                    world.target.space(weighted.problem, world.device, {}),
                    until(deadline),
                )
                for weighted in config.problems
            ],
            stages,
        )
    say(kind="run", run=run, **tally.taken)


def until(deadline: Deadline) -> Any:
    """Returns what stands for an interrupt in a search: TimeoutError after the deadline, with all in hand recorded."""
    return SimpleNamespace(requested=deadline, raise_if_requested=deadline)


class Tally:
    """What a run has taken so far: candidates, seconds from its first result to its last, and seconds of the card."""

    def __init__(self, run: str, say: Lines, deadline: Deadline) -> None:
        self.run, self.say, self._deadline = run, say, deadline
        self._candidates, self._card_s = 0, 0.0
        self._first_s: float | None = None
        self._last_s = 0.0

    def count(self, result: Any) -> None:
        self._last_s = time.monotonic()
        self._first_s = self._first_s or self._last_s
        self._candidates += 1
        self._card_s += getattr(result, "locked_s", None) or 0.0

    @property
    def taken(self) -> dict[str, Any]:
        return {
            "candidates": self._candidates,
            "seconds": round(self._last_s - (self._first_s or self._last_s), 1),
            "card_s": round(self._card_s, 2),
            "at_s": round(self._deadline.passed_s, 1),
        }


class ToldLedger(MemoryLedger):
    """A study that ends with the process, and says at the end of each turn what it holds."""

    def __init__(self, problem: Mapping[str, Any], tally: Tally) -> None:
        super().__init__()
        self._problem, self._tally = dict(problem), tally

    def record_screen(self, knobs: Mapping[str, Any], result: Any, spent_s: float) -> None:
        super().record_screen(knobs, result, spent_s)
        self._tally.count(result)

    def finish_screening(self, spent_s: float, stopped: Any = None) -> None:
        super().finish_screening(spent_s, stopped)
        results = [(record.knobs, record.result) for record in self.screened()]
        sound = [(knobs, result) for knobs, result in results if isinstance(result, Measured)]
        if sound:
            knobs, best = finalists(sound)[0]
            self._tally.say(
                kind="turn",
                run=self._tally.run,
                problem=self._problem,
                of_problem=len(results),
                failed=len(results) - len(sound),
                best_us=best.timing.score_us,
                knobs=knobs,
                **self._tally.taken,
            )


if __name__ == "__main__":
    sys.exit(main())
