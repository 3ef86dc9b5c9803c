"""One study: its trials as they were recorded, and the recording of new ones."""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.exceptions import DuplicatedStudyError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.errors import InputError
from autotune.ledger.database import answering, open_url
from autotune.ledger.journal import open_journal
from autotune.ledger.provenance import Provenance
from autotune.ledger.records import Result, digest_of, pack, unpack
from autotune.seam import Confirmed, Failed, Measured, Race

Knobs = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenRecord:
    """One candidate as it was recorded.

    Attributes:
        number: The trial's number in the study.
        knobs: The configuration.
        result: What became of it.
    """

    number: int
    knobs: Knobs
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceRecord:
    """One race as it was recorded; `finalists[i]` is the candidate whose entries carry the index i."""

    number: int
    finalists: tuple[Knobs, ...]
    rounds: int
    result: Race | Failed


class Ledger:
    """An open study. Each candidate and each race is one finished trial, written with one append.

    Attributes:
        study: The Optuna study; read it, but record through this class.
        name: The study's name.
        session: Marks the trials that this process records.
        spent_s: Seconds of screening that earlier sessions put into the study.
    """

    def __init__(self, study: optuna.Study, provenance: Provenance) -> None:
        self.study = study
        self.name = study.study_name
        self.session = uuid.uuid4().hex[:12]
        self._distributions = {
            name: CategoricalDistribution(tuple(values)) for name, values in provenance.space.items()
        }
        self._versions = {tool: version for tool, version in provenance.toolchain.items() if version}
        self._seen = 0
        self.spent_s = max([0.0, study.user_attrs.get("spent_s", 0.0), *self._spent_by_trials()])

    def _spent_by_trials(self) -> list[float]:
        return [trial.user_attrs.get("spent_s", 0.0) for trial in self.study.get_trials(deepcopy=False)]

    def screened(self) -> list[ScreenRecord]:
        """Returns every recorded candidate, oldest first; later calls to `news` start after these."""
        trials = self.study.get_trials(deepcopy=False)
        self._seen = len(trials)
        return [_screen_record(trial) for trial in trials if _kind(trial) == "screen"]

    def news(self) -> list[ScreenRecord]:
        """Returns the candidates that other processes recorded since the last call."""
        trials = self.study.get_trials(deepcopy=False)[self._seen :]
        self._seen += len(trials)
        return [
            _screen_record(trial)
            for trial in trials
            if _kind(trial) == "screen" and trial.user_attrs.get("session") != self.session
        ]

    def races(self) -> list[RaceRecord]:
        """Returns every recorded race, oldest first."""
        trials = self.study.get_trials(deepcopy=False)
        return [_race_record(trial) for trial in trials if _kind(trial) == "race"]

    def record_screen(self, knobs: Mapping[str, Any], result: Result, spent_s: float) -> None:
        """Records one candidate.

        Args:
            knobs: Values of the study's space.
            result: Measured is kept with its score as the trial's value; a failure fails the trial; a candidate
                that was only lowered has no time and is kept as pruned.
            spent_s: Seconds of screening so far, over all sessions.
        """
        attributes = {"kind": "screen", "digest": digest_of(result), "spent_s": spent_s}
        if isinstance(result, Failed):
            attributes |= {"reason": result.reason, "detail": result.detail}
        value = result.timing.score_us if isinstance(result, Measured) else None
        state = {Measured: TrialState.COMPLETE, Failed: TrialState.FAIL}.get(type(result), TrialState.PRUNED)
        self._add(state, value, knobs, attributes, result)

    def record_race(
        self,
        finalists: Sequence[Mapping[str, Any]],
        rounds: int,
        result: Race | Failed,
        winner: int | None,
        time_us: float,
    ) -> None:
        """Records a race as a trial of its own, since a finished trial refuses new attributes.

        Args:
            finalists: The candidates, in the order of the race's indices.
            rounds: Rounds that were asked for.
            result: The lanes, or why there are none.
            winner: Index of the fastest finalist; None where no finalist was measured. Its knobs and its median
                `time_us`, in microseconds, become the trial's own.
            time_us: Ignored without a winner.
        """
        attributes: dict[str, Any] = {
            "kind": "race",
            "finalists": [dict(knobs) for knobs in finalists],
            "raced": self._numbers(finalists),
            "rounds": rounds,
        }
        if isinstance(result, Failed):
            attributes |= {"reason": result.reason, "detail": result.detail}
        if winner is None:
            self._add(TrialState.FAIL, None, {}, attributes, result)
        else:
            self._add(TrialState.COMPLETE, time_us, finalists[winner], attributes, result)

    def record_confirmation(self, knobs: Mapping[str, Any], result: Confirmed | Failed) -> None:
        """Records how a race's winner did on fresh inputs, as a trial of its own that has no value."""
        state = TrialState.FAIL if isinstance(result, Failed) else TrialState.PRUNED
        self._add(state, None, {}, {"kind": "confirm", "knobs": dict(knobs)}, result)

    def confirmations(self) -> list[tuple[Knobs, Confirmed | Failed]]:
        """Returns every recorded confirmation with its configuration, oldest first."""
        trials = self.study.get_trials(deepcopy=False)
        return [
            (dict(trial.user_attrs["knobs"]), _unpacked(trial))
            for trial in trials
            if _kind(trial) == "confirm"
        ]

    @property
    def stopped(self) -> dict[str, Any] | None:
        """Why the last screening that came to its end ended, as it was given to `finish_screening`."""
        return self.study.user_attrs.get("stopped")

    def finish_screening(self, spent_s: float, stopped: Mapping[str, Any] | None = None) -> None:
        """Notes the seconds that screening took, also those after its last record, and why it ended."""
        self.spent_s = max(self.spent_s, spent_s)
        self.study.set_user_attr("spent_s", self.spent_s)
        self.study.set_user_attr("stopped", dict(stopped) if stopped else None)

    def _numbers(self, finalists: Sequence[Mapping[str, Any]]) -> list[int]:
        wanted = [dict(knobs) for knobs in finalists]
        numbers: dict[int, int] = {}
        for trial in self.study.get_trials(deepcopy=False):
            if _kind(trial) == "screen" and trial.params in wanted:
                numbers.setdefault(wanted.index(trial.params), trial.number)
        return [numbers[index] for index in sorted(numbers)]

    def _add(
        self,
        state: TrialState,
        value: float | None,
        knobs: Mapping[str, Any],
        attributes: Mapping[str, Any],
        result: Result,
    ) -> None:
        attributes = {
            **{name: given for name, given in attributes.items() if given is not None},
            "result": pack(result),
            "session": self.session,
            "versions": self._versions,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        distributions = {name: self._distributions[name] for name in knobs}
        with answering():
            self.study.add_trial(
                create_trial(
                    state=state,
                    value=value,
                    params=dict(knobs),
                    distributions=distributions,
                    user_attrs=attributes,
                )
            )


def open_ledger(
    provenance: Provenance,
    *,
    results: Path,
    storage: str | None = None,
    fresh: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Ledger:
    """Opens the study of `provenance`, or creates it.

    Args:
        provenance: Names the study.
        results: Folder whose trials/ holds one journal a study. Unused with `storage`.
        storage: An Optuna storage URL instead of the journal.
        fresh: Start a new study beside the old one, which stays whole; from then on the new one is opened.
        say: Hears of anything that was mended.

    Raises:
        InputError: The storage cannot be opened.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    base = provenance.study_name()
    opened = open_journal(journal_path(results, base), say) if storage is None else open_url(storage)
    with answering():
        generation = _newest_generation(opened, base)
        if fresh and generation is not None:
            study = _create_next(opened, base, generation)
        else:
            name = _generation_name(base, generation or 1)
            study = optuna.create_study(
                storage=opened, study_name=name, direction="minimize", load_if_exists=True
            )
        ledger = Ledger(study, provenance)
        if "provenance" not in study.user_attrs:
            study.set_user_attr("provenance", _described(provenance))
    return ledger


def journal_path(results: Path, study_name: str) -> Path:
    """Returns where the journal of a study lies. One file a study keeps opening it as cheap as its own size."""
    return Path(results) / "trials" / f"{study_name}.journal"


def _generation_name(base: str, generation: int) -> str:
    return base if generation == 1 else f"{base}.{generation}"


def _newest_generation(storage: BaseStorage, base: str) -> int | None:
    pattern = re.compile(rf"{re.escape(base)}(?:\.(\d+))?")
    found = [pattern.fullmatch(study.study_name) for study in storage.get_all_studies()]
    return max((int(match[1] or 1) for match in found if match), default=None)


def _create_next(storage: BaseStorage, base: str, generation: int) -> optuna.Study:
    while True:
        generation += 1
        try:
            return optuna.create_study(
                storage=storage, study_name=_generation_name(base, generation), direction="minimize"
            )
        except DuplicatedStudyError:  # another process started over in the same moment
            continue


def _described(provenance: Provenance) -> dict[str, Any]:
    return {
        "target": provenance.target,
        "title": provenance.title,
        "problem": dict(provenance.problem),
        "device": dict(provenance.device),
        "evaluator": provenance.evaluator,
        "toolchain": dict(provenance.toolchain),
        "sources": provenance.sources,
    }


def _kind(trial: FrozenTrial) -> str | None:
    return trial.user_attrs.get("kind")


def _screen_record(trial: FrozenTrial) -> ScreenRecord:
    return ScreenRecord(number=trial.number, knobs=dict(trial.params), result=_unpacked(trial))


def _race_record(trial: FrozenTrial) -> RaceRecord:
    result = _unpacked(trial)
    assert isinstance(result, Race | Failed)
    return RaceRecord(
        number=trial.number,
        finalists=tuple(dict(knobs) for knobs in trial.user_attrs["finalists"]),
        rounds=trial.user_attrs["rounds"],
        result=result,
    )


def _unpacked(trial: FrozenTrial) -> Result:
    try:
        return unpack(trial.user_attrs["result"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"trial {trial.number} of the study holds no result ({type(error).__name__}: {error}); "
            "use --fresh to start over"
        ) from error
