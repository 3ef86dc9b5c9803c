"""How a night is told: its summary's lines, what the history keeps of them, and the files they are written to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.bestfile import BestEntry
from autotune.nightly import report
from autotune.nightly.files import folder_within, write_whole
from autotune.nightly.history import History
from autotune.nightly.reference import Tonight, moved, protocol_mark
from autotune.nightly.report import Line, Summary
from autotune.nightly.stored import interval
from autotune.nightly.values import Decision, Seen, fingerprint


def write_reports(results: Path, summary: Summary) -> Path:
    """Writes <night>.md and <night>.json below results/nightly/reports, and latest.txt and latest.json beside them."""
    folder = folder_within(results, "nightly", "reports")
    stem = f"{summary.name}-{summary.night[:19].replace(':', '')}"
    write_whole(folder / f"{stem}.md", report.markdown(summary))
    write_whole(folder / f"{stem}.json", report.to_json(summary))
    write_whole(folder / "latest.json", report.to_json(summary))
    write_whole(folder / "latest.txt", report.text(summary) + "\n")
    return folder / f"{stem}.md"


def line_of(key: str, decision: Decision, seen: Seen | None, action: str, improved: bool) -> Line:
    """Returns a problem's line of the summary."""
    found = interval(seen) if seen else None
    return Line(
        key=key,
        title=key.partition(" ")[2],
        decision=decision,
        kernel_us=seen.kernel_median_us if seen else None,
        xla_us=seen.xla_median_us if seen else None,
        ratio=(found.low, found.median, found.high) if found else None,
        action=action,
        improved=improved,
    )


def facts_of(line: Line, entry: BestEntry | None, seen: Seen | None) -> dict[str, Any]:
    """Returns what the history keeps of a problem."""
    knobs = entry.config.to_knobs() if entry is not None and entry.config is not None else None
    facts = {
        "verdict": line.decision.verdict,
        "reason": line.decision.reason,
        "backend": entry.backend if entry else None,
        "config": fingerprint(knobs),
        "protocol": protocol_mark(entry.protocol) if entry else None,
        "digest": seen.digest if seen else None,
        **measured_facts(seen or Seen()),
        "action": line.action or None,
    }
    if seen and seen.failure:
        facts["failure"] = seen.failure[0]
    return facts


def measured_facts(seen: Seen) -> dict[str, Any]:
    """Returns what the history keeps of a winner's times; of one that was asked again, also what was seen `first`."""
    known = seen.log_ratio()
    facts = {
        "kernel_us": _rounded(seen.kernel_median_us),
        "xla_us": _rounded(seen.xla_median_us),
        "log_ratio": None if known is None else round(known[0], 6),
        "log_ratio_error": None if known is None else round(known[1], 6),
        "processes": seen.processes,
    }
    if seen.again:
        facts["first"] = measured_facts(dataclasses.replace(seen, again=()))
    return facts


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def last_sentinels(history: History, tonight: Tonight) -> Mapping[str, float]:
    """Returns the sentinels of the last night that compares with tonight; none where there is none."""
    machine = tonight.machine
    for record in reversed(history.nights.values()):
        if (record["card"], record.get("power_limit_w"), record["driver"]) == machine.key:
            same = not moved(record, machine)
            return {name: value for name, value in record["sentinels"].items() if same or name != "xla_dot"}
    return {}
