"""How the choices of several runs compare: raced problem by problem, and what the races show of one budget.

Rows are those that `shared_budget_gpu` writes: of kind "turn", "run" and "race".
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autotune.lanes import Lanes, bootstrap_interval, fixed_order, paired
from autotune.paired import TIE
from autotune.protocol import AUTO, resolved
from autotune.seam import Failed, Race
from autotune.sessions import as_one, raced
from benchmarks.card import Deadline, Lines, race_job
from benchmarks.shared_budget import NEXT_TO, SHARE

RUNS = ("alone", "next", "shared")
PROCESSES = 2  # of each race
RESAMPLES = 10_000


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Returns the rows that were written whole."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def whole_runs(rows: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Returns what each run took that has ended."""
    return {row["run"]: row for row in rows if row["kind"] == "run"}


def turns_of(world: Any, rows: Sequence[Mapping[str, Any]], run: str) -> dict[Any, Mapping[str, Any]]:
    """Returns the last turn of each problem of a run: what is fastest of it so far, and its time."""
    turns = [row for row in rows if row["kind"] == "turn" and row["run"] == run]
    return {world.target.problem_from_fields(row["problem"]): row for row in turns}


def choices(world: Any, rows: Sequence[Mapping[str, Any]], run: str) -> dict[Any, Mapping[str, Any]]:
    """Returns the last turn of each problem of a run that is whole: what it chose, and its time."""
    return turns_of(world, rows, run) if run in whole_runs(rows) else {}


def races_of(world: Any, rows: Sequence[Mapping[str, Any]]) -> dict[Any, Mapping[str, Any]]:
    """Returns the last race of each problem; one that failed is none."""
    last = {world.target.problem_from_fields(row["problem"]): row for row in rows if row["kind"] == "race"}
    return {problem: row for problem, row in last.items() if row["over_alone"]}


def race(world: Any, rows: Sequence[Mapping[str, Any]], say: Lines, deadline: Deadline) -> None:
    """Races the choices of each problem that has no ratio yet; where all are one there is nothing to race."""
    chosen = {run: choices(world, rows, run) for run in RUNS}
    done = races_of(world, rows)
    answers: dict[Any, dict[str, Mapping[str, Any]]] = {}
    for problem in world.problems:
        found = {run: turns[problem]["knobs"] for run, turns in chosen.items() if problem in turns}
        if problem in done or not {"alone", "shared"} <= set(found):
            continue
        if len(kernels_of(found)) > 1:
            answers[problem] = found
        else:
            say(**race_row(problem, over_alone=dict.fromkeys(found, 1.0), how="one configuration"))
    if not answers:
        return
    jobs = {problem: race_of(world, problem, found) for problem, found in answers.items()}
    with contextlib.closing(world.evaluator(None)) as evaluator:
        for problem, results in raced(
            evaluator, jobs.items(), processes=PROCESSES, job_ids=itertools.count(), between=deadline
        ):
            say(**compared(problem, answers[problem], as_one(results)), at_s=round(deadline.passed_s, 1))


