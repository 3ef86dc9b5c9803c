"""What one worker keeps for the problem at hand: operands, reference, and programs to verify a result."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, ShapeDtypeStruct

from autotune.evaluate.fault import CandidateError, charged_to
from autotune.evaluate.fence import POST_BYTES, Fence
from autotune.evaluate.timing import FLUSH_BYTES

# XLA would try algorithms on the GPU while it compiles, outside the lock and beside someone's measurement.
# Only what verifies is compiled like this; a rival keeps its tuning and is compiled under the lock.
UNTUNED = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}

# A float32 reference up to this size is kept for as long as its problem is: 16 workers then hold 4 GB at
# most, and 4096x8192x4096 does not spend 275 GFLOP of float32 under the lock on each candidate. Larger ones
# are computed again, since 16 of 4 GB would fill the card.
KEPT_REFERENCE_BYTES = 256 * 2**20

SEED_TYPE = ShapeDtypeStruct((), jnp.uint32)
RESULTS = 3  # at once: the room of a candidate's result, a rival's own, and one more room that was tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A result that passed.

    Attributes:
        error: Relative, on normal inputs.
        poisoned: The result's buffer provably held poison before. A rival's never does: it is compiled as a user
            would, and has its memory from the allocator.
        guarded: It provably lay between posts, which were found unchanged; see `fence`.
        exact: The integer-valued product was right in every bit; None where the target has none.
    """

    error: float
    poisoned: bool
    guarded: bool = False
    exact: bool | None = None


@dataclass(slots=True)
class _Inputs:
    """One set of operands with the result that they must give, each made when it is first asked for."""

    operands: tuple[Array, ...] | None = None
    reference: Array | None = None


