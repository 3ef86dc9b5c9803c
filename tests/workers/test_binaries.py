"""Candidates of one binary: what is compiled once, what each of them is held to, and what a fault of one costs."""

from __future__ import annotations

import pytest

from autotune.evaluate.binaries import Binaries, Binary
from autotune.evaluate.slot import KEPT_BINARIES
from autotune.seam import Failed, Measured
from tests.helpers.fake_target import FATAL_ORDER, WRONG_ORDER, screen, shared
from tests.helpers.pools import collect, fake_pool


def compiled(outcomes) -> list[int]:
    """Returns the jobs that something was compiled for."""
    return [job_id for job_id, outcome in sorted(outcomes.items()) if outcome.result.lowered.compile_s]


def test_candidates_of_one_binary_are_compiled_once_and_each_is_measured(tmp_path):
    with fake_pool(tmp_path, workers=2) as pool:
        for job_id in range(6):
            pool.submit(shared(job_id, order=job_id, variant=job_id // 3))
        outcomes = collect(pool, 6)
    results = [outcomes[job_id].result for job_id in range(6)]
    assert all(isinstance(result, Measured) and result.duplicate_of is None for result in results)
    assert all(result.poisoned and result.exact and result.lowered.shares_binary for result in results)
    assert len(compiled(outcomes)) == 2
    assert [result.timing.samples_us[0] for result in results] == [10.0] * 3 + [11.0] * 3
    assert len({result.lowered.digest for result in results}) == 6
    # What the lock was held for is told by step, and adds up.
    assert all({"check", "other"} <= set(result.held_s) for result in results)
    assert all(result.locked_s == pytest.approx(sum(result.held_s.values()), abs=1e-5) for result in results)
    assert len((tmp_path / "timer.log").read_text().splitlines()) == 6


def test_what_does_the_same_is_measured_once(tmp_path):
    with fake_pool(tmp_path) as pool:
        for job_id, order in enumerate([4, 5, 4]):
            pool.submit(shared(job_id, order=order))
        outcomes = collect(pool, 3)
    assert [outcomes[job_id].result.duplicate_of for job_id in range(3)] == [None, None, 0]
    assert [outcomes[job_id].result.held_s is None for job_id in range(3)] == [False, False, True]


def test_a_candidate_that_is_wrong_at_run_time_fails_alone(tmp_path):
    with fake_pool(tmp_path) as pool:
        for job_id, order in enumerate([1, WRONG_ORDER, 2]):
            pool.submit(shared(job_id, order=order))
        outcomes = collect(pool, 3)
    wrong = outcomes.pop(1).result
    assert isinstance(wrong, Failed) and wrong.reason == "wrong" and wrong.lowered.shares_binary
    assert all(isinstance(outcome.result, Measured) for outcome in outcomes.values())


def test_a_candidate_that_ends_its_worker_takes_no_other_of_its_binary_with_it(tmp_path):
    with fake_pool(tmp_path, workers=2) as pool:
        for job_id, order in enumerate([1, FATAL_ORDER, 2, 3]):
            pool.submit(shared(job_id, order=order))
        outcomes = collect(pool, 4)
    assert outcomes.pop(1).result.reason == "crash"
    assert all(isinstance(outcome.result, Measured) for outcome in outcomes.values())
    assert compiled(outcomes) == [0, 2]  # the binary was lost with its worker


def test_a_late_sibling_finds_the_binary_in_the_worker_that_compiled_it(tmp_path):
    with fake_pool(tmp_path, workers=2) as pool:
        pool.submit(shared(0, order=1))
        pool.submit(shared(1, order=1, variant=1))
        outcomes = collect(pool, 2)
        pool.submit(screen(2, variant=2))  # what ships is compiled as it ships, and loses no binary
        pool.submit(shared(3, order=2, variant=1))
        pool.submit(shared(4, order=2))
        outcomes |= collect(pool, 3)
    assert compiled(outcomes) == [0, 1, 2]
    assert not outcomes[2].result.lowered.shares_binary


def test_a_job_that_waits_for_a_binary_holds_up_no_other(tmp_path):
    with fake_pool(tmp_path, workers=2) as pool:
        for job_id in range(3):
            pool.submit(shared(job_id, order=job_id, mode="slow"))
        pool.submit(screen(3))
        outcomes = collect(pool, 4)
    assert compiled(outcomes) == [0, 3]


def test_problems_that_each_fit_one_worker_take_turns_and_none_waits_for_ever(tmp_path):
    with fake_pool(tmp_path, workers=2, card_bytes=1) as pool:
        for job_id in range(12):
            pool.submit(shared(job_id, order=job_id, variant=job_id % 2, m=8 * (1 + job_id % 3)))
        outcomes = collect(pool, 12)
        pool.submit(shared(12, order=99, m=8))
        outcomes |= collect(pool, 1)
    assert all(isinstance(outcome.result, Measured) for outcome in outcomes.values())


def test_the_binary_that_was_used_longest_ago_makes_room():
    kept = Binaries()
    for name in range(KEPT_BINARIES):
        kept.keep(str(name), Binary(name, str))
    assert kept.get("0").module == 0
    kept.keep("new", Binary("new", str))
    assert kept.get("1") is None and kept.get("0") is not None and kept.get(None) is None
