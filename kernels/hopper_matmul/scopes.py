"""Allocation plans: which buffers live in which scope of the kernel. A plan is data; the kernel builds it.

A plan is a tuple of scopes in nesting order. Illegal plans can be written down and built as well, so that a test
can show that the real lowering says what the early check said.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Buffer = Literal["accumulator", "barriers", "epilogue", "ring"]
PlanFault = Literal["none", "main", "b", "discharge"]
Place = Literal["scratch", "kernel", "compute", "tile", "compute_tile"]

BUFFERS: tuple[Buffer, ...] = ("accumulator", "barriers", "epilogue", "ring")
PLACES: tuple[Place, ...] = ("scratch", "kernel", "compute", "tile", "compute_tile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """One allocation scope.

    Attributes:
        place: "scratch" is scratch_types of the kernel (collective over the warpgroups by construction);
            "kernel" is a run_scoped around both roles; "compute" is one in the compute role, around its tile
            loop; "tile" is one in the tile loop of both roles; "compute_tile" is one in the compute role's alone.
        holds: The buffers that are allocated there. "ring" is the TMA pipeline's operand slots.
        collective: Allocated once for all warpgroups (collective_axes = the thread axis), or by each for itself.
        shared: The ring and the epilogue tile are members of one RefUnion: the same bytes, used in turn.
        follows: The scope opens after the previous one has closed, instead of inside it. The accumulator's value
            is carried across. Only scopes of the place "tile" may follow one another.
    """

    place: Place
    holds: tuple[Buffer, ...]
    collective: bool
    shared: bool = False
    follows: bool = False


@dataclass(frozen=True, kw_only=True)
class ScopePlan:
    """An allocation plan under a name.

    Raises:
        ValueError: What the scopes describe is no nesting of the kernel's buffers at all.
    """

    name: str
    scopes: tuple[Scope, ...]

    def __post_init__(self) -> None:
        held = [buffer for scope in self.scopes for buffer in scope.holds]
        if sorted(held) != sorted(BUFFERS):
            raise ValueError(f"plan {self.name!r} holds {held}; each of {list(BUFFERS)} must be held once")
        for scope in self.scopes:
            if scope.shared and not {"ring", "epilogue"} <= set(scope.holds):
                raise ValueError(f"plan {self.name!r}: a shared scope holds the ring and the epilogue")
            if scope.follows and (scope.holds != ("epilogue",) or scope.place != "tile"):
                raise ValueError(f"plan {self.name!r}: only the epilogue alone, in the tile loop, may follow")
            if scope.place == "scratch" and (not scope.collective or scope is not self.scopes[0]):
                raise ValueError(f"plan {self.name!r}: scratch_types is one collective scope, the outermost")
        depths = [PLACES.index(scope.place) for scope in self.scopes if not scope.follows]
        if depths != sorted(depths):
            raise ValueError(f"plan {self.name!r}: scopes are not in nesting order {list(PLACES)}")
        if self.scope_of("ring").place not in ("scratch", "kernel", "tile"):
            raise ValueError(
                f"plan {self.name!r}: both roles use the ring, so it cannot lie in the compute role"
            )
        if self.scope_of("barriers").place not in ("scratch", "kernel"):
            raise ValueError(
                f"plan {self.name!r}: barriers keep their phase, so they lie outside of the tile loop"
            )
        if self.scope_of("ring").place != "tile" and any(scope.follows for scope in self.scopes):
            raise ValueError(
                f"plan {self.name!r}: what the epilogue follows is the ring's scope in the tile loop"
            )

    def scope_of(self, buffer: Buffer) -> Scope:
        """Returns the scope that holds `buffer`."""
        return next(scope for scope in self.scopes if buffer in scope.holds)

    @cached_property
    def shares_bytes(self) -> bool:
        """Whether the ring and the epilogue tile lie in the same bytes."""
        return any(scope.shared or scope.follows for scope in self.scopes)

    @cached_property
    def is_union(self) -> bool:
        """Whether they do so as members of a RefUnion, ordered by barriers of the kernel's own."""
        return any(scope.shared for scope in self.scopes)

    @cached_property
    def follows_ring(self) -> bool:
        """Whether they do so as scopes that follow each other, ordered by the CTA barrier of each scope."""
        return any(scope.follows for scope in self.scopes)

    @cached_property
    def opens_in_loop(self) -> bool:
        """Whether warpgroups meet at a scope of all of them for each tile."""
        return any(scope.place == "tile" for scope in self.scopes)

    @cached_property
    def fault(self) -> PlanFault:
        """What the compiler says of the plan first: it lowers the loading role before the compute role."""
        while_loading = tuple(scope for scope in self.scopes if scope.place in ("scratch", "kernel", "tile"))
        loading = _first_fault(while_loading, self.scopes)
        # In the tile loop the loading role does not touch the accumulator, and nothing is discharged.
        if loading == "discharge" and self.scope_of("accumulator").place == "tile":
            loading = "none"
        return loading if loading != "none" else _first_fault(self.scopes, self.scopes)

    @cached_property
    def is_divergent(self) -> bool:
        """Whether a collective scope is entered by the compute warpgroups only: they wait for ever."""
        return any(scope.collective and scope.place in ("compute", "compute_tile") for scope in self.scopes)

    @cached_property
    def acc_in_memory_role(self) -> bool:
        """Whether the accumulator is live in the loading warpgroup, which has no registers for it."""
        return self.scope_of("accumulator").place in ("kernel", "tile", "scratch")

    @cached_property
    def acc_outside_loop(self) -> bool:
        """Whether the accumulator outlives a tile, so that it must be set to zero for the next."""
        return self.scope_of("accumulator").place != "compute_tile"


