"""A winner that is wrong on fresh inputs is demoted, whoever comes next."""

from __future__ import annotations

import dataclasses

from autotune.driver import run
from autotune.ledger.records import pack, unpack
from autotune.seam import Conditions, Confirmed, Failed, Race, combined
from tests.helpers.scripted import (
    ScriptedConfig,
    ScriptedDevice,
    ScriptedEvaluator,
    ScriptedSearch,
    ScriptedTarget,
    legal_knobs,
    measured,
    scripted_stages,
    smooth_time_us,
)

WRONG = Failed(
    reason="wrong", detail="1 of 64 elements of an integer-valued product differ (run 3 on fresh input 9)"
)
FASTEST = sorted(legal_knobs(), key=smooth_time_us)


def tuned(folder, evaluator, **options):
    config = ScriptedConfig(results=folder, search=ScriptedSearch(sampler="exhaustive", candidates=10_000))
    return run(config, ScriptedDevice(), scripted_stages(evaluator), **options).problems[0]


def test_the_winner_is_confirmed_once_and_remembered(tmp_path):
    evaluator = ScriptedEvaluator()
    result = tuned(tmp_path, evaluator)
    assert evaluator.confirmed == [dict(result.winner.knobs)] == [FASTEST[0]]
    again = ScriptedEvaluator()
    assert tuned(tmp_path, again).winner == result.winner
    assert again.confirmed == []


def test_a_wrong_winner_is_demoted_and_the_next_one_races(tmp_path):
    evaluator = ScriptedEvaluator(confirm_fails=lambda knobs: WRONG if knobs == FASTEST[0] else None)
    result = tuned(tmp_path, evaluator)
    assert evaluator.confirmed[0] == FASTEST[0]
    assert evaluator.confirmed[1] == dict(result.winner.knobs)
    assert result.winner.knobs != FASTEST[0]
    assert result.winner.time_us == smooth_time_us(FASTEST[1])
    # Recorded as what it is, and not counted among the measured any more.
    assert result.counts.failed == {"wrong": 1}
    assert result.counts.measured == len(FASTEST) - 1
    again = ScriptedEvaluator()
    repeated = tuned(tmp_path, again)
    assert (again.confirmed, again.races) == ([], [])
    assert (repeated.winner, repeated.counts.failed) == (result.winner, {"wrong": 1})


def test_where_every_winner_is_wrong_none_survives(tmp_path):
    evaluator = ScriptedEvaluator(confirm_fails=lambda knobs: WRONG)
    config = ScriptedConfig(
        results=tmp_path,
        space={name: (FASTEST[0][name],) for name in ScriptedTarget().knobs},
        search=ScriptedSearch(sampler="exhaustive"),
    )
    result = run(config, ScriptedDevice(), scripted_stages(evaluator)).problems[0]
    assert result.winner is None
    assert "wrong: 1 of 64 elements" in str(result.failure).replace("wrong 1", "")


def test_identical_modules_are_demoted_with_the_winner(tmp_path):
    from autotune.confirmation import demoted
    from autotune.verdict import judge

    first = measured({"tile": 1}, [10.0], module="same")
    other = measured({"tile": 3}, [11.0])
    rows = [
        ({"tile": 1}, first),
        ({"tile": 2}, dataclasses.replace(first, duplicate_of=0)),
        ({"tile": 3}, other),
    ]
    from autotune.seam import RaceEntry

    winner = judge([{"tile": 1}], Race(entries=(RaceEntry(finalist=0, result=first),)))
    kept = demoted(rows, winner, WRONG)
    assert [getattr(result, "reason", None) for _, result in kept] == ["wrong", "wrong", None]
    assert kept[0][1].lowered == first.lowered


def test_without_a_gpu_nothing_is_confirmed(tmp_path):
    evaluator = ScriptedEvaluator(kind="replay")
    assert tuned(tmp_path, evaluator).winner is not None
    assert evaluator.confirmed == []


def test_what_is_known_of_the_card_survives_packing():
    conditions = Conditions(
        card="GPU-1",
        sm_mhz=(1980.0, 1965.5),
        clock="spin",
        power_w=512.0,
        temperature_c=61,
        throttle=("sw_power_cap",),
        others=("pid 7 (train)",),
        shared=True,
        vetoes=("Xid 79",),
        unsettled=("SM clock 1000 MHz, 1980 before",),
    )
    one = dataclasses.replace(measured({"a": 1}, [1.0]), conditions=conditions, exact=True, guarded=True)
    assert unpack(pack(one)) == one
    race = Race(entries=(), conditions=dataclasses.replace(conditions, others=None))
    assert unpack(pack(race)) == race
    confirmed = Confirmed(runs=500, error=1e-3, exact_runs=240)
    assert unpack(pack(confirmed)) == confirmed


def test_what_the_card_did_in_several_processes_is_told_as_one():
    first = Conditions(
        card="GPU-1", sm_mhz=(1980.0,), throttle=("sw_power_cap",), others=(), vetoes=("Xid 79",)
    )
    second = Conditions(
        card="GPU-1", sm_mhz=(1500.0,), throttle=("sw_power_cap",), others=("pid 7 (x)",), shared=True
    )
    both = combined([first, None, second])
    assert (both.sm_mhz, both.throttle, both.others) == ((1980.0, 1500.0), ("sw_power_cap",), ("pid 7 (x)",))
    assert (both.vetoes, both.shared) == (("Xid 79",), True)
    assert combined([first, dataclasses.replace(second, others=None)]).others is None
    assert (combined([None, first]), combined([None]), combined([])) == (first, None, None)
