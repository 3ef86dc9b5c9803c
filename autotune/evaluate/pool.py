"""The pool of worker processes behind the evaluators: hands out jobs, watches limits, replaces the dead."""

from __future__ import annotations

import multiprocessing.connection
import time
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Literal, Self

from autotune.errors import AutotuneError
from autotune.evaluate.assignment import CardRoom, next_for
from autotune.evaluate.duplicates import Duplicates
from autotune.evaluate.messages import (
    Ask,
    Assign,
    Done,
    Grant,
    LaneLost,
    Needs,
    Ready,
    Release,
    StartFailed,
    Step,
    WorkerSetup,
)
from autotune.evaluate.process import WorkerProcess
from autotune.evaluate.slot import Pending, Slot
from autotune.evaluate.watchdog import MEMORY_INTERVAL_S, Watchdog
from autotune.seam import (
    ConfirmJob,
    Failed,
    Limits,
    Lowered,
    LoweredOnly,
    Measured,
    Outcome,
    RaceJob,
    ScreenJob,
)

START_DEATHS = 3  # in a row, of one worker, or of all before any was ready
# jax's allocator keeps what a process once took. A worker that holds more than this for a problem that is
# over is replaced, which costs seconds, so that the next problem finds the card free.
STALE_BYTES = 2 * 2**30


class WorkerPoolError(AutotuneError):
    """No worker starts."""


