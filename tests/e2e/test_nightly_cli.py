"""The verb nightly in a process of its own, where there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.best_entries import best_file, entry

ROOT = Path(__file__).resolve().parents[2]


def autotune(*arguments, cwd):
    search = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    return subprocess.run(
        [sys.executable, "-m", "autotune", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": search, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def night(tmp_path):
    (tmp_path / "run.yaml").write_text("problems: [{m: 4096, n: 4096, k: 4096}]\n")
    (tmp_path / "night.yaml").write_text("run: run.yaml\n")
    return tmp_path


def test_without_a_gpu_the_machine_is_unfit_and_no_winner_is_touched(night):
    path = best_file(night / "results" / "best", entry())
    before = path.read_bytes()
    done = autotune("nightly", "night.yaml", cwd=night)
    assert (done.returncode, done.stdout) == (30, "")
    assert done.stderr.startswith("autotune: error: there is no Hopper GPU here")
    assert done.stderr.count("\n") == 1
    assert path.read_bytes() == before


def test_without_a_gpu_the_latest_report_is_of_this_night_and_says_why(night):
    reports = night / "results" / "nightly" / "reports"
    reports.mkdir(parents=True)
    for name in ("latest.txt", "latest.json"):
        (reports / name).write_text("all quiet, the night before\n")
    assert autotune("nightly", "night.yaml", cwd=night).returncode == 30
    assert (
        (reports / "latest.txt").read_text().startswith("run-nightly: nothing measured: there is no Hopper")
    )
    told = json.loads((reports / "latest.json").read_text())
    assert (told["exit_code"], told["machine"]) == (30, None)
    (page,) = reports.glob("*.md")
    assert "Exit code 30. No Hopper GPU." in page.read_text()


def test_a_wrong_config_is_bad_input_and_writes_nothing(night):
    (night / "night.yaml").write_text("run: run.yaml\nminutes: long\n")
    done = autotune("nightly", "night.yaml", cwd=night)
    assert done.returncode == 2
    assert "night.yaml: minutes='long': allowed: a number above 0" in done.stderr
    assert not (night / "results").exists()


@pytest.mark.parametrize(
    ("key", "arguments", "said"),
    [
        (
            "results: night.yaml/x",
            [],
            "night.yaml: results='night.yaml/x': allowed: a folder that can be written",
        ),
        (
            "",
            ["--results", "/proc/x"],
            "--results='/proc/x': allowed: a folder that can be written, but /proc/x",
        ),
    ],
)
def test_results_that_cannot_be_kept_are_bad_input_before_anything_is_measured(night, key, arguments, said):
    (night / "night.yaml").write_text(f"run: run.yaml\n{key}\n")
    done = autotune("nightly", "night.yaml", *arguments, cwd=night)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"autotune: error: {said}") and done.stderr.count("\n") == 1


def test_a_storage_that_does_not_answer_is_bad_input_of_the_run_config(night):
    with (night / "run.yaml").open("a") as stream:
        stream.write("storage: mysql+pymysql://me:secret@host/db\n")
    done = autotune("nightly", "night.yaml", cwd=night)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "autotune: error: run.yaml: storage='mysql+pymysql://me:***@host/db': cannot"
    )
    assert not (night / "results").exists()
