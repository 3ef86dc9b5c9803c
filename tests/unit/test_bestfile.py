"""Best files: what is written, that it is written whole, and what is left of a broken one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest

from autotune.bestfile import BestFileWarning, entry_key, entry_to_json, read_best, write_best
from autotune.errors import InputError
from autotune.promotion import decide, promote
from tests.helpers.best_entries import H200, TOOLS, best_file, entry, problem, result

KEY = "hopper_matmul 1,4096,4096,4096,bfloat16,bfloat16,bfloat16,nn,float32,none,none,1"


def test_an_entry_comes_back_as_it_was_written(tmp_path):
    path = best_file(tmp_path, entry())
    assert read_best(path).entry(KEY) == entry()
    assert read_best(path).device == {"kind": "NVIDIA H200", "sm_count": 132}


def test_entries_are_blocks_of_lines_sorted_by_size(tmp_path):
    path = best_file(tmp_path, entry(problem(m=512)), entry(problem(m=64)), entry(problem(m=2048)))
    lines = path.read_text().splitlines()
    assert [line.split(",")[1] for line in lines if line.startswith('  "')] == ["64", "512", "2048"]
    assert '   "kernel_us": 100.0,' in lines
    assert '   "ratio": [1.09, 1.1, 1.11],' in lines
    assert lines[0] == "{"
    assert lines[1] == ' "schema": 2,'
    assert json.loads(path.read_text())["entries"].keys() == {
        entry_key("hopper_matmul", problem(m=m)) for m in (64, 512, 2048)
    }


def test_equal_entries_make_equal_files(tmp_path):
    one, two = entry(problem(m=64)), entry(problem(m=128))
    assert (
        best_file(tmp_path / "a", one, two).read_bytes() == best_file(tmp_path / "b", two, one).read_bytes()
    )


def test_there_is_no_best_file_where_there_is_none(tmp_path):
    assert read_best(tmp_path / "none.json") is None


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("kernel_us", 0, "kernel_us=0: allowed: a finite number above 0"),
        ("kernel_us", float("nan"), "kernel_us=None: allowed: a finite number above 0"),
        ("kernel_us", True, "kernel_us=True: allowed: a finite number above 0"),
        ("xla_us", "fast", "xla_us='fast': allowed: a finite number above 0"),
        ("ratio", [1.2, 1.1, 1.3], "ratio=[1.2, 1.1, 1.3]: allowed: low <= median <= high"),
        ("backend", "cublas", "backend='cublas' with config="),
        ("config", None, "backend='kernel' with config=None"),
        ("config", {"tile_q": 64}, "knob='tile_q': allowed: tile_m"),
        ("config", {"tile_m": "wide"}, "tile_m='wide': allowed: a whole number"),
        ("problem", {"m": 0, "n": 1, "k": 1}, "m=0: allowed: a whole number"),
        ("problem", {"m": 64, "n": 64, "k": 64}, "its problem is that of 'hopper_matmul 1,64,64,64,"),
        ("digest", 3, "digest=3: allowed: a string"),
        ("protocol", [], "protocol=[]: allowed: a mapping"),
        ("date", ..., "date is missing"),
    ],
)
def test_a_broken_entry_is_left_out_and_named(tmp_path, field, value, reason):
    good = entry(problem(m=64))
    path = best_file(tmp_path, entry(), good)
    content = json.loads(path.read_text())
    content["entries"][KEY][field] = value
    if value is ...:
        del content["entries"][KEY][field]
    path.write_text(json.dumps(content))
    with pytest.warns(BestFileWarning) as caught:
        assert [one for _, one in read_best(path).entries()] == [good]
    assert str(caught[0].message).startswith(f"{path}: entry {KEY!r} is left out: {reason}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not JSON (Expecting value: line 1 column 1 (char 0)); restore it, or move it away"),
        ('{"schema": 1, "entr', "is not JSON (Unterminated string"),
        ("[]", "is not a best file: no schema number; restore it, or move it away"),
        ('{"schema": true}', "is not a best file: no schema number; restore it, or move it away"),
        ('{"schema": 3}', "has schema 3; this version reads up to 2: update hopper-autotune"),
        ('{"schema": 1}', "is not a best file: `device` or `entries` is missing"),
    ],
)
def test_a_torn_or_newer_file_is_refused_and_left_as_it_is(tmp_path, text, reason):
    path = tmp_path / "nvidia_h200.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        promote(tmp_path, result(), TOOLS, target="hopper_matmul")
    assert str(caught.value).startswith(f"{path}: {reason}")
    assert path.read_text() == text


def test_a_writer_that_dies_leaves_the_old_file(tmp_path, monkeypatch):
    path = best_file(tmp_path, entry())
    before = path.read_bytes()

    def die(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(OSError, match="No space left"):
        write_best(path, {"kind": "NVIDIA H200"}, {})
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_the_leftover_of_a_killed_writer_is_cleared(tmp_path):
    path = best_file(tmp_path, entry())
    (tmp_path / f".{path.name}.99999.tmp").write_text("{")
    promote(tmp_path, result(), TOOLS, target="hopper_matmul")
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_two_processes_that_promote_at_once_lose_nothing(tmp_path):
    script = """
import sys
from pathlib import Path
from autotune.promotion import promote
from tests.helpers.best_entries import TOOLS, problem, result
first = int(sys.argv[2])
for index in range(12):
    of = problem(m=64 * (first + 2 * index))
    promote(Path(sys.argv[1]), result(of), TOOLS, target="hopper_matmul")
