"""What one budget saves, measured: 20 related problems each by itself, then under one budget, then their choices race.

    OPENBLAS_NUM_THREADS=1 PYTHONPATH=.:kernels python benchmarks/shared_budget_gpu.py --out FILE [--seed 0]
        [--runs alone,next,shared] [--seconds 540]

(OpenBLAS is kept to one thread as the command line keeps it, since the search runs beside as many workers as cores.)

Three runs of the real search on one card, each with workers of its own, since a pool measures an identical module only
once: `alone` searches each problem for 60 candidates and knows nothing of the others, `next` searches some of them for
20, beside what `alone` found for the problem of half their rows, and `shared` has 0.4 of the candidates of `alone` for
all. No run reads stored winners or ends by its expected gain; each chooses what it screened fastest. Then the choices
of each problem race in fresh processes, without XLA. `alone` comes first: what the card drifts by is divided out of
screened times by a fixed kernel, and out of races round by round.

The same command goes on with what FILE holds: `alone` and `next` with the problems that they have not searched to their
end, races with those that have no ratio. `shared` alone is one piece, since each of its turns builds on all the others:
stopped, it begins anew. With --runs a command makes some of the runs, such as `alone,next` and another time `shared`;
the races begin once FILE holds all three. The exit code is 0 where both claims hold: `shared` has cost at most 0.4 of
the candidates, and its choices are as fast as those of `alone`; and `next` is in the median within 1% of the faster of
the other two.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from autotune.evaluate.capacity import default_workers
from autotune.ledger.wholelines import OpenLines
from autotune.problemlist import WeightedProblem
from autotune.problemrun import ProblemRun
from autotune.progress import PlainProgress
from autotune.protocol import AUTO
from autotune.runconfig import RunConfig
from autotune.searchsettings import SearchSettings
from autotune.seeds import Neighbour, nearest_measured
from autotune.stages import Stages, closing
from autotune.target import load_target
from autotune.turns import SharedBudget
from benchmarks.card import Deadline, Lines, card_of
from benchmarks.choices_raced import RUNS, race, rows_of, turns_of, verdict, whole_runs
from benchmarks.shared_budget import EACH, NEXT_TO, SHARE, related_problems
from benchmarks.told_run import NOTHING, CountedLedger, Tally, ToldRun

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
    parser.add_argument(
        "--runs", default=",".join(RUNS), help="to make where FILE does not hold them, by comma"
    )
    parser.add_argument("--seconds", type=float, default=540.0, help="of all; then it stops and reports")
    parser.add_argument("--seed", type=int, default=0, help="of the searches")
    arguments = parser.parse_args()
    path = Path(arguments.out)
    try:
        runs = asked_runs(arguments.runs, whole_runs(rows_of(path)))
    except ValueError as error:
        parser.error(str(error))
    target = load_target("hopper_matmul")
    card = card_of(parser, target)
    world = World(
        target=target,
        device=card.device,
        problems=related_problems(target),
        evaluator=lambda workers: card.evaluator(target.name, workers=workers, seed=arguments.seed),
        seed=arguments.seed,
    )
    return 0 if measured(world, path, arguments.seconds, runs) else 1


def asked_runs(text: str, whole: Collection[str]) -> list[str]:
    """Returns the runs of a list by comma.

    Raises:
        ValueError: One that there is not, or `next` without what it begins with.
    """
    runs = text.split(",")
    unknown = [run for run in runs if run not in RUNS]
    if unknown:
        raise ValueError(f"--runs: {unknown[0]!r} is none of {', '.join(RUNS)}")
    if "next" in runs and "alone" not in {*runs, *whole}:
        raise ValueError(
            "--runs: next begins with what alone found, which FILE does not hold; ask for alone,next"
        )
    return runs


def measured(world: World, path: Path, seconds: float, runs: Collection[str] = RUNS) -> bool:
    """Makes the runs and races that the file does not hold yet, says what they show, and returns whether all holds."""
    if path.exists():
        with OpenLines(path, "a row") as file:
            file.cut()  # a row that was not written whole, which the next one would continue
    say, deadline = Lines(str(path), unsaid=("knobs", "errors")), Deadline(seconds)
    try:
        screen(world, path, runs, say, deadline)
        without = [run for run in RUNS if run not in whole_runs(rows_of(path))]
        if without:
            say(kind="not raced yet", without=without)
        else:
            race(world, rows_of(path), say, deadline)
    except TimeoutError:
        note = "the same command goes on; shared begins anew where it is not whole"
        say(kind="stopped", at_s=round(deadline.passed_s, 1), note=note)
    return verdict(world, rows_of(path), say)


def screen(world: World, path: Path, runs: Collection[str], say: Lines, deadline: Deadline) -> None:
    """Makes those of the runs that are not whole yet."""
    searches = {"alone": search_alone, "next": search_next, "shared": search_shared}
    for run, search in searches.items():
        rows = rows_of(path)
        if run in runs and run not in whole_runs(rows):
            search(world, rows, say, deadline)


def search_alone(world: World, rows: Sequence[Mapping[str, Any]], say: Lines, deadline: Deadline) -> None:
    near = dict.fromkeys(world.problems, ())
    search_each(world, "alone", near, world.each, rows, say, deadline)


def search_next(world: World, rows: Sequence[Mapping[str, Any]], say: Lines, deadline: Deadline) -> None:
    """Searches problems next to tuned ones, as a run searches a problem after the other."""
    tuned = {
        problem: Neighbour(problem=problem, knobs=row["knobs"], errors=row["errors"])
        for problem, row in turns_of(world, rows, "alone").items()
    }
    near = {
        problem: nearest_measured(world.target, problem, [tuned[half_of(problem)]])
        for problem in world.next_problems
        if half_of(problem) in tuned
    }
    search_each(world, "next", near, world.next_each, rows, say, deadline)


def search_shared(world: World, rows: Sequence[Mapping[str, Any]], say: Lines, deadline: Deadline) -> None:
    search = SearchSettings(total_candidates=world.total, seconds=math.inf, stop_gain=0.0, seed=world.seed)
    with started(world, world.problems, search, Tally("shared", say, deadline), deadline) as (runs, stages):
        SharedBudget(runs, search, stages, until(deadline)).screened(fresh=True)


def search_each(
    world: World,
    run: str,
    near: Mapping[Any, Sequence[tuple[float, Neighbour]]],
    candidates: int,
    rows: Sequence[Mapping[str, Any]],
    say: Lines,
    deadline: Deadline,
) -> None:
    """Searches one problem after the other, each beside those near it, but those that have had their only turn."""
    turns = turns_of(world, rows, run)
    left = [problem for problem in near if problem not in turns]
    search = SearchSettings(candidates=candidates, seconds=math.inf, stop_gain=0.0, seed=world.seed)
    tally = Tally(run, say, deadline, before=list(turns.values())[-1] if turns else NOTHING)
    with started(world, left, search, tally, deadline) as (runs, _):
        for one in runs:
            one.screened(one.opened(fresh=True), search.budget, near=near[one.problem])


@contextlib.contextmanager
def started(
    world: World, problems: Sequence[Any], search: SearchSettings, tally: Tally, deadline: Deadline
) -> Iterator[tuple[list[ProblemRun], Stages]]:
    """Yields the problems of a run on workers of its own, and says what it took once the body has ended soundly."""
    stages = Stages(
        target=world.target,
        evaluator=world.evaluator(default_workers(on_gpu=True)),
        progress=PlainProgress(io.StringIO()),
        toolchain={},
        open_ledger=lambda *_, **__: CountedLedger(tally),
    )
    config = RunConfig(
        path=Path(tally.run),
        name=tally.run,
        problems=tuple(WeightedProblem(problem=problem) for problem in problems),
        space={},
        search=search,
        protocol=AUTO,
    )
    with closing(stages):
        yield (
            [
                ToldRun(
                    tally,
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
    tally.say(kind="run", run=tally.run, **tally.taken)


def until(deadline: Deadline) -> Any:
    """Returns what stands for an interrupt in a search: TimeoutError after the deadline, with all in hand recorded."""
    return SimpleNamespace(requested=deadline, raise_if_requested=deadline)


if __name__ == "__main__":
    sys.exit(main())
