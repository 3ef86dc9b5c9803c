"""One problem of a run: screened, its finalists raced with XLA, the winner confirmed."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.census import first_reason, screened_counts, space_counts
from autotune.confirmation import confirmed_winner
from autotune.errors import AutotuneError, NothingLegalError, NothingSurvivedError
from autotune.interrupt import DeferredInterrupt
from autotune.ledger.provenance import Provenance
from autotune.ledger.storage import Ledger, open_ledger
from autotune.progress import Budget, Progress, top_rules
from autotune.protocol import resolved
from autotune.result import Counts, ProblemResult, Winner
from autotune.screening import Screening, ScreenResult
from autotune.seam import Candidate, Confirmed, ConfirmJob, Evaluator, Failed, Measured, Race, RaceJob
from autotune.search import make_searcher
from autotune.sessions import as_one, raced
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
    """A problem that was screened and is to be raced; `counts` are those of its space."""

    counts: Counts
    ledger: Ledger
    screening: Screening


class ProblemRun:
    """One problem of a run, from its space to its result.

    Attributes:
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
        self._problem, self._weight, self._space = weighted.problem, weighted.weight, space
        self._interrupt = interrupt
        # What was recorded was recorded by one protocol; replaying it by another would be a false name.
        is_replay = stages.evaluator.kind == "replay"
        given = config.protocol
        self.protocol = given if is_replay else resolved(given, self._problem, stages.target)

    def screened(self, budget: Budget, fresh: bool) -> ProblemScreening | ProblemResult:
        """Returns what was screened, or a result where that is the end: nothing is legal, or all was only lowered."""
        counts = space_counts(self._space)
        try:
            self.require_legal(counts)
        except NothingLegalError as failure:
            return self._result(counts, failure=failure)
        ledger = self.open_ledger(fresh)
        screening = self.screen(ledger, budget)
        screened = screened_counts(counts, screening.results, screening.resumed, screening.draws_rejected)
        if screened.lowered:
            return self._result(screened, ledger=ledger)
        return ProblemScreening(counts=counts, ledger=ledger, screening=screening)

    def finished(self, found: ProblemScreening) -> ProblemResult:
        """Returns the result; NothingSurvivedError becomes its `failure`."""
        ledger, screening = found.ledger, found.screening

        def counted(results: Screened) -> Counts:
            return screened_counts(found.counts, results, screening.resumed, screening.draws_rejected)

        try:
            winner, results = confirmed_winner(
                screening.results,
                lambda screened: self._race(ledger, screened),
                lambda knobs: self.confirm(ledger, knobs),
            )
        except NothingSurvivedError as failure:
            return self._result(counted(screening.results), ledger=ledger, failure=failure)
        return self._result(counted(results), ledger=ledger, winner=winner)

    def open_ledger(self, fresh: bool) -> Ledger:
        """Opens the problem's study, a new one if `fresh`."""
        stages, evaluator = self._stages, self._stages.evaluator.kind
        provenance = Provenance(
            target=stages.target.name,
            problem=self._problem.to_fields(),
            space=self._space.knobs,
            protocol=self.protocol,
            device=dataclasses.asdict(self._device),
            toolchain=stages.toolchain,
            sources=stages.target.source_digest(),
            evaluator=f"{evaluator}:{stages.evaluator_source}" if stages.evaluator_source else evaluator,
            title=self._problem.describe(),
        )
        return stages.open_ledger(
            provenance,
            results=self._config.results,
            storage=self._config.storage,
            fresh=fresh,
            say=stages.progress.say,
        )

    def screen(self, ledger: Ledger, budget: Budget) -> Screening:
        """Screens until `budget` ends; a study that is finished already is read and not measured."""
        stages = self._stages
        defaults = [
            *stages.seeds(self._problem, self._device),
            *stages.target.default_configs(self._problem, self._device),
        ]
        screening = Screening(
            target=stages.target,
            problem=self._problem,
            device=self._device,
            evaluator=stages.evaluator,
            searcher=stages.make_searcher(self._config.search, self._space, defaults),
            ledger=ledger,
            budget=budget,
            progress=stages.progress,
            job_ids=stages.job_ids,
            protocol=self.protocol,
            runtime_knobs=self._runtime_knobs(),
            interrupted=self._interrupt.requested,
        )
        title = self._problem.describe()
        if screening.is_finished:
            stages.progress.say(f"{title}: {screening.resumed} candidates recorded, nothing left to measure")
        else:
            if screening.resumed:
                stages.progress.say(f"{title}: {screening.resumed} candidates recorded, going on")
            self._screen(screening, title, budget)
        return screening

    def _runtime_knobs(self) -> tuple[str, ...]:
        """Returns the knobs that candidates are screened with at run time; what only lowers is lowered as it ships."""
        may_share = self._config.search.share_binaries and self._stages.evaluator.kind == "gpu"
        return tuple(getattr(self._space, "runtime_knobs", ())) if may_share else ()

    def _screen(self, screening: Screening, title: str, budget: Budget) -> None:
        self._stages.progress.begin(title, budget)
        try:
            screening.run()
        except KeyboardInterrupt:
            self._stages.progress.say(
                f"{title}: interrupted; {len(screening.results)} candidates are recorded, the same command goes on"
            )
            raise
        finally:
            self._stages.progress.end()

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
        survivors = _survivors(found.screening.results)
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
            problem=self._problem,
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
            return tuple(rivals(self._problem)) if rivals else None
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
            self._stages.progress.say(
                f"{self._problem.describe()}: the winner is demoted: {result.reason}: {result.detail}"
            )
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
        return Candidate(target=target.name, problem=self._problem, config=config, device=self._device)

    def require_legal(self, counts: Counts) -> None:
        """Raises NothingLegalError where the space holds nothing legal."""
        if counts.legal:
            return
        rejected = top_rules(counts.rejected, shown=len(counts.rejected)) or "nothing, the space is empty"
        raise NothingLegalError(
            f"{self._problem.describe()}: none of {counts.raw:,} configurations is legal on {self._device.kind}; "
            f"rejected: {rejected}{first_reason(self._stages.target, self._problem, self._space, self._device)}"
        )

    def none_survived(self, failures: list[Failed]) -> NothingSurvivedError:
        """Returns the error that counts `failures` by reason and quotes the most frequent detail."""
        reasons = Counter(failed.reason for failed in failures)
        text = f"{self._problem.describe()}: no candidate survived; failed: {top_rules(reasons, shown=len(reasons))}"
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
    ) -> ProblemResult:
        return ProblemResult(
            problem=self._problem,
            weight=self._weight,
            device=self._device,
            protocol=self.protocol,
            evaluator=self._stages.evaluator.kind,
            study=ledger.name if ledger else None,
            counts=counts,
            winner=winner,
            failure=failure,
        )


def race_processes(config: Any, stages: Stages) -> int:
    """Returns the sessions of a race; where nothing is measured one tells all."""
    return config.race.processes if stages.evaluator.kind == "gpu" else 1


def _survivors(screened: Screened) -> Any:
    return finalists((knobs, result) for knobs, result in screened if isinstance(result, Measured))
