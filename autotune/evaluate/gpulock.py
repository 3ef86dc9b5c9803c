"""One lock a GPU, held while something runs on it, shared by all workers of all runs on this machine."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import Self


def lock_path(uuid: str) -> Path:
    """Returns the file whose lock stands for the GPU with NVML's `uuid`."""
    return Path(tempfile.gettempdir()) / f"hopper-autotune-{uuid}.lock"


class GpuLock:
    """A lock on a file, as a context manager.

    The kernel gives the lock back when its holder ends, however it ends; a `multiprocessing.Lock` stays
    locked after a kill -9.
    """

    def __init__(self, path: str | os.PathLike[str]):
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except PermissionError:
            # Made by another user, whom the sticky temp folder protects; a lock needs no right to write.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._fd)
