"""The walk of a CTA over its tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from hopper_matmul.geometry import Geometry

CLUSTER_GRID_AXIS = "clusters"
PARTS_AXIS = "parts"
CLUSTER_AXES = ("cluster_m", "cluster_n", PARTS_AXIS)


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


def for_each_tile(geometry: Geometry, visit: Callable[[Tile], Any]) -> None:
    """Calls `visit` for each tile of this CTA."""
    config = geometry.config
    first = lax.axis_index(CLUSTER_GRID_AXIS)

    def one(local: jax.Array, slot: jax.Array) -> jax.Array:
        index, plane = first + local * geometry.grid_clusters, 0
        if geometry.planes > 1:
            a_plane = geometry.cluster_tiles_m * geometry.cluster_tiles_n
            index, plane = lax.rem(index, a_plane), lax.div(index, a_plane)
        m_index, n_index = plgpu.planar_snake(
            index,
            (geometry.cluster_tiles_m, geometry.cluster_tiles_n),
            0 if config.grid_minor == "m" else 1,
            config.raster_width,
        )
        if geometry.cluster_size > 1:
            m_index = m_index * config.cluster_m + lax.axis_index("cluster_m")
            n_index = n_index * config.cluster_n + lax.axis_index("cluster_n")
        visit(Tile(local=local, slot=slot, plane=plane, m_index=m_index, n_index=n_index))
        return lax.rem(slot + geometry.k_steps, config.stages)

    slot = jnp.int32(0)
    if geometry.tiles_per_cta == 1:
        one(jnp.int32(0), slot)
        return
    lax.fori_loop(0, tile_count(geometry), one, slot)


def tile_count(geometry: Geometry) -> jax.Array:
    """Returns how many tiles this CTA walks: the last ones may have one tile fewer."""
    left = geometry.cluster_tiles - lax.axis_index(CLUSTER_GRID_AXIS)
    return lax.div(left + geometry.grid_clusters - 1, geometry.grid_clusters)
