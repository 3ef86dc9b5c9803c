"""The problems of a run config: those that it lists, and those of its suites, each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune import configfile, fields
from autotune.errors import InputError
from autotune.fields import Place

MAX_WEIGHT = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedProblem:
    """A problem of the target, and how often it occurs in the workload."""

    problem: Any
    weight: float = 1.0


def problems(given: Mapping[str, object], top: Place, target: Any) -> tuple[WeightedProblem, ...]:
    """Returns the problems of the config, then those of the suites that are not among them yet."""
    found: dict[Any, WeightedProblem] = {}
    if "problems" in given:
        place = top.key("problems")
        listed = fields.items(given["problems"], place, "problem, such as {m: 4096, n: 4096, k: 4096}")
        rows = [(place.item(index), row) for index, row in enumerate(listed)]
        found.update(_distinct(rows, target))
    if "suites" in given:
        place = top.key("suites")
        for index, name in enumerate(fields.items(given["suites"], place, "CSV file, relative to this one")):
            text = fields.text(name, place.item(index), "a CSV file, relative to this one")
            try:
                suite = _suite(Path(top.file).parent / text, target)
            except InputError as error:
                raise place.item(index).says(str(error)) from None
            for problem, weighted in suite.items():
                found.setdefault(problem, weighted)
    if not found:
        raise top.says("names no problem; give `problems` (a list), `suites` (CSV files) or both")
    return tuple(found.values())


def _suite(path: Path, target: Any) -> dict[Any, WeightedProblem]:
    columns = ("family", "weight", *target.problem_fields)
    rows = []
    for line, cells in configfile.read_csv(path, columns):
        place = Place(file=f"{path}: line {line}")
        row: dict[str, object] = {name: cell for name, cell in cells.items() if name != "family"}
        if "weight" in row:
            row["weight"] = _csv_number(cells["weight"])
        rows.append((place, row))
    return _distinct(rows, target)


def suite_problems(path: Path, target: Any) -> list[Any]:
    """Returns the problems of a suite's CSV in its order.

    Raises:
        InputError: Names the file, the line, the value and what is allowed.
    """
    return list(_suite(path, target))


def _csv_number(cell: str) -> object:
    try:
        return float(cell)
    except ValueError:
        return cell


def _distinct(rows: Sequence[tuple[Place, object]], target: Any) -> dict[Any, WeightedProblem]:
    """Returns the problems of one file; one that stands twice there is a slip, not a heavier weight."""
    found: dict[Any, WeightedProblem] = {}
    places: dict[Any, Place] = {}
    for place, row in rows:
        weighted = _problem(row, place, target)
        if weighted.problem in found:
            first = places[weighted.problem]
            raise place.says(
                f"is the same problem as {first.path or first.file}; remove one, or raise its weight"
            )
        found[weighted.problem], places[weighted.problem] = weighted, place
    return found


def _problem(row: object, place: Place, target: Any) -> WeightedProblem:
    given = fields.mapping(row, place, (*target.problem_fields, "weight"))
    weight = fields.positive(given.pop("weight", 1.0), place.key("weight"), MAX_WEIGHT)
    for key, value in given.items():
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise place.key(key).refuses(value, "a whole number or a name")
        if isinstance(value, int) and value.bit_length() > 64:
            raise place.key(key).refuses(value, "a whole number of at most 64 bits")
    try:
        return WeightedProblem(problem=target.problem_from_fields(given), weight=weight)
    except ValueError as error:
        missing = getattr(error, "key", None)
        if missing in target.problem_fields and missing not in given:
            raise place.key(missing).says(f"is missing; {error.allowed}") from None
        raise refused_by_target(error, place) from None


def refused_by_target(error: ValueError, place: Place) -> InputError:
    """Returns a target's FieldError (key, value, allowed) as the error of a place; raises any other."""
    key, allowed = getattr(error, "key", None), getattr(error, "allowed", None)
    if key is None or allowed is None:
        raise error
    return place.key(key).refuses(error.value, allowed)
