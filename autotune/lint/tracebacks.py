"""Reads tracebacks: which frames are the user's, and which of jax's raised."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import jax

from autotune.lint.model import Location

_JAX_FOLDER = str(Path(jax.__file__).parent) + "/"
_JAXLIB_FOLDER = str(Path(jax.__file__).parent.parent / "jaxlib") + "/"
_OUR_FOLDER = str(Path(__file__).parent) + "/"
_STDLIB_FOLDER = sysconfig.get_paths()["stdlib"] + "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One level of a traceback."""

    location: Location
    variables: dict[str, Any]

    @property
    def is_users(self) -> bool:
        file = self.location.file
        is_installed = file.startswith(_STDLIB_FOLDER) and "/site-packages/" not in file
        return not (file.startswith((_JAX_FOLDER, _JAXLIB_FOLDER, _OUR_FOLDER, "<")) or is_installed)

    @property
    def is_pallas(self) -> bool:
        file = self.location.file
        return file.startswith(_JAX_FOLDER) and ("/pallas/" in file or "/mosaic/" in file)


def frames(error: BaseException) -> list[Frame]:
    """Returns the frames of an exception, outermost first."""
    found = []
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        place = Location(file=code.co_filename, line=traceback.tb_lineno, function=code.co_qualname)
        found.append(Frame(location=place, variables=traceback.tb_frame.f_locals))
        traceback = traceback.tb_next
    return found


def user_location(error: BaseException) -> Location | None:
    """Returns the innermost frame of the user's that an error, or what jax chained to it, passed through."""
    for link in (error.__cause__, error):
        found = [frame.location for frame in frames(link) if frame.is_users] if link is not None else []
        if found:
            return found[-1]
    return None


def one_line(error: BaseException) -> str:
    """Returns `TypeError: message`, with the message's first line only."""
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
