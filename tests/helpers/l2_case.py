"""Times reading one operand at a time in each state of the L2, with a worker's own timer; prints one JSON object."""

from __future__ import annotations

import json
import os
import statistics
import types

from autotune import machine

STATES = ("warm", "activations_warm", "clean")
# 17 MB of activations and 17 MB of weights, which fit into the L2 together.
SIZES = {"m": 2048, "n": 2048, "k": 4096}


def main() -> None:
    uuid = machine.hopper_gpus()[0].uuid
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    import jax
    import jax.numpy as jnp

    from autotune.evaluate.cardtimer import card_timer
    from autotune.evaluate.chain import touching
    from autotune.evaluate.gpulock import GpuLock, lock_path
    from autotune.evaluate.timing import Lane
    from autotune.seam import MeasureProtocol
    from autotune.target import load_target

    target = load_target("hopper_matmul")
    problem = target.problem_from_fields(SIZES)
    timer = card_timer(uuid)
    timer.prepare()
    read = jax.jit(lambda operand: jnp.sum(operand.astype(jnp.float32)))
    found: dict[str, dict[str, float]] = {}
    with GpuLock(lock_path(uuid)):
        operands = jax.block_until_ready(target.operands(problem, 0))
        touch = touching(target, types.SimpleNamespace(problem=problem, operands=operands))
        for name, operand in zip(("activations", "weights"), operands, strict=True):
            program = read.lower(operand).compile()

            def call(program=program, operand=operand):
                return program(operand)

            lane = Lane(name=name, call=call, digest=name, touch=touch)
            found[name] = {}
            for state in STATES:
                sampled = timer.screen(lane, MeasureProtocol(l2=state, rounds=60), None)
                found[name][state] = statistics.median(sampled.samples_us)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
