"""A night's verification on real worker processes: many winners in flight, what fails among them, and its end."""

from __future__ import annotations

import dataclasses
import itertools
import types

import pytest

from autotune.nightly.gpumeter import GpuMeter
from autotune.nightly.meter import Check
from autotune.seam import MeasureProtocol
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
    made.device, made.gpu_s = FakeDevice(), 0.0
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


def test_a_night_that_stops_drops_what_is_in_flight(meter):
    stream = meter.verify([check(8 * size) for size in range(1, 6)], 4)
    next(stream)
    stream.close()
    assert meter._evaluator is None
