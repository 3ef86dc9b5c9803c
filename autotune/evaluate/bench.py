"""What one worker keeps for the problem at hand: operands, reference, and programs to verify a result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, ShapeDtypeStruct

from autotune.evaluate.fault import CandidateError, charged_to
from autotune.evaluate.timing import FLUSH_BYTES

# XLA would try algorithms on the GPU while it compiles, outside the lock and beside someone's measurement.
# Only what verifies is compiled like this; a rival keeps its tuning and is compiled under the lock.
UNTUNED = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}

# A float32 reference up to this size is kept for as long as its problem is: 16 workers then hold 4 GB at
# most, and 4096x8192x4096 does not spend 275 GFLOP of float32 under the lock on each candidate. Larger ones
# are computed again, since 16 of 4 GB would fill the card.
KEPT_REFERENCE_BYTES = 256 * 2**20

POISON_BUFFERS = 2  # the output gets one of the freed buffers even where a temporary takes another first


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A result that passed: its relative error, and whether its buffer provably held poison before."""

    error: float
    poisoned: bool


class Bench:
    """Verifies results of one problem.

    Making it compiles and runs nothing on the GPU; `load` and `verify` run there and belong under its lock.

    Args:
        target: The kernel family, see `autotune.target.Target`.
        problem: One of its problems.
        seed: Of the operands.
    """

    def __init__(self, target: Any, problem: Any, seed: int):
        self.problem = problem
        self.types = target.operand_types(problem)
        self.expected: ShapeDtypeStruct = jax.eval_shape(target.rival(problem), *self.types)
        self._tolerance = float(target.tolerance(problem))
        self._make_operands = lambda: target.operands(problem, seed)
        self._reference_function = target.reference(problem)
        self._programs: dict[str, Callable[..., Any]] = {}
        self._operands: tuple[Array, ...] | None = None
        self._reference: Array | None = None

    @property
    def result_bytes(self) -> int:
        return math.prod(self.expected.shape) * self.expected.dtype.itemsize

    @property
    def size_bytes(self) -> int:
        """GPU memory verifying takes at its peak: operands, poison and result, reference, flush buffer."""
        result = self.result_bytes
        reference = math.prod(self.expected.shape) * 4
        operands = sum(math.prod(each.shape) * each.dtype.itemsize for each in self.types)
        # Random bits and their float32 image exist beside the largest operand while it is drawn.
        drawing = max((math.prod(each.shape) * 8 for each in self.types), default=0)
        return operands + max(drawing, (POISON_BUFFERS + 1) * result + reference) + FLUSH_BYTES

    @property
    def operands(self) -> tuple[Array, ...]:
        if self._operands is None:
            raise RuntimeError("operands are asked for before load()")
        return self._operands

    def prepare(self) -> None:
        """Compiles all programs, once; runs nothing on the GPU."""
        if self._programs:
            return
        shape, dtype = self.expected.shape, self.expected.dtype
        reference_type = jax.eval_shape(self._reference_function, *self.types)
        poison = _poison(dtype)
        self._programs = {
            "operands": _compiled(self._make_operands),
            "reference": _compiled(self._reference_function, *self.types),
            "poison": _compiled(lambda: jnp.full(shape, poison, dtype)),
            "compare": _compiled(_compare, self.expected, reference_type),
        }

    def load(self) -> None:
        """Puts the operands on the GPU, once."""
        if self._operands is None:
            with charged_to("launch"):
                self._operands = tuple(jax.block_until_ready(self._programs["operands"]()))

    def verify(self, call: Callable[..., Array], result_type: ShapeDtypeStruct) -> Verdict:
        """Runs `call` on the operands once, into poisoned memory, and compares the result with the reference.

        Args:
            call: Compiled function of the operands.
            result_type: Shape and dtype that it returns.

        Raises:
            CandidateError: "wrong", "unwritten", "memory", "launch" or "error".
        """
        expected = self.expected
        if (result_type.shape, result_type.dtype) != (expected.shape, expected.dtype):
            raise CandidateError("wrong", f"the result is {_name(result_type)} instead of {_name(expected)}")
        with charged_to("launch"):
            freed = self._free_poisoned_buffers()
            result = jax.block_until_ready(call(*self.operands))
            poisoned = result.unsafe_buffer_pointer() in freed
            compared = self._programs["compare"](result, self._reference_value())
            unwritten, difference, norm = (float(value) for value in compared)
        if unwritten:
            raise CandidateError(
                "unwritten", f"{unwritten:.0f} of {result.size} elements are not finite or were never written"
            )
        error = difference / norm if norm else difference
        if not error <= self._tolerance:
            raise CandidateError("wrong", f"relative error {error:.3g}, tolerance {self._tolerance:.3g}")
        return Verdict(error=error, poisoned=poisoned)

    def _free_poisoned_buffers(self) -> set[int]:
        """Fills buffers as large as the result with poison, frees them, and returns their addresses."""
        buffers = [jax.block_until_ready(self._programs["poison"]()) for _ in range(POISON_BUFFERS)]
        addresses = {buffer.unsafe_buffer_pointer() for buffer in buffers}
        for buffer in buffers:
            buffer.delete()
        return addresses

    def _reference_value(self) -> Array:
        if self._reference is not None:
            return self._reference
        value = jax.block_until_ready(self._programs["reference"](*self.operands))
        if value.nbytes <= KEPT_REFERENCE_BYTES:
            self._reference = value
        return value


def _compiled(function: Callable[..., Any], *types: ShapeDtypeStruct) -> Callable[..., Any]:
    return jax.jit(function).lower(*types).compile(compiler_options=UNTUNED)


def _poison(dtype: jnp.dtype) -> float | int:
    return float("nan") if jnp.issubdtype(dtype, jnp.floating) else int(jnp.iinfo(dtype).min)


def _compare(result: Array, reference: Array) -> tuple[Array, Array, Array]:
    """Returns how many elements hold poison, ||result - reference|| over the others, and ||reference||."""
    reference = reference.astype(jnp.float32)
    values = result.astype(jnp.float32)
    if jnp.issubdtype(result.dtype, jnp.floating):
        bad = ~jnp.isfinite(values)
    else:
        poison = _poison(result.dtype)
        bad = (result == poison) & (reference != float(poison))
    difference = jnp.where(bad, 0.0, values - reference)
    return jnp.sum(bad), jnp.sqrt(jnp.sum(difference**2)), jnp.sqrt(jnp.sum(reference**2))


def _name(array_type: ShapeDtypeStruct) -> str:
    return f"{array_type.dtype}[{','.join(str(size) for size in array_type.shape)}]"
