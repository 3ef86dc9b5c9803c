"""What the rules of legality speak of: sizes that follow from a problem, a configuration and a device.

The arithmetic is free of branches, so that it runs on numbers (one configuration), on numpy arrays (a column of
each knob, see `space`) and on traced values (see `dependence`).
"""

from __future__ import annotations

from typing import Any

from hopper_matmul.geometry import registers_for_compute
from hopper_matmul.hardware import REGISTERS_PER_SM, SMEM_ALIGNMENT_BYTES, THREADS_PER_WARPGROUP, Device
from hopper_matmul.matrix import swizzle_of
from hopper_matmul.problem import ITEMSIZE_BYTES, Problem
from hopper_matmul.views import is_lhs_viewed, is_result_viewed, is_rhs_viewed

BARRIER_BYTES = 8
PART_BYTES = 4  # of an element of a part of k, which is stored as float32


class Facts:
    """What the rules speak of, computed once: numbers for one configuration, arrays for a column of each knob."""

    __slots__ = (
        "acc_columns",
        "acc_registers",
        "acc_rows",
        "c",
        "cluster_ctas",
        "cluster_size",
        "compute_registers",
        "d",
        "entry_registers",
        "epi_columns",
        "epi_rows",
        "exchange_columns",
        "exchange_groups",
        "first_k_of_last_part",
        "is_exchanged",
        "is_stored_in_parts",
        "lhs_columns",
        "lhs_stored",
        "lhs_tile",
        "lhs_view",
        "out_size",
        "out_swizzle",
        "out_swizzle_columns",
        "out_view",
        "p",
        "pieces",
        "rhs_columns",
        "rhs_stored",
        "rhs_tile",
        "rhs_view",
        "smem_bytes",
        "store_columns",
        "swizzle",
        "swizzle_columns",
        "total_bytes",
        "turns",
        "wg_m",
        "wg_n",
    )

    def __init__(self, problem: Problem, config: Any, device: Device):
        self.p, self.c, self.d = problem, config, device
        size, out_size = ITEMSIZE_BYTES[problem.lhs_dtype], ITEMSIZE_BYTES[problem.out_dtype]
        tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
        epi_m, epi_n, stages, wgs = config.epi_m, config.epi_n, config.stages, config.compute_wgs
        swap_ab, split_k, scopes = config.swap_ab, config.split_k, config.scopes
        self.is_exchanged = is_exchanged = (split_k > 1) & (config.combine == "cluster")
        self.is_stored_in_parts = is_split = (split_k > 1) & (config.combine == "kernel")
        out_size = chosen(is_split, PART_BYTES, out_size)
        self.turns = turns = (wgs - 1) * (config.wg_split == "tile") + 1
        self.wg_m = wg_m = tile_m // ((wgs - 1) * (config.wg_split == "m") + 1)
        self.wg_n = wg_n = tile_n // ((wgs - 1) * (config.wg_split == "n") + 1)
        self.acc_rows = chosen(swap_ab, wg_n, wg_m)
        self.acc_columns = chosen(swap_ab, wg_m, wg_n)
        self.cluster_size = config.cluster_m * config.cluster_n
        ctas = chosen(is_exchanged, split_k, 1)
        self.cluster_ctas = self.cluster_size * ctas
        m, n, k = problem.m, problem.n, problem.k
        lhs_is_upright, rhs_is_upright = problem.layout[0] == "n", problem.layout[1] == "n"
        self.lhs_tile = (tile_m, tile_k) if lhs_is_upright else (tile_k, tile_m)
        self.rhs_tile = (tile_k, tile_n) if rhs_is_upright else (tile_n, tile_k)
        self.lhs_columns = tile_k if lhs_is_upright else wg_m
        self.rhs_columns = wg_n if rhs_is_upright else tile_k
        self.lhs_stored = (m, k) if lhs_is_upright else (k, m)
        self.rhs_stored = (k, n) if rhs_is_upright else (n, k)
        # One swizzle for both: the widest that divides the rows of both.
        self.swizzle = swizzle_of((self.lhs_columns | self.rhs_columns) * size)
        self.swizzle_columns = self.swizzle // size
        self.out_size = out_size
        lies_turned = swap_ab & is_split
        self.epi_rows, self.epi_columns, self.store_columns = epi_m, epi_n, (tile_n, wg_n)
        if lies_turned is not False:  # one configuration whose result lies upright has no more to know
            self.epi_rows = chosen(lies_turned, epi_n, epi_m)
            self.epi_columns = chosen(lies_turned, epi_m, epi_n)
            self.store_columns = (chosen(lies_turned, tile_m, tile_n), chosen(lies_turned, wg_m, wg_n))
        self.out_swizzle = swizzle_of(self.epi_columns * out_size)
        self.out_swizzle_columns = self.out_swizzle // out_size
        self.lhs_view = self.rhs_view = self.out_view = False
        if (config.edges == "pad") is not True:  # one configuration that pads has no more to know
            out_stored = (chosen(lies_turned, n, m), chosen(lies_turned, m, n))
            self.lhs_view = is_lhs_viewed(problem, config.edges, self.swizzle)
            self.rhs_view = is_rhs_viewed(problem, config.edges, self.swizzle)
            self.out_view = is_result_viewed(config.edges, out_stored, self.out_swizzle, out_size)
        slot_bytes = stages * tile_k * size  # of one row of lhs or column of rhs
        ring_bytes = aligned(slot_bytes * tile_m) + aligned(slot_bytes * tile_n)
        self.pieces = (wg_m // epi_m) * (wg_n // epi_n)
        self.exchange_columns = chosen(swap_ab, epi_m, epi_n)
        own_pieces = (wg_m * wg_n) // (epi_m * epi_n)
        barriers = 2 * stages * turns + 2 * scopes.is_union
        self.exchange_groups = exchange_bytes = 0
        if is_exchanged is not False:  # one configuration without an exchange has no more to know
            own_pieces = -(-own_pieces // ctas)
            self.exchange_groups = groups = wgs * (own_pieces + (own_pieces == 0)) * is_exchanged
            exchange_bytes = aligned(groups * (ctas - 1) * epi_m * epi_n * PART_BYTES)
            barriers = barriers + groups + wgs * is_exchanged
        epilogue_bytes = aligned(wgs * lesser(own_pieces, 2) * epi_m * epi_n * out_size)
        overlap = lesser(ring_bytes, epilogue_bytes) * scopes.shares_bytes
        self.smem_bytes = ring_bytes + epilogue_bytes - overlap + exchange_bytes + BARRIER_BYTES * barriers
        self.entry_registers = lesser(REGISTERS_PER_SM // (THREADS_PER_WARPGROUP * (wgs + 1)) // 8 * 8, 255)
        self.compute_registers = registers_for_compute(config.memory_registers, wgs)
        is_even = config.memory_registers == 0
        if is_even is not False:  # one configuration that splits them has no more to know
            self.compute_registers = chosen(is_even, self.entry_registers, self.compute_registers)
        self.first_k_of_last_part = (split_k - 1) * -(-k // (tile_k * split_k)) * tile_k
        self.total_bytes = problem.min_bytes + PART_BYTES * problem.batch * m * n * split_k * is_split
        self.acc_registers = wg_m * wg_n // THREADS_PER_WARPGROUP


def lesser(a: Any, b: Any) -> Any:
    """Returns the smaller of two numbers, or of two arrays element by element."""
    return a * (a < b) + b * (b <= a)


def chosen(is_first: Any, first: Any, second: Any) -> Any:
    """Returns `first` where `is_first`, else `second`: numbers, or arrays element by element."""
    if is_first is False:
        return second
    if is_first is True:
        return first
    is_first = is_first * 1
    return first * is_first + second * (1 - is_first)


def aligned(size_bytes: Any) -> Any:
    """Returns a size rounded up to the alignment of an SMEM buffer."""
    return -(-size_bytes // SMEM_ALIGNMENT_BYTES) * SMEM_ALIGNMENT_BYTES
