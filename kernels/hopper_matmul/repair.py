"""The nearest legal allocation plan of an illegal one: the split that the compiler's hint asks for."""

from __future__ import annotations

import dataclasses

from hopper_matmul.scopes import LEGAL_PLANS, Scope, ScopePlan

_ACC = Scope(place="compute_tile", holds=("accumulator",), collective=False)


def repaired(plan: ScopePlan) -> ScopePlan:
    """Returns the legal plan that moves the fewest buffers; a legal plan comes back as it is.

    The accumulator goes into a non-collective scope of its own, the innermost of the compute role; SMEM becomes
    collective, and what lies in the compute role's scopes moves out to where every warpgroup enters. The result
    goes by the name of the known plan that it equals, if there is one.
    """
    if plan.fault == "none" and not plan.is_divergent and not plan.acc_in_memory_role:
        return plan
    scopes = [scope for scope in (_without_accumulator(scope) for scope in plan.scopes) if scope.holds]
    outer = [scope for scope in scopes if scope.place != "tile"]
    tile = [scope for scope in scopes if scope.place == "tile"]
    acc = plan.scope_of("accumulator")
    keeps_acc = acc.holds == ("accumulator",) and acc.place == "compute" and not acc.collective
    following = [scope for scope in tile if scope.follows]
    inner = [scope for scope in tile if not scope.follows]
    # An accumulator around the tile loop would enclose a collective scope of the loop.
    own = [acc] if keeps_acc and not tile else [_ACC]
    return _known(ScopePlan(name=f"{plan.name}_repaired", scopes=tuple(outer + inner + own + following)))


def _without_accumulator(scope: Scope) -> Scope:
    holds = tuple(buffer for buffer in scope.holds if buffer != "accumulator")
    place = "kernel" if scope.place in ("compute", "compute_tile") else scope.place
    return dataclasses.replace(scope, holds=holds, collective=True, place=place)


def _known(plan: ScopePlan) -> ScopePlan:
    return next((known for known in LEGAL_PLANS if known.scopes == plan.scopes), plan)
