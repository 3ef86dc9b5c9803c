"""What a run runs on: the evaluator, the device and, for a replay, the recorded spaces."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from autotune import machine
from autotune.errors import InputError
from autotune.evaluate import RecordedSpace, find_recorded
from autotune.machine import GpuInfo
from autotune.runconfig import RunConfig
from autotune.seam import MeasureProtocol

_PROTOCOL_FIELDS = tuple(field.name for field in dataclasses.fields(MeasureProtocol))
Kind = Literal["gpu", "replay", "lower"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The evaluator of a run.

    Attributes:
        device: The target's device to tune for.
        gpu: For "gpu": the card to measure on.
        recorded: For "replay": the recorded space of each problem.
        why: One line that says what was chosen, and why.
    """

    kind: Kind
    device: Any
    gpu: GpuInfo | None = None
    recorded: Mapping[Any, RecordedSpace] = field(default_factory=dict)
    why: str


def choose(config: RunConfig, target: Any) -> Choice:
    """Returns what `config.evaluator` asks for; "auto" takes gpu, else replay, else lower.

    Raises:
        InputError: What was asked for is not here; the message says what is.
    """
    gpus = _admitted(config)
    if config.evaluator in ("auto", "gpu"):
        choice = _on_gpu(config, target, gpus)
        if choice is not None:
            return choice
        if config.evaluator == "gpu":
            raise InputError(
                f"{config.path}: evaluator=gpu: {_no_gpu(config, gpus)}; use auto, replay or lower"
            )
    if config.evaluator in ("auto", "replay"):
        choice = _replay(config, target, _no_gpu(config, gpus))
        if isinstance(choice, Choice):
            return choice
        if config.evaluator == "replay":
            raise InputError(f"{config.path}: evaluator=replay: {choice}; use auto, gpu or lower")
    named = config.device if config.device != "auto" else machine.REFERENCE_KIND
    asked = "as asked" if config.evaluator == "lower" else f"{_no_gpu(config, gpus)}, and {choice}"
    why = f"evaluator lower: {asked}; candidates are lowered for {named}, nothing is measured"
    return Choice(kind="lower", device=target.device_named(named), why=why)


def choose_gpu(config: RunConfig, target: Any) -> Choice:
    """Returns the GPU for what only a GPU can do, whatever the config's evaluator.

    Raises:
        InputError: There is none here that the config admits and jax can use.
    """
    config = replace(config, evaluator="gpu")
    gpus = _admitted(config)
    choice = _on_gpu(config, target, gpus)
    if choice is None:
        raise InputError(
            f"{config.path}: {_no_gpu(config, gpus)}; run it on a host with an H100, H200 or GH200"
        )
    return choice


def narrowed(config: RunConfig, recorded: RecordedSpace, target: Any) -> RunConfig:
    """Returns the config with its space narrowed to what was recorded, and the protocol of the recording.

    A knob that came after the recording has its neutral value.

    Raises:
        InputError: A knob of `space` asks only for values that were not recorded.
    """
    neutral = target.config_from_knobs({}).to_knobs()
    space = {}
    for knob, values in ({name: (value,) for name, value in neutral.items()} | recorded.knobs).items():
        asked = config.space.get(knob, values)
        kept = tuple(value for value in asked if value in values)
        if not kept:
            raise InputError(
                f"{config.path}: space.{knob}={', '.join(map(str, asked))}: the recorded space has none of these; "
                f"allowed: {', '.join(map(str, values))}, or evaluator lower or gpu"
            )
        space[knob] = kept
    known = {name: recorded.protocol[name] for name in _PROTOCOL_FIELDS if name in recorded.protocol}
    protocol = MeasureProtocol(**{**known, "rounds": config.protocol.rounds})
    return replace(config, space={**config.space, **space}, protocol=protocol)


def unrecorded(config: RunConfig, recorded: RecordedSpace) -> dict[str, list[Any]]:
    """Returns the values that `config.space` asks for and the recorded space lacks, by knob."""
    lacking = {
        knob: [value for value in asked if value not in recorded.knobs.get(knob, ())]
        for knob, asked in config.space.items()
    }
    return {knob: values for knob, values in lacking.items() if values}


def recorded_folders(config: RunConfig) -> list[Path]:
    """Returns where recorded spaces are looked for: below the run's results, then below the checkout's."""
    checkout = Path(__file__).resolve().parent.parent
    folders = [config.results / "recorded"]
    return (
        [*folders, checkout / "results" / "recorded"] if (checkout / "pyproject.toml").is_file() else folders
    )


def _admitted(config: RunConfig) -> list[GpuInfo]:
    gpus = machine.hopper_gpus()
    if config.gpus == "all" or config.evaluator in ("replay", "lower"):
        return gpus
    for index in config.gpus:
        if gpus and index not in [gpu.index for gpu in gpus]:
            seen = ", ".join(str(gpu.index) for gpu in gpus)
            raise InputError(f"{config.path}: gpus: there is no Hopper GPU {index} here; allowed: {seen}")
    return [gpu for index in config.gpus for gpu in gpus if gpu.index == index]


def _no_gpu(config: RunConfig, gpus: list[GpuInfo]) -> str:
    if gpus and config.device in ("auto", gpus[0].kind):
        return f"{gpus[0].kind} is here, but jax has no CUDA plugin (install hopper-autotune[cuda12] or [cuda13])"
    if gpus:
        return f"the GPU here is {gpus[0].kind}, not {config.device}"
    others = machine.gpus()
    return f"no Hopper GPU here, only {others[0].kind}" if others else "no Hopper GPU here"


def _on_gpu(config: RunConfig, target: Any, gpus: list[GpuInfo]) -> Choice | None:
    fitting = [gpu for gpu in gpus if config.device in ("auto", gpu.kind)]
    if not fitting or not machine.has_cuda_jax():
        return None
    gpu = fitting[0]
    try:
        known = target.device_named(gpu.kind)
    except ValueError as error:
        raise InputError(f"GPU {gpu.index}: {error}") from None
    # The card at hand has the last word: names do not tell a lowered power limit.
    device = dataclasses.replace(
        known, sm_count=gpu.sm_count, memory_bytes=gpu.memory_bytes, power_limit_w=gpu.power_limit_w
    )
    more = f"; {len(fitting) - 1} more not used" if len(fitting) > 1 else ""
    why = f"evaluator gpu: {gpu.kind} (GPU {gpu.index}, driver {gpu.driver}){more}"
    return Choice(kind="gpu", device=device, gpu=gpu, why=why)


def _replay(config: RunConfig, target: Any, no_gpu: str) -> Choice | str:
    """Returns the replay, or in words why there is none."""
    kind = None if config.device == "auto" else config.device
    recorded: dict[Any, RecordedSpace] = {}
    for weighted in config.problems:
        problem = weighted.problem
        found = (find_recorded(folder, problem, target.name, kind) for folder in recorded_folders(config))
        space = next((space for space in found if space is not None), None)
        if space is None:
            return f"no recorded space of {problem.describe()}" + (f" on {kind}" if kind else "")
        recorded[problem] = space
        kind = kind or space.device["kind"]
    asked = "as asked" if config.evaluator == "replay" else no_gpu
    days = " and ".join(sorted({space.date for space in recorded.values()}))
    why = f"evaluator replay: {asked}; times were recorded on {kind} ({days}), candidates are really lowered"
    return Choice(kind="replay", device=target.device_named(kind), recorded=recorded, why=why)
