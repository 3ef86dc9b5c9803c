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
    """A lowered candidate or rival, ready to be compiled; `lowered` is what is reported of it.

    Attributes:
        writes_in_place: Its last argument is never read, has the result's type, and is donated to it.
    """

    stage: Any  # jax.stages.Lowered
    lowered: Lowered
    writes_in_place: bool = False

    @property
    def result_type(self) -> jax.ShapeDtypeStruct:
        return self.stage.out_info


def lower_candidate(target: Any, candidate: Candidate, platform: str, *, shared: Any = None) -> Module:
    """Builds and lowers a candidate for `platform`, so that it writes where it is told to; needs no GPU.

    Args:
        shared: Its run-time knobs as an operand, which then is no part of the module; None: it is built as it ships.

    Raises:
        CandidateError: "lower": building, tracing or lowering raised.
    """
    with charged_to("lower"):
        problem = candidate.problem
        types = target.operand_types(problem)
        result = jax.eval_shape(target.rival(problem), *types)
        build = target.build if shared is None else target.build_shared
        function = build(problem, candidate.config, candidate.device)
        knobs = () if shared is None else (jax.ShapeDtypeStruct(shared.shape, shared.dtype),)
        return _lowered(_with_room(function), (*types, *knobs, result), platform, writes_in_place=True)


def lower_function(
    function: Callable[..., Any], types: tuple[jax.ShapeDtypeStruct, ...], platform: str
) -> Module:
    """Lowers a function of operands of these types for `platform`, as a user would."""
    return _lowered(function, types, platform, writes_in_place=False)


def _lowered(
    function: Callable[..., Any],
    types: tuple[jax.ShapeDtypeStruct, ...],
    platform: str,
    *,
    writes_in_place: bool,
) -> Module:
    start = time.perf_counter()
    donated = (len(types) - 1,) if writes_in_place else ()
    jitted = jax.jit(function, donate_argnums=donated, keep_unused=writes_in_place)
    stage = jitted.trace(*types).lower(lowering_platforms=(platform,))
    digest = module_digest(stage)
    lowered = Lowered(digest=digest, lower_s=time.perf_counter() - start)
    return Module(stage=stage, lowered=lowered, writes_in_place=writes_in_place)


def _with_room(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with one more argument, which it ignores, under the same name."""

    def with_room(*arguments: Any) -> Any:
        return function(*arguments[:-1])

    with_room.__name__ = getattr(function, "__name__", with_room.__name__)
    return with_room


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
