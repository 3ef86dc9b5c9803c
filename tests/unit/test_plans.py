"""Allocation plans as data: what can be written down, and what follows from it."""

import pytest

from hopper_matmul.scopes import LEGAL_PLANS, PLANS, Scope, ScopePlan

SMEM = ("barriers", "epilogue", "ring")
ACC = Scope(place="compute_tile", holds=("accumulator",), collective=False)


def smem(place="kernel", holds=SMEM, **changes):
    return Scope(place=place, holds=holds, **({"collective": True} | changes))


@pytest.mark.parametrize(
    ("plan", "fault"),
    [
        ("acc_collective", "main"),
        ("acc_in_scratch", "main"),
        ("smem_private", "b"),
        ("acc_outermost", "discharge"),
        ("epilogue_in_compute", "none"),
        *[(plan.name, "none") for plan in LEGAL_PLANS],
    ],
)
def test_fault_of_each_named_plan(plan, fault):
    assert PLANS[plan].fault == fault


def test_only_the_epilogue_in_the_compute_role_is_divergent():
    assert [name for name, plan in PLANS.items() if plan.is_divergent] == ["epilogue_in_compute"]


def test_the_hint_of_the_error_is_what_makes_the_plan_legal():
    together = ScopePlan(name="together", scopes=(smem(holds=("accumulator", *SMEM)),))
    split = ScopePlan(name="split", scopes=(smem(), ACC))
    assert (together.fault, split.fault) == ("main", "none")


@pytest.mark.parametrize(
    ("scopes", "says"),
    [
        ((smem(),), "each of"),
        ((smem(), ACC, ACC), "each of"),
        ((ACC, smem()), "nesting order"),
        ((smem(holds=("barriers", "ring"), shared=True), smem(holds=("epilogue",)), ACC), "shared scope"),
        ((smem(place="scratch", collective=False), ACC), "scratch_types"),
        ((smem(place="compute"), ACC), "both roles use the ring"),
        ((smem(place="tile"), ACC), "outside of the tile loop"),
        (
            (smem(holds=("barriers", "ring")), ACC, smem("tile", ("epilogue",), follows=True)),
            "follows is the ring",
        ),
    ],
)
def test_what_is_no_nesting_is_refused(scopes, says):
    with pytest.raises(ValueError, match=says):
        ScopePlan(name="x", scopes=scopes)
