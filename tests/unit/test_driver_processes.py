"""Several processes on one results folder, and a process that is killed while it records."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna

from tests.helpers.scripted import (
    ScriptedConfig,
    ScriptedDevice,
    ScriptedEvaluator,
    ScriptedSearch,
    scripted_stages,
)

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys, time
from pathlib import Path
from tests.helpers.scripted import *
from autotune.driver import run

folder, seed, pause_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
config = ScriptedConfig(results=folder, search=ScriptedSearch(sampler="random", seed=seed, candidates=60))
evaluator = ScriptedEvaluator(on_answer=lambda count: time.sleep(pause_s))
(folder / f"ready{seed}").touch()
while not (folder / "go").exists():
    time.sleep(0.01)
result = run(config, ScriptedDevice(), scripted_stages(evaluator)).problems[0]
print(len(evaluator.screened), result.winner is not None)
"""


def started(folder, seed, pause_s=0.002):
    command = [sys.executable, "-c", PROGRAM, str(folder), str(seed), str(pause_s)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def stored_trials(folder):
    (path,) = (folder / "trials").glob("*.journal")
    # Optuna's own backend reads it too: nothing in the file is ours alone.
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    (study,) = storage.get_all_studies()
    return storage.get_all_trials(study._study_id)


def test_two_processes_share_a_study_and_each_keeps_its_budget(tmp_path):
    processes = [started(tmp_path, seed) for seed in (1, 2)]
    # Importing takes longer than measuring: without this the first may be done before the second begins.
    deadline_s = time.monotonic() + 30
    while len(list(tmp_path.glob("ready*"))) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.005)
    (tmp_path / "go").touch()
    outputs = [process.communicate(timeout=60)[0].split() for process in processes]
    counts = [int(count) for count, _ in outputs]
    assert [process.returncode for process in processes] == [0, 0] and [won for _, won in outputs] == [
        "True",
        "True",
    ]
    screens = [trial for trial in stored_trials(tmp_path) if trial.user_attrs["kind"] == "screen"]
    by_session = {}
    for trial in screens:
        by_session[trial.user_attrs["session"]] = by_session.get(trial.user_attrs["session"], 0) + 1
    assert sorted(by_session.values()) == sorted(counts)
    # Each measures up to 60 of its own: fewer only where the other had recorded some before it opened the study.
    assert all(0 < count <= 60 for count in counts) and len(screens) >= 60


def test_a_process_killed_at_any_moment_leaves_a_study_that_goes_on(tmp_path):
    process = started(tmp_path, seed=1, pause_s=0.02)
    (tmp_path / "go").touch()
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        journals = list((tmp_path / "trials").glob("*.journal"))
        if journals and journals[0].read_bytes().count(b"\n") > 20:
            break
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    kept = len(stored_trials(tmp_path))
    assert kept >= 18

    from autotune.driver import run

    evaluator = ScriptedEvaluator()
    config = ScriptedConfig(results=tmp_path, search=ScriptedSearch(sampler="random", seed=1, candidates=60))
    began_s = time.monotonic()
    result = run(config, ScriptedDevice(), scripted_stages(evaluator)).problems[0]
    assert result.counts.resumed == kept and result.counts.measured == 60 == kept + len(evaluator.screened)
    assert time.monotonic() - began_s < 10  # no stale lock is waited for
