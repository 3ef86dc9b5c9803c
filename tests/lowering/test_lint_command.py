"""The command: exit codes, one line for bad input, JSON, and how long it takes."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.lint.command import main

CASES = Path(__file__).parents[1] / "check_cases"
ROOT = Path(__file__).parents[2]
KERNEL = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

def copy(source, result):
    result[...] = source[...]

def run(operand):
    result = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    return plgpu.kernel(copy, out_type=result, grid=(1,), grid_names=("block",))(operand)

def plain(operand):
    return operand + 1

def unused(operand):
    run(operand)
    return operand

def triton(operand):
    from jax.experimental.pallas import triton as plt
    return pl.pallas_call(
        copy, out_shape=jax.ShapeDtypeStruct((64, 64), jnp.float32), compiler_params=plt.CompilerParams(num_warps=4)
    )(operand)

def anybody(operand):
    return pl.pallas_call(copy, out_shape=jax.ShapeDtypeStruct((64, 64), jnp.float32))(operand)

def both(operand):
    return run(triton(operand))

def old_mosaic(operand):
    return pl.pallas_call(
        copy, out_shape=jax.ShapeDtypeStruct((64, 64), jnp.float32), compiler_params=plgpu.CompilerParams()
    )(operand)

def refuses(operand):
    raise ValueError("m must be a multiple of 128")

constant = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_kernel.py"
    path.write_text(KERNEL)
    return path


def _error(capsys, arguments):
    """Runs the command on bad input; returns the one line it prints."""
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1 and "Traceback" not in printed.err
    return printed.err


@pytest.mark.parametrize(
    ("subject", "arguments", "words"),
    [
        ("{file}", [], "expected FILE.py:FUNC"),
        ("{file}:", [], "expected FILE.py:FUNC"),
        ("{folder}/nothing.py:run", [], "nothing.py: no such file"),
        ("{folder}:run", [], ": is a folder; expected FILE.py:FUNC"),
        ("{file}:rum", ["--arg", "f32[64,64]"], "has no rum; its functions are copy, run,"),
        ("{file}:constant", ["--arg", "f32[64,64]"], "constant is no function but of type int"),
        ("{file}:run", [], "has no EXAMPLE_ARGS; define it, or give each argument as --arg"),
        ("{file}:run", ["--arg", "bf17[64]"], "unknown dtype bf17; did you mean bf16?"),
        ("{file}:run", ["--arg", "f32(64)"], "expected DTYPE[SIZE,SIZE,...]"),
        ("{file}:run", ["--arg", "f32[64,-1]"], "sizes must be positive whole numbers, got [64,-1]"),
        (
            "{file}:run",
            ["--arg", "f32[64,64]"] * 2,
            "run cannot be traced with these arguments: TypeError: run() takes 1",
        ),
        ("{file}:plain", ["--arg", "f32[64,64]"], "plain calls no Pallas Mosaic GPU kernel"),
        (
            "{file}:unused",
            ["--arg", "f32[64,64]"],
            "unused returns nothing of its kernels copy, so jit drops them",
        ),
        ("{file}:triton", ["--arg", "f32[64,64]"], "only those of another backend: copy (Triton)"),
        ("{file}:anybody", ["--arg", "f32[64,64]"], "another backend: copy (Triton or TPU"),
        ("{file}:refuses", ["--arg", "f32[64,64]"], "ValueError: m must be a multiple of 128 ("),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, file, subject, arguments, words):
    subject = subject.format(file=file, folder=file.parent)
    assert words in _error(capsys, [subject, *arguments])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "import no_such_package\n",
            "cannot be imported: ModuleNotFoundError: No module named 'no_such_package' (line 1)",
        ),
        ("def run(:\n", "cannot be imported: SyntaxError: invalid syntax (line 1)"),
        ("x = 1\nraise SystemExit(3)\n", "cannot be imported: SystemExit: 3 (line 2)"),
        (
            "def run(a):\n    return a\nEXAMPLE_ARGS = 3\n",
            "EXAMPLE_ARGS must be a tuple of the arguments, got int",
        ),
    ],
)
def test_file_that_cannot_be_used_is_one_line(capsys, tmp_path, text, words):
    path = tmp_path / "broken.py"
    path.write_text(text)
    assert words in _error(capsys, [f"{path}:run"])


def test_legal_kernel_exits_0_with_its_table(capsys, file):
    assert main([f"{file}:run", "--arg", "f32[64,64]"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("run: legal (1 kernel, walked in ")
    assert "SMEM: 0 of 232,448 bytes" in out


def test_kernel_of_another_backend_beside_ours_is_said_not_guessed_at(capsys, file):
    assert main([f"{file}:both", "--arg", "f32[64,64]"]) == 0
    assert "note: kernel copy was not checked: its backend is Triton" in capsys.readouterr().out


def test_mosaic_gpu_through_pallas_call_is_a_fault(capsys, file):
    assert main([f"{file}:old_mosaic", "--arg", "f32[64,64]", "--json"]) == 1
    [fault] = json.loads(capsys.readouterr().out)["faults"]
    assert (fault["rule"], fault["exception"], fault["message"]) == ("unsupported", "AssertionError", "")


def test_json_has_the_documented_form(capsys):
    assert main([f"{CASES / 'acc_in_scratch_types.py'}:run", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    [fault] = report["faults"]
    assert {"rule", "message", "file", "line", "buffers", "mend"} <= set(fault)
    assert (fault["rule"], fault["line"], fault["stage"], fault["exception"]) == (
        "main",
        15,
        "lower",
        "ValueError",
    )
    assert fault["buffers"] == [
        {
            "name": "acc",
            "kind": "accumulator",
            "shape": [128, 128],
            "dtype": "float32",
            "bytes": 65_536,
            "smem_bytes": 0,
            "line": 15,
        }
    ]
    [scope] = report["scopes"]
    assert (scope["depth"], scope["collective_axes"], scope["total_smem_bytes"]) == (0, ["wg"], 0)
    assert scope["smem_limit_bytes"] == 232_448


def test_what_the_file_writes_below_python_stays_out_of_the_json(tmp_path):
    path = tmp_path / "loud.py"
    path.write_text(
        "import atexit, ctypes, os\n"
        "os.write(1, b'one'); os.system('echo two'); ctypes.CDLL(None).puts(b'three')\n"
        "atexit.register(lambda: os.write(1, b'four')); atexit.register(print, 'five')\n"
        "def run(x): return x\n"
        "EXAMPLE_ARGS = (1.0,)\n"
        f"exec(open({str(CASES / 'legal_split.py')!r}).read())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "check", f"{path}:run", "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "kernels")))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] is True
    for word in ("one", "two", "three", "four", "five"):
        assert word in done.stderr


def test_what_the_file_prints_stays_out_of_the_json(capsys, tmp_path):
    path = tmp_path / "chatty.py"
    path.write_text(
        KERNEL.replace("def run(operand):", "def run(operand):\n    print('tracing')") + "print('imported')\n"
    )
    assert main([f"{path}:run", "--arg", "f32[64,64]", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["ok"] is True
    assert printed.err.split() == ["imported", "tracing"]


def test_arguments_replace_the_files_own(capsys):
    case = CASES / "legal_split.py"
    assert main([f"{case}:run", "--arg", "bf16[128,64]", "--arg", "bf16[64,128]"]) == 0
    capsys.readouterr()
    assert (
        main([f"{case}:run", "--arg", "bf16[128,32]", "--arg", "bf16[64,128]"]) == 1
    )  # the copy's shapes differ
    assert "raised while tracing" in capsys.readouterr().out


def test_file_may_import_what_lies_beside_it(capsys, tmp_path):
    (tmp_path / "sizes_beside.py").write_text("ROWS = 64\n")
    path = tmp_path / "user.py"
    path.write_text(
        KERNEL
        + "\nfrom sizes_beside import ROWS\nEXAMPLE_ARGS = (jax.ShapeDtypeStruct((ROWS, 64), jnp.float32),)\n"
    )
    assert main([f"{path}:run"]) == 0


def test_command_takes_less_than_three_seconds_with_its_start():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subject = f"{CASES / 'smem_over_the_limit.py'}:run"
    command = [sys.executable, "-m", "autotune.lint.command", subject]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 1, done.stderr
    assert "smem_bytes=327680 > max_smem_bytes=232448" in done.stdout
    # Time on the CPU: what waits for other processes of a busy machine is not the command's.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3.0


def test_a_function_that_ends_the_process_is_not_legal(tmp_path, capsys):
    path = tmp_path / "ends.py"
    path.write_text("import sys\n\n\ndef run(x):\n    sys.exit(0)\n")
    assert main([f"{path}:run", "--arg", "f32[8]"]) == 2
    assert "SystemExit" in capsys.readouterr().err
