"""Failures that end a command. Each carries the one line a user reads and the exit code of the process."""

from __future__ import annotations


def without_password(url: str) -> str:
    """Returns a storage URL as an error may show it: without its password, and without its options."""
    scheme, slashes, rest = url.partition("://")
    rest = rest.partition("?")[0]
    account, at, host = rest.rpartition("@")  # a password may hold any sign, also this one
    user, colon, _ = account.partition(":")
    hidden = f"{user}{colon}***{at}{host}" if colon else rest
    return f"{scheme}{slashes}{hidden}" if slashes else "***" if "@" in url else url


class AutotuneError(Exception):
    """Base of the errors that the command line turns into one line and an exit code."""

    exit_code = 1


class InputError(AutotuneError):
    """Bad input: a config, an argument or a file. Raised before anything is written."""

    exit_code = 2


class NothingLegalError(AutotuneError):
    """The space holds no legal configuration; the message lists the rejects by rule."""

    exit_code = 3


class NothingSurvivedError(AutotuneError):
    """Candidates existed, but each of them failed; the message lists the failures by reason."""

    exit_code = 4
