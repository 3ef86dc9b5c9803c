"""A night's verification on real worker processes: many winners in flight, what fails among them, and its end."""

from __future__ import annotations

import dataclasses
import itertools
import types

import pytest

from autotune.evaluate.guard import Guard, NoWatch
from autotune.evaluate.messages import Assign, Done
from autotune.nightly.gpumeter import GpuMeter
from autotune.nightly.meter import Check
from autotune.nightly.profile import Profile
from autotune.nightly.verifyjob import STEPS, VerifyJob
from autotune.seam import MeasureProtocol, Race
from tests.helpers.best_entries import entry
from tests.helpers.fake_target import NAME, FakeConfig, FakeDevice, FakeProblem
from tests.helpers.pools import fake_pool


@pytest.fixture
def meter(tmp_path):
    """Returns a meter whose evaluator is a pool on the CPU: variant v takes 10 + v us, the rival 20 us."""
    made = object.__new__(GpuMeter)
    made._config = types.SimpleNamespace(protocol=MeasureProtocol(rounds=4))
    made._evaluator = fake_pool(tmp_path, workers=2)
    made._job_ids = itertools.count()
    made.device, made.profile = FakeDevice(), Profile()
    yield made
    made.close()


def check(size, mode="good", variant=1):
    config = FakeConfig(mode=mode, variant=variant) if mode else None
    stored = dataclasses.replace(entry(), target=NAME, problem=FakeProblem(m=size), config=config)
    return Check(key=f"{size}", entry=stored)


def test_winners_are_verified_in_parallel_and_each_ends_once(meter):
    checks = [check(8), check(16, "wrong"), check(24, "abort"), check(32, None), check(40, variant=3)]
    found = dict(meter.verify(checks, 4))
    assert sorted(found) == ["16", "24", "32", "40", "8"]
    assert found["8"].kernel_us == (11.0,) * 4
    assert found["8"].xla_us == (20.0,) * 4
    assert found["40"].kernel_median_us == 13.0
    assert found["16"].failure[0] == "wrong"
    assert found["24"].failure[0] == "crash"
    assert (found["32"].kernel_us, found["32"].xla_median_us) == ((), 20.0)
    assert meter.gpu_s > 0


def test_a_problem_is_raced_again_in_a_process_that_has_not_raced_it(meter, tmp_path):
    """XLA decides once a process how to multiply, so a second race must not find what the first one decided."""
    meter.close()
    meter._evaluator = pool = fake_pool(tmp_path, workers=1)
    first = dict(meter.verify([check(8)], 4))
    (pid,) = pool.worker_pids
    assert dict(meter.verify([check(8)], 4)) == first
    assert pool.worker_pids != [pid]
    assert meter.profile.races == {"shared": 2}


def test_a_winner_asked_three_times_at_once_is_raced_in_three_processes(meter, monkeypatch):
    pool, served = meter._evaluator, set()
    poll = pool.poll
    monkeypatch.setattr(pool, "poll", lambda wait_s: served.update(pool.worker_pids) or poll(wait_s))
    found = list(meter.verify([check(8)] * 3, 4))
    assert [key for key, _ in found] == ["8"] * 3
    assert len(served) >= 3, "two workers were there at first"
    assert meter.profile.races == {"shared": 3}


def test_processes_stay_while_problems_are_new_to_them(meter):
    pool = meter._evaluator
    dict(meter.verify([check(8), check(16)], 4))
    pids = pool.worker_pids
    dict(meter.verify([check(24), check(32), check(40)], 4))
    assert pool.worker_pids == pids


def test_what_crashes_beside_others_is_raced_in_a_process_of_its_own(meter):
    found = dict(meter.verify([check(8, "abort"), check(16)], 4))
    assert (found["8"].failure[0], found["8"].xla_us) == ("crash", (20.0,) * 4)
    assert found["16"].kernel_us == (11.0,) * 4
    assert meter.profile.races == {"own": 1, "shared": 1}


def test_another_problems_clocks_are_no_neighbours(meter, monkeypatch):
    """A card that ran cool kernels at 1,980 MHz is not troubled where the next one draws it down to 1,500."""
    guard = Guard(NoWatch())
    guard._clocks.extend([1980.0, 1980.0])
    usual = []

    def run_race(worker, assign):
        usual.append(worker.guard._usual_mhz())
        return Done(result=Race(entries=()))

    monkeypatch.setattr("autotune.evaluate.race.run_race", run_race)
    job = VerifyJob(race=meter._race(check(4096), 4, ("plain",)))
    job.run(types.SimpleNamespace(guard=guard, send=print), Assign(job=job, lost={}))
    assert usual == [None]


def test_a_formulation_that_is_gone_is_replaced_by_the_plain_one(meter):
    one = check(8)
    gone = dataclasses.replace(one, entry=dataclasses.replace(one.entry, formulation="gone"))
    assert dict(meter.verify([gone], 4))["8"].xla_us == (20.0,) * 4
    assert meter.profile.races == {"own": 1}


def test_the_profile_has_what_the_workers_did(meter):
    dict(meter.verify([check(8)], 4))
    worker_s, wall_s = meter.profile.worker_s, meter.profile.wall_s
    assert set(worker_s) == set(STEPS)
    assert min(worker_s["lower"], worker_s["prepare"], worker_s["rivals"], worker_s["check"]) > 0
    assert worker_s.total() < wall_s["verify"]


def test_a_night_that_stops_drops_what_is_in_flight(meter):
    stream = meter.verify([check(8 * size) for size in range(1, 6)], 4)
    next(stream)
    stream.close()
    assert meter._evaluator is None
