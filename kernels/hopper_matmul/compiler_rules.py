"""What tracing and lowering refuse, in the order in which they meet it.

The first broken one names the exception that they raise. Source: held against the real lowering by
tests/lowering/test_legality_sweep.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hopper_matmul.direct import broken_condition, cannot_store_directly, refusal
from hopper_matmul.facts import Facts, chosen
from hopper_matmul.geometry import COMPUTED, is_computed
from hopper_matmul.jax_versions import is_plane_asserted, no_turned_store
from hopper_matmul.multicast import MAX_MASK_BIT, is_mask_too_wide, is_unshared, last_bits, unshared_message
from hopper_matmul.rules import Rule, rule

MAX_BARRIERS_A_GROUP = 32  # their phases are bits of one 32-bit register
_MANY_BARRIERS = "Only up to 32 barriers per group supported"
_MAIN = (
    "WGMMA accumulators can only be allocated non-collectively. Hint: remove collective_axes from run_scoped. "
    "If other allocations are performed as well, split the run_scoped into two."
)
_NOT_COLLECTIVE = (
    "Only thread-collective allocations are supported in multithreaded kernels. Hint: add collective_axes=wg to "
    "your run_scoped if you intend all threads to share the same allocation (currently collective_axes=())."
)
_DISCHARGE = "run_scoped discharge does not support collective_axes yet."
_NO_LAYOUT = "Failed to infer a possible set of layouts."


def _swizzle_message(swizzle: Callable[[Facts], int]) -> Callable[[Facts], str]:
    return lambda f: f"Swizzle {swizzle(f)} is not supported. Only 32, 64 and 128 are accepted."


def _is_plane_asserted(f: Facts) -> bool:
    """Whether a store at an odd column of one of several planes fails without a word."""
    return (f.p.batch > 1 or f.is_stored_in_parts) and is_plane_asserted()


def _has_odd_columns(f: Facts) -> Any:
    """Whether a warpgroup stores at columns that are not seen to be multiples of the swizzle's."""
    of_tile, of_warpgroup = f.store_columns
    is_odd = of_tile % f.out_swizzle_columns != 0
    if is_odd is not False:  # one configuration whose tile is as wide as it should be has no more to know
        is_odd = is_odd & (_begins_at_zero(f) == 0)
    is_odd_inside = (of_warpgroup % f.out_swizzle_columns != 0) & (of_warpgroup != of_tile)
    return (is_odd | is_odd_inside) & (f.out_view == 0) & (f.c.edges != "direct")


def _begins_at_zero(f: Facts) -> Any:
    """Whether the compiler sees that all tiles begin at column 0: as a remainder by 1 it folds their number.

    Of the single tile of one of several planes the remainder is its place in the plane; of a walk in bands of one tile,
    where the result is one tile wide, its place along the band. CTAs of a cluster add their own number to both.
    """
    lies_turned = f.c.swap_ab & f.is_stored_in_parts
    is_single_m, is_single_n = f.p.m <= f.c.tile_m, f.p.n <= f.c.tile_n
    is_single_plane = ((f.p.batch > 1) | f.is_stored_in_parts) & is_single_m & is_single_n
    is_line = (f.c.raster_width == 1) & ((f.c.grid_minor == "m") != lies_turned)
    is_single = chosen(lies_turned, is_single_m, is_single_n)
    return (f.cluster_ctas == 1) & is_single & (is_single_plane | is_line)


def _odd_rows(f: Facts) -> Any:
    """Returns what is left over where a warpgroup's slice of an operand's rows is no multiple of 8."""
    lhs_rows, rhs_rows = f.wg_m * (f.p.layout[0] == "n"), f.wg_n * (f.p.layout[1] == "t")
    return lhs_rows % 8 + rhs_rows % 8


def _view_parts(f: Facts) -> tuple[tuple[Any, Any, Any], ...]:
    """Returns of lhs, rhs and result whether it is viewed, columns read or staged at a time, and the swizzle's.

    Columns along k are read panel after panel, and never cross one.
    """
    return (
        (f.lhs_view * (f.p.layout[0] == "t"), f.lhs_columns, f.swizzle_columns),
        (f.rhs_view * (f.p.layout[1] == "n"), f.rhs_columns, f.swizzle_columns),
        (f.out_view, f.epi_columns, f.out_swizzle_columns),
    )


def _crosses_panels(f: Facts) -> Any:
    crosses = [is_view * (columns != wide) for is_view, columns, wide in _view_parts(f)]
    return (crosses[0] + crosses[1] + crosses[2]) != 0


def _view_message(f: Facts) -> str:
    columns, wide = next(
        (columns, wide) for is_view, columns, wide in _view_parts(f) if is_view and columns != wide
    )
    return f"a view has {wide} columns, those of the swizzle, but a warpgroup reads {columns}"


def _plan_rule(rule_id: str, exception: str, limit: str, message: str) -> Rule:
    return rule(
        rule_id,
        "lower",
        exception,
        lambda f: f.c.scopes.fault == rule_id,
        lambda f: f.c.scopes.name,
        limit,
        message,
    )


