"""Collective scopes that not all warpgroups enter equally often, and warpgroups without a role."""

import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl

from autotune.lint import check
from tests.helpers.lint_kernels import OPERAND, kernel, smem, when_first


def _scope():
    pl.run_scoped(lambda tile: tile.__setitem__(..., jnp.zeros((64, 64))), smem(64, 64), collective_axes="wg")


def _index():
    return lax.axis_index("wg")


def _loop(trips):
    lax.fori_loop(0, trips, lambda _, carry: (_scope(), carry)[1], None)


def _nothing():
    return None


def _loaded(source):
    return source[0, 0] > 0.0


def _through_jit(source):
    import jax

    lax.cond(jax.jit(lambda value: value % 2)(_index()) == 1, _scope, _nothing)


def _carried(source):
    # The carry starts equal everywhere, and takes the warpgroup's index in the first trip.
    def body(_, carry):
        lax.cond(carry == 1, _scope, _nothing)
        return carry + _index()

    lax.fori_loop(0, 2, body, 0)


# What a body of two warpgroups does -> whether they part.
BODIES = {
    "one branch": (lambda source: lax.cond(_index() == 0, _scope, _nothing), True),
    "an equal scope in both branches": (lambda source: lax.cond(_index() == 0, _scope, _scope), False),
    "two conditions, one scope each": (
        lambda source: [lax.cond(_index() == which, _scope, _nothing) for which in (0, 1)],
        False,
    ),
    "two scopes against one": (
        lambda source: lax.cond(_index() == 0, lambda: (_scope(), _scope())[1], _scope),
        True,
    ),
    "arithmetic on the index": (lambda source: lax.cond((_index() + 3) // 4 == 1, _scope, _nothing), True),
    "arithmetic that both satisfy": (lambda source: lax.cond(_index() < 7, _scope, _nothing), False),
    "through jit": (_through_jit, True),
    "a value all load alike": (lambda source: lax.cond(_loaded(source), _scope, _nothing), False),
    "a value loaded by index": (lambda source: lax.cond(source[_index(), 0] > 0.0, _scope, _nothing), True),
    "equal loops": (lambda source: _loop(3), False),
    "loops of the index": (lambda source: _loop(_index() + 1), True),
    "loops of a shared size": (lambda source: _loop(lax.axis_index("block") + 1), False),
    "as often, in loops and alone": (
        lambda source: lax.cond(_index() == 0, lambda: _loop(2), lambda: (_scope(), _scope())[1]),
        False,
    ),
    "a loop without scopes": (
        lambda source: lax.fori_loop(0, _index() + 1, lambda _, carry: carry, 0),
        False,
    ),
    "a carry that takes the index": (_carried, True),
    "switch": (lambda source: lax.switch(_index(), [_scope, _nothing]), True),
}


@pytest.mark.parametrize("name", BODIES)
def test_divergence_is_found_where_it_is_and_only_there(name):
    action, parts = BODIES[name]

    def body(source, result):
        action(source)

    report = check(kernel(body), OPERAND)
    assert [fault.rule for fault in report.faults] == (["divergent"] if parts else [])
    assert report.predicted is None


def test_counts_name_each_warpgroup():
    def body(source, result):
        lax.cond(_index() == 2, lambda: _loop(3), _scope)

    [fault] = check(kernel(body, threads=4), OPERAND).faults
    # The first scope in the text is that of branch 0, which all but wg=2 take.
    assert "wg=0 enters it 1x, wg=1 enters it 1x, wg=2 enters it 0x, wg=3 enters it 1x" in fault.message


def test_private_scopes_may_differ():
    def body(source, result):
        when_first(lambda: pl.run_scoped(lambda: None))

    assert check(kernel(body), OPERAND).ok


@pytest.mark.parametrize(("threads", "idle"), [(2, ()), (3, (2,)), (4, (2, 3))])
def test_warpgroups_without_a_role_are_warned_of(threads, idle):
    def body(source, result):
        def store():
            result[...] = source[...]

        def wait():
            pl.run_scoped(lambda: None)
            result[0, 0] = source[0, 0]

        lax.cond(_index() == 0, store, lambda: lax.cond(_index() == 1, wait, _nothing))

    report = check(kernel(body, threads=threads), OPERAND)
    assert report.ok
    assert [warning.rule for warning in report.warnings] == (["threads"] if idle else [])
    if idle:
        assert f"no role uses wg={', '.join(map(str, idle))}" in report.warnings[0].message


@pytest.mark.parametrize(("threads", "faulty"), [(8, False), (9, True), (15, True)])
def test_more_than_eight_warpgroups_do_not_launch(threads, faulty):
    def body(source, result):
        result[...] = source[...]

    report = check(kernel(body, threads=threads), OPERAND)
    assert [(fault.rule, fault.stage) for fault in report.faults] == (
        [("launch", "launch")] if faulty else []
    )
