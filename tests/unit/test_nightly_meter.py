"""What a night makes of races, and what it asks of the evaluator."""

from __future__ import annotations

import dataclasses

import pytest

from autotune.evaluate.messages import Ready, Step
from autotune.nightly import report
from autotune.nightly.fixed_kernel import CHAINS, STEPS, ptx
from autotune.nightly.meter import Check
from autotune.nightly.profile import Profile
from autotune.nightly.raced import is_complete, seen_of
from autotune.nightly.report import Line, Summary
from autotune.nightly.values import Decision, Machine, Seen
from autotune.nightly.verifyjob import StepClock
from autotune.seam import Failed, Race, RaceEntry
from tests.helpers.best_entries import entry
from tests.helpers.scripted import measured

CHECK = Check(key="key", entry=entry())
MACHINE = Machine(card="GPU-1", kind="NVIDIA H200", power_limit_w=700.0, driver="580.1", jax="1", jaxlib="1")


def lane(times, finalist=0, formulation=None):
    result = times if isinstance(times, Failed) else measured({"a": 1}, times, module="d" * 32)
    return RaceEntry(finalist=finalist, result=result, formulation=formulation)


def test_a_race_becomes_both_lanes_samples():
    race = Race(entries=(lane([1.0, 2.0]), lane([3.0, 4.0], None, "plain")))
    assert seen_of(race, CHECK) == Seen(kernel_us=(1.0, 2.0), xla_us=(3.0, 4.0), digest="d" * 32)


def test_the_rival_is_the_formulation_that_the_entry_was_raced_with():
    race = Race(entries=(lane([1.0]), lane([3.0], None, "plain"), lane([2.0], None, "padded")))
    padded = Check(key="key", entry=dataclasses.replace(entry(), formulation="padded"))
    assert seen_of(race, padded).xla_us == (2.0,)
    assert seen_of(race, CHECK).xla_us == (3.0,)


def test_a_failed_lane_keeps_its_reason_and_the_rivals_time():
    race = Race(entries=(lane(Failed(reason="wrong", detail="error 0.3")), lane([3.0], None, "plain")))
    assert seen_of(race, CHECK) == Seen(xla_us=(3.0,), failure=("wrong", "error 0.3"))


def test_a_race_that_failed_whole_is_a_failure():
    assert seen_of(Failed(reason="timeout", detail="run"), CHECK).failure == ("timeout", "run")


def test_an_answer_of_xla_is_measured_alone():
    assert seen_of(Race(entries=(lane([3.0], None, "plain"),)), CHECK) == Seen(xla_us=(3.0,))


@pytest.mark.parametrize(
    ("lanes", "complete"),
    [
        ((lane([1.0]), lane([3.0], None, "padded")), True),
        ((lane([3.0], None, "plain"),), True),
        ((lane([1.0]),), False),  # XLA knows no such formulation any more
        ((lane([1.0]), lane(Failed(reason="memory", detail=""), None, "plain")), False),
        ((lane(Failed(reason="wrong", detail="")), lane([3.0], None, "plain")), True),
        ((lane(Failed(reason="launch", detail="")), lane([3.0], None, "plain")), False),
    ],
)
def test_a_race_is_complete_where_all_is_timed_or_the_kernel_itself_is_at_fault(lanes, complete):
    assert is_complete(Race(entries=lanes)) is complete


def test_a_workers_seconds_are_counted_by_what_it_does():
    now_s, sent = [0.0], []
    clock = StepClock(sent.append, lambda: now_s[0])
    # The steps of a race of one kernel and one rival, with what each takes in seconds.
    steps = [
        (Step(name="lower"), 1),
        (Step(name="prepare"), 2),
        (Step(name="lower", lane=0), 4),
        (Step(name="compile", lane=0), 8),
        (Step(name="wait"), 16),
        (Step(name="run"), 32),  # operands, under the lock from here on
        (Step(name="run", lane=0), 64),
        (Step(name="compile", lane=-1), 128),
        (Step(name="run", lane=-1), 256),
        (Step(name="run"), 512),
    ]
    for step, seconds in steps:
        clock(step)
        now_s[0] += seconds
    clock(Ready())
    assert sent == [*(step for step, _ in steps), Ready()]
    assert clock.seconds() == {
        "lower": 5,
        "prepare": 2,
        "compile": 8,
        "wait": 16,
        "load": 32,
        "rivals": 128,
        "check": 320,
        "samples": 512,
    }


def test_a_profile_tells_what_was_under_the_lock():
    profile = Profile()
    with profile.timed("verify"):
        profile.add({"lower": 1.0, "load": 0.5, "rivals": 0.25})
        profile.add({"lower": 1.0, "samples": 0.25})
    told = profile.to_json()
    assert (told["locked_s"], told["worker_s"]["lower"], told["worker_s"]["wait"]) == (1.0, 2.0, 0)
    assert set(told["wall_s"]) == {"verify"}


def test_the_fixed_kernel_is_a_loop_of_independent_chains():
    body = ptx().split("LOOP:")[1].split("bra")[0]
    assert body.count("fma.rn.f32") == CHAINS * STEPS == 32
    assert ptx().isascii()


def summary(**changes):
    lines = [
        Line(key="k1", title="t1", decision=Decision(verdict="unchanged", reason="as before")),
        Line(key="k2", title="t|2", decision=Decision(verdict="regression", reason="slow"), kernel_us=1.5),
    ]
    base = {"name": "n", "night": "2026-12-01T02:30:00+00:00", "machine": MACHINE, "lines": lines}
    return Summary(**{**base, **changes})


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 20),
        ({"lines": ()}, 0),
        ({"unfit": "busy"}, 30),
        (
            {
                "lines": (
                    Line(key="k", title="t", decision=Decision(verdict="better", reason="r"), improved=True),
                )
            },
            10,
        ),
        ({"lines": (Line(key="k", title="t", decision=Decision(verdict="suspect", reason="r")),)}, 0),
    ],
)
def test_the_exit_code_says_the_gravest(changes, code):
    assert summary(**changes).exit_code == code


def test_the_report_escapes_what_would_break_its_table():
    text = report.markdown(summary(moved=("driver 1 -> 2", "jaxlib 3 -> 4")))
    assert "| t\\|2 | regression | 1.50 | - | - | slow | - |" in text
    assert "so none is blamed alone: driver 1 -> 2 and jaxlib 3 -> 4." in text
    assert report.text(summary()).splitlines()[1] == "regression: t|2: slow"
