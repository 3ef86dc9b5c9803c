"""Turns an exception of a trace into a fault: rules c, d and e, and whatever else Pallas refuses while it traces."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import Any

import jax

from autotune.lint import mend, rules, source
from autotune.lint.model import Buffer, Fault, Location
from autotune.lint.tracebacks import Frame, frames, user_location


def trace_fault(error: Exception, subject: Location) -> Fault | None:
    """Returns the fault, or None where Pallas did not raise: then the function or its arguments are at fault."""
    passed = frames(error)
    # A body of the user's that raises has Pallas around it, so the innermost frame decides who refused.
    innermost_is_jax = bool(passed) and not passed[-1].is_users
    if not innermost_is_jax or not any(frame.is_pallas for frame in passed):
        return None
    message = str(error)
    rule = rules.rule_of_message(message)
    place = user_location(error) or subject
    buffer: Buffer | None = None
    if rule == "c":
        spec = source.keyword_expression(place.file, place.line, "pallas_call", "collective_axes")
        text = spec.text if spec else "plgpu.BlockSpec(..., collective_axes=...)"
        place = place if spec is None else replace(place, line=spec.line)
        buffer, mended = _block(passed, text, place.line), mend.pallas_call(text)
    elif rule == "d":
        buffer = _accumulator(passed, place)
        mended = mend.preinitialised(
            buffer, source.function_argument(place.file, place.line) or "scope", _start(buffer)
        )
    elif rule == "e":
        buffer = _stored(passed, place)
        mended = mend.partial_store(buffer)
    else:
        mended = _mend(rule, message)
    return Fault(
        rule=rule,
        message=message,
        exception=type(error).__name__,
        stage="trace",
        file=place.file,
        line=place.line,
        buffers=() if buffer is None else (buffer,),
        mend=mended,
    )


def _mend(rule: str, message: str) -> str:
    known = {
        "threads": mend.THREADS if message.startswith("Requested") else mend.BOTH_OR_NEITHER,
        "launch": "Use a cluster of at most three axes.",
        "barriers": "Use num_arrivals of at least 1.",
    }
    return known.get(rule) or mend.unsupported(message, "")


def _start(accumulator: Buffer | None) -> str:
    """Returns the user's expression inside `ACC.init(...)`."""
    text = accumulator.source if accumulator else ""
    return text.partition(".init(")[2].removesuffix(")") or "start"


def _variable(passed: list[Frame], function: str, name: str) -> Any | None:
    found = [f.variables.get(name) for f in passed if f.location.function.split(".")[-1] == function]
    return found[-1] if found else None


def _sized(name: str, kind: str, shape: tuple[int, ...], dtype: Any, line: int, text: str) -> Buffer:
    dtype = jax.numpy.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    return Buffer(
        name=name, kind=kind, shape=shape, dtype=str(dtype), size_bytes=size, line=line, source=text
    )


def _block(passed: list[Frame], text: str, line: int) -> Buffer | None:
    spec, array = (
        _variable(passed, "to_block_mapping", "self"),
        _variable(passed, "to_block_mapping", "array_aval"),
    )
    if spec is None or array is None:
        return None
    origin = str(_variable(passed, "to_block_mapping", "origin") or "block")
    shape = tuple(extent for extent in (spec.block_shape or array.shape) if isinstance(extent, int))
    return _sized(origin, "smem", shape, array.dtype, line, text)


def _accumulator(passed: list[Frame], place: Location) -> Buffer | None:
    spec = _variable(passed, "get_ref_aval", "self")
    if spec is None:
        return None
    types = tuple(_variable(passed, "run_scoped", "types") or ())
    named = dict(sorted((_variable(passed, "run_scoped", "kw_types") or {}).items()))
    function = _variable(passed, "run_scoped", "f")
    parameters = list(inspect.signature(function).parameters) if callable(function) else []
    names = [*parameters[: len(types)], *["acc"] * (len(types) - len(parameters)), *named]
    position = next((index for index, one in enumerate([*types, *named.values()]) if one is spec), None)
    expressions = source.run_scoped_buffers(place.file, place.line, len(names))
    name = "acc" if position is None else names[position]
    line, text = place.line, "plgpu.ACC.init(start)"
    if position is not None and expressions:
        line, text = expressions[position].line, expressions[position].text
    return _sized(name, "accumulator", tuple(spec.shape), spec.dtype, line, text)


def _stored(passed: list[Frame], place: Location) -> Buffer | None:
    tracer = _variable(passed, "_setitem", "tracer")
    if tracer is None:
        return None
    text = source.statement(place.file, place.line)
    name = text.split("[")[0] if "[" in text and text.split("[")[0].isidentifier() else "acc"
    return _sized(name, "accumulator", tuple(tracer.shape), tracer.dtype, place.line, text)
