"""Rate of the config tier: one configuration at a time, a column of many, and a whole default space.

    PYTHONPATH=.:kernels python benchmarks/check_rate.py

One process, one core. The whole space is enumerated knob by knob, so most of its configurations are never made.
"""

from __future__ import annotations

import random
import time

import numpy as np

from hopper_matmul.config import Config
from hopper_matmul.hardware import device_named
from hopper_matmul.legality import check
from hopper_matmul.problem import Problem
from hopper_matmul.space import legal_mask, space_of

COUNT = 100_000
REPEATS = 3


def best_seconds(function) -> float:
    """Returns the fastest of a few runs: what the code takes when nothing disturbs it."""
    times_s = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        times_s.append(time.perf_counter() - start)
    return min(times_s)


def check_each(problem, configs, device) -> None:
    for config in configs:
        check(problem, config, device)


def main() -> None:
    problem, device = Problem(m=4096, n=8192, k=4096), device_named("nvidia_h200")
    space = space_of(problem, device, {})
    rng = random.Random(0)
    drawn = [{name: rng.choice(values) for name, values in space.knobs.items()} for _ in range(COUNT)]
    legal = space.legal()
    some_legal = [legal.knobs(rng.randrange(legal.size)) for _ in range(COUNT // 5)]
    for name, knobs in (("random", drawn[: COUNT // 5]), ("legal", some_legal)):
        configs = [Config.from_knobs(one) for one in knobs]
        seconds = best_seconds(lambda configs=configs: check_each(problem, configs, device))
        rate = len(configs) / seconds
        print(f"one by one, {name:6}   {rate:12,.0f} configurations/s, {1e6 / rate:.1f} us each")
    arrays = {name: np.array([one[name] for one in drawn]) for name in space.knobs}
    seconds = best_seconds(lambda: legal_mask(problem, arrays, device))
    print(f"as numpy arrays      {COUNT / seconds:12,.0f} configurations/s")
    seconds = best_seconds(lambda: space_of(problem, device, {}).legal())
    print(
        f"whole space          {space.raw_size:12,} raw, {legal.size:,} legal, enumerated in {seconds:.2f} s"
    )


if __name__ == "__main__":
    main()
