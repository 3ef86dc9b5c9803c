"""The repair of illegal allocation plans."""

import random

import pytest

from hopper_matmul.random_variants import random_plan
from hopper_matmul.repair import repaired
from hopper_matmul.scopes import LEGAL_PLANS, PLANS


@pytest.mark.parametrize(
    ("plan", "mended"),
    [
        ("acc_collective", "joint"),
        ("acc_in_scratch", "scratch"),
        ("smem_private", "joint"),
        ("acc_outermost", "joint"),
        ("epilogue_in_compute", "nested"),
        *[(plan.name, plan.name) for plan in LEGAL_PLANS],
    ],
)
def test_each_named_plan_becomes_the_split_that_the_hint_asks_for(plan, mended):
    assert repaired(PLANS[plan]) == PLANS[mended]


def test_any_plan_becomes_a_legal_one_that_is_left_alone_from_then_on():
    rng = random.Random(3)
    illegal = 0
    for _ in range(2_000):
        plan = random_plan(rng)
        mended = repaired(plan)
        illegal += mended != plan
        assert mended.fault == "none", plan
        assert not mended.is_divergent, plan
        assert not mended.acc_in_memory_role, plan
        assert repaired(mended) == mended
        assert mended.shares_bytes == plan.shares_bytes
    assert illegal > 1_000
