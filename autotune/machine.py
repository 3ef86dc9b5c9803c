"""What this machine has: GPUs as NVML sees them, and the toolchain's versions. Never initialises CUDA."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import autotune
from autotune import environment

HOPPER = (9, 0)
REFERENCE_KIND = "NVIDIA H200"  # what is assumed, aloud, where there is no Hopper GPU and none is named
CORES_PER_SM = 128  # FP32 cores of a Hopper SM (NVIDIA's H100 white paper); NVML counts cores, not SMs


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInfo:
    """One GPU of this host.

    Attributes:
        index: NVML's index, which follows the PCI bus.
        kind: Name of the card, equal to jax's device_kind.
        power_limit_w: Enforced power limit; None where the driver does not tell.
    """

    index: int
    uuid: str
    kind: str
    sm_count: int
    memory_bytes: int
    power_limit_w: float | None
    driver: str
    compute_capability: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """What a measured time depends on besides the kernel and the card."""

    jax: str
    jaxlib: str
    driver: str | None
    python: str
    optuna: str
    autotune: str


def gpus() -> list[GpuInfo]:
    """Returns the GPUs that NVML lists and CUDA_VISIBLE_DEVICES admits; empty without a driver or a GPU."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        found = [_gpu_info(pynvml, index, driver) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()
    return visible(found, environment.visible_devices())


def hopper_gpus() -> list[GpuInfo]:
    """Returns the GPUs of compute capability 9.0 (H100, H200, GH200)."""
    return [gpu for gpu in gpus() if gpu.compute_capability == HOPPER]


def has_cuda_jax() -> bool:
    """Returns whether jax's CUDA plugin is installed, without which jax sees no GPU."""
    import importlib.util

    names = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_plugins")
    return any(importlib.util.find_spec(name) is not None for name in names)


def visible(found: Sequence[GpuInfo], entries: Sequence[str] | None) -> list[GpuInfo]:
    """Returns the GPUs that `entries` of CUDA_VISIBLE_DEVICES admit, in their order; all of them for None.

    As in CUDA, an entry is an index or a UUID, of which a beginning suffices, and the first entry that names
    nothing ends the list.
    """
    if entries is None:
        return list(found)
    chosen: list[GpuInfo] = []
    for entry in entries:
        if entry.isdecimal():
            match = [gpu for gpu in found if gpu.index == int(entry)]
        else:
            match = [gpu for gpu in found if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
        if len(match) != 1:
            break
        chosen += match
    return chosen


def toolchain() -> Toolchain:
    """Returns the versions that are installed, read from package metadata, so that jax stays unloaded."""
    import platform  # here, not above: the lookup imports this module and must stay light

    return Toolchain(
        jax=_version("jax"),
        jaxlib=_version("jaxlib"),
        driver=driver_version(),
        python=platform.python_version(),
        optuna=_version("optuna"),
        autotune=autotune.__version__,
    )


def driver_version(path: Path = Path("/sys/module/nvidia/version")) -> str | None:
    """Returns the version of the loaded NVIDIA driver, or None without one."""
    try:
        return path.read_text().strip() or None
    except OSError:
        seen = gpus()
        return seen[0].driver if seen else None


def first_kind(folder: Path = Path("/proc/driver/nvidia/gpus")) -> str | None:
    """Returns the kind of the first GPU as cheaply as can be; None without a GPU.

    The driver's own listing takes well under a millisecond; loading and starting NVML takes 90 to 130 ms
    (H200, driver 580.159.04, 2026-11), so it is asked only where that listing is missing or where
    CUDA_VISIBLE_DEVICES picks among GPUs of different kinds.
    """
    kinds = sorted({kind for path in folder.glob("*/information") if (kind := _model(path))})
    if len(kinds) == 1 and environment.visible_devices() is None:
        return kinds[0]
    if not kinds and not _has_nvml():
        return None
    seen = gpus()
    return seen[0].kind if seen else None


def _model(path: Path) -> str | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Model:")), None)


def _has_nvml() -> bool:
    return any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg"))


def _gpu_info(pynvml, index: int, driver: str) -> GpuInfo:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    try:
        power_limit_w = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
    except pynvml.NVMLError:
        power_limit_w = None
    return GpuInfo(
        index=index,
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        kind=_text(pynvml.nvmlDeviceGetName(handle)),
        sm_count=pynvml.nvmlDeviceGetNumGpuCores(handle) // CORES_PER_SM,
        memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        power_limit_w=power_limit_w,
        driver=driver,
        compute_capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


@functools.cache
def _version(distribution: str) -> str:
    import importlib.metadata  # tens of milliseconds that the lookup need not pay

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
