"""What workers may take of the host's memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from autotune.evaluate import watchdog
from autotune.evaluate.watchdog import Watchdog, resident_bytes
from autotune.seam import Limits

HOG = """
import os, sys, time
hoard = os.urandom(2**20) * 200
if os.fork() == 0:
    more = os.urandom(2**20) * 100
    print(flush=True)
    time.sleep(60)
time.sleep(60)
"""


def test_a_group_is_charged_for_its_children_too(monkeypatch):
    hog = subprocess.Popen([sys.executable, "-c", HOG], stdout=subprocess.PIPE, process_group=0)
    try:
        hog.stdout.readline()
        taken = resident_bytes([hog.pid, os.getpgid(0)])
        # 200 MiB in the parent; the child shares them, and its own 100 come to them. An interpreter takes 10 or 20.
        assert 500 * 2**20 <= taken[hog.pid] < 640 * 2**20
        assert taken[os.getpgid(0)] > 0
        monkeypatch.setattr(watchdog, "MEMORY_INTERVAL_S", 0.05)
        assert Watchdog(Limits(memory_gib=1.0)).oversized([hog.pid]) == {}
        strict = Watchdog(Limits(memory_gib=0.25))
        (said,) = strict.oversized([hog.pid]).values()
        assert said.endswith("GiB of the host's memory, limit 0.25 GiB; the worker was killed")
        assert strict.oversized([hog.pid]) == {}  # it looks from time to time only
        time.sleep(0.06)
        assert len(strict.oversized([hog.pid])) == 1
    finally:
        os.killpg(hog.pid, 9)
        hog.wait()
        hog.stdout.close()


def test_a_group_that_ended_takes_nothing():
    done = subprocess.run(["true"], check=True, process_group=0)
    assert done.returncode == 0
    assert resident_bytes([2**22 + 1]) == {2**22 + 1: 0}


def test_steps_that_wait_for_others_have_no_limit():
    dog = Watchdog(Limits(lower_s=1.0, compile_s=2.0, run_s=3.0))
    limits = {step: dog.limit_s(step) for step in ("lower", "ask", "compile", "prepare", "wait", "run")}
    assert limits == {"lower": 1.0, "ask": None, "compile": 2.0, "prepare": 2.0, "wait": None, "run": 3.0}
