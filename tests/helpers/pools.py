"""Pools of real worker processes over the fake target, on the CPU."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from autotune.evaluate.child_environment import worker_environment
from autotune.evaluate.messages import WorkerSetup
from autotune.evaluate.pool import Pool
from autotune.seam import Limits, MeasureProtocol, Outcome
from tests.helpers.fake_target import ScriptedTimer, load_fake_target

WAIT_S = 60.0
LIMITS = Limits(lower_s=20.0, compile_s=30.0, run_s=20.0)  # generous: a busy host is no fault of a candidate


def fake_pool(folder: Path, *, workers: int = 1, limits: Limits = LIMITS, **changes: Any) -> Pool:
    """Returns a pool that measures the fake target with the scripted timer; its calls are logged in `folder`."""
    setup = {
        "measures": True,
        "platform": "cpu",
        "protocol": MeasureProtocol(rounds=3),
        "target_loader": load_fake_target,
        "make_timer": ScriptedTimer,
        "lock_path": str(folder / "gpu.lock"),
    }
    environment = (
        worker_environment() | {"FAKE_TIMER_LOG": str(folder / "timer.log")} | changes.pop("environment", {})
    )
    card_bytes = changes.pop("card_bytes", None)
    return Pool(
        kind="gpu",
        setup=WorkerSetup(**(setup | changes)),
        environment=environment,
        workers=workers,
        limits=limits,
        card_bytes=card_bytes,
    )


def collect(evaluator: Any, count: int) -> dict[int, Outcome]:
    """Polls until `count` outcomes have come; returns them by job."""
    outcomes: dict[int, Outcome] = {}
    deadline_s = time.monotonic() + WAIT_S
    while len(outcomes) < count:
        assert time.monotonic() < deadline_s, f"only {sorted(outcomes)} of {count} outcomes came"
        for outcome in evaluator.poll(1.0):
            assert outcome.job_id not in outcomes, f"job {outcome.job_id} ended twice"
            outcomes[outcome.job_id] = outcome
    return outcomes


def is_alive(pid: int) -> bool:
    """Returns whether a process runs; one that ended and waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def wait_until(is_true: Any, what: str, timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline_s, f"waited {timeout_s:g} s: {what}"
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    """Returns the processes whose parent is `pid`."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == pid:
                found.append(int(entry))
    return found
