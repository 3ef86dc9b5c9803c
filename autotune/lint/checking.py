"""`check`: traces a function, walks what it traced, and reports what is illegal in its Mosaic GPU kernels."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

import jax

from autotune.errors import InputError
from autotune.lint import jax_private, mend
from autotune.lint.kernel_check import check_kernel
from autotune.lint.kernels import ForeignKernel, KernelSearch
from autotune.lint.model import Fault, Location, Report
from autotune.lint.real_lowering import lower, lowering_fault
from autotune.lint.text import render
from autotune.lint.trace_errors import trace_fault
from autotune.lint.tracebacks import frames, one_line, user_location

_STAGES = ("trace", "lower", "launch", "run")


def check(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
    """Checks every Pallas Mosaic GPU kernel that `fn(*args, **kwargs)` would run, without lowering or running any.

    Args:
        fn: A function of arrays that calls kernels made by `plgpu.kernel`; jitted or not.
        *args: Its arguments. Of arrays and `jax.ShapeDtypeStruct` only shapes and dtypes matter; anything else (a
            number, a config) is passed on as it is.
        **kwargs: Its keyword arguments, alike.

    Returns:
        A report; `report.ok` is False where tracing, lowering, launching or running would fail.

    Raises:
        InputError: `fn` cannot be traced with these arguments for a reason that is not Pallas's, or calls no Mosaic
            GPU kernel.
    """
    subject = getattr(fn, "__name__", None) or type(fn).__name__
    place = _definition(fn)
    start = time.perf_counter()
    try:
        traced = trace(fn, args, kwargs)
    except (Exception, SystemExit) as error:  # a function that ends the process must not pass for a legal one
        fault = trace_fault(error, place)
        if fault is None:
            raise InputError(_untraceable(subject, error)) from error
        elapsed_ms = 1e3 * (time.perf_counter() - start)
        return Report(subject=subject, jax_version=jax.__version__, faults=(fault,), trace_ms=elapsed_ms)
    return check_traced(traced, subject, place, trace_ms=1e3 * (time.perf_counter() - start))


def trace(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the `jax.stages.Traced` of `fn`, traced over its arrays only."""
    if hasattr(fn, "trace"):  # jitted by its author, who has said what is static
        return fn.trace(*args, **kwargs)
    positional = {position: value for position, value in enumerate(args) if _is_arrays(value)}
    named = {name: value for name, value in kwargs.items() if _is_arrays(value)}

    def over_arrays(positional: dict[int, Any], named: dict[str, Any]) -> Any:
        given = [positional.get(position, value) for position, value in enumerate(args)]
        return fn(*given, **(kwargs | named))

    return jax.jit(over_arrays).trace(positional, named)


def _is_arrays(value: Any) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves)


def check_traced(traced: Any, subject: str, place: Location, *, trace_ms: float = 0.0) -> Report:
    """Checks a `jax.stages.Traced`. Where the walk cannot be trusted with this jax, it lowers for real and says so."""
    reason = jax_private.distrust()
    if reason:
        return _lowered_report(traced, subject, place, reason, trace_ms)
    try:
        return _walked_report(traced, subject, place, trace_ms)
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - a kernel that the walk trips over still gets lowering's verdict
        where = frames(error)[-1].location
        reason = f"the walk stopped at {where.file.rpartition('/')[2]}:{where.line} with {one_line(error)}"
        return _lowered_report(traced, subject, place, reason, trace_ms)


