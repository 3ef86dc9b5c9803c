"""Optuna's journal file, made to survive a kill, a full disk and a second writer."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from autotune.errors import AutotuneError, InputError

_BLOCK_BYTES = 65_536

# A written record outlives its process at once, and the host after this long at most. Forcing each one to the disk
# took 0.2 to 4.5 ms on the disk of a virtual machine (2026-11-30), as long as the rest of recording and asking.
_SYNC_INTERVAL_S = 1.0


class _FileLock:
    """A lock that the kernel drops when its holder dies.

    Optuna's own locks are files that a killed holder leaves behind: the next writer waits 30 s for each.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def __exit__(self, *exception: object) -> None:
        os.close(self._descriptor)


class WholeLineBackend(JournalFileBackend):
    """A journal file backend that never appends to half a record.

    A writer that was killed leaves a line without its newline, and Optuna would glue the next record onto it and
    lose both. Each append first cuts such a rest, under the lock, and takes back its own when the disk is full.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._guard = _FileLock(path.with_name(path.name + ".lock"))
        self._path = path
        self._synced_s = 0.0

    def cut_torn_tail(self) -> int:
        """Cuts the file after its last newline and returns how many bytes that took away."""
        with self._guard, _OpenJournal(self._path) as journal:
            return journal.cut()

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with self._guard, _OpenJournal(self._path) as journal:
            journal.cut()
            is_due = time.monotonic() - self._synced_s >= _SYNC_INTERVAL_S
            journal.append(text.encode(), sync=is_due)
            if is_due:
                self._synced_s = time.monotonic()


class _OpenJournal:
    """The journal's file descriptor, open for one locked operation."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> _OpenJournal:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        self._bytes = os.fstat(self._descriptor).st_size
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._descriptor)

    def cut(self) -> int:
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
        try:
            written = 0
            while written < len(record):
                written += os.write(self._descriptor, record[written:])
            if sync:
                os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, self._bytes)
            raise AutotuneError(
                f"{self._path}: cannot write a trial: {error.strerror}. "
                f"What was recorded before is kept; make room and start the same command again"
            ) from error


def open_journal(path: Path, say: Callable[[str], None]) -> JournalStorage:
    """Opens or creates the journal at `path`, cutting a torn last record first.

    Args:
        path: The journal file. Its folder is created.
        say: Hears of a record that was cut.

    Raises:
        InputError: The path cannot be written or locked, or a line before the last is no record.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        backend = WholeLineBackend(path)
        torn_bytes = backend.cut_torn_tail()
    except OSError as error:
        hint = "use a folder you can write to"
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP):
            hint = (
                "its file system has no locks: use results on a local disk, or storage: with a database URL"
            )
        raise InputError(f"{path}: cannot be opened as a journal: {error.strerror}; {hint}") from error
    if torn_bytes:
        say(
            f"{path}: cut {torn_bytes} bytes of a record that was not finished; its candidate is measured again"
        )
    try:
        return JournalStorage(backend)
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        raise InputError(
            f"{path}: is damaged before its last line ({_first_bad_line(path)}); remove that line, "
            f"or move the file away to start over"
        ) from error


def _first_bad_line(path: Path) -> str:
    with path.open("rb") as journal:
        for number, line in enumerate(journal, start=1):
            try:
                if not isinstance(json.loads(line), dict):
                    return f"line {number} is not a record"
            except ValueError:
                return f"line {number} is not JSON"
    return "a record refers to one that is missing"
