"""What a night clears up, and what it leaves."""

from __future__ import annotations

import datetime
import fcntl
import os
import time

import pytest

from autotune.ledger.provenance import Provenance
from autotune.ledger.storage import journal_path, open_ledger
from autotune.nightly.files import LineFile
from autotune.nightly.history import closing_record, problem_record, read_history
from autotune.nightly.prune import DAY_S, compact_history, compact_journal, prune_trials
from autotune.nightly.values import Machine
from autotune.seam import MeasureProtocol
from tests.helpers.scripted import measured

MACHINE = Machine(card="GPU-one", kind="H", power_limit_w=700.0, driver="580.1", jax="1", jaxlib="1")


def provenance():
    return Provenance(
        target="scripted",
        problem={"m": 64},
        space={"tile_m": (64, 128)},
        protocol=MeasureProtocol(),
        device={"kind": "NVIDIA H200"},
        toolchain={"jax": "1"},
        sources="0",
        evaluator="gpu",
        title="64",
    )


@pytest.fixture
def journal(tmp_path):
    ledger = open_ledger(provenance(), results=tmp_path)
    ledger.record_screen({"tile_m": 64}, measured({"tile_m": 64}, [3.0, 1.0, 2.0] * 20), 1.0)
    return journal_path(tmp_path, ledger.name)


def age(path, days):
    os.utime(path, (time.time() - days * DAY_S,) * 2)


def test_an_old_study_keeps_medians_and_goes_on(tmp_path, journal):
    before = journal.stat().st_size
    age(journal, 8)
    assert prune_trials(tmp_path, days=30) == 0
    assert journal.stat().st_size < before - 150
    assert time.time() - journal.stat().st_mtime > 7 * DAY_S, "it grows old all the same"
    ledger = open_ledger(provenance(), results=tmp_path)
    (record,) = ledger.screened()
    assert record.result.timing.samples_us == (2.0,)
    ledger.record_screen({"tile_m": 128}, measured({"tile_m": 128}, [4.0]), 2.0)
    assert len(open_ledger(provenance(), results=tmp_path).screened()) == 2


def test_only_journals_of_over_the_age_are_removed(tmp_path, journal):
    other = journal.with_name("young.journal")
    other.write_text("")
    age(journal, 31)
    assert prune_trials(tmp_path, days=30) == 1
    assert [path.name for path in journal.parent.iterdir()] == ["young.journal"]


def test_a_journal_in_use_stays_as_it_is(tmp_path, journal):
    age(journal, 31)
    with journal.with_name(journal.name + ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert prune_trials(tmp_path, days=30) == 0
        assert compact_journal(journal) == 0
    assert journal.exists()


def test_a_link_among_the_journals_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    age(victim, 99)
    folder = tmp_path / "results" / "trials"
    folder.mkdir(parents=True)
    (folder / "x.journal").symlink_to(victim)
    assert prune_trials(tmp_path / "results", days=30) == 0
    assert victim.read_text() == "mine"


def test_trials_that_are_a_link_out_of_the_results_are_left_alone(tmp_path):
    outside, results = tmp_path / "outside", tmp_path / "results"
    outside.mkdir()
    results.mkdir()
    (outside / "x.journal").write_text("mine")
    age(outside / "x.journal", 99)
    (results / "trials").symlink_to(outside)
    assert prune_trials(results, days=30) == 0
    assert (outside / "x.journal").exists()


def test_of_quiet_nights_long_ago_the_first_and_the_last_stay(tmp_path):
    file = LineFile(tmp_path / "history.jsonl")
    verdicts = ["unchanged"] * 5 + ["regression"] + ["unchanged"] * 3
    for number, verdict in enumerate(verdicts):
        night = f"2026-01-{number + 1:02d}"
        facts = {"verdict": verdict, "config": "c", "backend": "kernel"}
        file.append([problem_record(night, night, "key", MACHINE, **facts)])
        file.append([closing_record(night, night, MACHINE, {"copy": 1.0}, 0)])
    # Nights 2, 3, 4 and 8 are inside of their stretches; each went with its closing line.
    assert compact_history(file, 30, datetime.date(2026, 6, 1)) == 8
    left = [record["night"][-2:] for record in read_history(file).problems["key"]]
    assert left == ["01", "05", "06", "07", "09"]
    assert compact_history(file, 30, datetime.date(2026, 6, 1)) == 0


def test_recent_nights_all_stay(tmp_path):
    file = LineFile(tmp_path / "history.jsonl")
    for number in range(5):
        night = f"2026-01-{number + 1:02d}"
        file.append([problem_record(night, night, "key", MACHINE, verdict="unchanged", config="c")])
        file.append([closing_record(night, night, MACHINE, {}, 0)])
    assert compact_history(file, 30, datetime.date(2026, 1, 10)) == 0


def test_a_torn_line_is_cut_and_a_night_without_its_closing_line_does_not_count(tmp_path):
    file = LineFile(tmp_path / "history.jsonl")
    file.append([problem_record("one", "2026-01-01", "key", MACHINE, verdict="unchanged")])
    with file.path.open("a") as stream:
        stream.write('{"type": "night", "nig')
    assert read_history(file).nights == {}
    file.append([closing_record("two", "2026-01-02", MACHINE, {}, 0)])
    assert list(read_history(file).nights) == ["two"]
    assert read_history(file).problems == {}
    assert all(line.endswith("}") for line in file.path.read_text().splitlines())
