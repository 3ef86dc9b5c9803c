"""Reads `--arg bf16[4096,4096]`. No jax."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from autotune.errors import InputError

_SHORT_NAMES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "f8e4m3fn": "float8_e4m3fn",
    "e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "e5m2": "float8_e5m2",
    "s4": "int4",
    "i4": "int4",
    "u4": "uint4",
    "s8": "int8",
    "i8": "int8",
    "u8": "uint8",
    "s16": "int16",
    "i16": "int16",
    "u16": "uint16",
    "s32": "int32",
    "i32": "int32",
    "u32": "uint32",
    "s64": "int64",
    "i64": "int64",
    "u64": "uint64",
    "pred": "bool",
}
_FORM = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*\[([^\]]*)\]\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentType:
    """The type of one argument: a dtype by jax's name, and a shape."""

    dtype: str
    shape: tuple[int, ...]


def parse_argument(text: str) -> ArgumentType:
    """Returns the type that `text` names, for instance bf16[4096,4096], float32[8] or i32[].

    Raises:
        InputError: Another form, an unknown dtype, or an extent that is no positive whole number.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise InputError(
            f"--arg {text}: expected DTYPE[SIZE,SIZE,...], for instance bf16[4096,4096]; i32[] is a scalar"
        )
    name, extents = match.groups()
    dtype = _SHORT_NAMES.get(name, name)
    if dtype not in _SHORT_NAMES.values():
        known = sorted({*_SHORT_NAMES, *_SHORT_NAMES.values()})
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"--arg {text}: unknown dtype {name}{hint} Known: {', '.join(known)}")
    pieces = [piece.strip() for piece in extents.split(",")] if extents.strip() else []
    if not all(piece.isdecimal() and int(piece) > 0 for piece in pieces):
        raise InputError(f"--arg {text}: sizes must be positive whole numbers, got [{extents}]")
    return ArgumentType(dtype=dtype, shape=tuple(int(piece) for piece in pieces))