_TRACE_RULES: tuple[Rule, ...] = (
    rule(
        "problem",
        "trace",
        "ValueError",
        lambda f: not is_computed(f.p),
        lambda f: f.p.describe(),
        COMPUTED,
        lambda f: f"this kernel does not compute {f.p.describe()}",
    ),
    rule(
        "direct",
        "trace",
        "ValueError",
        lambda f: cannot_store_directly(f.p, f.c),
        lambda f: broken_condition(f.p, f.c).value(f.p, f.c),
        lambda f: broken_condition(f.p, f.c).allowed(f.p, f.c),
        lambda f: refusal(f.p, f.c),
        asked_of="edges",
    ),
    rule(
        "view",
        "trace",
        "ValueError",
        _crosses_panels,
        lambda f: tuple(columns for _, columns, _ in _view_parts(f)),
        lambda f: (
            f"where edges is {f.c.edges}, what TMA sees in panels is read {f.swizzle_columns} columns at a time"
        ),
        _view_message,
        asked_of="edges",
    ),
    rule(
        "swizzle",
        "trace",
        "ValueError",
        lambda f: f.swizzle < 32,
        lambda f: (f.lhs_columns, f.rhs_columns),
        "rows of the operands' tiles, as a warpgroup reads them, that are multiples of 32 bytes",
        _swizzle_message(lambda f: f.swizzle),
    ),
    rule(
        "epilogue_swizzle",
        "trace",
        "ValueError",
        lambda f: f.out_swizzle < 32,
        lambda f: f.epi_columns,
        "rows of epi_n, or of epi_m where parts of k lie turned, that are a multiple of 32 bytes",
        _swizzle_message(lambda f: f.out_swizzle),
    ),
    rule(
        "exchange_swizzle",
        "trace",
        "ValueError",
        lambda f: f.is_exchanged & (f.exchange_columns % 8 != 0),
        lambda f: f.exchange_columns,
        "multiples of 8 along the accumulator's columns, which are epi_n's, or epi_m's where swap_ab",
        _swizzle_message(lambda f: 16),
        asked_of="clusters",
    ),
    rule(
        "threads",
        "trace",
        "ValueError",
        lambda f: f.c.compute_wgs > 15,
        lambda f: f.c.compute_wgs + 1,
        16,
        "Requested too many CUDA threads per block. Each Mosaic thread corresponds to 128 CUDA threads.",
    ),
    rule(
        "tiling",
        "trace",
        "AssertionError",
        lambda f: (
            # All of them are multiples of 8 where their bits together are.
            ((f.lhs_tile[0] | f.rhs_tile[0] | f.epi_rows) % 8 != 0)
            | ((f.lhs_tile[1] % f.swizzle_columns != 0) & (f.lhs_view == 0))
            | ((f.rhs_tile[1] % f.swizzle_columns != 0) & (f.rhs_view == 0))
        ),
        lambda f: (*f.lhs_tile, *f.rhs_tile, f.epi_rows),
        lambda f: f"rows multiples of 8, columns of {f.swizzle_columns}, the swizzle's",
        "the tile is not a whole number of (8 rows, swizzle) blocks",
    ),
    rule(
        "registers",
        "trace",
        "ValueError",
        lambda f: (f.c.memory_registers % 8 != 0) | (f.compute_registers < 8),
        lambda f: f.c.memory_registers,
        "a multiple of 8 that leaves the compute warpgroups at least 8",
        lambda f: (
            "n must be a positive multiple of 8, got "
            + str(f.c.memory_registers if f.c.memory_registers % 8 else f.compute_registers)
        ),
    ),
)
_LOWER_RULES = (
    rule(
        "smem",
        "lower",
        "ValueError",
        lambda f: f.smem_bytes > f.d.smem_bytes_per_block,
        lambda f: f.smem_bytes,
        lambda f: f.d.smem_bytes_per_block,
        lambda f: (
            f"Mosaic GPU kernel exceeds available shared memory: smem_bytes={f.smem_bytes} > "
            f"max_smem_bytes={f.d.smem_bytes_per_block}"
        ),
    ),
    rule(
        "cluster_mask",
        "lower",
        "RuntimeError",
        is_mask_too_wide,
        last_bits,
        f"clusters whose CTAs are numbered to at most {MAX_MASK_BIT} along m, n and the parts of k",
        "std::bad_cast",
        implies=("cluster",),
        asked_of="clusters",
    ),
    rule(
        "barriers",
        "lower",
        "NotImplementedError",
        lambda f: f.c.stages * f.turns > MAX_BARRIERS_A_GROUP,
        lambda f: f.c.stages * f.turns,
        MAX_BARRIERS_A_GROUP,
        _MANY_BARRIERS,
    ),
    rule(
        "exchange_barriers",
        "lower",
        "NotImplementedError",
        lambda f: f.exchange_groups > MAX_BARRIERS_A_GROUP,
        lambda f: f.exchange_groups,
        f"{MAX_BARRIERS_A_GROUP} pieces of the epilogue that one CTA adds up",
        _MANY_BARRIERS,
        asked_of="clusters",
    ),
    _plan_rule("main", "ValueError", "a non-collective scope of the accumulator's own", _MAIN),
    _plan_rule("b", "NotImplementedError", "collective scopes for SMEM and barriers", _NOT_COLLECTIVE),
    rule(
        "acc_empty",
        "lower",
        "MLIRError",
        lambda f: (f.acc_rows == 0) | (f.acc_columns == 0),
        lambda f: (f.acc_rows, f.acc_columns),
        "a row and a column of the tile for each warpgroup",
        lambda f: f"vector types must have positive constant sizes but got {f.acc_rows}, {f.acc_columns}",
    ),
    _plan_rule(
        "discharge", "NotImplementedError", "the accumulator inside of the collective scopes", _DISCHARGE
    ),
    rule(
        "wgmma_slice",
        "lower",
        "ValueError",
        lambda f: _odd_rows(f) != 0,
        lambda f: (f.wg_m, f.wg_n),
        "a warpgroup's rows of the lhs, and of a transposed rhs, multiples of 8",
        lambda f: (
            f"Expected slice start and slice size ({f.wg_m if f.wg_m % 8 else f.wg_n}) to be divisible by the"
            " tile size (8)"
        ),
    ),
    rule(
        "wgmma_m",
        "lower",
        "VerificationError",
        lambda f: f.acc_rows % 64 != 0,
        lambda f: f.acc_rows,
        "a multiple of 64",
        lambda f: f"The accumulator's first dimension must be a multiple of 64, but got {f.acc_rows}.",
    ),
    rule(
        "epilogue_rows",
        "lower",
        lambda f: "AssertionError" if _is_plane_asserted(f) and _has_odd_columns(f) else "ValueError",
        lambda f: (chosen(f.c.swap_ab, f.c.epi_n, f.c.epi_m) % 64 != 0) & (f.pieces > 0),
        lambda f: (f.c.epi_m, f.c.epi_n),
        "a multiple of 64 along the accumulator's rows, which are epi_m's, or epi_n's where swap_ab",
        lambda f: "" if _is_plane_asserted(f) and _has_odd_columns(f) else _NO_LAYOUT,
    ),
    rule(
        "epilogue_turned",
        "lower",
        "ValueError",
        lambda f: f.c.swap_ab & (f.out_size == 4) & (f.is_stored_in_parts == 0) & (f.pieces > 0),
        lambda f: f.p.out_dtype,
        "a result of two bytes where swap_ab turns it on its way through SMEM",
        lambda f: no_turned_store(f.out_swizzle_columns, f.out_swizzle),
    ),
    rule(
        "epilogue_columns",
        "lower",
        lambda f: "AssertionError" if _is_plane_asserted(f) else "ValueError",
        lambda f: _has_odd_columns(f) & (f.pieces > 0),
        lambda f: f.store_columns,
        lambda f: f"multiples of {f.out_swizzle_columns}, the columns of the epilogue tile's swizzle",
        lambda f: "" if _is_plane_asserted(f) else _NO_LAYOUT,
        # Whole pieces of whole swizzles end at one. Without it no rule reads the order of the tiles.
        implies=("epilogue_swizzle", "split", "epilogue_tile"),
    ),
    rule(
        "wgmma_n",
        "lower",
        "ValueError",
        lambda f: f.acc_columns > 256,
        lambda f: f.acc_columns,
        "at most 256",
        lambda f: f"N must be a multiple of 8 and <= 256, got: {f.acc_columns}",
    ),
    rule(
        "wgmma_k",
        "lower",
        "ValueError",
        lambda f: f.c.tile_k % f.swizzle_columns != 0,
        lambda f: f.c.tile_k,
        lambda f: f"a multiple of {f.swizzle_columns}, the swizzle's columns",
        lambda f: f"K must be a multiple of {f.swizzle_columns}, got: {f.c.tile_k}",
    ),
    rule(
        "tma_box",
        "lower",
        "ValueError",
        lambda f: (
            (f.lhs_tile[0] > chosen(f.lhs_view, 256, 2048)) | (f.rhs_tile[0] > chosen(f.rhs_view, 256, 2048))
        ),
        lambda f: (f.lhs_tile[0], f.rhs_tile[0]),
        "2048 rows of tiles, 256 of what is viewed",
        "Async copies only support copying <=256 elements along each dimension",
    ),
    rule(
        "multicast",
        "lower",
        "ValueError",
        is_unshared,
        lambda f: (f.c.cluster_m, f.c.cluster_n),
        "a cluster that divides the blocks of 8 rows of the tile it shares",
        unshared_message,
        asked_of="clusters",
    ),
)
COMPILER_RULES = _TRACE_RULES + _LOWER_RULES