class Bench:
    """Verifies results of one problem.

    Making it compiles and runs nothing on the GPU; `load` and `verify` run there and belong under its lock.

    Args:
        target: The kernel family, see `autotune.target.Target`. Where it has `exact_operands`, results on those are
            compared by bits as well: a relative error over a whole matrix hides a single wrong element.
        problem: One of its problems.
        seed: Of the operands; another problem has other ones with the same seed.
    """

    def __init__(self, target: Any, problem: Any, seed: int):
        self.problem = problem
        self.types = target.operand_types(problem)
        self.expected: ShapeDtypeStruct = jax.eval_shape(target.rival(problem), *self.types)
        self._tolerance = float(target.tolerance(problem))
        self._target = target
        exact = getattr(target, "exact_operands", None)
        self.has_exact = exact is not None and jax.eval_shape(lambda: exact(problem, 0)) is not None
        self._seed = own_seed(problem, seed)
        self._reference_function = target.reference(problem)
        self._programs: dict[str, Callable[..., Any]] = {}
        self._normal, self._exact = _Inputs(), _Inputs()
        self._fence: Fence | None = None

    @property
    def result_bytes(self) -> int:
        return math.prod(self.expected.shape) * self.expected.dtype.itemsize

    @property
    def size_bytes(self) -> int:
        """GPU memory verifying takes at its peak: operands, results, references, posts, flush buffer."""
        result = self.result_bytes
        reference = math.prod(self.expected.shape) * 4
        operands = sum(math.prod(each.shape) * each.dtype.itemsize for each in self.types)
        # Random bits and their float32 image exist beside the largest operand while it is drawn.
        drawing = max((math.prod(each.shape) * 8 for each in self.types), default=0)
        if self.has_exact:
            operands, reference = 2 * operands, reference + result
        return operands + max(drawing, RESULTS * result + reference) + RESULTS * POST_BYTES + FLUSH_BYTES

    @property
    def operands(self) -> tuple[Array, ...]:
        if self._normal.operands is None:
            raise RuntimeError("operands are asked for before load()")
        return self._normal.operands

    def prepare(self) -> None:
        """Compiles all programs, once; runs nothing on the GPU."""
        if self._programs:
            return
        dtype = self.expected.dtype
        target, problem = self._target, self.problem
        reference_type = jax.eval_shape(self._reference_function, *self.types)
        self._programs = {
            "operands": _compiled(lambda seed: target.operands(problem, seed), SEED_TYPE),
            "reference": _compiled(self._reference_function, *self.types),
            "compare": _compiled(_compare, self.expected, reference_type),
        }
        if self.has_exact:
            rounded = lambda *operands: self._reference_function(*operands).astype(dtype)  # noqa: E731
            self._programs |= {
                "exact_operands": _compiled(lambda seed: target.exact_operands(problem, seed), SEED_TYPE),
                "exact_reference": _compiled(rounded, *self.types),
                "differing": _compiled(_differing, self.expected, self.expected),
            }
        self._fence = Fence(self.expected, _poison(dtype), _compiled)

    def load(self, seed: int | None = None) -> None:
        """Puts the operands on the GPU: those of the bench's own seed once, those of another in their place."""
        if seed is None and self._normal.operands is not None:
            return
        self._normal, self._exact = _Inputs(), _Inputs()  # freed before the new ones are drawn
        drawn = jnp.uint32(self._seed if seed is None else own_seed(self.problem, seed))
        with charged_to("launch"):
            self._fence.lay()
            self._normal.operands = tuple(jax.block_until_ready(self._programs["operands"](drawn)))
            if self.has_exact:
                self._exact.operands = tuple(jax.block_until_ready(self._programs["exact_operands"](drawn)))

    def in_place(self, executable: Callable[..., Array]) -> Callable[..., Array]:
        """Returns a compiled candidate as a function of the operands alone.

        All results lie in the one room of the fence: each call overwrites what the one before returned.

        Args:
            executable: Of a module with `writes_in_place`: its last argument is donated to the result.
        """

        def call(*operands: Array) -> Array:
            result = executable(*operands, self._fence.take())
            self._fence.keep(result)
            return result

        return call

    def verify(self, call: Callable[..., Array], result_type: ShapeDtypeStruct) -> Verdict:
        """Runs `call` on both sets of operands and compares with the references; first into poison, between posts.

        Only for the two addresses something is waited for; the rest is launched, and all that it found is fetched at
        once. Each wait costs some tens of microseconds in which the card idles under the lock.

        Args:
            call: Compiled function of the operands; of a candidate, what `in_place` returned.
            result_type: Shape and dtype that it returns.

        Raises:
            CandidateError: "wrong", "unwritten", "stray", "memory", "launch" or "error".
        """
        expected = self.expected
        if (result_type.shape, result_type.dtype) != (expected.shape, expected.dtype):
            raise CandidateError("wrong", f"the result is {_name(result_type)} instead of {_name(expected)}")
        with charged_to("launch"):
            place = self._fence.poison()
            result = jax.block_until_ready(call(*self.operands))
            address = result.unsafe_buffer_pointer()
            is_enclosed = self._fence.encloses(address)
            compared = self._compared(result)
            del result  # the next run overwrites it
            differing = self._differing(call) if self.has_exact else 0
            compared, differing, broken = jax.device_get((compared, differing, self._fence.changed()))
            if broken:
                self._fence.mend()  # whatever else is wrong, lest the next candidate be blamed for it
        error = self._error(compared)
        if broken:
            raise CandidateError("stray", f"{broken} bytes beside the result were written")
        self._check_bits(differing)
        return Verdict(
            error=error,
            poisoned=address == place,
            guarded=address == place and is_enclosed,
            exact=True if self.has_exact else None,
        )

    def verify_error(self, call: Callable[..., Array]) -> float:
        """Returns the relative error of one more run on the normal operands; raises as `verify` does."""
        with charged_to("launch"):
            compared = jax.device_get(self._compared(call(*self.operands)))
        return self._error(compared)

    def verify_bits(self, call: Callable[..., Array]) -> None:
        """Compares one run on the integer-valued operands by bits; raises as `verify` does."""
        with charged_to("launch"):
            differing = jax.device_get(self._differing(call))
        self._check_bits(differing)

    def _compared(self, result: Array) -> tuple[Array, ...]:
        return self._programs["compare"](result, self._reference_value())

    def _differing(self, call: Callable[..., Array]) -> Array:
        return self._programs["differing"](call(*self._exact.operands), self._exact_reference())

    def _error(self, compared: Sequence[Any]) -> float:
        unwritten, difference, norm = (float(value) for value in compared)
        size = math.prod(self.expected.shape)
        if unwritten:
            raise CandidateError(
                "unwritten", f"{unwritten:.0f} of {size} elements are not finite or were never written"
            )
        error = difference / norm if norm else difference
        if not error <= self._tolerance:
            raise CandidateError("wrong", f"relative error {error:.3g}, tolerance {self._tolerance:.3g}")
        return error

    def _check_bits(self, differing: int) -> None:
        if differing:
            size = math.prod(self.expected.shape)
            raise CandidateError(
                "wrong", f"{differing} of {size} elements of an integer-valued product differ"
            )

    def _reference_value(self) -> Array:
        return self._kept(self._normal, "reference")

    def _exact_reference(self) -> Array:
        return self._kept(self._exact, "exact_reference")

    def _kept(self, inputs: _Inputs, program: str) -> Array:
        if inputs.reference is not None:
            return inputs.reference
        value = jax.block_until_ready(self._programs[program](*inputs.operands))
        if value.nbytes <= KEPT_REFERENCE_BYTES:
            inputs.reference = value
        return value


def own_seed(problem: Any, seed: int) -> int:
    """Returns a seed of 32 bits that differs between problems, the same in every process."""
    return zlib.crc32(f"{seed} {problem!r}".encode())


def _compiled(
    function: Callable[..., Any], *types: ShapeDtypeStruct, donate: tuple[int, ...] = ()
) -> Callable[..., Any]:
    # What is donated and never read must stay an argument, for its memory is what it is there for.
    lowered = jax.jit(function, donate_argnums=donate, keep_unused=bool(donate)).lower(*types)
    return lowered.compile(compiler_options=UNTUNED)


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


def _differing(result: Array, reference: Array) -> Array:
    """Returns how many elements differ in any bit; a zero's sign tells only in what order it was added up."""
    bits = jnp.dtype(f"uint{8 * result.dtype.itemsize}")
    as_bits = jax.lax.bitcast_convert_type
    return jnp.sum((as_bits(result, bits) != as_bits(reference, bits)) & ((result != 0) | (reference != 0)))


def _name(array_type: ShapeDtypeStruct) -> str:
    return f"{array_type.dtype}[{','.join(str(size) for size in array_type.shape)}]"
