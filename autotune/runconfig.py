"""A run config: what to tune, where, how long and how it is measured; read from YAML and checked whole."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from autotune import configfile, fields, problemlist
from autotune.errors import InputError, without_password
from autotune.fields import Place
from autotune.problemlist import WeightedProblem, refused_by_target
from autotune.protocol import AUTO
from autotune.seam import FEWEST_COMPILATIONS, Limits, MeasureProtocol
from autotune.searchsettings import (
    MAX_SECONDS,
    SearchSettings,
    check_total,
    search_settings,
    with_options,
)

EvaluatorChoice = Literal["auto", "gpu", "replay", "lower"]

KEYS = (
    "name",
    "target",
    "device",
    "evaluator",
    "problems",
    "suites",
    "space",
    "search",
    "protocol",
    "race",
    "limits",
    "gpus",
    "results",
    "storage",
)
EVALUATORS = ("auto", "gpu", "replay", "lower")
MAX_ROUNDS = 10_000
MAX_LIMIT_S = 24 * 3600.0
MAX_MEMORY_GIB = 1e6
RESULTS = Place(path="results")


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceSettings:
    """How the finalists of a problem race with XLA.

    Attributes:
        finalists: At most so many at once.
        processes: Fresh ones, one after the other on the card; XLA compiles each rival anew in each.
        rounds: At most, in each process.
        seconds: Measuring in each process ends after so long.
        rivals: "quick" leaves out those that take XLA long to compile; "full" races them as well.
    """

    finalists: int = 6
    processes: int = 3
    rounds: int = 60
    seconds: float = 2.5
    rivals: Literal["quick", "full"] = "quick"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A checked run config.

    Attributes:
        device: "auto" or the kind of a device that the target knows.
        limits: What one candidate may take.
        race: How the finalists race with XLA.
        space: Narrows the target's default space, knob by knob.
        gpus: Indices as NVML counts them, or "all".
        results: Relative to the working directory; best/ and trials/ lie below it.
        results_place: What named it, for errors: the config's key or an option.
        storage: None for a journal file under results/trials, or an Optuna storage URL.
    """

    path: Path
    name: str
    target: str = "hopper_matmul"
    device: str = "auto"
    evaluator: EvaluatorChoice = "auto"
    problems: tuple[WeightedProblem, ...]
    space: Mapping[str, tuple[Any, ...]]
    search: SearchSettings
    protocol: MeasureProtocol
    limits: Limits = field(default_factory=Limits)
    race: RaceSettings = RaceSettings()
    gpus: Literal["all"] | tuple[int, ...] = "all"
    results: Path = Path("results")
    results_place: Place = RESULTS
    storage: str | None = None


def load_run_config(path: str | Path) -> RunConfig:
    """Reads and checks a run config.

    Raises:
        InputError: Names the file, the key's path, the value, what is allowed and the nearest right spelling.
    """
    path = Path(path)
    top = Place(file=str(path))
    given = fields.mapping(configfile.read_yaml(path), top, KEYS)
    target = _target(given.get("target", "hopper_matmul"), top.key("target"))
    config = RunConfig(
        path=path,
        name=_name(given["name"], top.key("name")) if "name" in given else _name_of_file(path, top),
        target=target.name,
        device=_device(given.get("device", "auto"), top.key("device"), target),
        evaluator=cast(
            EvaluatorChoice, fields.choice(given.get("evaluator", "auto"), top.key("evaluator"), EVALUATORS)
        ),
        problems=problemlist.problems(given, top, target),
        space=narrowing(given.get("space", {}), top.key("space"), target),
        search=search_settings(given.get("search", {}), top.key("search")),
        protocol=_protocol(given.get("protocol", {}), top.key("protocol")),
        race=_race(given.get("race", {}), top.key("race")),
        limits=_limits(given.get("limits", {}), top.key("limits")),
        gpus=_gpus(given.get("gpus", "all"), top.key("gpus")),
        results=results_folder(given.get("results", "results"), top.key("results")),
        results_place=top.key("results"),
        storage=_storage(given.get("storage"), top.key("storage")),
    )
    check_total(config.search, len(config.problems), top.key("search").key("total_candidates"))
    return config


def override(
    config: RunConfig,
    *,
    evaluator: str | None = None,
    results: str | None = None,
    **search: float | None,
) -> RunConfig:
    """Returns the config with what options of the command line say instead; None leaves a value as it is.

    Args:
        search: Keys of `SearchSettings`.

    Raises:
        InputError: Names the option and what it allows.
    """
    if evaluator is not None:
        fields.choice(evaluator, Place(path="--evaluator"), EVALUATORS)
        config = replace(config, evaluator=cast(EvaluatorChoice, evaluator))
    if results is not None:
        place = Place(path="--results")
        config = replace(config, results=results_folder(results, place), results_place=place)
    return replace(config, search=with_options(config.search, search, len(config.problems)))


def results_folder(value: object, place: Place) -> Path:
    """Returns the folder that a value names; a verb that writes there asks `writable.require_writable` first."""
    return Path(fields.text(value, place, "a folder"))


