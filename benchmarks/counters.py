"""What binds? Reads hardware counters of our kernels and of XLA's with NVIDIA Nsight Compute (`ncu`).

    PYTHONPATH=.:kernels python benchmarks/counters.py [BESTFILE | --jobs FILE.json] [--problems 1x8192x8192,...]
        [--formulations plain] [--seconds 240] [--out FILE]

For each problem: the kernel of the best file (the heuristic's where there is none) and XLA's product. With --jobs the
variants of a file like benchmarks/knob_effects.json. ncu starts a process for a few problems, which compiles each lane
as a user would, launches it once, and once more to be read. ncu runs each kernel several times over, alone, and
empties the caches before each: the L2 is cold for every kernel, also for the second one of a call and whatever the
problem's protocol says. So the times are not comparable with the protocol's, and serve only to tell a lane's kernels
apart. Clocks are left alone. XLA picks its algorithm beside ncu, and may pick another one than without.

Prints a table at its end, a row for each lane, and each step on the way, on stderr; DRAM and L2 bytes are also given
over the least, operands and result once. --out gets a line of JSON that says when, where and how it was measured, one
for each kernel as its process ends, and a file beside it, with .log behind its name, what ncu wrote. Ends by itself
half a minute after --seconds at the latest; the exit code is 0 where every lane was read.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from autotune import machine
from autotune.bestfile import read_best
from autotune.errors import InputError
from autotune.evaluate.child_environment import worker_environment
from benchmarks.card import Card, Deadline, card_of
from benchmarks.counter_lanes import (
    SPREAD,
    TARGET,
    CounterJob,
    CounterLane,
    lanes_of_best,
    lanes_of_experiments,
)
from benchmarks.counter_log import Kernel
from benchmarks.counter_run import START_S, Report, Tool, run, tell
from benchmarks.counter_table import METRICS, heading, json_rows, table_row

BEST = "results/best/nvidia_h200.json"
# ncu writes when its process has ended: what one that is lost costs, against 10 s a start.
PROBLEMS_A_PROCESS = 4
FRUITLESS = 2  # processes in a row without a kernel, after which ncu itself is to blame
PLACES = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute/*")
DENIED = "ERR_NVGPUCTRPERM"
Found = tuple[int, Sequence[Kernel], str | None]  # a lane's number, its kernels, why there are none


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("best", nargs="?", default=BEST, metavar="BESTFILE")
    parser.add_argument("--jobs", metavar="FILE.json", help="variants to read, in place of the best file's")
    parser.add_argument("--problems", default=",".join(SPREAD), help="of the best file, by comma; or: all")
    parser.add_argument(
        "--formulations", default="plain", help="of XLA's product, by comma; see docs/measuring.md"
    )
    parser.add_argument("--seconds", type=float, default=240.0, help="stop after so long and report")
    parser.add_argument("--out", metavar="FILE", help="append each kernel as a line of JSON")
    arguments = parser.parse_args()
    deadline = Deadline(arguments.seconds)
    path = found_ncu()
    if path is None:
        parser.error(f"there is no ncu on PATH or in {' or '.join(PLACES)}; it comes with the CUDA toolkit")
    card = card_of(parser, TARGET)
    try:
        lanes = dict(enumerate(asked_lanes(arguments, card)))
    except (ValueError, OSError, InputError) as error:
        parser.error(str(error))
    print(f"{len(lanes)} lanes by {path}", flush=True)
    keep(arguments.out, [measured(card)])
    rows, read = [], 0
    with tempfile.TemporaryDirectory(prefix="counters_") as folder:
        kept = Path(f"{arguments.out}.log") if arguments.out else None
        tool = Tool(path=path, environment=environment(card), folder=Path(folder), kept=kept)
        for index, kernels, failed in read_counters(tool, lanes, card, arguments.seconds, deadline):
            rows.append(table_row(lanes[index], kernels, failed))
            keep(arguments.out, json_rows(lanes[index], kernels, failed))
            read += not failed
    print(*heading(), *rows, sep="\n")
    print(f"{read} of {len(lanes)} lanes read; {deadline.passed_s:.0f} s", flush=True)
    raise SystemExit(0 if read == len(lanes) else 1)


def found_ncu() -> str | None:
    """Returns where ncu is: on PATH, or where the toolkit puts it, the newest version first."""
    known = [path for place in PLACES for path in sorted(Path("/").glob(f"{place[1:]}/ncu"), reverse=True)]
    return shutil.which("ncu") or next((str(path) for path in known if shutil.which(str(path))), None)


def asked_lanes(arguments: argparse.Namespace, card: Card) -> list[CounterLane]:
    formulations = arguments.formulations.split(",")
    if arguments.jobs:
        experiments = json.loads(Path(arguments.jobs).read_text())
        return lanes_of_experiments(experiments, formulations, card.device)
    found = read_best(Path(arguments.best))
    if found is None:
        raise ValueError(f"{arguments.best}: there is no such file")
    return lanes_of_best(found, arguments.problems.split(","), formulations, card.device)


def environment(card: Card) -> dict[str, str]:
    """Returns a worker's environment, in which numbers are written with a point and XLA records no CUDA graphs."""
    own = worker_environment(gpu_uuid=card.gpu.uuid)
    flags = f"{own.get('XLA_FLAGS', '')} --xla_gpu_enable_command_buffer=".strip()
    return own | {"XLA_FLAGS": flags, "LC_ALL": "C"}


