"""Which job a worker gets next: one that fits on the card, and where its executable is."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from autotune.evaluate.capacity import workers_that_fit
from autotune.evaluate.slot import Pending, Slot
from autotune.seam import RaceJob


class CardRoom:
    """How many workers may turn to a problem at once.

    Args:
        card_bytes: Memory of the GPU; None: no limit.
    """

    def __init__(self, card_bytes: int | None) -> None:
        self._card_bytes = card_bytes
        self._fitting: dict[Hashable, int | None] = {}

    def needs(self, problem_key: Hashable, size_bytes: int) -> None:
        """Hears what a worker needs for a problem."""
        self._fitting[problem_key] = workers_that_fit(self._card_bytes, size_bytes)

    def has_place(self, problem_key: Hashable, holders: int) -> bool:
        """Returns whether one more may turn to the problem beside so many workers that hold it."""
        # What a problem needs, the first worker that turns to it tells; until then it gets just one.
        fitting = None if self._card_bytes is None else self._fitting.get(problem_key, 1)
        return fitting is None or holders < fitting


def next_for(slot: Slot, slots: Sequence[Slot], queue: Iterable[Pending], room: CardRoom) -> Pending | None:
    """Returns a job that may run in a slot: one whose binary it has, else the first whose binary no other has."""
    others = {key for each in slots if each is not slot for key in each.binaries}
    first = None
    for pending in queue:
        if not _may_take(slot, slots, pending, room):
            continue
        if pending.binary_key in slot.binaries:
            return pending
        if first is None and pending.binary_key not in others:
            first = pending
    return first


def _may_take(slot: Slot, slots: Sequence[Slot], pending: Pending, room: CardRoom) -> bool:
    if slot.has_served and isinstance(pending.job, RaceJob):
        return False
    key = pending.problem_key
    return slot.holds(key) or room.has_place(key, sum(each.holds(key) for each in slots))
