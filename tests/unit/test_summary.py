"""The final table, the census, and the record mode's hand-over."""

from __future__ import annotations

import pytest

from autotune.census import census
from autotune.driver import run
from autotune.errors import NothingLegalError, NothingSurvivedError
from autotune.recording import record
from autotune.seam import Failed, Measured
from autotune.summary import compact, table
from autotune.textable import aligned, fitted
from tests.helpers.scripted import (
    ScriptedConfig,
    ScriptedDevice,
    ScriptedEvaluator,
    ScriptedProblem,
    ScriptedSearch,
    ScriptedTarget,
    ScriptedWeighted,
    legal_knobs,
    scripted_stages,
)

DEVICE = ScriptedDevice()


def everything(folder, **changes):
    search = ScriptedSearch(sampler="exhaustive", candidates=1000)
    return ScriptedConfig(results=folder, search=search, **changes)


def row_of(text, title):
    return next(line for line in text.splitlines() if line.startswith(title))


def test_the_table_shows_config_time_rate_and_ratio(tmp_path):
    text = table(run(everything(tmp_path), DEVICE, scripted_stages(ScriptedEvaluator(rival_us=12.0))))
    row = row_of(text, "4096 cubed ")
    # 2 * 4096**3 / 10 us = 13,743.9 TFLOP/s
    assert row.split("  ")[1] == "tile_m=128 tile_n=256 stages=4 order=rows persistent=true"
    assert row.split()[-7:] == ["13743.9", "12.00", "1.200", "1.200", "-", "1.200", "kernel"]
    assert "212 of 320 configurations legal; rejected: smem 80, threads 28; 212 measured" in text


def test_the_table_says_xla_where_it_won_or_was_not_measured(tmp_path):
    lost = table(run(everything(tmp_path / "a"), DEVICE, scripted_stages(ScriptedEvaluator(rival_us=9.0))))
    assert row_of(lost, "4096 cubed ").endswith("XLA")
    alone = table(run(everything(tmp_path / "b"), DEVICE, scripted_stages(ScriptedEvaluator(rival_us=None))))
    assert row_of(alone, "4096 cubed ").endswith("kernel (XLA not measured)")


def test_knobs_that_all_winners_share_are_written_once(tmp_path):
    problems = tuple(ScriptedWeighted(problem=ScriptedProblem(m=m)) for m in (1024, 2048))
    text = table(run(everything(tmp_path, problems=problems), DEVICE, scripted_stages(ScriptedEvaluator())))
    assert "in every config: tile_m=128 tile_n=256 stages=4 order=rows persistent=true" in text
    assert row_of(text, "1024 cubed ").split()[2] == "default"


def test_a_problem_without_a_winner_keeps_its_row(tmp_path):
    evaluator = ScriptedEvaluator(fails=lambda knobs: Failed(reason="crash", detail="signal 6"))
    text = table(run(everything(tmp_path), DEVICE, scripted_stages(evaluator)))
    assert "none survived" in row_of(text, "4096 cubed ") and "failed: crash 212" in text


def test_lowering_shows_counts_only(tmp_path):
    text = table(run(everything(tmp_path), DEVICE, scripted_stages(ScriptedEvaluator(kind="lower"))))
    assert row_of(text, "4096 cubed").split()[2:] == [
        "320",
        "212",
        "212",
        "0",
        "0",
        "0",
        "smem",
        "80,",
        "threads",
        "28",
    ]
    assert "us" not in text.splitlines()[0].split()


def test_compact_knobs_leave_out_the_common_ones():
    assert (
        compact({"tile": 64, "persistent": True, "order": "rows"}, common=["order"])
        == "tile=64 persistent=true"
    )


def test_columns_align_and_numbers_end_flush():
    assert aligned(("name", "n"), [("a", "5"), ("longer", "10")], right=(1,)).splitlines() == [
        "name     n",
        "------  --",
        "a        5",
        "longer  10",
    ]


def test_a_table_that_is_wider_than_the_terminal_puts_its_text_below_each_row(tmp_path):
    found = run(everything(tmp_path), DEVICE, scripted_stages(ScriptedEvaluator(rival_us=12.0)))
    wide = max(map(len, _times_of(table(found))))
    assert table(found, wide).startswith(_text_of(table(found)))
    lines = _times_of(table(found, wide - 1))
    assert lines[2].split()[2:] == ["10.00", "13743.9", "12.00", "1.200", "1.200", "-", "1.200", "kernel"]
    assert lines[3] == "  tile_m=128 tile_n=256 stages=4 order=rows persistent=true"
    for width in (100, 60, 40):
        assert max(map(len, table(found, width).splitlines())) <= width


