"""Candidates a second: the real driver, ledger and GPU pool on one problem, after the pool is warm.

    PYTHONPATH=.:kernels python benchmarks/candidate_rate.py [--candidates 600] [--workers N] [--sampler random]

Prints the rate over the whole run and after warm-up, when every worker has returned three candidates on average.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

from autotune import machine
from autotune.driver import Stages, run
from autotune.evaluate import make_evaluator
from autotune.problemlist import WeightedProblem
from autotune.progress import make_progress
from autotune.protocol import AUTO
from autotune.runconfig import RaceSettings, RunConfig, SearchSettings
from autotune.seam import Failed, Limits, Measured
from autotune.target import load_target


class Stopwatch:
    """An evaluator that notes when each outcome came back, and passes everything on."""

    def __init__(self, evaluator):
        self._evaluator = evaluator
        self.kind, self.capacity = evaluator.kind, evaluator.capacity
        self.started_s = time.monotonic()
        self.returned: list[tuple[float, object]] = []

    def submit(self, job):
        self._evaluator.submit(job)

    def poll(self, timeout_s):
        outcomes = self._evaluator.poll(timeout_s)
        now_s = time.monotonic()
        self.returned += [(now_s, outcome.result) for outcome in outcomes]
        return outcomes

    def close(self):
        self._evaluator.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--candidates", type=int, default=600)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--sampler", default="random")
    for name, size in (("m", 4096), ("n", 8192), ("k", 4096)):
        parser.add_argument(f"--{name}", type=int, default=size)
    arguments = parser.parse_args()
    target = load_target("hopper_matmul")
    gpus = machine.hopper_gpus()
    if not gpus:
        parser.error("there is no Hopper GPU to measure on")
    device = target.device_named(gpus[0].kind)
    protocol = AUTO
    watch = Stopwatch(
        make_evaluator(
            "gpu",
            protocol=protocol,
            limits=Limits(),
            target_name=target.name,
            device=device,
            workers=arguments.workers,
            gpu=gpus[0],
        )
    )
    problem = target.problem_from_fields({name: getattr(arguments, name) for name in ("m", "n", "k")})
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig(
            path=Path("benchmark"),
            name="candidate_rate",
            problems=(WeightedProblem(problem=problem),),
            space={},
            search=SearchSettings(sampler=arguments.sampler, candidates=arguments.candidates, seconds=600.0),
            protocol=protocol,
            race=RaceSettings(finalists=1, processes=1, rounds=5, seconds=0.2),  # screening is what is timed
            results=Path(folder),
        )
        stages = Stages(
            target=target,
            evaluator=watch,
            progress=make_progress(),
            toolchain=dataclasses.asdict(machine.toolchain()),
        )
        run(config, device, stages)
    report(watch, arguments.candidates)


def report(watch: Stopwatch, candidates: int) -> None:
    """Prints rate, steps and failures of the screened candidates."""
    screened = watch.returned[:candidates]
    for result in {result.reason: result for _, result in screened if isinstance(result, Failed)}.values():
        print(f"for example              {result.reason}: {result.detail[:300]}")
    warm = 3 * watch.capacity
    whole_s = screened[-1][0] - watch.started_s
    warm_s = screened[-1][0] - screened[warm - 1][0]
    measured = [result for _, result in screened if isinstance(result, Measured)]
    failed = Counter(result.reason for _, result in screened if isinstance(result, Failed))
    own = [result for result in measured if result.duplicate_of is None]
    lower_s = statistics.median(result.lowered.lower_s for result in own)
    compile_s = statistics.median(result.lowered.compile_s for result in own)
    print(f"capacity                 {watch.capacity}")
    print(
        f"candidates               {len(screened)}: {len(own)} measured, {len(measured) - len(own)} duplicates"
    )
    print(f"failed                   {dict(failed) or 'none'}")
    print(f"whole run                {len(screened) / whole_s:.1f} candidates/s over {whole_s:.1f} s")
    print(f"after warm-up            {(len(screened) - warm) / warm_s:.1f} candidates/s over {warm_s:.1f} s")
    print(f"median lower, compile    {lower_s:.3f} s, {compile_s:.3f} s")


if __name__ == "__main__":
    main()
