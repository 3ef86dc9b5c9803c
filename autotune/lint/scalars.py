"""What is known of a scalar in a kernel, for one warpgroup: its value, or only whether it may differ between them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A value of one warpgroup; `value` is None where it is not known."""

    value: int | bool | None = None
    differs: bool = False  # derived from the warpgroup's index, so the others may have another value

    @property
    def is_known(self) -> bool:
        return self.value is not None


UNIFORM = Scalar()
_DIFFERING = Scalar(differs=True)


def literal(value: Any) -> Scalar:
    """Returns a literal of a jaxpr; only whole numbers and truth values are followed."""
    if getattr(value, "shape", ()) != ():
        return UNIFORM
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if isinstance(value, bool) or kind == "b":
        return Scalar(value=bool(value))
    if isinstance(value, int) or kind in ("i", "u"):
        return Scalar(value=int(value))
    return UNIFORM


def _divide(left: int, right: int) -> int:
    """lax.div rounds towards zero."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: int, right: int) -> int:
    """lax.rem takes the sign of the dividend."""
    return left - right * _divide(left, right)


def _not(value: int) -> int:
    return not value if isinstance(value, bool) else ~value


_OPERATIONS: dict[str, Callable[..., int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _divide,
    "rem": _remainder,
    "max": max,
    "min": min,
    "neg": operator.neg,
    "abs": abs,
    "sign": lambda value: (value > 0) - (value < 0),
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": _not,
    "select_n": lambda which, *cases: cases[int(which)],
    "clamp": lambda low, value, high: min(max(low, value), high),
    "copy": lambda value: value,
    "stop_gradient": lambda value: value,
}


def evaluate(eqn: Any, inputs: Sequence[Scalar], thread_name: object, warpgroup: int) -> list[Scalar]:
    """Returns the results of an equation without inner jaxprs, for one warpgroup."""
    name = eqn.primitive.name
    if name == "axis_index" and eqn.params.get("axis_name") == thread_name:
        return [Scalar(value=warpgroup, differs=True)]
    differs = any(one.differs for one in inputs)
    unknown = _DIFFERING if differs else UNIFORM
    is_scalar = len(eqn.outvars) == 1 and getattr(eqn.outvars[0].aval, "shape", None) == ()
    if not is_scalar or not all(one.is_known for one in inputs):
        return [unknown] * len(eqn.outvars)
    values = [one.value for one in inputs]
    if name == "convert_element_type":
        return [_converted(values[0], eqn.params["new_dtype"], differs)]
    operation = _OPERATIONS.get(name)
    if operation is None:
        return [unknown]
    try:
        return [Scalar(value=operation(*values), differs=differs)]
    except ZeroDivisionError:
        return [unknown]


def _converted(value: int, dtype: Any, differs: bool) -> Scalar:
    if dtype.kind == "b":
        return Scalar(value=bool(value), differs=differs)
    return Scalar(value=int(value) if dtype.kind in ("i", "u") else None, differs=differs)
