"""One night: look at the machine, verify what is stored, decide, tune what needs it, and say what happened."""

from __future__ import annotations

import datetime
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.bestfile import BestEntry, BestFileWarning, entry_key, read_best
from autotune.nightly.config import NightConfig, variants_of
from autotune.nightly.decide import decide, page_threshold
from autotune.nightly.files import folder_within
from autotune.nightly.history import History, closing_record, history_file, problem_record, read_history
from autotune.nightly.meter import Check, NightMeter, UnfitError
from autotune.nightly.prune import compact_history, prune_trials
from autotune.nightly.reference import Tonight, moved, shifts
from autotune.nightly.report import Summary
from autotune.nightly.state import Leftover, NightState
from autotune.nightly.stored import renewed, replace_entry, withdrawn
from autotune.nightly.telling import facts_of, last_sentinels, line_of, write_reports
from autotune.nightly.values import Decision, Seen, fingerprint
from autotune.promotion import promote
from autotune.target import load_target

CONFIRM_ROUNDS = 100  # of a winner that looks slower, or better, than it was
NOT_RUN = ("lower", "compile", "launch", "timeout", "crash", "memory", "error")  # worth a second try, alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Time, so that tests can pass their own."""

    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC)
    monotonic: Callable[[], float] = time.monotonic


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
        self._actions: dict[str, str] = {}
        self._improved: set[str] = set()
        self._unreached: list[str] = []
        self._began_s = clocks.monotonic()
        self._deadline_s = self._began_s + config.minutes * 60

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
        seen = self._verified(entries, left, history)
        decisions = self._decisions(entries, weights, seen, tonight, left)
        self._apply(entries, seen, decisions, left)
        remaining = self._retune(entries, weights, seen, decisions, left)
        summary = self._summary(night, tonight, seen, decisions, remaining, resumed=left.night is not None)
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

    def _verified(
        self, entries: Mapping[str, BestEntry], left: Leftover, history: History
    ) -> dict[str, Seen]:
        """Verifies all winners, those first that were verified longest ago; one that fails is tried again alone."""
        seen = {
            key: known
            for key, (mark, known) in left.seen.items()
            if key in entries and (mark == _mark(entries[key]) or key in left.decided)
        }
        order = {key: (records[-1]["night"] if records else "") for key, records in history.problems.items()}
        todo = sorted(
            (key for key in entries if key not in seen),
            key=lambda key: (order.get(key, ""), key in left.verified, key),
        )
        self._measure([key for key in todo if self._is_legal(key, entries, seen)], entries, seen)
        again = [k for k, one in seen.items() if k in todo and one.failure and one.failure[0] in NOT_RUN]
        for key in again:
            self._measure([key], entries, seen)
        self._unreached = [key for key in todo if key not in seen]
        return seen

    def _is_legal(self, key: str, entries: Mapping[str, BestEntry], seen: dict[str, Seen]) -> bool:
        entry = entries[key]
        broken = entry.config is not None and self._target.check(
            entry.problem, entry.config, self._meter.device
        )
        if broken:
            detail = f"rule {broken[0].rule}: {getattr(broken[0], 'message', '')}"
            seen[key] = Seen(failure=("illegal", detail))
            self._state.note_seen(key, _mark(entry), seen[key])
        return not broken

    def _measure(
        self,
        keys: list[str],
        entries: Mapping[str, BestEntry],
        seen: dict[str, Seen],
        rounds: int | None = None,
    ) -> None:
        """Puts what the meter sees into `seen`; with `rounds` on top of what was seen."""
        if not keys or self._is_late:
            return
        checks = [Check(key=key, entry=entries[key]) for key in keys]
        stream = self._meter.verify(checks, rounds or self._config.run.protocol.rounds)
        for key, found in stream:
            seen[key] = seen[key].plus(found) if rounds is not None else found
            self._state.note_seen(key, _mark(entries[key]), seen[key])
            if self._is_late:
                break

    def _decisions(
        self,
        entries: Mapping[str, BestEntry],
        weights: Mapping[str, Any],
        seen: dict[str, Seen],
        tonight: Tonight,
        left: Leftover,
    ) -> dict[str, Decision]:
        """Decides about each problem; one that looks moved is first measured longer."""
        known = {key: _decision_from(record) for key, record in left.decided.items() if key in seen}
        open_keys = [key for key in seen if key not in known]
        decisions = {key: decide(key, entries[key], seen[key], tonight) for key in open_keys}
        doubted = [key for key in open_keys if _is_doubted(decisions[key], seen[key])]
        self._measure(doubted, entries, seen, CONFIRM_ROUNDS)
        decisions |= {key: decide(key, entries[key], seen[key], tonight) for key in doubted}
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
            if key in left.decided and left.seen[key][0] != _mark(entry):  # before the night was cut short
                if decision.verdict == "better":
                    self._improved.add(key)
                continue
            new = None
            if decision.verdict == "broken":
                new = withdrawn(entry, found, machine, day)
            elif _is_outdated(entry, decision, machine) and found.kernel_us and not found.failure:
                new = renewed(entry, found, machine, day)
            if new is not None and replace_entry(self._path, key, entry, new):
                self._actions[key] = "withdrawn: XLA answers" if new.config is None else "times renewed"
                if decision.verdict == "better":
                    self._improved.add(key)

    def _retune(
        self,
        entries: Mapping[str, BestEntry],
        weights: Mapping[str, tuple[Any, float]],
        seen: Mapping[str, Seen],
        decisions: Mapping[str, Decision],
        left: Leftover,
    ) -> dict[str, dict[str, Any]]:
        """Tunes what needs it, longest expected gain first; returns what the budget did not reach."""
        wanted = {key: dict(facts) for key, facts in left.wanted.items() if key in entries or key in weights}
        for key, decision in decisions.items():
            if decision.retune:
                wanted[key] = {"gain": decision.gain, "reason": decision.reason}
        for key, record in left.done.items():
            wanted.pop(key, None)
            self._actions[key] = record["action"]
            if record["improved"]:
                self._improved.add(key)
        gains = {
            key: self._gain_us(key, facts["gain"], entries, weights, seen) for key, facts in wanted.items()
        }
        for key in sorted(wanted, key=lambda key: (-gains[key], key)):
            if self._is_late:
                break
            problem, weight = weights.get(key) or (entries[key].problem, 1.0)
            self._tune(key, problem, weight, entries, is_begun=key in left.began)
            del wanted[key]
        return wanted

    def _tune(
        self, key: str, problem: Any, weight: float, entries: Mapping[str, BestEntry], *, is_begun: bool
    ) -> None:
        stored = entries.get(key)
        knobs = stored.config.to_knobs() if stored is not None and stored.config is not None else None
        offered = self._target.space(problem, self._meter.device, {}).knobs
        space = variants_of(self._config, list(entries.values()), offered)
        self._state.note("began", key)
        result = self._meter.retune(
            problem,
            weight,
            knobs,
            space,
            fresh=not is_begun,  # a study of another night says nothing of tonight's toolchain and card
            seconds=min(self._config.run.search.seconds, max(1.0, self._left_s)),
        )
        improved = False
        if result.winner is None:
            action = f"tuned again: {result.failure or 'nothing measured'}"
        else:
            promotion = promote(self._path.parent, result, self._meter.toolchain, target=self._target.name)
            improved = promotion.written and (stored is None or dict(result.winner.knobs) != knobs)
            written = "written" if promotion.written else "kept what was there"
            action = f"tuned again: {written} ({promotion.reason})"
        self._actions[key] = action
        if improved:
            self._improved.add(key)
        self._state.note("done", key, action=action, improved=improved)

    def _gain_us(
        self,
        key: str,
        gain: float,
        entries: Mapping[str, BestEntry],
        weights: Mapping[str, tuple[Any, float]],
        seen: Mapping[str, Seen],
    ) -> float:
        """Returns microseconds that tuning may gain over the workload."""
        entry, weight = entries.get(key), weights[key][1] if key in weights else 1.0
        time_us = seen[key].kernel_median_us if key in seen else None
        if time_us is None and entry is not None:
            time_us = entry.kernel_us or entry.xla_us
        if time_us is None:
            problem = weights[key][0]
            rates = [e.problem.flops / e.kernel_us for e in entries.values() if e.kernel_us]
            time_us = problem.flops / (sorted(rates)[len(rates) // 2] if rates else 5e8)
        return weight * gain * time_us

    def _summary(
        self,
        night: str,
        tonight: Tonight,
        seen: Mapping[str, Seen],
        decisions: Mapping[str, Decision],
        remaining: Mapping[str, Any],
        *,
        resumed: bool,
    ) -> Summary:
        history, machine = tonight.history, tonight.machine
        lines = [
            line_of(key, decision, seen.get(key), self._actions.get(key, ""), key in self._improved)
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
            left=[f"verify {key}" for key in self._unreached] + [f"tune {key}" for key in remaining],
            warnings=list(dict.fromkeys(self._warnings)),
            gpu_s=self._meter.gpu_s,
            wall_s=self._clocks.monotonic() - self._began_s,
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

    @property
    def _left_s(self) -> float:
        return self._deadline_s - self._clocks.monotonic()

    @property
    def _is_late(self) -> bool:
        return self._left_s <= 0


def _mark(entry: BestEntry) -> str:
    """Returns what tells whether an entry is the one that was verified."""
    knobs = entry.config.to_knobs() if entry.config is not None else None
    return f"{fingerprint(knobs)} {entry.digest} {entry.date} {entry.kernel_us} {entry.xla_us}"


def _is_doubted(decision: Decision, seen: Seen) -> bool:
    return not seen.failure and (decision.doubtful or decision.verdict in ("suspect", "regression", "better"))


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
