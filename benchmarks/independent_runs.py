"""Do two independent runs of one problem end equally fast? Two full runs, then their winners race each other and XLA.

    PYTHONPATH=.:kernels python benchmarks/independent_runs.py --out DIR [--gpus 0,1] [--candidates 60] [--seconds 8]

Two `autotune run` processes with different seeds, each with a results folder of its own below DIR, tune the same list
of problems. With `--gpus 0` they run one after the other, with `--gpus 0,1` at once, each on one card with half of the
cores. Then, on the first card and in fresh processes, the two winners race with XLA. Where one run answers XLA, XLA
itself races the other run's kernel; where both do, or where both name one configuration, the answers are the same.
At least 9 of 10 must lie within 1%.

Of `--limit` some is kept for those races (15 s and 15 s a problem, 100 s at most). Of two runs one after the other the
first may take half of the rest, and what it leaves is the second's; what both leave is the races'. A run of two
problems takes about 90 s (H200, 16 cores, 2026-11-30): 12 to start, 5 to 6 to prepare each problem, 4 to 6 to screen 60
candidates, and the races of both at once. What each run says is repeated as it says it. Of one that had to be stopped,
how far each problem came is said, and every problem counts whose race had ended.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autotune.bestfile import BestEntry
from autotune.lanes import bootstrap_interval, paired
from autotune.problemlist import suite_problems
from autotune.protocol import AUTO, resolved
from autotune.runconfig import RaceSettings
from autotune.seam import Measured, Race, RaceEntry, RaceJob
from autotune.sessions import as_one, raced
from autotune.target import load_target
from autotune.verdict import best_rival
from benchmarks.card import Card, Deadline, Lines, card_of, race_job
from benchmarks.run_folder import RunFolder
from benchmarks.two_runs import tune

ROOT = Path(__file__).resolve().parent.parent
TARGET = load_target("hopper_matmul")
BOUND = 0.01
# Rows of the suite, counted from 0: three large ones, three mid, two skinny, one small, one of another layout.
DEFAULT_ROWS = (0, 3, 4, 5, 6, 7, 13, 14, 18, 27)


def main() -> None:
    arguments, parser = parsed()
    gpus = [int(index) for index in arguments.gpus.split(",")]
    cards = [card_of(parser, TARGET, index) for index in gpus]
    problems = chosen_problems(Path(arguments.suite), cards[0].device, arguments.rows)
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    deadline = Deadline(arguments.limit)
    folders = [RunFolder(out / f"run{run}", cards[0].device) for run in (0, 1)]
    if not arguments.race_only:
        tune(out, folders, problems, cards, arguments)
    for run, folder in enumerate(folders):
        print(f"run {run}: measured on {dict(folder.cards()) or 'nothing'}", flush=True)
    say = Lines(str(out / "independent_runs.jsonl"))
    rows = [*compared(folders, problems, cards[0], deadline, say)]
    near = sum(row["within"] for row in rows)
    print(
        f"within {BOUND:.0%}: {near} of {len(rows)} of {len(problems)} problems; {deadline.passed_s:.0f} s",
        flush=True,
    )
    raise SystemExit(0 if len(rows) == len(problems) and near >= 0.9 * len(rows) else 1)


def parsed() -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="results of both runs, and the comparison"
    )
    parser.add_argument("--suite", default=str(ROOT / "configs/suites/dev.csv"), metavar="FILE.csv")
    parser.add_argument(
        "--rows", metavar="N,N", help="rows of the suite, from 0; all that the kernel computes: all"
    )
    parser.add_argument("--gpus", default="0", metavar="N[,N]", help="as NVML counts them")
    parser.add_argument("--candidates", type=int, default=60, help="of each problem")
    parser.add_argument("--seconds", type=float, default=8.0, help="of screening each problem")
    parser.add_argument(
        "--limit", type=float, default=600.0, help="seconds of all; then it stops and reports"
    )
    parser.add_argument("--race-only", action="store_true", help="compare what DIR holds already")
    return parser.parse_args(), parser


def chosen_problems(suite: Path, device: Any, rows: str | None) -> list[Any]:
    """Returns the problems of these rows of the suite that the kernel computes."""
    problems = suite_problems(suite, TARGET)
    is_default = rows is None and suite.resolve() == (ROOT / "configs/suites/dev.csv").resolve()
    if is_default:
        problems = [problems[row] for row in DEFAULT_ROWS]
    elif rows and rows != "all":
        problems = [problems[int(row)] for row in rows.split(",")]
    return [problem for problem in problems if TARGET.heuristic_config(problem, device) is not None]


def compared(
    folders: list[RunFolder], problems: list[Any], card: Card, deadline: Deadline, say: Lines
) -> Iterator[dict[str, Any]]:
    """Yields a row for each problem that both runs answered: at once where the answers are one, else after a race."""
    found = [folder.answers() for folder in folders]
    unconfirmed = [folder.unconfirmed() for folder in folders]
    jobs: dict[Any, RaceJob] = {}
    for problem in problems:
        pair = [entries.get(problem) for entries in found]
        if None in pair:
            lost = [run for run, entry in enumerate(pair) if entry is None]
            say(problem=problem.describe(), note="not answered by both runs", without=lost, within=False)
            continue
        answers = [entry.config if entry.backend == "kernel" else None for entry in pair]
        if answers[0] == answers[1]:
            answer = "xla" if answers[0] is None else "one configuration"
            same = {"ratio": 1.0, "interval": None, "how": f"both answer {answer}"}
            yield told(say, problem, pair, **same, unconfirmed=runs_of(problem, unconfirmed))
            continue
        jobs[problem] = final_race(problem, card, pair)
    if not jobs:
        return
    with card.evaluator(TARGET.name) as evaluator:
        try:
            races = raced(
                evaluator,
                jobs.items(),
                processes=RaceSettings().processes,
                job_ids=itertools.count(),
                between=deadline,
            )
            for problem, results in races:
                pair = [entries[problem] for entries in found]
                ratio = ratio_of(as_one(results), pair)
                yield told(say, problem, pair, **ratio, unconfirmed=runs_of(problem, unconfirmed))
        except TimeoutError:
            print(f"stopped after {deadline.passed_s:.0f} s", flush=True)


def runs_of(problem: Any, problems_of_runs: Sequence[Container[Any]]) -> list[int]:
    return [run for run, problems in enumerate(problems_of_runs) if problem in problems]


def final_race(problem: Any, card: Card, pair: list[BestEntry]) -> RaceJob:
    return race_job(
        TARGET.name,
        problem,
        [entry.config for entry in pair if entry.backend == "kernel"],
        card.device,
        protocol=resolved(AUTO, problem, TARGET),
        formulations=tuple(dict.fromkeys(("plain", *(entry.formulation or "plain" for entry in pair)))),
    )


def ratio_of(race: Any, pair: list[BestEntry]) -> dict[str, Any]:
    """Returns the second run's time over the first's in the final race, with its interval, and XLA's over theirs."""
    if not isinstance(race, Race):
        return {"ratio": None, "interval": None, "how": f"{race.reason}: {race.detail}"}
    failed = [lane.result for lane in race.entries if not isinstance(lane.result, Measured)]
    kernels = iter(range(2))
    lanes = []
    for entry in pair:
        if entry.backend == "kernel":
            lanes.append(lanes_of(race, next(kernels)))
        else:
            lanes.append(None)
    measured = next(lane for lane in lanes if lane is not None)
    rival = best_rival(race, measured)
    lanes = [rival[1] if lane is None and rival else lane for lane in lanes]
    if not all(lanes):
        why = f"{failed[0].reason}: {failed[0].detail}" if failed else "a lane is missing"
        return {"ratio": None, "interval": None, "how": why}
    ratios = paired(lanes[1], lanes[0])
    to_xla = [float(np.median(paired(rival[1], lane))) for lane in lanes] if rival else None
    return {
        "ratio": float(np.median(ratios)),
        "interval": bootstrap_interval(ratios),
        "how": "raced",
        "xla_over_each": to_xla,
    }


def lanes_of(race: Race, finalist: int) -> dict[int, RaceEntry]:
    """Returns a finalist's lanes by session; none where it failed in one of them."""
    lanes = [lane for lane in race.entries if lane.finalist == finalist]
    sound = all(isinstance(lane.result, Measured) for lane in lanes)
    return {lane.session: lane for lane in lanes} if sound else {}


def told(
    say: Lines,
    problem: Any,
    pair: list[BestEntry],
    *,
    ratio: float | None,
    interval: Any,
    how: str,
    **more: Any,
) -> dict[str, Any]:
    row = {
        "problem": problem.describe(),
        "answers": [entry.backend for entry in pair],
        "recorded_ratios": [entry.ratio and entry.ratio.median for entry in pair],
        "ratio": ratio,
        "interval": interval,
        "how": how,
        "within": ratio is not None and abs(ratio - 1) <= BOUND,
        "knobs": [json.dumps(entry.config.to_knobs(), sort_keys=True) for entry in pair if entry.config],
        **more,
    }
    say(**row)
    return row


if __name__ == "__main__":
    main()
