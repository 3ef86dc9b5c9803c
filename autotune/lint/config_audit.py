"""The audit of the config tier: random configurations, judged by a target's check and by a real lowering."""

from __future__ import annotations

import random
import re
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import jax

from autotune.lint import jax_private
from autotune.lint.real_lowering import lower


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigAudit:
    """How a target's check compared with the real lowering on `count` random configurations."""

    count: int
    seed: int
    jax_version: str
    legal: int  # nothing broken, neither by the check nor by lowering
    refused: dict[str, int]  # what lowering refused, by the first rule that the check named
    forgotten: dict[str, int]  # what lowering let through and the check rejected, by its first rule
    false_accepts: int  # the check said that it lowers, tracing or lowering raised
    false_rejects: int  # the check said that it does not lower, and it does
    wrong_exceptions: int
    wrong_messages: int
    wrong_smem: int
    disagreements: tuple[str, ...]
    check_us: float  # medians
    trace_and_lower_ms: float

    @property
    def agrees(self) -> bool:
        return not self.disagreements


def audit_configs(target: Any, device: Any, count: int, seed: int) -> ConfigAudit:
    """Draws `count` variants, checks and lowers each, and counts where the two disagree.

    Args:
        target: A kernel family; its `random_variant` draws.
        device: What they are checked and lowered for.
        count: Number of variants; about 0.1 s a variant.
        seed: Of the generator; the same seed draws the same variants on every version of jax.
    """
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    forgotten: Counter[str] = Counter()
    disagreements, check_us, lower_ms = [], [], []
    for index in range(count):
        problem, config = target.random_variant(rng)
        start = time.perf_counter()
        rejections = target.check(problem, config, device)
        check_us.append(1e6 * (time.perf_counter() - start))
        predicted = next((one for one in rejections if one.exception), None)
        start = time.perf_counter()
        error, smem_bytes = _lowered(target, problem, config, device)
        lower_ms.append(1e3 * (time.perf_counter() - start))
        verdict = _verdict(predicted, error, target.smem_bytes(problem, config, device), smem_bytes)
        if verdict:
            counts[verdict] += 1
            said = predicted.line() if predicted else "it lowers"
            real = (
                f"{type(error).__name__}: {error}" if error else f"it lowers with {smem_bytes} bytes of SMEM"
            )
            disagreements.append(
                f"variant {index}: {verdict}: {problem} {config}: check: {said}; lowering: {real}"
            )
        elif predicted:
            refused[predicted.rule] += 1
        elif rejections:
            forgotten[rejections[0].rule] += 1
    return ConfigAudit(
        count=count,
        seed=seed,
        jax_version=jax.__version__,
        legal=count - refused.total() - forgotten.total() - len(disagreements),
        refused=dict(refused.most_common()),
        forgotten=dict(forgotten.most_common()),
        false_accepts=counts["false_accepts"],
        false_rejects=counts["false_rejects"],
        wrong_exceptions=counts["wrong_exceptions"],
        wrong_messages=counts["wrong_messages"],
        wrong_smem=counts["wrong_smem"],
        disagreements=tuple(disagreements),
        check_us=statistics.median(check_us),
        trace_and_lower_ms=statistics.median(lower_ms),
    )


def _lowered(target: Any, problem: Any, config: Any, device: Any) -> tuple[Exception | None, int | None]:
    """Returns what tracing or lowering raised, and the SMEM bytes that lowering counted if it came that far."""
    with jax_private.recorded_smem() as sizes:
        try:
            traced = jax.jit(target.build(problem, config, device)).trace(*target.operand_types(problem))
        except Exception as error:  # noqa: BLE001 - a refusal to trace is an outcome like any other
            return error, None
        error = lower(traced).error
    return error, max(sizes, default=None)


def _verdict(predicted: Any, error: Exception | None, smem_said: int, smem_real: int | None) -> str:
    """Returns what differs, as the name of a counter of ConfigAudit; empty where nothing does."""
    if predicted is None and error is not None:
        return "false_accepts"
    if predicted is not None and error is None:
        return "false_rejects"
    if predicted is not None and type(error).__name__ != predicted.exception:
        return "wrong_exceptions"
    if predicted is not None and not _says(str(error), predicted.message):
        return "wrong_messages"
    return "" if smem_real in (None, smem_said) else "wrong_smem"


def _says(real: str, predicted: str) -> bool:
    """Whether the compiler's text has the rule's words; MLIR wraps them, and traced values print as objects."""
    if not real:
        return True  # an assertion without a message
    return predicted in re.sub(r"\(JitTracer\([^)]*\)\) ", "", real)


def render(audit: ConfigAudit) -> str:
    """Returns the audit as text."""
    lines = [
        f"{audit.count} random configurations, seed {audit.seed}, jax {audit.jax_version}",
        f"legal {audit.legal}; lowering refuses {sum(audit.refused.values())}: {_listed(audit.refused)}",
        f"lowering lets through {sum(audit.forgotten.values())} that the GPU does not: {_listed(audit.forgotten)}",
        (
            f"false accepts {audit.false_accepts}, false rejects {audit.false_rejects}, other exception"
            f" {audit.wrong_exceptions}, other message {audit.wrong_messages}, other SMEM bytes {audit.wrong_smem}"
        ),
        f"medians: check {audit.check_us:.1f} us, trace and lower {audit.trace_and_lower_ms:.1f} ms",
    ]
    return "\n".join([*lines, *audit.disagreements])


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{rule} {number}" for rule, number in counts.items()) or "none"
