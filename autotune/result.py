"""What a run gives back: one record a problem, which the table shows and the best files are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from autotune.errors import AutotuneError
from autotune.stopping import Stop

Backend = Literal["kernel", "xla"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What became of a problem's configurations.

    Attributes:
        raw: Points of the space, legal or not.
        legal: Points that pass the check.
        rejected: The others, each under the rule that refused it.
        draws_rejected: Illegal draws of the sampler in this run; a draw counts under each rule it breaks.
        resumed: Recorded candidates that this run found in the study and did not measure.
        measured: Candidates with a time, resumed ones included.
        lowered: Candidates that lowered where nothing is measured.
        duplicates: Of those two, how many share the lowered module of another.
        failed: Candidates that failed, by reason.
    """

    raw: int
    legal: int
    rejected: Mapping[str, int]
    draws_rejected: Mapping[str, int] = field(default_factory=dict)
    resumed: int = 0
    measured: int = 0
    lowered: int = 0
    duplicates: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The outcome of a race.

    Attributes:
        knobs: The best configuration of the kernel, also where XLA won.
        backend: What to call: "xla" where XLA won or tied.
        time_us: Median of the configuration's samples in the race.
        samples_us: Those samples, round by round.
        xla_time_us: Median of the rival's samples; None where the rival was not measured.
        xla_samples_us: Those samples.
        formulation: Of the fastest rival, such as "plain".
        ratio: Median over rounds of the rival's time over the configuration's; over 1 the kernel is faster.
        ratio_interval: 95% bootstrap interval of `ratio`.
        plain_time_us: Median of the plain rival's samples, which a user writes without a second thought.
        plain_ratio, plain_interval: As `ratio` and its interval, to the plain rival.
        joules: Energy of one call at settled clocks; None where the race was a burst.
        xla_joules: That of the fastest rival.
        digest: Of the configuration's lowered module.
        error: Of the configuration's result against the reference, relative.
        smem_bytes: Dynamic shared memory of one CTA, where known.
        raced: Distinct finalists that the race measured.
        tied: Finalists that the race could not tell from the best.
        tie_set: Those finalists' knobs as text in the fixed order, after "xla" where XLA is among them.
        rerun_chance: Estimated chance that a second race of the same lanes would crown another.
    """

    knobs: Mapping[str, Any]
    backend: Backend
    time_us: float
    samples_us: tuple[float, ...]
    xla_time_us: float | None = None
    xla_samples_us: tuple[float, ...] = ()
    formulation: str | None = None
    ratio: float | None = None
    ratio_interval: tuple[float, float] | None = None
    plain_time_us: float | None = None
    plain_ratio: float | None = None
    plain_interval: tuple[float, float] | None = None
    joules: float | None = None
    xla_joules: float | None = None
    digest: str
    error: float | None = None
    smem_bytes: int | None = None
    raced: int = 1
    tied: int = 1
    tie_set: tuple[str, ...] = ()
    rerun_chance: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemResult:
    """One problem of a run.

    Attributes:
        weight: How often the problem occurs in the workload.
        evaluator: "gpu", "replay" or "lower".
        study: Name of the study; None where nothing was legal.
        counts: What became of the configurations.
        winner: None for `lower`, and where `failure` says why.
        failure: NothingLegalError or NothingSurvivedError of this problem.
        stop: Why screening ended; None where nothing was legal.
    """

    problem: Any
    weight: float
    device: Any
    protocol: Any
    evaluator: str
    study: str | None
    counts: Counts
    winner: Winner | None
    failure: AutotuneError | None = None
    stop: Stop | None = None

    @property
    def best_knobs(self) -> Mapping[str, Any] | None:
        return self.winner.knobs if self.winner else None

    @property
    def backend(self) -> Backend | None:
        return self.winner.backend if self.winner else None

    @property
    def tflops(self) -> float | None:
        """Arithmetic of the problem over the winning configuration's time, in TFLOP/s."""
        return self.problem.flops / self.winner.time_us / 1e6 if self.winner else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """All problems of a run, in the config's order."""

    name: str
    evaluator: str
    problems: tuple[ProblemResult, ...]

    def raise_for_failure(self) -> None:
        """Raises the first problem's failure, if any: NothingLegalError or NothingSurvivedError."""
        for problem in self.problems:
            if problem.failure is not None:
                raise problem.failure
