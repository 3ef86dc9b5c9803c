"""A night's measuring on a real card."""

from __future__ import annotations

import json
import statistics

import pytest

from autotune.bestfile import read_best
from autotune.nightly import command
from autotune.nightly.config import load_night_config
from autotune.nightly.gpumeter import GpuMeter

pytestmark = pytest.mark.gpu

RUN = """
name: small
problems: [{m: 512, n: 4096, k: 4096}, {m: 1024, n: 1024, k: 1024}]
search: {candidates: 6, seconds: 20}
"""


@pytest.fixture
def night(tmp_path):
    (tmp_path / "run.yaml").write_text(RUN + f"results: {tmp_path / 'results'}\n")
    path = tmp_path / "night.yaml"
    path.write_text("run: run.yaml\nminutes: 8\ncandidates: 6\nseconds: 20\nvariants: all\n")
    return path


def test_sentinels_are_plausible_and_repeat(night):
    meter = GpuMeter(load_night_config(night))
    try:
        assert meter.unfit() is None
        first, second = meter.sentinels(), meter.sentinels()
    finally:
        meter.close()
    assert set(first) == {"copy", "fixed_kernel", "xla_dot"}
    assert 300 < first["copy"] < 3000  # 2 GiB of traffic at 0.7 to 7 TB/s
    # 32 multiply-adds a round of each of 2,048 threads on 128 lanes: 8.4 million clocks, at 1 to 2.1 GHz and with
    # at most as many clocks again for the loop.
    assert 3900 < first["fixed_kernel"] < 17000
    assert 100 < first["xla_dot"] < 2000
    for name, time_us in first.items():
        assert second[name] == pytest.approx(time_us, rel=0.15), name


def test_a_first_night_tunes_what_is_missing_and_a_second_finds_it_unchanged(night, tmp_path):
    results = tmp_path / "results"
    assert command.run(night) == 10
    (path,) = (results / "best").glob("*.json")
    entries = dict(read_best(path).entries())
    assert len(entries) == 2
    assert command.run(night) in (0, 10)
    summary = json.loads((results / "nightly" / "reports" / "latest.json").read_text())
    verdicts = [problem["verdict"] for problem in summary["problems"]]
    assert set(verdicts) <= {"unchanged", "drift", "suspect", "better"}, summary["problems"]
    assert all(problem["xla_us"] for problem in summary["problems"])
    assert 0 < summary["profile"]["locked_s"] < summary["gpu_s"]
    assert summary["profile"]["races"]["shared"] >= 2
    assert statistics.median(summary["sentinels"][name]["us"] for name in summary["sentinels"]) > 0
