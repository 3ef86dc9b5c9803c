"""Best files of earlier versions are read as if they had been written today."""

from __future__ import annotations

import json
import warnings

import pytest

from autotune.bestfile import BestFileWarning, read_best
from autotune.bestmigration import migrated
from autotune.promotion import promote
from tests.helpers.best_entries import TARGET, TOOLS, problem, result

KEY = "hopper_matmul 1,4096,4096,4096,bfloat16,bfloat16,bfloat16,nn,float32,none,none,1"
# A year old: no knob `delay_release` yet, `stages` under Pallas's name, no card.
OLD = {
    "schema": 1,
    "device": {"kind": "NVIDIA H200", "sm_count": 132, "memory_bytes": 150754820096, "power_limit_w": 700.0},
    "entries": {
        KEY: {
            "problem": {"m": 4096, "n": 4096, "k": 4096},
            "backend": "kernel",
            "config": {
                "tile_m": 128,
                "tile_n": 256,
                "tile_k": 64,
                "max_concurrent_steps": 3,
                "epi_tile_n": 32,
            },
            "kernel_us": 171.3,
            "xla_us": 173.0,
            "ratio": [1.001, 1.01, 1.02],
            "numerics": "float32",
            "protocol": {"timer": "cupti", "l2": "clean", "rounds": 20, "warmup": 2},
            "digest": "a" * 32,
            "driver": "570.1",
            "jax": "0.11.2",
            "jaxlib": "0.11.2",
            "date": "2025-11-30",
        }
    },
}


@pytest.fixture
def old_file(tmp_path):
    path = tmp_path / "nvidia_h200.json"
    path.write_text(json.dumps(OLD))
    return path


def test_a_year_old_entry_is_read_with_its_knobs_renamed_and_the_missing_one_neutral(old_file):
    with warnings.catch_warnings():
        warnings.simplefilter("error", BestFileWarning)
        found = read_best(old_file).entry(KEY)
    assert found.config == TARGET.config_from_knobs(
        {"tile_m": 128, "tile_n": 256, "tile_k": 64, "stages": 3, "epi_n": 32, "delay_release": 0}
    )
    assert (found.kernel_us, found.date, found.card, found.power_limit_w) == (171.3, "2025-11-30", None, None)


def test_reading_leaves_an_old_file_and_the_next_winner_writes_it_in_the_present_schema(old_file):
    before = old_file.read_bytes()
    read_best(old_file)
    assert old_file.read_bytes() == before
    promote(old_file.parent, result(problem(m=64)), TOOLS, target="hopper_matmul")
    content = json.loads(old_file.read_text())
    assert content["schema"] == 2
    assert content["entries"][KEY]["config"]["stages"] == 3
    assert "max_concurrent_steps" not in content["entries"][KEY]["config"]


def test_a_broken_entry_passes_through_and_is_named_when_it_is_read(old_file):
    content = {
        **OLD,
        "entries": {**OLD["entries"], "hopper_matmul odd": 7, "hopper_matmul torn": {"config": []}},
    }
    old_file.write_text(json.dumps(content))
    with pytest.warns(BestFileWarning) as caught:
        keys = [key for key, _ in read_best(old_file).entries()]
    assert keys == [KEY]
    assert [
        "hopper_matmul odd" in str(w.message) or "hopper_matmul torn" in str(w.message) for w in caught
    ] == [
        True,
        True,
    ]


def test_a_present_file_is_left_as_it_is():
    entries = {KEY: {"config": {"max_concurrent_steps": 3}}}
    assert migrated(entries, 2) == entries
    assert migrated(entries, 1)[KEY]["config"] == {"stages": 3}
    assert entries == {KEY: {"config": {"max_concurrent_steps": 3}}}
