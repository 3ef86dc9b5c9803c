"""Runs one variant in Pallas's GPU interpret mode on a CPU and prints its error and whether a race was found.

A process of its own, since a deadlock of the kernel hangs the interpreter: `python -m tests.helpers.interpret_case
'{"knobs": {...}, "problem": {...}, "sm_count": 2}'`. "leading" splits the batch of what
has one, or the rows of an lhs without one; with "walked_as" the tiles are walked by the table
of a configuration with these knobs.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys

import jax
import numpy as np
from jax._src.pallas.mosaic.interpret import race_detection_state
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks, shared_memory
from jax.experimental.pallas import mosaic_gpu as plgpu

from hopper_matmul import exchange, geometry, roles, widen
from hopper_matmul.config import Config
from hopper_matmul.geometry import Geometry
from hopper_matmul.hardware import KNOWN
from hopper_matmul.kernel import build
from hopper_matmul.legality import check
from hopper_matmul.matrix import Matrix
from hopper_matmul.problem import Problem
from hopper_matmul.reference import operands
from hopper_matmul.scopes import ScopePlan
from hopper_matmul.walk import tile_table
from tests.helpers.interpret_peers import store_to_peers


def _split(operand: jax.Array, leading: list[int] | None) -> jax.Array:
    """Returns an operand whose first dimension is taken apart as asked, if it is their product."""
    if leading is None or operand.shape[0] != math.prod(leading):
        return operand
    return operand.reshape(*leading, *operand.shape[1:])


def _see_bytes_one_way() -> None:
    """The members of a union have memory of their own there; but TMA clips anything, so that one view will do."""
    geometry.Matrix = lambda **fields: Matrix(**fields | {"is_viewed": False})


def _let_results_be_stored_twice() -> None:
    """Last tiles that threads store end where a matrix does, so that they and the ones before store the same bits."""
    check_write = race_detection_state.RaceDetectionState.check_write
    device_memory = shared_memory.get_memory_space_idx(plgpu.GMEM)

    def in_shared_memory(races, thread, clock, key, *rest, **named):
        if key.memory_space_id != device_memory:
            check_write(races, thread, clock, key, *rest, **named)

    race_detection_state.RaceDetectionState.check_write = in_shared_memory


def main(case: dict) -> dict:
    """Returns the relative error against float64, the legality, and whether the race detector spoke."""
    if case.get("without_union_barriers"):
        ScopePlan.is_union = property(lambda plan: False)
    device = dataclasses.replace(KNOWN["nvidia_h200"], sm_count=case["sm_count"])
    problem = Problem.from_fields({"m": 256, "n": 256, "k": 256} | case.get("problem", {}))
    config = Config.from_knobs({"tile_m": 128, "tile_n": 64, "stages": 2} | case["knobs"])
    if config.combine == "cluster":
        store_to_peers(config.split_k)
    if config.edges == "direct":
        _see_bytes_one_way()
        if problem.m % config.tile_m or problem.n % config.tile_n:
            _let_results_be_stored_twice()
    if case.get("widens_all"):
        widen._LEAST_BYTES = 0
        _let_results_be_stored_twice()
    if case.get("without_awaiting_room"):
        exchange._await_room = roles.give_back = lambda *_: None
    lhs, rhs = (_split(each, case.get("leading")) for each in operands(problem, 0))
    interpret = plgpu.InterpretGPUParams(detect_races=True)
    order = case.get("walked_as")
    table = ()
    if order is not None:
        ordered = dataclasses.replace(config, **order)
        table = (jax.numpy.asarray(tile_table(Geometry(problem=problem, config=ordered, device=device))),)
    function = build(problem, config, device, by_table=bool(table), interpret=interpret)
    try:
        out = np.asarray(jax.jit(function)(lhs, rhs, *table), np.float64)
    except Exception as error:
        # jax 0.12 raises at a race, 0.11 goes on and remembers it; both raise where a barrier runs ahead of who waits.
        ahead = ("no threads observed phase", "must observe each barrier completion")
        if not any(words in str(error) for words in ("RACE DETECTED", *ahead)):
            raise
        return {"error": None, "races": True, "rejected": []}
    left, right = np.asarray(lhs, np.float64), np.asarray(rhs, np.float64)
    reference = (left if problem.layout[0] == "n" else left.swapaxes(-1, -2)) @ (
        right if problem.layout[1] == "n" else right.swapaxes(-1, -2)
    )
    return {
        "error": float(np.linalg.norm(out - reference) / np.linalg.norm(reference)),
        "races": bool(gpu_callbacks.get_races().races_found),
        "rejected": [rejection.rule for rejection in check(problem, config, device)],
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
