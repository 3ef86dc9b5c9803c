"""Arithmetic on what is known of a scalar."""

from types import SimpleNamespace

import pytest

from autotune.lint.scalars import UNIFORM, Scalar, evaluate, literal


def _eqn(name, shape=(), **params):
    output = SimpleNamespace(aval=SimpleNamespace(shape=shape))
    return SimpleNamespace(primitive=SimpleNamespace(name=name), params=params, outvars=[output])


def _value(name, *values):
    [result] = evaluate(_eqn(name), [Scalar(value=value) for value in values], "wg", 0)
    return result.value


@pytest.mark.parametrize(
    ("name", "values", "result"),
    [
        ("div", (-7, 2), -3),  # lax.div rounds towards zero
        ("rem", (-7, 2), -1),  # lax.rem takes the dividend's sign
        ("select_n", (True, 10, 20), 20),
        ("clamp", (0, 9, 3), 3),
        ("not", (True,), False),
        ("not", (0,), -1),
        ("div", (1, 0), None),
        ("sin", (1,), None),
    ],
)
def test_operations_follow_lax(name, values, result):
    assert _value(name, *values) == result


def test_thread_index_is_known_and_differs():
    assert evaluate(_eqn("axis_index", axis_name="wg"), [], "wg", 2) == [Scalar(value=2, differs=True)]
    assert evaluate(_eqn("axis_index", axis_name="block"), [], "wg", 2) == [UNIFORM]


def test_what_is_derived_from_the_index_differs_even_when_unknown():
    index = Scalar(value=1, differs=True)
    assert evaluate(_eqn("get"), [UNIFORM, index], "wg", 1) == [Scalar(differs=True)]
    assert evaluate(_eqn("get"), [UNIFORM, Scalar(value=1)], "wg", 1) == [UNIFORM]
    assert evaluate(_eqn("add", shape=(4,)), [index, index], "wg", 1) == [Scalar(differs=True)]


def test_literals_are_whole_numbers_and_truth_values():
    assert literal(3) == Scalar(value=3)
    assert literal(True) == Scalar(value=True)
    assert literal(1.5) == UNIFORM