def kernels_of(answers: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Returns the different knobs among the answers, by their fixed order."""
    return {fixed_order(knobs): knobs for knobs in answers.values()}


def race_of(world: Any, problem: Any, answers: Mapping[str, Mapping[str, Any]]) -> Any:
    configs = [world.target.config_from_knobs(knobs) for knobs in kernels_of(answers).values()]
    protocol = resolved(AUTO, problem, world.target)
    return race_job(world.target.name, problem, configs, world.device, protocol=protocol, formulations=())


def compared(problem: Any, answers: Mapping[str, Mapping[str, Any]], result: Race | Failed) -> dict[str, Any]:
    """Returns the row of a race: each run's time over that of `alone`, round by round, with intervals."""
    if isinstance(result, Failed):
        return race_row(problem, over_alone={}, how=f"{result.reason}: {result.detail}")
    lanes, places = Lanes.of(result).finalists, list(kernels_of(answers))
    placed = {run: places.index(fixed_order(knobs)) for run, knobs in answers.items()}
    lane = {run: lanes[place] for run, place in placed.items() if place in lanes}
    failed = [one.result for one in result.entries if isinstance(one.result, Failed)]
    how = f"{failed[0].reason}: {failed[0].detail}" if failed else "raced"
    if not {"alone", "shared"} <= set(lane):
        return race_row(problem, over_alone={}, how=how)
    ratios = {run: paired(each, lane["alone"]) for run, each in lane.items()}
    return race_row(
        problem,
        over_alone={run: float(np.median(each)) for run, each in ratios.items()},
        intervals={run: bootstrap_interval(each) for run, each in ratios.items() if run != "alone"},
        how=how,
    )


def race_row(problem: Any, *, over_alone: Mapping[str, float], how: str, **more: Any) -> dict[str, Any]:
    """Returns a race as a row; `behind` is by how much each is slower than the fastest of the choices."""
    least = min(over_alone.values(), default=1.0)
    behind = {run: ratio / least - 1 for run, ratio in over_alone.items()}
    fields = problem.to_fields()
    return {"kind": "race", "problem": fields, "over_alone": over_alone, "behind": behind, "how": how, **more}


def mean_ratio(ratios: Sequence[float], weights: Sequence[float]) -> tuple[float, float, float]:
    """Returns the weighted geometric mean and its 95% interval, resampling problems with a fixed seed."""
    logs, weight = np.log(np.asarray(ratios)), np.asarray(weights, dtype=float)
    picks = np.random.default_rng(0).integers(logs.size, size=(RESAMPLES, logs.size))
    resampled = (weight[picks] * logs[picks]).sum(axis=1) / weight[picks].sum(axis=1)
    ends = np.quantile(resampled, [0.025, 0.975])
    return tuple(float(one) for one in np.exp([np.average(logs, weights=weight), *ends]))


def verdict(world: Any, rows: Sequence[Mapping[str, Any]], say: Lines) -> bool:
    """Says what the rows show, and returns whether both claims hold."""
    runs, alone = whole_runs(rows), choices(world, rows, "alone")
    races = races_of(world, rows)
    is_saved = "shared" in runs and len(races) == len(world.problems) and saved(runs, alone, races, say)
    beside = [
        row["over_alone"]["next"] / min(1.0, row["over_alone"]["shared"]) - 1
        for row in races.values()
        if "next" in row["over_alone"]
    ]
    goal, _ = NEXT_TO
    is_near = bool(beside) and float(np.median(beside)) <= goal
    say(
        kind="verdict",
        raced=f"{len(races)} of {len(world.problems)}",
        one_budget_holds=is_saved,
        next_to_tuned=[round(one, 4) for one in beside],
        within=f"{sum(one <= goal for one in beside)} of {len(beside)} within {goal:.0%} after {world.next_each}",
        next_to_tuned_holds=is_near,
    )
    return is_saved and is_near


def saved(runs: Mapping[str, Any], alone: Mapping[Any, Any], races: Mapping[Any, Any], say: Lines) -> bool:
    """Says what one budget cost and how fast its choices are, and returns whether it saved what is claimed.

    They are as fast where neither mean, of all problems alike or weighted by their times, is over 1 beyond its interval
    or by more than a tie: few problems with wide intervals show nothing.
    """
    ratios = [row["over_alone"]["shared"] for row in races.values()]
    times_us = [alone[problem]["best_us"] for problem in races]
    means = {"plain": mean_ratio(ratios, [1.0] * len(ratios)), "weighted": mean_ratio(ratios, times_us)}
    share = runs["shared"]["candidates"] / runs["alone"]["candidates"]
    behind = {run: np.mean([row["behind"][run] for row in races.values()]) for run in ("alone", "shared")}
    say(
        kind="one budget",
        candidates=[runs[run]["candidates"] for run in ("alone", "shared")],
        share=round(share, 3),
        **{
            f"{name}_share": round(runs["shared"][name] / runs["alone"][name], 3)
            if runs["alone"][name]
            else None
            for name in ("seconds", "card_s")
        },
        shared_over_alone={name: [round(one, 4) for one in mean] for name, mean in means.items()},
        mean_behind_the_faster={run: round(float(one), 4) for run, one in behind.items()},
    )
    return share <= SHARE and all(low <= 1.0 and mean <= 1.0 + TIE for mean, low, _ in means.values())
