"""The main loop of a worker process: one job at a time, from lowering to samples."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import os
import queue
import resource
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from autotune.evaluate.fault import CandidateError, charged_to, describe
from autotune.evaluate.messages import (
    Ask,
    Assign,
    Done,
    Grant,
    LaneLost,
    Needs,
    Ready,
    StartFailed,
    Step,
    StepName,
    WorkerSetup,
)
from autotune.seam import ConfirmJob, Lowered, LoweredOnly, Measured, ScreenJob, Timing

PR_SET_PDEATHSIG = 1
# Where memory runs out, the kernel ends a worker, which is replaced, rather than the run.
OOM_SCORE = 500
# With a result larger than this a call waits for it: 64 calls in flight then hold 1 GB at most.
IN_FLIGHT_RESULT_BYTES = 16 * 2**20


class Worker:
    """Does the jobs that come through `inbox` and reports through `send`."""

    def __init__(self, setup: WorkerSetup, send: Callable[[Any], None], inbox: queue.SimpleQueue[Any]):
        import jax

        from autotune.evaluate.binaries import Binaries
        from autotune.evaluate.gpulock import GpuLock
        from autotune.evaluate.guard import Guard, NoWatch
        from autotune.evaluate.heldtime import HeldTime

        self.setup = setup
        self.send = send
        self._inbox = inbox
        self._targets: dict[str, Any] = {}
        self._bench: Any = None
        self._binaries = Binaries()
        self._inputs = "normal"
        self._touch: Any = None
        if setup.measures:
            jax.devices("gpu" if setup.platform == "cuda" else setup.platform)  # raises where there is none
            self.timer = setup.make_timer()
            self.timer.prepare()
            watch = setup.make_watch() if setup.make_watch else NoWatch()
            watch.prepare()
            # A timer that measures in batches calls it for each of them.
            self.held = HeldTime()
            self.guard = Guard(watch, shared=setup.shared, progress=lambda: self.step("run"), held=self.held)
            self.timer.guard, self.timer.held = self.guard, self.held
            self._gpu_lock = GpuLock(setup.lock_path)

    def serve(self) -> None:
        """Does jobs for ever; the parent ends this process."""
        gc.freeze()  # a full collection then walks one candidate's objects, not all of jax
        self.send(Ready())
        while True:
            assign: Assign = self._inbox.get()
            done = self._do(assign)
            if done is not None:
                self.send(done)
            if isinstance(done, LaneLost) or (done is not None and done.leaving):
                return

    def _do(self, assign: Assign) -> Done | LaneLost | None:
        match assign.job:
            case ScreenJob():
                return self._screen(assign.job)
            case ConfirmJob():
                return self._confirm(assign.job)
            case _:
                return self._race(assign)

    def _screen(self, job: ScreenJob) -> Done | None:
        """Returns None where the parent has an identical module measured elsewhere."""
        lowered: list[Lowered] = []
        try:
            result = self._screened(job, lowered)
        except CandidateError as fault:
            failed = fault.failed(lowered[-1] if lowered else None)
            return Done(result=failed, leaving=fault.loses_context)
        return None if result is None else Done(result=result)

    def _screened(self, job: ScreenJob, lowered: list[Lowered]) -> Measured | LoweredOnly | None:
        """Does the steps of a screening; `lowered` gets what is known of the module when a step fails."""
        from autotune.evaluate.binaries import Binary, given, runtime_knobs, shared
        from autotune.evaluate.steps import compile_module, lower_candidate

        candidate = job.candidate
        self.step("lower")
        target = self.target(candidate.target)
        if self.setup.measures:
            protocol = job.protocol or self.setup.protocol
            bench = self.bench(target, candidate.problem, protocol)
        knobs = None if job.binary is None else runtime_knobs(target, candidate)
        kept = self._binaries.get(job.binary)
        module = (
            kept.module if kept else lower_candidate(target, candidate, self.setup.platform, shared=knobs)
        )
        lowered.append(module.lowered if knobs is None else shared(module.lowered, knobs, is_new=not kept))
        if not self.setup.measures:
            return LoweredOnly(lowered=lowered[-1])
        self.step("ask")
        self.send(Ask(lowered=lowered[-1]))
        grant = self._inbox.get()
        if not isinstance(grant, Grant):
            return None
        self.step("compile")
        executable, compile_s = (kept.executable, 0.0) if kept else compile_module(module)
        lowered.append(dataclasses.replace(lowered[-1], compile_s=compile_s))
        if knobs is not None:
            self._binaries.keep(job.binary, Binary(module, executable))
        self.prepare(bench)
        with self.gpu_lock():
            self.held.begin()
            self.step("run")
            with self.held.timed("check"):
                bench.load()
                if knobs is not None:
                    executable = given(executable, knobs)
                call = bench.in_place(executable)
                verdict = bench.verify(call, module.result_type)
            lane = self.lane(str(candidate.config), call, bench, lowered[-1].digest, shares_room=True)
            self.guard.begin()
            with charged_to("launch"):
                if protocol.l2 == "activations_warm":
                    lane = dataclasses.replace(lane, touch=self.touch(target, bench))
                sampled = self.guard(lambda: self.timer.screen(lane, protocol, grant.best_us))
            held_s = self.held.end()
        conditions = self.conditions()  # NVML may answer slowly, and power is the average of a second anyway
        return Measured(
            lowered=lowered[-1],
            timing=Timing(
                samples_us=sampled.samples_us,
                l2=protocol.l2,
                reference_us=sampled.reference_us,
                reference_nominal_us=sampled.reference_nominal_us,
            ),
            error=verdict.error,
            poisoned=verdict.poisoned,
            guarded=verdict.guarded,
            exact=verdict.exact,
            conditions=conditions,
            locked_s=sum(held_s.values()),
            held_s={step: round(spent_s, 6) for step, spent_s in held_s.items()},
        )

    def _confirm(self, job: ConfirmJob) -> Done:
        from autotune.evaluate.confirm import run_confirmation

        try:
            return Done(result=run_confirmation(self, job))
        except CandidateError as fault:
            return Done(result=fault.failed(None), leaving=fault.loses_context)
        finally:
            self._bench = self._touch = None  # its operands are no longer those of its seed

    def _race(self, assign: Assign) -> Done | LaneLost:
        from autotune.evaluate.race import run_race

        try:
            return run_race(self, assign)
        except CandidateError as fault:
            return Done(result=fault.failed(None), leaving=fault.loses_context)

    def conditions(self) -> Any:
        """Returns what the card did since the guard's `begin`; None where nobody watches it."""
        return self.guard.conditions() if self.setup.make_watch else None

    def step(self, name: StepName, lane: int | None = None) -> None:
        self.send(Step(name=name, lane=lane))

    def target(self, name: str) -> Any:
        if name not in self._targets:
            with charged_to("error"):
                self._targets[name] = self.setup.target_loader(name)
        return self._targets[name]

    def bench(self, target: Any, problem: Any, protocol: Any = None) -> Any:
        """Returns the bench of `problem`; the one of the problem before is dropped with its operands."""
        from autotune.evaluate.bench import Bench
        from autotune.evaluate.chain import with_inputs

        inputs = (protocol or self.setup.protocol).inputs
        if self._bench is None or self._bench.problem != problem or self._inputs != inputs:
            self._bench = self._touch = None
            self._binaries.clear()
            self._inputs = inputs
            gc.collect()
            with charged_to("error"):
                self._bench = Bench(with_inputs(target, inputs), problem, self.setup.seed)
            self.send(Needs(size_bytes=self._bench.size_bytes))
        return self._bench

    def touch(self, target: Any, bench: Any) -> Any:
        """Returns what reads the activations of the bench at hand; compiled for its first candidate."""
        from autotune.evaluate.chain import touching

        if self._touch is None:
            self._touch = touching(target, bench)
        return self._touch

    def prepare(self, bench: Any) -> None:
        self.step("prepare")
        with charged_to("error"):
            bench.prepare()

    @contextlib.contextmanager
    def gpu_lock(self):
        self.step("wait")
        with self._gpu_lock:
            yield

    def lane(self, name: str, executable: Any, bench: Any, digest: str, *, shares_room: bool = False) -> Any:
        """Returns a compiled function on the bench's operands as something to time.

        Args:
            shares_room: All its results lie in one place, so that no number of calls takes more memory. In a race no
                lane is told so: its rivals' results lie elsewhere, and one lane must not wait where another does not.
        """
        import jax

        from autotune.evaluate.timing import Lane

        operands = bench.operands

        def launch() -> Any:
            return executable(*operands)

        waits = bench.result_bytes > IN_FLIGHT_RESULT_BYTES and not shares_room
        return Lane(
            name=name,
            call=(lambda: jax.block_until_ready(launch())) if waits else launch,
            digest=digest,
            launch=launch,
            result_bytes=bench.result_bytes,
        )


def main() -> None:
    """Entry of the process: `<file descriptor of the pipe> <process id of the parent>`."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(descriptor, False)  # else a compiler started here would hold the pipe open
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent(parent)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(OOM_SCORE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # candidates abort by the dozen; a core is gigabytes
    connection = Connection(descriptor)
    try:
        setup = connection.recv()
        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
        worker = Worker(setup, connection.send, inbox)
    except Exception as error:  # noqa: BLE001 - the parent tells the user why no worker starts
        connection.send(StartFailed(detail=describe(error)))
        sys.exit(1)
    worker.serve()
    connection.close()
    os._exit(0)  # a lost CUDA context can hang the exit handlers


def _receive(connection: Connection, inbox: queue.SimpleQueue[Any]) -> None:
    """Passes messages on; the end of the pipe is the parent's, and ends this process and its compilers."""
    while True:
        try:
            inbox.put(connection.recv())
        except (EOFError, OSError):
            os.killpg(os.getpid(), signal.SIGKILL)


def _end_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process with its parent, even while a call holds the interpreter."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the request
        os._exit(1)
