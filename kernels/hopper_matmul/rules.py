"""What a rule of legality is. The rules themselves are in `compiler_rules` and `hardware_rules`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from hopper_matmul.facts import Facts

Asked = Literal["all", "clusters", "edges"]
Stage = Literal["trace", "lower", "compile", "launch", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule: `breaks(facts)` is truthy, or an array of booleans, where it is broken.

    Attributes:
        implies: Rules of which one is broken wherever this one is: legality alone need not ask it.
        asked_of: Whom it can be broken by: all, those with clusters of several CTAs, or whose edges are not padded.
    """

    id: str
    stage: Stage
    exception: Callable[[Facts], str | None]
    breaks: Callable[[Facts], Any]
    value: Callable[[Facts], object]
    limit: Callable[[Facts], object]
    message: Callable[[Facts], str]
    implies: tuple[str, ...] = ()
    asked_of: Asked = "all"


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
    asked_of: Asked = "all",
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
        asked_of=asked_of,
    )
