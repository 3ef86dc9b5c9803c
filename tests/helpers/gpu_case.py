"""Runs variants on the GPU, for tests that must survive a hang: `python -m tests.helpers.gpu_case '[{...}, ...]'`.

Each case is {"problem": {...}, "knobs": {...}}; with "by_table" the order of the tiles is an operand. Prints one JSON
line a case: mismatches of an integer-valued product compared by bits, the relative error on normal values, and elements
that kept the poison.
"""

from __future__ import annotations

import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from hopper_matmul.config import Config
from hopper_matmul.geometry import Geometry
from hopper_matmul.hardware import device_named
from hopper_matmul.kernel import build
from hopper_matmul.problem import Problem
from hopper_matmul.reference import operand_types, operands, reference
from hopper_matmul.walk import tile_table

REPEATS = 20


def small_integers(problem: Problem, seed: int) -> list[jax.Array]:
    """Values from -2 to 2, so that sums of up to 2^20 products of them are exact in float32."""
    keys = jax.random.split(jax.random.key(seed), 2)
    return [
        jax.random.randint(key, operand.shape, -2, 3).astype(operand.dtype)
        for key, operand in zip(keys, operand_types(problem), strict=True)
    ]


def _with_table(kernel, table: jax.Array, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    return kernel(lhs, rhs, table)


def main(case: dict) -> dict:
    """Returns what one variant did; every comparison is repeated on the same inputs."""
    problem = Problem.from_fields(case["problem"])
    device = device_named(jax.devices()[0].device_kind)
    config = Config.from_knobs(case["knobs"])
    kernel = jax.jit(build(problem, config, device))
    if case.get("by_table"):
        table = jnp.asarray(tile_table(Geometry(problem=problem, config=config, device=device)))
        kernel = functools.partial(_with_table, jax.jit(build(problem, config, device, by_table=True)), table)
    exact = jax.jit(reference(problem))
    integers = small_integers(problem, 1)
    expected = np.asarray(exact(*integers).astype(problem.out_dtype))
    expected_shape, expected = expected.shape, expected.view(np.uint8)
    differing = unwritten = 0
    for _ in range(REPEATS):
        poison = jnp.full(expected_shape, jnp.nan, problem.out_dtype)
        jax.block_until_ready(poison)
        del poison
        out = kernel(*integers)
        unwritten += int(jnp.isnan(out).sum())
        differing += int((np.asarray(out).view(np.uint8) != expected).sum())
    normal = operands(problem, 2)
    truth = exact(*normal)
    error = jnp.linalg.norm(kernel(*normal).astype(jnp.float32) - truth) / jnp.linalg.norm(truth)
    return {"differing": differing, "unwritten": unwritten, "error": float(error)}


if __name__ == "__main__":
    for one in json.loads(sys.argv[1]):
        print(json.dumps(main(one)), flush=True)
