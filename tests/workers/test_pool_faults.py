"""The pool against workers that crash, hang, babble and are killed."""

from __future__ import annotations

import os
import signal

import pytest

from autotune.evaluate.pool import WorkerPoolError
from autotune.seam import Confirmed, ConfirmJob, Failed, Limits, Measured
from tests.helpers.fake_target import TroubledWatch, candidate, race, screen
from tests.helpers.pools import collect, fake_pool, is_alive, wait_until


def _refuses_to_load(name):
    raise ValueError("no such target here")


def _has_no_gpu():
    raise RuntimeError("no GPU is visible")


def test_each_fault_becomes_a_failure_with_its_reason(tmp_path):
    modes = [
        "raise",
        "wrong",
        "unwritten",
        "wrong_shape",
        "abort",
        "exit",
        "kill",
        "lose_context",
        "out_of_memory",
    ]
    with fake_pool(tmp_path, workers=2) as pool:
        for job_id, mode in enumerate(modes):
            pool.submit(screen(job_id, mode, variant=job_id))
        outcomes = collect(pool, len(modes))
    failures = {modes[job_id]: outcome.result for job_id, outcome in outcomes.items()}
    assert {mode: failed.reason for mode, failed in failures.items()} == {
        "raise": "lower",
        "wrong": "wrong",
        "unwritten": "unwritten",
        "wrong_shape": "wrong",
        "abort": "crash",
        "exit": "crash",
        "kill": "crash",
        "lose_context": "launch",
        "out_of_memory": "memory",
    }
    assert failures["raise"].detail == "ValueError: the fake kernel refuses to be built"
    assert failures["wrong"].detail == "relative error 0.5, tolerance 0.001"
    assert failures["unwritten"].detail.startswith("63 of 64 elements")  # all but element (0, 0) are NaN
    assert failures["wrong_shape"].detail == "the result is float32[1,8] instead of float32[8,8]"
    assert "SIGABRT" in failures["abort"].detail
    assert "last output: Check failed: the fake kernel aborts" in failures["abort"].detail
    assert "exited with code 7" in failures["exit"].detail
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in failures["lose_context"].detail
    assert failures["wrong"].lowered.compile_s > 0
    assert all("\n" not in failed.detail for failed in failures.values())


def test_a_pool_goes_on_after_its_only_worker_died(tmp_path):
    with fake_pool(tmp_path) as pool:
        (first,) = pool.worker_pids
        pool.submit(screen(0, "abort"))
        pool.submit(screen(1))
        outcomes = collect(pool, 2)
        assert pool.worker_pids != [first]
    assert isinstance(outcomes[1].result, Measured)


def test_a_worker_that_lost_its_context_is_replaced(tmp_path):
    with fake_pool(tmp_path) as pool:
        (first,) = pool.worker_pids
        pool.submit(screen(0, "lose_context"))
        pool.submit(screen(1, variant=1))
        outcomes = collect(pool, 2)
        assert pool.worker_pids != [first]
        assert not is_alive(first)
    assert outcomes[1].result.timing.median_us == 11.0  # variant 1: 10 + 1


def test_a_hang_is_killed_at_its_limit_and_named(tmp_path):
    limits = Limits(lower_s=3.0, compile_s=30.0, run_s=2.5)
    with fake_pool(tmp_path, workers=2, limits=limits) as pool:
        hung = pool.worker_pids
        pool.submit(screen(0, "hang"))
        pool.submit(screen(1, "hang_while_measured", variant=1))
        outcomes = collect(pool, 2)
        pool.submit(screen(2, variant=2))
        outcomes |= collect(pool, 1)
        assert not any(is_alive(pid) for pid in hung)
    assert outcomes[0].result == Failed(
        reason="timeout", detail="lower passed its limit of 3 s; the worker was killed"
    )
    assert outcomes[1].result.reason == "timeout"
    assert outcomes[1].result.detail.startswith("run passed its limit of 2.5 s")
    assert outcomes[1].result.lowered.digest
    assert outcomes[2].result.timing.median_us == 12.0


