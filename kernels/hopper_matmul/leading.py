"""The leading dimensions of a product's operands: what the caller has of them, as the kernel takes them."""

from __future__ import annotations

import math

import jax
import numpy as np

from hopper_matmul.problem import Problem

Shape = tuple[int, ...]


def flattened(problem: Problem, lhs: jax.Array, rhs: jax.Array) -> tuple[jax.Array, jax.Array, Shape]:
    """Returns both operands with one batch dimension or none, and the shape of the result that the caller expects.

    Args:
        problem: Its `batch` is the product of all leading dimensions. Without a batch a row-major lhs may have any,
            whose rows are `m` in all.
        lhs, rhs: (..., m, k) and (..., k, n) as the problem's layout stores them; leading dimensions as in jnp.matmul.

    Raises:
        ValueError: The operands are not those of the problem.
    """
    lhs_matrix, rhs_matrix = stored_shapes(problem)
    rows = problem.m
    if problem.batch == 1 and problem.layout[0] == "n" and lhs.ndim > 2:
        rows = lhs.shape[-2]
        is_lhs = lhs.shape[-1] == problem.k and math.prod(lhs.shape[:-1]) == problem.m
    else:
        is_lhs = _is_stack(lhs.shape, problem.lhs_batch, lhs_matrix)
    if not is_lhs or not _is_stack(rhs.shape, problem.rhs_batch, rhs_matrix):
        raise _refused(problem, lhs.shape, rhs.shape)
    try:
        leading = np.broadcast_shapes(lhs.shape[:-2], rhs.shape[:-2])
    except ValueError:
        raise _refused(problem, lhs.shape, rhs.shape) from None
    if math.prod(leading) * rows != problem.batch * problem.m:
        raise _refused(problem, lhs.shape, rhs.shape)
    return (
        _reshaped(lhs, problem.lhs_batch, lhs_matrix),
        _reshaped(rhs, problem.rhs_batch, rhs_matrix),
        (*leading, rows, problem.n),
    )


def stored_shapes(problem: Problem) -> tuple[Shape, Shape]:
    """Returns the shapes of one lhs and of one rhs as the problem's layout stores them."""
    lhs, rhs = (problem.m, problem.k), (problem.k, problem.n)
    return lhs if problem.layout[0] == "n" else lhs[::-1], rhs if problem.layout[1] == "n" else rhs[::-1]


def _is_stack(shape: Shape, batch: int, matrix: Shape) -> bool:
    return shape[-2:] == matrix and math.prod(shape[:-2]) == batch


def _reshaped(operand: jax.Array, batch: int, matrix: Shape) -> jax.Array:
    """Returns the operand in that shape; itself where it has it, so that the traced function is the same."""
    wanted = (batch, *matrix) if batch > 1 else matrix
    return operand if operand.shape == wanted else operand.reshape(wanted)


def _refused(problem: Problem, lhs: Shape, rhs: Shape) -> ValueError:
    matrices = stored_shapes(problem)
    batches = (problem.lhs_batch, problem.rhs_batch)
    wanted = [
        str((batch, *matrix) if batch > 1 else matrix)
        for batch, matrix in zip(batches, matrices, strict=True)
    ]
    return ValueError(
        f"operands of {lhs} and {rhs}: allowed for {problem.describe()}: {wanted[0]} and {wanted[1]}, where leading "
        "dimensions may be split, and those of a row-major lhs taken from its rows"
    )
