"""What the real compiler says of a configuration: the oracle that the early check is held against."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import jax
from jax.experimental.mosaic.gpu import core as mosaic_core

from hopper_matmul.config import Config
from hopper_matmul.hardware import Device
from hopper_matmul.kernel import build
from hopper_matmul.problem import Problem
from hopper_matmul.reference import operand_types


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How tracing and lowering ended.

    Attributes:
        stage: "trace" or "lower" where an exception was raised there, else "ok".
        smem_bytes: What lowering counted; None where it did not come that far.
    """

    stage: str
    exception: str | None = None
    message: str = ""
    smem_bytes: int | None = None


def lower_for_real(problem: Problem, config: Config, device: Device) -> Verdict:
    """Traces and lowers one variant for CUDA, with no GPU, and reports what happened."""
    try:
        traced = jax.jit(build(problem, config, device)).trace(*operand_types(problem))
    except Exception as error:  # noqa: BLE001 - whatever the compiler raises is the verdict
        return Verdict(stage="trace", exception=type(error).__name__, message=str(error))
    counted: list[int] = []
    count = mosaic_core._smem_tree_size
    # The outermost call, which counts the whole tree, returns last.
    mosaic_core._smem_tree_size = lambda tree: counted.append(count(tree)) or counted[-1]
    try:
        traced.lower(lowering_platforms=("cuda",))
        verdict = Verdict(stage="ok")
    except Exception as error:  # noqa: BLE001 - whatever the compiler raises is the verdict
        verdict = Verdict(stage="lower", exception=type(error).__name__, message=str(error))
    finally:
        mosaic_core._smem_tree_size = count
    return dataclasses.replace(verdict, smem_bytes=max(counted, default=None))
