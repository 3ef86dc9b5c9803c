"""The walk of a CTA over its tiles, in an order that is compiled in or read from a table in device memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from hopper_matmul.geometry import Geometry

CLUSTER_GRID_AXIS = "clusters"
PARTS_AXIS = "parts"
CLUSTER_AXES = ("cluster_m", "cluster_n", PARTS_AXIS)

Place = tuple[jax.Array, jax.Array]


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One tile of a CTA; all values are traced.

    Attributes:
        local: How many tiles this CTA has walked before.
        slot: Its first slot in the ring.
        plane: Which of the kernel's products it belongs to, see `Geometry.planes`.
        m_index, n_index: Its place in that product, in tiles.
    """

    local: jax.Array
    slot: jax.Array
    plane: jax.Array | int
    m_index: jax.Array
    n_index: jax.Array


@dataclass(frozen=True, kw_only=True)
class Walk:
    """The order in which a kernel's cluster tiles are walked.

    Attributes:
        table: Ref of what `tile_table` returns; None where `grid_minor` and `raster_width` are compiled in.
        first: This CTA's first place in the table, read before the roles part: device memory answers while they
            start. None without a table.
    """

    table: Any = None
    first: Place | None = None

    def place(self, geometry: Geometry, index: jax.Array) -> Place:
        """Returns where in a product its cluster tile `index` of the walk lies, in cluster tiles along m and n."""
        if self.table is not None:
            return self.table[2 * index], self.table[2 * index + 1]
        config = geometry.config
        return plgpu.planar_snake(
            index,
            (geometry.cluster_tiles_m, geometry.cluster_tiles_n),
            0 if config.grid_minor == "m" else 1,
            config.raster_width,
        )


def walk_by(geometry: Geometry, table: Any) -> Walk:
    """Returns the walk by a table's ref, or without one (None) that of the configuration."""
    if table is None:
        return Walk()
    index, _ = _split(geometry, lax.axis_index(CLUSTER_GRID_AXIS))
    return Walk(table=table, first=Walk(table=table).place(geometry, index))


def tile_table(geometry: Geometry) -> np.ndarray:
    """Returns the walk of a configuration as a table, (2 * cluster tiles of one product,) of int32.

    Entries 2 * i and 2 * i + 1 are where cluster tile i of the walk lies along m and along n, as
    `plgpu.planar_snake` has it: bands of `raster_width` along `grid_minor`, every other one walked backwards.
    """
    along_m = geometry.config.grid_minor == "m"
    sizes = (geometry.cluster_tiles_m, geometry.cluster_tiles_n)
    minor_size, major_size = sizes if along_m else sizes[::-1]
    width = geometry.config.raster_width
    index = np.arange(minor_size * major_size, dtype=np.int64)
    band, inside = np.divmod(index, width * major_size)
    major, minor = np.divmod(inside, np.minimum(width, minor_size - band * width))
    minor += band * width
    major = np.where(band % 2 == 0, major, major_size - 1 - major)
    return np.stack([minor, major] if along_m else [major, minor], axis=1).astype(np.int32).reshape(-1)


def for_each_tile(geometry: Geometry, walk: Walk, visit: Callable[[Tile], Any]) -> None:
    """Calls `visit` for each tile of this CTA."""
    config = geometry.config
    first = lax.axis_index(CLUSTER_GRID_AXIS)

    def one(local: jax.Array, slot: jax.Array, found: Place | None) -> jax.Array:
        index, plane = _split(geometry, first + local * geometry.grid_clusters)
        m_index, n_index = walk.place(geometry, index) if found is None else found
        if geometry.cluster_size > 1:
            m_index = m_index * config.cluster_m + lax.axis_index("cluster_m")
            n_index = n_index * config.cluster_n + lax.axis_index("cluster_n")
        visit(Tile(local=local, slot=slot, plane=plane, m_index=m_index, n_index=n_index))
        return lax.rem(slot + geometry.k_steps, config.stages)

    slot = jnp.int32(0)
    if geometry.tiles_per_cta == 1:
        one(jnp.int32(0), slot, walk.first)
        return
    if walk.table is None:
        lax.fori_loop(0, tile_count(geometry), lambda local, slot: one(local, slot, None), slot)
        return

    def and_look_ahead(local: jax.Array, carry: tuple[jax.Array, Place]) -> tuple[jax.Array, Place]:
        slot, found = carry
        # The next tile is looked up while this one is worked on; beyond the last one, the last one is.
        following = lax.min(first + (local + 1) * geometry.grid_clusters, geometry.cluster_tiles - 1)
        next_found = walk.place(geometry, _split(geometry, following)[0])
        return one(local, slot, found), next_found

    lax.fori_loop(0, tile_count(geometry), and_look_ahead, (slot, walk.first))


def _split(geometry: Geometry, index: jax.Array) -> tuple[jax.Array, jax.Array | int]:
    """Returns the place in its product's walk, and the plane, of a cluster tile of the kernel."""
    if geometry.planes == 1:
        return index, 0
    a_plane = geometry.cluster_tiles_m * geometry.cluster_tiles_n
    return lax.rem(index, a_plane), lax.div(index, a_plane)


def tile_count(geometry: Geometry) -> jax.Array:
    """Returns how many tiles this CTA walks: the last ones may have one tile fewer."""
    left = geometry.cluster_tiles - lax.axis_index(CLUSTER_GRID_AXIS)
    return lax.div(left + geometry.grid_clusters - 1, geometry.grid_clusters)
