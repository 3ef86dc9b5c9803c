"""Stores into the SMEM of a peer of the cluster, for Pallas's GPU interpret mode, which has none.

There a ref is a key that names the block whose memory it is, and blocks of a cluster number their allocations alike:
the same key with another block's number is what a peer's ref would be. A store becomes a write and an arrival.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from jax._src.pallas.mosaic_gpu import core
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks, jaxpr_interpret
from jax.experimental.pallas import mosaic_gpu as plgpu

_FIELDS = [field.name for field in dataclasses.fields(gpu_callbacks.HostAllocationKey)]


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

    jaxpr_interpret.resolve_ref = resolve_ref
    jaxpr_interpret._get_barrier_allocation_key_from_inval = key_of_barrier
    plgpu.async_store_smem = store
