"""The report for people. No jax."""

from __future__ import annotations

import os

from autotune.lint.model import SMEM_LIMIT_BYTES, Fault, Kernel, Report, Scope

_STAGE_NOTES = {
    "trace": "raised while tracing",
    "lower": "raised by lowering",
    "launch": "lowering accepts it, the launch fails",
    "run": "lowering accepts it, the kernel hangs",
}


def render(report: Report) -> str:
    """Returns the whole report: the verdict, each fault with its mend, and the table of scopes of each kernel."""
    blocks = [_verdict(report)]
    blocks += [_fault(number, fault) for number, fault in enumerate(report.faults, start=1)]
    blocks += [_warning(warning) for warning in report.warnings]
    blocks += [_kernel(kernel) for kernel in report.kernels]
    blocks += [f"note: {note}" for note in report.notes]
    return "\n\n".join(blocks)


def _verdict(report: Report) -> str:
    count = len(report.faults)
    verdict = "legal" if report.ok else f"{count} fault{'s' if count > 1 else ''}"
    if report.faults and not report.kernels and report.faults[0].stage == "trace":
        return f"{report.subject}: {verdict} (tracing stops; jax {report.jax_version})"
    kernels = f"{len(report.kernels)} kernel{'' if len(report.kernels) == 1 else 's'}"
    how = "lowered for real" if report.tier == "lowering" else f"{kernels}, walked in {report.walk_ms:.1f} ms"
    return f"{report.subject}: {verdict} ({how}; jax {report.jax_version})"


def _fault(number: int, fault: Fault) -> str:
    said = f"{fault.exception}: {fault.message}" if fault.exception else fault.message
    lines = [
        f"{number}. [{fault.rule}] {_place(fault.file, fault.line)}  ({_STAGE_NOTES[fault.stage]})",
        f"   {said}",
    ]
    lines += [f"   - {buffer.describe()}{_at(buffer.line)}" for buffer in fault.buffers]
    if fault.mend:
        lines += ["   mend:", *[f"   {line}".rstrip() for line in fault.mend.split("\n")]]
    return "\n".join(lines)


def _warning(warning: Fault) -> str:
    lines = [f"warning [{warning.rule}] {_place(warning.file, warning.line)}", f"   {warning.message}"]
    return "\n".join(lines + ([f"   {warning.mend}"] if warning.mend else []))


def _kernel(kernel: Kernel) -> str:
    threads = (
        "one warpgroup" if kernel.num_threads is None else f'{kernel.num_threads} x "{kernel.thread_name}"'
    )
    head = f"scopes of {kernel.name} ({_place(kernel.file, kernel.line)}; {threads}; {kernel.semantics} semantics)"
    rows = [("scope", "collective", "buffers", "own bytes", "SMEM held")]
    rows += [_row(scope) for scope in kernel.scopes]
    if kernel.reduction_bytes:
        rows.append(
            ("  (reductions)", "", "scratch inside the deepest scope", f"{kernel.reduction_bytes:,}", "")
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [head, *[_aligned(row, widths) for row in rows], _total(kernel)]
    return "\n".join(lines)


def _row(scope: Scope) -> tuple[str, str, str, str, str]:
    name = "scratch_types" if scope.origin == "scratch_types" else f"run_scoped:{scope.line}"
    axes = ", ".join(scope.collective_axes) if scope.collective_axes else "no"
    names = ", ".join(f"{buffer.name} {_short(buffer.kind)}" for buffer in scope.buffers) or "-"
    held = f"{scope.total_smem_bytes:,}"
    return "  " + "  " * scope.depth + name, axes, names, f"{scope.smem_bytes:,}", held


def _short(kind: str) -> str:
    return {"accumulator": "(acc)", "barrier": "(barrier)", "semaphore": "(semaphore)"}.get(kind, f"({kind})")


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    cells = [
        cell.ljust(width) if column < 3 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths))
    ]
    return "  ".join(cells).rstrip()


def _total(kernel: Kernel) -> str:
    if kernel.smem_bytes is None:
        return "  SMEM: not known, since lowering stops before it counts"
    left = SMEM_LIMIT_BYTES - kernel.smem_bytes
    state = f"{left:,} free" if left >= 0 else f"{-left:,} too many"
    used = f"{kernel.smem_bytes:,} of {SMEM_LIMIT_BYTES:,} bytes"
    return f"  SMEM: {used}, barriers {kernel.barrier_bytes:,} of them; {state}"


def _at(line: int | None) -> str:
    return "" if line is None else f" (line {line})"


def _place(file: str, line: int) -> str:
    relative = os.path.relpath(file) if os.path.isabs(file) else file
    return f"{file if relative.startswith('..') else relative}:{line}"
