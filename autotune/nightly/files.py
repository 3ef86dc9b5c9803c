"""A night's files, all below results: none is written through a link, and none is left half written."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError, InputError
from autotune.ledger.wholelines import FileLock, OpenLines


class NightRunsError(AutotuneError):
    """Another night holds the lock."""


def folder_within(results: Path, *names: str) -> Path:
    """Makes and returns results/<names>.

    Raises:
        InputError: A link on the way leads out of `results`, or a file is in the way.
    """
    folder = results.joinpath(*names)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise InputError(f"{folder}: is a file; a folder is needed there") from None
    if not folder.resolve().is_relative_to(results.resolve()):
        raise InputError(f"{folder}: leads to {folder.resolve()}, outside of {results}; remove the link")
    return folder


def write_whole(path: Path, text: str) -> None:
    """Replaces a file in one step; a link in its place is replaced, never followed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # of a killed process that had this id
    try:
        with temporary.open("x", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class LineFile:
    """JSON records, one a line, appended as a batch that is on the disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._guard = FileLock(path.with_name(f".{path.name}.lock"))

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Appends records; a torn line that a killed writer left is cut first.

        Raises:
            AutotuneError: They could not be written; none of them is then in the file.
            InputError: A link stands in the file's place.
        """
        lines = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
        if not lines:
            return
        try:
            with self._guard, OpenLines(self.path, "the night's record", create=True) as opened:
                opened.cut()
                opened.append(lines.encode(), sync=True)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}") from error

    def read(self) -> Iterator[dict[str, Any]]:
        """Yields the whole records, oldest first; a line that is none, torn or damaged, is left out."""
        try:
            with self.path.open("rb") as stream:
                lines = stream.readlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record

    def replace(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Replaces all records in one step."""
        lines = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
        with self._guard:
            write_whole(self.path, lines)


@contextlib.contextmanager
def night_lock(folder: Path) -> Iterator[None]:
    """Holds the one lock of a results folder's nights; it ends with its holder, even one that was killed.

    Raises:
        NightRunsError: Another night holds it.
    """
    path = folder / ".lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise InputError(f"{path}: cannot be locked: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 40, 0).decode(errors="replace").strip()
            raise NightRunsError(f"{path}: another night runs here (process {holder or 'unknown'})") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
