"""Which knobs a rule reads: found by running the rule on values that remember where they came from.

Rules are branch-free arithmetic, so that they run on arrays; for the same reason they run on these.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

from hopper_matmul.config import KNOB_NAMES, Config
from hopper_matmul.facts import Facts
from hopper_matmul.hardware import Device
from hopper_matmul.problem import Problem
from hopper_matmul.rules import Rule


class _Traced:
    """A value and the knobs it was computed from."""

    __slots__ = ("knobs", "value")

    def __init__(self, value: Any, knobs: frozenset[str]):
        self.value = value
        self.knobs = knobs

    __hash__ = None

    def __neg__(self) -> _Traced:
        return _Traced(-self.value, self.knobs)


def _binary(operation: Any, *, is_reflected: bool) -> Any:
    def method(self: _Traced, other: Any) -> _Traced:
        value, knobs = (other.value, other.knobs) if isinstance(other, _Traced) else (other, frozenset())
        left, right = (value, self.value) if is_reflected else (self.value, value)
        return _Traced(operation(left, right), self.knobs | knobs)

    return method


for _name in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "lshift"):
    _operation = getattr(operator, f"__{_name}__")
    setattr(_Traced, f"__{_name}__", _binary(_operation, is_reflected=False))
    setattr(_Traced, f"__r{_name}__", _binary(_operation, is_reflected=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(_Traced, f"__{_name}__", _binary(getattr(operator, f"__{_name}__"), is_reflected=False))


class _TracedPlan:
    """A plan whose every fact counts as read from the knob `scopes`."""

    def __getattr__(self, fact: str) -> _Traced:
        return _Traced(getattr(Config().scopes, fact), frozenset({"scopes"}))


class _TracedConfig:
    def __init__(self) -> None:
        for name in KNOB_NAMES:
            setattr(self, name, _Traced(getattr(Config(), name), frozenset({name})))
        self.scopes = _TracedPlan()


@functools.lru_cache(maxsize=4_096)
def knobs_read(rule: Rule, problem: Problem, device: Device) -> frozenset[str]:
    """Returns the knobs that decide whether `rule` is broken; empty where the problem alone does."""
    broken = rule.breaks(Facts(problem, _TracedConfig(), device))
    return broken.knobs if isinstance(broken, _Traced) else frozenset()
