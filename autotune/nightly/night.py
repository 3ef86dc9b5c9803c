"""One night: look at the machine, verify what is stored, decide, tune what needs it, and say what happened."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from autotune.bestfile import BestEntry, BestFileWarning, entry_key, read_best
from autotune.nightly.budget import Budget, Clocks
from autotune.nightly.config import NightConfig
from autotune.nightly.decide import decide, page_threshold
from autotune.nightly.files import folder_within
from autotune.nightly.history import closing_record, history_file, problem_record, read_history
from autotune.nightly.meter import NightMeter, UnfitError
from autotune.nightly.prune import compact_history, prune_trials
from autotune.nightly.reference import Tonight, moved, shifts
from autotune.nightly.report import Summary
from autotune.nightly.retuning import Deeds, Retuning
from autotune.nightly.state import Leftover, NightState
from autotune.nightly.stored import renewed, replace_entry, withdrawn
from autotune.nightly.telling import facts_of, last_sentinels, line_of, write_reports
from autotune.nightly.values import Decision, Seen
from autotune.nightly.verification import Verification, mark_of
from autotune.target import load_target


def run_night(config: NightConfig, meter: NightMeter, clocks: Clocks | None = None) -> Summary:
    """Runs a night, or ends one that was cut short, and writes its reports. The caller holds the night's lock.

    Raises:
        UnfitError: The card is not to be measured on.
        AutotuneError: A file cannot be read or written; what was recorded before is kept.
    """
    return Night(config, meter, clocks or Clocks()).run()


class Night:
    """The steps of one night; what is known after each is on the disk before the next."""

    def __init__(self, config: NightConfig, meter: NightMeter, clocks: Clocks) -> None:
        self._config, self._meter, self._clocks = config, meter, clocks
        self._results = config.run.results
        self._target = load_target(config.run.target)
        self._slug = meter.device.slug
        self._path = folder_within(self._results, "best") / f"{self._slug}.json"
        self._history_file = history_file(self._results, self._slug)
        self._state = NightState(self._results, config.name)
        self._warnings: list[str] = []
        self._deeds = Deeds()
        self._budget = Budget(config.minutes, clocks)

    def run(self) -> Summary:
        """Returns what happened; the exit code is the summary's."""
        why = self._meter.unfit()
        if why:
            raise UnfitError(why)
        history = read_history(self._history_file)
        machine, now = self._meter.machine, self._clocks.now()
        left = self._state.leftover(machine, now, history.nights)
        sentinels = left.sentinels if left.night else dict(self._meter.sentinels())
        night = left.night or now.isoformat(timespec="seconds")
        if not left.night:
            self._state.begin(night, machine, sentinels, left.wanted)
        entries = self._entries()
        weights = self._weights()
        tonight = Tonight(
            machine=machine, sentinels=sentinels, history=history, z=page_threshold(len(entries | weights))
        )
        verification = Verification(
            self._meter, self._state, self._budget, entries, self._target, self._config.run.protocol.rounds
        )
        verification.run(left, history)
        decisions = self._decisions(entries, weights, verification, tonight, left)
        seen = verification.seen
        self._apply(entries, seen, decisions, left)
        retuning = Retuning(
            self._config,
            self._meter,
            self._state,
            self._budget,
            self._path,
            self._target,
            entries,
            weights,
            self._deeds,
        )
        remaining = retuning.run(seen, decisions, left)
        unreached = [f"verify {key}" for key in verification.unreached] + [f"tune {key}" for key in remaining]
        summary = self._summary(night, tonight, seen, decisions, unreached, resumed=left.night is not None)
        self._close(summary, entries, seen, remaining)
        return summary

    def _entries(self) -> dict[str, BestEntry]:
        """Returns the sound entries by key; each broken one becomes a warning that names it."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", BestFileWarning)
            found = read_best(self._path)
            entries = dict(found.entries()) if found else {}
        self._warnings += [str(one.message) for one in caught if issubclass(one.category, BestFileWarning)]
        return entries

    def _weights(self) -> dict[str, tuple[Any, float]]:
        """Returns the problems of the run config with their weights, by key."""
        return {
            entry_key(self._target.name, one.problem): (one.problem, one.weight)
            for one in self._config.run.problems
        }

    def _decisions(
        self,
        entries: Mapping[str, BestEntry],
        weights: Mapping[str, Any],
        verification: Verification,
        tonight: Tonight,
        left: Leftover,
    ) -> dict[str, Decision]:
        """Decides about each problem; one that looks moved is first raced in further processes."""
        seen = verification.seen
        known = {key: _decision_from(record) for key, record in left.decided.items() if key in seen}
        open_keys = [key for key in seen if key not in known]
        decisions = {key: decide(key, entries[key], seen[key], tonight) for key in open_keys}
        for _ in range(2):  # a few processes of what is doubted, then more of what still is
            asked = {key: count for key in open_keys if (count := decisions[key].ask)}
            verification.ask_again(asked)
            decisions |= {key: decide(key, entries[key], seen[key], tonight) for key in asked}
        for key in weights:
            if key not in entries:
                decisions[key] = decide(key, None, None, tonight)
        for key, decision in decisions.items():
            self._state.note("decided", key, **_decision_json(decision))
        return known | decisions

    def _apply(
        self,
        entries: dict[str, BestEntry],
        seen: Mapping[str, Seen],
        decisions: Mapping[str, Decision],
        left: Leftover,
    ) -> None:
        """Writes what the verification says into the best file: fresh times, or the withdrawal of what fails."""
        day, machine = self._clocks.now().date().isoformat(), self._meter.machine
        for key, decision in decisions.items():
            entry, found = entries.get(key), seen.get(key)
            if entry is None or found is None:
                continue
            if key in left.decided and left.seen[key][0] != mark_of(entry):  # before the night was cut short
                if decision.verdict == "better":
                    self._deeds.improved.add(key)
                continue
            new = None
            if decision.verdict == "broken":
                new = withdrawn(entry, found, machine, day)
            elif _is_outdated(entry, decision, machine) and found.kernel_us and not found.failure:
                new = renewed(entry, found, machine, day)
            if new is not None and replace_entry(self._path, key, entry, new):
                self._deeds.actions[key] = "withdrawn: XLA answers" if new.config is None else "times renewed"
                if decision.verdict == "better":
                    self._deeds.improved.add(key)

    def _summary(
        self,
        night: str,
        tonight: Tonight,
        seen: Mapping[str, Seen],
        decisions: Mapping[str, Decision],
        unreached: list[str],
        *,
        resumed: bool,
    ) -> Summary:
        history, machine = tonight.history, tonight.machine
        lines = [
            line_of(
                key, decision, seen.get(key), self._deeds.actions.get(key, ""), key in self._deeds.improved
            )
            for key, decision in sorted(decisions.items())
        ]
        before = last_sentinels(history, tonight)
        changed = shifts(tonight.sentinels, before)
        return Summary(
            name=self._config.name,
            night=night,
            machine=machine,
            lines=lines,
            sentinels={name: (us, changed.get(name)) for name, us in tonight.sentinels.items()},
            moved=moved(history.last, machine) if history.last else (),
            left=unreached,
            warnings=list(dict.fromkeys(self._warnings)),
            gpu_s=self._meter.gpu_s,
            wall_s=self._budget.spent_s,
            profile=self._meter.profile.to_json(),
            resumed=resumed,
        )

    def _close(
        self,
        summary: Summary,
        entries: Mapping[str, BestEntry],
        seen: Mapping[str, Seen],
        remaining: Mapping[str, Any],
    ) -> None:
        """Writes the reports, then the history with the line that makes the night count, then clears up."""
        write_reports(self._results, summary)
        today = self._clocks.now().date()
        records = [
            problem_record(
                summary.night,
                today.isoformat(),
                line.key,
                summary.machine,
                **facts_of(line, entries.get(line.key), seen.get(line.key)),
            )
            for line in summary.lines
        ]
        sentinels = {name: time_us for name, (time_us, _) in summary.sentinels.items()}
        closing = closing_record(
            summary.night, today.isoformat(), summary.machine, sentinels, summary.exit_code
        )
        self._history_file.append([*records, closing])
        self._state.end(remaining)
        prune_trials(self._results, self._config.keep_trials_days)
        compact_history(self._history_file, self._config.keep_history_days, today)


def _is_outdated(entry: BestEntry, decision: Decision, machine: Any) -> bool:
    """Returns whether the stored times no longer say what holds tonight; mere drift and noise change nothing."""
    if decision.verdict in ("stale", "better", "regression"):
        return True
    versions = (entry.driver, entry.jax, entry.jaxlib) != (machine.driver, machine.jax, machine.jaxlib)
    return decision.verdict in ("unchanged", "drift") and versions


def _decision_json(decision: Decision) -> dict[str, Any]:
    return {
        "verdict": decision.verdict,
        "reason": decision.reason,
        "retune": decision.retune,
        "gain": decision.gain,
    }


def _decision_from(record: Mapping[str, Any]) -> Decision:
    return Decision(
        verdict=record["verdict"], reason=record["reason"], retune=record["retune"], gain=record["gain"]
    )
