"""The only module that touches private parts of jax. Everything the walk mirrors or reuses goes through here.

A jax whose functions are not those of a known version (`known_jax.KNOWN`) is not walked: `distrust` says so, and the
check falls back to a real lowering. tests/lowering/test_lint_private.py fails with the same sentence. The names of
parameters that the other modules read off a jaxpr stand in the signatures of those functions, so they are covered.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import jax

from autotune.lint.known_jax import KNOWN, VersionRules
from autotune.lint.model import Location

try:
    from jax._src import config, core, source_info_util
    from jax._src.interpreters import partial_eval
    from jax._src.pallas import core as pallas_core
    from jax._src.pallas import mpmd, primitives
    from jax._src.pallas import utils as pallas_utils
    from jax._src.pallas.mosaic_gpu import core as gpu_core
    from jax._src.pallas.mosaic_gpu import lowering, pallas_call_registration
    from jax._src.state import discharge
    from jax.experimental.mosaic.gpu import core as mosaic_core
    from jax.experimental.mosaic.gpu import utils as mosaic_utils
    from jax.experimental.pallas import mosaic_gpu as plgpu

    MISSING = ""
except ImportError as error:
    MISSING = str(error)

# The functions whose behaviour the walk mirrors, by the name a reader can look up.
MIRRORED = {
    "lowering._run_scoped_lowering_rule": lambda: lowering._run_scoped_lowering_rule,
    "lowering._run_state_lowering_rule": lambda: lowering._run_state_lowering_rule,
    "lowering._cond_lowering_rule": lambda: lowering._cond_lowering_rule,
    "lowering._scan_lowering_rule": lambda: lowering._scan_lowering_rule,
    "lowering._while_lowering_rule": lambda: lowering._while_lowering_rule,
    "lowering._lower_jaxpr_to_for_loop": lambda: lowering._lower_jaxpr_to_for_loop,
    "lowering.lower_jaxpr_to_mosaic_gpu": lambda: lowering.lower_jaxpr_to_mosaic_gpu,
    "lowering.lower_jaxpr_to_module": lambda: lowering.lower_jaxpr_to_module,
    "lowering._estimate_resources": lambda: lowering._estimate_resources,
    "lowering._run_scoped_resource_estimator": lambda: lowering._run_scoped_resource_estimator,
    "primitives._run_scoped_discharge_rule": lambda: primitives._run_scoped_discharge_rule,
    "discharge._eval_jaxpr_discharge_state": lambda: discharge._eval_jaxpr_discharge_state,
    "mosaic_core._launch": lambda: mosaic_core._launch.__wrapped__,
    "mosaic_core._smem_tree_size": lambda: mosaic_core._smem_tree_size,
    "mosaic_utils.BarrierRef.initialize": lambda: mosaic_utils.BarrierRef.initialize,
    "mosaic_utils.DialectBarrierRef.initialize": lambda: mosaic_utils.DialectBarrierRef.initialize,
    "registration.mpmd_map_mgpu_lowering_rule": lambda: pallas_call_registration.mpmd_map_mgpu_lowering_rule,
}


def digests() -> dict[str, str]:
    """Returns a digest of the source of each mirrored function; `missing` where jax has no such function."""
    return {name: _digest(find) for name, find in MIRRORED.items()}


def _digest(find: Any) -> str:
    try:
        return hashlib.sha256(inspect.getsource(find()).encode()).hexdigest()[:12]
    except (AttributeError, NameError, OSError, TypeError):
        return "missing"


@functools.cache
def known_version() -> str | None:
    """Returns the known version whose mirrored functions this jax has; None where it has those of none.

    Reading 17 functions takes about 15 ms, once a process, so even a patched jax of a known version is noticed.
    """
    if MISSING:
        return None
    found = digests()
    return next((version for version, rules in KNOWN.items() if rules.digests == found), None)


def distrust() -> str:
    """Returns why the walk must not be trusted with this jax, as one sentence; empty where it may be."""
    if known_version() is not None:
        return ""
    if MISSING:
        return f"jax {jax.__version__} has moved what the walk needs ({MISSING})"
    return f"jax {jax.__version__} changed {', '.join(changed_functions())}, which the walk mirrors"


def changed_functions() -> tuple[str, ...]:
    """Returns the mirrored functions that differ from the known version they agree with most."""
    found = digests()
    differences = [
        tuple(name for name, digest in found.items() if rules.digests.get(name) != digest)
        for rules in KNOWN.values()
    ]
    return min(differences, key=len)


def version_rules() -> VersionRules:
    """Returns what holds for this jax. Ask only where `distrust` is empty."""
    return KNOWN[known_version()]


# --- jaxprs ---------------------------------------------------------------------------------------------------------


def live(jaxpr: Any) -> Any:
    """Returns `jaxpr` without dead code. jit does the same before it lowers, so an unused kernel never fails."""
    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), True)[0]


def inner_jaxprs(eqn: Any) -> Iterator[Any]:
    """Yields the jaxprs in an equation's parameters, in their order."""
    for value in eqn.params.values():
        if isinstance(value, core.Jaxpr):
            yield value
        elif isinstance(value, tuple):
            yield from (entry for entry in value if isinstance(entry, core.Jaxpr))


