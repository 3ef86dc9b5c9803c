"""A matrix in device memory: what TMA can clip of it, and how its tiles pass through SMEM.

The functions are plain arithmetic, on numbers or on numpy arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

from hopper_matmul.problem import ITEMSIZE_BYTES, Problem

Pair = tuple[int, int]


def swizzle_of(row_bytes):
    """Returns the widest swizzle, 128, 64, 32 or else 16 bytes, that divides rows of `row_bytes`."""
    return 16 << ((row_bytes % 128 == 0) * 1 + (row_bytes % 64 == 0) * 1 + (row_bytes % 32 == 0) * 1)


def padded(shape, swizzle_bytes, itemsize_bytes):
    """Returns rows and columns of a matrix, rounded up to what TMA can clip to blocks of 8 rows by one swizzle.

    Rows are fewer than a block or whole blocks; columns fill 16 bytes, and are fewer than a swizzle's or whole ones.
    """
    rows, columns = shape
    swizzle_columns = swizzle_bytes // itemsize_bytes
    few = filled_columns(columns, itemsize_bytes)
    whole = -(-columns // swizzle_columns) * swizzle_columns
    return rows + (rows > 8) * (-rows % 8), whole + (few - whole) * (few < swizzle_columns)


def filled_columns(columns, itemsize_bytes):
    """Returns the columns of rows that fill 16 bytes, which TMA wants of every matrix."""
    grain = 16 // itemsize_bytes
    return -(-columns // grain) * grain


def copied_columns(columns, itemsize_bytes):
    """Returns the columns of a matrix once it is copied, if it must be, since its rows do not fill 16 bytes.

    Its rows are then made whole lines of 128 bytes, unless that adds more than an eighth: TMA asks L2 for a line's
    part of a row at a time, and where rows begin within a line for two lines.
    """
    few = filled_columns(columns, itemsize_bytes)
    lines = -(-columns * itemsize_bytes // 128) * 128 // itemsize_bytes
    return few + (lines - few) * ((few != columns) & (lines <= columns * 9 // 8))


def needs_view(shape, swizzle_bytes, itemsize_bytes):
    """Returns whether TMA cannot clip a matrix to blocks of 8 rows by one swizzle, once its rows fill 16 bytes."""
    rows, columns = padded(shape, swizzle_bytes, itemsize_bytes)
    return (rows != shape[0]) | (columns != filled_columns(shape[1], itemsize_bytes))


def stored_matrices(problem: Problem) -> tuple[tuple[Pair, int, int], ...]:
    """Returns lhs, rhs and result as they lie in memory: size, bytes of an element, how many there are."""
    size, out_size = ITEMSIZE_BYTES[problem.lhs_dtype], ITEMSIZE_BYTES[problem.out_dtype]
    lhs, rhs = (problem.m, problem.k), (problem.k, problem.n)
    return (
        (lhs if problem.layout[0] == "n" else lhs[::-1], size, problem.lhs_batch),
        (rhs if problem.layout[1] == "n" else rhs[::-1], size, problem.rhs_batch),
        ((problem.m, problem.n), out_size, problem.batch),
    )


def odd_matrices(problem: Problem) -> list[tuple[Pair, int, int]]:
    """Returns those of `stored_matrices` that TMA cannot clip to blocks of 8 rows by 128 bytes."""
    return [one for one in stored_matrices(problem) if padded(one[0], 128, one[1]) != one[0]]


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A matrix in device memory and how its tiles pass through SMEM, all in rows and columns as they lie in memory.

    Attributes:
        stored: Its size as the caller has it.
        tile: What a CTA loads, or a warpgroup stages, at a time.
        part: What a warpgroup reads of a tile.
        k_is_columns: Whether its columns run along k: then a warpgroup reads panel after panel, else its own.
        swizzle_bytes: Of the tile in SMEM.
        is_viewed: Whether TMA sees its tiles in panels: blocks of whole columns of a swizzle.
    """

    stored: Pair
    tile: Pair
    part: Pair
    k_is_columns: bool
    swizzle_bytes: int
    itemsize_bytes: int
    is_viewed: bool

    @property
    def swizzle_columns(self) -> int:
        return self.swizzle_bytes // self.itemsize_bytes

    @property
    def shape(self) -> Pair:
        """Its size once it is padded to what TMA takes."""
        if self.is_viewed:
            return self.stored[0], copied_columns(self.stored[1], self.itemsize_bytes)
        return padded(self.stored, self.swizzle_bytes, self.itemsize_bytes)

    @property
    def panels(self) -> int:
        """Panels of a tile, and the copies that bring it."""
        return self.tile[1] // self.swizzle_columns if self.is_viewed else 1

    @property
    def buffer(self) -> tuple[int, ...]:
        """Shape of one tile in SMEM: of the tile, or of its panels."""
        return (self.panels, self.tile[0], self.swizzle_columns) if self.is_viewed else self.tile

    def check_view(self) -> None:
        """Raises ValueError where a warpgroup would read across panels, which WGMMA and TMA cannot."""
        if self.is_viewed and not self.k_is_columns and self.part[1] != self.swizzle_columns:
            raise ValueError(
                f"a view has {self.swizzle_columns} columns, those of the swizzle, but a warpgroup reads {self.part[1]}"
            )