def _first_fault(seen: tuple[Scope, ...], plan: tuple[Scope, ...]) -> PlanFault:
    """Returns the first fault among the scopes that one role sees, in nesting order."""
    for depth, scope in enumerate(seen):
        holds_acc = "accumulator" in scope.holds
        if holds_acc and scope.collective:
            return "main"
        if not scope.collective and set(scope.holds) - {"accumulator"}:
            return "b"
        # Around both roles, an accumulator's scope is discharged with everything inside of it before any of it.
        inner = plan[plan.index(scope) + 1 :] if scope.place == "kernel" else seen[depth + 1 :]
        if holds_acc and any(one.collective and not one.follows for one in inner):
            return "discharge"
    return "none"


def _acc(place: Place = "compute_tile", *, collective: bool = False) -> Scope:
    return Scope(place=place, holds=("accumulator",), collective=collective)


def _smem(
    place: Place, *holds: Buffer, collective: bool = True, shared: bool = False, follows: bool = False
) -> Scope:
    return Scope(place=place, holds=holds, collective=collective, shared=shared, follows=follows)


_EVERY_SMEM: tuple[Buffer, ...] = ("barriers", "epilogue", "ring")

LEGAL_PLANS = (
    ScopePlan(name="joint", scopes=(_smem("kernel", *_EVERY_SMEM), _acc())),
    ScopePlan(name="scratch", scopes=(_smem("scratch", *_EVERY_SMEM), _acc())),
    ScopePlan(
        name="nested",
        scopes=(_smem("kernel", "barriers", "ring"), _smem("kernel", "epilogue"), _acc()),
    ),
    ScopePlan(name="union", scopes=(_smem("kernel", *_EVERY_SMEM, shared=True), _acc())),
    ScopePlan(name="acc_outside", scopes=(_smem("kernel", *_EVERY_SMEM), _acc("compute"))),
    ScopePlan(name="union_acc_outside", scopes=(_smem("kernel", *_EVERY_SMEM, shared=True), _acc("compute"))),
    ScopePlan(
        name="ring_in_loop",
        scopes=(_smem("kernel", "barriers", "epilogue"), _smem("tile", "ring"), _acc()),
    ),
    ScopePlan(
        name="sequential",
        scopes=(
            _smem("kernel", "barriers"),
            _smem("tile", "ring"),
            _acc(),
            _smem("tile", "epilogue", follows=True),
        ),
    ),
)
ILLEGAL_PLANS = (
    ScopePlan(
        name="acc_collective",
        scopes=(Scope(place="kernel", holds=BUFFERS, collective=True),),
    ),
    ScopePlan(name="acc_in_scratch", scopes=(Scope(place="scratch", holds=BUFFERS, collective=True),)),
    ScopePlan(name="smem_private", scopes=(_smem("kernel", *_EVERY_SMEM, collective=False), _acc())),
    ScopePlan(name="acc_outermost", scopes=(_acc("kernel"), _smem("kernel", *_EVERY_SMEM))),
    ScopePlan(
        name="epilogue_in_compute",
        scopes=(_smem("kernel", "barriers", "ring"), _smem("compute_tile", "epilogue"), _acc()),
    ),
)
PLANS: dict[str, ScopePlan] = {plan.name: plan for plan in LEGAL_PLANS + ILLEGAL_PLANS}
