"""Simulated nights with a scripted meter: what each ends as, and what it blames."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.bestfile import read_best
from autotune.nightly.files import NightRunsError, folder_within, night_lock
from autotune.nightly.history import history_file, read_history
from tests.helpers.best_entries import problem
from tests.helpers.night_world import SIZES, ScriptedMeter, World, key

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    made.store(*SIZES)
    return made


def summary(world):
    return json.loads((world.results / "nightly" / "reports" / "latest.json").read_text())


def verdicts(world):
    return {line["key"].split(",")[1]: line["verdict"] for line in summary(world)["problems"]}


def stored(world, m):
    return read_best(world.best_path).entry(key(m))


def test_quiet_nights_say_nothing_and_change_no_winner(world, capsys):
    before = world.best_path.read_bytes()
    assert world.nights_pass(3) == [0, 0, 0]
    assert world.best_path.read_bytes() == before
    assert set(verdicts(world).values()) == {"unchanged"}
    assert capsys.readouterr().out.count("\n") == 3
    assert world.tuned == []


def test_a_driver_change_that_moves_all_times_alike_blames_nothing(world):
    world.nights_pass(3)
    world.driver, world.factor = "590.2", 1.06
    assert world.nights_pass(2) == [0, 0]
    assert set(verdicts(world).values()) <= {"drift", "unchanged"}
    assert stored(world, 64).driver == "590.2"
    assert world.tuned == []


def test_two_versions_that_moved_at_once_are_named_and_none_is_blamed_alone(world, capsys):
    world.nights_pass(3)
    world.driver, world.jax = "590.2", "0.13.0"
    world.slower = {128: 1.08}
    assert world.nights_pass(2) == [0, 20]
    out = capsys.readouterr().out
    assert "changed at once since the last night, so none is blamed alone: driver 580.1 -> 590.2" in out
    (line,) = [one for one in summary(world)["problems"] if one["verdict"] == "regression"]
    assert "driver 580.1 -> 590.2 and jax 0.12.0.1 -> 0.13.0" in line["reason"]
    assert "none is blamed alone" in line["reason"]


@pytest.mark.parametrize("factor", [0.85, 1.2])
def test_drift_of_the_whole_machine_is_no_regression(world, factor):
    world.nights_pass(3)
    world.factor = factor
    assert world.nights_pass(2) == [0, 0]
    assert set(verdicts(world).values()) == {"drift"}
    assert world.tuned == []


def test_one_true_regression_is_suspect_first_and_paged_on_the_second_night(world):
    world.nights_pass(3)
    world.slower = {128: 1.05}
    assert world.run() == 0
    assert verdicts(world) == {"64": "unchanged", "128": "suspect", "256": "unchanged", "512": "unchanged"}
    assert world.tuned == []
    assert world.run() == 20
    assert verdicts(world)["128"] == "regression"
    assert world.tuned == [128]
    assert world.run() == 0, "a regression is paged once; its new level is the reference"


def test_a_regression_under_drift_is_told_from_it(world):
    world.nights_pass(3)
    world.slower, world.factor = {128: 1.06}, 1.15
    assert world.nights_pass(2) == [0, 20]
    assert [m for m, verdict in verdicts(world).items() if verdict == "regression"] == ["128"]


def test_a_faster_xla_is_no_regression_of_the_kernel(world):
    world.nights_pass(3)
    world.xla_slower = {128: 0.95}
    assert world.nights_pass(3) == [0, 0, 0]


def test_another_card_with_a_lower_power_limit_has_its_own_reference(world):
    world.nights_pass(3)
    world.card, world.power_limit_w, world.factor = "GPU-two", 500.0, 1.2
    world.slower = {64: 1.04, 512: 1.04}  # what the limit does to some more than to others
    assert world.nights_pass(3) == [0, 0, 0]
    assert set(verdicts(world).values()) == {"unchanged"}


def test_a_fall_on_two_cards_is_a_regression(world):
    world.nights_pass(3)
    world.slower = {128: 1.08}
    assert world.run() == 0
    world.card = "GPU-two"
    assert world.run() == 20
    assert (
        "two cards"
        in next(one for one in summary(world)["problems"] if one["verdict"] == "regression")["reason"]
    )


def test_a_full_disk_ends_the_night_as_unfit_and_loses_nothing(world, monkeypatch, capsys):
    world.nights_pass(2)
    before, nights = world.best_path.read_bytes(), len(history(world).nights)
    world.slower = {128: 1.3}

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert world.run() == 30
    assert "No space left on device" in capsys.readouterr().out
    assert world.best_path.read_bytes() == before
    assert len(history(world).nights) == nights
    assert world.nights_pass(2) == [0, 20], "the nights after it go on as if it had not been"


def history(world):
    return read_history(history_file(world.results, "nvidia_h200"))


def test_a_night_that_is_cut_short_goes_on_where_it_was(world):
    world.die_after = 2
    with pytest.raises(KeyboardInterrupt):
        world.run()
    assert history(world).nights == {}
    world.die_after = None
    assert world.run(same_night=True) == 0
    assert sorted(world.verified) == sorted(key(m) for m in SIZES), "each once"
    assert summary(world)["resumed"]


def test_what_the_budget_did_not_reach_comes_first_the_next_night(world):
    world.minutes = 1e-9
    assert world.run() == 0
    assert world.verified == []
    assert summary(world)["left"] == [f"verify {key(m)}" for m in SIZES] or len(summary(world)["left"]) == 4
    world.minutes = 60.0
    world.run()
    assert len(world.verified) == 4


def test_a_tuning_that_was_not_reached_is_done_the_next_night(world):
    world.asked = (*SIZES, 1024)
    world.run()
    assert world.tuned == [1024]
    assert stored(world, 1024) is not None
    world.slower = {64: 1.0}
    assert world.run() == 0


def test_a_missing_winner_is_tuned_and_reported_as_improved(world):
    world.asked, world.found = (*SIZES, 1024), {1024: 80.0}
    assert world.run() == 10
    assert verdicts(world)["1024"] == "missing"
    assert stored(world, 1024).kernel_us == 80.0


def test_a_changed_module_is_stale_and_its_entry_renewed(world):
    world.nights_pass(2)
    world.digests = {256: "e" * 32}
    assert world.run() == 0
    assert verdicts(world)["256"] == "stale"
    assert (stored(world, 256).digest, stored(world, 256).card) == ("e" * 32, "GPU-one")
    assert world.run() == 0
    assert verdicts(world)["256"] == "unchanged"


def test_a_wrong_result_is_paged_at_once_and_withdrawn(world):
    world.failures = {256: ("wrong", "relative error 0.3, tolerance 0.01")}
    world.found = {256: 105.0}
    assert world.run() == 20
    assert verdicts(world)["256"] == "broken"
    previous = json.loads(world.best_path.read_text())["entries"][key(256)]["previous"]
    assert previous["backend"] in ("kernel", "xla")
    assert world.tuned == [256]


def test_a_crash_is_tried_again_and_paged_only_on_the_second_night(world):
    world.failures = {256: ("crash", "signal 6")}
    assert world.run() == 0
    assert world.verified.count(key(256)) == 2
    assert verdicts(world)["256"] == "suspect"
    assert world.run() == 20


def test_an_unfit_machine_measures_nothing(world, capsys):
    world.unfit = "GPU 0: in use by pid 7 (python)"
    assert world.run() == 30
    assert world.verified == []
    assert capsys.readouterr().out == "simulated: nothing measured: GPU 0: in use by pid 7 (python)\n"
    assert summary(world)["exit_code"] == 30


def test_a_broken_entry_is_named_and_the_others_are_verified(world):
    content = json.loads(world.best_path.read_text())
    content["entries"][key(64)]["kernel_us"] = -1
    world.best_path.write_text(json.dumps(content))
    world.asked = ()
    assert world.run() == 0
    assert sorted(verdicts(world)) == ["128", "256", "512"]
    (warning,) = summary(world)["warnings"]
    assert key(64) in warning and "kernel_us=-1" in warning


def test_only_one_night_runs_at_a_time(world):
    folder = folder_within(world.results, "nightly")
    with night_lock(folder), pytest.raises(NightRunsError, match=f"process {os.getpid()}"):
        world.run()
    assert world.run() == 0


def test_a_lock_ends_with_a_holder_that_was_killed(world):
    folder = folder_within(world.results, "nightly")
    script = f"""
