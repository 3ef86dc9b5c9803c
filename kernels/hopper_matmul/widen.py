"""Copies a large matrix whose rows do not fill 16 bytes into one whose rows do, at the rate of device memory.

On an H200 (2026-11-30, benchmarks/widen_rate.py, results/widen) 3.8 TB/s of bytes read and written, where XLA's own
copy of 4096x4097 or 1024x50257 reaches 3.2 and 3.3.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from hopper_matmul.direct import LANES
from hopper_matmul.lanes import WARPS, lanes_layout, store_narrow
from hopper_matmul.matrix import filled_columns

_WGS = 4  # of a CTA, each with a block of its own
_LEAST_BYTES = 2**24  # of a matrix; less stays in L2, where XLA's copy is as good
_VECTORS_A_THREAD = 32  # on their way at once
_FILL_COLUMNS = 128  # of a block, where the rows are only filled
_MOST_AGAIN = 0.1  # of a row, that its last block copies again: with more, XLA's copy is no slower


def can_widen(shape: tuple[int, ...], itemsize_bytes: int, columns: int) -> bool:
    """Whether a matrix, or a batch of them, is so large that copying it in blocks of so many columns is worth it."""
    *leading, n = shape
    rows = math.prod(leading)
    is_whole = columns % LANES == 0 and columns <= n and rows >= _block_rows(shape, itemsize_bytes, columns)
    is_once = -(-n // columns) * columns <= (1 + _MOST_AGAIN) * n
    return is_whole and is_once and rows * n * itemsize_bytes >= _LEAST_BYTES


def in_whole_tiles(matrix: jax.Array, columns: int, *, interpret: Any = None) -> jax.Array:
    """Returns (..., tiles * columns) of (..., n): tiles side by side, of which the last ends where n does."""
    tiles = -(-matrix.shape[-1] // columns)
    return _widened(matrix, columns, tiles * columns, is_apart=True, interpret=interpret)


def filled(matrix: jax.Array, width: int, *, interpret: Any = None) -> jax.Array:
    """Returns (..., width) of (..., n), n or more; what lies behind n in a row may be anything."""
    return _widened(matrix, _FILL_COLUMNS, width, is_apart=False, interpret=interpret)


def can_fill(shape: tuple[int, ...], itemsize_bytes: int) -> bool:
    """Whether a matrix, or a batch of them, is so large that `filled` is worth it."""
    is_unfilled = filled_columns(shape[-1], itemsize_bytes) != shape[-1]
    return is_unfilled and can_widen(shape, itemsize_bytes, _FILL_COLUMNS)


def _vector(n: int, itemsize_bytes: int, columns: int) -> int:
    """Returns how many elements of any row are aligned together, and leave no lane of a block without."""
    return math.gcd(math.gcd(n * itemsize_bytes, 16) // itemsize_bytes, columns // LANES)


def _block_rows(shape: tuple[int, ...], itemsize_bytes: int, columns: int) -> int:
    vectors_of_row = columns // (LANES * _vector(shape[-1], itemsize_bytes, columns))
    return WARPS * max(1, _VECTORS_A_THREAD // vectors_of_row)


def _widened(matrix: jax.Array, columns: int, width: int, *, is_apart: bool, interpret: Any) -> jax.Array:
    """Returns the matrix in rows of `width`, copied in blocks of so many columns.

    The last block of a row ends where its source does. It is stored behind the one before if `is_apart`, else where it
    was read; likewise the last rows.
    """
    *leading, n = matrix.shape
    rows, itemsize_bytes = math.prod(leading), matrix.dtype.itemsize
    block_rows, tiles = _block_rows(matrix.shape, itemsize_bytes, columns), -(-n // columns)
    body = functools.partial(
        _copy_block,
        layout=lanes_layout(_vector(n, itemsize_bytes, columns)),
        tiles=tiles,
        block=(block_rows, columns),
        is_apart=is_apart,
    )
    copy = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((rows, width), matrix.dtype),
        grid=(tiles * -(-rows // (_WGS * block_rows)),),
        grid_names=("blocks",),
        num_threads=_WGS,
        thread_name="wg",
        kernel_name="hopper_widen",
        interpret=interpret,
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )
    return copy(matrix.reshape(rows, n)).reshape(*leading, width)


def _copy_block(
    source: Any, out: Any, *, layout: Any, tiles: int, block: tuple[int, int], is_apart: bool
) -> None:
    index, wg = lax.axis_index("blocks"), lax.axis_index("wg")
    (rows, columns), (all_rows, n) = block, source.shape
    row = lax.min((lax.div(index, jnp.int32(tiles)) * _WGS + wg) * rows, jnp.int32(all_rows - rows))
    place = lax.rem(index, jnp.int32(tiles)) * columns
    read_at = lax.min(place, jnp.int32(n - columns))
    values = plgpu.load(source.at[pl.ds(row, rows), pl.ds(read_at, columns)], layout=layout, optimized=False)
    store_narrow(out.at[pl.ds(row, rows), pl.ds(place if is_apart else read_at, columns)], values)
