"""The benchmark of a night over many winners, on the scripted machine."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from autotune.bestfile import read_best
from tests.helpers.best_entries import best_file, entry, problem
from tests.helpers.night_world import ScriptedMeter, World

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "night_of_hundred.py"


@pytest.fixture(scope="module")
def hundred():
    spec = importlib.util.spec_from_file_location("night_of_hundred", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def stored(tmp_path):
    return best_file(tmp_path / "best", entry(problem(m=4096)), entry(problem(m=512)))


@pytest.fixture
def scripted(tmp_path):
    world = World(tmp_path)
    return world, lambda config: ScriptedMeter(world)


def run(hundred, stored, tmp_path, make_meter, *more):
    folder = tmp_path / "nights"
    code = hundred.main([str(stored), "--folder", str(folder), "--count", "12", *more], make_meter)
    return code, [json.loads((folder / f"night_{number}.json").read_text()) for number in (1, 2)]


def test_two_nights_verify_what_is_stored_and_what_is_added(hundred, stored, scripted, tmp_path, capsys):
    code, (first, second) = run(hundred, stored, tmp_path, scripted[1])
    assert (code, second["exit_code"], second["counts"]) == (0, 0, {"unchanged": 12})
    # The kernel's 100 us beat XLA's 110 in all ten that were added; one night can tell of those taken by CUPTI, while
    # the seven in chains are taken for shorter than 16 us, and a tenth is less than what lies between two processes.
    assert first["counts"]["better"] == 3
    assert second["gpu_s"] == 12.0  # the scripted card takes one second a winner
    told = capsys.readouterr().out
    assert "12 winners: 2 of" in told
    assert "night 2: 12.0 s of GPU" in told
    assert '"locked_s"' in told
    both = json.loads((tmp_path / "nights" / "two_nights.json").read_text())
    assert both["nights"] == [first["night"], second["night"]]
    assert len(both["problems"]) == 12
    assert both["problems"][0]["kernel_us"] == pytest.approx([100.0, 100.0], rel=0.01)
    assert both["seconds"][1]["all"] == 12.0


def test_added_winners_are_read_back_whole(hundred, stored, tmp_path):
    config = hundred.prepared(stored, tmp_path / "nights", 100, 60.0)
    found = read_best(config.parent / "results" / "best" / stored.name)
    entries = dict(found.entries())
    assert len(entries) == 100
    protocols = {(one.protocol["timer"], one.protocol["regime"]) for one in entries.values()}
    assert protocols == {("cupti", "burst"), ("chain", "burst"), ("cupti", "sustained")}


def test_what_a_night_would_tune_is_counted_and_left(hundred, stored, scripted, tmp_path, capsys):
    world, make_meter = scripted
    world.failures = {512: ("wrong", "error 0.3")}
    code, (first, _) = run(hundred, stored, tmp_path, make_meter)
    assert first["not_tuned"] == [problem(m=512).describe()]
    assert world.tuned == []
    assert "wrong: error 0.3" in capsys.readouterr().out
    assert code == 0


def test_a_night_that_hangs_is_ended(hundred, stored, scripted, tmp_path, monkeypatch):
    world, make_meter = scripted
    world.pause_s = 30.0
    monkeypatch.setattr(hundred, "GRACE_S", 0.2)
    with pytest.raises(TimeoutError, match=r"within 0\.3 s"):
        run(hundred, stored, tmp_path, make_meter, "--seconds", "0.1")
