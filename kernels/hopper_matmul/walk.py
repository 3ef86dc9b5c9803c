"""The walk of a CTA over its tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from hopper_matmul.geometry import Geometry

CLUSTER_GRID_AXIS = "clusters"
CLUSTER_AXES = ("cluster_m", "cluster_n")


def for_each_tile(
    geometry: Geometry, tile: Callable[[jax.Array, jax.Array, jax.Array, jax.Array], Any]
) -> None:
    """Calls `tile(local, slot, m_index, n_index)` for each tile of this CTA; `slot` is its first ring slot."""
    config = geometry.config
    first = lax.axis_index(CLUSTER_GRID_AXIS)

    def one(local: jax.Array, slot: jax.Array) -> jax.Array:
        m_index, n_index = plgpu.planar_snake(
            first + local * geometry.grid_clusters,
            (geometry.cluster_tiles_m, geometry.cluster_tiles_n),
            0 if config.grid_minor == "m" else 1,
            config.raster_width,
        )
        if geometry.cluster_size > 1:
            m_index = m_index * config.cluster_m + lax.axis_index("cluster_m")
            n_index = n_index * config.cluster_n + lax.axis_index("cluster_n")
        tile(local, slot, m_index, n_index)
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
