"""A winner's second look inside one worker: fresh inputs, and many runs on each of them."""

from __future__ import annotations

from typing import Any

from autotune.evaluate.fault import CandidateError
from autotune.evaluate.steps import compile_module, lower_candidate
from autotune.seam import Confirmed, ConfirmJob

# Seeds of confirmations begin here, so that no input is one that the candidate was screened or raced on.
FIRST_SEED = 1_000_003


def run_confirmation(worker: Any, job: ConfirmJob) -> Confirmed:
    """Runs the candidate `inputs` times `repeats` times and checks every result.

    Raises:
        CandidateError: Of the first run that is not right; its text says which run that was.
    """
    candidate = job.candidate
    worker.step("lower")
    target = worker.target(candidate.target)
    bench = worker.bench(target, candidate.problem)
    module = lower_candidate(target, candidate, worker.setup.platform)
    worker.step("compile")
    call = bench.in_place(compile_module(module)[0])
    worker.prepare(bench)
    largest, runs = 0.0, 0
    for index in range(job.inputs):
        with worker.gpu_lock():  # given back between inputs: others measure meanwhile
            worker.step("run")
            bench.load(FIRST_SEED * (worker.setup.seed + 1) + index)
            for repeat in range(job.repeats):
                try:
                    error = _checked(bench, call, module.result_type, repeat)
                except CandidateError as fault:
                    raise _located(fault, index, repeat) from None
                largest, runs = max(largest, error), runs + 1
    exact = job.inputs * sum(_is_exact(bench, repeat) for repeat in range(job.repeats))
    return Confirmed(runs=runs, error=largest, exact_runs=exact)


def _checked(bench: Any, call: Any, result_type: Any, repeat: int) -> float:
    """Returns the relative error of one run; the first on each input also looks for poison and stray writes."""
    if repeat == 0:
        return bench.verify(call, result_type).error
    if _is_exact(bench, repeat):
        bench.verify_bits(call)
        return 0.0
    return bench.verify_error(call)


def _is_exact(bench: Any, repeat: int) -> bool:
    return bench.has_exact and repeat % 2 == 1


def _located(fault: CandidateError, index: int, repeat: int) -> CandidateError:
    detail = f"{fault.detail} (run {repeat + 1} on fresh input {index + 1})"
    return CandidateError(fault.reason, detail, loses_context=fault.loses_context)
