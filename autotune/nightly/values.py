"""What a night works with: the machine, what was seen of a problem, and what was decided about it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["unchanged", "drift", "suspect", "regression", "broken", "stale", "missing", "better"]
VERDICTS = ("broken", "regression", "better", "missing", "stale", "suspect", "drift", "unchanged")

# The median of n normal samples has 1.2533 times the standard error of their mean; 1.4826 MAD estimates sigma.
MEDIAN_ERROR = 1.2533 * 1.4826
LEAST_ERROR = 0.01  # over the number of samples: two that happen to be alike are no certainty


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a time depends on besides the kernel. Times compare where card, power limit and driver are the same.

    Attributes:
        card: UUID of the GPU.
        power_limit_w: Enforced limit; None where the driver does not tell.
    """

    card: str
    kind: str
    power_limit_w: float | None
    driver: str
    jax: str
    jaxlib: str

    @property
    def key(self) -> tuple[str, float | None, str]:
        return self.card, self.power_limit_w, self.driver


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One verification of a stored winner: both lanes of one race, or of several put together.

    Attributes:
        kernel_us, xla_us: Samples; those with one index are of one round. Empty where a lane was not measured.
        digest: Of the lowered module; None where it did not lower, and where there is no kernel.
        failure: Reason and detail why the kernel did not survive; None where it did.
    """

    kernel_us: tuple[float, ...] = ()
    xla_us: tuple[float, ...] = ()
    digest: str | None = None
    failure: tuple[str, str] | None = None

    @property
    def kernel_median_us(self) -> float | None:
        return statistics.median(self.kernel_us) if self.kernel_us else None

    @property
    def xla_median_us(self) -> float | None:
        return statistics.median(self.xla_us) if self.xla_us else None

    def log_ratio(self) -> tuple[float, float] | None:
        """Returns the median over rounds of log(XLA's time / the kernel's) and its standard error."""
        pairs = list(zip(self.xla_us, self.kernel_us))
        return log_median([xla / kernel for xla, kernel in pairs]) if pairs else None

    def plus(self, other: Seen) -> Seen:
        """Returns both verifications as one; the later failure and digest count."""
        return Seen(
            kernel_us=self.kernel_us + other.kernel_us,
            xla_us=self.xla_us + other.xla_us,
            digest=other.digest or self.digest,
            failure=other.failure,
        )

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> Seen:
        failure = held.get("failure")
        return cls(
            kernel_us=tuple(held["kernel_us"]),
            xla_us=tuple(held["xla_us"]),
            digest=held["digest"],
            failure=tuple(failure) if failure else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided about one problem.

    Attributes:
        reason: One line for a person.
        retune: Whether it is to be tuned again.
        gain: What tuning may gain, as a share of the problem's time.
        doubtful: A longer race the same night may change the verdict.
    """

    verdict: Verdict
    reason: str
    retune: bool = False
    gain: float = 0.0
    doubtful: bool = False

    @property
    def pages(self) -> bool:
        return self.verdict in ("regression", "broken")


def log_median(values: Sequence[float]) -> tuple[float, float]:
    """Returns the median of the logarithms of `values` and its standard error."""
    logs = [math.log(value) for value in values]
    middle = statistics.median(logs)
    spread = statistics.median([abs(value - middle) for value in logs])
    return middle, max(LEAST_ERROR / len(logs), MEDIAN_ERROR * spread / math.sqrt(len(logs)))


def fingerprint(knobs: Mapping[str, Any] | None) -> str:
    """Returns what tells one configuration from another in the history."""
    return hashlib.sha256(json.dumps(knobs, sort_keys=True).encode()).hexdigest()[:12]
