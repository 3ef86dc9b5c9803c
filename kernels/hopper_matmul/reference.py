"""Operands, the reference that results are held against, and XLA's own product, the rival. Imports jax."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from hopper_matmul.leading import stored_shapes
from hopper_matmul.problem import FieldError, Problem


def _contracted(problem: Problem) -> tuple[int, int]:
    """Returns the axis of k in lhs and in rhs."""
    return (
        (problem.lhs_batch > 1) + (problem.layout[0] == "n"),
        (problem.rhs_batch > 1) + (problem.layout[1] == "t"),
    )


def operand_types(problem: Problem) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Returns shape and dtype of lhs and rhs, as they are stored in the problem's layout, after the batch if any."""
    stacks = zip(
        (problem.lhs_batch, problem.rhs_batch),
        stored_shapes(problem),
        (problem.lhs_dtype, problem.rhs_dtype),
        strict=True,
    )
    return tuple(
        jax.ShapeDtypeStruct((batch, *matrix) if batch > 1 else matrix, dtype)
        for batch, matrix, dtype in stacks
    )


def operands(problem: Problem, seed: int) -> tuple[jax.Array, jax.Array]:
    """Returns lhs and rhs of independent standard normal values, made on the default device.

    Normal values, since zeros draw less power: a bfloat16 product of zeros ran 13% faster on an H200 (2026-10).
    """
    keys = jax.random.split(jax.random.key(seed), 2)
    return tuple(
        jax.random.normal(key, operand.shape, operand.dtype)
        for key, operand in zip(keys, operand_types(problem), strict=True)
    )


def exact_operands(problem: Problem, seed: int) -> tuple[jax.Array, jax.Array] | None:
    """Returns operands of whole numbers from -2 to 2, whose product is exact in every order of float32 sums.

    Held against each other by bits, two results on them differ where a single element is wrong, which the error of
    a whole matrix hides. None where such sums can pass 2^24, or where something follows them that rounds.
    """
    if problem.epilogue != "none" or problem.scales != "none" or 4 * problem.k > 2**24:
        return None
    keys = jax.random.split(jax.random.key(seed), 2)
    return tuple(
        jax.random.randint(key, operand.shape, -2, 3, jnp.int8).astype(operand.dtype)
        for key, operand in zip(keys, operand_types(problem), strict=True)
    )


