"""How often races tie that must: XLA against XLA, and one kernel entered twice.

    PYTHONPATH=.:kernels python benchmarks/race_honesty.py [--races 100]            simulated, from recorded samples
    PYTHONPATH=.:kernels python benchmarks/race_honesty.py --gpu [--races 100] [--seconds 330] [--out FILE.jsonl]

Simulated: lanes share the drift of a recorded lane and draw their own noise from its residuals.

On a GPU each race has four lanes: one kernel twice, XLA's plain product, and that product again, compiled once more.
Protocol, early stopping and judge are those of a run, and so are the fresh processes, three a race. What is shared
to end in minutes: a process races the same lanes several times over, and race number p of a group is made of pass p
in each of its processes. XLA against XLA ties where neither is given the race as a kernel against the other.
At least 95 of 100 must tie.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autotune.evaluate import read_recorded
from autotune.evaluate.rounds import race_rounds
from autotune.lanes import paired
from autotune.protocol import AUTO, resolved
from autotune.runconfig import RaceSettings
from autotune.seam import Candidate, Lowered, Measured, Race, RaceEntry, RaceJob, Timing
from autotune.sessions import raced
from autotune.target import load_target
from autotune.verdict import judge, merged
from benchmarks.card import Card, Deadline, Lines, card_of
from benchmarks.honest_target import AGAIN, NAME, HonestTarget, load_honest

RECORDED = Path(__file__).resolve().parent.parent / "results/recorded"
KNOBS = ({"entry": 1}, {"entry": 2})
# Family, sizes, passes in each process, and groups of processes: 36 + 24 + 36 + 4 races make 100. They took
# 299 s beside other races (H200, 16 cores, 2026-11-30).
PROBLEMS = (
    ("mid", {"m": 512, "n": 4096, "k": 7168}, 18, 2),
    ("small", {"m": 1024, "n": 1024, "k": 1024}, 12, 2),
    ("skinny", {"m": 128, "n": 10240, "k": 8192}, 18, 2),
    ("large", {"m": 4096, "n": 4096, "k": 4096}, 4, 1),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--races", type=int, default=100)
    parser.add_argument("--processes", type=int, default=RaceSettings().processes, help="of each race")
    parser.add_argument("--workers", type=int, help="processes at once")
    parser.add_argument("--seconds", type=float, default=330.0, help="stop after so long and report")
    parser.add_argument("--out", metavar="FILE", help="append each race as a line of JSON")
    arguments = parser.parse_args()
    if arguments.gpu:
        on_gpu(arguments, parser)
        return
    for path in sorted(RECORDED.glob("*.json.gz")):
        residuals = recorded_residuals(path)
        for label, scale in (("all lanes equal", 1.0), ("kernels 2% faster than XLA", 0.98)):
            winners = [simulated(residuals, scale, seed) for seed in range(arguments.races)]
            report(f"{path.stem[:48]}, {label}", winners)


def recorded_residuals(path: Path) -> np.ndarray:
    """Returns logarithms of recorded samples over their lane's median, lane by lane."""
    rows = [row.samples_us for row in read_recorded(path).rows.values() if len(row.samples_us) >= 20]
    return np.array([np.log(np.asarray(samples[:20]) / np.median(samples[:20])) for samples in rows])


