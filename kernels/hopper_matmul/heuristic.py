"""Legal configurations for a problem that was never tuned: one a tile, ranked by the cost model."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

from hopper_matmul.config import Config, Edges
from hopper_matmul.cost import padding_us, predicted_us
from hopper_matmul.direct import is_result_unfilled
from hopper_matmul.hardware import Device
from hopper_matmul.legality import check
from hopper_matmul.matrix import odd_matrices
from hopper_matmul.problem import ITEMSIZE_BYTES, Problem
from hopper_matmul.rates import rates_of
from hopper_matmul.scopes import PLANS

# CTA tiles from large, which read the fewest bytes from L2 for a product, to small, which spread over more SMs.
_TILES = (
    (256, 192),
    (192, 192),
    (128, 256),
    (256, 128),
    (128, 192),
    (128, 128),
    (256, 64),
    (128, 64),
    (64, 128),
    (64, 64),
)
_K_MAJOR_TILES = ((128, 160), (128, 224))  # of a row-major rhs their swizzle would be narrow
_FLAT_TILES = ((64, 256), (64, 192), (64, 128), (64, 64))  # all of a skinny problem's rows in one tile
_SWAPPED_WIDTHS = (256, 128, 64)
_FITTING = (64, 256)  # least and most rows of tiles that are made to fit m
_FEW = 16  # tiles along m: of more, one that is partly empty costs little
_MOST_FITTING = 20
_FITTING_WIDTHS = (64, 128, 192, 256)
_COUNTED = 8  # tiles of 128x128 an SM: of more, it matters little how they fill the last turn
_PANEL_TILES = ((256, 128), (128, 128), (64, 128))
_SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
LEAST_K = 256  # of a part of k; with less a CTA does little but start and end
_MANY_PARTS = 4  # from here on one part, which leaves three of four SMs idle, is not weighed
SKINNY_M = 64  # up to here the rows of one WGMMA hold all of m, and m can be its columns as well
_DEPTHS = (8, 6, 5, 4, 3, 2)
_BARRIERS_BYTES = 256
_VIEW_LOSS = 0.08  # what views lose beside the model's terms, of 300x300x65536 and 333x1111x2048
MOST = 8
_NEAR = 1.15  # of the least predicted time: what is refined before the likeliest is told

# Changed one after the other in the likeliest configuration; what the model finds faster stays.
_REFINEMENTS = (
    {"combine": "cluster"},
    {"cluster_m": 2},
    {"cluster_n": 2},
    {"cluster_m": 4},
    {"cluster_n": 4},
    {"wg_split": "tile"},
    {"delay_release": 1},
    {"persistent": False},
)

# Of one H200 (driver 580.159.04, jax 0.11.2, 2026-11-30): a bfloat16 product by all SMs, and a copy.
_MACS_PER_US = 815e6 / 2
_DEVICE_BYTES_PER_US = 4.3e6


def heuristic_configs(problem: Problem, device: Device) -> Iterator[Config]:
    """Yields up to `MOST` legal configurations, one a tile, the fastest of the likeliest first.

    Args:
        problem: The problem they are for; all of them are legal for it.
        device: Its SM count decides how many tiles run at once.
    """
    legal = functools.cache(lambda config: _legal(problem, config, device))
    seen: set[tuple[int, int, bool]] = set()

    def one_a_tile(configs: Sequence[Config]) -> Iterator[Config]:
        """Yields for each tile not seen the first configuration that is legal or can be made so, refined."""
        for config in configs:
            tile = (config.tile_m, config.tile_n, config.swap_ab)
            if tile not in seen and (found := legal(config)):
                seen.add(tile)
                yield _refined(problem, found, device)

    choices = _choices(problem, device, _edges(problem, device))
    in_order = [config for *_, config in choices]
    # Of the choices that lead some may be illegal, or legal only in smaller steps.
    likeliest = next(filter(None, map(legal, in_order)), in_order[0])
    bar_us = _NEAR * predicted_us(problem, likeliest, device)
    near = sum(time_us <= bar_us for time_us, *_ in choices)
    first = itertools.islice(one_a_tile(in_order[:near]), MOST)
    ranked = sorted(first, key=lambda config: predicted_us(problem, config, device))
    yield from itertools.islice(itertools.chain(ranked, one_a_tile(in_order[near:])), MOST)
    if not seen:  # no view is legal
        padded = [config for *_, config in _choices(problem, device, ("pad",))]
        yield from itertools.islice(one_a_tile(padded), MOST)


def _choices(problem: Problem, device: Device, edges: Sequence[Edges]) -> list[tuple[float, int, Config]]:
    """Returns configurations, legal or not, after their predicted time and number, the least time first."""
    choices = []
    for edge, tile in itertools.product(edges, _tiles(problem, device)):
        for split_k in _splits(problem, device, *tile[:2]):
            config = _config(problem, device, *tile, split_k, edge)
            choices.append((predicted_us(problem, config, device), len(choices), config))
    return sorted(choices)


def _edges(problem: Problem, device: Device) -> tuple[Edges, ...]:
    """Returns what is worth a try: a view of what TMA cannot clip where copies cost more than it loses, else copies.

    And a direct store where the result can have one.
    """
    if not odd_matrices(problem):
        return ("pad",)
    rates = rates_of(device)
    saved_us = padding_us(problem, "pad", rates) - padding_us(problem, "view", rates)
    limit_us = max(problem.flops / 2 / _MACS_PER_US, problem.min_bytes / _DEVICE_BYTES_PER_US)
    edges: Edges = "view" if saved_us > _VIEW_LOSS * limit_us else "pad"
    return (edges, "direct") if is_result_unfilled(problem) else (edges,)


def square_tiles(problem: Problem) -> int:
    """Returns how many tiles of 128x128 a problem has."""
    return -(-problem.m // 128) * -(-problem.n // 128) * problem.batch


def _fitting_tiles(problem: Problem, device: Device) -> list[tuple[int, int]]:
    """Returns rows and columns of swapped tiles of which a number fits m, those that leave the SMs the least work.

    Rows go in steps of 8, as WGMMA's columns do, and of 32, which are the columns of a view of float32 parts.
    """
    if square_tiles(problem) > _COUNTED * device.sm_count:
        return []
    if problem.layout[0] == "t" or problem.out_dtype == "float32":
        return []  # which most of them are not legal for: rows of a transposed lhs fill swizzles
    least, most = _FITTING
    numbers = range(-(-problem.m // most), min(problem.m // least, _FEW) + 1)
    sizes = {-(-problem.m // (step * tiles)) * step for tiles in numbers for step in (8, 32)}

    def busiest(tile: tuple[int, int]) -> tuple[float, int]:
        rows, columns = tile
        tiles = -(-problem.m // rows) * -(-problem.n // columns) * problem.batch
        parts = min(max(1, device.sm_count // tiles), max(1, problem.k // LEAST_K))
        return -(-tiles * parts // device.sm_count) * rows * columns / parts, rows

    tiles = itertools.product(sorted(size for size in sizes if size % least), _FITTING_WIDTHS)
    return sorted(tiles, key=busiest)[:_MOST_FITTING]


def _tiles(problem: Problem, device: Device) -> list[tuple[int, int, bool]]:
    """Returns tile_m, tile_n and swap_ab of what is worth a try."""
    if problem.m > SKINNY_M:
        tiles = [(*tile, False) for tile in _TILES]
        if problem.layout[1] == "t":
            tiles += [(*tile, False) for tile in _K_MAJOR_TILES]
        if odd_matrices(problem) and problem.layout[1] == "n":
            # A row-major rhs with odd edges is read a panel of 64 columns at a time: as rows of the accumulator.
            tiles += [(*tile, True) for tile in _PANEL_TILES if tile[0] < 2 * problem.m]
        return tiles + [(*tile, True) for tile in _fitting_tiles(problem, device)]
    rows = -(-problem.m // 8) * 8
    return [(*tile, False) for tile in _FLAT_TILES] + [(rows, width, True) for width in _SWAPPED_WIDTHS]


def _splits(problem: Problem, device: Device, tile_m: int, tile_n: int) -> tuple[int, ...]:
    """Returns the most parts that the SMs hold at once, and one part where that is nearly as many CTAs."""
    tiles = -(-problem.m // tile_m) * -(-problem.n // tile_n) * problem.batch
    most = max(1, min(device.sm_count // tiles, problem.k // LEAST_K))
    step = _tile_k(problem)
    # The last part must begin before k ends.
    parts = max(
        parts
        for parts in _SPLITS
        if parts <= most and (parts - 1) * -(-problem.k // (step * parts)) * step < problem.k
    )
    return (parts,) if parts == 1 or parts >= _MANY_PARTS else (1, parts)


def _tile_k(problem: Problem) -> int:
    return 128 if problem.m <= SKINNY_M else 64


def _config(
    problem: Problem, device: Device, tile_m: int, tile_n: int, swap_ab: bool, split_k: int, edges: Edges
) -> Config:
    compute_wgs = 2 if tile_m * tile_n >= 128 * 64 or (swap_ab and tile_n >= 128) else 1
    rows = tile_n if swap_ab else tile_m  # of the accumulator
    if rows == 192:
        compute_wgs = 3  # of 64 rows each
    elif swap_ab and rows == 64:
        compute_wgs = 1
    is_panelled = edges == "view" and problem.layout[1] == "n" and problem.n % 64 != 0
    if is_panelled:
        compute_wgs = min(3, max(1, tile_n // 64))
    wg_split = "n" if swap_ab or is_panelled or (tile_m < 128 and compute_wgs > 1) else "m"
    wg_n = tile_n // (compute_wgs if wg_split == "n" else 1)
    staged_bytes = 4 if split_k > 1 else ITEMSIZE_BYTES[problem.out_dtype]  # of an element
    # A view is one swizzle wide; and float32 sums of parts leave little room.
    widest = 128 // staged_bytes if edges == "view" or split_k > 1 else 64
    most_rows = widest if swap_ab and split_k > 1 else 64
    epi_m = _staged_rows(tile_m) if swap_ab and tile_m % most_rows else min(tile_m, most_rows)
    # 32 where a swizzle of 64 columns does not clip the output's edge, or does not divide the tile
    epi_n = 64 if swap_ab else min(64 if problem.n % 64 == 0 and wg_n % 64 == 0 else 32, wg_n, widest)
    tile_k = _tile_k(problem)
    staging_bytes = compute_wgs * 2 * epi_m * epi_n * staged_bytes
    slot_bytes = (tile_m + tile_n) * tile_k * ITEMSIZE_BYTES[problem.lhs_dtype]
    slots = (device.smem_bytes_per_block - staging_bytes - _BARRIERS_BYTES) // slot_bytes
    return Config(
        tile_m=tile_m,
        tile_n=tile_n,
        tile_k=tile_k,
        stages=next((depth for depth in _DEPTHS if depth <= slots), 2),
        compute_wgs=compute_wgs,
        wg_split=wg_split,
        swap_ab=swap_ab,
        split_k=split_k,
        edges=edges,
        epi_m=epi_m,
        epi_n=epi_n,
        scopes=PLANS["joint"],
    )


def _staged_rows(tile_m: int) -> int:
    """Returns rows, at most 128, that are staged at a time of a tile of any multiple of 8."""
    return next(tile_m // pieces for pieces in range(-(-tile_m // 128), tile_m) if tile_m % (8 * pieces) == 0)


def _legal(problem: Problem, config: Config, device: Device) -> Config | None:
    """Returns the configuration, or a legal one of smaller steps and a shorter ring; None where there is none."""
    if not check(problem, config, device):
        return config
    for tile_k in (64, 32, 16):
        for stages in (config.stages, 2):
            shallower = dataclasses.replace(config, tile_k=tile_k, stages=stages)
            if tile_k <= config.tile_k and not check(problem, shallower, device):
                return shallower
    return None


def _refined(problem: Problem, config: Config, device: Device) -> Config:
    """Returns the configuration with those of `_REFINEMENTS` that the model finds faster."""
    best_us = predicted_us(problem, config, device)
    for changes in _REFINEMENTS:
        changed = dataclasses.replace(config, **changes)
        changed_us = predicted_us(problem, changed, device)
        if changed_us < best_us and not check(problem, changed, device):
            config, best_us = changed, changed_us
    return config
