"""The table of scopes of a kernel: nesting, collectivity, buffers, and what of SMEM each holds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from autotune.lint import jax_private, source
from autotune.lint.kernels import KernelCall
from autotune.lint.model import Buffer, Scope

SMEM_ALIGNMENT_BYTES = 1024  # every allocation of SMEM is rounded up to it (pallas/mosaic_gpu/lowering.py)
BARRIER_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeTable:
    """The scopes in program order, and the chain of nested ones that holds most SMEM at a time."""

    scopes: tuple[Scope, ...]
    deepest: tuple[int, ...]  # indices into scopes, outermost first
    reduction_bytes: int  # reserved inside the deepest chain


@dataclass(frozen=True, slots=True)
class _Peak:
    size_bytes: int = 0
    chain: tuple[int, ...] = ()
    reduction_bytes: int = 0


def aligned(size_bytes: int) -> int:
    return -(-size_bytes // SMEM_ALIGNMENT_BYTES) * SMEM_ALIGNMENT_BYTES


def scope_table(call: KernelCall) -> ScopeTable:
    """Returns the scopes of `call`, with positions but without the text of the user's file (`with_sources` adds it)."""
    builder = _Builder(call)
    peak = builder.visit(call.jaxpr, 0, 0)
    return ScopeTable(scopes=tuple(builder.scopes), deepest=peak.chain, reduction_bytes=peak.reduction_bytes)


class _Builder:
    def __init__(self, call: KernelCall) -> None:
        self.call = call
        self.scopes: list[Scope] = []

    def visit(self, jaxpr: Any, depth: int, held_bytes: int) -> _Peak:
        peak = _Peak()
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            if name == "run_scoped":
                found = self._scope(eqn, depth, held_bytes)
            elif name in _REDUCTIONS and jax_private.has_estimator(eqn.primitive):
                reserved = aligned(self.call.params.reduction_scratch_bytes)
                found = _Peak(reserved, (), reserved)
            else:
                inner = [self.visit(body, depth, held_bytes) for body in jax_private.inner_jaxprs(eqn)]
                found = max(inner, key=lambda one: one.size_bytes, default=_Peak())
            if found.size_bytes > peak.size_bytes or (not peak.chain and found.size_bytes >= peak.size_bytes):
                peak = found
        return peak

    def _scope(self, eqn: Any, depth: int, held_bytes: int) -> _Peak:
        buffers = buffers_of(eqn)
        own = sum(buffer.smem_bytes for buffer in buffers if buffer.kind != "barrier")
        here = jax_private.location(eqn)
        index = len(self.scopes)
        axes = eqn.params["collective_axes"]
        self.scopes.append(
            Scope(
                kernel=self.call.name,
                depth=depth,
                origin="scratch_types" if here is None else "run_scoped",
                collective_axes=tuple(str(axis) for axis in axes),
                is_collective=axes == (self.call.mesh.thread_name,)
                and self.call.mesh.thread_name is not None,
                file=(here or self.call.location).file,
                line=(here or self.call.location).line,
                function=(here or self.call.location).function,
                buffers=buffers,
                smem_bytes=own,
                total_smem_bytes=held_bytes + own,
            )
        )
        inner = self.visit(eqn.params["jaxpr"], depth + 1, held_bytes + own)
        return _Peak(own + inner.size_bytes, (index, *inner.chain), inner.reduction_bytes)


_REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod")


def buffers_of(eqn: Any) -> tuple[Buffer, ...]:
    """Returns the buffers that a run_scoped equation allocates, in the order in which lowering looks at them."""
    jaxpr = eqn.params["jaxpr"]
    names = jaxpr.debug_info.arg_names or ()
    transforms = eqn.params["ref_transforms"]
    padded = [*names, *("",) * (len(jaxpr.invars) - len(names))]
    return tuple(
        _buffer(variable.aval, padded[index] or f"buffer {index}", transforms[index])
        for index, variable in enumerate(jaxpr.invars)
    )


def _buffer(aval: Any, name: str, transforms: tuple[Any, ...]) -> Buffer:
    kind = jax_private.buffer_kind(aval)
    if kind == "barrier":
        count = math.prod(aval.shape)
        size = count * BARRIER_BYTES
        shape, dtype, smem = tuple(aval.shape), str(aval.dtype), size
        text = _barrier_text(aval)
    elif kind in ("semaphore", "gmem"):
        shape, dtype, size, smem = tuple(aval.shape), str(aval.dtype), 4 * math.prod(aval.shape), 0
        text = (
            f"plgpu.SemaphoreType.REGULAR({shape})"
            if kind == "semaphore"
            else f"plgpu.GMEM({shape}, jnp.{dtype})"
        )
    else:
        shape, dtype = jax_private.user_shape(aval, transforms), str(aval.dtype)
        size = math.prod(aval.shape) * jax_private.itemsize_bits(aval.dtype) // 8
        smem = aligned(size) if kind in ("smem", "union") else 0
        text = _memory_text(kind, shape, dtype, has_transforms=bool(transforms))
    return Buffer(
        name=name, kind=kind, shape=shape, dtype=dtype, size_bytes=size, smem_bytes=smem, source=text
    )


def _barrier_text(aval: Any) -> str:
    count = f", num_barriers={math.prod(aval.shape)}" if aval.shape else ""
    axes = getattr(aval.dtype, "collective_axes", None)
    if axes is None:
        return f"plgpu.Barrier(num_arrivals={aval.dtype.num_arrivals}{count})"
    return f"plgpu.ClusterBarrier(collective_axes={axes}, num_arrivals={aval.dtype.num_arrivals}{count})"


def _memory_text(kind: str, shape: tuple[int, ...], dtype: str, *, has_transforms: bool) -> str:
    transforms = ", transforms=..." if has_transforms else ""
    constructor = {"accumulator": "ACC", "tmem": "TMEM"}.get(kind, "SMEM")
    return (
        "plgpu.RefUnion(...)" if kind == "union" else f"plgpu.{constructor}({shape}, jnp.{dtype}{transforms})"
    )


def with_sources(scope: Scope) -> Scope:
    """Returns `scope` with the line and the text of each buffer, where the user's file shows them."""
    read = source.scratch_buffers if scope.origin == "scratch_types" else source.run_scoped_buffers
    expressions = read(scope.file, scope.line, len(scope.buffers)) if scope.buffers else []
    if not expressions:
        return scope
    buffers = tuple(
        replace(buffer, line=expression.line, source=expression.text)
        for buffer, expression in zip(scope.buffers, expressions, strict=True)
    )
    return replace(scope, buffers=buffers)
