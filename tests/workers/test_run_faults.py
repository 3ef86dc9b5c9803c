"""Whole runs over real workers, against candidates that fail in every way and a parent that is killed."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest

from autotune.evaluate.timing import NOMINAL_US
from tests.helpers.fake_target import REFERENCE_US
from tests.helpers.fault_target import EVERY, FAULTS, fault_of, tune
from tests.helpers.pools import children, is_alive, wait_until

PROGRAM = "tests.helpers.fault_target"
IN_FLIGHT = 4  # of two workers: `Pool.capacity`
ROOT = Path(__file__).resolve().parents[2]
REASON = {
    "abort": "crash",
    "exit": "crash",
    "segfault": "crash",
    "wrong": "wrong",
    "unwritten": "unwritten",
    "hang_while_measured": "timeout",
    "lose_context": "launch",
}


def started(folder: Path, variants: int) -> subprocess.Popen:
    return subprocess.Popen(
        # Imported, not run as a script: what __main__ defines cannot be sent to a worker.
        [sys.executable, "-c", f"from {PROGRAM} import main; main()", str(folder), str(variants)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"},
    )


def screened(folder: Path) -> dict[int, optuna.trial.FrozenTrial]:
    """Returns the recorded candidates by variant; each must stand there once."""
    (path,) = (folder / "trials").glob("*.journal")
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    (study,) = storage.get_all_studies()
    trials = [
        trial for trial in storage.get_all_trials(study._study_id) if trial.user_attrs["kind"] == "screen"
    ]
    by_variant = {trial.params["hundreds"] + trial.params["ones"]: trial for trial in trials}
    assert len(by_variant) == len(trials)
    return by_variant


def assert_all_recorded(folder: Path, variants: int) -> None:
    trials = screened(folder)
    assert sorted(trials) == list(range(variants))
    for variant, trial in trials.items():
        fault = fault_of(variant)
        # ScriptedTimer: variant v takes 10 + v us beside a fixed kernel of REFERENCE_US, the unit of its score.
        # A faulty one has a reason, and no time at all.
        score_us = pytest.approx((10.0 + variant) * NOMINAL_US["read"] / REFERENCE_US)
        expected = (score_us, None) if fault == "good" else (None, REASON[fault])
        assert (trial.value, trial.user_attrs.get("reason")) == expected, (variant, fault)


def assert_tuned(folder: Path, variants: int) -> None:
    counts_of_faults = sum(fault_of(variant) != "good" for variant in range(variants))
    assert counts_of_faults == -(-variants // EVERY)
    result = tune(folder, variants).problems[0]
    # Variants 0, 20, 40 ... are faulty, so the best is variant 1: 11 us against 20 of the rival.
    assert result.winner.knobs == {"hundreds": 0, "ones": 1}
    assert (result.winner.time_us, result.backend) == (11.0, "kernel")
    assert result.counts.measured == variants - counts_of_faults
    assert_all_recorded(folder, variants)


def test_of_150_candidates_none_is_lost_and_no_faulty_one_wins(tmp_path):
    began_s = time.monotonic()
    assert_tuned(tmp_path, 150)
    assert {fault_of(variant) for variant in range(150)} == {*FAULTS, "good"}
    assert time.monotonic() - began_s < 120


@pytest.mark.long
@pytest.mark.timeout(900)
def test_of_1000_candidates_none_is_lost_and_no_faulty_one_wins(tmp_path):
    began_s = time.monotonic()
    assert_tuned(tmp_path, 1000)
    # 50 faults: 6 hangs of 3 s, about 32 new workers of 3 to 6 s, two at a time; the rest is 950 good candidates.
    assert time.monotonic() - began_s < 600


def test_a_winner_that_is_wrong_once_in_a_hundred_runs_is_demoted(tmp_path):
    # Variant 1 would win. Its 100th run is wrong: screening and race run it a dozen times, the confirmation 500.
    result = tune(tmp_path, 4, workers=1, now_and_then=1).problems[0]
    assert result.winner.knobs == {"hundreds": 0, "ones": 2}
    assert result.counts.failed == {"crash": 1, "wrong": 1}  # variant 0 aborts
    again = tune(tmp_path, 4, workers=1, now_and_then=1).problems[0]
    assert again.winner == result.winner
    assert again.counts.resumed == 4


def test_a_parent_killed_at_random_moments_leaves_no_orphan_and_no_lock_and_the_study_goes_on(tmp_path):
    rng = random.Random(4)
    for kills in range(1, 5):
        parent = started(tmp_path, 60)
        try:
            wait_until(lambda parent=parent: len(children(parent.pid)) == 2, "two workers start", 30.0)
            time.sleep(rng.uniform(0.0, 7.0))
            parent.send_signal(signal.SIGSTOP)  # so that it starts no worker between the list and its end
            workers = children(parent.pid)
            assert workers
        finally:
            parent.kill()
            parent.communicate()
        wait_until(lambda workers=workers: not any(is_alive(pid) for pid in workers), "orphans end")
        # A process that counts as ended may have threads that end after it, and files that are open until then.
        wait_until(lambda: is_free(tmp_path / "gpu.lock"), "the lock is dropped", 2.0)
        if list((tmp_path / "trials").glob("*.journal")):
            # Two workers: what each kill lost is measured again, and whatever was recorded stands there once.
            assert len(screened(tmp_path)) >= begun(tmp_path) - IN_FLIGHT * kills
    assert_tuned(tmp_path, 60)


def is_free(path: Path) -> bool:
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def begun(folder: Path) -> int:
    """Returns how many measurements were ever begun, by the timer's own log."""
    log = folder / "timer.log"
    return log.read_text().count("screen ") if log.exists() else 0


def test_two_runs_on_one_results_folder_both_find_the_best_and_share_the_card(tmp_path):
    both = [started(tmp_path, 40) for _ in range(2)]
    winners = [one.communicate(timeout=120)[0].split() for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert [winner for winner, _ in winners] == ["1", "1"]
    (path,) = (tmp_path / "trials").glob("*.journal")
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    (study,) = storage.get_all_studies()
    trials = storage.get_all_trials(study._study_id)
    variants = {
        trial.params["hundreds"] + trial.params["ones"]
        for trial in trials
        if trial.user_attrs["kind"] == "screen"
    }
    assert variants == set(range(40))
    # What both have in flight at once is measured twice; whatever one recorded the other hears of.
    assert all(trial.value is None or trial.value >= 11.0 for trial in trials)
