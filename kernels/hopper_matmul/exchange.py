"""How the CTAs of a cluster add their parts of k: each piece of a tile has one CTA that the others send theirs to.

No CTA waits for ever. A warpgroup speaks with the warpgroups of its own number in the other CTAs, which walk the same
tiles, since the walk is over clusters. In a tile it sends what it does not store before it waits for what it stores,
so that what anyone waits for has been sent, or will be without waiting for this tile. Before it sends for the next
tile it waits until all have taken what was sent for this one; all of them say so once a tile, but for the last, also
those that store nothing. So no CTA ends before all that is sent to it, sums and arrivals, has come.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from hopper_matmul.allocation import WG_AXIS
from hopper_matmul.geometry import Geometry
from hopper_matmul.walk import PARTS_AXIS, Tile, tile_count


def _owner(geometry: Geometry, piece: int) -> int:
    """Returns the part whose CTA stores a piece."""
    return piece % geometry.exchanging_ctas


def stores(geometry: Geometry, piece: int) -> jax.Array:
    """Returns whether this CTA stores a piece."""
    return lax.axis_index(PARTS_AXIS) == _owner(geometry, piece)


def _received(geometry: Geometry, refs: dict[str, Any], piece: int) -> tuple[Any, Any]:
    """Returns where the other parts of a piece come to in the CTA that stores it, and the barrier that counts them."""
    wg, place = lax.axis_index(WG_AXIS), piece // geometry.exchanging_ctas
    barrier = refs["barriers"]["received"].at[wg * geometry.received_pieces + place]
    return refs["exchange"].at[wg, place], barrier


def send_parts(geometry: Geometry, tile: Tile, refs: dict[str, Any], sums: jax.Array) -> None:
    """Sends the pieces of a warpgroup's sums, `Geometry.acc_shape` of float32, that other CTAs store."""
    _await_room(geometry, tile, refs)
    part = lax.axis_index(PARTS_AXIS)
    for piece in range(geometry.pieces_m * geometry.pieces_n):
        owner = _owner(geometry, piece)

        def send(piece: int = piece, owner: int = owner) -> None:
            places, barrier = _received(geometry, refs, piece)
            plgpu.async_store_smem(
                sums[geometry.piece_in_sums(piece)],
                places.at[part - (part > owner)],  # the owner's own part takes no place
                barrier,
                cluster_idx=owner,
                cluster_dim=PARTS_AXIS,
            )

        pl.when(part != owner)(send)


def _await_room(geometry: Geometry, tile: Tile, refs: dict[str, Any]) -> None:
    """Waits until all CTAs have read what was sent to them for the tile before."""
    if geometry.tiles_per_cta > 1:
        taken = refs["barriers"]["taken"].at[lax.axis_index(WG_AXIS)]
        pl.when(tile.local > 0)(lambda: plgpu.barrier_wait(taken))


def own_sums(geometry: Geometry, refs: dict[str, Any], sums: jax.Array, piece: int) -> jax.Array:
    """Returns the sums of all parts of a piece, added in their order, in the CTA that stores it.

    Args:
        geometry: The kernel's sizes.
        refs: Its buffers.
        sums: Of the CTA's own part, `Geometry.piece_in_acc` of float32.
        piece: Which one.
    """
    owner = _owner(geometry, piece)
    places, barrier = _received(geometry, refs, piece)
    plgpu.barrier_wait(barrier)
    total = None
    for part in range(geometry.exchanging_ctas):
        one = sums if part == owner else places.at[part - (part > owner)][...]
        total = one if total is None else total + one
    return total


def give_back(geometry: Geometry, tile: Tile, refs: dict[str, Any]) -> None:
    """Tells the other CTAs that what they sent was read, unless this was the last tile, after which none sends.

    The stores to SMEM of what was read have ended for all threads of the warpgroup, and the reads with them.
    """
    if geometry.tiles_per_cta > 1:
        taken = refs["barriers"]["taken"].at[lax.axis_index(WG_AXIS)]
        pl.when(tile.local + 1 < tile_count(geometry))(lambda: plgpu.barrier_arrive(taken))
