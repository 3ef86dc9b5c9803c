"""What the machine says of itself, on machines that are made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autotune import environment, machine
from autotune.machine import GpuInfo


def gpu(index: int, uuid: str, kind: str = "NVIDIA H200", capability: tuple[int, int] = (9, 0)) -> GpuInfo:
    return GpuInfo(
        index=index,
        uuid=uuid,
        kind=kind,
        sm_count=132,
        memory_bytes=150_754_820_096,
        power_limit_w=700.0,
        driver="580.159.04",
        compute_capability=capability,
    )


TWO = [gpu(0, "GPU-aaa1"), gpu(1, "GPU-aab2")]


@pytest.mark.parametrize(
    ("entries", "indices"),
    [
        (None, [0, 1]),
        ([], []),
        (["1"], [1]),
        (["1", "0"], [1, 0]),
        (["GPU-aab2"], [1]),
        (["GPU-aab"], [1]),
        (["GPU-aa"], []),  # ambiguous
        (["-1", "0"], []),
        (["0", "7", "1"], [0]),  # the first that names nothing ends the list
    ],
)
def test_cuda_visible_devices_admits_gpus_as_cuda_reads_it(entries, indices):
    assert [one.index for one in machine.visible(TWO, entries)] == indices


def test_the_environment_gives_the_entries(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", " 0, GPU-aaa1 ,")
    assert environment.visible_devices() == ("0", "GPU-aaa1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert environment.visible_devices() == ()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert environment.visible_devices() is None


class Nvml:
    """NVML of one H200, with the answers that driver 580.159.04 gives."""

    class NVMLError(Exception):
        pass

    def __init__(self, **broken):
        self.is_open = False
        self.__dict__.update(broken)

    def nvmlInit(self):  # noqa: N802
        self.is_open = True

    def nvmlShutdown(self):  # noqa: N802
        self.is_open = False

    def __getattr__(self, name):
        return {
            "nvmlSystemGetDriverVersion": lambda: b"580.159.04",
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda _: "GPU-70f8",
            "nvmlDeviceGetName": lambda _: "NVIDIA H200",
            "nvmlDeviceGetNumGpuCores": lambda _: 16_896,
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=150_754_820_096),
            "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
            "nvmlDeviceGetCudaComputeCapability": lambda _: [9, 0],
        }[name]


def with_nvml(monkeypatch, nvml) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_gpu_is_read_from_nvml_and_nvml_is_closed_again(monkeypatch):
    nvml = Nvml()
    with_nvml(monkeypatch, nvml)
    (found,) = machine.hopper_gpus()
    # 16,896 cores of an H200 are 132 SMs of 128
    assert (found.kind, found.sm_count, found.power_limit_w) == ("NVIDIA H200", 132, 700.0)
    assert (found.driver, found.compute_capability) == ("580.159.04", (9, 0))
    assert not nvml.is_open


def test_a_power_limit_that_is_not_told_is_none(monkeypatch):
    def refuse(_):
        raise Nvml.NVMLError

    with_nvml(monkeypatch, Nvml(nvmlDeviceGetEnforcedPowerLimit=refuse))
    assert machine.gpus()[0].power_limit_w is None


def test_without_a_driver_there_are_no_gpus(monkeypatch):
    def refuse():
        raise Nvml.NVMLError

    with_nvml(monkeypatch, Nvml(nvmlInit=refuse))
    assert machine.gpus() == []


def test_other_architectures_are_no_hopper_gpus(monkeypatch):
    with_nvml(monkeypatch, Nvml(nvmlDeviceGetCudaComputeCapability=lambda _: (8, 0)))
    assert len(machine.gpus()) == 1
    assert machine.hopper_gpus() == []


def test_the_first_kind_comes_from_the_drivers_listing(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "gpus", lambda: pytest.fail("started NVML"))
    for name in ("0000:00:06.0", "0000:00:07.0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\n")
    assert machine.first_kind(tmp_path) == "NVIDIA H200"


def test_nvml_decides_between_gpus_of_different_kinds(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "gpus", lambda: [gpu(1, "GPU-b", "NVIDIA H100 PCIe")])
    for name, kind in (("a", "NVIDIA H200"), ("b", "NVIDIA H100 PCIe")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "information").write_text(f"Model: {kind}\n")
    assert machine.first_kind(tmp_path) == "NVIDIA H100 PCIe"


def test_the_toolchain_is_read_without_loading_it(tmp_path):
    import importlib.metadata

    tools = machine.toolchain()
    assert tools.jax == importlib.metadata.version("jax")
    assert tools.python.startswith("3.")
    (tmp_path / "version").write_text("580.159.04\n")
    assert machine.driver_version(tmp_path / "version") == "580.159.04"
