"""The matrix product as a warp-specialised, persistent Pallas Mosaic GPU kernel.

One warpgroup of each CTA loads operand tiles with TMA into a ring of SMEM slots; the others multiply them with
WGMMA. The ring never drains between tiles: its slot carries over, so the loads of the next tile run during the
epilogue of this one. The nesting of allocation scopes follows the plan of the configuration.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from hopper_matmul.allocation import WG_AXIS, buffer_types, enter, named_refs, scope_types, scopes_at
from hopper_matmul.config import Config
from hopper_matmul.direct import cannot_store_directly, refusal
from hopper_matmul.geometry import COMPUTED, Geometry, is_computed
from hopper_matmul.hardware import Device
from hopper_matmul.leading import flattened
from hopper_matmul.problem import Problem
from hopper_matmul.roles import Operands, compute_role, memory_role
from hopper_matmul.walk import CLUSTER_AXES, CLUSTER_GRID_AXIS, walk_by
from hopper_matmul.widen import can_fill, can_widen, filled, in_whole_tiles


def build(
    problem: Problem, config: Config, device: Device, *, by_table: bool = False, interpret: Any = None
) -> Callable[..., jax.Array]:
    """Returns the product as a function of its operands, to be jitted, traced or lowered. Needs no GPU.

    Args:
        problem: lhs (m, k) and rhs (k, n) of `lhs_dtype`, each after the batch where there is one that is its own; the
            function returns (m, n) of `out_dtype`, likewise. Leading dimensions may be any, see `leading.flattened`.
        config: Any variant, legal or not: what is wrong with it shows when the function is traced or lowered.
        device: Its SM count sizes the grid of a persistent kernel.
        by_table: The function takes a third operand, what `tile_table` returns for any configuration that differs
            from this one in `grid_minor` and `raster_width` only, and walks the tiles as that one does.
        interpret: Passed to `plgpu.kernel`; `plgpu.InterpretGPUParams` checks numbers and races on a CPU. Where blocks
            end with a row or a column, values are stored twice, the same ones, which it takes for a race.

    Raises:
        ValueError: The kernel does not compute this kind of problem, or a buffer of `config` cannot be.
    """
    if not is_computed(problem):
        raise ValueError(f"this kernel does not compute {problem.describe()}; it computes {COMPUTED}")
    if cannot_store_directly(problem, config):
        raise ValueError(refusal(problem, config))
    geometry = Geometry(problem=problem, config=config, device=device)
    for matrix in (geometry.lhs, geometry.rhs, geometry.sums):
        matrix.check_view()
    buffer_types(geometry)  # what no buffer can be fails here, whichever scope it lies in
    has_cluster = geometry.cluster_size > 1
    parts = (geometry.exchanging_ctas,) if geometry.exchanges_parts else ()
    cluster = (config.cluster_m, config.cluster_n, *parts)
    scratch = [scope for scope in config.scopes.scopes if scope.place == "scratch"]
    kernel = plgpu.kernel(
        functools.partial(_kernel_body, geometry, config.pdl and interpret is None, by_table),
        out_type=jax.ShapeDtypeStruct(geometry.out_shape, geometry.sums_dtype),
        scratch_types=scope_types(geometry, scratch[0]) if scratch else (),
        grid=(geometry.grid_clusters,),
        grid_names=(CLUSTER_GRID_AXIS,),
        cluster=cluster if has_cluster else (),
        cluster_names=CLUSTER_AXES[: len(cluster)] if has_cluster else (),
        num_threads=config.compute_wgs + 1,
        thread_name=WG_AXIS,
        kernel_name="hopper_matmul",
        interpret=interpret,
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )

    def product(lhs: jax.Array, rhs: jax.Array, *table: jax.Array) -> jax.Array:
        lhs, rhs, shape = flattened(problem, lhs, rhs)
        sums = kernel(*_as_loaded(geometry, lhs, rhs, interpret), *table)
        result = _result(geometry, sums)
        return result if result.shape == shape else result.reshape(shape)

    return product


def _as_loaded(
    geometry: Geometry, lhs: jax.Array, rhs: jax.Array, interpret: Any
) -> tuple[jax.Array, jax.Array]:
    """Returns the operands as the kernel loads them, with zeros after rows and columns that are padded.

    What lies behind the columns of a row-major rhs may be anything: only columns that the result has not come of it.
    """
    config, itemsize_bytes = geometry.config, rhs.dtype.itemsize
    (rows, width), n = geometry.rhs.shape, geometry.problem.n
    # What else XLA adds it would copy in the same go.
    is_widened = geometry.problem.layout[1] == "n" and rhs.shape[-2] == rows and n < width
    if geometry.has_whole_tiles:
        if is_widened and can_widen(rhs.shape, itemsize_bytes, config.tile_n):
            rhs = in_whole_tiles(rhs, config.tile_n, interpret=interpret)
        else:
            whole = (geometry.tiles_n - 1) * config.tile_n
            rhs = jnp.concatenate([rhs[..., :whole], rhs[..., n - config.tile_n :]], axis=-1)
    elif is_widened and can_fill(rhs.shape, itemsize_bytes):
        rhs = filled(rhs, width, interpret=interpret)
    return _padded_to(lhs, geometry.lhs.shape), _padded_to(rhs, geometry.rhs.shape)


def _padded_to(operand: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Returns the operand with zeros after its rows and columns; itself where it has that shape."""
    if operand.shape[-2:] == shape:
        return operand
    edges = [(0, wanted - size) for wanted, size in zip(shape, operand.shape[-2:], strict=True)]
    return jnp.pad(operand, [(0, 0)] * (operand.ndim - 2) + edges)


def _result(geometry: Geometry, sums: jax.Array) -> jax.Array:
    """Returns (m, n), after the batch if any, from what the kernel stored.

    Stored parts of k are added always in their order, so that the result is the same bit for bit.
    """
    problem = geometry.problem
    batch = () if problem.batch == 1 else (problem.batch,)
    if geometry.stores_parts:
        sums = functools.reduce(
            jnp.add, sums.reshape(geometry.config.split_k, *batch, *geometry.sums.shape)
        ).astype(problem.out_dtype)
    if geometry.lies_turned:
        sums = jnp.swapaxes(sums, -1, -2)
    return sums[..., : problem.m, : problem.n]


def _kernel_body(geometry: Geometry, has_pdl: bool, by_table: bool, *refs: Any, **scratch: Any) -> None:
    if has_pdl:
        plgpu.griddepcontrol_launch_dependents()
        plgpu.griddepcontrol_wait()
    lhs, rhs, *table, out = refs
    operands = Operands(lhs=lhs, rhs=rhs, out=out, walk=walk_by(geometry, table[0] if by_table else None))

    def roles(refs: dict[str, Any]) -> None:
        is_compute = lax.axis_index(WG_AXIS) < geometry.config.compute_wgs
        lax.cond(
            is_compute,
            lambda: compute_role(geometry, operands, refs),
            lambda: memory_role(geometry, operands, refs),
        )

    enter(geometry, scopes_at(geometry, "kernel"), named_refs(scratch), roles)
