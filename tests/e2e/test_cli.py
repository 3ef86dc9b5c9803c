"""The command line in processes of its own: output, exit codes, and what a bad input leaves behind."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.helpers.best_entries import best_file, entry

ROOT = Path(__file__).resolve().parents[2]
# Four configurations, of which the two with a collective accumulator are illegal.
SMALL = """
evaluator: lower
device: NVIDIA H200
problems: [{m: 256, n: 256, k: 256}]
space: {tile_m: [64], tile_n: [64], tile_k: [64], stages: [2, 3], compute_wgs: [1], wg_split: [m], cluster_m: [1],
        cluster_n: [1], grid_minor: [m], raster_width: [1], persistent: [true], epi_m: [64], epi_n: [64],
        delay_release: [0], memory_registers: [40], swap_ab: [false], pdl: [false], scopes: [joint, acc_collective]}
search: {candidates: 8, seconds: 60}
"""


def autotune(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "autotune", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment(**variables), capture_output=True, text=True, timeout=120
    )


def environment(**variables: str) -> dict[str, str]:
    """Returns that of a bare source tree on a machine without a GPU."""
    search = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    return {**os.environ, "PYTHONPATH": search, "CUDA_VISIBLE_DEVICES": "", **variables}


def failed(done: subprocess.CompletedProcess[str], code: int) -> str:
    """Returns the one line on stderr of a command that ended with `code`."""
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.strip()


def test_a_run_lowers_its_candidates_and_goes_on_where_it_stopped(tmp_path):
    (tmp_path / "run.yaml").write_text(SMALL)
    done = autotune("run", "run.yaml", "--workers", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first == "evaluator lower: as asked; candidates are lowered for NVIDIA H200, nothing is measured"
    assert rest[-1].split()[:8] == ["256x256x256", "bfloat16", "nn", "4", "2", "2", "0", "0"]
    assert not (tmp_path / "results" / "best").exists()
    again = autotune("run", "run.yaml", "--workers", "1", cwd=tmp_path)
    assert again.returncode == 0
    assert "2 candidates recorded" in again.stderr


def test_a_dry_run_counts_and_writes_nothing(tmp_path):
    (tmp_path / "run.yaml").write_text(SMALL)
    done = autotune("run", "run.yaml", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split()[:6] == ["256x256x256", "bfloat16", "nn", "4", "2", "2"]
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_a_terminal_gets_tables_of_its_width_and_a_pipe_one_line_a_row(tmp_path):
    (tmp_path / "run.yaml").write_text(SMALL)
    reader, writer = pty.openpty()
    termios.tcsetwinsize(writer, (40, 50))
    command = [sys.executable, "-m", "autotune", "run", "run.yaml", "--dry-run"]
    variables = {name: value for name, value in environment().items() if name not in ("COLUMNS", "LINES")}
    done = subprocess.run(command, cwd=tmp_path, env=variables, stdout=writer, timeout=60)
    os.close(writer)
    lines = os.read(reader, 10_000).decode().splitlines()
    os.close(reader)
    assert done.returncode == 0
    assert lines[1:] == [
        "problem                  raw  legal  rejected",
        "-----------------------  ---  -----  --------",
        "256x256x256 bfloat16 nn    4      2         2",
        "  main 2",
    ]
    piped = autotune("run", "run.yaml", "--dry-run", cwd=tmp_path).stdout
    assert piped.splitlines()[-1] == "256x256x256 bfloat16 nn    4      2         2  main 2"


@pytest.mark.parametrize(
    ("change", "arguments", "said"),
    [
        (("stages: [2, 3]", "stage: [2]"), [], "run.yaml: space.stage: unknown key (did you mean 'stages'?)"),
        (("stages: [2, 3]", "stages: [0]"), [], "run.yaml: space.stages"),
        (("m: 256", "m: 0"), [], "run.yaml: problems[0].m=0: allowed: a whole number from 1 to"),
        (("", ""), ["--candidates", "0"], "--candidates=0: allowed: a whole number from 1 to 1000000"),
        (("", ""), ["--workers", "0"], "--workers=0: allowed: a whole number from 1 to 1024"),
        (
            ("", ""),
            ["--evaluator", "gpu"],
            "run.yaml: evaluator=gpu: no Hopper GPU here; use auto, replay or lower",
        ),
        (
            ("", ""),
            ["--results", "run.yaml"],
            "--results='run.yaml': allowed: a folder that can be written, but run.yaml is a file",
        ),
        (
            ("", ""),
            ["--results", "/proc/x"],
            "--results='/proc/x': allowed: a folder that can be written, but",
        ),
        (
            ("search:", "results: run.yaml/x\nsearch:"),
            [],
            "run.yaml: results='run.yaml/x': allowed: a folder that can be written, but run.yaml is a file",
        ),
        (
            ("search:", "storage: oracle+none://me:secret@host\nsearch:"),
            [],
            "run.yaml: storage='oracle+none://me:***@host': cannot be opened: ",
        ),
        (("m: 256", "m: 0400"), [], "run.yaml: line 4, column 16: '0400' could be meant as octal"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_and_writes_nothing(tmp_path, change, arguments, said):
    (tmp_path / "run.yaml").write_text(SMALL.replace(*change) if change[0] else SMALL)
    line = failed(autotune("run", "run.yaml", *arguments, cwd=tmp_path), 2)
    assert line.startswith(f"autotune: error: {said}")
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_nothing_legal_is_exit_code_3(tmp_path):
    # WGMMA has 64 rows
    (tmp_path / "run.yaml").write_text(SMALL.replace("tile_m: [64]", "tile_m: [96]"))
    for options in (["--dry-run"], ["--workers", "1"]):
        done = autotune("run", "run.yaml", *options, cwd=tmp_path)
        assert done.returncode == 3
        assert "256x256x256" in done.stderr.splitlines()[-1]


def test_recording_needs_a_gpu(tmp_path):
    (tmp_path / "run.yaml").write_text(SMALL)
    assert "only gpu can record" in failed(autotune("record", "run.yaml", cwd=tmp_path), 2)
    (tmp_path / "run.yaml").write_text("problems: [{m: 128, n: 128, k: 128}]\n")
    said = failed(autotune("record", "run.yaml", cwd=tmp_path), 2)
    assert "run.yaml: no Hopper GPU here; run it on a host with an H100, H200 or GH200" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: VERB; see autotune --help"),
        (["tune"], "argument VERB: invalid choice: 'tune' "),
        (["run"], "the following arguments are required: CONFIG; see autotune run --help"),
        (["record"], "the following arguments are required: CONFIG; see autotune record --help"),
        (["nightly"], "the following arguments are required: CONFIG; see autotune nightly --help"),
        (["run", "a", "b"], "unknown argument 'b'; see autotune run --help"),
        (
            ["run", "a", "--candidate=1", "--freshh"],
            "unknown argument '--freshh' (did you mean '--fresh'?); see autotune run --help",
        ),
        (
            ["run", "a", "--candidates", "1e3"],
            "argument --candidates: '1e3' is not a whole number, such as 128;",
        ),
        (["run", "a", "--seconds", "1m"], "argument --seconds: '1m' is not a number, such as 2.5;"),
        (
            ["best", "64", "64"],
            "M N K are needed, as in: autotune best 4096 4096 4096; see autotune best --help",
        ),
        (
            ["best", "a", "64", "64"],
            "argument M: 'a' is not a whole number, such as 128; see autotune best --help",
        ),
        (["bench", "64", "x", "64"], "argument M N K: 'x' is not a whole number"),
        (["check", "--audit", "many"], "argument --audit: 'many' is not a whole number"),
        (["doctor", "--yaml"], "unknown argument '--yaml'; see autotune doctor --help"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(tmp_path, arguments, said):
    line = failed(autotune(*arguments, cwd=tmp_path), 2)
    assert line.startswith(f"autotune: error: {said}")


def test_a_kernel_family_that_is_not_on_the_path_is_one_line(tmp_path):
    (tmp_path / "run.yaml").write_text(SMALL)
    # An installed package is on every path; this says that it is on none.
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hiding:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'hopper_matmul':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hiding())\n"
    )
    path = os.pathsep.join((str(hiding), str(ROOT)))
    line = failed(autotune("run", "run.yaml", cwd=tmp_path, PYTHONPATH=path), 1)
    assert "hopper_matmul is not found; from a source tree start with PYTHONPATH=.:kernels" in line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("stream", "awaited"), [("stderr", "argparse"), ("stderr", "optuna"), ("stdout", "evaluator lower")]
)
def test_a_run_that_is_told_to_end_says_so_in_one_line(tmp_path, number, stream, awaited):
    """While it loads its first modules, while it loads its last ones, and while it lowers."""
    (tmp_path / "run.yaml").write_text(SMALL.replace("stages: [2, 3]", "stages: [1, 2, 3, 4, 5, 6]"))
    command = [sys.executable, "-X", "importtime", "-m", "autotune", "run", "run.yaml", "--workers", "1"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in getattr(process, stream):
        if awaited in line:
            break
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    lines = [line for line in errors.splitlines() if not line.startswith("import time:")]
    assert process.returncode == 130, lines
    assert lines[-1] == "autotune: interrupted" and "Traceback" not in errors


def test_best_prints_what_the_lookup_answers_and_how_it_was_found(tmp_path):
    path = best_file(tmp_path / "best", entry())
    asked = ("best", "4096", "4096", "4096", "--device", "NVIDIA H200")
    done = autotune(*asked, cwd=tmp_path, AUTOTUNE_RESULTS=str(tmp_path))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:4] == [
        "match    exact",
        f"found    4096x4096x4096 bfloat16 nn on NVIDIA H200, {path}",
        "backend  kernel",
        "time     100.00 us; XLA 110.00 us",
    ]
    assert lines[-1].startswith("config   tile_m=128 tile_n=128 tile_k=64 stages=4 ")
    answer = json.loads(autotune(*asked, "--json", cwd=tmp_path, AUTOTUNE_RESULTS=str(tmp_path)).stdout)
    assert (answer["match"], answer["time_us"], answer["config"]["tile_m"]) == ("exact", 100.0, 128)
    assert answer["ratio"] == {"low": 1.09, "median": 1.1, "high": 1.11}


def test_best_takes_the_dtype_by_the_name_that_run_configs_give_it():
    asked = ("best", "4096", "4096", "4096", "--device", "NVIDIA H200", "--json")
    said = [autotune(*asked, option, "float16", cwd=ROOT).stdout for option in ("--dtype", "--lhs-dtype")]
    assert said[0] == said[1] and json.loads(said[0])["problem"]["lhs_dtype"] == "float16"


def test_best_refuses_an_impossible_problem_and_an_unmeasured_one(tmp_path):
    done = autotune("best", "0", "64", "64", cwd=tmp_path)
    assert failed(done, 2) == "autotune: error: m=0: allowed: a whole number from 1 to 2147483647"
    asked = ("best", "192", "192", "192", "--policy", "exact", "--device", "nvidia_gh200_480gb")
    assert "was not measured on NVIDIA GH200 480GB" in failed(autotune(*asked, cwd=tmp_path), 2)


def test_best_takes_a_batch_with_a_shared_operand(tmp_path):
    best_file(tmp_path / "best", entry())
    asked = ("best", "512", "4096", "4096", "--broadcast", "rhs", "--device", "NVIDIA H200")
    done = autotune(*asked, "--batch", "8", cwd=tmp_path, AUTOTUNE_RESULTS=str(tmp_path))
    assert done.stdout.splitlines()[1].startswith("found    4096x4096x4096 bfloat16 nn on NVIDIA H200")
    assert failed(autotune(*asked, cwd=tmp_path), 2) == (
        "autotune: error: broadcast='rhs': allowed: none where batch is 1, since nothing shares an operand"
    )


def test_best_warns_in_one_line_of_a_torn_file(tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "nvidia_h200.json").write_text("{")
    done = autotune(
        "best", "64", "64", "64", "--device", "nvidia_h200", cwd=tmp_path, AUTOTUNE_RESULTS=str(tmp_path)
    )
    assert done.returncode == 0
    assert done.stderr.startswith(f"autotune: warning: {tmp_path}/best/nvidia_h200.json: is not JSON")
    assert done.stderr.count("\n") == 1


def test_doctor_says_what_is_here(tmp_path):
    best_file(tmp_path / "best", entry())
    done = autotune("doctor", cwd=tmp_path, AUTOTUNE_RESULTS=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "gpus       none that NVML lists and CUDA_VISIBLE_DEVICES admits" in done.stdout
    assert f"best file  {tmp_path}/best/nvidia_h200.json: NVIDIA H200, 1 problems" in done.stdout


def test_doctor_prints_one_json_object(tmp_path):
    best_file(tmp_path / "best", entry())
    (tmp_path / "best" / "torn.json").write_text("{")
    done = autotune("doctor", "--json", cwd=tmp_path, AUTOTUNE_RESULTS=str(tmp_path))
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert list(facts) == ["python", "versions", "gpus", "evaluator", "best_files"]
    assert (facts["gpus"], facts["versions"]["driver"]) == ([], None)
    sound, torn = facts["best_files"][:2]
    assert (sound["kind"], sound["problems"], sound["error"]) == ("NVIDIA H200", 1, None)
    assert (torn["kind"], torn["problems"]) == (None, 0) and torn["error"].startswith("is not JSON")


def test_check_reports_a_fault_by_exit_code_1(tmp_path):
    case = ROOT / "tests" / "check_cases" / "acc_in_scratch_types.py"
    assert autotune("check", f"{case}:run", cwd=tmp_path).returncode == 1
    assert autotune("check", f"{case.with_name('legal_split.py')}:run", cwd=tmp_path).returncode == 0
    assert autotune("check", "none.py:run", cwd=tmp_path).returncode == 2


def test_a_reader_that_goes_away_is_no_error_to_see(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "doctor"],
        cwd=tmp_path,
        env=environment(),
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_interrupt_is_exit_code_130_without_a_traceback(tmp_path):
    script = """
import os, signal, sys
from autotune import cli, doctor
doctor.facts = lambda: os.kill(os.getpid(), signal.SIGINT)
sys.exit(cli.main(["doctor"]))
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (130, "autotune: interrupted\n")
