"""What a GPU is doing besides our work, by NVML: clocks, power, heat, errors, and who else is on it.

Never initialises CUDA and never changes a setting of the card. What NVML does not tell is None, never a guess: in
containers and virtual machines it hides processes, and some cards have no ECC.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.errors import AutotuneError

# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h), by the names that nvidia-smi gives them.
THROTTLE_BITS = {
    0x1: "gpu_idle",
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
# The power cap is part of normal life: a large product runs under it whenever it runs for long. These are not.
UNSOUND_THROTTLES = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake")

# Xids that a faulty kernel causes on a sound card: exception, page fault, stopped channel, clean-up after one
# (NVIDIA's Xid catalogue). Candidates are such kernels; every other Xid is the card's or the driver's.
KERNEL_XIDS = (13, 31, 43, 45)

# What an idle card shows as used: the driver's own part, about 600 MiB of an H200 with ECC.
IDLE_BYTES = 2 * 2**30
BUSY_PERCENT = 5
MPS_NAME = "nvidia-cuda-mps"  # of the server and of its control daemon, as /proc/PID/comm cuts them


class GpuHealthError(AutotuneError):
    """NVML does not answer for the card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that NVML lists on a card."""

    pid: int
    name: str
    memory_bytes: int | None = None

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHealth:
    """One reading of a card. None: NVML does not tell.

    Attributes:
        sm_mhz: SM clock at the moment of reading; an idle card clocks down.
        power_w: Average over the last second or so, see the sensor's limits in docs/faults.md.
        throttle: What holds the clock down at the moment, by the names in `THROTTLE_BITS`.
        ecc_corrected, ecc_uncorrected: Memory errors since the driver was loaded.
        rows_failed: A row of memory is broken and could not be mapped to a spare one.
        xids: Xid events since the watch that read this began; None where NVML offers no events.
        processes: All processes on the card, ours too; empty does not prove that there are none.
        others: Those that do not belong to this run, see `GpuWatch`; None where NVML's list cannot be believed.
        memory_used_bytes: Of the whole card, the driver's part included.
        busy_percent: Share of the last moments in which a kernel ran.
        mig: Whether the card is cut into instances.
        mps: Whether a Multi-Process Service runs, which every new CUDA context would join.
        neighbours: Workers of other runs of this package on the card. They take turns with ours under the card's
            lock, so they are no others, but what they hold explains memory that NVML gives to nobody.
    """

    uuid: str
    kind: str
    sm_mhz: int | None = None
    sm_max_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    throttle: tuple[str, ...] | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    rows_failed: bool | None = None
    xids: tuple[int, ...] | None = None
    processes: tuple[GpuProcess, ...] | None = None
    others: tuple[GpuProcess, ...] | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    busy_percent: int | None = None
    mig: bool | None = None
    mps: bool = False
    neighbours: int = 0


def gpu_health(index: int) -> GpuHealth:
    """Returns one reading of the card with NVML's `index`; Xid events are those of a `GpuWatch` alone.

    Raises:
        GpuHealthError: There is no NVML, or it does not answer for this card.
    """
    from autotune.gpuwatch import GpuWatch  # which is made of this module's values

    with GpuWatch(index) as watch:
        return watch.health()


def unfit_reason(health: GpuHealth) -> str | None:
    """Returns why nothing should be measured on a card, in one line; None where nothing speaks against it."""
    return damage(health) or occupation(health)


def damage(health: GpuHealth) -> str | None:
    """Returns what is wrong with the card itself; None where nothing is known to be."""
    if health.rows_failed:
        return "a row of its memory is broken and has no spare"
    if health.ecc_uncorrected:
        return f"{health.ecc_uncorrected} uncorrected memory errors since the driver was loaded"
    xids = [xid for xid in health.xids or () if xid not in KERNEL_XIDS]
    if xids:
        return f"Xid {', '.join(map(str, xids))} reported by the driver"
    unsound = [name for name in health.throttle or () if name in UNSOUND_THROTTLES]
    if unsound:
        heat = "" if health.temperature_c is None else f" at {health.temperature_c} C"
        return f"its clock is held down: {', '.join(unsound)}{heat}"
    return None


def occupation(health: GpuHealth) -> str | None:
    """Returns who else uses the card, or how it is cut up; None where nothing is known to."""
    if health.others:
        shown = ", ".join(map(str, health.others[:4]))
        more = f" and {len(health.others) - 4} more" if len(health.others) > 4 else ""
        return f"in use by {shown}{more}"
    if health.mig:
        return "MIG is on, and an instance is not the whole card"
    if health.mps:
        return f"the Multi-Process Service runs ({MPS_NAME}), and its clients share the card at the same time"
    if health.processes or health.neighbours:  # which explain what is used
        return None
    used = health.memory_used_bytes
    if used is not None and used > IDLE_BYTES:
        return f"{used / 2**30:.1f} GiB of its memory are in use by processes that NVML does not name"
    if health.busy_percent is not None and health.busy_percent > BUSY_PERCENT:
        return f"it is busy {health.busy_percent}% of the time with processes that NVML does not name"
    return None
