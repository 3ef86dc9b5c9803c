"""Chains and rivals on jax's CPU: what is compiled, and that every formulation gives the same product."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autotune.evaluate.bench import Bench
from autotune.evaluate.chain import (
    Copies,
    activations,
    chained,
    cold_operands,
    copies_needed,
    rotated,
    touching,
    with_inputs,
)
from autotune.evaluate.race import DECIDED
from autotune.seam import MeasureProtocol
from autotune.target import load_target
from tests.helpers.fake_target import FakeProblem, FakeTarget

TARGET = load_target("hopper_matmul")
TYPES = (jax.ShapeDtypeStruct((4, 8), "float32"), jax.ShapeDtypeStruct((8, 4), "float32"))


def test_a_chain_computes_every_call_from_its_own_operands():
    chain = chained(lambda lhs, rhs: lhs @ rhs, TYPES, "cpu", {}, calls=5)
    operands = [jnp.full(TYPES[place % 2].shape, place + 1.0) for place in range(10)]
    results = chain.executable(*operands)
    assert [float(result[0, 0]) for result in results] == [8.0 * (2 * i + 1) * (2 * i + 2) for i in range(5)]


def test_equal_arrays_in_a_chain_are_still_multiplied_one_by_one():
    lowered = chained(lambda lhs, rhs: lhs @ rhs, TYPES, "cpu", {}, calls=50).executable
    assert lowered.as_text().count(" dot(") + lowered.as_text().count("custom-call(") >= 50


def test_copies_cover_four_times_the_l2_and_one_more():
    assert copies_needed(2**25) == 9  # 32 MiB of 256
    assert copies_needed(2**30) == 1
    assert copies_needed(16) == 1024
    assert copies_needed(0) == 1


@pytest.mark.parametrize(("l2", "cold"), [("warm", []), ("clean", [0, 1]), ("activations_warm", [1])])
def test_what_rotates_is_what_the_protocol_says_is_cold(l2, cold):
    problem = TARGET.problem_from_fields({"m": 16, "n": 4096, "k": 4096})
    assert activations(TARGET, problem) == (0,)
    assert cold_operands(TARGET, problem, 2, MeasureProtocol(l2=l2)) == cold


def test_arguments_come_past_every_copy():
    copies = Copies(operands=(("a",), ("b0", "b1", "b2")))
    arguments = copies.arguments(2)
    assert arguments == [("a", "b0", "a", "b1"), ("a", "b2", "a", "b0")]


def test_rotated_operands_are_equal_but_apart():
    bench = Bench(FakeTarget(), FakeProblem(m=8, n=512, k=512), 0)
    bench.prepare()
    bench.load()
    copies = rotated(FakeTarget(), bench, MeasureProtocol(l2="activations_warm"))
    lhs, rhs = copies.operands
    assert len(lhs) == 1 and len(rhs) == 257  # of 1 MiB
    assert len({copy.unsafe_buffer_pointer() for copy in rhs}) == 257
    np.testing.assert_array_equal(rhs[0], rhs[256])
    assert len(touching(FakeTarget(), bench)()) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"m": 33, "n": 17, "k": 41},
        {"m": 33, "n": 17, "k": 41, "layout": "tn"},
        {"m": 32, "n": 16, "k": 64, "out_dtype": "float32"},
        {"m": 32, "n": 16, "k": 64, "lhs_dtype": "float8_e4m3fn", "layout": "nt"},
    ],
)
def test_every_formulation_of_the_rival_is_the_same_product(fields):
    problem = TARGET.problem_from_fields(fields)
    operands = TARGET.operands(problem, 3)
    rivals = TARGET.rivals(problem)
    assert next(iter(rivals)) == "plain"
    assert ("padded" in rivals) == any(fields[name] % 8 for name in "mnk")
    assert ("widened" in rivals) == fields.get("lhs_dtype", "").startswith("float8")
    exact = np.asarray(TARGET.reference(problem)(*operands), dtype=np.float32)
    for name, (function, _) in rivals.items():
        result = function(*operands)
        assert result.shape == (problem.m, problem.n) and result.dtype == problem.out_dtype, name
        error = np.linalg.norm(np.asarray(result, dtype=np.float32) - exact) / np.linalg.norm(exact)
        assert error <= TARGET.tolerance(problem), name


def test_a_rival_of_something_else_than_one_plain_product_is_refused():
    with pytest.raises(ValueError, match="groups=4"):
        TARGET.rivals(TARGET.problem_from_fields({"groups": 4, "m": 64, "n": 64, "k": 64}))


def test_xla_knows_the_options_of_its_rivals():
    problem = TARGET.problem_from_fields({"m": 64, "n": 64, "k": 64})
    types = TARGET.operand_types(problem)
    for function, options in TARGET.rivals(problem).values():
        jax.jit(function).lower(*types).compile(compiler_options={**options, **DECIDED})


def test_integer_inputs_are_whole_numbers_and_normal_ones_are_not():
    problem = TARGET.problem_from_fields({"m": 64, "n": 64, "k": 64})
    (lhs, _), (normal, _) = (
        with_inputs(TARGET, name).operands(problem, 0) for name in ("integers", "normal")
    )
    assert set(np.unique(np.asarray(lhs, dtype=np.float32))) == {-2.0, -1.0, 0.0, 1.0, 2.0}
    assert np.unique(np.asarray(normal, dtype=np.float32)).size > 100
