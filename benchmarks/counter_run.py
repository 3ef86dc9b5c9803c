"""One run of ncu around one process: started, watched, ended in time, and read."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.counter_lanes import CounterJob
from benchmarks.counter_log import Kernel, by_lane, kernels_of, messages, unknown_metrics

START_S = 15.0  # from ncu's start to the first lane, and from the last lane's end to ncu's
STEP_S = 90.0  # without a step the process hangs
WRITE_S = 15.0  # ncu writes what it has read once its process is gone
LOOK_S = 0.2
LINE_CHARACTERS = 120
# Only the process itself launches kernels; a ptxas that XLA starts is none of ours.
OPTIONS = (
    "--target-processes", "application-only", "--profile-from-start", "off", "--replay-mode", "kernel",
    "--cache-control", "all", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Where ncu is, what it runs in, a folder for what a run leaves, and a file that keeps the logs of all of them."""

    path: str
    environment: Mapping[str, str]
    folder: Path
    kept: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run brought, by the lanes' numbers.

    Attributes:
        begun, done: Lanes that the process came to, and came through.
        failed: Why a lane failed, in the process's own words.
        messages: ncu's errors and warnings.
        output: Last line that the process or ncu printed.
    """

    kernels: Mapping[int, Sequence[Kernel]]
    begun: frozenset[int]
    done: frozenset[int]
    failed: Mapping[int, str]
    messages: Sequence[str]
    output: str

    @property
    def last_words(self) -> str:
        errors = [line for line in self.messages if line.startswith("==ERROR==")]
        return "; ".join([*errors, self.output] if self.output else errors) or "it said nothing"

    @property
    def is_fruitless(self) -> bool:
        """Whether there is no kernel, though not every lane failed by itself."""
        return not self.kernels and self.begun != set(self.failed)

    def unknown(self, metrics: Sequence[str]) -> list[str]:
        return [] if self.kernels else unknown_metrics(self.messages, metrics)


def command(tool: Tool, job_path: Path, log: Path, metrics: Sequence[str]) -> list[str]:
    """Returns the command line: ncu around the process that launches the lanes."""
    child = [sys.executable, "-P", "-m", "benchmarks.counter_child", str(job_path)]
    return [tool.path, *OPTIONS, "--metrics", ",".join(metrics), "--log-file", str(log), *child]


def run(tool: Tool, job: CounterJob, metrics: Sequence[str], limit_s: float) -> Report:
    """Runs the lanes of a job under ncu, says each step, and returns what is known at the end.

    Takes `limit_s` and `WRITE_S` at most.
    """
    job_path, log, output = (tool.folder / name for name in ("job", "log", "output"))
    progress = Path(job.progress)
    for path in (log, progress):
        path.unlink(missing_ok=True)
    job_path.write_bytes(pickle.dumps(job))
    with output.open("w") as stream:
        process = subprocess.Popen(
            command(tool, job_path, log, metrics),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=dict(tool.environment),
            process_group=0,
        )
    try:
        _watch(process, progress, log, limit_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # Kept before it is read: what this version of ncu writes otherwise can then be looked at.
    if tool.kept is not None:
        with tool.kept.open("a") as file:
            file.write(_text(log) + _text(output))
    return _report(_steps(progress), _text(log), _text(output))


def tell(lines: Sequence[str]) -> None:
    """Says the beginning of each line on stderr, so that what is on stdout can be pasted."""
    for line in lines:
        print(line[:LINE_CHARACTERS], file=sys.stderr, flush=True)


def _watch(process: subprocess.Popen[bytes], progress: Path, log: Path, limit_s: float) -> None:
    """Returns when ncu has ended, or has had its time; the process below it is ended first."""
    end_s = time.monotonic() + limit_s
    step_end_s, said = time.monotonic() + STEP_S, 0
    while not _has_ended(process):
        steps = list(_steps(progress))
        if len(steps) > said:
            step_end_s = time.monotonic() + STEP_S
            tell([" ".join(map(str, step.values())) for step in steps[said:] if "lane" in step])
            said = len(steps)
        # After an error ncu may let the process run on, and reads nothing more of it.
        if time.monotonic() > min(end_s, step_end_s) or "==ERROR==" in _text(log):
            _end(steps)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(WRITE_S)
            return


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(LOOK_S)
    return process.returncode is not None


def _end(steps: Sequence[Mapping[str, Any]]) -> None:
    for step in steps:
        if "pid" in step:
            with contextlib.suppress(ProcessLookupError):
                os.kill(step["pid"], signal.SIGKILL)


def _steps(progress: Path) -> Iterator[dict[str, Any]]:
    """Yields the steps that were written whole."""
    for line in _text(progress).splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def _report(steps: Iterator[dict[str, Any]], log: str, output: str) -> Report:
    lanes: dict[str, dict[int, str]] = {"begin": {}, "done": {}, "failed": {}}
    for step in steps:
        if "lane" in step:
            lanes[step["step"]][step["lane"]] = step.get("detail", "")
    # The process's own steps are no words of an error, and ncu may print where its log is not.
    words = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("{")]
    return Report(
        kernels=by_lane(kernels_of(log)),
        begun=frozenset(lanes["begin"]),
        done=frozenset(lanes["done"]),
        failed=lanes["failed"],
        messages=messages(f"{log}\n{output}"),
        output=words[-1] if words else "",
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
