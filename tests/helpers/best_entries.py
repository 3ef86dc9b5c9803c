"""Best entries and results for tests. Their times are made up and never leave a test's own folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from autotune.bestfile import BestEntry, Ratio, entry_key, entry_to_json, write_best
from autotune.machine import Toolchain
from autotune.result import Counts, ProblemResult, Winner
from autotune.seam import MeasureProtocol
from autotune.target import load_target

TARGET = load_target("hopper_matmul")
H200 = TARGET.device_named("NVIDIA H200")
KNOBS = {"tile_m": 128, "tile_n": 128, "tile_k": 64, "stages": 4}
TOOLS = Toolchain(
    jax="0.12.0.1", jaxlib="0.12.0.1", driver="580.1", python="3.12", optuna="5.0.0", autotune="0.1.0"
)


def problem(m: int = 4096, n: int = 4096, k: int = 4096, **fields: Any) -> Any:
    return TARGET.problem_from_fields({"m": m, "n": n, "k": k, **fields})


def entry(
    of: Any = None, *, backend: str = "kernel", ratio: float = 1.1, knobs: Any = None, **changes: Any
) -> BestEntry:
    """A kernel of 100 us against XLA's 100 * ratio us."""
    fields = {
        "target": "hopper_matmul",
        "problem": of or problem(),
        "backend": backend,
        "config": TARGET.config_from_knobs(knobs or KNOBS),
        "kernel_us": 100.0,
        "xla_us": round(100.0 * ratio, 3),
        "ratio": Ratio(low=round(ratio - 0.01, 4), median=ratio, high=round(ratio + 0.01, 4)),
        "digest": "d" * 32,
        "driver": "580.1",
        "jax": "0.12.0.1",
        "jaxlib": "0.12.0.1",
        "protocol": dataclasses.asdict(MeasureProtocol()),
        "numerics": "float32",
        "date": "2026-11-30",
    }
    return BestEntry(**{**fields, **changes})


def best_file(folder: Path, *entries: BestEntry, kind: str = "NVIDIA H200") -> Path:
    """Writes a best file of that device and returns its path."""
    device = TARGET.device_named(kind)
    folder.mkdir(parents=True, exist_ok=True)
    block = {"kind": device.kind, "sm_count": device.sm_count}
    path = folder / f"{device.slug}.json"
    write_best(path, block, {entry_key(one.target, one.problem): entry_to_json(one) for one in entries})
    return path


def result(
    of: Any = None, *, ratio: float = 1.1, knobs: Any = None, evaluator: str = "gpu", digest: str = "d" * 32
):
    """The result of a race that a kernel of 100 us won."""
    winner = Winner(
        knobs=knobs or KNOBS,
        backend="kernel" if ratio > 1 else "xla",
        time_us=100.0,
        samples_us=(100.0,) * 3,
        xla_time_us=round(100.0 * ratio, 3),
        xla_samples_us=(round(100.0 * ratio, 3),) * 3,
        ratio=ratio,
        ratio_interval=(ratio - 0.01, ratio + 0.01),
        digest=digest,
    )
    return ProblemResult(
        problem=of or problem(),
        weight=1.0,
        device=H200,
        protocol=MeasureProtocol(),
        evaluator=evaluator,
        study="s",
        counts=Counts(raw=1, legal=1, rejected={}),
        winner=winner,
    )
