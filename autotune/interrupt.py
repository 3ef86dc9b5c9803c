"""Ctrl-C as a request: the loop that hears it first records what was measured."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class DeferredInterrupt:
    """While entered, the first Ctrl-C sets a flag and the second one interrupts at once.

    Without it an interrupt can fall between an outcome's arrival and its record, and the measurement is lost.
    Outside the main thread signals cannot be caught, so nothing is deferred there.
    """

    def __init__(self) -> None:
        self._requested = False
        self._previous: signal.Handlers | object | None = None
        self._is_installed = False

    def __enter__(self) -> DeferredInterrupt:
        # An ignored SIGINT (nohup, a background job of a shell) stays ignored.
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) not in (
            signal.SIG_IGN,
            None,
        ):
            self._previous = signal.signal(signal.SIGINT, self._hear)
            self._is_installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_installed:
            signal.signal(signal.SIGINT, self._previous)  # type: ignore[arg-type]
            self._is_installed = False

    def requested(self) -> bool:
        return self._requested

    def raise_if_requested(self) -> None:
        """Raises KeyboardInterrupt where Ctrl-C was pressed."""
        if self._requested:
            raise KeyboardInterrupt

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True
