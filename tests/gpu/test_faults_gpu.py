"""Planted kernels on a real card: each costs its own candidate and nobody else's, and the record says why.

The early check refuses such kernels, so that they go straight to the evaluator.
"""

from __future__ import annotations

import pytest

from autotune import machine
from autotune.health import gpu_health, unfit_reason
from autotune.seam import Confirmed, ConfirmJob, Failed, Limits, Measured, MeasureProtocol
from tests.helpers.gpu_batch import pool, results_of
from tests.helpers.planted_target import NAME, load_planted, planted

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(85)]

FAULTY = ("wrong", "wrong_element", "stray", "far_write", "far_read", "trap")


@pytest.fixture(scope="module")
def results():
    # A good candidate of its own stands between any two faulty ones.
    modes = [mode for faulty in FAULTY for mode in (faulty, "good")]
    jobs = {f"{mode} {index}": planted(index, mode, variant=index) for index, mode in enumerate(modes)}
    jobs["copy"] = planted(0, "copy")
    jobs["confirmed"] = ConfirmJob(job_id=0, candidate=planted(0, "good", variant=90).candidate)
    spoilt = planted(0, "wrong_element", variant=91).candidate
    jobs["not confirmed"] = ConfirmJob(job_id=0, candidate=spoilt, inputs=2, repeats=4)
    with pool(
        4,
        target_name=NAME,
        limits=Limits(run_s=8.0),
        protocol=MeasureProtocol(rounds=10),
        target_loader=load_planted,
    ) as evaluator:
        return results_of(evaluator, jobs, 70.0)


def of_mode(results, mode):
    return [result for name, result in results.items() if name.split()[0] == mode]


def test_a_good_result_is_proven_so_and_no_fault_beside_it_costs_it_anything(results):
    good = of_mode(results, "good")
    assert len(good) == len(FAULTY)
    for result in good:
        assert isinstance(result, Measured), result
        # What each says is in seam.Measured.
        assert (result.poisoned, result.guarded, result.exact) == (True, True, True), result
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
        ("stray", "stray", "4 bytes beside the result were written"),
        ("far_write", "launch", ""),
        ("far_read", "launch", ""),
        ("trap", "launch", ""),
    ],
)
def test_a_faulty_kernel_is_refused_for_what_it_does(results, mode, reason, detail):
    (failed,) = of_mode(results, mode)
    assert isinstance(failed, Failed), f"{mode} was believed: {failed}"
    # A runtime that aborts the process instead of returning an error is as good: the worker dies alone.
    allowed = {reason, "crash"} if reason == "launch" else {reason}
    assert failed.reason in allowed, failed
    assert detail in failed.detail, failed


def test_a_copy_without_a_fault_passes(results):
    result = results["copy"]
    assert isinstance(result, Measured), f"the planted kernels' own frame is wrong: {result}"
    assert result.poisoned and result.guarded


def test_a_winner_is_confirmed_on_fresh_inputs(results):
    confirmed, failed = results["confirmed"], results["not confirmed"]
    assert isinstance(confirmed, Confirmed), confirmed
    # Of 25 runs on an input 12 are on integers.
    assert (confirmed.runs, confirmed.exact_runs) == (500, 240)
    assert (type(failed), failed.reason) == (Failed, "wrong"), failed


def test_the_health_of_the_card_is_read():
    gpu = machine.hopper_gpus()[0]
    health = gpu_health(gpu.index)
    assert (health.uuid, health.kind) == (gpu.uuid, gpu.kind)
    assert health.sm_max_mhz is None or 1000 < health.sm_max_mhz < 2500, health
    assert health.power_w is None or 20 < health.power_w < 800, health
    print(f"\n{health}\nunfit: {unfit_reason(health)}")
