"""Guided search: a target's prediction, corrected by what was measured so far, says what to try next.

What a cost model gets wrong it gets wrong alike for configurations that are alike. So its errors are taken for a
Gaussian process over the knobs: near what was measured the error is known, far from it the model's own stands.

On the eight recorded spaces, with the model's constants fitted without the space at hand, the median regret of 50
seeds is 4.41% at most after one candidate, and 0.04% at most after 16 (docs/search.md).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autotune.search.gain import expected_gain
from autotune.search.process import NOISE_SD, Features, Heard, Process
from autotune.search.rows import LegalRows
from autotune.search.searcher import Knobs, Searcher

PREDICTED = 60_000  # rows that are predicted once, at random, of spaces that have more
POOL = 8_000  # of them the best, and others beside them, from which proposals are chosen
LIKELY = 600  # rows that are weighed for each proposal, the best of the pool as corrected lately
SPREAD = 200  # rows of the pool that are weighed beside them, at random
NEIGHBOURS = 40  # changes of the best results that are weighed beside them
ELITE = 6
SEEN_BEST, SEEN_LATEST = 90, 60  # results that the process sees: its cost grows with their square
REFRESH = 8  # results between two rankings of the pool

# Of the logarithm of times: by how much a model is wrong for a configuration beside its mean error, and how many
# results that guess weighs beside the errors that are seen.
ERROR_SD, GUESS_WEIGHT = 0.12, 10.0
HEARD = 60  # errors that a near problem's search is told of, those of the fastest
OPTIMISM = 1.0  # standard deviations below the expectation that a candidate is judged by
# By how much of the logarithm a sibling of a proposal, which need not be compiled, may be judged worse than the next
# proposal; and so many of them at most.
CHEAPER = 0.01
MOST_SIBLINGS = 7


class GuidedSearcher(Searcher):
    """Proposes what is likely to be fastest by the corrected model, allowing for what is not known.

    Several candidates are in flight: each counts as measured at what it is expected to take, so that the next ones
    are sought elsewhere.
    """

    def __init__(self, rows: LegalRows, default_knobs: Sequence[Mapping[str, Any]], seed: int) -> None:
        super().__init__(rows, default_knobs)
        self._rng = np.random.default_rng(seed)
        self._aside = np.random.default_rng(seed)  # asking for the gain changes no proposal
        self._pool, self._prior = self._best_of_many()
        self._ranked = np.argsort(self._prior, kind="stable")
        self._features = Features(rows)
        self._pool_features = self._features.of(self._pool)
        self._told: dict[int, float] = {}  # logarithms of times
        self._errors: dict[int, float] = {}  # by how much each was above the model's
        self._flying: dict[int, float] = {}  # the error that is expected of each
        self._heard = Heard.of(rows, self._features, ())
        self._free = [j for j, values in enumerate(rows.choices) if len(values) > 1]
        self._since_ranking = 0
        # Before the untuned choices: these come from a short list, of which a narrow space may hold poor ones only.
        if len(self._pool):
            self._defaults.appendleft(rows.knobs(int(self._pool[self._ranked[0]])))

    def ask(self) -> Knobs | None:
        knobs = super().ask()
        row = None if knobs is None else self._row_of(knobs)
        if row is not None and row not in self._flying:  # an untuned choice, or the model's own
            self._flying[row] = 0.0
            self._rows.spend_twins(row)
        return knobs

    def _best_of_many(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows that are chosen from, and the logarithms of their predicted times."""
        size = self._rows.size
        rows = np.arange(size) if size <= PREDICTED else np.unique(self._rng.integers(size, size=PREDICTED))
        prior = self._predicted(rows)
        if len(rows) <= POOL:
            return rows, prior
        order = np.argsort(prior, kind="stable")
        # A tenth comes from all the rest: the model may be wrong about a whole region.
        rest = self._rng.choice(order[POOL * 9 // 10 :], POOL // 10, replace=False)
        kept = np.concatenate([order[: POOL * 9 // 10], rest])
        return rows[kept], prior[kept]

    def _predicted(self, rows: np.ndarray) -> np.ndarray:
        """Returns the logarithms of the model's times."""
        return np.log(self._rows.predicted_us(rows))

    def expected_gain(self) -> float | None:
        """See `Searcher.expected_gain`; what is in flight counts as measured."""
        if not self._told:
            return None
        process = self._process()
        best = np.array(heapq.nsmallest(ELITE, self._told, key=self._told.__getitem__))
        best_expected = self._predicted(best) + process.error(self._features.of(best))
        rows, prior, error, sd = self._expected(process, self._aside)
        once = np.unique(rows, return_index=True)[1]
        return expected_gain(float(best_expected.min()), (prior + error)[once], sd[once], NOISE_SD)

    def errors(self) -> list[tuple[Knobs, float]]:
        """See `Searcher.errors`."""
        fastest = heapq.nsmallest(HEARD, self._told, key=self._told.__getitem__)
        return [(self._rows.knobs(row), self._errors[row]) for row in fastest]

    def hear(self, neighbours: Sequence[tuple[float, Sequence[tuple[Knobs, float]]]]) -> None:
        """See `Searcher.hear`."""
        self._heard = Heard.of(self._rows, self._features, neighbours)

    def _propose(self) -> Knobs:
        process = self._process()
        if self._since_ranking >= REFRESH:
            self._since_ranking = 0
            self._ranked = np.argsort(self._prior + process.error(self._pool_features), kind="stable")
        rows, error, score = self._scored(process)
        if not len(rows):
            return self._any()
        ties = np.flatnonzero(score <= score.min() + 1e-9)
        best = int(ties[self._rng.integers(len(ties))])
        return self._take(int(rows[best]), float(error[best]))

    def _scored(self, process: Process) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns unspent rows to choose from, their expected errors, and what they are judged by."""
        rows, prior, error, sd = self._expected(process, self._rng)
        return rows, error, prior + error - OPTIMISM * sd

    def _expected(
        self, process: Process, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns the rows to choose from, and of each the model's logarithm, its error and the error's deviation."""
        of_pool, neighbours = self._weighed(rng), self._neighbours(rng)
        features = np.concatenate([self._pool_features[of_pool], self._features.of(neighbours)])
        prior = np.concatenate([self._prior[of_pool], self._predicted(neighbours)])
        return np.concatenate([self._pool[of_pool], neighbours]), prior, *process.predict(features)

    def _weighed(self, rng: np.random.Generator) -> np.ndarray:
        """Returns places in the pool of unspent rows to choose from."""
        unspent = self._ranked[~self._rows.are_spent(self._pool[self._ranked])]
        likely, rest = unspent[:LIKELY], unspent[LIKELY:]
        spread = rest[rng.integers(len(rest), size=SPREAD)] if len(rest) else rest
        return np.concatenate([likely, spread])

    def _neighbours(self, rng: np.random.Generator) -> np.ndarray:
        elite = heapq.nsmallest(ELITE, self._told, key=self._told.__getitem__)
        found = []
        for _ in range(NEIGHBOURS if elite and self._free else 0):
            codes = list(self._rows.codes(elite[int(rng.integers(len(elite)))]))
            for j in rng.choice(
                self._free, size=min(len(self._free), int(rng.integers(1, 3))), replace=False
            ):
                values = len(self._rows.choices[j])
                codes[j] = int((codes[j] + rng.integers(1, values)) % values)
            row = self._rows.find(tuple(codes))
            if row is not None and not self._rows.is_spent(row):
                found.append(row)
        return np.array(found, dtype=np.int64)

    def _process(self) -> Process:
        """Returns the process given what was measured and what is in flight."""
        seen = list(self._told)
        if len(seen) > SEEN_BEST + SEEN_LATEST:
            best = heapq.nsmallest(SEEN_BEST, seen, key=self._told.__getitem__)
            seen = list(dict.fromkeys([*best, *seen[-SEEN_LATEST:]]))
        rows = np.array([*seen, *self._flying], dtype=np.int64)
        errors = np.array([self._errors[row] for row in seen])
        known = np.concatenate([errors, self._heard.errors])
        return Process(
            np.concatenate([self._features.of(rows), self._heard.features]),
            np.concatenate([errors, list(self._flying.values()), self._heard.errors]),
            math.sqrt(
                (GUESS_WEIGHT * ERROR_SD**2 + known.size * _variance(known)) / (GUESS_WEIGHT + known.size)
            ),
            np.concatenate([np.ones(len(rows)), self._heard.alike]),
            np.concatenate([np.zeros(len(rows), dtype=np.int64), self._heard.problem]),
        )

    def siblings(self, knobs: Mapping[str, Any]) -> list[Knobs]:
        """Returns the siblings that are nearly as promising as the next proposal, the likeliest first."""
        row = self._row_of(knobs)
        rows = self._rows.siblings(row) if row is not None else np.zeros(0, np.int64)
        if not len(rows):
            return []
        process = self._process()
        others = self._scored(process)[2]
        error, sd = process.predict(self._features.of(rows))
        score = self._predicted(rows) + error - OPTIMISM * sd
        highest = others.min(initial=math.inf) + CHEAPER
        found: list[Knobs] = []
        for place in np.argsort(score, kind="stable"):
            if len(found) == MOST_SIBLINGS or score[place] > highest:
                break
            if not self._rows.is_spent(int(rows[place])):  # one before it may do the same
                found.append(self._take(int(rows[place]), float(error[place])))
        return found

    def _any(self) -> Knobs:
        row = self._rows.nearest(self._rows.codes(int(self._rng.integers(self._rows.size))), self._rng)
        assert row is not None, "asked with every row spent"
        return self._take(row, 0.0)

    def _take(self, row: int, error: float) -> Knobs:
        self._rows.spend(row)
        self._rows.spend_twins(row)
        self._flying[row] = error
        return self._rows.knobs(row)

    def _refused(self, knobs: Knobs, mended: Knobs) -> None:
        row = self._row_of(knobs)
        self._flying.pop(-1 if row is None else row, None)

    def _learn(self, knobs: Knobs, value_us: float | None) -> None:
        row = self._row_of(knobs)
        if row is None:
            return
        self._flying.pop(row, None)
        self._rows.spend_twins(row)
        if value_us is not None:
            self._told[row] = math.log(value_us)
            self._errors[row] = self._told[row] - float(self._predicted(np.array([row]))[0])
            self._since_ranking += 1


def _variance(values: np.ndarray) -> float:
    return float(values.var()) if values.size else 0.0
