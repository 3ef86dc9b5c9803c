"""A cost model: what a configuration takes on a device, in microseconds, as named terms.

The arithmetic is free of branches, so that it runs on numbers (one configuration) and on numpy arrays (a column of
each knob), as `facts` does. It is a model of what the kernel waits for, not of the device: it ranks configurations
whose times differ by tens of percent, and cannot tell apart those within a few.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from hopper_matmul.config import Config, Edges
from hopper_matmul.direct import is_result_unfilled, vector_of
from hopper_matmul.facts import chosen, lesser
from hopper_matmul.hardware import Device
from hopper_matmul.matrix import (
    copied_columns,
    filled_columns,
    odd_matrices,
    padded,
    stored_matrices,
    swizzle_of,
)
from hopper_matmul.problem import ITEMSIZE_BYTES, Problem
from hopper_matmul.rates import Rates, rates_of
from hopper_matmul.scopes import PLANS, ScopePlan
from hopper_matmul.views import is_lhs_viewed, is_rhs_viewed

WGMMA_ROWS = 64
_L2_BYTES = 50e6  # H100's and H200's data sheet


def predicted_us(problem: Problem, config: Config, device: Device) -> float:
    """Returns the predicted time of one call, its padding copies and the adding of parts included."""
    return total_us(
        terms(problem, config, is_drained(config.scopes), device, rates_of(device)), rates_of(device)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a configuration takes what it is predicted to take.

    Attributes:
        total_us: The prediction.
        binds: The term that most of it is waited for.
        terms_us: All terms by name.
    """

    total_us: float
    binds: str
    terms_us: Mapping[str, float]

    def text(self) -> str:
        """Returns one line: the prediction, what binds, and the terms from the greatest down."""
        ranked = sorted(self.terms_us.items(), key=lambda term: -term[1])
        shown = ", ".join(f"{name} {value_us:.1f}" for name, value_us in ranked if value_us)
        return f"{self.total_us:.1f} us, bound by {self.binds} ({shown})"