class Pool:
    """An `autotune.seam.Evaluator` over worker processes; `with` closes it.

    Args:
        kind: "gpu" measures; "lower" stops after lowering.
        environment: Of the workers, whole.
        card_bytes: Memory of the GPU; a problem is given only as many workers as fit on it. None: no limit.
    """

    def __init__(
        self,
        *,
        kind: Literal["gpu", "lower"],
        setup: WorkerSetup,
        environment: Mapping[str, str],
        workers: int,
        limits: Limits,
        card_bytes: int | None = None,
    ):
        self.kind = kind
        self.capacity = workers + max(2, workers // 4)
        self._setup = setup
        self._environment = dict(environment)
        self._room = CardRoom(card_bytes)
        self._watchdog = Watchdog(limits)
        self._leaving: list[WorkerProcess] = []  # killed, but not gone yet
        self._queue: deque[Pending] = deque()
        self._outcomes: list[Outcome] = []
        self._duplicates = Duplicates()
        self._best_us: dict[Hashable, float] = {}
        self._was_ready = False
        self._last_words = ""
        self._slots = [Slot() for _ in range(workers)]
        for slot in self._slots:
            self._start(slot)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def worker_pids(self) -> list[int]:
        return [slot.process.pid for slot in self._slots if slot.process is not None]

    def submit(self, job: ScreenJob | RaceJob | ConfirmJob) -> None:
        """Queues a job. Never blocks.

        Raises:
            WorkerPoolError: No worker starts.
        """
        if isinstance(job, RaceJob | ConfirmJob) and not self._setup.measures:
            deed = "takes no times, so it cannot race" if isinstance(job, RaceJob) else "runs nothing"
            detail = f"the evaluator {self.kind!r} {deed}"
            self._outcomes.append(Outcome(job_id=job.job_id, result=Failed(reason="error", detail=detail)))
            return
        self._queue.append(Pending(job))
        self._turn()

    def poll(self, timeout_s: float) -> Sequence[Outcome]:
        """Returns the outcomes that are ready, after waiting up to `timeout_s` for the first.

        Raises:
            WorkerPoolError: No worker starts.
        """
        deadline_s = time.monotonic() + timeout_s
        self._turn()
        while not self._outcomes and (left_s := deadline_s - time.monotonic()) > 0:
            self._wait(left_s)
            self._turn()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def close(self) -> None:
        """Ends all workers at once; jobs in flight are dropped."""
        self._queue.clear()
        self._leaving += [slot.process for slot in self._slots if slot.process is not None]
        for process in self._leaving:
            process.end()
        for process in self._leaving:
            process.kill()
        self._leaving = []
        for slot in self._slots:
            slot.process = None

    def _start(self, slot: Slot) -> None:
        slot.fill(WorkerProcess(self._setup, self._environment))

    def _wait(self, timeout_s: float) -> None:
        sources: list[object] = []
        if self._leaving or any(slot.pending is not None for slot in self._slots):
            timeout_s = min(timeout_s, MEMORY_INTERVAL_S)
        for slot in self._slots:
            if slot.process is None:
                continue
            sources.append(slot.process.connection)
            if slot.process.has_output:
                sources.append(slot.process.output)
            limit_s = self._limit_s(slot)
            if limit_s is not None:
                timeout_s = min(timeout_s, slot.process.step_began_s + limit_s - time.monotonic())
        multiprocessing.connection.wait(sources, max(0.0, timeout_s))

    def _turn(self) -> None:
        """Does all there is to do without waiting."""
        self._leaving = [process for process in self._leaving if not process.is_gone()]
        for slot in self._slots:
            if slot.process is not None:
                self._read(slot)
        self._end_oversized()
        self._assign()

    def _end_oversized(self) -> None:
        busy = {slot.process.pid: slot for slot in self._slots if slot.process is not None and slot.pending}
        for pid, said in (self._watchdog.oversized(busy) if busy else {}).items():
            slot = busy[pid]
            self._bury(
                slot, Failed(reason="memory", detail=f"{slot.process.step} {said}", lowered=slot.lowered)
            )

    def _read(self, slot: Slot) -> None:
        slot.process.read_output()
        messages = slot.process.received()
        if messages is None:
            self._bury(slot)
            return
        for message in messages:
            self._take(slot, message)
        limit_s = self._limit_s(slot)
        if limit_s is not None and time.monotonic() - slot.process.step_began_s > limit_s:
            detail = f"{slot.process.step} passed its limit of {limit_s:g} s; the worker was killed"
            self._bury(slot, Failed(reason="timeout", detail=detail, lowered=slot.lowered))

    def _limit_s(self, slot: Slot) -> float | None:
        if slot.is_ready and slot.pending is None:
            return None
        return self._watchdog.limit_s(slot.process.step)

    def _take(self, slot: Slot, message: object) -> None:
        match message:
            case Ready():
                slot.is_ready = self._was_ready = True
            case StartFailed(detail=detail):
                self._last_words = detail
            case Step(name=name, lane=lane):
                slot.has_begun = True
                slot.process.enter(name, lane)
            case Needs(size_bytes=size_bytes):
                slot.hold(slot.pending.problem_key, size_bytes)
                self._room.needs(slot.held_key, size_bytes)
            case Ask(lowered=lowered):
                self._answer(slot, lowered)
            case LaneLost(lane=lane, failed=failed):
                self._race_without(slot, lane, failed)
                self._replace(slot)
            case Done(result=result, leaving=leaving):
                if self._found_no_room(slot.pending, result):
                    # Last, when whoever filled the card is gone; and this worker gives back what it took.
                    self._queue.append(Pending(slot.pending.job, is_second_try=True))
                    self._replace(slot)
                    return
                self._finish(slot, result)
                if leaving:
                    self._replace(slot)

    def _answer(self, slot: Slot, lowered: Lowered) -> None:
        """Lets the first with a module measure it, and frees the worker of any later one."""
        slot.lowered = lowered
        pending = slot.pending
        key = (pending.problem_key, lowered.digest)
        if self._duplicates.claim(pending.job.job_id, key, lowered) is None:
            slot.process.send(Grant(best_us=self._best_us.get(pending.problem_key)))
            return
        slot.process.send(Release())
        slot.free()
        self._outcomes += self._duplicates.settled(key)

    def _finish(self, slot: Slot, result: object) -> None:
        pending, job_id = slot.pending, slot.pending.job.job_id
        slot.free()
        if isinstance(result, LoweredOnly):
            key = (pending.problem_key, result.lowered.digest)
            if self._duplicates.claim(job_id, key, result.lowered) is not None:
                self._outcomes += self._duplicates.settled(key)
                return
        if isinstance(result, Measured):
            score_us = result.timing.score_us
            best_us = self._best_us.get(pending.problem_key, score_us)
            self._best_us[pending.problem_key] = min(best_us, score_us)
        self._outcomes.append(Outcome(job_id=job_id, result=result))
        if isinstance(pending.job, ScreenJob):
            self._outcomes += self._duplicates.settle(job_id, result)

    def _found_no_room(self, pending: Pending, result: object) -> bool:
        """Returns whether a worker reported for the first time that this job does not fit on the card."""
        may_retry = not isinstance(pending.job, RaceJob) and not pending.is_second_try
        return may_retry and isinstance(result, Failed) and result.reason == "memory"

    def _race_without(self, slot: Slot, lane: int, failed: Failed) -> None:
        """Puts a race first in the queue again, without the lane that ended its worker."""
        pending = slot.pending
        slot.free()
        self._queue.appendleft(Pending(pending.job, pending.lost | {lane: failed}))

    def _replace(self, slot: Slot) -> None:
        slot.process.end()
        self._leaving.append(slot.process)
        self._start(slot)

    def _bury(self, slot: Slot, failed: Failed | None = None) -> None:
        """Accounts for a worker that died or is killed now, and starts another in its place.

        Args:
            failed: Why it is killed; None: it died by itself.
        """
        process, pending = slot.process, slot.pending
        ending = process.last_words() if failed is None else failed.detail
        process.end()
        self._leaving.append(process)
        if pending is not None and (slot.has_begun or failed is not None):
            crash = Failed(reason="crash", detail=f"{ending} (in step {process.step})", lowered=slot.lowered)
            self._fail(slot, failed or crash)
            self._start(slot)
            return
        if pending is not None:
            self._queue.appendleft(pending)  # it died before it turned to the job
        self._mourn_start(slot, ending)

    def _fail(self, slot: Slot, failed: Failed) -> None:
        lane = slot.process.lane
        if isinstance(slot.pending.job, RaceJob) and lane is not None:
            self._race_without(slot, lane, failed)
        else:
            self._finish(slot, failed)

    def _mourn_start(self, slot: Slot, ending: str) -> None:
        """Replaces a worker that died without a job, but not for ever."""
        slot.process, slot.pending = None, None
        slot.binaries.clear()
        slot.start_deaths += 1
        self._last_words = self._last_words or ending
        deaths = sum(each.start_deaths for each in self._slots)
        if slot.start_deaths < START_DEATHS and (self._was_ready or deaths < START_DEATHS):
            self._start(slot)
            return
        if self._was_ready and any(each.process is not None for each in self._slots):
            self.capacity = max(1, self.capacity - 1)
            return
        self.close()
        self._slots = []
        raise WorkerPoolError(self._broken())

    def _broken(self) -> str:
        return f"no worker process starts ({START_DEATHS} attempts): {self._last_words}"

    def _assign(self) -> None:
        """Gives queued jobs to idle workers."""
        if not self._slots:
            raise WorkerPoolError(self._broken())
        self._replace_stale()
        self._freshen()
        for slot in self._slots:
            if not slot.is_idle:
                continue
            pending = next_for(slot, self._slots, self._queue, self._room)
            if pending is not None:
                self._queue.remove(pending)
                slot.take(pending)
                slot.process.enter("lower", None)
                slot.process.send(Assign(job=pending.job, lost=pending.lost))

    def _freshen(self) -> None:
        """Starts a fresh process for each queued race that has none: XLA decides once a process how to multiply."""
        races = sum(isinstance(pending.job, RaceJob) for pending in self._queue)
        fresh = sum(slot.process is not None and not slot.has_served for slot in self._slots)
        for slot in self._slots:
            if fresh < races and slot.is_idle and slot.has_served:
                self._replace(slot)
                fresh += 1

    def _replace_stale(self) -> None:
        if not self._queue:
            return
        live = {pending.problem_key for pending in self._queue}
        live |= {slot.pending.problem_key for slot in self._slots if slot.pending is not None}
        for slot in self._slots:
            if slot.is_idle and slot.held_bytes > STALE_BYTES and slot.held_key not in live:
                self._replace(slot)
