"""Does the record hold later? Races each stored winner with XLA again, in fresh processes, by its own stored protocol.

    PYTHONPATH=.:kernels python benchmarks/remeasure.py results/best/nvidia_h200.json [--seconds 200] [--out FILE.jsonl]

XLA is raced in the plain formulation and in the one that the record names, each compiled anew in three processes, and
its fastest compilation counts, as when the record was made. Prints, problem by problem, the stored ratio of XLA's time
over the kernel's, the ratio now with its interval, and the change. At least 9 of 10 must lie within 2%, and within 3%
where either takes less than 10 us.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune.bestfile import BestEntry, read_best
from autotune.protocol import stored_protocol
from autotune.runconfig import RaceSettings
from autotune.seam import Measured, Race, RaceJob
from autotune.sessions import as_one, compilations, raced
from autotune.target import load_target
from autotune.verdict import judge
from benchmarks.card import Card, Deadline, Lines, card_of, race_job

TARGET = load_target("hopper_matmul")
BOUND, SHORT_BOUND, SHORT_US = 0.02, 0.03, 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("best", metavar="BESTFILE")
    parser.add_argument("--processes", type=int, default=RaceSettings().processes, help="of each race")
    parser.add_argument("--workers", type=int, help="processes at once")
    parser.add_argument("--seconds", type=float, default=240.0, help="stop after so long and report")
    parser.add_argument("--match", default="", metavar="TEXT", help="only entries whose key holds this text")
    parser.add_argument("--out", metavar="FILE", help="append each problem as a line of JSON")
    arguments = parser.parse_args()
    path = Path(arguments.best)
    found = read_best(path)
    if found is None:
        parser.error(f"{path}: there is no such file")
    entries = {
        key: entry
        for key, entry in found.entries()
        if entry.config is not None and entry.ratio is not None and arguments.match in key
    }
    card, deadline, say = card_of(parser, TARGET), Deadline(arguments.seconds), Lines(arguments.out)
    age_h = (time.time() - path.stat().st_mtime) / 3600
    print(f"{path}: {len(entries)} entries with a ratio; the file was written {age_h:.1f} h ago", flush=True)
    rows = []
    with card.evaluator(TARGET.name, workers=arguments.workers) as evaluator:
        try:
            jobs = ((key, stored_race(entry, card)) for key, entry in entries.items())
            for key, results in raced(
                evaluator, jobs, processes=arguments.processes, job_ids=itertools.count(), between=deadline
            ):
                rows.append(row_of(entries[key], results))
                say(**rows[-1], at_s=round(deadline.passed_s, 1))
        except TimeoutError:
            print(f"stopped after {arguments.seconds:g} s", flush=True)
    print(*table(rows), sep="\n", flush=True)
    near = sum(row["within"] for row in rows)
    print(
        f"within the bound: {near} of {len(rows)} measured of {len(entries)}; {deadline.passed_s:.0f} s",
        flush=True,
    )
    raise SystemExit(0 if len(rows) == len(entries) and near >= 0.9 * len(rows) else 1)


def stored_race(entry: BestEntry, card: Card) -> RaceJob:
    """Returns one session of the race that gave the ratio; older entries name no formulation, which is plain."""
    return race_job(
        entry.target,
        entry.problem,
        [entry.config],
        card.device,
        protocol=stored_protocol(entry.protocol),
        formulations=tuple(dict.fromkeys(("plain", entry.formulation or "plain"))),
    )


def row_of(entry: BestEntry, results: list[Any]) -> dict[str, Any]:
    """Returns how an entry compares with its race of today."""
    race = as_one(results)
    winner = judge([entry.config.to_knobs()], race) if isinstance(race, Race) else None
    row = {
        "problem": entry.problem.describe(),
        "timer": entry.protocol.get("timer"),
        "stored": entry.ratio.median,
        "date": entry.date,
        "age_days": (
            datetime.datetime.now(datetime.UTC).date() - datetime.date.fromisoformat(entry.date)
        ).days,
        "stored_us": [entry.kernel_us, entry.xla_us],
    }
    if winner is None or winner.ratio is None:
        return row | {"now": None, "within": False, "note": failure_of(race)}
    shortest_us = min(winner.time_us, winner.xla_time_us)
    bound = SHORT_BOUND if shortest_us < SHORT_US else BOUND
    change = winner.ratio / entry.ratio.median - 1
    return row | {
        "now": round(winner.ratio, 4),
        "interval": [round(end, 4) for end in winner.ratio_interval],
        "now_us": [round(winner.time_us, 3), round(winner.xla_time_us, 3)],
        "formulation": winner.formulation,
        "compilations": compilations(results),
        "xla_us_by_process": xla_by_process(race),
        "change": round(change, 4),
        "bound": bound,
        "within": abs(change) <= bound,
        "same_module": winner.digest == entry.digest,
    }


def xla_by_process(race: Race) -> list[float]:
    """Returns the median of XLA's plain product in each process, in us: where XLA chose otherwise, it shows here."""
    return [
        round(lane.result.timing.median_us, 3)
        for lane in race.entries
        if lane.formulation == "plain" and isinstance(lane.result, Measured)
    ]


def failure_of(race: Any) -> str:
    if not isinstance(race, Race):
        return f"{race.reason}: {race.detail}"
    failed = [lane.result for lane in race.entries if not isinstance(lane.result, Measured)]
    return f"{failed[0].reason}: {failed[0].detail}" if failed else "XLA was not measured"


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yields the rows as Markdown."""
    yield "| problem | recorded | stored | now | 95% | change | bound | XLA by process, us |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        if row["now"] is None:
            yield f"| {row['problem']} | {row['date']} | {row['stored']:.4f} | - | - | - | - | {row['note']} |"
            continue
        low, high = row["interval"]
        yield (
            f"| {row['problem']} | {row['date']} | {row['stored']:.4f} | {row['now']:.4f} | {low:.4f} - {high:.4f} "
            f"| {row['change']:+.2%} | {row['bound']:.0%} | {', '.join(map(str, row['xla_us_by_process']))} |"
        )


if __name__ == "__main__":
    main()
