"""A night's config: which run config it keeps tuned, for how long, and with which kinds of variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from autotune import configfile, fields, machine, runconfig, searchsettings
from autotune.bestfile import BestEntry
from autotune.errors import InputError
from autotune.fields import Place
from autotune.runconfig import RunConfig
from autotune.target import load_target

KEYS = (
    "run",
    "minutes",
    "variants",
    "candidates",
    "seconds",
    "results",
    "keep_trials_days",
    "keep_history_days",
)
MAX_MINUTES = 24 * 60.0
MAX_DAYS = 36_500


@dataclass(frozen=True, slots=True, kw_only=True)
class NightConfig:
    """A checked night config.

    Attributes:
        run: Problems that must have a winner, and how they are tuned and measured. Every other stored winner of
            the same device is verified too.
        minutes: Wall clock of the whole night; what is left over is taken up the next night.
        variants: "vetted": knob values that have won before; "all": the run config's space; or a space.
        keep_trials_days, keep_history_days: Older journals of trials are removed; older nights that said nothing
            new are thinned out.
    """

    path: Path
    run: RunConfig
    minutes: float = 60.0
    variants: Literal["vetted", "all"] | Mapping[str, tuple[Any, ...]] = "vetted"
    keep_trials_days: int = 30
    keep_history_days: int = 180

    @property
    def name(self) -> str:
        return self.run.name


def load_night_config(path: str | Path, results: str | None = None) -> NightConfig:
    """Reads and checks a night config, and the run config that it names.

    Args:
        results: Folder of the command line, instead of the config's.

    Raises:
        InputError: Names the file, the key's path, the value and what is allowed.
    """
    path = Path(path)
    top = Place(file=str(path))
    given = fields.mapping(configfile.read_yaml(path), top, KEYS)
    if "run" not in given:
        raise top.key("run").says("is missing; allowed: a run config, relative to this file")
    named = fields.text(given["run"], top.key("run"), "a run config, relative to this file")
    try:
        run = runconfig.load_run_config(path.parent / named)
    except InputError as error:
        raise top.key("run").says(str(error)) from None
    if run.evaluator not in ("auto", "gpu"):
        raise InputError(f"{run.path}: evaluator={run.evaluator}: a night measures; allowed: auto, gpu")
    # A night tunes each problem by itself, when its turn comes.
    search = replace(run.search, total_candidates=None, total_seconds=None)
    run = runconfig.override(
        replace(run, search=search, name=f"{run.name}-nightly"[-100:], evaluator="gpu"),
        candidates=fields.whole(
            given.get("candidates", 80), top.key("candidates"), 1, searchsettings.MAX_CANDIDATES
        ),
        seconds=fields.positive(given.get("seconds", 30.0), top.key("seconds"), searchsettings.MAX_SECONDS),
        results=results,
    )
    if results is None and "results" in given:
        folder = runconfig.results_folder(given["results"], top.key("results"))
        run = replace(run, results=folder, results_place=top.key("results"))
    days = {
        key: fields.whole(given[key], top.key(key), 1, MAX_DAYS)
        for key in ("keep_trials_days", "keep_history_days")
        if key in given
    }
    night = NightConfig(
        path=path,
        run=run,
        minutes=fields.positive(given.get("minutes", 60.0), top.key("minutes"), MAX_MINUTES),
        variants=_variants(given.get("variants", "vetted"), top.key("variants"), run),
        **days,
    )
    _check_spaces(night, top)
    return night


def _check_spaces(night: NightConfig, top: Place) -> None:
    """Finds a wrong value of a knob now, and not in the middle of the night."""
    target = load_target(night.run.target)
    device = target.device_named(machine.REFERENCE_KIND if night.run.device == "auto" else night.run.device)
    runconfig.check_space(night.run, target, device)
    if isinstance(night.variants, Mapping):
        runconfig.check_space(replace(night.run, space=night.variants), target, device, top.key("variants"))


def variants_of(
    config: NightConfig, entries: Sequence[BestEntry], values: Mapping[str, Sequence[Any]]
) -> dict[str, tuple[Any, ...]]:
    """Returns the space that a problem is tuned again in.

    Args:
        entries: Stored winners, whose knob values are the vetted ones.
        values: The values of each knob that the target offers for the problem.
    """
    if config.variants == "all":
        return dict(config.run.space)
    if config.variants != "vetted":
        return {**config.run.space, **config.variants}
    winners = [entry.config.to_knobs() for entry in entries if entry.config is not None]
    space = dict(config.run.space)
    for name, offered in values.items():
        won = tuple(value for value in offered if any(knobs.get(name) == value for knobs in winners))
        if won:
            space[name] = won
    return space


def _variants(value: object, place: Place, run: RunConfig) -> Any:
    if isinstance(value, str):
        return fields.choice(value, place, ("vetted", "all"))
    target = load_target(run.target)
    if not (narrowed := runconfig.narrowing(value, place, target)):
        raise place.refuses(
            value, f"vetted, all, or a mapping with some of the keys {', '.join(target.knob_names)}"
        )
    return narrowed
