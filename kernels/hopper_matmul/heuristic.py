"""A legal configuration for a problem that was never tuned: a short list, ranked by a rough estimate of time."""

from __future__ import annotations

from collections.abc import Iterator

from hopper_matmul.config import Config, Edges
from hopper_matmul.geometry import filled_columns, odd_matrices
from hopper_matmul.hardware import Device
from hopper_matmul.legality import check
from hopper_matmul.problem import ITEMSIZE_BYTES, Problem
from hopper_matmul.scopes import PLANS

# CTA tiles from large, which read the fewest bytes from L2 for a product, to small, which spread over more SMs.
_TILES = ((128, 256), (256, 128), (128, 192), (128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (64, 32))
_SWAPPED_TILES = tuple((tile_m, tile_n) for tile_m in (8, 16, 32, 64) for tile_n in (256, 128, 64))
_PANEL_TILES = ((256, 128), (128, 128), (64, 128), (128, 64))
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_LEAST_K = 256  # of a part
MOST = 8

# Rates of one H200 (driver 580.159.04, jax 0.11.2, 2026-11-30): of a bfloat16 product by all SMs, of a copy, of what
# one SM reads through L2, and what a launch, a tile's start and end, and adding parts of k cost.
_MACS_PER_US = 815e6 / 2
_DEVICE_BYTES_PER_US = 4.3e6
_SM_BYTES_PER_US = 8.0e4
_LAUNCH_US = 2.0
_TILE_US = 1.2
_ADD_US = 2.0
_LAUNCH_BOUND_US = 30.0  # below it the gap before a kernel is a tenth of its time


def is_launch_bound(problem: Problem) -> bool:
    """Returns whether a problem is so short that starting its kernel while the one before ends is worth it."""
    arithmetic_us = problem.flops / 2 / _MACS_PER_US
    return max(arithmetic_us, problem.min_bytes / _DEVICE_BYTES_PER_US) < _LAUNCH_BOUND_US


def heuristic_configs(problem: Problem, device: Device) -> Iterator[Config]:
    """Yields up to `MOST` legal configurations, one a tile, the one with the least estimated time first.

    Args:
        problem: The problem they are for; all of them are legal for it.
        device: Its SM count decides how many tiles run at once.
    """
    choices = []
    for tile in _tiles(problem):
        for edges in ("view", "pad") if odd_matrices(problem) else ("pad",):
            padding_us = _padding_us(problem, edges)
            cuts = (
                (_estimated_us(problem, *tile, cut, device), *tile, cut, edges) for cut in _splits(problem)
            )
            estimate_us, *choice = min(cuts)
            choices.append((estimate_us + padding_us, *choice))
    yielded: set[tuple[object, ...]] = set()
    for _, *choice in sorted(choices):
        tile = tuple(choice[:3])
        configs = (_config(problem, *choice, *depth) for depth in _depths(problem))
        legal = next((config for config in configs if not check(problem, config, device)), None)
        if legal and tile not in yielded:
            yielded.add(tile)
            yield legal
        if len(yielded) == MOST:
            return


def _tiles(problem: Problem) -> list[tuple[int, int, bool]]:
    """Returns tile_m, tile_n and swap_ab of what is worth a try."""
    tiles = [(*tile, False) for tile in _TILES]
    if problem.m <= 64:
        tiles += [(*tile, True) for tile in _SWAPPED_TILES if tile[0] < 2 * max(problem.m, 8)]
    elif odd_matrices(problem) and problem.layout[1] == "n":
        # A row-major rhs with odd edges is read a panel of 64 columns at a time: as rows of the accumulator.
        tiles += [(*tile, True) for tile in _PANEL_TILES if tile[0] < 2 * problem.m]
    return tiles


def _splits(problem: Problem) -> Iterator[int]:
    return (parts for parts in _SPLITS if parts == 1 or problem.k >= parts * _LEAST_K)


def _depths(problem: Problem) -> list[tuple[int, int]]:
    """Returns tile_k and stages, the deepest rings first: a skinny product lives on the bytes in flight."""
    tile_ks, stages = ((128, 64, 32, 16), (8, 6, 4, 3, 2)) if problem.m <= 64 else ((64, 32, 16), (4, 3, 2))
    return [(tile_k, slots) for tile_k in tile_ks for slots in stages]


def _config(
    problem: Problem,
    tile_m: int,
    tile_n: int,
    swap_ab: bool,
    split_k: int,
    edges: Edges,
    tile_k: int,
    stages: int,
) -> Config:
    compute_wgs = 2 if tile_m * tile_n >= 128 * 64 or (swap_ab and tile_n >= 128) else 1
    is_panelled = edges == "view" and problem.layout[1] == "n" and problem.n % 64 != 0
    if is_panelled:
        compute_wgs = max(1, tile_n // 64)
    wg_split = "n" if swap_ab or is_panelled or (tile_m < 128 and compute_wgs > 1) else "m"
    wg_n = tile_n // (compute_wgs if wg_split == "n" else 1)
    return Config(
        tile_m=tile_m,
        tile_n=tile_n,
        tile_k=tile_k,
        stages=stages,
        compute_wgs=compute_wgs,
        wg_split=wg_split,
        swap_ab=swap_ab,
        split_k=split_k,
        edges=edges,
        pdl=is_launch_bound(problem),
        epi_m=min(tile_m, 64),
        # 32 where a swizzle of 64 columns does not clip the output's edge
        epi_n=64 if swap_ab else min(64 if problem.n % 64 == 0 else 32, wg_n),
        scopes=PLANS["joint"],
    )


def _estimated_us(
    problem: Problem, tile_m: int, tile_n: int, swap_ab: bool, split_k: int, device: Device
) -> float:
    """Returns roughly what a call takes: waves of tiles, each bound by WGMMA or by what it reads, or all by HBM."""
    tiles = -(-problem.m // tile_m) * -(-problem.n // tile_n) * problem.batch * split_k
    k = -(-problem.k // split_k)
    # WGMMA computes 64 rows of an accumulator whether or not they are used.
    macs = (tile_m if swap_ab else -(-tile_m // 64) * 64) * tile_n * k
    read_bytes = (tile_m + tile_n) * k * ITEMSIZE_BYTES[problem.lhs_dtype]
    tile_us = max(macs * device.sm_count / _MACS_PER_US, read_bytes / _SM_BYTES_PER_US) + _TILE_US
    waves = -(-tiles // device.sm_count)
    total_us = _LAUNCH_US + max(waves * tile_us, problem.min_bytes / _DEVICE_BYTES_PER_US)
    if split_k == 1:
        return total_us
    part_bytes = ITEMSIZE_BYTES["float32"] * problem.batch * problem.m * problem.n
    return total_us + _ADD_US + 2 * split_k * part_bytes / _DEVICE_BYTES_PER_US


def _padding_us(problem: Problem, edges: Edges) -> float:
    """Returns roughly what it takes to copy what TMA does not take as it lies."""
    copied = [
        shape[0] * shape[1] * size
        for shape, size in odd_matrices(problem)
        if edges == "pad" or shape[1] != filled_columns(shape[1], size)
    ]
    return sum(_ADD_US + 2 * problem.batch * copied_bytes / _DEVICE_BYTES_PER_US for copied_bytes in copied)
