"""What NVML says of a card, and what follows from it; on cards that are made up."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from autotune import admission
from autotune.errors import InputError
from autotune.gpuwatch import GpuWatch, ancestry
from autotune.health import (
    GpuHealth,
    GpuHealthError,
    GpuProcess,
    damage,
    gpu_health,
    occupation,
    unfit_reason,
)
from autotune.machine import GpuInfo

UUID = "GPU-70f8"
SOUND = GpuHealth(
    uuid=UUID,
    kind="NVIDIA H200",
    throttle=("gpu_idle",),
    ecc_uncorrected=0,
    rows_failed=False,
    xids=(),
    processes=(),
    others=(),
    memory_used_bytes=600 * 2**20,
    busy_percent=0,
    mig=False,
)
SOMEONE = GpuProcess(pid=4711, name="python")


class Nvml:
    """NVML of one idle H200; `answers` replace its own, an exception is raised."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU, NVML_VOLATILE_ECC = 1, 2, 0, 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    class NVMLError(Exception):
        pass

    def __init__(self, **answers):
        self.is_open = False
        self.xids = []
        self.answers = {
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetHandleByUUID": "handle",
            "nvmlDeviceGetUUID": UUID.encode(),
            "nvmlDeviceGetName": "NVIDIA H200",
            "nvmlDeviceGetClockInfo": 345,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetPowerUsage": 76_500,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetTemperature": 31,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1,
            "nvmlDeviceGetTotalEccErrors": 0,
            "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=600 * 2**20, total=141 * 2**30),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0),
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetComputeRunningProcesses": [],
            "nvmlDeviceGetGraphicsRunningProcesses": [],
            "nvmlDeviceGetMPSComputeRunningProcesses": [],
            "nvmlSystemGetProcessName": "/opt/train/run.py",
            "nvmlEventSetCreate": "events",
            "nvmlDeviceRegisterEvents": None,
            "nvmlEventSetFree": None,
        } | answers

    def nvmlInit(self):  # noqa: N802
        self.is_open = True

    def nvmlShutdown(self):  # noqa: N802
        self.is_open = False

    def nvmlEventSetWait_v2(self, events, timeout_ms):  # noqa: N802
        if not self.xids:
            raise self.NVMLError("timeout")
        return SimpleNamespace(eventData=self.xids.pop(0))

    def __getattr__(self, name):
        answer = self.answers[name]

        def reply(*_):
            if isinstance(answer, Exception):
                raise answer
            return answer

        return reply


def listed(*pids):
    return {
        "nvmlDeviceGetComputeRunningProcesses": [
            SimpleNamespace(pid=pid, usedGpuMemory=2**30) for pid in pids
        ]
    }


@pytest.fixture
def card(monkeypatch):
    def make(**answers):
        nvml = Nvml(**answers)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        return nvml

    return make


def test_a_card_is_read_and_nvml_is_closed_again(card):
    nvml = card()
    health = gpu_health(0)
    assert (health.uuid, health.sm_mhz, health.sm_max_mhz) == (UUID, 345, 1980)
    assert (health.power_w, health.power_limit_w, health.temperature_c) == (76.5, 700.0, 31)
    assert (health.throttle, health.mig, health.processes, health.others) == (("gpu_idle",), False, (), ())
    assert unfit_reason(health) is None
    assert not nvml.is_open


def test_what_a_card_does_not_tell_is_none_and_nothing_follows_from_it(card):
    refused = Nvml.NVMLError("not supported")
    names = [name for name in Nvml().answers if name.startswith("nvmlDeviceGet")]
    known = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName")
    card(nvmlEventSetCreate=refused, **{name: refused for name in names if name not in known})
    health = gpu_health(0)
    values = dataclasses.asdict(health)
    assert {name for name, value in values.items() if value is not None} == {
        "uuid",
        "kind",
        "mps",
        "neighbours",
    }
    assert unfit_reason(health) is None


def test_a_card_that_fell_off_the_bus_is_an_error_that_names_it(card):
    nvml = card(nvmlDeviceGetHandleByIndex=Nvml.NVMLError("GPU is lost"))
    with pytest.raises(GpuHealthError, match="GPU 3: NVML does not answer for it: GPU is lost"):
        gpu_health(3)
    assert not nvml.is_open


def test_throttle_bits_are_named(card):
    card(nvmlDeviceGetCurrentClocksThrottleReasons=0x4 | 0x40)
    assert gpu_health(0).throttle == ("sw_power_cap", "hw_thermal_slowdown")


def test_a_watch_keeps_the_xids_since_it_began(card):
    nvml = card()
    with GpuWatch(0) as watch:
        assert watch.xids() == ()
        nvml.xids += [31, 79]
        assert watch.xids() == (31, 79)
        nvml.xids += [94]
        assert watch.xids() == (31, 79, 94)


def test_our_own_processes_are_no_others(card):
    child = subprocess.Popen(["sleep", "60"])
    try:
        card(**listed(os.getpid(), child.pid, 1))  # process 1 is an ancestor of everybody's
        health = gpu_health(0)
        assert {process.pid for process in health.processes} == {os.getpid(), child.pid, 1}
        assert [process.pid for process in health.others] == [1]
        with GpuWatch(0, family=child.pid) as watch:
            assert [process.pid for process in watch.others(watch.processes())] == [1, os.getpid()]
    finally:
        child.kill()
        child.wait()


