"""The races of one problem's best with XLA, and the confirmation of who won."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.errors import NothingSurvivedError
from autotune.interrupt import DeferredInterrupt
from autotune.ledger.storage import Ledger
from autotune.progress import top_rules
from autotune.result import Winner
from autotune.screening import Screened
from autotune.seam import Candidate, Confirmed, ConfirmJob, Failed, Measured, Race, RaceJob
from autotune.sessions import as_one, raced
from autotune.stages import Stages
from autotune.verdict import finalists, first_batch, judge

_POLL_S = 0.25


class ProblemRaces:
    """Races what was screened of one problem, and records how each race and each confirmation ended.

    Args:
        config: A RunConfig.
        device: The target's device.
        problem: The target's problem.
        protocol: How its times are taken, without any "auto".
        interrupt: Heard between two polls.
    """

    def __init__(
        self,
        config: Any,
        device: Any,
        stages: Stages,
        problem: Any,
        protocol: Any,
        interrupt: DeferredInterrupt,
    ) -> None:
        self._config, self._device, self._stages = config, device, stages
        self._problem, self._protocol, self._interrupt = problem, protocol, interrupt

    def race(self, ledger: Ledger, racers: list[Mapping[str, Any]]) -> Race | Failed:
        """Returns the race of `racers` with the rivals: a recorded one, or a new one that is then recorded.

        It is run in several processes, each fresh: XLA decides once a process how to multiply, and memory is laid
        out once. With no racers the rivals are measured alone.
        """
        recorded = self._recorded(ledger, racers)
        if recorded is not None:
            return recorded
        ((_, results),) = raced(
            self._stages.evaluator,
            [(0, self._job(ledger, racers))],
            processes=race_processes(self._config, self._stages),
            job_ids=self._stages.job_ids,
            between=self._interrupt.raise_if_requested,
        )
        return self.record(ledger, racers, as_one(results))

    def first(self, ledger: Ledger, screened: Screened) -> tuple[list[Mapping[str, Any]], RaceJob] | None:
        """Returns the racers of the race that `winner` begins with, and its job; None where it needs none."""
        survivors = _survivors(screened)
        racers = [knobs for knobs, _ in survivors[: self._first_batch(survivors)]]
        if not racers or self._recorded(ledger, racers) is not None:
            return None
        return racers, self._job(ledger, racers)

    def _first_batch(self, survivors: Any) -> int:
        return first_batch(survivors, self._config.race.finalists, in_chain=self._protocol.timer == "chain")

    def record(self, ledger: Ledger, racers: list[Mapping[str, Any]], race: Race | Failed) -> Race | Failed:
        """Records a race and returns it."""
        winner = judge(racers, race) if isinstance(race, Race) else None
        index = racers.index(dict(winner.knobs)) if winner else None
        ledger.record_race(racers, self._config.race.rounds, race, index, winner.time_us if winner else 0.0)
        return race

    def winner(self, ledger: Ledger, screened: Screened) -> Winner:
        """Races the best; where none of them survives the race, the next best.

        Raises:
            NothingSurvivedError: Nobody is left.
        """
        survivors = _survivors(screened)
        most = self._config.race.finalists
        lost: list[Failed] = []
        start, end = 0, self._first_batch(survivors)
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
        raise none_survived(self._problem, failures + lost)

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

    def _recorded(self, ledger: Ledger, racers: list[Mapping[str, Any]]) -> Race | None:
        for record in ledger.races():
            is_same = list(record.finalists) == racers and record.rounds == self._config.race.rounds
            if is_same and isinstance(record.result, Race):
                return record.result
        return None

    def _job(self, ledger: Ledger, racers: list[Mapping[str, Any]]) -> RaceJob:
        settings = self._config.race
        return RaceJob(
            job_id=0,
            problem=self._problem,
            target=self._stages.target.name,
            candidates=tuple(self._candidate(knobs) for knobs in racers),
            rounds=settings.rounds,
            protocol=self._protocol,
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


def none_survived(problem: Any, failures: Sequence[Failed]) -> NothingSurvivedError:
    """Returns the error that counts `failures` by reason and quotes the most frequent detail."""
    reasons = Counter(failed.reason for failed in failures)
    text = f"{problem.describe()}: no candidate survived; failed: {top_rules(reasons, shown=len(reasons))}"
    for (reason, detail), times in Counter((f.reason, f.detail) for f in failures).most_common(1):
        text += f"; most often ({times}x) {reason}: {' '.join(detail.split())}"
    return NothingSurvivedError(text)


def race_processes(config: Any, stages: Stages) -> int:
    """Returns the sessions of a race; where nothing is measured one tells all."""
    return config.race.processes if stages.evaluator.kind == "gpu" else 1


def _survivors(screened: Screened) -> Any:
    return finalists((knobs, result) for knobs, result in screened if isinstance(result, Measured))