def assert_legal(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Asserts, in a test, that every Mosaic GPU kernel of `fn(*args, **kwargs)` is legal.

    Raises:
        AssertionError: With the report that `autotune check` prints.
        InputError: As `check`.
    """
    report = check(fn, *args, **kwargs)
    if not report.ok:
        raise AssertionError(render(report))


def _walked_report(traced: Any, subject: str, place: Location, trace_ms: float) -> Report:
    start = time.perf_counter()
    search = KernelSearch.of(jax_private.live(traced.jaxpr), place)
    dropped = _unused(traced, search, place)
    faults: list[Fault] = []
    warnings: list[Fault] = []
    verdicts = []
    for entry in search.entries:
        if isinstance(entry, ForeignKernel):
            faults += [_mosaic_pallas_call(entry)] if entry.is_mosaic_gpu else []
            continue
        verdict = check_kernel(entry)
        faults += verdict.faults
        warnings += verdict.warnings
        verdicts.append(verdict)
    walk_ms = 1e3 * (time.perf_counter() - start)
    if not verdicts and not faults:
        raise InputError(_no_kernel(subject, search, dropped))
    return Report(
        subject=subject,
        jax_version=jax.__version__,
        faults=tuple(sorted(faults, key=lambda fault: _STAGES.index(fault.stage))),
        warnings=tuple(warnings),
        kernels=tuple(verdict.kernel() for verdict in verdicts),
        notes=_notes(search, dropped),
        trace_ms=trace_ms,
        walk_ms=walk_ms,
    )


def _lowered_report(traced: Any, subject: str, place: Location, reason: str, trace_ms: float) -> Report:
    outcome = lower(traced)
    if outcome.error is None and not outcome.has_mosaic_kernel:
        raise InputError(f"{subject} calls no Pallas Mosaic GPU kernel (plgpu.kernel)")
    return Report(
        subject=subject,
        jax_version=jax.__version__,
        tier="lowering",
        faults=() if outcome.error is None else (lowering_fault(outcome.error, place),),
        notes=(
            f"lowered for real, since {reason}; what only a launch or a run would show was not looked at",
        ),
        trace_ms=trace_ms,
    )


def _mosaic_pallas_call(entry: ForeignKernel) -> Fault:
    return Fault(
        rule="unsupported",
        message="",  # lowering dies of a bare assert
        exception="AssertionError",
        stage="lower",
        file=entry.location.file,
        line=entry.location.line,
        kernel=entry.name,
        mend=mend.MOSAIC_PALLAS_CALL,
    )


def _unused(traced: Any, search: KernelSearch, place: Location) -> list[str]:
    """Returns the names of kernels whose results nobody uses: jit drops them, so they cannot fail."""
    everything = KernelSearch.of(traced.jaxpr, place).calls
    used = [call.name for call in search.calls]
    return [call.name for call in everything if call.name not in used] if len(everything) > len(used) else []


def _notes(search: KernelSearch, dropped: list[str]) -> tuple[str, ...]:
    notes = [f"kernel {name} was not checked: nothing uses its result, so jit drops it" for name in dropped]
    others = [entry for entry in search.foreign if not entry.is_mosaic_gpu]
    notes += [f"kernel {entry.name} was not checked: its backend is {entry.backend}" for entry in others]
    interpreted = [call.name for call in search.calls if call.is_interpreted]
    notes += [
        f"kernel {name} is in interpret mode; it was checked as if it were to be compiled"
        for name in interpreted
    ]
    return tuple(notes)


def _no_kernel(subject: str, search: KernelSearch, dropped: list[str]) -> str:
    if search.foreign:
        names = ", ".join(f"{entry.name} ({entry.backend})" for entry in search.foreign)
        return f"{subject} calls no Pallas Mosaic GPU kernel, only those of another backend: {names}"
    if dropped:
        return f"{subject} returns nothing of its kernels {', '.join(dropped)}, so jit drops them: return their results"
    return f"{subject} calls no Pallas Mosaic GPU kernel (plgpu.kernel)"


def _untraceable(subject: str, error: Exception) -> str:
    place = user_location(error)
    where = f" ({place})" if place is not None else ""
    return f"{subject} cannot be traced with these arguments: {one_line(error)}{where}"


def _definition(fn: Callable[..., Any]) -> Location:
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is None:
        return Location(file="<unknown>", line=0)
    return Location(file=code.co_filename, line=code.co_firstlineno, function=code.co_qualname)
