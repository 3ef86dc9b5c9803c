"""What the warpgroups of a CTA do: one loads, the others multiply and store."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from hopper_matmul.allocation import ACC_DTYPE, WG_AXIS, enter, scopes_at
from hopper_matmul.exchange import give_back, own_sums, send_parts, stores
from hopper_matmul.geometry import Geometry
from hopper_matmul.lanes import lanes_layout, store_narrow
from hopper_matmul.matrix import Matrix
from hopper_matmul.scopes import Scope
from hopper_matmul.walk import PARTS_AXIS, Tile, Walk, for_each_tile, tile_count


@dataclass(frozen=True, kw_only=True)
class Operands:
    """The kernel's refs in device memory, and the order of its tiles.

    Attributes:
        lhs, rhs: As the problem's layout stores them, after the batch where there is one that has its own.
        out: (m, n), or (planes, m, n) where there are several.
    """

    lhs: Any
    rhs: Any
    out: Any
    walk: Walk


def _turned(is_turned: bool, rows: Any, columns: Any) -> tuple[Any, Any]:
    """Returns an index of (rows, columns) of a matrix that is stored transposed if `is_turned`."""
    return (columns, rows) if is_turned else (rows, columns)


def _facing(is_turned: bool, tile: Any) -> Any:
    """Returns a tile as WGMMA reads it; it transposes 16-bit operands on the way, at no cost."""
    return tile.transpose((1, 0)) if is_turned else tile


def _in_plane(plane: Any, rows: Any, columns: Any) -> tuple[Any, ...]:
    """Returns the index of rows and columns in a stack of matrices, or in the only one, whose plane is None."""
    return (rows, columns) if plane is None else (plane, rows, columns)


def _next_slot(slot: jax.Array, stages: int) -> jax.Array:
    return lax.select(slot == stages - 1, jnp.zeros_like(slot), slot + 1)


def _barrier_of(geometry: Geometry, wg: Any, slot: jax.Array) -> jax.Array:
    """Returns the number of a slot's barrier, of those of a warpgroup where they take turns."""
    return slot if geometry.turns == 1 else wg * geometry.config.stages + slot


def _barrier_at(geometry: Geometry, step: jax.Array, slot: jax.Array) -> jax.Array:
    """Returns the number of a slot's barrier at a step, counted through all tiles of a CTA."""
    if geometry.turns == 1:
        return slot
    return _barrier_of(geometry, _whose_turn(geometry, lax.div(step, jnp.int32(geometry.k_steps))), slot)


def _whose_turn(geometry: Geometry, tile: jax.Array) -> Any:
    """Returns the warpgroup that computes a tile of a CTA, by the tile's number; 0 where all do."""
    return 0 if geometry.turns == 1 else lax.rem(tile, jnp.int32(geometry.turns))


def memory_role(geometry: Geometry, operands: Operands, refs: dict[str, Any]) -> None:
    """Keeps the ring full: for each step of each tile one lhs and one rhs tile."""
    config = geometry.config
    if config.memory_registers:
        plgpu.set_max_registers(config.memory_registers, action="decrease")
    mainloop, epilogue = _tile_scopes(geometry, role="memory")

    def load_tile(tile: Tile) -> None:
        def load(refs: dict[str, Any]) -> None:
            if geometry.config.scopes.is_union:
                # The epilogue of the tile before wrote over the ring.
                pl.when(tile.local > 0)(lambda: plgpu.barrier_wait(refs["barriers"]["stored"].at[0]))
            _load_steps(geometry, operands, refs, tile)

        enter(geometry, mainloop, refs, load)
        if epilogue:
            enter(geometry, epilogue, refs, lambda _: None)

    for_each_tile(geometry, operands.walk, load_tile)
    _await_peers(geometry, refs)


