"""What is to be computed: sizes, dtypes, layout, numerics and epilogue of one matrix product."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

ITEMSIZE_BYTES = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "int4": 1,  # stored unpacked by jax outside of kernels
    "int32": 4,
}
LAYOUTS = ("nn", "nt", "tn", "tt")
BROADCASTS = ("none", "lhs", "rhs")
ACCUMULATIONS = ("float32", "fast", "promoted128", "int32", "tf32")
SCALES = ("none", "per_tensor", "per_row_col", "per_col", "group128", "block128")
EPILOGUE_STEPS = ("none", "bias", "gelu", "silu", "residual", "gated_silu")
MAX_SIZE = 2**31 - 1  # TMA coordinates are signed 32-bit integers


class FieldError(ValueError):
    """A field of a problem, a configuration or a device that cannot be what it was given as."""

    def __init__(self, key: str, value: object, allowed: str):
        super().__init__(f"{key}={value!r}: allowed: {allowed}")
        self.key = key
        self.value = value
        self.allowed = allowed


def one_of(key: str, value: object, names: tuple[str, ...]) -> str:
    """Returns `value` if it is one of `names`; otherwise raises FieldError with the nearest right spelling."""
    if isinstance(value, str) and value in names:
        return value
    near = difflib.get_close_matches(str(value), names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise FieldError(key, value, f"{', '.join(names)}{hint}")


def _size(key: str, value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,10}\s*", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
        raise FieldError(key, value, f"a whole number from 1 to {MAX_SIZE}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One matrix product, out (m, n) = lhs (m, k) @ rhs (k, n), `batch` times.

    Attributes:
        layout: First letter lhs, n = (m, k), t = (k, m); second letter rhs, n = (k, n), t = (n, k).
        accumulation: Numerics class of the sum over k; part of the problem, never a knob.
        epilogue: Steps joined by "+", applied left to right in float32, rounded once to `out_dtype`.
        groups: Rows of m are split raggedly over that many rhs matrices.
        broadcast: The operand that has no batch of its own, since all products of the batch share it.
    """

    batch: int = 1
    m: int
    n: int
    k: int
    lhs_dtype: str = "bfloat16"
    rhs_dtype: str = "bfloat16"
    out_dtype: str = "bfloat16"
    layout: str = "nn"
    accumulation: str = "float32"
    scales: str = "none"
    epilogue: str = "none"
    groups: int = 1
    broadcast: str = "none"

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> Self:
        """Builds a problem from a YAML mapping or a CSV row, whose numbers may be strings.

        Missing dtypes follow `lhs_dtype`; a missing accumulation follows the dtypes. A batch of row-major lhs with one
        rhs is one product of all their rows, and so that problem is returned: see `_folded`.

        Raises:
            FieldError: An unknown key, or a value that its field cannot have.
        """
        names = tuple(field.name for field in dataclasses.fields(cls))
        for key in fields:
            one_of("field", key, names)
        for key in ("m", "n", "k"):
            if key not in fields:
                raise FieldError(key, None, "m, n and k must be given")
        dtypes = tuple(ITEMSIZE_BYTES)
        lhs_dtype = one_of("lhs_dtype", fields.get("lhs_dtype", "bfloat16"), dtypes)
        rhs_dtype = one_of("rhs_dtype", fields.get("rhs_dtype", lhs_dtype), dtypes)
        out_dtype = one_of("out_dtype", fields.get("out_dtype", _default_out(lhs_dtype)), dtypes)
        epilogue = fields.get("epilogue", "none")
        for step in str(epilogue).split("+"):
            one_of("epilogue", step, EPILOGUE_STEPS)
        broadcast = one_of("broadcast", fields.get("broadcast", "none"), BROADCASTS)
        batch = _size("batch", fields.get("batch", 1))
        if broadcast != "none" and batch == 1:
            raise FieldError("broadcast", broadcast, "none where batch is 1, since nothing shares an operand")
        given = cls(
            batch=batch,
            m=_size("m", fields["m"]),
            n=_size("n", fields["n"]),
            k=_size("k", fields["k"]),
            lhs_dtype=lhs_dtype,
            rhs_dtype=rhs_dtype,
            out_dtype=out_dtype,
            layout=one_of("layout", fields.get("layout", "nn"), LAYOUTS),
            accumulation=one_of(
                "accumulation", fields.get("accumulation", _default_accumulation(lhs_dtype)), ACCUMULATIONS
            ),
            scales=one_of("scales", fields.get("scales", "none"), SCALES),
            epilogue=str(epilogue),
            groups=_size("groups", fields.get("groups", 1)),
            broadcast=broadcast,
        )
        return given._folded()

    def _folded(self) -> Self:
        """Returns the product of all rows at once where the batch lies in memory as rows of one lhs, else itself."""
        is_rows = self.broadcast == "rhs" and self.layout[0] == "n" and self.groups == 1
        if not is_rows or self.batch * self.m > MAX_SIZE:
            return self
        return dataclasses.replace(self, batch=1, m=self.batch * self.m, broadcast="none")

    def to_fields(self) -> dict[str, int | str]:
        """Returns the fields in the order of the columns of a suite's CSV.

        `broadcast` is among them only where an operand is shared: keys and studies of all other problems are older.
        """
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.broadcast == "none":
            del fields["broadcast"]
        return fields

    def describe(self) -> str:
        """Returns a short name, such as "4096x8192x4096 bfloat16 nn"."""
        batch = f"{self.batch}x" if self.batch > 1 else ""
        words = [f"{batch}{self.m}x{self.n}x{self.k}", self.lhs_dtype]
        words += [self.rhs_dtype] if self.rhs_dtype != self.lhs_dtype else []
        words += [self.layout]
        words += [f"out {self.out_dtype}"] if self.out_dtype != _default_out(self.lhs_dtype) else []
        words += [name for name in (self.scales, self.epilogue) if name != "none"]
        words += [f"{self.groups} groups"] if self.groups > 1 else []
        words += [f"one {self.broadcast}"] if self.broadcast != "none" else []
        return " ".join(words)

    @property
    def lhs_batch(self) -> int:
        """How many lhs there are."""
        return 1 if self.broadcast == "lhs" else self.batch

    @property
    def rhs_batch(self) -> int:
        """How many rhs there are, each of `groups` matrices."""
        return 1 if self.broadcast == "rhs" else self.batch

    @property
    def flops(self) -> int:
        """Multiplications and additions of one call."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def min_bytes(self) -> int:
        """Bytes that must cross device memory at least: each operand read once, the result written once."""
        lhs = self.lhs_batch * self.m * self.k * ITEMSIZE_BYTES[self.lhs_dtype]
        rhs = self.rhs_batch * self.groups * self.k * self.n * ITEMSIZE_BYTES[self.rhs_dtype]
        return lhs + rhs + self.batch * self.m * self.n * ITEMSIZE_BYTES[self.out_dtype]


def _default_out(lhs_dtype: str) -> str:
    if lhs_dtype in ("int8", "int4"):
        return "int32"
    return "bfloat16" if lhs_dtype.startswith("float8") else lhs_dtype


def _default_accumulation(lhs_dtype: str) -> str:
    return {"int8": "int32", "float32": "tf32", "float8_e4m3fn": "fast", "float8_e5m2": "fast"}.get(
        lhs_dtype, "float32"
    )
