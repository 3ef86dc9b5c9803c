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

from autotune.nightly.spread import centre, error_of_centre

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
    """One verification of a stored winner: both lanes of one race, and of those in further processes.

    Attributes:
        kernel_us, xla_us: Samples; those with one index are of one round. Empty where a lane was not measured.
        digest: Of the lowered module; None where it did not lower, and where there is no kernel.
        failure: Reason and detail why the kernel did not survive; None where it did.
        again: The same winner in further processes, asked since this one raised a doubt. They testify in its stead:
            of many winners those that look slow are doubted, so it was chosen for what it saw.
    """

    kernel_us: tuple[float, ...] = ()
    xla_us: tuple[float, ...] = ()
    digest: str | None = None
    failure: tuple[str, str] | None = None
    again: tuple[Seen, ...] = ()

    @property
    def processes(self) -> int:
        """How many testify; at least one."""
        return len(self._witnesses)

    @property
    def kernel_median_us(self) -> float | None:
        """Of the processes' medians the centre."""
        medians = self._medians("kernel_us")
        return math.exp(centre([math.log(us) for us in medians])) if medians else None

    @property
    def xla_median_us(self) -> float | None:
        """Of the processes' medians the least: what XLA can do counts, not what it chose in one process."""
        return min(self._medians("xla_us"), default=None)

    def log_ratio(self) -> tuple[float, float] | None:
        """Returns log(XLA's time / the kernel's), to compare nights by, and its standard error by the samples.

        Of each process the median over rounds, of the processes the centre.
        """
        known = [log_median(pairs) for one in self._witnesses if (pairs := one._pairs())]
        if not known:
            return None
        return centre([value for value, _ in known]), error_of_centre([error for _, error in known])

    def log_lead(self) -> tuple[float, float] | None:
        """Returns log(XLA's time in its fastest process / the kernel's), to tell the faster, and its error."""
        known, medians = self.log_ratio(), self._medians("xla_us")
        if known is None:
            return None
        return known[0] - centre([math.log(us / min(medians)) for us in medians]), known[1]

    def plus(self, other: Seen) -> Seen:
        """Returns what was seen with a race in a further process; a failure in either counts."""
        return dataclasses.replace(
            self,
            digest=other.digest or self.digest,
            failure=other.failure or self.failure,
            again=(*self.again, other),
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
            again=tuple(cls.from_json(one) for one in held.get("again", ())),
        )

    @property
    def _witnesses(self) -> tuple[Seen, ...]:
        return tuple(one for one in self.again if one.kernel_us and one.xla_us) or (self,)

    def _medians(self, lane: str) -> list[float]:
        return [statistics.median(held) for one in self._witnesses if (held := getattr(one, lane))]

    def _pairs(self) -> list[float]:
        return [xla / kernel for xla, kernel in zip(self.xla_us, self.kernel_us)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided about one problem.

    Attributes:
        reason: One line for a person.
        retune: Whether it is to be tuned again.
        gain: What tuning may gain, as a share of the problem's time.
        ask: Further processes that would make sure of it the same night.
    """

    verdict: Verdict
    reason: str
    retune: bool = False
    gain: float = 0.0
    ask: int = 0

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
