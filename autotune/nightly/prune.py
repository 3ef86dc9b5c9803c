"""Clearing up after a night: old journals of trials go, quiet nights of long ago are thinned out."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune.nightly.files import LineFile, write_whole
from autotune.nightly.history import compacted, read_history

DAY_S = 86_400.0
COMPACT_DAYS = 7  # a study that nobody went on with for so long keeps medians instead of samples


def prune_trials(results: Path, days: int, now_s: float | None = None) -> int:
    """Compacts journals under results/trials that nobody wrote to for a week, and removes those of over `days`.

    The best files and the history keep what they led to. Links, folders and journals in use stay.

    Returns:
        How many journals were removed.
    """
    folder = results / "trials"
    if not folder.is_dir() or not folder.resolve().is_relative_to(results.resolve()):
        return 0
    now_s = time.time() if now_s is None else now_s
    removed = 0
    for path in sorted(folder.glob("*.journal")):
        if not path.is_file() or path.is_symlink():
            continue
        age_s = now_s - path.stat().st_mtime
        if age_s > days * DAY_S:
            removed += _remove_unused(path)
        elif age_s > COMPACT_DAYS * DAY_S:
            compact_journal(path)
    return removed


def compact_journal(path: Path) -> int:
    """Puts each screened candidate's median in the place of its samples; returns the bytes that went.

    Races keep their samples, since the winner's interval comes from them. The file keeps its time of writing.
    """
    with _unused(path) as is_ours:
        if not is_ours:
            return 0
        before, status = path.read_text(encoding="utf-8"), path.stat()
        after = "".join(_compacted_line(line) for line in before.splitlines(keepends=True))
        if len(after) < len(before):
            write_whole(path, after)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return len(before) - len(after)


def compact_history(file: LineFile, days: int, today: datetime.date) -> int:
    """Thins out nights older than `days` and returns how many records went."""
    before = sum(1 for _ in file.read())
    kept = compacted(read_history(file), (today - datetime.timedelta(days=days)).isoformat())
    if len(kept) < before:
        file.replace(kept)
    return before - len(kept)


def _compacted_line(line: str) -> str:
    try:
        record = json.loads(line)
    except ValueError:
        return line
    attributes = record.get("user_attrs") if isinstance(record, dict) else None
    result = attributes.get("result") if isinstance(attributes, dict) else None
    timing = result.get("timing") if isinstance(result, dict) and attributes.get("kind") == "screen" else None
    if not isinstance(timing, dict) or len(timing.get("samples_us", ())) < 2:
        return line
    for name in ("samples_us", "reference_us"):
        if timing.get(name):
            timing[name] = [statistics.median(timing[name])]
    return json.dumps(record, separators=(",", ":")) + "\n"


def _remove_unused(path: Path) -> int:
    with _unused(path) as is_ours:
        if is_ours:
            path.unlink()
            _lock_of(path).unlink()
    return int(is_ours)


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


@contextlib.contextmanager
def _unused(path: Path) -> Iterator[Any]:
    """Holds a journal's lock; yields False where somebody writes to it, or the lock cannot be made."""
    try:
        descriptor = os.open(_lock_of(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            yield False
            return
        yield True
    finally:
        os.close(descriptor)
