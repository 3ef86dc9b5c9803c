"""Random and exhaustive search: one seeded shuffle of the legal set, walked from the front."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autotune.search.rows import LegalRows
from autotune.search.searcher import Knobs, Searcher


class ShuffledSearcher(Searcher):
    """Draws uniformly from the legal set without replacement.

    Random search stops at its budget and exhaustive search at the end of the set. A search that is cut short is an
    unbiased sample of the space, but for `by_binary`.

    Args:
        by_binary: What differs in run-time knobs alone is proposed together, when the walk comes to the first of it.
    """

    def __init__(
        self,
        rows: LegalRows,
        default_knobs: Sequence[Mapping[str, Any]],
        seed: int,
        *,
        by_binary: bool = False,
    ) -> None:
        super().__init__(rows, default_knobs)
        self._by_binary = by_binary
        self._together: deque[int] = deque()
        self._walk = iter(np.random.default_rng(seed).permutation(rows.size))

    def _propose(self) -> Knobs:
        while self._together:
            row = self._together.popleft()
            if not self._rows.is_spent(row):
                break
        else:
            row = next(int(row) for row in self._walk if not self._rows.is_spent(row))
            if self._by_binary:
                self._together.extend(self._rows.siblings(row).tolist())
        self._rows.spend(row)
        return self._rows.knobs(row)

    def _refused(self, knobs: Knobs, mended: Knobs) -> None:
        """The walk has moved on already."""

    def _learn(self, knobs: Knobs, value_us: float | None) -> None:
        """The walk does not depend on results."""