def test_a_compilation_of_minutes_ends_at_its_limit(tmp_path):
    # XLA folds a constant for minutes, in C++, where no signal of Python's is heard.
    with fake_pool(tmp_path, limits=Limits(lower_s=20.0, compile_s=4.0, run_s=20.0)) as pool:
        pool.submit(screen(0, "slow_compile"))
        pool.submit(screen(1, variant=1))
        outcomes = collect(pool, 2)
    assert outcomes[0].result.reason == "timeout"
    assert outcomes[0].result.detail == "compile passed its limit of 4 s; the worker was killed"
    assert outcomes[0].result.lowered.digest
    assert outcomes[1].result.timing.median_us == 11.0


def test_a_candidate_that_fills_the_hosts_memory_ends_at_its_limit_and_alone(tmp_path):
    with fake_pool(tmp_path, workers=2, limits=Limits(lower_s=60.0, memory_gib=1.5)) as pool:
        pool.submit(screen(0, "fill_memory"))
        for variant in range(1, 4):
            pool.submit(screen(variant, variant=variant))
        outcomes = collect(pool, 4)
    failed = outcomes[0].result
    assert failed.reason == "memory"
    assert failed.detail.startswith("lower took ")
    assert failed.detail.endswith(" GiB of the host's memory, limit 1.5 GiB; the worker was killed")
    assert [outcomes[job].result.timing.median_us for job in (1, 2, 3)] == [11.0, 12.0, 13.0]


def test_a_write_outside_of_all_memory_is_a_crash_that_names_the_signal(tmp_path):
    with fake_pool(tmp_path) as pool:
        pool.submit(screen(0, "segfault"))
        pool.submit(screen(1, variant=1))
        outcomes = collect(pool, 2)
    assert outcomes[0].result.reason == "crash"
    assert "SIGSEGV" in outcomes[0].result.detail
    assert isinstance(outcomes[1].result, Measured)


def test_a_card_filled_by_another_candidate_costs_a_good_one_a_second_try_only(tmp_path):
    with fake_pool(tmp_path) as pool:
        (first,) = pool.worker_pids
        pool.submit(screen(0, "room_at_second_try"))
        outcome = collect(pool, 1)[0]
        assert pool.worker_pids != [first]  # what it had taken on the card is given back
    assert outcome.result.timing.median_us == 10.0


def test_other_workers_go_on_while_a_killed_one_is_slow_to_end(tmp_path, monkeypatch):
    limits = Limits(lower_s=20.0, compile_s=30.0, run_s=2.0)
    with fake_pool(tmp_path, workers=2, limits=limits) as pool:
        # A process that is stuck in the driver, as one with a hung kernel is for seconds.
        monkeypatch.setattr("autotune.evaluate.process.WorkerProcess.is_gone", lambda self: False)
        pool.submit(screen(0, "hang_while_measured"))
        collect(pool, 1)
        pool.submit(screen(1, variant=1))
        assert isinstance(collect(pool, 1)[1].result, Measured)
        assert len(pool._leaving) == 1


def test_a_confirmation_runs_on_fresh_inputs_and_says_which_run_was_wrong(tmp_path):
    with fake_pool(tmp_path) as pool:
        pool.submit(ConfirmJob(job_id=0, candidate=candidate(variant=1), inputs=3, repeats=5))
        pool.submit(ConfirmJob(job_id=1, candidate=candidate("now_and_then"), inputs=5, repeats=30))
        pool.submit(screen(2, variant=2))
        outcomes = collect(pool, 3)
    # Of 5 repeats on each of 3 inputs the second and the fourth are on integers.
    assert outcomes[0].result == Confirmed(runs=15, error=outcomes[0].result.error, exact_runs=6)
    assert outcomes[0].result.error < 1e-6
    assert outcomes[1].result.reason == "wrong"
    # The first run on each input is followed by one on integers, so that 31 runs go to an input: the 100th
    # is the 7th on the fourth.
    assert outcomes[1].result.detail.endswith("(run 6 on fresh input 4)")
    assert outcomes[2].result.timing.median_us == 12.0


