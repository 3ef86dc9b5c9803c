"""Screening one problem: ask, check, submit, poll, record, tell, with several candidates in flight."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from autotune.lanes import fixed_order
from autotune.ledger.storage import Ledger
from autotune.progress import Budget, Progress, Snapshot
from autotune.seam import Candidate, Evaluator, Failed, LoweredOnly, Measured, Outcome, Race, ScreenJob
from autotune.stopping import GainRule, Stop, recorded_stop

Knobs = Mapping[str, Any]
ScreenResult = Measured | LoweredOnly | Failed
Screened = Sequence[tuple[dict[str, Any], ScreenResult]]

_POLL_S = 0.25
_NEWS_INTERVAL_S = 2.0


class Screening:
    """One problem's screening. `run` may be called once.

    Attributes:
        results: Every recorded candidate with what became of it, those of earlier runs first.
        resumed: How many of them an earlier run recorded.
    """

    def __init__(
        self,
        *,
        target: Any,
        problem: Any,
        device: Any,
        evaluator: Evaluator,
        searcher: Any,
        ledger: Ledger,
        budget: Budget,
        progress: Progress,
        job_ids: Iterator[int],
        protocol: Any = None,
        runtime_knobs: Collection[str] = (),
        interrupted: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target, self._problem, self._device = target, problem, device
        self._evaluator, self._searcher, self._ledger = evaluator, searcher, ledger
        self._protocol, self._runtime_knobs = protocol, frozenset(runtime_knobs)
        self._budget, self._progress, self._job_ids = budget, progress, job_ids
        self._interrupted, self._clock = interrupted, clock
        self._in_flight: dict[int, dict[str, Any]] = {}
        self._binaries: dict[int, str | int] = {}  # of what is in flight; a number where it shares none
        self._siblings: deque[dict[str, Any]] = deque()
        self._results: dict[str, tuple[dict[str, Any], ScreenResult]] = {}
        self._failed: Counter[str] = Counter()
        self._best: Measured | None = None
        self._submitted = 0
        self._recorded = 0
        self._started_s = self._next_news_s = 0.0
        self._is_timed = False
        for record in ledger.screened():
            self._take(record.knobs, record.result)
        self.resumed = len(self._results)
        self._gain_rule = GainRule(budget, searcher, recorded_stop(ledger.stopped))

    @property
    def results(self) -> Screened:
        return list(self._results.values())

    @property
    def draws_rejected(self) -> dict[str, int]:
        return dict(self._searcher.draws_rejected)

    @property
    def stop(self) -> Stop | None:
        """Why nothing more is submitted; None: it may go on. With candidates in flight it is not the last word."""
        budget, recorded, flying = self._budget, self.resumed + self._recorded, len(self._in_flight)
        if budget.candidates is not None and self.resumed + self._submitted >= budget.candidates:
            return Stop(reason="candidates", candidates=recorded, limit=budget.candidates)
        if budget.seconds is not None and self._spent_s() >= budget.seconds:
            return Stop(reason="seconds", candidates=recorded, limit=budget.seconds)
        if self._searcher.remaining == 0:
            return Stop(reason="space", candidates=recorded)
        return self._gain_rule.stop(recorded, flying, self._best.timing.paired_us if self._best else None)

    def run(self, since_s: float | None = None) -> None:
        """Measures until it is stopped or nothing is left; what is in flight then is awaited and recorded.

        Args:
            since_s: Seconds count from then, by the clock; None: from the first result, since the start of the
                workers is nobody's search.

        Raises:
            KeyboardInterrupt: As it came, after everything that was measured by then is recorded.
        """
        self._started_s = self._clock() if since_s is None else since_s
        self._is_timed = since_s is not None
        try:
            self._fill()
            while self._in_flight:
                self._record(self._evaluator.poll(_POLL_S))
                if self._interrupted():
                    raise KeyboardInterrupt
                self._hear_others()
                self._fill()
        except KeyboardInterrupt:
            self._record(self._evaluator.poll(0.0))
            raise
        finally:
            self._progress.update(self._snapshot())
        stop = self.stop
        self._ledger.finish_screening(self._spent_s(), stop.to_json() if stop else None)

    def _fill(self) -> None:
        while self._has_room() and self.stop is None:
            asked = self._next_legal()
            if asked is None:
                return
            knobs, config = asked
            job_id = next(self._job_ids)
            candidate = Candidate(
                target=self._target.name, problem=self._problem, config=config, device=self._device
            )
            binary = self._binary(knobs)
            self._in_flight[job_id] = knobs
            self._binaries[job_id] = job_id if binary is None else binary
            self._submitted += 1
            self._evaluator.submit(
                ScreenJob(job_id=job_id, candidate=candidate, protocol=self._protocol, binary=binary)
            )

    def _has_room(self) -> bool:
        """Whether workers have too little to compile, or something to do that needs no compiling."""
        return bool(self._siblings) or len(set(self._binaries.values())) < self._evaluator.capacity

    def _binary(self, knobs: Knobs) -> str | None:
        if not self._runtime_knobs:
            return None
        return fixed_order({name: value for name, value in knobs.items() if name not in self._runtime_knobs})

    def _next(self) -> dict[str, Any] | None:
        """Returns what to try next: what the latest proposal's binary serves besides, else the next proposal.

        Measuring a sibling takes a tenth of the time of a candidate that must be compiled, but as much of the budget of
        candidates. So siblings are asked for only where the seconds end before the candidates.
        """
        if self._siblings:
            return self._siblings.popleft()
        knobs = self._searcher.ask()
        if knobs is not None and self._runtime_knobs and self._seconds_bind():
            self._siblings.extend(self._searcher.siblings(knobs))
        return knobs

    def _seconds_bind(self) -> bool:
        """Whether the seconds end before the candidates at the rate so far."""
        candidates, seconds = self._budget.candidates, self._budget.seconds
        if candidates is None or seconds is None:
            return candidates is None
        left_s, elapsed_s = seconds - self._spent_s(), self._elapsed_s()
        left = candidates - self.resumed - self._submitted
        return self._recorded > 0 and self._recorded * left_s < left * elapsed_s

    def _next_legal(self) -> tuple[dict[str, Any], Any] | None:
        while (knobs := self._next()) is not None:
            config = self._target.config_from_knobs(knobs)
            rejections = self._target.check(self._problem, config, self._device)
            if not rejections:
                return knobs, config
            mended = self._target.mended_knobs(knobs)
            self._searcher.reject(knobs, [rejection.rule for rejection in rejections], mended)
        return None

    def _record(self, outcomes: Any) -> None:
        if outcomes and not self._is_timed:
            self._started_s, self._is_timed = self._clock(), True
        for outcome in outcomes:
            knobs, result = self._finished(outcome)
            self._ledger.record_screen(knobs, result, self._spent_s())
            self._recorded += 1
            self._take(knobs, result)
        if outcomes:
            self._progress.update(self._snapshot())

    def _finished(self, outcome: Outcome) -> tuple[dict[str, Any], ScreenResult]:
        assert not isinstance(outcome.result, Race), "a screening job ended in a race"
        self._binaries.pop(outcome.job_id)
        return self._in_flight.pop(outcome.job_id), outcome.result

    def _hear_others(self) -> None:
        # Reading a database is slow beside a candidate, and another process's trials are no news to hurry for.
        if self._clock() < self._next_news_s:
            return
        self._next_news_s = self._clock() + _NEWS_INTERVAL_S
        for record in self._ledger.news():
            self._take(record.knobs, record.result)

    def _take(self, knobs: dict[str, Any], result: Any) -> None:
        """Keeps a result and tells the searcher; of two for the same knobs the first stands."""
        key = fixed_order(knobs)
        if key in self._results:
            return
        self._results[key] = (knobs, result)
        time_us = result.timing.score_us if isinstance(result, Measured) else None
        if time_us is not None and (self._best is None or time_us < self._best.timing.score_us):
            self._best = result
        if isinstance(result, Failed):
            self._failed[result.reason] += 1
        self._searcher.tell(knobs, time_us)

    def _elapsed_s(self) -> float:
        return self._clock() - self._started_s if self._started_s else 0.0

    def _spent_s(self) -> float:
        return self._ledger.spent_s + self._elapsed_s()

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            done=self.resumed + self._recorded,
            resumed=self.resumed,
            failed=self._failed.total(),
            elapsed_s=self._elapsed_s(),
            spent_s=self._spent_s(),
            best_us=self._best.timing.score_us if self._best else None,
            rejected=self.draws_rejected,
            stopped="" if self._in_flight or (stop := self.stop) is None else stop.text,
        )