def _load_steps(geometry: Geometry, operands: Operands, refs: dict[str, Any], tile: Tile) -> None:
    config = geometry.config
    lhs_ring, rhs_ring = refs["ring_view"]
    full, consumed = refs["barriers"]["full"], refs["barriers"]["consumed"]
    is_lhs_turned, is_rhs_turned = (letter == "t" for letter in geometry.problem.layout)
    batch = geometry.problem.batch
    product = lax.rem(tile.plane, batch) if geometry.stores_parts else tile.plane
    part = lax.div(tile.plane, batch) if geometry.stores_parts else 0
    part = lax.axis_index(PARTS_AXIS) if geometry.exchanges_parts else part
    first_step = part * geometry.k_steps
    first_row, first_column = _origin(geometry, tile)
    if geometry.has_whole_tiles:
        first_column = tile.n_index * config.tile_n
    lhs_product = product if geometry.problem.lhs_batch > 1 else None
    rhs_product = product if geometry.problem.rhs_batch > 1 else None
    load_lhs = functools.partial(
        _load_tile, geometry.lhs, operands.lhs, lhs_product, "cluster_n" if config.cluster_n > 1 else None
    )
    load_rhs = functools.partial(
        _load_tile, geometry.rhs, operands.rhs, rhs_product, "cluster_m" if config.cluster_m > 1 else None
    )

    def load_step(step: jax.Array, slot: jax.Array) -> jax.Array:
        number = tile.local * geometry.k_steps + step
        pl.when(number >= config.stages)(
            lambda: plgpu.barrier_wait(consumed.at[_barrier_at(geometry, number - config.stages, slot)])
        )
        filled = full.at[_barrier_of(geometry, _whose_turn(geometry, tile.local), slot)]
        depth = (first_step + step) * config.tile_k
        load_lhs(lhs_ring.at[slot], filled, *_turned(is_lhs_turned, first_row, depth))
        load_rhs(rhs_ring.at[slot], filled, *_turned(is_rhs_turned, depth, first_column))
        return _next_slot(slot, config.stages)

    lax.fori_loop(0, geometry.k_steps, load_step, tile.slot)


def _load_tile(
    matrix: Matrix,
    source: Any,
    product: Any,
    shared_along: str | None,
    buffer: Any,
    barrier: Any,
    row: jax.Array,
    column: jax.Array,
) -> None:
    """Copies the tile that starts at a row and a column into a slot of the ring, panel by panel if it is viewed."""
    width = matrix.tile[1] // matrix.panels
    for panel in range(matrix.panels):
        rows, columns = pl.ds(row, matrix.tile[0]), pl.ds(column + panel * width, width)
        plgpu.copy_gmem_to_smem(
            source.at[_in_plane(product, rows, columns)],
            buffer.at[panel] if matrix.is_viewed else buffer,
            barrier,
            collective_axes=shared_along,
        )


def _origin(geometry: Geometry, tile: Tile) -> tuple[jax.Array, jax.Array]:
    """Returns where a tile begins along m and n; where threads store the result, the last ones end where it does."""
    config, problem = geometry.config, geometry.problem
    row, column = tile.m_index * config.tile_m, tile.n_index * config.tile_n
    if not geometry.is_direct:
        return row, column
    last_row, last_column = jnp.int32(problem.m - config.tile_m), jnp.int32(problem.n - config.tile_n)
    return lax.min(row, last_row), lax.min(column, last_column)


def _await_peers(geometry: Geometry, refs: dict[str, Any]) -> None:
    """Waits until every slot was given back, so that no peer of the cluster arrives on a CTA that has ended."""
    config = geometry.config
    steps = tile_count(geometry) * geometry.k_steps
    first = lax.max(steps - config.stages, jnp.int32(0))

    def await_slot(step: jax.Array, carry: None) -> None:
        barrier = _barrier_at(geometry, step, lax.rem(step, config.stages))
        plgpu.barrier_wait(refs["barriers"]["consumed"].at[barrier])
        return carry

    lax.fori_loop(first, steps, await_slot, None)
    if geometry.config.scopes.is_union:
        plgpu.barrier_wait(refs["barriers"]["stored"].at[0])


def _tile_scopes(geometry: Geometry, *, role: str) -> tuple[list[Scope], list[Scope]]:
    """Returns the scopes of a tile's main loop, and those of its epilogue where they follow."""
    scopes = scopes_at(geometry, "tile", "compute_tile") if role == "compute" else scopes_at(geometry, "tile")
    cut = next((i for i, scope in enumerate(scopes) if scope.follows), len(scopes))
    return scopes[:cut], scopes[cut:]