def read_counters(
    tool: Tool, lanes: dict[int, CounterLane], card: Card, seconds: float, deadline: Deadline
) -> Iterator[Found]:
    """Yields what became of each lane, process by process, until the time is over or ncu fails.

    A lane that ends its process costs itself; those behind it run in the next one.
    """
    waiting, metrics, fruitless = dict(lanes), METRICS, 0
    problems = 1  # in the first process, so that what is wrong shows soon
    while waiting and (left_s := seconds - deadline.passed_s) > START_S:
        batch = leading(waiting, problems)
        job = CounterJob(
            lanes=batch, device=card.device, progress=str(tool.folder / "progress"), seconds=left_s - START_S
        )
        report = run(tool, job, metrics, left_s)
        tell(report.messages)
        unknown = report.unknown(metrics)
        if unknown:
            metrics = tuple(name for name in metrics if name not in unknown)
            print(f"without {', '.join(unknown)}, which this ncu does not know, once more", flush=True)
            continue
        for found in found_in(report, batch):
            del waiting[found[0]]
            yield found
        fruitless = fruitless + 1 if report.is_fruitless else 0
        is_denied = any(DENIED in line for line in report.messages)
        if is_denied or fruitless == FRUITLESS or not report.begun:
            print(f"ncu reads no counters here: {report.last_words}", flush=True)
            return
        problems = PROBLEMS_A_PROCESS
    if waiting:
        print(f"stopped after {seconds:g} s, before {len(waiting)} lanes", flush=True)


def leading(waiting: dict[int, CounterLane], problems: int) -> dict[int, CounterLane]:
    """Returns the lanes of the first few problems."""
    groups = itertools.groupby(waiting.items(), key=lambda item: item[1].problem)
    return dict(lane for _, group in itertools.islice(groups, problems) for lane in group)


def found_in(report: Report, batch: dict[int, CounterLane]) -> Iterator[Found]:
    """Yields the lanes of a process that were read or failed; those that it never began are not among them."""
    for index in batch:
        if index in report.failed:
            yield index, (), report.failed[index]
        elif index in report.done and index in report.kernels:
            yield index, report.kernels[index], None
        elif index in report.done:
            yield index, (), f"ncu reported no kernel: {report.last_words}"
        elif index in report.begun:
            yield index, (), f"ended the process: {report.last_words}"


def measured(card: Card) -> dict[str, Any]:
    """Returns what a reader of the rows must know of their origin."""
    tools = machine.toolchain()
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": card.gpu.kind,
        "power_limit_w": card.gpu.power_limit_w,
        "driver": card.gpu.driver,
        "jax": tools.jax,
        "jaxlib": tools.jaxlib,
        "command": shlex.join(["python", "benchmarks/counters.py", *sys.argv[1:]]),
    }


def keep(path: str | None, rows: Iterable[dict[str, Any]]) -> None:
    if path is not None:
        with Path(path).open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
