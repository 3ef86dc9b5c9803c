"""What does it cost to read the order of the tiles at run time? Times candidates as they ship beside themselves so.

    PYTHONPATH=.:kernels python benchmarks/runtime_raster.py [--configs 12] [--seconds 90] [--out FILE.jsonl]

For each problem some of the likeliest configurations, half of them persistent, each with an order drawn at random, are
compiled with the order in the kernel and with the order as an operand. Both must be right in every bit; then they are
timed in turn, in one process, by CUPTI, with clean L2. Prints the ratio of the medians (run-time over static) of each,
and for each problem the median and the extremes. Screening compares run-time kernels with each other, so that what all
of them pay alike does not matter: the spread does.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from autotune.seam import Candidate, Failed, MeasureProtocol
from autotune.target import load_target
from benchmarks.card import Card, Deadline, Lines, card_of
from benchmarks.order_job import OrderJob, OrderTimes

TARGET = load_target("hopper_matmul")
PROBLEMS = (
    {"m": 4096, "n": 8192, "k": 4096},
    {"m": 8192, "n": 8192, "k": 8192},
    {"m": 2048, "n": 2048, "k": 2048},
    {"m": 4096, "n": 4096, "k": 1024},
    {"m": 16384, "n": 2048, "k": 512},
    {"m": 512, "n": 512, "k": 512, "batch": 64},
)
WIDTHS = (1, 4, 8, 16)
NARROWED = {"wg_split": ("m",), "scopes": ("joint", "union"), "swap_ab": (False,)}
LIKELIEST = 200  # configurations of each kind that are drawn from
PROTOCOL = MeasureProtocol(l2="clean")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", type=int, default=12, help="of each problem")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=90.0, help="of all, start included")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--out", metavar="FILE", help="append each result as a line of JSON")
    arguments = parser.parse_args()
    deadline = Deadline(arguments.seconds)
    card = card_of(parser, TARGET)
    ratios = measured(card, arguments, deadline, Lines(arguments.out))
    for (title, kind), found in ratios.items():
        print(
            f"{title:32} {kind:14} {len(found):3} configurations: run-time over static "
            f"{statistics.median(found) - 1:+.2%}, {min(found) - 1:+.2%} to {max(found) - 1:+.2%}"
        )
    every = [ratio for found in ratios.values() for ratio in found]
    if not every:
        parser.exit(1, f"nothing was measured in {deadline.passed_s:.0f} s\n")
    spread = np.quantile(every, [0.1, 0.5, 0.9]) - 1
    print(f"all {len(every)}: median {spread[1]:+.2%}, 10% to 90% {spread[0]:+.2%} to {spread[2]:+.2%}")
    print(f"{deadline.passed_s:.0f} s")


def measured(
    card: Card, arguments: argparse.Namespace, deadline: Deadline, say: Lines
) -> dict[tuple[str, str], list[float]]:
    """Returns the ratios of each problem and kind of schedule."""
    jobs: dict[int, OrderJob] = {}
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    with card.evaluator(TARGET.name, workers=arguments.workers) as pool, contextlib.suppress(TimeoutError):
        for job in jobs_of(card, arguments.configs, arguments.rounds):
            jobs[job.job_id] = job
            pool.submit(job)
        while jobs:
            deadline()
            for outcome in pool.poll(1.0):
                job = jobs.pop(outcome.job_id)
                config, title = job.candidate.config, job.candidate.problem.describe()
                kind = "persistent" if config.persistent else "not persistent"
                if isinstance(outcome.result, Failed):
                    say(problem=title, knobs=config.to_knobs(), failed=outcome.result.detail)
                    continue
                ratios[title, kind].append(told(say, title, config, outcome.result))
    return ratios


def told(say: Lines, title: str, config: Any, times: OrderTimes) -> float:
    """Says what became of one configuration and returns the median ratio of neighbouring samples."""
    pairs = zip(times.runtime_us, times.static_us, strict=True)
    ratio = statistics.median(runtime_us / static_us for runtime_us, static_us in pairs)
    say(
        problem=title,
        ratio=round(ratio, 4),
        static_us=round(statistics.median(times.static_us), 3),
        runtime_us=round(statistics.median(times.runtime_us), 3),
        static_s=round(times.static_s, 2),
        runtime_s=round(times.runtime_s, 2),
        knobs=config.to_knobs(),
    )
    return ratio


def jobs_of(card: Card, configs: int, rounds: int) -> Iterator[OrderJob]:
    """Yields the jobs, problem by problem: half of the configurations persistent, drawn from the likeliest."""
    rng = random.Random(0)
    job_id = 0
    for fields in PROBLEMS:
        problem = TARGET.problem_from_fields(fields)
        space = TARGET.space(problem, card.device, {"raster_width": WIDTHS} | NARROWED)
        codes = space.legal().codes
        is_persistent = np.array(space.knobs["persistent"])[codes[:, list(space.knobs).index("persistent")]]
        predicted_us = space.predicted_us(codes)
        for kind in (True, False):
            rows = np.flatnonzero(is_persistent == kind)
            likeliest = rows[np.argsort(predicted_us[rows], kind="stable")][:LIKELIEST].tolist()
            for row in rng.sample(likeliest, min(len(likeliest), configs // 2)):
                knobs = space.legal().knobs(row)
                knobs |= {"grid_minor": rng.choice("mn"), "raster_width": rng.choice(WIDTHS)}
                one = Candidate(
                    target=TARGET.name,
                    problem=problem,
                    config=TARGET.config_from_knobs(knobs),
                    device=card.device,
                )
                yield OrderJob(job_id=job_id, candidate=one, protocol=PROTOCOL, rounds=rounds)
                job_id += 1


if __name__ == "__main__":
    main()
