"""Databases that a user names by an Optuna storage URL: opening one, and what is said of one that does not answer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage

from autotune.errors import AutotuneError, InputError, without_password

_CREATIONS, _CREATION_S = 5, 0.2  # of a database that two runs make at once


def open_url(url: str) -> BaseStorage:
    """Opens an Optuna storage URL, and asks it for its studies once, so that one that refuses is found out.

    Raises:
        InputError: It cannot be opened; the message shows the URL without its password.
    """
    try:
        for _ in range(_CREATIONS):
            try:
                return _opened(url)
            except Exception as error:
                if not _may_be_created_meanwhile(error, url):
                    raise
                time.sleep(_CREATION_S)
        return _opened(url)
    # Optuna passes on whatever its database driver raises.
    except Exception as error:  # noqa: BLE001 - drivers have no error class in common
        shown = without_password(url)
        password = url.partition("://")[2].rpartition("@")[0].partition(":")[2]
        reason = _first_line(error).replace(url, shown)
        reason = reason.replace(password, "***") if password else reason
        # Not "from error": its text and its frames hold the URL with the password.
        raise InputError(
            f"storage={shown!r}: cannot be opened: {reason}; give an Optuna storage URL that answers, "
            f"such as sqlite:///trials.db, or null for a journal file"
        ) from None


def _opened(url: str) -> BaseStorage:
    storage = optuna.storages.get_storage(url)
    storage.get_all_studies()
    return storage


def _may_be_created_meanwhile(error: BaseException, url: str) -> bool:
    """Returns whether another process may be making the tables of a new database, over which Optuna stumbles.

    Servers say so by errors of their own kinds; SQLite says OperationalError, as of much else.
    """
    names = {type(one).__name__ for one in _chain(error)}
    return not names.isdisjoint({"IntegrityError", "ProgrammingError"}) or (
        url.startswith("sqlite") and "OperationalError" in names
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__


def _first_line(error: BaseException) -> str:
    """Returns what a driver says, which Optuna wraps into an error without a reason."""
    *_, cause = _chain(error)
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    if isinstance(cause, ModuleNotFoundError):
        return f"its driver is not installed: {cause.name}"
    return lines[0].rstrip(".") if lines else type(cause).__name__


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Turns the error of a database that stopped answering into one line."""
    try:
        yield
    except StorageInternalError as error:
        raise AutotuneError(
            f"storage: the database no longer takes records: {_first_line(error)}. What was recorded before is kept; "
            f"start the same command again"
        ) from error
