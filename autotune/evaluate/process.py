"""The parent's side of one worker process: its pipe, what it printed last, and the step it is in."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from autotune.evaluate.messages import StepName, WorkerSetup

ENTRY = "from autotune.evaluate.worker import main; main()"
KEPT_OUTPUT_BYTES = 16 * 1024
LINE_CHARACTERS = 200
LEAVE_S = 0.5
REAP_S = 10.0  # a process stuck in the driver outlives even SIGKILL for a while


class WorkerProcess:
    """A child that speaks pickled messages over a pipe of its own.

    What libraries and kernels print goes to another pipe, whose last `KEPT_OUTPUT_BYTES` are kept: it cannot
    break the protocol, and it tells the last words of a process that dies.

    The kernel ends a worker when the thread that started it ends, so a pool belongs to a thread that outlives
    it.
    """

    def __init__(self, setup: WorkerSetup, environment: Mapping[str, str]):
        ours, theirs = socket.socketpair()
        self.output, output = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", ENTRY, str(theirs.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment),
            pass_fds=(theirs.fileno(),),
            process_group=0,  # Ctrl-C at the terminal reaches the parent alone; killing reaches compilers too
        )
        theirs.close()
        os.close(output)
        os.set_blocking(self.output, False)
        self.has_output = True
        self._kept = b""
        self.connection = Connection(ours.detach())
        self.step: StepName = "start"
        self.lane: int | None = None
        self.step_began_s = time.monotonic()
        self.send(setup)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Any) -> None:
        """Sends a message; one to a dead worker is dropped, since reading from it will tell of its death."""
        with contextlib.suppress(OSError):
            self.connection.send(message)

    def received(self) -> list[Any] | None:
        """Returns the messages that have come; None where the pipe is closed and nothing is left to read."""
        messages = []
        try:
            while self.connection.poll():
                messages.append(self.connection.recv())
        except (EOFError, OSError):
            return messages or None
        return messages

    def enter(self, step: StepName, lane: int | None) -> None:
        self.step, self.lane, self.step_began_s = step, lane, time.monotonic()

    def read_output(self) -> None:
        """Takes what was printed, so that the worker never waits for a reader."""
        try:
            while self.has_output:
                printed = os.read(self.output, KEPT_OUTPUT_BYTES)
                self.has_output = bool(printed)
                self._kept = (self._kept + printed)[-KEPT_OUTPUT_BYTES:]
                if len(printed) < KEPT_OUTPUT_BYTES:
                    return
        except BlockingIOError:
            return

    def end(self) -> None:
        """Kills the process and what it started, and waits for nothing: one with a hung kernel takes seconds."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def is_gone(self) -> bool:
        """Returns whether a process that was told to end has ended; then nothing is left of it."""
        if self._process.poll() is None:
            return False
        self._close()
        return True

    def kill(self, *, wait_s: float = REAP_S) -> None:
        """Ends the process and what it started, and waits for it."""
        self.end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        self._close()

    def last_words(self) -> str:
        """Returns how a process that closed its pipe ended, with its last line of output; kills what is left."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVE_S)
        self.end()
        self.read_output()
        last = self.last_line()
        return f"{self._ending()}; last output: {last}" if last else self._ending()

    def _close(self) -> None:
        if not self.connection.closed:  # an interrupted close is done again
            self.connection.close()
            os.close(self.output)

    def _ending(self) -> str:
        code = self._process.returncode
        if code is None:
            return "the process does not end"
        if code < 0:
            return f"the worker died of {signal.Signals(-code).name}"
        return f"the worker exited with code {code}"

    def last_line(self) -> str:
        """Returns the last line printed that is no frame of a stack trace."""
        lines = self._kept.decode(errors="replace").splitlines()
        for line in reversed(lines):
            text = "".join(character if character.isprintable() else " " for character in line).strip()
            if text and not text.startswith(("@ ", "***")):
                return text[:LINE_CHARACTERS]
        return ""