def test_a_list_without_ourselves_on_it_is_of_another_namespace(card):
    card(**listed(1))
    with GpuWatch(0, has_context=True) as watch:
        assert watch.others(watch.processes()) is None
    card(**listed(1, os.getpid()))
    with GpuWatch(0, has_context=True) as watch:
        assert [process.pid for process in watch.others(watch.processes())] == [1]


def test_a_worker_of_another_run_is_no_other(card):
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)  # autotune.evaluate.worker"
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": UUID}
    # Started by a shell that ends, so that it is no descendant of ours.
    command = ["sh", "-c", '"$0" -c "$1" &', sys.executable, code]
    shell = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    shell.wait()
    worker = int(shell.stdout.readline())
    try:
        assert os.getpid() not in ancestry(worker)
        card(**listed(worker))
        health = gpu_health(0)
        assert (health.others, health.neighbours) == ((), 1)
    finally:
        os.kill(worker, 9)
        shell.stdout.close()


def test_a_process_that_is_not_of_our_namespace_is_named_by_nvml(card):
    card(**listed(2**22 + 5))  # above the largest process id there is
    (other,) = gpu_health(0).others
    assert str(other) == f"pid {2**22 + 5} (run.py)"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rows_failed": True}, "a row of its memory is broken and has no spare"),
        ({"ecc_uncorrected": 2}, "2 uncorrected memory errors since the driver was loaded"),
        ({"xids": (31, 79)}, "Xid 79 reported by the driver"),  # 31: a kernel's own page fault
        (
            {"throttle": ("sw_power_cap", "hw_power_brake"), "temperature_c": 90},
            "its clock is held down: hw_power_brake at 90 C",
        ),
    ],
)
def test_damage_is_told_in_one_line(change, reason):
    health = dataclasses.replace(SOUND, **change)
    assert damage(health) == unfit_reason(health) == reason
    assert occupation(health) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"others": (SOMEONE,)}, "in use by pid 4711 (python)"),
        (
            {"others": tuple(GpuProcess(pid=pid, name="x") for pid in range(1, 7))},
            "in use by pid 1 (x), pid 2 (x), pid 3 (x), pid 4 (x) and 2 more",
        ),
        ({"mig": True}, "MIG is on, and an instance is not the whole card"),
        (
            {"memory_used_bytes": 3 * 2**30},
            "3.0 GiB of its memory are in use by processes that NVML does not name",
        ),
        ({"busy_percent": 40}, "it is busy 40% of the time with processes that NVML does not name"),
    ],
)
def test_occupation_is_told_in_one_line(change, reason):
    health = dataclasses.replace(SOUND, **change)
    assert occupation(health) == unfit_reason(health) == reason
    assert damage(health) is None


def test_what_neighbours_of_ours_hold_is_no_occupation():
    assert unfit_reason(dataclasses.replace(SOUND, memory_used_bytes=90 * 2**30, neighbours=16)) is None


@pytest.mark.parametrize("change", [{}, {"throttle": ("sw_power_cap",)}, {"xids": (13, 31, 43, 45)}])
def test_a_power_cap_and_a_candidates_own_fault_are_no_reason(change):
    assert unfit_reason(dataclasses.replace(SOUND, **change)) is None


GPU = GpuInfo(
    index=2,
    uuid=UUID,
    kind="NVIDIA H200",
    sm_count=132,
    memory_bytes=141 * 2**30,
    power_limit_w=700.0,
    driver="580.159.04",
    compute_capability=(9, 0),
)


def admitted(*readings, shared=False):
    """Returns what was said, and how often it slept."""
    said, slept, left = [], [], list(readings)
    admission.admit(
        GPU,
        shared=shared,
        say=said.append,
        health_of=lambda index: left.pop(0) if len(left) > 1 else left[0],
        sleep=slept.append,
    )
    return said, len(slept)


def test_an_idle_card_is_admitted_without_a_word():
    assert admitted(SOUND) == ([], 0)


def test_a_card_in_use_is_refused_in_one_line_that_names_who():
    taken = dataclasses.replace(SOUND, others=(SOMEONE,))
    with pytest.raises(InputError) as refused:
        admitted(taken)
    assert str(refused.value) == (
        "GPU 2 (GPU-70f8): in use by pid 4711 (python); times would not be its own. Wait, choose another with "
        "`gpus`, or go on with --shared-gpu, which marks the record"
    )
    assert refused.value.exit_code == 2
    assert admitted(taken, shared=True) == (
        ["GPU 2: in use by pid 4711 (python); going on as --shared-gpu says, and marking the record"],
        0,
    )


def test_memory_of_workers_that_ended_a_moment_ago_is_waited_for():
    full = dataclasses.replace(SOUND, memory_used_bytes=30 * 2**30)
    assert admitted(full, full, SOUND) == ([], 2)
    with pytest.raises(
        InputError, match=r"30\.0 GiB of its memory are in use by processes that NVML does not name"
    ):
        admitted(full)


def test_damage_is_said_and_does_not_refuse():
    said, _ = admitted(dataclasses.replace(SOUND, ecc_uncorrected=1))
    assert said == ["GPU 2 may not be sound: 1 uncorrected memory errors since the driver was loaded"]
