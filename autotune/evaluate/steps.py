"""Lowering and compiling one candidate inside a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from autotune.evaluate.digest import module_digest
from autotune.evaluate.fault import charged_to
from autotune.seam import Candidate, Lowered


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A lowered candidate, ready to be compiled; `lowered` is what is reported of it."""

    stage: Any  # jax.stages.Lowered
    lowered: Lowered

    @property
    def result_type(self) -> jax.ShapeDtypeStruct:
        return self.stage.out_info


def lower_candidate(target: Any, candidate: Candidate, platform: str) -> Module:
    """Builds and lowers a candidate for `platform`; needs no GPU.

    Raises:
        CandidateError: "lower": building, tracing or lowering raised.
    """
    with charged_to("lower"):
        function = target.build(candidate.problem, candidate.config, candidate.device)
        return lower_function(function, target.operand_types(candidate.problem), platform)


def lower_function(
    function: Callable[..., Any], types: tuple[jax.ShapeDtypeStruct, ...], platform: str
) -> Module:
    """Lowers a function of operands of these types for `platform`."""
    start = time.perf_counter()
    stage = jax.jit(function).trace(*types).lower(lowering_platforms=(platform,))
    digest = module_digest(stage)
    return Module(stage=stage, lowered=Lowered(digest=digest, lower_s=time.perf_counter() - start))


def compile_module(
    module: Module, options: Mapping[str, Any] | None = None
) -> tuple[Callable[..., Any], float]:
    """Returns the loaded executable of a lowered module and the seconds it took.

    Args:
        options: Of XLA, by their names.

    Raises:
        CandidateError: "compile".
    """
    start = time.perf_counter()
    with charged_to("compile"):
        executable = module.stage.compile(compiler_options=dict(options) if options else None)
    return executable, time.perf_counter() - start
