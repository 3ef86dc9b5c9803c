"""What does it take to copy a matrix whose rows do not fill 16 bytes? By kernels/hopper_matmul/widen.py, and by XLA.

    PYTHONPATH=.:kernels python benchmarks/widen_rate.py [--rounds 20]

Kernel durations by CUPTI, both in every round, the caches flushed by reads before each call; a row for each matrix.
The exit code is 0 where the kernel is the faster one for all that it takes, see `widen.can_widen`.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autotune.evaluate.cardtimer import card_timer
from autotune.evaluate.timing import CuptiTimer, Lane
from autotune.seam import MeasureProtocol
from autotune.target import load_target
from benchmarks.card import card_of
from hopper_matmul import widen

TILE = 128
# Rows, columns, and the columns that they are filled to; None: whole tiles.
MATRICES: tuple[tuple[int, int, int | None], ...] = (
    (4096, 4097, None),
    (1024, 50257, None),
    (2048, 1111, None),
    (4096, 2049, None),
    (65536, 300, 304),
    (4096, 4100, 4104),
)


def by_xla(matrix: jax.Array, width: int | None) -> jax.Array:
    n = matrix.shape[-1]
    if width is not None:
        return jnp.pad(matrix, ((0, 0), (0, width - n)))
    whole = (-(-n // TILE) - 1) * TILE
    return jnp.concatenate([matrix[:, :whole], matrix[:, n - TILE :]], axis=-1)


def by_kernel(matrix: jax.Array, width: int | None) -> jax.Array:
    return widen.in_whole_tiles(matrix, TILE) if width is None else widen.filled(matrix, width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    card = card_of(parser, load_target("hopper_matmul"))
    timer = card_timer(card.gpu.uuid)
    timer.prepare()
    rows = [measured(*matrix, rounds, timer.cupti) for matrix in MATRICES]
    sys.exit(0 if all(row["is_right"] and (row["is_faster"] or not row["is_taken"]) for row in rows) else 1)


def measured(rows: int, n: int, width: int | None, rounds: int, timer: CuptiTimer) -> dict[str, Any]:
    """Returns what both copies of one matrix took, and prints it."""
    matrix = jax.random.normal(jax.random.key(n), (rows, n), jnp.bfloat16)
    copies = {
        name: jax.jit(copy, static_argnums=1).lower(matrix, width).compile()
        for name, copy in (("kernel", by_kernel), ("xla", by_xla))
    }
    ours, theirs = (np.asarray(copy(matrix))[:, : width and n] for copy in copies.values())
    row: dict[str, Any] = {"matrix": [rows, n], "filled_to": width, "is_right": bool((ours == theirs).all())}
    lanes = [
        Lane(name=name, call=functools.partial(copy, matrix), digest=name, is_kept=True)
        for name, copy in copies.items()
    ]
    for lane, sampled in zip(lanes, timer.race(lanes, MeasureProtocol(), rounds, lambda: None), strict=True):
        time_us = float(np.median(sampled.samples_us))
        row |= {
            f"{lane.name}_us": round(time_us, 2),
            f"{lane.name}_tb_s": round(2 * matrix.nbytes / time_us / 1e6, 2),
        }
    row["is_faster"] = row["kernel_us"] < row["xla_us"]
    row["is_taken"] = widen.can_fill((rows, n), 2) if width else widen.can_widen((rows, n), 2, TILE)
    print(json.dumps(row), flush=True)
    return row


if __name__ == "__main__":
    main()
