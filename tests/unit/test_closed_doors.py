"""What a user's surroundings can do to a command: closed streams, a missing package, a folder that is not there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}"}


def shell(command: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", "-c", command.replace("autotune", f"{sys.executable} -m autotune", 1)],
        env=ENVIRONMENT | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_error(closed):
    done = shell(f"autotune best 4096 4096 4096 {closed}")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_missing_package_is_one_line(tmp_path):
    (tmp_path / "yaml.py").write_text("raise ModuleNotFoundError(\"No module named 'yaml'\", name='yaml')\n")
    path = f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"
    done = shell("autotune run configs/quickstart.yaml --dry-run", PYTHONPATH=path)
    assert done.returncode == 1
    assert done.stderr == (
        "autotune: error: yaml is not installed; install hopper-autotune with what it needs, as the README says\n"
    )


def test_a_results_folder_that_is_not_there_is_said_aloud():
    done = shell("autotune best 4096 4096 4096", AUTOTUNE_RESULTS="/nowhere/at/all")
    assert done.returncode == 0
    assert "AUTOTUNE_RESULTS=/nowhere/at/all: is no folder; the shipped results answer" in done.stderr
