"""Nights killed at random moments: no corrupt file, no stuck lock, no winner lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from autotune.bestfile import read_best
from autotune.nightly.files import folder_within, night_lock
from autotune.nightly.history import history_file, read_history
from tests.helpers.night_world import SIZES, World, kill_nights

ROOT = Path(__file__).resolve().parents[2]
KILLS = 100


def check(world: World) -> None:
    """Raises AssertionError where a kill left something broken."""
    found = read_best(world.best_path)
    assert found is not None
    sizes = sorted(one.problem.m for _, one in found.entries())
    assert sizes == sorted(SIZES), f"winners of {sizes} are left"
    with night_lock(folder_within(world.results, "nightly")):
        pass
    history = read_history(history_file(world.results, "nvidia_h200"))
    for records in history.problems.values():
        assert all(record["night"] in history.nights for record in records)
    for path in (world.results / "nightly" / "reports").glob("*.json"):
        if not path.name.startswith("."):
            json.loads(path.read_text())


def main(folder: Path) -> None:
    world = World(folder)
    world.store(*SIZES)
    killed = kill_nights(folder, KILLS, seed=1, check=check)
    after = World(folder)
    after.nights = 10**6
    codes = [after.run() for _ in range(2)]
    nights = len(read_history(history_file(after.results, "nvidia_h200")).nights)
    print(json.dumps({"killed": killed, "codes": codes, "nights": nights}))


def test_nothing_is_lost_by_a_hundred_kills_at_random_moments(tmp_path):
    # In a process of its own, which loads no jax and has one thread, so that it may fork.
    search = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.test_nightly_kill", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": search},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["killed"] == KILLS
    assert told["nights"] > 20, "nights ended between the kills, so the kills fell into all their parts"
    assert set(told["codes"]) <= {0, 10, 20}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
