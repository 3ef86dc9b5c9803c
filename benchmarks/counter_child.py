"""The process that ncu looks into: launches each lane once between marks, `python -m benchmarks.counter_child JOB`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from autotune.evaluate.bench import UNTUNED, own_seed
from autotune.evaluate.fault import CandidateError, charged_to
from autotune.evaluate.race import rivals_of
from autotune.evaluate.steps import compile_module, lower_function
from autotune.nightly.cuda import Cuda, CudaError
from benchmarks.card import Lines
from benchmarks.counter_lanes import TARGET, CounterJob, CounterLane
from benchmarks.counter_log import mark_name


class Profiled(Protocol):
    """Returns a block of code whose launches are read as those of the lane of that number."""

    def __call__(self, index: int) -> contextlib.AbstractContextManager[None]: ...


class Marks:
    """Empty kernels, one named after each lane: the first that ncu sees of a lane, wherever it lists it.

    Ranges of NVTX would say the same, but need a library that neither jax nor the driver brings along.
    """

    def __init__(self, indices: list[int]):
        self._cuda = Cuda()
        self._driver = ctypes.CDLL("libcuda.so.1")
        text = marks_ptx(indices)
        self._kernels = {index: self._cuda.kernel(text, mark_name(index)) for index in indices}

    @contextlib.contextmanager
    def __call__(self, index: int) -> Iterator[None]:
        self._switch("cuProfilerStart")
        try:
            self._cuda.launch(self._kernels[index], 1, 32)
            yield
        finally:
            self._switch("cuProfilerStop")

    def _switch(self, name: str) -> None:
        code = getattr(self._driver, name)()
        if code:
            raise CudaError(f"{name} failed ({code})")


def marks_ptx(indices: list[int]) -> str:
    """Returns a module with an empty kernel for each lane; for sm_70 and newer, as every driver for Hopper takes."""
    entries = [f".visible .entry {mark_name(index)}()\n{{\n\tret;\n}}\n" for index in indices]
    return "//\n.version 7.0\n.target sm_70\n.address_size 64\n\n" + "\n".join(entries)


def compiled(lane: CounterLane, device: Any, platform: str) -> Callable[..., Any]:
    """Returns a lane's product, compiled as a user would.

    Raises:
        CandidateError: "lower" or "compile".
    """
    with charged_to("lower"):
        if lane.config is None:
            rivals = rivals_of(TARGET, lane.problem)
            if lane.formulation not in rivals:
                raise CandidateError("lower", f"XLA {lane.formulation}: here there are {', '.join(rivals)}")
            function, options = rivals[lane.formulation]
        else:
            function, options = TARGET.build(lane.problem, lane.config, device), {}
        types = TARGET.operand_types(lane.problem)
        module = lower_function(function, types, platform)
    return compile_module(module, options)[0]


def drawn(problem: Any) -> tuple[Any, ...]:
    """Returns independent standard normal operands of a problem."""
    with charged_to("launch"):
        draw = jax.jit(lambda seed: TARGET.operands(problem, seed))
        seed = jnp.uint32(own_seed(problem, 0))
        return jax.block_until_ready(draw.lower(seed).compile(compiler_options=UNTUNED)(seed))


def launched(job: CounterJob, platform: str, profiled: Profiled, say: Lines) -> None:
    """Launches each lane twice, the second time to be read; a lane that fails ends itself alone.

    Raises:
        CandidateError: One that took the CUDA context with it.
    """
    began_s = time.monotonic()
    problem, operands = None, ()
    for index, lane in job.lanes.items():
        if time.monotonic() - began_s > job.seconds:
            return
        say(lane=index, step="begin", problem=lane.problem.describe(), name=lane.name)
        try:
            if lane.problem != problem:
                operands = ()  # freed before the next ones are drawn
                problem, operands = lane.problem, drawn(lane.problem)
            call = compiled(lane, job.device, platform)
            with charged_to("launch"):
                jax.block_until_ready(call(*operands))  # loads modules and allocates
                with profiled(index):
                    jax.block_until_ready(call(*operands))
        except CandidateError as fault:
            say(lane=index, step="failed", detail=f"{fault.reason}: {fault.detail}")
            if fault.loses_context:
                raise
            continue
        say(lane=index, step="done", after_s=round(time.monotonic() - began_s, 1))


def main() -> None:
    job = pickle.loads(Path(sys.argv[1]).read_bytes())
    say = Lines(job.progress)
    say(pid=os.getpid())
    jax.devices("gpu")
    try:
        launched(job, "cuda", Marks(list(job.lanes)), say)
    except CandidateError:
        os._exit(1)  # a lost CUDA context can hang the exit handlers


if __name__ == "__main__":
    main()
