"""Builds the kernels that `scope_trees` draws, as Pallas functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from autotune.lint.scope_trees import BufferSpec, KernelSpec, Node

TILE = (64, 64)
ARGUMENT = jax.ShapeDtypeStruct(TILE, jnp.float32)


def build(program: Sequence[KernelSpec]) -> Callable[[Any], Any]:
    """Returns a function of one float32 (64, 64) array that calls each kernel on the result of the one before."""
    kernels = [_kernel(spec) for spec in program]

    def run(operand: Any) -> Any:
        for kernel in kernels:
            operand = kernel(operand)
        return operand

    return run


def _kernel(spec: KernelSpec) -> Callable[[Any], Any]:
    semantics = plgpu.LoweringSemantics.Lane if spec.is_lane else plgpu.LoweringSemantics.Warpgroup
    params = plgpu.CompilerParams(
        lowering_semantics=semantics, reduction_scratch_bytes=spec.reduction_scratch_bytes
    )
    mesh: dict[str, Any] = {"grid": (2,), "grid_names": ("block",)}
    if spec.num_threads is not None:
        mesh |= {"num_threads": spec.num_threads, "thread_name": "wg"}
    if spec.cluster is not None:
        mesh |= {"cluster": (spec.cluster,), "cluster_names": ("pair",)}

    def body(source_gmem: Any, target_gmem: Any, *scratch: Any) -> None:
        del source_gmem
        _Builder(target_gmem).nodes(spec.body, tuple(zip(spec.scratch, scratch, strict=True)))

    scratch_types = [_buffer(buffer) for buffer in spec.scratch]
    return plgpu.kernel(body, out_type=ARGUMENT, scratch_types=scratch_types, compiler_params=params, **mesh)


def _buffer(spec: BufferSpec) -> Any:
    match spec.kind:
        case "acc":
            return plgpu.ACC(spec.shape, jnp.dtype(spec.dtype))
        case "smem":
            return plgpu.SMEM(spec.shape, jnp.dtype(spec.dtype))
        case "union":
            return plgpu.RefUnion(*[plgpu.SMEM(shape, jnp.float32) for shape in spec.members])
        case "barrier":
            return plgpu.Barrier(num_arrivals=spec.arrivals, num_barriers=spec.count)
        case "cluster_barrier":
            return plgpu.ClusterBarrier(collective_axes=("pair",), num_barriers=spec.count)
    return plgpu.SemaphoreType.REGULAR


class _Builder:
    def __init__(self, target_gmem: Any) -> None:
        self.target_gmem = target_gmem

    def nodes(self, nodes: Sequence[Node], reach: tuple[tuple[BufferSpec, Any], ...]) -> None:
        for node in nodes:
            getattr(self, f"_{node.kind}")(node, reach)

    def _scope(self, node: Node, reach: tuple[Any, ...]) -> None:
        def body(*refs: Any) -> None:
            self.nodes(node.bodies[0], (*reach, *zip(node.buffers, refs, strict=True)))

        pl.run_scoped(body, *[_buffer(buffer) for buffer in node.buffers], collective_axes=node.axes)

    def _loop(self, node: Node, reach: tuple[Any, ...]) -> None:
        lax.fori_loop(0, node.trips, lambda _, carry: (self.nodes(node.bodies[0], reach), carry)[1], None)

    def _while(self, node: Node, reach: tuple[Any, ...]) -> None:
        def body(index: Any) -> Any:
            self.nodes(node.bodies[0], reach)
            return index + 1

        lax.while_loop(lambda index: index < lax.axis_index("block") + node.trips, body, jnp.int32(0))

    def _cond(self, node: Node, reach: tuple[Any, ...]) -> None:
        branches = [functools.partial(self._branch, body, reach) for body in node.bodies]
        lax.switch(lax.axis_index(node.predicate) % len(branches), branches)

    def _branch(self, body: Sequence[Node], reach: tuple[Any, ...]) -> None:
        self.nodes(body, reach)

    def _jit(self, node: Node, reach: tuple[Any, ...]) -> None:
        jax.jit(lambda: self.nodes(node.bodies[0], reach))()

    def _use(self, node: Node, reach: tuple[Any, ...]) -> None:
        usable = [pair for pair in reach if _is_usable(pair[0])]
        if not usable:
            return
        spec, ref = usable[node.pick % len(usable)]
        if spec.kind == "smem":
            ref[...] = jnp.zeros(spec.shape, jnp.float32)
        elif node.pick % 2:
            self.target_gmem[...] = ref[...]
        else:
            ref[...] = _zeros()

    def _reduce(self, node: Node, reach: tuple[Any, ...]) -> None:
        stored = [ref for spec, ref in reach if spec.kind == "smem" and _is_usable(spec)]
        if stored:
            stored[0][...] = jnp.full_like(stored[0][...], jnp.max(stored[node.pick % len(stored)][...]))

    def _initialised(self, node: Node, reach: tuple[Any, ...]) -> None:
        del node, reach
        pl.run_scoped(lambda acc: None, plgpu.ACC.init(_zeros()))

    def _partial_store(self, node: Node, reach: tuple[Any, ...]) -> None:
        del node, reach

        def body(acc: Any) -> None:
            acc[:32] = jnp.zeros((32, 64), jnp.float32)

        pl.run_scoped(body, plgpu.ACC(TILE, jnp.float32))

    def _run_state(self, node: Node, reach: tuple[Any, ...]) -> None:
        del reach
        bound = node.pick % 2

        def body(acc: Any) -> None:
            acc[...] = _zeros() + (lax.axis_index("block") * bound).astype(jnp.float32)

        self.target_gmem[...] = pl.run_state(body)(plgpu.ACC.init(_zeros()))


def _is_usable(spec: BufferSpec) -> bool:
    return (
        spec.dtype == "float32"
        and spec.shape[-2:] == TILE
        and len(spec.shape) == 2
        and spec.kind in ("acc", "smem")
    )


def _zeros() -> Any:
    return plgpu.layout_cast(jnp.zeros(TILE, jnp.float32), plgpu.Layout.WGMMA)
