"""What became of each stored winner: a pure function of what was stored, what was seen, and what was seen before.

The evidence is the ratio of XLA's time to the kernel's in one interleaved race: what the machine does to one lane it
does to the other. Where XLA's lane is the one that wanders, as beside short kernels, it is the kernel's own time, which
compares on the same card, power limit and driver only, and next to sentinels; then the ratio must bear it out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.bestfile import BestEntry
from autotune.nightly.evidence import MOVED, Fall, Sight, fall_by_kernel, fall_by_ratio, sharper, together
from autotune.nightly.history import Record
from autotune.nightly.reference import Reference, Tonight, is_here, of_config, reference, shifts
from autotune.nightly.spread import error_of_night
from autotune.nightly.values import Decision, Seen

TIE = 0.005  # as in a race: closer than this XLA is taken
# What fell by so much, so far out, is asked again the same night; and, once asked, still so far out, more often.
DOUBTFUL, DOUBTFUL_Z, DOUBTED_Z = 0.015, 0.8, 1.25
SUSPICIOUS_Z = 2.5
LEAST_FALL = 0.02  # slower than this is not worth a page, however certain
PAGE_ODDS = 1e-3  # of one false page a night, over all problems together, if noise were normal
# Further processes for what is in doubt, in all for what is still, and for what was suspect the night before already:
# the spread is between processes, so short races in several say more than a long one. Counted out by
# benchmarks/nightly_simulation.py.
ASKED_FIRST, ASKED, ASKED_OF_SUSPECTS = 2, 6, 10
CERTAIN = (
    "lower",
    "compile",
    "wrong",
    "unwritten",
    "stray",
    "illegal",
)  # no matter of luck or of the machine


def page_threshold(problems: int) -> float:
    """Returns the standard deviations at which `problems` tests give a false page once in 1/PAGE_ODDS nights."""
    return statistics.NormalDist().inv_cdf(1 - PAGE_ODDS / max(1, problems))


def decide(key: str, entry: BestEntry | None, seen: Seen | None, tonight: Tonight) -> Decision:
    """Returns the decision about one problem; `seen` is None only where `entry` is."""
    if entry is None or seen is None:
        return Decision(verdict="missing", reason="nothing is stored for it", retune=True, gain=0.05)
    records = of_config(tonight.history.problems.get(key, ()), entry)
    if entry.config is None:
        return Decision(verdict="unchanged", reason="XLA's answer; there is no kernel to verify")
    if seen.failure:
        return _failed(entry, seen, records)
    comparison = _Comparison(entry, seen, reference(entry, records, tonight), records, tonight)
    decision = comparison.decision()
    return replace(decision, ask=comparison.asks(decision))


def blame(changes: Sequence[str]) -> str:
    """Returns which versions changed; where several did, that none of them is blamed alone."""
    if not changes:
        return ""
    if len(changes) == 1:
        return f"since {changes[0]}"
    return f"{' and '.join(changes)} changed at once, so none is blamed alone"


def _failed(entry: BestEntry, seen: Seen, records: Sequence[Record]) -> Decision:
    assert seen.failure is not None
    reason, detail = seen.failure
    text = f"{reason}: {detail}"
    if entry.digest != seen.digest and seen.digest:
        text += "; its lowered module changed"
    if reason in CERTAIN:
        return Decision(verdict="broken", reason=text, retune=True, gain=0.2)
    before = records[-1] if records else None
    if before and before["verdict"] == "suspect" and before.get("failure"):
        return Decision(
            verdict="broken", reason=f"{text}; so it was on {before['date']}", retune=True, gain=0.2
        )
    return Decision(verdict="suspect", reason=f"{text}; one night does not tell the kernel from the machine")


class _Comparison:
    """One winner that ran and was right, against its reference."""

    def __init__(
        self, entry: BestEntry, seen: Seen, against: Reference, records: Sequence[Record], tonight: Tonight
    ) -> None:
        self._entry, self._seen, self._against, self._tonight = entry, seen, against, tonight
        self._suspected = _last_suspects(records)
        self._sentinels = self._comparable(tonight.sentinels)
        self._xla = _change(seen.xla_median_us, against.xla_us)
        self._sight = Sight(
            log_ratio=seen.log_ratio(),
            kernel_us=seen.kernel_median_us,
            processes=seen.processes,
            shifts=self._sentinels,
        )
        self._fall = sharper(self._sight, against)

    def decision(self) -> Decision:
        fall = self._fall
        if fall is not None and not self._against.is_here:
            return self._elsewhere(fall)
        if fall is not None and self._is_suspicious(fall) and self._is_borne_out(fall):
            return self._fallen(fall)
        switched = self._switched()
        if switched:
            return switched
        is_up = fall is not None and -fall.value >= LEAST_FALL and -fall.z >= self._tonight.z
        if fall is not None and is_up and self._is_borne_out(fall):
            by = "against XLA" if fall.by == "ratio" else "than it was, next to the sentinels"
            text = f"{-fall.value:.1%} faster {by} {blame(self._against.moved)}".strip()
            return Decision(verdict="better", reason=text)
        return self._quiet()

    def asks(self, decision: Decision) -> int:
        """Returns how many further processes may change what is said."""
        fall = self._fall
        doubted = (
            fall is not None
            and self._against.is_here
            and fall.value >= DOUBTFUL
            and fall.z >= (DOUBTED_Z if self._seen.again else DOUBTFUL_Z)
            # That XLA chose badly may hide a kernel that fell; that it chose well explains one.
            and (fall.by == "kernel" or self._is_borne_out(fall))
        )
        asked = len(self._seen.again)
        if self._suspected and self._against.is_here:  # is owed an answer, whatever its first process saw
            return max(0, ASKED_OF_SUSPECTS - asked)
        if not doubted and decision.verdict not in ("suspect", "regression", "better"):
            return 0
        return max(0, ASKED - asked) if asked else ASKED_FIRST

    def _comparable(self, sentinels: Mapping[str, float]) -> dict[str, float]:
        """Returns the shifts of the sentinels that explain a lane's time, since what they run has not changed."""
        moved_us = shifts(sentinels, self._against.sentinels)
        if any(change.startswith("jax") for change in self._against.moved):
            moved_us.pop("xla_dot", None)
        if not self._against.is_here or any(change.startswith("driver") for change in self._against.moved):
            return {}
        return moved_us

    def _is_suspicious(self, fall: Fall) -> bool:
        return fall.value >= LEAST_FALL / 2 and fall.z >= SUSPICIOUS_Z

    def _is_borne_out(self, fall: Fall) -> bool:
        """Returns whether it is the kernel alone: slower by itself and against XLA, or faster by both.

        The other evidence bears it out with half of it, or with what half its own error may hide. Where no sentinel
        tells of the machine, it is taken to stand still, and a kernel's time is held against that.
        """
        other = fall_by_ratio if fall.by == "kernel" else fall_by_kernel
        found = other(self._sight, self._against)
        if found is None:
            return True
        hidden = found.error / 2 if found.by == "ratio" or self._sentinels else 0.0
        return math.copysign(found.value, found.value * fall.value) + hidden >= abs(fall.value) / 2

    def _fallen(self, fall: Fall) -> Decision:
        cause = blame(self._against.moved)
        if self._is_stale:
            cause = f"{cause}; its lowered module changed too".removeprefix("; ")
        by = "against XLA" if fall.by == "ratio" else "than it was, next to the sentinels"
        text = f"{fall.value:.1%} slower {by}" + (f" ({cause})" if cause else "")
        nights = [record["date"] for record in self._suspected]
        if nights and self._pages_with(self._suspected, fall):
            count = {1: "two nights"}.get(len(nights), f"{len(nights) + 1} nights")
            both = f"{count}, {', '.join(nights)} and now"
            return Decision(
                verdict="regression",
                reason=f"{text}; seen on {both}; only it moved",
                retune=True,
                gain=fall.value,
            )
        return Decision(verdict="suspect", reason=f"{text}; another night will tell")

    def _pages_with(self, before: Sequence[Record], fall: Fall) -> bool:
        """Returns whether tonight and the nights before it make the fall certain together."""
        tell = fall_by_ratio if fall.by == "ratio" else fall_by_kernel
        sights = [self._sight_of(record) for record in before]
        falls = [found for sight in sights if (found := tell(sight, self._against)) is not None]
        all_nights = together([fall, *falls])
        return bool(falls) and all_nights.value >= LEAST_FALL and all_nights.z >= self._tonight.z

    def _sight_of(self, record: Record) -> Sight:
        machine = self._tonight.machine
        compares = is_here(record, machine) and record.get("driver") == machine.driver
        night = self._tonight.history.nights.get(record["night"], {})
        return Sight(
            log_ratio=(record["log_ratio"], record["log_ratio_error"]),
            kernel_us=record.get("kernel_us"),
            processes=record.get("processes") or 1,
            shifts=self._comparable(night.get("sentinels", {})) if compares else {},
        )

    def _elsewhere(self, fall: Fall) -> Decision:
        """Another card, or another power limit, has a ratio of its own: only a fall seen on both tells."""
        before = self._suspected[-1:]
        is_other = bool(before) and not is_here(before[0], self._tonight.machine)
        if is_other and fall.value >= LEAST_FALL and self._pages_with(before, fall):
            text = f"{fall.value:.1%} slower against XLA on two cards, {before[0]['date']} and now"
            return Decision(verdict="regression", reason=text, retune=True, gain=fall.value)
        if self._is_stale:
            return Decision(
                verdict="stale", reason="its lowered module changed; lowered, verified and measured"
            )
        text = "the first night on this card and power limit: its times are the reference from now on"
        return Decision(verdict="drift" if abs(fall.value) >= MOVED else "unchanged", reason=text)

    def _switched(self) -> Decision | None:
        """Returns that the other of kernel and XLA is the better known one now; None where it is not."""
        lead, against = self._seen.log_lead(), self._against
        if lead is None:
            return None
        spread = error_of_night(against.spread.ratio, self._seen.processes)
        known = [(lead[0], math.hypot(lead[1], spread))]
        if against.is_here and not against.moved and against.log_ratio is not None:
            # What one night cannot tell of a short kernel, the nights before tell with it.
            known.append(_weighted(known[0], (against.log_ratio, against.error)))
        z, tie = self._tonight.z, math.log(1 + TIE)
        cause = blame(against.moved)
        cause = f" ({cause})" if cause else ""
        if self._entry.backend == "kernel" and any(value + z * error < tie for value, error in known):
            gain = abs(lead[0]) + LEAST_FALL
            return Decision(
                verdict="better", reason=f"XLA is the faster one now{cause}", retune=True, gain=gain
            )
        if self._entry.backend == "xla" and any(value - z * error > tie for value, error in known):
            return Decision(verdict="better", reason=f"the kernel beats XLA now{cause}")
        return None

    def _quiet(self) -> Decision:
        if self._is_stale:
            return Decision(
                verdict="stale", reason="its lowered module changed; lowered, verified and measured"
            )
        drifted = max((abs(shift) for shift in self._sentinels.values()), default=0.0)
        lane = fall_by_kernel(self._sight, self._against)
        strayed = lane is not None and abs(lane.value) >= max(MOVED, SUSPICIOUS_Z * lane.error)
        if drifted >= MOVED or strayed:
            if drifted >= MOVED:
                why = f"the machine drifted: sentinels moved by {drifted:.1%}"
            elif self._xla is not None and abs(self._xla) >= MOVED / 2:
                why = "kernel and XLA moved alike"
            else:
                why = "its time moved, its ratio to XLA did not"
            return Decision(verdict="drift", reason=f"{why} {blame(self._against.moved)}".strip())
        return Decision(verdict="unchanged", reason=blame(self._against.moved) or "as before")

    @property
    def _is_stale(self) -> bool:
        return self._seen.digest is not None and self._entry.digest != self._seen.digest


def _last_suspects(records: Sequence[Record]) -> list[Record]:
    """Returns the nights that saw it slower, one after the other, up to the last."""
    kept: list[Record] = []
    for record in reversed(records):
        if record["verdict"] != "suspect" or not record.get("log_ratio_error"):
            break
        kept.append(record)
    return kept[::-1]


def _weighted(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """Returns the mean of two values with their errors, each as heavy as it is certain."""
    weights = 1 / one[1] ** 2, 1 / other[1] ** 2
    mean = (one[0] * weights[0] + other[0] * weights[1]) / sum(weights)
    return mean, 1 / math.sqrt(sum(weights))


def _change(now_us: float | None, before_us: float | None) -> float | None:
    return math.log(now_us / before_us) if now_us and before_us else None
