"""The race inside one worker: finalists and rivals are verified, then measured in turn, round by round."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from autotune.evaluate.chain import chained, rotated, touching
from autotune.evaluate.fault import CandidateError, charged_to
from autotune.evaluate.messages import RIVAL, Assign, Done, LaneLost
from autotune.evaluate.steps import Module, compile_module, lower_candidate, lower_function
from autotune.evaluate.timing import Sampled
from autotune.seam import (
    SLOW_RIVALS,
    Candidate,
    Failed,
    Measured,
    MeasureProtocol,
    Race,
    RaceEntry,
    RaceJob,
    Timing,
)

PLAIN = "plain"
DECIDED = {
    "xla_gpu_require_complete_aot_autotune_results": True
}  # XLA compiles with what it has picked, or not at all


@dataclasses.dataclass(slots=True, kw_only=True)
class _Runner:
    """A lane on its way through the steps; `failed` ends it."""

    index: int  # of the finalist; the rivals count down from RIVAL
    candidate: Candidate | None
    formulation: str | None = None
    function: Callable[..., Any] | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    failed: Failed | None
    module: Module | None = None
    executable: Any = None
    chain: Any = None
    verdict: Any = None

    @property
    def is_rival(self) -> bool:
        return self.index <= RIVAL

    @property
    def lowered(self):
        return None if self.module is None else self.module.lowered


def run_race(worker: Any, assign: Assign) -> Done | LaneLost:
    """Runs a race and returns its end, or the lane that cost the CUDA context.

    Lanes in `assign.lost` already ended a worker; they keep that failure and are not run. The process leaves
    afterwards, so that the next session of the race finds XLA's choices undecided and memory laid out anew.

    Raises:
        CandidateError: Measuring itself failed, with no lane to blame.
    """
    job = assign.job
    if not isinstance(job, RaceJob):  # another package's, which runs its races through here
        return job.run(worker, assign)
    target = worker.target(job.target)
    protocol = job.protocol or worker.setup.protocol
    runners = _runners(target, job, assign.lost)
    if all(runner.failed for runner in runners):
        return Done(result=_race(runners, [{}], protocol, job.session))
    worker.step("lower")
    bench = worker.bench(target, job.problem, protocol)
    worker.prepare(bench)
    for runner in _running(runners):
        _attempt(runner, lambda runner=runner: _build(worker, target, bench, runner, protocol))
    _compile_rivals(worker, bench, _running(runners), protocol)
    ceilings = None
    with worker.gpu_lock():
        worker.step("run")
        bench.load()
        for runner in _running(runners):
            lost = _attempt(runner, lambda runner=runner: _verify(worker, bench, runner, protocol))
            if lost:
                return LaneLost(lane=runner.index, failed=runner.failed)
        worker.guard.begin()
        passes = _measure(worker, target, bench, _running(runners), job, protocol)
        if job.ceilings:
            worker.step("run")
            with charged_to("launch"):
                ceilings = worker.timer.ceilings(
                    job.problem.to_fields().get("lhs_dtype", "bfloat16"),
                    sustained=protocol.regime == "sustained",
                )
        conditions = worker.conditions()
    race = _race(runners, passes, protocol, job.session)
    return Done(result=dataclasses.replace(race, ceilings=ceilings, conditions=conditions), leaving=True)


def _runners(target: Any, job: RaceJob, lost: Mapping[int, Failed]) -> list[_Runner]:
    runners = [
        _Runner(index=index, candidate=candidate, failed=lost.get(index))
        for index, candidate in enumerate(job.candidates)
    ]
    try:
        rivals = rivals_of(target, job.problem)
    except Exception as error:  # noqa: BLE001 - a rival that cannot be written down does not end the race
        failed = Failed(reason="error", detail=f"the rivals: {error}")
        return [*runners, _Runner(index=RIVAL, candidate=None, formulation=PLAIN, failed=failed)]
    asked = job.formulations
    if asked is None:
        asked = tuple(name for name in rivals if name not in SLOW_RIVALS)
    for place, (name, (function, options)) in enumerate(rivals.items()):
        if name in asked:
            index = RIVAL - place
            runners.append(
                _Runner(
                    index=index,
                    candidate=None,
                    formulation=name,
                    function=function,
                    options=options,
                    failed=lost.get(index),
                )
            )
    return runners


def rivals_of(target: Any, problem: Any) -> Mapping[str, tuple[Callable[..., Any], Mapping[str, Any]]]:
    """Returns the target's rivals, the plain one first; it is the only one where the target names none."""
    if hasattr(target, "rivals"):
        return target.rivals(problem)
    return {PLAIN: (target.rival(problem), {})}


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


