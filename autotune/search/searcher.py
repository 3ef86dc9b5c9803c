"""The seam between the driver and every sampler."""

from __future__ import annotations

import abc
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autotune.search.rows import LegalRows

Knobs = dict[str, Any]


class Searcher(abc.ABC):
    """Proposes knobs, never the same twice.

    The driver checks what it is given. Illegal knobs come back through `reject`; the sampler replaces them, so that
    a rejected draw costs no candidate. Measured and failed knobs come back through `tell`, also those that an
    earlier run or another process measured.

    Attributes:
        draws_rejected: Illegal draws that were given back, by rule; a draw counts under each rule it breaks.
    """

    def __init__(self, rows: LegalRows, default_knobs: Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows
        self._defaults: deque[Knobs] = deque(dict(knobs) for knobs in default_knobs)
        self.draws_rejected: Counter[str] = Counter()

    def seed(self, knobs: Mapping[str, Any]) -> None:
        """Has `knobs` proposed before anything else that was not proposed yet, or the legal ones nearest to them."""
        row = self._rows.nearest_legal(knobs)
        self._defaults.appendleft(self._rows.knobs(row))

    def errors(self) -> list[tuple[Knobs, float]]:
        """Returns the fastest knobs that were told, each with the logarithm of its time over what a model predicted.

        Empty where there is no model.
        """
        return []

    def hear(  # noqa: B027 - a sampler without a model has nothing to correct
        self, neighbours: Sequence[tuple[float, Sequence[tuple[Knobs, float]]]]
    ) -> None:
        """Takes the `errors` of searches of near problems, each with its distance in doublings.

        A sampler without a model learns nothing from them.
        """

    @property
    def remaining(self) -> int:
        """Legal configurations that nobody has proposed yet."""
        return self._rows.remaining

    def ask(self) -> Knobs | None:
        """Returns the next knobs; None where every legal configuration was proposed."""
        while self._defaults:
            knobs = self._defaults.popleft()
            if self._spend(knobs):
                return knobs
        if not self._rows.remaining:
            return None
        return self._propose()

    def reject(
        self, knobs: Mapping[str, Any], rules: Iterable[str], mended: Mapping[str, Any] | None = None
    ) -> None:
        """Takes back knobs that the check refused, with the ids of the rules they break.

        Args:
            mended: The knobs with what the target can repair repaired, legal or not; what replaces the draw is
                sought near them.
        """
        self.draws_rejected.update(set(rules))
        self._refused(dict(knobs), dict(mended or knobs))

    def tell(self, knobs: Mapping[str, Any], value_us: float | None) -> None:
        """Takes the time of `knobs` in microseconds; None where they failed."""
        self._spend(knobs)
        self._learn(dict(knobs), value_us)

    def siblings(self, knobs: Mapping[str, Any]) -> list[Knobs]:
        """Returns what is worth measuring beside a proposal, of what differs in run-time knobs alone.

        They count as proposed. Without a model nothing says what is worth it.
        """
        return []

    def _row_of(self, knobs: Mapping[str, Any]) -> int | None:
        codes = self._rows.encode(knobs)
        return None if codes is None else self._rows.find(codes)

    def expected_gain(self) -> float | None:
        """Returns by what share of the best time the next candidates are expected to lower it.

        None: nothing was told yet, or the sampler has no model that could say it.
        """
        return None

    def _spend(self, knobs: Mapping[str, Any]) -> bool:
        """Marks `knobs` as proposed and returns whether they were legal and not proposed before."""
        row = self._row_of(knobs)
        if row is None or self._rows.is_spent(row):
            return False
        self._rows.spend(row)
        return True

    @abc.abstractmethod
    def _propose(self) -> Knobs:
        """Returns knobs that were not proposed before; at least one legal row is unspent."""

    @abc.abstractmethod
    def _refused(self, knobs: Knobs, mended: Knobs) -> None:
        """Hears of a refused draw."""

    @abc.abstractmethod
    def _learn(self, knobs: Knobs, value_us: float | None) -> None:
        """Hears of a result."""