def _product(problem: Problem, out_dtype: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Returns the product as jnp.matmul traces it, but in the problem's layout."""
    lhs_axis, rhs_axis = _contracted(problem)
    batch = (0,) if problem.batch > 1 and problem.broadcast == "none" else ()
    dimensions = (((lhs_axis,), (rhs_axis,)), (batch, batch))

    def product(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        out = lax.dot_general(lhs, rhs, dimensions, preferred_element_type=jnp.dtype(out_dtype))
        return out.swapaxes(0, 1) if problem.broadcast == "lhs" else out  # from (m, batch, n)

    return product


def rival(problem: Problem) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Returns what a user would write without this package: one dot_general that asks for the output's dtype.

    Asking for float32 and converting afterwards would add a kernel, which is no fair rival.
    """
    return _product(problem, problem.out_dtype)


def rivals(problem: Problem) -> dict[str, tuple[Callable[..., jax.Array], dict[str, bool]]]:
    """Returns what an expert would try with XLA: functions of lhs and rhs with XLA's own options, plain first.

    A float32 product that is converted afterwards is not among them: it adds a kernel. Where the output is float32,
    plain is that product already.

    Raises:
        FieldError: A grouped or scaled problem, or one with an epilogue.
    """
    for key, only in (("groups", 1), ("scales", "none"), ("epilogue", "none")):
        if getattr(problem, key) != only:
            raise FieldError(key, getattr(problem, key), f"{only}, since XLA's rival is one plain product")
    plain = rival(problem)
    found: dict[str, tuple[Callable[..., jax.Array], dict[str, bool]]] = {"plain": (plain, {})}
    if any(size % _PADDED_TO for size in (problem.m, problem.n, problem.k)):
        found["padded"] = (_padded(problem, plain), {})
    if problem.broadcast != "none":
        found["repeated"] = (_repeated(problem), {})
    if problem.lhs_dtype.startswith("float8"):
        # XLA's rewriter finds the fp8 product behind the conversions, in layouts that it refuses as written.
        found["widened"] = (lambda lhs, rhs: plain(lhs.astype(jnp.bfloat16), rhs.astype(jnp.bfloat16)), {})
    found["cublaslt"] = (plain, {"xla_gpu_enable_cublaslt": True, "xla_gpu_enable_triton_gemm": False})
    found["exhaustive"] = (plain, {"xla_gpu_exhaustive_tiling_search": True})
    return found


def _repeated(problem: Problem) -> Callable[..., jax.Array]:
    """Returns the batched product of the operand that all share, repeated for each: it leaves nothing to turn."""
    batched = _product(dataclasses.replace(problem, broadcast="none"), problem.out_dtype)

    def repeated(*operands: jax.Array) -> jax.Array:
        return batched(
            *(
                operand if operand.ndim == 3 else jnp.broadcast_to(operand, (problem.batch, *operand.shape))
                for operand in operands
            )
        )

    return repeated


_PADDED_TO = 8


def _padded(problem: Problem, product: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Returns the product of operands padded with zeros to multiples of 8, cut back to its size."""

    def padded(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        lhs, rhs = (
            jnp.pad(
                operand,
                [(0, 0)] * (operand.ndim - 2) + [(0, -size % _PADDED_TO) for size in operand.shape[-2:]],
            )
            for operand in (lhs, rhs)
        )
        return product(lhs, rhs)[..., : problem.m, : problem.n]

    return padded


def reference(problem: Problem) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Returns the product, not rounded: (m, n) of float32, after the batch where there is one.

    Sums of more than `_LONG_K` products are taken apart: those of each chunk in float32, the chunks' in pairs of
    float32, which hold as much as a float64. The error then no longer grows with k.
    """
    if problem.k <= _LONG_K:
        return _product(problem, "float32")
    product = _product(problem, "float32")
    lhs_axis, rhs_axis = _contracted(problem)
    whole_chunks = problem.k // _CHUNK_K

    def chunk(lhs: jax.Array, rhs: jax.Array, start: jax.Array | int, size: int) -> jax.Array:
        return product(
            lax.dynamic_slice_in_dim(lhs, start, size, lhs_axis),
            lax.dynamic_slice_in_dim(rhs, start, size, rhs_axis),
        )

    def chunked(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        zeros = jnp.zeros(jax.eval_shape(product, lhs, rhs).shape, jnp.float32)
        add = lambda index, total: _added(total, chunk(lhs, rhs, index * _CHUNK_K, _CHUNK_K))  # noqa: E731
        total = lax.fori_loop(0, whole_chunks, add, (zeros, zeros))
        rest = problem.k - whole_chunks * _CHUNK_K
        if rest:
            total = _added(total, chunk(lhs, rhs, whole_chunks * _CHUNK_K, rest))
        return total[0] + total[1]

    return chunked


_LONG_K = 8192
_CHUNK_K = 256


def _added(total: tuple[jax.Array, jax.Array], term: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns `total` = (sum, what its rounding left out) with `term` added, by Knuth's two-sum."""
    high, low = total
    summed = high + term
    taken = summed - high
    return summed, low + ((high - (summed - taken)) + (term - taken))


# The rounding step of a dtype is 2^-8 (bfloat16), 2^-11 (float16) or 2^-24; rounding once to nearest leaves a
# relative Frobenius error of about 0.4 of half of it. Twice the half step leaves room for the order of the sums.
_HALF_STEP = {"bfloat16": 2.0**-9, "float16": 2.0**-12, "float32": 2.0**-25}
_SUM_ERROR = 2.0**-20  # float32 sums of up to 2^20 products in another order, measured 1e-7 to 5e-7


def tolerance(problem: Problem) -> float:
    """Returns the largest ||out - reference|| / ||reference|| that a right result can have."""
    return 2 * _HALF_STEP[problem.out_dtype] + _SUM_ERROR
