"""The built wheel, installed alone into an empty environment: no dependency, no source tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    kept = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "AUTOTUNE_RESULTS")
    }
    environment = {**kept, **variables}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (path,) = folder.glob("hopper_autotune-*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("empty")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    install = ("-m", "pip", "-q", "--python", python, "install", "--no-deps", "--no-index", wheel)
    run(sys.executable, *install, cwd=folder)
    return python


def test_the_wheel_holds_both_packages_the_best_files_and_no_package_kernels(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"autotune", "hopper_matmul"}
    shipped = {Path(name).name for name in names if name.startswith("autotune/_results/best/")}
    assert shipped == {path.name for path in (ROOT / "results" / "best").iterdir()}


def test_the_command_line_works_without_any_dependency(python, tmp_path):
    assert "run" in run(python.with_name("autotune"), "--help", cwd=tmp_path)
    assert run(python.with_name("autotune"), "--version", cwd=tmp_path).startswith("hopper-autotune 0.")


def test_the_lookup_answers_from_the_wheel_without_any_dependency(python, tmp_path):
    """Each entry that ships is found as it stands; where nothing ships yet, the heuristic answers."""
    script = """
import json, autotune
from autotune import lookup
(folder,) = lookup.best_folders()
print(folder)
for path in sorted(folder.glob("*.json")):
    for key, entry in lookup.read_best(path).entries():
        fields = entry.problem.to_fields()
        fields["dtype"] = fields.pop("lhs_dtype")
        device = json.loads(path.read_text())["device"]["kind"]
        assert autotune.best_config(**fields, device=device).match == "exact", key
print(autotune.best_config(4096, 4096, 4096, device="NVIDIA GH200 480GB").config.to_knobs()["tile_m"])
"""
    folder, tile_m = run(python, "-c", script, cwd=tmp_path).split()
    assert folder.endswith("site-packages/autotune/_results/best")
    assert int(tile_m) % 64 == 0
    assert json.loads(run(python, "-m", "autotune", "best", "4096", "4096", "4096", "--json", cwd=tmp_path))[
        "backend"
    ]


def test_a_bare_source_tree_works_without_any_install(tmp_path):
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare", cwd=tmp_path)
    python = tmp_path / "bare" / "bin" / "python"
    assert "run" in run(python, "-m", "autotune", "--help", cwd=ROOT, PYTHONPATH=".:kernels")
