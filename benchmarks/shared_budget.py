"""A simulation: related problems under one budget against each by itself, and a problem next to a tuned one.

Nothing is measured here, and no GPU is needed. A configuration's time is what the cost model says times an error of its
own, of 12% (the model's is 6 to 13%, docs/search.md), that is alike for related problems; each screening adds noise.
The search runs through the driver as it is. With --recorded, the times are those of recorded spaces instead, where at
least two of related problems are there.

    PYTHONPATH=.:kernels python benchmarks/shared_budget.py [--draws 3] [--recorded results/recorded]

The exit code is 0 where the shared budget needs at most 0.4 of the candidates and the neighbour comes within 1% of its
best in 20.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from autotune.evaluate import read_recorded
from autotune.seeds import NEAR
from autotune.target import load_target
from benchmarks.simulated_search import RecordedTruth, Truth, best_so_far, searched, workload_regret

EACH = 60  # candidates of a single run
TOTALS = (8, 12, 16, 20, 24, 32, 40)  # of the shared budget, for each problem
SHARE = 0.4  # of the candidates of single runs that is asked for
NEXT_TO = 0.01, 20  # regret of a problem next to a tuned one, and after how many candidates

ROWS = (256, 512, 1024, 2048, 4096)
WEIGHTS = ((6144, 4096), (4096, 4096), (14336, 4096), (4096, 14336))


def single_runs(world: Any, draw: int) -> list[float]:
    """Returns the workload's regret by candidates of each problem, where each is searched by itself."""
    so_far: list[dict[Any, tuple[float, float]]] = [{} for _ in range(EACH)]
    for problem in world.problems:
        trace, _ = searched(world, [problem], draw, candidates=EACH, stop_gain=0.0)
        for place, best in enumerate(best_so_far(trace)):
            so_far[place] |= best
    return [workload_regret(world, best) for best in so_far]


def shared_run(world: Any, draw: int, each: int) -> tuple[float, int]:
    """Returns the workload's regret after a shared budget of so many candidates for each problem, and its turns."""
    total = each * len(world.problems)
    trace, _ = searched(world, world.problems, draw, total_candidates=total, stop_gain=0.0)
    *_, best = best_so_far(trace)
    turns = 1 + sum(one[0] != other[0] for one, other in itertools.pairwise(trace))
    return workload_regret(world, best), turns


def stopped_runs(world: Any, draw: int) -> tuple[float, float]:
    """Returns the workload's regret where the expected gain ends each search by itself, and candidates of each."""
    best: dict[Any, tuple[float, float]] = {}
    taken = 0
    for problem in world.problems:
        trace, _ = searched(world, [problem], draw, candidates=200)
        taken += len(trace)
        *_, last = best_so_far(trace)
        best |= last
    return workload_regret(world, best), taken / len(world.problems)


def next_to_tuned(world: Any, draw: int) -> list[float]:
    """Returns regrets of problems after the candidates of `NEXT_TO`, searched after one of half their rows."""
    _, most = NEXT_TO
    found = []
    for first in world.problems:
        second = dataclasses.replace(first, m=2 * first.m)
        if second in world.problems:
            trace, _ = searched(world, [first, second], draw, candidates=EACH, stop_gain=0.0)
            rows = [row for row in trace if row[0] == second][:most]
            *_, best = best_so_far(rows)
            found.append(best[second][1] / world.truth.best_us(second) - 1)
    return found


def related_problems(target: Any) -> list[Any]:
    sizes = [(m, n, k) for n, k in WEIGHTS for m in ROWS]
    return [target.problem_from_fields({"m": m, "n": n, "k": k}) for m, n, k in sizes]


def recorded_world(target: Any, device: Any, folder: Path) -> Any:
    """Returns a world of the recorded spaces below a folder that have another near them; None: there are none."""
    spaces = {}
    for path in sorted(folder.glob(f"{target.name}-*.json.gz")):
        space = read_recorded(path)
        if space.device["kind"] == device.kind:
            spaces[target.problem_from_fields(space.problem)] = space
    related = [
        one for one in spaces if any(other != one and target.distance(one, other) <= NEAR for other in spaces)
    ]
    if len(related) < 2:
        return None
    truth = RecordedTruth(target, {problem: spaces[problem] for problem in related}, device)
    return SimpleNamespace(target=target, device=device, truth=truth, problems=related)


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=3, help="of the errors, and of the searches")
    parser.add_argument("--recorded", type=Path, help="folder of recorded spaces")
    options = parser.parse_args()
    target = load_target("hopper_matmul")
    device = target.device_named("NVIDIA H200")
    recorded = recorded_world(target, device, options.recorded) if options.recorded else None
    if options.recorded and recorded is None:
        say(note=f"no two related recorded spaces in {options.recorded}: simulated")
    say(
        times="recorded"
        if recorded
        else "simulated: the cost model's with errors of their own; nothing is measured"
    )
    single, shared, stopped, next_to = [], [], [], []
    for draw in range(options.draws):
        world = recorded or SimpleNamespace(
            target=target,
            device=device,
            truth=Truth(target, device, draw),
            problems=related_problems(target),
        )
        single.append(single_runs(world, draw))
        shown = {each: round(single[-1][each - 1], 4) for each in (1, 4, *TOTALS, EACH)}
        say(draw=draw, problems=len(world.problems), single=shown)
        shared.append([shared_run(world, draw, each) for each in TOTALS])
        say(draw=draw, shared={each: (round(r, 4), n) for each, (r, n) in zip(TOTALS, shared[-1])})
        stopped.append(stopped_runs(world, draw))
        say(draw=draw, stopped_by_gain={"regret": round(stopped[-1][0], 4), "candidates": stopped[-1][1]})
        next_to += next_to_tuned(world, draw)
        say(draw=draw, next_to_tuned=[round(one, 4) for one in next_to[-len(world.problems) :]])
    return verdict(np.mean(single, axis=0), np.mean([[r for r, _ in one] for one in shared], axis=0), next_to)


def verdict(single: np.ndarray, shared: np.ndarray, next_to: list[float]) -> int:
    """Says after how many candidates the shared budget is as good as single runs, and returns the exit code."""
    as_good = {each: regret for each, regret in zip(TOTALS, shared) if regret <= single[-1]}
    share = min(as_good, default=math.inf) / EACH
    goal, most = NEXT_TO
    near = float(np.median(next_to)) if next_to else math.inf
    within = sum(one <= goal for one in next_to)
    say(
        regret_of_single_runs=round(float(single[-1]), 4),
        candidates_of_single_runs=EACH,
        shared_needs=None if math.isinf(share) else min(as_good),
        share=None if math.isinf(share) else round(share, 2),
        asked=SHARE,
        next_to_tuned={"median": round(near, 4), "within": f"{within} of {len(next_to)}", "after": most},
    )
    return 0 if share <= SHARE and near <= goal else 1


if __name__ == "__main__":
    sys.exit(main())
