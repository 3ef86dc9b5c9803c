"""Optuna's journal file, made to survive a kill, a full disk and a second writer."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from autotune.errors import InputError
from autotune.ledger.wholelines import FileLock, OpenLines

# A written record outlives its process at once, and the host after this long at most. Forcing each one to the disk
# took 0.2 to 4.5 ms on the disk of a virtual machine (2026-11-30), as long as the rest of recording and asking.
_SYNC_INTERVAL_S = 1.0


class WholeLineBackend(JournalFileBackend):
    """A journal file backend that never appends to half a record.

    A writer that was killed leaves a line without its newline, and Optuna would glue the next record onto it and
    lose both. Each append first cuts such a rest, under the lock, and takes back its own when the disk is full.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._guard = FileLock(path.with_name(path.name + ".lock"))
        self._path = path
        self._synced_s = 0.0

    def cut_torn_tail(self) -> int:
        """Cuts the file after its last newline and returns how many bytes that took away."""
        with self._guard, OpenLines(self._path, "a trial") as journal:
            return journal.cut()

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with self._guard, OpenLines(self._path, "a trial") as journal:
            journal.cut()
            is_due = time.monotonic() - self._synced_s >= _SYNC_INTERVAL_S
            journal.append(text.encode(), sync=is_due)
            if is_due:
                self._synced_s = time.monotonic()


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
    # Optuna lets a bad last line pass when it opens the file, and fails on it at the next record.
    if bad := _first_bad_line(path):
        raise _damaged(path, bad)
    try:
        return JournalStorage(backend)
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        raise _damaged(path, "a record refers to one that is missing") from error


def _damaged(path: Path, what: str) -> InputError:
    return InputError(f"{path}: is damaged ({what}); remove that line, or move the file away to start over")


def _first_bad_line(path: Path) -> str | None:
    if not path.exists():
        return None
    with path.open("rb") as journal:
        for number, line in enumerate(journal, start=1):
            try:
                if not isinstance(json.loads(line), dict):
                    return f"line {number} is not a record"
            except ValueError:
                return f"line {number} is not JSON"
    return None
