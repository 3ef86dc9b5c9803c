"""What a run left in its results folder, also one that was stopped: how far each problem came, and the answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna

from autotune import machine
from autotune.bestfile import BestEntry, read_best
from autotune.ledger.journal import open_journal
from autotune.ledger.provenance import Provenance
from autotune.ledger.storage import Ledger
from autotune.promotion import entry_of
from autotune.protocol import AUTO, resolved
from autotune.result import Counts, ProblemResult, Winner
from autotune.seam import Failed, MeasureProtocol, Race
from autotune.target import load_target
from autotune.verdict import judge

TARGET = load_target("hopper_matmul")


class RunFolder:
    """The results folder of one run of the real evaluator.

    Args:
        path: As `autotune run --results` was given it.
        device: The target's device that the run was for.
    """

    def __init__(self, path: Path, device: Any) -> None:
        self._path, self._device = path, device

    def answers(self) -> dict[Any, BestEntry]:
        """Returns what the run found, by problem: its best file's entries, and races that it did not come to promote.

        A run confirms and promotes the problems of a batch when all their races have ended; see `unconfirmed`.
        """
        return self._raced() | self._promoted()

    def unconfirmed(self) -> set[Any]:
        """Returns the problems whose answer is a race's winner that was not confirmed on fresh inputs."""
        return set(self._raced()) - set(self._promoted())

    def stages(self, problems: list[Any]) -> Iterator[str]:
        """Yields how far each problem came, a line each."""
        ledgers, promoted = self._ledgers(), self._promoted()
        for problem in problems:
            yield f"{problem.describe()}: {_stage(ledgers.get(problem), problem in promoted)}"

    def cards(self) -> Counter[str]:
        """Returns on which cards the run's records were measured, by UUID."""
        text = "".join(path.read_text(errors="replace") for path in self._journals())
        return Counter(re.findall(r'"card\\*": \\*"(GPU-[^"\\]*)', text))

    def _journals(self) -> list[Path]:
        return sorted((self._path / "trials").glob("*.journal"))

    def _promoted(self) -> dict[Any, BestEntry]:
        found = read_best(self._path / "best" / f"{self._device.slug}.json")
        return {} if found is None else {entry.problem: entry for _, entry in found.entries()}

    def _raced(self) -> dict[Any, BestEntry]:
        winners = {problem: _winner(ledger) for problem, ledger in self._ledgers().items()}
        return {problem: self._entry(problem, winner) for problem, winner in winners.items() if winner}

    def _entry(self, problem: Any, winner: Winner) -> BestEntry:
        result = ProblemResult(
            problem=problem,
            weight=1.0,
            device=self._device,
            protocol=resolved(AUTO, problem, TARGET),
            evaluator="gpu",
            study=None,
            counts=Counts(raw=0, legal=0, rejected={}),
            winner=winner,
        )
        return entry_of(result, machine.toolchain(), TARGET)

    def _ledgers(self) -> dict[Any, Ledger]:
        """Returns the newest study of each journal, by problem, to be read."""
        opened = [_ledger(path) for path in self._journals()]
        return {problem: ledger for one in opened if one for problem, ledger in [one]}


def _ledger(path: Path) -> tuple[Any, Ledger] | None:
    """Returns a journal's problem and study; None where the run was stopped before it had noted what it is of."""
    storage = open_journal(path, print)
    names = [study.study_name for study in storage.get_all_studies()]
    if not names:
        return None
    study = optuna.load_study(study_name=names[-1], storage=storage)
    noted = study.user_attrs.get("provenance")
    if noted is None:
        return None
    # A study does not note its space and its protocol, which only those who record in it need.
    provenance = Provenance(**noted, space={}, protocol=MeasureProtocol())
    return TARGET.problem_from_fields(noted["problem"]), Ledger(study, provenance)


def _winner(ledger: Ledger) -> Winner | None:
    """Returns the winner of the last race that has one; none that failed when it was confirmed."""
    demoted = [knobs for knobs, result in ledger.confirmations() if isinstance(result, Failed)]
    for record in reversed(ledger.races()):
        winner = judge(list(record.finalists), record.result) if isinstance(record.result, Race) else None
        if winner is not None and dict(winner.knobs) not in demoted:
            return winner
    return None


def _stage(ledger: Ledger | None, is_promoted: bool) -> str:
    if is_promoted:
        return "answered"
    if ledger is None:
        return "not begun"
    count = len(ledger.screened())
    if ledger.stopped is None:
        return f"screening, after {count} candidates"
    if not ledger.races():
        return f"{count} candidates screened, the race not ended"
    return "raced, not confirmed"
