"""Best files against each other: what changed, which entry a merge keeps, and what won when."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from autotune import bestdiff, besthistory
from autotune.bestfile import Ratio, read_best
from autotune.bestmerge import merge, why_better
from autotune.cli import main
from autotune.errors import InputError
from tests.helpers.best_entries import best_file, entry, problem
from tests.helpers.night_world import SIZES, World

SMALL = problem(m=64)
OTHER = {"tile_m": 64, "tile_n": 128, "tile_k": 64, "compute_wgs": 1}


def ratio(low, high):
    return Ratio(low=low, median=(low + high) / 2, high=high)


def test_a_diff_names_added_removed_and_changed_problems_with_their_fields(tmp_path):
    first = best_file(tmp_path / "a", entry(), entry(SMALL))
    second = best_file(tmp_path / "b", entry(kernel_us=90.0, knobs=OTHER), entry(problem(m=128)))
    changes = bestdiff.diff(str(first), str(second))
    assert [(change.kind, change.key.split(",")[1]) for change in changes] == [
        ("removed", "64"),
        ("changed", "4096"),
        ("added", "128"),
    ]
    fields = changes[1].fields
    assert (fields["kernel_us"], fields["config.tile_m"]) == ((100.0, 90.0), (128, 64))
    assert "config.tile_n" not in fields
    assert "kernel_us: 100.0 -> 90.0" in bestdiff.text(changes)


def test_a_diff_of_two_revisions_covers_every_best_file(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    folder = tmp_path / "results" / "best"
    best_file(folder, entry())
    git("add", "-A")
    git("commit", "-qm", "one")
    best_file(folder, entry(kernel_us=90.0))
    best_file(folder, entry(), kind="NVIDIA H100 80GB HBM3")
    git("add", "-A")
    git("commit", "-qm", "two")
    found = [(change.file, change.kind) for change in bestdiff.diff("HEAD~1", "HEAD", tmp_path)]
    assert found == [
        ("results/best/nvidia_h100_80gb_hbm3.json", "added"),
        ("results/best/nvidia_h200.json", "changed"),
    ]
    assert bestdiff.text(bestdiff.diff("HEAD", "HEAD", tmp_path)) == "no difference"


@pytest.mark.parametrize("named", ["nowhere", "--output=x", "HEAD\n"])
def test_what_is_neither_file_nor_revision_is_refused(tmp_path, named):
    file = best_file(tmp_path / "a", entry())
    with pytest.raises(InputError):
        bestdiff.diff(str(file), named, tmp_path)


@pytest.mark.parametrize(
    ("new", "old", "reason"),
    [
        ({"ratio": ratio(1.2, 1.3)}, {"ratio": ratio(1.0, 1.1)}, "its gain over XLA is surely larger"),
        ({"ratio": ratio(1.0, 1.1)}, {"ratio": ratio(1.2, 1.3)}, None),
        (
            {"ratio": ratio(1.0, 1.1), "date": "2026-12-02"},
            {"ratio": ratio(1.05, 1.2), "date": "2026-12-01"},
            "newer, and its interval overlaps",
        ),
        (
            {"ratio": ratio(1.1, 1.15)},
            {"ratio": ratio(1.05, 1.2)},
            "of the same day, with the narrower interval",
        ),
        ({"ratio": ratio(1.05, 1.2)}, {"ratio": ratio(1.05, 1.2)}, None),
        (
            {"ratio": ratio(1.0, 1.1)},
            {"ratio": ratio(1.5, 1.6), "protocol": {"timer": "cupti", "l2": "warm"}},
            "the preferred protocol",
        ),
        (
            {"ratio": ratio(1.5, 1.6), "protocol": {"timer": "cupti", "l2": "warm"}},
            {"ratio": ratio(1.0, 1.1)},
            None,
        ),
    ],
)
def test_a_merge_goes_by_protocol_then_interval_then_day(new, old, reason):
    base = entry()
    assert why_better(replace(base, **new), replace(base, **old)) == reason


def test_a_merge_takes_each_problem_from_one_file_and_keeps_its_previous(tmp_path):
    first = best_file(tmp_path / "a", replace(entry(), ratio=ratio(1.0, 1.1)), entry(SMALL))
    second = best_file(tmp_path / "b", replace(entry(), ratio=ratio(1.2, 1.3)))
    content = json.loads(second.read_text())
    (key,) = content["entries"]
    content["entries"][key]["previous"] = {"date": "2026-01-01"}
    second.write_text(json.dumps(content))
    merged = merge([first, second])
    assert {path.parent.name for path, _ in merged.origin.values()} == {"a", "b"}
    assert merged.raw[key]["ratio"] == [1.2, 1.25, 1.3]
    assert merged.raw[key]["previous"] == {"date": "2026-01-01"}


def test_files_of_two_kinds_of_device_are_not_merged(tmp_path):
    first, second = best_file(tmp_path, entry()), best_file(tmp_path, entry(), kind="NVIDIA H100 80GB HBM3")
    with pytest.raises(InputError, match="merge one kind"):
        merge([first, second])


def test_an_entry_that_stays_is_told_apart_from_one_that_is_alone(tmp_path):
    first, second = best_file(tmp_path / "a", entry()), best_file(tmp_path / "b", entry(), entry(SMALL))
    told = {path.parent.name: reason for path, reason in merge([first, second]).origin.values()}
    assert told == {"a": f"that of {second} is not better", "b": "the only one"}


def test_the_command_line_merges_into_a_file_that_can_be_read(tmp_path, capsys):
    first, second = best_file(tmp_path / "a", entry()), best_file(tmp_path / "b", entry(SMALL))
    output = tmp_path / "merged.json"
    assert main(["best", "--merge", str(first), str(second), "--output", str(output)]) == 0
    assert len(list(read_best(output).entries())) == 2
    assert capsys.readouterr().err.count("the only one") == 2
    assert main(["best", "--merge", str(first), str(second)]) == 0
    assert capsys.readouterr().out == output.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["best"], "M N K are needed"),
        (["best", "64", "64"], "M N K are needed"),
        (["best", "--history"], "M N K are needed"),
        (["best", "64", "--diff", "a", "b"], "leave the sizes out"),
        (["best", "64", "64", "64", "--output", "x"], "belongs to --merge"),
        (["best", "64", "64", "64", "--results", "x"], "belongs to --history; the lookup reads"),
        (["best", "--diff", "a", "b", "--merge", "c"], "not allowed with argument --diff"),
    ],
)
def test_a_wrong_mix_of_modes_is_one_line_and_ends_with_2(arguments, said, capsys):
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and line.endswith("see autotune best --help")


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("a", "--output='a': allowed: a file, but a is a folder"),
        ("none/x", "--output='none/x': allowed: a file in a folder that is there, but none is none"),
        ("x" * 300, f"--output='{'x' * 56}...: allowed: a file that can be written, but: File name too long"),
        (
            "/proc/x",
            "--output='/proc': allowed: a folder that can be written, but /proc cannot: No such file",
        ),
    ],
)
def test_a_merge_that_cannot_be_written_says_so_and_leaves_nothing(
    tmp_path, monkeypatch, capsys, output, said
):
    path = str(best_file(tmp_path / "a", entry()))
    monkeypatch.chdir(tmp_path)
    assert main(["best", "--merge", path, "--output", output]) == 2
    assert capsys.readouterr().err.startswith(f"autotune: error: {said}")
    assert [file.name for file in tmp_path.rglob("*")] == ["a", path.rpartition("/")[2]]


def test_a_history_of_results_that_are_not_there_is_refused(capsys):
    assert main(["best", "64", "64", "64", "--history", "--results", "/nowhere"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "autotune: error: --results='/nowhere': allowed: a results folder that is there"


def test_a_file_that_is_missing_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["best", "--merge", "none.json"]) == 2
    assert "none.json: no such file" in capsys.readouterr().err


def test_the_history_of_a_problem_says_what_won_when_on_which_toolchain(tmp_path, capsys):
    world = World(tmp_path)
    world.store(*SIZES)
    world.nights_pass(2)
    world.driver, world.digests = "590.2", {64: "e" * 32}
    world.run()
    rows = besthistory.history({"m": 64, "n": 4096, "k": 4096}, results=world.results)
    assert [(row["verdict"], row["driver"]) for row in rows] == [
        ("unchanged", "580.1"),
        ("unchanged", "580.1"),
        ("stale", "590.2"),
        ("stored", "590.2"),
    ]
    assert main(["best", "64", "4096", "4096", "--history", "--results", str(world.results)]) == 0
    assert "590.2" in capsys.readouterr().out
    assert main(["best", "65", "4096", "4096", "--history", "--results", str(world.results)]) == 0
    assert "no history of this problem" in capsys.readouterr().out


def test_reading_a_history_writes_nothing(tmp_path):
    before = sorted(Path(tmp_path).rglob("*"))
    assert besthistory.history({"m": 64, "n": 64, "k": 64}, results=tmp_path) == []
    assert sorted(Path(tmp_path).rglob("*")) == before
