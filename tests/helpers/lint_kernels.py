"""Small Mosaic GPU kernels for the tests of autotune.lint: one fault each, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

TILE = (64, 64)
OPERAND = jax.ShapeDtypeStruct(TILE, jnp.float32)
LANE = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane)


def kernel(body: Callable[..., None], *, threads: int | None = 2, **options: Any) -> Callable[[Any], Any]:
    """Returns a kernel of one float32 (64, 64) operand with `threads` warpgroups on the axis wg."""
    mesh = {"grid": (1,), "grid_names": ("block",)}
    if threads is not None:
        mesh |= {"num_threads": threads, "thread_name": "wg"}
    return plgpu.kernel(body, out_type=OPERAND, **(mesh | options))


def scoped(
    *buffers: Any, axes: Any = "wg", then: Callable[..., None] | None = None, **named: Any
) -> Callable[..., None]:
    """Returns a kernel body that opens one scope of these buffers, and calls `then` with them inside it."""

    def body(*gmem: Any) -> None:
        del gmem
        pl.run_scoped(then or (lambda *refs, **others: None), *buffers, collective_axes=axes, **named)

    return body


def smem(*shape: int, dtype: Any = jnp.float32) -> Any:
    return plgpu.SMEM(shape, dtype)


def accumulator(dtype: Any = jnp.float32, shape: tuple[int, int] = TILE) -> Any:
    return plgpu.ACC(shape, dtype)


def zeros() -> Any:
    return plgpu.layout_cast(jnp.zeros(TILE, jnp.float32), plgpu.Layout.WGMMA)


def legal_body(operand: Any, result: Any) -> None:
    """SMEM in a collective scope, and inside it an accumulator that is stored to the result."""
    del operand

    def shared(tile: Any) -> None:
        tile[...] = jnp.zeros(TILE, jnp.float32)

        def private(acc: Any) -> None:
            acc[...] = zeros()
            result[...] = acc[...]

        pl.run_scoped(private, accumulator())

    pl.run_scoped(shared, smem(*TILE), collective_axes="wg")


def when_first(action: Callable[[], None]) -> None:
    """Calls `action` in the first warpgroup only."""
    lax.cond(lax.axis_index("wg") == 0, action, lambda: None)
