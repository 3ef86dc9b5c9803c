"""How the benchmark reads the races that must tie, on samples worked out by hand."""

from __future__ import annotations

import pytest

from autotune.seam import Race, RaceEntry
from benchmarks.honest_target import AGAIN
from benchmarks.race_honesty import honest_row, passes_of
from tests.helpers.scripted import measured


def lanes(session, twins=(10.0, 10.0), plain=12.0, again=12.0):
    times = {0: twins[0], 1: twins[1], "plain": plain, AGAIN: again}
    return [
        RaceEntry(
            finalist=name if isinstance(name, int) else None,
            formulation=None if isinstance(name, int) else name,
            result=measured({"lane": name}, [time_us] * 6),
            session=session,
        )
        for name, time_us in times.items()
    ]


def test_race_number_p_is_made_of_pass_p_of_each_process():
    # Three processes, each with two passes; sessions are numbered from the process's own.
    processes = [Race(entries=(*lanes(n, plain=12.0 + n), *lanes(n + 1, plain=20.0 + n))) for n in range(3)]
    first, second = passes_of(processes)
    plains = [
        [lane.result.timing.samples_us[0] for lane in race.entries if lane.formulation == "plain"]
        for race in (first, second)
    ]
    assert plains == [[12.0, 13.0, 14.0], [20.0, 21.0, 22.0]]
    assert [lane.session for lane in second.entries] == [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize(
    ("changes", "twins", "xla"),
    [
        ({}, True, True),
        ({"twins": (10.0, 10.04)}, True, True),
        ({"twins": (10.0, 10.2)}, False, True),
        # Either of both may be the one that is told to be faster.
        ({"again": 12.2}, True, False),
        ({"again": 11.8}, True, False),
        ({"again": 12.05}, True, True),
    ],
)
def test_twins_and_xla_against_xla_tie_within_half_a_percent(changes, twins, xla):
    row = honest_row(passes_of([Race(entries=tuple(lanes(0, **changes)))])[0])
    assert (row["twins_tied"], row["xla_tied"]) == (twins, xla)
