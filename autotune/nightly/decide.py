"""What became of each stored winner: a pure function of what was stored, what was seen, and what was seen before.

The evidence is the ratio of XLA's time to the kernel's in one interleaved race: what the machine does to one lane it
does to the other. Absolute times compare only on the same card, power limit and driver, and only next to sentinels.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from autotune.bestfile import BestEntry
from autotune.nightly.history import Record
from autotune.nightly.reference import Reference, Tonight, is_here, of_config, reference, shifts
from autotune.nightly.values import Decision, Seen

TIE = 0.005  # as in a race: closer than this XLA is taken
DOUBTFUL_Z = 1.5  # is measured longer the same night, before anything is said of it
SUSPICIOUS_Z = 2.5
LEAST_FALL = 0.02  # slower than this is not worth a page, however certain
PAGE_ODDS = 1e-3  # of one false page a night, over all problems together, if noise were normal
MOVED = 0.02  # a sentinel, or a lane, that changed by more
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
    return replace(comparison.decision(), doubtful=comparison.is_doubtful())


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
        self._before = records[-1] if records and records[-1]["verdict"] == "suspect" else None
        moved_us = shifts(tonight.sentinels, against.sentinels)
        if any(change.startswith("jax") for change in against.moved):
            moved_us.pop("xla_dot", None)
        if any(change.startswith("driver") for change in against.moved):
            moved_us = {}
        self._sentinels = moved_us
        # With no sentinel to go by the machine is taken to stand still, and no lane's time is explained by it.
        self._band = (min(moved_us.values(), default=0.0), max(moved_us.values(), default=0.0))
        self._kernel = _change(seen.kernel_median_us, against.kernel_us)
        self._xla = _change(seen.xla_median_us, against.xla_us)
        self._ratio = seen.log_ratio()

    def decision(self) -> Decision:
        fall, error = self._fall()
        if fall is not None and not self._against.is_here:
            return self._elsewhere(fall)
        if fall is not None and self._is_suspicious(fall, error) and not self._rival_gained(fall):
            return self._fallen(fall)
        switched = self._switched()
        if switched:
            return switched
        if (
            fall is not None
            and -fall >= LEAST_FALL
            and -fall / error >= self._tonight.z
            and self._gained(fall)
        ):
            text = f"{-fall:.1%} faster against XLA {blame(self._against.moved)}".strip()
            return Decision(verdict="better", reason=text)
        return self._quiet(fall)

    def is_doubtful(self) -> bool:
        """Returns whether a longer race may change what is said."""
        fall, error = self._fall()
        return fall is not None and self._against.is_here and abs(fall) / error >= DOUBTFUL_Z

    def _fall(self) -> tuple[float | None, float]:
        """Returns how much the kernel lost, and the standard deviation of that; None: nothing to compare with."""
        against = self._against
        if self._ratio is not None and against.log_ratio is not None:
            value, error = self._ratio
            total = math.sqrt(error**2 + against.error**2 + against.between**2)
            return against.log_ratio - value, total
        if self._ratio is None and self._kernel is not None and self._sentinels:
            low, high = self._band
            excess = self._kernel - high if self._kernel > high else min(0.0, self._kernel - low)
            return excess, math.hypot(MOVED / 2, against.between)
        return None, 1.0

    def _is_suspicious(self, fall: float, error: float) -> bool:
        return fall >= LEAST_FALL / 2 and fall / error >= SUSPICIOUS_Z

    def _rival_gained(self, fall: float) -> bool:
        """Returns whether XLA became faster than the machine explains, rather than the kernel slower."""
        return self._xla is not None and self._band[0] - self._xla >= fall / 2

    def _gained(self, fall: float) -> bool:
        return self._kernel is not None and self._band[0] - self._kernel >= -fall / 2

    def _fallen(self, fall: float) -> Decision:
        cause = blame(self._against.moved)
        if self._is_stale:
            cause = f"{cause}; its lowered module changed too".removeprefix("; ")
        text = f"{fall:.1%} slower against XLA" + (f" ({cause})" if cause else "")
        before = self._before
        if before is not None and before.get("log_ratio") is not None and self._pages_with(before, fall):
            both = f"two nights, {before['date']} and now"
            return Decision(
                verdict="regression", reason=f"{text}; seen on {both}; only it moved", retune=True, gain=fall
            )
        return Decision(verdict="suspect", reason=f"{text}; a second night will tell")

    def _pages_with(self, before: Record, fall: float) -> bool:
        """Returns whether two nights together make the fall certain."""
        against = self._against
        assert against.log_ratio is not None and self._ratio is not None
        fall_before = against.log_ratio - before["log_ratio"]
        mean = (fall + fall_before) / 2
        nights = self._ratio[1] ** 2 + before["log_ratio_error"] ** 2 + 2 * against.between**2
        return mean >= LEAST_FALL and mean / math.sqrt(nights / 4 + against.error**2) >= self._tonight.z

    def _elsewhere(self, fall: float) -> Decision:
        """Another card, or another power limit, has a ratio of its own: only a fall seen on both tells."""
        before = self._before
        is_other = before is not None and not is_here(before, self._tonight.machine)
        if is_other and before.get("log_ratio") and fall >= LEAST_FALL and self._pages_with(before, fall):
            text = f"{fall:.1%} slower against XLA on two cards, {before['date']} and now"
            return Decision(verdict="regression", reason=text, retune=True, gain=fall)
        if self._is_stale:
            return Decision(
                verdict="stale", reason="its lowered module changed; lowered, verified and measured"
            )
        text = "the first night on this card and power limit: its times are the reference from now on"
        return Decision(verdict="drift" if abs(fall) >= MOVED else "unchanged", reason=text)

    def _switched(self) -> Decision | None:
        """Returns that the other of kernel and XLA is the better known one now; None where it is not."""
        if self._ratio is None:
            return None
        value, error = self._ratio
        margin = self._tonight.z * math.hypot(error, self._against.between)
        cause = blame(self._against.moved)
        cause = f" ({cause})" if cause else ""
        if self._entry.backend == "kernel" and value + margin < math.log(1 + TIE):
            gain = abs(value) + LEAST_FALL
            return Decision(
                verdict="better", reason=f"XLA is the faster one now{cause}", retune=True, gain=gain
            )
        if self._entry.backend == "xla" and value - margin > math.log(1 + TIE):
            return Decision(verdict="better", reason=f"the kernel beats XLA now{cause}")
        return None

    def _quiet(self, fall: float | None) -> Decision:
        if self._is_stale:
            return Decision(
                verdict="stale", reason="its lowered module changed; lowered, verified and measured"
            )
        drifted = max((abs(shift) for shift in self._sentinels.values()), default=0.0)
        lane = abs(self._kernel) if self._kernel is not None else 0.0
        if max(drifted, lane) >= MOVED:
            if drifted >= MOVED:
                why = f"the machine drifted: sentinels moved by {drifted:.1%}"
            elif fall is not None and self._xla is not None and abs(self._xla) >= MOVED / 2:
                why = "kernel and XLA moved alike"
            else:
                why = "its time moved, its ratio to XLA did not"
            return Decision(verdict="drift", reason=f"{why} {blame(self._against.moved)}".strip())
        return Decision(verdict="unchanged", reason=blame(self._against.moved) or "as before")

    @property
    def _is_stale(self) -> bool:
        return self._seen.digest is not None and self._entry.digest != self._seen.digest


def _change(now_us: float | None, before_us: float | None) -> float | None:
    return math.log(now_us / before_us) if now_us and before_us else None
