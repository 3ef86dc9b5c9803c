"""Prints what the lookup costs: importing it, the first call of a process, and a repeated call.

Run with `python benchmarks/lookup_time.py`. Each process is a fresh one; the least and the median of
them are shown, since whatever else the host does only adds.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

PROCESSES = 15
CALLS = 20_000
SCRIPT = f"""
import time
begin = time.perf_counter()
from autotune import best_config
imported = time.perf_counter()
best_config(4096, 4096, 4096)
first = time.perf_counter()
for _ in range({CALLS}):
    best_config(4096, 4096, 4096)
end = time.perf_counter()
print((imported - begin) * 1e3, (first - imported) * 1e3, (end - first) / {CALLS} * 1e6)
"""
LIMITS = (
    ("import best_config", "ms", 50.0),
    ("first best_config", "ms", 20.0),
    ("repeated best_config", "us", 10.0),
)


def main() -> None:
    root = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(root), str(root / "kernels")))}
    rows = []
    for _ in range(PROCESSES):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
        )
        rows.append([float(value) for value in done.stdout.split()])
    for (what, unit, limit), values in zip(LIMITS, zip(*rows, strict=True), strict=True):
        spread = f"least {min(values):6.2f}, median {statistics.median(values):6.2f} {unit}"
        print(f"{what:<22} {spread}  (wanted: under {limit:g} {unit})")


if __name__ == "__main__":
    main()