"""
    running = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(first)], env=environment())
        for first in (1, 2)
    ]
    assert [process.wait(timeout=60) for process in running] == [0, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = sorted(one.problem.m for _, one in read_best(tmp_path / "nvidia_h200.json").entries())
    assert found == [64 * size for size in range(1, 25)]


def test_a_first_result_is_written_with_what_it_holds_for(tmp_path):
    promotion = promote(tmp_path, result(), TOOLS, target="hopper_matmul", day="2026-11-30")
    assert (promotion.written, promotion.reason) == (True, "the first sound entry of its problem")
    found = read_best(tmp_path / "nvidia_h200.json")
    assert found.entry(KEY) == entry()
    assert found.device == {
        "kind": "NVIDIA H200", "sm_count": 132, "memory_bytes": H200.memory_bytes, "power_limit_w": 700.0,
    }  # fmt: skip


def test_what_is_replaced_stays_as_previous_and_others_stay_as_they_are(tmp_path):
    path = best_file(tmp_path, entry(ratio=1.05), entry(problem(m=64)))
    assert promote(tmp_path, result(ratio=1.2), TOOLS, target="hopper_matmul").written
    content = json.loads(path.read_text())
    expected = entry_to_json(entry(ratio=1.05))
    del expected["problem"]
    assert content["entries"][KEY]["previous"] == expected
    assert read_best(path).entry(entry_key("hopper_matmul", problem(m=64))) == entry(problem(m=64))


def test_a_broken_entry_of_another_problem_is_kept_for_a_person(tmp_path):
    path = best_file(tmp_path, entry())
    content = json.loads(path.read_text())
    content["entries"]["hopper_matmul torn"] = {"kernel_us": -1}
    content["entries"]["hopper_matmul odd"] = 7
    path.write_text(json.dumps(content))
    assert promote(tmp_path, result(problem(m=64)), TOOLS, target="hopper_matmul").written
    kept = json.loads(path.read_text())["entries"]
    assert kept["hopper_matmul torn"] == {"kernel_us": -1}
    assert kept["hopper_matmul odd"] == 7


@pytest.mark.parametrize("evaluator", ["replay", "lower"])
def test_only_measured_results_are_promoted(tmp_path, evaluator):
    with pytest.raises(ValueError, match="only measured results"):
        promote(tmp_path / "best", result(evaluator=evaluator), TOOLS, target="hopper_matmul")
    assert not (tmp_path / "best").exists()


OTHER = {"tile_m": 64, "tile_n": 128, "tile_k": 64, "compute_wgs": 1}


@pytest.mark.parametrize(
    ("old", "new", "raced", "written", "reason"),
    [
        (
            {"ratio": 1.10},
            {"ratio": 1.10, "knobs": OTHER},
            False,
            True,
            "gain over XLA 1.1000, the entry there 1.1000",
        ),
        (
            {"ratio": 1.10},
            {"ratio": 1.09, "knobs": OTHER},
            False,
            False,
            "gain over XLA 1.0900, the entry there 1.1000",
        ),
        ({"ratio": 1.10}, {"ratio": 1.09, "knobs": OTHER}, True, True, "the entry there was in the race"),
        # XLA won both times: how badly the kernel lost does not matter.
        (
            {"ratio": 0.9, "backend": "xla"},
            {"ratio": 0.8, "backend": "xla"},
            False,
            True,
            "gain over XLA 1.0000",
        ),
        (
            {"ratio": 1.2},
            {"ratio": 0.9, "backend": "xla"},
            False,
            False,
            "gain over XLA 1.0000, the entry there 1.2000",
        ),
        (
            {"ratio": 1.2, "jax": "0.11.2"},
            {"ratio": 1.1},
            False,
            True,
            "the entry there is stale: jax 0.11.2, now 0.12.0.1",
        ),
        (
            {"ratio": 1.2, "driver": "570.1"},
            {"ratio": 1.1},
            False,
            True,
            "the entry there is stale: driver 570.1, now 580.1",
        ),
        (
            {"ratio": 1.2, "digest": "e" * 32},
            {"ratio": 1.1},
            False,
            True,
            "the entry there is stale: its lowered module has changed",
        ),
        (
            {"ratio": 1.2, "protocol": {"timer": "cupti", "l2": "warm", "rounds": 20, "warmup": 2}},
            {"ratio": 1.1},
            False,
            True,
            "the entry there was measured by another protocol",
        ),
    ],
)
def test_who_stays_is_decided_by_the_gain_over_xla_unless_the_incumbent_is_stale(
    old, new, raced, written, reason
):
    promotion = decide(entry(**new), entry(**old), incumbent_raced=raced)
    assert promotion.written is written
    assert promotion.reason.startswith(reason)


def test_an_entry_without_a_rival_has_no_ratio(tmp_path):
    lone = result()
    lone = replace(lone, winner=replace(lone.winner, xla_time_us=None, ratio=None, ratio_interval=None))
    promote(tmp_path, lone, TOOLS, target="hopper_matmul")
    found = read_best(tmp_path / "nvidia_h200.json").entry(KEY)
    assert (found.kernel_us, found.xla_us, found.ratio, found.gain) == (100.0, None, None, 1.0)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
