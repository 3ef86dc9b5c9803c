"""Checks one kernel: everything lowering would raise, in its order, then what only a launch or a run would show."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.lint import jax_private, mend, rules
from autotune.lint.divergence import Warpgroup, divergence, run_warpgroups
from autotune.lint.kernels import KernelCall
from autotune.lint.launch import launch_faults, register_fault
from autotune.lint.lowering_walk import Finding, body_findings
from autotune.lint.model import SMEM_LIMIT_BYTES, Buffer, Fault, Kernel, Scope, Stage
from autotune.lint.resources import BARRIER_BYTES, ScopeTable, buffers_of, scope_table, with_sources


@dataclass(slots=True)
class KernelCheck:
    """The verdict on one kernel."""

    call: KernelCall
    table: ScopeTable
    faults: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)
    smem_bytes: int | None = None
    barrier_bytes: int = 0

    def kernel(self) -> Kernel:
        """Returns the kernel with its table of scopes, each buffer with its line in the user's file."""
        mesh = self.call.mesh
        return Kernel(
            name=self.call.name,
            file=self.call.location.file,
            line=self.call.location.line,
            semantics="lane" if self.call.is_lane else "warpgroup",
            num_threads=mesh.num_threads,
            thread_name=None if mesh.thread_name is None else str(mesh.thread_name),
            grid=tuple(mesh.grid),
            cluster=tuple(mesh.cluster),
            smem_bytes=self.smem_bytes,
            barrier_bytes=self.barrier_bytes,
            reduction_bytes=self.table.reduction_bytes,
            scopes=tuple(map(with_sources, self.table.scopes)),
        )

    # --- the order of lowering --------------------------------------------------------------------------------------

    def run(self) -> None:
        """Fills in faults and warnings."""
        if self.call.params.dimension_semantics is not None:
            self._add("NotImplementedError", rules.DIMENSION_SEMANTICS, mend="Leave dimension_semantics out.")
        estimated = self._estimate()
        if estimated is not None:
            self._check_capacity(estimated)
        self._check_launch_code()
        for finding in body_findings(self.call):
            self._add_finding(finding)
        self._check_empty_barriers()
        self._check_launch()
        self._check_warpgroups(run_warpgroups(self.call))

    def _estimate(self) -> Any | None:
        try:
            return jax_private.estimate(self.call.jaxpr, self.call.mesh, self.call.params)
        except Exception as error:  # noqa: BLE001 - whatever the estimate raises is what lowering raises
            message = str(error)
            eqn = jax_private.culprit(error, "_estimate_resources")
            finding = Finding(
                rule=rules.rule_of_message(message), message=message, exception=type(error).__name__, eqn=eqn
            )
            self._add_finding(finding)
            return None

    def _check_capacity(self, estimated: Any) -> None:
        if estimated.tmem_scratch_cols and estimated.tmem_collective_scratch_cols:
            message = "Can't mix collective and non-collective TMEM allocations within the same kernel."
            self._add("ValueError", message)
        self.barrier_bytes = BARRIER_BYTES * sum(barrier.num_barriers for barrier in estimated.barriers)
        has_tmem = estimated.tmem_scratch_cols + estimated.tmem_collective_scratch_cols > 0
        total = estimated.smem_scratch_bytes + self.barrier_bytes + 4 * has_tmem
        profiler = jax_private.profiler_smem_bytes(self.call.params, self.call.num_warpgroups)
        self.smem_bytes = total if not profiler else -(-total // 8) * 8 + profiler
        if self.smem_bytes > SMEM_LIMIT_BYTES:
            chain = [with_sources(self.table.scopes[index]) for index in self.table.deepest]
            over = next(
                (s for s in chain if s.total_smem_bytes + self.barrier_bytes > SMEM_LIMIT_BYTES), None
            )
            buffers = [buffer for scope in chain for buffer in scope.buffers if buffer.smem_bytes]
            self._add(
                "ValueError",
                rules.smem(self.smem_bytes, SMEM_LIMIT_BYTES),
                scope=over or (chain[-1] if chain else None),
                buffers=tuple(buffers),
                mend=mend.smem(chain, self.smem_bytes),
            )

    def _check_launch_code(self) -> None:
        if 0 in self.call.mesh.cluster:
            self._add(
                "ZeroDivisionError",
                "integer modulo by zero",
                rule="launch",
                mend="Make each cluster axis positive.",
            )
        num_warpgroups = self.call.num_warpgroups
        if jax_private.version_rules().limits_cta_barriers and num_warpgroups > 15:
            self._add("ValueError", rules.cta_barriers(num_warpgroups), mend=mend.THREADS)
        for scope in self.table.scopes:
            crowded = [_count(b) > rules.MAX_BARRIERS_PER_GROUP for b in scope.buffers]
            if any(crowded):
                scope, buffers = _chosen(scope, crowded)
                text = mend.barriers_per_group(buffers)
                self._add(
                    "NotImplementedError", rules.BARRIERS_PER_GROUP, scope=scope, buffers=buffers, mend=text
                )

    def _check_empty_barriers(self) -> None:
        for scope in self.table.scopes:
            empty = [b.kind == "barrier" and b.dtype == "barrier" and _count(b) == 0 for b in scope.buffers]
            if any(empty):
                scope, buffers = _chosen(scope, empty)
                text = mend.no_barriers(buffers)
                if self.call.is_lane:
                    message = (
                        "A group of no barriers: Lane semantics lower it, but waiting on it has no meaning."
                    )
                    self._warn("barriers", message, "run", scope=scope, buffers=buffers, mend=text)
                else:
                    self._add("VerificationError", rules.NO_BARRIERS, scope=scope, buffers=buffers, mend=text)

    # --- what lowering does not check -------------------------------------------------------------------------------

    def _check_launch(self) -> None:
        mesh = self.call.mesh
        for found in launch_faults(tuple(mesh.grid), tuple(mesh.cluster), mesh.num_threads):
            fault = self._fault("launch", found.message, "", "launch", mend=found.mend)
            (self.warnings if found.is_warning else self.faults).append(fault)
        for eqn in jax_private.all_equations(self.call.jaxpr):
            if jax_private.primitive_name(eqn) != "set_max_registers":
                continue
            found = register_fault(eqn.params["n"])
            if found is not None:
                fault = self._fault("launch", found.message, "", "launch", mend=found.mend)
                here = jax_private.location(eqn) or self.call.location
                self.faults.append(replace(fault, file=here.file, line=here.line))
        for scope in self.table.scopes:
            tensor = [buffer.kind == "tmem" for buffer in scope.buffers]
            if any(tensor):
                scope, buffers = _chosen(scope, tensor)
                message = "TMEM is Blackwell's: it lowers, but no Hopper GPU has it."
                self._warn(
                    "launch",
                    message,
                    "launch",
                    scope=scope,
                    buffers=buffers,
                    mend="Use plgpu.ACC and plgpu.SMEM.",
                )

    def _check_warpgroups(self, warpgroups: list[Warpgroup]) -> None:
        parting = divergence(self.call, warpgroups) if warpgroups else None
        thread_name = str(self.call.mesh.thread_name)
        if parting is not None:
            scope = self._scope_of(parting.eqn)
            counts = ", ".join(
                f"{thread_name}={index} enters it {'a number of times that depends on data' if n is None else f'{n}x'}"
                for index, n in enumerate(parting.entered)
            )
            message = (
                "Entering a collective scope is a barrier of all warpgroups, and not all of them enter this one equally"
                f" often: {counts}. It lowers; the kernel hangs."
            )
            text = mend.divergent(scope, thread_name)
            fault = self._fault(
                "divergent", message, "", "run", scope=scope, buffers=scope.buffers, mend=text
            )
            self.faults.append(fault)
        idle = [one.index for one in warpgroups if one.work == 0]
        if idle and len(idle) < len(warpgroups):
            message = (
                f"num_threads={len(warpgroups)}, but no role uses {thread_name}="
                f"{', '.join(map(str, idle))}: {128 * len(idle)} CUDA threads hold registers and do nothing."
            )
            self._warn(
                "threads",
                message,
                "run",
                mend=f"Use num_threads={len(warpgroups) - len(idle)}, or give it a role.",
            )

    # --- faults -----------------------------------------------------------------------------------------------------

    def _add_finding(self, finding: Finding) -> None:
        is_scope = finding.eqn is not None and finding.eqn.primitive.name == "run_scoped"
        scope = self._scope_of(finding.eqn) if is_scope else None
        buffers: tuple[Buffer, ...] = ()
        if scope is not None:
            indices = finding.buffer_indices or range(len(scope.buffers))
            buffers = tuple(scope.buffers[index] for index in indices)
        if scope is not None and finding.rule == "discharge":
            buffers += self._accumulators_around(scope)
        fault = self._fault(
            finding.rule,
            finding.message,
            finding.exception,
            "lower",
            scope=scope,
            buffers=buffers,
            mend=_mend(finding, scope, buffers, self.call.mesh.thread_name),
        )
        if scope is None and finding.eqn is not None:
            here = jax_private.location(finding.eqn) or self.call.location
            fault = replace(fault, file=here.file, line=here.line)
        if fault not in self.faults:
            self.faults.append(fault)

    def _scope_of(self, eqn: Any) -> Scope:
        """Returns the row of the table for a run_scoped equation, also for one that discharge has made anew."""
        here = jax_private.location(eqn)
        place = (here or self.call.location).file, (here or self.call.location).line
        wanted = [(b.kind, b.shape, b.dtype) for b in buffers_of(eqn)]
        rows = [row for row in self.table.scopes if (row.file, row.line) == place]
        same = [row for row in rows if [(b.kind, b.shape, b.dtype) for b in row.buffers] == wanted]
        return with_sources((same or rows)[0])

    def _accumulators_around(self, scope: Scope) -> tuple[Buffer, ...]:
        """Returns the accumulators of the nearest scope around `scope` that has any."""
        rows = self.table.scopes
        place = (scope.file, scope.line, scope.depth)
        index = next(i for i, row in enumerate(rows) if (row.file, row.line, row.depth) == place)
        depth = scope.depth
        for row in reversed(rows[:index]):
            if row.depth < depth:
                depth = row.depth
                found = tuple(buffer for buffer in with_sources(row).buffers if buffer.kind == "accumulator")
                if found:
                    return found
        return ()

    def _fault(
        self,
        rule: str,
        message: str,
        exception: str,
        stage: Stage,
        *,
        scope: Scope | None = None,
        buffers: tuple[Buffer, ...] = (),
        mend: str = "",
    ) -> Fault:
        file, line = self.call.location.file, self.call.location.line
        if scope is not None:
            file, line = scope.file, scope.line
            lines = [buffer.line for buffer in buffers if buffer.line is not None]
            if scope.origin == "scratch_types" and lines:
                line = lines[0]
        return Fault(
            rule=rule,
            message=message,
            exception=exception,
            stage=stage,
            file=file,
            line=line,
            kernel=self.call.name,
            buffers=buffers,
            mend=mend,
        )

    def _add(self, exception: str, message: str, *, rule: str = "", **where: Any) -> None:
        self.faults.append(
            self._fault(rule or rules.rule_of_message(message), message, exception, "lower", **where)
        )

    def _warn(self, rule: str, message: str, stage: Stage, **where: Any) -> None:
        self.warnings.append(self._fault(rule, message, "", stage, **where))


def check_kernel(call: KernelCall) -> KernelCheck:
    """Returns the verdict on one kernel, without lowering it."""
    check = KernelCheck(call, scope_table(call))
    check.run()
    return check


def _count(buffer: Buffer) -> int:
    return math.prod(buffer.shape) if buffer.kind == "barrier" else 1


def _chosen(scope: Scope, is_chosen: list[bool]) -> tuple[Scope, tuple[Buffer, ...]]:
    scope = with_sources(scope)
    return scope, tuple(buffer for buffer, chosen in zip(scope.buffers, is_chosen, strict=True) if chosen)


def _mend(finding: Finding, scope: Scope | None, buffers: tuple[Buffer, ...], thread_name: str | None) -> str:
    if finding.rule == "a_sem":
        return mend.semaphores(thread_name)
    if finding.rule == "unsupported" or scope is None:
        return mend.unsupported(finding.message, finding.exception)
    match finding.rule:
        case "main":
            return mend.accumulator_scope(scope, buffers)
        case "a":
            return mend.thread_collective(scope, thread_name)
        case "b":
            return mend.shared_scope(scope, buffers, str(thread_name))
        case "discharge":
            return mend.discharge(scope, buffers[len(scope.buffers) :], thread_name)
        case "unsigned":
            return mend.unsigned(buffers)
    return ""
