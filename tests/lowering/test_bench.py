"""What verifies a result, on the CPU."""

from __future__ import annotations

import ctypes
import itertools

import jax
import jax.numpy as jnp
import pytest

from autotune.evaluate.bench import Bench
from autotune.evaluate.fault import CandidateError
from autotune.evaluate.fence import TRIES, enclosed
from autotune.evaluate.steps import compile_module, lower_candidate, lower_function
from tests.helpers.fake_target import FakeProblem, FakeTarget, candidate


class IntegerTarget(FakeTarget):
    """lhs and rhs of ones: each element of the product is k."""

    def operand_types(self, problem):
        shapes = (problem.m, problem.k), (problem.k, problem.n)
        return tuple(jax.ShapeDtypeStruct(shape, "int32") for shape in shapes)

    def operands(self, problem, seed):
        return tuple(jnp.ones(each.shape, each.dtype) for each in self.operand_types(problem))

    def exact_operands(self, problem, seed):
        return self.operands(problem, seed)

    def reference(self, problem):
        return lambda lhs, rhs: (lhs @ rhs).astype(jnp.float32)


class NothingExact(FakeTarget):
    """A target whose results are rounded in between, so that no input gives an exact one."""

    def exact_operands(self, problem, seed):
        return None


def _bench(target=None) -> Bench:
    bench = Bench(target or FakeTarget(), FakeProblem(m=4, n=4, k=8), seed=0)
    bench.prepare()
    bench.load()
    return bench


def _verify(bench, function):
    compiled = jax.jit(function).lower(*bench.types).compile()
    return bench.verify(compiled, bench.expected)


def test_the_error_is_relative_to_the_norm_of_the_reference():
    bench = _bench(NothingExact())
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


def test_a_candidate_writes_into_the_room_and_so_its_result_was_provably_poisoned():
    bench = _bench(NothingExact())
    module = lower_candidate(FakeTarget(), candidate(problem=bench.problem), "cpu")
    call = bench.in_place(compile_module(module)[0])
    for _ in range(2):
        verdict = bench.verify(call, module.result_type)
        assert verdict.poisoned and verdict.error < 1e-6
    room = bench._fence.poison()
    assert bool(jnp.isnan(bench._fence._room).all())
    # Every call overwrites what the one before returned.
    assert {call(*bench.operands).unsafe_buffer_pointer() for _ in range(5)} == {room}
    # A rival is compiled as a user would, and has its memory from the allocator.
    assert not _verify(bench, lambda lhs, rhs: lhs @ rhs).poisoned


def test_what_a_candidate_leaves_of_the_poison_is_unwritten():
    bench = _bench(NothingExact())
    partly = jax.jit(
        lambda lhs, rhs, room: room.at[1:].set((lhs @ rhs)[1:]), donate_argnums=2, keep_unused=True
    )
    call = bench.in_place(partly.lower(*bench.types, bench.expected).compile())
    with pytest.raises(CandidateError, match="4 of 16 elements are not finite or were never written"):
        bench.verify(call, bench.expected)


def test_a_call_that_failed_with_the_room_leaves_the_next_one_a_new_room():
    bench = _bench(NothingExact())

    def fails(*_):
        raise ValueError("no launch")

    with pytest.raises(CandidateError, match="no launch"):
        bench.verify(bench.in_place(fails), bench.expected)
    module = lower_candidate(FakeTarget(), candidate(problem=bench.problem), "cpu")
    assert bench.verify(bench.in_place(compile_module(module)[0]), module.result_type).poisoned


def test_writing_in_place_is_no_part_of_a_modules_digest():
    job = candidate(variant=3)
    function = FakeTarget().build(job.problem, job.config, job.device)
    plain = lower_function(function, FakeTarget().operand_types(job.problem), "cpu")
    module = lower_candidate(FakeTarget(), job, "cpu")
    assert module.writes_in_place and not plain.writes_in_place
    assert module.lowered.digest == plain.lowered.digest
    assert module.lowered.digest != lower_candidate(FakeTarget(), candidate(variant=4), "cpu").lowered.digest