def compute_role(geometry: Geometry, operands: Operands, refs: dict[str, Any]) -> None:
    """Multiplies what the ring brings and stores each finished tile."""
    if geometry.config.memory_registers:
        plgpu.set_max_registers(geometry.compute_registers, action="increase")
    mainloop, epilogue = _tile_scopes(geometry, role="compute")

    def compute_tile(refs: dict[str, Any], tile: Tile) -> None:
        store = functools.partial(_store_tile, geometry, operands, tile)

        def multiply(refs: dict[str, Any]) -> jax.Array | None:
            sums = _multiply_steps(geometry, refs, tile.slot)
            return sums if epilogue else store(refs, sums)

        sums = enter(geometry, mainloop, refs, multiply)
        if epilogue:
            enter(geometry, epilogue, refs, lambda refs: store(refs, sums))

    def in_turn(refs: dict[str, Any], tile: Tile) -> None:
        compute = functools.partial(compute_tile, refs, tile)
        if geometry.turns > 1:
            pl.when(_whose_turn(geometry, tile.local) == lax.axis_index(WG_AXIS))(compute)
        else:
            compute()

    enter(
        geometry,
        scopes_at(geometry, "compute"),
        refs,
        lambda refs: for_each_tile(geometry, operands.walk, functools.partial(in_turn, refs)),
    )
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)


