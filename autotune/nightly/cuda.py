"""The few calls of the CUDA driver that sentinels need, by ctypes: neither jax nor the CUDA runtime takes part."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Self

from autotune.errors import AutotuneError

SM_COUNT_ATTRIBUTE = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
Pointer = ctypes.c_uint64  # CUdeviceptr


class CudaError(AutotuneError):
    """A call of the CUDA driver failed."""


class Cuda:
    """The primary context of the first visible GPU, in this process."""

    def __init__(self) -> None:
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(f"the CUDA driver cannot be loaded: {error}") from None
        self._memory: list[ctypes.c_uint64] = []
        self._device, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(0))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self._call("cuCtxSetCurrent", self._context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pointer in self._memory:
            self._driver.cuMemFree_v2(pointer)
        self._driver.cuDevicePrimaryCtxRelease_v2(self._device)

    @property
    def sm_count(self) -> int:
        value = ctypes.c_int()
        self._call(
            "cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(SM_COUNT_ATTRIBUTE), self._device
        )
        return value.value

    def allocate(self, size_bytes: int) -> ctypes.c_uint64:
        """Returns device memory, zeroed."""
        pointer = Pointer()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
        self._memory.append(pointer)
        self._call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(0), ctypes.c_size_t(size_bytes))
        return pointer

    def copy(self, to: ctypes.c_uint64, source: ctypes.c_uint64, size_bytes: int) -> None:
        """Queues a copy within the card's memory."""
        self._call("cuMemcpyDtoDAsync_v2", to, source, ctypes.c_size_t(size_bytes), ctypes.c_void_p(0))

    def kernel(self, ptx: str, name: str) -> ctypes.c_void_p:
        """Returns a kernel of a module that the driver compiles."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(ptx.encode()))
        self._call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(name.encode()))
        return function

    def launch(
        self, function: ctypes.c_void_p, blocks: int, threads: int, *arguments: ctypes._SimpleCData
    ) -> None:
        """Queues a kernel on the default stream."""
        addresses = (ctypes.c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.pointer(argument), ctypes.c_void_p) for argument in arguments)
        )
        sizes = (ctypes.c_uint(size) for size in (blocks, 1, 1, threads, 1, 1, 0))
        stream, extra = ctypes.c_void_p(0), ctypes.c_void_p(0)
        self._call("cuLaunchKernel", function, *sizes, stream, addresses, extra)

    def times_us(self, queue: Callable[[], None], samples: int, warmup: int) -> list[float]:
        """Returns how long each of `samples` calls of `queue` took on the GPU, in us, by events around it."""
        begin, end = ctypes.c_void_p(), ctypes.c_void_p()
        for event in (begin, end):
            self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
        found = []
        for index in range(warmup + samples):
            self._call("cuEventRecord", begin, ctypes.c_void_p(0))
            queue()
            self._call("cuEventRecord", end, ctypes.c_void_p(0))
            self._call("cuEventSynchronize", end)
            elapsed_ms = ctypes.c_float()
            self._call("cuEventElapsedTime", ctypes.byref(elapsed_ms), begin, end)
            if index >= warmup:
                found.append(elapsed_ms.value * 1e3)
        return found

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
            raise CudaError(f"{name} failed: {(text.value or b'unknown').decode()} ({code})")
