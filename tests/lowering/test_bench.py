"""What verifies a result, on the CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from autotune.evaluate.bench import Bench
from autotune.evaluate.fault import CandidateError
from tests.helpers.fake_target import FakeProblem, FakeTarget


class IntegerTarget(FakeTarget):
    """lhs and rhs of ones: each element of the product is k."""

    def operand_types(self, problem):
        shapes = (problem.m, problem.k), (problem.k, problem.n)
        return tuple(jax.ShapeDtypeStruct(shape, "int32") for shape in shapes)

    def operands(self, problem, seed):
        return tuple(jnp.ones(each.shape, each.dtype) for each in self.operand_types(problem))

    def reference(self, problem):
        return lambda lhs, rhs: (lhs @ rhs).astype(jnp.float32)


def _bench(target=None) -> Bench:
    bench = Bench(target or FakeTarget(), FakeProblem(m=4, n=4, k=8), seed=0)
    bench.prepare()
    bench.load()
    return bench


def _verify(bench, function):
    compiled = jax.jit(function).lower(*bench.types).compile()
    return bench.verify(compiled, bench.expected)


def test_the_error_is_relative_to_the_norm_of_the_reference():
    bench = _bench()
    assert _verify(bench, lambda lhs, rhs: lhs @ rhs).error < 1e-6
    assert _verify(bench, lambda lhs, rhs: 1.0005 * (lhs @ rhs)).error == pytest.approx(5e-4, rel=1e-2)
    with pytest.raises(CandidateError, match=r"relative error 0.002, tolerance 0.001") as raised:
        _verify(bench, lambda lhs, rhs: 1.002 * (lhs @ rhs))
    assert raised.value.reason == "wrong"


def test_one_element_left_as_poison_is_unwritten():
    with pytest.raises(CandidateError, match="1 of 16 elements") as raised:
        _verify(_bench(), lambda lhs, rhs: (lhs @ rhs).at[2, 3].set(jnp.nan))
    assert raised.value.reason == "unwritten"


def test_integers_are_poisoned_with_their_least_value():
    bench = _bench(IntegerTarget())
    assert _verify(bench, lambda lhs, rhs: lhs @ rhs).error == 0.0
    with pytest.raises(CandidateError, match="1 of 16 elements") as raised:
        _verify(bench, lambda lhs, rhs: (lhs @ rhs).at[0, 0].set(jnp.iinfo(jnp.int32).min))
    assert raised.value.reason == "unwritten"


def test_a_result_in_a_freed_buffer_counts_as_poisoned(monkeypatch):
    bench = _bench()
    result = bench._programs["poison"]() * 0 + 1  # any live array with an address
    right = jnp.asarray(bench.operands[0] @ bench.operands[1])
    monkeypatch.setattr(bench, "_free_poisoned_buffers", lambda: {right.unsafe_buffer_pointer()})
    assert bench.verify(lambda *_: right, bench.expected).poisoned
    monkeypatch.setattr(bench, "_free_poisoned_buffers", lambda: {result.unsafe_buffer_pointer()})
    assert not bench.verify(lambda *_: right, bench.expected).poisoned


def test_poison_is_nan_in_every_element():
    assert bool(jnp.isnan(_bench()._programs["poison"]()).all())


def test_operands_are_the_same_for_the_same_seed():
    first, second = _bench(), _bench()
    assert all((a == b).all() for a, b in zip(first.operands, second.operands, strict=True))


def test_the_peak_of_memory_counts_operands_poison_and_reference():
    bench = Bench(FakeTarget(), FakeProblem(m=1024, n=2048, k=512), seed=0)
    operands = (1024 * 512 + 512 * 2048) * 4  # 6 MiB
    result = 1024 * 2048 * 4  # 8 MiB: two poisoned buffers, the result, and as much for the reference
    assert bench.size_bytes == operands + 3 * result + result + 256 * 2**20
