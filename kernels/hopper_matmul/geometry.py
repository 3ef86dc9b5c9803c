"""Sizes that follow from a problem, a configuration and a device. The kernel is built from them.

The functions at the top are plain arithmetic: `legality` evaluates the same ones, on numbers and on numpy arrays.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from hopper_matmul.config import Config, Dimension
from hopper_matmul.hardware import Device
from hopper_matmul.problem import ITEMSIZE_BYTES, Problem

SETMAXNREG_LIMIT = 256  # highest register count that PTX's setmaxnreg takes
REGISTERS_A_LANE = 512  # 65,536 registers of an SM over the 128 lanes of a warpgroup


COMPUTED = "bfloat16 or float16 operands, float32 accumulation, no scales, epilogue or groups"


def is_computed(p: Problem) -> bool:
    """Whether this kernel computes the problem at all: `COMPUTED` in words."""
    return (
        p.lhs_dtype == p.rhs_dtype
        and p.lhs_dtype in ("bfloat16", "float16")
        and p.out_dtype in ("bfloat16", "float16", "float32")
        and (p.accumulation, p.scales, p.epilogue) == ("float32", "none", "none")
        and p.groups == 1
    )


def swizzle_of(row_bytes):
    """Returns the widest swizzle, 128, 64, 32 or else 16 bytes, that divides rows of `row_bytes`."""
    return 16 << ((row_bytes % 128 == 0) * 1 + (row_bytes % 64 == 0) * 1 + (row_bytes % 32 == 0) * 1)


def padded(shape, swizzle_bytes, itemsize_bytes):
    """Returns rows and columns of a matrix, rounded up to what TMA can clip to blocks of 8 rows by one swizzle.

    Rows are fewer than a block or whole blocks; columns fill 16 bytes, and are fewer than a swizzle's or whole ones.
    """
    rows, columns = shape
    padded_rows = rows + (rows > 8) * (-rows % 8)
    grain, swizzle_columns = 16 // itemsize_bytes, swizzle_bytes // itemsize_bytes
    few = -(-columns // grain) * grain
    whole = -(-columns // swizzle_columns) * swizzle_columns
    return padded_rows, whole + (few - whole) * (few < swizzle_columns)


def registers_for_compute(memory_registers, compute_wgs):
    """Returns the registers a thread of each compute warpgroup gets, a multiple of 8."""
    share = (REGISTERS_A_LANE - memory_registers) // compute_wgs
    capped = share * (share <= SETMAXNREG_LIMIT) + SETMAXNREG_LIMIT * (share > SETMAXNREG_LIMIT)
    return capped // 8 * 8


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """All derived sizes of one variant, in elements unless the name ends in a unit.

    Tiles and steps are rounded up: TMA fills what a load reads past an edge with zeros, and drops what a store
    writes there. An illegal configuration has a geometry too, so that it can be lowered and seen to fail.
    """

    problem: Problem
    config: Config
    device: Device

    def splits(self, dimension: Dimension) -> bool:
        """Whether several compute warpgroups share out that dimension of the CTA's tile."""
        return self.config.compute_wgs > 1 and self.config.wg_split == dimension

    @property
    def wg_m(self) -> int:
        return self.config.tile_m // self.config.compute_wgs if self.splits("m") else self.config.tile_m

    @property
    def wg_n(self) -> int:
        return self.config.tile_n // self.config.compute_wgs if self.splits("n") else self.config.tile_n

    @property
    def acc_shape(self) -> tuple[int, int]:
        """Rows and columns of a warpgroup's accumulator."""
        return (self.wg_n, self.wg_m) if self.config.swap_ab else (self.wg_m, self.wg_n)

    @property
    def cluster_size(self) -> int:
        return self.config.cluster_m * self.config.cluster_n

    @property
    def multicast_axes(self) -> tuple[str, ...]:
        """Cluster axes along which CTAs write into each other's ring."""
        config = self.config
        return (("cluster_m",) if config.cluster_m > 1 else ()) + (
            ("cluster_n",) if config.cluster_n > 1 else ()
        )

    @property
    def lhs_tile(self) -> tuple[int, int]:
        """Rows and columns of the lhs that a CTA loads at a step, as they lie in memory."""
        config = self.config
        tile = (config.tile_m, config.tile_k)
        return tile if self.problem.layout[0] == "n" else tile[::-1]

    @property
    def rhs_tile(self) -> tuple[int, int]:
        """Rows and columns of the rhs that a CTA loads at a step, as they lie in memory."""
        config = self.config
        tile = (config.tile_k, config.tile_n)
        return tile if self.problem.layout[1] == "n" else tile[::-1]

    @property
    def swizzle_bytes(self) -> int:
        """WGMMA wants one swizzle for both operands: the widest that both rows divide into."""
        size = ITEMSIZE_BYTES[self.problem.lhs_dtype]
        lhs_columns = self.config.tile_k if self.problem.layout[0] == "n" else self.wg_m
        rhs_columns = self.wg_n if self.problem.layout[1] == "n" else self.config.tile_k
        return min(swizzle_of(lhs_columns * size), swizzle_of(rhs_columns * size))

    @property
    def epilogue_swizzle_bytes(self) -> int:
        return swizzle_of(self.epilogue_tile[1] * ITEMSIZE_BYTES[self.sums_dtype])

    @property
    def k_steps(self) -> int:
        """Steps of one part of k. The last part may end beyond k, where TMA reads zeros."""
        return -(-self.problem.k // (self.config.tile_k * self.config.split_k))

    @property
    def sums_dtype(self) -> str:
        """What the kernel stores: parts of k are not rounded before they are added."""
        return self.problem.out_dtype if self.config.split_k == 1 else "float32"

    @property
    def lies_turned(self) -> bool:
        """Whether the kernel stores its result as (n, m): parts of k lie as the accumulator does."""
        return self.config.swap_ab and self.config.split_k > 1

    @property
    def lhs_shape(self) -> tuple[int, int]:
        """Rows and columns of the lhs in memory, padded to what TMA reads."""
        p = self.problem
        return self._padded_operand((p.m, p.k) if p.layout[0] == "n" else (p.k, p.m))

    @property
    def rhs_shape(self) -> tuple[int, int]:
        """Rows and columns of the rhs in memory, padded to what TMA reads."""
        p = self.problem
        return self._padded_operand((p.k, p.n) if p.layout[1] == "n" else (p.n, p.k))

    def _padded_operand(self, shape: tuple[int, int]) -> tuple[int, int]:
        return padded(shape, self.swizzle_bytes, ITEMSIZE_BYTES[self.problem.lhs_dtype])

    @property
    def sums_shape(self) -> tuple[int, int]:
        """Rows and columns of one plane of what the kernel stores, padded to what TMA writes."""
        shape = (self.problem.m, self.problem.n)
        stored = shape[::-1] if self.lies_turned else shape
        return padded(stored, self.epilogue_swizzle_bytes, ITEMSIZE_BYTES[self.sums_dtype])

    @property
    def epilogue_tile(self) -> tuple[int, int]:
        """Rows and columns that a warpgroup stages at a time, as they lie in memory."""
        tile = (self.config.epi_m, self.config.epi_n)
        return tile[::-1] if self.lies_turned else tile

    @property
    def planes(self) -> int:
        """Products the kernel computes, one after the other in its result: each part of k of each of the batch."""
        return self.problem.batch * self.config.split_k

    @property
    def cluster_tiles_m(self) -> int:
        return -(-self.problem.m // (self.config.tile_m * self.config.cluster_m))

    @property
    def cluster_tiles_n(self) -> int:
        return -(-self.problem.n // (self.config.tile_n * self.config.cluster_n))

    @property
    def cluster_tiles(self) -> int:
        return self.cluster_tiles_m * self.cluster_tiles_n * self.planes

    @functools.cached_property
    def grid_clusters(self) -> int:
        """Clusters that are launched: one a tile, or as many as the SMs hold at once."""
        if not self.config.persistent:
            return self.cluster_tiles
        sms = min(self.device.sm_count, self.config.max_sms or self.device.sm_count)
        return max(1, min(self.cluster_tiles, sms // self.cluster_size))

    @property
    def tiles_per_cta(self) -> int:
        """Most tiles that one CTA walks."""
        return -(-self.cluster_tiles // self.grid_clusters) if self.grid_clusters else 1

    @property
    def epilogue_slots(self) -> int:
        """Staging slots of a warpgroup: two, so that one is filled while the other is stored, where two are used."""
        config = self.config
        return min(2, (self.wg_m * self.wg_n) // (config.epi_m * config.epi_n))

    @property
    def compute_registers(self) -> int:
        return registers_for_compute(self.config.memory_registers, self.config.compute_wgs)
