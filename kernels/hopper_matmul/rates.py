"""What a device does in a microsecond: the constants of the cost model, fitted to measured times."""

from __future__ import annotations

from dataclasses import dataclass

from hopper_matmul.hardware import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The constants of a device; times in us, rates a us.

    Attributes:
        launch_us: A kernel from its start to its first load, and from its last store to its end.
        sm_macs: Products that the tensor cores of one SM add up.
        wgmma_columns: Columns of the accumulator that would take what each WGMMA takes beside its columns.
        sm_smem_bytes: What one SM's shared memory takes and gives.
        bubble_us: WGMMA's pipeline drains and fills, at each step that leaves none in flight.
        step_us: What a warpgroup waits at barriers in a step.
        wg_us: What each further computing warpgroup adds to it.
        copy_us: The loading warpgroup spends it on each TMA copy.
        sm_read_bytes: What one SM can read.
        l2_bytes: What all SMs together can read from L2.
        latency_us: From a slot's return to its next tile in it.
        peer_us: More latency, for each peer that a slot is given back to.
        hbm_bytes: What device memory takes and gives.
        sm_store_bytes: What one SM's epilogue rounds, stages and stores.
        piece_us: A piece of the epilogue waits for its staging slot.
        tile_us: A tile's start and end.
        cta_us: A CTA's start, where each tile has its own.
        add_us, add_bytes: Adding parts of k: a kernel of its own, and its rate.
        exchange_us, exchange_bytes: Adding them in a cluster: the wait for the others, and what one SM sends.
        pad_us, pad_bytes: Copying an operand into one that TMA can clip: likewise.
        narrow, narrow_read: Powers of 128 bytes over the swizzle by which shared memory and reads slow down.
        clusters_of_4: How many clusters of four fit at once: fewer than a quarter of the SMs, since a cluster lies in
            one GPC. A persistent kernel of one more takes twice as long. Others of three and more fill as many SMs.
        sharpness: Of the maximum of a step's terms: what is nearly as slow as the slowest costs something too.
        overlap: Likewise of the CTAs' time and device memory's.
    """

    launch_us: float
    sm_macs: float
    powered_sms: float
    wgmma_columns: float
    sm_smem_bytes: float
    bubble_us: float
    step_us: float
    wg_us: float
    copy_us: float
    sm_read_bytes: float
    l2_bytes: float
    outside_bytes: float
    latency_us: float
    miss_us: float
    peer_us: float
    hbm_bytes: float
    uneven: float
    sm_store_bytes: float
    piece_us: float
    tile_us: float
    cta_us: float
    cluster_us: float
    add_us: float
    add_bytes: float
    exchange_us: float
    exchange_bytes: float
    pad_us: float
    pad_bytes: float
    narrow: float
    narrow_read: float
    clusters_of_4: float
    sharpness: float
    overlap: float


# One H200 (driver 580.159.04, jax 0.11.2, 2026-11-30), by benchmarks/fit_cost.py: 3,808 configurations of 16 problems,
# all bfloat16 NN with a clean L2: the recorded spaces, ten studies of 100 candidates, 522 at random.
_H200 = Rates(
    launch_us=0.877,
    sm_macs=3390000.0,
    powered_sms=120.0,
    wgmma_columns=4.69,
    sm_smem_bytes=324000.0,
    bubble_us=0.07,
    step_us=0.0299,
    wg_us=0.0514,
    copy_us=0.0213,
    sm_read_bytes=116000.0,
    l2_bytes=13000000.0,
    outside_bytes=1.2e6,
    latency_us=0.566,
    miss_us=0.3,
    peer_us=0.047,
    hbm_bytes=4680000.0,
    uneven=0.3,
    sm_store_bytes=152000.0,
    piece_us=0.052,
    tile_us=0.241,
    cta_us=0.395,
    cluster_us=0.3,
    add_us=1.74,
    add_bytes=6180000.0,
    # None of those exchanged parts: these two are from 22 configurations of two parts, each with both ways of adding.
    exchange_us=2.0,
    exchange_bytes=30000.0,
    pad_us=0.928,
    pad_bytes=3720000.0,
    narrow=0.286,
    narrow_read=0.463,
    clusters_of_4=30.0,
    sharpness=15.2,
    overlap=2.74,
)


def rates_of(device: Device) -> Rates:
    """Returns the constants of a device; those of the H200 stand for all of its generation."""
    return _H200
