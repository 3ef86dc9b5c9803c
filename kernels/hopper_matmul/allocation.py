"""Allocates the kernel's buffers in the scopes of a plan, as the plan says and in that nesting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from hopper_matmul.geometry import Geometry
from hopper_matmul.matrix import Matrix
from hopper_matmul.scopes import Place, Scope
from hopper_matmul.walk import PARTS_AXIS

WG_AXIS = "wg"
ACC_DTYPE = jnp.float32


def _transforms(matrix: Matrix, is_view: bool) -> tuple[Any, ...]:
    """Returns the transforms of a tile: blocks of 8 rows by one swizzle, or a view's panels of any rows."""
    blocks = () if is_view and matrix.is_viewed else (plgpu.TilingTransform((8, matrix.swizzle_columns)),)
    return (*blocks, plgpu.SwizzleTransform(matrix.swizzle_bytes))


def buffer_types(geometry: Geometry) -> dict[str, Any]:
    """Returns what each buffer of a plan allocates."""
    config = geometry.config
    matrices = (geometry.lhs, geometry.rhs)
    barriers = {
        "full": plgpu.Barrier(
            num_arrivals=sum(matrix.panels for matrix in matrices),
            num_barriers=config.stages * geometry.turns,
        ),
        "consumed": _arrival_of_compute(geometry, num_barriers=config.stages * geometry.turns),
    }
    if geometry.config.scopes.is_union:
        barriers["sums_read"] = plgpu.Barrier(num_arrivals=config.compute_wgs)
        barriers["stored"] = _arrival_of_compute(geometry, num_barriers=1)
    if geometry.exchanges_parts:
        barriers["received"] = plgpu.Barrier(
            num_arrivals=config.split_k - 1, num_barriers=config.compute_wgs * geometry.received_pieces
        )
        barriers["taken"] = plgpu.ClusterBarrier(
            collective_axes=(PARTS_AXIS,), num_barriers=config.compute_wgs
        )
    return {
        "accumulator": plgpu.ACC(geometry.acc_shape, ACC_DTYPE),
        "barriers": barriers,
        **_seen_twice("ring", lambda *view: tuple(_ring(geometry, matrix, *view) for matrix in matrices)),
        **_seen_twice("epilogue", lambda *view: _staging(geometry, *view)),
        **({"exchange": _exchange(geometry)} if geometry.exchanges_parts else {}),
    }


def _seen_twice(name: str, buffer: Callable[..., Any]) -> dict[str, Any]:
    """Returns a buffer as WGMMA or registers see it, and as TMA does: the same bytes."""
    return {name: buffer(), f"{name}_view": buffer(True)}


def _ring(geometry: Geometry, matrix: Matrix, is_view: bool = False) -> Any:
    transforms = _transforms(matrix, is_view)
    return plgpu.SMEM(
        (geometry.config.stages, *matrix.buffer), geometry.problem.lhs_dtype, transforms=transforms
    )


def _staging(geometry: Geometry, is_view: bool = False) -> Any:
    shape = (geometry.config.compute_wgs, geometry.epilogue_slots, *geometry.epilogue_tile)
    return plgpu.SMEM(shape, geometry.sums_dtype, transforms=_transforms(geometry.sums, is_view))


def _exchange(geometry: Geometry) -> Any:
    """What the other CTAs of a tile send of their parts: of each piece that this one stores."""
    config = geometry.config
    swizzle_bytes = geometry.exchange_swizzle_bytes
    return plgpu.SMEM(
        (config.compute_wgs, geometry.received_pieces, config.split_k - 1, *geometry.piece_in_acc),
        ACC_DTYPE,
        transforms=(
            plgpu.TilingTransform((8, swizzle_bytes // jnp.dtype(ACC_DTYPE).itemsize)),
            plgpu.SwizzleTransform(swizzle_bytes),
        ),
    )


def _arrival_of_compute(geometry: Geometry, *, num_barriers: int) -> Any:
    """A barrier that the compute warpgroups arrive on: of the cluster where its CTAs write each other's ring."""
    axes = geometry.multicast_axes
    if not axes:
        return plgpu.Barrier(num_arrivals=geometry.wgs_on_tile, num_barriers=num_barriers)
    return plgpu.ClusterBarrier(
        collective_axes=axes, num_arrivals=geometry.wgs_on_tile, num_barriers=num_barriers
    )


def scope_types(geometry: Geometry, scope: Scope) -> dict[str, Any]:
    types = buffer_types(geometry)
    seen = {
        name: (name, f"{name}_view") if has_view else (name,) for name, has_view in _views(geometry).items()
    }
    held = {buffer: types[buffer] for buffer in scope.holds if buffer not in seen}
    if "barriers" in scope.holds and "exchange" in types:
        # Other CTAs write into it at any time, so that like the barriers it outlives the tiles and shares no bytes.
        held["exchange"] = types["exchange"]
    unions = (
        [("ring", "epilogue")] if scope.shared else [(buffer,) for buffer in seen if buffer in scope.holds]
    )
    for buffers in unions:
        names = [name for buffer in buffers for name in seen[buffer]]
        members = [types[name] for name in names]
        held[UNION.join(names)] = members[0] if len(members) == 1 else plgpu.RefUnion(*members)
    return held


def _views(geometry: Geometry) -> dict[str, bool]:
    """Returns for each buffer that TMA uses whether it sees it otherwise than the compute warpgroups do."""
    return {
        "ring": geometry.lhs.is_viewed or geometry.rhs.is_viewed,
        "epilogue": geometry.sums.is_viewed,
    }


UNION = "_and_"  # joins the names of a union's members


def named_refs(allocated: dict[str, Any]) -> dict[str, Any]:
    """Returns the refs of a scope by buffer, with unions taken apart into their members."""
    refs: dict[str, Any] = {}
    for joined, ref in allocated.items():
        names = joined.split(UNION)
        refs |= dict(zip(names, ref, strict=True)) if len(names) > 1 else {joined: ref}
    for name in ("ring", "epilogue"):
        if name in refs:
            refs.setdefault(f"{name}_view", refs[name])
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