def all_equations(jaxpr: Any) -> Iterator[Any]:
    """Yields the equations of a jaxpr and of those inside it, each before its own."""
    for eqn in jaxpr.eqns:
        yield eqn
        for body in inner_jaxprs(eqn):
            yield from all_equations(body)


def primitive_name(eqn: Any) -> str:
    """Returns the name of an equation's primitive; 0.11 ends the names of some of Mosaic GPU's in _p, 0.12 does not."""
    return eqn.primitive.name.removesuffix("_p")


def is_literal(atom: Any) -> bool:
    return isinstance(atom, core.Literal)


def is_array(aval: Any) -> bool:
    return isinstance(aval, core.ShapedArray)


def is_gpu_mesh(mesh: Any) -> bool:
    return isinstance(mesh, gpu_core.Mesh)


def is_warp_mesh(mesh: Any) -> bool:
    return isinstance(mesh, gpu_core.WarpMesh)


def default_compiler_params() -> Any:
    return gpu_core.CompilerParams()


def is_mosaic_gpu_params(params: Any) -> bool:
    return isinstance(params, gpu_core.CompilerParams)


# --- buffers --------------------------------------------------------------------------------------------------------


def buffer_kind(aval: Any) -> str:
    """Returns the `BufferKind` of an allocation's abstract value, by the tests that lowering itself makes."""
    if isinstance(aval, gpu_core.WGMMAAbstractAccumulatorRef):
        return "accumulator"
    if isinstance(aval.dtype, (gpu_core.BarrierType, gpu_core.ClusterBarrierType)):
        return "barrier"
    if isinstance(aval, gpu_core.AbstractRefUnion):
        return "union" if aval.memory_space == gpu_core.SMEM else "tmem"
    if aval.memory_space == gpu_core.GMEM and jax.numpy.issubdtype(aval.dtype, pallas_core.semaphore):
        return "semaphore"
    kinds = {gpu_core.SMEM: "smem", gpu_core.TMEM: "tmem", gpu_core.GMEM: "gmem"}
    return kinds.get(aval.memory_space, "other")


def is_accumulator(aval: Any) -> bool:
    return isinstance(aval, gpu_core.WGMMAAbstractAccumulatorRef)


def itemsize_bits(dtype: Any) -> int:
    return jax.dtypes.itemsize_bits(dtype)


def user_shape(aval: Any, transforms: Sequence[Any]) -> tuple[int, ...]:
    """Returns the shape the user wrote: the allocation's with tiling and swizzle taken back."""
    inner = aval.inner_aval
    for transform in transforms:
        inner = transform.transform_type(inner)
    return tuple(inner.shape)


def is_unsigned(dtype: Any) -> bool:
    signed = mosaic_utils.is_signed(dtype)
    return signed is not None and not signed


# --- lowering -------------------------------------------------------------------------------------------------------


def is_lane(params: Any) -> bool:
    return params.lowering_semantics == plgpu.LoweringSemantics.Lane


def _primitive_semantics(in_warp: bool) -> Any:
    return gpu_core.PrimitiveSemantics.Warp if in_warp else gpu_core.PrimitiveSemantics.Warpgroup


def has_lowering_rule(primitive: Any, params: Any, in_warp: bool) -> bool:
    table = lowering.mosaic_lowering_rules[(params.lowering_semantics, _primitive_semantics(in_warp))]
    return primitive in table


def semantics_names(params: Any, in_warp: bool) -> tuple[str, str]:
    return str(params.lowering_semantics), str(_primitive_semantics(in_warp))


def axis_names(mesh: Any) -> Any:
    return lowering._AxisNames(mesh.grid_names, mesh.cluster_names, mesh.thread_name).reverse()


def estimate(jaxpr: Any, mesh: Any, params: Any) -> Any:
    """Returns jax's own count of a kernel's resources (smem_scratch_bytes, barriers); raises what lowering raises."""
    context = lowering.ResourceEstimatorContext(
        reduction_scratch_bytes=params.reduction_scratch_bytes,
        axis_names=axis_names(mesh),
        lowering_semantics=params.lowering_semantics,
    )
    return lowering._estimate_resources(context, jaxpr)


def has_estimator(primitive: Any) -> bool:
    return primitive in lowering._resource_estimators


