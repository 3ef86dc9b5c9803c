"""One problem of a run: screened, its finalists raced with XLA, the winner confirmed."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.census import first_reason, screened_counts, space_counts
from autotune.confirmation import confirmed_winner
from autotune.errors import AutotuneError, NothingLegalError, NothingSurvivedError
from autotune.interrupt import DeferredInterrupt
from autotune.lanes import fixed_order
from autotune.ledger.provenance import Provenance
from autotune.ledger.storage import Ledger, open_ledger
from autotune.progress import Budget, Progress, top_rules
from autotune.protocol import resolved
from autotune.result import Counts, ProblemResult, Winner
from autotune.screening import Screening, ScreenResult
from autotune.seam import (
    Candidate,
    Confirmed,
    ConfirmJob,
    Evaluator,
    Failed,
    LoweredOnly,
    Measured,
    Race,
    RaceJob,
)
from autotune.search import make_searcher
from autotune.seeds import Neighbour
from autotune.sessions import as_one, raced
from autotune.stopping import Stop
from autotune.verdict import finalists, first_batch, judge

_POLL_S = 0.25

Screened = list[tuple[dict[str, Any], ScreenResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The parts that a run is made of.

    Attributes:
        evaluator: Closed by the driver, however the run ends.
        toolchain: Versions by tool; "jax", "jaxlib" and "driver" take part in a study's name.
        evaluator_source: Digest of what a replay replays, so that another recorded space is another study.
        seeds: Returns knobs to begin the search of a problem on a device with.
        promote: Hears of each problem's result, on a GPU only and never of one without a winner.
    """

    target: Any
    evaluator: Evaluator
    progress: Progress
    toolchain: Mapping[str, str | None]
    evaluator_source: str = ""
    promote: Callable[[ProblemResult], None] | None = None
    seeds: Callable[[Any, Any], list[dict[str, Any]]] = lambda problem, device: []
    open_ledger: Callable[..., Ledger] = open_ledger
    make_searcher: Callable[..., Any] = make_searcher
    job_ids: Iterator[int] = field(default_factory=itertools.count)


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

    def opened(self, fresh: bool) -> ProblemScreening | ProblemResult:
        """Returns what earlier runs recorded, or the result where nothing is legal."""
        counts = space_counts(self._space)
        try:
            self.require_legal(counts)
        except NothingLegalError as failure:
            return self._result(counts, failure=failure)
        ledger = self.open_ledger(fresh)
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
                lambda screened: self._race(ledger, screened),
                lambda knobs: self.confirm(ledger, knobs),
            )
        except NothingSurvivedError as failure:
            return ended(found.results, failure=failure)
        return ended(results, winner=winner)

    def open_ledger(self, fresh: bool) -> Ledger:
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

    def _runtime_knobs(self) -> tuple[str, ...]:
        """Returns the knobs that candidates are screened with at run time; what only lowers is lowered as it ships."""
        may_share = self._config.search.share_binaries and self._stages.evaluator.kind == "gpu"
        return tuple(getattr(self._space, "runtime_knobs", ())) if may_share else ()

    def _screen(self, screening: Screening, budget: Budget, since_s: float | None) -> None:
        self._stages.progress.begin(self.problem.describe(), budget)
        try:
            screening.run(since_s)
        except KeyboardInterrupt:
            self._say(
                f"interrupted; {len(screening.results)} candidates are recorded, the same command goes on"
            )
            raise
        finally:
            self._stages.progress.end()

    def _say(self, line: str) -> None:
        self._stages.progress.say(f"{self.problem.describe()}: {line}")

    def race(self, ledger: Ledger, racers: list[Mapping[str, Any]]) -> Race | Failed:
        """Returns the race of `racers` with the rivals: a recorded one, or a new one that is then recorded.

        It is run in several processes, each fresh: XLA decides once a process how to multiply, and memory is laid
        out once. With no racers the rivals are measured alone.
        """
        recorded = self._recorded_race(ledger, racers)
        if recorded is not None:
            return recorded
        ((_, results),) = raced(
            self._stages.evaluator,
            [(0, self._race_job(ledger, racers))],
            processes=race_processes(self._config, self._stages),
            job_ids=self._stages.job_ids,
            between=self._interrupt.raise_if_requested,
        )
        return self.record_race(ledger, racers, as_one(results))

    def first_race(self, found: ProblemScreening) -> tuple[list[Mapping[str, Any]], RaceJob] | None:
        """Returns the racers of the race that `finished` begins with, and its job; None where it needs none."""
        survivors = _survivors(found.results)
        racers = [knobs for knobs, _ in survivors[: first_batch(survivors, self._config.race.finalists)]]
        if not racers or self._recorded_race(found.ledger, racers) is not None:
            return None
        return racers, self._race_job(found.ledger, racers)

    def record_race(
        self, ledger: Ledger, racers: list[Mapping[str, Any]], race: Race | Failed
    ) -> Race | Failed:
        """Records a race and returns it."""
        winner = judge(racers, race) if isinstance(race, Race) else None
        index = racers.index(dict(winner.knobs)) if winner else None
        ledger.record_race(racers, self._config.race.rounds, race, index, winner.time_us if winner else 0.0)
        return race

    def _recorded_race(self, ledger: Ledger, racers: list[Mapping[str, Any]]) -> Race | None:
        for record in ledger.races():
            is_same = list(record.finalists) == racers and record.rounds == self._config.race.rounds
            if is_same and isinstance(record.result, Race):
                return record.result
        return None

    def _race_job(self, ledger: Ledger, racers: list[Mapping[str, Any]]) -> RaceJob:
        settings = self._config.race
        return RaceJob(
            job_id=0,
            problem=self.problem,
            target=self._stages.target.name,
            candidates=tuple(self._candidate(knobs) for knobs in racers),
            rounds=settings.rounds,
            protocol=self.protocol,
            formulations=self._formulations(ledger),
            seconds=settings.seconds,
        )

    def _formulations(self, ledger: Ledger) -> tuple[str, ...] | None:
        """Returns which of XLA's formulations to race: once the study knows the best one, it and the plain one."""
        if self._config.race.rivals == "full":
            rivals = getattr(self._stages.target, "rivals", None)
            return tuple(rivals(self.problem)) if rivals else None
        for record in reversed(ledger.races()):
            if isinstance(record.result, Race):
                winner = judge(list(record.finalists), record.result)
                if winner is not None and winner.formulation:
                    return tuple(dict.fromkeys(("plain", winner.formulation)))
        return None

    def _race(self, ledger: Ledger, screened: Screened) -> Winner:
        """Races the best; where none of them survives the race, the next best."""
        survivors = _survivors(screened)
        most = self._config.race.finalists
        lost: list[Failed] = []
        start, end = 0, first_batch(survivors, most)
        while start < len(survivors):
            batch = [knobs for knobs, _ in survivors[start:end]]
            race = self.race(ledger, batch)
            winner = judge(batch, race) if isinstance(race, Race) else None
            if winner is not None:
                return winner
            entries = [lane.result for lane in race.entries] if isinstance(race, Race) else [race]
            lost += [result for result in entries if isinstance(result, Failed)]
            start, end = end, end + most
        failures = [result for _, result in screened if isinstance(result, Failed)]
        raise self.none_survived(failures + lost)

    def confirm(self, ledger: Ledger, knobs: Mapping[str, Any]) -> Confirmed | Failed:
        """Returns how a configuration did on fresh inputs: as recorded, or now, and then it is recorded.

        Where nothing is measured there is nothing to confirm.
        """
        if self._stages.evaluator.kind != "gpu":
            return Confirmed(runs=0, error=0.0)
        for known, result in ledger.confirmations():
            if known == dict(knobs):
                return result
        job_id = next(self._stages.job_ids)
        self._stages.evaluator.submit(ConfirmJob(job_id=job_id, candidate=self._candidate(knobs)))
        result = self._await(job_id)
        ledger.record_confirmation(knobs, result)
        if isinstance(result, Failed):
            self._say(f"the winner is demoted: {result.reason}: {result.detail}")
        return result

    def _await(self, job_id: int) -> Confirmed | Failed:
        """Returns the result of a confirmation, the only job in flight."""
        while True:
            for outcome in self._stages.evaluator.poll(_POLL_S):
                assert outcome.job_id == job_id and isinstance(outcome.result, Confirmed | Failed)
                return outcome.result
            self._interrupt.raise_if_requested()

    def _candidate(self, knobs: Mapping[str, Any]) -> Candidate:
        target = self._stages.target
        config = target.config_from_knobs(knobs)
        return Candidate(target=target.name, problem=self.problem, config=config, device=self._device)

    def require_legal(self, counts: Counts) -> None:
        """Raises NothingLegalError where the space holds nothing legal."""
        if counts.legal:
            return
        rejected = top_rules(counts.rejected, shown=len(counts.rejected)) or "nothing, the space is empty"
        raise NothingLegalError(
            f"{self.problem.describe()}: none of {counts.raw:,} configurations is legal on {self._device.kind}; "
            f"rejected: {rejected}{first_reason(self._stages.target, self.problem, self._space, self._device)}"
        )

    def none_survived(self, failures: list[Failed]) -> NothingSurvivedError:
        """Returns the error that counts `failures` by reason and quotes the most frequent detail."""
        reasons = Counter(failed.reason for failed in failures)
        text = f"{self.problem.describe()}: no candidate survived; failed: {top_rules(reasons, shown=len(reasons))}"
        for (reason, detail), times in Counter((f.reason, f.detail) for f in failures).most_common(1):
            text += f"; most often ({times}x) {reason}: {' '.join(detail.split())}"
        return NothingSurvivedError(text)

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


def race_processes(config: Any, stages: Stages) -> int:
    """Returns the sessions of a race; where nothing is measured one tells all."""
    return config.race.processes if stages.evaluator.kind == "gpu" else 1


def _survivors(screened: Screened) -> Any:
    return finalists((knobs, result) for knobs, result in screened if isinstance(result, Measured))
