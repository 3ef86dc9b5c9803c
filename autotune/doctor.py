"""What this machine offers a run: versions, GPUs, the evaluator that auto takes, the best files that lookups read."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from pathlib import Path
from typing import Any

from autotune import lookup, machine
from autotune.bestfile import read_best
from autotune.errors import AutotuneError
from autotune.target import load_target


def report() -> str:
    """Returns the report as text; what is missing or broken is said, never raised."""
    lines = [f"python     {sys.version.split()[0]} ({sys.executable})"]
    tools = dataclasses.asdict(machine.toolchain())
    lines += [
        f"{name:<10} {tools[name] or 'none'}" for name in ("autotune", "jax", "jaxlib", "optuna", "driver")
    ]
    lines += [*_gpu_lines(), f"evaluator  auto takes {_evaluator()}", *_best_lines()]
    return "\n".join(lines)


def _gpu_lines() -> list[str]:
    gpus = machine.gpus()
    if not gpus:
        return ["gpus       none that NVML lists and CUDA_VISIBLE_DEVICES admits"]
    lines = []
    for gpu in gpus:
        major, minor = gpu.compute_capability
        power = f", {gpu.power_limit_w:.0f} W" if gpu.power_limit_w else ""
        verdict = "" if gpu.compute_capability == machine.HOPPER else " (not Hopper: not used)"
        memory = f"{gpu.memory_bytes / 2**30:.0f} GiB"
        lines.append(
            f"gpu {gpu.index:<6} {gpu.kind}, sm_{major}{minor}, {gpu.sm_count} SMs, {memory}{power}{verdict}"
        )
    return lines


def _evaluator() -> str:
    hopper = machine.hopper_gpus()
    if hopper and machine.has_cuda_jax():
        return f"gpu: {hopper[0].kind} is here"
    why = (
        "jax has no CUDA plugin (install hopper-autotune[cuda12] or [cuda13])"
        if hopper
        else "no Hopper GPU is here"
    )
    spaces = sorted(path.name for folder in _recorded_folders() for path in folder.glob("*.json.gz"))
    if spaces:
        return f"replay where each problem is one of the {len(spaces)} recorded ones, else lower: {why}"
    return f"lower: {why}, and no recorded space"


def _recorded_folders() -> list[Path]:
    folders = {
        Path("results/recorded").resolve(),
        Path(__file__).resolve().parent.parent / "results/recorded",
    }
    return sorted(folders)


def _best_lines() -> list[str]:
    lines = []
    for folder in lookup.best_folders():
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
            lines.append(f"best file  {path}: {_best_summary(path)}")
    return lines or ["best file  none; best_config answers by the heuristic"]


def _best_summary(path: Path) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = read_best(path)
        except AutotuneError as error:
            return f"broken: {str(error).removeprefix(f'{path}: ')}"
        sound = [entry for _, entry in found.entries()] if found else []
    illegal = sum(_is_illegal(entry, found.device["kind"]) for entry in sound)
    count = len(sound) - illegal
    broken = f", {len(caught)} broken and left out" if caught else ""
    broken += f", {illegal} with an illegal configuration and left out" if illegal else ""
    kind = found.device["kind"] if found else "?"
    return f"{kind}, {count} problems{broken}"


def _is_illegal(entry: Any, kind: str) -> bool:
    target = load_target(entry.target)
    try:
        device = target.device_named(kind)
    except ValueError:
        return True
    return entry.config is not None and bool(target.check(entry.problem, entry.config, device))
