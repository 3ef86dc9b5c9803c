"""Rows that do not fill 16 bytes, copied by a kernel of its own: right when interpreted, and lowered where taken."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from hopper_matmul import widen
from hopper_matmul.config import Config
from hopper_matmul.hardware import KNOWN
from hopper_matmul.kernel import build
from hopper_matmul.problem import Problem
from hopper_matmul.reference import operand_types

INTERPRET = plgpu.InterpretGPUParams(detect_races=False)


def matrix(*shape):
    return jax.random.normal(jax.random.key(0), shape, jnp.bfloat16)


@pytest.mark.parametrize(
    ("shape", "columns"),
    # 1, 2 and 4 elements are aligned in any row; rows and columns end inside of a block; a batch
    [((300, 333), 64), ((300, 514), 128), ((300, 516), 128), ((3, 100, 333), 96)],
)
def test_tiles_lie_side_by_side_and_the_last_one_ends_where_the_rows_do(shape, columns):
    given = matrix(*shape)
    whole = (-(-shape[-1] // columns) - 1) * columns
    wanted = np.concatenate([given[..., :whole], given[..., shape[-1] - columns :]], axis=-1)
    found = jax.jit(lambda one: widen.in_whole_tiles(one, columns, interpret=INTERPRET))(given)
    assert (np.asarray(found) == wanted).all()


@pytest.mark.parametrize(("shape", "width"), [((300, 333), 336), ((300, 514), 576), ((2, 100, 516), 520)])
def test_rows_are_filled_behind_what_they_hold(shape, width):
    given = matrix(*shape)
    found = np.asarray(jax.jit(lambda one: widen.filled(one, width, interpret=INTERPRET))(given))
    assert found.shape == (*shape[:-1], width)
    assert (found[..., : shape[-1]] == np.asarray(given)).all()


def test_what_the_kernel_copies_no_faster_is_left_to_xla():
    assert widen.can_widen((4096, 4097), 2, 128)
    assert not widen.can_widen((1024, 4097), 2, 128)  # 8.4 MB
    assert not widen.can_widen((4096, 4097), 2, 80)  # 32 lanes have no equal shares
    assert not widen.can_widen((65536, 300), 2, 320)  # wider than the matrix
    assert widen.can_fill((4096, 4100), 2)
    assert not widen.can_fill((65536, 300), 2)  # three blocks of 128 copy a quarter of it twice
    assert not widen.can_fill((200_000, 100), 2)  # narrower than a block


@pytest.mark.parametrize(
    ("sizes", "knobs"),
    [
        ({"m": 256, "n": 4097, "k": 4096}, {"edges": "direct", "tile_n": 128}),
        ({"m": 256, "n": 4097, "k": 4096}, {"edges": "pad"}),
        ({"batch": 3, "m": 256, "n": 4100, "k": 1024}, {"edges": "pad"}),
    ],
    ids=str,
)
def test_a_large_rhs_is_copied_by_the_kernel(sizes, knobs):
    problem = Problem(**sizes)
    product = build(problem, Config.from_knobs({"compute_wgs": 2} | knobs), KNOWN["nvidia_h200"])
    jaxpr = str(jax.make_jaxpr(product)(*operand_types(problem)))
    assert "hopper_widen" in jaxpr
    assert " pad[" not in jaxpr
    jax.jit(product).trace(*operand_types(problem)).lower(lowering_platforms=("cuda",))


@pytest.mark.parametrize(
    "sizes",
    # small; rows behind k to be filled as well, which XLA does in the same go
    [{"m": 256, "n": 1111, "k": 1024}, {"m": 256, "n": 4097, "k": 4097}],
    ids=str,
)
def test_other_rhs_are_copied_by_xla_at_once(sizes):
    problem = Problem(**sizes)
    product = build(problem, Config.from_knobs({"edges": "direct", "compute_wgs": 2}), KNOWN["nvidia_h200"])
    assert "hopper_widen" not in str(jax.make_jaxpr(product)(*operand_types(problem)))


def test_rows_that_fill_16_bytes_are_left_to_xla():
    problem = Problem(m=256, n=4104, k=4096)  # padded to whole swizzles, 4160
    product = build(problem, Config.from_knobs({"edges": "pad"}), KNOWN["nvidia_h200"])
    assert "hopper_widen" not in str(jax.make_jaxpr(product)(*operand_types(problem)))
