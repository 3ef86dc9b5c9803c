"""The rules: ids, exact messages, and the one table of what differs between versions of jax. No jax.

Messages are those of jax's Mosaic GPU lowering (pallas/mosaic_gpu/lowering.py, core.py and experimental/mosaic/gpu);
tests/lowering/test_lint_cases.py compares them with what a real lowering raises.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.lint.model import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule id, where it is enforced and what it is about."""

    id: str
    stages: tuple[Stage, ...]
    summary: str


RULES = {
    rule.id: rule
    for rule in (
        Rule(
            id="main", stages=("lower",), summary="an accumulator in a collective scope, or in scratch_types"
        ),
        Rule(id="a", stages=("lower",), summary="a scope collective over anything but the warpgroups"),
        Rule(
            id="a_sem",
            stages=("lower",),
            summary="a semaphore in a scope that is not collective over the warpgroups",
        ),
        Rule(
            id="b",
            stages=("lower",),
            summary="SMEM or barriers in a private scope of a kernel with several threads",
        ),
        Rule(id="c", stages=("trace",), summary="collective_axes in a BlockSpec of pl.pallas_call"),
        Rule(id="d", stages=("trace",), summary="a preinitialised accumulator outside pl.run_state"),
        Rule(id="e", stages=("trace",), summary="a store into part of an accumulator"),
        Rule(
            id="discharge",
            stages=("lower",),
            summary="a collective scope inside an accumulator's that touches it",
        ),
        Rule(id="unsigned", stages=("lower",), summary="an accumulator of an unsigned type"),
        Rule(id="smem", stages=("lower",), summary="more SMEM than a CTA can have"),
        Rule(id="barriers", stages=("trace", "lower"), summary="too many barriers, or none"),
        Rule(
            id="divergent",
            stages=("run",),
            summary="a collective scope that not all warpgroups enter equally often",
        ),
        Rule(
            id="threads",
            stages=("trace", "run"),
            summary="a warpgroup count that cannot be, or an idle warpgroup",
        ),
        Rule(id="launch", stages=("trace", "lower", "launch"), summary="a shape that no Hopper GPU launches"),
        Rule(
            id="unsupported",
            stages=("trace", "lower"),
            summary="anything else that Pallas or its lowering refuses",
        ),
    )
}

MAIN = (
    "WGMMA accumulators can only be allocated non-collectively. Hint: remove collective_axes from run_scoped."
    " If other allocations are performed as well, split the run_scoped into two."
)
A = "Only thread-collective allocations are supported in run_scoped."
A_SEM = f"{A} To allocate global semaphores, use pl.get_global."
C = (
    "collective_axes is not supported in pallas_call. Use plgpu.kernel with"
    " plgpu.emit_pipeline_warp_specialized instead."
)
D = "Preinitialized WGMMAAccumulatorRef only supported in pl.run_state."
E = "Non-trivial indexing on WGMMAAbstractAccumulatorRef is not supported for stores."
DISCHARGE = "run_scoped discharge does not support collective_axes yet."
BARRIERS_PER_GROUP = "Only up to 32 barriers per group supported"
MAX_BARRIERS_PER_GROUP = 32
# The rest of the real message prints the operation with MLIR's own value numbers, which only a lowering knows.
NO_BARRIERS = (
    "Pallas encountered an internal verification error. Please file a bug at"
    " https://github.com/jax-ml/jax/issues/new/choose. Error details: 'mosaic_gpu.initialize_barrier' op attribute"
    " 'num_barriers' failed to satisfy constraint: 32-bit signless integer attribute whose value is positive"
)
DIMENSION_SEMANTICS = "dimension_semantics= is not supported by the unpipelined lowering"


def b(thread_name: object, collective_axes: tuple[object, ...]) -> str:
    """Returns the message of rule b, which names the axis and what was written instead."""
    return (
        "Only thread-collective allocations are supported in multithreaded kernels. Hint: add"
        f" collective_axes={thread_name} to your run_scoped if you intend all threads to share the same allocation"
        f" (currently collective_axes={collective_axes})."
    )


def unsigned(dtype: object) -> str:
    return f"Invalid WGMMA accumulator dtype for s8/i8 WGMMA. Expected signed integer, but got {dtype}."


def accumulator_shape(m: int, n: int) -> str:
    return f"WGMMA requires m and n to be multiples of 64 and 8, got {m} and {n}"


def smem(smem_bytes: int, max_smem_bytes: int) -> str:
    return f"Mosaic GPU kernel exceeds available shared memory: {smem_bytes=} > {max_smem_bytes=}"


def cta_barriers(num_warpgroups: int) -> str:
    """Returns 0.12's message for a CTA whose warpgroups leave no named barrier: 16 in all, one each and one more."""
    return (
        f"Too many CTA barriers requested: 0 requested, but only {15 - num_warpgroups} available"
        f" ({num_warpgroups} warpgroup barriers and 1 CTA-wide barrier reserved)."
    )


def unimplemented(primitive: str, semantics: object, primitive_semantics: object) -> str:
    return (
        f"Unimplemented primitive in Pallas Mosaic GPU lowering: {primitive} for lowering semantics {semantics} and"
        f" user thread semantics {primitive_semantics}. Please file an issue at"
        " https://github.com/jax-ml/jax/issues/new/choose."
    )


def literal(value: object) -> str:
    return f"Shaped arrays must be represented by ir.Values, got: {value}"


# First words of a message -> the rule it belongs to. Used for errors of a trace, of jax's own resource estimation and
# of a real lowering; what is not listed is `unsupported`.
_RULE_OF_MESSAGE = (
    (MAIN, "main"),
    (A_SEM, "a_sem"),
    ("Only thread-collective allocations are supported in multithreaded kernels.", "b"),
    (A, "a"),
    (C, "c"),
    (D, "d"),
    (E, "e"),
    (DISCHARGE, "discharge"),
    ("Invalid WGMMA accumulator dtype", "unsigned"),
    ("Mosaic GPU kernel exceeds available shared memory", "smem"),
    (BARRIERS_PER_GROUP, "barriers"),
    (NO_BARRIERS, "barriers"),
    ("Num arrivals must be at least 1", "barriers"),
    ("Too many CTA barriers requested", "barriers"),
    ("Requested too many CUDA threads per block", "threads"),
    ("num_threads and thread_name must be either both set", "threads"),
    ("cluster= must be at most 3D", "launch"),
)


def rule_of_message(message: str) -> str:
    """Returns the id of the rule whose message this is; `unsupported` where it is none of the family's."""
    return next((rule for start, rule in _RULE_OF_MESSAGE if message.startswith(start)), "unsupported")
