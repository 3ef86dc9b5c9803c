"""`autotune check CONFIG.yaml`: every configuration of a run config's space, checked and counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.runconfig import RunConfig, check_space
from autotune.textable import fitted


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleCount:
    """What one rule rejects of a problem's space.

    Attributes:
        count: Raw configurations that it is the first to reject.
        example: Knobs of one of them.
        line: That one's rejection: message, value, limit.
        mend: The knobs that the target changes to repair the example; empty where it knows no repair.
    """

    rule: str
    count: int
    example: dict[str, Any]
    line: str
    mend: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceReport:
    """The space of one problem: raw = legal + the counts of all rules.

    Attributes:
        unused: Values that the config names and no legal configuration has, by knob; empty where nothing is legal.
    """

    problem: Any
    raw: int
    legal: int
    rules: tuple[RuleCount, ...]
    unused: Mapping[str, tuple[Any, ...]]

    def to_json(self) -> dict[str, Any]:
        """Returns the report as plain data."""
        rules = [
            {
                "rule": one.rule,
                "count": one.count,
                "example": one.example,
                "message": one.line,
                "mend": one.mend,
            }
            for one in self.rules
        ]
        return {
            "problem": self.problem.to_fields(),
            "raw": self.raw,
            "legal": self.legal,
            "unused": {name: list(values) for name, values in self.unused.items()},
            "rejected": rules,
        }


def check_config(config: RunConfig, target: Any, device: Any) -> tuple[SpaceReport, ...]:
    """Runs the config tier over the whole space of each problem; nothing is traced or lowered.

    Raises:
        InputError: The config narrows the space to something that no knob can be.
    """
    check_space(config, target, device)
    return tuple(_report(config, target, device, weighted.problem) for weighted in config.problems)


def _report(config: RunConfig, target: Any, device: Any, problem: Any) -> SpaceReport:
    space = target.space(problem, device, config.space)
    legal = space.legal()
    rules = []
    for rule, count in sorted(legal.rejected.items(), key=lambda item: (-item[1], item[0])):
        example = legal.examples[rule]
        rejections = target.check(problem, target.config_from_knobs(example), device)
        line = next(one.line() for one in rejections if one.rule == rule)
        mended = target.mended_knobs(example)
        mend = {name: value for name, value in mended.items() if value != example[name]}
        rules.append(RuleCount(rule=rule, count=count, example=example, line=line, mend=mend))
    return SpaceReport(
        problem=problem,
        raw=space.raw_size,
        legal=legal.size,
        rules=tuple(rules),
        unused=_unused(legal, config.space),
    )


def _unused(legal: Any, named: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Returns which of the values that a config names no legal configuration has."""
    found = {}
    for j, (name, values) in enumerate(zip(legal.names, legal.values, strict=True)):
        used = set(legal.codes[:, j].tolist()) if name in named and legal.size else range(len(values))
        unused = tuple(value for code, value in enumerate(values) if code not in used)
        if unused:
            found[name] = unused
    return found


def render(report: SpaceReport, width: int | None = None) -> str:
    """Returns a report as text: the share that is legal, and for each rule its count and an example.

    Args:
        width: Columns of the terminal that it is for; None: one line a rule, however long.
    """
    head = f"{report.problem.describe()}: {report.legal:,} of {report.raw:,} configurations are legal"
    head += f" ({report.legal / report.raw:.2%})" if report.raw else ""
    if report.unused:
        values = (f"{name} {', '.join(map(str, unused))}" for name, unused in report.unused.items())
        head += f"\nin none of them: {'; '.join(values)}"
    rows = [
        (one.rule, f"{one.count:,}", f"{one.count / report.raw:.1%}", _words(one)) for one in report.rules
    ]
    table = fitted(("rule", "rejects", "share", "for example"), rows, right=(1, 2), below=3, width=width)
    return f"{head}\n{table}" if rows else head


def _words(one: RuleCount) -> str:
    mend = " ".join(f"{name}={value}" for name, value in one.mend.items())
    return one.line.removeprefix(f"{one.rule}: ") + (f"; mend: {mend}" if mend else "")
