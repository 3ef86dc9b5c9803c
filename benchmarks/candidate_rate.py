"""Candidates a second: the real driver, ledger and GPU pool on one problem, after the pool is warm.

    PYTHONPATH=.:kernels python benchmarks/candidate_rate.py [--candidates 600] [--workers N] [--sampler random]

Prints the rate over the whole run and after warm-up, when every worker has compiled three candidates on average; how
many executables were compiled for them, which is fewer where candidates differ in their run-time knobs alone (all of
those come together with `--sampler exhaustive`); which part of the time the card was held, and with what: in the mean
of those candidates, and in brackets the 10%, 50% and 90% quantiles. "samples" says how many each got, and how long the
kernels ran that these are made of, the fixed kernel's with them; of the step "kernels" the rest is warming up, flushing
and launching.
"""

from __future__ import annotations

import argparse
import bisect
import dataclasses
import itertools
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from autotune import machine
from autotune.driver import run
from autotune.evaluate import make_evaluator
from autotune.problemlist import WeightedProblem
from autotune.progress import make_progress
from autotune.protocol import AUTO
from autotune.runconfig import RaceSettings, RunConfig, SearchSettings
from autotune.seam import Failed, Limits, Measured
from autotune.stages import Stages
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
    parser.add_argument("--own-binaries", action="store_true", help="compile each candidate as it ships")
    parser.add_argument("--seconds", type=float, default=600.0, help="of screening")
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
            search=SearchSettings(
                sampler=arguments.sampler,
                candidates=arguments.candidates,
                seconds=arguments.seconds,
                share_binaries=not arguments.own_binaries,
            ),
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
    report(watch)


def report(watch: Stopwatch) -> None:
    """Prints rate, steps and failures of the screened candidates."""
    screened = [(at_s, result) for at_s, result in watch.returned if isinstance(result, Measured | Failed)]
    for result in {result.reason: result for _, result in screened if isinstance(result, Failed)}.values():
        print(f"for example              {result.reason}: {result.detail[:300]}")
    is_compiled = [bool(result.lowered and result.lowered.compile_s) for _, result in screened]
    so_far = list(itertools.accumulate(is_compiled))
    warm = min(bisect.bisect_left(so_far, 3 * watch.capacity) + 1, len(screened) // 2)
    whole_s = screened[-1][0] - watch.started_s
    warm_s = screened[-1][0] - screened[warm - 1][0]
    measured = [result for _, result in screened if isinstance(result, Measured)]
    failed = Counter(result.reason for _, result in screened if isinstance(result, Failed))
    own = [result for result in measured if result.duplicate_of is None]
    compiled = [result for result in own if result.lowered.compile_s]
    binaries = sum(is_compiled[warm:])
    lower_s = statistics.median(result.lowered.lower_s for result in compiled)
    compile_s = statistics.median(result.lowered.compile_s for result in compiled)
    print(f"capacity                 {watch.capacity}")
    print(
        f"candidates               {len(screened)}: {len(own)} measured, {len(measured) - len(own)} duplicates"
    )
    print(f"failed                   {dict(failed) or 'none'}")
    print(f"whole run                {len(screened) / whole_s:.1f} candidates/s over {whole_s:.1f} s")
    print(f"after warm-up            {(len(screened) - warm) / warm_s:.1f} candidates/s over {warm_s:.1f} s")
    print(
        f"binaries after warm-up   {binaries / warm_s:.1f} compiled/s, "
        f"{(len(screened) - warm) / max(1, binaries):.1f} candidates each"
    )
    for line in held_lines([result for _, result in screened[warm:] if isinstance(result, Measured)], warm_s):
        print(line)
    print(f"median lower, compile    {lower_s:.3f} s, {compile_s:.3f} s")


def held_lines(measured: Sequence[Measured], seconds: float) -> list[str]:
    """Returns what to say of the lock of the card: how long these candidates held it in so many seconds, and why."""
    own = [result for result in measured if result.locked_s]
    if not own:
        return ["card held after warm-up  by nobody"]
    samples = [len(result.timing.samples_us) for result in own]
    kernels_s = [1e-6 * sum(result.timing.samples_us + result.timing.reference_us) for result in own]
    locked_s = [result.locked_s for result in own]
    lines = [
        f"card held after warm-up  {sum(locked_s) / seconds:.0%} of the time, {_ms(locked_s)} a candidate",
        f"samples                  {statistics.mean(samples):.1f} a candidate, {_ms(kernels_s)}",
    ]
    for step in dict.fromkeys(step for result in own for step in result.held_s or {}):
        lines.append(f"held for {step:<15} {_ms([(result.held_s or {}).get(step, 0.0) for result in own])}")
    return lines


def _ms(seconds: Sequence[float]) -> str:
    low, middle, high = (1e3 * quantile for quantile in np.quantile(seconds, (0.1, 0.5, 0.9)))
    return f"{1e3 * statistics.mean(seconds):.2f} ms ({low:.2f}, {middle:.2f}, {high:.2f})"


if __name__ == "__main__":
    main()
