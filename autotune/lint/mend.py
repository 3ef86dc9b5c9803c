"""The mend of each fault: what to move where, with the lines to write. No jax."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.lint import source
from autotune.lint.model import SMEM_LIMIT_BYTES, Buffer, Scope


def _names(buffers: Sequence[Buffer]) -> str:
    return ", ".join(f"`{buffer.name}`" for buffer in buffers)


def _arguments(buffers: Sequence[Buffer]) -> str:
    return ", ".join(
        buffer.name if buffer.name.isidentifier() else f"ref{i}" for i, buffer in enumerate(buffers)
    )


def _run_scoped(function: str, buffers: Sequence[Buffer], collective_axes: str | None) -> list[str]:
    axes = [] if collective_axes is None else [f"    collective_axes={collective_axes},"]
    return [f"pl.run_scoped(\n    {function},", *[f"    {buffer.source}," for buffer in buffers], *axes, ")"]


def _indented(lines: Sequence[str], depth: int) -> list[str]:
    return ["    " * depth + piece for line in lines for piece in line.split("\n")]


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines)


def _axes(scope: Scope) -> str:
    return f'"{scope.collective_axes[0]}"' if len(scope.collective_axes) == 1 else repr(scope.collective_axes)


def accumulator_scope(scope: Scope, accumulators: Sequence[Buffer]) -> str:
    """Mends rule main: the accumulators go into a private scope of their own, inside the collective one."""
    others = [buffer for buffer in scope.buffers if buffer not in accumulators]
    names = _names(accumulators)
    private = ["def accumulate(" + _arguments(accumulators) + "):", f"    ...  # the lines that use {names}"]
    private += _run_scoped("accumulate", accumulators, None)
    if scope.origin == "scratch_types":
        head = (
            f"Take {names} out of scratch_types and allocate it in the kernel's body, in a scope of its own:"
        )
        return _text([head, *_indented(private, 1)])
    if not others:
        head = (
            f"Nothing else is in this scope: drop collective_axes, since each warpgroup has its own {names}:"
        )
        name = source.function_argument(scope.file, scope.line) or "accumulate"
        return _text([head, *_indented(_run_scoped(name, accumulators, None), 1)])
    name = source.function_argument(scope.file, scope.line) or "shared"
    lines = [
        f"def {name}({_arguments(others)}):",
        *_indented(private, 1),
        *_run_scoped(name, others, _axes(scope)),
    ]
    head = f"Move {names} into a scope of its own inside this one; the rest stays:"
    return _text([head, *_indented(lines, 1)])


def thread_collective(scope: Scope, thread_name: str | None) -> str:
    """Mends rule a: the only axis a scope can be collective over is the kernel's thread axis."""
    name = source.function_argument(scope.file, scope.line) or "body"
    if thread_name is None:
        head = "The kernel has no thread axis (num_threads, thread_name): drop collective_axes."
        return _text([head, *_indented(_run_scoped(name, scope.buffers, None), 1)])
    head = "Write the kernel's thread axis alone; what a cluster shares goes through plgpu.ClusterBarrier and TMA:"
    return _text([head, *_indented(_run_scoped(name, scope.buffers, f'"{thread_name}"'), 1)])


def semaphores(thread_name: str | None) -> str:
    """Mends rule a_sem."""
    block = f'collective_axes="{thread_name}"' if thread_name else "no collective_axes"
    return _text(
        [
            f"For a semaphore of one CTA use {block}; for one that all CTAs share:",
            "    semaphore = pl.get_global(plgpu.SemaphoreType.REGULAR)",
        ]
    )


def shared_scope(scope: Scope, shared: Sequence[Buffer], thread_name: str) -> str:
    """Mends rule b: shared memory and barriers belong to all warpgroups, accumulators to one."""
    private = [buffer for buffer in scope.buffers if buffer not in shared]
    name = source.function_argument(scope.file, scope.line) or "body"
    if not private:
        head = f"Make the scope collective: all warpgroups share {_names(shared)}."
        return _text([head, *_indented(_run_scoped(name, shared, f'"{thread_name}"'), 1)])
    inner = [f"def {name}({_arguments(private)}):", "    ...", *_run_scoped(name, private, None)]
    lines = [f"def shared({_arguments(shared)}):", *_indented(inner, 1)]
    lines += _run_scoped("shared", shared, f'"{thread_name}"')
    head = f"Split the scope: {_names(shared)} in a collective one outside, {_names(private)} in a private one inside:"
    return _text([head, *_indented(lines, 1)])


