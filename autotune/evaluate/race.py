"""The race inside one worker: finalists and rival are verified, then measured in turn, round by round."""

from __future__ import annotations

import dataclasses
from typing import Any

from autotune.evaluate.fault import CandidateError, charged_to
from autotune.evaluate.messages import RIVAL, Assign, Done, LaneLost
from autotune.evaluate.steps import Module, compile_module, lower_candidate, lower_function
from autotune.seam import Candidate, Failed, Measured, Race, RaceEntry, Timing

RIVAL_FORMULATION = "plain"


@dataclasses.dataclass(slots=True, kw_only=True)
class _Runner:
    """A lane on its way through the steps; `failed` ends it."""

    index: int  # of the finalist, or RIVAL
    candidate: Candidate | None
    failed: Failed | None
    module: Module | None = None
    executable: Any = None
    verdict: Any = None

    @property
    def lowered(self):
        return None if self.module is None else self.module.lowered


def run_race(worker: Any, assign: Assign) -> Done | LaneLost:
    """Runs a race and returns its end, or the lane that cost the CUDA context.

    Lanes in `assign.lost` already ended a worker; they keep that failure and are not run.

    Raises:
        CandidateError: Measuring itself failed, with no lane to blame.
    """
    job = assign.job
    target = worker.target(job.target)
    runners = [
        _Runner(index=index, candidate=candidate, failed=assign.lost.get(index))
        for index, candidate in [*enumerate(job.candidates), (RIVAL, None)]
    ]
    if all(runner.failed for runner in runners):
        return Done(result=_race(runners, {}, worker.setup.protocol.l2))
    worker.step("lower")
    bench = worker.bench(target, job.problem)
    worker.prepare(bench)
    for runner in _running(runners):
        _attempt(runner, lambda runner=runner: _build(worker, target, bench, runner))
    with worker.gpu_lock():
        worker.step("run")
        bench.load()
        for runner in _running(runners):
            lost = _attempt(runner, lambda runner=runner: _verify(worker, bench, runner))
            if lost:
                return LaneLost(lane=runner.index, failed=runner.failed)
        samples = _measure(worker, bench, _running(runners), job.rounds)
    return Done(result=_race(runners, samples, worker.setup.protocol.l2))


def _running(runners: list[_Runner]) -> list[_Runner]:
    return [runner for runner in runners if runner.failed is None]


def _attempt(runner: _Runner, step: Any) -> bool:
    """Returns whether the step failed and took the CUDA context with it."""
    try:
        step()
    except CandidateError as fault:
        runner.failed = fault.failed(runner.lowered)
        return fault.loses_context
    return False


def _build(worker: Any, target: Any, bench: Any, runner: _Runner) -> None:
    """Lowers a lane, and compiles it unless it is the rival."""
    worker.step("lower", runner.index)
    if runner.index == RIVAL:
        with charged_to("lower"):
            runner.module = lower_function(target.rival(bench.problem), bench.types, worker.setup.platform)
        return
    runner.module = lower_candidate(target, runner.candidate, worker.setup.platform)
    _compile(worker, runner)


def _compile(worker: Any, runner: _Runner) -> None:
    worker.step("compile", runner.index)
    runner.executable, compile_s = compile_module(runner.module)
    lowered = dataclasses.replace(runner.module.lowered, compile_s=compile_s)
    runner.module = dataclasses.replace(runner.module, lowered=lowered)


def _verify(worker: Any, bench: Any, runner: _Runner) -> None:
    if runner.executable is None:
        # XLA picks the rival's algorithm by timing it on the GPU, which needs the card to itself: so the
        # rival is compiled under the lock.
        _compile(worker, runner)
    worker.step("run", runner.index)
    runner.verdict = bench.verify(runner.executable, runner.module.result_type)


def _measure(worker: Any, bench: Any, runners: list[_Runner], rounds: int) -> dict[int, tuple[float, ...]]:
    """Returns the samples of each lane in us."""
    if not runners:
        return {}
    lanes = [
        worker.lane(_name(runner), runner.executable, bench, runner.lowered.digest) for runner in runners
    ]
    with charged_to("launch"):
        samples = worker.timer.race(lanes, worker.setup.protocol, rounds, lambda: worker.step("run"))
    return {runner.index: times_us for runner, times_us in zip(runners, samples, strict=True)}


def _name(runner: _Runner) -> str:
    return "rival" if runner.index == RIVAL else f"finalist {runner.index}: {runner.candidate.config}"


def _race(runners: list[_Runner], samples: dict[int, tuple[float, ...]], l2: Any) -> Race:
    entries = []
    for runner in runners:
        result = runner.failed or Measured(
            lowered=runner.lowered,
            timing=Timing(samples_us=samples[runner.index], l2=l2),
            error=runner.verdict.error,
            poisoned=runner.verdict.poisoned,
        )
        is_rival = runner.index == RIVAL
        entries.append(
            RaceEntry(
                finalist=None if is_rival else runner.index,
                result=result,
                formulation=RIVAL_FORMULATION if is_rival else None,
            )
        )
    return Race(entries=tuple(entries))
