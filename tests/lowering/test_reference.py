"""What results are held against: sums in more than float32, and operands whose products are exact."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from autotune.evaluate import spin
from hopper_matmul import reference
from hopper_matmul.problem import Problem
from tests.helpers.planted_target import FAULTS, PlantedConfig, planted


def wide(array, is_transposed) -> np.ndarray:
    values = np.asarray(array.astype("float32")).astype("float64")
    return values.T if is_transposed else values


def truth(problem, operands) -> np.ndarray:
    lhs, rhs = (wide(each, letter == "t") for each, letter in zip(operands, problem.layout))
    return lhs @ rhs


@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_a_long_sum_is_right_beyond_float32(layout):
    # 40,001 is no multiple of a chunk. All values positive, so that the sum grows to 40,000 and a float32 near it
    # has a step of 1/256.
    problem = Problem(m=4, n=8, k=40_001, layout=layout)
    operands = tuple(abs(each) for each in reference.operands(problem, 1))
    expected = truth(problem, operands)
    found = np.asarray(jax.jit(reference.reference(problem))(*operands)).astype("float64")
    assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < 1e-7


def test_a_pair_of_float32_keeps_what_one_would_drop():
    # 2^24 + 1 needs 25 bits; of 2^10 ones added to 2^24 a float32 keeps none.
    total = (np.float32(2**24), np.float32(0))
    for _ in range(2**10):
        total = jax.jit(reference._added)(total, np.float32(1))
    assert (float(total[0]), float(total[1])) == (2.0**24, 1024.0)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_whole_operands_have_a_product_that_float32_holds_exactly(layout):
    problem = Problem(m=8, n=16, k=9_000, layout=layout)
    operands = reference.exact_operands(problem, 3)
    assert [(each.shape, each.dtype) for each in operands] == [
        (each.shape, each.dtype) for each in reference.operand_types(problem)
    ]
    assert {float(value) for each in operands for value in np.unique(each)} == {-2.0, -1.0, 0.0, 1.0, 2.0}
    assert (np.asarray(jax.jit(reference.reference(problem))(*operands)) == truth(problem, operands)).all()


def test_there_are_no_exact_operands_where_a_sum_can_pass_2_to_the_24():
    assert reference.exact_operands(Problem(m=1, n=1, k=2**22 + 1), 0) is None


def test_the_spin_kernel_lowers_without_a_gpu_and_counts_cycles_and_nanoseconds():
    text = spin.lowered_spin().as_text()
    assert "clock64" in text
    assert "globaltimer" in text
    # 39,600 cycles in 20,000 ns are 1,980 MHz.
    assert spin.sm_mhz(np.array([39_600, 20_000, 0, 0], np.int32)) == 1980.0


def test_time_between_two_spins_is_told_across_the_turn_of_the_timer():
    def reading(begun, ended):
        return np.array([0, 0, begun, ended], np.uint32).view(np.int32)

    # 100 ns before the low 32 bits come round, 250 ns after
    assert spin.between_s(reading(0, 2**32 - 100), reading(250, 9999)) == pytest.approx(350e-9)


@pytest.mark.parametrize("mode", ["good", "wrong", "wrong_element", *FAULTS])
def test_each_planted_kernel_lowers(mode):
    candidate = planted(0, mode).candidate
    from tests.helpers.planted_target import PlantedTarget

    target = PlantedTarget()
    function = target.build(candidate.problem, PlantedConfig(mode=mode), candidate.device)
    types = target.operand_types(candidate.problem)
    assert jax.jit(function).trace(*types).lower(lowering_platforms=("cuda",)).as_text()


SHARED = [{"broadcast": "lhs", "layout": layout} for layout in ("nn", "nt", "tn", "tt")]
SHARED += [{"broadcast": "rhs", "layout": layout} for layout in ("tn", "tt")]


@pytest.mark.parametrize("fields", SHARED, ids=str)
def test_every_formulation_of_a_batch_with_a_shared_operand_is_that_of_matmul(fields):
    problem = Problem.from_fields({"batch": 3, "m": 5, "n": 7, "k": 9, "out_dtype": "float32"} | fields)
    # As float32, since XLA on a CPU lacks some of these products of bfloat16.
    operands = [each.astype("float32") for each in reference.exact_operands(problem, 4)]
    assert {each.ndim for each in operands} == {2, 3}
    lhs, rhs = (
        np.asarray(each, np.float64).swapaxes(-1, -2) if letter == "t" else np.asarray(each, np.float64)
        for each, letter in zip(operands, problem.layout, strict=True)
    )
    expected = np.matmul(lhs, rhs)
    rivals = reference.rivals(problem)
    assert {"plain", "padded", "repeated"} <= set(rivals)
    for function in (reference.reference(problem), *(rival for rival, _ in rivals.values())):
        assert np.array_equal(np.asarray(jax.jit(function)(*operands)), expected)


@pytest.mark.parametrize("broadcast", ["lhs", "rhs"])
def test_a_long_sum_of_a_shared_operand_is_taken_apart(broadcast):
    problem = Problem(batch=2, m=4, n=8, k=9_000, layout="tn", broadcast=broadcast)
    lhs, rhs = (each.astype("float32") for each in reference.exact_operands(problem, 5))
    expected = np.matmul(np.asarray(lhs, np.float64).swapaxes(-1, -2), np.asarray(rhs, np.float64))
    assert np.array_equal(np.asarray(jax.jit(reference.reference(problem))(lhs, rhs)), expected)


def test_nothing_is_repeated_where_nothing_is_shared():
    assert "repeated" not in reference.rivals(Problem(batch=2, m=8, n=8, k=8))
