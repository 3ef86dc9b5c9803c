"""Two `autotune run` processes with different seeds: started, followed, stopped in time."""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.target import load_target
from benchmarks.card import Card
from benchmarks.run_folder import RunFolder

TARGET = load_target("hopper_matmul")
SEEDS = (11, 2011)
# Of the limit, kept for the final races: a start, and each of them.
START_S, RACE_S, MOST_FINAL_S = 15.0, 15.0, 100.0
LOOK_S = 0.5
END_S = 20.0  # a run that was asked to end has ended by then, or is killed


def tune(
    out: Path,
    folders: list[RunFolder],
    problems: list[Any],
    cards: list[Card],
    arguments: argparse.Namespace,
) -> None:
    """Makes both runs: at once where there are two cards, else one after the other."""
    with (out / "problems.csv").open("w") as file:
        writer = csv.DictWriter(file, TARGET.problem_fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(problem.to_fields() for problem in problems)
    began_s = time.monotonic()
    limit_s = tuning_s(arguments.limit, len(problems))
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // len(cards)
    with contextlib.ExitStack() as alive:
        running = []
        for run, seed in enumerate(SEEDS):
            place = run % len(cards)
            one = started(out, run, seed, cards[place], cores[place * half : (place + 1) * half], arguments)
            alive.callback(one.stop)
            running.append(one)
            if len(cards) == 1:
                ends_s = share_end_s(run, time.monotonic() - began_s, limit_s)
                wait(running[-1:], began_s + ends_s, folders, problems)
                if not folders[run].answers():
                    print(f"run {run} answered nothing, so that there is nothing to compare", flush=True)
                    return
        if len(cards) > 1:
            wait(running, began_s + limit_s, folders, problems)
    print(f"both runs took {time.monotonic() - began_s:.0f} s", flush=True)


def tuning_s(limit_s: float, problems: int) -> float:
    """Returns how much of the limit both runs may take together."""
    return max(0.0, limit_s - min(MOST_FINAL_S, START_S + RACE_S * problems))


def share_end_s(run: int, passed_s: float, limit_s: float) -> float:
    """Returns when a run of two in a row must end: the first may take half, the second what is left."""
    return passed_s + (limit_s - passed_s) / (len(SEEDS) - run)


def started(
    out: Path, run: int, seed: int, card: Card, cores: list[int], arguments: argparse.Namespace
) -> Running:
    config = out / f"run{run}.yaml"
    config.write_text(
        f"name: run{run}\nsuites: [problems.csv]\nevaluator: gpu\ngpus: [{card.gpu.index}]\n"
        f"search: {{seed: {seed}, candidates: {arguments.candidates}, seconds: {arguments.seconds:g}}}\n"
    )
    command = [
        sys.executable,
        "-m",
        "autotune",
        "run",
        str(config),
        "--results",
        str(out / f"run{run}"),
        "--fresh",
    ]
    print(f"run {run}: seed {seed}, GPU {card.gpu.index} {card.gpu.uuid}, {len(cores)} cores", flush=True)
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    log_path = out / f"run{run}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": path},
            preexec_fn=lambda: os.sched_setaffinity(0, cores),  # its workers inherit them, one a core
        )
    return Running(run=run, process=process, log=log_path)


@dataclass(slots=True, kw_only=True)
class Running:
    """A run that was started, its number, and how much of its log has been repeated."""

    run: int
    process: subprocess.Popen[bytes]
    log: Path
    told_bytes: int = 0
    began_s: float = field(default_factory=time.monotonic)

    @property
    def passed_s(self) -> float:
        return time.monotonic() - self.began_s

    def stop(self) -> None:
        """Ends the run if it is alive, which writes what it has; after `END_S` however it is."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def tell(self) -> None:
        """Repeats what the run has said since the last time, in whole lines."""
        news = self.log.read_bytes()[self.told_bytes :]
        news = news[: news.rfind(b"\n") + 1]
        self.told_bytes += len(news)
        for line in news.decode(errors="replace").splitlines():
            print(f"run {self.run}, {self.passed_s:.0f} s: {line}", flush=True)


def wait(running: list[Running], ends_s: float, folders: list[RunFolder], problems: list[Any]) -> None:
    """Waits for the runs; one that is not done at `ends_s` is stopped, and how far it came is said."""
    for one in running:
        while one.process.poll() is None and time.monotonic() < ends_s:
            time.sleep(LOOK_S)
            for each in running:
                each.tell()
        is_late = one.process.poll() is None
        one.stop()
        one.tell()
        how = f"stopped after {one.passed_s:.0f} s" if is_late else f"exit code {one.process.returncode}"
        for line in folders[one.run].stages(problems):
            print(f"run {one.run}, {how}: {line}", flush=True)
