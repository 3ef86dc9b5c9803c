"""Allocates the kernel's buffers in the scopes of a plan, as the plan says and in that nesting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from hopper_matmul.geometry import Geometry
from hopper_matmul.scopes import Place, Scope

WG_AXIS = "wg"
ACC_DTYPE = jnp.float32


def _tiled(dtype: Any, swizzle_bytes: int) -> tuple[Any, ...]:
    """Returns the transforms of a WGMMA or TMA tile: 8 rows by one swizzle row of columns."""
    columns = swizzle_bytes // jnp.dtype(dtype).itemsize
    return (plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(swizzle_bytes))


def buffer_types(geometry: Geometry) -> dict[str, Any]:
    """Returns what each buffer of a plan allocates."""
    problem, config = geometry.problem, geometry.config
    operand = _tiled(problem.lhs_dtype, geometry.swizzle_bytes)
    barriers = {
        "full": plgpu.Barrier(num_arrivals=2, num_barriers=config.stages),
        "consumed": _arrival_of_compute(geometry, num_barriers=config.stages),
    }
    if geometry.config.scopes.is_union:
        barriers["sums_read"] = plgpu.Barrier(num_arrivals=config.compute_wgs)
        barriers["stored"] = _arrival_of_compute(geometry, num_barriers=1)
    return {
        "accumulator": plgpu.ACC(geometry.acc_shape, ACC_DTYPE),
        "barriers": barriers,
        "ring": (
            plgpu.SMEM((config.stages, *geometry.lhs_tile), problem.lhs_dtype, transforms=operand),
            plgpu.SMEM((config.stages, *geometry.rhs_tile), problem.rhs_dtype, transforms=operand),
        ),
        "epilogue": plgpu.SMEM(
            (config.compute_wgs, geometry.epilogue_slots, *geometry.epilogue_tile),
            geometry.sums_dtype,
            transforms=_tiled(geometry.sums_dtype, geometry.epilogue_swizzle_bytes),
        ),
    }


def _arrival_of_compute(geometry: Geometry, *, num_barriers: int) -> Any:
    """A barrier that the compute warpgroups arrive on: of the cluster where its CTAs write each other's ring."""
    axes = geometry.multicast_axes
    if not axes:
        return plgpu.Barrier(num_arrivals=geometry.config.compute_wgs, num_barriers=num_barriers)
    return plgpu.ClusterBarrier(
        collective_axes=axes, num_arrivals=geometry.config.compute_wgs, num_barriers=num_barriers
    )


def scope_types(geometry: Geometry, scope: Scope) -> dict[str, Any]:
    types = buffer_types(geometry)
    held = {buffer: types[buffer] for buffer in scope.holds}
    if scope.shared:
        held["shared"] = plgpu.RefUnion(held.pop("ring"), held.pop("epilogue"))
    return held


def named_refs(allocated: dict[str, Any]) -> dict[str, Any]:
    """Returns the refs of a scope by buffer, with a union taken apart into its members."""
    refs = dict(allocated)
    if "shared" in refs:
        refs["ring"], refs["epilogue"] = refs.pop("shared")
    return refs


def enter(
    geometry: Geometry, scopes: Sequence[Scope], refs: dict[str, Any], then: Callable[[dict[str, Any]], Any]
) -> Any:
    """Opens the scopes one inside the other and returns what `then` returns in the innermost."""
    if not scopes:
        return then(refs)
    scope, *inner = scopes

    def opened(**allocated: Any) -> Any:
        return enter(geometry, inner, refs | named_refs(allocated), then)

    return pl.run_scoped(
        opened, collective_axes=WG_AXIS if scope.collective else (), **scope_types(geometry, scope)
    )


def scopes_at(geometry: Geometry, *places: Place) -> list[Scope]:
    return [scope for scope in geometry.config.scopes.scopes if scope.place in places]
