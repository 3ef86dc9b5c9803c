"""The lanes whose counters are read: a problem's kernels, and XLA's product of it; loads no jax."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.bestfile import BestFile
from autotune.target import load_target
from benchmarks.knob_effects import variant_configs

TARGET = load_target("hopper_matmul")
SIZES = {3: ("m", "n", "k"), 4: ("batch", "m", "n", "k")}
EVERY = "all"
# One or two of each family: skinny, few tiles of a long k, small, square, odd edges, large, short k, batched.
SPREAD = (
    "1x8192x8192 bfloat16 nn",
    "16x4096x4096 bfloat16 nn",
    "64x4096x14336 bfloat16 nn",
    "256x7168x2048 bfloat16 nn",
    "300x300x65536 bfloat16 nn",
    "512x4096x4096 bfloat16 nn",
    "1000x1000x1000 bfloat16 nn",
    "1024x1024x1024 bfloat16 nn",
    "1024x1024x16384 bfloat16 nn",
    "2048x2048x2048 bfloat16 nn",
    "4097x4096x4096 bfloat16 nn",
    "8192x1280x8192 bfloat16 nn",
    "8192x8192x8192 bfloat16 nn",
    "16384x256x256 bfloat16 nn",
    "64x512x512x512 bfloat16 nn",
    "256x64x64x2048 bfloat16 nn",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterLane:
    """One product whose kernels are read.

    Attributes:
        name: Tells the lanes of a problem apart.
        config: Of the kernel; None: XLA's product in `formulation`.
    """

    problem: Any
    name: str
    config: Any | None = None
    formulation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterJob:
    """What one process reads: lanes by their number in the whole run, with which its marks name them.

    Attributes:
        progress: File that it appends a line of JSON to at each step.
        seconds: After so long it begins no further lane.
    """

    lanes: dict[int, CounterLane]
    device: Any
    progress: str
    seconds: float


def lanes_of_best(
    found: BestFile, wanted: Sequence[str], formulations: Sequence[str], device: Any
) -> list[CounterLane]:
    """Returns the lanes of the problems that are asked for: the best file's kernel, else the heuristic's, and XLA's.

    Args:
        wanted: Beginnings of problems' descriptions in whole words, such as "16x4096x4096"; ["all"]: every entry.

    Raises:
        ValueError: A text that names no entry and is no sizes of a problem.
    """
    entries = {entry.problem: entry for _, entry in found.entries()}
    if list(wanted) == [EVERY]:
        problems = list(entries)
    else:
        problems = [problem for text in wanted for problem in named(text, entries)]
    lanes = []
    for problem in dict.fromkeys(problems):
        config = entries[problem].config if problem in entries else None
        knobs = TARGET.heuristic_config(problem, device) if config is None else None
        if config is not None:
            lanes.append(CounterLane(problem=problem, name="kernel", config=config))
        elif knobs is not None:
            config = TARGET.config_from_knobs(knobs)
            lanes.append(CounterLane(problem=problem, name="heuristic kernel", config=config))
        lanes += xla_lanes(problem, formulations)
    return lanes


def lanes_of_experiments(
    experiments: Sequence[dict[str, Any]], formulations: Sequence[str], device: Any
) -> list[CounterLane]:
    """Returns the lanes of a file like benchmarks/knob_effects.json.

    Raises:
        ValueError: A variant that is illegal, with the rules it breaks.
    """
    lanes = []
    for experiment in experiments:
        problem = TARGET.problem_from_fields(experiment["problem"])
        configs = variant_configs(problem, experiment, device)
        lanes += [CounterLane(problem=problem, name=name, config=config) for name, config in configs.items()]
        lanes += xla_lanes(problem, formulations)
    return lanes


def xla_lanes(problem: Any, formulations: Sequence[str]) -> Iterator[CounterLane]:
    for name in formulations:
        yield CounterLane(problem=problem, name=f"XLA {name}", formulation=name)


def named(text: str, entries: dict[Any, Any]) -> list[Any]:
    """Returns the problems that a text names: those of the entries, else the one of these sizes."""
    words = text.split()
    known = [problem for problem in entries if problem.describe().split()[: len(words)] == words]
    if known:
        return known
    sizes = [int(size) for size in text.split("x")] if re.fullmatch(r"\d+(x\d+)*", text) else []
    if len(sizes) not in SIZES:
        raise ValueError(
            f"--problems: {text!r} begins no entry's description; a problem that has no entry is written "
            "MxNxK or BxMxNxK"
        )
    return [TARGET.problem_from_fields(dict(zip(SIZES[len(sizes)], sizes, strict=True)))]
