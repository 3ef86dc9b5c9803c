"""What a rule of legality is. The rules themselves are in `compiler_rules` and `hardware_rules`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from hopper_matmul.facts import Facts

Stage = Literal["trace", "lower", "compile", "launch", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule: `breaks(facts)` is truthy, or an array of booleans, where it is broken.

    Attributes:
        implies: Rules of which one is broken wherever this one is: legality alone need not ask it.
        spares_plain: Whether no plain configuration can break it: one CTA a cluster, and edges padded.
    """

    id: str
    stage: Stage
    exception: Callable[[Facts], str | None]
    breaks: Callable[[Facts], Any]
    value: Callable[[Facts], object]
    limit: Callable[[Facts], object]
    message: Callable[[Facts], str]
    implies: tuple[str, ...] = ()
    spares_plain: bool = False


def rule(
    rule_id: str,
    stage: Stage,
    exception: str | Callable[[Facts], str] | None,
    breaks: Callable[[Facts], Any],
    value: Callable[[Facts], object],
    limit: object,
    message: str | Callable[[Facts], str],
    *,
    implies: tuple[str, ...] = (),
    spares_plain: bool = False,
) -> Rule:
    """Returns a rule; exception, limit and message may be plain values."""
    exception_of = exception if callable(exception) else lambda _: exception
    limit_of = limit if callable(limit) else lambda _: limit
    message_of = message if callable(message) else lambda _: message
    return Rule(
        id=rule_id,
        stage=stage,
        exception=exception_of,
        breaks=breaks,
        value=value,
        limit=limit_of,
        message=message_of,
        implies=implies,
        spares_plain=spares_plain,
    )
