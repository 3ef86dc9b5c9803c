"""Trials of a study as pandas frames. Derived from the storage each time, never stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.ledger.records import unpack
from autotune.seam import Measured, Race

if TYPE_CHECKING:
    import optuna
    import pandas
    from optuna.trial import FrozenTrial

_STATUS = {"COMPLETE": "measured", "FAIL": "failed", "PRUNED": "lowered"}
_SCREEN_COLUMNS = (
    "number", "status", "time_us", "reason", "detail", "digest", "duplicate_of", "error", "poisoned",
    "smem_bytes", "lower_s", "compile_s", "samples_us", "l2", "session", "spent_s", "date",
)  # fmt: skip
_RACE_COLUMNS = (
    "number",
    "lane",
    "formulation",
    "status",
    "time_us",
    "reason",
    "samples_us",
    "knobs",
    "date",
)


def trials_frame(study: optuna.Study) -> pandas.DataFrame:
    """Returns one row a candidate: what is known of it, then one column a knob.

    Times are in microseconds, `lower_s` and `compile_s` in seconds. A candidate without a time has a missing
    `time_us`, never infinity. `samples_us` holds a tuple.
    """
    import pandas

    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.user_attrs.get("kind") == "screen"]
    knob_names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    rows = [_screen_row(trial) for trial in trials]
    return pandas.DataFrame(rows, columns=[*_SCREEN_COLUMNS, *knob_names])


def races_frame(study: optuna.Study) -> pandas.DataFrame:
    """Returns one row a lane of each race; `lane` is the finalist's index, missing for the rival."""
    import pandas

    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.user_attrs.get("kind") == "race"]
    rows = [row for trial in trials for row in _race_rows(trial)]
    return pandas.DataFrame(rows, columns=list(_RACE_COLUMNS))


def _screen_row(trial: FrozenTrial) -> dict[str, Any]:
    attributes, packed = trial.user_attrs, trial.user_attrs["result"]
    lowered, timing = packed.get("lowered") or {}, packed.get("timing") or {}
    row = {
        name: attributes.get(name) for name in ("reason", "detail", "digest", "session", "spent_s", "date")
    }
    row |= {name: packed.get(name) for name in ("duplicate_of", "error", "poisoned")}
    row |= {name: lowered.get(name) for name in ("smem_bytes", "lower_s", "compile_s")}
    row |= {
        "number": trial.number,
        "status": _STATUS[trial.state.name],
        "time_us": trial.value,
        "samples_us": tuple(timing["samples_us"]) if timing else None,
        "l2": timing.get("l2"),
    }
    return row | trial.params


def _race_rows(trial: FrozenTrial) -> list[dict[str, Any]]:
    race, finalists = unpack(trial.user_attrs["result"]), trial.user_attrs["finalists"]
    if not isinstance(race, Race):
        return []
    rows = []
    for lane in race.entries:
        row = {"number": trial.number, "lane": lane.finalist, "formulation": lane.formulation}
        row |= {
            "knobs": None if lane.finalist is None else finalists[lane.finalist],
            "date": trial.user_attrs["date"],
        }
        if isinstance(lane.result, Measured):
            timing = lane.result.timing
            row |= {"status": "measured", "time_us": timing.median_us, "samples_us": timing.samples_us}
        else:
            row |= {"status": "failed", "reason": getattr(lane.result, "reason", None)}
        rows.append(row)
    return rows
