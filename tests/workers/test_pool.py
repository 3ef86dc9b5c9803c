"""The pool's services: duplicates, early stop, races, memory, and the end of its processes."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

from autotune.evaluate import make_evaluator
from autotune.seam import Candidate, Failed, Limits, LoweredOnly, Measured, MeasureProtocol, ScreenJob
from autotune.target import load_target
from tests.helpers.fake_target import NAME, FakeProblem, candidate, load_fake_target, race, screen
from tests.helpers.pools import children, collect, fake_pool, is_alive, wait_until

PARENT = """
import sys
from pathlib import Path
from tests.helpers.fake_target import screen
from tests.helpers.pools import fake_pool
from autotune.seam import Limits
pool = fake_pool(Path(sys.argv[1]), workers=2, limits=Limits(lower_s=300.0))
pool.submit(screen(0, "hang"))
while not any(slot.has_begun for slot in pool._slots) or not all(slot.is_ready for slot in pool._slots):
    pool.poll(0.05)
print("ready", *pool.worker_pids, flush=True)
pool.poll(300.0)
"""


def _log(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "timer.log").read_text().splitlines()]


def test_identical_modules_are_measured_once(tmp_path):
    with fake_pool(tmp_path, workers=2) as pool:
        for job_id in range(5):
            pool.submit(screen(job_id, note=f"duplicate {job_id}"))
        pool.submit(screen(5, variant=1))
        outcomes = collect(pool, 6)
        pool.submit(screen(6, note="after the others ended"))
        outcomes |= collect(pool, 1)
    duplicates = {job_id: outcome.result.duplicate_of for job_id, outcome in outcomes.items()}
    (first,) = [job_id for job_id in range(5) if duplicates[job_id] is None]
    assert {duplicates[job_id] for job_id in (*range(5), 6) if job_id != first} == {first}
    assert duplicates[5] is None
    assert {outcome.result.timing.samples_us for outcome in outcomes.values()} == {
        (10.0, 10.0, 10.0),
        (11.0, 11.0, 11.0),
    }
    measured = [digest for _, digest, _ in _log(tmp_path)]
    assert len(measured) == len(set(measured)) == 2


def test_a_duplicate_of_a_failure_fails(tmp_path):
    with fake_pool(tmp_path) as pool:
        pool.submit(screen(0, "wrong", variant=4))
        pool.submit(screen(1, "wrong", variant=4, note="again"))
        outcomes = collect(pool, 2)
    first, second = outcomes[0].result, outcomes[1].result
    assert second.reason == "wrong"
    assert second.detail == f"{first.detail} (same lowered module as job 0)"


def test_a_duplicate_of_a_crash_fails_instead_of_waiting(tmp_path):
    with fake_pool(tmp_path, workers=2, limits=Limits(lower_s=20.0, compile_s=30.0, run_s=2.5)) as pool:
        pool.submit(screen(0, "hang_while_measured"))
        wait_until(
            lambda: not pool.poll(0.05) and pool._duplicates._claims, "the first job claims its module"
        )
        pool.submit(screen(1, "good"))
        outcomes = collect(pool, 2)
    assert [outcomes[job_id].result.reason for job_id in (0, 1)] == ["timeout", "timeout"]


def test_the_best_so_far_is_a_score_beside_the_fixed_kernel(tmp_path):
    with fake_pool(tmp_path, protocol=MeasureProtocol(rounds=3, reference="product")) as pool:
        for job_id, variant in enumerate((5, 0)):
            pool.submit(screen(job_id, variant=variant))
        collect(pool, 2)
    # 15 us beside a product of 30 us, which nominally takes 24.
    assert [best for _, _, best in _log(tmp_path)] == ["None", "12.0"]


def test_the_best_time_so_far_comes_with_the_grant(tmp_path):
    with fake_pool(tmp_path) as pool:
        for job_id, variant in enumerate([5, 2, 7]):
            pool.submit(screen(job_id, variant=variant))
            collect(pool, 1)
        pool.submit(screen(3, problem=FakeProblem(m=16)))
        collect(pool, 1)
    assert [best for _, _, best in _log(tmp_path)] == ["None", "15.0", "12.0", "None"]


def test_a_race_measures_all_lanes_in_one_worker_and_the_rival(tmp_path):
    with fake_pool(tmp_path) as pool:
        pool.submit(
            race(0, candidate(variant=3), candidate("wrong", variant=1), candidate(variant=1), rounds=4)
        )
        entries = collect(pool, 1)[0].result.entries
    assert [entry.finalist for entry in entries] == [0, 1, 2, None]
    assert entries[0].result.timing.samples_us == (13.0,) * 4
    assert entries[1].result.reason == "wrong"
    assert entries[2].result.timing.samples_us == (11.0,) * 4
    assert entries[3].result.timing.samples_us == (20.0,) * 4
    assert [entry.formulation for entry in entries] == [None, None, None, "plain"]
    assert _log(tmp_path) == [["race", "3"]]


def test_a_finalist_that_kills_its_worker_leaves_the_race_to_the_others(tmp_path):
    with fake_pool(tmp_path, limits=Limits(lower_s=3.0, compile_s=30.0, run_s=20.0)) as pool:
        pool.submit(race(0, candidate("abort"), candidate(variant=1), candidate("hang")))
        entries = collect(pool, 1)[0].result.entries
    assert [entry.result.reason for entry in entries if isinstance(entry.result, Failed)] == [
        "crash",
        "timeout",
    ]
    assert [entry.finalist for entry in entries if isinstance(entry.result, Measured)] == [1, None]


def test_a_finalist_that_loses_the_context_leaves_the_race_to_a_fresh_worker(tmp_path):
    with fake_pool(tmp_path) as pool:
        (first,) = pool.worker_pids
        pool.submit(race(0, candidate(variant=2), candidate("fault_when_run")))
        entries = collect(pool, 1)[0].result.entries
        assert pool.worker_pids != [first]
    assert entries[1].result.reason == "launch"
    assert "the fake kernel faults" in entries[1].result.detail
    assert [entry.finalist for entry in entries if isinstance(entry.result, Measured)] == [0, None]
    assert _log(tmp_path) == [["race", "2"]]


def test_a_race_without_finalists_measures_the_rival(tmp_path):
    with fake_pool(tmp_path) as pool:
        pool.submit(race(0, rounds=2))
        (entry,) = collect(pool, 1)[0].result.entries
    assert entry.finalist is None
    assert entry.result.timing.samples_us == (20.0, 20.0)


def test_a_race_of_no_formulation_is_of_the_finalists_alone(tmp_path):
    with fake_pool(tmp_path) as pool:
        pool.submit(dataclasses.replace(race(0, candidate(variant=3), candidate(variant=1)), formulations=()))
        entries = collect(pool, 1)[0].result.entries
    assert [entry.finalist for entry in entries] == [0, 1]
    assert _log(tmp_path) == [["race", "2"]]


def test_a_race_of_several_passes_is_several_races_in_one_process(tmp_path):
    with fake_pool(tmp_path) as pool:
        pool.submit(dataclasses.replace(race(0, candidate(variant=3), rounds=4), session=1, passes=3))
        entries = collect(pool, 1)[0].result.entries
    assert [(entry.session, entry.finalist) for entry in entries] == [
        (session, finalist) for session in (1, 2, 3) for finalist in (0, None)
    ]
    assert all(len(entry.result.timing.samples_us) == 4 for entry in entries)
    assert _log(tmp_path) == [["race", "2"]] * 3


def test_a_problem_gets_only_as_many_workers_as_fit_on_the_card(tmp_path):
    with fake_pool(tmp_path, workers=2, card_bytes=1) as pool:
        for job_id in range(3):
            pool.submit(screen(job_id, "slow", variant=job_id))
        outcomes = {}
        most = 0
        while len(outcomes) < 3:
            outcomes |= {outcome.job_id: outcome for outcome in pool.poll(0.05)}
            most = max(most, sum(slot.pending is not None for slot in pool._slots))
    assert most == 1
    assert all(isinstance(outcome.result, Measured) for outcome in outcomes.values())


def test_a_worker_full_of_a_problem_that_is_over_is_replaced(tmp_path, monkeypatch):
    # Any problem counts as large: the flush buffer alone is 256 MiB.
    monkeypatch.setattr("autotune.evaluate.pool.STALE_BYTES", 2**20)
    with fake_pool(tmp_path, card_bytes=2**40) as pool:
        pool.submit(screen(0))
        pool.submit(screen(1, variant=1))
        collect(pool, 2)
        first = pool.worker_pids
        pool.submit(screen(2, variant=2))
        collect(pool, 1)
        assert pool.worker_pids == first
        pool.submit(screen(3, problem=FakeProblem(m=16)))
        collect(pool, 1)
        assert pool.worker_pids != first


def test_close_leaves_no_process(tmp_path):
    pool = fake_pool(tmp_path, workers=2)
    pool.submit(screen(0, "hang"))
    pool.poll(0.5)
    pids = pool.worker_pids
    assert len(pids) == 2
    pool.close()
    assert not any(is_alive(pid) for pid in pids)
    assert not set(pids) & set(children(os.getpid()))  # reaped as well


def test_workers_end_with_a_parent_that_is_killed_and_ignore_ctrl_c(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        word, *pids = parent.stdout.readline().split()
        assert word == "ready"
        workers = [int(pid) for pid in pids]
        for pid in workers:
            os.kill(pid, signal.SIGINT)
        assert all(is_alive(pid) for pid in workers)
        # Not in the group that Ctrl-C at the terminal signals.
        assert {os.getpgid(pid) for pid in workers} == set(workers)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    wait_until(lambda: not any(is_alive(pid) for pid in workers), "orphans end")


def test_the_evaluator_lower_stops_after_lowering():
    with make_evaluator(
        "lower",
        target_name=NAME,
        protocol=MeasureProtocol(),
        limits=Limits(),
        workers=1,
        target_loader=load_fake_target,
    ) as evaluator:
        evaluator.submit(screen(0))
        evaluator.submit(screen(1, note="duplicate"))
        evaluator.submit(screen(2, "raise"))
        evaluator.submit(race(3))
        results = {job_id: outcome.result for job_id, outcome in collect(evaluator, 4).items()}
    assert isinstance(results[0], LoweredOnly)
    assert results[0].lowered.compile_s is None
    assert (results[0].duplicate_of, results[1].duplicate_of) == (None, 0)
    assert results[2].reason == "lower"
    assert results[3].detail == "the evaluator 'lower' takes no times, so it cannot race"


def test_a_real_candidate_lowers_for_cuda_without_a_gpu():
    target = load_target("hopper_matmul")
    device = target.device_named("nvidia_h200")
    problem = target.problem_from_fields({"m": 512, "n": 512, "k": 512})
    config = target.config_from_knobs(target.heuristic_config(problem, device))
    job = Candidate(target="hopper_matmul", problem=problem, config=config, device=device)
    digests = set()
    for _ in range(2):  # another process gives the same digest
        with make_evaluator(
            "lower", target_name="hopper_matmul", protocol=MeasureProtocol(), limits=Limits(), workers=1
        ) as evaluator:
            evaluator.submit(ScreenJob(job_id=0, candidate=job))
            result = collect(evaluator, 1)[0].result
        assert isinstance(result, LoweredOnly), result
        digests.add(result.lowered.digest)
    assert len(digests) == 1