def test_operands_are_the_same_for_the_same_seed():
    first, second = _bench(), _bench()
    assert all((a == b).all() for a, b in zip(first.operands, second.operands, strict=True))


def test_the_peak_of_memory_counts_operands_poison_posts_and_references():
    bench = Bench(NothingExact(), FakeProblem(m=1024, n=2048, k=512), seed=0)
    operands = (1024 * 512 + 512 * 2048) * 4  # 6 MiB
    result = 1024 * 2048 * 4  # 8 MiB: two poisoned buffers, the result, and as much for the reference
    posts = 3 * 2**20  # around two holes
    peak = operands + 3 * result + result + posts + 256 * 2**20
    assert bench.size_bytes == peak
    # Integer-valued operands and their result are kept beside the normal ones.
    exact = Bench(FakeTarget(), FakeProblem(m=1024, n=2048, k=512), seed=0)
    assert exact.size_bytes == peak + operands + result


def test_one_wrong_element_in_a_million_is_found_by_its_bits():
    bench = Bench(FakeTarget(), FakeProblem(m=1024, n=1024, k=8), seed=0)
    bench.prepare()
    bench.load()
    # One element off by its own size is 1/1024 of the norm of 2^20 equal ones, and within the tolerance of 1e-3.
    with pytest.raises(
        CandidateError, match=r"1 of 1048576 elements of an integer-valued product differ"
    ) as raised:
        _verify(bench, lambda lhs, rhs: (lhs @ rhs).at[3, 5].add(1.0))
    assert raised.value.reason == "wrong"
    assert _verify(bench, lambda lhs, rhs: lhs @ rhs).exact


def test_without_integer_valued_operands_nothing_is_said_of_bits():
    bench = Bench(NothingExact(), FakeProblem(m=4, n=4, k=8), seed=0)
    bench.prepare()
    bench.load()
    assert _verify(bench, lambda lhs, rhs: lhs @ rhs).exact is None


def test_the_sign_of_a_zero_is_no_difference():
    bench = _bench()
    bench._exact.operands = tuple(jnp.zeros(each.shape, each.dtype) for each in bench.types)
    bench.verify_bits(lambda lhs, rhs: -(lhs @ rhs))


def test_another_problem_has_other_operands_with_the_same_seed():
    small, large = (Bench(FakeTarget(), FakeProblem(m=4, n=4, k=k), seed=0) for k in (8, 16))
    for bench in (small, large):
        bench.prepare()
        bench.load()
    assert not (small.operands[0] == large.operands[0][:, :8]).any()


def test_fresh_operands_come_with_their_own_references():
    bench = _bench()
    first = bench.operands[0]
    old = bench.verify(lambda lhs, rhs: lhs @ rhs, bench.expected)
    bench.load(seed=7)
    assert not (bench.operands[0] == first).any()
    assert bench.verify(lambda lhs, rhs: lhs @ rhs, bench.expected).error < 1e-6
    assert old.error < 1e-6
    bench.load()  # the bench's own are not asked for again where any are there
    assert not (bench.operands[0] == first).any()


def test_a_write_beside_the_result_is_stray_and_names_how_many_bytes():
    bench = _bench()
    product = jax.jit(lambda lhs, rhs: lhs @ rhs).lower(*bench.types).compile()
    # The CPU's allocator lays nothing side by side, so the posts are given.
    bench._fence._posts = tuple(bench._fence._make_post() for _ in range(2))

    def overrun(lhs, rhs):
        result = jax.block_until_ready(product(lhs, rhs))
        ctypes.memset(bench._fence._posts[1].unsafe_buffer_pointer() + 100, 0, 24)
        return result

    with pytest.raises(CandidateError, match="24 bytes beside the result were written") as raised:
        bench.verify(overrun, bench.expected)
    assert raised.value.reason == "stray"
    # The posts are mended: the next candidate is not blamed for it.
    assert bench.verify(product, bench.expected).error < 1e-6


def _overrunning(bench, product, runs):
    """Returns the product, which in these of its runs writes beside the result."""
    bench._fence._posts = tuple(bench._fence._make_post() for _ in range(2))
    numbers = itertools.count()

    def overrun(lhs, rhs):
        if next(numbers) in runs:
            ctypes.memset(bench._fence._posts[0].unsafe_buffer_pointer(), 0, 8)
        return product(lhs, rhs)

    return overrun


