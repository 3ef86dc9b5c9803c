"""Sizes that follow from a problem, a configuration and a device. The kernel is built from them.

`registers_for_compute` is plain arithmetic: `legality` evaluates the same, on numbers and on numpy arrays.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from hopper_matmul.config import Config, Dimension
from hopper_matmul.direct import LANES, vector_of
from hopper_matmul.hardware import Device
from hopper_matmul.matrix import Matrix, Pair, swizzle_of
from hopper_matmul.problem import ITEMSIZE_BYTES, Problem
from hopper_matmul.views import is_lhs_viewed, is_result_viewed, is_rhs_viewed

SETMAXNREG_LIMIT = 256  # highest register count that PTX's setmaxnreg takes
REGISTERS_A_LANE = 512  # 65,536 registers of an SM over the 128 lanes of a warpgroup


COMPUTED = "bfloat16 or float16 operands, float32 accumulation, no scales, epilogue or groups"


def is_computed(p: Problem) -> bool:
    """Whether this kernel computes the problem at all: `COMPUTED` in words."""
    return (
        p.lhs_dtype == p.rhs_dtype
        and p.lhs_dtype in ("bfloat16", "float16")
        and p.out_dtype in ("bfloat16", "float16", "float32")
        and p.accumulation == "float32"
        and p.scales == p.epilogue == "none"
        and p.groups == 1
    )


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
    def turns(self) -> int:
        """Compute warpgroups that take turns at tiles; 1: all compute each tile together.

        Each has barriers of its own for every slot of the ring, for it does not see what the others wait for.
        """
        return self.config.compute_wgs if self.config.wg_split == "tile" else 1

    @property
    def wgs_on_tile(self) -> int:
        """Compute warpgroups that multiply from a slot of the ring and give it back."""
        return self.config.compute_wgs // self.turns

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
    def stores_parts(self) -> bool:
        """Whether each part of k goes to memory, where another kernel adds them."""
        return self.config.split_k > 1 and self.config.combine == "kernel"

    @property
    def exchanges_parts(self) -> bool:
        """Whether the CTAs of a tile's parts of k are a cluster that adds them."""
        return self.config.split_k > 1 and self.config.combine == "cluster"

    @property
    def exchanging_ctas(self) -> int:
        """CTAs that compute a tile together, each a part of k, and store it together."""
        return self.config.split_k if self.exchanges_parts else 1

    @property
    def cluster_size(self) -> int:
        return self.config.cluster_m * self.config.cluster_n * self.exchanging_ctas

    @property
    def multicast_axes(self) -> tuple[str, ...]:
        """Cluster axes along which CTAs write into each other's ring."""
        config = self.config
        return (("cluster_m",) if config.cluster_m > 1 else ()) + (
            ("cluster_n",) if config.cluster_n > 1 else ()
        )

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
        return "float32" if self.stores_parts else self.problem.out_dtype

    @property
    def lies_turned(self) -> bool:
        """Whether the kernel stores its result as (n, m): parts of k lie as the accumulator does."""
        return self.config.swap_ab and self.stores_parts

    @property
    def is_direct(self) -> bool:
        """Whether threads store the result where it belongs, see `Config.edges`.

        Nothing clips what they store. So the last tile ends where m and n do, and stores some rows and columns of the
        one before again, bit for bit.
        """
        return self.config.edges == "direct"

    @property
    def has_whole_tiles(self) -> bool:
        """Whether the rhs is copied as whole tiles side by side, the last one as it is stored."""
        return self.is_direct and self.problem.layout[1] == "n"

    @property
    def store_vector(self) -> int:
        """Neighbouring elements that a thread stores at once: as are aligned in any row and leave no lane out."""
        return math.gcd(vector_of(self.problem), self.config.epi_n // LANES)

    @property
    def lhs(self) -> Matrix:
        """The lhs in memory."""
        p, c = self.problem, self.config
        is_turned = p.layout[0] == "t"
        return self._operand(
            (p.m, p.k),
            (c.tile_m, c.tile_k),
            (self.wg_m, c.tile_k),
            is_turned=is_turned,
            k_is_columns=not is_turned,
            is_viewed=bool(is_lhs_viewed(p, c.edges, self.swizzle_bytes)),
        )

    @property
    def rhs(self) -> Matrix:
        """The rhs in memory."""
        p, c = self.problem, self.config
        is_turned = p.layout[1] == "t"
        return self._operand(
            (p.k, self.tiles_n * c.tile_n if self.has_whole_tiles else p.n),
            (c.tile_k, c.tile_n),
            (c.tile_k, self.wg_n),
            is_turned=is_turned,
            k_is_columns=is_turned,
            is_viewed=bool(is_rhs_viewed(p, c.edges, self.swizzle_bytes)),
        )

    def _operand(
        self,
        shape: Pair,
        tile: Pair,
        part: Pair,
        *,
        is_turned: bool,
        k_is_columns: bool,
        is_viewed: bool,
    ) -> Matrix:
        if is_turned:
            shape, tile, part = shape[::-1], tile[::-1], part[::-1]
        return Matrix(
            stored=shape,
            tile=tile,
            part=part,
            k_is_columns=k_is_columns,
            swizzle_bytes=self.swizzle_bytes,
            itemsize_bytes=ITEMSIZE_BYTES[self.problem.lhs_dtype],
            is_viewed=is_viewed,
        )

    @property
    def k_panels(self) -> int:
        """WGMMAs of a step: one for each panel of k."""
        return max(matrix.panels if matrix.k_is_columns else 1 for matrix in (self.lhs, self.rhs))

    @property
    def sums(self) -> Matrix:
        """One plane of what the kernel stores."""
        p, tile, size = self.problem, self.epilogue_tile, ITEMSIZE_BYTES[self.sums_dtype]
        shape, swizzle_bytes = (p.n, p.m) if self.lies_turned else (p.m, p.n), self.epilogue_swizzle_bytes
        return Matrix(
            stored=shape,
            tile=tile,
            part=tile,
            k_is_columns=False,
            swizzle_bytes=swizzle_bytes,
            itemsize_bytes=size,
            is_viewed=bool(is_result_viewed(self.config.edges, shape, swizzle_bytes, size)),
        )

    @property
    def out_shape(self) -> tuple[int, ...]:
        """What the kernel stores: its planes, if several, of rows as they lie in memory."""
        p = self.problem
        matrix = (p.m, p.n) if self.is_direct else self.sums.shape
        return matrix if self.planes == 1 else (self.planes, *matrix)

    @property
    def epilogue_tile(self) -> tuple[int, int]:
        """Rows and columns that a warpgroup stages at a time, as they lie in memory."""
        tile = (self.config.epi_m, self.config.epi_n)
        return tile[::-1] if self.lies_turned else tile

    @property
    def planes(self) -> int:
        """Matrices of the kernel's result, one after the other: each stored part of k of each of the batch."""
        return self.problem.batch * (self.config.split_k if self.stores_parts else 1)

    @property
    def cluster_tiles_m(self) -> int:
        return -(-self.problem.m // (self.config.tile_m * self.config.cluster_m))

    @property
    def cluster_tiles_n(self) -> int:
        return -(-self.problem.n // (self.config.tile_n * self.config.cluster_n))

    @property
    def tiles_m(self) -> int:
        """Tiles along m, but for those of a cluster that lie outside."""
        return -(-self.problem.m // self.config.tile_m)

    @property
    def tiles_n(self) -> int:
        return -(-self.problem.n // self.config.tile_n)

    @property
    def cluster_tiles(self) -> int:
        return self.cluster_tiles_m * self.cluster_tiles_n * self.planes

    @property
    def has_pieces_outside(self) -> bool:
        """Whether pieces of the epilogue lie wholly outside along a dimension of which the result has a single block.

        TMA drops what is stored outside, but is not given the index of such a dimension. Nothing drops what threads
        store of the tiles of a cluster that are one too many.
        """
        c, p, sums = self.config, self.problem, self.sums
        if self.is_direct:
            return (self.cluster_tiles_m * c.cluster_m, self.cluster_tiles_n * c.cluster_n) != (
                self.tiles_m,
                self.tiles_n,
            )
        is_single = (sums.shape[0] <= 8, sums.shape[1] <= sums.swizzle_columns)
        single_m, single_n = is_single[::-1] if self.lies_turned else is_single
        over_m = self.cluster_tiles_m * c.cluster_m * c.tile_m - p.m
        over_n = self.cluster_tiles_n * c.cluster_n * c.tile_n - p.n
        return (single_m and over_m >= c.epi_m) or (single_n and over_n >= c.epi_n)

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
    def pieces_m(self) -> int:
        """Pieces of a warpgroup's tile along m that are staged one after the other."""
        return self.wg_m // self.config.epi_m

    @property
    def pieces_n(self) -> int:
        return self.wg_n // self.config.epi_n

    def piece_at(self, piece: int) -> tuple[slice, slice]:
        """Returns the rows and columns of a piece in a warpgroup's tile, counted along n first."""
        epi_m, epi_n = self.config.epi_m, self.config.epi_n
        row, column = piece // self.pieces_n * epi_m, piece % self.pieces_n * epi_n
        return slice(row, row + epi_m), slice(column, column + epi_n)

    def piece_in_sums(self, piece: int) -> tuple[slice, slice]:
        """Returns where it lies in a warpgroup's accumulator."""
        at = self.piece_at(piece)
        return at[::-1] if self.config.swap_ab else at

    @property
    def own_pieces(self) -> int:
        """Most pieces of a warpgroup's tile that one CTA stores: all, or its share where CTAs exchange parts."""
        pieces = (self.wg_m * self.wg_n) // (self.config.epi_m * self.config.epi_n)
        return -(-pieces // self.exchanging_ctas)

    @property
    def received_pieces(self) -> int:
        """Pieces that a warpgroup has room for parts of; as for `own_pieces`, but a buffer is never empty."""
        return max(1, self.own_pieces)

    @property
    def piece_in_acc(self) -> Pair:
        """Rows and columns of a piece of the epilogue in the accumulator."""
        piece = (self.config.epi_m, self.config.epi_n)
        return piece[::-1] if self.config.swap_ab else piece

    @property
    def exchange_swizzle_bytes(self) -> int:
        """Of a piece of another CTA's part in SMEM, float32."""
        return swizzle_of(self.piece_in_acc[1] * ITEMSIZE_BYTES["float32"])

    @property
    def epilogue_slots(self) -> int:
        """Staging slots of a warpgroup: two, so that one is filled while the other is stored, where two are used."""
        return min(2, self.own_pieces)

    @property
    def compute_registers(self) -> int:
        return registers_for_compute(self.config.memory_registers, self.config.compute_wgs)