def check_space(config: RunConfig, target: Any, device: Any, place: Place | None = None) -> None:
    """Checks the values that `space` narrows knobs to; the target knows them for a problem and a device.

    Problems that the device has no memory for are refused as well: each of their candidates would fail.

    Args:
        place: Where they stand; None: in the config's `space`.

    Raises:
        InputError: Names the file, the knob or the problem, the value and what is allowed.
    """
    place = place or Place(file=str(config.path), path="space")
    for weighted in config.problems:
        _check_room(weighted.problem, config.path, device)
        try:
            target.space(weighted.problem, device, config.space)
        except ValueError as error:
            raise refused_by_target(error, place) from None


def _check_room(problem: Any, path: Path, device: Any) -> None:
    if problem.min_bytes > device.memory_bytes:
        needed, there = problem.min_bytes / 2**30, device.memory_bytes / 2**30
        raise InputError(
            f"{path}: {problem.describe()}: operands and result take {needed:,.0f} GiB; allowed: at most the "
            f"{there:.0f} GiB of {device.kind}"
        )


def _target(value: object, place: Place) -> Any:
    from autotune.target import TARGETS, load_target

    return load_target(fields.choice(value, place, TARGETS))


def _name(value: object, place: Place) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
        raise place.refuses(
            value, "up to 100 letters, digits, '.', '_' and '-', since files are named after it"
        )
    return value


def _name_of_file(path: Path, top: Place) -> str:
    """Returns the file's name without its ending, made of what a name may hold."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", path.stem).lstrip("._-")[:100]
    if not name:
        raise top.key("name").says(
            "is missing, and the file's own name holds no letter or digit; give a name"
        )
    return name


def _device(value: object, place: Place, target: Any) -> str:
    if value == "auto":
        return "auto"
    try:
        return target.device_named(fields.text(value, place, "auto, or the kind of a device")).kind
    except ValueError as error:
        raise refused_by_target(error, replace(place, path="")) from None


def narrowing(value: object, place: Place, target: Any) -> dict[str, tuple[Any, ...]]:
    """Returns the values that a mapping leaves to each of its knobs.

    Raises:
        InputError: Names the place, the value and what is allowed.
    """
    narrowed = {}
    for knob, values in fields.mapping(value, place, target.knob_names).items():
        allowed = fields.items(values, place.key(knob), "value, such as [128, 256]")
        for index, one in enumerate(allowed):
            if not isinstance(one, (int, str)):
                raise place.key(knob).item(index).refuses(one, "a whole number, a name, true or false")
            if any(one == other and type(one) is type(other) for other in allowed[:index]):
                raise place.key(knob).item(index).refuses(one, "each value once")
        narrowed[knob] = tuple(allowed)
    return narrowed


_PROTOCOL_CHECKS = {
    "timer": lambda value, place: fields.choice(value, place, ("auto", "cupti", "chain")),
    "l2": lambda value, place: fields.choice(value, place, ("auto", "clean", "activations_warm", "warm")),
    "inputs": lambda value, place: fields.choice(value, place, ("normal", "integers")),
    "regime": lambda value, place: fields.choice(value, place, ("auto", "burst", "sustained")),
    "rounds": lambda value, place: fields.whole(value, place, 1, MAX_ROUNDS),
    "warmup": lambda value, place: fields.whole(value, place, 0, MAX_ROUNDS),
}


def _protocol(value: object, place: Place) -> MeasureProtocol:
    given = fields.mapping(value, place, _PROTOCOL_CHECKS)
    return replace(AUTO, **{key: _PROTOCOL_CHECKS[key](one, place.key(key)) for key, one in given.items()})


_RACE_CHECKS = {
    "finalists": lambda value, place: fields.whole(value, place, 1, 100),
    "processes": lambda value, place: fields.whole(value, place, FEWEST_COMPILATIONS, 100),
    "rounds": lambda value, place: fields.whole(value, place, 1, MAX_ROUNDS),
    "seconds": lambda value, place: fields.positive(value, place, MAX_SECONDS),
    "rivals": lambda value, place: fields.choice(value, place, ("quick", "full")),
}


def _race(value: object, place: Place) -> RaceSettings:
    given = fields.mapping(value, place, _RACE_CHECKS)
    return RaceSettings(**{key: _RACE_CHECKS[key](one, place.key(key)) for key, one in given.items()})


def _limits(value: object, place: Place) -> Limits:
    given = fields.mapping(value, place, tuple(Limits.__dataclass_fields__))
    return Limits(
        **{
            key: fields.positive(one, place.key(key), MAX_MEMORY_GIB if key == "memory_gib" else MAX_LIMIT_S)
            for key, one in given.items()
        }
    )


def _gpus(value: object, place: Place) -> Literal["all"] | tuple[int, ...]:
    if value == "all":
        return "all"
    if not isinstance(value, list) or not value:
        raise place.refuses(value, "all, or a list of GPU indices such as [0, 1]")
    indices = tuple(fields.whole(one, place.item(index), 0, 1023) for index, one in enumerate(value))
    for index, one in enumerate(indices):
        if one in indices[:index]:
            raise place.item(index).refuses(one, "each GPU once")
    return indices


def _storage(value: object, place: Place) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not re.match(r"[a-z][a-z0-9+]*://", value):
        shown = without_password(value) if isinstance(value, str) else value
        raise place.refuses(shown, "null, or an Optuna storage URL such as postgresql://user@host/name")
    if re.fullmatch(r"sqlite(\+\w+)?:/{2,3}(:memory:)?(\?.*)?", value):
        raise place.refuses(value, "a storage that outlives the command, such as sqlite:///trials.db")
    return value