def test_a_wrong_result_with_a_write_beside_it_leaves_the_next_candidate_sound_posts():
    bench = _bench(NothingExact())
    wrong = jax.jit(lambda lhs, rhs: 2 * (lhs @ rhs)).lower(*bench.types).compile()
    with pytest.raises(CandidateError) as raised:
        bench.verify(_overrunning(bench, wrong, {0}), bench.expected)
    assert raised.value.reason == "wrong"
    product = jax.jit(lambda lhs, rhs: lhs @ rhs).lower(*bench.types).compile()
    assert bench.verify(product, bench.expected).error < 1e-6


def test_a_write_beside_the_result_of_the_second_run_is_seen_too():
    bench = _bench()
    product = jax.jit(lambda lhs, rhs: lhs @ rhs).lower(*bench.types).compile()
    with pytest.raises(CandidateError, match="8 bytes beside the result were written"):
        bench.verify(_overrunning(bench, product, {1}), bench.expected)


def test_what_a_check_found_is_fetched_at_once(monkeypatch):
    bench = _bench()
    bench.verify(jax.jit(lambda lhs, rhs: lhs @ rhs).lower(*bench.types).compile(), bench.expected)
    module = lower_candidate(FakeTarget(), candidate(problem=bench.problem), "cpu")
    executable, done = compile_module(module)[0], []
    for name in ("block_until_ready", "device_get"):
        wait = getattr(jax, name)
        monkeypatch.setattr(jax, name, lambda value, name=name, wait=wait: done.append(name) or wait(value))
    call = bench.in_place(lambda *operands: done.append("run") or executable(*operands))
    assert bench.verify(call, module.result_type).exact
    # The first two waits are for addresses: of the poison, and of the result in its place.
    assert done == ["block_until_ready", "run", "block_until_ready", "run", "device_get"]


class Buffer:
    def __init__(self, place):
        self.place = place

    def unsafe_buffer_pointer(self):
        return self.place


POST, ROOM = 2**20, 1024


@pytest.mark.parametrize(
    ("post_places", "room_places", "found"),
    [
        ([4096, 4096 + POST + ROOM], [4096 + POST], 4096 + POST),
        # Smaller gaps elsewhere were filled first.
        ([64, 128, 4096, 32, 4096 + POST + ROOM], [9, 4096 + POST], 4096 + POST),
        ([4096 + POST + ROOM], [4096 + POST], None),
        ([4096, 4096 + POST + ROOM + 256], [4096 + POST], None),
        ([4096, 4096 + POST + ROOM], [64], None),
    ],
)
def test_a_room_is_one_right_between_two_posts(post_places, room_places, found):
    rooms, posts = ([Buffer(place) for place in places] for places in (room_places, post_places))
    result = enclosed(rooms, posts, ROOM)
    assert (result and result[0].place) == found
    if result:
        assert [post.place for post in result[1]] == [found - POST, found + ROOM]


def test_a_result_is_guarded_only_in_the_room_that_lies_between_posts(monkeypatch):
    bench = _bench(NothingExact())
    module = lower_candidate(FakeTarget(), candidate(problem=bench.problem), "cpu")
    call = bench.in_place(compile_module(module)[0])
    assert not bench.verify(call, module.result_type).guarded  # as the CPU's allocator lays them
    monkeypatch.setattr(bench._fence, "_enclosed_place", bench._fence.poison())
    assert bench.verify(call, module.result_type).guarded
    assert not _verify(bench, lambda lhs, rhs: lhs @ rhs).guarded


def test_without_a_try_between_two_posts_the_last_one_serves(monkeypatch):
    bench = _bench(NothingExact())
    made = []
    monkeypatch.setattr(
        bench._fence, "_make_room", lambda make=bench._fence._make_room: made.append(1) or make()
    )
    monkeypatch.setattr("autotune.evaluate.fence.enclosed", lambda *_: None)
    bench._fence._find()
    assert len(made) == TRIES and bench._fence.poison()