import time
from pathlib import Path
from autotune.nightly.files import night_lock
with night_lock(Path({str(folder)!r})):
    print("held", flush=True)
    time.sleep(60)
"""
    search = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    holder = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": search}
    )
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(NightRunsError):
        world.run()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert world.run() == 0


def test_nothing_is_written_through_a_link_out_of_the_results(world, tmp_path, capsys):
    outside = tmp_path / "outside"
    outside.mkdir()
    (world.results / "nightly").symlink_to(outside)
    with pytest.raises(Exception, match="outside of"):
        world.run()
    assert list(outside.iterdir()) == []


def test_a_link_in_place_of_a_record_is_refused(world, tmp_path):
    target = tmp_path / "victim"
    target.write_text("mine\n")
    folder = folder_within(world.results, "nightly", "history")
    (folder / "nvidia_h200.jsonl").symlink_to(target)
    with pytest.raises(Exception, match=r"nvidia_h200\.jsonl: cannot be written"):
        world.run()
    assert target.read_text() == "mine\n"


def test_the_incumbent_is_kept_where_tuning_finds_nothing_better(world):
    world.nights_pass(3)
    world.slower = {128: 1.05}
    world.nights_pass(2)
    assert stored(world, 128).config == read_best(world.best_path).entry(key(64)).config
    assert stored(world, 128).problem == problem(m=128)


def test_the_script_of_a_meter_is_a_night_meter(world):
    attributes = ("machine", "toolchain", "device", "gpu_s", "profile")
    names = (*attributes, "unfit", "sentinels", "verify", "retune", "close")
    assert [name for name in names if not hasattr(ScriptedMeter(world), name)] == []
