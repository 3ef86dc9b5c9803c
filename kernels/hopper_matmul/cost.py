"""A cost model: what a configuration takes on a device, in microseconds, as named terms.

The arithmetic is free of branches, so that it runs on numbers (one configuration) and on numpy arrays (a column of
each knob), as `facts` does. It is a model of what the kernel waits for, not of the device: it ranks configurations
whose times differ by tens of percent, and cannot tell apart those within a few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hopper_matmul.config import Config
from hopper_matmul.facts import chosen, lesser
from hopper_matmul.geometry import filled_columns, odd_matrices, swizzle_of
from hopper_matmul.hardware import Device
from hopper_matmul.problem import ITEMSIZE_BYTES, Problem
from hopper_matmul.scopes import PLANS, ScopePlan

WGMMA_ROWS = 64
_L2_BYTES = 50e6  # H100's and H200's data sheet


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The constants of a device; times in us, rates a us.

    Attributes:
        launch_us: A kernel from its start to its first load, and from its last store to its end.
        sm_macs: Products that the tensor cores of one SM add up.
        sm_smem_bytes: What one SM's shared memory takes and gives.
        bubble_us: WGMMA's pipeline drains and fills, at each step that leaves none in flight.
        step_us: What a warpgroup waits at barriers in a step.
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
        pad_us, pad_bytes: Copying an operand into one that TMA can clip: likewise.
        narrow: Power of 128 bytes over the swizzle by which shared memory slows down.
        sharpness: Of the maxima: what is nearly as slow as the slowest costs something too.
    """

    launch_us: float
    sm_macs: float
    sm_smem_bytes: float
    bubble_us: float
    step_us: float
    copy_us: float
    sm_read_bytes: float
    l2_bytes: float
    latency_us: float
    peer_us: float
    hbm_bytes: float
    sm_store_bytes: float
    piece_us: float
    tile_us: float
    cta_us: float
    add_us: float
    add_bytes: float
    pad_us: float
    pad_bytes: float
    narrow: float
    sharpness: float


_H200 = Rates(
    launch_us=2.0,
    sm_macs=3.09e6,
    sm_smem_bytes=2.2e5,
    bubble_us=0.03,
    step_us=0.03,
    copy_us=0.02,
    sm_read_bytes=9e4,
    l2_bytes=6.5e6,
    latency_us=0.9,
    peer_us=0.1,
    hbm_bytes=4.3e6,
    sm_store_bytes=8e4,
    piece_us=0.1,
    tile_us=0.5,
    cta_us=1.0,
    add_us=2.0,
    add_bytes=4.3e6,
    pad_us=2.0,
    pad_bytes=3.0e6,
    narrow=0.3,
    sharpness=6.0,
)


def rates_of(device: Device) -> Rates:
    """Returns the constants of a device; those of the H200 stand for all of its generation."""
    return _H200


