"""Variants of the allocation errors: what the walk says is, word for word, what the real lowering says."""

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from autotune.lint import check, jax_private, rules
from autotune.lint.real_lowering import lower
from tests.helpers.lint_kernels import (
    LANE,
    OPERAND,
    accumulator,
    kernel,
    legal_body,
    scoped,
    smem,
    zeros,
)

BARRIER = plgpu.Barrier
SEMAPHORE = plgpu.SemaphoreType.REGULAR


def _accumulator_outside(uses_accumulator):
    def outer(operand, result):
        def private(acc):
            def shared(tile):
                tile[...] = acc[...] if uses_accumulator else jnp.zeros((64, 64), jnp.float32)

            pl.run_scoped(shared, smem(64, 64), collective_axes="wg")
            result[...] = acc[...]

        pl.run_scoped(private, accumulator())

    return outer


def _accumulator_in_jit(operand, result):
    def private(acc):
        def inner():
            result[...] = acc[...]

        jax.jit(inner)()

    pl.run_scoped(private, accumulator())


def _run_state(operand, result):
    index = lax.axis_index("block")

    def body(acc):
        acc[...] = zeros() + (index * 0 + 1).astype(jnp.float32)

    result[...] = pl.run_state(body)(plgpu.ACC.init(zeros()))


def _run_state_with_literal(operand, result):
    # jit hands its literal argument to run_state, which hands it back: no value of the module.
    def inner(two):
        def body(refs):
            acc, _ = refs
            acc[...] = zeros()

        return pl.run_state(body)((plgpu.ACC.init(zeros()), two))[0]

    result[...] = inner(jnp.int32(2))


def _warp_scope(operand, result):
    @plgpu.warp_map
    def _(warp):
        pl.run_scoped(lambda tile: None, smem(64, 64))


def _in_loops(operand, result):
    def body(index, carry):
        pl.run_scoped(lambda tile: None, smem(64, 64))
        return carry

    lax.fori_loop(0, lax.axis_index("block") + 2, body, None)


def _in_jit(operand, result):
    jax.jit(lambda: pl.run_scoped(lambda tile: None, smem(64, 64)))()


def _checkpoint(operand, result):
    jax.checkpoint(lambda: pl.run_scoped(lambda tile: None, smem(64, 64), collective_axes="wg"))()


@jax.custom_jvp
def _identity(value):
    return value


_identity.defjvp(lambda primals, tangents: (primals[0], tangents[0]))


def _custom_jvp(operand, result):
    pl.run_scoped(
        lambda tile: tile.__setitem__(..., _identity(jnp.zeros((64, 64)))), smem(64, 64), collective_axes="wg"
    )


def _sort(operand, result):
    def body(tile):
        tile[...] = jnp.sort(tile[...])

    pl.run_scoped(body, smem(128), collective_axes="wg")


def _reversed_scan(operand, result):
    lax.scan(lambda carry, _: (carry + 1, None), 0, None, length=3, reverse=True)


def _in_order(first, second):
    def body(operand, result):
        pl.run_scoped(lambda *refs: None, *first[0], collective_axes=first[1])
        pl.run_scoped(lambda *refs: None, *second[0], collective_axes=second[1])

    return body


