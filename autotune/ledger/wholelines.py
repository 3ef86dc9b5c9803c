"""Files of whole lines: appended under a lock, never onto a torn line, taken back where the disk is full."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from autotune.errors import AutotuneError

_BLOCK_BYTES = 65_536


class DiskFullError(AutotuneError):
    """There was no room for a record; what was recorded before is kept."""


class FileLock:
    """A lock that the kernel drops when its holder dies.

    Optuna's own locks are files that a killed holder leaves behind: the next writer waits 30 s for each.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def __exit__(self, *exception: object) -> None:
        os.close(self._descriptor)


class OpenLines:
    """A file of lines, open for one locked operation.

    Args:
        what: A record, as the error of a full disk names it.
        create: Make the file where it is missing; a symbolic link in its place is then refused.
    """

    def __init__(self, path: Path, what: str, *, create: bool = False) -> None:
        self._path, self._what, self._create = path, what, create

    def __enter__(self) -> OpenLines:
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        if self._create:
            flags |= os.O_CREAT | os.O_NOFOLLOW
        self._descriptor = os.open(self._path, flags, 0o666)
        self._bytes = os.fstat(self._descriptor).st_size
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._descriptor)

    def cut(self) -> int:
        """Cuts the file after its last newline and returns how many bytes that took away."""
        end = self._bytes
        while end:
            start = max(0, end - _BLOCK_BYTES)
            newline = os.pread(self._descriptor, end - start, start).rfind(b"\n")
            end = start + newline + 1
            if newline >= 0:
                break
        torn = self._bytes - end
        if torn:
            os.ftruncate(self._descriptor, end)
            self._bytes = end
        return torn

    def append(self, record: bytes, sync: bool) -> None:
        """Appends whole lines, or nothing.

        Raises:
            AutotuneError: They could not be written; a DiskFullError where there was no room.
        """
        try:
            written = 0
            while written < len(record):
                written += os.write(self._descriptor, record[written:])
            if sync:
                os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, self._bytes)
            kind = DiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else AutotuneError
            raise kind(
                f"{self._path}: cannot write {self._what}: {error.strerror}. "
                f"What was recorded before is kept; make room and start the same command again"
            ) from error
