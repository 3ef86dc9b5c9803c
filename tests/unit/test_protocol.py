"""Which protocol "auto" becomes, and that records older than a field are still read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.bestfile import read_best
from autotune.evaluate import read_recorded
from autotune.ledger.records import pack, unpack
from autotune.protocol import AUTO, resolved, stored_protocol
from autotune.seam import Lowered, Measured, MeasureProtocol, Race, RaceEntry, Timing
from autotune.target import load_target

ROOT = Path(__file__).resolve().parents[2]
TARGET = load_target("hopper_matmul")


def problem(m, n, k):
    return TARGET.problem_from_fields({"m": m, "n": n, "k": k})


@pytest.mark.parametrize(
    ("size", "timer", "l2", "regime", "reference"),
    [
        # 137 GFLOP take 169 us at 815 TFLOP/s
        ((4096, 4096, 4096), "cupti", "clean", "sustained", "product"),
        # 235 MB, nearly all of it weights, take 55 us at 4.3 TB/s
        ((64, 28672, 4096), "cupti", "activations_warm", "burst", "read"),
        # 33.7 MB take 7.8 us
        ((16, 4096, 4096), "chain", "activations_warm", "burst", "read"),
        # 17 GFLOP take 21 us
        ((512, 4096, 4096), "chain", "clean", "burst", "product"),
        # 59 GFLOP take 72 us: too short to settle the clock, too long for a chain
        ((2048, 3500, 4096), "cupti", "clean", "burst", "product"),
        # as large an output as there is to read: not skinny
        ((16384, 256, 256), "chain", "clean", "burst", "read"),
    ],
)
def test_auto_follows_what_bounds_the_problem(size, timer, l2, regime, reference):
    found = resolved(AUTO, problem(*size), TARGET)
    assert (found.timer, found.l2, found.regime, found.reference) == (timer, l2, regime, reference)


def test_what_a_config_says_stays():
    given = MeasureProtocol(timer="cupti", l2="warm", regime="burst", inputs="integers", rounds=7)
    found = resolved(given, problem(16, 4096, 4096), TARGET)
    assert (found.timer, found.l2, found.regime, found.inputs, found.rounds) == (
        "cupti",
        "warm",
        "burst",
        "integers",
        7,
    )
    chain = resolved(MeasureProtocol(timer="chain", regime="auto"), problem(4096, 4096, 4096), TARGET)
    assert (chain.timer, chain.regime) == ("chain", "burst")


def test_committed_best_files_and_recordings_are_read():
    best = read_best(ROOT / "results/best/nvidia_h200.json")
    entries = dict(best.entries())
    assert len(entries) >= 15
    states = [read_recorded(path).l2 for path in (ROOT / "results/recorded").glob("*.json.gz")]
    assert len(states) >= 8
    assert set(states) == {"clean", "activations_warm"}


def test_a_score_divides_the_drift_out():
    # The clock falls by a fifth in the last two samples; the fixed kernel takes 24 us at full clock.
    timing = Timing(
        samples_us=(100.0, 100.0, 125.0, 125.0, 125.0),
        l2="clean",
        reference_us=(24.0, 24.0, 30.0, 30.0, 30.0),
        reference_nominal_us=24.0,
    )
    assert timing.median_us == 125.0
    assert timing.paired_us == pytest.approx((100.0,) * 5)
    assert timing.score_us == pytest.approx(100.0)


def test_a_race_of_sessions_comes_back_from_the_ledger_and_older_records_too():
    timing = Timing(
        samples_us=(10.0,), l2="clean", reference_us=(24.0,), reference_nominal_us=24.0, joules=0.5
    )
    measured = Measured(lowered=Lowered(digest="d", lower_s=0.1), timing=timing)
    race = Race(
        entries=(RaceEntry(finalist=None, result=measured, formulation="padded", session=2),),
        ceilings={"copy_bytes_per_s": 4e12, "product_flops_per_s": 8e14},
    )
    packed = json.loads(json.dumps(pack(race)))
    assert unpack(packed) == race
    del packed["ceilings"], packed["entries"][0]["session"]
    packed["entries"][0]["result"]["timing"] = {"samples_us": [10.0], "l2": "clean"}
    old = unpack(packed).entries[0]
    assert (old.session, old.result.timing) == (0, Timing(samples_us=(10.0,), l2="clean"))


def test_a_stored_protocol_is_read_back_and_what_it_is_too_old_to_name_is_a_default():
    stored = {"timer": "chain", "l2": "warm", "rounds": 30, "warmup": 1, "of_another_version": True}
    assert stored_protocol(stored) == MeasureProtocol(timer="chain", l2="warm", rounds=30, warmup=1)
    assert stored_protocol({}).regime == "burst"
