"""What each night saw and decided, problem by problem. It outlives trials and names who won when, on what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.nightly.files import LineFile, folder_within
from autotune.nightly.values import Machine

Record = Mapping[str, Any]
QUIET = ("unchanged", "drift")


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Finished nights: a night that was cut short has no closing line and does not count.

    Attributes:
        nights: The closing line of each, oldest first: night, date, machine, sentinels (name to median in us).
        problems: Records of each problem's key, oldest first.
    """

    nights: Mapping[str, Record] = field(default_factory=dict)
    problems: Mapping[str, Sequence[Record]] = field(default_factory=dict)

    @property
    def last(self) -> Record | None:
        return next(reversed(self.nights.values()), None) if self.nights else None


def history_file(results: Path, slug: str) -> LineFile:
    """Returns the history of one kind of device; its name never comes from a file."""
    return LineFile(folder_within(results, "nightly", "history") / f"{slug}.jsonl")


def read_history(file: LineFile) -> History:
    """Returns the finished nights of a file; records that this version cannot read are left out."""
    closed, records = {}, []
    for record in file.read():
        if not _is_sound(record):
            continue
        if record.get("type") == "night":
            closed[record["night"]] = record
        elif record.get("type") == "problem":
            records.append(record)
    found: dict[str, dict[str, Record]] = defaultdict(dict)
    for record in records:
        if record["night"] in closed:
            found[record["key"]][record["night"]] = (
                record  # written twice by a night that was cut short: the last
            )
    return History(nights=closed, problems={key: list(nights.values()) for key, nights in found.items()})


def problem_record(night: str, date: str, key: str, machine: Machine, **facts: Any) -> dict[str, Any]:
    """Returns one line of the history; `facts` say what was seen and decided."""
    return {"type": "problem", "night": night, "date": date, "key": key, **machine_facts(machine), **facts}


def closing_record(
    night: str, date: str, machine: Machine, sentinels: Mapping[str, float], exit_code: int
) -> dict[str, Any]:
    """Returns the line that makes a night count."""
    return {
        "type": "night", "night": night, "date": date, **machine_facts(machine), "sentinels": dict(sentinels),
        "exit_code": exit_code,
    }  # fmt: skip


def machine_facts(machine: Machine) -> dict[str, Any]:
    return {
        "card": machine.card,
        "power_limit_w": machine.power_limit_w,
        "driver": machine.driver,
        "jax": machine.jax,
        "jaxlib": machine.jaxlib,
    }


def compacted(history: History, keep_from: str) -> list[Record]:
    """Returns the records worth keeping: of nights before `keep_from` (ISO date), only those that tell something.

    Of a stretch of quiet nights with one winner and one toolchain the first and the last stay.
    """
    kept: list[Record] = []
    for records in history.problems.values():
        for index, record in enumerate(records):
            around = [records[index - 1] if index else None, records[index + 1 : index + 2]]
            before, after = around[0], (around[1] or [None])[0]
            is_inner = before and after and _stretch(before) == _stretch(record) == _stretch(after)
            if record["date"] >= keep_from or record["verdict"] not in QUIET or not is_inner:
                kept.append(record)
    used = {record["night"] for record in kept}
    order = {night: position for position, night in enumerate(history.nights)}
    kept.sort(key=lambda record: order[record["night"]])
    closings = [r for night, r in history.nights.items() if night in used or r["date"] >= keep_from]
    return _by_night(kept, closings)


def _by_night(kept: Iterable[Record], closings: Iterable[Record]) -> list[Record]:
    of: dict[str, list[Record]] = defaultdict(list)
    for record in kept:
        of[record["night"]].append(record)
    return [record for closing in closings for record in (*of[closing["night"]], closing)]


def _stretch(record: Record) -> tuple[Any, ...]:
    return tuple(record.get(n) for n in ("card", "driver", "jax", "jaxlib", "config", "backend", "verdict"))


def _is_sound(record: Record) -> bool:
    if not all(isinstance(record.get(name), str) for name in ("type", "night", "date", "card", "driver")):
        return False
    if record["type"] == "night":
        sentinels = record.get("sentinels")
        return isinstance(sentinels, dict) and all(_is_time(value) for value in sentinels.values())
    return isinstance(record.get("key"), str) and _has_times(record) and _has_times(record.get("first") or {})


def _has_times(record: Any) -> bool:
    """Returns whether what a record says of times can be worked with."""
    if not isinstance(record, dict) or not all(
        record.get(name) is None or _is_time(record[name]) for name in ("kernel_us", "xla_us")
    ):
        return False
    processes = record.get("processes")
    return processes is None or (isinstance(processes, int) and processes >= 1)


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e12
