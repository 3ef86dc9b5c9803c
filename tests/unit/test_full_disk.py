"""A disk that is full, for real: a limit on the size of files, at which the kernel refuses to write on."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from autotune.driver import run
from tests.helpers.scripted import (
    ScriptedConfig,
    ScriptedDevice,
    ScriptedEvaluator,
    ScriptedSearch,
    scripted_stages,
)
from tests.unit.test_driver_processes import PROGRAM, ROOT, stored_trials

BEST = """
import sys
from pathlib import Path
from autotune.bestfile import write_best
write_best(Path(sys.argv[1]), {"kind": "NVIDIA H200"}, {str(n): {"text": "x" * 1000} for n in range(100)})
"""


def limited(program: str, file_bytes: int, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"},
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes)),
    )


@pytest.mark.parametrize("file_bytes", [20_000, 20_001, 33_333])  # wherever in a record the disk ends
def test_a_run_on_a_full_disk_ends_in_one_line_and_goes_on_when_there_is_room(tmp_path, file_bytes):
    (tmp_path / "go").touch()
    done = limited(PROGRAM, file_bytes, str(tmp_path), "1", "0")
    assert done.returncode == 1
    last_line = done.stderr.splitlines()[-1]
    assert "cannot write a trial: File too large. What was recorded before is kept" in last_line
    (journal,) = (tmp_path / "trials").glob("*.journal")
    assert journal.read_bytes().endswith(b"\n")  # half a record is taken back
    kept = len(stored_trials(tmp_path))
    assert kept > 5

    evaluator = ScriptedEvaluator()
    config = ScriptedConfig(results=tmp_path, search=ScriptedSearch(sampler="random", seed=1, candidates=60))
    result = run(config, ScriptedDevice(), scripted_stages(evaluator)).problems[0]
    assert (result.counts.resumed, len(evaluator.screened)) == (kept, 60 - kept)
    assert result.winner is not None


def test_a_best_file_that_does_not_fit_leaves_the_old_one(tmp_path):
    path = tmp_path / "nvidia_h200.json"
    path.write_text("the old one")
    done = limited(BEST, 20_000, str(path))
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert path.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [path]  # nothing half written is left
