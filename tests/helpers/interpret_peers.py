"""Stores into the SMEM of a peer of the cluster, for Pallas's GPU interpret mode, which has none.

There a ref is a key that names the block whose memory it is, and blocks of a cluster number their allocations alike:
the same key with another block's number is what a peer's ref would be. A store becomes a write and an arrival. On a
GPU the CTAs of a cluster meet once its barriers are there, before any of them begins; here a block may begin while a
peer has allocated nothing yet, so that an access waits until its memory is there.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
from jax._src.pallas.mosaic_gpu import core
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks, jaxpr_interpret
from jax.experimental.pallas import mosaic_gpu as plgpu

_FIELDS = [field.name for field in dataclasses.fields(gpu_callbacks.HostAllocationKey)]
_ALLOCATION_LIMIT_S = 60  # a peer that begins later than this will not begin


def store_to_peers(parts: int) -> None:
    """Teaches the interpreter `plgpu.async_store_smem` in clusters whose last axis has `parts` blocks."""
    resolve, barrier_key = (
        jaxpr_interpret.resolve_ref,
        jaxpr_interpret._get_barrier_allocation_key_from_inval,
    )

    def of_peer(key: Any, transforms: Any) -> tuple[Any, tuple[Any, ...]]:
        peers = [one for one in transforms if isinstance(one, core.ClusterRefTransform)]
        rest = tuple(one for one in transforms if not isinstance(one, core.ClusterRefTransform))
        if peers:
            own = key[..., _FIELDS.index("block_id")]
            key = key.at[..., _FIELDS.index("block_id")].set(own // parts * parts + peers[0].idxs[0])
        return key, rest

    def resolve_ref(aval: Any, key: Any, transforms: Any) -> tuple[Any, tuple[Any, ...]]:
        return of_peer(*resolve(aval, key, transforms))

    def key_of_barrier(keys: Any, treedef: Any, leaves: Any) -> Any:
        transforms = () if treedef is None else jax.tree.unflatten(treedef, leaves)
        keys, transforms = of_peer(keys, transforms)
        leaves, treedef = jax.tree.flatten(transforms)
        return barrier_key(keys, treedef, leaves)

    def store(value: Any, ref: Any, barrier: Any, *, cluster_idx: Any, cluster_dim: str) -> None:
        peer = {cluster_dim: cluster_idx}
        plgpu.cluster_ref(ref, peer)[...] = value
        plgpu.barrier_arrive(plgpu.cluster_ref(barrier, peer))

    for name in ("_swap", "_barrier_arrive"):
        setattr(gpu_callbacks, name, _once_allocated(getattr(gpu_callbacks, name)))
    jaxpr_interpret.resolve_ref = resolve_ref
    jaxpr_interpret._get_barrier_allocation_key_from_inval = key_of_barrier
    plgpu.async_store_smem = store


def _once_allocated(access: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an access of the interpreter that waits until what it touches is allocated."""

    @functools.wraps(access)
    def wait_and_access(token: Any, mesh: Any, thread: Any, key: Any, *rest: Any, **named: Any) -> Any:
        memory, host_key = (
            gpu_callbacks._get_shared_memory(),
            gpu_callbacks.HostAllocationKey.from_array(key),
        )
        limit = time.monotonic() + _ALLOCATION_LIMIT_S
        while host_key not in memory.mem and time.monotonic() < limit:
            time.sleep(0.001)
        return access(token, mesh, thread, key, *rest, **named)

    return wait_and_access
