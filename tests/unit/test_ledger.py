"""The ledger: what is recorded comes back, whatever happened to the file."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
import sqlite3
import subprocess
import sys
import time

import pytest

from autotune.errors import AutotuneError, InputError
from autotune.ledger.database import open_url
from autotune.ledger.frames import races_frame, trials_frame
from autotune.ledger.provenance import Provenance
from autotune.ledger.records import pack, unpack
from autotune.ledger.storage import journal_path, open_ledger
from autotune.seam import Failed, Lowered, LoweredOnly, MeasureProtocol, Race, RaceEntry
from tests.helpers.scripted import measured

PROVENANCE = Provenance(
    target="scripted",
    problem={"m": 4096},
    space={"tile": (64, 128, 256), "persistent": (False, True)},
    protocol=MeasureProtocol(),
    device={"kind": "NVIDIA H200", "sm_count": 132},
    toolchain={"jax": "0.12.0", "jaxlib": "0.12.0", "driver": None, "python": "3.12.1"},
    sources="abc",
    evaluator="gpu",
    title="4096x4096x4096 bfloat16 nn",
)
A, B, C = ({"tile": tile, "persistent": True} for tile in (64, 128, 256))
LOWERED = Lowered(digest="d" * 32, smem_bytes=1000, lower_s=0.2, compile_s=0.4)
RESULTS = [
    measured(A, [10.0, 11.0, 12.0]),
    dataclasses.replace(measured(B, [9.0]), error=None, poisoned=True, duplicate_of=3),
    LoweredOnly(lowered=dataclasses.replace(LOWERED, compile_s=None), duplicate_of=1),
    Failed(reason="crash", detail="signal 6", lowered=LOWERED),
    Failed(reason="lower", detail="ValueError: no"),
    dataclasses.replace(measured(A, [10.0]), locked_s=0.5, held_s={"check": 0.2, "other": 0.3}),
]
RACE = Race(
    entries=(
        RaceEntry(finalist=0, result=measured(A, [10.0, 10.0])),
        RaceEntry(finalist=1, result=Failed(reason="timeout", detail="20 s")),
        RaceEntry(finalist=None, result=measured({"rival": 1}, [12.0, 12.0]), formulation="plain"),
    )
)


def opened(folder, **options):
    return open_ledger(PROVENANCE, results=folder, **options)


def the_journal(folder):
    return journal_path(folder, PROVENANCE.study_name())


@pytest.mark.parametrize("result", [*RESULTS, RACE], ids=lambda result: type(result).__name__)
def test_a_result_survives_packing(result):
    assert unpack(pack(result)) == result


def test_a_result_of_an_unknown_type_is_named():
    with pytest.raises(ValueError, match="'vibes'"):
        unpack({"type": "vibes"})


@pytest.mark.parametrize("storage", [None, "sqlite"])
def test_records_come_back_after_reopening(tmp_path, storage):
    url = f"sqlite:///{tmp_path}/trials.db" if storage else None
    ledger = opened(tmp_path, storage=url)
    for tile, result in zip((64, 128, 256), RESULTS):
        ledger.record_screen({"tile": tile, "persistent": True}, result, spent_s=1.5)
    ledger.record_race([A, B], 2, RACE, winner=0, time_us=10.0)
    ledger.finish_screening(2.0)

    again = opened(tmp_path, storage=url)
    assert [(r.number, r.knobs, r.result) for r in again.screened()] == [
        (0, A, RESULTS[0]),
        (1, B, RESULTS[1]),
        (2, C, RESULTS[2]),
    ]
    (race,) = again.races()
    assert (race.finalists, race.rounds, race.result) == ((A, B), 2, RACE)
    assert again.spent_s == 2.0
    assert the_journal(tmp_path).exists() == (storage is None)


def test_a_trial_says_what_became_of_its_candidate(tmp_path):
    ledger = opened(tmp_path)
    ledger.record_screen(A, RESULTS[0], spent_s=1.0)
    ledger.record_screen(B, RESULTS[3], spent_s=2.0)
    ledger.record_screen(C, RESULTS[2], spent_s=3.0)
    ledger.record_race([C, A], 2, RACE, winner=1, time_us=10.0)
    done, failed, lowered, race = ledger.study.get_trials()
    assert (done.state.name, done.value, done.params) == ("COMPLETE", 11.0, A)
    assert done.user_attrs["versions"] == {"jax": "0.12.0", "jaxlib": "0.12.0", "python": "3.12.1"}
    assert (failed.state.name, failed.user_attrs["reason"], failed.user_attrs["digest"]) == (
        "FAIL",
        "crash",
        "d" * 32,
    )
    assert lowered.state.name == "PRUNED"
    assert (race.user_attrs["kind"], race.user_attrs["raced"], race.params, race.value) == (
        "race",
        [2, 0],
        A,
        10.0,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"target": "other"},
        {"problem": {"m": 4097}},
        {"space": {"tile": (64, 128), "persistent": (False, True)}},
        {"protocol": MeasureProtocol(l2="warm")},
        {"device": {"kind": "NVIDIA H200", "sm_count": 114}},
        {"toolchain": {"jax": "0.12.1", "jaxlib": "0.12.0", "driver": None}},
        {"toolchain": {"jax": "0.12.0", "jaxlib": "0.12.0", "driver": "580.65"}},
        {"sources": "abd"},
        {"evaluator": "replay:1234"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_a_time_depends_on_names_another_study(change):
    assert dataclasses.replace(PROVENANCE, **change).digest() != PROVENANCE.digest()


def test_a_study_is_named_readably_and_not_after_what_times_do_not_depend_on():
    name = PROVENANCE.study_name()
    assert name.startswith("scripted-4096x4096x4096_bfloat16_nn-nvidia_h200-gpu-") and "/" not in name
    other = dataclasses.replace(PROVENANCE, toolchain={"jax": "0.12.0", "jaxlib": "0.12.0", "python": "3.13"})
    assert other.study_name() == name


def test_fresh_starts_a_new_study_and_keeps_the_old_one(tmp_path):
    opened(tmp_path).record_screen(A, RESULTS[0], spent_s=7.0)
    fresh = opened(tmp_path, fresh=True)
    assert (fresh.screened(), fresh.spent_s) == ([], 0.0)
    fresh.record_screen(B, RESULTS[0], spent_s=1.0)
    assert [record.knobs for record in opened(tmp_path).screened()] == [B]
    assert [record.knobs for record in opened(tmp_path, fresh=True).screened()] == []
    names = [s.study_name for s in opened(tmp_path).study._storage.get_all_studies()]
    assert names == [PROVENANCE.study_name() + suffix for suffix in ("", ".2", ".3")]


def test_a_journal_torn_at_any_byte_opens_and_loses_the_torn_record_only(tmp_path):
    ledger = opened(tmp_path / "whole")
    for number, knobs in enumerate((A, B, C)):
        ledger.record_screen(knobs, RESULTS[0], spent_s=float(number))
    whole = the_journal(tmp_path / "whole").read_bytes()
    ends = [index + 1 for index, byte in enumerate(whole) if byte == 10]
    cuts = {0, 1, *ends, *(end - 1 for end in ends), *random.Random(0).sample(range(len(whole)), 40)}
    for cut in sorted(cuts):
        folder = tmp_path / str(cut)
        path = the_journal(folder)
        path.parent.mkdir(parents=True)
        path.write_bytes(whole[:cut])
        said = []
        torn = opened(folder, say=said.append)
        # Two lines make the study, one each candidate.
        kept = max(0, sum(end <= cut for end in ends) - 2)
        assert [record.knobs for record in torn.screened()] == [A, B, C][:kept]
        assert len(said) == (cut not in (0, *ends))
        torn.record_screen({"tile": 64, "persistent": False}, RESULTS[3], spent_s=9.0)
        assert len(opened(folder).screened()) == kept + 1


def test_a_record_is_not_glued_to_what_a_killed_writer_left(tmp_path):
    ledger = opened(tmp_path)
    ledger.record_screen(A, RESULTS[0], spent_s=1.0)
    with the_journal(tmp_path).open("ab") as other_writer:
        other_writer.write(b'{"op_code":4,"worker_id":"half of a rec')
    ledger.record_screen(B, RESULTS[0], spent_s=2.0)
    assert [record.knobs for record in ledger.screened()] == [A, B]
    assert [record.knobs for record in opened(tmp_path).screened()] == [A, B]


def test_a_full_disk_ends_in_one_line_and_leaves_no_half_record(tmp_path, monkeypatch):
    ledger = opened(tmp_path)
    ledger.record_screen(A, RESULTS[0], spent_s=1.0)
    size = the_journal(tmp_path).stat().st_size
    write = os.write

    def half_then_full(descriptor, record):
        monkeypatch.setattr(os, "write", full)
        return write(descriptor, record[:100])

    def full(descriptor, record):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half_then_full)
    with pytest.raises(AutotuneError, match="cannot write a trial: No space left on device"):
        ledger.record_screen(B, RESULTS[0], spent_s=2.0)
    assert the_journal(tmp_path).stat().st_size == size


def test_a_line_damaged_in_the_middle_is_named(tmp_path):
    ledger = opened(tmp_path)
    ledger.record_screen(A, RESULTS[0], spent_s=1.0)
    path = the_journal(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b'{"op_code":\n', *lines[1:]]))
    with pytest.raises(InputError, match="line 2 is not JSON"):
        opened(tmp_path)


def test_a_storage_that_cannot_be_opened_is_named_without_its_password(tmp_path):
    with pytest.raises(InputError, match="storage='nonsense://me:") as raised:
        opened(tmp_path, storage="nonsense://me:secret@host/db")
    assert "secret" not in str(raised.value) and "\n" not in str(raised.value)
    assert raised.value.__cause__ is None  # nor in a traceback
    assert not list(tmp_path.iterdir())


def test_a_driver_that_is_missing_and_a_file_that_is_no_database_are_named(tmp_path):
    with pytest.raises(InputError, match="its driver is not installed: pymysql"):
        open_url("mysql+pymysql://me:secret@host/db")
    (tmp_path / "trials.db").write_text("no database" * 100)
    with pytest.raises(InputError, match="cannot be opened: file is not a database;"):
        open_url(f"sqlite:///{tmp_path}/trials.db")


def test_processes_that_make_one_database_at_once_all_open_it(tmp_path):
    program = (
        "import sys, time\n"
        "from autotune.ledger.database import open_url\n"
        "time.sleep(max(0.0, float(sys.argv[2]) - time.time()))\n"
        "open_url(sys.argv[1])\n"
    )
    start = str(time.time() + 3.0)
    for round_ in range(2):
        url = f"sqlite:///{tmp_path}/{round_}.db"
        runs = [
            subprocess.Popen([sys.executable, "-c", program, url, start], stderr=subprocess.PIPE, text=True)
            for _ in range(3)
        ]
        assert [run.communicate(timeout=60)[1] for run in runs] == ["", "", ""]


def test_a_database_that_stops_taking_records_is_one_line(tmp_path):
    ledger = opened(tmp_path, storage=f"sqlite:///{tmp_path}/trials.db")
    ledger.record_screen(A, RESULTS[0], spent_s=1.0)
    with sqlite3.connect(tmp_path / "trials.db") as other:
        other.execute("drop table trial_values")
        other.execute("drop table trial_params")
    with pytest.raises(
        AutotuneError, match=r"no longer takes records: .*What was recorded before is kept"
    ) as raised:
        ledger.record_screen(B, RESULTS[0], spent_s=1.0)
    assert "\n" not in str(raised.value)


def test_results_that_cannot_be_written_are_named(tmp_path):
    (tmp_path / "results").write_text("a file, not a folder")
    with pytest.raises(InputError, match="cannot be opened as a journal"):
        opened(tmp_path / "results")


def test_trials_of_another_process_are_news_once(tmp_path):
    mine, other = opened(tmp_path), opened(tmp_path)
    mine.screened()
    mine.record_screen(A, RESULTS[0], spent_s=1.0)
    other.record_screen(B, RESULTS[0], spent_s=1.0)
    assert [record.knobs for record in mine.news()] == [B]
    assert mine.news() == []


def test_frames_hold_one_row_a_candidate_and_one_a_lane(tmp_path):
    ledger = opened(tmp_path)
    ledger.record_screen(A, RESULTS[0], spent_s=1.0)
    ledger.record_screen(B, RESULTS[3], spent_s=2.0)
    ledger.record_race([A, B], 2, RACE, winner=0, time_us=10.0)
    frame = trials_frame(ledger.study)
    assert frame["status"].tolist() == ["measured", "failed"]
    assert frame["tile"].tolist() == [64, 128]
    assert frame["time_us"].iloc[0] == 11.0 and frame["time_us"].isna().tolist() == [False, True]
    assert frame["reason"].iloc[1] == "crash" and frame["samples_us"].iloc[0] == (10.0, 11.0, 12.0)
    lanes = races_frame(ledger.study)
    assert lanes["status"].tolist() == ["measured", "failed", "measured"]
    assert lanes["formulation"].iloc[2] == "plain" and lanes["time_us"].iloc[2] == 12.0
    assert lanes["knobs"].iloc[1] == B


def test_an_empty_study_has_an_empty_frame(tmp_path):
    assert len(trials_frame(opened(tmp_path).study)) == 0


@pytest.mark.parametrize(
    ("damage", "says"), [(b"\n", "is not JSON"), (b"[]\n", "is not a record")], ids=["empty", "list"]
)
def test_a_bad_last_line_is_named(tmp_path, damage, says):
    opened(tmp_path).record_screen(A, RESULTS[0], spent_s=1.0)
    path = the_journal(tmp_path)
    lines = path.read_bytes().count(b"\n")
    with path.open("ab") as file:
        file.write(damage)
    with pytest.raises(InputError, match=rf"{path.name}: is damaged \(line {lines + 1} {says}\)"):
        opened(tmp_path)


def test_a_result_that_was_edited_is_one_line(tmp_path):
    opened(tmp_path).record_screen(A, RESULTS[0], spent_s=1.0)
    path = the_journal(tmp_path)
    path.write_text(path.read_text().replace('"type":"measured"', '"type":"zz"'))
    with pytest.raises(InputError, match=r"trial 0 of the study holds no result .*--fresh"):
        opened(tmp_path).screened()
