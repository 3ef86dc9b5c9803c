"""Leading dimensions of operands: what the kernel is given, what the caller gets back, and what is refused."""

import jax
import numpy as np
import pytest

from hopper_matmul.config import Config
from hopper_matmul.hardware import device_named
from hopper_matmul.kernel import build
from hopper_matmul.leading import flattened
from hopper_matmul.problem import Problem


def product(fields, lhs, rhs):
    """Returns the shapes that the kernel is given, and that of the result."""
    problem = Problem.from_fields({"m": 4, "n": 8, "k": 16} | fields)
    lhs, rhs, out = flattened(problem, np.zeros(lhs), np.zeros(rhs))
    return lhs.shape, rhs.shape, out


@pytest.mark.parametrize(
    ("fields", "lhs", "rhs", "expected"),
    [
        ({}, (4, 16), (16, 8), ((4, 16), (16, 8), (4, 8))),
        # rows of one product, whatever they are called
        ({}, (2, 2, 16), (16, 8), ((4, 16), (16, 8), (2, 2, 8))),
        ({"layout": "nt"}, (4, 1, 1, 16), (8, 16), ((4, 16), (8, 16), (4, 1, 1, 8))),
        ({"batch": 3, "broadcast": "rhs"}, (3, 4, 16), (16, 8), ((12, 16), (16, 8), (3, 4, 8))),
        ({"batch": 6}, (2, 3, 4, 16), (2, 3, 16, 8), ((6, 4, 16), (6, 16, 8), (2, 3, 4, 8))),
        ({"batch": 6, "broadcast": "lhs"}, (4, 16), (2, 3, 16, 8), ((4, 16), (6, 16, 8), (2, 3, 4, 8))),
        ({"batch": 6, "broadcast": "lhs"}, (1, 4, 16), (6, 16, 8), ((4, 16), (6, 16, 8), (6, 4, 8))),
        (
            {"batch": 6, "broadcast": "rhs", "layout": "tt"},
            *((3, 2, 16, 4), (8, 16)),
            ((6, 16, 4), (8, 16), (3, 2, 4, 8)),
        ),
    ],
)
def test_leading_dimensions_are_one_for_the_kernel_and_come_back(fields, lhs, rhs, expected):
    assert product(fields, lhs, rhs) == expected


@pytest.mark.parametrize(
    ("fields", "lhs", "rhs"),
    [
        ({}, (16, 4), (16, 8)),
        ({}, (2, 2, 16), (2, 16, 8)),
        ({"layout": "tn"}, (16, 2, 2), (16, 8)),
        ({"batch": 6}, (2, 3, 4, 16), (6, 16, 8)),
        ({"batch": 6}, (6, 1, 4, 16), (1, 6, 16, 8)),
        ({"batch": 6}, (6, 4, 16), (16, 8)),
        ({"batch": 6, "broadcast": "lhs"}, (6, 4, 16), (6, 16, 8)),
        ({"batch": 6, "broadcast": "lhs"}, (4, 16), (5, 16, 8)),
        ({}, (64,), (16, 8)),
    ],
)
def test_operands_of_another_problem_are_refused_in_one_line(fields, lhs, rhs):
    with pytest.raises(ValueError, match=r"operands of .*: allowed for ") as caught:
        product(fields, lhs, rhs)
    assert "\n" not in str(caught.value)


def test_the_refusal_names_both_shapes_and_what_is_allowed():
    with pytest.raises(ValueError, match="operands of") as caught:
        product({"batch": 6, "broadcast": "lhs"}, (6, 4, 16), (6, 16, 8))
    assert str(caught.value).startswith(
        "operands of (6, 4, 16) and (6, 16, 8): allowed for 6x4x8x16 bfloat16 nn one lhs: (4, 16) and (6, 16, 8), "
    )


def test_the_built_function_takes_and_returns_leading_dimensions():
    problem = Problem.from_fields({"batch": 6, "m": 64, "n": 128, "k": 128, "broadcast": "lhs"})
    function = build(problem, Config(), device_named("NVIDIA H200"))
    lhs = jax.ShapeDtypeStruct((64, 128), "bfloat16")
    rhs = jax.ShapeDtypeStruct((2, 3, 128, 128), "bfloat16")
    assert jax.eval_shape(function, lhs, rhs).shape == (2, 3, 64, 128)
