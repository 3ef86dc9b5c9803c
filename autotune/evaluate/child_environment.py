"""The environment variables that worker processes are started with, all in one place."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

COMMON = {
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # a user's cache would fill with losers, and compile_s would lie
    "PYTHONUNBUFFERED": "1",  # the last line printed before a death is evidence
    "OMP_NUM_THREADS": "1",  # one worker a core
    "OPENBLAS_NUM_THREADS": "1",
}
GPU = {
    # Sixteen processes share the card: none may reserve three quarters of it at the start.
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "JAX_PLATFORMS": "cuda,cpu",  # naming cuda makes its absence an error instead of a quiet fall to the CPU
}
BLIND = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
# The first dumps a stack over the line in which a library says why it aborted. The others choose an allocator: the
# default one lays buffers side by side, among which a result's room is found between two posts.
DROPPED = (
    "PYTHONFAULTHANDLER",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_CLIENT_MEM_FRACTION",
)


def worker_environment(
    base: Mapping[str, str] | None = None, *, gpu_uuid: str | None = None
) -> dict[str, str]:
    """Returns the whole environment of a worker.

    Args:
        base: What the worker inherits; None: this process's environment.
        gpu_uuid: The one GPU that the worker sees; None: it sees none and stays on the CPU.
    """
    inherited = dict(os.environ if base is None else base)
    environment = {name: value for name, value in inherited.items() if name not in DROPPED} | COMMON
    # The worker must import what the parent can, such as a source tree run without installing it.
    environment["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    if gpu_uuid is None:
        return environment | BLIND
    return environment | GPU | {"CUDA_VISIBLE_DEVICES": gpu_uuid}