def simulated(residuals: np.ndarray, scale: float, seed: int, sessions: int = 3, rounds: int = 60) -> object:
    """Returns the winner of a race of two equal kernels and XLA, with noise of recorded lanes."""
    draw = np.random.default_rng(seed)
    races = []
    for _ in range(sessions):
        base = np.array([100.0 * scale, 100.0 * scale, 100.0])
        noise = [
            np.concatenate([residuals[draw.integers(len(residuals))] for _ in range(rounds // 20)])
            for _ in base
        ]
        times = [(one * np.exp(each)).tolist() for one, each in zip(base, noise, strict=True)]

        def take(running, first, count, times=times):
            return {lane: times[lane][first : first + count] for lane in running}

        lanes = race_rounds(3, rounds, 1e9, take, rounds_a_look=20, kept=[2])
        races.append(Race(entries=tuple(entry(lane, samples) for lane, samples in enumerate(lanes))))
    return judge(KNOBS, merged(races))


def entry(lane: int, samples: tuple[float, ...]) -> RaceEntry:
    result = Measured(
        lowered=Lowered(digest=str(lane), lower_s=0.0), timing=Timing(samples_us=samples, l2="clean")
    )
    return RaceEntry(
        finalist=lane if lane < 2 else None, result=result, formulation="plain" if lane == 2 else None
    )


def on_gpu(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Races one kernel entered twice, XLA, and XLA again, many times over, and says each race as it ends."""
    card, say, deadline = (
        card_of(parser, load_target("hopper_matmul")),
        Lines(arguments.out),
        Deadline(arguments.seconds),
    )
    rows: list[dict] = []
    with card.evaluator(NAME, workers=arguments.workers, target_loader=load_honest) as evaluator:
        try:
            groups = raced(
                evaluator,
                honest_jobs(card, arguments.races),
                processes=arguments.processes,
                job_ids=itertools.count(),
                between=deadline,
            )
            for (family, problem, number), results in groups:
                broken = [result for result in results if not isinstance(result, Race)]
                if broken:
                    say(problem=problem.describe(), failed=f"{broken[0].reason}: {broken[0].detail}")
                    continue
                for row in map(honest_row, passes_of(results)):
                    rows.append({"family": family, "problem": problem.describe(), "group": number, **row})
                    say(**rows[-1], at_s=round(deadline.passed_s, 1))
        except TimeoutError:
            say(stopped=f"after {arguments.seconds:g} s")
    for family in dict.fromkeys(row["family"] for row in rows):
        summarise(family, [row for row in rows if row["family"] == family])
    is_honest = summarise("all", rows)
    print(f"{deadline.passed_s:.0f} s on {card.gpu.kind}", flush=True)
    raise SystemExit(0 if is_honest and len(rows) >= arguments.races else 1)


def honest_jobs(card: Card, races: int) -> Iterator[tuple[tuple[str, Any, int], RaceJob]]:
    """Yields groups of races: each runs in the same fresh processes, with as many passes as `PROBLEMS` says."""
    target, settings = HonestTarget(), RaceSettings()
    planned = 0
    for number in itertools.count():
        for family, sizes, passes, groups in PROBLEMS:
            if planned >= races:
                return
            if number >= groups and races <= 100:
                continue
            problem = target.problem_from_fields(sizes)
            config = target.config_from_knobs(target.heuristic_config(problem, card.device))
            one = Candidate(target=NAME, problem=problem, config=config, device=card.device)
            passes = min(passes, races - planned)
            planned += passes
            yield (
                (family, problem, number),
                RaceJob(
                    job_id=0,
                    problem=problem,
                    target=NAME,
                    candidates=(one, one),
                    rounds=settings.rounds,
                    protocol=resolved(AUTO, problem, target),
                    formulations=("plain", AGAIN),
                    seconds=settings.seconds,
                    passes=passes,
                ),
            )


def passes_of(results: Sequence[Race]) -> list[Race]:
    """Returns the races of a group: pass number p of every process, merged."""
    numbers = sorted(
        {
            lane.session - min(each.session for each in race.entries)
            for race in results
            for lane in race.entries
        }
    )
    found = []
    for number in numbers:
        sessions = []
        for race in results:
            first = min(lane.session for lane in race.entries)
            sessions.append(
                Race(entries=tuple(lane for lane in race.entries if lane.session - first == number))
            )
        found.append(merged(sessions))
    return found


def honest_row(race: Race) -> dict:
    """Returns what the real judge says of the twins, and of XLA against XLA, each of both entered as the finalist."""
    again = [lane for lane in race.entries if lane.formulation == AGAIN]
    plain = [lane for lane in race.entries if lane.formulation == "plain"]
    twins = judge(KNOBS, Race(entries=tuple(lane for lane in race.entries if lane not in again)))
    one, other = (judge(KNOBS[:1], race_of(own, rival)) for own, rival in ((again, plain), (plain, again)))
    lanes = {0: "twin 1", 1: "twin 2"}
    return {
        "twins_tied": bool(twins and twins.tied == 2),
        "twins_ratio": ratio_of(race, 0, 1),
        "xla_tied": bool(one and other and one.backend == other.backend == "xla"),
        "xla_ratio": one and one.ratio,
        "xla_interval": one and one.ratio_interval,
        "kernel_over_xla": twins and twins.ratio,
        "failed": [
            f"{lanes.get(lane.finalist, lane.formulation)}: {lane.result.reason}: {lane.result.detail}"
            for lane in race.entries
            if not isinstance(lane.result, Measured)
        ],
        "rounds": [
            len(lane.result.timing.samples_us) for lane in race.entries if isinstance(lane.result, Measured)
        ],
    }


def race_of(own: Sequence[RaceEntry], rival: Sequence[RaceEntry]) -> Race:
    """Returns a race of two rivals' lanes in which the first is entered as a kernel."""
    finalist = [dataclasses.replace(lane, finalist=0, formulation=None) for lane in own]
    return Race(entries=(*finalist, *(dataclasses.replace(lane, formulation="plain") for lane in rival)))


def ratio_of(race: Race, numerator: int, denominator: int) -> float | None:
    lanes = {
        index: {
            lane.session: lane
            for lane in race.entries
            if lane.finalist == index and isinstance(lane.result, Measured)
        }
        for index in (numerator, denominator)
    }
    ratios = paired(lanes[numerator], lanes[denominator])
    return float(np.median(ratios)) if ratios.size else None


def summarise(label: str, rows: list[dict]) -> bool:
    """Prints how many races tied, and returns whether at least 95 of 100 did."""
    twins, xla = (sum(row[name] for row in rows) for name in ("twins_tied", "xla_tied"))
    print(
        f"{label}: of {len(rows)} races one kernel entered twice tied in {twins}, XLA against XLA in {xla}",
        flush=True,
    )
    return bool(rows) and min(twins, xla) >= 0.95 * len(rows)


def report(label: str, winners: list) -> None:
    tied = sum(winner.tied == 2 for winner in winners)
    to_xla = sum(winner.backend == "xla" for winner in winners)
    print(f"{label}: twins tied in {tied} of {len(winners)} races, {to_xla} given to XLA")


if __name__ == "__main__":
    main()
