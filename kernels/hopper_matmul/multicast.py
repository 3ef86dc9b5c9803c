"""How the CTAs of a cluster share the copy of a tile: what can be cut into parts, and which barriers they reach."""

from __future__ import annotations

from typing import Any

from hopper_matmul.facts import Facts, chosen
from hopper_matmul.problem import ITEMSIZE_BYTES

TMA_ALIGNMENT_BYTES = 128  # of what TMA writes in SMEM, CUDA programming guide, tensor memory accelerator
MAX_MASK_BIT = 62  # of a cluster barrier: more than what fits a signed integer of 64 bits cannot be passed on


def is_unshared(f: Facts) -> Any:
    """Whether a tile cannot be cut into equal parts for the CTAs of the cluster that share it."""
    return (_is_shared(f, f.c.cluster_n, f.lhs_tile, f.lhs_view) == 0) | (
        _is_shared(f, f.c.cluster_m, f.rhs_tile, f.rhs_view) == 0
    )


def _is_shared(f: Facts, parts: Any, box: Any, is_view: Any) -> Any:
    """Whether what a copy brings can be cut into equal parts, one for each CTA; panels are cut one by one."""
    if isinstance(parts, int) and parts == 1:  # one configuration; an array goes on
        return True
    rows, columns = box
    return chosen(is_view, rows % parts == 0, _partitions(parts, rows // 8, columns // f.swizzle_columns))


def _partitions(parts: Any, outer: Any, inner: Any) -> Any:
    """Whether a box of (outer, inner, 8, columns) can be cut into `parts` equal parts that are contiguous in SMEM."""
    rest = parts // (outer + (outer == 0))
    of_inner = rest + (rest == 0)
    of_rows = rest // (inner + (inner == 0))
    fits_inside = (inner % of_inner == 0) | (
        (rest % (inner + (inner == 0)) == 0) & (8 % (of_rows + (of_rows == 0)) == 0)
    )
    return (outer % parts == 0) | ((rest * outer == parts) & fits_inside)


def unshared_message(f: Facts) -> str:
    """Returns what the first copy that cannot be shared is refused with: the lhs is copied first."""
    box, parts, stored, is_view = f.lhs_tile, f.c.cluster_n, f.lhs_stored, f.lhs_view
    indices = (f.p.lhs_batch > 1) * 1
    if _is_shared(f, parts, box, is_view):
        box, parts, stored, is_view = f.rhs_tile, f.c.cluster_m, f.rhs_stored, f.rhs_view
        indices = (f.p.rhs_batch > 1) * 1
    blocks = (box[0] // 8, box[1] // f.swizzle_columns)
    in_memory = (-(-stored[0] // 8), -(-stored[1] // f.swizzle_columns))
    # A dimension of one block, of a matrix that has but one, is dropped.
    shape = [one for one, there in zip(blocks, in_memory, strict=True) if one > 1 or there > 1]
    shape = [box[0], f.swizzle_columns] if is_view else [*shape, 8, f.swizzle_columns]
    return (
        f"None of the leading dimensions in the transformed slice shape {[1] * indices + shape} is divisible"
        f" by the collective size {parts}"
    )


def part_bytes(f: Facts) -> tuple[Any, Any]:
    """Returns the bytes that each CTA loads of a copy of lhs and of rhs that it shares."""
    of_lhs, of_rhs = _copy_bytes(f)
    return of_lhs // f.c.cluster_n, of_rhs // f.c.cluster_m


def _copy_bytes(f: Facts) -> tuple[Any, Any]:
    size = ITEMSIZE_BYTES[f.p.lhs_dtype]
    lhs_columns = chosen(f.lhs_view, f.swizzle_columns, f.lhs_tile[1])
    rhs_columns = chosen(f.rhs_view, f.swizzle_columns, f.rhs_tile[1])
    return f.lhs_tile[0] * lhs_columns * size, f.rhs_tile[0] * rhs_columns * size


def is_part_misaligned(f: Facts) -> Any:
    """Whether a part of a shared copy begins where TMA cannot write."""
    of_lhs, of_rhs = _copy_bytes(f)
    along_n, along_m = f.c.cluster_n, f.c.cluster_m
    return ((along_n > 1) & (of_lhs % (TMA_ALIGNMENT_BYTES * along_n) != 0)) | (
        (along_m > 1) & (of_rhs % (TMA_ALIGNMENT_BYTES * along_m) != 0)
    )


def last_bits(f: Facts) -> tuple[Any, Any, Any]:
    """Returns the highest bit in the mask of the CTAs that a barrier reaches along m, n and the parts of k."""
    parts = f.cluster_ctas // f.cluster_size
    return (f.c.cluster_m - 1) * f.c.cluster_n * parts, (f.c.cluster_n - 1) * parts, parts - 1


def is_mask_too_wide(f: Facts) -> Any:
    along_m, along_n, along_parts = last_bits(f)
    return (along_m > MAX_MASK_BIT) | (along_n > MAX_MASK_BIT) | (along_parts > MAX_MASK_BIT)
