"""Replays samplers on the recorded spaces with a cost model that was not fitted to the space at hand.

    PYTHONPATH=.:kernels python benchmarks/left_out.py [CONFIG] [--seeds 50] [--samplers auto,tpe]

CONFIG is configs/recorded.yaml if left out. For each of its spaces the model's constants are fitted to all others, as
benchmarks/fit_cost.py does, and stand in place of those that ship while the space is searched as `autotune compare`
does: for the untuned choices too. Prints median regrets over the seeds by candidates, and after how many candidates
the median stays at or below 1%. Takes a minute a space.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import defaultdict
from pathlib import Path
from unittest import mock

import numpy as np

from autotune.compare import searches
from autotune.compareverb import GOAL, arenas_of
from autotune.progress import Budget
from autotune.runconfig import load_run_config
from benchmarks import fit_cost
from hopper_matmul import rates
from hopper_matmul.hardware import device_named

CANDIDATES = 100
SHOWN = (1, 4, 16, 60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", nargs="?", default="configs/recorded.yaml", metavar="CONFIG")
    parser.add_argument("--samplers", default="auto,tpe")
    parser.add_argument("--seeds", type=int, default=50)
    arguments = parser.parse_args()
    config = load_run_config(arguments.config)
    by_problem = {
        group.problem: group
        for file in sorted(Path("results/recorded").glob("*.json.gz"))
        for group in fit_cost.groups_of(file)
    }
    print(
        f"median regret of {arguments.seeds} seeds after {SHOWN} candidates; candidates until 1%", flush=True
    )
    curves: dict[str, list[np.ndarray]] = defaultdict(list)
    for arena in arenas_of(config):
        device = device_named(arena.recorded.device["kind"])
        others = [group for problem, group in by_problem.items() if problem != arena.problem]
        # Wherever the model is asked, and in the untuned choices as well, it has these constants.
        with mock.patch.object(rates, "_H200", fit_cost.fitted(others, device)):
            untuned = arena.target.default_configs(arena.problem, device)
            unknown = dataclasses.replace(arena, default_knobs=untuned)
            for sampler in dict.fromkeys(("random", *arguments.samplers.split(","))):
                found = searches(unknown, sampler, arguments.seeds, CANDIDATES, Budget())
                curve = np.median(found.regret, axis=0)
                curves[sampler].append(curve)
                print(f"{arena.title:28} {sampler:8}{_line(curve)} {_until(curve):6}", flush=True)
    for sampler, medians in curves.items():
        untils = np.exp(np.mean(np.log([_until(curve) for curve in medians])))
        print(f"{'all: mean':28} {sampler:8}{_line(np.mean(medians, axis=0))} {untils:6.1f} (geometric mean)")
        print(f"{'all: worst':28} {sampler:8}{_line(np.max(medians, axis=0))}")


def _line(curve: np.ndarray) -> str:
    return "".join(f" {curve[count - 1]:8.2%}" for count in SHOWN)


def _until(curve: np.ndarray) -> int:
    """Returns after how many candidates the median is at the goal to stay; one more than `CANDIDATES` where never."""
    above = np.flatnonzero(curve > GOAL)
    return int(above[-1]) + 2 if len(above) else 1


if __name__ == "__main__":
    main()
