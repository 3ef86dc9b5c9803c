"""What a night says: a summary for machines, a page for a person, a few lines for a mail."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.nightly.values import VERDICTS, Decision, Machine

SUMMARY_SCHEMA = 1
NOTHING, IMPROVED, REGRESSION, UNFIT = 0, 10, 20, 30
LOUD = ("broken", "regression", "better", "missing", "suspect")
_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One problem of a night.

    Attributes:
        action: What was done about it, such as "tuned again: written".
        improved: Whether the answer got better for whoever looks it up.
    """

    key: str
    title: str
    decision: Decision
    kernel_us: float | None = None
    xla_us: float | None = None
    ratio: tuple[float, float, float] | None = None
    action: str = ""
    improved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A night, whole.

    Attributes:
        machine: None where there is no Hopper GPU.
        sentinels: Median in us and logarithm of its change against earlier nights, by name; None where there are none.
        moved: Versions that changed since the night before.
        left: Problems that the budget did not reach, to verify or to tune.
        unfit: Why nothing was measured; None where it was.
        profile: Where the seconds went, see `autotune.nightly.profile`.
    """

    name: str
    night: str
    machine: Machine | None
    lines: Sequence[Line] = ()
    sentinels: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)
    moved: Sequence[str] = ()
    left: Sequence[str] = ()
    warnings: Sequence[str] = ()
    unfit: str | None = None
    gpu_s: float = 0.0
    wall_s: float = 0.0
    resumed: bool = False
    profile: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        if self.unfit is not None:
            return UNFIT
        if any(line.decision.pages for line in self.lines):
            return REGRESSION
        return IMPROVED if any(line.improved for line in self.lines) else NOTHING


def to_json(summary: Summary) -> str:
    """Returns the machine-readable summary; docs/nightly.md lists its keys."""
    machine = summary.machine
    content = {
        "schema": SUMMARY_SCHEMA,
        "name": summary.name,
        "night": summary.night,
        "exit_code": summary.exit_code,
        "unfit": summary.unfit,
        "machine": None if machine is None else dataclasses.asdict(machine),
        "moved": list(summary.moved),
        "sentinels": {
            name: {"us": round(time_us, 3), "change": None if shift is None else round(shift, 4)}
            for name, (time_us, shift) in summary.sentinels.items()
        },
        "counts": counts(summary),
        "problems": [_line_json(line) for line in summary.lines],
        "left": list(summary.left),
        "warnings": list(summary.warnings),
        "gpu_s": round(summary.gpu_s, 1),
        "wall_s": round(summary.wall_s, 1),
        "resumed": summary.resumed,
        "profile": dict(summary.profile),
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def counts(summary: Summary) -> dict[str, int]:
    """Returns how many problems have each verdict, the gravest first."""
    found = Counter(line.decision.verdict for line in summary.lines)
    return {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}


def text(summary: Summary) -> str:
    """Returns the short text: one line a night with nothing to say, a line more for each thing that is."""
    if summary.unfit is not None:
        return f"{summary.name}: nothing measured: {summary.unfit}"
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts(summary).items()) or "nothing stored"
    lines = [f"{summary.name}: {said}; {summary.gpu_s:.0f} s of GPU, {summary.wall_s:.0f} s in all"]
    if summary.moved:
        lines.append(_moved_text(summary))
    loud = [line for line in summary.lines if line.decision.verdict in LOUD or line.improved]
    loud.sort(key=lambda line: VERDICTS.index(line.decision.verdict))
    lines += [_loud_text(line) for line in loud[:_SHOWN]]
    if len(loud) > _SHOWN:
        lines.append(f"and {len(loud) - _SHOWN} more; see the report")
    if summary.left:
        lines.append(f"left for the next night: {len(summary.left)}")
    lines += [f"warning: {warning}" for warning in summary.warnings]
    return "\n".join(lines)


def markdown(summary: Summary) -> str:
    """Returns the report of a night."""
    parts = [
        f"# Night of {summary.night}: {summary.name}",
        "",
        f"Exit code {summary.exit_code}. {_machine_text(summary.machine)}. "
        f"{summary.gpu_s:.0f} s of GPU, {summary.wall_s:.0f} s in all"
        + (", after a night that was cut short." if summary.resumed else "."),
    ]
    if summary.unfit is not None:
        return "\n".join([*parts, "", f"Nothing was measured: {_cell(summary.unfit)}.", ""])
    if summary.moved:
        parts += ["", _moved_text(summary) + "."]
    parts += ["", "## Sentinels", "", "| sentinel | us | change |", "|---|---|---|"]
    for name, (time_us, shift) in summary.sentinels.items():
        change = "no earlier night on this card, limit and driver" if shift is None else f"{shift:+.2%}"
        parts.append(f"| {name} | {time_us:.2f} | {change} |")
    parts += ["", "## Problems", "", "| problem | verdict | kernel us | XLA us | XLA/kernel | why | done |"]
    parts.append("|---|---|---|---|---|---|---|")
    parts += [_row(line) for line in summary.lines]
    if summary.left:
        parts += ["", "## Left for the next night", "", *(f"- {_cell(one)}" for one in summary.left)]
    if summary.warnings:
        parts += ["", "## Warnings", "", *(f"- {_cell(one)}" for one in summary.warnings)]
    return "\n".join([*parts, ""])


def _machine_text(machine: Machine | None) -> str:
    if machine is None:
        return "No Hopper GPU"
    limit = "unknown" if machine.power_limit_w is None else f"{machine.power_limit_w:g} W"
    return (
        f"{machine.kind}, card {machine.card}, power limit {limit}, driver {machine.driver}, "
        f"jax {machine.jax}, jaxlib {machine.jaxlib}"
    )


def _moved_text(summary: Summary) -> str:
    changed = " and ".join(summary.moved)
    if len(summary.moved) == 1:
        return f"changed since the last night: {changed}"
    return f"changed at once since the last night, so none is blamed alone: {changed}"


def _loud_text(line: Line) -> str:
    done = f" [{line.action}]" if line.action else ""
    return f"{line.decision.verdict}: {line.title}: {line.decision.reason}{done}"


def _row(line: Line) -> str:
    ratio = "-" if line.ratio is None else f"{line.ratio[1]:.3f} ({line.ratio[0]:.3f} - {line.ratio[2]:.3f})"
    cells = (
        line.title,
        line.decision.verdict,
        "-" if line.kernel_us is None else f"{line.kernel_us:.2f}",
        "-" if line.xla_us is None else f"{line.xla_us:.2f}",
        ratio,
        line.decision.reason,
        line.action or "-",
    )
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(value: str) -> str:
    return " ".join(value.split()).replace("|", "\\|")


def _line_json(line: Line) -> dict[str, Any]:
    return {
        "key": line.key,
        "problem": line.title,
        "verdict": line.decision.verdict,
        "reason": line.decision.reason,
        "kernel_us": line.kernel_us,
        "xla_us": line.xla_us,
        "ratio": None if line.ratio is None else [round(value, 4) for value in line.ratio],
        "action": line.action,
        "improved": line.improved,
    }
