"""A night under way, as a journal: what a night that is cut short leaves to the next start."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.nightly.files import LineFile, folder_within
from autotune.nightly.history import machine_facts
from autotune.nightly.values import Machine, Seen

RESUMED_HOURS = 12  # after that it is another night, with a machine of its own state


@dataclass(slots=True, kw_only=True)
class Leftover:
    """What was found of a night that did not end.

    Attributes:
        night: Its id; None where nothing usable was left.
        sentinels: Of its start, by name in us.
        seen: Verifications, with the mark of the entry they are of, by problem key.
        decided: What was decided, by problem key.
        began: Problems whose tuning was under way.
        done: Problems that were tuned again, with what became of them.
        wanted: Problems that were to be tuned again and were not, with their gain and reason.
        verified: Keys that an earlier night got to.
    """

    night: str | None = None
    sentinels: dict[str, float] = field(default_factory=dict)
    seen: dict[str, tuple[str, Seen]] = field(default_factory=dict)
    decided: dict[str, dict[str, Any]] = field(default_factory=dict)
    began: set[str] = field(default_factory=set)
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    wanted: dict[str, dict[str, Any]] = field(default_factory=dict)
    verified: set[str] = field(default_factory=set)


class NightState:
    """The journal of a night under way, below results/nightly."""

    def __init__(self, results: Path, name: str) -> None:
        self._file = LineFile(folder_within(results, "nightly") / f"{name}.state.jsonl")

    def begin(self, night: str, machine: Machine, sentinels: Mapping[str, float], wanted: Mapping) -> None:
        """Starts a night's journal over, with what earlier nights left to be tuned."""
        start = {"type": "start", "night": night, **machine_facts(machine), "sentinels": dict(sentinels)}
        left = [{"type": "wanted", "key": key, **facts} for key, facts in wanted.items()]
        self._file.replace([start, *left])

    def note(self, kind: str, key: str, **facts: Any) -> None:
        """Adds one record; it is on the disk when this returns."""
        self._file.append([{"type": kind, "key": key, **facts}])

    def note_seen(self, key: str, mark: str, seen: Seen) -> None:
        self.note("seen", key, mark=mark, seen=seen.to_json())

    def end(self, wanted: Mapping[str, Mapping[str, Any]]) -> None:
        """Ends the night; what it did not get to tune stays for the next one."""
        self._file.replace({"type": "wanted", "key": key, **facts} for key, facts in wanted.items())

    def leftover(self, machine: Machine, now: datetime.datetime, closed: Mapping[str, Any]) -> Leftover:
        """Returns what is left of an earlier night.

        Args:
            closed: Finished nights by id; a night that is among them ended but for the clearing up.
        """
        left = Leftover()
        resumes = False
        for record in self._file.read():
            kind, key = record.get("type"), record.get("key")
            if kind == "start":
                resumes = _is_tonight(record, machine, now) and record["night"] not in closed
                left.night = record["night"] if resumes else None
                left.sentinels = record["sentinels"] if resumes else {}
            elif not isinstance(key, str):
                continue
            elif kind == "wanted":
                left.wanted[key] = {"gain": record["gain"], "reason": record["reason"]}
            elif kind == "done":
                left.wanted.pop(key, None)
                if resumes:
                    left.done[key] = record
            elif kind == "began" and resumes:
                left.began.add(key)
            elif kind == "decided":
                if record["retune"]:
                    left.wanted[key] = {"gain": record["gain"], "reason": record["reason"]}
                if resumes:
                    left.decided[key] = record
            elif kind == "seen":
                left.verified.add(key)
                if resumes:
                    left.seen[key] = (record["mark"], Seen.from_json(record["seen"]))
        return left


def _is_tonight(start: Mapping[str, Any], machine: Machine, now: datetime.datetime) -> bool:
    if any(start.get(name) != value for name, value in machine_facts(machine).items()):
        return False
    age = now - datetime.datetime.fromisoformat(start["night"])
    return datetime.timedelta(0) <= age <= datetime.timedelta(hours=RESUMED_HOURS)