def test_samples_of_a_troubled_card_are_taken_again_and_the_record_says_so(tmp_path):
    with fake_pool(tmp_path, make_watch=TroubledWatch) as pool:
        pool.submit(screen(0))
        pool.submit(screen(1, variant=1))
        outcomes = collect(pool, 2)
        measurements = (tmp_path / "timer.log").read_text().count("screen ")
        pool.submit(race(2, candidate(variant=1)))
        outcomes |= collect(pool, 1)
    screened = [outcomes[job].result.conditions for job in (0, 1)]
    assert [each.vetoes for each in screened] == [("the clock is held down: hw_thermal_slowdown",), ()]
    assert [each.card for each in screened] == ["GPU-fake"] * 2
    assert (screened[0].sm_mhz, screened[0].power_w, screened[0].others) == ((1980.0,), 300.0, None)
    assert measurements == 3  # the first candidate twice, the second once
    assert outcomes[2].result.conditions.card == "GPU-fake"


def test_waiting_for_the_gpu_lock_counts_towards_no_limit(tmp_path):
    import fcntl

    limits = Limits(lower_s=20.0, compile_s=30.0, run_s=1.5)
    with (tmp_path / "gpu.lock").open("w") as holder, fake_pool(tmp_path, limits=limits) as pool:
        fcntl.flock(holder, fcntl.LOCK_EX)
        pool.submit(screen(0))
        slot = pool._slots[0]
        wait_until(
            lambda: not pool.poll(0.05) and slot.process.step == "wait", "the worker asks for the lock"
        )
        assert not pool.poll(2.0)  # longer than the limit of a run
        fcntl.flock(holder, fcntl.LOCK_UN)
        assert isinstance(collect(pool, 1)[0].result, Measured)


def test_garbage_on_stdout_breaks_nothing(tmp_path):
    with fake_pool(tmp_path) as pool:
        pool.submit(screen(0, "babble"))  # two megabytes, far more than a pipe holds
        assert isinstance(collect(pool, 1)[0].result, Measured)
        assert len(pool._slots[0].process._kept) == 16 * 1024


def test_a_worker_killed_from_outside_is_a_crash_that_names_the_signal(tmp_path):
    with fake_pool(tmp_path, limits=Limits()) as pool:
        pool.submit(screen(0, "hang"))
        slot = pool._slots[0]
        wait_until(lambda: not pool.poll(0.05) and slot.has_begun, "the job begins")
        os.kill(slot.process.pid, signal.SIGKILL)
        failed = collect(pool, 1)[0].result
    assert failed == Failed(reason="crash", detail="the worker died of SIGKILL (in step lower)")


def test_a_worker_killed_while_idle_costs_no_job(tmp_path):
    with fake_pool(tmp_path) as pool:
        wait_until(lambda: not pool.poll(0.05) and pool._slots[0].is_idle, "the worker is ready")
        os.kill(pool._slots[0].process.pid, signal.SIGKILL)
        pool.submit(screen(0))
        assert isinstance(collect(pool, 1)[0].result, Measured)


def test_workers_that_never_start_raise_one_clear_error(tmp_path):
    pool = fake_pool(tmp_path, workers=2, make_timer=_has_no_gpu)
    pids = pool.worker_pids
    pool.submit(screen(0))
    with pytest.raises(
        WorkerPoolError, match=r"no worker process starts \(3 attempts\): .*no GPU is visible"
    ):
        collect(pool, 1)
    assert not any(is_alive(pid) for pid in pids)
    pool.close()


def test_a_target_that_does_not_load_fails_the_candidate(tmp_path):
    with fake_pool(tmp_path, target_loader=_refuses_to_load) as pool:
        pool.submit(screen(0))
        failed = collect(pool, 1)[0].result
    assert failed == Failed(reason="error", detail="ValueError: no such target here")


def test_a_killed_holder_gives_the_gpu_lock_back(tmp_path):
    limits = Limits(lower_s=20.0, compile_s=30.0, run_s=60.0)
    with fake_pool(tmp_path, limits=limits) as holder, fake_pool(tmp_path, limits=limits) as other:
        holder.submit(screen(0, "hang_while_measured"))
        slot = holder._slots[0]
        wait_until(lambda: not holder.poll(0.05) and slot.process.step == "run", "the holder has the lock")
        other.submit(screen(0))
        waiting = other._slots[0]
        wait_until(lambda: not other.poll(0.05) and waiting.process.step == "wait", "the other wants it")
        assert not other.poll(0.5)
        os.kill(slot.process.pid, signal.SIGKILL)
        assert isinstance(collect(other, 1)[0].result, Measured)
