"""Where the time under the lock goes, by a clock that the tests turn."""

from __future__ import annotations

import contextlib

import pytest

from autotune.evaluate.heldtime import HeldTime


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s

    def pass_s(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock():
    return Clock()


def test_what_is_timed_inside_of_a_step_counts_there_alone(clock):
    held = HeldTime(clock)
    held.begin()
    clock.pass_s(1)
    with held.timed("profiler"):
        clock.pass_s(2)
        with held.timed("kernels"):
            clock.pass_s(4)
        clock.pass_s(8)
    clock.pass_s(16)
    assert held.end() == {"other": 17, "profiler": 10, "kernels": 4}


def test_a_step_that_raises_is_counted_and_left(clock):
    held = HeldTime(clock)
    held.begin()
    with contextlib.suppress(ValueError), held.timed("check"):
        clock.pass_s(3)
        raise ValueError
    clock.pass_s(5)
    assert held.end() == {"check": 3, "other": 5}


def test_nothing_counts_outside_of_begin_and_end(clock):
    held = HeldTime(clock)
    with held.timed("kernels"):
        clock.pass_s(1)
    held.begin()
    clock.pass_s(2)
    assert held.end() == {"other": 2}
    with held.timed("watch"):
        clock.pass_s(4)
    assert held.end() == {"other": 2}
    held.begin()
    assert held.end() == {"other": 0}
