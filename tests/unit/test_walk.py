"""The order of tiles as a table: the one that is compiled in, entry by entry."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from autotune.evaluate.digest import module_digest
from hopper_matmul.config import Config
from hopper_matmul.geometry import Geometry
from hopper_matmul.hardware import KNOWN
from hopper_matmul.kernel import build
from hopper_matmul.problem import Problem
from hopper_matmul.reference import operand_types
from hopper_matmul.walk import tile_table

H200 = KNOWN["nvidia_h200"]


def geometry(tiles_m: int, tiles_n: int, **knobs) -> Geometry:
    """A product of so many tiles of 128 by 128."""
    problem = Problem.from_fields({"m": 128 * tiles_m, "n": 128 * tiles_n, "k": 256})
    return Geometry(problem=problem, config=Config.from_knobs(knobs), device=H200)


def test_a_table_by_hand():
    # 3 by 4 tiles in bands of two rows: along m first, the last band of one row walked backwards
    table = tile_table(geometry(3, 4, grid_minor="m", raster_width=2)).reshape(-1, 2).tolist()
    assert table[:8] == [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2], [0, 3], [1, 3]]
    assert table[8:] == [[2, 3], [2, 2], [2, 1], [2, 0]]


@pytest.mark.parametrize("minor", ["m", "n"])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 8, 16, 100])
def test_the_table_is_the_order_that_is_compiled_in(minor, width):
    for tiles_m, tiles_n in [(1, 1), (1, 9), (7, 1), (3, 5), (8, 8), (16, 12), (17, 33), (5, 64)]:
        one = geometry(tiles_m, tiles_n, grid_minor=minor, raster_width=width)
        index = jnp.arange(tiles_m * tiles_n, dtype=jnp.int32)
        snake = functools.partial(
            plgpu.planar_snake,
            shape=(tiles_m, tiles_n),
            minor_dim=0 if minor == "m" else 1,
            tile_width=width,
        )
        compiled_in = jax.vmap(snake)(index)
        table = tile_table(one)
        assert table.dtype == np.int32 and table.shape == (2 * tiles_m * tiles_n,)
        assert np.array_equal(table.reshape(-1, 2), np.stack(compiled_in, axis=1))


def test_clusters_are_walked_and_not_their_ctas():
    assert tile_table(geometry(8, 6, cluster_m=2, cluster_n=2)).shape == (2 * 4 * 3,)


@pytest.mark.parametrize("knobs", [{}, {"persistent": False, "cluster_n": 2}, {"split_k": 2}], ids=str)
def test_configurations_that_differ_in_their_order_alone_share_a_module(knobs):
    problem = Problem.from_fields({"m": 4096, "n": 4096, "k": 1024})
    digests = set()
    for minor, width in itertools.product(("m", "n"), (1, 16)):
        config = dataclasses.replace(Config.from_knobs(knobs), grid_minor=minor, raster_width=width)
        table = tile_table(Geometry(problem=problem, config=config, device=H200))
        types = (*operand_types(problem), jax.ShapeDtypeStruct(table.shape, table.dtype))
        traced = jax.jit(build(problem, config, H200, by_table=True)).trace(*types)
        digests.add(module_digest(traced.lower(lowering_platforms=("cuda",))))
    assert len(digests) == 1