def _text_of(text):
    return text.partition("\n\n")[0]


def _times_of(text):
    return _text_of(text).splitlines()


def test_a_terminal_too_narrow_for_the_numbers_gets_a_block_a_row():
    header, rows = (
        ("problem", "config", "us"),
        [("4096 cubed", "a=1 b=2 c=3", "7.5"), ("64 cubed", "none", "-")],
    )
    assert fitted(header, rows, right=(2,), below=1, width=22).splitlines() == [
        "problem      us",
        "----------  ---",
        "4096 cubed  7.5",
        "  a=1 b=2 c=3",
        "64 cubed      -",
        "  none",
    ]
    rows = [("4096x4096x4096 bfloat16", "a=1 b=2 c=3 d=4", "7.5")]
    assert fitted(header, rows, right=(2,), below=1, width=22).splitlines() == [
        "4096x4096x4096 bfloat16",
        "  config  a=1 b=2 c=3",
        "          d=4",
        "  us      7.5",
    ]
    assert fitted(header, rows, right=(2,), below=1, width=None) == aligned(header, rows, right=(2,))


def test_the_census_counts_without_writing(tmp_path):
    taken = census(everything(tmp_path, space={"stages": (4, 5)}), ScriptedTarget(), DEVICE)
    (row,) = taken.rows
    # Stages 4 and 5 with tile_m: 64 and 128 fit (128 x 5 = 640), 192 and 256 do not. 2 x 4 x 2 x 2 x 2 = 64 legal.
    assert (row.counts.raw, row.counts.legal, row.counts.rejected) == (128, 64, {"smem": 64})
    assert row_of(taken.text(), "4096 cubed").split()[2:] == ["128", "64", "64", "smem", "64"]
    assert not list(tmp_path.iterdir())


def test_recording_measures_the_whole_space_and_the_rival(tmp_path):
    def fails(knobs):
        return Failed(reason="compile", detail="ptxas") if knobs["stages"] == 1 else None

    written = []
    config = ScriptedConfig(results=tmp_path, search=ScriptedSearch(candidates=3))
    stages = scripted_stages(evaluator := ScriptedEvaluator(fails=fails, rival_us=12.0))
    assert record(config, DEVICE, stages, written.append) == written
    (space,) = written
    assert [knobs for knobs, _ in space.rows] != [] and len(space.rows) == len(list(legal_knobs())) == 212
    failed = [knobs for knobs, result in space.rows if isinstance(result, Failed)]
    assert all(knobs["stages"] == 1 for knobs in failed) and len(failed) == sum(
        k["stages"] == 1 for k in legal_knobs()
    )
    assert [(lane.finalist, lane.result.timing.samples_us) for lane in space.rival] == [(None, (12.0,) * 5)]
    assert evaluator.is_closed and list(space.space) == list(ScriptedTarget().knobs)


def test_recording_goes_on_after_an_interrupt_and_never_measures_twice(tmp_path):
    config = ScriptedConfig(results=tmp_path)
    first, written = ScriptedEvaluator(interrupt_after=50), []
    with pytest.raises(KeyboardInterrupt):
        record(config, DEVICE, scripted_stages(first), written.append)
    assert written == []
    second = ScriptedEvaluator()
    record(config, DEVICE, scripted_stages(second), written.append)
    assert len(first.screened) + len(second.screened) == 212 == len(written[0].rows)
    assert all(isinstance(result, Measured) for _, result in written[0].rows)
    third = ScriptedEvaluator()
    record(config, DEVICE, scripted_stages(third), written.append)
    assert third.screened == third.races == [] and written[1] == written[0]


def test_recording_nothing_is_an_error(tmp_path):
    config = ScriptedConfig(results=tmp_path)
    illegal = scripted_stages(ScriptedEvaluator(), ScriptedTarget(rule=lambda knobs: "main"))
    with pytest.raises(NothingLegalError):
        record(config, DEVICE, illegal, lambda space: None)
    crashing = ScriptedEvaluator(fails=lambda knobs: Failed(reason="crash", detail="signal 6"))
    with pytest.raises(NothingSurvivedError):
        record(config, DEVICE, scripted_stages(crashing), lambda space: None)
