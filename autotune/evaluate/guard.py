"""Keeps samples that were taken while the card misbehaved out of the record: they are vetoed and taken again."""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from autotune.evaluate.heldtime import HeldTime
from autotune.health import KERNEL_XIDS, UNSOUND_THROTTLES, GpuHealthError
from autotune.seam import Conditions

# The power cap moves the clock by 8% within one sustained measurement (1,485 to 1,605 MHz, H200, 2026-11); a fall
# below its neighbours by more than this is something else.
CLOCK_DROP = 0.10
NEIGHBOURS = 5  # batches whose median a clock is held against; a lasting change is so accepted after three
REPEATS = 3  # of one batch
JOB_REPEATS = 20  # of all batches of one job
PROCESS_INTERVAL_S = 2.0  # listing the processes of a card takes longer than all other questions together

Samples = TypeVar("Samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the card says at one moment; None where it does not tell."""

    sm_mhz: float | None
    throttle: tuple[str, ...] | None
    others: tuple[str, ...] | None
    xids: tuple[int, ...] | None


class Watch(Protocol):
    """What a guard reads; `CardWatch` is the real one."""

    card: str
    clock: Literal["spin", "nvml"] | None

    def prepare(self) -> None:
        """Compiles what reading needs, outside the lock."""

    def read(self) -> Reading:
        """Returns what the card does now; well under a millisecond but every `PROCESS_INTERVAL_S`."""

    def power_and_heat(self) -> tuple[float | None, int | None]:
        """Returns watts and degrees Celsius."""


class Guard:
    """Runs batches and repeats those during which something stood out, a capped number of times.

    One guard serves one worker. `begin` starts a job, `conditions` tells what happened since.

    Args:
        shared: Others may be on the card: what they do vetoes nothing.
        progress: Called before each repetition, since it takes time anew.
        held: Hears how long the watch takes; None: nobody does.
    """

    def __init__(
        self,
        watch: Watch,
        *,
        shared: bool = False,
        progress: Callable[[], None] = lambda: None,
        held: HeldTime | None = None,
    ):
        self._watch = watch
        self._held = held or HeldTime()
        self._shared = shared
        self._progress = progress
        self._clocks: deque[float] = deque(maxlen=NEIGHBOURS)
        self._is_busy = False
        self._known_xids = 0
        self.begin()

    def forget(self) -> None:
        """Lets the next batches be held against each other only: what runs from here on loads the card otherwise."""
        self._clocks.clear()

    def begin(self) -> None:
        self._kept_mhz: list[float] = []
        self._throttle: dict[str, None] = {}
        self._others: dict[str, None] | None = {}
        self._vetoes: list[str] = []
        self._unsettled: list[str] = []

    def __call__(self, batch: Callable[[], Samples]) -> Samples:
        """Returns what `batch` returns; a guarded batch inside of another is part of it."""
        if self._is_busy:
            return batch()
        self._is_busy = True
        try:
            return self._guarded(batch)
        finally:
            self._is_busy = False

    def conditions(self) -> Conditions:
        """Returns what the card did since `begin`."""
        power_w, temperature_c = self._watch.power_and_heat()
        return Conditions(
            card=self._watch.card,
            sm_mhz=tuple(self._kept_mhz),
            clock=self._watch.clock if self._kept_mhz else None,
            power_w=power_w,
            temperature_c=temperature_c,
            throttle=tuple(self._throttle),
            others=None if self._others is None else tuple(self._others),
            shared=self._shared,
            vetoes=tuple(self._vetoes),
            unsettled=tuple(self._unsettled),
        )

    def _guarded(self, batch: Callable[[], Samples]) -> Samples:
        for repeat in range(REPEATS + 1):
            samples = batch()
            with self._held.timed("watch"):
                after = self._watch.read()
            reason = stands_out(after, self._usual_mhz(), known_xids=self._known_xids, shared=self._shared)
            self._note(after)
            if reason is None:
                break
            if repeat == REPEATS or len(self._vetoes) >= JOB_REPEATS:
                self._unsettled.append(reason)
                break
            self._vetoes.append(reason)
            self._progress()
        if after.sm_mhz is not None:
            self._kept_mhz.append(round(after.sm_mhz, 1))
        return samples

    def _usual_mhz(self) -> float | None:
        return statistics.median(self._clocks) if len(self._clocks) >= 2 else None

    def _note(self, reading: Reading) -> None:
        if reading.sm_mhz is not None:
            self._clocks.append(reading.sm_mhz)
        self._known_xids = len(reading.xids or ())
        self._throttle |= dict.fromkeys(name for name in reading.throttle or () if name != "gpu_idle")
        if reading.others is None:
            self._others = None
        elif self._others is not None:
            self._others |= dict.fromkeys(reading.others)


def stands_out(
    reading: Reading, usual_mhz: float | None, *, known_xids: int = 0, shared: bool = False
) -> str | None:
    """Returns why a batch that ended with `reading` cannot be believed; None where nothing speaks against it.

    Args:
        usual_mhz: Median SM clock of the batches before; None where there are too few.
        known_xids: How many of the Xid events are older than the batch.
    """
    unsound = [name for name in reading.throttle or () if name in UNSOUND_THROTTLES]
    if unsound:
        return f"the clock is held down: {', '.join(unsound)}"
    if not shared and reading.others:
        return f"another process on the card: {', '.join(reading.others)}"
    new = [xid for xid in (reading.xids or ())[known_xids:] if xid not in KERNEL_XIDS]
    if new:
        return f"Xid {', '.join(map(str, new))}"
    mhz = reading.sm_mhz
    if usual_mhz is not None and mhz is not None and mhz < (1 - CLOCK_DROP) * usual_mhz:
        return f"SM clock {mhz:.0f} MHz, {usual_mhz:.0f} before"
    return None


class CardWatch:
    """Reads one card from a worker that has a context on it: by NVML, and its clock by a spin kernel.

    Args:
        uuid: Of the card.
    """

    def __init__(self, uuid: str):
        self.card = uuid
        self.clock: Literal["spin", "nvml"] | None = None
        self._spin: Callable[[], Any] | None = None
        self._others: tuple[str, ...] | None = None
        self._next_list_s = 0.0
        try:
            from autotune.gpuwatch import GpuWatch

            # The run's other workers are its children, as this process is.
            self._nvml = GpuWatch(uuid, family=os.getppid(), has_context=True)
        except GpuHealthError:
            self._nvml = None

    def prepare(self) -> None:
        try:
            from autotune.evaluate.spin import spin_program

            self._spin = spin_program()
            self.clock = "spin"
        except Exception:  # noqa: BLE001 - without the spin kernel NVML's coarser clock has to do, and the record says so
            self.clock = None if self._nvml is None else "nvml"

    def read(self) -> Reading:
        spun = self._launched_spin()
        nvml = self._nvml
        if nvml is None:
            return Reading(sm_mhz=self._sm_mhz(spun), throttle=None, others=None, xids=None)
        # NVML answers while the card spins.
        if self._others or time.monotonic() >= self._next_list_s:  # a batch is repeated until nobody is seen
            self._next_list_s = time.monotonic() + PROCESS_INTERVAL_S
            others = nvml.others(nvml.processes())
            self._others = None if others is None else tuple(map(str, others))
        throttle, xids = nvml.throttle(), nvml.xids()
        return Reading(sm_mhz=self._sm_mhz(spun), throttle=throttle, others=self._others, xids=xids)

    def power_and_heat(self) -> tuple[float | None, int | None]:
        if self._nvml is None:
            return None, None
        return self._nvml.power_w(), self._nvml.temperature_c()

    def _launched_spin(self) -> Any:
        try:
            return None if self._spin is None else self._spin()
        except Exception:  # noqa: BLE001 - a clock that cannot be read is no fault of a candidate
            self._spin_no_more()

    def _sm_mhz(self, spun: Any) -> float | None:
        if spun is not None:
            from autotune.evaluate.spin import sm_mhz

            try:
                return sm_mhz(spun)
            except Exception:  # noqa: BLE001 - see above
                self._spin_no_more()
        return None if self._nvml is None else self._nvml.sm_mhz()

    def _spin_no_more(self) -> None:
        self._spin, self.clock = None, None if self._nvml is None else "nvml"


class NoWatch:
    """Watches nothing: for a worker without a card."""

    card = "none"
    clock = None

    def prepare(self) -> None:
        """Nothing to compile."""

    def read(self) -> Reading:
        return Reading(sm_mhz=None, throttle=None, others=None, xids=None)

    def power_and_heat(self) -> tuple[float | None, int | None]:
        return None, None
