"""What the parent of the workers decides without any of them: their number and their environment."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from autotune.errors import InputError
from autotune.evaluate import make_evaluator
from autotune.evaluate.capacity import default_workers, free_memory_bytes, workers_that_fit
from autotune.evaluate.child_environment import worker_environment
from autotune.evaluate.gpulock import lock_path
from autotune.evaluate.process import WorkerProcess
from autotune.seam import Limits, MeasureProtocol
from tests.helpers.fake_target import FakeDevice, load_fake_target
from tests.unit.test_recorded import recorded

GIB = 2**30


def _make(kind, **fields):
    return make_evaluator(
        kind,
        target_name="fake",
        protocol=MeasureProtocol(),
        limits=Limits(),
        target_loader=load_fake_target,
        **fields,
    )


def test_workers_are_capped_by_cores_and_memory(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    assert default_workers(on_gpu=True, memory_bytes=128 * GIB) == 16
    assert default_workers(on_gpu=True, memory_bytes=9 * GIB) == 4  # 2 GiB each
    assert default_workers(on_gpu=False, memory_bytes=9 * GIB) == 9  # 1 GiB each
    assert default_workers(on_gpu=True, memory_bytes=0) == 1


def test_the_cgroup_limits_the_free_memory(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       32768 kB\nMemAvailable:   16384 kB\n")
    assert free_memory_bytes(meminfo, tmp_path) == 16384 * 1024
    (tmp_path / "memory.current").write_text("3000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory_bytes(meminfo, tmp_path) == 16384 * 1024
    (tmp_path / "memory.max").write_text("5000\n")
    assert free_memory_bytes(meminfo, tmp_path) == 2000


def test_a_problem_takes_its_share_of_the_card():
    assert workers_that_fit(None, 5 * GIB) is None
    assert workers_that_fit(100 * GIB, int(3.25 * GIB)) == 18  # 90 / (3.25 + 1.75)
    assert workers_that_fit(10 * GIB, 80 * GIB) == 1


def test_a_gpu_worker_sees_one_card_and_reserves_none_of_it():
    environment = worker_environment(
        {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform", "PYTHONFAULTHANDLER": "1", "KEPT": "yes"},
        gpu_uuid="GPU-7",
    )
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-7"
    assert environment["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert environment["KEPT"] == "yes"
    assert "XLA_PYTHON_CLIENT_ALLOCATOR" not in environment
    assert "PYTHONFAULTHANDLER" not in environment


def test_a_lowering_worker_sees_no_gpu():
    environment = worker_environment({"CUDA_VISIBLE_DEVICES": "0", "JAX_PLATFORMS": "cuda"})
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["JAX_PLATFORMS"] == "cpu"


def test_the_lock_is_named_by_the_card():
    assert lock_path("GPU-1") != lock_path("GPU-2")
    assert "GPU-1" in lock_path("GPU-1").name


def test_the_last_line_is_the_last_that_says_something():
    process = WorkerProcess.__new__(WorkerProcess)
    process._kept = (
        b"begin\nF1130 Check failed: \x00status\n*** Check failure stack trace: ***\n    @ 0x7f (unknown)\n\n"
    )
    assert process.last_line() == "F1130 Check failed:  status"


@dataclass(frozen=True)
class _OtherDevice:
    kind: str = "Other Hopper"


def test_what_an_evaluator_lacks_is_said_before_a_worker_starts():
    with pytest.raises(InputError, match="evaluator gpu: there is no GPU to measure on"):
        _make("gpu")
    with pytest.raises(InputError, match="evaluator replay: no recorded space fits this problem"):
        _make("replay")
    with pytest.raises(InputError, match="recorded for other, not fake"):
        _make("replay", recorded=[recorded(target="other")])
    with pytest.raises(InputError, match="recorded on Fake Hopper, not on Other Hopper"):
        _make("replay", recorded=[recorded()], device=_OtherDevice())
    with pytest.raises(InputError, match="workers=0: at least 1 is needed"):
        _make("lower", workers=0, device=FakeDevice())


def test_the_parent_loads_no_jax():
    script = (
        "import sys; from autotune.evaluate import make_evaluator; from autotune.seam import *;"
        "from tests.helpers.fake_target import load_fake_target;"
        "make_evaluator('lower', target_name='fake', protocol=MeasureProtocol(), limits=Limits(), workers=1,"
        " target_loader=load_fake_target).close();"
        "sys.exit(any(name in sys.modules for name in ('jax', 'numpy', 'optuna', 'pandas')))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", script], env=environment).returncode == 0
