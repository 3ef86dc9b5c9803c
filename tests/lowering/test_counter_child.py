"""The process that ncu looks into, on a CPU: what it launches between which marks, and what it says."""

from __future__ import annotations

import contextlib

from benchmarks.card import Lines
from benchmarks.counter_child import launched, marks_ptx
from benchmarks.counter_lanes import CounterJob, CounterLane
from tests.helpers.best_entries import H200, KNOBS, TARGET, problem

SMALL = problem(128, 128, 64)


def xla(formulation="plain", of=SMALL):
    return CounterLane(problem=of, name=f"XLA {formulation}", formulation=formulation)


def steps_of(capsys, tmp_path, lanes, *, seconds=60.0):
    """Returns the marks in their order, and the steps without their times."""
    marked, said = [], []

    @contextlib.contextmanager
    def profiled(index):
        marked.append(index)
        yield

    class Kept(Lines):
        def __call__(self, **fields):
            said.append((fields["lane"], fields["step"], fields.get("detail", "")))

    job = CounterJob(lanes=lanes, device=H200, progress=str(tmp_path / "progress"), seconds=seconds)
    launched(job, "cpu", profiled, Kept(None))
    return marked, said


def test_each_lane_is_launched_between_its_own_marks(capsys, tmp_path):
    lanes = {4: xla(), 5: xla("cublaslt"), 9: xla(of=problem(64, 64, 64))}
    marked, said = steps_of(capsys, tmp_path, lanes)
    assert marked == [4, 5, 9]
    assert [step[:2] for step in said] == [
        (4, "begin"), (4, "done"), (5, "begin"), (5, "done"), (9, "begin"), (9, "done")
    ]  # fmt: skip


def test_a_lane_that_cannot_be_built_says_why_and_the_next_one_runs(capsys, tmp_path):
    config = TARGET.config_from_knobs(KNOBS)
    lanes = {0: xla("no such form"), 1: CounterLane(problem=SMALL, name="kernel", config=config), 2: xla()}
    marked, said = steps_of(capsys, tmp_path, lanes)
    assert marked == [2]
    assert [step[:2] for step in said if step[1] != "begin"] == [(0, "failed"), (1, "failed"), (2, "done")]
    assert "no such form" in said[1][2]


def test_no_lane_is_begun_after_its_time(capsys, tmp_path):
    assert steps_of(capsys, tmp_path, {0: xla()}, seconds=-1.0) == ([], [])


def test_each_lane_has_a_mark_of_its_own_name():
    text = marks_ptx([3, 12])
    assert text.count(".visible .entry counters_lane_3()") == text.count(".entry counters_lane_12()") == 1
