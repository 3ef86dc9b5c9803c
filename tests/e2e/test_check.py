"""`autotune check` on a run config, and its audit, as a user runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def check(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "autotune", "check", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.fixture
def config(tmp_path):
    def write(space: str, sizes: str = "m: 4096, n: 4096, k: 4096") -> str:
        path = tmp_path / "config.yaml"
        path.write_text(
            f"device: NVIDIA H200\nevaluator: lower\nproblems: [{{{sizes}}}]\nspace: {{{space}}}\n"
        )
        return str(path)

    return write


SMALL = (
    "tile_m: [128], tile_n: [128], tile_k: [64], compute_wgs: [2], wg_split: [m], epi_m: [64], epi_n: [64], "
    "cluster_m: [1], cluster_n: [1], delay_release: [0], persistent: [true], grid_minor: [m], raster_width: [8]"
)


def test_a_space_is_counted_by_rule_with_an_example_and_its_mend(config):
    # 2 plans x 3 depths: the collective accumulator is rejected at each depth; 8 slots of 32 KiB do not fit 227 KiB.
    path = config(f"{SMALL}, scopes: [joint, acc_collective], stages: [3, 4, 8]")
    done = check(path, "--json")
    assert done.returncode == 0, done.stderr
    (problem,) = json.loads(done.stdout)["problems"]
    rejected = {one["rule"]: one for one in problem["rejected"]}
    assert (problem["raw"], problem["legal"]) == (6, 2)
    assert {rule: one["count"] for rule, one in rejected.items()} == {"main": 3, "smem": 1}
    assert "WGMMA accumulators can only be allocated non-collectively" in rejected["main"]["message"]
    assert rejected["main"]["mend"] == {"scopes": "joint"}
    assert problem["unused"] == {"scopes": ["acc_collective"], "stages": [8]}
    text = check(path).stdout
    assert "2 of 6 configurations are legal (33.33%)" in text
    assert "\nin none of them: scopes acc_collective; stages 8\n" in text
    assert "mend: scopes=joint" in text


def test_a_space_in_which_nothing_is_legal_exits_with_3(config):
    done = check(config(f"{SMALL}, scopes: [acc_collective], stages: [3]"))
    assert done.returncode == 3
    assert "main" in done.stdout
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--audit", "0"], "--audit=0"),
        (["--audit", "5", "--json"], "only --seed"),
        (["configs/missing.yaml"], "no such file"),
        (["configs/quickstart.yaml", "--arg", "f32[1]"], "--arg goes with"),
        (
            [],
            "nothing to check; expected FILE.py:FUNC, for instance my_kernel.py:run, a run config, or --audit",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, says):
    done = check(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_audit_prints_both_tiers_and_agrees():
    done = check("--audit", "25", "--seed", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "25 random configurations, seed 7" in done.stdout
    assert "25 generated functions, seed 7" in done.stdout
    assert done.stdout.count("false accepts 0, false rejects 0") == 2
    assert "both tiers agree" in done.stdout
