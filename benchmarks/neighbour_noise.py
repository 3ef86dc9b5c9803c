"""Do neighbours that compile move a fixed kernel? Screens one kernel alone, then beside fifteen compiling workers.

    PYTHONPATH=.:kernels python benchmarks/neighbour_noise.py [--neighbours 15] [--repeats 20]

The neighbours lower, compile and measure as in a run; all share the lock of the card. Prints the medians of the
kernel's own times and their difference, which must stay within 0.5%.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace

from autotune import machine
from autotune.evaluate import make_evaluator
from autotune.protocol import AUTO, resolved
from autotune.seam import Candidate, Limits, Measured, RaceJob, ScreenJob
from autotune.target import load_target

TARGET = load_target("hopper_matmul")
LIMIT = 0.005


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--neighbours", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=8)
    arguments = parser.parse_args()
    if not machine.hopper_gpus():
        parser.error("there is no Hopper GPU to measure on")
    alone_us, beside_us = medians(arguments.neighbours, arguments.repeats)
    change = beside_us / alone_us - 1
    print(
        f"alone {alone_us:.3f} us, beside {arguments.neighbours} compiling {beside_us:.3f} us: {change:+.2%}"
    )
    raise SystemExit(abs(change) > LIMIT)


def medians(neighbours: int, repeats: int) -> tuple[float, float]:
    """Returns the median time of one kernel alone, and while `neighbours` workers lower and compile, in us.

    Both are taken in turns, so that what warms up or wanders meanwhile is shared.
    """
    gpu = machine.hopper_gpus()[0]
    device = TARGET.device_named(gpu.kind)
    problem = TARGET.problem_from_fields({"m": 4096, "n": 4096, "k": 4096})
    legal = TARGET.space(problem, device, {}).legal()
    protocol = resolved(replace(AUTO, regime="burst"), problem, TARGET)
    options = {"protocol": AUTO, "limits": Limits(), "target_name": TARGET.name, "device": device, "gpu": gpu}
    fixed = TARGET.config_from_knobs(TARGET.heuristic_config(problem, device))
    scores: dict[bool, list[float]] = {True: [], False: []}
    step, submitted = max(1, legal.size // 5000), 0
    with (
        make_evaluator("gpu", workers=1, **options) as own,
        make_evaluator("gpu", workers=neighbours, **options) as others,
    ):
        for repeat in range(2 * repeats):
            busy = repeat % 2 == 1
            if busy:
                for _ in range(2 * neighbours):
                    config = TARGET.config_from_knobs(legal.knobs(submitted * step % legal.size))
                    others.submit(ScreenJob(job_id=submitted, candidate=_candidate(problem, config, device)))
                    submitted += 1
                finished.extend(outcome.job_id for outcome in others.poll(0.0))
            own.submit(
                RaceJob(
                    job_id=repeat,
                    problem=problem,
                    target=TARGET.name,
                    candidates=(_candidate(problem, fixed, device),),
                    rounds=60,
                    protocol=protocol,
                    formulations=("plain",),
                )
            )
            outcomes: list = []
            while not outcomes:
                outcomes = list(own.poll(0.5))
            own_lane, plain = (entry.result for entry in outcomes[0].result.entries)
            assert isinstance(own_lane, Measured) and isinstance(plain, Measured), outcomes[0].result
            # Its own time, not its ratio to XLA: a neighbour that slows both would hide in the ratio.
            scores[busy].append(own_lane.timing.median_us)
            while busy and outcomes_left(others, submitted):
                pass
    return statistics.median(scores[False]), statistics.median(scores[True])


finished: list[int] = []


def outcomes_left(evaluator, submitted: int) -> bool:
    """Returns whether neighbours still work; waits for some of them."""
    finished.extend(outcome.job_id for outcome in evaluator.poll(0.5))
    return len(finished) < submitted


def _candidate(problem, config, device) -> Candidate:
    return Candidate(target=TARGET.name, problem=problem, config=config, device=device)


if __name__ == "__main__":
    main()
