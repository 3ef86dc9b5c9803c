"""Whether what a command finds can be kept: found out before any work by trying, not after it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.errors import InputError
from autotune.fields import Place


def require_records_kept(config: Any, below: Sequence[str]) -> None:
    """Opens the storage of a run config, and tries its results folder.

    Args:
        config: A RunConfig.
        below: Folders in the results that will be written to, beside trials/ where no storage is named.

    Raises:
        InputError: Names the config or the option, the value and what is wrong with it.
    """
    if config.storage is None:
        below = ("trials", *below)
    else:
        from autotune.ledger.database import open_url  # loads Optuna

        try:
            open_url(config.storage)
        except InputError as error:
            raise InputError(f"{config.path}: {error}") from None
    if below:
        require_writable(config.results, config.results_place, below)


def require_writable(
    folder: Path, place: Place, below: Sequence[str] = (), files: Sequence[str] = ()
) -> None:
    """Makes `folder`, and a file in it and in those of `below` that are there, and takes the files away again.

    What the mode bits say is not asked: for a superuser, on a read-only mount and in /proc they say yes. The folder
    stays, for the caller writes to it next, and another command may do so already.

    Args:
        place: The config's key or the option that names the folder.
        below: Names of folders in it that will be written to.
        files: Names of files in it that will be written anew.

    Raises:
        InputError: One of them cannot be a folder or cannot be written; names the place, the path and the reason.
            Nothing is left behind.
        OSError: The disk is full.
    """
    for one in (folder, *(folder / name for name in below if os.path.lexists(folder / name))):
        try:
            _probe(one)
            for name in files:
                if os.path.lexists(folder / name):
                    (folder / name).open("ab").close()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # nothing is wrong with what was asked for
            reason = _reason(one, error)
            raise place.refuses(str(folder), f"a folder that can be written, but {reason}") from None


def _probe(folder: Path) -> None:
    made: list[Path] = []
    probe = folder / f".probe.{os.getpid()}"
    try:
        for one in (*reversed(folder.parents), folder):
            if not os.path.isdir(one):  # unlike Path.is_dir it never raises
                one.mkdir(exist_ok=True)  # another command may have just made it
                made.append(one)
        probe.touch()
        probe.unlink(missing_ok=True)
    except BaseException:
        for one in reversed(made):
            with contextlib.suppress(OSError):  # another command uses it by now
                one.rmdir()
        raise


def _reason(folder: Path, error: OSError) -> str:
    path = Path(error.filename) if error.filename else folder
    path = path.parent if path.name.startswith(".probe.") else path
    if os.path.islink(path) and not os.path.exists(path):
        return f"{path} is a link to {os.readlink(path)}, which is not there"
    if isinstance(error, IsADirectoryError):
        return f"{path} is a folder"
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        blocking = next((one for one in (path, *path.parents) if os.path.lexists(one)), path)
        return f"{blocking} is a file"
    return f"{_cut(path)} cannot: {error.strerror}"


def _cut(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 120 else f"{text[:117]}..."
