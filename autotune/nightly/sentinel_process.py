"""The sentinels that depend on the driver alone, in a process of their own: `<GPU lock file>`; prints JSON."""

from __future__ import annotations

import ctypes
import json
import statistics
import sys

from autotune.evaluate.gpulock import GpuLock
from autotune.nightly import fixed_kernel
from autotune.nightly.cuda import Cuda

COPY_BYTES = 2**30  # read once and written once: 0.5 ms on an H200
SAMPLES = 40
WARMUP = 10


def measure() -> dict[str, float]:
    """Returns the median times of the copy and of the fixed kernel, in us."""
    with Cuda() as cuda:
        source, to = cuda.allocate(COPY_BYTES), cuda.allocate(COPY_BYTES)
        blocks = cuda.sm_count * fixed_kernel.BLOCKS_PER_SM
        out = cuda.allocate(blocks * fixed_kernel.THREADS * 4)
        function = cuda.kernel(fixed_kernel.ptx(), fixed_kernel.NAME)
        arguments = (out, ctypes.c_uint32(fixed_kernel.ROUNDS), ctypes.c_float(0.5), ctypes.c_float(1.0))
        copies = cuda.times_us(lambda: cuda.copy(to, source, COPY_BYTES), SAMPLES, WARMUP)
        kernels = cuda.times_us(
            lambda: cuda.launch(function, blocks, fixed_kernel.THREADS, *arguments), SAMPLES, WARMUP
        )
    return {"copy": statistics.median(copies), "fixed_kernel": statistics.median(kernels)}


def main() -> None:
    with GpuLock(sys.argv[1]):
        print(json.dumps(measure()))


if __name__ == "__main__":
    main()