def _multiply_steps(geometry: Geometry, refs: dict[str, Any], slot: jax.Array) -> jax.Array:
    """Sums one tile over k in the accumulator and returns it, `Geometry.acc_shape` of float32."""
    config = geometry.config
    accumulator = refs["accumulator"]
    lhs_ring, rhs_ring = refs["ring"]
    full, consumed = refs["barriers"]["full"], refs["barriers"]["consumed"]
    is_lhs_turned, is_rhs_turned = (letter == "t" for letter in geometry.problem.layout)
    wg = lax.axis_index(WG_AXIS)
    if config.scopes.acc_outside_loop and geometry.tiles_per_cta > 1:
        zeros = jnp.zeros(geometry.acc_shape, ACC_DTYPE)
        accumulator[...] = plgpu.layout_cast(zeros, plgpu.Layout.WGMMA)

    def give_back_slot(slot: jax.Array) -> None:
        plgpu.barrier_arrive(consumed.at[_barrier_of(geometry, wg, slot)])

    def multiply_step(step: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        slot, previous = carry
        plgpu.barrier_wait(full.at[_barrier_of(geometry, wg, slot)])
        for panel in range(geometry.k_panels):
            lhs = _own_part(geometry.lhs, lhs_ring.at[slot], wg, panel, geometry.k_panels)
            rhs = _own_part(geometry.rhs, rhs_ring.at[slot], wg, panel, geometry.k_panels)
            # Rows of the accumulator first: lhs and rhs, or with swapped roles rhs and lhs, both turned.
            lhs = _facing(is_lhs_turned != config.swap_ab, lhs)
            rhs = _facing(is_rhs_turned != config.swap_ab, rhs)
            plgpu.wgmma(accumulator, *((rhs, lhs) if config.swap_ab else (lhs, rhs)))
        plgpu.wgmma_wait(config.delay_release)
        if config.delay_release:
            pl.when(step > 0)(lambda: give_back_slot(previous))
        else:
            give_back_slot(slot)
        return _next_slot(slot, config.stages), slot

    _, last = lax.fori_loop(0, geometry.k_steps, multiply_step, (slot, slot))
    sums = accumulator[...]
    if config.delay_release:
        give_back_slot(last)
    return sums


def _own_part(matrix: Matrix, tile: Any, wg: jax.Array, panel: int, k_panels: int) -> Any:
    """Returns what a warpgroup reads of a tile for one panel of k: some or all of its rows and columns."""
    (rows, columns), (own_rows, own_columns) = matrix.tile, matrix.part
    whole = slice(None)
    row_index = pl.ds(wg * own_rows, own_rows) if own_rows < rows else whole
    column_index = pl.ds(wg * own_columns, own_columns) if own_columns < columns else whole
    if k_panels > 1 and matrix.k_is_columns:
        column_index = pl.ds(panel * columns // k_panels, columns // k_panels)
    elif k_panels > 1:
        row_index = pl.ds(panel * rows // k_panels, rows // k_panels)
    if matrix.is_viewed:
        tile = tile.at[panel if matrix.k_is_columns else wg if own_columns < columns else 0]
        column_index = whole
    # Not compared by value: two slices that begin at traced places have no truth.
    return tile if row_index is whole and column_index is whole else tile.at[row_index, column_index]


def _store_tile(
    geometry: Geometry, operands: Operands, tile: Tile, refs: dict[str, Any], sums: jax.Array
) -> None:
    """Rounds a warpgroup's sums once and stores them through SMEM, piece by piece, with TMA."""
    if geometry.exchanges_parts:
        send_parts(geometry, tile, refs, sums)
    else:
        sums = sums.astype(geometry.sums_dtype)
    if geometry.config.scopes.is_union:
        # The other warpgroups may still multiply from the bytes that this one is about to write.
        plgpu.barrier_arrive(refs["barriers"]["sums_read"])
        plgpu.barrier_wait(refs["barriers"]["sums_read"])
    for piece in range(geometry.pieces_m * geometry.pieces_n):
        store = functools.partial(_store_piece, geometry, operands, tile, refs, sums, piece)
        if geometry.exchanges_parts:
            pl.when(stores(geometry, piece))(store)
        else:
            store()
    if geometry.exchanges_parts:
        give_back(geometry, tile, refs)
    if geometry.config.scopes.shares_bytes:
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        if geometry.is_direct:
            plgpu.commit_smem()  # threads have read these bytes, and TMA is about to write them
    if geometry.config.scopes.is_union:
        plgpu.barrier_arrive(refs["barriers"]["stored"].at[0])


def _store_piece(
    geometry: Geometry, operands: Operands, tile: Tile, refs: dict[str, Any], sums: jax.Array, piece: int
) -> None:
    config = geometry.config
    wg = lax.axis_index(WG_AXIS)
    plane = tile.plane if geometry.planes > 1 else None
    first_row, first_column = _origin(geometry, tile)
    first_row += wg * geometry.wg_m if geometry.splits("m") else 0
    first_column += wg * geometry.wg_n if geometry.splits("n") else 0
    is_turned = config.swap_ab and not geometry.lies_turned  # on its way through SMEM
    turn = piece // geometry.exchanging_ctas  # among the pieces that this CTA stores
    place = (wg, turn % geometry.epilogue_slots)
    # Where stores are left out, how many are in flight is not known here; nor is it at a tile's start, since the tile
    # before may have ended in either slot.
    in_flight = 0 if geometry.has_pieces_outside or turn == 0 else geometry.epilogue_slots - 1
    plgpu.wait_smem_to_gmem(in_flight, wait_read_only=True)
    rows, columns = geometry.piece_at(piece)
    own = sums[geometry.piece_in_sums(piece)]
    if geometry.exchanges_parts:
        own = own_sums(geometry, refs, own, piece).astype(geometry.sums_dtype)
    _facing(is_turned, refs["epilogue"].at[place])[...] = own
    plgpu.commit_smem()
    out_rows = pl.ds(first_row + rows.start, config.epi_m)
    out_columns = pl.ds(first_column + columns.start, config.epi_n)
    target = operands.out.at[_in_plane(plane, *_turned(geometry.lies_turned, out_rows, out_columns))]
    if geometry.is_direct:
        copy = functools.partial(_store_directly, geometry, refs["epilogue"].at[place], target)
        is_inside = (tile.m_index < geometry.tiles_m) & (tile.n_index < geometry.tiles_n)
    else:
        copy = functools.partial(plgpu.copy_smem_to_gmem, refs["epilogue_view"].at[place], target)
        is_inside = (out_rows.start < geometry.problem.m) & (out_columns.start < geometry.problem.n)
    if geometry.has_pieces_outside:
        pl.when(is_inside)(copy)
    else:
        copy()


def _store_directly(geometry: Geometry, staged: Any, target: Any) -> None:
    """Stores a staged piece by threads: a warp stores neighbouring elements of a row at once."""
    piece = plgpu.load(staged, layout=lanes_layout(geometry.store_vector), optimized=False)
    store_narrow(target, piece)