def _build(worker: Any, target: Any, bench: Any, runner: _Runner, protocol: MeasureProtocol) -> None:
    """Lowers a lane, and compiles it unless it is a rival."""
    worker.step("lower", runner.index)
    if runner.is_rival:
        with charged_to("lower"):
            runner.module = lower_function(runner.function, bench.types, worker.setup.platform)
        return
    candidate = runner.candidate
    runner.module = lower_candidate(target, candidate, worker.setup.platform)
    with charged_to("lower"):
        runner.function = target.build(candidate.problem, candidate.config, candidate.device)
    _compile(worker, bench, runner)
    _chain(worker, bench, runner, protocol)


def _compile_rivals(worker: Any, bench: Any, runners: list[_Runner], protocol: MeasureProtocol) -> None:
    """Compiles the rivals under the lock, and their chains outside of it where that needs no decision of XLA's.

    XLA picks a rival's algorithm by timing it on the GPU, which needs the card to itself. In the chain it finds what
    it picked; where it does not, compiling fails here and is done under the lock.
    """
    rivals = [runner for runner in runners if runner.is_rival]
    if not rivals:
        return
    with worker.gpu_lock():
        worker.step("run")
        for runner in rivals:
            _attempt(runner, lambda runner=runner: _compile(worker, bench, runner))
    for runner in _running(rivals):
        worker.step("lower", runner.index)
        with contextlib.suppress(CandidateError):
            _chain(worker, bench, runner, protocol, DECIDED)


def _compile(worker: Any, bench: Any, runner: _Runner) -> None:
    worker.step("compile", runner.index)
    executable, compile_s = compile_module(runner.module, runner.options)
    runner.executable = bench.in_place(executable) if runner.module.writes_in_place else executable
    lowered = dataclasses.replace(runner.module.lowered, compile_s=compile_s)
    runner.module = dataclasses.replace(runner.module, lowered=lowered)


def _chain(
    worker: Any,
    bench: Any,
    runner: _Runner,
    protocol: MeasureProtocol,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Compiles a lane's chain where its protocol has one and it is not there yet."""
    if protocol.timer != "chain" or runner.chain is not None:
        return
    worker.step("compile", runner.index)
    with charged_to("compile"):
        runner.chain = chained(
            runner.function, bench.types, worker.setup.platform, {**runner.options, **options}
        )


def _verify(worker: Any, bench: Any, runner: _Runner, protocol: MeasureProtocol) -> None:
    _chain(worker, bench, runner, protocol)
    worker.step("run", runner.index)
    runner.verdict = bench.verify(runner.executable, runner.module.result_type)


def _measure(
    worker: Any, target: Any, bench: Any, runners: list[_Runner], job: RaceJob, protocol: MeasureProtocol
) -> list[dict[int, Sampled]]:
    """Returns the samples of each lane, pass by pass."""
    if not runners:
        return [{}]
    with charged_to("launch"):
        # All lanes rotate over the same copies, and touch the same activations.
        copies = rotated(target, bench, protocol) if protocol.timer == "chain" else None
        # Between the calls of a chain nothing is touched: its one copy of the activations stays warm by itself.
        is_touched = protocol.l2 == "activations_warm" and copies is None
        touch = touching(target, bench) if is_touched else None
        lanes = [
            dataclasses.replace(
                worker.lane(_name(runner), runner.executable, bench, runner.lowered.digest),
                touch=touch,
                chain=runner.chain and copies.bound(runner.chain),
                chain_calls=runner.chain.calls if runner.chain else 1,
                is_kept=runner.formulation == PLAIN,
            )
            for runner in runners
        ]
        passes = [
            worker.timer.race(lanes, protocol, job.rounds, lambda: worker.step("run"), job.seconds)
            for _ in range(job.passes)
        ]
    indices = [runner.index for runner in runners]
    return [dict(zip(indices, sampled, strict=True)) for sampled in passes]


def _name(runner: _Runner) -> str:
    if runner.is_rival:
        return f"rival {runner.formulation}"
    return f"finalist {runner.index}: {runner.candidate.config}"


def _race(
    runners: list[_Runner], passes: Sequence[Mapping[int, Sampled]], protocol: MeasureProtocol, session: int
) -> Race:
    entries = [
        RaceEntry(
            finalist=None if runner.is_rival else runner.index,
            result=runner.failed or _measured(runner, samples[runner.index], protocol),
            formulation=runner.formulation,
            session=session + number,
        )
        for number, samples in enumerate(passes)
        for runner in runners
    ]
    return Race(entries=tuple(entries))


def _measured(runner: _Runner, sampled: Sampled, protocol: MeasureProtocol) -> Measured:
    return Measured(
        lowered=runner.lowered,
        timing=Timing(samples_us=sampled.samples_us, l2=protocol.l2, joules=sampled.joules),
        error=runner.verdict.error,
        poisoned=runner.verdict.poisoned,
        guarded=runner.verdict.guarded,
        exact=runner.verdict.exact,
    )
