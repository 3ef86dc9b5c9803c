"""Operands, the reference that results are held against, and XLA's own product, the rival. Imports jax."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from hopper_matmul.problem import Problem

_CONTRACTION = {"n": {"lhs": 1, "rhs": 0}, "t": {"lhs": 0, "rhs": 1}}


def operand_types(problem: Problem) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Returns shape and dtype of lhs and rhs, as they are stored in the problem's layout."""
    lhs = (problem.m, problem.k) if problem.layout[0] == "n" else (problem.k, problem.m)
    rhs = (problem.k, problem.n) if problem.layout[1] == "n" else (problem.n, problem.k)
    return jax.ShapeDtypeStruct(lhs, problem.lhs_dtype), jax.ShapeDtypeStruct(rhs, problem.rhs_dtype)


def operands(problem: Problem, seed: int) -> tuple[jax.Array, jax.Array]:
    """Returns lhs and rhs of independent standard normal values, made on the default device.

    Normal values, since zeros draw less power: a bfloat16 product of zeros ran 13% faster on an H200 (2026-10).
    """
    keys = jax.random.split(jax.random.key(seed), 2)
    return tuple(
        jax.random.normal(key, operand.shape, operand.dtype)
        for key, operand in zip(keys, operand_types(problem), strict=True)
    )


def _product(problem: Problem, out_dtype: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    lhs_dimension = _CONTRACTION[problem.layout[0]]["lhs"]
    rhs_dimension = _CONTRACTION[problem.layout[1]]["rhs"]
    dimensions = (((lhs_dimension,), (rhs_dimension,)), ((), ()))

    def product(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return lax.dot_general(lhs, rhs, dimensions, preferred_element_type=jnp.dtype(out_dtype))

    return product


def rival(problem: Problem) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Returns what a user would write without this package: one dot_general that asks for the output's dtype.

    Asking for float32 and converting afterwards would add a kernel, which is no fair rival.
    """
    return _product(problem, problem.out_dtype)


def reference(problem: Problem) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Returns the product with float32 sums, not rounded: (m, n) of float32."""
    return _product(problem, "float32")


# The rounding step of a dtype is 2^-8 (bfloat16), 2^-11 (float16) or 2^-24; rounding once to nearest leaves a
# relative Frobenius error of about 0.4 of half of it. Twice the half step leaves room for the order of the sums.
_HALF_STEP = {"bfloat16": 2.0**-9, "float16": 2.0**-12, "float32": 2.0**-25}
_SUM_ERROR = 2.0**-20  # float32 sums of up to 2^20 products in another order, measured 1e-7 to 5e-7


def tolerance(problem: Problem) -> float:
    """Returns the largest ||out - reference|| / ||reference|| that a right result can have."""
    return 2 * _HALF_STEP[problem.out_dtype] + _SUM_ERROR
