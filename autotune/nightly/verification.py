"""The verification of a night's stored winners: which are measured, in what order, and what was seen of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.bestfile import BestEntry
from autotune.nightly.budget import Budget
from autotune.nightly.history import History
from autotune.nightly.meter import Check, NightMeter
from autotune.nightly.state import Leftover, NightState
from autotune.nightly.values import Seen, fingerprint

NOT_RUN = ("lower", "compile", "launch", "timeout", "crash", "memory", "error")  # worth a second try, alone


class Verification:
    """Measures stored winners; each result is on the disk before the next is asked for.

    Args:
        entries: The stored winners by key.
        rounds: Of a first race.

    Attributes:
        seen: What was seen, by key.
        unreached: Keys that the budget did not reach.
    """

    def __init__(
        self,
        meter: NightMeter,
        state: NightState,
        budget: Budget,
        entries: Mapping[str, BestEntry],
        target: Any,
        rounds: int,
    ) -> None:
        self._meter, self._state, self._budget = meter, state, budget
        self._entries, self._target, self._rounds = entries, target, rounds
        self.seen: dict[str, Seen] = {}
        self.unreached: list[str] = []

    def run(self, left: Leftover, history: History) -> None:
        """Verifies all winners; one that fails is tried again alone."""
        self.seen = {
            key: known
            for key, (mark, known) in left.seen.items()
            if key in self._entries and (mark == mark_of(self._entries[key]) or key in left.decided)
        }
        todo = self._in_order(left, history)
        self._measure([key for key in todo if self._is_legal(key)], self._rounds)
        again = [
            k for k in self.seen if k in todo and (failure := self.seen[k].failure) and failure[0] in NOT_RUN
        ]
        for key in again:
            self._measure([key], self._rounds)
        self.unreached = [key for key in todo if key not in self.seen]

    def ask_again(self, asked: Mapping[str, int]) -> None:
        """Adds as many races to what was seen of these winners, each in a process that has not raced it.

        The winners take turns, so that what the budget cuts short has been asked once at least.
        """
        turns = range(max(asked.values(), default=0))
        keys = [key for turn in turns for key, count in asked.items() if turn < count]
        self._measure(keys, self._rounds, is_more=True)

    def _in_order(self, left: Leftover, history: History) -> list[str]:
        """Returns what is to be verified, first what was verified longest ago.

        Of one age those at settled clocks come last, one after the other: the card, warm from the one before, settles
        sooner, and what takes its workers longest is not what the first of them waits for.
        """
        nights = {key: records[-1]["night"] for key, records in history.problems.items() if records}
        return sorted(
            (key for key in self._entries if key not in self.seen),
            key=lambda key: (
                nights.get(key, ""),
                key in left.verified,
                self._entries[key].protocol.get("regime") == "sustained",
                key,
            ),
        )

    def _is_legal(self, key: str) -> bool:
        entry = self._entries[key]
        broken = entry.config is not None and self._target.check(
            entry.problem, entry.config, self._meter.device
        )
        if broken:
            detail = f"rule {broken[0].rule}: {getattr(broken[0], 'message', '')}"
            self._note(key, Seen(failure=("illegal", detail)))
        return not broken

    def _measure(self, keys: Sequence[str], rounds: int, *, is_more: bool = False) -> None:
        """Notes what the meter sees; `is_more`: on top of what was seen."""
        if not keys or self._budget.is_late:
            return
        checks = [Check(key=key, entry=self._entries[key]) for key in keys]
        for key, found in self._meter.verify(checks, rounds):
            self._note(key, self.seen[key].plus(found) if is_more else found)
            if self._budget.is_late:
                break

    def _note(self, key: str, seen: Seen) -> None:
        self.seen[key] = seen
        self._state.note_seen(key, mark_of(self._entries[key]), seen)


def mark_of(entry: BestEntry) -> str:
    """Returns what tells whether an entry is the one that was verified."""
    knobs = entry.config.to_knobs() if entry.config is not None else None
    return f"{fingerprint(knobs)} {entry.digest} {entry.date} {entry.kernel_us} {entry.xla_us}"
