"""The tuning of a night: what needs it, in the order of what it may gain, as far as the budget reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.bestfile import BestEntry
from autotune.nightly.budget import Budget
from autotune.nightly.config import NightConfig, variants_of
from autotune.nightly.meter import NightMeter
from autotune.nightly.state import Leftover, NightState
from autotune.nightly.values import Decision, Seen
from autotune.promotion import promote


@dataclass(slots=True)
class Deeds:
    """What a night did about its problems.

    Attributes:
        actions: In words, by key.
        improved: Keys whose answer got better.
    """

    actions: dict[str, str] = field(default_factory=dict)
    improved: set[str] = field(default_factory=set)


class Retuning:
    """Tunes problems and promotes what is better.

    Args:
        path: Of the best file.
        entries: The stored winners by key.
        weights: Problem and weight of the run config, by key.
        deeds: Gets what was done.
    """

    def __init__(
        self,
        config: NightConfig,
        meter: NightMeter,
        state: NightState,
        budget: Budget,
        path: Path,
        target: Any,
        entries: Mapping[str, BestEntry],
        weights: Mapping[str, tuple[Any, float]],
        deeds: Deeds,
    ) -> None:
        self._config, self._meter, self._state, self._budget = config, meter, state, budget
        self._path, self._target = path, target
        self._entries, self._weights, self._deeds = entries, weights, deeds

    def run(
        self, seen: Mapping[str, Seen], decisions: Mapping[str, Decision], left: Leftover
    ) -> dict[str, dict[str, Any]]:
        """Tunes what needs it, longest expected gain first; returns what the budget did not reach."""
        wanted = {
            key: dict(facts)
            for key, facts in left.wanted.items()
            if key in self._entries or key in self._weights
        }
        for key, decision in decisions.items():
            if decision.retune:
                wanted[key] = {"gain": decision.gain, "reason": decision.reason}
        for key, record in left.done.items():
            wanted.pop(key, None)
            self._deeds.actions[key] = record["action"]
            if record["improved"]:
                self._deeds.improved.add(key)
        gains = {key: self._gain_us(key, facts["gain"], seen) for key, facts in wanted.items()}
        for key in sorted(wanted, key=lambda key: (-gains[key], key)):
            if self._budget.is_late:
                break
            self._tune(key, is_begun=key in left.began)
            del wanted[key]
        return wanted

    def _tune(self, key: str, *, is_begun: bool) -> None:
        stored = self._entries.get(key)
        problem, weight = self._weights.get(key) or (self._entries[key].problem, 1.0)
        knobs = stored.config.to_knobs() if stored is not None and stored.config is not None else None
        offered = self._target.space(problem, self._meter.device, {}).knobs
        space = variants_of(self._config, list(self._entries.values()), offered)
        self._state.note("began", key)
        result = self._meter.retune(
            problem,
            weight,
            knobs,
            space,
            fresh=not is_begun,  # a study of another night says nothing of tonight's toolchain and card
            seconds=min(self._config.run.search.seconds, max(1.0, self._budget.left_s)),
        )
        improved = False
        if result.winner is None:
            action = f"tuned again: {result.failure or 'nothing measured'}"
        else:
            promotion = promote(self._path.parent, result, self._meter.toolchain, target=self._target.name)
            improved = promotion.written and (stored is None or dict(result.winner.knobs) != knobs)
            written = "written" if promotion.written else "kept what was there"
            action = f"tuned again: {written} ({promotion.reason})"
        self._deeds.actions[key] = action
        if improved:
            self._deeds.improved.add(key)
        self._state.note("done", key, action=action, improved=improved)

    def _gain_us(self, key: str, gain: float, seen: Mapping[str, Seen]) -> float:
        """Returns microseconds that tuning may gain over the workload."""
        entry = self._entries.get(key)
        weight = self._weights[key][1] if key in self._weights else 1.0
        time_us = seen[key].kernel_median_us if key in seen else None
        if time_us is None and entry is not None:
            time_us = entry.kernel_us or entry.xla_us
        if time_us is None:
            rates = [each.problem.flops / each.kernel_us for each in self._entries.values() if each.kernel_us]
            middle = sorted(rates)[len(rates) // 2] if rates else 5e8
            time_us = self._weights[key][0].flops / middle
        return weight * gain * time_us