def discharge(scope: Scope, accumulators: Sequence[Buffer], thread_name: str | None) -> str:
    """Mends rule discharge: the collective scope goes outside, the accumulator's inside."""
    private = [f"def accumulate({_arguments(accumulators)}):", "    ..."]
    private += _run_scoped("accumulate", accumulators, None)
    lines = [f"def shared({_arguments(scope.buffers)}):", *_indented(private, 1)]
    lines += _run_scoped("shared", scope.buffers, f'"{thread_name}"')
    head = "Turn the two scopes inside out: the collective one outside, the accumulator's inside it:"
    return _text([head, *_indented(lines, 1)])


def unsigned(buffers: Sequence[Buffer]) -> str:
    fixed = [buffer.source.replace("uint", "int") for buffer in buffers]
    return _text(["WGMMA accumulates integers as int32 only:", *[f"    {text}" for text in fixed]])


def smem(chain: Sequence[Scope], total_bytes: int) -> str:
    """Mends rule smem: a RefUnion of what need not be live together where that fits, else fewer stages."""
    holding = [scope for scope in chain if any(map(_is_memory, scope.buffers))]
    held = " + ".join(f"{scope.smem_bytes:,}" for scope in holding)
    lines = [f"{total_bytes - SMEM_LIMIT_BYTES:,} bytes too many: {held} are held together."]
    outer, inner = sum(scope.smem_bytes for scope in holding[:-1]), holding[-1].smem_bytes if holding else 0
    shared_bytes = total_bytes - outer - inner + max(outer, inner)
    if len(holding) > 1 and shared_bytes <= SMEM_LIMIT_BYTES:
        lines += _union(holding, shared_bytes)
    else:
        lines.append(_fewer_stages(holding, total_bytes) or "Use smaller tiles, or fewer pipeline stages.")
    return _text(lines)


def _is_memory(buffer: Buffer) -> bool:
    return buffer.kind in ("smem", "union")


def _union(holding: Sequence[Scope], shared_bytes: int) -> list[str]:
    *outer, inner = [[buffer.source for buffer in scope.buffers if _is_memory(buffer)] for scope in holding]
    first = ", ".join(text for group in outer for text in group)
    head = (
        f"Where they are not needed at the same time, let them share memory ({shared_bytes:,} bytes in all); members of"
        " a RefUnion must not be live together, so end all copies into one before using the other:"
    )
    return [
        head,
        f"    plgpu.RefUnion([{first}], [{', '.join(inner)}])",
        "or open the inner scope after the outer one has ended: sibling scopes share, nested ones add up.",
    ]


