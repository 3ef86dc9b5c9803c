"""Recorded spaces of one problem for tests: by tile_n and stages, every other knob as it is untuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.evaluate import RecordedRow, RecordedSpace
from autotune.target import load_target

TARGET = load_target("hopper_matmul")
DEVICE = TARGET.device_named("nvidia_h200")
PROBLEM = TARGET.problem_from_fields({"m": 4096, "n": 4096, "k": 4096})


def narrowing(**changes: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Returns a space of the untuned choice alone, but for `changes`."""
    untuned = TARGET.default_configs(PROBLEM, DEVICE)[0]
    return {name: [value] for name, value in untuned.items()} | changes


def recording(
    narrowed: Mapping[str, Sequence[Any]], rows: Mapping[tuple[int, int], RecordedRow]
) -> RecordedSpace:
    """Returns a recording of a space that leaves tile_n and stages a choice; `rows` by these two."""
    knobs = {name: tuple(values) for name, values in TARGET.space(PROBLEM, DEVICE, narrowed).knobs.items()}
    coded = {}
    for (tile_n, stages), row in rows.items():
        chosen = {"tile_n": tile_n, "stages": stages}
        codes = tuple(values.index(chosen[name]) if name in chosen else 0 for name, values in knobs.items())
        coded[codes] = row
    return RecordedSpace(
        target="hopper_matmul",
        problem=PROBLEM.to_fields(),
        device={"kind": "NVIDIA H200"},
        date="2026-11-30",
        versions={},
        source_digest="s",
        protocol={"timer": "cupti", "l2": "clean", "rounds": 4, "warmup": 0},
        command="record",
        knobs=knobs,
        rows=coded,
    )