def explain(problem: Problem, config: Config, device: Device) -> Explanation:
    """Returns the terms of a configuration's predicted time, and which of them binds."""
    rates = rates_of(device)
    found = terms(problem, config, is_drained(config.scopes), device, rates)
    by_name = {field.name: float(getattr(found, field.name)) for field in fields(Terms)}
    step = max(STEPS, key=by_name.__getitem__)
    # What a CTA's steps wait for binds where they and the epilogue take longer than device memory.
    rivals = {step: by_name[step], **{name: by_name[name] for name in by_name if name not in STEPS}}
    if by_name[step] + by_name["epilogue"] + by_name["exchange"] > by_name["hbm"]:
        del rivals["hbm"]
    binds = max(rivals, key=rivals.__getitem__)
    return Explanation(total_us=float(total_us(found, rates)), binds=binds, terms_us=by_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a call takes by cause, in us; `total_us` says how they add up.

    Attributes:
        launch: Of the kernel.
        tensor, power, wgmma_chain, smem, sm_read, l2, outside, ring, tma_issue: What the steps of a CTA's tiles would
            take if nothing but this bound them: the tensor cores of an SM, the power of those of all SMs, the wait of
            a warpgroup for its own WGMMAs, shared memory, what one SM reads, what all read from L2, tiles beyond an
            edge, too few bytes in flight, and the issue of copies.
        epilogue: Of a CTA's tiles, and what starts and ends them.
        exchange: What a CTA's tiles wait for the other parts of k, where the CTAs of a cluster add them.
        hbm: What device memory takes, whatever the CTAs do, and the wait for the SMs that it served last.
        add, pad: Further kernels: adding stored parts of k, and copies of operands and result.
    """

    launch: Any
    tensor: Any
    power: Any
    wgmma_chain: Any
    smem: Any
    sm_read: Any
    l2: Any
    outside: Any
    ring: Any
    tma_issue: Any
    epilogue: Any
    exchange: Any
    hbm: Any
    add: Any
    pad: Any


_APART = ("launch", "epilogue", "exchange", "hbm", "add", "pad")
STEPS = tuple(field.name for field in fields(Terms) if field.name not in _APART)


def total_us(t: Terms, rates: Rates) -> Any:
    """Returns launch + max(max of the steps' terms + epilogue + exchange, hbm) + add + pad, with soft maxima."""
    steps = soft_max([getattr(t, name) for name in STEPS], rates.sharpness)
    return t.launch + soft_max([steps + t.epilogue + t.exchange, t.hbm], rates.overlap) + t.add + t.pad


def soft_max(values: list[Any], sharpness: float) -> Any:
    """Returns a bit more than the greatest: the norm of that power, of positive values."""
    greatest = functools.reduce(lambda a, b: chosen(a > b, a, b), values)
    return greatest * sum((value / greatest) ** sharpness for value in values) ** (1 / sharpness)


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
    exchanging = chosen((c.split_k > 1) & (c.combine == "cluster"), c.split_k, 1)  # CTAs
    stored_parts = c.split_k // exchanging
    out_size = chosen(stored_parts > 1, 4, ITEMSIZE_BYTES[p.out_dtype])
    turns = (c.compute_wgs - 1) * (c.wg_split == "tile") + 1
    wgs_on_tile = c.compute_wgs // turns
    wg_m = c.tile_m // ((c.compute_wgs - 1) * (c.wg_split == "m") + 1)
    wg_n = c.tile_n // ((c.compute_wgs - 1) * (c.wg_split == "n") + 1)
    rows, columns = chosen(c.swap_ab, wg_n, wg_m), chosen(c.swap_ab, wg_m, wg_n)
    blocks = -(-rows // WGMMA_ROWS)
    cluster = c.cluster_m * c.cluster_n
    in_m = -(-p.m // (c.tile_m * c.cluster_m))
    in_n = -(-p.n // (c.tile_n * c.cluster_n))
    clusters, ctas = in_m * in_n * p.batch * stored_parts, cluster * exchanging
    at_once, tiles = _walk(c, clusters, ctas, device, rates)
    # One step of a tile.
    steps = -(-p.k // (c.tile_k * c.split_k))
    own = WGMMA_ROWS * blocks * (columns + rates.wgmma_columns) * c.tile_k / rates.sm_macs
    waits = rates.step_us + rates.wg_us * (wgs_on_tile - 1) + rates.bubble_us * (1 - c.delay_release)
    chain = own + waits
    swizzle, copies = _loads(p, c, wg_m, wg_n, size)
    step_bytes = (c.tile_m + c.tile_n) * c.tile_k * size
    moved = step_bytes + wgs_on_tile * blocks * (WGMMA_ROWS + columns) * c.tile_k * size
    smem = moved * (128 / swizzle) ** rates.narrow / rates.sm_smem_bytes
    read = step_bytes * (128 / swizzle) ** rates.narrow_read / rates.sm_read_bytes
    from_l2 = (c.tile_m / c.cluster_n + c.tile_n / c.cluster_m) * c.tile_k * size
    lhs_lines, rhs_lines = _lines(p, c.edges, rates)
    lines = (c.tile_m / c.cluster_n * lhs_lines + c.tile_n / c.cluster_m * rhs_lines) * c.tile_k * size
    at_work = at_once * ctas  # CTAs
    read_bytes, stored_bytes = _hbm_bytes(p, c, in_m, in_n, at_once, size, out_size * stored_parts)
    missed = lesser(read_bytes / (steps * clusters * ctas * from_l2), 1)  # share of what is asked of L2
    latency = (
        rates.latency_us + rates.miss_us * missed + rates.peer_us * (cluster - 1) + copies * rates.copy_us
    )
    # A slot is free once its WGMMAs are done, or, released later, once those of the next slot have been issued: then
    # one slot fewer is filled ahead, and no WGMMA is waited for.
    slots = c.stages - c.delay_release
    ring = (latency + read + chain * (1 - c.delay_release)) / slots
    all_steps = tiles * steps
    # The epilogue, and between two tiles what nothing hides: a CTA's start, the first loads.
    pieces = (wg_m // c.epi_m) * (wg_n // c.epi_n)
    tile_store = c.tile_m * c.tile_n * out_size / rates.sm_store_bytes
    tile_store += (c.edges == "direct") * c.tile_m * c.tile_n / (rates.direct_elements * vector_of(p))
    store = (tile_store + pieces * rates.piece_us) / exchanging
    # One after the other; in turns, what lasts longer than the other warpgroups multiply, and the last.
    uncovered = store + rates.tile_us - (turns - 1) * steps * chain
    stalls = chosen(turns > 1, uncovered * (uncovered > 0), store + rates.tile_us)
    epilogue = store + rates.tile_us + (tiles - 1) * stalls
    others = (exchanging - 1) / exchanging  # share of its tile that a CTA sends, and as much comes in
    exchange = rates.exchange_us * (exchanging > 1) + others * 4 * c.tile_m * c.tile_n / rates.exchange_bytes
    meeting = rates.cluster_us * (ctas > 1)
    is_exposed = 1 - c.persistent * (1 - drained * 1)
    between = (rates.cta_us + meeting) * (1 - c.persistent) + latency * is_exposed
    uneven = rates.uneven * from_l2 * at_work * lesser(slots, all_steps)
    return Terms(
        launch=rates.launch_us + latency + meeting,
        tensor=all_steps * own * wgs_on_tile,
        power=steps * own * wgs_on_tile * clusters * ctas / rates.powered_sms,
        wgmma_chain=all_steps * chain,
        smem=all_steps * smem,
        sm_read=all_steps * read,
        l2=all_steps * lines * at_work * (128 / swizzle) ** rates.narrow_read / rates.l2_bytes,
        outside=_outside_bytes(p, c, in_m, in_n, size) / rates.outside_bytes,
        ring=all_steps * ring,
        tma_issue=all_steps * copies * rates.copy_us,
        epilogue=epilogue + (tiles - 1) * between,
        exchange=tiles * exchange,
        hbm=(read_bytes + stored_bytes + uneven) / rates.hbm_bytes,
        add=_add_us(p, stored_parts, rates),
        pad=padding_us(p, c.edges, rates),
    )


def _walk(c: Any, clusters: Any, cluster: Any, device: Device, rates: Rates) -> tuple[Any, Any]:
    """Returns how many clusters run at once, and how many tiles' time it takes until all have walked theirs."""
    sms = chosen(c.max_sms > 0, lesser(c.max_sms, device.sm_count), device.sm_count)
    seats = sms // cluster
    seats = seats + (seats < 1)
    held = lesser(seats, chosen(cluster < 3, seats, rates.clusters_of_4 * 4 // cluster))
    grid = lesser(clusters, chosen(c.persistent, seats, held))
    at_once = lesser(clusters, held)
    fewest, most = clusters // grid, -(-clusters // grid)
    # Clusters of the grid without a seat begin when those with a tile less have ended, if these are enough.
    late, early = grid - at_once, at_once - (clusters - fewest * grid)
    return at_once, most + (late > 0) * (chosen(late <= early, fewest, most) + fewest - most)


def _loads(p: Problem, c: Any, wg_m: Any, wg_n: Any, size: int) -> tuple[Any, Any]:
    """Returns the swizzle of the operands' tiles in bytes, and the copies of a step: a view takes one a panel."""
    lhs_is_upright, rhs_is_upright = p.layout[0] == "n", p.layout[1] == "n"
    lhs_columns = c.tile_k if lhs_is_upright else wg_m
    rhs_columns = wg_n if rhs_is_upright else c.tile_k
    swizzle = lesser(swizzle_of(lhs_columns * size), swizzle_of(rhs_columns * size))
    lhs_panels = (c.tile_k if lhs_is_upright else c.tile_m) * size / swizzle
    rhs_panels = (c.tile_n if rhs_is_upright else c.tile_k) * size / swizzle
    lhs_copies = chosen(is_lhs_viewed(p, c.edges, swizzle), lhs_panels, 1)
    return swizzle, lhs_copies + chosen(is_rhs_viewed(p, c.edges, swizzle), rhs_panels, 1)


def _lines(p: Problem, edges: Any, rates: Rates) -> tuple[Any, Any]:
    """Returns how much more than their bytes the tiles of lhs and rhs ask of L2, where rows begin within a line."""
    (lhs, size, _), (rhs, _, _), _ = stored_matrices(p)
    is_in_tiles = (edges == "direct") & (p.layout[1] == "n")  # the rhs, of whole lines
    parts = []
    for shape, is_whole in ((lhs, False), (rhs, is_in_tiles)):
        padded_is_whole = padded(shape, 128, size)[1] * size % 128 == 0
        viewed_is_whole = copied_columns(shape[1], size) * size % 128 == 0
        is_whole = is_whole | ((edges == "pad") & padded_is_whole) | ((edges != "pad") & viewed_is_whole)
        parts.append(chosen(is_whole, 1, rates.line_parts))
    return parts[0], parts[1]


def _hbm_bytes(
    p: Problem, c: Any, in_m: Any, in_n: Any, at_once: Any, size: int, stored: Any
) -> tuple[Any, Any]:
    """Returns what device memory gives, each operand once and again what L2 does not hold of it from wave to wave, and
    what it takes.

    An operand that all products share is read again for each of them, as far as L2 does not hold both operands of one.
    """
    once = (p.lhs_batch * p.m + p.rhs_batch * p.n) * p.k * size
    distinct = p.batch * (p.m + p.n) * p.k * size
    missed_by_next = max(0.0, 1 - _L2_BYTES / ((p.m + p.n) * p.k * size))
    is_m = (c.grid_minor == "m") * 1
    in_minor, in_major = chosen(is_m, in_m, in_n), chosen(is_m, in_n, in_m)
    band = lesser(c.raster_width, in_minor)
    in_major_at_once = lesser(-(-at_once // band), in_major)
    in_minor_at_once = lesser(band * -(-at_once // (band * in_major_at_once)), in_minor)
    m_tiles = chosen(is_m, in_minor_at_once, in_major_at_once)
    n_tiles = chosen(is_m, in_major_at_once, in_minor_at_once)
    wave = (m_tiles * c.cluster_m * c.tile_m + n_tiles * c.cluster_n * c.tile_n) * p.k * size
    read = in_m * in_n * p.batch / (m_tiles * n_tiles) * wave
    again = (read - distinct) * (read > distinct)
    missed = max(0.0, 1 - _L2_BYTES / once)
    shared = (distinct - once) * missed_by_next
    return once + shared + again * missed, p.batch * p.m * p.n * stored


def _outside_bytes(p: Problem, c: Any, in_m: Any, in_n: Any, size: int) -> Any:
    """Returns what TMA fills with zeros for CTAs of a cluster whose whole tile lies beyond an edge."""
    rows = (in_m * c.cluster_m - -(-p.m // c.tile_m)) * c.tile_m
    columns = (in_n * c.cluster_n - -(-p.n // c.tile_n)) * c.tile_n
    return p.batch * (rows * in_n + columns * in_m) * p.k * size


def _add_us(p: Problem, stored_parts: Any, rates: Rates) -> Any:
    moved = p.batch * p.m * p.n * (4 * stored_parts + ITEMSIZE_BYTES[p.out_dtype])
    return (rates.add_us + moved / rates.add_bytes) * (stored_parts > 1)


def padding_us(problem: Problem, edges: Any, rates: Rates) -> Any:
    """Returns what the copies of odd matrices take, by `Config.edges`."""
    took_us: Any = 0.0
    for name, (copies, copied_bytes) in _copied(problem).items():
        took_us = took_us + (edges == name) * (copies * rates.pad_us + copied_bytes / rates.pad_bytes)
    return took_us


@functools.lru_cache(maxsize=64)
def _copied(problem: Problem) -> dict[Edges, tuple[int, int]]:
    """Returns the copies and the bytes that they move: of all odd matrices, or where they are viewed of those of rows
    that do not fill 16 bytes, without the result where it is stored directly.
    """
    matrices = stored_matrices(problem)
    unfilled = [matrix for matrix in matrices if matrix[0][1] != filled_columns(matrix[0][1], matrix[1])]
    operands = unfilled[:-1] if is_result_unfilled(problem) else unfilled
    copied: dict[Edges, list[Any]] = {"pad": odd_matrices(problem), "view": unfilled, "direct": operands}
    return {
        edges: (
            len(copies),
            sum(2 * count * rows * columns * size for (rows, columns), size, count in copies),
        )
        for edges, copies in copied.items()
    }
