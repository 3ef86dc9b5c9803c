"""A legal configuration for a problem that was never tuned: plain arithmetic over a short ranked list."""

from __future__ import annotations

from collections.abc import Iterator

from hopper_matmul.config import Config
from hopper_matmul.hardware import Device
from hopper_matmul.legality import check
from hopper_matmul.problem import Problem
from hopper_matmul.scopes import PLANS

# CTA tiles from large, which read the fewest bytes from L2 for a product, to small, which spread over more SMs.
_TILES = ((128, 256), (256, 128), (128, 192), (128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (64, 32))


def _configs(problem: Problem) -> Iterator[Config]:
    for tile_m, tile_n in _TILES:
        compute_wgs = 2 if tile_m * tile_n >= 128 * 64 else 1
        wg_split = "m" if tile_m >= 128 or compute_wgs == 1 else "n"
        for tile_k in (64, 32, 16):
            for stages in (4, 3, 2):
                yield Config(
                    tile_m=tile_m,
                    tile_n=tile_n,
                    tile_k=tile_k,
                    stages=stages,
                    compute_wgs=compute_wgs,
                    wg_split=wg_split,
                    epi_m=64,
                    # 32 where a swizzle of 64 columns does not clip the output's edge
                    epi_n=min(
                        64 if problem.n % 64 == 0 else 32, tile_n // (compute_wgs if wg_split == "n" else 1)
                    ),
                    scopes=PLANS["joint"],
                )


def heuristic_configs(problem: Problem, device: Device) -> list[Config]:
    """Returns the legal configurations of the list, one a tile, those that keep the SMs busiest first.

    Args:
        problem: The problem they are for; all of them are legal for it.
        device: Its SM count decides what busy means.
    """
    first_by_tile: dict[tuple[int, int], Config] = {}
    for config in _configs(problem):
        tile = (config.tile_m, config.tile_n)
        if tile not in first_by_tile and not check(problem, config, device):
            first_by_tile[tile] = config

    def idle_share(config: Config) -> float:
        """The share of the device's time that padded tiles and a last, partly filled wave waste."""
        tiles = -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n)
        waves = -(-tiles // device.sm_count)
        useful = (problem.m * problem.n) / (config.tile_m * config.tile_n)
        return 1.0 - useful / (waves * device.sm_count)

    # A large tile may waste a quarter of the SMs' time before a smaller one, which reads more, is worth it.
    return sorted(first_by_tile.values(), key=lambda config: round(idle_share(config) * 4))
