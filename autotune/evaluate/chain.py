"""Chains of calls inside one jit, and the copies of operands that they rotate over."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from autotune.evaluate.timing import FLUSH_BYTES
from autotune.seam import MeasureProtocol

CALLS = 50
MAX_COPIES = 1024  # of operands so small that more of them would still lie in the L2


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A compiled chain: takes the operands of all calls in turn and returns all results."""

    executable: Callable[..., Any]
    calls: int = CALLS


def chained(
    function: Callable[..., Any],
    types: Sequence[jax.ShapeDtypeStruct],
    platform: str,
    options: Mapping[str, Any],
    calls: int = CALLS,
) -> Chain:
    """Returns `calls` calls of `function` compiled as one program.

    Each call has parameters of its own: XLA merges products that share an operand. What is passed for them may be
    one array many times over, which XLA cannot know.
    """
    each = jax.jit(function)  # lowered once: ten unrolled products lower in 1.3 s, behind one jit in 0.12 s
    width = len(types)

    def chain(*operands: Any) -> list[Any]:
        return [each(*operands[start : start + width]) for start in range(0, calls * width, width)]

    lowered = jax.jit(chain).trace(*(tuple(types) * calls)).lower(lowering_platforms=(platform,))
    return Chain(executable=lowered.compile(compiler_options=dict(options) or None), calls=calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Sets of operands that calls take in turn; `operands[i]` are the copies of operand i."""

    operands: tuple[tuple[Any, ...], ...]

    def arguments(self, calls: int) -> list[tuple[Any, ...]]:
        """Returns the arguments of successive chains, enough of them to come past every copy."""
        sets = max(1, math.ceil(max(map(len, self.operands)) / calls))
        return [
            tuple(
                copies[call % len(copies)]
                for call in range(start * calls, (start + 1) * calls)
                for copies in self.operands
            )
            for start in range(sets)
        ]

    def bound(self, chain: Chain) -> Callable[[], Any]:
        """Returns a function that launches the chain on the next arguments."""
        arguments = self.arguments(chain.calls)
        turn = [0]

        def launch() -> Any:
            turn[0] = (turn[0] + 1) % len(arguments)
            return chain.executable(*arguments[turn[0]])

        return launch


def rotated(target: Any, bench: Any, protocol: MeasureProtocol) -> Copies:
    """Returns copies that keep the L2 in the protocol's state: 256 MiB of what must be cold, one of the rest."""
    indices = cold_operands(target, bench.problem, len(bench.types), protocol)
    cold_bytes = sum(bench.operands[index].nbytes for index in indices)
    count = copies_needed(cold_bytes)
    return Copies(
        operands=tuple(
            (operand, *(jnp.array(operand, copy=True) for _ in range(count - 1)))
            if index in indices
            else (operand,)
            for index, operand in enumerate(bench.operands)
        )
    )


def copies_needed(cold_bytes: int) -> int:
    """Returns how many copies of operands of together `cold_bytes` are needed, so that none is found in the L2."""
    return min(MAX_COPIES, FLUSH_BYTES // cold_bytes + 1) if cold_bytes else 1


def cold_operands(target: Any, problem: Any, count: int, protocol: MeasureProtocol) -> list[int]:
    """Returns the indices of the operands that must not be in the L2."""
    if protocol.l2 == "warm":
        return []
    if protocol.l2 == "clean":
        return list(range(count))
    return [index for index in range(count) if index not in activations(target, problem)]


def activations(target: Any, problem: Any) -> tuple[int, ...]:
    """Returns the indices of the operands that are activations; without the target's word, the first."""
    names = getattr(target, "activation_operands", None)
    return tuple(names(problem)) if names else (0,)


def touching(target: Any, bench: Any) -> Callable[[], Any] | None:
    """Returns a function that reads the activations once, which brings them into the L2."""
    touched = [bench.operands[index] for index in activations(target, bench.problem)]
    if not touched:
        return None
    read = jax.jit(lambda *arrays: [jnp.sum(array.astype(jnp.float32)) for array in arrays])
    program = read.lower(*touched).compile()
    return lambda: program(*touched)


def with_inputs(target: Any, inputs: str) -> Any:
    """Returns the target with operands of that distribution."""
    return target if inputs == "normal" else _IntegerInputs(target=target)


@dataclasses.dataclass(frozen=True, slots=True)
class _IntegerInputs:
    """A target whose operands are uniform whole numbers."""

    target: Any

    def operands(self, problem: Any, seed: Any) -> tuple[Any, ...]:
        drawn = self.target.exact_operands(problem, seed)
        return self.target.operands(problem, seed) if drawn is None else drawn

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)
