"""What a legality check returns: buffers, scopes, kernels, faults and the report that holds them. No jax."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Stage = Literal["trace", "lower", "launch", "run"]
Tier = Literal["jaxpr", "lowering"]
BufferKind = Literal["accumulator", "smem", "union", "barrier", "tmem", "semaphore", "gmem", "other"]

# Hopper lets one CTA allocate 227 KiB (NVIDIA's Hopper tuning guide); lowering without a GPU uses the same number.
SMEM_LIMIT_BYTES = 232_448


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A place in somebody's Python file."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """One allocation of a scope. `shape` is the one the user wrote, before tiling."""

    name: str
    kind: BufferKind
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int  # what the elements need
    smem_bytes: int = 0  # what it takes of SMEM: rounded up to 1,024, 8 a barrier, 0 in registers
    line: int | None = None
    source: str = ""  # the expression in the user's file, or one that would allocate the same

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "kind": self.kind,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "bytes": self.size_bytes,
            "smem_bytes": self.smem_bytes,
            "line": self.line,
        }

    def describe(self) -> str:
        """Returns for instance `acc: accumulator float32[128, 128], 65,536 bytes`."""
        shape = ", ".join(str(extent) for extent in self.shape)
        return f"{self.name}: {self.kind} {self.dtype}[{shape}], {self.size_bytes:,} bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """One `run_scoped` of a kernel (or its `scratch_types`), in program order."""

    kernel: str
    depth: int  # 0: the scope of scratch_types, which every plgpu.kernel opens
    origin: Literal["scratch_types", "run_scoped"]
    collective_axes: tuple[str, ...]
    is_collective: bool  # over the warpgroups of the CTA, and over nothing else
    file: str
    line: int
    function: str = ""
    buffers: tuple[Buffer, ...] = ()
    smem_bytes: int = 0  # of its own buffers, without barriers
    total_smem_bytes: int = 0  # with every scope around it, without barriers

    def to_json(self) -> dict[str, object]:
        return {
            "kernel": self.kernel,
            "depth": self.depth,
            "origin": self.origin,
            "collective_axes": list(self.collective_axes),
            "is_collective": self.is_collective,
            "file": self.file,
            "line": self.line,
            "buffers": [buffer.to_json() for buffer in self.buffers],
            "smem_bytes": self.smem_bytes,
            "total_smem_bytes": self.total_smem_bytes,
            "smem_limit_bytes": SMEM_LIMIT_BYTES,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is illegal, with what would say so (`stage`, `exception`, `message`) and how to mend it.

    `exception` is the type name and `message` the text that tracing or lowering raises; where neither raises
    (stages launch and run) `exception` is empty and the message is ours.
    """

    rule: str
    message: str
    exception: str
    stage: Stage
    file: str
    line: int
    kernel: str = ""
    buffers: tuple[Buffer, ...] = ()
    mend: str = ""
    tier: Tier = "jaxpr"  # lowering: taken from a real lowering, since this jax is not one the walk knows

    def to_json(self) -> dict[str, object]:
        return {
            "rule": self.rule,
            "message": self.message,
            "exception": self.exception,
            "stage": self.stage,
            "file": self.file,
            "line": self.line,
            "kernel": self.kernel,
            "buffers": [buffer.to_json() for buffer in self.buffers],
            "mend": self.mend,
            "tier": self.tier,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One Mosaic GPU kernel that the checked function calls."""

    name: str
    file: str
    line: int
    semantics: Literal["warpgroup", "lane"]
    num_threads: int | None  # warpgroups; None where the kernel has no thread axis
    thread_name: str | None
    grid: tuple[int, ...]
    cluster: tuple[int, ...]
    smem_bytes: int | None  # as lowering counts them, barriers included; None where lowering stops before
    barrier_bytes: int = 0
    reduction_bytes: int = 0  # what reductions may reserve inside the deepest scope that has one
    scopes: tuple[Scope, ...] = ()

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "file": self.file,
            "line": self.line,
            "semantics": self.semantics,
            "num_threads": self.num_threads,
            "grid": list(self.grid),
            "cluster": list(self.cluster),
            "smem_bytes": self.smem_bytes,
            "smem_limit_bytes": SMEM_LIMIT_BYTES,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The verdict on one function. Faults stand in the order in which trace, lower, launch and run would meet them."""

    subject: str
    jax_version: str
    tier: Tier = "jaxpr"
    faults: tuple[Fault, ...] = ()
    warnings: tuple[Fault, ...] = ()  # legal, but probably not meant: they never change `ok`
    kernels: tuple[Kernel, ...] = ()
    notes: tuple[str, ...] = ()
    trace_ms: float = 0.0
    walk_ms: float = 0.0
    scopes: tuple[Scope, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scopes", tuple(scope for kernel in self.kernels for scope in kernel.scopes))

    @property
    def ok(self) -> bool:
        return not self.faults

    @property
    def predicted(self) -> Fault | None:
        """What the real trace or lowering raises, or None where both pass."""
        return next(self._raising(), None)

    def _raising(self) -> Iterator[Fault]:
        return (fault for fault in self.faults if fault.stage in ("trace", "lower"))

    def to_json(self) -> dict[str, object]:
        return {
            "ok": self.ok,
            "faults": [fault.to_json() for fault in self.faults],
            "scopes": [scope.to_json() for scope in self.scopes],
            "warnings": [warning.to_json() for warning in self.warnings],
            "kernels": [kernel.to_json() for kernel in self.kernels],
            "notes": list(self.notes),
            "subject": self.subject,
            "tier": self.tier,
            "jax": self.jax_version,
            "trace_ms": round(self.trace_ms, 3),
            "walk_ms": round(self.walk_ms, 3),
        }
