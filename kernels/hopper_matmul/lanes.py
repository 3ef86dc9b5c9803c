"""Rows in device memory as the threads of a warp load and store them, a few neighbouring elements each."""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental.mosaic.gpu.fragmented_array import Tiling
from jax.experimental.pallas import mosaic_gpu as plgpu

from hopper_matmul.direct import LANES

WARPS = 4  # of a warpgroup, each with rows of its own


def lanes_layout(vector: int) -> Any:
    """Returns the layout in which a warp has a row's neighbours, `vector` of them in each thread."""
    tiles = Tiling(((WARPS, LANES * vector), (vector,)))
    return plgpu.Layout.TILED(tiles, warp_dims=(-3,), lane_dims=(-2,), vector_dim=-1)


def store_narrow(target: Any, values: jax.Array) -> None:
    """Stores values from `lanes_layout` to device memory, a vector a thread at a time."""
    if hasattr(plgpu, "store"):  # since jax 0.12, which would else refuse what is so narrow
        plgpu.store(target, values, optimized=False)
    else:
        target[...] = values