@contextlib.contextmanager
def kernel_context(mesh: Any) -> Iterator[None]:
    """The axis environment in which lowering traces again, when it discharges accumulators."""
    with mpmd.mpmd_map_tracing_context(mesh, (mesh,)):
        yield


def discharge_scope(jaxpr: Any, is_accumulator: Sequence[bool]) -> Any:
    """Returns a run_scoped's jaxpr as lowering sees it: constants as arguments, accumulators as values."""
    open_jaxpr = partial_eval.convert_constvars_jaxpr(jaxpr)
    num_constants = len(open_jaxpr.invars) - len(is_accumulator)
    return discharge_state(open_jaxpr, [False] * num_constants + list(is_accumulator))


def discharge_state(jaxpr: Any, should_discharge: Sequence[bool]) -> Any:
    with config._check_vma(False):
        return discharge.discharge_state(jaxpr, should_discharge=should_discharge, strip_memory_space=True)


def is_reference(aval: Any) -> bool:
    return isinstance(aval, discharge.AbstractRef)


def fori_of_scan(params: dict[str, Any]) -> Any:
    """Returns the body that lowering makes of a scan; raises what it raises for a scan that is no fori_loop."""
    num_constants, num_carry, _ = (len(group) for group in params["ft_in"].unpack())
    return pallas_utils.pattern_match_scan_to_fori_loop(params["jaxpr"], num_constants, num_carry)[0]


def fori_of_while(params: dict[str, Any]) -> Any | None:
    """Returns the body where lowering turns a while loop into a counted loop, else None."""
    return pallas_utils.pattern_match_while_to_fori_loop(
        params["cond_jaxpr"], params["cond_nconsts"], params["body_jaxpr"], params["body_nconsts"]
    )[0]


def culprit(error: BaseException, function_name: str) -> Any | None:
    """Returns the innermost equation that `function_name` of jax was at when it raised."""
    found = None
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_name == function_name:
            found = traceback.tb_frame.f_locals.get("eqn", found)
        traceback = traceback.tb_next
    return found


def profiler_smem_bytes(params: Any, num_warpgroups: int) -> int:
    """Returns what an attached profiler adds to SMEM, in bytes; 0 without one."""
    if not params.profile_space:
        return 0
    per_warp = params.profile_trace_scope == gpu_core.TraceScope.WARP
    scope = lowering.mgpu.ThreadSubset.WARP if per_warp else lowering.mgpu.ThreadSubset.WARPGROUP
    profiler = lowering.mgpu_profiler.ProfilerSpec(
        params.profile_space * 4,
        dump_path=params.profile_dir,
        trace_scope=scope,
        bounds_check=params.profile_bounds_check,
    )
    return profiler.smem_bytes(block=(128 * num_warpgroups, 1, 1))


@contextlib.contextmanager
def recorded_smem() -> Iterator[list[int]]:
    """Collects the SMEM bytes of each kernel lowered inside, as lowering's own launch code counts them."""
    sizes: list[int] = []
    original = mosaic_core._smem_tree_size

    def recording(buffers: Any) -> int:
        size = original(buffers)
        sizes.append(size)
        return size

    mosaic_core._smem_tree_size = recording
    try:
        yield sizes
    finally:
        mosaic_core._smem_tree_size = original


# --- source locations -----------------------------------------------------------------------------------------------


_OUR_FOLDER = str(Path(__file__).parent) + os.sep


def location(eqn: Any) -> Location | None:
    """Returns where an equation was written: the user's innermost frame, or one of a kernel that jax ships."""
    traceback = eqn.source_info.traceback
    frame = next((one for one in source_info_util.user_frames(traceback) if _is_users(one.file_name)), None)
    if frame is None:
        frame = _shipped_frame(traceback)
    if frame is None:
        return None
    return Location(file=frame.file_name, line=frame.start_line, function=frame.function_name)


def _is_users(file: str) -> bool:
    return not file.startswith(_OUR_FOLDER)


def _shipped_frame(traceback: Any) -> Any | None:
    codes, offsets = traceback.raw_frames() if traceback else ((), ())
    for code, offset in zip(codes, offsets):
        if "/jax/experimental/" in code.co_filename:  # jax/experimental/pallas/ops
            return source_info_util.raw_frame_to_frame(code, offset)
    return None


def body_location(jaxpr: Any) -> Location | None:
    """Returns where the body of a plgpu.kernel is defined: its first equation is the scope of scratch_types."""
    scope = next((eqn for eqn in jaxpr.eqns if eqn.primitive.name == "run_scoped"), None)
    found = (
        re.fullmatch(r"(.*) at (.*):(\d+)", scope.params["jaxpr"].debug_info.func_src_info or "")
        if scope
        else None
    )
    return None if found is None else Location(file=found[2], line=int(found[3]), function=found[1])