CASES = {
    # kwargs are looked at in the order of their names: aa (b) before zz (unsigned)
    "kwargs_by_name": (kernel(scoped(axes=(), zz=accumulator(jnp.uint32), aa=smem(8, 8))), "b"),
    "kwargs_by_name_reversed": (
        kernel(scoped(axes=(), zz=smem(8, 8), aa=accumulator(jnp.uint32))),
        "unsigned",
    ),
    "list_of_shapes": (kernel(scoped([smem(64, 64), smem(64, 64)], accumulator())), "main"),
    "nested_tree": (kernel(scoped({"b": [accumulator()], "a": smem(8, 8)}, axes=())), "b"),
    "main_before_unsigned": (kernel(scoped(accumulator(jnp.uint32))), "main"),
    "a_before_main": (kernel(scoped(accumulator(), axes="block")), "a"),
    "axis_twice": (kernel(scoped(smem(8, 8), axes=("wg", "wg"))), "a"),
    "axis_none": (kernel(scoped(smem(8, 8), axes=None)), "a"),
    "wg_without_threads": (kernel(scoped(smem(8, 8)), threads=None), "a"),
    "empty_private_scope": (kernel(scoped(axes=())), "ok"),
    "scratch_dict": (
        kernel(lambda *refs, **named: None, scratch_types={"tile": smem(8, 8), "acc": accumulator()}),
        "main",
    ),
    "scratch_acc_without_threads": (
        kernel(lambda *refs: None, threads=None, scratch_types=[accumulator()]),
        "ok",
    ),
    "scratch_acc_one_thread": (kernel(lambda *refs: None, threads=1, scratch_types=[accumulator()]), "main"),
    "one_thread_needs_wg": (kernel(scoped(smem(8, 8), axes=()), threads=1), "b"),
    "no_threads_needs_nothing": (kernel(scoped(smem(8, 8), accumulator(), axes=()), threads=None), "ok"),
    "unsigned": (kernel(scoped(accumulator(jnp.uint32), axes=())), "unsigned"),
    "private_barrier": (kernel(scoped(BARRIER(), axes=())), "b"),
    "private_union": (kernel(scoped(plgpu.RefUnion(smem(8, 8), smem(64)), axes=())), "b"),
    "semaphore_private": (kernel(scoped(SEMAPHORE, axes=())), "a_sem"),
    "semaphore_in_the_grid": (kernel(scoped(SEMAPHORE, axes="block")), "a_sem"),
    "semaphore_shared": (kernel(scoped(SEMAPHORE)), "ok"),
    "semaphore_before_smem": (kernel(_in_order(([smem(4, 256, 256)], "wg"), ([SEMAPHORE], ()))), "a_sem"),
    "smem_before_scopes": (kernel(_in_order(([smem(8, 8)], ()), ([smem(4, 256, 256)], "wg"))), "smem"),
    "first_scope_first": (kernel(_in_order(([smem(8, 8)], ()), ([accumulator()], "wg"))), "b"),
    "second_scope_second": (kernel(_in_order(([accumulator()], "wg"), ([smem(8, 8)], ()))), "main"),
    "acc_outside": (kernel(_accumulator_outside(True)), "discharge"),
    "acc_outside_untouched": (kernel(_accumulator_outside(False)), "ok"),
    "acc_in_jit": (kernel(_accumulator_in_jit), "unsupported"),
    "run_state": (kernel(_run_state), "ok"),
    "run_state_lane": (kernel(_run_state, compiler_params=LANE), "ok"),
    "run_state_with_literal": (kernel(_run_state_with_literal), "unsupported"),
    "run_state_with_literal_lane": (kernel(_run_state_with_literal, compiler_params=LANE), "ok"),
    "warp_scope": (kernel(_warp_scope), "unsupported"),
    "in_loop": (kernel(_in_loops), "b"),
    "in_jit": (kernel(_in_jit), "b"),
    "checkpoint": (kernel(_checkpoint), "unsupported"),
    "sort": (kernel(_sort), "unsupported"),
    "reversed_scan": (kernel(_reversed_scan), "unsupported"),
    "gmem": (kernel(scoped(plgpu.GMEM((4,), jnp.float32))), "unsupported"),
    "acc_rows_lane": (
        kernel(scoped(accumulator(shape=(32, 64)), axes=()), compiler_params=LANE),
        "unsupported",
    ),
    "barriers_33": (kernel(scoped(BARRIER(num_barriers=33))), "barriers"),
    "barriers_32_twice": (kernel(scoped(BARRIER(num_barriers=32), BARRIER(num_barriers=32))), "ok"),
    "barriers_grid_of_40": (kernel(scoped(BARRIER(num_barriers=(8, 5)))), "barriers"),
    "no_barriers": (kernel(scoped(BARRIER(num_barriers=0))), "barriers"),
    "no_barriers_lane": (kernel(scoped(BARRIER(num_barriers=0)), compiler_params=LANE), "ok"),
    "no_barriers_after_b": (kernel(_in_order(([BARRIER(num_barriers=0)], "wg"), ([smem(8, 8)], ()))), "b"),
    "unknown_cluster_axis": (kernel(scoped(plgpu.ClusterBarrier(collective_axes=("nope",)))), "unsupported"),
    "dimension_semantics": (
        kernel(lambda *refs: None, compiler_params=plgpu.CompilerParams(dimension_semantics=("parallel",))),
        "unsupported",
    ),
    "empty_cluster": (kernel(lambda *refs: None, cluster=(0,), cluster_names=("pair",)), "launch"),
    "profiler": (
        kernel(
            scoped(smem(100, 512)),
            compiler_params=plgpu.CompilerParams(profile_space=4096, profile_dir="/tmp"),
        ),
        "smem",
    ),
    "legal": (kernel(legal_body), "ok"),
    "legal_lane": (kernel(legal_body, compiler_params=LANE), "ok"),
}


