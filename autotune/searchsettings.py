"""The search of a run config: how candidates are picked, and where it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from autotune import fields
from autotune.fields import Place
from autotune.progress import Budget

Sampler = Literal["auto", "guided", "local", "tpe", "random", "exhaustive"]

SAMPLERS = ("auto", "guided", "local", "tpe", "random", "exhaustive")
MAX_CANDIDATES = 1_000_000
MAX_SECONDS = 7 * 24 * 3600.0
MAX_SEED = 2**32 - 1
OPTIONS = ("candidates", "seconds", "total_candidates", "total_seconds", "seed")  # of the command line
FEWEST_EACH = 8  # candidates that each problem gets of a budget that all share


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """How candidates are picked, and where a search ends; whatever ends it first.

    Attributes:
        candidates, seconds: Of each problem.
        stop_gain: A problem ends where the next candidates are expected to gain less than this share of its best
            time, or than the spread of the best's samples where that is more; 0: never.
        min_candidates: Of each problem before `stop_gain` may end it.
        total_candidates, total_seconds: Of all problems together, which then share them by what each may still
            gain; None: each problem has its own only.
        share_binaries: Candidates that differ in the target's run-time knobs alone are screened with one executable.
    """

    sampler: Sampler = "auto"
    seed: int = 0
    candidates: int = 200
    seconds: float = 60.0
    stop_gain: float = 0.005
    min_candidates: int = 24
    total_candidates: int | None = None
    total_seconds: float | None = None
    share_binaries: bool = True

    @property
    def is_shared(self) -> bool:
        """Whether the problems share one budget."""
        return self.total_candidates is not None or self.total_seconds is not None

    @property
    def budget(self) -> Budget:
        """What each problem may take at most."""
        return Budget(
            candidates=self.candidates,
            seconds=self.seconds,
            gain=self.stop_gain,
            fewest=self.min_candidates,
        )


def _stop_gain(value: object, place: Place) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not False and not (is_number and 0 <= value <= 1):
        raise place.refuses(value, "a share of the time from 0 to 1, such as 0.005, or false")
    return float(value)


_CHECKS = {
    "sampler": lambda value, place: fields.choice(value, place, SAMPLERS),
    "seed": lambda value, place: fields.whole(value, place, 0, MAX_SEED),
    "candidates": lambda value, place: fields.whole(value, place, 1, MAX_CANDIDATES),
    "seconds": lambda value, place: fields.positive(value, place, MAX_SECONDS),
    "stop_gain": _stop_gain,
    "min_candidates": lambda value, place: fields.whole(value, place, 1, MAX_CANDIDATES),
    "total_candidates": lambda value, place: fields.whole(value, place, 1, MAX_CANDIDATES),
    "total_seconds": lambda value, place: fields.positive(value, place, MAX_SECONDS),
    "share_binaries": fields.truth,
}


def search_settings(value: object, place: Place) -> SearchSettings:
    """Returns the search that a config's mapping asks for.

    Raises:
        InputError: Names the place, the key, the value and what is allowed.
    """
    given = fields.mapping(value, place, _CHECKS)
    return SearchSettings(**{key: _CHECKS[key](one, place.key(key)) for key, one in given.items()})


def with_options(search: SearchSettings, options: Mapping[str, Any], problems: int) -> SearchSettings:
    """Returns the search with what options of the command line say instead; None leaves a value as it is.

    Args:
        options: Values by key.
        problems: How many there are.

    Raises:
        InputError: Names the option, the value and what is allowed.
    """
    given = {key: value for key, value in options.items() if value is not None}
    places = {key: Place(path=f"--{key.replace('_', '-')}") for key in given}
    search = replace(search, **{key: _CHECKS[key](value, places[key]) for key, value in given.items()})
    if "total_candidates" in given:
        check_total(search, problems, places["total_candidates"])
    return search


def check_total(search: SearchSettings, problems: int, place: Place) -> None:
    """Refuses a budget of all problems that does not reach for each of them.

    Raises:
        InputError: Names the place, the value and what is allowed.
    """
    total, least = search.total_candidates, FEWEST_EACH * problems
    if total is not None and total < least:
        each = f", {FEWEST_EACH} for each of the {problems} problems" if problems > 1 else ""
        raise place.refuses(total, f"at least {least}{each}")
