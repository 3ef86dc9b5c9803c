"""What this machine offers a run: versions, GPUs, the evaluator that auto takes, the best files that lookups read."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune import lookup, machine
from autotune.bestfile import read_best
from autotune.errors import AutotuneError
from autotune.target import load_target


def facts() -> dict[str, Any]:
    """Returns what is here as plain data; what is missing or broken is said, never raised."""
    tools = dataclasses.asdict(machine.toolchain())
    return {
        "python": {"version": sys.version.split()[0], "path": sys.executable},
        "versions": {name: tools[name] for name in ("autotune", "jax", "jaxlib", "optuna", "driver")},
        "gpus": [
            {**dataclasses.asdict(gpu), "is_hopper": gpu.compute_capability == machine.HOPPER}
            for gpu in machine.gpus()
        ],
        "evaluator": _evaluator(),
        "best_files": _best_files(),
    }


def text(facts: Mapping[str, Any]) -> str:
    """Returns the facts as lines to read."""
    python = facts["python"]
    lines = [f"python     {python['version']} ({python['path']})"]
    lines += [f"{name:<10} {version or 'none'}" for name, version in facts["versions"].items()]
    lines += [_gpu_line(gpu) for gpu in facts["gpus"]] or [
        "gpus       none that NVML lists and CUDA_VISIBLE_DEVICES admits"
    ]
    lines.append(f"evaluator  auto takes {facts['evaluator']}")
    lines += [f"best file  {file['path']}: {_best_words(file)}" for file in facts["best_files"]] or [
        "best file  none; best_config answers by the heuristic"
    ]
    return "\n".join(lines)


def _gpu_line(gpu: Mapping[str, Any]) -> str:
    major, minor = gpu["compute_capability"]
    power = f", {gpu['power_limit_w']:.0f} W" if gpu["power_limit_w"] else ""
    verdict = "" if gpu["is_hopper"] else " (not Hopper: not used)"
    memory = f"{gpu['memory_bytes'] / 2**30:.0f} GiB"
    return f"gpu {gpu['index']:<6} {gpu['kind']}, sm_{major}{minor}, {gpu['sm_count']} SMs, {memory}{power}{verdict}"


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


def _best_files() -> list[dict[str, Any]]:
    return [
        {"path": str(path), **_best_file(path)}
        for folder in lookup.best_folders()
        for path in (sorted(folder.glob("*.json")) if os.path.isdir(folder) else [])
    ]


def _best_file(path: Path) -> dict[str, Any]:
    """Returns what is in a best file: its kind of device, and how many entries are sound and how many not."""
    nothing = {"kind": None, "problems": 0, "broken": 0, "illegal": 0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = read_best(path)
        except (AutotuneError, OSError) as error:
            return {**nothing, "error": str(error).removeprefix(f"{path}: ")}
        if found is None:  # taken away since it was listed
            return {**nothing, "error": "is gone"}
        sound = [entry for _, entry in found.entries()]
    kind = found.device["kind"]
    illegal = sum(_is_illegal(entry, kind) for entry in sound)
    return {
        "kind": kind,
        "problems": len(sound) - illegal,
        "broken": len(caught),
        "illegal": illegal,
        "error": None,
    }


def _best_words(file: Mapping[str, Any]) -> str:
    if file["error"] is not None:
        return f"broken: {file['error']}"
    broken = f", {file['broken']} broken and left out" if file["broken"] else ""
    illegal = f", {file['illegal']} with an illegal configuration and left out" if file["illegal"] else ""
    return f"{file['kind']}, {file['problems']} problems{broken}{illegal}"


def _is_illegal(entry: Any, kind: str) -> bool:
    target = load_target(entry.target)
    try:
        device = target.device_named(kind)
    except ValueError:
        return True
    return entry.config is not None and bool(target.check(entry.problem, entry.config, device))
