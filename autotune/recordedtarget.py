"""A target whose space is what was recorded: a replay must not propose what nobody measured.

The rules of a kernel family change with its kernel, and a recorded space does not: what is legal today and was not
recorded is rejected here, under a rule of its own, and what was recorded and is illegal today stays rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.evaluate import RecordedSpace
from autotune.target import Target

UNRECORDED = "unrecorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrecorded:
    """The rejection of a legal configuration that the recording lacks."""

    value: object
    limit: object
    rule: str = UNRECORDED
    message: str = "legal, but not measured when the space was recorded"
    stage: str = "run"
    exception: str | None = None

    def line(self) -> str:
        return f"{self.rule}: {self.message} (is {self.value}, allowed: {self.limit})"


class RecordedTarget:
    """`target`, with the space of its problems cut down to the rows of `recorded`."""

    def __init__(self, target: Target, recorded: RecordedSpace):
        self._target = target
        self._recorded = recorded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def space(self, problem: Any, device: Any, narrowing: Mapping[str, Sequence[Any]]) -> RecordedOnly:
        return RecordedOnly(self._target.space(problem, device, narrowing), self._recorded)

    def default_configs(self, problem: Any, device: Any) -> list[dict[str, Any]]:
        choices = self._target.default_configs(problem, device)
        return [knobs for knobs in choices if self._recorded.row(knobs) is not None]

    def check(self, problem: Any, config: Any, device: Any) -> Sequence[Any]:
        rejections = self._target.check(problem, config, device)
        if rejections or self._recorded.row(config.to_knobs()) is not None:
            return rejections
        return (
            Unrecorded(
                value=self._recorded.date, limit=f"{len(self._recorded.rows)} recorded configurations"
            ),
        )


class RecordedOnly:
    """A space whose legal set holds the recorded configurations only."""

    def __init__(self, space: Any, recorded: RecordedSpace):
        self.knobs: dict[str, tuple[Any, ...]] = space.knobs
        self.raw_size: int = space.raw_size
        self._legal = RecordedRows(space.legal(), recorded)
        for name in ("predicted_us", "twins"):  # what a target offers beyond what it must
            if hasattr(space, name):
                setattr(self, name, getattr(space, name))

    def legal(self) -> RecordedRows:
        return self._legal


class RecordedRows:
    """The rows of a legal set that were recorded.

    Attributes:
        codes, rejected, examples: As of a target's legal set; what was not recorded counts as rejected.
    """

    def __init__(self, legal: Any, recorded: RecordedSpace):
        is_recorded = np.array(
            [recorded.row(legal.knobs(row)) is not None for row in range(legal.size)], dtype=bool
        )
        self._legal = legal
        self._rows = np.flatnonzero(is_recorded)
        self.codes: np.ndarray = legal.codes[self._rows]
        self.rejected: dict[str, int] = dict(legal.rejected)
        self.examples: dict[str, dict[str, Any]] = dict(legal.examples)
        missing = np.flatnonzero(~is_recorded)
        if len(missing):
            self.rejected[UNRECORDED] = len(missing)
            self.examples[UNRECORDED] = legal.knobs(int(missing[0]))

    @property
    def size(self) -> int:
        return len(self._rows)

    def knobs(self, row: int) -> dict[str, Any]:
        return self._legal.knobs(int(self._rows[row]))
