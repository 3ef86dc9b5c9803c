"""Ctrl-C and SIGTERM: an end at once before there is work, and a request while something is measured."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType

INTERRUPTED = 130  # exit code
_WORDS = b"autotune: interrupted\n"


def end_at_once() -> None:
    """Lets Ctrl-C and SIGTERM end the process with one line, where nothing can be lost.

    An exception instead would surface as a traceback from wherever an import is. An ignored signal stays ignored.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(OSError):  # stderr may be closed
        os.write(2, _WORDS)
    os._exit(INTERRUPTED)


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """While entered, Ctrl-C is a KeyboardInterrupt, or what a `DeferredInterrupt` makes of it, and SIGTERM the same."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: _hear_termination}
    previous = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) not in (signal.SIG_IGN, None)
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _hear_termination(number: int, frame: FrameType | None) -> None:
    on_interrupt = signal.getsignal(signal.SIGINT)
    if callable(on_interrupt):
        on_interrupt(signal.SIGINT, frame)
    else:  # Ctrl-C is ignored, as by nohup; SIGTERM is not
        raise KeyboardInterrupt


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
