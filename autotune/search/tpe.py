"""Optuna's TPE over the raw space; illegal or repeated draws are replaced by the nearest legal configuration."""

from __future__ import annotations

import bisect
import copy
from collections import deque
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.search.rows import LegalRows
from autotune.search.searcher import Knobs, Searcher

# Before the model speaks, this many configurations are drawn uniformly from the legal set. Optuna's own start-up
# draws from the raw space, where most points are illegal, and their nearest legal neighbours crowd at its edge.
STARTUP = 16

# The model sees the best and the latest results only. Optuna's cost grows with what it sees: with 16 knobs, 3.6 ms
# an ask at 200 trials and 11.9 ms at 1,000 (2026-11-30, one of two shared cores, Optuna 5.0.0), and it gives old
# results a falling weight anyway.
MODEL_BEST = 30
MODEL_LATEST = 70

_Codes = tuple[int, ...]


class _WindowedStorage(InMemoryStorage):
    """A memory storage that shows the sampler the running trials, the best and the latest ones."""

    def __init__(self) -> None:
        super().__init__()
        self._running: set[int] = set()
        self._latest: deque[tuple[float, int]] = deque()
        self._best: list[tuple[float, int]] = []  # ascending, of those that are no longer among the latest

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        trials = super().get_all_trials(study_id, deepcopy=False)
        numbers = (
            self._running | {number for _, number in self._latest} | {number for _, number in self._best}
        )
        shown = [trials[number] for number in sorted(numbers)]
        if states is not None:
            shown = [trial for trial in shown if trial.state in states]
        return copy.deepcopy(shown) if deepcopy else shown

    def started(self, number: int) -> None:
        self._running.add(number)

    def finished(self, number: int, value_us: float | None) -> None:
        """Moves a trial into the window, or out of sight where it has no value."""
        self._running.discard(number)
        if value_us is None:
            return
        self._latest.append((value_us, number))
        if len(self._latest) > MODEL_LATEST:
            bisect.insort(self._best, self._latest.popleft())
            del self._best[MODEL_BEST:]


class TpeSearcher(Searcher):
    """TPE with several candidates in flight.

    Optuna is asked in memory only. What is in flight stands in its study as a running trial with its real knobs, so
    that the constant liar steers later draws away from it: with one candidate a core in flight, plain TPE would
    draw near the same point until the first result is back.
    """

    def __init__(self, rows: LegalRows, default_knobs: Sequence[Mapping[str, Any]], seed: int) -> None:
        super().__init__(rows, default_knobs)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._rng = np.random.default_rng(seed)
        sampler = optuna.samplers.TPESampler(
            n_startup_trials=STARTUP, constant_liar=True, multivariate=True, seed=seed
        )
        self._storage = _WindowedStorage()
        self._study = optuna.create_study(storage=self._storage, sampler=sampler, direction="minimize")
        # Codes stand in for values: they are compared by identity of index, so True and 1 never mix.
        self._distributions = {
            name: CategoricalDistribution(tuple(range(len(values))))
            for name, values in zip(rows.names, rows.choices)
            if len(values) > 1
        }
        self._running: dict[_Codes, int] = {}
        self._refused_rules: dict[_Codes, tuple[str, ...]] = {}
        self._mended: dict[_Codes, _Codes] = {}
        self._replace: _Codes | None = None
        self._completed = 0
        self._created = 0  # trials in the study; Optuna numbers them in the order of creation

    def reject(self, knobs: Mapping[str, Any], rules: Any, mended: Mapping[str, Any] | None = None) -> None:
        rules = tuple(rules)
        codes = self._rows.encode(knobs)
        if codes is not None:
            self._refused_rules[codes] = rules
        super().reject(knobs, rules, mended)

    def _refused(self, knobs: Knobs, mended: Knobs) -> None:
        codes = self._rows.encode(knobs)
        if codes is not None:
            self._forget(codes)
            # A repair may lead out of a narrowed space.
            self._mended[codes] = self._replace = self._rows.encode(mended) or codes

    def _propose(self) -> Knobs:
        if self._replace is not None:
            codes, self._replace = self._replace, None
            return self._nearest(codes)
        if self._completed < STARTUP or not self._distributions:
            return self._uniform()
        return self._model_draw()

    def _model_draw(self) -> Knobs:
        trial = self._study.ask(self._distributions)
        self._created += 1
        params = trial.params  # a deep copy at each access
        codes = tuple(params.get(name, 0) for name in self._rows.names)
        row = self._rows.find(codes)
        if row is not None and not self._rows.is_spent(row):
            self._rows.spend(row)
            self._running[codes] = trial.number
            self._storage.started(trial.number)
            return self._rows.knobs(row)
        self._study.tell(trial, state=TrialState.FAIL)
        if row is None and codes not in self._refused_rules:
            return self._rows.decode(codes)  # the driver finds the rules it breaks and gives it back
        self.draws_rejected.update(set(self._refused_rules.get(codes, ())))
        return self._nearest(self._mended.get(codes, codes))

    def _nearest(self, codes: _Codes) -> Knobs:
        row = self._rows.nearest(codes, self._rng)
        assert row is not None, "asked with every row spent"
        return self._take(row)

    def _uniform(self) -> Knobs:
        while self._rows.is_spent(row := int(self._rng.integers(self._rows.size))):
            if self._rows.remaining * 8 < self._rows.size:  # too few left to be found by luck
                return self._nearest(self._rows.codes(row))
        return self._take(row)

    def _take(self, row: int) -> Knobs:
        self._rows.spend(row)
        codes = self._rows.codes(row)
        self._running[codes] = self._add(codes, TrialState.RUNNING, None)
        self._storage.started(self._running[codes])
        return self._rows.knobs(row)

    def _learn(self, knobs: Knobs, value_us: float | None) -> None:
        codes = self._rows.encode(knobs)
        if codes is None:
            return
        self._completed += value_us is not None
        if codes in self._running:
            self._finish(self._running.pop(codes), value_us)
        elif value_us is not None:
            self._storage.finished(self._add(codes, TrialState.COMPLETE, value_us), value_us)

    def _forget(self, codes: _Codes) -> None:
        if codes in self._running:
            self._finish(self._running.pop(codes), None)

    def _finish(self, number: int, value_us: float | None) -> None:
        self._study.tell(number, value_us, state=TrialState.FAIL if value_us is None else TrialState.COMPLETE)
        self._storage.finished(number, value_us)

    def _add(self, codes: _Codes, state: TrialState, value_us: float | None) -> int:
        """Adds a trial with its real knobs and returns its number."""
        params = {name: code for name, code in zip(self._rows.names, codes) if name in self._distributions}
        self._study.add_trial(
            create_trial(state=state, value=value_us, params=params, distributions=self._distributions)
        )
        self._created += 1
        return self._created - 1
