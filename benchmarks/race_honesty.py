"""How often races tie that must: XLA against XLA, and one kernel entered twice.

    PYTHONPATH=.:kernels python benchmarks/race_honesty.py [--races 100]          simulated, from recorded samples
    PYTHONPATH=.:kernels python benchmarks/race_honesty.py --gpu [--races 100] [--m 4096 --n 8192 --k 4096]

Simulated: lanes share the drift of a recorded lane and draw their own noise from its residuals. On a GPU each race
enters one kernel twice; the rival races as "plain" against itself by the same protocol in another lane.
At least 95 of 100 must tie.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np

from autotune import machine
from autotune.evaluate import make_evaluator, read_recorded
from autotune.evaluate.rounds import race_rounds
from autotune.protocol import AUTO, resolved
from autotune.runconfig import RaceSettings
from autotune.seam import Candidate, Limits, Lowered, Measured, Race, RaceEntry, RaceJob, Timing
from autotune.target import load_target
from autotune.verdict import judge, merged

RECORDED = Path(__file__).resolve().parent.parent / "results/recorded"
KNOBS = ({"entry": 1}, {"entry": 2})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--races", type=int, default=100)
    for name, size in (("m", 4096), ("n", 8192), ("k", 4096)):
        parser.add_argument(f"--{name}", type=int, default=size)
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
    """Races one kernel entered twice with XLA, again and again."""
    gpus = machine.hopper_gpus()
    if not gpus:
        parser.error("there is no Hopper GPU to race on")
    target = load_target("hopper_matmul")
    device = target.device_named(gpus[0].kind)
    problem = target.problem_from_fields({name: getattr(arguments, name) for name in "mnk"})
    protocol, settings = resolved(AUTO, problem, target), RaceSettings(processes=1)
    print(f"{problem.describe()}: {protocol}")
    config = target.config_from_knobs(target.heuristic_config(problem, device))
    one = Candidate(target=target.name, problem=problem, config=config, device=device)
    winners, xla = [], []
    with make_evaluator(
        "gpu", protocol=AUTO, limits=Limits(), target_name=target.name, device=device, workers=2, gpu=gpus[0]
    ) as evaluator:
        for job_id in range(arguments.races):
            job = RaceJob(
                job_id=job_id, problem=problem, target=target.name, candidates=(one, one),
                rounds=settings.rounds, protocol=protocol, seconds=settings.seconds,
            )  # fmt: skip
            evaluator.submit(dataclasses.replace(job, formulations=("plain",)))
            outcomes: list = []
            while not outcomes:
                outcomes = list(evaluator.poll(1.0))
            race = outcomes[0].result
            winner = judge(KNOBS, race) if isinstance(race, Race) else None
            if winner is None:
                parser.exit(1, f"race {job_id}: {race}\n")
            winners.append(winner)
            own = [lane for lane in race.entries if lane.finalist == 0]
            # Half of XLA's own rounds against the other half, entered as a kernel: it must be given to XLA.
            plain = next(lane for lane in race.entries if lane.formulation == "plain")
            samples = plain.result.timing.samples_us
            twice = Race(
                entries=(half(plain, samples[0::2], own[0].finalist), half(plain, samples[1::2], None))
            )
            xla.append(judge(KNOBS[:1], twice))
    report("one kernel entered twice", winners)
    print(f"XLA against XLA: {sum(each.backend == 'xla' for each in xla)} of {len(xla)} races given to XLA")


def half(lane: RaceEntry, samples: tuple[float, ...], finalist: int | None) -> RaceEntry:
    timing = dataclasses.replace(lane.result.timing, samples_us=samples)
    formulation = "plain" if finalist is None else None
    return RaceEntry(
        finalist=finalist, result=dataclasses.replace(lane.result, timing=timing), formulation=formulation
    )


def report(label: str, winners: list) -> None:
    tied = sum(winner.tied == 2 for winner in winners)
    to_xla = sum(winner.backend == "xla" for winner in winners)
    print(f"{label}: twins tied in {tied} of {len(winners)} races, {to_xla} given to XLA")


if __name__ == "__main__":
    main()