def _words(message):
    return re.sub(r"\bid=\d+", "id", message)


def _agree(function, *operands):
    """Asserts that the walk predicts the real lowering; returns the predicted rule."""
    predicted = check(function, *operands).predicted
    real = lower(jax.jit(function).trace(*operands)).error
    if real is None:
        assert predicted is None, predicted
        return "ok"
    assert predicted is not None, f"{type(real).__name__}: {real}"
    assert predicted.exception == type(real).__name__
    if predicted.message == rules.NO_BARRIERS:
        assert str(real).startswith(predicted.message)
    else:
        assert _words(predicted.message) == _words(str(real))
    return predicted.rule


@pytest.mark.parametrize("name", CASES)
def test_variant_is_predicted_word_for_word(name):
    function, rule = CASES[name]
    assert _agree(function, OPERAND) == rule
    assert all(fault.mend for fault in check(function, OPERAND).faults if fault.message)


@pytest.mark.parametrize(("kib", "rule"), [(227, "ok"), (228, "smem")])
def test_smem_limit_is_exact(kib, rule):
    assert (
        _agree(kernel(scoped(smem(kib, 256))), OPERAND) == rule
    )  # rows of 1,024 bytes; 227 KiB is the limit


def test_one_barrier_more_than_the_limit_is_too_much():
    assert _agree(kernel(scoped(smem(227, 256), BARRIER())), OPERAND) == "smem"


def test_nested_scopes_add_up_and_siblings_share():
    def nested(operand, result):
        def outer(tile):
            pl.run_scoped(lambda other: None, smem(100, 256), collective_axes="wg")

        pl.run_scoped(outer, smem(100, 256), collective_axes="wg")

    def siblings(operand, result):
        pl.run_scoped(lambda tile: None, smem(100, 256), collective_axes="wg")
        pl.run_scoped(lambda tile: None, smem(120, 256), collective_axes="wg")

    assert check(kernel(nested), OPERAND).kernels[0].smem_bytes == 204_800
    assert check(kernel(siblings), OPERAND).kernels[0].smem_bytes == 122_880


def test_smem_is_rounded_up_to_1024_a_buffer_and_a_union_takes_its_largest_member():
    # 100 bytes and 4 bytes: 1,024 each. The union: max(1,000 rounded up + 400, 512) = 1,424, rounded up to 2,048.
    union = plgpu.RefUnion([smem(250), smem(100)], smem(128))
    report = check(kernel(scoped(smem(100, dtype=jnp.int8), smem(1), union)), OPERAND)
    assert report.kernels[0].smem_bytes == 1_024 + 1_024 + 2_048
    assert [buffer.smem_bytes for buffer in report.scopes[1].buffers] == [1_024, 1_024, 2_048]


def test_bytes_equal_those_that_lowering_allocates():
    function = kernel(
        scoped(smem(3, 100), smem(7), BARRIER(num_barriers=5), plgpu.RefUnion(smem(9), smem(2, 300)))
    )
    with jax_private.recorded_smem() as sizes:
        assert lower(jax.jit(function).trace(OPERAND)).error is None
    assert sizes == [check(function, OPERAND).kernels[0].smem_bytes]


def test_custom_derivatives_in_a_body_follow_the_version():
    lowers = jax_private.version_rules().lowers_custom_derivatives
    assert _agree(kernel(_custom_jvp), OPERAND) == ("ok" if lowers else "unsupported")


