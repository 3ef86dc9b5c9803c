"""Replay: times from a recorded space, with candidates that are really lowered."""

from __future__ import annotations

import pytest

from autotune.evaluate import RecordedRow, RecordedSpace, make_evaluator
from autotune.seam import Failed, Limits, Measured, MeasureProtocol
from tests.helpers.fake_target import NAME, FakeDevice, FakeProblem, candidate, load_fake_target, race, screen
from tests.helpers.pools import collect

KNOBS = {"mode": ("good", "raise"), "variant": (0, 1, 2)}
ROWS = {
    (0, 0): RecordedRow(samples_us=(30.0, 31.0, 32.0)),
    (0, 1): RecordedRow(samples_us=(20.0, 21.0, 22.0)),
    (0, 2): RecordedRow(failed=Failed(reason="wrong", detail="relative error 0.5")),
    (1, 0): RecordedRow(samples_us=(1.0, 1.0, 1.0)),
}


def _space(**changes) -> RecordedSpace:
    fields = {
        "target": NAME,
        "problem": FakeProblem().to_fields(),
        "device": {"kind": "Fake Hopper"},
        "date": "2026-11-30",
        "versions": {},
        "source_digest": "cafe",
        "protocol": {"l2": "warm"},
        "command": "record it",
        "knobs": KNOBS,
        "rows": ROWS,
        "rival_us": (25.0, 26.0, 27.0),
    }
    return RecordedSpace(**(fields | changes))


@pytest.fixture(scope="module")
def replay():
    evaluator = make_evaluator(
        "replay",
        target_name=NAME,
        device=FakeDevice(),
        protocol=MeasureProtocol(),
        limits=Limits(),
        workers=2,
        recorded=[_space()],
        target_loader=load_fake_target,
    )
    yield evaluator
    evaluator.close()


def test_times_come_from_the_record_and_digests_from_lowering(replay):
    jobs = [screen(0), screen(1, variant=1), screen(2, variant=2), screen(3, "raise")]
    for job in jobs:
        replay.submit(job)
    results = {job_id: outcome.result for job_id, outcome in collect(replay, 4).items()}
    assert results[0].timing.samples_us == (30.0, 31.0, 32.0)
    assert results[0].timing.l2 == "warm"
    assert results[1].timing.median_us == 21.0
    assert results[0].lowered.digest != results[1].lowered.digest
    assert (results[2].reason, results[2].detail) == ("wrong", "relative error 0.5")
    assert results[2].lowered.digest
    # It has a recorded time, but what does not lower today has none.
    assert results[3].reason == "lower"


def test_what_was_not_recorded_is_an_error_that_names_the_knob(replay):
    replay.submit(screen(10, variant=7))
    replay.submit(screen(11, note="newer"))
    replay.submit(screen(12, problem=FakeProblem(m=16)))
    results = {job_id: outcome.result for job_id, outcome in collect(replay, 3).items()}
    assert {result.reason for result in results.values()} == {"error"}
    assert "not in the recorded space: variant=7" in results[10].detail
    assert "older than a knob: note='newer'" in results[11].detail
    assert "'m': 16" in results[12].detail


def test_a_race_is_replayed_with_its_rival(replay):
    replay.submit(race(20, candidate(variant=1), candidate("raise"), candidate(variant=0), rounds=2))
    entries = collect(replay, 1)[20].result.entries
    assert [entry.finalist for entry in entries] == [0, 1, 2, None]
    assert entries[0].result.timing.samples_us == (20.0, 21.0)
    assert entries[1].result.reason == "lower"
    assert entries[2].result.timing.samples_us == (30.0, 31.0)
    assert entries[3].result.timing.samples_us == (25.0, 26.0)


def test_a_race_without_finalists_needs_no_worker(replay):
    replay.submit(race(30, rounds=3))
    (entry,) = collect(replay, 1)[30].result.entries
    assert isinstance(entry.result, Measured)
    assert entry.result.timing.samples_us == (25.0, 26.0, 27.0)
