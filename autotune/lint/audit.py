"""The audit: generated kernels, judged by the walk and by a real lowering, which must agree in every word."""

from __future__ import annotations

import re
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import jax

from autotune.lint import jax_private, rules
from autotune.lint.checking import check_traced
from autotune.lint.model import Fault, Location, Report
from autotune.lint.real_lowering import lower
from autotune.lint.scope_trees import KernelSpec, TreeSource
from autotune.lint.trace_errors import trace_fault
from autotune.lint.tree_kernels import ARGUMENT, build

_ADDRESS = re.compile(r"\bid=\d+")
_NOWHERE = Location(file=__file__, line=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeAudit:
    """How the walk compared with the real lowering on `count` generated functions."""

    count: int
    seed: int
    jax_version: str
    legal: int  # lowering accepted
    false_accepts: int  # the walk said legal, lowering raised
    false_rejects: int  # the walk said illegal, lowering passed
    wrong_exceptions: int
    wrong_messages: int
    wrong_smem: int
    by_rule: dict[str, int]  # what lowering refused, by the rule of its message
    not_lowered: dict[str, int]  # what only the walk can see (stages launch and run), by rule
    disagreements: tuple[str, ...]
    trace_ms: float  # medians; of functions that trace
    walk_ms: float
    lower_ms: float

    @property
    def agrees(self) -> bool:
        return not self.disagreements


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    predicted: Fault | None
    error: Exception | None
    smem_predicted: tuple[int, ...] = ()
    smem_real: tuple[int, ...] = ()
    report: Report | None = None
    times_ms: tuple[float, float, float] | None = None

    def verdict(self) -> str:
        """Returns what differs, as the name of a counter of ScopeAudit; empty where nothing does."""
        if self.error is None and self.predicted is None:
            return "" if self.smem_predicted == self.smem_real else "wrong_smem"
        if self.predicted is None:
            return "false_accepts"
        if self.error is None:
            return "false_rejects"
        if type(self.error).__name__ != self.predicted.exception:
            return "wrong_exceptions"
        return "" if _same_message(str(self.error), self.predicted.message) else "wrong_messages"


def audit_scope_trees(count: int, seed: int) -> ScopeAudit:
    """Draws `count` functions, walks and lowers each, and counts where the two disagree.

    Args:
        count: Number of functions; each calls one or two kernels. About 0.1 to 0.2 s a function.
        seed: Of the generator; the same seed draws the same functions on every version of jax.
    """
    source = TreeSource(seed)
    programs = [source.program() for _ in range(count)]
    comparisons = [_compare(program) for program in programs]
    verdicts = [comparison.verdict() for comparison in comparisons]
    counts = Counter(verdicts)
    times = [one.times_ms for one in comparisons if one.times_ms is not None]
    medians = [statistics.median(column) for column in zip(*times, strict=True)] if times else [0.0, 0.0, 0.0]
    return ScopeAudit(
        count=count,
        seed=seed,
        jax_version=jax.__version__,
        legal=sum(one.error is None for one in comparisons),
        false_accepts=counts["false_accepts"],
        false_rejects=counts["false_rejects"],
        wrong_exceptions=counts["wrong_exceptions"],
        wrong_messages=counts["wrong_messages"],
        wrong_smem=counts["wrong_smem"],
        by_rule=_sorted(
            rules.rule_of_message(str(one.error)) for one in comparisons if one.error is not None
        ),
        not_lowered=_sorted(rule for one in comparisons for rule in _later_rules(one.report)),
        disagreements=tuple(
            f"function {index}: {verdict}: {_described(comparison)}"
            for index, (comparison, verdict) in enumerate(zip(comparisons, verdicts, strict=True))
            if verdict
        ),
        trace_ms=medians[0],
        walk_ms=medians[1],
        lower_ms=medians[2],
    )


def render(audit: ScopeAudit) -> str:
    """Returns the audit as text."""
    lines = [
        f"{audit.count} generated functions, seed {audit.seed}, jax {audit.jax_version}",
        f"lowering accepts {audit.legal} and refuses {audit.count - audit.legal}: {_listed(audit.by_rule)}",
        (
            f"false accepts {audit.false_accepts}, false rejects {audit.false_rejects}, other exception"
            f" {audit.wrong_exceptions}, other message {audit.wrong_messages}, other SMEM bytes {audit.wrong_smem}"
        ),
        f"seen by the walk alone: {_listed(audit.not_lowered)}",
        f"medians: trace {audit.trace_ms:.1f} ms, walk {audit.walk_ms:.1f} ms, lower {audit.lower_ms:.1f} ms",
    ]
    return "\n".join([*lines, *audit.disagreements])


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{rule} {number}" for rule, number in counts.items()) or "none"


def _compare(program: tuple[KernelSpec, ...]) -> _Comparison:
    start = time.perf_counter()
    try:
        traced = jax.jit(build(program)).trace(ARGUMENT)
    except Exception as error:  # noqa: BLE001 - a refusal to trace is an outcome like any other
        return _Comparison(predicted=trace_fault(error, _NOWHERE), error=error)
    trace_ms = 1e3 * (time.perf_counter() - start)
    report = check_traced(traced, "run", _NOWHERE)
    with jax_private.recorded_smem() as sizes:
        outcome = lower(traced)
    return _Comparison(
        predicted=report.predicted,
        error=outcome.error,
        smem_predicted=tuple(kernel.smem_bytes or 0 for kernel in report.kernels),
        smem_real=tuple(sizes),
        report=report,
        times_ms=(trace_ms, report.walk_ms, 1e3 * outcome.seconds),
    )


def _same_message(real: str, predicted: str) -> bool:
    # MLIR prints its value numbers into one message; the rest of it is compared. Others hold addresses of objects.
    if predicted == rules.NO_BARRIERS:
        return real.startswith(predicted)
    return _ADDRESS.sub("id", real) == _ADDRESS.sub("id", predicted)


def _later_rules(report: Report | None) -> list[str]:
    return (
        []
        if report is None
        else sorted({fault.rule for fault in report.faults if fault.stage in ("launch", "run")})
    )


def _described(comparison: _Comparison) -> str:
    real = "passed" if comparison.error is None else f"{type(comparison.error).__name__}: {comparison.error}"
    walked = comparison.predicted
    said = "legal" if walked is None else f"{walked.exception}: {walked.message}"
    smem = f" (SMEM {comparison.smem_predicted} and {comparison.smem_real})" if comparison.smem_real else ""
    return f"walk: {said}; lowering: {real}{smem}"


def _sorted(names: Any) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))
