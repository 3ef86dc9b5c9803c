"""What does a knob move? Races variants of a configuration with each other and with XLA, problem by problem.

    PYTHONPATH=.:kernels python benchmarks/knob_effects.py [EXPERIMENTS.json] [--seconds 120] [--alone]
        [--out FILE.jsonl]

The file (benchmarks/knob_effects.json if none is named) is a list of {"problem": {...}, "knobs": {...}, "variants":
{name: {knob: value, ...}}}: each variant is the configuration with these knobs changed. All of a problem's variants
and XLA's formulations race in the same fresh processes by the problem's own protocol. Prints the median time of each,
and XLA's best time over it.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

from autotune.lanes import paired
from autotune.protocol import AUTO, resolved
from autotune.runconfig import RaceSettings
from autotune.seam import Failed, Measured, Race, RaceEntry, RaceJob
from autotune.sessions import as_one, raced
from autotune.target import load_target
from autotune.verdict import best_rival
from benchmarks.card import Card, Deadline, Lines, card_of, race_job

TARGET = load_target("hopper_matmul")
HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "experiments", nargs="?", default=str(HERE / "knob_effects.json"), metavar="FILE.json"
    )
    parser.add_argument("--processes", type=int, default=RaceSettings().processes, help="of each race")
    parser.add_argument("--seconds", type=float, default=120.0, help="stop after so long and report")
    parser.add_argument(
        "--alone", action="store_true", help="without XLA, whose compiling takes most of a race"
    )
    parser.add_argument("--out", metavar="FILE", help="append each variant as a line of JSON")
    arguments = parser.parse_args()
    try:
        experiments = json.loads(Path(arguments.experiments).read_text())
    except (OSError, ValueError) as error:
        parser.error(f"{arguments.experiments}: {error}")
    card, deadline, say = card_of(parser, TARGET), Deadline(arguments.seconds), Lines(arguments.out)
    formulations = () if arguments.alone else None
    jobs = {
        index: experiment_race(experiment, card, formulations) for index, experiment in enumerate(experiments)
    }
    with card.evaluator(TARGET.name) as evaluator:
        try:
            for index, results in raced(
                evaluator,
                jobs.items(),
                processes=arguments.processes,
                job_ids=itertools.count(),
                between=deadline,
            ):
                report(jobs[index], experiments[index], as_one(results), say)
        except TimeoutError:
            print(f"stopped after {arguments.seconds:g} s", flush=True)


def experiment_race(experiment: dict[str, Any], card: Card, formulations: tuple[str, ...] | None) -> RaceJob:
    """Returns one session of a race of all variants with these formulations of XLA, as in RaceJob.

    Raises:
        ValueError: A variant that is illegal, with the rules it breaks.
    """
    problem = TARGET.problem_from_fields(experiment["problem"])
    configs = variant_configs(problem, experiment, card.device)
    protocol = resolved(AUTO, problem, TARGET)
    return race_job(
        TARGET.name,
        problem,
        [*configs.values()],
        card.device,
        protocol=protocol,
        formulations=formulations,
    )


def variant_configs(problem: Any, experiment: dict[str, Any], device: Any) -> dict[str, Any]:
    """Returns the configuration of each variant by its name.

    Raises:
        ValueError: A variant that is illegal, with the rules it breaks.
    """
    configs = {}
    for name, changed in experiment["variants"].items():
        configs[name] = TARGET.config_from_knobs({**experiment["knobs"], **changed})
        rejections = TARGET.check(problem, configs[name], device)
        if rejections:
            raise ValueError(f"{problem.describe()}, {name}: {'; '.join(one.line() for one in rejections)}")
    return configs


def report(job: RaceJob, experiment: dict[str, Any], race: Race | Failed, say: Lines) -> None:
    """Says the time of each variant, and XLA's best over it."""
    for index, (name, changed) in enumerate(experiment["variants"].items()):
        row = {"problem": job.problem.describe(), "variant": name, "changed": changed}
        row |= {"timer": job.protocol.timer, "regime": job.protocol.regime}
        lanes = [] if isinstance(race, Failed) else [each for each in race.entries if each.finalist == index]
        sound = {lane.session: lane for lane in lanes if isinstance(lane.result, Measured)}
        if not sound:
            failed = race if isinstance(race, Failed) else next((lane.result for lane in lanes), None)
            say(**row, failed=f"{failed.reason}: {failed.detail}" if failed else "not raced")
            continue
        rival = best_rival(race, sound)
        row |= {
            "us": round(median_us(sound), 2),
            "us_by_process": [round(median_us({0: lane}), 2) for lane in sound.values()],
        }
        if rival:
            formulation, others = rival[0], rival[1]
            row |= {
                "xla": formulation,
                "xla_us": round(median_us(others), 2),
                "xla_over": round(float(np.median(paired(others, sound))), 4),
            }
        say(**row)


def median_us(lanes: dict[int, RaceEntry]) -> float:
    return float(np.median([time_us for lane in lanes.values() for time_us in lane.result.timing.samples_us]))


if __name__ == "__main__":
    main()