def test_sixteen_warpgroups_follow_the_version():
    limits = jax_private.version_rules().limits_cta_barriers
    assert _agree(kernel(lambda *refs: None, threads=16), OPERAND) == ("barriers" if limits else "ok")


BAD = kernel(scoped(smem(64, 64), axes=()))
GOOD = kernel(legal_body)


def _under_shard_map(operand):
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("x")
    return jax.shard_map(BAD, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(operand)


@jax.custom_vjp
def _with_vjp(operand):
    return BAD(operand)


_with_vjp.defvjp(lambda operand: (BAD(operand), None), lambda _, cotangent: (cotangent,))

CALLERS = {
    "vmap": lambda operand: jax.vmap(BAD)(operand[None]),
    "scan": lambda operand: lax.scan(lambda carry, _: (BAD(carry), None), operand, None, length=3)[0],
    "while": lambda operand: lax.fori_loop(0, 3, lambda _, carry: BAD(carry), operand),
    "cond": lambda operand: lax.cond(operand[0, 0] > 0, GOOD, BAD, operand),
    "jit": lambda operand: jax.jit(jax.jit(BAD))(operand),
    "custom_vjp": _with_vjp,
    "checkpoint": jax.checkpoint(BAD),
    "shard_map": _under_shard_map,
    "second_of_two": lambda operand: BAD(GOOD(operand)),
}


@pytest.mark.parametrize("name", CALLERS)
def test_kernel_is_found_wherever_it_is_called(name):
    assert _agree(CALLERS[name], OPERAND) == "b"


def test_first_kernel_decides_and_both_are_listed():
    main = kernel(scoped(accumulator()))
    report = check(lambda operand: BAD(main(operand)), OPERAND)
    assert [fault.rule for fault in report.faults] == ["main", "b"]
    assert _agree(lambda operand: BAD(main(operand)), OPERAND) == "main"


def test_a_kernel_called_twice_is_listed_once():
    cached = jax.jit(GOOD)
    assert len(check(lambda operand: cached(cached(operand)), OPERAND).kernels) == 1


def test_unused_kernel_is_dropped_as_jit_drops_it():
    def unused(operand):
        BAD(operand)
        return GOOD(operand)

    assert _agree(unused, OPERAND) == "ok"


def test_discharge_names_both_scopes_buffers_and_turns_them_inside_out():
    [fault] = check(kernel(_accumulator_outside(True)), OPERAND).faults
    assert [buffer.name for buffer in fault.buffers] == ["tile", "acc"]
    lines = [line.strip() for line in fault.mend.splitlines()]
    assert lines.index("def shared(tile):") < lines.index("accumulator(),") < lines.index("smem(64, 64),")


def test_every_fault_of_a_kernel_is_listed_in_the_order_of_lowering():
    def body(operand, result):
        pl.run_scoped(lambda acc, tile: None, accumulator(), smem(228, 256), collective_axes="wg")
        pl.run_scoped(lambda tile: None, smem(8, 8))

    faults = check(kernel(body, threads=9), OPERAND).faults
    assert [(fault.rule, fault.stage) for fault in faults] == [
        ("smem", "lower"),
        ("main", "lower"),
        ("b", "lower"),
        ("launch", "launch"),
    ]


def test_fault_of_a_helper_points_into_the_helper():
    fault = check(BAD, OPERAND).faults[0]
    assert fault.file.endswith("tests/helpers/lint_kernels.py")
    assert "pl.run_scoped" in Path(fault.file).read_text().splitlines()[fault.line - 1]


@functools.partial(
    plgpu.kernel,
    out_type=OPERAND,
    num_threads=2,
    thread_name="wg",
    scratch_types=[smem(8, 8), accumulator()],
)
def _decorated(operand, result, tile, acc):
    result[...] = acc[...]


def test_fault_of_a_kernel_that_nobody_calls_points_at_its_own_definition():
    fault = check(_decorated, OPERAND).faults[0]
    line = Path(__file__).read_text().splitlines().index("    scratch_types=[smem(8, 8), accumulator()],") + 1
    assert (fault.file, fault.line, fault.rule) == (__file__, line, "main")
    assert "accumulator()," in fault.mend


def test_kernels_of_references_are_checked_too():
    def stateful(operand):
        return BAD(jax.new_ref(operand))

    assert _agree(stateful, OPERAND) == "b"


TRACED = {
    "seventeen_warpgroups": (lambda operand: kernel(legal_body, threads=17)(operand), "threads"),
    "four_cluster_axes": (
        lambda operand: kernel(legal_body, cluster=(1,) * 4, cluster_names=tuple("abcd"))(operand),
        "launch",
    ),
    "no_arrivals": (lambda operand: kernel(scoped(BARRIER(num_arrivals=0)))(operand), "barriers"),
    "list_as_axes": (kernel(scoped(smem(8, 8), axes=["wg"])), "unsupported"),
    "old_parameter": (lambda operand: kernel(legal_body, scratch_shapes=[])(operand), "unsupported"),
    "colon_is_partial": (
        kernel(scoped(accumulator(), axes=(), then=lambda acc: acc.__setitem__(slice(None), 0.0))),
        "e",
    ),
    "initialised_by_name": (
        kernel(lambda *refs: pl.run_scoped(lambda acc: None, acc=plgpu.ACC.init(zeros()))),
        "d",
    ),
}


@pytest.mark.parametrize("name", TRACED)
def test_refusal_to_trace_is_explained_like_one_to_lower(name):
    function, rule = TRACED[name]
    with pytest.raises((ValueError, TypeError, NotImplementedError)) as real:
        jax.jit(function).trace(OPERAND)
    fault = check(function, OPERAND).predicted
    assert (fault.rule, fault.stage) == (rule, "trace")
    assert (fault.exception, fault.message) == (real.type.__name__, str(real.value))
    assert fault.mend


def test_arguments_that_are_no_arrays_are_passed_on():
    def run(operand, threads, *, other, label):
        assert label == "x"
        return kernel(legal_body, threads=threads)(operand + other)

    assert check(run, OPERAND, 3, other=OPERAND, label="x").kernels[0].num_threads == 3
    jitted = jax.jit(run, static_argnums=1, static_argnames="label")
    assert check(jitted, OPERAND, 4, other=OPERAND, label="x").kernels[0].num_threads == 4


def test_initialised_accumulator_is_named_and_sized():
    def body(operand, result):
        pl.run_scoped(lambda tile, start: None, smem(8, 8), plgpu.ACC.init(zeros()))

    [buffer] = check(kernel(body), OPERAND).faults[0].buffers
    assert (buffer.name, buffer.shape, buffer.size_bytes) == ("start", (64, 64), 16_384)


def test_suggested_number_of_stages_is_legal_and_one_more_is_not():
    # Stages of 48 KiB and 32 KiB beside them: 4 fit.
    function = kernel(scoped(smem(6, 48, 256), smem(32, 256)))
    assert "4 stages instead of 6 (229,376 bytes)" in check(function, OPERAND).faults[0].mend
    assert check(kernel(scoped(smem(4, 48, 256), smem(32, 256))), OPERAND).kernels[0].smem_bytes == 229_376
    assert not check(kernel(scoped(smem(5, 48, 256), smem(32, 256))), OPERAND).ok


@pytest.mark.parametrize(("count", "faulty"), [(16, True), (24, False), (264, True)])
def test_register_counts_that_ptxas_refuses_lower(count, faulty):
    function = kernel(lambda *refs: plgpu.set_max_registers(count, action="decrease"))
    assert _agree(function, OPERAND) == "ok"
    assert [fault.rule for fault in check(function, OPERAND).faults] == (["launch"] if faulty else [])


def test_cluster_that_cannot_be_launched_lowers():
    function = kernel(legal_body, cluster=(32,), cluster_names=("pair",))
    assert _agree(function, OPERAND) == "ok"
    assert [(fault.rule, fault.stage) for fault in check(function, OPERAND).faults] == [("launch", "launch")]
    wide = check(kernel(legal_body, cluster=(16,), cluster_names=("pair",)), OPERAND)
    assert wide.ok and [warning.rule for warning in wide.warnings] == ["launch"]


def test_walk_takes_less_than_five_milliseconds():
    fastest = min(check(GOOD, OPERAND).walk_ms for _ in range(5))
    assert fastest < 5.0
