"""An open NVML handle of one card, from which readings of its health are taken. Never initialises CUDA."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from autotune.health import MPS_NAME, THROTTLE_BITS, GpuHealth, GpuHealthError, GpuProcess

WORKER_MARK = b"autotune.evaluate.worker"

Value = TypeVar("Value")


class GpuWatch:
    """An open NVML handle of one card; as a context manager it closes NVML.

    Args:
        card: NVML's index, or a UUID.
        family: Process whose descendants are ours, besides the workers of other runs on this machine, which take
            turns with ours under the card's lock; None: this process.
        has_context: This process is on the card. A list of processes without it is then of another namespace,
            and nobody on it can be told from ourselves.
    """

    def __init__(self, card: int | str, *, family: int | None = None, has_context: bool = False):
        self._nvml = _started_nvml()
        self._family = os.getpid() if family is None else family
        self._has_context = has_context
        self._ours: set[int] = set()
        self._xids: list[int] = []
        try:
            nvml = self._nvml
            by = nvml.nvmlDeviceGetHandleByUUID if isinstance(card, str) else nvml.nvmlDeviceGetHandleByIndex
            self._handle = by(card)
            self.uuid = _text(nvml.nvmlDeviceGetUUID(self._handle))
            self.kind = _text(nvml.nvmlDeviceGetName(self._handle))
        except self._nvml.NVMLError as error:
            self._nvml.nvmlShutdown()
            raise GpuHealthError(f"GPU {card}: NVML does not answer for it: {error}") from None
        self._events = self._ask(self._listen)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._events is not None:
            self._ask(lambda: self._nvml.nvmlEventSetFree(self._events))
        self._nvml.nvmlShutdown()

    def health(self) -> GpuHealth:
        """Returns a whole reading; some milliseconds."""
        nvml, handle, ask = self._nvml, self._handle, self._ask
        memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        remapped = ask(lambda: nvml.nvmlDeviceGetRemappedRows(handle))
        migs = ask(lambda: nvml.nvmlDeviceGetMigMode(handle))
        busy = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        processes = self.processes()
        return GpuHealth(
            uuid=self.uuid,
            kind=self.kind,
            sm_mhz=self.sm_mhz(),
            sm_max_mhz=ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
            memory_mhz=ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            power_w=self.power_w(),
            power_limit_w=_over_1000(ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))),
            temperature_c=self.temperature_c(),
            throttle=self.throttle(),
            ecc_corrected=self._ecc(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ecc_uncorrected=self._ecc(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            rows_failed=None if remapped is None else bool(remapped[3]),
            xids=self.xids(),
            processes=processes,
            others=self.others(processes),
            memory_used_bytes=None if memory is None else memory.used,
            memory_bytes=None if memory is None else memory.total,
            busy_percent=None if busy is None else busy.gpu,
            mig=None if migs is None else bool(migs[0]),
            mps=_mps_runs(processes or ()),
            neighbours=len(self._neighbours()),
        )

    def sm_mhz(self) -> int | None:
        return self._ask(lambda: self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM))

    def power_w(self) -> float | None:
        return _over_1000(self._ask(lambda: self._nvml.nvmlDeviceGetPowerUsage(self._handle)))

    def temperature_c(self) -> int | None:
        nvml = self._nvml
        return self._ask(lambda: nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU))

    def throttle(self) -> tuple[str, ...] | None:
        """Returns what holds the clock down at this moment; "gpu_idle" is no hindrance."""
        bits = self._ask(lambda: self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))
        if bits is None:
            return None
        return tuple(name for bit, name in THROTTLE_BITS.items() if bits & bit)

    def xids(self) -> tuple[int, ...] | None:
        """Returns the Xid events since this watch began, in the order of their coming."""
        if self._events is None:
            return None
        while (event := self._ask(lambda: self._nvml.nvmlEventSetWait_v2(self._events, 0))) is not None:
            self._xids.append(int(event.eventData))
        return tuple(self._xids)

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """Returns the processes that NVML lists on the card, by pid."""
        names = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
        lists = [self._ask(lambda name=name: getattr(self._nvml, name)(self._handle)) for name in names]
        clients = self._ask(lambda: self._nvml.nvmlDeviceGetMPSComputeRunningProcesses(self._handle))
        if lists[0] is None:
            return None
        found = {one.pid: one for each in (*lists, clients) for one in each or ()}
        return tuple(
            GpuProcess(
                pid=pid, name=self._name(pid), memory_bytes=getattr(one, "usedGpuMemory", None) or None
            )
            for pid, one in sorted(found.items())
        )

    def others(self, processes: Sequence[GpuProcess] | None) -> tuple[GpuProcess, ...] | None:
        """Returns those that do not belong to us; None where the list is not of our namespace."""
        if processes is None:
            return None
        if self._has_context and os.getpid() not in [process.pid for process in processes]:
            return None
        return tuple(process for process in processes if not self._is_ours(process.pid))

    def _is_ours(self, pid: int) -> bool:
        if pid in self._ours:
            return True
        if self._family in ancestry(pid) or _is_worker(pid) or (self._has_context and _has_ended(pid)):
            self._ours.add(pid)
            return True
        return False

    def _neighbours(self) -> list[int]:
        ours = b"CUDA_VISIBLE_DEVICES=" + self.uuid.encode() + b"\0"
        return [
            pid
            for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))
            if _is_worker(pid) and ours in _read(pid, "environ") and self._family not in ancestry(pid)
        ]

    def _name(self, pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            name = self._ask(lambda: self._nvml.nvmlSystemGetProcessName(pid))
            return "unknown" if name is None else Path(_text(name)).name

    def _ecc(self, kind: int) -> int | None:
        nvml = self._nvml
        return self._ask(lambda: nvml.nvmlDeviceGetTotalEccErrors(self._handle, kind, nvml.NVML_VOLATILE_ECC))

    def _listen(self) -> Any:
        events = self._nvml.nvmlEventSetCreate()
        try:
            self._nvml.nvmlDeviceRegisterEvents(
                self._handle, self._nvml.nvmlEventTypeXidCriticalError, events
            )
        except self._nvml.NVMLError:
            self._nvml.nvmlEventSetFree(events)
            raise
        return events

    def _ask(self, question: Callable[[], Value]) -> Value | None:
        """Returns None where this card, or this driver, has no answer; what is old is an AttributeError."""
        try:
            return question()
        except (self._nvml.NVMLError, AttributeError):
            return None


def ancestry(pid: int, proc: Path = Path("/proc")) -> Iterable[int]:
    """Yields `pid` and its parents up to the first that cannot be read."""
    while pid > 0:
        yield pid
        try:
            stat = (proc / str(pid) / "stat").read_text()
        except OSError:
            return
        pid = int(stat.rpartition(")")[2].split()[1])  # a name in parentheses may hold blanks of its own


def _is_worker(pid: int) -> bool:
    """Returns whether a process is a worker of a run of this package."""
    return WORKER_MARK in _read(pid, "cmdline")


def _read(pid: int, name: str) -> bytes:
    """Returns a file that the kernel keeps of a process; nothing where it ended or is another user's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _has_ended(pid: int) -> bool:
    """Returns whether a process is gone, though the driver still cleans up behind it."""
    return not Path(f"/proc/{pid}").exists()


def _mps_runs(processes: Sequence[GpuProcess]) -> bool:
    if any(process.name.startswith(MPS_NAME) for process in processes):
        return True
    pids = filter(str.isdecimal, os.listdir("/proc"))
    return any(_read(int(pid), "comm").startswith(MPS_NAME.encode()) for pid in pids)


def _started_nvml() -> types.ModuleType:
    try:
        import pynvml
    except ImportError:
        raise GpuHealthError("NVML cannot be asked: the package nvidia-ml-py is not installed") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise GpuHealthError(f"NVML does not start: {error}; is the NVIDIA driver loaded?") from None
    return pynvml


def _over_1000(value: int | None) -> float | None:
    return None if value is None else value / 1000


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
