"""A scripted target that predicts times, so that its search is guided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.helpers.scripted import ScriptedSpace, ScriptedTarget, smem_rule, smooth_time_us


class ModelledSpace(ScriptedSpace):
    """A space whose target predicts the times of `model_us`."""

    def __init__(
        self,
        knobs: Mapping[str, tuple[Any, ...]],
        rule: Callable[[Mapping[str, Any]], str | None],
        model_us: Callable[[Mapping[str, Any]], float],
    ) -> None:
        super().__init__(knobs, rule)
        self._model_us = model_us

    def predicted_us(self, codes: np.ndarray) -> np.ndarray:
        values = list(self.knobs.items())
        rows = ({name: of[code] for (name, of), code in zip(values, row)} for row in codes.tolist())
        return np.array([self._model_us(knobs) for knobs in rows])


class ModelledTarget(ScriptedTarget):
    """Predicts what `model_us` says of a problem and knobs."""

    def __init__(
        self,
        model_us: Callable[[Any, Mapping[str, Any]], float] = lambda problem, knobs: smooth_time_us(knobs),
    ) -> None:
        super().__init__(smem_rule)
        self._model_us = model_us

    def space(self, problem: Any, device: Any, narrowing: Mapping[str, Any]) -> ModelledSpace:
        knobs = {**self.knobs, **{name: tuple(values) for name, values in narrowing.items()}}
        return ModelledSpace(knobs, self.rule, lambda one: self._model_us(problem, one))
