"""One problem of a run: screened, its finalists raced with XLA, the winner confirmed."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.census import first_reason, screened_counts, space_counts
from autotune.confirmation import confirmed_winner
from autotune.errors import AutotuneError, NothingLegalError, NothingSurvivedError
from autotune.interrupt import DeferredInterrupt
from autotune.lanes import fixed_order
from autotune.ledger.provenance import Provenance
from autotune.ledger.storage import Ledger
from autotune.problemrace import ProblemRaces
from autotune.progress import Budget, top_rules
from autotune.protocol import resolved
from autotune.result import Counts, ProblemResult, Winner
from autotune.screening import Screened, Screening
from autotune.seam import LoweredOnly, Measured
from autotune.seeds import Neighbour
from autotune.stages import Stages
from autotune.stopping import Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemScreening:
    """How far screening a problem has come.

    Attributes:
        counts: Of its space.
        results: Every recorded candidate with what became of it.
        resumed: How many of them earlier runs recorded.
        draws_rejected: Illegal draws of the sampler in this run, by rule.
        stop: Why the last round of it ended; None before the first.
        errors: What its model got wrong, see `Searcher.errors`.
        gain: What the next candidates are expected to gain, as a share of the best time; None: no model says it.
    """

    counts: Counts
    ledger: Ledger
    results: Screened
    resumed: int
    draws_rejected: Mapping[str, int] = field(default_factory=dict)
    stop: Stop | None = None
    gain: float | None = None
    errors: Sequence[tuple[dict[str, Any], float]] = ()

    @property
    def best(self) -> tuple[dict[str, Any], float] | None:
        """The knobs of the fastest so far, and their microseconds; None where nothing was measured."""
        times = [(r.timing.score_us, knobs) for knobs, r in self.results if isinstance(r, Measured)]
        if not times:
            return None
        time_us, knobs = min(times, key=lambda row: row[0])
        return knobs, time_us


class ProblemRun:
    """One problem of a run, from its space to its result.

    Attributes:
        problem: The problem, and how often it occurs: its `weight`.
        protocol: How its times are taken, without any "auto".
        races: Its races with XLA.
    """

    def __init__(
        self,
        config: Any,
        device: Any,
        stages: Stages,
        weighted: Any,
        space: Any,
        interrupt: DeferredInterrupt,
    ) -> None:
        self._config, self._device, self._stages = config, device, stages
        self.problem, self.weight, self._space = weighted.problem, weighted.weight, space
        self._interrupt = interrupt
        # What was recorded was recorded by one protocol; replaying it by another would be a false name.
        is_replay = stages.evaluator.kind == "replay"
        given = config.protocol
        self.protocol = given if is_replay else resolved(given, self.problem, stages.target)
        self.races = ProblemRaces(config, device, stages, self.problem, self.protocol, interrupt)

    def opened(self, fresh: bool) -> ProblemScreening | ProblemResult:
        """Returns what earlier runs recorded, or the result where nothing is legal."""
        counts = space_counts(self._space)
        try:
            self._require_legal(counts)
        except NothingLegalError as failure:
            return self._result(counts, failure=failure)
        ledger = self._open_ledger(fresh)
        recorded = {fixed_order(record.knobs): record for record in reversed(ledger.screened())}
        if recorded:
            self._say(f"{len(recorded)} candidates recorded")
        results = [(record.knobs, record.result) for record in reversed(recorded.values())]
        return ProblemScreening(counts=counts, ledger=ledger, results=results, resumed=len(results))

    def finished(self, found: ProblemScreening) -> ProblemResult:
        """Returns the result; NothingSurvivedError becomes its `failure`. What was only lowered has no winner."""
        ledger = found.ledger

        def ended(results: Screened, **end: Any) -> ProblemResult:
            counts = screened_counts(found.counts, results, found.resumed, found.draws_rejected)
            return self._result(counts, ledger=ledger, stop=found.stop, **end)

        if any(isinstance(result, LoweredOnly) for _, result in found.results):
            return ended(found.results)
        try:
            winner, results = confirmed_winner(
                found.results,
                lambda screened: self.races.winner(ledger, screened),
                lambda knobs: self.races.confirm(ledger, knobs),
            )
        except NothingSurvivedError as failure:
            return ended(found.results, failure=failure)
        return ended(results, winner=winner)

    def _open_ledger(self, fresh: bool) -> Ledger:
        """Opens the problem's study, a new one if `fresh`."""
        stages, evaluator = self._stages, self._stages.evaluator.kind
        provenance = Provenance(
            target=stages.target.name,
            problem=self.problem.to_fields(),
            space=self._space.knobs,
            protocol=self.protocol,
            device=dataclasses.asdict(self._device),
            toolchain=stages.toolchain,
            sources=stages.target.source_digest(),
            evaluator=f"{evaluator}:{stages.evaluator_source}" if stages.evaluator_source else evaluator,
            title=self.problem.describe(),
        )
        return stages.open_ledger(
            provenance,
            results=self._config.results,
            storage=self._config.storage,
            fresh=fresh,
            say=stages.progress.say,
        )

    def screened(
        self,
        found: ProblemScreening,
        budget: Budget,
        *,
        near: Sequence[tuple[float, Neighbour]] = (),
        seeded: Container[str] = (),
        since_s: float | None = None,
    ) -> ProblemScreening:
        """Screens on from `found` until `budget` ends. What it allows no more is read and not measured.

        Args:
            near: Problems that the run has measured, with their distances, the nearest first. The fastest of each,
                as the nearest legal configuration, is proposed before anything else.
            seeded: Those of them, in the fixed order, that were proposed before.
            since_s: Seconds count from then, by time.monotonic; None: from the first result.
        """
        stages, searcher = self._stages, self._searcher(near, seeded)
        screening = Screening(
            target=stages.target,
            problem=self.problem,
            device=self._device,
            evaluator=stages.evaluator,
            searcher=searcher,
            ledger=found.ledger,
            budget=budget,
            progress=stages.progress,
            job_ids=stages.job_ids,
            protocol=self.protocol,
            runtime_knobs=self._runtime_knobs(),
            interrupted=self._interrupt.requested,
        )
        if screening.stop is None:
            self._screen(screening, budget, since_s)
        return dataclasses.replace(
            found,
            results=screening.results,
            draws_rejected=dict(Counter(found.draws_rejected) + Counter(screening.draws_rejected)),
            stop=screening.stop,
            gain=searcher.expected_gain(),
            errors=searcher.errors(),
        )

    def _searcher(self, near: Sequence[tuple[float, Neighbour]], seeded: Container[str]) -> Any:
        stages = self._stages
        defaults = [
            *stages.seeds(self.problem, self._device),
            *stages.target.default_configs(self.problem, self._device),
        ]
        searcher = stages.make_searcher(self._config.search, self._space, defaults)
        searcher.hear([(distance, other.errors) for distance, other in near])
        for _, other in reversed(near):
            if fixed_order(other.knobs) not in seeded:
                searcher.seed(other.knobs)
        return searcher

    def _runtime_knobs(self) -> tuple[str, ...]:
        """Returns the knobs that candidates are screened with at run time; what only lowers is lowered as it ships."""
        may_share = self._config.search.share_binaries and self._stages.evaluator.kind == "gpu"
        return tuple(getattr(self._space, "runtime_knobs", ())) if may_share else ()

    def _screen(self, screening: Screening, budget: Budget, since_s: float | None) -> None:
        self._stages.progress.begin(self.problem.describe(), budget)
        try:
            try:
                screening.run(since_s)
            finally:
                self._stages.progress.end()
        except KeyboardInterrupt:
            self._say(
                f"interrupted; {len(screening.results)} candidates are recorded, the same command goes on"
            )
            raise

    def _say(self, line: str) -> None:
        self._stages.progress.say(f"{self.problem.describe()}: {line}")

    def _require_legal(self, counts: Counts) -> None:
        """Raises NothingLegalError where the space holds nothing legal."""
        if counts.legal:
            return
        rejected = top_rules(counts.rejected, shown=len(counts.rejected)) or "nothing, the space is empty"
        raise NothingLegalError(
            f"{self.problem.describe()}: none of {counts.raw:,} configurations is legal on {self._device.kind}; "
            f"rejected: {rejected}{first_reason(self._stages.target, self.problem, self._space, self._device)}"
        )

    def _result(
        self,
        counts: Counts,
        *,
        ledger: Ledger | None = None,
        winner: Winner | None = None,
        failure: AutotuneError | None = None,
        stop: Stop | None = None,
    ) -> ProblemResult:
        return ProblemResult(
            problem=self.problem,
            weight=self.weight,
            device=self._device,
            protocol=self.protocol,
            evaluator=self._stages.evaluator.kind,
            study=ledger.name if ledger else None,
            counts=counts,
            winner=winner,
            failure=failure,
            stop=stop,
        )