def _fewer_stages(holding: Sequence[Scope], total_bytes: int) -> str:
    """Returns how many stages fit, taking the largest group of buffers with one leading extent as a pipeline's ring."""
    buffers = [buffer for scope in holding for buffer in scope.buffers if buffer.kind == "smem"]
    stacked = [buffer for buffer in buffers if len(buffer.shape) > 2 and buffer.shape[0] > 1]
    if not stacked:
        return ""
    stages = max(stacked, key=lambda buffer: buffer.size_bytes).shape[0]
    ring = [buffer for buffer in stacked if buffer.shape[0] == stages]
    rest = total_bytes - sum(buffer.smem_bytes for buffer in ring)

    def needed(count: int) -> int:
        return rest + sum(-(-buffer.size_bytes * count // stages // 1024) * 1024 for buffer in ring)

    fitting = next((count for count in range(stages - 1, 0, -1) if needed(count) <= SMEM_LIMIT_BYTES), None)
    if fitting is None:
        return f"Use smaller tiles: even one stage of {_names(ring)}, instead of {stages}, needs {needed(1):,} bytes."
    resized = [
        f"    plgpu.SMEM({(fitting, *buffer.shape[1:])}, jnp.{buffer.dtype}, ...)  # {buffer.name}"
        for buffer in ring
    ]
    return _text(
        [f"Give {_names(ring)} {fitting} stages instead of {stages} ({needed(fitting):,} bytes):", *resized]
    )


def barriers_per_group(buffers: Sequence[Buffer]) -> str:
    return f"Split {_names(buffers)} into several plgpu.Barrier of at most 32 each, or use fewer pipeline stages."


def no_barriers(buffers: Sequence[Buffer]) -> str:
    return (
        f"Give {_names(buffers)} at least one barrier; its count is often the stages, here k // tile_k = 0."
    )


def divergent(scope: Scope, thread_name: str) -> str:
    """Mends rule divergent: the scope is opened by all warpgroups, before they part."""
    lines = [
        f"def shared({_arguments(scope.buffers)}):",
        "    ...  # the lax.cond or loop that holds the scope now",
    ]
    lines += _run_scoped("shared", scope.buffers, f'"{thread_name}"')
    head = (
        f"Open the scope in all warpgroups, around the condition or loop, and use {_names(scope.buffers)} inside it"
        " (or open an equal one in every other branch):"
    )
    return _text([head, *_indented(lines, 1)])


def pallas_call(spec: str) -> str:
    """Mends rule c: clusters exist in plgpu.kernel only, where a pipeline takes the same BlockSpec."""
    lines = [
        "def body(*gmem_refs):",
        "    plgpu.emit_pipeline_warp_specialized(",
        "        ...,  # the body of the pallas_call",
        "        grid=...,",
        f"        in_specs=[{spec}],",
        "        ...,",
        "    )(*gmem_refs)",
        "plgpu.kernel(body, ..., cluster=..., cluster_names=...)",
    ]
    head = "pl.pallas_call has no clusters: drop collective_axes, or give the spec to a pipeline in a plgpu.kernel:"
    return _text([head, *_indented(lines, 1)])


def preinitialised(accumulator: Buffer | None, function: str, start: str) -> str:
    """Mends rule d: the accumulator is allocated empty, and the start value stored first."""
    name = accumulator.name if accumulator else "acc"
    shape, dtype = (accumulator.shape, accumulator.dtype) if accumulator else ("...", "float32")
    lines = [
        f"def {function}({name}):",
        f"    {name}[...] = {start}",
        f"    ...  # what {function} does now",
        f"pl.run_scoped({function}, plgpu.ACC({shape}, jnp.{dtype}))",
    ]
    return _text(["Allocate it empty, and store the start value first:", *_indented(lines, 1)])


def partial_store(accumulator: Buffer | None) -> str:
    """Mends rule e: only all of an accumulator can be stored."""
    name = accumulator.name if accumulator else "acc"
    shape = f"  # of shape {accumulator.shape}" if accumulator else ""
    return _text(
        [
            f"Store all of it (`{name}[:]` counts as a part of two dimensions), or use one plgpu.ACC a part:",
            f"    {name}[...] = value{shape}",
        ]
    )


MOSAIC_PALLAS_CALL = "Write the kernel with plgpu.kernel; pl.pallas_call no longer lowers through Mosaic GPU."
THREADS = "A CTA has at most 1,024 CUDA threads, so num_threads (warpgroups) is at most 8."
BOTH_OR_NEITHER = "Pass num_threads and thread_name together, or neither."
LITERAL = """A literal that run_state or jit closes over has no value in the lowered module. Compute it inside the body,
or use pl.run_scoped with `acc[...] = start`, or lowering_semantics=plgpu.LoweringSemantics.Lane."""

# What a message contains -> the mend, for what is refused outside the family; the first that fits.
_UNSUPPORTED = (
    ("run_scoped for lowering semantics", "Open the scope around plgpu.warp_map: warps cannot allocate."),
    ("Unimplemented primitive", "Compute this outside the kernel, or of operations that Mosaic GPU lowers."),
    (
        "Resource estimation does not support",
        "Take the wrapper (jax.checkpoint, jax.custom_jvp) off inside the kernel.",
    ),
    (
        "Did not ask for inval",
        "Take jax.jit off the function that uses the accumulator, so that it is inlined.",
    ),
    ("No state discharge rule", "Read the accumulator with `acc[...]` first, and pass the value on."),
    ("Unsupported memory space: gmem", "Make it an output of the kernel, or use plgpu.SMEM."),
    ("Unknown cluster axis", "Name one of the kernel's cluster_names in collective_axes."),
    ("WGMMA requires m and n", "Use multiples of 64 rows and 8 columns a warpgroup."),
    ("platform_dependent cond", "Choose the platform outside the kernel."),
    ("``unroll``", "Use an unroll that divides the number of trips."),
    ("extensive", "Use lax.fori_loop: a scan over inputs or outputs does not lower."),
    ("not hashable", 'Write collective_axes as a name or a tuple of names, e.g. "wg".'),
    ("Swizzle", "Use a swizzle of 32, 64 or 128 bytes, no wider than a row of the block."),
    ("scratch_shapes", "plgpu.kernel takes scratch_types= in this version of jax."),
    ("out_shape", "plgpu.kernel takes out_type= in this version of jax."),
)


def unsupported(message: str, exception: str) -> str:
    """Returns the mend of something outside the family; empty where there is none to name."""
    known = next((text for part, text in _UNSUPPORTED if part in message), "")
    return known or (LITERAL if exception == "AssertionError" and "ir.Values" in message else "")