def predicted_us(problem: Problem, config: Config, device: Device) -> float:
    """Returns the predicted time of one call, its padding copies and the adding of parts included."""
    return total_us(
        terms(problem, config, is_drained(config.scopes), device, rates_of(device)), rates_of(device)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a call takes by cause, in us; `total_us` says how they add up.

    Attributes:
        launch: Of the kernel.
        tensor, wgmma_chain, smem, sm_read, l2, ring, tma_issue: What the steps of a CTA's tiles would take if nothing
            but this bound them: the tensor cores, the wait of a warpgroup for its own WGMMAs, shared memory, what one
            SM reads, what all read from L2, too few bytes in flight, and the issue of copies.
        epilogue: Of a CTA's tiles, and what starts and ends them.
        hbm: What device memory takes, whatever the CTAs do.
        add, pad: Further kernels: adding parts of k, and copies of operands and result.
    """

    launch: Any
    tensor: Any
    wgmma_chain: Any
    smem: Any
    sm_read: Any
    l2: Any
    ring: Any
    tma_issue: Any
    epilogue: Any
    hbm: Any
    add: Any
    pad: Any


STEPS = ("tensor", "wgmma_chain", "smem", "sm_read", "l2", "ring", "tma_issue")


def total_us(t: Terms, rates: Rates) -> Any:
    """Returns launch + max(max of the steps' terms + epilogue, hbm) + add + pad, with soft maxima."""
    steps = soft_max([getattr(t, name) for name in STEPS], rates.sharpness)
    return t.launch + soft_max([steps + t.epilogue, t.hbm], rates.sharpness) + t.add + t.pad


def soft_max(values: list[Any], sharpness: float) -> Any:
    """Returns a bit more than the greatest: the norm of that power."""
    return sum(value**sharpness for value in values) ** (1 / sharpness)


def is_drained(plan: ScopePlan) -> bool:
    """Returns whether the ring of a plan stands still while a tile is stored."""
    return plan.shares_bytes or plan.scope_of("ring").place == "tile"


DRAINED = {name: is_drained(plan) for name, plan in PLANS.items()}


def terms(problem: Problem, c: Any, drained: Any, device: Device, rates: Rates) -> Terms:
    """Returns the terms of one configuration, or arrays of them.

    Args:
        problem: The problem.
        c: A `Config`, or anything with an array for each knob but `scopes`.
        drained: Whether the plan is one of `DRAINED`.
        device: Gives the SMs.
        rates: Constants.
    """
    p = problem
    size = ITEMSIZE_BYTES[p.lhs_dtype]
    out_size = chosen(c.split_k > 1, 4, ITEMSIZE_BYTES[p.out_dtype])
    # The CTA's tiles.
    splits_m = (c.wg_split == "m") * 1
    wg_m = c.tile_m // ((c.compute_wgs - 1) * splits_m + 1)
    wg_n = c.tile_n // ((c.compute_wgs - 1) * (1 - splits_m) + 1)
    rows, columns = chosen(c.swap_ab, wg_n, wg_m), chosen(c.swap_ab, wg_m, wg_n)
    blocks = -(-rows // WGMMA_ROWS)
    cluster = c.cluster_m * c.cluster_n
    in_m = -(-p.m // (c.tile_m * c.cluster_m))
    in_n = -(-p.n // (c.tile_n * c.cluster_n))
    clusters = in_m * in_n * p.batch * c.split_k
    sms = chosen(c.max_sms > 0, lesser(c.max_sms, device.sm_count), device.sm_count)
    at_once = lesser(clusters, sms // cluster)
    tiles = -(-clusters // at_once)
    active = at_once * cluster
    # One step of a tile.
    steps = -(-p.k // (c.tile_k * c.split_k))
    macs = WGMMA_ROWS * blocks * columns * c.tile_k
    own = macs / rates.sm_macs
    chain = own + rates.step_us + rates.bubble_us * (1 - c.delay_release)
    lhs_columns = c.tile_k if p.layout[0] == "n" else wg_m
    rhs_columns = wg_n if p.layout[1] == "n" else c.tile_k
    swizzle = lesser(swizzle_of(lhs_columns * size), swizzle_of(rhs_columns * size))
    step_bytes = (c.tile_m + c.tile_n) * c.tile_k * size
    moved = step_bytes + c.compute_wgs * blocks * (WGMMA_ROWS + columns) * c.tile_k * size
    smem = moved * (128 / swizzle) ** rates.narrow / rates.sm_smem_bytes
    from_l2 = (c.tile_m / c.cluster_n + c.tile_n / c.cluster_m) * c.tile_k * size
    latency = rates.latency_us + rates.peer_us * (cluster - 1)
    ring = (latency + chain * (1 + c.delay_release) + step_bytes / rates.sm_read_bytes) / c.stages
    all_steps = tiles * steps
    # The epilogue, and the first loads of a tile where nothing hides them.
    pieces = (wg_m // c.epi_m) * (wg_n // c.epi_n)
    store = c.tile_m * c.tile_n * out_size / rates.sm_store_bytes + pieces * rates.piece_us
    is_exposed = 1 - c.persistent * (1 - drained * 1)
    start = rates.tile_us + rates.cta_us * (1 - c.persistent) + latency * is_exposed
    return Terms(
        launch=rates.launch_us + latency,
        tensor=all_steps * own * c.compute_wgs,
        wgmma_chain=all_steps * chain,
        smem=all_steps * smem,
        sm_read=all_steps * step_bytes / rates.sm_read_bytes,
        l2=all_steps * from_l2 * active / rates.l2_bytes,
        ring=all_steps * ring,
        tma_issue=all_steps * 2 * rates.copy_us,
        epilogue=tiles * (store + start),
        hbm=_hbm_bytes(p, c, in_m, in_n, at_once, size, out_size) / rates.hbm_bytes,
        add=_add_us(p, c, rates),
        pad=_pad_us(p, c, rates),
    )


def _hbm_bytes(p: Problem, c: Any, in_m: Any, in_n: Any, at_once: Any, size: int, out_size: Any) -> Any:
    """Returns what device memory moves: each operand once, and again what L2 does not hold from wave to wave."""
    once = p.batch * (p.m + p.n) * p.k * size
    is_m = (c.grid_minor == "m") * 1
    in_minor, in_major = chosen(is_m, in_m, in_n), chosen(is_m, in_n, in_m)
    band = lesser(c.raster_width, in_minor)
    along = lesser(-(-at_once // band), in_major)
    m_tiles, n_tiles = chosen(is_m, band, along), chosen(is_m, along, band)
    wave = (m_tiles * c.cluster_m * c.tile_m + n_tiles * c.cluster_n * c.tile_n) * p.k * size
    read = in_m * in_n * p.batch / (m_tiles * n_tiles) * wave
    again = (read - once) * (read > once)
    missed = max(0.0, 1 - _L2_BYTES / once)
    return once + again * missed + p.batch * p.m * p.n * out_size * c.split_k


def _add_us(p: Problem, c: Any, rates: Rates) -> Any:
    moved = p.batch * p.m * p.n * (4 * c.split_k + ITEMSIZE_BYTES[p.out_dtype])
    return (rates.add_us + moved / rates.add_bytes) * (c.split_k > 1)


def _pad_us(p: Problem, c: Any, rates: Rates) -> Any:
    """Returns what the copies of odd matrices take: padding all of them, or only those whose rows do not fill 16 bytes."""
    always = needed = 0.0
    for (rows, columns), size in odd_matrices(p):
        copy = rates.pad_us + 2 * p.batch * rows * columns * size / rates.pad_bytes
        always += copy
        needed += copy * (columns != filled_columns(columns, size))
    return chosen(c.edges == "pad", always, needed)
