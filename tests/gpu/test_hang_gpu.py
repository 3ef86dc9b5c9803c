"""Candidates that take the whole card, or never give it back: what they cost the others."""

from __future__ import annotations

import time

import pytest

from autotune.seam import Candidate, Failed, Limits, Measured, MeasureProtocol, ScreenJob
from tests.helpers.gpu_batch import TARGET, device, pool, results_of
from tests.helpers.planted_target import NAME, load_planted, planted
from tests.helpers.pools import is_alive

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(60)]

RUN_LIMIT_S = 4.0
AFTER_LIMIT_S = 5.0  # in which the killed process gives the card back and the next candidate is measured
SIZES = {"m": 1536, "n": 3072, "k": 1024}  # of the plan that hangs, as in test_kernel.py
HANGS = {
    "tile_m": 128,
    "tile_n": 128,
    "stages": 3,
    "grid_minor": "n",
    "raster_width": 3,
    "scopes": "epilogue_in_compute",
}


def _evaluator(workers, **options):
    return pool(workers, protocol=MeasureProtocol(rounds=10), limits=Limits(run_s=RUN_LIMIT_S), **options)


def test_a_candidate_that_fills_the_card_costs_no_other_its_result():
    modes = ("good", "fill_card", "good", "good")
    jobs = {f"{mode} {index}": planted(index, mode, variant=index) for index, mode in enumerate(modes)}
    with _evaluator(3, target_name=NAME, target_loader=load_planted) as evaluator:
        results = results_of(evaluator, jobs, 50.0)
    failed = results.pop("fill_card 1")
    assert (type(failed), failed.reason) == (Failed, "memory"), failed
    assert all(isinstance(result, Measured) for result in results.values()), results


def _plan_candidates():
    """Returns the candidate that hangs, and legal ones of the same problem."""
    problem = TARGET.problem_from_fields(SIZES)
    legal = TARGET.space(problem, device(), {}).legal()
    knobs = [HANGS, *(legal.knobs(row) for row in range(0, legal.size, max(1, legal.size // 10)))]
    return [
        Candidate(target=TARGET.name, problem=problem, config=TARGET.config_from_knobs(each), device=device())
        for each in knobs
    ]


def test_a_kernel_that_hangs_costs_its_limit_and_at_most_5_s_and_others_go_on_compiling():
    hanging, *others = _plan_candidates()
    evaluator = _evaluator(4)
    try:
        began_s, outcomes, compiled_meanwhile = _run_beside_a_hang(evaluator, hanging, others)
        pids = evaluator.worker_pids
    finally:
        evaluator.close()
    failed, failed_s = outcomes[0]
    assert isinstance(failed, Failed) and failed.reason == "timeout", failed
    assert failed.detail == f"run passed its limit of {RUN_LIMIT_S:g} s; the worker was killed"
    assert compiled_meanwhile, "no other worker finished compiling while the kernel hung"
    measured_s = [
        end_s for result, end_s in outcomes.values() if isinstance(result, Measured) and end_s > failed_s
    ]
    assert measured_s, "nothing was measured after the hang: the card or its lock did not come back"
    cost_s = min(measured_s) - began_s
    print(f"the hang cost {cost_s:.1f} s with a limit of {RUN_LIMIT_S:g} s")
    assert cost_s < RUN_LIMIT_S + AFTER_LIMIT_S, (
        f"the next measurement ended {cost_s:.1f} s after the hang began"
    )
    assert not [
        result
        for result, _ in list(outcomes.values())[1:]
        if isinstance(result, Failed) and result.reason in ("timeout", "crash")
    ]
    assert not any(is_alive(pid) for pid in pids)


def _run_beside_a_hang(evaluator, hanging, others):
    """Returns when the hang had the card, each result with its time, and whether another compiled meanwhile."""
    began_s, outcomes, compiled_meanwhile = None, {}, False
    evaluator.submit(ScreenJob(job_id=0, candidate=hanging))
    deadline_s = time.monotonic() + 50
    submitted = 0
    while len(outcomes) < 1 + len(others):
        assert time.monotonic() < deadline_s, f"only {sorted(outcomes)} ended"
        for outcome in evaluator.poll(0.05):
            outcomes[outcome.job_id] = (outcome.result, time.monotonic())
        slots = [slot for slot in evaluator._slots if slot.pending is not None]
        is_running = any(slot.pending.job.job_id == 0 and slot.process.step == "run" for slot in slots)
        if is_running and began_s is None:
            began_s = time.monotonic()
        if began_s is not None and submitted < len(others):  # those compile beside the hang
            for index, candidate in enumerate(others):
                evaluator.submit(ScreenJob(job_id=index + 1, candidate=candidate))
            submitted = len(others)
        compiled_meanwhile |= is_running and any(
            slot.pending.job.job_id and slot.process.step == "wait" for slot in slots
        )
    return began_s, outcomes, compiled_meanwhile
