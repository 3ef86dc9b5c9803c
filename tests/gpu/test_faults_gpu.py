"""Planted kernels on a real card: each costs its own candidate and nobody else's, and the record says why.

The early check refuses such kernels, so that they go straight to the evaluator.
"""

from __future__ import annotations

import time

import pytest

from autotune import machine
from autotune.evaluate import make_evaluator
from autotune.health import gpu_health, unfit_reason
from autotune.seam import (
    Candidate,
    Confirmed,
    ConfirmJob,
    Failed,
    Limits,
    Measured,
    MeasureProtocol,
    ScreenJob,
)
from autotune.target import load_target
from tests.helpers.planted_target import NAME, load_planted, planted
from tests.helpers.pools import collect, is_alive

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(280)]

RUN_LIMIT_S = 4.0
SIZES = {"m": 1536, "n": 3072, "k": 1024}  # of the plan that hangs, as in test_kernel.py
HANGS = {
    "tile_m": 128,
    "tile_n": 128,
    "stages": 3,
    "grid_minor": "n",
    "raster_width": 3,
    "scopes": "epilogue_in_compute",
}


def _evaluator(target_name=NAME, workers=2, **options):
    return make_evaluator(
        "gpu",
        target_name=target_name,
        protocol=MeasureProtocol(rounds=10),
        limits=Limits(run_s=RUN_LIMIT_S),
        workers=workers,
        gpu=machine.hopper_gpus()[0],
        **options,
    )


def _screened(modes, workers=2):
    """Returns results by mode; a good candidate of its own stands before and after each faulty one."""
    with _evaluator(workers=workers, target_loader=load_planted) as evaluator:
        jobs = [planted(index, mode, variant=index) for index, mode in enumerate(modes)]
        for job in jobs:
            evaluator.submit(job)
        results = {job_id: outcome.result for job_id, outcome in collect(evaluator, len(jobs)).items()}
    return {(mode, index): results[index] for index, mode in enumerate(modes)}


def _good(results):
    good = [result for (mode, _), result in results.items() if mode == "good"]
    assert good and all(isinstance(result, Measured) for result in good), good
    return good


def test_a_good_result_is_proven_so():
    (result,) = _good(_screened(["good"], workers=1))
    # What each says is in seam.Measured. `guarded` is False on an H200 with jax 0.11.2: see docs/faults.md.
    assert (result.poisoned, result.exact) == (True, True), result
    conditions = result.conditions
    assert conditions.card == machine.hopper_gpus()[0].uuid
    assert conditions.clock == "spin", "the spin kernel did not compile or run, so NVML's clock stood in"
    assert all(200 < mhz < 2100 for mhz in conditions.sm_mhz), conditions  # 1,980 at most on an H200
    assert conditions.others in (None, ()), f"on the card besides us: {conditions.others}"
    assert not conditions.unsettled, conditions


@pytest.mark.parametrize(
    ("mode", "reason", "detail"),
    [
        ("wrong", "wrong", "relative error 0.5"),
        ("wrong_element", "wrong", "1 of 1048576 elements of an integer-valued product differ"),
        ("far_write", "launch", ""),
        ("far_read", "launch", ""),
        ("trap", "launch", ""),
    ],
)
def test_a_faulty_kernel_costs_itself_alone(mode, reason, detail):
    results = _screened(["good", mode, "good", "good"])
    failed = results[mode, 1]
    assert isinstance(failed, Failed), f"{mode} was believed: {failed}"
    # A runtime that aborts the process instead of returning an error is as good: the worker dies alone.
    allowed = {reason, "crash"} if reason == "launch" else {reason}
    assert failed.reason in allowed, failed
    assert detail in failed.detail, failed
    _good(results)


def test_a_copy_without_a_fault_passes():
    results = _screened(["copy"], workers=1)
    result = results["copy", 0]
    assert isinstance(result, Measured), (
        f"the planted kernels' own frame is wrong, so their tests prove nothing: {result}"
    )


def test_a_candidate_that_fills_the_card_costs_no_other_its_result():
    results = _screened(["good", "fill_card", "good", "good", "good"])
    failed = results["fill_card", 1]
    assert (type(failed), failed.reason) == (Failed, "memory"), failed
    _good(results)


def test_a_winner_is_confirmed_on_fresh_inputs():
    with _evaluator(workers=1, target_loader=load_planted) as evaluator:
        evaluator.submit(ConfirmJob(job_id=0, candidate=planted(0, "good").candidate))
        evaluator.submit(
            ConfirmJob(job_id=1, candidate=planted(1, "wrong_element").candidate, inputs=2, repeats=4)
        )
        began_s = time.monotonic()
        outcomes = {job: outcome.result for job, outcome in collect(evaluator, 2).items()}
    assert isinstance(outcomes[0], Confirmed), outcomes[0]
    assert (outcomes[0].runs, outcomes[0].exact_runs) == (
        500,
        240,
    )  # of 25 runs on an input 12 are on integers
    assert outcomes[1].reason == "wrong"
    assert time.monotonic() - began_s < 60


def _plan_candidates():
    """Returns the candidate that hangs, and legal ones of the same problem."""
    target = load_target("hopper_matmul")
    device = target.device_named(machine.hopper_gpus()[0].kind)
    problem = target.problem_from_fields(SIZES)
    legal = target.space(problem, device, {}).legal()
    knobs = [HANGS, *(legal.knobs(row) for row in range(0, legal.size, max(1, legal.size // 12)))]
    return [
        Candidate(
            target="hopper_matmul", problem=problem, config=target.config_from_knobs(each), device=device
        )
        for each in knobs
    ]


def test_a_kernel_that_hangs_costs_its_limit_and_at_most_5_s_and_others_go_on_compiling():
    hanging, *others = _plan_candidates()
    evaluator = _evaluator("hopper_matmul", workers=4)
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
    assert cost_s < RUN_LIMIT_S + 5, f"the next measurement ended {cost_s:.1f} s after the hang began"
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
    deadline_s = time.monotonic() + 200
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


def test_the_health_of_the_card_is_read():
    gpu = machine.hopper_gpus()[0]
    health = gpu_health(gpu.index)
    assert (health.uuid, health.kind) == (gpu.uuid, gpu.kind)
    assert health.sm_max_mhz is None or 1000 < health.sm_max_mhz < 2500, health
    assert health.power_w is None or 20 < health.power_w < 800, health
    print(f"\n{health}\nunfit: {unfit_reason(health)}")
