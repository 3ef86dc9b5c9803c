"""Random problems, configurations and allocation plans, legal and illegal, for comparing the check with lowering."""

from __future__ import annotations

import dataclasses
import random

from hopper_matmul.config import Config
from hopper_matmul.problem import BROADCASTS, Problem
from hopper_matmul.scopes import BUFFERS, PLACES, PLANS, Scope, ScopePlan

# Values around every limit; each draw changes about a quarter of the knobs.
_VALUES = {
    "tile_m": (4, 8, 16, 24, 32, 64, 96, 128, 192, 256, 384, 4096),
    "tile_n": (8, 16, 32, 64, 80, 96, 128, 160, 192, 224, 256, 320, 512),
    "tile_k": (8, 16, 32, 64, 96, 128, 256),
    "stages": (1, 2, 3, 4, 5, 6, 8, 33),
    "compute_wgs": (1, 2, 3, 4, 5, 7, 8, 11, 16),
    "wg_split": ("m", "n", "tile"),
    "cluster_m": (1, 1, 1, 2, 3, 4),
    "cluster_n": (1, 1, 1, 2, 4, 8),
    "grid_minor": ("m", "n"),
    "raster_width": (1, 3, 4, 8),
    "persistent": (True, False),
    "swap_ab": (True, True, False),
    "split_k": (1, 2, 4, 7, 100),
    "combine": ("kernel", "cluster", "cluster", "cluster"),
    "edges": ("pad", "view", "view", "direct"),
    "pdl": (True, False),
    "max_sms": (0, 1, 16, 200),
    "epi_m": (8, 12, 16, 24, 32, 64, 128, 192),
    "epi_n": (4, 8, 16, 32, 48, 64, 96, 128, 256),
    "delay_release": (0, 1, 2),
    "memory_registers": (0, 8, 24, 40, 64, 100, 200),
    "scopes": tuple(PLANS.values()),
}


def random_plan(rng: random.Random) -> ScopePlan:
    """Returns a well-formed plan of one to four scopes, legal or not."""
    while True:
        held: list[list[str]] = [[] for _ in range(rng.randint(1, 4))]
        for buffer in BUFFERS:
            rng.choice(held).append(buffer)
        places = sorted((rng.choice(PLACES) for _ in held), key=PLACES.index)
        scopes = []
        for place, holds in zip(places, held, strict=True):
            if holds:
                is_acc_alone = holds == ["accumulator"]
                scopes.append(
                    Scope(
                        place=place,
                        holds=tuple(holds),
                        collective=rng.random() < (0.15 if is_acc_alone else 0.85),
                        shared={"ring", "epilogue"} <= set(holds) and rng.random() < 0.4,
                    )
                )
        try:
            return ScopePlan(name="random", scopes=tuple(scopes))
        except ValueError:
            continue


def random_variant(rng: random.Random) -> tuple[Problem, Config]:
    """Returns a problem that the kernel computes and a configuration for it; nine in ten are illegal."""
    knobs = {name: rng.choice(values) for name, values in _VALUES.items() if rng.random() < 0.22}
    if rng.random() < 0.5:
        knobs["scopes"] = random_plan(rng)
    dtype = rng.choice(["bfloat16", "float16"])
    batch = rng.choice([1, 1, 3])
    columns = [333, 514, 4097] if knobs.get("edges") == "direct" else [4096, 1536, 5120, 1000, 96, 8, 333]
    problem = Problem(
        m=rng.choice([1024, 4096, 3000, 1, 16, 100, 4097]),
        n=rng.choice(columns),
        k=rng.choice([4096, 64, 1000, 8, 7]) if rng.random() < 0.3 else 4096,
        layout=rng.choice(["nn", "nn", "nt", "tn", "tt"]),
        lhs_dtype=dtype,
        rhs_dtype=dtype,
        out_dtype=rng.choice([dtype, "float32"]),
        batch=batch,
        broadcast="none" if batch == 1 else rng.choice(BROADCASTS),
    )
    return problem, dataclasses.replace(Config(), **knobs)
