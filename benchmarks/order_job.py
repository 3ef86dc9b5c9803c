"""One candidate as it ships beside the same with run-time knobs, timed in turn in one worker."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from autotune.seam import Candidate, MeasureProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderTimes:
    """Samples in us; those with the same index were taken next to each other. Compiling took seconds."""

    static_us: tuple[float, ...]
    runtime_us: tuple[float, ...]
    static_s: float
    runtime_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderJob:
    """A job of a worker that times both ways of one candidate, after both are found right in every bit."""

    job_id: int
    candidate: Candidate
    protocol: MeasureProtocol
    rounds: int

    def run(self, worker: Any, assign: Any) -> Any:
        """Returns the end of the job; called in the worker."""
        from autotune.evaluate.binaries import given, runtime_knobs
        from autotune.evaluate.fault import charged_to
        from autotune.evaluate.messages import Done
        from autotune.evaluate.steps import compile_module, lower_candidate

        candidate = self.candidate
        worker.step("lower")
        target = worker.target(candidate.target)
        bench = worker.bench(target, candidate.problem, self.protocol)
        knobs = runtime_knobs(target, candidate)
        modules = [
            lower_candidate(target, candidate, worker.setup.platform, shared=shared)
            for shared in (None, knobs)
        ]
        worker.step("compile")
        (static, static_s), (runtime, runtime_s) = (compile_module(module) for module in modules)
        worker.prepare(bench)
        with worker.gpu_lock():
            worker.step("run")
            bench.load()
            calls = [bench.in_place(static), bench.in_place(given(runtime, knobs))]
            for call, module in zip(calls, modules, strict=True):
                bench.verify(call, module.result_type)
            lanes = [
                dataclasses.replace(worker.lane(name, call, bench, name), is_kept=True)
                for name, call in zip(("static", "runtime"), calls, strict=True)
            ]
            worker.guard.begin()
            with charged_to("launch"):
                both = worker.timer.cupti.race(
                    lanes, self.protocol, self.rounds, lambda: worker.step("run"), 10.0
                )
        return Done(
            result=OrderTimes(
                static_us=both[0].samples_us,
                runtime_us=both[1].samples_us,
                static_s=modules[0].lowered.lower_s + static_s,
                runtime_s=modules[1].lowered.lower_s + runtime_s,
            )
        )
