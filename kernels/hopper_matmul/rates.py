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
        powered_sms: SMs whose tensor cores the device's power keeps at that rate.
        wgmma_columns: Columns of the accumulator that would take what each WGMMA takes beside its columns.
        sm_smem_bytes: What one SM's shared memory takes and gives.
        bubble_us: WGMMA's pipeline drains and fills, at each step that leaves none in flight.
        step_us: What a warpgroup waits at barriers in a step.
        wg_us: What each further computing warpgroup adds to it.
        copy_us: The loading warpgroup spends it on each TMA copy.
        sm_read_bytes: What one SM can read.
        l2_bytes: What all SMs together can read from L2.
        line_parts: How often L2 is asked for a part of a row where rows begin within a line of 128 bytes.
        outside_bytes: What all SMs together can fill with zeros of tiles that lie wholly beyond an edge.
        latency_us: From a slot's return to its next tile in it, of L2.
        miss_us: More latency of what comes from device memory.
        peer_us: More latency, for each peer that a slot is given back to.
        hbm_bytes: What device memory takes and gives.
        uneven: Share of the bytes in flight that the last SMs wait for: some are served ahead of others, by as much as
            their rings hold.
        sm_store_bytes: What one SM's epilogue rounds, stages and stores.
        direct_elements: What the threads of one SM store by themselves, where they can store single elements.
        piece_us: A piece of the epilogue waits for its staging slot.
        tile_us: A tile's start and end.
        cta_us: A CTA's start after another's end, where each tile has its own.
        cluster_us: The CTAs of a cluster wait for one another at their start.
        add_us, add_bytes: Adding parts of k: a kernel of its own, and its rate.
        exchange_us, exchange_bytes: Adding them in a cluster: the wait for the others, and what one SM sends.
        pad_us, pad_bytes: Copying an operand into one that TMA can clip: likewise.
        narrow, narrow_read: Powers of 128 bytes over the swizzle by which shared memory, and reads of an SM and from
            L2, slow down.
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
    line_parts: float
    outside_bytes: float
    latency_us: float
    miss_us: float
    peer_us: float
    hbm_bytes: float
    uneven: float
    sm_store_bytes: float
    direct_elements: float
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


# One H200 (driver 580.159.04, jax 0.11.2, 2026-11-30), by benchmarks/fit_cost.py: the 9,512 configurations of the
# eight recorded spaces, all bfloat16 with a clean L2. The count of clusters is from other measurements, and not fitted.
_H200 = Rates(
    launch_us=1.32,
    sm_macs=3960000.0,
    powered_sms=125.0,
    wgmma_columns=3.75,
    sm_smem_bytes=336000.0,
    bubble_us=0.0334,
    step_us=0.0269,
    wg_us=0.0102,
    copy_us=0.0201,
    sm_read_bytes=166000.0,
    l2_bytes=15600000.0,
    line_parts=2.2,
    outside_bytes=1480000.0,
    latency_us=0.502,
    miss_us=0.372,
    peer_us=0.0555,
    hbm_bytes=4540000.0,
    uneven=0.32,
    sm_store_bytes=124000.0,
    direct_elements=22000.0,
    piece_us=0.0678,
    tile_us=0.262,
    cta_us=0.718,
    cluster_us=0.262,
    add_us=1.53,
    add_bytes=6010000.0,
    # None of those has rows that begin within a line: line_parts is from 41 configurations of 1000x1000x1000.
    # None exchanged parts, or was stored by threads, of which direct_elements is a guess; these two are from
    # 22 configurations of two parts, each with both ways of adding.
    exchange_us=2.0,
    exchange_bytes=30000.0,
    pad_us=1.97,
    pad_bytes=4120000.0,
    narrow=0.29,
    narrow_read=0.982,
    clusters_of_4=30.0,
    sharpness=5.37,
    overlap=5.09,
)


def rates_of(device: Device) -> Rates:
    """Returns the constants of a device; those of the H200 stand for all of its generation."""
    return _H200
