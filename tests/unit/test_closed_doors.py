"""What a user's surroundings can do to a command: closed streams, a missing package, a folder that is not there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.best_entries import best_file, entry

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


def test_a_path_that_the_terminal_cannot_show_is_escaped(tmp_path):
    folder = tmp_path / "r\u00e9sultats"
    best_file(folder / "best", entry())
    done = shell("autotune doctor", AUTOTUNE_RESULTS=str(folder), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "r\\xe9sultats/best/nvidia_h200.json: NVIDIA H200, 1 problems" in done.stdout


def test_a_full_disk_behind_standard_output_is_one_line():
    done = shell("autotune doctor > /dev/full")
    assert (done.returncode, done.stderr) == (1, "autotune: error: No space left on device\n")


def test_a_missing_package_is_one_line(tmp_path):
    (tmp_path / "yaml.py").write_text("raise ModuleNotFoundError(\"No module named 'yaml'\", name='yaml')\n")
    path = f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"
    done = shell("autotune run configs/quickstart.yaml --dry-run", PYTHONPATH=path)
    assert done.returncode == 1
    assert done.stderr == (
        "autotune: error: yaml is not installed; install hopper-autotune with what it needs, as the README says\n"
    )


# A name that is too long is refused by the system like a folder that may not be entered.
@pytest.mark.parametrize("folder", ["/nowhere/at/all", "/" + "x" * 300])
def test_a_results_folder_that_is_not_there_is_said_aloud(folder):
    done = shell("autotune best 4096 4096 4096", AUTOTUNE_RESULTS=folder)
    assert done.returncode == 0
    assert f"AUTOTUNE_RESULTS={folder}: is no folder; the shipped results answer" in done.stderr
