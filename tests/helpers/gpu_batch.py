"""A batch of jobs on a real card: submitted at once to one pool, so that process starts and compilations overlap."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autotune import machine
from autotune.evaluate import make_evaluator
from autotune.protocol import AUTO
from autotune.seam import Candidate, Limits, Race
from autotune.target import load_target

TARGET = load_target("hopper_matmul")


class Missing:
    """In place of a result that did not come in time; every use of it says so."""

    def __init__(self, name: str, seconds: float):
        self._said = f"{name} did not end within {seconds:g} s"

    def __getattr__(self, attribute: str) -> Any:
        raise AssertionError(self._said)


def device() -> Any:
    return TARGET.device_named(machine.hopper_gpus()[0].kind)


def candidate(m: int, n: int, k: int, **knobs: Any) -> Candidate:
    """Returns the untuned choice for a bfloat16 product, with some knobs changed."""
    problem = TARGET.problem_from_fields({"m": m, "n": n, "k": k})
    config = TARGET.config_from_knobs(TARGET.heuristic_config(problem, device()) | knobs)
    return Candidate(target=TARGET.name, problem=problem, config=config, device=device())


def spread(one: Candidate, count: int) -> list[Candidate]:
    """Returns `count` legal configurations of a candidate's problem, far apart in its space."""
    legal = TARGET.space(one.problem, one.device, {}).legal()
    rows = range(0, legal.size, max(1, legal.size // count))
    return [replace(one, config=TARGET.config_from_knobs(legal.knobs(row))) for row in rows][:count]


def pool(workers: int, *, target_name: str = TARGET.name, limits: Limits = Limits(), **options: Any) -> Any:  # noqa: B008 - frozen
    return make_evaluator(
        "gpu",
        target_name=target_name,
        protocol=options.pop("protocol", AUTO),
        limits=limits,
        workers=workers,
        gpu=machine.hopper_gpus()[0],
        **options,
    )


def results_of(evaluator: Any, jobs: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Returns the results by the jobs' names; what does not end in time is `Missing`."""
    numbered = dict(enumerate(jobs))
    for number, name in numbered.items():
        evaluator.submit(replace(jobs[name], job_id=number))
    ends_s = time.monotonic() + seconds
    results: dict[str, Any] = {}
    while len(results) < len(jobs) and time.monotonic() < ends_s:
        for outcome in evaluator.poll(0.25):
            results[numbered[outcome.job_id]] = outcome.result
            print(f"{numbered[outcome.job_id]}: {type(outcome.result).__name__}", flush=True)
    return {name: results.get(name, Missing(name, seconds)) for name in jobs}


def medians(race: Any) -> dict[int | None, float]:
    """Returns the median of each lane in us, of a race in which no lane failed; XLA's is under None."""
    assert isinstance(race, Race), race
    for lane in race.entries:
        assert hasattr(lane.result, "timing"), f"a lane failed: {lane.result}"
    return {lane.finalist: lane.result.timing.median_us for lane in race.entries}
