"""The evaluator `gpu` on a real card: times, verification, races, and what is left behind."""

from __future__ import annotations

import dataclasses
import fcntl
import statistics

import pytest

from autotune import machine
from autotune.evaluate import make_evaluator
from autotune.evaluate.gpulock import lock_path
from autotune.seam import Candidate, Failed, Limits, Measured, MeasureProtocol, RaceJob, ScreenJob
from autotune.target import load_target
from tests.helpers.pools import collect, is_alive

pytestmark = pytest.mark.gpu

TARGET = "hopper_matmul"
FLUSH_US = 256 * 2**20 / 4.9e12 * 1e6  # 54.8 us: reading the flush buffer faster than any Hopper's memory


def _evaluator(l2, workers=2, rounds=20):
    gpu = machine.hopper_gpus()[0]
    return make_evaluator(
        "gpu",
        target_name=TARGET,
        protocol=MeasureProtocol(l2=l2, rounds=rounds),
        limits=Limits(),
        workers=workers,
        gpu=gpu,
    )


def _candidates(m, n, k, count=4):
    """Returns the default and `count` configurations spread over the legal space."""
    target = load_target(TARGET)
    device = target.device_named(machine.hopper_gpus()[0].kind)
    problem = target.problem_from_fields({"m": m, "n": n, "k": k})
    legal = target.space(problem, device, {}).legal()
    step = max(1, legal.size // count)
    knobs = [target.heuristic_config(problem, device), *(legal.knobs(i) for i in range(0, legal.size, step))]
    return [
        Candidate(target=TARGET, problem=problem, config=target.config_from_knobs(each), device=device)
        for each in knobs[: count + 1]
    ]


def _screen(evaluator, candidates):
    for job_id, candidate in enumerate(candidates):
        evaluator.submit(ScreenJob(job_id=job_id, candidate=candidate))
    return [outcome.result for _, outcome in sorted(collect(evaluator, len(candidates)).items())]


def test_candidates_are_verified_and_timed():
    with _evaluator("clean") as evaluator:
        results = _screen(evaluator, _candidates(1024, 1024, 1024))
    measured = results[0]
    assert isinstance(measured, Measured), measured
    assert measured.poisoned
    assert measured.error < 2**-8
    assert len(measured.timing.samples_us) == 20
    # 2 GFLOP at 990 TFLOP/s, the card's peak, take 2.2 us; a sum that held the flush would be over 54 us.
    assert 2.1 < measured.timing.median_us < FLUSH_US / 2
    # Whatever else becomes of legal candidates, none fails for a reason of the measuring's own.
    assert not [result for result in results if isinstance(result, Failed) and result.reason == "error"]


def test_a_clean_l2_is_slower_than_a_warm_one_where_operands_fit_in_it():
    # 33.6 MB of weights stay in the L2 of 60 MB between warm launches.
    (candidate,) = _candidates(64, 4096, 4096, count=1)[:1]
    medians_us = {}
    for l2 in ("warm", "clean"):
        with _evaluator(l2, workers=1) as evaluator:
            (result,) = _screen(evaluator, [candidate])
        assert isinstance(result, Measured), result
        medians_us[l2] = result.timing.median_us
    assert medians_us["clean"] > 1.1 * medians_us["warm"]


@pytest.mark.parametrize("l2", ["clean", "warm"])
def test_a_race_interleaves_finalists_with_the_rival(l2):
    candidates = _candidates(1024, 1024, 1024, count=2)
    with _evaluator(l2, workers=1) as evaluator:
        job = RaceJob(
            job_id=0,
            problem=candidates[0].problem,
            target=TARGET,
            # The same twice: what an honest race cannot tell apart.
            candidates=(candidates[0], candidates[0]),
            rounds=100,
            formulations=("plain",),
        )
        evaluator.submit(job)
        entries = collect(evaluator, 1)[0].result.entries
    assert [entry.finalist for entry in entries] == [0, 1, None]
    assert all(isinstance(entry.result, Measured) for entry in entries), entries
    samples = [entry.result.timing.samples_us for entry in entries]
    # A lane whose loss is certain leaves early; a kernel entered twice never loses to itself.
    assert all(20 <= len(each) <= 100 for each in samples)
    assert entries[2].result.error < 2**-8
    ratio = statistics.median(a / b for a, b in zip(samples[0], samples[1], strict=False))
    assert ratio == pytest.approx(1.0, abs=0.02)


def test_a_duplicate_carries_the_first_ones_time():
    (candidate,) = _candidates(512, 512, 512, count=1)[:1]
    with _evaluator("clean", workers=1) as evaluator:
        first, second = _screen(evaluator, [candidate, dataclasses.replace(candidate)])
    assert isinstance(first, Measured), first
    assert second.duplicate_of == 0
    assert second.timing == first.timing


def test_the_card_is_shared_through_its_lock_and_left_empty():
    gpu = machine.hopper_gpus()[0]
    (candidate,) = _candidates(512, 512, 512, count=1)[:1]
    evaluator = _evaluator("warm", workers=1)
    try:
        with lock_path(gpu.uuid).open("a") as holder:
            fcntl.flock(holder, fcntl.LOCK_EX)
            evaluator.submit(ScreenJob(job_id=0, candidate=candidate))
            assert not evaluator.poll(20.0)  # longer than start, lowering and compiling take
            fcntl.flock(holder, fcntl.LOCK_UN)
        assert isinstance(collect(evaluator, 1)[0].result, Measured)
        pids = evaluator.worker_pids
    finally:
        evaluator.close()
    assert not any(is_alive(pid) for pid in pids)
