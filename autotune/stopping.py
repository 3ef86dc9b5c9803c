"""Why screening a problem ends, and when the model finds that measuring on is not worth it."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autotune.progress import Budget

StopReason = Literal["gain", "candidates", "seconds", "space", "total_candidates", "total_seconds"]

ASK_EVERY = 4  # results between two questions to a model, which takes as long to answer as to propose


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The end of a problem's screening.

    Attributes:
        reason: "gain": what measuring on was expected to gain was below the noise. "candidates", "seconds": the
            problem's budget. "space": nothing was left. "total_candidates", "total_seconds": the budget that all
            problems share.
        candidates: Recorded by then, those of earlier runs included.
        limit: The budget that ended it; 0 for "gain" and "space".
        gain, noise: For "gain": shares of the best time.
    """

    reason: StopReason
    candidates: int
    limit: float = 0.0
    gain: float = 0.0
    noise: float = 0.0

    @property
    def text(self) -> str:
        """The reason in words, such as "60 candidates"."""
        match self.reason:
            case "gain":
                return (
                    f"expected gain {self.gain:.2%} under the noise of {self.noise:.2%} "
                    f"after {self.candidates:,} candidates"
                )
            case "space":
                return "nothing left to propose"
            case "candidates":
                return f"{self.limit:,.0f} candidates"
            case "seconds":
                return f"{self.limit:g} s"
            case "total_candidates":
                return f"{self.limit:,.0f} candidates of all problems"
            case "total_seconds":
                return f"{self.limit:g} s of all problems"

    def to_json(self) -> dict[str, Any]:
        """Returns what a study records of it."""
        return dataclasses.asdict(self)


def recorded_stop(fields: Mapping[str, Any] | None) -> Stop | None:
    """Returns the stop that a study recorded; None where there is none, or one that this version does not know."""
    try:
        return Stop(**fields) if fields else None
    except TypeError:
        return None


def noise_of(samples_us: Sequence[float], least: float) -> float:
    """Returns the noise of a configuration's samples, as a share of their median, and at least `least`.

    It is the median deviation from the median, which a few disturbed samples do not move. The median of 20 samples
    is known three times as well; but the race that decides among the best does not tell 0.5% apart either.
    """
    middle = statistics.median(samples_us)
    return max(least, statistics.median([abs(one - middle) for one in samples_us]) / middle)


class GainRule:
    """Ends a search whose next candidates are expected to gain less than the noise.

    Candidates in flight count as measured where the model is asked. So the rule holds new ones back first, and has
    the last word when none is in flight.

    Args:
        budget: `gain` and `fewest` count here; a `gain` of 0 is never reached.
        searcher: Asked for its `expected_gain`; one without a model gives none, and is never ended.
        recorded: How an earlier run of the same study ended.
    """

    def __init__(self, budget: Budget, searcher: Any, recorded: Stop | None = None) -> None:
        self._budget, self._searcher = budget, searcher
        self._recorded = recorded
        self._asked_at: tuple[int, bool] | None = None
        self._verdict: Stop | None = None

    def stop(self, told: int, in_flight: int, best_us: Sequence[float] | None) -> Stop | None:
        """Returns the end, as far as is known now.

        Args:
            told: Candidates recorded.
            in_flight: Candidates submitted and not recorded yet.
            best_us: Samples of the best so far; None: nothing was measured.
        """
        if not self._budget.gain or best_us is None or told < self._budget.fewest:
            return None
        at = (told, not in_flight)
        if at != self._asked_at and (not in_flight or self._is_due(told)):
            self._asked_at = at
            self._verdict = self._asked(told, noise_of(best_us, self._budget.gain))
        return self._verdict

    def _is_due(self, told: int) -> bool:
        return self._asked_at is None or told >= self._asked_at[0] + ASK_EVERY

    def _asked(self, told: int, noise: float) -> Stop | None:
        known = self._recorded
        if known is not None and known.reason == "gain" and known.candidates == told:
            gain: float | None = known.gain  # asked again, with other draws, it might say otherwise
        else:
            gain = self._searcher.expected_gain()
        if gain is None or gain >= noise:
            return None
        return Stop(reason="gain", candidates=told, gain=gain, noise=noise)
